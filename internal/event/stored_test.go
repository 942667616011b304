package event_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// storedRow is a row of the log as a fixture keeps it. The row holds one event.
type storedRow struct {
	Stream    event.Stream    `json:"stream"`
	First     int64           `json:"first"`
	Count     int             `json:"count"`
	Epoch     int64           `json:"epoch"`
	Time      string          `json:"time"`
	SessionID event.SessionID `json:"session_id"`
	UserID    string          `json:"user_id"`
	Meta      json.RawMessage `json:"meta"`
	Data      json.RawMessage `json:"data"`
	Salt      []byte          `json:"salt"` // base64
	Prev      string          `json:"prev"` // hex
	Hash      string          `json:"hash"` // hex
}

func (s *storedRow) row(t *testing.T) event.Row {
	t.Helper()
	at, err := event.ParseTime(s.Time)
	if err != nil {
		t.Fatal(err)
	}
	r := event.Row{
		Stream: s.Stream, First: s.First, Count: s.Count, Epoch: s.Epoch, Time: at,
		SessionID: s.SessionID, UserID: s.UserID, Meta: compact(t, s.Meta), Data: compact(t, s.Data), Salt: s.Salt,
	}
	for digest, text := range map[*event.Digest]string{&r.Prev: s.Prev, &r.Hash: s.Hash} {
		if n, err := hex.Decode(digest[:], []byte(text)); err != nil || n != len(digest) {
			t.Fatalf("digest %q: %v", text, err)
		}
	}
	return r
}

func compact(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every form in which a type was ever stored has a fixture that this binary
// must read. -rewrite adds the present form of a type where no fixture has it
// and never changes one that is there.
func TestStoredForms(t *testing.T) {
	const dir = "testdata/stored"
	forms := map[event.Type]int{}
	present := map[event.Type]bool{}
	files, err := filepath.Glob(dir + "/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var stored storedRow
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		row := stored.row(t)
		if err := row.Check(row.Prev); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		events, err := row.Events()
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		e := events[0]
		if err := e.Decode(); err != nil || e.Data.EventType() != e.Type {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if !strings.HasPrefix(filepath.Base(file), fmt.Sprintf("%s.v%d.", e.Type, e.Version)) {
			t.Errorf("%s holds %s, version %d", file, e.Type, e.Version)
		}
		forms[e.Type]++
		if bytes.Equal(e.Raw, presentForm(t, e.Type).Events[0].Raw) {
			present[e.Type] = true
		}
	}
	for _, typ := range event.Types() {
		if present[typ] {
			continue
		}
		_, version, _ := event.New(typ)
		file := fmt.Sprintf("%s/%s.v%d.%d.json", dir, typ, version, forms[typ]+1)
		if !*rewrite {
			t.Errorf("no fixture holds the present form of %s; -rewrite adds %s", typ, file)
			continue
		}
		row := presentForm(t, typ).Stamp(4, 2, event.Digest{1, 2, 3}, noon)
		text, err := json.MarshalIndent(storedRow{
			Stream: row.Stream, First: row.First, Count: row.Count, Epoch: row.Epoch, Time: event.FormatTime(row.Time),
			SessionID: row.SessionID, UserID: row.UserID, Meta: row.Meta, Data: row.Data, Salt: row.Salt,
			Prev: hex.EncodeToString(row.Prev[:]), Hash: hex.EncodeToString(row.Hash[:]),
		}, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// presentForm is an event of a type with every field filled. Its texts keep
// to characters that every JSON writer spells the same.
func presentForm(t *testing.T, typ event.Type) *event.Sealed {
	e := draft(filled(typ, &legible{}))
	e.RunID, e.Turn, e.StepID, e.FSMState = "run_1", 1, "step_1_1", "Reasoning"
	return seal(t, e)
}

type legible struct{ plain }

func (*legible) text(name string) string { return name + " of somebody" }

func (*legible) value() canonjson.Value { return canonjson.Value(`{"a":[1,true,null,"é"]}`) }

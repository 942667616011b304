package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

const secret = "a-secret "

// holders names the files of a store that hold the secret.
func holders(t *testing.T, dir string) (found []string) {
	t.Helper()
	for _, name := range []string{DatabaseFile, DatabaseFile + "-wal"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte(secret)); n > 0 {
			found = append(found, fmt.Sprintf("%s (%d times)", name, n))
		}
	}
	return found
}

// forgotten has the writer do what remains after an erasing.
func forgotten(t *testing.T, s *Store) {
	t.Helper()
	err := s.byWriter(t.Context(), func(w *writer) error {
		for n := 0; w.forget.left > 0 || w.forget.truncate; n++ {
			if n == 1000 {
				return errors.New("no end")
			}
			w.forgetStep()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func erasing(id event.SessionID) eventlog.Append {
	gone := single(id, &event.SessionErased{})
	gone.Erase = id
	return gone
}

// life is what the content of a session is made of, in all places where it stands.
type life struct {
	t    *testing.T
	s    *Store
	id   event.SessionID
	word string
	r    *rand.Rand
	runs []event.RunID
}

func (l *life) text(most int) string { return strings.Repeat(l.word, 1+l.r.IntN(most)) }

func (l *life) settings() event.Settings {
	return event.Settings{Instructions: event.TextContent(l.text(1500)), Title: l.text(20),
		Metadata: canonjson.Value(fmt.Sprintf(`{"note":%q}`, l.text(600)))}
}

func (l *life) append(run event.RunID, data ...event.Data) {
	l.t.Helper()
	a := single(l.id, data[0])
	a.Entries[0].Events = nil
	for _, d := range data {
		a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: l.id, UserID: "ann", RunID: run, Data: d})
	}
	a.Blobs = event.Externalize(l.id, a.Entries[0].Events)
	mustAppend(l.t, l.s, a)
}

// snapshot stores the session as it is now: small or large, so that pages are freed.
func (l *life) snapshot() {
	l.t.Helper()
	h, err := l.s.Head(l.t.Context(), l.id.Stream())
	if err == nil {
		err = l.s.SaveSnapshot(l.t.Context(), eventlog.Snapshot{SessionID: l.id, Version: 1, Head: h.Seq, Epoch: h.Epoch, State: []byte(l.text(800))})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// step lets something happen in the session.
func (l *life) step(i int) {
	switch k := l.r.IntN(6); {
	case i == 0:
		l.append("", &event.SessionCreated{Alias: l.word + string(l.id), Settings: l.settings()})
	case k == 0:
		l.append("", &event.SessionUpdated{Version: i, Changed: []string{"instructions", "metadata", "title"}, Settings: l.settings()})
	case k <= 2 || len(l.runs) == 0:
		run := event.RunID(fmt.Sprintf("run_%s_%d", l.id, i))
		l.append(run, &event.RunCreated{Kind: "input", TextPreview: l.text(30), Actor: l.text(4),
			Input:       []event.InputItem{{Type: "text", Content: event.TextContent(l.text(5000))}},
			Idempotency: &event.IdempotencyKey{Operation: "submit", KeyHash: fmt.Sprint(l.r.Uint32(), l.word), Fingerprint: event.RefOf([]byte(l.word))}},
			&event.RunQueued{})
		l.runs = append(l.runs, run)
	case k == 3:
		l.append(l.runs[0], &event.RunStarted{}, &event.TextEnded{Content: event.TextContent(l.text(300))})
	case k == 4:
		l.append(l.runs[0], &event.RunFailed{Code: "odd", Message: l.text(200)})
		l.runs = l.runs[1:]
	default:
		l.append(l.runs[0], &event.RunCancelled{Reason: l.text(40)})
		l.runs = l.runs[1:]
	}
}

// lived fills a store with sessions, of which the one that is returned is made
// of the secret.
func lived(t *testing.T, s *Store, seed uint64, rebuild bool) event.SessionID {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	var lives []*life
	for i := range 5 {
		word := "nothing "
		if i == 2 {
			word = secret
		}
		lives = append(lives, &life{t: t, s: s, id: newSession(t), word: word, r: r})
	}
	for i := range 80 {
		for _, l := range lives {
			if i == 0 || r.IntN(3) > 0 {
				l.step(i)
			}
			if r.IntN(4) == 0 {
				l.snapshot()
			}
		}
		if rebuild && i%30 == 29 {
			if report, err := s.Verify(t.Context(), VerifyOptions{Rebuild: true}); err != nil || !report.OK() {
				t.Fatalf("%v %+v", err, report)
			}
		}
	}
	if err := s.byWriter(t.Context(), func(w *writer) error { return w.exec("PRAGMA wal_checkpoint") }); err != nil {
		t.Fatal(err)
	}
	if len(holders(t, s.cfg.Dir)) != 2 {
		t.Fatal("the secret is not where it is looked for")
	}
	return lives[2].id
}

// What was erased stands in no file any more, wherever it stood before: in
// events, in blobs, in the derived rows, in those that were changed or built
// anew before the erasing. Half of these seeds leave something in the
// unallocated parts of pages.
func TestEraseLeavesNoBytes(t *testing.T) {
	for _, rebuild := range []bool{false, true} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("rebuild %v, seed %d", rebuild, seed), func(t *testing.T) {
				dir := t.TempDir()
				s := open(t, Config{Dir: dir, Rows: eventlog.Rows, Sync: SyncNormal})
				mustAppend(t, s, erasing(lived(t, s, seed, rebuild)))
				forgotten(t, s)
				if found := holders(t, dir); len(found) != 0 {
					t.Errorf("still in %v", found)
				}
				mustVerify(t, s)
				if err := s.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				if found := holders(t, dir); len(found) != 0 {
					t.Errorf("closed, still in %v", found)
				}
			})
		}
	}
}

// A process that dies right after the commit leaves the rest to the next one.
func TestEraseThenDeath(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: SyncNormal})
	r, err := s.prepare(t.Context(), erasing(lived(t, s, 1, false)))
	if err != nil {
		t.Fatal(err)
	}
	err = s.byWriter(t.Context(), func(w *writer) error {
		w.commit([]*request{r})
		return os.CopyFS(dir, os.DirFS(s.cfg.Dir))
	})
	if err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	if len(holders(t, dir)) != 2 {
		t.Fatal("nothing is left to do")
	}
	s = open(t, Config{Dir: dir, Rows: eventlog.Rows})
	forgotten(t, s)
	if found := holders(t, dir); len(found) != 0 {
		t.Errorf("still in %v", found)
	}
	mustVerify(t, s)
}

// While a reader is in the way the write-ahead log stays; it is cut soon after,
// also when nothing else ever happens.
func TestEraseBesideReader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), Config{Dir: dir, Rows: eventlog.Rows})
		if err != nil {
			t.Fatal(err)
		}
		id := lived(t, s, 1, false)
		tx, err := s.readers.db.(*sql.DB).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow("SELECT count(*) FROM log").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, s, erasing(id))
		time.Sleep(time.Hour)
		synctest.Wait()
		if found := holders(t, dir); len(found) != 2 {
			t.Fatalf("in %v, while a reader looks at it", found)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lastForget)
		synctest.Wait()
		if found := holders(t, dir); len(found) != 0 {
			t.Errorf("still in %v", found)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// An erased store is swept between the appends, in steps.
func TestSweepInSteps(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: SyncNormal})
	id, other := newSession(t), newSession(t)
	mustAppend(t, s, created(id, ""))
	mustAppend(t, s, created(other, ""))
	for range 3 * sweepPages {
		mustAppend(t, s, said(other, strings.Repeat("nothing ", 500)))
	}
	mustAppend(t, s, erasing(id))
	mustAppend(t, s, erasing(other)) // begins anew
	forgotten(t, s)
	unswept := true
	if err := s.byWriter(t.Context(), func(w *writer) (err error) { unswept, err = w.unswept(t.Context()); return err }); err != nil || unswept {
		t.Errorf("not swept: %v", err)
	}
	mustVerify(t, s)
	for i, page := range []struct {
		data []byte
		want int
	}{
		{[]byte{13, 0, 0, 0, 1, 0, 12, 0, 0, 0, 1, 1, 9, 9}, 2},
		{[]byte{5, 0, 0, 0, 1, 0, 14, 0, 0, 0, 0, 0, 0, 0, 9}, 0},
		{[]byte{13, 0, 0, 0xff, 0xff, 0, 12, 0, 0, 0, 0, 0}, 0},
		{[]byte{13, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0}, 0},
		{make([]byte, 65536), 65528},
		{nil, 0},
	} {
		if got := len(unallocated(page.data)); got != page.want {
			t.Errorf("page %d: %d bytes are unallocated, want %d", i, got, page.want)
		}
	}
}

// intact has SQLite look at every page, cell and index of the database.
func intact(t *testing.T, s *Store) {
	t.Helper()
	var says string
	err := s.byWriter(t.Context(), func(w *writer) error {
		return w.conn.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&says)
	})
	if err != nil || says != "ok" {
		t.Fatalf("integrity: %v %s", err, says)
	}
}

// The sweep writes to pages: whatever life they had, the database stays whole,
// goes on to be written, and is whole when it is opened again.
func TestSweepKeepsTheDatabaseWhole(t *testing.T) {
	for seed := uint64(100); seed < 105; seed++ {
		dir := t.TempDir()
		s := open(t, Config{Dir: dir, Rows: eventlog.Rows, Sync: SyncNormal})
		for round := range 3 {
			id := lived(t, s, seed+uint64(100*round), round == 1)
			mustAppend(t, s, erasing(id))
			forgotten(t, s)
			intact(t, s)
		}
		mustVerify(t, s)
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Dir: dir, Rows: eventlog.Rows, Sync: SyncNormal})
		lived(t, s, seed, false)
		intact(t, s)
		mustVerify(t, s)
	}
}

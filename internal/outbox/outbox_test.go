package outbox_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"pgregory.net/rapid"
)

const target = event.TargetID("tgt_1")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// stream makes the events of a target's stream out of their data, a minute apart.
func stream(data ...event.Data) []event.Event {
	var events []event.Event
	for i, d := range data {
		events = append(events, event.Event{
			Stream: target.Stream(), Seq: int64(i + 1), Epoch: 4, Time: noon.Add(time.Duration(i) * time.Minute),
			SessionID: "ses_1", RunID: "run_1", UserID: "ann", Data: d,
		})
	}
	return events
}

// fold executes changes of the one table, by delivery.
func fold(t tester, changes []derived.Change, into map[string]map[string]any) {
	columns := derived.SpecOf(derived.Outbox).Columns
	for _, c := range changes {
		if c.Table != derived.Outbox {
			continue
		}
		if c.Table != derived.Outbox || len(c.Key) != 2 || c.Key[0] != (derived.Col{Name: "target_id", Value: string(target)}) {
			t.Fatalf("a change of another row: %v", c)
		}
		id := c.Key[1].Value.(string)
		if (into[id] == nil) != (c.Op == derived.Insert) {
			t.Fatalf("%v, but the row is %v", c, into[id])
		}
		if into[id] == nil {
			into[id] = map[string]any{}
		}
		for _, col := range c.Cols {
			if !slices.Contains(columns, col.Name) {
				t.Fatalf("no column %s", col.Name)
			}
			into[id][col.Name] = col.Value
		}
	}
}

type tester interface{ Fatalf(string, ...any) }

func at(minutes int) string { return event.FormatTime(noon.Add(time.Duration(minutes) * time.Minute)) }

func TestRowsFollowADelivery(t *testing.T) {
	data := []event.Data{
		&event.DeliveryEnqueued{DeliveryID: "dlv_1", Type: "webhook", Body: "sha256:b", Address: "sha256:a"},
		&event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 1, Cycle: 1},
		&event.DeliveryAttemptFailed{DeliveryID: "dlv_1", Attempt: 1, Code: "status", Status: 503, RetryAt: "2026-03-01T13:00:00.000000Z"},
		&event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 2, Cycle: 2},
		&event.DeliveryDeadLettered{DeliveryID: "dlv_1", Attempts: 2, Code: "gone"},
		&event.DeliveryReplayed{DeliveryID: "dlv_1"},
		&event.DeliveryAttemptStarted{DeliveryID: "dlv_1", Attempt: 3, Cycle: 1},
		&event.DeliveryDelivered{DeliveryID: "dlv_1", Attempt: 3, Status: 204},
	}
	want := []map[string]any{
		{"status": "pending", "next_at": at(0), "lane_seq": int64(1), "created_at": at(0), "body": "sha256:b", "address": "sha256:a"},
		{"status": "pending", "n_attempts": int64(1), "n_cycle": int64(1), "n_open": int64(1), "n_open_epoch": int64(4)},
		{"status": "pending", "n_open": int64(0), "n_open_epoch": int64(0), "next_at": "2026-03-01T13:00:00.000000Z", "last_code": "status", "n_last_status": int64(503)},
		{"n_attempts": int64(2), "n_cycle": int64(2), "n_open": int64(2)},
		{"status": "dead_lettered", "next_at": "", "n_open": int64(0), "n_open_epoch": int64(0), "last_code": "gone", "n_attempts": int64(2)},
		{"status": "pending", "next_at": at(5), "lane_seq": int64(6), "n_cycle": int64(0), "n_attempts": int64(2), "created_at": at(0)}, // I-25: at the tail
		{"n_attempts": int64(3), "n_cycle": int64(1), "n_open": int64(3)},
		{"status": "delivered", "next_at": "", "n_open": int64(0), "last_code": "", "n_last_status": int64(204), "lane_seq": int64(6), "updated_at": at(7)},
	}
	rows := map[string]map[string]any{}
	for i, e := range stream(data...) {
		fold(t, outbox.Rows([]event.Event{e}), rows)
		for name, value := range want[i] {
			if got := rows["dlv_1"][name]; got != value {
				t.Errorf("after %s: %s is %v, want %v", e.Data.EventType(), name, got, value)
			}
		}
	}
	if got := rows["dlv_1"]; got["session_id"] != "ses_1" || got["run_id"] != "run_1" || got["user_id"] != "ann" || got["type"] != "webhook" {
		t.Errorf("whose delivery it is: %v", got)
	}
}

// I-03: rows of many events at once are the rows append by append; erased
// content is passed over.
func TestRowsAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data []event.Data
		ids := []event.DeliveryID{"dlv_1", "dlv_2", "dlv_3"}
		for _, id := range ids {
			data = append(data, &event.DeliveryEnqueued{DeliveryID: id, Type: "webhook"})
		}
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			data = append(data, rapid.SampledFrom([]event.Data{
				&event.DeliveryAttemptStarted{DeliveryID: id, Attempt: 2, Cycle: 1}, &event.DeliveryDelivered{DeliveryID: id, Status: 200},
				&event.DeliveryAttemptFailed{DeliveryID: id, Code: "x"}, &event.DeliveryDeadLettered{DeliveryID: id, Code: "y"},
				&event.DeliveryReplayed{DeliveryID: id}, &event.RunQueued{}, nil,
			}).Draw(t, "event"))
		}
		events := stream(data...)
		one, all := map[string]map[string]any{}, map[string]map[string]any{}
		for i := range events {
			fold(t, outbox.Rows(events[i:i+1]), one)
		}
		changes := outbox.Rows(events)
		fold(t, changes, all)
		if !reflect.DeepEqual(one, all) {
			t.Fatalf("append by append %v\nat once %v", one, all)
		}
		changes = slices.DeleteFunc(changes, func(c derived.Change) bool { return c.Table != derived.Outbox })
		if len(changes) != len(ids) {
			t.Fatalf("%d changes for %d rows", len(changes), len(ids))
		}
	})
}

// I-26: the body is canonical whatever is in it, so that its bytes are one.
func TestBodyIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.String()
		m := outbox.Message{
			DeliveryID: event.DeliveryID(word.Draw(t, "delivery")), SessionID: event.SessionID(word.Draw(t, "session")),
			ThreadID: word.Draw(t, "thread"), RunID: event.RunID(word.Draw(t, "run")),
			OutputKind: word.Draw(t, "kind"), Text: word.Draw(t, "text"),
		}
		if rapid.Bool().Draw(t, "structured") {
			m.Structured = canonjson.Value(rapid.SampledFrom([]string{`null`, `{"a":[1,"<é>"]}`, `""`, `12345678901234567890`}).Draw(t, "value"))
		}
		body := m.Body()
		canonical, err := canonjson.Canonicalize(body, canonjson.Limits{})
		if err != nil || !canonical.Equal(body) {
			t.Fatalf("not canonical (%v): %s", err, body)
		}
		var read struct {
			Content    string `json:"content"`
			DeliveryID string `json:"delivery_id"`
			SessionID  string `json:"session_id"`
			RunID      string `json:"run_id"`
			ThreadID   string `json:"thread_id"`
			Parts      []struct{ Type, Text string }
			Metadata   struct {
				OutputKind string          `json:"output_kind"`
				Structured json.RawMessage `json:"structured_output"`
			}
		}
		if err := json.Unmarshal(body, &read); err != nil {
			t.Fatal(err)
		}
		if read.Content != m.Text || read.DeliveryID != string(m.DeliveryID) || read.SessionID != string(m.SessionID) || read.RunID != string(m.RunID) ||
			read.ThreadID != m.ThreadID || len(read.Parts) != 1 || read.Parts[0].Text != m.Text || read.Parts[0].Type != "text" ||
			read.Metadata.OutputKind != m.OutputKind || string(read.Metadata.Structured) != string(m.Structured) {
			t.Fatalf("%+v became %s", m, body)
		}
	})
}

func TestBody(t *testing.T) {
	m := outbox.Message{
		DeliveryID: "dlv_1", SessionID: "ses_1", ThreadID: "thr", RunID: "run_1", OutputKind: event.OutputStructured,
		Text: `{"n":1}`, Structured: canonjson.Value(`{"n":1}`),
	}
	const want = `{"content":"{\"n\":1}","delivery_id":"dlv_1","metadata":{"output_kind":"structured_output","structured_output":{"n":1}},` +
		`"parts":[{"text":"{\"n\":1}","type":"text"}],"run_id":"run_1","session_id":"ses_1","thread_id":"thr"}`
	if got := string(m.Body()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

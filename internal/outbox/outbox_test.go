package outbox_test

import (
	"encoding/json"
	"math"
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
		if c.Table == derived.Replays {
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
			if n, ok := into[id][col.Name].(int64); ok && c.Op == derived.Add {
				into[id][col.Name] = n + col.Value.(int64)
				continue
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
	})
}

func TestSchedule(t *testing.T) {
	s := outbox.Schedule{MaxAttempts: 5, InitialBackoff: time.Second, MaxBackoff: 6 * time.Second, MaxAge: time.Hour}
	for name, row := range map[string]struct {
		cycle     int
		age       time.Duration
		after     time.Duration
		permanent bool
		jitter    float64
		want      time.Duration // from now; negative: no further attempt
	}{
		"first":                      {cycle: 1, want: time.Second},
		"second":                     {cycle: 2, want: 2 * time.Second},
		"jitter goes upwards":        {cycle: 2, jitter: 0.8, want: 2400 * time.Millisecond},
		"never past the bound":       {cycle: 4, want: 6 * time.Second},
		"nor with jitter":            {cycle: 4, jitter: 0.9, want: 6 * time.Second},
		"what the receiver asked":    {cycle: 1, after: 10 * time.Second, want: 10 * time.Second},
		"asked for less":             {cycle: 2, after: time.Second, want: 2 * time.Second},
		"the last attempt":           {cycle: 5, want: -1},
		"past the last":              {cycle: 9, want: -1},
		"permanent":                  {cycle: 1, permanent: true, want: -1},
		"just within the age":        {cycle: 1, age: time.Hour - time.Second, want: time.Second},
		"past the age":               {cycle: 1, age: time.Hour - time.Second + 1, want: -1},
		"asked to wait past the age": {cycle: 1, after: 2 * time.Hour, want: -1},
		"asked to wait for ever":     {cycle: 1, after: math.MaxInt64, want: -1},
		"no attempt was counted":     {cycle: 0, want: time.Second},
	} {
		got := s.Next(row.cycle, noon.Add(-row.age), noon, row.after, row.permanent, row.jitter)
		if row.want < 0 {
			if !got.IsZero() {
				t.Errorf("%s: another attempt after %v", name, got.Sub(noon))
			}
		} else if got.IsZero() || got.Sub(noon) != row.want {
			t.Errorf("%s: after %v, want %v", name, got.Sub(noon), row.want)
		}
	}
}

// However many attempts are allowed, the wait never falls back.
func TestWaitNeverFalls(t *testing.T) {
	s := outbox.Schedule{MaxAttempts: 1000, MaxAge: math.MaxInt64}
	before := time.Duration(0)
	for cycle := 1; cycle < s.MaxAttempts; cycle++ {
		d := s.Next(cycle, noon, noon, 0, false, 0).Sub(noon)
		if d < before || d > 6*time.Hour || cycle > 13 && d != 6*time.Hour {
			t.Fatalf("attempt %d is followed after %v, the one before after %v", cycle, d, before)
		}
		before = d
	}
}

func TestScheduleDefaults(t *testing.T) {
	want := outbox.Schedule{MaxAttempts: 12, InitialBackoff: 5 * time.Second, MaxBackoff: 6 * time.Hour, MaxAge: 72 * time.Hour}
	if got := (outbox.Schedule{}).WithDefaults(); got != want {
		t.Errorf("%+v", got)
	}
	own := outbox.Schedule{MaxAttempts: 1, InitialBackoff: 2, MaxBackoff: 3, MaxAge: 4}
	if got := own.WithDefaults(); got != own {
		t.Errorf("%+v", got)
	}
}

// Whatever is configured, an attempt lies within the bounds and not before now.
func TestScheduleBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Int64Range(1, int64(365*24*time.Hour))
		s := outbox.Schedule{
			MaxAttempts: rapid.IntRange(1, 200).Draw(t, "attempts"), InitialBackoff: time.Duration(length.Draw(t, "initial")),
			MaxBackoff: time.Duration(length.Draw(t, "max")), MaxAge: time.Duration(length.Draw(t, "age")),
		}
		cycle := rapid.IntRange(0, 220).Draw(t, "cycle")
		after := time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "after"))
		began := noon.Add(-time.Duration(length.Draw(t, "began")))
		got := s.Next(cycle, began, noon, after, false, rapid.Float64Range(0, 0.999999).Draw(t, "jitter"))
		if got.IsZero() {
			return
		}
		d := got.Sub(noon)
		if cycle >= s.MaxAttempts || got.Sub(began) > s.MaxAge || d < after || d < min(s.InitialBackoff, s.MaxBackoff) || d > max(after, s.MaxBackoff) {
			t.Fatalf("attempt %d of %+v after %v", cycle, s, d)
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

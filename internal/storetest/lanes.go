package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A look into a lane gives what is pending, in order, with what is sent, within
// its bounds; what is missing is said.
func testAhead(t *testing.T, s *suite) {
	id := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	to := event.NewBlob(id, event.BlobDelivery, []byte(`{"type":"webhook"}`))
	var all []event.DeliveryID
	for i := range 6 {
		body := event.NewBlob(id, event.BlobDelivery, fmt.Appendf(nil, "body of %02d", i))
		if i == 3 {
			body = event.NewBlob(id, event.BlobDelivery, make([]byte, 1000))
		}
		d := event.DeliveryIDFor(s.run("ann", id), target, 0)
		all = append(all, d)
		c := command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryEnqueued{DeliveryID: d, Type: "webhook", Body: body.Ref, Address: to.Ref}))
		if i != 4 {
			c.Blobs = []event.Blob{body, to}
		}
		s.must(c)
	}
	s.must(command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryDelivered{DeliveryID: all[0], Status: 200})))
	for _, row := range []struct {
		q    eventlog.Ahead
		want []int
	}{
		{eventlog.Ahead{Limit: 10, Bytes: 1 << 20, Largest: 1 << 20}, []int{1, 2, 3, 4, 5}}, {eventlog.Ahead{Limit: 2, Bytes: 1 << 20, Largest: 1 << 20}, []int{1, 2}},
		{eventlog.Ahead{Limit: 10, Bytes: 11, Largest: 1 << 20}, []int{1, 2}}, {eventlog.Ahead{Limit: 10, Bytes: 10, Largest: 1 << 20}, []int{1}},
		{eventlog.Ahead{Limit: 10, Bytes: 1, Largest: 1 << 20}, []int{1}}, {eventlog.Ahead{Limit: 10, Bytes: 1}, []int{1, 2, 3, 4, 5}},
		{eventlog.Ahead{Limit: 10, Bytes: 30, Largest: 999}, []int{1, 2, 3, 4, 5}}, {eventlog.Ahead{Limit: 10, Bytes: 1, Largest: 1 << 20, Due: "2000"}, []int{1, 2, 3, 4, 5}},
	} {
		list, err := s.Ahead(t.Context(), target, row.q)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i := range list {
			o := &list[i]
			n := slices.Index(all, o.ID)
			got = append(got, n)
			body := ""
			if n != 3 && n != 4 && row.q.Largest > 0 && row.q.Due == "" {
				body = fmt.Sprintf("body of %02d", n)
			}
			size := int64(10)
			switch n {
			case 3:
				size = 1000
			case 4:
				size = 0
			}
			if n != 3 && string(o.Message) != body || n == 3 && len(o.Message) != 0 && row.q.Largest < 1000 || o.Size != size || o.Gone != (n == 4) || string(o.To) != string(to.Bytes) {
				t.Errorf("%+v: %d: %q of %d to %q, gone %v", row.q, n, o.Message, o.Size, o.To, o.Gone)
			}
			if want, err := s.Delivery(t.Context(), o.ID); err != nil || o.DeliveryRow != want {
				t.Errorf("%+v %v, want %+v", o.DeliveryRow, err, want)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%+v: %v, want %v", row.q, got, row.want)
		}
	}
	if list, err := s.Ahead(t.Context(), "tgt_none", eventlog.Ahead{Limit: 1}); err != nil || len(list) != 0 {
		t.Errorf("a lane that is not there: %d, %v", len(list), err)
	}
}

// A delivery whose attempt is open is sent again whenever it was due: it comes with
// its body, also where the clock was set back since. // I-24
func testAheadOpen(t *testing.T, s *suite) {
	id := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	body, to := event.NewBlob(id, event.BlobDelivery, []byte("body")), event.NewBlob(id, event.BlobDelivery, []byte(`{"type":"webhook"}`))
	open, waits := event.DeliveryIDFor("run_1", target, 0), event.DeliveryIDFor("run_2", target, 0)
	c := command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryEnqueued{DeliveryID: open, Type: "webhook", Body: body.Ref, Address: to.Ref}),
		draft("ann", id, "run_2", &event.DeliveryEnqueued{DeliveryID: waits, Type: "webhook", Body: body.Ref, Address: to.Ref}))
	c.Blobs = []event.Blob{body, to}
	s.must(c)
	s.must(command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryAttemptStarted{DeliveryID: open, Attempt: 1, Cycle: 1})))
	list, err := s.Ahead(t.Context(), target, eventlog.Ahead{Limit: 10, Bytes: 1 << 20, Largest: 1 << 20, Due: "1999"})
	if err != nil || len(list) != 2 || list[0].ID != open || list[1].ID != waits {
		t.Fatalf("%+v, %v", list, err)
	}
	if string(list[0].Message) != "body" {
		t.Errorf("an open delivery comes with %q", list[0].Message)
	}
	if len(list[1].Message) != 0 {
		t.Error("the body of what is due later is read")
	}
}

// Attempts have rows in the order of their numbers, and a target tells how it fares.
func testAttempts(t *testing.T, s *suite) {
	id := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	_, err := s.TargetState(t.Context(), target)
	refused(t, err, eventlog.ErrNotFound)
	d := s.enqueue(id, s.run("ann", id), target)
	state := func() eventlog.TargetState {
		t.Helper()
		got, err := s.TargetState(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		if row, err := s.Target(t.Context(), target); err != nil || row.State != got {
			t.Errorf("%+v, alone %+v (%v)", row.State, got, err)
		}
		return got
	}
	if got := state(); got.UserID != "ann" || got.Type != "webhook" || got.CreatedAt == "" || got.Failures != 0 || got.Circuit != "" {
		t.Errorf("%+v", got)
	}
	for n := 1; n <= 12; n++ {
		s.must(command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryAttemptFailed{DeliveryID: d, Attempt: n, Code: "timeout", Status: n, DurationMS: int64(n) * 10})))
	}
	for _, limit := range []int{1, 5, 12, 13} {
		got := ids(t, limit, func(p eventlog.Page) ([]string, string, error) {
			rows, next, err := s.Attempts(t.Context(), target, d, p)
			return collect(rows, func(r eventlog.AttemptRow) string {
				return fmt.Sprintf("%d %s %d %d", r.Number, r.Code, r.Status, r.DurationMS)
			}), next, err
		}, func() {})
		if len(got) != 12 || got[0] != "1 timeout 1 10" || got[11] != "12 timeout 12 120" {
			t.Errorf("by %d: %v", limit, got)
		}
	}
	if rows, _, err := s.Attempts(t.Context(), target, "dlv_none", eventlog.Page{}); err != nil || len(rows) != 0 {
		t.Errorf("%v %v", rows, err)
	}
	if got := state(); got.Failures != 12 || got.LastCode != "timeout" {
		t.Errorf("%+v", got)
	}
	backlog := func(retrying, blocked, open, paused int64) {
		t.Helper()
		b, err := s.Backlog(t.Context())
		if err != nil || b.Retrying != retrying || b.BlockedTargets != blocked || b.OpenCircuits != open || b.HalfOpenCircuits != 0 || b.PausedTargets != paused {
			t.Errorf("%+v %v, want %d retrying, %d blocked, %d open, %d paused", b, err, retrying, blocked, open, paused)
		}
	}
	backlog(1, 0, 0, 0)
	s.enqueue(id, s.run("ann", id), target)
	s.enqueue(id, s.run("ann", id), event.TargetIDFor("ann", "webhook", "b"))
	backlog(1, 1, 0, 0)
	s.must(command(target.Stream(), draft("ann", id, "run_1", &event.TargetCircuitOpened{Until: "2099"})))
	backlog(1, 1, 1, 0)

	// A pause is a command without a session, and forbids the start of an attempt.
	before := state()
	pause := command(target.Stream(), event.Event{UserID: "ann", Data: &event.TargetPaused{Actor: "ben", Code: event.PausedByRequest, Reason: "why"}})
	s.must(pause)
	if got := state(); got.Paused != 1 || got.PausedBy != "ben" || got.PauseReason != "why" || got.PausedAt == "" {
		t.Errorf("%+v", got)
	}
	backlog(1, 1, 1, 1)
	start := command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryAttemptStarted{DeliveryID: d, Attempt: 13}))
	key := []derived.Col{{Name: "target_id", Value: string(target)}}
	asKnown := func(known eventlog.TargetState) { // what an owner says of a target that it knows
		start.Require = []eventlog.Condition{
			{Table: derived.Outbox, Column: "status", In: []any{"pending"}, Where: append(key[:1:1], derived.Col{Name: "delivery_id", Value: string(d)}, derived.Col{Name: "n_open", Value: int64(0)})},
			{Table: derived.Targets, Column: "circuit", In: []any{known.Circuit}, Where: append(key[:1:1],
				derived.Col{Name: "n_paused", Value: known.Paused}, derived.Col{Name: "resumed_at", Value: known.ResumedAt}, derived.Col{Name: "reset_at", Value: known.ResetAt},
				derived.Col{Name: "n_failures", Value: known.Failures}, derived.Col{Name: "n_opens", Value: known.Opens})},
		}
	}
	overtaken := func(by string) {
		t.Helper()
		var ce *eventlog.ConditionError
		if _, err := s.Append(t.Context(), start); !errors.As(err, &ce) || ce.Index != 1 {
			t.Errorf("an attempt at a target that was %s meanwhile: %v", by, err)
		}
	}
	asKnown(before)
	overtaken("paused")
	s.must(command(target.Stream(), event.Event{UserID: "ann", Data: &event.TargetResumed{}}))
	overtaken("paused and resumed")
	asKnown(state())
	s.must(start)
	if row, err := s.Target(t.Context(), target); err != nil || row.InFlight != 1 {
		t.Errorf("%+v %v", row, err)
	}
	s.sound()
}

package storetest

import (
	"maps"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// What is at its end is in no count, and what waits longest gives the age.
func testBacklog(t *testing.T, s *suite) {
	a := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	expect := func(step string, runs map[string]int64, oldest event.RunID, pending, dead int64, first event.DeliveryID) {
		t.Helper()
		b, err := s.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		queued, delivery := "", ""
		if oldest != "" {
			row, err := s.Run(t.Context(), oldest)
			if err != nil {
				t.Fatal(err)
			}
			queued = row.SubmittedAt
		}
		if first != "" {
			row, err := s.Delivery(t.Context(), first)
			if err != nil {
				t.Fatal(err)
			}
			delivery = row.CycleAt
		}
		if !maps.Equal(b.Runs, runs) || b.OldestQueued != queued || b.PendingDeliveries != pending || b.DeadLettered != dead || b.OldestDelivery != delivery {
			t.Errorf("%s: %+v; want runs %v, oldest %q, %d pending since %q, %d dead", step, b, runs, queued, pending, delivery, dead)
		}
	}
	expect("empty", map[string]int64{}, "", 0, 0, "")
	runs := []event.RunID{s.run("ann", a), s.run("ann", a), s.run("ann", a), s.run("ann", a)}
	expect("queued", map[string]int64{"queued": 4}, runs[0], 0, 0, "")
	s.must(command(a.Stream(), draft("ann", a, runs[0], &event.RunStarted{})))
	s.must(command(a.Stream(), draft("ann", a, runs[1], &event.RunStarted{}), draft("ann", a, runs[1], &event.NeedsAttention{})))
	expect("begun", map[string]int64{"queued": 2, "running": 1, "needs_attention": 1}, runs[2], 0, 0, "")
	s.must(command(a.Stream(), draft("ann", a, runs[0], &event.RunCompleted{})))
	s.must(command(a.Stream(), draft("ann", a, runs[2], &event.RunCompleted{})))
	expect("ended", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 0, 0, "")
	d := []event.DeliveryID{s.enqueue(a, runs[0], target), s.enqueue(a, runs[1], target), s.enqueue(a, runs[2], target)}
	expect("enqueued", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 3, 0, d[0])
	s.must(command(target.Stream(), draft("ann", a, runs[0], &event.DeliveryDelivered{DeliveryID: d[0]})))
	s.must(command(target.Stream(), draft("ann", a, runs[1], &event.DeliveryDeadLettered{DeliveryID: d[1]})))
	expect("settled", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 1, 1, d[2])
	// The age of what is replayed counts from there, beside what was never.
	s.must(command(target.Stream(), draft("ann", a, runs[1], &event.DeliveryReplayed{DeliveryID: d[1], Number: 1})))
	expect("replayed", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 2, 0, d[2])
	s.must(command(target.Stream(), draft("ann", a, runs[2], &event.DeliveryDelivered{DeliveryID: d[2]})))
	if row, err := s.Delivery(t.Context(), d[1]); err != nil || row.CycleAt <= row.CreatedAt {
		t.Fatalf("%+v, %v", row, err)
	}
	expect("replayed alone", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 1, 0, d[1])
	s.must(command(target.Stream(), draft("ann", a, runs[1], &event.DeliveryDeadLettered{DeliveryID: d[1]})))
	expect("dead again", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 0, 1, "")
	s.must(command(target.Stream(), draft("ann", a, runs[1], &event.DeliveryResolved{DeliveryID: d[1]})))
	expect("resolved", map[string]int64{"queued": 1, "needs_attention": 1}, runs[3], 0, 0, "")
}

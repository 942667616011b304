package sim_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/sim"
)

// Every kind of stream is held to its own rules: what stands in the audit stream
// is no step of a session, and a record; and of a kind that nothing is known of
// that is said, whatever stands in it. // I-01, I-04
func TestStreamsByKind(t *testing.T) {
	record := &event.AuditTargetChanged{Actor: "ann", Change: "reset", TargetID: "tgt_1"}
	for _, c := range []struct {
		stream event.Stream
		data   event.Data
		epoch  int64
		seq    int64
		want   string
	}{
		{event.AuditStream, record, 0, 1, ""},
		{event.AuditStream, record, 0, 2, "I-01"},
		{event.AuditStream, record, 1, 1, "nobody's"},
		{event.AuditStream, &event.TargetResumed{}, 0, 1, "records and nothing else"},
		{"session:ses_1", record, 0, 1, "a step that is not open"},
		{"target:tgt_1", &event.TargetResumed{}, 0, 1, "only what is paused"},
		{"other:1", record, 0, 1, "nothing is known"},
	} {
		e := event.Event{Stream: c.stream, Seq: c.seq, Epoch: c.epoch, Type: c.data.EventType(), Data: c.data}
		e.Hash = e.ChainHash(event.Digest{})
		l := sim.New(c.stream)
		l.Add(&e)
		if got := strings.Join(l.Found(), "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %s, epoch %d: %q, want %q", c.stream, c.data.EventType(), c.epoch, got, c.want)
		}
	}
	e := event.Event{Stream: event.AuditStream, Seq: 1, Data: record}
	l := sim.New(event.AuditStream)
	if l.Add(&e); len(l.Found()) == 0 {
		t.Error("an event without its hash was taken")
	}
}

// What a person does to a receiver, or by force to a delivery, and what the audit
// stream tells of it are the same, in each append.
func TestTold(t *testing.T) {
	of := func(d event.Data) event.Event { return event.Event{Stream: "target:tgt_1", Data: d} }
	told := func(d event.Data) event.Event { return event.Event{Stream: event.AuditStream, Data: d} }
	changed := func(actor, change string) event.Event {
		return told(&event.AuditTargetChanged{Actor: actor, Change: change, TargetID: "tgt_1"})
	}
	for _, c := range []struct {
		name   string
		events []event.Event
		ok     bool
	}{
		{"nothing", nil, true},
		{"paused by a person", []event.Event{of(&event.TargetPaused{Actor: "ann", Code: event.PausedByRequest}), changed("ann", "paused")}, true},
		{"paused by its receiver", []event.Event{of(&event.TargetPaused{Code: event.PausedGone})}, true},
		{"resumed, and nobody is told", []event.Event{of(&event.TargetResumed{Actor: "ann"})}, false},
		{"resumed by another", []event.Event{of(&event.TargetResumed{Actor: "ann"}), changed("ben", "resumed")}, false},
		{"told twice", []event.Event{of(&event.TargetResumed{Actor: "ann"}), changed("ann", "resumed"), changed("ann", "resumed")}, false},
		{"told and not done", []event.Event{changed("ann", "reset")}, false},
		{"reset", []event.Event{of(&event.TargetCircuitClosed{Actor: "ann"}), changed("ann", "reset")}, true},
		{"closed by a probe", []event.Event{of(&event.TargetCircuitClosed{})}, true},
		{"replayed", []event.Event{of(&event.DeliveryReplayed{Actor: "ann", DeliveryID: "dlv_1"})}, true},
		{"replayed by force", []event.Event{of(&event.DeliveryReplayed{Actor: "ann", DeliveryID: "dlv_1", Forced: true})}, false},
		{"of a job, which is told of as one", []event.Event{of(&event.DeliveryReplayed{DeliveryID: "dlv_1", Forced: true, JobID: "job_1"})}, true},
	} {
		if found := sim.Told(c.events); (len(found) == 0) != c.ok {
			t.Errorf("%s: %v", c.name, found)
		}
	}
}

// A replay puts a delivery at the tail of its lane: a dead letter, or what waits
// there by a replay before, with force; never what is in flight. // I-24, I-25
func TestReplays(t *testing.T) {
	enqueued := func(id event.DeliveryID) event.Data { return &event.DeliveryEnqueued{DeliveryID: id} }
	started := func(id event.DeliveryID, n int) event.Data {
		return &event.DeliveryAttemptStarted{DeliveryID: id, Attempt: n}
	}
	failed := func(n int) event.Data { return &event.DeliveryAttemptFailed{DeliveryID: "a", Attempt: n} }
	again := func(n int, force bool) event.Data {
		return &event.DeliveryReplayed{DeliveryID: "a", Number: n, Forced: force}
	}
	letter := []event.Data{enqueued("a"), enqueued("b"), started("a", 1), failed(1), &event.DeliveryDeadLettered{DeliveryID: "a"}}
	for _, c := range []struct {
		name  string
		datas []event.Data
		want  string
	}{
		{"a dead letter", append(letter[:5:5], again(1, false), started("b", 1)), ""},
		{"a dead letter goes to the tail", append(letter[:5:5], again(1, false), started("a", 2)), "I-25"},
		{"once more with force", append(letter[:5:5], again(1, false), again(2, true), started("b", 1)), ""},
		{"once more without", append(letter[:5:5], again(1, false), again(2, false)), "by force alone"},
		{"what was never tried to its end", []event.Data{enqueued("a"), again(1, true)}, "by force alone"},
		{"what is in flight", []event.Data{enqueued("a"), started("a", 1), again(1, true)}, "in flight"},
		{"counted twice", append(letter[:5:5], again(1, false), again(1, true)), "one by one"},
	} {
		l, last := sim.New("target:tgt_1"), event.Digest{}
		for i, d := range c.datas {
			e := event.Event{Stream: "target:tgt_1", Seq: int64(i) + 1, Epoch: 1, Type: d.EventType(), Data: d}
			e.Hash = e.ChainHash(last)
			last = e.Hash
			l.Add(&e)
		}
		if got := strings.Join(l.Found(), "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

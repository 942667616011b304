package admission_test

import (
	"errors"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// put appends what an owner would.
func (d *desk) put(s event.Stream, events ...event.Event) {
	d.t.Helper()
	if _, err := d.store.Append(d.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: events}}}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) run(id event.RunID) eventlog.RunRow {
	d.t.Helper()
	row, err := d.FindRun(d.t.Context(), admission.Caller{}, id)
	if err != nil {
		d.t.Fatal(err)
	}
	return row
}

func about(s eventlog.SessionRow, run event.RunID, data event.Data) event.Event {
	return event.Event{SessionID: s.ID, UserID: s.UserID, RunID: run, Data: data}
}

func TestCancelAndInterrupt(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	run := d.submit(s, text("go"), "", true)
	if asked, err := d.Interrupt(t.Context(), admission.Caller{}, s, ""); asked || err != nil {
		t.Errorf("interrupt with a queued run only: %v %v", asked, err)
	}
	queued := d.run(run)
	d.put(s.ID.Stream(), about(s, run, &event.RunStarted{}))
	if asked, err := d.Interrupt(t.Context(), admission.Caller{}, s, "stop"); !asked || err != nil {
		t.Errorf("interrupt: %v %v", asked, err)
	}
	if err := d.Cancel(t.Context(), admission.Caller{}, queued, ""); err != nil { // with a row from before
		t.Errorf("cancel: %v", err)
	}
	running := d.run(run)
	d.put(s.ID.Stream(), about(s, run, &event.RunInterrupted{}))
	before := d.everything()
	for _, row := range []eventlog.RunRow{queued, running, d.run(run)} {
		if err := d.Cancel(t.Context(), admission.Caller{}, row, ""); !problem.Is(err, "run_state_conflict") {
			t.Errorf("cancel behind the end: %v", err)
		}
	}
	if asked, err := d.Interrupt(t.Context(), admission.Caller{}, s, ""); asked || err != nil {
		t.Errorf("interrupt behind the end: %v %v", asked, err)
	}
	if err := d.Cancel(t.Context(), admission.Caller{}, eventlog.RunRow{Status: session.StatusCancelled}, ""); err != nil {
		t.Errorf("a second cancel of what is cancelled: %v", err)
	}
	if d.everything() != before {
		t.Error("a refused command left something")
	}
}

// A word counts for a call that the run waits on, while it waits (I-14).
func TestAttentionCommand(t *testing.T) {
	d := newDesk(t, admission.Limits{InputBytes: 100})
	s := d.session(&api.CreateSession{})
	run := d.submit(s, text("go"), "", true)
	d.put(s.ID.Stream(), about(s, run, &event.RunStarted{}))
	call := session.CallIDAt("step_x_1", 1, 0)
	req := func(id event.CallID, res string) *api.ResolveAttention {
		return &api.ResolveAttention{CallID: string(id), Resolution: res, Output: "it is there"}
	}
	if err := d.Attention(t.Context(), admission.Caller{}, d.run(run), req(call, "completed")); !problem.Is(err, "call_not_in_doubt") {
		t.Errorf("a run that does not wait: %v", err)
	}
	d.put(s.ID.Stream(), about(s, run, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: call}}}))
	waiting := d.run(run)
	large := req(call, "completed")
	large.Output = string(make([]byte, 101))
	for code, r := range map[string]*api.ResolveAttention{
		"invalid_resolution": req(call, "maybe"), "call_not_in_doubt": req("call_other", "completed"), "output_too_large": large,
	} {
		if err := d.Attention(t.Context(), admission.Caller{}, waiting, r); !problem.Is(err, code) {
			t.Errorf("%v, want %s", err, code)
		}
	}
	if err := d.Attention(t.Context(), admission.Caller{Actor: "ann"}, waiting, req(call, "completed")); err != nil {
		t.Fatal(err)
	}
	events, err := d.store.Read(t.Context(), s.ID.Stream(), 0, 100)
	last := &events[len(events)-1]
	if err = errors.Join(err, last.Decode()); err != nil {
		t.Fatal(err)
	}
	if w, ok := last.Data.(*event.AttentionResolved); !ok || last.CallID != call || last.StepID != "step_x_1" || w.Actor != "ann" || w.Output.Text != "it is there" {
		t.Errorf("the word is %+v", last)
	}
	d.put(s.ID.Stream(), about(s, run, &event.RunResumed{}))
	if err := d.Attention(t.Context(), admission.Caller{}, waiting, req(call, "failed")); !problem.Is(err, "call_not_in_doubt") {
		t.Errorf("a word too late: %v", err)
	}
}

// Only what is settled is replayed, and only while its body is there.
func TestReplayCommand(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	target := event.TargetIDFor(s.UserID, "webhook", "http://a.test/")
	const id = event.DeliveryID("dlv_1")
	body := event.NewBlob(s.ID, event.BlobDelivery, []byte("{}"))
	address := event.NewBlob(s.ID, event.BlobDelivery, []byte(`{"type":"webhook","url":"http://a.test/"}`))
	if _, err := d.store.Append(t.Context(), eventlog.Append{Blobs: []event.Blob{body, address}, Entries: []eventlog.Entry{{Stream: target.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{about(s, "run_1", &event.DeliveryEnqueued{Address: address.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"})}}}}); err != nil {
		t.Fatal(err)
	}
	replay := func(force bool) error {
		row, err := d.FindDelivery(t.Context(), admission.Caller{UserID: s.UserID}, id)
		if err != nil {
			t.Fatal(err)
		}
		return d.Replay(t.Context(), admission.Caller{}, row, &api.ReplayDelivery{Force: force, Reason: "once more"})
	}
	if err := replay(true); !problem.Is(err, "delivery_state_conflict") {
		t.Errorf("replay of what is pending: %v", err)
	}
	if err := d.Erase(t.Context(), admission.Caller{}, s); !problem.Is(err, "session_active") {
		t.Errorf("erase with a pending delivery: %v", err)
	}
	d.put(target.Stream(), about(s, "run_1", &event.DeliveryDeadLettered{DeliveryID: id}))
	if err := replay(false); err != nil {
		t.Errorf("replay of what is dead-lettered: %v", err)
	}
	d.put(target.Stream(), about(s, "run_1", &event.DeliveryDelivered{DeliveryID: id}))
	if err := replay(false); !problem.Is(err, "already_replayed") {
		t.Errorf("replay of what is delivered: %v", err)
	}
	if err := replay(true); err != nil {
		t.Errorf("forced: %v", err)
	}
	d.put(target.Stream(), about(s, "run_1", &event.DeliveryDelivered{DeliveryID: id}))
	if _, err := d.FindDelivery(t.Context(), admission.Caller{UserID: "another"}, id); !problem.Is(err, "delivery_not_found") {
		t.Errorf("another's delivery: %v", err)
	}
	if err := d.Erase(t.Context(), admission.Caller{}, s); err != nil {
		t.Fatal(err)
	}
	if err := replay(true); !problem.Is(err, "session_erased") {
		t.Errorf("replay of an erased body: %v", err)
	}
	d.verify()
}

// A person's word ends a delivery that waits or is parked, not one in flight;
// then the session can be erased.
func TestResolveDelivery(t *testing.T) { // I-24
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	target := event.TargetIDFor(s.UserID, "webhook", "http://a.test/")
	const id = event.DeliveryID("dlv_1")
	put := func(data event.Data) { d.put(target.Stream(), about(s, "run_1", data)) }
	resolve := func() error {
		row, err := d.FindDelivery(t.Context(), admission.Caller{}, id)
		if err != nil {
			t.Fatal(err)
		}
		return d.ResolveDelivery(t.Context(), admission.Caller{Actor: "ann"}, row, "the receiver is gone")
	}
	put(&event.DeliveryEnqueued{DeliveryID: id, Type: "webhook"})
	put(&event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: id})
	if err := resolve(); !problem.Is(err, "delivery_in_flight") {
		t.Errorf("in flight: %v", err)
	}
	put(&event.DeliveryAttemptFailed{Attempt: 1, Code: "timeout", DeliveryID: id, RetryAt: "2099-01-01T00:00:00.000000Z"})
	if err := resolve(); err != nil {
		t.Fatal(err)
	}
	if err := resolve(); err != nil { // nothing changes: the first reason stays
		t.Errorf("a second word: %v", err)
	}
	if _, err := d.store.NextDelivery(t.Context(), target); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("the lane still has it: %v", err)
	}
	if err := d.Erase(t.Context(), admission.Caller{}, s); err != nil {
		t.Errorf("erase: %v", err)
	}
}

// Once intake has stopped nothing new is taken; what exists can still be ended.
func TestStoppedIntake(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	run := d.submit(s, &api.SubmitRun{Content: api.Text("work")}, "k", true)
	d.Stop()
	if _, _, err := d.Submit(t.Context(), admission.Caller{}, s, &api.SubmitRun{Content: api.Text("more")}, ""); !problem.Is(err, "stopping") {
		t.Errorf("submit: %v", err)
	}
	if again := d.submit(s, &api.SubmitRun{Content: api.Text("work")}, "k", false); again != run {
		t.Errorf("a known key gave %s", again)
	}
	if _, err := d.CreateSession(t.Context(), admission.Caller{}, &api.CreateSession{}); !problem.Is(err, "stopping") {
		t.Errorf("create: %v", err)
	}
	row, err := d.FindRun(t.Context(), admission.Caller{}, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Cancel(t.Context(), admission.Caller{}, row, ""); err != nil {
		t.Errorf("cancel: %v", err)
	}
}

package admission_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// known is what an owner knows of a session as it is now.
func (d *desk) known(id event.SessionID) eventlog.Resting {
	d.t.Helper()
	row := d.row(id)
	set, err := row.Settings()
	if err != nil {
		d.t.Fatal(err)
	}
	return eventlog.Resting{UserID: row.UserID, Status: row.Status, Settings: set, Version: row.SettingsVersion}
}

// at submits where a session is looked for as the door does it.
func (d *desk) at(c admission.Caller, id event.SessionID, text, key string) (event.RunID, bool, error) {
	p, err := d.PlaceFor(d.t.Context(), c, string(id), "")
	if err != nil {
		return "", false, err
	}
	return d.SubmitAt(d.t.Context(), c, p, &api.SubmitRun{Content: api.Text(text)}, key)
}

const schemaOther = `{"type":"object","properties":{"other":{"type":"string"}},"required":["other"],"additionalProperties":false}`

// What the owner of a session remembers of it may be old. Nothing is refused by it that
// the store would take, and nothing is taken by it that the store would refuse. // I-07 I-08
func TestOldMemory(t *testing.T) {
	const oldInput, newInput = `{"n":1}`, `{"other":"x"}`
	for _, taken := range []bool{true, false} {
		d, o := owned(t, admission.Limits{}, true)
		if taken {
			o.offer = makes(d)
		}
		s := d.session(withInput())
		o.knows = d.known(s.ID)
		ch, err := d.SetInputContract(&api.InputContract{Schema: api.Raw(schemaOther)})
		d.update(s.ID, ch, err)

		before := d.everything()
		if _, _, err := d.at(admission.Caller{}, s.ID, oldInput, ""); !problem.Is(err, admission.CodeInputContract) {
			t.Errorf("what the old contract takes: %v", err)
		}
		if after := d.everything(); after != before {
			t.Errorf("it left something: %s", after)
		}
		id, created, err := d.at(admission.Caller{}, s.ID, newInput, "k")
		if err != nil || !created {
			t.Fatalf("what the new contract takes: %v %v", created, err)
		}
		if c := d.created(s, id); string(c.Input[0].Value) != newInput || c.SettingsVersion != 2 {
			t.Errorf("captured %+v", c)
		}
		if again, created, err := d.at(admission.Caller{}, s.ID, newInput, "k"); again != id || created || err != nil {
			t.Errorf("the key gave %s, %v, %v", again, created, err)
		}
		if _, _, err := d.at(admission.Caller{}, s.ID, `{"other":"y"}`, "k"); !problem.Is(err, "idempotency_conflict") {
			t.Errorf("another request with the key: %v", err)
		}
		if err := d.Close(t.Context(), admission.Caller{}, d.row(s.ID), ""); err != nil {
			t.Fatal(err)
		}
		o.knows = d.known(s.ID)
		o.knows.Status = session.Open
		if _, _, err := d.at(admission.Caller{}, s.ID, newInput, ""); !problem.Is(err, "session_closed") {
			t.Errorf("closed meanwhile: %v", err)
		}
		d.verify()
	}
}

// What is remembered of another user's session is nobody else's to see. // I-34
func TestMemoryOfAnother(t *testing.T) {
	d, o := owned(t, admission.Limits{}, true)
	o.offer = makes(d)
	s := d.session(&api.CreateSession{UserID: "ann"})
	o.knows = d.known(s.ID)
	if _, _, err := d.at(admission.Caller{UserID: "bob"}, s.ID, "work", ""); !problem.Is(err, "session_not_found") {
		t.Errorf("another user: %v", err)
	}
	if len(o.offers) > 0 {
		t.Error("it was offered")
	}
	if _, created, err := d.at(admission.Caller{UserID: "ann"}, s.ID, "work", ""); err != nil || !created {
		t.Errorf("its own user: %v %v", created, err)
	}
}

// unread is a store in which sessions are not looked up, nor their queues counted.
type unread struct{ admission.Store }

func (unread) Session(context.Context, event.SessionID) (eventlog.SessionRow, error) {
	panic("the session is read")
}
func (unread) Pending(context.Context, event.SessionID, int) (int, error) {
	panic("the queue is counted")
}

// A session at rest in memory is not read for its next run, and captured is what the
// store has.
func TestRestingIsNotRead(t *testing.T) {
	d, o := owned(t, admission.Limits{}, true)
	o.offer = makes(d)
	s := d.session(&api.CreateSession{InputContract: &api.InputContract{Schema: api.Raw(schemaQ)}, MaxTurns: 7, Tools: &[]string{"look"}})
	o.knows = d.known(s.ID)
	want := d.created(s, d.submit(s, text(`{"n":1}`), "", true))
	d.wrap = func(s admission.Store) admission.Store { return unread{s} }
	d.remake()
	id, created, err := d.at(admission.Caller{Actor: "tester"}, s.ID, `{"n":1}`, "")
	if err != nil || !created {
		t.Fatal(created, err)
	}
	got := d.created(s, id)
	if got.MaxTurns != 7 || got.MaxTurns != want.MaxTurns || len(got.Tools) != 1 || got.Toolset != want.Toolset || got.InputContract != want.InputContract || got.SettingsVersion != want.SettingsVersion {
		t.Errorf("captured %+v, want as in %+v", got, want)
	}
}

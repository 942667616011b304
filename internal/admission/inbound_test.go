package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// arrival is an event of the connector hub, of ann's.
func arrival(id, content string) *admission.Inbound {
	return &admission.Inbound{Connector: "hub", User: "ann", EventHash: "hash of " + id, Fingerprint: "print of " + content,
		Session: &api.CreateSession{Instructions: "answer"}, Run: api.SubmitRun{Content: api.Text(content)}}
}

func (d *desk) receive(in *admission.Inbound) admission.Receipt {
	d.t.Helper()
	r, err := d.Receive(d.t.Context(), in)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func (d *desk) noReceipt(code string, in *admission.Inbound) {
	d.t.Helper()
	before := d.everything()
	if r, err := d.Receive(d.t.Context(), in); !problem.Is(err, code) || r.Run != "" {
		d.t.Errorf("%+v %v, want %s", r, err, code)
	}
	if d.everything() != before {
		d.t.Error("a refused event left something")
	}
}

// I-07: equal events, twenty at once and after a restart, are one run; in one
// session where each would have made one.
func TestEventsMakeOneRun(t *testing.T) {
	for name, ref := range map[string]string{"new": "", "key": "hub.0123456789abcdef"} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, admission.Limits{})
			var wg sync.WaitGroup
			got := make([]admission.Receipt, 20)
			for i := range got {
				wg.Go(func() {
					in := arrival("e1", "go")
					in.Ref = ref
					var err error
					if got[i], err = d.Receive(t.Context(), in); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			created := 0
			for _, r := range got {
				if r.Created {
					created++
				}
				if r.Run != got[0].Run || r.Session != got[0].Session || r.Run == "" {
					t.Fatalf("%+v and %+v", got[0], r)
				}
			}
			sessions, _, err := d.store.Sessions(t.Context(), eventlog.SessionFilter{UserID: "ann"}, eventlog.Page{Limit: 50})
			runs, _, err2 := d.store.Runs(t.Context(), eventlog.RunFilter{UserID: "ann"}, eventlog.Page{Limit: 50})
			if created != 1 || len(sessions) != 1 || len(runs) != 1 || errors.Join(err, err2) != nil {
				t.Fatalf("%d created, %d sessions, %d runs: %v %v", created, len(sessions), len(runs), err, err2)
			}
			if r := runs[0]; r.Source != admission.SourceConnector || r.Actor != "connector hub" || sessions[0].Alias != ref {
				t.Errorf("%+v %+v", r, sessions[0])
			}
			d.restart()
			if r := d.receive(arrival("e1", "go")); r.Created || r.Run != got[0].Run || r.Session != got[0].Session { // also where it is mapped elsewhere now
				t.Errorf("after a restart: %+v", r)
			}
			d.noReceipt("event_conflict", arrival("e1", "another body"))
			if r := d.receive(arrival("e2", "go")); !r.Created || r.Run == got[0].Run || r.Session == got[0].Session {
				t.Errorf("another event: %+v", r)
			}
			other := arrival("e1", "go")
			other.Connector = "lab"
			if r := d.receive(other); !r.Created {
				t.Errorf("another connector: %+v", r)
			}
			ben := arrival("e1", "go")
			ben.User = "ben"
			if r := d.receive(ben); !r.Created || d.row(r.Session).UserID != "ben" {
				t.Errorf("another user: %+v", r)
			}
			d.verify()
		})
	}
}

// Different events with one new key make one session, and a run each.
func TestKeysMakeOneSession(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	var wg sync.WaitGroup
	got := make([]admission.Receipt, 12)
	for i := range got {
		wg.Go(func() {
			in := arrival(fmt.Sprint("e", i), fmt.Sprint("go ", i))
			in.Ref = "hub.key"
			var err error
			if got[i], err = d.Receive(t.Context(), in); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	made, runs := 0, map[event.RunID]bool{}
	for _, r := range got {
		if r.Made {
			made++
		}
		if runs[r.Run] = true; r.Session != got[0].Session || !r.Created {
			t.Errorf("%+v", r)
		}
	}
	if made != 1 || len(runs) != len(got) {
		t.Errorf("%d sessions made, %d runs", made, len(runs))
	}
	d.verify()
}

// lossy is a store whose answers get lost: what it was told to append is
// appended, or not, and who asked never knows.
type lossy struct {
	admission.Store
	commits bool
}

func (l lossy) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	if l.commits {
		if _, err := l.Store.Append(ctx, a); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the process ended here")
}

// A crash on either side of the commit: the event comes again, and there is one
// run, in one session (C56: the receiver's side of it).
func TestEventsOverCrashes(t *testing.T) {
	for _, commits := range []bool{false, true} {
		d := newDesk(t, admission.Limits{})
		set, err := tool.NewSet()
		if err != nil {
			t.Fatal(err)
		}
		dying := admission.New(admission.Config{Store: lossy{d.store, commits}, Tools: set, Random: zeros{}, CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) { return t, nil },
			Route: func(string, string) (event.Route, error) {
				return event.Route{Name: "main", Provider: "p", Model: "m"}, nil
			}})
		if r, err := dying.Receive(t.Context(), arrival("e1", "go")); err == nil {
			t.Fatalf("%+v", r)
		}
		d.restart()
		if r := d.receive(arrival("e1", "go")); r.Created == commits {
			t.Errorf("committed %v: %+v", commits, r)
		}
		if rows, _, err := d.store.Runs(t.Context(), eventlog.RunFilter{}, eventlog.Page{Limit: 9}); err != nil || len(rows) != 1 {
			t.Errorf("committed %v: %d runs (%v)", commits, len(rows), err)
		}
		if rows, _, err := d.store.Sessions(t.Context(), eventlog.SessionFilter{}, eventlog.Page{Limit: 9}); err != nil || len(rows) != 1 {
			t.Errorf("committed %v: %d sessions (%v)", commits, len(rows), err)
		}
		d.verify()
	}
}

// zeros is a source of chance for one id.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestEventsAndSessions(t *testing.T) {
	d := newDesk(t, admission.Limits{QueuedRuns: 2})
	fixed := func(id, ref string) *admission.Inbound {
		in := arrival(id, "go "+id)
		in.Ref, in.Session = ref, nil
		return in
	}
	d.noReceipt("session_unavailable", fixed("e1", "desk")) // nobody has made it
	s := d.session(&api.CreateSession{ID: "desk", UserID: "ann"})
	of := d.session(&api.CreateSession{ID: "desk", UserID: "ben"})
	if r := d.receive(fixed("e1", "desk")); r.Session != s.ID || r.Made {
		t.Errorf("%+v", r)
	}
	if r := d.receive(fixed("e2", string(s.ID))); r.Session != s.ID {
		t.Errorf("%+v", r)
	}
	d.noReceipt("session_unavailable", fixed("e3", string(of.ID))) // I-34: another user's
	d.noReceipt("queue_full", fixed("e3", "desk"))
	if err := d.Close(t.Context(), admission.Caller{}, s, ""); err != nil {
		t.Fatal(err)
	}
	d.noReceipt("session_closed", fixed("e3", "desk"))
	if r := d.receive(fixed("e2", "desk")); r.Created { // what was taken stays taken
		t.Errorf("%+v", r)
	}

	// A template is what a session is made of; its contract holds at once (I-07).
	strict := arrival("e4", "no JSON")
	strict.Session = &api.CreateSession{Title: "T", InputContract: &api.InputContract{Schema: api.Raw(`{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}`)}, Tools: &[]string{"look"}}
	d.noReceipt(admission.CodeInputContract, strict)
	strict.Run.Content = api.Raw(`{"n": 1.0}`)
	dry := *strict
	dry.Dry = true
	before := d.everything()
	if r := d.receive(&dry); r.Run != "" || r.Session != "" || !r.Made || d.everything() != before {
		t.Errorf("dry: %+v", r)
	}
	r := d.receive(strict)
	if row := d.row(r.Session); row.Title != "T" || row.Tools != `["look"]` || row.InputContract == "" {
		t.Errorf("%+v", row)
	}
	for code, change := range map[string]func(*api.CreateSession){
		"unknown_tool": func(s *api.CreateSession) { s.Tools = &[]string{"gone"} }, "unknown_route": func(s *api.CreateSession) { s.RoutePolicy = &api.RoutePolicy{Route: "gone"} },
		"invalid_reply_target": func(s *api.CreateSession) { s.ReplyTargets = []api.ReplyTarget{{Type: "pigeon"}} },
	} {
		in := arrival("e5", "go")
		change(in.Session)
		d.noReceipt(code, in)
		if err := d.CheckSession(t.Context(), "ann", in.Session); !problem.Is(err, code) {
			t.Errorf("check: %v", err)
		}
	}
	d.Stop()
	d.noReceipt("stopping", arrival("e6", "go"))
	if r := d.receive(fixed("e2", "desk")); r.Created {
		t.Errorf("%+v", r)
	}
	d.verify()
}

// I-08: explicit targets of a connector's run become the session's when it is
// idle, and else the answer says that they did not. The run has them either way.
func TestConnectorsRememberTargets(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	at := func(id, url string) *admission.Inbound {
		in := arrival(id, "go")
		in.Ref, in.Remember, in.Run.ReplyTargets = "hub.key", true, &[]api.ReplyTarget{{Type: "webhook", URL: url}}
		return in
	}
	targets := func() string {
		id, err := d.store.SessionByAlias(t.Context(), "ann", "hub.key")
		if err != nil {
			t.Fatal(err)
		}
		return d.row(id).ReplyTargets
	}
	r := d.receive(at("e1", "https://one.test"))
	if !r.Remembered || !strings.Contains(targets(), "one.test") {
		t.Errorf("a new session: %+v %s", r, targets())
	}
	if r := d.receive(at("e2", "https://two.test")); r.Remembered || r.NotRemembered != admission.ReasonBusy || strings.Contains(targets(), "two.test") {
		t.Errorf("not idle: %+v %s", r, targets())
	}
	if r := d.receive(at("e3", "https://one.test")); !r.Remembered { // they are the session's
		t.Errorf("the same: %+v", r)
	}
	for _, run := range d.runs(r.Session) {
		d.end(run)
	}
	before := d.row(r.Session).SettingsVersion
	r4 := d.receive(at("e4", "https://four.test"))
	if !r4.Remembered || !strings.Contains(targets(), "four.test") || d.row(r.Session).SettingsVersion != before+1 {
		t.Errorf("idle: %+v %s", r4, targets())
	}
	for id, url := range map[string]string{"e1": "one.test", "e2": "two.test", "e4": "four.test"} {
		again := d.receive(at(id, "https://"+url))
		if has := d.created(d.row(again.Session), again.Run).ReplyTargets; !slices.ContainsFunc(has, func(t event.ReplyTarget) bool { return strings.Contains(t.URL, url) }) {
			t.Errorf("%s has %+v", id, has)
		}
	}
	plain := at("e5", "https://five.test")
	plain.Remember = false
	if r := d.receive(plain); r.Remembered || r.NotRemembered != "" || strings.Contains(targets(), "five.test") {
		t.Errorf("not asked for: %+v %s", r, targets())
	}
	d.verify()
}

// runs lists the runs of a session.
func (d *desk) runs(s event.SessionID) []event.RunID {
	d.t.Helper()
	rows, _, err := d.store.Runs(d.t.Context(), eventlog.RunFilter{SessionID: s}, eventlog.Page{Limit: 50})
	if err != nil {
		d.t.Fatal(err)
	}
	var ids []event.RunID
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	return ids
}

// end brings a run to its end, as the engine would.
func (d *desk) end(run event.RunID) {
	d.t.Helper()
	row, err := d.store.Run(d.t.Context(), run)
	if err != nil {
		d.t.Fatal(err)
	}
	_, err = d.store.Append(d.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: row.SessionID.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: row.SessionID, UserID: row.UserID, RunID: run, Data: &event.RunCompleted{}}}}}})
	if err != nil {
		d.t.Fatal(err)
	}
}

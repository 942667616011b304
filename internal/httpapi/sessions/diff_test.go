package sessions_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sessions"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// asked notes which ends are compared.
type asked struct {
	last string
	err  error
}

func (a *asked) Diff(_ context.Context, id event.SessionID, from, to event.FileSnapshot, stat bool) ([]api.FileDiff, int, error) {
	a.last = fmt.Sprintf("%s→%s", from.Tree, to.Tree)
	if stat {
		a.last += " stat"
	}
	return nil, 0, a.err
}

// The ends of a comparison are snapshots that the session's own log records.
func TestDiffEnds(t *testing.T) {
	a := &asked{}
	w := apitest.New(t, func(c *httpapi.Config) { c.Files = a })
	s := w.Session("ann")
	one, two := w.Submit(s.ID, "one"), w.Submit(s.ID, "two")
	step := func(run api.Run, n int) string { return fmt.Sprintf("step_%s_%d", run.ID[len("run_"):], n) }
	shot := func(tree string) *event.FileSnapshot { return &event.FileSnapshot{Node: "n", Tree: tree} }
	put := func(run api.Run, n int, data ...event.Data) {
		for i, d := range data {
			w.AppendTo(event.SessionID(s.ID).Stream(), nil, event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID),
				StepID: event.StepID(step(run, n)), CallID: event.CallID(fmt.Sprint("call", step(run, n), i)), Data: d})
		}
	}
	reader := w.Token("reader", "ann")
	path := "/v1/sessions/" + s.ID + "/diff"
	w.Do("GET", path, reader, nil).Want(409, "no_snapshots")
	put(one, 1, &event.RunStarted{}, &event.ToolStarted{Name: "w", Snapshot: shot("A")}, &event.ToolStarted{Name: "x"}, &event.StepEnded{Snapshot: shot("B")})
	put(one, 2, &event.ToolStarted{Name: "w", Snapshot: shot("B")}, &event.StepEnded{Snapshot: shot("C")})
	put(one, 3, &event.StepEnded{}, &event.RunCompleted{})
	put(two, 1, &event.RunStarted{}, &event.ToolStarted{Name: "w", Snapshot: shot("C2")}, &event.StepEnded{Snapshot: shot("D")})
	put(two, 2, &event.ToolStarted{Name: "w", Snapshot: shot("D2")}) // and no end yet
	for query, want := range map[string]string{
		"": "A→D", "?run=" + one.ID: "A→C", "?run=" + two.ID: "C2→D", "?step=" + step(one, 1): "A→B", "?step=" + step(one, 2) + "&stat=true": "B→C stat",
		"?from=" + step(one, 2): "B→D", "?to=" + step(one, 2): "A→C", "?from=" + step(one, 2) + "&to=" + step(two, 1): "B→D", "?from=C&to=A": "C→A", "?from=D2&stat=false": "D2→D",
	} {
		out := apitest.Into[api.FilesDiff](w.Do("GET", path+query, reader, nil).Want(200))
		if a.last != want || out.SessionID != s.ID || out.Files == nil {
			t.Errorf("%s compares %s, want %s", query, a.last, want)
		}
	}
	out := apitest.Into[api.FilesDiff](w.Do("GET", path+"?step="+step(one, 2), reader, nil).Want(200))
	if out.From.StepID != step(one, 2) || out.From.After || !out.To.After || out.To.RunID != one.ID || out.To.Node != "n" || out.To.Seq == 0 || out.To.Time.IsZero() {
		t.Errorf("%+v", out)
	}
	a.last = ""
	for query, want := range map[string]struct {
		status int
		code   string
	}{
		"?step=" + step(one, 3): {409, "no_snapshots"}, "?step=" + step(two, 2): {409, "no_snapshots"}, "?step=nonsense": {409, "no_snapshots"}, "?from=E": {409, "no_snapshots"},
		"?run=run_none": {404, "run_not_found"}, "?run=" + one.ID + "&from=A": {400, "invalid_parameter"}, "?step=" + step(one, 1) + "&to=A": {400, "invalid_parameter"},
		"?stat=maybe": {400, "invalid_parameter"}, "?to=step__": {409, "no_snapshots"},
	} {
		w.Do("GET", path+query, reader, nil).Want(want.status, want.code)
	}
	// I-34: neither another user's session, nor a run or a tree of another session.
	other := w.Session("ann")
	foreign := w.Submit(other.ID, "three")
	w.Do("GET", path+"?run="+foreign.ID, reader, nil).Want(404, "run_not_found")
	w.Do("GET", "/v1/sessions/"+other.ID+"/diff?from=A&to=B", reader, nil).Want(409, "no_snapshots")
	w.Do("GET", "/v1/sessions/"+other.ID+"/diff?step="+step(one, 1), reader, nil).Want(409, "no_snapshots")
	w.Do("GET", path, w.Token("reader", "ben"), nil).Want(404, "session_not_found")
	if a.last != "" {
		t.Errorf("a refused request compared %s", a.last)
	}
	a.err = problem.New(problem.Gone, "snapshot_gone", "gone")
	w.Do("GET", path, reader, nil).Want(410, "snapshot_gone")
	a.err = sessions.Elsewhere("n")
	w.Do("GET", path, reader, nil).Want(409, "snapshot_elsewhere")
}

// A node that keeps no snapshots says whose the ones are.
func TestDiffWithoutFiles(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("ann")
	run := w.Submit(s.ID, "one")
	w.Append(&run, &event.RunStarted{}, &event.ToolStarted{Snapshot: &event.FileSnapshot{Node: "host-1", Tree: "A"}}, &event.StepEnded{Snapshot: &event.FileSnapshot{Node: "host-1", Tree: "B"}})
	w.Do("GET", "/v1/sessions/"+s.ID+"/diff", w.Admin, nil).Want(409, "snapshot_elsewhere")
}

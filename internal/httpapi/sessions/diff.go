package sessions

import (
	"context"
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Files compare the snapshots of workspaces that stand on this node.
type Files interface {
	// Diff tells what differs between two snapshots of a session; with stat
	// without the text of it. The error is a *problem.Error where one of them
	// does not stand here, or not any more.
	Diff(ctx context.Context, id event.SessionID, from, to event.FileSnapshot, stat bool) (files []api.FileDiff, more int, err error)
}

// maxDiffLooked bounds how much of a log is looked through for snapshots.
const maxDiffLooked = 256 << 10

// mark is a snapshot that an event records.
type mark struct {
	api.FileSnapshot
	snapshot event.FileSnapshot
}

func (h *Handlers) sessionDiff(c *call.Call) error {
	row, err := c.Session(h.Admission)
	if err != nil {
		return err
	}
	q := diffQuery{step: c.Query["step"], from: c.Query["from"], to: c.Query["to"]}
	switch {
	case q.step != "" && (q.from != "" || q.to != "" || c.Query["run"] != ""):
		return call.BadParameter("step", "stands alone: it names both ends")
	case c.Query["run"] != "" && (q.from != "" || q.to != ""):
		return call.BadParameter("run", "stands alone: it names both ends")
	}
	stat, err := c.OneOf("stat", "false", "true")
	if err != nil {
		return err
	}
	marks, err := h.marks(c, &row, event.RunID(c.Query["run"]), q)
	if err != nil {
		return err
	}
	from, to, err := q.ends(marks)
	if err != nil {
		return err
	}
	if h.Files == nil {
		return Elsewhere(from.Node)
	}
	out := api.FilesDiff{SessionID: string(row.ID), From: from.FileSnapshot, To: to.FileSnapshot}
	files, more, err := h.Files.Diff(c.Ctx(), row.ID, from.snapshot, to.snapshot, stat == "true")
	if err != nil {
		return err
	}
	out.Files, out.More = call.NonNil(files), more
	return c.JSON(http.StatusOK, out)
}

// Elsewhere says that a snapshot stands in the private store of another node.
func Elsewhere(node string) error {
	return problem.New(problem.Conflict, "snapshot_elsewhere", "the snapshot stands in the private store of the node %.80q; ask that node", node)
}

// diffQuery names two ends.
type diffQuery struct{ step, from, to string }

// run is the run in which both ends must stand, or empty.
func (q *diffQuery) run() event.RunID {
	if q.step != "" {
		return runOf(q.step)
	}
	if a, b := runOf(q.from), runOf(q.to); a == b {
		return a
	}
	return ""
}

// runOf gives the run of a step from the step's id.
func runOf(step string) event.RunID {
	body, ok := strings.CutPrefix(step, "step_")
	at := strings.LastIndexByte(body, '_')
	if !ok || at < 0 {
		return ""
	}
	return event.RunID("run_" + body[:at])
}

// marks reads the snapshots that a session's log records, or a run's.
func (h *Handlers) marks(c *call.Call, row *eventlog.SessionRow, named event.RunID, q diffQuery) ([]mark, error) {
	src := logs.Source{Stream: row.ID.Stream(), Run: named}
	if src.Run == "" {
		src.Run = q.run()
	}
	if src.Run != "" {
		run, err := h.Store.Run(c.Ctx(), src.Run)
		switch {
		case err == nil && run.SessionID == row.ID:
			src.Row = run
		case named != "":
			return nil, problem.New(problem.NotFound, "run_not_found", "the session has no such run")
		default:
			return nil, noSnapshot("a step that is named")
		}
	}
	var marks []mark
	for at, looked := src.Start(0), 0; ; {
		events, err := h.Store.ReadBounded(c.Ctx(), src.Stream, at, logs.ReadPage)
		if err != nil || len(events) == 0 {
			return marks, err
		}
		if looked += len(events); looked > maxDiffLooked {
			return nil, problem.New(problem.Invalid, "diff_too_wide", "the log is too long to look for snapshots in all of it; name a run or a step")
		}
		for i := range events {
			e := &events[i]
			at = e.Seq
			if src.Passes(e) {
				if marks, err = addMark(marks, e); err != nil {
					return nil, err
				}
			}
			if src.Ends(e) {
				return marks, nil
			}
		}
	}
}

// addMark takes the snapshot of an event, if it has one.
func addMark(marks []mark, e *event.Event) ([]mark, error) {
	if e.Type != event.TypeToolStarted && e.Type != event.TypeStepEnded {
		return marks, nil
	}
	if err := e.Decode(); err != nil {
		return nil, err
	}
	var s *event.FileSnapshot
	after := false
	switch d := e.Data.(type) {
	case *event.ToolStarted:
		s = d.Snapshot
	case *event.StepEnded:
		s, after = d.Snapshot, true
	}
	if s == nil {
		return marks, nil
	}
	return append(marks, mark{snapshot: *s, FileSnapshot: api.FileSnapshot{
		Tree: s.Tree, Node: s.Node, Time: e.Time, Seq: e.Seq, StepID: string(e.StepID), RunID: string(e.RunID), After: after,
	}}), nil
}

// ends chooses the two ends among the snapshots there are: from the first one
// to the last after a step, where nothing is named.
func (q *diffQuery) ends(marks []mark) (from, to *mark, err error) {
	fromName, toName := q.from, q.to
	if q.step != "" {
		fromName, toName = q.step, q.step
	}
	for i := range marks {
		m := &marks[i]
		if from == nil && (fromName == "" || fromName == m.Tree || fromName == m.StepID && !m.After) {
			from = m
		}
		if toName == "" && m.After || toName != "" && (toName == m.Tree || toName == m.StepID && m.After) {
			to = m
		}
	}
	switch {
	case from == nil && fromName != "":
		return nil, nil, noSnapshot("the beginning")
	case to == nil && toName != "":
		return nil, nil, noSnapshot("the end")
	case from == nil || to == nil:
		return nil, nil, problem.New(problem.Conflict, "no_snapshots",
			"no step there has snapshots of its files: none has come to its end that may have changed files, or snapshots were off or could not be made")
	}
	return from, to, nil
}

func noSnapshot(what string) error {
	return problem.New(problem.Conflict, "no_snapshots", "the session has no snapshot for %s; step.ended and tool.call.started name those there are", what)
}

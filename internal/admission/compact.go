package admission

import (
	"context"
	"errors"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Compact asks for a compaction of an open session that is at rest, and gives
// its id and the sequence of the request. A run that is not at its end, or another compaction, is a conflict:
// nothing moves under a run that it did not ask for.
func (a *Admission) Compact(ctx context.Context, c Caller, row eventlog.SessionRow) (event.StepID, int64, error) {
	switch {
	case a.stopped.Load():
		return "", 0, errStopping
	case row.Status != session.Open:
		return "", 0, errClosed
	}
	set, err := row.Settings()
	if err != nil {
		return "", 0, err
	}
	d := &event.CompactionRequested{Actor: c.Actor, Keep: session.DefaultCompactionKeep}
	if plan := a.cfg.Compaction; plan != nil {
		d.Keep = plan.Keep
		if plan.Route != nil {
			d.Route = *plan.Route
		}
	}
	if d.Route.Name == "" {
		route, model := "", ""
		if p := set.RoutePolicy; p != nil {
			route, model = p.Route, p.Model
		}
		if d.Route, err = a.cfg.Route(route, model); err != nil {
			return "", 0, err
		}
	}
	id, err := event.NewCompactionID(a.cfg.Random)
	if err != nil {
		return "", 0, err
	}
	require := append(sessionIs(row.ID, 0, session.Open), eventlog.Condition{
		Table: derived.Queue, Where: []derived.Col{{Name: "session_id", Value: string(row.ID)}}, Absent: true,
	})
	stamps, err := a.stamped(ctx, eventlog.Append{Require: require, Entries: []eventlog.Entry{{
		Stream: row.ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{SessionID: row.ID, UserID: row.UserID, StepID: id, Data: d}},
	}}})
	var ce *eventlog.ConditionError
	switch {
	case err == nil:
		return id, stamps[0].Head, nil
	case !errors.As(err, &ce):
		return "", 0, err
	case ce.Index == 0:
		return "", 0, errClosed
	}
	return "", 0, problem.New(problem.Conflict, "compaction_conflict",
		"the session has a run that is not at its end, or is being compacted; try again when it is at rest").Because(err)
}

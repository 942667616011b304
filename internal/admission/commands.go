package admission

import (
	"context"
	"slices"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// runIs requires the status of a run.
func runIs(row eventlog.RunRow, status ...any) []eventlog.Condition {
	return []eventlog.Condition{{
		Table:  derived.Runs,
		Where:  []derived.Col{{Name: "session_id", Value: string(row.SessionID)}, {Name: "run_id", Value: string(row.ID)}},
		Column: "status", In: status,
	}}
}

func ended(id event.RunID) error {
	return problem.New(problem.Conflict, "run_state_conflict", "the run %s is at its end already", id)
}

// Cancel asks for the deliberate end of one run, queued or active. The end
// itself is the owner's event; a run that is at its end is a conflict, unless
// it was cancelled.
func (a *Admission) Cancel(ctx context.Context, c Caller, row eventlog.RunRow, reason string) error {
	if row.Status == session.StatusCancelled {
		return nil
	}
	err := a.command(ctx, row.SessionID, runIs(row, session.StatusQueued, session.StatusRunning, session.StatusNeedsAttention), nil,
		event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.ID, Data: &event.CancelRequested{Actor: c.Actor, Reason: note(reason)}})
	if conflicted(err) {
		if now, err := a.cfg.Store.Run(ctx, row.ID); err == nil && now.Status == session.StatusCancelled {
			return nil // by the request before this one
		}
		return ended(row.ID)
	}
	return err
}

// Interrupt stops the session's active run; queued runs stay. Without an
// active run it says false.
func (a *Admission) Interrupt(ctx context.Context, c Caller, row eventlog.SessionRow, reason string) (bool, error) {
	run, err := a.active(ctx, row.ID)
	if err != nil || run.ID == "" {
		return false, err
	}
	err = a.command(ctx, row.ID, runIs(run, session.StatusRunning, session.StatusNeedsAttention), nil,
		event.Event{SessionID: row.ID, UserID: row.UserID, RunID: run.ID, Data: &event.InterruptRequested{Actor: c.Actor, Reason: note(reason)}})
	if conflicted(err) {
		return false, nil
	}
	return err == nil, err
}

// active finds the active run of a session; an empty row when there is none.
func (a *Admission) active(ctx context.Context, id event.SessionID) (eventlog.RunRow, error) {
	for _, status := range []string{session.StatusRunning, session.StatusNeedsAttention} {
		rows, _, err := a.cfg.Store.Runs(ctx, eventlog.RunFilter{SessionID: id, Status: status}, eventlog.Page{Limit: 1})
		if err != nil {
			return eventlog.RunRow{}, err
		}
		if len(rows) > 0 {
			return rows[0], nil
		}
	}
	return eventlog.RunRow{}, nil
}

// note bounds a reason that a person gives.
func note(s string) string { return preview(s) }

// Attention settles one call in doubt (I-14). Of two words on one call the
// first counts; the second is a conflict.
func (a *Admission) Attention(ctx context.Context, c Caller, row eventlog.RunRow, req *api.ResolveAttention) error {
	res := event.Resolution(req.Resolution)
	switch res {
	case event.ResolveCompleted, event.ResolveFailed, event.ResolveRetry:
	default:
		return problem.New(problem.Invalid, "invalid_resolution", "resolution must be completed, failed or retry")
	}
	if len(req.Output) > a.cfg.Limits.InputBytes {
		return problem.New(problem.TooLarge, "output_too_large", "output holds more than %d bytes", a.cfg.Limits.InputBytes)
	}
	for range conflicts {
		remaining, err := without(&row, event.CallID(req.CallID))
		if err != nil {
			return err
		}
		require := append(runIs(row, session.StatusNeedsAttention), runIs(row, row.WaitingOn)...)
		require[1].Column = "waiting_on" // nobody said a word on another call meanwhile
		err = a.command(ctx, row.SessionID, require, nil, event.Event{
			SessionID: row.SessionID, UserID: row.UserID, RunID: row.ID, CallID: event.CallID(req.CallID),
			StepID: session.StepOfCall(event.CallID(req.CallID)),
			Data: &event.AttentionResolved{
				Actor: c.Actor, Output: event.TextContent(req.Output), Reason: note(req.Reason), Remaining: remaining, Resolution: res,
			},
		})
		if !conflicted(err) {
			return err
		}
		if row, err = a.FindRun(ctx, c, row.ID); err != nil {
			return err
		}
	}
	return problem.New(problem.Conflict, "run_state_conflict", "the run is being settled by others; look again")
}

// without gives the calls that the run waits for, less one that it must be
// waiting for.
func without(row *eventlog.RunRow, call event.CallID) ([]event.DoubtCall, error) {
	waiting, err := row.Waiting()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(waiting, func(c event.DoubtCall) bool { return c.CallID == call })
	if i < 0 || row.Status != session.StatusNeedsAttention {
		return nil, problem.New(problem.Conflict, "call_not_in_doubt", "the run does not wait for a word on the call %.128q", string(call))
	}
	return slices.Delete(waiting, i, i+1), nil
}

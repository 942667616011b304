package admission

import (
	"context"
	"errors"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

var errNoTarget = problem.New(problem.NotFound, "target_not_found", "there is no such target")

// FindTarget resolves a target that the caller may see (I-34).
func (a *Admission) FindTarget(ctx context.Context, c Caller, id event.TargetID) (eventlog.TargetState, error) {
	row, err := a.cfg.Store.TargetState(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Sees(row.UserID) {
		return row, errNoTarget
	}
	return row, err
}

// PauseTarget parks what is to go to a target until it is resumed. One that is
// paused stays so, by who did it and for the reason given first. Each command says
// whether it changed anything.
func (a *Admission) PauseTarget(ctx context.Context, c Caller, row eventlog.TargetState, reason string) (changed bool, err error) {
	return a.target(ctx, row, 0, &event.TargetPaused{Actor: c.Actor, Code: event.PausedByRequest, Reason: note(reason)},
		&event.AuditTargetChanged{Actor: c.Actor, Change: "paused", Reason: note(reason), TargetID: row.ID})
}

// ResumeTarget ends a pause; one that is not paused stays as it is.
func (a *Admission) ResumeTarget(ctx context.Context, c Caller, row eventlog.TargetState, reason string) (changed bool, err error) {
	return a.target(ctx, row, 1, &event.TargetResumed{Actor: c.Actor, Reason: note(reason)},
		&event.AuditTargetChanged{Actor: c.Actor, Change: "resumed", Reason: note(reason), TargetID: row.ID})
}

// ResetTarget closes the circuit of a target and has what waits for its retry
// sent at once. A paused one stays paused.
func (a *Admission) ResetTarget(ctx context.Context, c Caller, row eventlog.TargetState, reason string) (changed bool, err error) {
	return a.target(ctx, row, row.Paused, &event.TargetCircuitClosed{Actor: c.Actor, Reason: note(reason)},
		&event.AuditTargetChanged{Actor: c.Actor, Change: "reset", Reason: note(reason), TargetID: row.ID})
}

// target appends a command to a target's stream, which wakes whoever owns it, and
// tells the audit stream.
// Where the target is not, or no longer, in the state that the command is about
// it has its effect already.
func (a *Admission) target(ctx context.Context, row eventlog.TargetState, paused int64, d event.Data, told *event.AuditTargetChanged) (changed bool, err error) {
	err = a.append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{{Stream: row.ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: row.UserID, Data: d}}}, eventlog.AuditEntry(told)},
		Require: []eventlog.Condition{{
			Table: derived.Targets, Where: []derived.Col{{Name: "target_id", Value: string(row.ID)}}, Column: "n_paused", In: []any{paused},
		}},
	})
	if !conflicted(err) {
		return err == nil, err
	}
	if _, ok := d.(*event.TargetCircuitClosed); ok && row.Paused == paused { // it was paused or resumed in between: it counts all the same
		return a.target(ctx, row, 1-paused, d, told)
	}
	return false, nil
}

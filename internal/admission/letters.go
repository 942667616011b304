package admission

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// maxReason bounds a reason that is kept whole, in characters.
const maxReason = 500

// reasonFor reads a reason that a person gives for what is recorded with it.
func reasonFor(text string, required bool) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" && required {
		return "", problem.New(problem.Invalid, "invalid_reason", "a reason must be given, of 1 to %d characters: it stays with the record", maxReason)
	}
	if n := utf8.RuneCountInString(text); n > maxReason {
		return "", problem.New(problem.Invalid, "invalid_reason", "the reason has %d characters, and may have %d", n, maxReason)
	}
	return text, nil
}

// replayRefusals are what a caller is told of what outbox.Replayable finds.
var replayRefusals = map[string]error{
	outbox.InFlight:        errInFlight,
	outbox.NoLetter:        problem.New(problem.Conflict, "delivery_state_conflict", "only a dead letter is replayed; one that was delivered with force, and what still waits for its turn not at all"),
	outbox.AlreadyReplayed: errReplayed,
	outbox.WasResolved:     problem.New(problem.Conflict, "delivery_resolved", "a person said that the delivery is done with; with force, and a reason, it is replayed all the same"),
}

var (
	errInFlight = problem.New(problem.Conflict, "delivery_in_flight", "an attempt of the delivery is in flight; try again when it is over")
	errReplayed = problem.New(problem.Conflict, "already_replayed", "the delivery was replayed already; with force, and a reason, it is once more")
)

// Replay puts a dead letter at the tail of its target's lane, with a new
// budget. Of several at once one does, and the others find it replayed already.
func (a *Admission) Replay(ctx context.Context, c Caller, row eventlog.DeliveryRow, req *api.ReplayDelivery) error {
	reason, err := reasonFor(req.Reason, req.Force)
	if err != nil {
		return err
	}
	if code := outbox.Replayable(row.Status, row.Open, row.Replays, req.Force); code != "" {
		return replayRefusals[code]
	}
	if err := a.sendable(ctx, &row); err != nil {
		return err
	}
	forced := row.Status != outbox.DeadLettered
	entry, require := row.Replay(&event.DeliveryReplayed{Actor: c.Actor, Forced: forced, Reason: reason})
	entries := []eventlog.Entry{entry}
	if forced {
		entries = append(entries, eventlog.AuditEntry(&event.AuditDeliveryReplayed{Actor: c.Actor, DeliveryID: row.ID, Forced: true, Reason: reason}))
	}
	err = a.append(ctx, eventlog.Append{Entries: entries, Require: require})
	var ce *eventlog.ConditionError
	switch {
	case !errors.As(err, &ce):
		return err
	case ce.Index == 3:
		return errErased
	case ce.Index == 0 && ce.Found != nil:
		return errReplayed
	}
	now, err := a.FindDelivery(ctx, c, row.ID)
	if err != nil {
		return err
	}
	if code := outbox.Replayable(now.Status, now.Open, now.Replays, false); code != "" {
		return replayRefusals[code]
	}
	return replayRefusals[outbox.NoLetter]
}

// sendable says why a delivery could not be sent at all: no force overrides it.
func (a *Admission) sendable(ctx context.Context, row *eventlog.DeliveryRow) error {
	_, _, err := a.cfg.Store.Blob(ctx, row.SessionID, row.Body)
	var address []byte
	if err == nil {
		address, _, err = a.cfg.Store.Blob(ctx, row.SessionID, row.Address)
	}
	if errors.Is(err, eventlog.ErrErased) || errors.Is(err, eventlog.ErrNotFound) {
		return errErased
	}
	if err != nil {
		return err
	}
	var target event.ReplyTarget
	if err := json.Unmarshal(address, &target); err != nil {
		return problem.New(problem.Invalid, "invalid_reply_target", "the address of the delivery cannot be read").Because(err)
	}
	if a.cfg.CheckTarget == nil {
		return nil
	}
	_, err = a.cfg.CheckTarget(ctx, row.UserID, target)
	return err
}

// ResolveDelivery is a person's word that a delivery is done with: pending or
// parked, it is not sent any more. One whose attempt is in flight is a conflict.
// Said again it changes nothing: the first reason stays.
func (a *Admission) ResolveDelivery(ctx context.Context, c Caller, row eventlog.DeliveryRow, reason string) error {
	reason, err := reasonFor(reason, true)
	if err != nil || row.Status == outbox.Resolved {
		return err
	}
	here := []derived.Col{{Name: "target_id", Value: string(row.TargetID)}, {Name: "delivery_id", Value: string(row.ID)}}
	err = a.append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{{Stream: row.TargetID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{
			SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID,
			Data: &event.DeliveryResolved{Actor: c.Actor, DeliveryID: row.ID, Reason: reason},
		}}}},
		Require: []eventlog.Condition{
			{Table: derived.Outbox, Where: here, Column: "status", In: []any{outbox.Pending, outbox.DeadLettered}},
			{Table: derived.Outbox, Where: here, Column: "n_open", In: []any{int64(0)}},
		},
	})
	var ce *eventlog.ConditionError
	switch {
	case !errors.As(err, &ce):
		return err
	case ce.Index == 1:
		return errInFlight
	case ce.Found == outbox.Resolved: // by somebody in between
		return nil
	}
	return problem.New(problem.Conflict, "delivery_state_conflict", "only a pending or dead-lettered delivery is resolved")
}

package deliveries

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	delivering "github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func (h *Handlers) targetRoutes() []call.Route {
	const takesEffect = " Whoever works on the target learns of it at once, on another node too. It may be said again: then nothing changes."
	change := func(path, id, summary, notes string, action func(*call.Call, *api.ChangeTarget) error) call.Route {
		return call.Takes(action, openapi.Operation{Method: "POST", Path: "/v1/targets/{target}/" + path, ID: id, Role: gate.Operator, Summary: summary, Notes: notes + takesEffect,
			Answers: []openapi.Answer{openapi.Gives[api.Target](200, "The target as it is now.")}})
	}
	return []call.Route{
		change("pause", "pauseTarget", "Send nothing more to a target", "What is in flight comes to its end; what waits, and what comes, is parked until it is resumed. Nothing is dropped, and no age counts meanwhile.",
			h.changeTarget((*admission.Admission).PauseTarget)),
		change("resume", "resumeTarget", "Go on with a paused target", "What was parked goes out in order; its age counts from here.", h.changeTarget((*admission.Admission).ResumeTarget)),
		change("reset", "resetTarget", "Close the circuit of a target", "Its failures are forgotten, and what waits for a retry, or because the receiver asked for it, is due at once. A paused target stays paused.",
			h.changeTarget((*admission.Admission).ResetTarget)),
	}
}

// changeTarget makes the action of a command to a target.
func (h *Handlers) changeTarget(do func(*admission.Admission, context.Context, admission.Caller, eventlog.TargetState, string) (bool, error)) func(*call.Call, *api.ChangeTarget) error {
	return func(c *call.Call, req *api.ChangeTarget) error {
		row, err := h.Admission.FindTarget(c.Ctx(), c.Who.Caller, event.TargetID(c.R.PathValue("target")))
		if err != nil {
			return err
		}
		changed, err := do(h.Admission, c.Ctx(), c.Who.Caller, row, req.Reason)
		if err != nil {
			return err
		}
		out, err := h.pathTarget(c)
		if err != nil {
			return err
		}
		out.Unchanged = !changed
		return c.JSON(http.StatusOK, out)
	}
}

// target shows a target.
func (h *Handlers) target(c *call.Call, row *eventlog.TargetRow) (api.Target, error) {
	var t views.Times
	s := &row.State
	out := api.Target{
		ID: string(row.ID), UserID: row.UserID, Type: row.Type, Pending: row.Pending, DeadLettered: row.DeadLettered,
		OldestPendingAt: t.Maybe(row.OldestPending), InFlight: row.InFlight,
		LastDeliveryID: string(row.LastDelivery), LastMadeAt: t.Maybe(row.LastMade), LastStatus: row.LastStatus, LastCode: row.LastCode,
		Circuit: cmp.Or(s.Circuit, api.CircuitClosed), Failures: s.Failures,
	}
	circuit, err := delivering.CircuitOf(s)
	if err != nil {
		return out, err
	}
	now, err := h.Store.Now(c.Ctx())
	if err != nil {
		return out, err
	}
	if circuit.State == outbox.Open {
		out.OpenUntil = &circuit.OpenUntil
	}
	if circuit.HeldUntil.After(now) {
		out.HeldUntil = &circuit.HeldUntil
	}
	if s.Paused != 0 {
		out.Paused = &api.Pause{At: t.At(s.PausedAt), By: s.PausedBy, Code: s.PausedCode, Reason: s.PauseReason}
	}
	if s.FailedAt != "" {
		out.LastFailure = &api.Failure{At: t.At(s.FailedAt), Code: s.LastCode, Class: s.LastClass}
	}
	switch next := t.Maybe(row.NextAt); {
	case next == nil:
	case s.Paused != 0:
		out.Blocked = row.Pending
	default:
		failed := time.Time{}
		if at := t.Maybe(row.FirstFailedAt); at != nil {
			failed = *at
		}
		due := circuit.Due(*next, failed)
		if due.After(now) { // the first waits, and all behind it
			out.Blocked = row.Pending - 1
		}
		if due.IsZero() {
			due = now
		}
		out.NextAt = &due
	}
	if t.Err == nil && row.LastDelivery != "" {
		d, err := h.Store.Delivery(c.Ctx(), row.LastDelivery)
		switch {
		case errors.Is(err, eventlog.ErrNotFound): // it left the ledger
		case err != nil:
			return out, err
		default:
			if out.Receiver, err = h.receiver(c, &d); err != nil {
				return out, err
			}
		}
	}
	return out, t.Err
}

// receiver says where a delivery goes, or nothing where that went with its session.
func (h *Handlers) receiver(c *call.Call, row *eventlog.DeliveryRow) (string, error) {
	raw, _, err := h.Store.Blob(c.Ctx(), row.SessionID, row.Address)
	if errors.Is(err, eventlog.ErrErased) || errors.Is(err, eventlog.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var t event.ReplyTarget
	if json.Unmarshal(raw, &t) != nil {
		return "", nil // nobody: it is a dead letter of the code invalid
	}
	return t.Receiver(), nil
}

func (h *Handlers) listTargets(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	f := eventlog.TargetFilter{Type: c.Query["type"]}
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	if f.Status, err = c.OneOf("status", api.DeliveryPending, api.DeliveryDeadLettered); err != nil {
		return err
	}
	rows, next, err := h.Store.Targets(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Target]{Items: []api.Target{}, NextCursor: next}
	for i := range rows {
		item, err := h.target(c, &rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getTarget(c *call.Call) error {
	out, err := h.pathTarget(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// pathTarget gives the target of the path, also when the ledger has nothing of it: a
// pause, or what a test began, stays when the last delivery leaves.
func (h *Handlers) pathTarget(c *call.Call) (api.Target, error) {
	row, err := h.Store.Target(c.Ctx(), event.TargetID(c.R.PathValue("target")))
	if errors.Is(err, eventlog.ErrNotFound) {
		row = eventlog.TargetRow{}
		row.State, err = h.Admission.FindTarget(c.Ctx(), c.Who.Caller, event.TargetID(c.R.PathValue("target")))
		row.ID, row.UserID, row.Type = row.State.ID, row.State.UserID, row.State.Type
	}
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Who.Sees(row.UserID) { // I-34
		return api.Target{}, problem.New(problem.NotFound, "target_not_found", "there is no such target")
	}
	if err != nil {
		return api.Target{}, err
	}
	return h.target(c, &row)
}

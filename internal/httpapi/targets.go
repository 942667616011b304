package httpapi

import (
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
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func targetRoutes() []route {
	const takesEffect = " Whoever works on the target learns of it at once, on another node too. It may be said again: then nothing changes."
	change := func(path, id, summary, notes string, action func(*call, *api.ChangeTarget) error) route {
		return takes(action, openapi.Operation{Method: "POST", Path: "/v1/targets/{target}/" + path, ID: id, Role: gate.Operator, Summary: summary, Notes: notes + takesEffect,
			Answers: []openapi.Answer{openapi.Gives[api.Target](200, "The target as it is now.")}})
	}
	return []route{
		change("pause", "pauseTarget", "Send nothing more to a target", "What is in flight comes to its end; what waits, and what comes, is parked until it is resumed. Nothing is dropped, and no age counts meanwhile.",
			changeTarget((*admission.Admission).PauseTarget)),
		change("resume", "resumeTarget", "Go on with a paused target", "What was parked goes out in order; its age counts from here.", changeTarget((*admission.Admission).ResumeTarget)),
		change("reset", "resetTarget", "Close the circuit of a target", "Its failures are forgotten, and what waits for a retry, or because the receiver asked for it, is due at once. A paused target stays paused.",
			changeTarget((*admission.Admission).ResetTarget)),
	}
}

// changeTarget makes the action of a command to a target.
func changeTarget(do func(*admission.Admission, context.Context, admission.Caller, eventlog.TargetState, string) (bool, error)) func(*call, *api.ChangeTarget) error {
	return func(c *call, req *api.ChangeTarget) error {
		row, err := c.cfg.Admission.FindTarget(c.Ctx(), c.Who.Caller, event.TargetID(c.R.PathValue("target")))
		if err != nil {
			return err
		}
		changed, err := do(c.cfg.Admission, c.Ctx(), c.Who.Caller, row, req.Reason)
		if err != nil {
			return err
		}
		out, err := c.pathTarget()
		if err != nil {
			return err
		}
		out.Unchanged = !changed
		return c.JSON(http.StatusOK, out)
	}
}

// target shows a target.
func (c *call) target(row *eventlog.TargetRow) (api.Target, error) {
	var t times
	s := &row.State
	out := api.Target{
		ID: string(row.ID), UserID: row.UserID, Type: row.Type, Pending: row.Pending, DeadLettered: row.DeadLettered,
		OldestPendingAt: t.maybe(row.OldestPending), InFlight: row.InFlight,
		LastDeliveryID: string(row.LastDelivery), LastMadeAt: t.maybe(row.LastMade), LastStatus: row.LastStatus, LastCode: row.LastCode,
		Circuit: or(s.Circuit, api.CircuitClosed), Failures: s.Failures,
	}
	circuit, err := delivering.CircuitOf(s)
	if err != nil {
		return out, err
	}
	now, err := c.cfg.Store.Now(c.Ctx())
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
		out.Paused = &api.Pause{At: t.at(s.PausedAt), By: s.PausedBy, Code: s.PausedCode, Reason: s.PauseReason}
	}
	if s.FailedAt != "" {
		out.LastFailure = &api.Failure{At: t.at(s.FailedAt), Code: s.LastCode, Class: s.LastClass}
	}
	switch next := t.maybe(row.NextAt); {
	case next == nil:
	case s.Paused != 0:
		out.Blocked = row.Pending
	default:
		failed := time.Time{}
		if at := t.maybe(row.FirstFailedAt); at != nil {
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
	if t.err == nil && row.LastDelivery != "" {
		d, err := c.cfg.Store.Delivery(c.Ctx(), row.LastDelivery)
		switch {
		case errors.Is(err, eventlog.ErrNotFound): // it left the ledger
		case err != nil:
			return out, err
		default:
			if out.Receiver, err = c.receiver(&d); err != nil {
				return out, err
			}
		}
	}
	return out, t.err
}

// receiver says where a delivery goes, or nothing where that went with its session.
func (c *call) receiver(row *eventlog.DeliveryRow) (string, error) {
	raw, _, err := c.cfg.Store.Blob(c.Ctx(), row.SessionID, row.Address)
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

func or(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

func listTargets(c *call) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	f := eventlog.TargetFilter{Type: c.query["type"]}
	if f.UserID, err = c.owner(); err != nil {
		return err
	}
	if f.Status, err = c.oneOf("status", api.DeliveryPending, api.DeliveryDeadLettered); err != nil {
		return err
	}
	rows, next, err := c.cfg.Store.Targets(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Target]{Items: []api.Target{}, NextCursor: next}
	for i := range rows {
		item, err := c.target(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func getTarget(c *call) error {
	out, err := c.pathTarget()
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// pathTarget gives the target of the path, also when the ledger has nothing of it: a
// pause, or what a test began, stays when the last delivery leaves.
func (c *call) pathTarget() (api.Target, error) {
	row, err := c.cfg.Store.Target(c.Ctx(), event.TargetID(c.R.PathValue("target")))
	if errors.Is(err, eventlog.ErrNotFound) {
		row = eventlog.TargetRow{}
		row.State, err = c.cfg.Admission.FindTarget(c.Ctx(), c.Who.Caller, event.TargetID(c.R.PathValue("target")))
		row.ID, row.UserID, row.Type = row.State.ID, row.State.UserID, row.State.Type
	}
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.Who.Sees(row.UserID) { // I-34
		return api.Target{}, problem.New(problem.NotFound, "target_not_found", "there is no such target")
	}
	if err != nil {
		return api.Target{}, err
	}
	return c.target(&row)
}

package deliveries

import (
	"errors"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// maxReplays bounds the replays that are shown of one delivery; the log has all.
const maxReplays = 100

func (h *Handlers) showDelivery(c *call.Call, status int, id event.DeliveryID) error {
	row, err := h.Admission.FindDelivery(c.Ctx(), c.Who.Caller, id)
	if err != nil {
		return err
	}
	out, err := views.Delivery(&row)
	if err != nil {
		return err
	}
	if out.Receiver, err = h.receiver(c, &row); err != nil {
		return err
	}
	if row.Replays > 0 {
		rows, err := h.Store.Replays(c.Ctx(), row.TargetID, row.ID, maxReplays)
		if err != nil {
			return err
		}
		var t views.Times
		for _, r := range rows {
			out.ReplayHistory = append(out.ReplayHistory, api.Replay{At: t.At(r.At), Actor: r.Actor, Reason: r.Reason, Forced: r.Forced, JobID: string(r.JobID)})
		}
		if t.Err != nil {
			return t.Err
		}
	}
	return c.JSON(status, out)
}

func (h *Handlers) listDeliveries(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	f := eventlog.DeliveryFilter{
		SessionID: event.SessionID(c.Query["session_id"]), RunID: event.RunID(c.Query["run_id"]), TargetID: event.TargetID(c.Query["target_id"]),
	}
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	status, err := c.OneOf("status", api.DeliveryPending, api.DeliveryRetrying, api.DeliveryDelivered, api.DeliveryDeadLettered, api.DeliveryResolved)
	if err != nil {
		return err
	}
	switch f.Status = status; status {
	case api.DeliveryRetrying:
		f.Status, f.Tried = api.DeliveryPending, true
	case api.DeliveryPending:
		f.Untried = true
	}
	unresolved, err := c.OneOf("unresolved", "true", "false")
	if err != nil {
		return err
	}
	if unresolved == "true" {
		if status != "" && status != api.DeliveryDeadLettered {
			return call.BadParameter("unresolved", "does not go with another status than dead_lettered")
		}
		f.Status = api.DeliveryDeadLettered
	}
	if f.Class, err = c.OneOf("error_class", outbox.Classes()...); err != nil {
		return err
	}
	if f.Range, err = c.Range(); err != nil {
		return err
	}
	out := api.List[api.Delivery]{Items: []api.Delivery{}}
	if f.RunID != "" && f.SessionID == "" { // deliveries of a run are found by its session
		run, err := h.Store.Run(c.Ctx(), f.RunID)
		if errors.Is(err, eventlog.ErrNotFound) {
			return c.JSON(http.StatusOK, out)
		}
		if err != nil {
			return err
		}
		f.SessionID = run.SessionID
	}
	rows, next, err := h.Store.Deliveries(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out.NextCursor = next
	for i := range rows {
		item, err := views.Delivery(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) getDelivery(c *call.Call) error {
	return h.showDelivery(c, http.StatusOK, event.DeliveryID(c.R.PathValue("d")))
}

func (h *Handlers) replayDelivery(c *call.Call, req *api.ReplayDelivery) error {
	row, err := h.Admission.FindDelivery(c.Ctx(), c.Who.Caller, event.DeliveryID(c.R.PathValue("d")))
	if err != nil {
		return err
	}
	if err := h.Admission.Replay(c.Ctx(), c.Who.Caller, row, req); err != nil {
		return err
	}
	return h.showDelivery(c, http.StatusAccepted, row.ID)
}

func (h *Handlers) resolveDelivery(c *call.Call, req *api.ResolveDelivery) error {
	row, err := h.Admission.FindDelivery(c.Ctx(), c.Who.Caller, event.DeliveryID(c.R.PathValue("d")))
	if err != nil {
		return err
	}
	if err := h.Admission.ResolveDelivery(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return h.showDelivery(c, http.StatusOK, row.ID)
}

package httpapi

import (
	"errors"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// maxReplays bounds the replays that are shown of one delivery; the log has all.
const maxReplays = 100

func (c *call) showDelivery(status int, id event.DeliveryID) error {
	row, err := c.cfg.Admission.FindDelivery(c.Ctx(), c.Who.Caller, id)
	if err != nil {
		return err
	}
	out, err := delivery(&row)
	if err != nil {
		return err
	}
	if out.Receiver, err = c.receiver(&row); err != nil {
		return err
	}
	if row.Replays > 0 {
		rows, err := c.cfg.Store.Replays(c.Ctx(), row.TargetID, row.ID, maxReplays)
		if err != nil {
			return err
		}
		var t times
		for _, r := range rows {
			out.ReplayHistory = append(out.ReplayHistory, api.Replay{At: t.at(r.At), Actor: r.Actor, Reason: r.Reason, Forced: r.Forced, JobID: string(r.JobID)})
		}
		if t.err != nil {
			return t.err
		}
	}
	return c.JSON(status, out)
}

func listDeliveries(c *call) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	f := eventlog.DeliveryFilter{
		SessionID: event.SessionID(c.query["session_id"]), RunID: event.RunID(c.query["run_id"]), TargetID: event.TargetID(c.query["target_id"]),
	}
	if f.UserID, err = c.owner(); err != nil {
		return err
	}
	status, err := c.oneOf("status", api.DeliveryPending, api.DeliveryRetrying, api.DeliveryDelivered, api.DeliveryDeadLettered, api.DeliveryResolved)
	if err != nil {
		return err
	}
	switch f.Status = status; status {
	case api.DeliveryRetrying:
		f.Status, f.Tried = api.DeliveryPending, true
	case api.DeliveryPending:
		f.Untried = true
	}
	unresolved, err := c.oneOf("unresolved", "true", "false")
	if err != nil {
		return err
	}
	if unresolved == "true" {
		if status != "" && status != api.DeliveryDeadLettered {
			return badParameter("unresolved", "does not go with another status than dead_lettered")
		}
		f.Status = api.DeliveryDeadLettered
	}
	if f.Class, err = c.oneOf("error_class", outbox.Classes()...); err != nil {
		return err
	}
	if f.Range, err = c.timeRange(); err != nil {
		return err
	}
	out := api.List[api.Delivery]{Items: []api.Delivery{}}
	if f.RunID != "" && f.SessionID == "" { // deliveries of a run are found by its session
		run, err := c.cfg.Store.Run(c.Ctx(), f.RunID)
		if errors.Is(err, eventlog.ErrNotFound) {
			return c.JSON(http.StatusOK, out)
		}
		if err != nil {
			return err
		}
		f.SessionID = run.SessionID
	}
	rows, next, err := c.cfg.Store.Deliveries(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out.NextCursor = next
	for i := range rows {
		item, err := delivery(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

func getDelivery(c *call) error {
	return c.showDelivery(http.StatusOK, event.DeliveryID(c.R.PathValue("d")))
}

func replayDelivery(c *call, req *api.ReplayDelivery) error {
	row, err := c.cfg.Admission.FindDelivery(c.Ctx(), c.Who.Caller, event.DeliveryID(c.R.PathValue("d")))
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.Replay(c.Ctx(), c.Who.Caller, row, req); err != nil {
		return err
	}
	return c.showDelivery(http.StatusAccepted, row.ID)
}

func resolveDelivery(c *call, req *api.ResolveDelivery) error {
	row, err := c.cfg.Admission.FindDelivery(c.Ctx(), c.Who.Caller, event.DeliveryID(c.R.PathValue("d")))
	if err != nil {
		return err
	}
	if err := c.cfg.Admission.ResolveDelivery(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	return c.showDelivery(http.StatusOK, row.ID)
}

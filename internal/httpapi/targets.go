package httpapi

import (
	"errors"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// target shows a target.
func target(row *eventlog.TargetRow) (api.Target, error) {
	var t times
	out := api.Target{
		ID: string(row.ID), UserID: row.UserID, Type: row.Type, Pending: row.Pending, DeadLettered: row.DeadLettered,
		OldestPendingAt: t.maybe(row.OldestPending), NextAt: t.maybe(row.NextAt),
		LastDeliveryID: string(row.LastDelivery), LastMadeAt: t.at(row.LastMade), LastStatus: row.LastStatus, LastCode: row.LastCode,
	}
	return out, t.err
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
	rows, next, err := c.cfg.Store.Targets(c.ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Target]{Items: []api.Target{}, NextCursor: next}
	for i := range rows {
		item, err := target(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.json(http.StatusOK, out)
}

func getTarget(c *call) error {
	row, err := c.cfg.Store.Target(c.ctx(), event.TargetID(c.r.PathValue("target")))
	if errors.Is(err, eventlog.ErrNotFound) || err == nil && !c.who.Sees(row.UserID) { // I-34
		return problem.New(problem.NotFound, "target_not_found", "there is no such target")
	}
	if err != nil {
		return err
	}
	out, err := target(&row)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, out)
}

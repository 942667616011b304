package deliveries

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

func (h *Handlers) attemptRoutes() []call.Route {
	return []call.Route{
		call.Plain(h.listAttempts, openapi.Operation{Method: "GET", Path: "/v1/deliveries/{d}/attempts", ID: "listAttempts", Role: gate.Reader, Summary: "List the attempts of a delivery, in their order",
			Notes:   "Those before a replay too. Of a failed one `excerpt` is the beginning of what was answered.",
			Params:  []openapi.Param{call.Limit, call.Cursor},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Attempt]](200, "A page.")}}),
	}
}

// listAttempts joins what the rows of attempts keep with what the row of the
// delivery tells: the attempt by which it was delivered, and the one in flight.
func (h *Handlers) listAttempts(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	row, err := h.Admission.FindDelivery(c.Ctx(), c.Who.Caller, event.DeliveryID(c.R.PathValue("d")))
	if err != nil {
		return err
	}
	limit, after, err := storecore.AttemptsAfter(page)
	if err != nil {
		return err
	}
	rows, next, err := h.Store.Attempts(c.Ctx(), row.TargetID, row.ID, page)
	if err != nil {
		return err
	}
	out := api.List[api.Attempt]{Items: []api.Attempt{}, NextCursor: next}
	for i := range rows {
		item, err := h.attempt(c, &row, &rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	if next != "" {
		return c.JSON(http.StatusOK, out)
	}
	for _, last := range rest(&row) {
		switch {
		case last.Number <= after:
		case len(out.Items) == limit:
			out.NextCursor = storecore.EncodeCursor(storecore.AttemptsKind, []string{strconv.FormatInt(out.Items[limit-1].Number, 10)})
			return c.JSON(http.StatusOK, out)
		default:
			item, err := h.attempt(c, &row, &last)
			if err != nil {
				return err
			}
			out.Items = append(out.Items, item)
		}
	}
	return c.JSON(http.StatusOK, out)
}

// rest are the attempts that have no rows of their own.
func rest(row *eventlog.DeliveryRow) (list []eventlog.AttemptRow) {
	if row.DeliveredAttempt > 0 {
		list = append(list, eventlog.AttemptRow{Number: row.DeliveredAttempt, EndedAt: row.LastAt, Status: row.LastStatus, DurationMS: row.LastMS})
	}
	if row.Open > 0 {
		list = append(list, eventlog.AttemptRow{Number: row.Open})
	}
	return list
}

func (h *Handlers) attempt(c *call.Call, row *eventlog.DeliveryRow, a *eventlog.AttemptRow) (api.Attempt, error) {
	var t views.Times
	out := api.Attempt{Number: a.Number, Outcome: api.AttemptDelivered, Code: a.Code, Class: a.Class, Status: a.Status,
		EndedAt: t.Maybe(a.EndedAt), DurationMS: a.DurationMS, NextAt: t.Maybe(a.RetryAt)}
	switch {
	case a.EndedAt == "":
		out.Outcome = api.AttemptInFlight
	case a.Code != "":
		out.Outcome = api.AttemptFailed
	}
	if a.Excerpt != "" {
		text, _, err := h.Store.Blob(c.Ctx(), row.SessionID, a.Excerpt)
		if err != nil && !errors.Is(err, eventlog.ErrErased) && !errors.Is(err, eventlog.ErrNotFound) {
			return out, err
		}
		out.Excerpt = string(text)
	}
	return out, t.Err
}

package runs

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// What a timeline reads of the streams of targets: of so many deliveries, so
// many events each. Of what stands further on the row of the delivery tells.
const (
	timelineDeliveries = 16
	timelineEvents     = 512
)

func (h *Handlers) runTimeline(c *call.Call) error {
	row, err := c.Run(h.cfg.Admission)
	if err != nil {
		return err
	}
	fold := timeline.New(row.ID, h.cfg.Price)
	if err := h.foldRun(c.Ctx(), &row, fold); err != nil {
		return err
	}
	now := time.Now()
	out := fold.Timeline(now)
	if row.OutputSeq == 0 {
		return c.JSON(http.StatusOK, out) // deliveries come with an output
	}
	if err := h.foldDeliveries(c.Ctx(), &row, fold, out, now); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// foldRun reads the session's stream from the run's creation to its end, or to the head.
func (h *Handlers) foldRun(ctx context.Context, row *eventlog.RunRow, fold *timeline.Fold) error {
	for at := row.CreatedSeq - 1; !fold.Done(); {
		events, err := h.cfg.Store.ReadBounded(ctx, row.SessionID.Stream(), at, logs.ReadPage)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			e := &events[i]
			if fold.Wants(e) {
				if err := e.Decode(); err != nil {
					return err
				}
			}
			fold.Add(e)
			at = e.Seq
		}
	}
	return nil
}

// foldDeliveries adds the deliveries of the run's answer.
func (h *Handlers) foldDeliveries(ctx context.Context, row *eventlog.RunRow, fold *timeline.Fold, out *api.Timeline, now time.Time) error {
	rows, _, err := h.cfg.Store.Deliveries(ctx, eventlog.DeliveryFilter{SessionID: row.SessionID, RunID: row.ID}, eventlog.Page{Limit: call.MaxPage})
	if err != nil {
		return err
	}
	for i := range rows {
		shown, err := views.Delivery(&rows[i])
		if err != nil {
			return err
		}
		d := timeline.Delivery{ID: rows[i].ID, Target: rows[i].TargetID, Status: shown.Status, Created: shown.CreatedAt, Updated: shown.UpdatedAt,
			Attempts: shown.Attempts, LastCode: shown.LastCode}
		if i < timelineDeliveries {
			if d.Events, err = h.deliveryEvents(ctx, &rows[i]); err != nil {
				return err
			}
		}
		fold.Deliver(out, &d, now)
	}
	return nil
}

// deliveryEvents reads what the stream of its target says of a delivery, from
// its place in the lane on, as far as the bound goes.
func (h *Handlers) deliveryEvents(ctx context.Context, row *eventlog.DeliveryRow) ([]event.Event, error) {
	var list []event.Event
	for at, seen := row.LaneSeq-1, 0; seen < timelineEvents; {
		events, err := h.cfg.Store.ReadBounded(ctx, row.TargetID.Stream(), at, logs.ReadPage)
		if errors.Is(err, eventlog.ErrNotFound) || err == nil && len(events) == 0 {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range events {
			at, seen = events[i].Seq, seen+1
			if events[i].RunID != row.RunID {
				continue
			}
			if err := events[i].Decode(); err != nil {
				return nil, err
			}
			list = append(list, events[i])
			switch d := events[i].Data.(type) {
			case *event.DeliveryDelivered:
				if d.DeliveryID == row.ID {
					return list, nil
				}
			case *event.DeliveryDeadLettered:
				if d.DeliveryID == row.ID {
					return list, nil
				}
			}
		}
	}
	return list, nil
}

package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// What a timeline reads of the streams of targets: of so many deliveries, so
// many events each. Of what stands further on the row of the delivery tells.
const (
	timelineDeliveries = 16
	timelineEvents     = 512
)

func runTimeline(c *call) error {
	row, err := c.findRun()
	if err != nil {
		return err
	}
	fold := timeline.New(row.ID, c.cfg.Price)
	if err := c.foldRun(c.Ctx(), &row, fold); err != nil {
		return err
	}
	now := time.Now()
	out := fold.Timeline(now)
	if row.OutputSeq == 0 {
		return c.JSON(http.StatusOK, out) // deliveries come with an output
	}
	if err := c.foldDeliveries(c.Ctx(), &row, fold, out, now); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// foldRun reads the session's stream from the run's creation to its end, or to the head.
func (s *server) foldRun(ctx context.Context, row *eventlog.RunRow, fold *timeline.Fold) error {
	for at := row.CreatedSeq - 1; !fold.Done(); {
		events, err := s.cfg.Store.ReadBounded(ctx, row.SessionID.Stream(), at, readPage)
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
func (s *server) foldDeliveries(ctx context.Context, row *eventlog.RunRow, fold *timeline.Fold, out *api.Timeline, now time.Time) error {
	rows, _, err := s.cfg.Store.Deliveries(ctx, eventlog.DeliveryFilter{SessionID: row.SessionID, RunID: row.ID}, eventlog.Page{Limit: maxPage})
	if err != nil {
		return err
	}
	for i := range rows {
		shown, err := delivery(&rows[i])
		if err != nil {
			return err
		}
		d := timeline.Delivery{ID: rows[i].ID, Target: rows[i].TargetID, Status: shown.Status, Created: shown.CreatedAt, Updated: shown.UpdatedAt,
			Attempts: shown.Attempts, LastCode: shown.LastCode}
		if i < timelineDeliveries {
			if d.Events, err = s.deliveryEvents(ctx, &rows[i]); err != nil {
				return err
			}
		}
		fold.Deliver(out, &d, now)
	}
	return nil
}

// deliveryEvents reads what the stream of its target says of a delivery, from
// its place in the lane on, as far as the bound goes.
func (s *server) deliveryEvents(ctx context.Context, row *eventlog.DeliveryRow) ([]event.Event, error) {
	var list []event.Event
	for at, seen := row.LaneSeq-1, 0; seen < timelineEvents; {
		events, err := s.cfg.Store.ReadBounded(ctx, row.TargetID.Stream(), at, readPage)
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

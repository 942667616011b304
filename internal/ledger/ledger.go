// Package ledger takes out of the ledger what is past its retention: deliveries
// that were delivered or resolved, and jobs. What leaves is an event of its stream,
// so that rows made anew from the log are those in place (I-03); events and bodies
// stay. Dead letters stay until a person has said something.
package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// Store is what the ledger needs of the log and its views.
type Store interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	SettledDeliveries(ctx context.Context, status string, before time.Time, limit int) ([]eventlog.DeliveryRow, error)
	Jobs(ctx context.Context, f eventlog.JobFilter, p eventlog.Page) ([]eventlog.JobRow, string, error)
	Now(ctx context.Context) (time.Time, error)
}

// Config says for how long things are kept. All are wanted.
type Config struct {
	Store                     Store
	Delivered, Resolved, Jobs time.Duration
	Step                      int // rows that one step takes out at most; default 200
}

// Ledger takes things out, step by step. Several nodes may do it at once: what
// one has taken out, or somebody has touched, another leaves alone.
type Ledger struct{ cfg Config }

// New makes a ledger.
func New(cfg Config) *Ledger {
	if cfg.Step == 0 {
		cfg.Step = 200
	}
	return &Ledger{cfg}
}

// Step takes out the next rows, and says how many; 0: nothing is past its time.
func (l *Ledger) Step(ctx context.Context) (int, error) {
	now, err := l.cfg.Store.Now(ctx)
	if err != nil {
		return 0, err
	}
	for _, kind := range []struct {
		status string
		keep   time.Duration
	}{{outbox.Delivered, l.cfg.Delivered}, {outbox.Resolved, l.cfg.Resolved}} {
		rows, err := l.cfg.Store.SettledDeliveries(ctx, kind.status, now.Add(-kind.keep), l.cfg.Step)
		if err != nil {
			return 0, err
		}
		if len(rows) > 0 {
			return l.deliveries(ctx, rows)
		}
	}
	return l.jobs(ctx, now.Add(-l.cfg.Jobs))
}

// deliveries takes deliveries out, those of a target in one append.
func (l *Ledger) deliveries(ctx context.Context, rows []eventlog.DeliveryRow) (n int, err error) {
	slices.SortStableFunc(rows, func(a, b eventlog.DeliveryRow) int {
		switch {
		case a.TargetID < b.TargetID:
			return -1
		case a.TargetID > b.TargetID:
			return 1
		}
		return 0
	})
	for len(rows) > 0 {
		end := slices.IndexFunc(rows, func(r eventlog.DeliveryRow) bool { return r.TargetID != rows[0].TargetID })
		if end < 0 {
			end = len(rows)
		}
		done, err := l.target(ctx, rows[:end])
		if n += done; err != nil {
			return n, err
		}
		rows = rows[end:]
	}
	return n, nil
}

// target takes out deliveries of one target. One that is not as it was seen is
// left out, and the rest tried again.
func (l *Ledger) target(ctx context.Context, rows []eventlog.DeliveryRow) (int, error) {
	for len(rows) > 0 {
		d := &event.DeliveryExpired{}
		var require []eventlog.Condition
		for i := range rows {
			d.Deliveries = append(d.Deliveries, rows[i].ID)
			require = append(require, rows[i].Unchanged())
		}
		_, err := l.cfg.Store.Append(ctx, eventlog.Append{
			Entries: []eventlog.Entry{{Stream: rows[0].TargetID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: rows[0].UserID, Data: d}}}},
			Require: require,
		})
		var ce *eventlog.ConditionError
		if !errors.As(err, &ce) {
			if err != nil {
				return 0, err
			}
			return len(rows), nil
		}
		rows = slices.Delete(slices.Clone(rows), ce.Index, ce.Index+1)
	}
	return 0, nil
}

// jobs takes out jobs that ended, and plans that were never started.
func (l *Ledger) jobs(ctx context.Context, before time.Time) (int, error) {
	n := 0
	for _, status := range []string{job.Completed, job.Cancelled, job.Planned} {
		rows, _, err := l.cfg.Store.Jobs(ctx, eventlog.JobFilter{Status: status, Range: eventlog.Range{Until: before, Asc: true}}, eventlog.Page{Limit: l.cfg.Step})
		if err != nil {
			return n, err
		}
		for i := range rows {
			if rows[i].UpdatedAt >= event.FormatTime(before) {
				continue
			}
			_, err := l.cfg.Store.Append(ctx, eventlog.Append{
				Entries: []eventlog.Entry{{Stream: rows[i].ID.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: rows[i].UserID, Data: &event.JobExpired{}}}}},
				Require: []eventlog.Condition{{Table: derived.Jobs, Where: []derived.Col{{Name: "job_id", Value: string(rows[i].ID)}}, Column: "updated_at", In: []any{rows[i].UpdatedAt}}},
			})
			var ce *eventlog.ConditionError
			switch {
			case err == nil:
				n++
			case !errors.As(err, &ce):
				return n, err
			}
		}
	}
	return n, nil
}

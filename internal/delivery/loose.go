package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// loose sends to a target whose order was given up: several attempts at once,
// what is due passes what waits for its retry, within the front of the lane.
// It comes back when nothing is in flight.
func (t *turn) loose(ctx context.Context, c clock) (due time.Time, more bool, err error) {
	now := c.least()
	q := eventlog.Ahead{Limit: looseWindow, Bytes: aheadBytes, Largest: t.cfg.MaxPayload, Due: event.FormatTime(now)}
	if !t.circuit.ResetAt.IsZero() || t.whole {
		q.Due = "" // what waits may be due by that
	}
	t.whole = false
	t.exact = false // several append at once
	list, err := t.cfg.Store.Ahead(ctx, t.id, q)
	if err != nil {
		return due, false, err
	}
	if len(list) == 0 {
		return t.rest()
	}
	most := t.rules.InFlight
	if t.circuit.Single() || !t.owned { // a probe, or the claim, goes alone
		most = 1
	}
	var ready []*eventlog.Outgoing
	for i := range list {
		switch next := t.front(&list[i]); {
		case !next.After(now):
			ready = append(ready, &list[i])
		case due.IsZero() || next.Before(due):
			due = next
		}
	}
	if len(ready) == 0 {
		t.waits = true
		return local(due, now), false, nil
	}
	t.waits = false
	if most == 1 {
		ready = ready[:1]
	}
	next := make(chan *eventlog.Outgoing, len(ready))
	for _, o := range ready {
		next <- o
	}
	close(next)
	var flying sync.WaitGroup
	var mu sync.Mutex
	var errs error
	for range min(most, len(ready)) {
		flying.Go(func() {
			for o := range next {
				if err := t.one(ctx, o, most == 1, c); err != nil {
					mu.Lock()
					errs = errors.Join(errs, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	flying.Wait()
	return time.Time{}, true, errs
}

// one makes one attempt, alone or of several that are in flight.
func (t *turn) one(ctx context.Context, o *eventlog.Outgoing, alone bool, c clock) error {
	t.lane.mu.Lock()
	as := t.as
	t.lane.mu.Unlock()
	p, ok := t.slots.take(ctx, t.w.Draining, as)
	if !ok {
		return ctx.Err()
	}
	defer t.slots.free(p)
	t.lane.mu.Lock()
	t.learn(o) // when it is due follows from the rules of its own address
	if t.w.Stopping() || t.stale || t.circuit.Paused || t.front(o).After(c.least()) || t.circuit.Single() && !alone {
		t.lane.mu.Unlock()
		return nil // what was, when it was looked at, is not any more
	}
	start, m := t.begin(o, c.least())
	if m != nil && int64(len(m.Body)) < o.Size { // never sent without it
		t.whole = true
		t.lane.mu.Unlock()
		return nil
	}
	timeout, err := t.rules.Timeout, t.append(ctx, start)
	t.lane.mu.Unlock()
	if err != nil || m == nil {
		return err
	}
	res, err := t.send(ctx, p, m, timeout, c)
	if err != nil {
		return err
	}
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	t.note(&o.DeliveryRow, res)
	return t.record(ctx, t.outcome(&o.DeliveryRow, res))
}

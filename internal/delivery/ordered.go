package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// ordered sends what is due at the front of the lane, one after the other, as
// long as the turn lasts. The outcome of an attempt and the start of the next are
// one append.
func (t *turn) ordered(ctx context.Context, p *place) (due time.Time, more bool, err error) {
	if t.w.Stopping() {
		return due, true, nil
	}
	c, err := t.clock(ctx) // the place may have been long in coming
	if err != nil {
		return due, false, err
	}
	list := t.ahead.take()
	if len(list) == 0 {
		list, err = t.cfg.Store.Ahead(ctx, t.id, eventlog.Ahead{Limit: aheadLimit, Bytes: aheadBytes, Largest: t.cfg.MaxPayload})
		if err != nil {
			return due, false, err
		}
		t.exact = true // of the head that was read before, or that is ours
	}
	if len(list) == 0 {
		return t.rest()
	}
	t.waits = false
	began := time.Now()
	var told []part // the outcome before, and deliveries that end unsent
	flush := func() error {
		if len(told) == 0 {
			return nil
		}
		err := t.append(ctx, told...)
		if err != nil {
			err = t.apart(ctx, told, err)
		}
		told = nil
		return err
	}
	for i := range list {
		o := &list[i]
		t.learn(o)
		if next := t.front(o); next.After(c.least()) {
			t.waits = true
			return local(next, c.least()), false, flush()
		}
		if t.rules.InFlight > 1 { // seen now, by its address
			return due, true, flush()
		}
		start, m := t.begin(o, c.least())
		if m == nil {
			told = append(told, start)
			continue
		}
		if err := t.append(ctx, append(told, start)...); err != nil {
			if len(told) > 0 {
				err = errors.Join(err, t.apart(ctx, told, err))
			}
			return due, true, err
		}
		told = nil
		res, err := t.send(ctx, p, m, t.rules.Timeout, c)
		if err != nil {
			return due, false, err
		}
		t.note(&o.DeliveryRow, res)
		outcome := t.outcome(&o.DeliveryRow, res)
		if t.done(&outcome) {
			t.slots.now(p, t.as)
			on := time.Since(began) < turnTime || !t.slots.wanted(p)
			if i+1 < len(list) && !t.w.Stopping() && on {
				told = append(told, outcome)
				continue
			}
			if err := t.record(ctx, outcome); err != nil {
				return due, true, err
			}
			t.ahead.keep(list[i+1:])
			return due, true, nil
		}
		t.waits = true
		return due, true, t.record(ctx, outcome)
	}
	return due, true, flush()
}

// done says whether an outcome is the plain one after which the lane just goes on.
func (t *turn) done(p *part) bool {
	_, ok := p.events[0].(*event.DeliveryDelivered)
	return ok && len(p.events) == 1 && t.circuit.State == outbox.Closed
}

// apart writes what was to be told together one by one, since together it was
// refused: outcomes are facts, whatever became of the rest.
func (t *turn) apart(ctx context.Context, told []part, why error) error {
	if errors.Is(why, eventlog.ErrFenced) || ctx.Err() != nil {
		return why
	}
	var errs error
	for _, p := range told {
		var other *eventlog.ConditionError
		if err := t.record(ctx, p); err != nil && !errors.As(err, &other) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// takeUp appends what is offered to a session at rest together with what follows
// from it: a submission with the start of its run. Where that cannot be done now it
// declines, and what is offered comes by way of the log like every command. It says
// whether it is in the log.
func (d *drive) takeUp(ctx context.Context, o *eventlog.Offer, draining <-chan struct{}) bool {
	defer func() {
		o.Decline()
		o.Append = eventlog.Append{} // it may be large, and the run long
	}()
	for range 2 { // once more where the state was behind
		select {
		case <-draining:
			return false
		default:
		}
		if d.e.cfg.Held() || !d.st.AtRest() || !d.term.Held() || !o.Take() { // a beat that is late is not waited for: nobody has been told anything yet
			return false
		}
		b, err := d.accept(ctx, o)
		if err != nil {
			return false // what is wrong with it, or here, is seen again on the other way
		}
		a, err := d.appendOf(ctx, b)
		if err != nil {
			return false
		}
		a.Require, a.Uses, a.Blobs = o.Append.Require, o.Append.Uses, slices.Concat(o.Append.Blobs, a.Blobs)
		_, err = d.e.cfg.Log.Append(ctx, a)
		var held *eventlog.HeldError
		switch {
		case err == nil:
			d.keep(a.Blobs)
			d.landed(b)
			o.Settle(nil)
			return true
		case errors.Is(err, eventlog.ErrHeadMoved), errors.Is(err, eventlog.ErrFenced):
			// Nothing here was begun by us: what another owner did is no end of anything.
			if d.readOn(ctx) != nil {
				return false
			}
		case errors.As(err, &held):
			return false
		default:
			// Where nobody knows whether it is in the log, or comes there yet, a claim
			// is the next append: behind that it cannot come any more.
			if eventlog.Refusal(err) == "" && !errors.Is(err, eventlog.ErrFull) && !errors.Is(err, eventlog.ErrDamaged) {
				d.unsure = b.from
			}
			o.Settle(err)
			return false
		}
	}
	return false
}

// accept makes the batch that has what is offered, and what follows from it.
func (d *drive) accept(ctx context.Context, o *eventlog.Offer) (*batch, error) {
	b := d.newBatch()
	if err := d.claim(b); err != nil {
		return nil, err
	}
	if err := d.fold(b, slices.Clone(o.Append.Entries[0].Events)); err != nil {
		return nil, err
	}
	actions, due, err := d.follow(ctx, b)
	if err != nil {
		return nil, err
	}
	d.mayRest(b, actions, due)
	return b, nil
}

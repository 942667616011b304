package storecore

import (
	"context"
	"fmt"
	"math"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Facts gives the events at places, in their order, as eventlog.Log says: those that are
// in memory, where t is not nil, and the others as rest reads them. Rest gives the event at
// each place, nil where there is none, and may end early behind the first. Once closing
// is closed what is in memory does not count: the database says how its end went.
func Facts(ctx context.Context, t *Tails, closing <-chan struct{}, places []eventlog.Place, rest func([]eventlog.Place) ([]*event.Event, error)) ([]event.Event, error) {
	if len(places) > eventlog.MaxFacts {
		return nil, fmt.Errorf("%d places; at most %d are taken", len(places), eventlog.MaxFacts)
	}
	select {
	case <-closing:
		t = nil
	default:
	}
	list := make([]event.Event, len(places))
	var left []eventlog.Place
	var at []int // their indices
	for i, p := range places {
		if t != nil {
			if one, ok := t.Read(p.Stream, p.Seq-1, 1, math.MaxInt); ok && len(one) == 1 && one[0].Seq == p.Seq {
				list[i] = one[0]
				continue
			}
		}
		left, at = append(left, p), append(at, i)
	}
	if len(left) == 0 {
		return list, ctx.Err()
	}
	events, err := rest(left)
	if err != nil {
		return nil, err
	}
	for i, e := range events {
		if e == nil {
			return nil, fmt.Errorf("event %d of %s: %w", left[i].Seq, left[i].Stream, eventlog.ErrNotFound)
		}
		list[at[i]] = *e
	}
	if len(events) < len(left) {
		list = list[:at[len(events)]]
	}
	return list, nil
}

// EventAt gives the event of a sequence out of events of one stream that follow each
// other, nil when it is not among them.
func EventAt(events []event.Event, seq int64) *event.Event {
	if len(events) == 0 || seq < events[0].Seq || seq-events[0].Seq >= int64(len(events)) {
		return nil
	}
	e := events[seq-events[0].Seq] // and not the rest, which may be long
	return &e
}

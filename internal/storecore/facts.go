package storecore

import (
	"fmt"
	"math"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Facts gives the events at places, in their order: those that are in memory, where
// t is not nil, and the others as rest reads them, which may leave out what is not there.
func Facts(t *Tails, places []eventlog.Place, rest func([]eventlog.Place) ([]event.Event, error)) ([]event.Event, error) {
	if len(places) > eventlog.MaxFacts {
		return nil, fmt.Errorf("%d places; at most %d are taken", len(places), eventlog.MaxFacts)
	}
	known := make(map[eventlog.Place]event.Event, len(places))
	var left []eventlog.Place
	for _, p := range places {
		if t != nil {
			if list, ok := t.Read(p.Stream, p.Seq-1, 1, math.MaxInt); ok && len(list) == 1 && list[0].Seq == p.Seq {
				known[p] = list[0]
				continue
			}
		}
		left = append(left, p)
	}
	if len(left) > 0 {
		events, err := rest(left)
		if err != nil {
			return nil, err
		}
		for i := range events {
			known[eventlog.Place{Stream: events[i].Stream, Seq: events[i].Seq}] = events[i]
		}
	}
	list := make([]event.Event, len(places))
	for i, p := range places {
		e, ok := known[p]
		if !ok {
			return nil, fmt.Errorf("event %d of %s: %w", p.Seq, p.Stream, eventlog.ErrNotFound)
		}
		list[i] = e
	}
	return list, nil
}

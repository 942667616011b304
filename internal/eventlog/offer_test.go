package eventlog_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

var errNo = errors.New("no")

// does what an owner does to an offer, word by word, and gives what it was told
// when it wanted to take it.
func does(o *eventlog.Offer, words string) (takes []bool) {
	for _, w := range strings.Fields(words) {
		switch w {
		case "take":
			takes = append(takes, o.Take())
		case "decline":
			o.Decline()
		case "settle":
			o.Settle(nil)
		case "fail":
			o.Settle(errNo)
		}
	}
	return takes
}

// The first answer to an offer counts, in whatever order it is taken, answered and
// waited for. What nobody has taken when its waiter leaves, nobody may take any more:
// a submission that was given up is not made behind the back of who made it.
func TestOffer(t *testing.T) {
	for name, row := range map[string]struct {
		before string // what the owner does before anybody waits
		leaves bool   // the waiter leaves then
		after  string // and while it waits, or when it has left
		takes  []bool
		taken  bool
		err    error
	}{
		"declined":                    {before: "decline"},
		"declined while waited for":   {after: "decline"},
		"taken and declined":          {before: "take", after: "decline", takes: []bool{true}},
		"settled":                     {before: "take settle", takes: []bool{true}, taken: true},
		"settled while waited for":    {before: "take", after: "settle", takes: []bool{true}, taken: true},
		"failed":                      {before: "take", after: "fail", takes: []bool{true}, taken: true, err: errNo},
		"taken twice":                 {before: "take", after: "take settle", takes: []bool{true, true}, taken: true},
		"taken when it was declined":  {before: "decline take", takes: []bool{false}},
		"taken when it was settled":   {before: "take settle take", takes: []bool{true, false}, taken: true},
		"declined, then settled":      {after: "decline settle fail"},
		"settled, then declined":      {after: "take settle decline fail", takes: []bool{true}, taken: true},
		"failed, then settled":        {after: "take fail settle decline", takes: []bool{true}, taken: true, err: errNo},
		"left before it was taken":    {leaves: true, after: "take decline take settle", takes: []bool{false, false}, taken: true, err: context.Canceled},
		"left, and nobody comes":      {leaves: true, taken: true, err: context.Canceled},
		"left when it was taken":      {before: "take", leaves: true, after: "settle decline", takes: []bool{true}, taken: true, err: context.Canceled},
		"left, and it failed":         {before: "take", leaves: true, after: "fail", takes: []bool{true}, taken: true, err: context.Canceled},
		"left, and it is taken again": {before: "take", leaves: true, after: "take settle", takes: []bool{true, true}, taken: true, err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				o := eventlog.NewOffer(eventlog.Append{})
				takes := does(o, row.before)
				var taken bool
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					taken, err = o.Wait(ctx)
				}()
				synctest.Wait()
				if row.leaves {
					leave()
					<-done
				}
				takes = append(takes, does(o, row.after)...)
				<-done
				if taken != row.taken || !errors.Is(err, row.err) {
					t.Errorf("taken %v, %v", taken, err)
				}
				if !slices.Equal(takes, row.takes) {
					t.Errorf("its owner was told %v", takes)
				}
			})
		})
	}
}

// An answer that was there before the waiter left is what it is told.
func TestOfferAnsweredAndLeft(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for range 100 { // both are ready: either may be looked at first
		for words, want := range map[string]struct {
			taken bool
			err   error
		}{"decline": {}, "take settle": {taken: true}, "take fail": {true, errNo}} {
			o := eventlog.NewOffer(eventlog.Append{})
			does(o, words)
			if taken, err := o.Wait(ctx); taken != want.taken || !errors.Is(err, want.err) {
				t.Fatalf("%s: taken %v, %v", words, taken, err)
			}
		}
	}
}

// Whoever comes at the same time, an offer has one answer, and what its waiter is told
// agrees with what its owner was told.
func TestOfferAtOnce(t *testing.T) {
	for i := range 500 {
		ctx, leave := context.WithCancel(t.Context())
		o := eventlog.NewOffer(eventlog.Append{})
		var all sync.WaitGroup
		var taken, took bool
		var err error
		all.Go(func() { taken, err = o.Wait(ctx) })
		all.Go(func() {
			if took = o.Take(); took && i%3 > 0 {
				o.Settle(nil)
			}
			o.Decline()
			o.Take()
		})
		if i%2 == 0 {
			all.Go(leave)
		}
		all.Wait()
		leave()
		switch {
		case err != nil: // it left; whether the owner was first stays open
			if !errors.Is(err, context.Canceled) || !taken {
				t.Fatalf("left: taken %v, %v", taken, err)
			}
		case taken != (took && i%3 > 0):
			t.Fatalf("taken %v, but its owner was told %v", taken, took)
		}
	}
}

// A command wakes; a run that begins in the append that queues it does not: who
// began it is at work. What comes behind its start wakes again.
func TestWakes(t *testing.T) {
	queued, started, cancel := &event.RunQueued{}, &event.RunStarted{}, &event.CancelRequested{}
	for name, row := range map[string]struct {
		data []event.Data
		want bool
	}{
		"nothing":                    {nil, false},
		"a submission":               {[]event.Data{&event.RunCreated{}, queued}, true},
		"one that begins":            {[]event.Data{&event.RunCreated{}, queued, started, &event.StepStarted{}, &event.ModelCallStarted{}}, false},
		"behind a claim":             {[]event.Data{&event.OwnerClaimed{}, &event.RunCreated{}, queued, started}, false},
		"a start":                    {[]event.Data{started}, false},
		"a cancel behind a start":    {[]event.Data{queued, started, cancel}, true},
		"a cancel before a start":    {[]event.Data{cancel, queued, started}, false},
		"another queued behind it":   {[]event.Data{queued, started, queued}, true},
		"a cancel":                   {[]event.Data{cancel}, true},
		"what others are told of":    {[]event.Data{&event.SessionUpdated{}, &event.RunCompleted{}}, false},
		"what a target is to do now": {[]event.Data{&event.DeliveryEnqueued{}}, true},
	} {
		drafts, read := make([]event.Event, len(row.data)), make([]event.Event, len(row.data))
		for i, d := range row.data {
			drafts[i].Data, read[i].Type = d, d.EventType()
		}
		if eventlog.Wakes(drafts) != row.want || eventlog.Wakes(read) != row.want { // also what was read and not decoded
			t.Errorf("%s: %v, %v", name, eventlog.Wakes(drafts), eventlog.Wakes(read))
		}
	}
}

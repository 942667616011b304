package delivery_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// A reset counts whenever it comes: under an attempt in flight, and between the look
// at a target and the append that begins its probe.
func TestResetIsNotForgotten(t *testing.T) {
	const url = "https://a.test/"
	for name, inFlight := range map[string]int{"strict": 1, "loose": 2} {
		t.Run(name, func(t *testing.T) {
			for _, when := range []string{"in flight", "before the probe"} {
				t.Run(when, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result {
							time.Sleep(100 * time.Millisecond)
							return down
						})
						p.open(func(c *delivery.Config) {
							r := steady
							r.Threshold, r.Cooldown, r.MaxCooldown, r.InFlight = 5, 10*time.Second, time.Minute, inFlight
							c.Rules = rules(r)
						})
						p.enqueue(url, "dlv_1")
						time.Sleep(12 * time.Second) // open, and about to be half-open
						if c := p.circuit(url); c.State != outbox.Open || c.Failures != 5 {
							t.Fatalf("the circuit is %+v", c)
						}
						reset := event.Event{UserID: user, Data: &event.TargetCircuitClosed{Actor: "ann"}}
						put := func() {
							if _, err := p.store.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{
								{Stream: target(url).Stream(), Expect: eventlog.AnyHead, Events: []event.Event{reset}}}}); err != nil {
								t.Error(err)
							}
							p.room.Wake(target(url))
						}
						var probe, ends atomic.Bool
						p.mu.Lock()
						p.fault = func(a eventlog.Append) error {
							for _, e := range a.Entries[0].Events {
								if _, ok := e.Data.(*event.TargetCircuitHalfOpened); ok && probe.CompareAndSwap(false, true) {
									if when == "before the probe" {
										ends.Store(true)
										put()
									} else {
										time.AfterFunc(50*time.Millisecond, func() { ends.Store(true); put() })
									}
								}
							}
							return nil
						}
						p.mu.Unlock()
						for !ends.Load() {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(300 * time.Millisecond) // one attempt ends
						if c := p.circuit(url); c.State != outbox.Closed || c.Failures != 1 {
							t.Errorf("one failure after the reset the circuit is %+v", c)
						}
						p.close()
					})
				})
			}
		})
	}
}

// between has a person's words come to the log in the instant between the end of an
// attempt and the record of its outcome, as often as there are words, behind so many
// tries at which the store could not be reached. The lane hears of them from the log
// alone.
func (p *post) between(url string, away int, words ...event.Data) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = func(a eventlog.Append) error {
		for _, e := range a.Entries[0].Events {
			switch e.Data.(type) {
			case *event.DeliveryAttemptFailed, *event.DeliveryDelivered:
			default:
				continue
			}
			if away > 0 {
				away--
				return errors.New("the store cannot be reached")
			}
			if len(words) == 0 {
				return nil
			}
			word := event.Event{UserID: user, Data: words[0]}
			words = words[1:]
			<-time.After(time.Millisecond) // no two of them at one time
			_, err := p.store.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{
				{Stream: target(url).Stream(), Expect: eventlog.AnyHead, Events: []event.Event{word}}}})
			return err
		}
		return nil
	}
}

// What a person does to a target between the end of an attempt and the record of its
// outcome is not undone by that outcome, which is recorded all the same, once, and
// follows from the target as it is then. // I-25
func TestOutcomeUndoesNothing(t *testing.T) {
	gone := delivery.Result{Code: "http_410", Status: 410, Gone: true}
	reset, pause := &event.TargetCircuitClosed{Actor: user}, &event.TargetPaused{Actor: user, Code: event.PausedByRequest, Reason: "it is moved"}
	for name, row := range map[string]struct {
		attempt int // under which it comes: the fifth opens the circuit, the sixth is its probe
		answer  delivery.Result
		words   []event.Data
		want    outbox.Circuit
		by      string // who paused it
		away    int
	}{
		"reset under the last of a row":  {5, down, []event.Data{reset}, outbox.Circuit{Failures: 1}, "", 0},
		"reset under a probe":            {6, down, []event.Data{reset}, outbox.Circuit{Failures: 1}, "", 0},
		"reset under a probe that is in": {6, taken, []event.Data{reset}, outbox.Circuit{}, "", 0},
		"reset again and again":          {6, down, []event.Data{reset, reset, reset}, outbox.Circuit{Failures: 1}, "", 0},
		"reset behind an outage":         {6, down, []event.Data{reset}, outbox.Circuit{Failures: 1}, "", 12},
		"reset without an end":           {6, down, slices.Repeat([]event.Data{reset}, 20), outbox.Circuit{}, "", 0},
		"paused under the word gone":     {2, gone, []event.Data{pause}, outbox.Circuit{Paused: true}, user, 0},
		"paused and resumed under gone":  {2, gone, []event.Data{pause, &event.TargetResumed{Actor: user}}, outbox.Circuit{Paused: true}, "", 0},
		"paused under a failure":         {2, down, []event.Data{pause}, outbox.Circuit{Failures: 2, Paused: true}, user, 0},
	} {
		for order, inFlight := range map[string]int{"strict": 1, "loose": 2} {
			t.Run(name+" "+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var p *post
					p = newPost(t, func(_ context.Context, _ delivery.Message, n int) delivery.Result {
						switch {
						case n == row.attempt:
							p.between(urlA, row.away, row.words...)
							return row.answer
						case n > row.attempt:
							<-time.After(time.Hour)
						}
						return down
					})
					p.open(func(c *delivery.Config) {
						r := steady
						r.Threshold, r.Cooldown, r.MaxCooldown, r.InFlight, r.Timeout = 5, 10*time.Second, time.Minute, inFlight, 2*time.Hour
						c.Rules = rules(r)
					})
					p.enqueue(urlA, "dlv_1")
					for len(p.ids()) < row.attempt {
						rest(100 * time.Millisecond)
					}
					rest(500*time.Millisecond + time.Duration(row.away)*2*time.Second)
					c := p.circuit(urlA)
					c.ResetAt, c.ResumedAt = time.Time{}, time.Time{}
					if c != row.want {
						t.Errorf("the circuit is %+v, want %+v", c, row.want)
					}
					if s, err := p.store.TargetState(context.Background(), target(urlA)); err != nil || s.PausedBy != row.by {
						t.Errorf("%+v %v", s, err)
					}
					ended := 0
					for _, typ := range p.types(urlA) {
						if typ == event.TypeDeliveryAttemptFailed || typ == event.TypeDeliveryDelivered {
							ended++
						}
					}
					if again := len(p.ids()) - row.attempt; ended != row.attempt || again > 1 { // a reset has the next begin at once
						t.Errorf("%d outcomes of %d attempts, and %d begun since", ended, row.attempt, again)
					}
					p.close()
				})
			})
		}
	}
}

// A target that is paused and resumed in the instant before a delivery is given up for
// its age has its deliveries' time anew: that one is not given up. // I-25
func TestResumeBeforeAnEndByAge(t *testing.T) {
	for order, inFlight := range map[string]int{"strict": 1, "loose": 2} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return down })
				p.open(func(c *delivery.Config) {
					r := steady
					r.MaxAge, r.Threshold, r.Cooldown, r.InFlight = time.Minute, 1, 5*time.Minute, inFlight // it waits for the circuit when its time ends
					c.Rules = rules(r)
				})
				var once atomic.Bool
				p.mu.Lock()
				p.fault = func(a eventlog.Append) error {
					if _, ends := a.Entries[0].Events[0].Data.(*event.DeliveryDeadLettered); ends && once.CompareAndSwap(false, true) {
						for _, word := range []event.Data{&event.TargetPaused{Actor: user, Code: event.PausedByRequest}, &event.TargetResumed{Actor: user}} {
							p.command(urlA, word)
						}
					}
					return nil
				}
				p.mu.Unlock()
				p.enqueue(urlA, "dlv_1")
				rest(90 * time.Second)
				if row := p.row("dlv_1"); !once.Load() || row.Status != outbox.Pending {
					t.Errorf("it was about to be given up: %v; it is %s after %d attempts", once.Load(), row.Status, row.Attempts)
				}
				rest(time.Minute) // its time is over anew
				if row := p.row("dlv_1"); row.Status != outbox.DeadLettered {
					t.Errorf("it is %s after %d attempts", row.Status, row.Attempts)
				}
				p.close()
			})
		})
	}
}

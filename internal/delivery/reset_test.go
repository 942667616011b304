package delivery_test

import (
	"context"
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

package delivery_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// While there is no room for outcomes no attempt begins, and none is spent; then
// the lane goes on by itself. // C70 I-24 I-25
func TestNoAttemptWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		var held atomic.Bool
		held.Store(true)
		p.open(func(c *delivery.Config) { c.Held = held.Load })
		p.enqueue("https://a.example/", "dlv_1")
		p.enqueue("https://a.example/", "dlv_2")
		time.Sleep(time.Hour)
		p.status("dlv_1", "pending", 0)
		held.Store(false)
		time.Sleep(time.Minute)
		p.status("dlv_1", "delivered", 1)
		p.status("dlv_2", "delivered", 1)
		p.close()
	})
}

// A store that is full when the outcome of an attempt is to be recorded costs
// neither the outcome nor a second message. // C70 I-24 I-26
func TestFullAfterTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		full := true
		p.fault = func(a eventlog.Append) error {
			for i := range a.Entries[0].Events {
				if _, ok := a.Entries[0].Events[i].Data.(*event.DeliveryDelivered); ok && full {
					return eventlog.Full(errors.New("no room"), false)
				}
			}
			return nil
		}
		p.open(nil)
		p.enqueue("https://a.example/", "dlv_1")
		time.Sleep(time.Hour)
		p.mu.Lock()
		full = false
		p.mu.Unlock()
		time.Sleep(time.Minute)
		p.status("dlv_1", "delivered", 1)
		if len(p.attempts) != 1 {
			t.Errorf("%d messages were sent", len(p.attempts))
		}
		p.close()
	})
}

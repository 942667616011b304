package tenure

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A process that was stopped for longer than its lease wakes, and its beat is the
// first thing that runs, before any timer: what it held may be another's, and
// work from before does not go on under the new lease. // I-11
func TestRenewalAfterALapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 15 * time.Second
		tn := New(Config{TTL: ttl, Logger: slog.New(slog.DiscardHandler)})
		if !tn.renewed(time.Now()) {
			t.Fatal("the first beat does not begin a lease")
		}
		before := tn.Term()
		time.Sleep(ttl / 3)
		if tn.renewed(time.Now()) || tn.Term() != before || !before.Held() {
			t.Fatal("a beat in time begins another lease")
		}
		tn.ending.Stop() // its timers stand still with it
		time.Sleep(2 * ttl)
		if before.Held() {
			t.Error("held without a beat")
		}
		if !tn.renewed(time.Now()) {
			t.Error("the lease goes on over the lapse")
		}
		if before.Held() || !errors.Is(before.Await(t.Context()), ErrLost) || before.Context().Err() == nil {
			t.Error("work from before the lapse may act")
		}
		if after := tn.Term(); after == before || !after.Held() || after.Context().Err() != nil {
			t.Error("the new lease is no term of its own")
		}
		tn.ending.Stop()
	})
}

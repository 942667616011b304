package daemon_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// I-16: a node whose clock is ten minutes ahead or behind neither takes what
// another holds nor loses what it holds; its retries come when they should, and
// what it writes has the time of the store.
func TestClusterClock(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 10 * time.Minute, "behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, nil)
			const right, wrong = 0, 1
			c.nodes[wrong].env = []string{envClock + "=" + off.String()}
			gate := make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			var mu sync.Mutex
			asked := map[int][]time.Time{}
			c.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
				mu.Lock()
				asked[order] = append(asked[order], time.Now())
				n := len(asked[order])
				mu.Unlock()
				switch {
				case order == 21 || order == 22: // held for longer than a lease
					select {
					case <-gate:
					case <-c.w.hung:
					}
				case order == 23 && n == 1:
					return chatstub.Reply{Status: http.StatusServiceUnavailable, Body: []byte(`{"error":{"message":"busy"}}`), ContentType: "application/json",
						Header: http.Header{"Retry-After": {"2"}}}
				}
				return storyAnswer(order, step, req)
			}
			var hits []time.Time
			c.w.hook = func(path, _ string, n int) int { // with the world's lock held
				if path == "/retried" {
					hits = append(hits, time.Now())
					if n < 3 {
						return http.StatusInternalServerError
					}
				}
				return http.StatusOK
			}
			count := func(order int) int {
				mu.Lock()
				defer mu.Unlock()
				return len(asked[order])
			}
			c.begin(wrong)
			c.session(wrong, "of-wrong")
			two := c.submit(wrong, "of-wrong", 22)
			c.until("the first is in work", func() bool { return count(22) == 1 })
			c.begin(right)
			c.session(right, "of-right")
			one := c.submit(right, "of-right", 21)
			c.until("both are in work", func() bool { return count(21) == 1 && count(22) == 1 })
			c.passes(3 * clusterLease)
			if count(21) != 1 || count(22) != 1 {
				t.Errorf("I-16: a session was stolen: %d and %d requests", count(21), count(22))
			}
			for _, n := range c.leases(right) {
				if !n.Alive || n.LeaseUntil == nil || time.Until(*n.LeaseUntil).Abs() > time.Minute {
					t.Errorf("I-16: a node is seen as %+v", n)
				}
			}
			open()
			c.completes(right, one.ID)
			c.completes(right, two.ID)

			c.delivered(right, 2)
			c.nodes[right].stop(c.nodes[right].life()) // what comes now is for the other
			c.session(wrong, "retried")
			began := time.Now()
			three := c.submit(wrong, "retried", 23)
			c.completes(wrong, three.ID)
			c.delivered(wrong, 3)
			took := time.Since(began)
			mu.Lock()
			if again := asked[23]; len(again) != 2 || again[1].Sub(again[0]) < 2*time.Second {
				t.Errorf("I-16: the model was asked at %v, and had asked for 2 s", again)
			}
			mu.Unlock()
			if took > time.Minute {
				t.Errorf("I-16: it took %s to ask again after 2 s and to deliver again after 10 ms", took)
			}
			c.w.mu.Lock()
			if len(hits) != 3 {
				t.Errorf("%d attempts of the delivery", len(hits))
			}
			c.w.mu.Unlock()
			_, events := c.history()
			for i := range events {
				e := &events[i]
				if e.Time.Before(began.Add(-time.Minute)) || e.Time.After(time.Now().Add(time.Minute)) {
					t.Errorf("I-16: %s#%d %s is of %s", e.Stream, e.Seq, e.Type, e.Time)
				}
				if d, ok := e.Data.(*event.RetryScheduled); ok {
					at, err := event.ParseTime(d.At)
					if err != nil || at.Before(began) || at.After(began.Add(time.Minute)) {
						t.Errorf("I-16: a retry is planned for %s, %v", d.At, err)
					}
				}
			}
			for stream, by := range owners(events) {
				if len(by) != 1 {
					t.Errorf("I-16: %s went from %v", stream, by)
				}
			}
		})
	}
}

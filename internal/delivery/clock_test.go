package delivery_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// slowStore takes its time for what lies between the look at its clock and the
// attempts that are counted from it.
type slowStore struct{ faulty }

func (s slowStore) Now(ctx context.Context) (time.Time, error) {
	time.Sleep(200 * time.Millisecond)
	now, err := s.faulty.Now(ctx)
	time.Sleep(200 * time.Millisecond)
	return now, err
}

func (s slowStore) Ahead(ctx context.Context, id event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
	list, err := s.faulty.Ahead(ctx, id, q)
	time.Sleep(300 * time.Millisecond)
	return list, err
}

// C42: a receiver is left alone for as long as it asked, also where the store is
// slow between its clock and the attempt; the own waits are no shorter either.
func TestWaitsOverASlowStore(t *testing.T) {
	for name, inFlight := range map[string]int{"strict": 1, "loose": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(_ context.Context, _ delivery.Message, n int) delivery.Result {
					switch n {
					case 1:
						return delivery.Result{Code: "http_429", Status: http.StatusTooManyRequests, RetryAfter: 7 * time.Second}
					case 2:
						return delivery.Result{Code: "http_500", Status: http.StatusInternalServerError}
					}
					return taken
				})
				p.open(func(c *delivery.Config) {
					c.Store = slowStore{c.Store.(faulty)}
					c.Rules = rules(outbox.Rules{MaxAttempts: 4, InitialBackoff: time.Second, Factor: 2, MaxBackoff: 2 * time.Second, InFlight: inFlight})
				})
				const url = "https://a.test/"
				p.enqueue(url, "dlv_1")
				time.Sleep(time.Minute)
				p.status("dlv_1", outbox.Delivered, 3)
				events, err := p.store.Read(t.Context(), target(url).Stream(), 0, 1000)
				if err != nil {
					t.Fatal(err)
				}
				least := []time.Duration{7 * time.Second, 1600 * time.Millisecond}
				for i := range events {
					if err := events[i].Decode(); err != nil {
						t.Fatal(err)
					}
					d, ok := events[i].Data.(*event.DeliveryAttemptFailed)
					if !ok {
						continue
					}
					at, err := event.ParseTime(d.RetryAt)
					if wait := at.Sub(began.Add(p.attempts[d.Attempt-1].at)); err != nil || wait < least[0] || wait > least[0]+time.Second {
						t.Errorf("attempt %d is followed by another after %s (%v), want %s", d.Attempt, wait, err, least[0])
					}
					least = least[1:]
				}
				if gap := p.attempts[1].at - p.attempts[0].at; gap < 7*time.Second {
					t.Errorf("the second attempt came after %s", gap)
				}
				p.close()
			})
		})
	}
}

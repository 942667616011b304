package delivery_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// replay replays a delivery as it stands in the ledger.
func (p *post) replay(url string, id event.DeliveryID) {
	p.t.Helper()
	row := p.row(id)
	entry, require := row.Replay(&event.DeliveryReplayed{Actor: "ann", Forced: row.Status != outbox.DeadLettered})
	if _, err := p.store.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{entry}, Require: require}); err != nil {
		p.t.Error(err)
	}
	if p.room != nil {
		p.room.Wake(target(url))
	}
}

// What is replayed once more while the lane works on those before it joins the
// tail, with a new budget, though the lane had read it before. // I-25
func TestReplayedUnderway(t *testing.T) {
	for name, inFlight := range map[string]int{"strict": 1, "loose": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(_ context.Context, m delivery.Message, _ int) delivery.Result {
					switch m.ID {
					case "dlv_0", "dlv_1", "dlv_1b":
						time.Sleep(5 * time.Second)
					case "dlv_2":
						return down
					}
					return taken
				})
				defer p.close()
				p.enqueue(urlA, "dlv_2")
				s := target(urlA).Stream()
				p.put(s, &event.DeliveryDeadLettered{DeliveryID: "dlv_2", Attempts: 1, Code: "http_400"})
				p.enqueue(urlA, "dlv_0")
				p.enqueue(urlA, "dlv_1")
				p.enqueue(urlA, "dlv_1b")
				p.replay(urlA, "dlv_2")
				if inFlight > 1 { // in the middle of its retries
					p.put(s, &event.DeliveryAttemptStarted{DeliveryID: "dlv_2", Attempt: 1, Cycle: 3})
					p.put(s, &event.DeliveryAttemptFailed{DeliveryID: "dlv_2", Attempt: 1, Code: "http_503", RetryAt: event.FormatTime(time.Now())})
				}
				p.enqueue(urlA, "dlv_3")
				p.open(func(c *delivery.Config) {
					r := outbox.Rules{MaxAttempts: 4, InitialBackoff: time.Second, Factor: 1, Threshold: 100, InFlight: inFlight}
					c.Rules = rules(r)
				})
				rest(7 * time.Second) // dlv_1 is in flight, of those that were read together
				p.replay(urlA, "dlv_2")
				rest(time.Minute)
				ids := p.ids()
				if inFlight == 1 && !slices.Equal(ids, []event.DeliveryID{"dlv_0", "dlv_1", "dlv_1b", "dlv_3", "dlv_2", "dlv_2", "dlv_2", "dlv_2"}) {
					t.Errorf("attempts %v", ids)
				}
				n := 0
				for _, id := range ids {
					if id == "dlv_2" {
						n++
					}
				}
				if n != 4 {
					t.Errorf("%d attempts after the replay, want 4: %v", n, ids)
				}
			})
		})
	}
}

// A process that dies in the last attempt of a budget leaves no further one, also
// where the target is paused when the next process comes. // I-25
func TestLastAttemptOfAPausedTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, _ delivery.Message, n int) delivery.Result {
			if n >= 2 {
				<-ctx.Done()
			}
			return down
		})
		defer p.close()
		two := func(c *delivery.Config) { c.Rules = rules(outbox.Rules{MaxAttempts: 2, Timeout: time.Hour}) }
		p.open(two)
		p.enqueue(urlA, "dlv_1")
		rest(30 * time.Second)
		p.kill()
		if row := p.row("dlv_1"); row.Open != 2 {
			t.Fatalf("%+v", row)
		}
		p.put(target(urlA).Stream(), &event.TargetPaused{Actor: "ann", Code: event.PausedByRequest})
		p.open(two)
		rest(time.Second)
		p.put(target(urlA).Stream(), &event.TargetResumed{Actor: "ann"})
		p.room.Wake(target(urlA))
		rest(time.Minute)
		p.status("dlv_1", outbox.DeadLettered, 2)
		if row := p.row("dlv_1"); row.LastCode != outbox.CodeAbandoned || len(p.ids()) != 2 {
			t.Errorf("%s after %v", row.LastCode, p.ids())
		}
	})
}

package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// Whatever people do, receivers answer and processes die of: each message that is
// sent is at the front of its lane, within its budget, alone where it must be, and
// the same as before; and in the end each has its end. // I-24, I-25, I-26
func TestHistories(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() { // the race detector makes each a few seconds
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &history{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), inFlight: 1, flying: map[string]int{}, bodies: map[event.DeliveryID]string{}}
				if seed%3 == 2 {
					h.inFlight = 3
				}
				h.post = newPost(t, h.receive)
				h.open(h.config)
				for range 500 {
					<-time.After(time.Duration(h.pick(700)) * time.Millisecond)
					h.step()
				}
				h.end()
			})
		})
	}
}

const budgetOfHistories = 4

// history is a post, what happens to it, and what was seen so far.
type history struct {
	*post
	t        *testing.T
	inFlight int

	mu     sync.Mutex
	rnd    *rand.Rand
	calm   atomic.Bool
	flying map[string]int
	bodies map[event.DeliveryID]string
	ids    []event.DeliveryID
}

func (h *history) pick(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rnd.IntN(n)
}

func (h *history) config(c *delivery.Config) {
	c.Rules = rules(outbox.Rules{MaxAttempts: budgetOfHistories, InitialBackoff: 2 * time.Second, Factor: 2, Threshold: 3,
		Cooldown: 10 * time.Second, MaxCooldown: 30 * time.Second, InFlight: h.inFlight, MaxAge: 10 * time.Minute})
}

// receive is a receiver, that looks at how a message stands while it has it.
func (h *history) receive(ctx context.Context, m delivery.Message, _ int) delivery.Result {
	url := m.Target.URL
	h.mu.Lock()
	h.flying[url]++
	flying := h.flying[url]
	if b, known := h.bodies[m.ID]; known && b != string(m.Body) {
		h.t.Errorf("%s was %s and is %s", m.ID, b, m.Body)
	}
	h.bodies[m.ID] = string(m.Body)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.flying[url]--
	}()
	h.look(url, m.ID, flying)
	if h.pick(2) == 0 {
		select {
		case <-time.After(time.Duration(h.pick(9000)) * time.Millisecond):
		case <-ctx.Done():
			return delivery.Result{Code: "timeout"}
		}
	}
	what := h.pick(24)
	switch {
	case h.calm.Load():
		return taken
	case what < 3:
		return delivery.Result{Code: "http_503", Status: 503}
	case what == 3:
		return delivery.Result{Code: "http_429", Status: 429, RetryAfter: time.Duration(h.pick(60)) * time.Second}
	case what == 4:
		return delivery.Result{Code: "http_400", Status: 400}
	case what == 5 && h.pick(5) == 0:
		return delivery.Result{Code: "http_410", Status: 410, Gone: true, Permanent: true}
	case what == 6:
		return delivery.Result{Code: "secret_unavailable"}
	}
	return taken
}

// look says what of a message in flight is not as it must be.
func (h *history) look(url string, id event.DeliveryID, flying int) {
	ctx := context.Background()
	row, err := h.store.Delivery(ctx, id)
	if err != nil || row.Status != outbox.Pending || row.Open == 0 || row.Cycle < 1 || row.Cycle > budgetOfHistories {
		h.t.Errorf("it is sent, and stands as %+v (%v)", row, err)
	}
	s, err := h.store.TargetState(ctx, target(url))
	if err != nil || flying > h.inFlight || s.Circuit != outbox.Closed && flying > 1 || s.Circuit == outbox.Open && h.inFlight == 1 {
		h.t.Errorf("%d in flight, with the circuit %q (%v)", flying, s.Circuit, err)
	}
	if h.inFlight > 1 {
		return
	}
	if front, err := h.store.Ahead(ctx, target(url), eventlog.Ahead{Limit: 1, Bytes: 1}); err != nil || len(front) == 0 || front[0].ID != id {
		h.t.Errorf("%s is sent before %+v (%v)", id, front, err)
	}
}

// command is what a person does, as long as it is possible.
func (h *history) command(id event.TargetID, require []eventlog.Condition, e event.Event) {
	_, err := h.store.Append(context.Background(), eventlog.Append{Require: require, Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{e}}}})
	var other *eventlog.ConditionError
	if err != nil && !errors.As(err, &other) {
		h.t.Error(err)
	}
	h.room.Wake(id)
}

func (h *history) step() {
	url := []string{urlA, urlB}[h.pick(2)]
	to := target(url)
	by := func(d event.Data) event.Event { return event.Event{UserID: user, Data: d} }
	what := h.pick(20)
	var row eventlog.DeliveryRow
	if what >= 8 && what < 13 {
		if len(h.ids) == 0 {
			return
		}
		row = h.row(h.ids[len(h.ids)-1-h.pick(min(len(h.ids), 8))]) // of late: it may wait in a lane
	}
	switch {
	case what < 8:
		id := event.DeliveryID(fmt.Sprintf("dlv_%04d", len(h.ids)))
		h.ids = append(h.ids, id)
		h.enqueue(url, id)
	case what < 12:
		if outbox.Replayable(row.Status, row.Open, row.Replays, h.pick(2) == 0) == "" {
			entry, require := row.Replay(&event.DeliveryReplayed{Actor: "ann", Forced: row.Status != outbox.DeadLettered})
			h.command(row.TargetID, require[:3], entry.Events[0]) // but that there is a session
		}
	case what == 12:
		here := []derived.Col{{Name: "target_id", Value: string(row.TargetID)}, {Name: "delivery_id", Value: string(row.ID)}}
		h.command(row.TargetID, []eventlog.Condition{
			{Table: derived.Outbox, Where: here, Column: "status", In: []any{outbox.Pending, outbox.DeadLettered}},
			{Table: derived.Outbox, Where: here, Column: "n_open", In: []any{int64(0)}},
		}, by(&event.DeliveryResolved{Actor: "ann", DeliveryID: row.ID, Reason: "done with"}))
	case what == 13:
		h.command(to, nil, by(&event.TargetPaused{Actor: "ann", Code: event.PausedByRequest}))
	case what < 16:
		h.command(to, nil, by(&event.TargetResumed{Actor: "ann"}))
	case what == 16:
		h.command(to, nil, by(&event.TargetCircuitClosed{Actor: "ann"}))
	case what == 17:
		h.kill()
		h.open(h.config)
	}
}

// end has all receivers take what comes, and looks at what became of each message.
func (h *history) end() {
	h.calm.Store(true)
	for _, url := range []string{urlA, urlB} {
		h.command(target(url), nil, event.Event{UserID: user, Data: &event.TargetResumed{Actor: "ann"}})
	}
	rest(30 * time.Minute)
	for _, id := range h.ids {
		if row := h.row(id); row.Status == outbox.Pending || row.Open != 0 {
			h.t.Errorf("in the end %+v", row)
		}
	}
	h.close()
}

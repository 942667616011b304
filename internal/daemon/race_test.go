package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// A cancel and the completion of its run in the same millisecond, 1,000 times
// over the whole house: one of them wins, the log has one end, and the answer
// to the cancel says which. Nothing is delivered of a run that was cancelled. How long
// the model takes follows what the cancels take, so that both win.
func TestCancelAgainstCompletion(t *testing.T) { // I-05, C48
	const sessions, tries = 20, 50
	asked := make([]chan struct{}, sessions) // a run of the session has reached the model
	for i := range asked {
		asked[i] = make(chan struct{}, tries)
	}
	h := newHouse(t, func(_ int, req chatstub.Request) chatstub.Reply {
		var session int
		var wait time.Duration
		last := req.Messages[len(req.Messages)-1].Text()
		if _, err := fmt.Sscanf(last, "session %d waits %d", &session, &wait); err != nil {
			t.Errorf("the model was asked %q", last)
		}
		asked[session] <- struct{}{}
		return chatstub.Reply{Text: "done", Delay: wait}
	})
	var wins, losses atomic.Int64
	var wait sync.WaitGroup
	for i := range sessions {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			s := h.session(&api.CreateSession{HistoryLimit: 1})
			most := 10 * time.Millisecond
			for range tries {
				text := fmt.Sprintf("session %d waits %d", i, random.Int64N(int64(most)))
				r, _, err := h.c.Submit(t.Context(), s, &api.SubmitRun{Content: api.Text(text)})
				if err != nil {
					t.Error(err)
					return
				}
				<-asked[i]
				won, err := cancelled(t, h, r.ID)
				if err != nil {
					t.Error(err)
					return
				}
				if won {
					wins.Add(1)
					most = max(most*3/4, time.Millisecond)
				} else {
					losses.Add(1)
					most = min(most*4/3, time.Second)
				}
			}
		})
	}
	wait.Wait()
	if wins.Load()+losses.Load() != sessions*tries || wins.Load() == 0 || losses.Load() == 0 {
		t.Errorf("%d cancels won, %d lost: nothing was put to the test", wins.Load(), losses.Load())
	}
	t.Logf("%d cancels won, %d lost", wins.Load(), losses.Load())
}

// cancelled asks for a run's end and holds the answer against the log.
func cancelled(t *testing.T, h *house, id string) (won bool, err error) {
	_, refused := h.c.Cancel(t.Context(), id, "changed my mind")
	if refused != nil && client.Code(refused) != "run_state_conflict" {
		return false, refused
	}
	r, err := h.c.Wait(t.Context(), id)
	if err != nil {
		return false, err
	}
	events, err := h.c.RunEvents(t.Context(), id, client.EventsQuery{}, 0, 500)
	if err != nil {
		return false, err
	}
	ends := map[string]int{}
	for _, e := range events.Items {
		ends[e.Type]++
	}
	n := ends["run.cancelled"] + ends["run.completed"] + ends["run.failed"] + ends["run.interrupted"]
	won = refused == nil
	switch {
	case n != 1:
		return won, fmt.Errorf("run %s has %d ends: %v", id, n, ends)
	case won != (ends["run.cancelled"] == 1), won != (r.Status == api.RunCancelled), won == (ends["output.emitted"] == 1):
		return won, fmt.Errorf("the cancel of run %s was answered with %v; it is %s: %v", id, refused, r.Status, ends)
	case won != (ends["run.cancel.requested"] == 1):
		return won, fmt.Errorf("run %s: %v", id, ends)
	}
	return won, nil
}

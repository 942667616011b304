package live_test

import (
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/live"
)

func rung(s *live.Subscription) bool {
	select {
	case <-s.Bell:
		return true
	default:
		return false
	}
}

// A bell holds one ring; it is heard by who listens to the stream, or to all.
func TestBells(t *testing.T) {
	var h live.Hub
	h.Ring("session:a") // nobody is there
	a, b, all := h.Subscribe("session:a"), h.Subscribe("session:b"), h.Subscribe("")
	for range 5 {
		h.Ring("session:a")
	}
	if !rung(a) || rung(a) || rung(b) || !rung(all) || rung(all) {
		t.Error("a ring is heard once, by whom it concerns")
	}
	a.Close()
	a.Close()
	all.Close()
	h.Ring("session:a")
	if rung(a) || rung(all) {
		t.Error("a closed subscription hears")
	}
	b.Close()
}

// Deltas go to who listens to their stream; who does not read loses them and
// holds up nobody (I-17).
func TestDeltas(t *testing.T) {
	var h live.Hub
	if h.Listening("session:a") {
		t.Error("nobody listens")
	}
	h.Publish("session:a", api.Delta{Text: "lost"})
	a, slow, all := h.Subscribe("session:a"), h.Subscribe("session:a"), h.Subscribe("")
	defer all.Close()
	for i := range live.DeltaBuffer + 10 {
		h.Publish("session:a", api.Delta{Part: i})
		if d := <-a.Deltas; d.Part != i {
			t.Fatalf("delta %d is %d", i, d.Part)
		}
	}
	if len(slow.Deltas) != live.DeltaBuffer || (<-slow.Deltas).Part != 0 || all.Deltas != nil {
		t.Errorf("%d deltas wait", len(slow.Deltas))
	}
	if !h.Listening("session:a") || h.Listening("session:b") {
		t.Error("who listens is not known")
	}
	a.Close()
	slow.Close()
	if h.Listening("session:a") {
		t.Error("who left still listens")
	}
}

// The hub may be used by all at once.
func TestAtOnce(t *testing.T) {
	var h live.Hub
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				s := h.Subscribe("session:a")
				h.Ring("session:a")
				h.Publish("session:a", api.Delta{})
				h.Listening("session:a")
				s.Close()
			}
		})
	}
	wg.Wait()
	if h.Listening("session:a") {
		t.Error("somebody is left")
	}
}

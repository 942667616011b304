package engine_test

import (
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// While there is no room for outcomes no act begins, and what comes of those in
// flight is recorded; a run that waits so has nothing in doubt, calls that had
// no place yet wait for it, and all goes on by itself. // C70 I-13
func TestNothingBeginsWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newFake("slow", tool.Write, waits(time.Minute, "written"))
		h, p := staged(t, []step{call("slow", `{}`, "slow", `{}`, "slow", `{}`), say("done")}, slow)
		defer h.close()
		set, err := tool.NewSet(slow)
		if err != nil {
			t.Fatal(err)
		}
		var held atomic.Bool
		eng := engine.New(engine.Config{
			Log: h.store, Hub: &h.hub, Tools: set, Node: "gen_1", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
			Model: func(event.Route) (llm.Model, error) { return strict{t, h.model}, nil }, MaxParallel: 2, Held: held.Load,
		})
		s := h.session(&api.CreateSession{Tools: &[]string{"slow"}})
		held.Store(true)
		id := h.submit(s, "go")
		l := h.begin(eng, s.ID)
		time.Sleep(time.Hour)
		h.status(id, "queued")
		if p.asked() != 0 {
			t.Fatal("a model was asked while nothing may begin")
		}
		held.Store(false)
		time.Sleep(10 * time.Second) // two calls run, the third is recorded as started and waits for a place
		if slow.runs() != 2 {
			t.Fatalf("%d calls run", slow.runs())
		}
		held.Store(true)
		time.Sleep(time.Hour)
		if done := all[*event.ToolCompleted](h, s.ID); len(done) != 2 || slow.runs() != 2 || p.asked() != 1 {
			t.Errorf("%d outcomes are recorded, %d calls began, the model was asked %d times", len(done), slow.runs(), p.asked())
		}
		h.status(id, "running")
		held.Store(false)
		time.Sleep(10 * time.Minute)
		h.status(id, "completed")
		if slow.runs() != 3 || p.asked() != 2 || len(all[*event.ToolStarted](h, s.ID)) != 3 || len(all[*event.ToolInterrupted](h, s.ID)) != 0 {
			t.Errorf("%d calls ran, the model was asked %d times", slow.runs(), p.asked())
		}
		if claims := all[*event.OwnerClaimed](h, s.ID); len(claims) != 1 {
			t.Errorf("%d claims", len(claims))
		}
		l.kill()
		h.verify()
	})
}

// A full store in the middle of a run costs nothing: the same outcome is
// recorded once when there is room, and nothing is asked or called twice. // C70 I-02 I-05 I-13
func TestFullInTheMiddle(t *testing.T) {
	for _, at := range []event.Type{
		event.TypeRunStarted, event.TypeInferenceCompleted, event.TypeToolStarted, event.TypeToolCompleted, event.TypeRunCompleted,
	} {
		t.Run(string(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				charge := newFake("charge", tool.ExternalEffect, gives("charged"))
				h, p := staged(t, []step{call("charge", `{}`), say("done")}, charge)
				defer h.close()
				eng, f := h.faultyEngine("gen_1", charge)
				var refused atomic.Int64
				full := true
				f.set(func(a eventlog.Append) (error, error) {
					if full && has(a, at) {
						refused.Add(1)
						return eventlog.Full(errFault, false), nil
					}
					return nil, nil
				}, nil)
				s := h.session(&api.CreateSession{Tools: &[]string{"charge"}})
				id := h.submit(s, "go")
				l := h.begin(eng, s.ID)
				time.Sleep(time.Hour)
				if n := refused.Load(); n < 100 || n > 1000 {
					t.Errorf("the store was asked %d times in an hour", n)
				}
				asked, ran := p.asked(), charge.runs()
				f.mu.Lock()
				full = false
				f.mu.Unlock()
				time.Sleep(time.Minute)
				h.status(id, "completed")
				if charge.runs() != 1 || p.asked() != 2 || asked > 2 || ran > 1 {
					t.Errorf("%d charges, asked %d times (before there was room: %d, %d)", charge.runs(), p.asked(), ran, asked)
				}
				l.kill()
				h.verify()
			})
		})
	}
}

// Work that is held back can be stopped. // I-05
func TestHeldWorkCanBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, p := staged(t, []step{say("done")})
		defer h.close()
		set, err := tool.NewSet()
		if err != nil {
			t.Fatal(err)
		}
		eng := engine.New(engine.Config{
			Log: h.store, Hub: &h.hub, Tools: set, Node: "gen_1", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
			Model: func(event.Route) (llm.Model, error) { return strict{t, h.model}, nil }, Held: func() bool { return true },
		})
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		l := h.begin(eng, s.ID)
		time.Sleep(time.Minute)
		if err := h.adm.Cancel(t.Context(), admission.Caller{}, h.run(id), "no room"); err != nil {
			t.Fatal(err)
		}
		l.ring()
		time.Sleep(time.Minute)
		h.status(id, "cancelled")
		if p.asked() != 0 {
			t.Error("the model was asked")
		}
		l.kill()
		h.verify()
	})
}

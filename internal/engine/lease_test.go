package engine_test

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// lease is one that a test holds up and ends.
type lease struct {
	mu    sync.Mutex
	held  bool
	ended chan struct{}
	back  chan struct{}
	asked int
}

func newLease() *lease {
	return &lease{held: true, ended: make(chan struct{}), back: make(chan struct{})}
}

func (l *lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

var errEnded = errors.New("ended")

func (l *lease) Await(ctx context.Context) error {
	l.mu.Lock()
	held, back := l.held, l.back
	l.asked++
	l.mu.Unlock()
	if held {
		return nil
	}
	select {
	case <-back:
		return nil
	case <-l.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// late: the beat is late.
func (l *lease) late() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
}

func (l *lease) beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
	close(l.back)
	l.back = make(chan struct{})
}

func (l *lease) Context() context.Context { return context.Background() }

func (h *house) leased(tools ...tool.Tool) *engine.Engine {
	h.t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		h.t.Fatal(err)
	}
	return engine.New(engine.Config{
		Log: h.store, Hub: &h.hub, Tools: set, Node: "a", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil },
	})
}

// An act waits while the beat is late, and does not happen at all when the lease
// has ended: no dispatch, no retry, no tool, no sweep, and not a word in the log. // I-11
func TestNoActWithoutLease(t *testing.T) {
	type scene struct {
		steps []step
		level tool.Level
		begin func(h *house, l *lease, f *fake, p *play) // brings the lease into trouble before the act
		asked int                                        // model requests and tool runs before it
		ran   int
	}
	hold := func(h *house, l *lease, f *fake, p *play) { l.late() }
	for name, sc := range map[string]scene{
		"first attempt": {steps: []step{say("never")}, begin: hold},
		"retry": {steps: []step{func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
			return llm.Errorf(llm.Overloaded, "busy")
		}, say("never")}, asked: 1},
		"tool":      {steps: []step{call("act", "{}"), say("never")}, level: tool.Write, asked: 1},
		"next step": {steps: []step{call("act", "{}"), say("never")}, level: tool.Read, asked: 1, ran: 1},
	} {
		for how, ends := range map[string]bool{"late": false, "ended": true} {
			t.Run(name+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLease()
					f := newFake("act", sc.level, gives("done"))
					if sc.level == "" {
						f = newFake("act", tool.Read, gives("done"))
					}
					h, p := staged(t, sc.steps, f)
					defer h.close()
					// The trouble begins in the middle of what comes before the act.
					switch name {
					case "retry", "tool":
						first := p.steps[0]
						p.steps[0] = func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
							l.late()
							return first(ctx, req, yield)
						}
					case "next step":
						f.run = func(context.Context, tool.Call) (tool.Result, error) {
							l.late()
							return tool.Result{Output: "done"}, nil
						}
					}
					if sc.begin != nil {
						sc.begin(h, l, f, p)
					}
					s := h.session(&api.CreateSession{})
					id := h.submit(s, "1")
					life := h.beginUnder(h.leased(f), s.ID, l)
					<-time.After(time.Minute)
					synctest.Wait()
					if p.asked() != sc.asked || f.runs() != sc.ran {
						t.Fatalf("asked %d, ran %d while the beat is late; want %d and %d", p.asked(), f.runs(), sc.asked, sc.ran)
					}
					head := len(h.types(s.ID))
					if ends {
						close(l.ended)
						<-life.done
						if !errors.Is(life.err, eventlog.ErrFenced) || len(h.types(s.ID)) != head || p.asked() != sc.asked || f.runs() != sc.ran {
							t.Errorf("%v; asked %d, ran %d, appended %v", life.err, p.asked(), f.runs(), h.types(s.ID)[head:])
						}
						h.status(id, h.run(id).Status)
						return
					}
					l.beat()
					<-time.After(time.Minute)
					synctest.Wait()
					h.status(id, "completed")
					life.drain()
				})
			})
		}
	}
}

// A tool whose start waits for a beat that is late, and that is stopped
// meanwhile, does not begin: not even one that never looks at its context. // I-11
func TestStoppedBeforeTheLeaseCame(t *testing.T) {
	for _, interrupt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLease()
			f := newFake("act", tool.Write, gives("done"))
			h, p := staged(t, []step{func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
				l.late()
				return call("act", "{}")(ctx, req, yield)
			}}, f)
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "1")
			life := h.beginUnder(h.leased(f), s.ID, l)
			synctest.Wait()
			h.stop(s, id, interrupt)
			life.ring()
			<-time.After(time.Second)
			synctest.Wait()
			if f.runs() != 0 || p.asked() != 1 {
				t.Errorf("ran %d times", f.runs())
			}
			l.beat()
			<-time.After(time.Minute)
			synctest.Wait()
			h.status(id, map[bool]string{false: "cancelled", true: "interrupted"}[interrupt])
			if f.runs() != 0 {
				t.Errorf("ran %d times", f.runs())
			}
			for _, d := range all[*event.ToolInterrupted](h, s.ID) {
				if d.Outcome == "unknown" {
					t.Error("the outcome of a call that never began is told as unknown")
				}
			}
			life.drain()
			h.verify()
		})
	}
}

// No delta is published without a lease; the text is in the log in the end. // I-11 I-17
func TestNoDeltaWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease()
		part := func(n string) llm.Part { return llm.Part{Kind: llm.TextDelta, Text: n} }
		h, _ := staged(t, []step{func(_ context.Context, _ *llm.Request, yield func(llm.Part) error) error {
			err := errors.Join(yield(llm.Part{Kind: llm.TextStart}), yield(part("one ")))
			l.late()
			err = errors.Join(err, yield(part("two ")))
			l.beat()
			return errors.Join(err, yield(part("three")), yield(llm.Part{Kind: llm.TextEnd}), yield(llm.Part{Kind: llm.Finish, Reason: llm.FinishStop}))
		}})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		sub := h.hub.Subscribe(s.ID.Stream())
		defer sub.Close()
		life := h.beginUnder(h.leased(), s.ID, l)
		synctest.Wait()
		life.drain()
		h.status(id, "completed")
		var heard []string
		for d := sub.Delta(); d != nil; d = sub.Delta() {
			if d.Text != "" {
				heard = append(heard, d.Text)
			}
		}
		if !slices.Equal(heard, []string{"one ", "three"}) {
			t.Errorf("heard %q", heard)
		}
		if texts := all[*event.TextEnded](h, s.ID); len(texts) != 1 || texts[0].Content.Text != "one two three" {
			t.Errorf("%+v", texts)
		}
	})
}

// What another living node holds is left alone; what comes to rest is let go of
// with its last append, and anybody may go on. // I-11
func TestHoldAndLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("act", tool.Read, waits(30*time.Second, "done"))
		h, p := staged(t, []step{call("act", "{}"), say("done"), say("again")}, f)
		defer h.close()
		for _, id := range []eventlog.NodeID{"a", "gen_1"} {
			if _, err := h.store.Beat(t.Context(), eventlog.Node{ID: id}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		life := h.beginUnder(h.leased(f), s.ID, newLease())
		synctest.Wait()
		head := len(h.types(s.ID))
		other := h.begin(h.eng, s.ID)
		<-other.done
		if !errors.Is(other.err, eventlog.ErrFenced) || len(h.types(s.ID)) != head {
			t.Errorf("beside the holder: %v, %v", other.err, h.types(s.ID)[head:])
		}
		if got, err := h.store.Take(t.Context(), "a", eventlog.Sessions, 9, true); err != nil || !slices.Equal(got, []event.Stream{s.ID.Stream()}) {
			t.Errorf("held in the middle of a run: %v, %v", got, err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		h.status(id, "completed")
		life.drain()
		if got, err := h.store.Take(t.Context(), "a", eventlog.Sessions, 9, true); err != nil || len(got) != 0 {
			t.Errorf("held at rest: %v, %v", got, err)
		}
		id = h.submit(s, "2")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if p.asked() != 3 {
			t.Errorf("asked %d times", p.asked())
		}
	})
}

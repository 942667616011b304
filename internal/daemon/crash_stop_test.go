package daemon_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// held is a gate in the world: who comes first is held there.
type held struct {
	once    sync.Once
	reached chan struct{}
	w       *world
}

func (g *held) pass() {
	first := false
	g.once.Do(func() { first = true })
	if first {
		close(g.reached)
		<-g.w.hung
	}
}

func (s *stage) gate() *held { return &held{reached: make(chan struct{}), w: s.w} }

func (s *stage) reach(g *held) {
	s.t.Helper()
	select {
	case <-g.reached:
	case <-s.ctx.Done():
		s.t.Fatal("nobody comes to the gate")
	}
}

func shortDrain(_ *world, c map[string]any) { c["shutdown"] = map[string]any{"drain": "200ms"} }

// C48: a stop is not a cancel. Work that the drain cut goes on after the
// restart, exactly as after SIGKILL, and nothing new began meanwhile.
func TestCrashC48Stop(t *testing.T) {
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		for _, where := range []string{"model", "tool"} {
			t.Run(how+"-in-a-"+where, func(t *testing.T) {
				s := newStage(t, shortDrain)
				g := s.gate()
				s.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
					if where == "model" {
						g.pass()
					}
					return storyAnswer(order, step, req)
				}
				s.w.effect = func(tool, _ string) {
					if where == "tool" && tool == "charge" {
						g.pass()
					}
				}
				l := s.k.start(nil)
				s.session(api.CreateSession{})
				first, second := s.submit(orderText), s.submit(orderLast)
				s.reach(g)
				if how == "SIGTERM" {
					s.k.stop(l)
				} else {
					s.k.kill(l)
				}
				for _, e := range readStore(t, s.k.dir) {
					if e.Type == event.TypeRunCancelled || e.Type == event.TypeRunInterrupted ||
						e.RunID == event.RunID(second.ID) && e.Type == event.TypeRunStarted {
						t.Errorf("C48: the stop led to %s of run %s", e.Type, e.RunID)
					}
				}
				l = s.k.start(nil)
				run, err := s.c.settle(s.ctx, first.ID)
				s.must(err)
				if where == "tool" {
					if run.Status != api.RunNeedsAttention {
						t.Fatalf("C48: the run with an effect in doubt is %s", run.Status)
					}
					run, err = s.c.finish(s.ctx, first.ID, func(d api.Attention) api.ResolveAttention {
						return api.ResolveAttention{CallID: d.CallID, Resolution: "completed", Output: "charged"}
					})
					s.must(err)
				}
				if run.Status != api.RunCompleted {
					t.Errorf("C48: the run is %s", run.Status)
				}
				s.completes(second.ID)
				_, err = s.c.deliveries(s.ctx, 2)
				s.must(err)
				h := s.history(l)
				checkEffects(t, s.w, h)
			})
		}
	}
}

// C48: what a user cancelled stays cancelled, over any death.
func TestCrashC48Cancel(t *testing.T) {
	for _, kill := range []*killAt{
		nil,
		{Side: "after", N: 1, Type: event.TypeCancelRequested},
		{Side: "before", N: 1, Type: event.TypeRunCancelled},
		{Side: "after", N: 1, Type: event.TypeRunCancelled},
	} {
		name := "after-the-end"
		if kill != nil {
			name = strings.ReplaceAll(kill.String(), " ", "-")
		}
		t.Run(name, func(t *testing.T) {
			s := newStage(t, nil)
			g := s.gate()
			s.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
				if order == orderText {
					g.pass()
				}
				return storyAnswer(order, step, req)
			}
			l := s.k.start(kill)
			s.session(api.CreateSession{})
			first, second := s.submit(orderText), s.submit(orderLast)
			s.reach(g)
			next := s.next(l)
			a, err := s.c.do(s.ctx, http.MethodPost, "/v1/runs/"+first.ID+"/cancel", api.StopRun{Reason: "changed my mind"})
			s.must(err)
			if a.status != http.StatusAccepted {
				t.Fatalf("cancel: %d %s", a.status, a.body)
			}
			if kill == nil {
				run, err := s.c.finish(s.ctx, first.ID, nil)
				s.must(err)
				if run.Status != api.RunCancelled {
					t.Errorf("C48: the run is %s", run.Status)
				}
				s.k.kill(l)
			}
			next()
			run, err := s.c.finish(s.ctx, first.ID, nil)
			s.must(err)
			if run.Status != api.RunCancelled {
				t.Errorf("C48: after the restart the run is %s", run.Status)
			}
			s.completes(second.ID)
			_, err = s.c.deliveries(s.ctx, 1)
			s.must(err)
			s.history(s.rests())
			if n := s.w.askedFor(orderText); n != 1 {
				t.Errorf("C48: the model was asked %d times for a run that was cancelled", n)
			}
		})
	}
}

// C56: attempts that fail, that hang while the daemon dies, that succeed, and
// a forced replay are all the same message: one id, the same bytes, signed.
func TestCrashC56(t *testing.T) {
	for _, kill := range []bool{true, false} {
		t.Run(fmt.Sprintf("kill-%t", kill), func(t *testing.T) {
			s := newStage(t, func(_ *world, c map[string]any) {
				if !kill {
					c["delivery"].(map[string]any)["timeout"] = "3s"
				}
			})
			hangs := make(chan struct{}, 8)
			s.w.answer = storyAnswer
			s.w.hook = func(_, _ string, n int) int {
				switch n {
				case 1:
					return http.StatusInternalServerError
				case 2:
					hangs <- struct{}{}
					return -1
				}
				return http.StatusOK
			}
			l := s.k.start(nil)
			s.session(api.CreateSession{OutputContract: &api.OutputContract{Schema: outputSchema}})
			run := s.submit(orderPlain)
			s.completes(run.ID)
			select {
			case <-hangs:
			case <-s.ctx.Done():
				t.Fatal("no second attempt")
			}
			if kill {
				s.k.kill(l)
				s.k.start(nil)
			}
			sent, err := s.c.deliveries(s.ctx, 1)
			s.must(err)
			if len(sent) != 1 || sent[0].Status != api.DeliveryDelivered || sent[0].Attempts != 3 {
				t.Fatalf("C56: %+v", sent)
			}
			l = s.rests()
			a, err := s.c.do(s.ctx, http.MethodPost, "/v1/deliveries/"+sent[0].ID+"/replay", api.ReplayDelivery{Force: true, Reason: "they lost it"})
			s.must(err)
			if a.status != http.StatusAccepted {
				t.Fatalf("replay: %d %s", a.status, a.body)
			}
			sent, err = s.c.deliveries(s.ctx, 1)
			s.must(err)
			if sent[0].Attempts != 4 || sent[0].Status != api.DeliveryDelivered {
				t.Errorf("C56: after the replay %+v", sent[0])
			}
			s.history(l)
			hits := s.w.received()
			for _, h := range hits { // I-26
				if h.id != sent[0].ID || !bytes.Equal(h.body, hits[0].body) {
					t.Errorf("C56: %s was sent as %s, and before as %s", h.id, h.body, hits[0].body)
				}
			}
			if len(hits) != 4 {
				t.Errorf("C56: %d messages, want 4", len(hits))
			}
			for _, fault := range s.w.faults {
				t.Errorf("C56: %s", fault)
			}
		})
	}
}

// A data directory has one daemon: another is refused with the holder's pid.
func TestCrashSecondDaemon(t *testing.T) {
	s := newStage(t, nil)
	s.w.answer = storyAnswer
	l := s.k.start(nil)
	s.session(api.CreateSession{})
	other, err := s.k.spawn(nil)
	s.must(err)
	select {
	case <-other.gone:
	case <-s.ctx.Done():
		s.k.kill(other)
		t.Fatal("a second daemon runs on the same data directory")
	}
	if code := other.cmd.ProcessState.ExitCode(); code != exitLocked {
		t.Errorf("the second daemon ended with %d: %v", code, other.err)
	}
	said, err := os.ReadFile(other.log)
	s.must(err)
	if want := fmt.Sprintf("pid %d", l.cmd.Process.Pid); !strings.Contains(string(said), want) {
		t.Errorf("the refusal is %q; it does not name %s", said, want)
	}
	s.completes(s.submit(orderLast).ID) // the first one is not disturbed
	_, err = s.c.deliveries(s.ctx, 1)
	s.must(err)
	s.history(l)
}

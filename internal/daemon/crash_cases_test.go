package daemon_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// stage is a world with a daemon for one field case.
type stage struct {
	t   *testing.T
	w   *world
	k   *keeper
	c   *caller
	ctx context.Context
}

func newStage(t *testing.T, change func(*world, map[string]any)) *stage {
	t.Parallel()
	s := &stage{t: t, w: newWorld(t), ctx: within(t, *patience)}
	s.k = newKeeper(t, s.w.config(func(c map[string]any) {
		if change != nil {
			change(s.w, c)
		}
	}))
	s.c = newCaller(t, s.k)
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// session makes the session of the case; its answers go to /hook.
func (s *stage) session(c api.CreateSession) {
	s.t.Helper()
	c.ID = "case"
	c.ReplyTargets = []api.ReplyTarget{{Type: "webhook", URL: s.w.hookSrv.URL + "/hook"}}
	s.must(s.c.createSession(s.ctx, c))
}

func (s *stage) submit(order int) api.Run {
	s.t.Helper()
	run, _, err := s.c.submit(s.ctx, "case", fmt.Sprintf("key-%d", order), fmt.Sprintf("order %d", order))
	s.must(err)
	return run
}

// completes waits for the end of a run that needs nobody.
func (s *stage) completes(id string) api.Run {
	s.t.Helper()
	run, err := s.c.finish(s.ctx, id, nil)
	s.must(err)
	if run.Status != api.RunCompleted {
		s.t.Fatalf("run %s is %s (%+v)", id, run.Status, run.Error)
	}
	return run
}

// next begins another life as soon as this one is over. It gives a function
// that waits for the new one.
func (s *stage) next(l *life) func() *life {
	next := make(chan *life, 1)
	go func() {
		select {
		case <-l.gone:
			next <- s.k.restart(nil)
		case <-s.ctx.Done():
		}
	}()
	return func() *life {
		s.t.Helper()
		select {
		case l := <-next:
			return l
		case <-s.ctx.Done():
			s.t.Fatalf("life %d does not reach its end", l.number)
			return nil
		}
	}
}

// rests restarts in order and wants the log to stay as it is, the claim of
// nothing included.
func (s *stage) rests() *life {
	s.t.Helper()
	before, err := s.c.feed(s.ctx)
	s.must(err)
	s.k.stop(s.k.life())
	s.k.stop(s.k.start(nil)) // whoever was woken has looked when the stop is over
	l := s.k.start(nil)
	after, err := s.c.feed(s.ctx)
	s.must(err)
	for _, e := range after[min(len(before), len(after)):] {
		s.t.Errorf("a restart at rest appended %s#%d %s", e.Stream, e.Seq, e.Type)
	}
	return l
}

// history stops the daemon and reads its log.
func (s *stage) history(l *life) *history {
	s.t.Helper()
	s.k.stop(l)
	for _, v := range s.w.model.Violations() {
		s.t.Errorf("the model refused a request: %s", v)
	}
	return fold(s.t, readStore(s.t, s.k.dir))
}

// C45: the process dies while two parallel calls run, a read and an external
// effect. Each call has exactly one result afterwards, and the effect happens
// at most once.
func TestCrashC45(t *testing.T) {
	type point struct {
		name    string
		kill    *killAt
		onCall  bool // the parent kills after the effect of charge
		hold    bool // charge does not answer before its daemon is dead
		onAsked int  // the parent kills when the model is asked for this time
		effects int
		unknown bool
	}
	at := func(side string, n int, typ event.Type) *killAt { return &killAt{Side: side, N: n, Type: typ} }
	for _, p := range []point{
		{name: "before tool.call.requested", kill: at("before", 1, event.TypeToolRequested), effects: 1},
		{name: "after tool.call.requested", kill: at("after", 1, event.TypeToolRequested), unknown: true},
		{name: "after tool start event", kill: at("after", 1, event.TypeToolStarted), unknown: true},
		{name: "after effect before result commit", onCall: true, effects: 1, unknown: true},
		{name: "after result of c1 only", kill: at("after", 1, event.TypeToolCompleted), hold: true, effects: 1, unknown: true},
		{name: "before 2nd provider request", kill: at("after", 2, event.TypeModelCallStarted), effects: 1},
		{name: "in 2nd provider request", onAsked: 2, effects: 1},
	} {
		for _, doubt := range []string{"ask", "continue"} {
			for _, word := range []string{"completed", "failed"} {
				if doubt == "continue" && word == "failed" {
					continue
				}
				t.Run(strings.ReplaceAll(p.name, " ", "-")+"/"+doubt+"-"+word, func(t *testing.T) {
					s := newStage(t, c45Tools)
					log := filepath.Join(t.TempDir(), "effects.log")
					var first *life
					charged := make(chan struct{})
					var once sync.Once
					s.w.effect = func(tool, _ string) {
						if tool != "charge" {
							if p.hold { // its result comes when the effect has happened
								select {
								case <-charged:
								case <-s.w.hung:
								}
							}
							return
						}
						appendLine(t, log)
						once.Do(func() { close(charged) })
						if p.onCall {
							s.k.kill(first)
						}
						if p.hold {
							select {
							case <-first.gone:
							case <-s.w.hung:
							}
						}
					}
					s.w.answer = c45Model(func(n int) {
						if n == p.onAsked {
							s.k.kill(first)
						}
					})
					first = s.k.start(p.kill)
					s.session(api.CreateSession{OnDoubt: doubt})
					next := s.next(first)
					run := s.submit(1)
					next()
					run, err := s.c.settle(s.ctx, run.ID)
					s.must(err)
					result := `{"ok":true,"tool":"charge"}`
					if p.unknown {
						result = session.TextInterrupted
					}
					if p.unknown && doubt == "ask" {
						result = c45Word(s, run, word)
					} else if run.Status != api.RunCompleted {
						t.Fatalf("the run is %s (%+v)", run.Status, run.Error)
					}
					s.completes(run.ID)
					_, err = s.c.deliveries(s.ctx, 1)
					s.must(err)
					l := s.rests()
					s.completes(s.submit(2).ID) // the session's slot is free
					_, err = s.c.deliveries(s.ctx, 2)
					s.must(err)
					h := s.history(l)
					c45Results(t, s.w, result)
					checkEffects(t, s.w, h)
					if n := countLines(t, log); n != p.effects {
						t.Errorf("effects.log has %d lines, want %d", n, p.effects)
					}
				})
			}
		}
	}
}

func c45Tools(w *world, c map[string]any) {
	schema := map[string]any{"type": "object", "properties": map[string]any{"cents": map[string]any{"type": "number"}}}
	c["tools"] = map[string]any{
		"read":   map[string]any{"type": "http", "url": w.tools.URL + "/read", "side_effect": "read", "input_schema": schema},
		"charge": map[string]any{"type": "http", "url": w.tools.URL + "/charge", "side_effect": "external_effect", "policy": "allow", "input_schema": schema},
	}
}

// c45Model plays the script of the case; asked is told how often it was asked.
func c45Model(asked func(n int)) func(order, step int, req chatstub.Request) chatstub.Reply {
	var mu sync.Mutex
	n := 0
	return func(order, step int, _ chatstub.Request) chatstub.Reply {
		mu.Lock()
		n++
		now := n
		mu.Unlock()
		asked(now)
		if order == 1 && step == 0 {
			return chatstub.Reply{Calls: []chatstub.Call{
				{ID: "c1", Name: "read", Arguments: "{}"}, {ID: "c2", Name: "charge", Arguments: `{"cents":5}`}}}
		}
		return chatstub.Reply{Text: "done"}
	}
}

// c45Word is the person's word on charge, and on nothing else; before it a
// restart changes nothing. It gives what the model is then told.
func c45Word(s *stage, run api.Run, word string) string {
	s.t.Helper()
	if run.Status != api.RunNeedsAttention || len(run.Attention) != 1 {
		s.t.Fatalf("the run is %s, waiting for %+v", run.Status, run.Attention)
	}
	s.rests()
	a, err := s.c.do(s.ctx, http.MethodPost, "/v1/runs/"+run.ID+"/attention", api.ResolveAttention{
		CallID: run.Attention[0].CallID, Resolution: word, Output: "charged by hand", Reason: "no such booking"})
	s.must(err)
	if a.status != http.StatusAccepted {
		s.t.Fatalf("attention: %d %s", a.status, a.body)
	}
	run, err = s.c.finish(s.ctx, run.ID, func(d api.Attention) api.ResolveAttention {
		return api.ResolveAttention{CallID: d.CallID, Resolution: "failed", Reason: "said already"}
	})
	s.must(err)
	if word == "failed" {
		return "Tool execution failed: no such booking"
	}
	return "charged by hand"
}

// c45Results wants the two results in every request behind the calls, in order.
func c45Results(t *testing.T, w *world, charge string) {
	t.Helper()
	seen := 0
	for _, req := range w.model.Requests() {
		var results []string
		for _, m := range req.Messages {
			if m.Role == "tool" {
				results = append(results, m.Text())
			}
		}
		if len(results) == 0 {
			continue
		}
		seen++
		if len(results) != 2 || results[0] != `{"ok":true,"tool":"read"}` || !strings.HasPrefix(results[1], charge) {
			t.Errorf("the model was told %q, want those of read and %q", results, charge)
		}
	}
	if seen < 2 {
		t.Errorf("%d requests with results", seen)
	}
}

func appendLine(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString("effect\n")
		f.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func countLines(t *testing.T, path string) int {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// C53: equal submissions at once give one run, also when the daemon dies
// between the key and the run, which are one append.
func TestCrashC53(t *testing.T) {
	for _, side := range []string{"before", "after"} {
		t.Run(side, func(t *testing.T) {
			s := newStage(t, nil)
			s.w.answer = storyAnswer
			l := s.k.start(nil)
			s.session(api.CreateSession{})
			one := s.together("k-1", 20)
			s.completes(one)
			s.k.kill(l)
			l = s.k.start(&killAt{Side: side, N: 1, Type: event.TypeRunCreated})
			if again := s.together("k-1", 1); again != one {
				t.Errorf("after a restart k-1 is run %s, want %s", again, one)
			}
			next := s.next(l)
			two := s.together("k-2", 20)
			l = next()
			s.completes(two)
			if again := s.together("k-2", 1); again != two || one == two {
				t.Errorf("k-2 is run %s and %s, k-1 is %s", again, two, one)
			}
			_, err := s.c.deliveries(s.ctx, 2)
			s.must(err)
			if h := s.history(l); len(h.runs) != 2 {
				t.Errorf("I-07: %d runs, want 2", len(h.runs))
			}
		})
	}
}

// together sends n equal submissions at once and gives their one run.
func (s *stage) together(key string, n int) string {
	s.t.Helper()
	ids, created, errs := make([]string, n), make([]bool, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var run api.Run
			run, created[i], errs[i] = s.c.submit(s.ctx, "case", key, "order 13")
			ids[i] = run.ID
		})
	}
	wg.Wait()
	made := 0
	for i := range n {
		s.must(errs[i])
		if ids[i] != ids[0] {
			s.t.Errorf("I-07: key %s gives the runs %s and %s", key, ids[0], ids[i])
		}
		if created[i] {
			made++
		}
	}
	if made > 1 {
		s.t.Errorf("I-07: %d callers were told that they made the run", made)
	}
	return ids[0]
}

// C12: the count of repairs survives a restart.
func TestCrashC12(t *testing.T) {
	const schema = `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},` +
		`"tags":{"type":"array","items":{"type":"string"}}},"required":["status","count"],"additionalProperties":false}`
	for _, v := range []struct {
		name  string
		kill  *killAt
		asked int // model calls in all: one more when an answer was lost
	}{
		{"in-call-2", nil, 5},
		{"before-answer-2", &killAt{Side: "before", N: 2, Type: event.TypeModelCallCompleted}, 5},
		{"after-answer-2", &killAt{Side: "after", N: 2, Type: event.TypeModelCallCompleted}, 4},
		{"before-repair-3", &killAt{Side: "before", N: 3, Type: event.TypeRepairRequested}, 5},
		{"after-repair-3", &killAt{Side: "after", N: 3, Type: event.TypeRepairRequested}, 4},
		{"before-the-end", &killAt{Side: "before", N: 1, Type: event.TypeRunFailed}, 5},
		{"after-the-end", &killAt{Side: "after", N: 1, Type: event.TypeRunFailed}, 4},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := newStage(t, nil)
			var first *life
			s.w.answer = func(_, _ int, _ chatstub.Request) chatstub.Reply {
				if v.kill == nil && s.w.askedFor(1) == 2 {
					s.k.kill(first)
				}
				return chatstub.Reply{Text: `{"status":"ok"}`}
			}
			first = s.k.start(v.kill)
			s.session(api.CreateSession{OutputContract: &api.OutputContract{Schema: api.Raw(schema)}})
			next := s.next(first)
			run, err := s.c.finish(s.ctx, s.submit(1).ID, nil)
			s.must(err)
			next()
			const want = "structured output contract unsatisfied after 3 repair attempts: $.count: missing required field"
			if run.Status != api.RunFailed || run.Error == nil || run.Error.Message != want {
				t.Errorf("the run is %s: %+v", run.Status, run.Error)
			}
			l := s.rests()
			h := s.history(l)
			if r := h.runs[event.RunID(run.ID)]; r.repairs != 3 || r.steps != 4 {
				t.Errorf("I-09: %d repairs in %d steps", r.repairs, r.steps)
			}
			if n := s.w.askedFor(1); n != v.asked {
				t.Errorf("C12: %d model calls, want %d", n, v.asked)
			}
			if len(h.enqueued) > 0 || len(s.w.received()) > 0 {
				t.Errorf("I-09: something was delivered: %v", h.enqueued)
			}
		})
	}
}

package engine_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
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
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// bench is a lane for one session: it keeps the state, drives it with what is
// offered, and notes what came of it and what the engine appended.
type bench struct {
	h        *house
	eng      *engine.Engine
	log      *faulty
	adm      *admission.Admission // offers to this bench
	s        eventlog.SessionRow
	st       *session.State
	term     eventlog.Term
	draining chan struct{}
	held     atomic.Bool
	between  func() // once, behind the decision to offer

	done    chan struct{}
	err     error // of the drive
	taken   []bool
	told    []error
	appends [][]event.Type // of the engine, as they were tried
	fault   func(a eventlog.Append) (before, after error)
}

// newBench makes a session with one run behind it, which a node made, and its state
// as the lane of gen_1 keeps it.
func newBench(h *house, node string, tools ...tool.Tool) *bench {
	h.t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		h.t.Fatal(err)
	}
	b := &bench{h: h, term: forever{}, draining: make(chan struct{}), log: &faulty{Log: h.store}}
	b.eng = engine.New(engine.Config{
		Log: b.log, Hub: &h.hub, Tools: set, Node: "gen_1", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil }, Held: b.held.Load,
	})
	b.log.set(b.append, nil)
	b.adm = admission.New(admission.Config{
		Store: h.store, Tools: set, Random: rand.Reader, Owner: b,
		Route: func(string, string) (event.Route, error) {
			return event.Route{Name: "main", Provider: "scripted", Model: "scripted"}, nil
		},
		CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) { return t, nil },
	})
	b.s = h.session(&api.CreateSession{})
	h.submit(b.s, "before")
	h.drive(h.other(node, tools...), b.s.ID)
	b.load()
	return b
}

// load gives the lane the state that it would have after a look at the session.
func (b *bench) load() {
	b.h.t.Helper()
	st, err := b.eng.Load(b.h.t.Context(), b.s.ID)
	if err == nil {
		b.st, _, _, err = b.eng.Drive(b.h.t.Context(), forever{}, st, nil, nil, nil)
	}
	if err != nil {
		b.h.t.Fatal(err)
	}
	b.appends = nil
}

func (b *bench) append(a eventlog.Append) (before, after error) {
	var types []event.Type
	for i := range a.Entries[0].Events {
		types = append(types, a.Entries[0].Events[i].Data.EventType())
	}
	b.appends = append(b.appends, types)
	if b.fault != nil {
		return b.fault(a)
	}
	return nil, nil
}

func (b *bench) Rests(event.SessionID) (eventlog.Resting, bool) { return eventlog.Resting{}, true }

func (b *bench) Offer(ctx context.Context, _ event.SessionID, a eventlog.Append) (bool, error) {
	if f := b.between; f != nil {
		b.between = nil
		f()
	}
	o := eventlog.NewOffer(a)
	if b.done != nil {
		<-b.done
	}
	b.done = make(chan struct{})
	go func() {
		defer close(b.done)
		defer o.Decline() // as a lane does
		for n, offer, st := 0, o, b.st; ; n, offer = n+1, nil {
			var due time.Time
			st, due, _, b.err = b.eng.Drive(context.Background(), b.term, st, offer, nil, b.draining)
			if b.st = st; b.err != nil || due.IsZero() || n > 1000 {
				return
			}
			<-time.After(time.Until(due))
		}
	}()
	taken, err := o.Wait(ctx)
	b.taken, b.told = append(b.taken, taken), append(b.told, err)
	return taken, err
}

// submit hands work in, waits until the engine is done, and gives what the caller is told.
func (b *bench) submit(text, key string) (event.RunID, bool, error) {
	b.h.t.Helper()
	id, created, err := b.adm.Submit(b.h.t.Context(), admission.Caller{}, b.s, &api.SubmitRun{Content: api.Text(text)}, key)
	if b.done != nil {
		<-b.done
	}
	return id, created, err
}

// goesOn checks that the session, whatever came before, takes an offer and comes to
// its end, and that all is as it should be in the log.
func (b *bench) goesOn() {
	h := b.h
	h.t.Helper()
	b.fault = nil
	b.log.set(b.append, nil)
	b.held.Store(false)
	h.drive(b.eng, b.s.ID) // as the lane would, which was woken by what is queued
	b.load()
	b.term, b.draining, b.taken = forever{}, make(chan struct{}), nil
	row, err := h.store.Session(h.t.Context(), b.s.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	b.s = row
	id, _, err := b.submit("and on", "")
	if err != nil || !slices.Equal(b.taken, []bool{true}) {
		h.t.Fatalf("afterwards: taken %v, %v, %v; tried %v", b.taken, err, b.err, b.appends)
	}
	h.status(id, "completed")
	settled(h.t, h.events(b.s.ID.Stream()))
	h.verify() // I-02 I-03 I-04
}

// runs gives the texts of the runs that the log has, in the order of their starts,
// each of which has to be completed.
func (b *bench) runs() (texts []string) {
	b.h.t.Helper()
	created := map[event.RunID]string{}
	for _, e := range b.h.events(b.s.ID.Stream()) {
		switch d := e.Data.(type) {
		case *event.RunCreated:
			created[e.RunID] = d.TextPreview
		case *event.RunStarted:
			texts = append(texts, created[e.RunID])
			b.h.status(e.RunID, "completed")
			delete(created, e.RunID)
		}
	}
	if len(created) > 0 {
		b.h.t.Errorf("runs that never started: %v", created)
	}
	return texts
}

// begun are the events of a submission to a session at rest and of the start of its run,
// but for those of its states.
var begun = []event.Type{event.TypeRunCreated, event.TypeRunQueued, event.TypeRunStarted, event.TypeStepStarted, event.TypeModelCallStarted}

// began says whether an append has these events, and beside them those of states only.
func began(types []event.Type, want ...event.Type) bool {
	return slices.Equal(want, slices.DeleteFunc(slices.Clone(types), func(t event.Type) bool {
		return t == event.TypeStateEntered || t == event.TypeContextBuilt
	}))
}

func inBubble(t *testing.T, f func(t *testing.T, h *house, p *play), tools ...tool.Tool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h, p := staged(t, []step{say("done")}, tools...)
		defer h.close()
		f(t, h, p)
	})
}

// What is offered to a session at rest is one append with the start of its run, and
// the run goes on from there to its end, with one append more. // I-02 I-03 I-06
func TestOfferBegins(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_1")
		for n := range 3 {
			b.appends = nil
			head := len(h.types(b.s.ID))
			id, created, err := b.submit("go", "")
			if err != nil || !created || b.err != nil || !b.taken[n] {
				t.Fatalf("created %v, %v; taken %v, %v", created, err, b.taken, b.err)
			}
			h.status(id, "completed")
			if len(b.appends) != 2 || !began(b.appends[0], begun...) {
				t.Errorf("appended %v", b.appends)
			}
			events := h.events(b.s.ID.Stream())
			for i, e := range events[head:][:len(b.appends[0])] {
				if e.Type != b.appends[0][i] || e.RunID != id || e.Epoch != b.st.Epoch || e.Time != events[head].Time {
					t.Errorf("%+v", e)
				}
			}
			if int(b.st.Head) != len(events) || !b.st.AtRest() || p.asked() != n+2 {
				t.Errorf("the state is at %d of %d events; the model was asked %d times", b.st.Head, len(events), p.asked())
			}
		}
		if len(all[*event.OwnerClaimed](h, b.s.ID)) != 1 {
			t.Error("it claims what is its own")
		}
		b.goesOn()
	})
}

// The texts of a submission that are too large for the log itself come with it, as
// do its tools and its key: what is offered is what would have been appended. // I-02 I-07
func TestOfferIsWhole(t *testing.T) {
	f := newFake("act", tool.Read, gives("done"))
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_1", f)
		p.mu.Lock()
		p.steps = []step{say("done"), call("act", "{}"), say("done")}
		p.mu.Unlock()
		long := strings.Repeat("long ", 100_000)
		id, _, err := b.submit(long, "key")
		if err != nil || !b.taken[0] {
			t.Fatalf("taken %v, %v", b.taken, err)
		}
		h.status(id, "completed")
		if msgs := p.reqs[1].Messages; msgs[len(msgs)-1].Parts[0].Text != long || f.runs() != 1 {
			t.Errorf("the model was shown something else; its tool ran %d times", f.runs())
		}
		if again, created, err := b.submit(long, "key"); err != nil || created || again != id {
			t.Errorf("the key once more: %s, created %v, %v", again, created, err)
		}
		b.goesOn()
	}, f)
}

// A session that another life of the node had last is claimed in the append of the
// submission: the epoch goes up, by one. // I-15
func TestOfferClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_0")
		epoch := b.st.Epoch
		id, _, err := b.submit("go", "")
		if err != nil || !b.taken[0] {
			t.Fatalf("taken %v, %v", b.taken, err)
		}
		h.status(id, "completed")
		if len(b.appends) != 2 || !began(b.appends[0], append([]event.Type{event.TypeOwnerClaimed}, begun...)...) {
			t.Errorf("appended %v", b.appends)
		}
		last := int64(0)
		for _, e := range h.events(b.s.ID.Stream()) {
			if e.Epoch < last || e.RunID == id && e.Epoch != epoch+1 {
				t.Errorf("%d %s in epoch %d", e.Seq, e.Type, e.Epoch)
			}
			last = e.Epoch
		}
		if claims := all[*event.OwnerClaimed](h, b.s.ID); len(claims) != 2 || claims[1].Owner != "gen_1" {
			t.Errorf("claims %+v", claims)
		}
		b.goesOn()
	})
}

// The conditions of a submission hold when it is offered as they do else: what does not
// hold is told to who offers it, nothing of it is in the log, and the session goes on. // I-02 I-07
func TestOfferUnderConditions(t *testing.T) {
	t.Run("the settings have changed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, h *house, _ *play) {
			b := newBench(h, "gen_1")
			b.between = func() {
				if err := h.adm.Update(t.Context(), admission.Caller{}, b.s.ID, admission.Change{Names: []string{"title"}, To: event.Settings{Title: "another"}}); err != nil {
					t.Fatal(err)
				}
			}
			id, created, err := b.submit("go", "")
			if err != nil || !created || !slices.Equal(b.taken, []bool{true, true}) {
				t.Fatalf("created %v, %v; taken %v", created, err, b.taken)
			}
			var condition *eventlog.ConditionError
			if !errors.As(b.told[0], &condition) || b.told[1] != nil {
				t.Errorf("told %v", b.told)
			}
			h.status(id, "completed")
			if got := b.runs(); !slices.Equal(got, []string{"before", "go"}) {
				t.Errorf("runs %q", got)
			}
			b.goesOn()
		})
	})
	t.Run("the session was closed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, h *house, _ *play) {
			b := newBench(h, "gen_1")
			b.between = func() {
				if err := h.adm.Close(t.Context(), admission.Caller{}, b.s, "over"); err != nil {
					t.Fatal(err)
				}
			}
			_, _, err := b.submit("go", "")
			if !problem.Is(err, "session_closed") || b.err != nil {
				t.Fatalf("%v; the drive: %v", err, b.err)
			}
			if got := b.runs(); !slices.Equal(got, []string{"before"}) {
				t.Errorf("runs %q", got)
			}
			h.verify()
		})
	})
	t.Run("the key is known", func(t *testing.T) {
		inBubble(t, func(t *testing.T, h *house, p *play) {
			b := newBench(h, "gen_1")
			var first event.RunID
			b.between = func() {
				var err error
				if first, _, err = h.adm.Submit(t.Context(), admission.Caller{}, b.s, &api.SubmitRun{Content: api.Text("go")}, "key"); err != nil {
					t.Fatal(err)
				}
				h.drive(h.eng, b.s.ID)
			}
			id, created, err := b.submit("go", "key")
			if err != nil || created || id != first {
				t.Fatalf("%s for %s, created %v, %v", id, first, created, err)
			}
			var duplicate *eventlog.DuplicateError
			if len(b.told) != 1 || !errors.As(b.told[0], &duplicate) {
				t.Errorf("told %v", b.told)
			}
			if got := b.runs(); !slices.Equal(got, []string{"before", "go"}) || p.asked() != 2 {
				t.Errorf("runs %q, the model was asked %d times", got, p.asked())
			}
			b.goesOn()
		})
	})
}

// A state that is behind the log catches up: it takes what is offered where the
// session is at rest all the same, and leaves it to the log where there is work before
// it. // I-06
func TestOfferToAStateThatIsBehind(t *testing.T) {
	for name, finished := range map[string]bool{"at rest again": true, "at work": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *house, p *play) {
				b := newBench(h, "gen_1")
				b.between = func() {
					h.submit(b.s, "first")
					if finished {
						h.drive(h.eng, b.s.ID)
					}
				}
				if _, _, err := b.submit("second", ""); err != nil || b.err != nil || !slices.Equal(b.taken, []bool{finished}) {
					t.Fatalf("taken %v, %v, %v", b.taken, err, b.err)
				}
				h.drive(b.eng, b.s.ID)
				if got := b.runs(); !slices.Equal(got, []string{"before", "first", "second"}) || p.asked() != 3 {
					t.Errorf("runs %q, the model was asked %d times", got, p.asked())
				}
				b.goesOn()
			})
		})
	}
}

// Where nothing may begin, or the session is not this node's, or its run waits for a
// person, an offer is declined: the engine appends nothing, and the submission is in the
// log once, by way of who offers it. // I-06 I-11
func TestOfferDeclined(t *testing.T) {
	beat := func(h *house) {
		for _, id := range []eventlog.NodeID{"a", "gen_1"} {
			if _, err := h.store.Beat(h.t.Context(), eventlog.Node{ID: id}, time.Hour); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	// claim makes node a the holder, which wants nothing just now.
	claim := func(b *bench) {
		beat(b.h)
		head := len(b.h.types(b.s.ID))
		_, err := b.h.store.Append(b.h.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{
			Stream: b.s.ID.Stream(), Expect: int64(head), Epoch: b.st.Epoch, Claim: true, Node: "a",
			Events: []event.Event{{SessionID: b.s.ID, UserID: b.s.UserID, Data: &event.OwnerClaimed{Owner: "a"}}},
		}}})
		if err != nil {
			b.h.t.Fatal(err)
		}
	}
	for name, row := range map[string]struct {
		trouble func(b *bench) (over func())
		before  int // requests to the model before the offer
	}{
		"nothing may begin":   {func(b *bench) func() { b.held.Store(true); return nil }, 1},
		"it drains":           {func(b *bench) func() { close(b.draining); return nil }, 1},
		"the lease has ended": {func(b *bench) func() { l := newLease(); l.late(); close(l.ended); b.term = l; return nil }, 1},
		"a beat is late":      {func(b *bench) func() { l := newLease(); l.late(); b.term = l; return l.beat }, 1},
		"another node took it, which is not known here": {func(b *bench) func() {
			claim(b)
			return func() { b.h.store.Release(b.h.t.Context(), "a") }
		}, 1},
		"another node has it": {func(b *bench) func() {
			claim(b)
			b.load()
			return func() { b.h.store.Release(b.h.t.Context(), "a") }
		}, 1},
		"another node works on it": {func(b *bench) func() {
			beat(b.h)
			b.h.submit(b.s, "a slow one")
			life := b.h.begin(b.h.other("a", newFake("act", tool.Write, waits(30*time.Second, "done"))), b.s.ID)
			synctest.Wait()
			return func() { time.Sleep(time.Minute); life.drain(); b.h.store.Release(b.h.t.Context(), "a") }
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake("act", tool.Write, gives("done"))
			inBubble(t, func(t *testing.T, h *house, p *play) {
				b := newBench(h, "gen_1", f)
				p.mu.Lock()
				p.steps = []step{say("done"), say("done")}
				if row.before == 2 {
					p.steps = []step{say("done"), call("act", "{}"), say("done")}
				}
				p.mu.Unlock()
				over := row.trouble(b)
				head := len(h.types(b.s.ID))
				id, created, err := b.submit("go", "")
				if err != nil || !created || !slices.Equal(b.taken, []bool{false}) || p.asked() != row.before {
					t.Fatalf("created %v, %v; taken %v, asked %d times", created, err, b.taken, p.asked())
				}
				if got := h.types(b.s.ID)[head:]; !slices.Equal(got, []string{"run.created", "run.queued"}) {
					t.Errorf("appended %v", got)
				}
				h.status(id, "queued")
				if over != nil {
					over()
				}
				b.goesOn()
				if got := b.runs(); len(got) != row.before+2 || got[row.before] != "go" {
					t.Errorf("runs %q", got)
				}
			}, f)
		})
	}
}

// A run that waits for a person is not at its end: what comes behind it is queued, and
// counts, whoever drives the session. // I-06
func TestOfferBehindOneThatWaits(t *testing.T) {
	f := newFake("act", tool.Write, func(context.Context, tool.Call) (tool.Result, error) { panic("lost") })
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_1", f)
		p.mu.Lock()
		p.steps = []step{say("done"), call("act", "{}"), say("done")}
		p.mu.Unlock()
		first, _, err := b.submit("first", "")
		if err != nil || !b.taken[0] {
			t.Fatalf("taken %v, %v", b.taken, err)
		}
		h.status(first, "needs_attention")
		b.appends = nil
		if _, _, err := b.submit("second", ""); err != nil || b.taken[1] || len(b.appends) != 0 {
			t.Errorf("taken %v, %v, appended %v", b.taken, err, b.appends)
		}
	}, f)
}

// What the log refuses for good, or has no room for, is told to who offers it; the
// session has no run and no claim of it, and goes on. // I-02
func TestOfferRefused(t *testing.T) {
	for name, refusal := range map[string]error{
		"malformed": eventlog.Malformed(errFault, "too large"), "no room": eventlog.Full(errFault, true), "no such file": &eventlog.AssetError{ID: "ast_1"}, "damaged": eventlog.Damaged(errFault),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *house, p *play) {
				b := newBench(h, "gen_1")
				head := len(h.types(b.s.ID))
				b.fault = func(eventlog.Append) (error, error) {
					if len(b.appends) > 3 {
						return nil, nil
					}
					return refusal, nil
				}
				if _, _, err := b.submit("go", ""); err == nil || !b.taken[0] || !errors.Is(b.told[0], refusal) || len(b.appends) != 1 {
					t.Errorf("told %v, the caller %v; appended %v", b.told, err, b.appends)
				}
				if len(h.types(b.s.ID)) != head || p.asked() != 1 || b.err != nil {
					t.Errorf("log %v, asked %d times, %v", h.types(b.s.ID)[head:], p.asked(), b.err)
				}
				b.goesOn()
			})
		})
	}
}

// Of an append nobody may know whether it is in the log, or comes there yet. Who
// offered it is told so, and gets no other answer; the session claims itself: behind
// that it cannot come any more. A run that is in the log is driven to its end, nothing of
// it twice, and where there is none the session comes to rest. // I-07 I-13
func TestOfferUnknown(t *testing.T) {
	for _, node := range []string{"gen_0", "gen_1"} { // with a claim and without one
		for name, row := range map[string]struct {
			lands  string // when: at once, before the next append, behind it, never
			blind  bool   // the log cannot be read for a while
			landed bool
		}{
			"is there":                    {lands: "at once", landed: true},
			"is there, and nobody sees":   {lands: "at once", blind: true, landed: true},
			"comes late":                  {lands: "before", landed: true},
			"comes late, and nobody sees": {lands: "before", blind: true, landed: true},
			"comes too late":              {lands: "behind"},
			"comes too late, and nobody":  {lands: "behind", blind: true},
			"never comes":                 {lands: "never"},
		} {
			t.Run(name+" "+node, func(t *testing.T) {
				inBubble(t, func(t *testing.T, h *house, p *play) {
					b := newBench(h, node)
					var late *eventlog.Append
					var lateErr error
					b.fault = func(a eventlog.Append) (before, after error) {
						land := func() {
							if late != nil {
								_, lateErr = h.store.Append(t.Context(), *late)
								late = nil
							}
						}
						switch {
						case len(b.appends) == 1 && row.lands == "at once":
							after = errFault
						case len(b.appends) == 1:
							late, before = &a, errFault
						case row.lands == "before":
							land()
						case row.lands == "behind" && late != nil:
							if _, err := h.store.Append(t.Context(), a); err != nil {
								t.Errorf("the next one: %v", err)
							}
							land()
							before = errFault // so that it is seen that it is there
						}
						return before, after
					}
					reads := 0
					b.log.set(b.append, func() error {
						if reads++; row.blind && reads <= 3 {
							return errFault
						}
						return nil
					})
					_, created, err := b.submit("go", "key")
					if created || !problem.Is(err, "store_unavailable") || !slices.Equal(b.taken, []bool{true}) || !errors.Is(b.told[0], errFault) {
						t.Fatalf("created %v, %v; taken %v, told %v", created, err, b.taken, b.told)
					}
					if b.err != nil {
						t.Fatalf("the drive: %v", b.err)
					}
					if len(b.appends) < 2 || !slices.Contains(b.appends[1], event.TypeOwnerClaimed) {
						t.Errorf("no claim is next: %v", b.appends)
					}
					want, asked := []string{"before"}, 1
					if row.landed {
						want, asked = append(want, "go"), 2
					}
					if got := b.runs(); !slices.Equal(got, want) || p.asked() != asked {
						t.Errorf("runs %q, the model was asked %d times", got, p.asked())
					}
					if row.lands == "behind" && !errors.Is(lateErr, eventlog.ErrHeadMoved) && !errors.Is(lateErr, eventlog.ErrFenced) {
						t.Errorf("it came behind the claim: %v", lateErr)
					}
					if got, err := h.store.Take(t.Context(), "gen_1", eventlog.Sessions, 9, true); err == nil && len(got) != 0 {
						t.Errorf("held at rest: %v", got)
					}
					// Its caller tries again, under the key: there is one run.
					b.fault = nil
					if _, created, err := b.submit("go", "key"); err != nil || created == row.landed {
						t.Errorf("again: created %v, %v", created, err)
					}
					if got := b.runs(); !slices.Equal(got, []string{"before", "go"}) || p.asked() != 2 {
						t.Errorf("runs %q, the model was asked %d times", got, p.asked())
					}
					b.goesOn()
				})
			})
		}
	}
}

// A caller who leaves while the append is made leaves a run behind that is driven to
// its end. // I-02
func TestOfferIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house, p *play) {
		b := newBench(h, "gen_1")
		ctx, cancel := context.WithCancel(t.Context())
		b.fault = func(eventlog.Append) (error, error) { cancel(); synctest.Wait(); return nil, nil }
		_, created, err := b.adm.Submit(ctx, admission.Caller{}, b.s, &api.SubmitRun{Content: api.Text("go")}, "")
		<-b.done
		if created || !errors.Is(err, context.Canceled) || !slices.Equal(b.runs(), []string{"before", "go"}) {
			t.Errorf("created %v, %v; runs %q", created, err, b.runs())
		}
		b.goesOn()
	})
}

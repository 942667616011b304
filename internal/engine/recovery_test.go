package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// A retry happens at its durable time, whoever is alive then.
func TestRetryKeepsItsTimeOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := llm.Errorf(llm.RateLimit, "slow down")
		limited.RetryAfter = 10 * time.Minute
		h, p := staged(t, []step{breaks(limited), say("hello")})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		began := time.Now()
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		l.kill()
		<-time.After(3 * time.Minute) // nobody is there
		l = h.begin(h.other("gen_2"), s.ID)
		<-time.After(3 * time.Minute)
		l.ring() // a wake-up for nothing
		synctest.Wait()
		if p.asked() != 1 {
			t.Fatal("asked before its time")
		}
		l.kill()
		h.drive(h.other("gen_3"), s.ID)
		h.status(id, "completed")
		planned := all[*event.RetryScheduled](h, s.ID)
		if took := time.Since(began); took != 10*time.Minute || len(planned) != 1 || planned[0].Attempt != 2 {
			t.Errorf("after %v: %+v", took, planned)
		}
	})
}

// Five attempts in all, ever further apart; the classes that cannot heal are
// not tried again.
func TestRetryBudget(t *testing.T) {
	for class, want := range map[llm.Class]int{
		llm.RateLimit: 5, llm.Overloaded: 5, llm.Transport: 5, llm.Truncated: 5, llm.Server: 5, llm.UnknownClass: 5,
		llm.Auth: 1, llm.Billing: 1, llm.InvalidRequest: 1, llm.ContextOverflow: 1, llm.ContentFilter: 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			h, p := staged(t, []step{breaks(llm.Errorf(class, "no"))})
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "go")
			began := time.Now()
			h.drive(h.eng, s.ID)
			h.status(id, "failed")
			if row := h.run(id); p.asked() != want || row.ErrorCode != "model_"+string(class) {
				t.Errorf("%s: asked %d times, %s", class, p.asked(), row.ErrorCode)
			}
			if took := time.Since(began); want == 5 && (took < 15*time.Second || took > 23*time.Second) { // 1+2+4+8 and jitter
				t.Errorf("%s: took %v", class, took)
			}
		})
	}
}

// A stream that was cut after output had come is tried again within the same
// budget, by classes that this may help. What had come is durable and marked
// (I-19), is shown to the next attempt, and is no part of an answer (I-20); no
// call of it runs (I-13). C24, C27
func TestCutAfterOutput(t *testing.T) {
	text := []llm.Part{{Kind: llm.TextStart}, {Kind: llm.TextDelta, Text: "so far "}, {Kind: llm.TextDelta, Text: "so good"}}
	input := []llm.Part{{Kind: llm.ToolInputStart, Index: 1, Name: "act"}, {Kind: llm.ToolInputDelta, Index: 1, Text: `{"a":`}}
	whole := []llm.Part{{Kind: llm.ToolCallWhole, Index: 1, Name: "act", Text: `{}`}}
	thoughts := []llm.Part{{Kind: llm.ReasoningStart, Index: 1}, {Kind: llm.ReasoningDelta, Index: 1, Text: "hm"}, {Kind: llm.ReasoningEnd, Index: 1, State: []byte("sealed")}}
	for _, row := range []struct {
		name  string
		first step
		class string
		asked int
		shown bool // the next attempt is shown the text
	}{
		{"text, then an error", breaks(llm.Errorf(llm.Overloaded, "no"), text...), "overloaded", 5, true},
		{"text, then no end", parts(text...), "truncated", 5, true},
		{"text, then silence", hangs(text...), "transport", 5, true},
		{"text and half a call", breaks(llm.Errorf(llm.Transport, "gone"), append(text, input...)...), "transport", 5, true},
		{"text and a whole call", breaks(llm.Errorf(llm.Server, "gone"), append(text, whole...)...), "server", 5, true},
		{"text and thoughts", breaks(llm.Errorf(llm.Server, "gone"), append(text, thoughts...)...), "server", 5, true},
		{"half a call", breaks(llm.Errorf(llm.Transport, "gone"), input...), "transport", 5, false},
		{"thoughts only", breaks(llm.Errorf(llm.Transport, "gone"), thoughts...), "transport", 5, false},
		{"nothing", parts(), "truncated", 5, false},
		{"filtered", parts(append(text, llm.Part{Kind: llm.Finish, Reason: llm.FinishFilter})...), "content_filter", 1, false},
		{"refused in the middle", breaks(llm.Errorf(llm.InvalidRequest, "no"), text...), "invalid_request", 1, false},
		{"out of money in the middle", breaks(llm.Errorf(llm.Billing, "no"), text...), "billing", 1, false},
		{"text, then a panic", func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
			if err := parts(text...)(ctx, req, yield); err != nil {
				return err
			}
			panic("odd bytes")
		}, "invalid_request", 1, false},
		{"out of order", parts(append(text, llm.Part{Kind: llm.TextStart})...), "protocol", 1, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("act", tool.Write, gives(""))
				h, p := staged(t, []step{row.first}, f)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.eng, s.ID)
				h.status(id, "failed")
				if got := h.run(id).ErrorCode; p.asked() != row.asked || got != "model_"+row.class || f.runs() != 0 {
					t.Errorf("asked %d times, %s", p.asked(), got)
				}
				for _, d := range all[*event.TextEnded](h, s.ID) {
					if !d.Partial || d.Content.Text != "so far so good" {
						t.Errorf("text %+v", d)
					}
				}
				if len(all[*event.OutputEmitted](h, s.ID)) != 0 || len(all[*event.ToolRequested](h, s.ID)) != 0 {
					t.Error("a broken answer became the output, or a call of it was asked for") // I-20
				}
				for i, req := range p.reqs[1:] {
					if got := len(req.Messages) == 3; got != row.shown || req.Continues {
						t.Fatalf("request %d has %d messages", i+1, len(req.Messages))
					}
					if !row.shown {
						continue
					}
					said, note := req.Messages[1], req.Messages[2]
					if said.Role != llm.Assistant || len(said.Parts) != 1 || said.Parts[0].Text != "so far so good" || said.Parts[0].State != nil {
						t.Errorf("request %d shows %+v", i+1, said)
					}
					if note.Role != llm.User || len(note.Parts) != 1 || note.Parts[0].Text != session.NoteCut || !note.Parts[0].Note {
						t.Errorf("request %d says %+v", i+1, note)
					}
				}
				settled(t, h.events(s.ID.Stream()))

				// The attempt that succeeds gives the whole answer, and nothing of the others is left.
				p.mu.Lock()
				p.steps = []step{row.first, say("whole"), say("next")}
				p.reqs = nil
				p.mu.Unlock()
				s = h.session(&api.CreateSession{})
				for _, want := range []string{"whole", "next"} {
					id = h.submit(s, "go")
					h.drive(h.eng, s.ID)
					if row.asked == 1 {
						return
					}
					h.status(id, "completed")
					outs := all[*event.OutputEmitted](h, s.ID)
					if got := outs[len(outs)-1].Content.Text; got != want {
						t.Errorf("the answer is %q", got)
					}
				}
				if last := p.reqs[2].Messages; len(last) != 3 || last[1].Parts[0].Text != "whole" || len(last[1].Parts) != 1 {
					t.Errorf("the next run is shown %+v", last)
				}
				h.verify()
			})
		})
	}
}

// What is shown of a cut attempt is bounded, also where it stands by reference,
// over a restart.
func TestCutTextIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var long []llm.Part
		for i := range 10 {
			long = append(long, llm.Part{Kind: llm.TextStart, Index: i}, llm.Part{Kind: llm.TextDelta, Index: i, Text: strings.Repeat("å", 10_000)}, llm.Part{Kind: llm.TextEnd, Index: i})
		}
		h, p := staged(t, []step{parts(long...), hangs(), say("done")})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		l := h.begin(h.eng, s.ID)
		<-time.After(5 * time.Second)
		l.kill()
		h.drive(h.other("gen_2"), s.ID)
		h.status(id, "completed")
		for _, req := range p.reqs[1:] {
			if got := req.Messages[1].Parts[0].Text; got != strings.Repeat("å", session.MaxCut/2) {
				t.Errorf("%d bytes are shown", len(got))
			}
		}
		if len(p.reqs) != 3 {
			t.Errorf("asked %d times", len(p.reqs))
		}
		h.verify()
	})
}

// The process dies while tools run: each call has exactly one result, an effect
// is not begun again, and two restarts give the log of one (C45).
func TestDeathInTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := newFake("look", tool.Read, waits(time.Second, "seen"))
		again := newFake("again", tool.Read, waits(50*time.Second, "seen again"))
		charge := newFake("charge", tool.ExternalEffect, waits(50*time.Second, "charged"))
		h, p := staged(t, []step{call("look", "{}", "charge", "{}", "again", "{}"), say("done")}, look, again, charge)
		defer h.close()
		s := h.session(&api.CreateSession{OnDoubt: "continue"})
		id, next := h.submit(s, "go"), h.submit(s, "and more")
		l := h.begin(h.eng, s.ID)
		<-time.After(10 * time.Second)
		l.kill()
		h.drive(h.other("gen_2", look, again, charge), s.ID)
		h.status(id, "completed")
		h.status(next, "completed")
		if got := p.results(1); !slices.Equal(got, []string{"seen", interrupted, "seen again"}) {
			t.Errorf("the model reads %q", got)
		}
		if look.runs() != 1 || charge.runs() != 1 || again.runs() != 2 {
			t.Errorf("look %d, charge %d, again %d", look.runs(), charge.runs(), again.runs())
		}
		before := h.types(s.ID)
		h.drive(h.other("gen_3", look, again, charge), s.ID)
		if !slices.Equal(before, h.types(s.ID)) {
			t.Error("a restart with nothing to do wrote to the log")
		}
		h.verify()
	})
}

// A store in trouble never costs an outcome, whether the append is refused,
// committed without an answer, or reads fail too.
func TestStoreInTrouble(t *testing.T) {
	for name, fault := range map[string]func(n int) (before, after error){
		"refused":              func(int) (error, error) { return errFault, nil },
		"committed, no answer": func(int) (error, error) { return nil, errFault },
		"every other":          func(n int) (error, error) { return []error{errFault, nil}[n%2], []error{errFault, nil}[n/2%2] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				act := newFake("act", tool.Write, waits(50*time.Second, "done"))
				h, p := staged(t, []step{after(time.Second, call("act", "{}", "act", "{}")), after(time.Second, say("done"))}, act)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				eng, log := h.faultyEngine("gen_1", act)
				n, until := 0, time.Now().Add(3*time.Minute)
				log.set(func(eventlog.Append) (error, error) {
					if n++; time.Now().After(until) {
						return nil, nil
					}
					return fault(n)
				}, func() error {
					if n%3 == 1 && time.Now().Before(until) {
						n++
						return errFault
					}
					return nil
				})
				l := h.begin(eng, s.ID)
				for range 20 {
					<-time.After(30 * time.Second)
					l.ring()
				}
				synctest.Wait()
				l.kill()
				if l.err != nil && l.err != context.Canceled {
					t.Errorf("the drive gave up: %v", l.err)
				}
				h.status(id, "completed")
				if act.runs() != 2 || p.asked() != 2 || slices.Contains(h.types(s.ID), "tool.call.interrupted") {
					t.Errorf("ran %d, asked %d: %v", act.runs(), p.asked(), h.types(s.ID))
				}
				h.verify()
			})
		})
	}
}

// An intent that was committed by an append that seemed to fail, together with
// a cancel, still ends.
func TestCancelBehindUnseenIntent(t *testing.T) {
	for _, intent := range []event.Type{event.TypeModelCallStarted, event.TypeToolStarted} {
		synctest.Test(t, func(t *testing.T) {
			act := newFake("act", tool.Write, gives("done"))
			h, _ := staged(t, []step{call("act", "{}"), say("done")}, act)
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "go")
			eng, log := h.faultyEngine("gen_1", act)
			log.set(func(a eventlog.Append) (error, error) {
				if !has(a, intent) {
					return nil, nil
				}
				log.append = nil // the lock is held by nobody here
				return nil, errFault
			}, nil)
			l := h.begin(eng, s.ID)
			synctest.Wait()
			h.stop(s, id, false)
			l.ring()
			<-time.After(time.Minute)
			synctest.Wait()
			h.status(id, "cancelled")
			l.kill()
			for _, d := range all[*event.ToolInterrupted](h, s.ID) {
				if d.Outcome != "" {
					t.Error("a call that never began is in doubt")
				}
			}
			if act.runs() != 0 {
				t.Error("it ran")
			}
		})
	}
}

// What a model sends is hostile: too many parts, parts that are one another,
// indexes of any kind. The run fails; it does not loop and does not start a
// call twice.
func TestHostileParts(t *testing.T) {
	many := func(ctx context.Context, _ *llm.Request, yield func(llm.Part) error) error {
		for i := range 5000 {
			if err := yield(llm.Part{Kind: llm.ToolCallWhole, Index: i, Name: "act", Text: "{}"}); err != nil {
				return err
			}
		}
		return yield(llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
	}
	twice := parts(llm.Part{Kind: llm.ToolInputStart, Name: "act"}, llm.Part{Kind: llm.ToolCallWhole, Name: "act", Text: "{}"},
		llm.Part{Kind: llm.ToolInputStart, Name: "act"}, llm.Part{Kind: llm.ToolCallWhole, Name: "act", Text: "{}"},
		llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
	large := func(_ context.Context, _ *llm.Request, yield func(llm.Part) error) error {
		chunk := strings.Repeat("x", 1<<20)
		if err := yield(llm.Part{Kind: llm.TextStart}); err != nil {
			return err
		}
		for {
			if err := yield(llm.Part{Kind: llm.TextDelta, Text: chunk}); err != nil {
				return err
			}
		}
	}
	deaf := func(_ context.Context, _ *llm.Request, yield func(llm.Part) error) error { // goes on whatever it is told
		for _, p := range []llm.Part{{Kind: llm.TextDelta, Text: "x"}, {Kind: llm.ToolCallWhole, Index: 1, Name: "act", Text: "{}"}, {Kind: llm.Finish}} {
			_ = yield(p)
		}
		return nil
	}
	for name, row := range map[string]struct {
		first step
		class string
	}{"too many": {many, "invalid_request"}, "one index twice": {twice, "protocol"}, "too large": {large, "invalid_request"}, "deaf": {deaf, "protocol"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				act := newFake("act", tool.Write, gives("done"))
				h, p := staged(t, []step{row.first}, act)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				h.drive(h.eng, s.ID)
				h.status(id, "failed")
				if got := h.run(id).ErrorCode; p.asked() != 1 || act.runs() != 0 || got != "model_"+row.class {
					t.Errorf("asked %d, ran %d, %s", p.asked(), act.runs(), got)
				}
				settled(t, h.events(s.ID.Stream()))
			})
		})
	}
}

// Names, texts and reasons of a vendor that are no UTF-8 do not stop the log.
func TestHostileTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := llm.Errorf(llm.Overloaded, "bad \xff words")
		e.Code = "co\xfede"
		h, p := staged(t, []step{
			breaks(e),
			parts(llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: "te\xffxt"},
				llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "na\xffme" + strings.Repeat("n", 500), Text: "{}"},
				llm.Part{Kind: llm.Finish, Reason: llm.FinishReason("odd"), Raw: "ra\xffw"}),
			say("done \xff"),
		})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if out := all[*event.OutputEmitted](h, s.ID)[0].Content; out.Text != "done \ufffd" || !out.Replaced && p.asked() != 3 {
			t.Errorf("%+v", out)
		}
		h.verify()
	})
}

// A drive that was cut leaves its acts in doubt for the next one of the same
// process life too: nothing that may have had its effect begins again (I-13).
func TestCutAndDrivenAgainByTheSameOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		charge := newFake("charge", tool.ExternalEffect, waits(50*time.Second, "charged"))
		h, p := staged(t, []step{call("charge", "{}"), say("done")}, charge)
		defer h.close()
		s := h.session(&api.CreateSession{OnDoubt: "continue"})
		id := h.submit(s, "go")
		l := h.begin(h.eng, s.ID)
		<-time.After(time.Second)
		l.kill()
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if got := p.results(1); charge.runs() != 1 || got[0] != interrupted {
			t.Errorf("ran %d times, the model reads %q", charge.runs(), got)
		}
	})
}

// A log that ends before what was read from it has lost commits: the drive says
// so and ends, for whoever reads it anew, instead of asking for ever.
func TestLogThatLostCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, p := staged(t, []step{say("done")})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		eng, log := h.faultyEngine("gen_1")
		asked := 0
		log.set(func(eventlog.Append) (error, error) {
			if asked++; asked > 1000 {
				return eventlog.ErrClosed, nil
			}
			return fmt.Errorf("%w: a test says so", eventlog.ErrHeadMoved), nil
		}, nil)
		l := h.begin(eng, s.ID)
		<-l.done
		if asked != 1 || l.err == nil || errors.Is(l.err, eventlog.ErrFenced) || p.asked() != 0 {
			t.Errorf("%d appends, %d requests, %v", asked, p.asked(), l.err)
		}
		h.status(id, h.run(id).Status)
		log.set(nil, nil)
		again := h.begin(eng, s.ID)
		synctest.Wait()
		h.status(id, "completed")
		again.drain()
	})
}

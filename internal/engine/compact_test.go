package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const summaryOfTests = "## Goal\nGo on.\n\n## Done\nOne exchange."

func tooLarge() step {
	return breaks(&llm.Error{Class: llm.ContextOverflow, Status: 400, Message: "too many tokens"})
}

// summarises says whether a request is one for a summary, and holds it to what
// such a request may be (I-10).
func summarises(t *testing.T, req *llm.Request) bool {
	t.Helper()
	if !strings.HasPrefix(req.System, "You write the record of a conversation") {
		return false
	}
	if !req.NoTools || len(req.Tools) > 0 || len(req.Messages) != 1 || req.MaxOutputTokens == 0 {
		t.Errorf("a summary request: %+v", req)
	}
	return true
}

// twoRuns has a session with one run behind it and another submitted.
func twoRuns(t *testing.T, steps []step, tools ...tool.Tool) (*house, *play, eventlog.SessionRow, event.RunID) {
	t.Helper()
	h, p := staged(t, append([]step{say("first answer")}, steps...), tools...)
	s := h.session(&api.CreateSession{})
	h.submit(s, "first task")
	h.drive(h.eng, s.ID)
	return h, p, s, h.submit(s, "second task")
}

// An overflow is answered by one compaction, in the same step; the tool that a
// model calls instead of writing the summary does not run (C14, I-10).
func TestOverflowIsCompactedOnce(t *testing.T) { // C14, C43
	synctest.Test(t, func(t *testing.T) {
		wipe := newFake("wipe", tool.Write, gives(""))
		h, p, s, id := twoRuns(t, []step{tooLarge(), call("wipe", "{}"), say(summaryOfTests), say("second answer")}, wipe)
		defer h.close()
		sub := h.hub.Subscribe(s.ID.Stream())
		defer sub.Close()
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if p.asked() != 5 || !summarises(t, p.reqs[2]) || !summarises(t, p.reqs[3]) || summarises(t, p.reqs[4]) || wipe.runs() != 0 {
			t.Fatalf("asked %d times, the tool ran %d times", p.asked(), wipe.runs())
		}
		text := p.reqs[4].Messages[0].Parts[0].Text
		if !strings.Contains(text, summaryOfTests) || !strings.Contains(text, "first task") || p.reqs[4].Attempt != 2 {
			t.Errorf("attempt %d begins with %q", p.reqs[4].Attempt, text)
		}
		var steps int
		for _, d := range all[*event.RunCompleted](h, s.ID) {
			steps += d.Totals.Steps
		}
		if steps != 2 {
			t.Errorf("%d steps: a compaction is none", steps)
		}
		h.verify()
	})
}

// The second overflow of a step is a durable failure with a fixed text, also
// over a crash between the two.
func TestOverflowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, p, s, id := twoRuns(t, []step{tooLarge(), say(summaryOfTests), after(time.Minute, tooLarge()), tooLarge(), say("never")})
		defer h.close()
		l := h.begin(h.eng, s.ID)
		<-time.After(30 * time.Second)
		l.kill()
		h.drive(h.other("gen_2"), s.ID)
		h.status(id, "failed")
		if row := h.run(id); row.ErrorMessage != "Post-compaction provider attempt cannot recover another overflow" || row.ErrorCode != "model_context_overflow" || p.asked() != 5 {
			t.Errorf("asked %d times: %+v", p.asked(), row)
		}
		if f := all[*event.StepFailed](h, s.ID); len(f) != 1 || f[0].Message != session.TextOverflowAgain {
			t.Errorf("%+v", f)
		}
		h.verify()
	})
}

// The process dies while the summary is written, again and again: it is begun
// again, and at last given up; the run goes on from what its provider said.
func TestDeathInASummary(t *testing.T) {
	for _, deaths := range []int{1, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			h, _, s, id := twoRuns(t, []step{tooLarge(), after(time.Minute, say(summaryOfTests)), after(time.Minute, say(summaryOfTests)),
				after(time.Minute, say(summaryOfTests)), after(time.Minute, say(summaryOfTests)), after(time.Minute, say(summaryOfTests)), say("second answer")})
			defer h.close()
			h.model.(*play).steps = append(h.model.(*play).steps[:2+deaths:2+deaths], say(summaryOfTests), say("second answer"))
			eng := h.eng
			for n := range deaths {
				l := h.begin(eng, s.ID)
				<-time.After(30 * time.Second)
				l.kill()
				eng = h.other("gen_" + string(rune('2'+n)))
			}
			h.drive(eng, s.ID)
			want, ended := "completed", 1
			if deaths == 5 {
				want, ended = "failed", 0
			}
			h.status(id, want)
			if n := len(all[*event.ContextCompacted](h, s.ID)); n != ended {
				t.Errorf("%d deaths: %d windows", deaths, n)
			}
			if f := all[*event.CompactionFailed](h, s.ID); len(f) != 1-ended || len(f) == 1 && f[0].Code != session.CompactionExhausted {
				t.Errorf("%d deaths: %+v", deaths, f)
			}
			h.verify()
		})
	}
}

// A stop ends the summary with the run, and what streams in of a summary is
// shown to nobody.
func TestStopInASummary(t *testing.T) {
	for _, interrupt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h, p, s, id := twoRuns(t, []step{tooLarge(), hangs(llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: "## Go"}), say("next")})
			defer h.close()
			next := h.submit(s, "third task")
			sub := h.hub.Subscribe(s.ID.Stream())
			defer sub.Close()
			l := h.begin(h.eng, s.ID)
			synctest.Wait()
			for f := sub.Delta(); f != nil; f = sub.Delta() {
				t.Errorf("a summary is shown: %+v", f)
			}
			h.stop(s, id, interrupt)
			l.ring()
			synctest.Wait()
			l.kill()
			h.status(id, map[bool]string{false: "cancelled", true: "interrupted"}[interrupt])
			h.status(next, "completed")
			if f := all[*event.CompactionFailed](h, s.ID); len(f) != 1 || f[0].Code != session.CompactionStopped || p.asked() != 4 {
				t.Errorf("asked %d times: %+v", p.asked(), f)
			}
			h.verify()
		})
	}
}

// A summary waits out what its provider asks for, at a durable time.
func TestSummaryIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := llm.Errorf(llm.RateLimit, "later")
		later.RetryAfter = 10 * time.Minute
		h, p, s, id := twoRuns(t, []step{tooLarge(), breaks(later), breaks(llm.Errorf(llm.Truncated, "gone"), llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: "## Goal"}), say(summaryOfTests), say("second answer")})
		defer h.close()
		began := time.Now()
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if took := time.Since(began); took < 10*time.Minute || p.asked() != 6 {
			t.Errorf("took %v, asked %d times", took, p.asked())
		}
		if n := len(all[*event.RetryScheduled](h, s.ID)); n != 2 {
			t.Errorf("%d retries", n)
		}
		h.verify()
	})
}

// A person asks for a compaction: of a session at rest only; it survives a
// crash, and the run that comes meanwhile waits for it (C50).
func TestAskedCompaction(t *testing.T) { // C50
	synctest.Test(t, func(t *testing.T) {
		h, p, s, id := twoRuns(t, []step{say("second answer"), after(time.Minute, say("lost")), after(time.Minute, say(summaryOfTests)), say("third answer")})
		defer h.close()
		if _, _, err := h.adm.Compact(t.Context(), admission.Caller{}, s); problem.Of(err).Code != "compaction_conflict" {
			t.Errorf("with a run in the queue: %v", err)
		}
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		cmp, seq, err := h.adm.Compact(t.Context(), admission.Caller{Actor: "ann"}, s)
		if err != nil || seq == 0 {
			t.Fatal(cmp, seq, err)
		}
		if _, _, err := h.adm.Compact(t.Context(), admission.Caller{}, s); problem.Of(err).Code != "compaction_conflict" {
			t.Errorf("while one is asked for: %v", err)
		}
		if err := h.adm.Erase(t.Context(), admission.Caller{}, s); problem.Of(err).Code != "session_active" {
			t.Errorf("erased in the middle: %v", err)
		}
		next := h.submit(s, "third task")
		l := h.begin(h.eng, s.ID)
		<-time.After(30 * time.Second)
		l.kill()
		h.status(next, "queued")
		if ids, err := h.store.Unfinished(t.Context()); err != nil || !slices.Equal(ids, []event.SessionID{s.ID}) {
			t.Errorf("after the crash: %v %v", ids, err)
		}
		h.drive(h.other("gen_2"), s.ID)
		h.status(next, "completed")
		if p.asked() != 5 || !summarises(t, p.reqs[2]) || !summarises(t, p.reqs[3]) {
			t.Errorf("asked %d times", p.asked())
		}
		if d := all[*event.ContextCompacted](h, s.ID); len(d) != 1 || d[0].Reason != event.CompactManual || d[0].Entries != 2 {
			t.Errorf("%+v", d)
		}
		if err := h.adm.Close(t.Context(), admission.Caller{}, s, ""); err != nil {
			t.Fatal(err)
		}
		row, err := h.store.Session(context.Background(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.adm.Compact(t.Context(), admission.Caller{}, row); problem.Of(err).Code != "session_closed" {
			t.Errorf("of a closed session: %v", err)
		}
		h.verify()
	})
}

// A compaction that the log refuses for good ends, once and clearly; with it the
// run that it was for, and of a session at rest nothing else.
func TestRefusedCompaction(t *testing.T) {
	malformed := eventlog.Malformed(errors.New("too large"), "the database refuses it")
	for _, asked := range []bool{false, true} {
		for _, typ := range []event.Type{event.TypeCompactionStarted, event.TypeContextCompacted} {
			synctest.Test(t, func(t *testing.T) {
				h, _, s, id := twoRuns(t, []step{tooLarge(), say(summaryOfTests), say("second answer")})
				defer h.close()
				if asked {
					h.model.(*play).steps = []step{say("first answer"), say("second answer"), say(summaryOfTests), say("third answer")}
					h.drive(h.eng, s.ID)
					if _, _, err := h.adm.Compact(t.Context(), admission.Caller{}, s); err != nil {
						t.Fatal(err)
					}
				}
				eng, log := h.faultyEngine("gen_2")
				log.set(func(a eventlog.Append) (error, error) {
					if has(a, typ) {
						return malformed, nil
					}
					return nil, nil
				}, nil)
				h.drive(eng, s.ID)
				want := "failed"
				if asked {
					want = "completed"
				}
				h.status(id, want)
				if f := all[*event.CompactionFailed](h, s.ID); (asked || typ == event.TypeContextCompacted) && (len(f) != 1 || f[0].Code != session.CodeRefused) {
					t.Errorf("%v %s: %+v", asked, typ, f)
				}
				if ids, err := h.store.Unfinished(t.Context()); err != nil || len(ids) > 0 {
					t.Errorf("%v %s: unfinished %v %v", asked, typ, ids, err)
				}
				settled(t, h.events(s.ID.Stream()))
				h.verify()
			})
		}
	}
}

// Nothing but an overflow sets a compaction off, and that one.
func TestOnlyOverflowIsCompacted(t *testing.T) { // C43
	for _, class := range []llm.Class{
		llm.Auth, llm.Billing, llm.RateLimit, llm.Overloaded, llm.ContextOverflow, llm.ContentFilter, llm.InvalidRequest,
		llm.Transport, llm.Truncated, llm.Server, llm.UnknownClass,
	} {
		synctest.Test(t, func(t *testing.T) {
			h, _, s, id := twoRuns(t, []step{breaks(&llm.Error{Class: class, Status: 400, Message: "maximum context length, too many tokens"}), say(summaryOfTests)})
			defer h.close()
			h.drive(h.eng, s.ID)
			want := 0
			if class == llm.ContextOverflow {
				want = 1
			}
			if n := len(all[*event.CompactionStarted](h, s.ID)); n != want {
				t.Errorf("%s: %d compactions (%s)", class, n, h.run(id).Status)
			}
		})
	}
}

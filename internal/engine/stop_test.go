package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// stop asks for the end of a run: a cancel, or an interrupt of its session.
func (h *house) stop(s eventlog.SessionRow, id event.RunID, interrupt bool) {
	h.t.Helper()
	var err error
	if interrupt {
		_, err = h.adm.Interrupt(h.t.Context(), admission.Caller{}, s, "enough")
	} else {
		err = h.adm.Cancel(h.t.Context(), admission.Caller{}, h.run(id), "enough")
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// A stop ends a run wherever it stands, and the run behind it goes on.
func TestStopAnywhere(t *testing.T) {
	partial := []llm.Part{{Kind: llm.TextStart}, {Kind: llm.TextDelta, Text: "half"}}
	limited := llm.Errorf(llm.RateLimit, "later")
	limited.RetryAfter = time.Hour
	var many []string
	for range 12 {
		many = append(many, "slow", "{}")
	}
	for name, row := range map[string]struct {
		first step
		// calls that are left with an unknown outcome
		unknown int
		partial bool
	}{
		"in a model call":            {hangs(partial...), 0, true},
		"in a tool":                  {call("slow", "{}"), 1, false},
		"in more tools than at once": {call(many...), 8, false},
		"in a read":                  {call("look", "{}"), 0, false},
		"before a retry":             {breaks(limited), 0, false},
		"waiting for a person":       {call("lost", "{}"), 1, false},
	} {
		for _, interrupt := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h, p := staged(t, []step{row.first, say("next")},
						newFake("slow", tool.Write, waits(time.Hour, "")), newFake("look", tool.Read, waits(time.Hour, "")),
						newFake("lost", tool.Write, func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, tool.ErrOutcomeUnknown }))
					defer h.close()
					s := h.session(&api.CreateSession{})
					id, next := h.submit(s, "go"), h.submit(s, "and then")
					l := h.begin(h.eng, s.ID)
					synctest.Wait()
					h.stop(s, id, interrupt)
					l.ring()
					synctest.Wait()
					want := map[bool]string{false: "cancelled", true: "interrupted"}[interrupt]
					h.status(id, want)
					h.status(next, "completed")
					l.kill()
					unknown := 0
					for _, d := range all[*event.ToolInterrupted](h, s.ID) {
						if d.Outcome == "unknown" {
							unknown++
						}
					}
					if unknown != row.unknown {
						t.Errorf("%d calls of unknown outcome, want %d", unknown, row.unknown)
					}
					texts := all[*event.TextEnded](h, s.ID)
					if row.partial && (len(texts) != 2 || !texts[0].Partial || texts[0].Content.Text != "half") { // I-19
						t.Errorf("texts %+v", texts)
					}
					if err := h.adm.Cancel(t.Context(), admission.Caller{}, h.run(next), ""); err == nil {
						t.Error("a run at its end was cancelled") // I-05
					}
					if n := p.asked(); n != 2 {
						t.Errorf("the model was asked %d times", n)
					}
					h.verify()
				})
			})
		}
	}
}

// A queued run is cancelled while the one before it works on, untouched.
func TestCancelQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := staged(t, []step{after(time.Minute, say("first")), say("third")})
		defer h.close()
		s := h.session(&api.CreateSession{})
		first, second, third := h.submit(s, "1"), h.submit(s, "2"), h.submit(s, "3")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		h.stop(s, second, false)
		l.ring()
		synctest.Wait()
		h.status(first, "running")
		h.status(second, "cancelled")
		<-time.After(2 * time.Minute)
		synctest.Wait()
		h.status(first, "completed")
		h.status(third, "completed")
		l.kill()
	})
}

// Commands move the head while acts are in flight: outcomes survive as they
// are, decisions are asked anew.
func TestCommandsInMidAct(t *testing.T) {
	for _, ring := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("act", tool.Write, waits(50*time.Second, "done"))
			h, p := staged(t, []step{after(time.Minute, call("act", "{}")), after(time.Minute, say("one")), say("two")}, f)
			defer h.close()
			s := h.session(&api.CreateSession{})
			first := h.submit(s, "1")
			l := h.begin(h.eng, s.ID)
			var more []event.RunID
			for range 5 { // in the model call, in the tool, in the second model call
				<-time.After(29 * time.Second)
				more = append(more, h.submit(s, "more"))
				if ring {
					l.ring()
				}
			}
			<-time.After(time.Hour)
			synctest.Wait()
			l.kill()
			h.status(first, "completed")
			for _, id := range more {
				h.status(id, "completed")
			}
			if f.runs() != 1 || p.asked() != 2+len(more) || len(all[*event.ModelCallFailed](h, s.ID)) != 0 {
				t.Errorf("ran %d times, asked %d times", f.runs(), p.asked())
			}
			h.verify()
		})
	}
}

// A cancel that the owner has not heard of yet is found by the append of the
// outcome: no further turn begins.
func TestCancelFoundAtAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("act", tool.Write, gives("done"))
		h, p := staged(t, []step{after(time.Minute, call("act", "{}")), say("never")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		h.stop(s, id, false) // and nobody rings
		<-time.After(time.Hour)
		l.kill()
		h.status(id, "cancelled")
		if f.runs() != 0 || p.asked() != 1 || len(all[*event.InferenceCompleted](h, s.ID)) != 1 {
			t.Errorf("ran %d, asked %d; the answer is a fact and stays", f.runs(), p.asked())
		}
	})
}

// A session that another took: the former owner begins nothing, appends
// nothing and says nothing, whether it hears of it or not (I-11).
func TestFenced(t *testing.T) {
	for name, ring := range map[string]bool{"found at the append": false, "heard of before": true} {
		for at, first := range map[string]step{"in a model call": after(time.Minute, say("late")), "in a tool": call("act", "{}")} {
			t.Run(name+" "+at, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake("act", tool.Write, waits(50*time.Second, "late"))
					h, p := staged(t, []step{first, say("never")}, f)
					defer h.close()
					s := h.session(&api.CreateSession{})
					id := h.submit(s, "1")
					l := h.begin(h.eng, s.ID)
					synctest.Wait()
					head, err := h.store.Head(t.Context(), s.ID.Stream())
					if err != nil {
						t.Fatal(err)
					}
					if _, err := h.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{
						Stream: s.ID.Stream(), Expect: eventlog.AnyHead, Claim: true,
						Events: []event.Event{{SessionID: s.ID, UserID: "default", Data: &event.OwnerClaimed{Owner: "another"}}},
					}}}); err != nil {
						t.Fatal(err)
					}
					if ring {
						l.ring()
					}
					<-time.After(time.Hour)
					<-l.done
					if !errors.Is(l.err, eventlog.ErrFenced) {
						t.Errorf("the drive ended with %v", l.err)
					}
					if now, _ := h.store.Head(t.Context(), s.ID.Stream()); now.Seq != head.Seq+1 {
						t.Errorf("the former owner appended %v", h.types(s.ID)[head.Seq+1:])
					}
					if p.asked() != 1 || f.runs() > 1 {
						t.Errorf("asked %d, ran %d", p.asked(), f.runs())
					}
					h.status(id, "running")
				})
			})
		}
	}
}

// Draining: nothing begins any more, what is in flight is recorded, and the
// next life goes on with no lost and no double work.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("act", tool.Write, waits(50*time.Second, "done"))
		h, p := staged(t, []step{after(time.Minute, call("act", "{}")), after(time.Minute, say("done"))}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		first, second := h.submit(s, "1"), h.submit(s, "2")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		l.drain() // in the model call
		if p.asked() != 1 || f.runs() != 0 || !slices.Contains(h.types(s.ID), "inference.completed") {
			t.Fatalf("asked %d, ran %d: %v", p.asked(), f.runs(), h.types(s.ID))
		}
		l = h.begin(h.other("gen_2", f), s.ID)
		synctest.Wait()
		l.drain() // in the tool
		if p.asked() != 1 || f.runs() != 1 || len(all[*event.ToolCompleted](h, s.ID)) != 1 {
			t.Fatalf("asked %d, ran %d: %v", p.asked(), f.runs(), h.types(s.ID))
		}
		l = h.begin(h.other("gen_3", f), s.ID)
		close(l.draining) // before it has begun anything, or just then
		<-l.done
		asked := p.asked()
		h.drive(h.other("gen_4", f), s.ID)
		h.status(first, "completed")
		h.status(second, "completed")
		if f.runs() != 1 || p.asked()-asked > 2 || len(all[*event.ToolInterrupted](h, s.ID)) != 0 {
			t.Errorf("asked %d, ran %d: %v", p.asked(), f.runs(), h.types(s.ID))
		}
		h.verify()
	})
}

// A drive that begins after the draining did begins no act at all.
func TestDrainedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, p := staged(t, []step{say("hello")})
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		st, err := h.eng.Load(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		draining := make(chan struct{})
		close(draining)
		if _, _, _, err := h.eng.Drive(t.Context(), forever{}, st, nil, nil, draining); err != nil {
			t.Fatal(err)
		}
		if p.asked() != 0 {
			t.Error("a model was asked while draining")
		}
		h.status(id, "queued")
	})
}

// The end of the process is no cancel: what was in flight is in doubt, and
// nothing at all is said about it (C48).
func TestEndIsNoCancel(t *testing.T) {
	for range 20 { // which of two ready channels is heard is a matter of chance
		synctest.Test(t, func(t *testing.T) {
			read := newFake("look", tool.Read, waits(50*time.Second, "seen"))
			h, p := staged(t, []step{call("look", "{}"), hangs()}, read)
			defer h.close()
			s := h.session(&api.CreateSession{})
			id := h.submit(s, "1")
			l := h.begin(h.eng, s.ID)
			synctest.Wait()
			l.kill() // in the tool
			l = h.begin(h.other("gen_2", read), s.ID)
			<-time.After(2 * time.Minute)
			synctest.Wait()
			before := len(h.types(s.ID))
			l.kill() // in the model call
			if types := h.types(s.ID); len(types) != before || slices.Contains(types, "tool.call.interrupted") {
				t.Fatalf("the end was recorded: %v", types[before:])
			}
			h.status(id, "running")
			p.steps[1] = say("done")
			h.drive(h.other("gen_3", read), s.ID)
			h.status(id, "completed")
			if read.runs() != 2 {
				t.Errorf("the read ran %d times", read.runs())
			}
		})
	}
}

// More calls than may run at once wait without a start: a stop in the middle
// of them leaves nothing in doubt.
func TestDrainWithCallsThatWait(t *testing.T) { // I-13
	synctest.Test(t, func(t *testing.T) {
		f := newFake("act", tool.Write, waits(50*time.Second, "done"))
		var twelve []string
		for range 12 {
			twelve = append(twelve, "act", "{}")
		}
		h, _ := staged(t, []step{call(twelve...), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "1")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		if n := len(all[*event.ToolStarted](h, s.ID)); n != session.DefaultParallelTools {
			t.Fatalf("%d calls started at once", n)
		}
		l.drain()
		h.drive(h.other("gen_2", f), s.ID)
		h.status(id, "completed")
		if f.runs() != 12 || len(all[*event.ToolInterrupted](h, s.ID)) != 0 {
			t.Errorf("ran %d times: %v", f.runs(), h.types(s.ID))
		}
		h.verify()
	})
}

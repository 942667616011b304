package engine_test

import (
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// limits.answer_bytes bounds the answer of a step, over its pauses and over a
// restart between them.
func TestAnswerBytesOverPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pause := parts(
			llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: strings.Repeat("x", 400)}, llm.Part{Kind: llm.TextEnd},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishPause})
		h, p := staged(t, []step{pause, pause, pause, say("done")})
		defer h.close()
		set, err := tool.NewSet()
		if err != nil {
			t.Fatal(err)
		}
		eng := func(owner string, bytes int) *engine.Engine {
			return engine.New(engine.Config{
				Log: h.store, Tools: set, Node: eventlog.NodeID(owner), Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
				Model: func(event.Route) (llm.Model, error) { return strict{t, h.model}, nil }, MaxAnswer: bytes,
			})
		}
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(eng("gen_1", 1000), s.ID)
		h.status(id, "failed")
		if row := h.run(id); p.asked() != 3 || row.ErrorMessage != "the answer is larger than 1000 bytes" {
			t.Errorf("asked %d times: %s", p.asked(), row.ErrorMessage)
		}
		p.reqs = nil
		id = h.submit(s, "again") // the next step counts from nothing
		h.drive(eng("gen_2", 1204), s.ID)
		h.status(id, "completed")
		h.verify()
	})
}

// On the last allowed step the model is told, at the end of the request, and
// tools are withheld; what it calls all the same does not run and makes no
// further step (I-10). Retries and repairs are no steps.
func TestLastStepIsTold(t *testing.T) {
	told := func(req *llm.Request) bool {
		last := req.Messages[len(req.Messages)-1]
		end := last.Parts[len(last.Parts)-1]
		return last.Role == llm.User && end.Text == session.NoteLastStep && end.Note
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake("look", tool.Read, gives("seen"))
		h, p := staged(t, []step{
			call("look", "{}"), breaks(llm.Errorf(llm.Overloaded, "later")), say(`{"n":"x"}`), call("look", "{}"), breaks(llm.Errorf(llm.Overloaded, "later")), say(`{"n":1}`),
		}, f)
		defer h.close()
		s := h.session(&api.CreateSession{OutputContract: &api.OutputContract{
			Schema: api.Raw(`{"type":"object","properties":{"n":{"type":"number"}},"required":["n"],"additionalProperties":false}`),
		}, MaxTurns: 2})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		want := []struct {
			told, noTools bool
			repair        int
		}{{}, {true, true, 0}, {true, true, 0}, {false, true, 1}, {false, true, 2}, {false, true, 2}}
		if len(p.reqs) != len(want) {
			t.Fatalf("%d requests", len(p.reqs))
		}
		for i, w := range want {
			if req := p.reqs[i]; told(req) != w.told || req.NoTools != w.noTools || req.Repair != w.repair {
				t.Errorf("request %d: told %v, no tools %v, repair %d", i, told(req), req.NoTools, req.Repair)
			}
		}
		if f.runs() != 1 {
			t.Errorf("the tool ran %d times", f.runs())
		}
		if d := all[*event.ToolRejected](h, s.ID); len(d) != 1 || d[0].Message != session.TextRepairNoTools {
			t.Errorf("rejected: %+v", d)
		}
		settled(t, h.events(s.ID.Stream()))
		h.verify()
	})
	synctest.Test(t, func(t *testing.T) { // a call on the last step
		f := newFake("look", tool.Read, gives("seen"))
		h, p := staged(t, []step{call("look", "{}")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{MaxTurns: 2})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "failed")
		if d := all[*event.ToolRejected](h, s.ID); p.asked() != 2 || f.runs() != 1 || len(d) != 1 || d[0].Message != session.TextToolsDisabled {
			t.Errorf("asked %d times, ran %d times, rejected %+v", p.asked(), f.runs(), d)
		}
		settled(t, h.events(s.ID.Stream()))
	})
	synctest.Test(t, func(t *testing.T) { // there was never anything to call
		h, p := staged(t, []step{say("hello")})
		defer h.close()
		s := h.session(&api.CreateSession{MaxTurns: 1})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if told(p.reqs[0]) {
			t.Error("a run without tools is told that it has none")
		}
	})
}

// A call that is declined, an interrupt, a cancel and the end of the process
// are four things with records of their own. A declined call is an answer to
// the model, which goes on; the end of the process is no word on the run (C48).
func TestFourWaysToStop(t *testing.T) {
	denied := newFake("wipe", tool.Irreversible, gives("gone"))
	denied.def.Policy = tool.Deny
	slow := newFake("slow", tool.Read, waits(time.Minute, "done"))
	for name, row := range map[string]struct {
		first  step
		stop   func(h *house, s eventlog.SessionRow, id event.RunID, l *life)
		status string
		want   []event.Type // of these, which are in the log
	}{
		"declined":    {call("wipe", "{}"), func(*house, eventlog.SessionRow, event.RunID, *life) {}, "completed", []event.Type{event.TypeToolRejected, event.TypeRunCompleted}},
		"interrupted": {call("slow", "{}"), func(h *house, s eventlog.SessionRow, id event.RunID, _ *life) { h.stop(s, id, true) }, "interrupted", []event.Type{event.TypeInterruptRequested, event.TypeToolInterrupted, event.TypeRunInterrupted}},
		"cancelled":   {call("slow", "{}"), func(h *house, s eventlog.SessionRow, id event.RunID, _ *life) { h.stop(s, id, false) }, "cancelled", []event.Type{event.TypeCancelRequested, event.TypeToolInterrupted, event.TypeRunCancelled}},
		"drained":     {call("slow", "{}"), func(_ *house, _ eventlog.SessionRow, _ event.RunID, l *life) { l.drain() }, "completed", []event.Type{event.TypeRunCompleted}},
		"killed":      {call("slow", "{}"), func(_ *house, _ eventlog.SessionRow, _ event.RunID, l *life) { l.kill() }, "completed", []event.Type{event.TypeRunCompleted}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, _ := staged(t, []step{row.first, say("done")}, denied, slow)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				l := h.begin(h.eng, s.ID)
				<-time.After(time.Second)
				row.stop(h, s, id, l)
				l.ring()
				synctest.Wait()
				l.kill()
				h.drive(h.other("gen_2", denied, slow), s.ID)
				h.status(id, row.status)
				var got []event.Type
				events := h.events(s.ID.Stream())
				for _, e := range events {
					switch e.Type {
					case event.TypeToolRejected, event.TypeInterruptRequested, event.TypeCancelRequested, event.TypeToolInterrupted,
						event.TypeRunCompleted, event.TypeRunInterrupted, event.TypeRunCancelled, event.TypeRunFailed:
						got = append(got, e.Type)
					}
				}
				if !slices.Equal(got, row.want) || denied.runs() != 0 {
					t.Errorf("recorded %v, want %v", got, row.want)
				}
				settled(t, events)
				h.verify()
			})
		})
	}
}

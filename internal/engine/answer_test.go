package engine_test

import (
	"bytes"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const contractT = `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},` +
	`"tags":{"type":"array","items":{"type":"string"}}},"required":["status","count"],"additionalProperties":false}`

func typed(schema string, budget *int) *api.CreateSession {
	return &api.CreateSession{
		OutputContract: &api.OutputContract{Schema: api.Raw(schema), MaxRepairAttempts: budget},
		ReplyTargets:   []api.ReplyTarget{{Type: "webhook", URL: "http://receiver.test/"}},
	}
}

// C12, I-09: model calls are 1 + min(budget, 5), over restarts too; nothing is
// delivered.
func TestRepairBudget(t *testing.T) {
	for _, row := range []struct {
		budget  *int
		calls   int
		restart bool
	}{{nil, 4, false}, {ptr(0), 1, false}, {ptr(2), 3, false}, {ptr(5), 6, false}, {ptr(50), 6, false}, {nil, 4, true}} {
		t.Run(fmt.Sprint(row.calls, row.restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, p := staged(t, []step{after(time.Second, say(`{"status":"ok"}`))})
				defer h.close()
				s := h.session(typed(contractT, row.budget))
				id := h.submit(s, "go")
				if row.restart { // in the third call: its attempt is abandoned and made anew
					l := h.begin(h.eng, s.ID)
					<-time.After(2500 * time.Millisecond)
					l.kill()
					row.calls++
				}
				h.drive(h.other("gen_2"), s.ID)
				h.status(id, "failed")
				n := len(all[*event.RepairRequested](h, s.ID))
				want := fmt.Sprintf("structured output contract unsatisfied after %d repair attempts: $.count: missing required field", n)
				if run := h.run(id); p.asked() != row.calls || run.ErrorMessage != want || run.OutputSeq != 0 {
					t.Errorf("asked %d times: %s", p.asked(), run.ErrorMessage)
				}
				if pending, _ := h.store.PendingTargets(t.Context()); len(pending) != 0 || len(all[*event.OutputEmitted](h, s.ID)) != 0 {
					t.Error("a wrong answer goes out")
				}
				for i, req := range p.reqs {
					if (req.Repair > 0) != (i > 0) || req.NoTools != (i > 0) || req.SerialTools != (i > 0) || req.Turn != 1 || string(req.Output) == "" {
						t.Errorf("request %d: %+v", i, req)
					}
				}
			})
		})
	}
}

// A repaired answer is the output, canonical, and later runs are shown neither
// the wrong one nor the request to repair it.
func TestRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, p := staged(t, []step{say("soon"), say("```json\n{ \"status\":\"ok\",\"count\": 3 ,\"tags\":null}\n```"), say(`{"count":4,"status":"ok"}`)})
		defer h.close()
		s := h.session(typed(contractT, nil))
		id, next := h.submit(s, "go"), h.submit(s, "again")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		h.status(next, "completed")
		if out := all[*event.OutputEmitted](h, s.ID)[0]; string(out.StructuredOutput) != `{"count":3,"status":"ok"}` {
			t.Errorf("output %s", out.StructuredOutput)
		}
		repair := p.reqs[1].Messages[len(p.reqs[1].Messages)-1].Parts[0].Text
		for _, part := range []string{"$: ", `"additionalProperties":false`, "only the corrected JSON"} {
			if !strings.Contains(repair, part) {
				t.Errorf("the request to repair lacks %q: %s", part, repair)
			}
		}
		if text := fmt.Sprint(p.reqs[2].Messages); strings.Contains(text, "soon") || strings.Contains(text, "corrected JSON") || !strings.Contains(text, "```json") {
			t.Errorf("the next run is shown %s", text)
		}
		h.verify()
	})
}

// C14: a tool call on a repair turn does not run and counts as one wrong answer.
func TestCallOnARepairTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("delete_all", tool.Write, gives("gone"))
		h, p := staged(t, []step{say("no json"), call("delete_all", "{}"), say(`{"count":1,"status":"ok"}`)}, f)
		defer h.close()
		s := h.session(typed(contractT, ptr(2)))
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		if repairs := all[*event.RepairRequested](h, s.ID); f.runs() != 0 || p.asked() != 3 || len(repairs) != 2 {
			t.Errorf("ran %d, asked %d, repairs %+v", f.runs(), p.asked(), repairs)
		}
	})
}

// I-10: on the last turn no tool runs, whatever the model asks for.
func TestLastTurn(t *testing.T) {
	for _, row := range []struct {
		turns  int
		last   step
		status string
		runs   int
	}{
		{1, call("act", "{}"), "failed", 0}, {2, call("act", "{}"), "failed", 1}, {2, say("done"), "completed", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake("act", tool.Write, gives("done"))
			h, p := staged(t, []step{call("act", "{}"), row.last}, f)
			defer h.close()
			s := h.session(&api.CreateSession{MaxTurns: row.turns})
			id := h.submit(s, "go")
			h.drive(h.eng, s.ID)
			h.status(id, row.status)
			if f.runs() != row.runs || p.asked() != row.turns || !p.reqs[row.turns-1].NoTools || row.turns > 1 && p.reqs[0].NoTools {
				t.Errorf("%+v: ran %d, asked %d", row, f.runs(), p.asked())
			}
			for _, d := range all[*event.ToolRejected](h, s.ID) {
				if d.Message != "Tools are disabled after the maximum agent steps" {
					t.Errorf("rejected with %q", d.Message)
				}
			}
		})
	}
}

// The contract in force at the start is pinned, over pauses and changes (I-08).
func TestContractIsPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := staged(t, []step{after(time.Minute, say("no")), say(`{"count":1,"status":"ok"}`), say("plain")})
		defer h.close()
		s := h.session(typed(contractT, nil))
		id, next := h.submit(s, "1"), h.submit(s, "2")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		change, err := h.adm.SetOutputContract(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.adm.Update(t.Context(), admission.Caller{}, s.ID, change); err != nil {
			t.Fatal(err)
		}
		l.kill()
		h.drive(h.other("gen_2"), s.ID)
		h.status(id, "completed")
		h.status(next, "completed")
		out := all[*event.OutputEmitted](h, s.ID)
		if out[0].OutputKind != event.OutputStructured || out[1].OutputKind != event.OutputText {
			t.Errorf("outputs %+v %+v", out[0], out[1])
		}
	})
}

// Past 16 KiB inputs, answers and outputs stand by reference; what is told and
// sent is the same text.
func TestLargeValuesByReference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("lang ", 8<<10) // 40 KiB
		answer := `{"count":1,"status":"` + long + `"}`
		h, p := staged(t, []step{say("wrong" + long), say(answer), say(answer)})
		defer h.close()
		s := h.session(typed(contractT, nil))
		id := h.submit(s, long)
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		next := h.submit(s, "and now")
		h.drive(h.other("gen_2"), s.ID) // from the log alone
		h.status(next, "completed")
		for _, e := range h.events(s.ID.Stream()) {
			if len(e.Raw) > 16<<10 {
				t.Errorf("%s stores %d bytes in place", e.Type, len(e.Raw))
			}
		}
		out := all[*event.OutputEmitted](h, s.ID)[0]
		blob, _, err := h.store.Blob(t.Context(), s.ID, out.Content.Ref)
		if err != nil || string(blob) != answer || out.StructuredOutput != nil || out.Content.Bytes != len(answer) {
			t.Errorf("output %+v: %v, %d bytes", out, err, len(blob))
		}
		row, err := h.store.Delivery(t.Context(), out.Targets[0].DeliveryID)
		if err != nil {
			t.Fatal(err)
		}
		body, _, err := h.store.Blob(t.Context(), s.ID, row.Body)
		if err != nil || !bytes.Contains(body, []byte(`"structured_output":`+answer)) {
			t.Errorf("the delivery lacks the answer: %v, %d bytes", err, len(body))
		}
		if got := p.reqs[2].Messages; got[0].Parts[0].Text != long || got[1].Parts[0].Text != answer {
			t.Error("the next run is shown another text")
		}
		h.verify()
	})
}

// A provider's state goes back byte for byte to its maker, over a restart, and
// stands in no event (I-17, I-33).
func TestReasoningState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := []byte("sealed \x00\xff bytes")
		think := parts(
			llm.Part{Kind: llm.ReasoningStart}, llm.Part{Kind: llm.ReasoningDelta, Text: "hidden thoughts"}, llm.Part{Kind: llm.ReasoningEnd, State: state},
			llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "look", Text: "{}"}, llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
		f := newFake("look", tool.Read, gives("seen"))
		h, p := staged(t, []step{think, after(time.Minute, say("done"))}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		sub := h.hub.Subscribe(s.ID.Stream())
		defer sub.Close()
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		l.kill()
		h.drive(h.other("gen_2", f), s.ID)
		h.status(id, "completed")
		for _, n := range []int{1, 2} {
			c := p.reqs[n].Messages[1].Parts[0]
			if c.Kind != llm.Reasoning || !bytes.Equal(c.State, state) || c.Maker != "scripted/scripted" || c.Text != "" {
				t.Errorf("request %d gives back %+v", n, c)
			}
		}
		for _, e := range h.events(s.ID.Stream()) {
			if bytes.Contains(e.Raw, []byte("sealed ")) || bytes.Contains(e.Raw, []byte("hidden")) {
				t.Errorf("%s holds it: %s", e.Type, e.Raw)
			}
		}
		d := all[*event.ReasoningEnded](h, s.ID)[0]
		if _, kind, err := h.store.Blob(t.Context(), s.ID, d.State); err != nil || kind != event.BlobSealed {
			t.Errorf("the state is a %s blob (%v)", kind, err)
		}
		h.verify()
	})
}

// Deltas are live only: they are in no log, reach who listens, and hold up
// nobody who does not read (I-17).
func TestDeltas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var long []llm.Part
		long = append(long, llm.Part{Kind: llm.TextStart})
		for range 1000 {
			long = append(long, llm.Part{Kind: llm.TextDelta, Text: "word "})
		}
		long = append(long, llm.Part{Kind: llm.TextEnd}, llm.Part{Kind: llm.ToolInputStart, Index: 1, Name: "look"},
			llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "look", Text: "{}"}, llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
		h, _ := staged(t, []step{parts(long...), say("done")}, newFake("look", tool.Read, gives("seen")))
		defer h.close()
		s := h.session(&api.CreateSession{})
		deaf := h.hub.Subscribe(s.ID.Stream()) // never reads
		defer deaf.Close()
		elsewhere := h.hub.Subscribe("session:ses_other")
		defer elsewhere.Close()
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		var deltas []*live.Delta
		for d := deaf.Delta(); d != nil; d = deaf.Delta() {
			deltas = append(deltas, d)
		}
		if n := len(deltas); n != live.DeltaBuffer || elsewhere.Delta() != nil {
			t.Fatalf("%d deltas wait", n)
		}
		if d := deltas[0]; d.Type != event.LiveTextDelta || d.Text != "word " || d.RunID != string(id) || d.Attempt != 1 || d.StepID == "" {
			t.Errorf("delta %+v", d.Delta)
		}
		began := map[string]event.Event{} // attempts by their steps
		for _, e := range h.events(s.ID.Stream()) {
			if e.Type == event.TypeModelCallStarted {
				began[string(e.StepID)] = e
			}
		}
		for i, d := range deltas {
			start := began[d.StepID]
			if d.After != start.Seq || d.Epoch != start.Epoch || d.Epoch == 0 {
				t.Fatalf("delta %+v of the attempt that began with %d", d.Delta, start.Seq)
			}
			if i > 0 && deltas[i-1].StepID == d.StepID && d.Number != deltas[i-1].Number+1 || i > 0 && deltas[i-1].StepID != d.StepID && d.Number != 1 {
				t.Fatalf("delta %d follows %d", d.Number, deltas[i-1].Number)
			}
		}
		for _, typ := range h.types(s.ID) {
			if strings.HasSuffix(typ, ".delta") {
				t.Errorf("%s is in the log", typ)
			}
		}
		if d := all[*event.TextEnded](h, s.ID)[0]; d.Content.Text != strings.Repeat("word ", 1000) {
			t.Error("the ended event lacks the full value")
		}
	})
}

// Parts that come interleaved stand in the order of the answer.
func TestInterleavedParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("act", tool.Read, gives("seen"))
		h, p := staged(t, []step{parts(
			llm.Part{Kind: llm.ToolInputStart, Index: 2, Name: "act"}, llm.Part{Kind: llm.TextStart, Index: 0}, llm.Part{Kind: llm.ToolInputStart, Index: 1, Name: "act"},
			llm.Part{Kind: llm.ToolInputDelta, Index: 2, Text: `{"n":`}, llm.Part{Kind: llm.TextDelta, Index: 0, Text: "first"},
			llm.Part{Kind: llm.ToolCallWhole, Index: 2, Name: "act", Text: `{"n":2}`}, llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "act", Text: `{"n":1}`},
			llm.Part{Kind: llm.TextEnd, Index: 0}, llm.Part{Kind: llm.Finish, Reason: llm.FinishTools}), say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		h.submit(s, "go")
		h.drive(h.eng, s.ID)
		var got []string
		for _, c := range p.reqs[1].Messages[1].Parts {
			got = append(got, c.Text)
		}
		if !slices.Equal(got, []string{"first", `{"n":1}`, `{"n":2}`}) {
			t.Errorf("the answer is told as %q", got)
		}
	})
}

// States of every kind of part go back byte for byte in their places, over a
// pause and a restart in it (C38, C40); they stand in no event (I-17, I-33).
func TestStatesOfParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := func(i int) []byte { return fmt.Appendf(nil, "sealed \x00 %d", i) }
		pause := parts(
			llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: "I search."}, llm.Part{Kind: llm.TextEnd, State: state(0)},
			llm.Part{Kind: llm.HostedCall, Index: 1, Name: "web_search", WireID: "srv_1", Text: `{"q":1}`, State: state(1)},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishPause, Raw: "pause_turn"})
		goOn := parts(
			llm.Part{Kind: llm.HostedResult, WireID: "srv_1", Text: "2 hits", State: state(2)},
			llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "look", Text: "{}", State: state(3)},
			llm.Part{Kind: llm.ToolCallWhole, Index: 2, Name: "look", Text: "{}"},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
		f := newFake("look", tool.Read, gives("seen"))
		h, p := staged(t, []step{pause, after(time.Minute, goOn), goOn, say("done")}, f)
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		l := h.begin(h.eng, s.ID)
		synctest.Wait()
		l.kill() // in the attempt that follows the pause
		h.drive(h.other("gen_2", f), s.ID)
		h.status(id, "completed")
		if len(p.reqs) != 4 || !p.reqs[1].Continues || !p.reqs[2].Continues || p.reqs[3].Continues {
			t.Fatalf("%d requests", len(p.reqs))
		}
		told := func(req *llm.Request) (got string) {
			for _, c := range req.Messages[1].Parts {
				got += fmt.Sprintf("%s %q %s|", c.Kind, c.State, c.Maker)
			}
			return got
		}
		kept := `text "sealed \x00 0" scripted/scripted|hosted "sealed \x00 1" scripted/scripted|`
		whole := kept + `hosted "sealed \x00 2" scripted/scripted|tool_call "sealed \x00 3" scripted/scripted|tool_call "" |`
		for i, want := range []string{1: kept, 2: kept, 3: whole} {
			if want != "" && told(p.reqs[i]) != want {
				t.Errorf("request %d gives back\n%s, want\n%s", i, told(p.reqs[i]), want)
			}
		}
		for _, e := range h.events(s.ID.Stream()) {
			if bytes.Contains(e.Raw, []byte("sealed ")) {
				t.Errorf("%s holds it: %s", e.Type, e.Raw)
			}
		}
		done := all[*event.ToolCompleted](h, s.ID)
		if len(done) != 3 || done[0].Output.Text != "2 hits" {
			t.Errorf("calls ended: %+v", done)
		}
		h.verify()
	})
}

// Files of requests under way are bounded in memory: what would be more waits
// until another attempt is over.
func TestFilesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := after(time.Minute, say("seen"))
		h, p := staged(t, []step{slow, slow, slow})
		defer h.close()
		noTools, err := tool.NewSet()
		if err != nil {
			t.Fatal(err)
		}
		eng := engine.New(engine.Config{
			Log: h.store, Hub: &h.hub, Tools: noTools, Node: "gen_1", Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
			Model:     func(event.Route) (llm.Model, error) { return strict{t, h.model}, nil },
			FileBytes: 10,
		})
		var ids []event.RunID
		var lives []*life
		begin := time.Now()
		for range 3 {
			s := h.session(&api.CreateSession{})
			id, _, err := h.adm.Submit(t.Context(), admission.Caller{}, s, &api.SubmitRun{InputItems: []api.InputItem{{Type: "inline_asset", Data: "c2l4IGJ5", Name: "a"}}}, "")
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			lives = append(lives, h.begin(eng, s.ID))
		}
		time.Sleep(10 * time.Minute)
		for i, l := range lives {
			l.drain()
			h.status(ids[i], "completed")
		}
		if n := len(p.reqs); n != 3 {
			t.Errorf("%d requests", n)
		}
		ended := time.Time{}
		for _, id := range ids {
			if at, err := event.ParseTime(h.run(id).FinishedAt); err != nil {
				t.Fatal(err)
			} else if at.After(ended) {
				ended = at
			}
		}
		if took := ended.Sub(begin); took < 3*time.Minute {
			t.Errorf("requests with files of six bytes each were under way at once: all took %s", took)
		}
		h.verify()
	})
}

// A hosted call may wait for calls that run here: its result comes in a later
// step. The record has ended it by then (I-12); the provider gets both back.
func TestHostedResultAfterOurCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := parts(
			llm.Part{Kind: llm.HostedCall, Name: "code_execution", WireID: "srv_1", State: []byte("sealed call")},
			llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "look", Text: "{}"},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})
		result := parts(
			llm.Part{Kind: llm.HostedResult, WireID: "srv_1", State: []byte("sealed result")},
			llm.Part{Kind: llm.TextStart, Index: 1}, llm.Part{Kind: llm.TextDelta, Index: 1, Text: "done"}, llm.Part{Kind: llm.TextEnd, Index: 1},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishStop})
		h, p := staged(t, []step{code, result, say("again")}, newFake("look", tool.Read, gives("seen")))
		defer h.close()
		s := h.session(&api.CreateSession{})
		id := h.submit(s, "go")
		h.drive(h.eng, s.ID)
		h.status(id, "completed")
		h.submit(s, "more")
		h.drive(h.eng, s.ID)
		var got []string
		for _, m := range p.reqs[2].Messages {
			for _, c := range m.Parts {
				if c.State != nil {
					got = append(got, string(c.State))
				}
			}
		}
		if !slices.Equal(got, []string{"sealed call", "sealed result"}) {
			t.Errorf("the provider gets back %q", got)
		}
		h.verify()
	})
}

// What is not told leaves nothing behind: a text of which nothing came but its
// state. A result whose call stands in an earlier answer, which is shown, is
// kept for its provider, whichever of them it belongs to.
func TestStatesOfWhatIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := staged(t, []step{parts(
			llm.Part{Kind: llm.HostedCall, Name: "search", WireID: "srv_1", State: []byte("sealed call")},
			llm.Part{Kind: llm.TextStart, Index: 1}, llm.Part{Kind: llm.TextDelta, Index: 1, Text: "first"}, llm.Part{Kind: llm.TextEnd, Index: 1},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishStop}), parts(
			llm.Part{Kind: llm.HostedResult, WireID: "nobody's", State: []byte("sealed 0")},
			llm.Part{Kind: llm.TextStart, Index: 1}, llm.Part{Kind: llm.TextEnd, Index: 1, State: []byte("sealed 1")},
			llm.Part{Kind: llm.TextStart, Index: 2}, llm.Part{Kind: llm.TextDelta, Index: 2, Text: "done"}, llm.Part{Kind: llm.TextEnd, Index: 2},
			llm.Part{Kind: llm.Finish, Reason: llm.FinishStop})})
		defer h.close()
		s := h.session(&api.CreateSession{})
		for _, text := range []string{"go", "go on"} {
			id := h.submit(s, text)
			h.drive(h.eng, s.ID)
			h.status(id, "completed")
		}
		h.verify()
	})
}

package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"pgregory.net/rapid"
)

// openStep is a state with an open attempt.
func openStep(bytes int) *session.State {
	return &session.State{ID: "ses_1", UserID: "ann", Active: &session.Run{
		Queued: session.Queued{ID: "run_1", Created: &event.RunCreated{Route: event.Route{Provider: "scripted", Model: "m"}}}, Usage: &llm.Usage{},
		Step: &session.Step{ID: "step_1_1", Number: 1, Attempt: session.Attempt{Number: 1, Open: true}, Bytes: bytes},
	}}
}

// collected gives the parts of a stream to a collector, as an adapter would that
// goes on whatever it is told; taken counts those that were not refused.
func collected(cfg Config, st *session.State, earlier bool, list []llm.Part) (c *collector, taken int, first error) {
	c = newCollector(&drive{e: New(cfg), id: st.ID}, actKey{}, st)
	c.earlier = earlier
	for _, p := range list {
		err := c.part(p)
		if first == nil {
			first = err
		}
		if err == nil {
			taken++
		}
	}
	c.close()
	return c, taken, first
}

// Each way of breaking the order of a stream is refused, with a code of its own
// and never to be tried again; the order that vendors keep is taken.
func TestOrderOfParts(t *testing.T) {
	text := func(i int) []llm.Part {
		return []llm.Part{{Kind: llm.TextStart, Index: i}, {Kind: llm.TextDelta, Index: i, Text: "x"}, {Kind: llm.TextEnd, Index: i}}
	}
	input := llm.Part{Kind: llm.ToolInputStart, Index: 1, Name: "look"}
	whole := llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "look", Text: "{}"}
	call := llm.Part{Kind: llm.HostedCall, Index: 2, Name: "search", WireID: "a"}
	result := llm.Part{Kind: llm.HostedResult, Index: 3, WireID: "a"}
	end := llm.Part{Kind: llm.Finish, Reason: llm.FinishStop}
	renamed, unnamed := whole, input
	renamed.Name, unnamed.Name = "wipe", ""
	join := func(lists ...[]llm.Part) (out []llm.Part) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	one := func(p ...llm.Part) []llm.Part { return p }
	for name, row := range map[string]struct {
		parts   []llm.Part
		earlier bool
		code    string
	}{
		"text, calls, results":                 {parts: join(text(0), one(input, whole, call, result, end))},
		"a call in one piece":                  {parts: one(whole, end)},
		"a name that comes late":               {parts: one(unnamed, whole, end)},
		"usage anywhere":                       {parts: join(one(llm.Part{Kind: llm.UsagePart}), text(0), one(llm.Part{Kind: llm.UsagePart}, end))},
		"text that the finish ends":            {parts: join(text(0)[:2], one(end))},
		"half a call, filtered":                {parts: one(input, llm.Part{Kind: llm.Finish, Reason: llm.FinishFilter})},
		"a result of an earlier answer":        {parts: one(result, end), earlier: true},
		"a second finish":                      {parts: join(text(0), one(end, end)), code: "second_finish"},
		"text after the finish":                {parts: join(one(end), text(0)), code: "part_after_finish"},
		"usage after the finish":               {parts: one(end, llm.Part{Kind: llm.UsagePart}), code: "part_after_finish"},
		"two texts with one index":             {parts: join(text(0), text(0), one(end)), code: "reused_index"},
		"a text and a call with one index":     {parts: join(text(1), one(whole, end)), code: "reused_index"},
		"a call twice":                         {parts: one(whole, whole, end), code: "reused_index"},
		"a delta of no part":                   {parts: one(llm.Part{Kind: llm.TextDelta, Index: 7, Text: "x"}, end), code: "stray_piece"},
		"a delta after the end":                {parts: join(text(0), text(0)[1:2], one(end)), code: "stray_piece"},
		"a delta of another kind":              {parts: one(input, llm.Part{Kind: llm.TextDelta, Index: 1, Text: "x"}, end), code: "stray_piece"},
		"arguments after the call":             {parts: one(whole, llm.Part{Kind: llm.ToolInputDelta, Index: 1, Text: "x"}, end), code: "stray_piece"},
		"an end of no part":                    {parts: one(llm.Part{Kind: llm.ReasoningEnd}, end), code: "stray_piece"},
		"an end twice":                         {parts: join(text(0), text(0)[2:], one(end)), code: "stray_piece"},
		"another tool":                         {parts: one(input, renamed, end), code: "renamed_call"},
		"no tool any more":                     {parts: one(input, llm.Part{Kind: llm.ToolCallWhole, Index: 1, Text: "{}"}, end), code: "renamed_call"},
		"half a call":                          {parts: one(input, end), code: "open_call"},
		"a result without a call":              {parts: one(result, end), code: "result_before_call"},
		"a result before its call":             {parts: one(result, call, end), earlier: true, code: "result_before_call"},
		"a kind that there is not":             {parts: one(llm.Part{Kind: "odd"}, end), code: "unknown_part"},
		"what is refused stays so for the end": {parts: one(llm.Part{Kind: llm.TextDelta, Index: 7}, whole, end), code: "stray_piece"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := collected(Config{}, openStep(0), row.earlier, row.parts)
			if row.code == "" {
				if err != nil || c.answer.Finish == "" {
					t.Fatalf("%v, finish %q", err, c.answer.Finish)
				}
				return
			}
			e := llm.AsError(err)
			if e.Class != llm.Protocol || e.Code != row.code || e.Class.Retryable() || e.Message == "" {
				t.Fatalf("%+v", e)
			}
			if !errors.Is(c.refused(), err) {
				t.Errorf("an adapter that goes on ends with %v", c.refused())
			}
			for _, p := range c.answer.Parts {
				if row.code == "stray_piece" && p.Kind == llm.ToolCallWhole && p.Index == 1 && row.parts[0].Index == 7 {
					t.Error("a part was taken behind what was refused")
				}
			}
		})
	}
}

// Whatever comes in whatever order: nothing panics, what was open has ended
// (I-19), what is recorded is what came and no more, and an answer that broke
// its order is none.
func TestCollectorTakesAnything(t *testing.T) {
	kinds := []llm.PartKind{
		llm.TextStart, llm.TextDelta, llm.TextDelta, llm.TextEnd, llm.ReasoningStart, llm.ReasoningDelta, llm.ReasoningEnd, llm.ToolInputStart,
		llm.ToolInputDelta, llm.ToolCallWhole, llm.HostedCall, llm.HostedResult, llm.UsagePart, llm.Finish, "odd",
	}
	rapid.Check(t, func(t *rapid.T) {
		var list []llm.Part
		for i := range rapid.IntRange(0, 20).Draw(t, "parts") {
			list = append(list, llm.Part{
				Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Index: rapid.IntRange(-1, 4).Draw(t, "index"),
				Text: fmt.Sprintf("%d;", i), Name: rapid.SampledFrom([]string{"", "look", "wipe"}).Draw(t, "name"),
				WireID: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "wire"), State: rapid.SliceOfN(rapid.Byte(), 0, 2).Draw(t, "state"),
			})
		}
		st := openStep(0)
		c, taken, first := collected(Config{MaxAnswer: rapid.SampledFrom([]int{30, 1000}).Draw(t, "limit")}, st, rapid.Bool().Draw(t, "earlier"), list)
		if err := c.part(llm.Part{Kind: llm.TextStart, Index: 99}); err == nil {
			t.Fatal("a closed collector takes a part")
		}
		came := map[int]string{} // by index: the deltas, until a whole value
		kind := map[int]llm.PartKind{}
		for _, p := range list[:taken] {
			switch p.Kind {
			case llm.TextStart, llm.ReasoningStart, llm.ToolInputStart:
				kind[p.Index] = p.Kind
			case llm.TextDelta, llm.ToolInputDelta:
				came[p.Index] += p.Text
			case llm.ToolCallWhole, llm.HostedCall, llm.HostedResult:
				came[p.Index], kind[p.Index] = p.Text, p.Kind
			}
		}
		if len(kind) != len(c.answer.Parts) {
			t.Fatalf("%d parts came, %d are kept", len(kind), len(c.answer.Parts))
		}
		last := -2
		for _, p := range c.answer.Parts {
			if p.Text != came[p.Index] || p.Index <= last {
				t.Fatalf("part %d is %q, came %q", p.Index, p.Text, came[p.Index])
			}
			last = p.Index
		}
		told := map[int]string{}
		var events []event.Event
		if whole := first == nil && c.answer.Finish != ""; whole {
			events = session.Answered(st, &c.answer)
		} else {
			events = session.Failed(st, &c.answer, llm.AsError(first), time.Time{}, 0)
		}
		for i := range events {
			switch d := events[i].Data.(type) {
			case *event.TextEnded:
				if d.Partial == (first == nil && c.answer.Finish != "") {
					t.Fatalf("a text of this answer is partial: %v", d.Partial)
				}
				told[d.Part] = d.Content.Text
			case *event.ToolInputEnded:
				told[d.Part] = d.Content.Text
			case *event.ToolRequested:
				if first != nil {
					t.Fatal("I-13: a call of a broken answer is asked for")
				}
				told[d.Part] = came[d.Part]
			}
		}
		for _, p := range c.answer.Parts {
			if p.Kind != llm.ReasoningEnd && p.Kind != llm.HostedResult && told[p.Index] != p.Text {
				t.Fatalf("I-19: part %d, %q, is told as %q", p.Index, p.Text, told[p.Index])
			}
		}
	})
}

// The bound of an answer counts what came before the pauses of its step.
func TestAnswerIsBoundedOverPauses(t *testing.T) {
	text := []llm.Part{{Kind: llm.TextStart}, {Kind: llm.TextDelta, Text: "0123456789"}, {Kind: llm.Finish, Reason: llm.FinishStop}}
	for before, fits := range map[int]bool{0: true, 5: true, 6: false} {
		c, _, err := collected(Config{MaxAnswer: 15}, openStep(before), false, text)
		if (err == nil) != fits || fits && c.answer.Bytes != before+10 {
			t.Errorf("%d bytes before: %v, %d", before, err, c.answer.Bytes)
		}
	}
}

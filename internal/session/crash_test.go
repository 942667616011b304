package session_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"pgregory.net/rapid"
)

// outside is what a run meets: a model that calls tools, answers wrong and
// then right, and tools that count what they did.
type outside struct {
	*world
	check   checker
	effects map[event.CallID]int
	appends int
	crashAt int // after this append the process dies
}

func (o *outside) died() bool {
	o.appends++
	if o.appends != o.crashAt {
		return false
	}
	o.crash()
	return true
}

// outcome does one act and records it, unless the process dies in between:
// between the act and its record, or right behind the record.
func (o *outside) outcome(a session.Action) {
	var events []event.Event
	switch a := a.(type) {
	case session.CallModel:
		st := o.s.Active.Step
		answer := &session.Answer{Finish: llm.FinishStop, Parts: []session.OutputPart{{Kind: llm.TextEnd, Text: `{"n":1}`}}}
		switch {
		case st.Number == 1:
			answer = &session.Answer{Finish: llm.FinishTools}
			for i, name := range []string{"look", "charge", "pay", "note"} {
				answer.Parts = append(answer.Parts, session.OutputPart{Kind: llm.ToolCallWhole, Index: i, Name: name, Text: "{}"})
			}
		case st.Repair == 0:
			answer.Parts[0].Text = "soon"
		}
		events = session.Answered(o.s, answer)
	case session.RunTool:
		o.effects[a.Call]++
		events = session.ToolEnded(o.s, a.Call, &session.ToolOutcome{Output: event.TextContent("done")}, clockOfTests, 0)
	}
	if o.died() {
		return
	}
	o.append(events...)
	o.died()
}

// live brings the run to its end; a person settles what is in doubt.
func (o *outside) live(t *testing.T) {
	for range 200 {
		var act session.Action
		switch acts := session.Next(o.s); {
		case len(acts) > 0:
			act = acts[0]
		case o.s.Active == nil:
			return
		default:
			for _, c := range o.s.Active.Step.Calls {
				if c.InDoubt {
					e := command("run_1", &event.AttentionResolved{Resolution: event.ResolveCompleted, Output: event.TextContent("seen")})
					e.CallID = c.ID
					o.append(e)
				}
			}
			continue
		}
		if a, ok := act.(session.Append); ok {
			o.append(a.Events...)
			o.died()
			continue
		}
		o.outcome(act)
	}
	t.Fatal("the run does not come to its end")
}

// C45: the process dies at every append and between every act and its record.
// The run always comes to its answer, with one repair (C12), and no effect
// happens twice but under its idempotency key.
func TestACrashAtEveryAppend(t *testing.T) {
	for crash := 0; ; crash++ {
		o := &outside{world: newWorld(t), check: newChecker(), effects: map[event.CallID]int{}, crashAt: crash}
		o.create(event.Settings{OutputContract: &event.OutputContract{
			Schema: []byte(`{"additionalProperties":false,"properties":{"n":{"type":"number"}},"required":["n"],"type":"object"}`),
		}})
		o.submit("run_1", "Go.", nil)
		o.live(t)
		at := fmt.Sprintf("crash after append %d", crash)
		var output, repairs int
		for i := range o.log {
			switch d := o.log[i].Data.(type) {
			case *event.OutputEmitted:
				output++
				if string(d.StructuredOutput) != `{"n":1}` {
					t.Errorf("%s: the answer is %s", at, o.log[i].Raw)
				}
			case *event.RepairRequested:
				repairs++
			}
		}
		for _, r := range o.tables["runs"] {
			if output != 1 || repairs != 1 || r["status"] != session.StatusCompleted {
				t.Errorf("%s: %d answers, %d repairs, the run is %s", at, output, repairs, r["status"])
			}
		}
		for id, n := range o.effects {
			for _, e := range o.log {
				if d, ok := e.Data.(*event.ToolRequested); ok && e.CallID == id && n > 1 && d.Name != "look" && d.Name != "pay" {
					t.Errorf("%s: %s ran %d times", at, d.Name, n)
				}
			}
		}
		if !sameState(o.s, o.refold()) {
			t.Errorf("%s: the log read anew gives another state", at)
		}
		for i := range o.log {
			o.check.event(t, &o.log[i])
		}
		if o.appends < crash {
			return // the run was over before
		}
	}
}

// A log that these rules cannot have written is refused or folded, but never
// brings the process down.
func TestApplyNeverPanics(t *testing.T) {
	types := event.Types()
	rapid.Check(t, func(t *rapid.T) {
		s := &session.State{}
		for i := range rapid.IntRange(1, 60).Draw(t, "events") {
			d, _, _ := event.New(rapid.SampledFrom(types).Draw(t, "type"))
			if order := []event.Type{event.TypeSessionCreated, event.TypeRunCreated, event.TypeRunStarted, event.TypeStepStarted}; i < len(order) {
				d, _, _ = event.New(order[i])
			}
			switch d := d.(type) {
			case *event.AttentionResolved:
				d.Resolution = event.Resolution(rapid.SampledFrom([]string{"completed", "retry", "else"}).Draw(t, "word"))
			case *event.ToolRequested:
				d.Original = event.CallID(rapid.SampledFrom([]string{"", "c1", "c2"}).Draw(t, "original"))
			case *event.ToolInterrupted:
				d.Outcome = session.OutcomeUnknown
			}
			e := event.Event{
				Seq: s.Head + 1, Epoch: s.Epoch, SessionID: sessionID, UserID: user, Data: d,
				RunID:  event.RunID(rapid.SampledFrom([]string{"run_1", "run_1", "run_1", "run_2"}).Draw(t, "run")),
				StepID: event.StepID(rapid.SampledFrom([]string{"s1", "s1", "s1", "s2"}).Draw(t, "step")),
				CallID: event.CallID(rapid.SampledFrom([]string{"", "c1", "c2"}).Draw(t, "call")),
			}
			if err := s.Apply(&e); err == nil {
				s.Clone().HasOpenActs()
			}
		}
	})
}

package session

import (
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// verify is the completion boundary: an answer without calls becomes the
// output, is repaired, or fails the run. No answer that breaks a pinned
// contract passes (I-09).
func (s *State) verify() []Action {
	r, st := s.Active, s.Active.Step
	// text is all that the model said; last what it said after its last hosted call.
	var text, last strings.Builder
	for _, p := range append(st.Kept[:len(st.Kept):len(st.Kept)], st.inOrder(st.Attempt.Number)...) {
		switch {
		case p.Kind == ItemHosted:
			last.Reset()
		case p.Kind != ItemText:
		case p.Content.Ref != "":
			return []Action{Resolve{Ref: p.Content.Ref}}
		default:
			if last.Len() == 0 && text.Len() > 0 && p.Content.Text != "" {
				text.WriteString("\n\n") // a hosted call stood between
			}
			text.WriteString(p.Content.Text)
			last.WriteString(p.Content.Text)
		}
	}
	w := newScript(s)
	w.enter(PhaseVerifying)
	if st.Finish == llm.FinishFilter { // no wrong answer but none: a repair cannot help
		w.endStep(st)
		w.fail("model_"+string(llm.ContentFilter), "the model's content filter stopped the answer")
		return decide(w)
	}
	if r.Contract == nil {
		w.endStep(st)
		switch {
		case st.Finish == llm.FinishLength:
			w.fail("output_limit", "the model's output limit cut the answer")
		case text.Len() == 0:
			w.fail("empty_answer", "the model gave an empty answer")
		default:
			s.complete(w, &event.OutputEmitted{Content: event.Content{Text: text.String()}, OutputKind: event.OutputText})
		}
		return decide(w)
	}
	verdict := &event.ContractChecked{Gate: "output"}
	var value canonjson.Value
	if st.Finish == llm.FinishLength { // also where what came happens to be valid
		verdict.Error = "$: the output limit cut the answer"
	} else {
		var err error
		if value, err = r.Contract.Schema.Check(text.String()); err != nil && last.Len() < text.Len() {
			// Words that led up to a search are no part of the answer.
			value, err = r.Contract.Schema.Check(last.String())
		}
		if err != nil {
			verdict.Error = err.Error()
		}
	}
	verdict.OK = verdict.Error == ""
	w.add(verdict)
	w.endStep(st)
	if !verdict.OK {
		s.wrong(w, verdict.Error)
		return decide(w)
	}
	s.complete(w, structured(value))
	return decide(w)
}

func structured(value canonjson.Value) *event.OutputEmitted {
	d := &event.OutputEmitted{OutputKind: event.OutputStructured}
	if len(value) > event.InlineLimit {
		d.Content = event.Content{Text: string(value)}
	} else {
		d.StructuredOutput = value
	}
	return d
}

func (w *script) endStep(st *Step) {
	w.add(&event.StepEnded{Finish: string(st.Finish), MessageID: messageID(st.ID), Usage: TokenUsage(st.Usage)})
}

// wrong spends one repair, or fails the run when the budget is spent (I-09).
func (s *State) wrong(w *script, why string) {
	r := s.Active
	if r.Contract == nil || r.Repairs >= r.Contract.Budget {
		w.fail("output_contract_unsatisfied",
			"structured output contract unsatisfied after "+strconv.Itoa(r.Repairs)+" repair attempts: "+why)
		return
	}
	w.add(&event.RepairRequested{Attempt: r.Repairs + 1, Budget: r.Contract.Budget, Error: why})
	w.nextStep(r.Repairs + 1)
}

// complete emits the output and ends the run in the same append (I-24).
func (s *State) complete(w *script, out *event.OutputEmitted) {
	r := s.Active
	for i := range r.Created.ReplyTargets {
		id := r.Created.ReplyTargets[i].ID(s.UserID)
		if slices.ContainsFunc(out.Targets, func(x event.TargetRef) bool { return x.TargetID == id }) {
			continue // one receiver named twice is told once
		}
		out.Targets = append(out.Targets, event.TargetRef{TargetID: id, DeliveryID: event.DeliveryIDFor(r.ID, id, 0)})
	}
	w.step = ""
	w.add(out)
	w.enter(PhaseMemory)
	w.enter(PhaseCompleted)
	w.add(&event.RunCompleted{Totals: r.totals()})
}

// fail ends the run without an answer.
func (w *script) fail(code, message string) {
	w.step = ""
	w.enter(PhaseFailed)
	w.add(&event.RunFailed{Code: code, Message: message, Totals: w.s.Active.totals()})
}

func (r *Run) totals() event.Totals {
	return event.Totals{Repairs: r.Repairs, Steps: r.Steps, Tools: r.ToolCalls, Turns: r.Turn, Usage: TokenUsage(r.Usage)}
}

// stopRun ends a run whose stop was asked for: what is in flight is aborted
// and awaited, what a former owner left is closed, then the run ends.
func (s *State) stopRun() []Action {
	r, st := s.Active, s.Active.Step
	w := newScript(s)
	if st != nil {
		if st.Attempt.Open && st.Attempt.Epoch == s.Epoch {
			return []Action{Abort{}}
		}
		for _, c := range st.Calls {
			if c.State == CallStarted && c.Epoch == s.Epoch {
				return []Action{Abort{}}
			}
		}
		if st.Attempt.Open {
			w.failAbandoned()
		}
		for _, c := range st.Calls {
			if c.State == CallDone {
				continue
			}
			if c.Hosted {
				w.failHosted([]event.CallID{c.ID})
				continue
			}
			d := &event.ToolInterrupted{Message: TextInterrupted, Reason: "the run was stopped"}
			if (c.State == CallStarted || c.State == CallPlanned) && effect(c) {
				d.Outcome = OutcomeUnknown
			}
			w.about(c.ID, d)
		}
		w.add(&event.StepFailed{Class: string(llm.Aborted), Message: TextTurnInterrupted})
	}
	w.step = ""
	w.enter(PhaseCancelled)
	if r.Stop.Interrupt {
		w.add(&event.RunInterrupted{Reason: r.Stop.Reason, Totals: r.totals()})
	} else {
		w.add(&event.RunCancelled{Reason: r.Stop.Reason, Totals: r.totals()})
	}
	return decide(w)
}

// Resolve puts a text in the place of its reference in the open step.
func (s *State) Resolve(ref, text string) {
	if s.Active == nil || s.Active.Step == nil {
		return
	}
	st := s.Active.Step
	for _, list := range []*[]Item{&st.Parts, &st.Kept} {
		*list = slices.Clone(*list) // a clone of the state shares them
		for i := range *list {
			if p := &(*list)[i]; p.Content.Ref == ref {
				p.Content = event.Content{Text: text, Replaced: p.Content.Replaced}
			}
		}
	}
}

// RepairText is what the model reads on a repair turn: the first mismatch, the
// schema that is checked, and what to send.
func RepairText(problem string, schema *contract.Schema) string {
	return "Your last answer does not meet the required schema.\n\nError: " + problem +
		"\n\nSchema:\n" + string(schema.Render()) + "\n\nSend only the corrected JSON."
}

package session

import (
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Refused ends the active run, or where none is active the first that waits,
// because the log refuses for good what follows from the state. What it tells
// is ours to the last word: what came of the acts is what could not be written.
// A call that may have had its effect is closed as of an unknown outcome, since
// the record of its start or of its end may be what was refused. Of a session
// without unfinished runs there is nothing to end.
func Refused(s *State, why string) []event.Event {
	message := "the log refuses what the run came to, and would refuse it again: " + why
	r := s.Active
	compaction := s.refusedCompaction(message)
	if r == nil && compaction != nil {
		return compaction
	}
	if r == nil {
		if len(s.Queue) == 0 {
			return nil
		}
		w := &script{s: s, run: s.Queue[0].ID, phase: PhaseFailed}
		w.add(&event.RunFailed{Code: CodeRefused, Message: message})
		return w.out
	}
	w := newScript(s)
	w.out = compaction
	if st := r.Step; st != nil {
		if st.Attempt.Open {
			w.add(&event.ModelCallFailed{Attempt: st.Attempt.Number, Class: string(llm.Aborted), Message: message})
		}
		for _, c := range st.Calls { // I-12
			switch {
			case c.State == CallDone:
			case c.Hosted:
				w.failHosted([]event.CallID{c.ID})
			default:
				d := &event.ToolInterrupted{Message: TextInterrupted, Reason: "the log refused what came of the run"}
				if effect(c) {
					d.Outcome = OutcomeUnknown
				}
				w.about(c.ID, d)
			}
		}
		w.add(&event.StepFailed{Class: string(llm.Aborted), Message: message})
	}
	w.fail(CodeRefused, message)
	return w.out
}

// refusedCompaction ends the compaction under way, or one that was asked for.
func (s *State) refusedCompaction(message string) []event.Event {
	c := s.Window.Open
	switch {
	case c != nil:
		w := s.compactionScript()
		if c.Attempt.Open {
			w.add(&event.ModelCallFailed{Attempt: c.Attempt.Number, Class: string(llm.Aborted), Message: message})
		}
		w.failCompaction(CodeRefused, message)
		return w.out
	case s.Active == nil && s.Window.Asked != nil:
		w := &script{s: s, step: s.Window.Asked.ID}
		w.add(&event.CompactionFailed{Code: CodeRefused, Message: message, Reason: event.CompactManual})
		return w.out
	}
	return nil
}

// CodeRefused is the code of a run that Refused ended.
const CodeRefused = "log_refused"

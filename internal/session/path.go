package session

import (
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// The places of the default process path.
const (
	PhaseIdle        = "Idle"
	PhaseInitialized = "RunInitialized"
	PhaseContext     = "ContextBuilt"
	PhaseReasoning   = "Reasoning"
	PhaseAction      = "ActionSelected"
	PhasePolicy      = "PolicyChecked"
	PhaseActing      = "Acting"
	PhaseObserved    = "ObservationRecorded"
	PhaseVerifying   = "Verifying"
	PhaseMemory      = "MemorySync"
	PhaseCompleted   = "Completed"
	PhaseReview      = "HumanReview"
	PhaseFailed      = "Failed"
	PhaseCancelled   = "Cancelled"
)

// Fixed texts that a record needs.
const (
	TextInterrupted     = "Tool execution interrupted"
	TextTurnInterrupted = "Provider turn interrupted"
	TextToolsDisabled   = "Tools are disabled after the maximum agent steps"
	TextRepairNoTools   = "Tools are disabled while an answer is corrected"
	// TextUnknown follows TextInterrupted in what the model is told of a call in doubt.
	TextUnknown = "; outcome unknown: it may have taken effect"
	// TextNoHostedResult is the outcome of a hosted call whose result never came.
	TextNoHostedResult = "Provider did not return a tool result"
	TextCutByLimit     = "The output limit cut this call before it was whole; it did not run"
)

// Notes to the model behind the conversation of the open step. They stand there
// for one request and are no part of any later one.
const (
	// NoteLastStep is for the last allowed step.
	NoteLastStep = "[This is the last step of this task. Tools are disabled: a call would not run. Give the final answer now, with what is known " +
		"so far, in the form that was asked for. Where it has room, say what was done and what is left to do.]"
	// NoteCut follows what an attempt had said before its stream was cut.
	NoteCut = "[Your message broke off here, before it was whole. No tool call of it was carried out, and its text is not taken as the answer. " +
		"Go on with the task. Do not repeat work that this conversation shows as done, and write your answer whole, from its beginning.]"
)

// Notes that stand in a later run's context in the place of an answer.
const (
	NoteFailed  = "[This task ended without an answer.]"
	NoteStopped = "[This task was stopped before it was done. Do not take it up again unless asked.]"
)

// SourceHosted marks a call that the provider runs itself.
const SourceHosted = "hosted"

// OutcomeUnknown marks a call that had started and whose effect nobody knows.
const OutcomeUnknown = "unknown"

func failedText(message string) string { return "Tool execution failed: " + message }

// script collects the events of one decision or outcome, with the envelope
// that the run's place gives them.
type script struct {
	s     *State
	run   event.RunID
	turn  int
	step  event.StepID
	phase string
	out   []event.Event
}

// newScript starts where the active run stands.
func newScript(s *State) *script {
	w := &script{s: s}
	if r := s.Active; r != nil {
		w.run, w.turn, w.phase = r.ID, r.Turn, r.Phase
		if r.Step != nil {
			w.step = r.Step.ID
		}
	}
	return w
}

func (w *script) add(d event.Data) { w.about("", d) }

func (w *script) about(call event.CallID, d event.Data) {
	if w.out == nil {
		w.out = make([]event.Event, 0, 8) // what most have
	}
	w.out = append(w.out, event.Event{
		SessionID: w.s.ID, UserID: w.s.UserID, RunID: w.run, Turn: w.turn, StepID: w.step,
		CallID: call, FSMState: w.phase, Data: d,
	})
}

// enter moves along the process path.
func (w *script) enter(phase string) {
	from := w.phase
	w.phase = phase
	w.add(&event.StateEntered{From: from})
}

// suffix is the run's id without its prefix; step and call ids are made of it,
// so that a step that is told again has the same ids (I-13).
func suffix(id event.RunID) string { return strings.TrimPrefix(string(id), "run_") }

func stepID(run event.RunID, number int) event.StepID {
	return event.StepID("step_" + suffix(run) + "_" + strconv.Itoa(number))
}

// messageID names the assistant message of a step.
func messageID(step event.StepID) string {
	return "msg_" + strings.TrimPrefix(string(step), "step_")
}

// CallIDAt is the id of the call at a position of a step's attempt.
func CallIDAt(step event.StepID, attempt, part int) event.CallID {
	return event.CallID("call_" + strings.TrimPrefix(string(step), "step_") + "_" + strconv.Itoa(attempt) + "_" + strconv.Itoa(part))
}

// retryID is the id under which a person's retry of a call runs.
func retryID(id event.CallID) event.CallID { return id + "_r" }

// StepOfCall gives the step of a call from the call's id.
func StepOfCall(id event.CallID) event.StepID {
	body, ok := strings.CutPrefix(string(id), "call_")
	if !ok {
		return ""
	}
	parts := strings.Split(body, "_")
	if len(parts) < 2 {
		return ""
	}
	return event.StepID("step_" + parts[0] + "_" + parts[1])
}

package session

import (
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/policy"
)

// Action is what a state asks for: one of Append, CallModel, RunTool,
// CaptureFiles, Abort, Resolve.
type Action interface{ action() }

// Append is a decision: these events follow from the state. NotBefore delays
// it to an absolute time (see event.FormatTime); empty: now.
type Append struct {
	NotBefore string
	Events    []event.Event
}

// CallModel runs the attempt whose start is recorded.
type CallModel struct {
	Run     event.RunID
	Step    event.StepID
	Attempt int
}

// RunTool runs the call whose start is recorded.
type RunTool struct {
	Call    event.CallID
	Attempt int
}

// Abort stops what is in flight of the active run; the outcomes are awaited.
type Abort struct{}

// Resolve asks for the text of a reference that a decision needs: hand it to
// State.Resolve.
type Resolve struct{ Ref string }

func (Append) action()    {}
func (CallModel) action() {}
func (RunTool) action()   {}
func (Abort) action()     {}
func (Resolve) action()   {}

// AtRest says that a session asks for nothing, and that it has no run that is not at
// its end: also none that waits for a person, behind which others queue up. One that
// was erased is not at rest: nothing begins there any more.
func (s *State) AtRest() bool { return s.Status != Erased && s.Active == nil && Next(s) == nil }

// Next says what the state asks for. An Append stands alone and comes first:
// the engine folds it and asks again. The same state gives the same actions.
func Next(s *State) []Action {
	if s.Status == Erased {
		return nil
	}
	if evs := s.cancelQueued(); evs != nil {
		return []Action{Append{Events: evs}}
	}
	if s.Window.Open != nil {
		return s.compacting()
	}
	r := s.Active
	if r == nil && s.Window.Asked != nil {
		return s.askedCompaction()
	}
	if r == nil {
		if len(s.Queue) == 0 {
			return nil
		}
		return []Action{Append{Events: s.startRun()}}
	}
	if r.Stop != nil {
		return s.stopRun()
	}
	if r.Waiting {
		return s.afterWaiting()
	}
	st := r.Step
	switch {
	case st == nil:
		w := newScript(s)
		if !s.beginCompaction(w, event.CompactAuto) {
			w.nextStep(0)
		}
		return decide(w)
	case st.Whole:
		return s.settle()
	case st.Attempt.Open && st.Attempt.Epoch == s.Epoch:
		return []Action{CallModel{Run: r.ID, Step: st.ID, Attempt: st.Attempt.Number}}
	case st.Attempt.Open:
		return decide(s.abandon())
	case st.RetryAt != "":
		w := newScript(s)
		w.startAttempt(st.Attempt.Number + 1)
		return []Action{Append{NotBefore: st.RetryAt, Events: w.out}}
	case st.Paused:
		w := newScript(s)
		message := st.pausedTooMuch()
		if message == "" {
			w.startAttempt(st.Attempt.Number + 1)
			return decide(w)
		}
		w.closeHosted(st)
		w.add(&event.StepFailed{Class: string(llm.UnknownClass), Message: message})
		w.fail("model_paused", message)
		return decide(w)
	case st.Failed != nil:
		w := newScript(s)
		message := st.Failed.Message
		switch {
		case st.overflow() && s.overflowed(w):
			return decide(w)
		case st.overflow() && s.Window.Fresh:
			message = TextOverflowAgain
		}
		w.closeHosted(st)
		w.add(&event.StepFailed{Class: st.Failed.Class, Message: message})
		w.fail("model_"+st.Failed.Class, message)
		return decide(w)
	case st.Compacted:
		w := newScript(s)
		w.startAttempt(st.Attempt.Number + 1)
		return decide(w)
	default: // an attempt that ended without an outcome: these rules cannot have written that
		w := newScript(s)
		message := "the log holds an attempt that ended without an outcome"
		w.add(&event.StepFailed{Class: string(llm.UnknownClass), Message: message})
		w.fail("log_inconsistent", message)
		return decide(w)
	}
}

// pausedTooMuch says why the provider is not asked to go on after another pause.
func (st *Step) pausedTooMuch() string {
	switch {
	case st.Pauses > MaxPauses:
		return "the provider paused more than " + strconv.Itoa(MaxPauses) + " times in one step"
	case len(st.openHosted()) > MaxOpenHosted:
		return "the provider left more than " + strconv.Itoa(MaxOpenHosted) + " calls of its own open"
	}
	return ""
}

func decide(w *script) []Action { return []Action{Append{Events: w.out}} }

// cancelQueued ends the queued runs whose cancel was asked for.
func (s *State) cancelQueued() []event.Event {
	var out []event.Event
	for _, q := range s.Queue {
		if q.Stop != nil {
			w := &script{s: s, run: q.ID, phase: PhaseCancelled}
			w.add(&event.RunCancelled{Reason: q.Stop.Reason})
			out = append(out, w.out...)
		}
	}
	return out
}

// startRun starts the run at the head of the queue (I-06), with the output
// contract in force now (I-08).
func (s *State) startRun() []event.Event {
	q := s.Queue[0]
	w := &script{s: s, run: q.ID, phase: PhaseIdle}
	started := &event.RunStarted{}
	if s.outputContract != nil {
		out := contract.Output{Schema: s.outputContract, MaxRepairAttempts: s.Settings.OutputContract.MaxRepairAttempts}
		started.OutputContract = &event.PinnedContract{
			Digest: s.outputContract.Digest(), MaxRepairAttempts: out.Budget(), Schema: s.outputContract.Render(),
		}
	}
	w.add(started)
	w.enter(PhaseInitialized)
	w.add(s.contextOf(q))
	w.enter(PhaseContext)
	if s.full(q.Created, q.tokens()) { // the window is compacted before the first step
		return w.out
	}
	w.enter(PhaseReasoning)
	w.beginStep(q.Created, 1, 1, 0)
	return w.out
}

// contextOf records what the model is shown of earlier runs.
func (s *State) contextOf(q *Queued) *event.ContextBuilt {
	d := &event.ContextBuilt{
		Budget: s.historyLimit(), Items: s.shown + len(q.Created.Input), Omitted: s.omitted, Tools: len(q.Created.Tools),
	}
	if len(s.history) > 0 {
		d.FromSeq = s.history[0].seq
	}
	if s.Window.Summary != nil {
		d.Summary = s.Window.Summary.Number
	}
	return d
}

// nextStep begins the next turn, or a repair of the answer.
func (w *script) nextStep(repair int) {
	r := w.s.Active
	turn := r.Turn
	if repair == 0 {
		turn++
	}
	w.enter(PhaseReasoning)
	w.beginStep(r.Created, r.Steps+1, turn, repair)
}

func (w *script) beginStep(c *event.RunCreated, number, turn, repair int) {
	w.turn, w.step = turn, stepID(w.run, number)
	noTools := repair > 0 || turn >= c.MaxTurns // I-10
	w.add(&event.StepStarted{Number: number, NoTools: noTools, Repair: repair})
	w.add(&event.ModelCallStarted{Attempt: 1, Model: c.Route.Model, Provider: c.Route.Provider, Route: c.Route.Name})
}

func (w *script) startAttempt(number int) {
	c := w.s.Active.Created
	w.add(&event.ModelCallStarted{Attempt: number, Model: c.Route.Model, Provider: c.Route.Provider, Route: c.Route.Name})
}

// abandon closes an attempt of a former owner and begins another.
func (s *State) abandon() *script {
	w := newScript(s)
	st := s.Active.Step
	w.failAbandoned()
	if st.Abandoned+1 >= MaxAbandoned {
		message := "the daemon ended " + strconv.Itoa(MaxAbandoned) + " times in this step"
		w.closeHosted(st)
		w.add(&event.StepFailed{Class: string(llm.Abandoned), Message: message})
		w.fail("recovery_exhausted", message)
		return w
	}
	w.startAttempt(st.Attempt.Number + 1)
	return w
}

func (w *script) failAbandoned() {
	w.add(&event.ModelCallFailed{
		Attempt: w.s.Active.Step.Attempt.Number, Class: string(llm.Abandoned),
		Message: "the owner of this attempt ended before its outcome was recorded",
	})
}

// settle goes on from a whole answer: calls first, each to its terminal (I-12),
// then the next turn; an answer without calls is verified.
func (s *State) settle() []Action {
	st := s.Active.Step
	if !st.local() {
		return s.verify()
	}
	w := newScript(s)
	if s.sweepDoubt(w) || s.checkCalls(w) {
		return decide(w)
	}
	var acts []Action
	capture := false // of the workspace, before what waits for that
	for i, c := range st.Calls {
		if c.State == CallStarted {
			acts = append(acts, RunTool{Call: c.ID, Attempt: c.Attempt})
		}
		capture = capture || c.State == CallAllowed && !s.behind(i) && s.awaitsFiles(c)
	}
	if capture {
		acts = append(acts, CaptureFiles{Step: st.ID})
	}
	if acts != nil {
		return acts
	}
	if c := nextPlanned(st.Calls); c != nil {
		w.about(c.ID, &event.ToolRetrying{Attempt: c.Attempt, Reason: "as planned"})
		return []Action{Append{NotBefore: c.RetryAt, Events: w.out}}
	}
	if s.Active.Created.OnDoubt != event.DoubtContinue {
		if open := unsettled(st.Calls); open != nil {
			w.enter(PhaseReview)
			w.add(&event.NeedsAttention{Calls: open})
			return decide(w)
		}
	}
	if s.wantsFiles() {
		return []Action{CaptureFiles{Step: st.ID, After: true}}
	}
	s.closeTurn(w)
	return decide(w)
}

// closeTurn ends a step all of whose calls are terminal, and goes on.
func (s *State) closeTurn(w *script) {
	r, st := s.Active, s.Active.Step
	if w.phase != PhaseObserved {
		w.enter(PhaseObserved)
	}
	w.add(s.ended(st))
	switch {
	case st.Repair > 0: // calls on a repair turn: the reply counts as one wrong answer
		s.wrong(w, "$: the answer calls a tool instead of giving the corrected JSON")
	case st.NoTools:
		// Calls on the last turn do not make another one (I-10). What text came
		// with them is not an answer either: the model was not done.
		w.fail("max_turns_exceeded", "the model still called tools on the last of "+strconv.Itoa(r.Created.MaxTurns)+" turns")
	default:
		w.nextTurn()
	}
}

// checkCalls decides on the calls that nobody decided on yet, and starts as many
// of those that may run as have a place. It says whether it added anything.
func (s *State) checkCalls(w *script) bool {
	r, st := s.Active, s.Active.Step
	var start []*Call
	room := r.parallelTools()
	for _, c := range st.Calls {
		if c.State == CallStarted {
			room--
		}
	}
	for i, c := range st.Calls {
		allowed := c.State == CallAllowed || c.State == CallRequested && s.allow(w, c)
		if allowed && !s.behind(i) && !s.awaitsFiles(c) {
			start = append(start, c)
		}
	}
	// What has no place yet stays allowed: a start without an act behind it
	// would be in doubt after a crash.
	start = start[:max(0, min(room, len(start)))]
	if len(start) > 0 && w.phase == PhasePolicy {
		w.enter(PhaseActing)
	}
	recorded := false
	for _, c := range start {
		d := &event.ToolStarted{Level: c.Level, Name: c.Name}
		if !recorded {
			d.Snapshot = s.filesBefore(c)
			recorded = d.Snapshot != nil
		}
		w.about(c.ID, d)
	}
	return len(w.out) > 0
}

// behind says whether a call has to wait for one before it. Calls that change
// the workspace build on each other: they run in the order of the answer, one
// after the other, and none on top of one that nobody knows the outcome of.
// Those that are to start now count as not done yet.
func (s *State) behind(i int) bool {
	r, calls := s.Active, s.Active.Step.Calls
	changes := func(c *Call) bool {
		t := r.tool(c.Name)
		return t != nil && t.Confined && effect(c)
	}
	if !changes(calls[i]) {
		return false
	}
	place := calls[i] // of the call that a person's retry answers
	for place.Original != "" {
		place = s.call(place.Original)
	}
	for _, e := range calls {
		if e == place {
			return false
		}
		if e.Original != "" || !changes(e) {
			continue
		}
		last := answerOf(calls, e)
		if last.State != CallDone || last.InDoubt && last.Resolution == "" && r.Created.OnDoubt != event.DoubtContinue {
			return true
		}
	}
	return false
}

// allow decides on a call that nobody decided on yet, and rejects it where the
// answer is no.
func (s *State) allow(w *script, c *Call) bool {
	if w.phase == PhaseAction {
		w.enter(PhasePolicy)
	}
	if by, why := refusal(s.Active.Step, c); why != "" {
		w.about(c.ID, &event.PolicyChecked{Decision: policy.Reject, Reason: why, Rule: by})
		w.about(c.ID, &event.ToolRejected{By: by, Message: why})
		return false
	}
	d := policy.Check(c.Name, s.Active.Created.Tools)
	w.about(c.ID, &event.PolicyChecked{Decision: d.Word(), Reason: d.Reason, Rule: d.Rule})
	if !d.Allowed {
		w.about(c.ID, &event.ToolRejected{By: "policy", Message: d.Reason})
	}
	return d.Allowed
}

func (r *Run) parallelTools() int {
	if r.Created.ParallelTools > 0 {
		return r.Created.ParallelTools
	}
	return DefaultParallelTools
}

// refusal says why a call cannot run whatever the policy says.
func refusal(st *Step, c *Call) (by, why string) {
	switch {
	case st.Repair > 0:
		return "limit", TextRepairNoTools
	case st.NoTools:
		return "limit", TextToolsDisabled
	case st.Finish == llm.FinishLength:
		return "input", TextCutByLimit
	case c.Malformed != "":
		return "input", "The call did not run. Its arguments were refused: " + c.Malformed
	}
	return "", ""
}

// sweepDoubt settles the calls that a former owner started: what may be
// repeated starts again, the rest is in doubt.
func (s *State) sweepDoubt(w *script) bool {
	found := false
	for _, c := range s.Active.Step.Calls {
		if c.State != CallStarted || c.Epoch == s.Epoch {
			continue
		}
		found = true
		switch {
		case !repeatable(c):
			w.about(c.ID, &event.ToolInterrupted{Message: TextInterrupted, Outcome: OutcomeUnknown, Reason: "the daemon ended before the outcome was recorded"})
		case c.Attempt >= MaxAbandoned: // perhaps it is the call that ends the daemon
			d := &event.ToolInterrupted{Message: TextInterrupted, Reason: "the daemon ended " + strconv.Itoa(MaxAbandoned) + " times in this call"}
			if effect(c) {
				d.Outcome = OutcomeUnknown
			}
			w.about(c.ID, d)
		default:
			w.about(c.ID, &event.ToolRetrying{Attempt: c.Attempt + 1, Reason: "its owner ended before the outcome was recorded"})
		}
	}
	return found
}

func effect(c *Call) bool { return c.Level != "none" && c.Level != "read" }

func repeatable(c *Call) bool { return !effect(c) || c.Idempotent }

// nextPlanned gives the call whose planned start comes first.
func nextPlanned(calls []*Call) *Call {
	var first *Call
	for _, c := range calls {
		if c.State == CallPlanned && (first == nil || c.RetryAt < first.RetryAt) {
			first = c
		}
	}
	return first
}

// unsettled lists the calls in doubt that no person has settled yet.
func unsettled(calls []*Call) []event.DoubtCall {
	var open []event.DoubtCall
	for _, c := range calls {
		if c.InDoubt && c.Resolution == "" {
			open = append(open, event.DoubtCall{CallID: c.ID, Name: c.Name, Reason: c.Reason})
		}
	}
	return open
}

// afterWaiting goes on when every call in doubt has a person's word; a retry
// begins under a new id, whose result answers the original call.
func (s *State) afterWaiting() []Action {
	st := s.Active.Step
	if unsettled(st.Calls) != nil {
		return nil
	}
	w := newScript(s)
	w.add(&event.RunResumed{})
	for _, c := range st.Calls {
		if c.Resolution != event.ResolveRetry || answerOf(st.Calls, c) != c {
			continue
		}
		if w.phase != PhaseActing {
			w.enter(PhaseActing)
		}
		id := retryID(c.ID)
		w.about(id, &event.ToolRequested{
			Arguments: c.Arguments, Large: c.Large, Level: c.Level, MessageID: messageID(st.ID), Name: c.Name, Original: c.ID, Part: c.Part, Source: "person",
		})
		w.about(id, &event.PolicyChecked{Decision: policy.Allow, Rule: "person"}) // it starts when it has a place
	}
	return decide(w)
}

package session

import (
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Defaults and bounds of compaction.
const (
	DefaultCompactionBuffer = 20_000 // tokens of the window that stay free
	DefaultCompactionKeep   = 15_000 // tokens of the newest conversation that stay as they are
	// MaxCompactionFailures in a row end automatic compaction until one succeeds
	// or a person asks for one.
	MaxCompactionFailures = 3
	maxReminders          = 1 // further attempts for a summary of the wrong form
	maxShrinks            = 4 // further attempts, each with half the text, where the summary request is too large
	// maxAbandonedSummaries bounds the attempts of a compaction that a crash may cut.
	maxAbandonedSummaries = 5
	// largestBuffer bounds the share of the window that stays free, and that the
	// kept tail may take: one of this many parts.
	largestBuffer = 4
	// leastGain is the least share of a full window that an automatic compaction
	// must be able to take out, one of this many parts: where instructions and
	// tools alone fill the window it would be asked for at each step.
	leastGain = 8
)

// TextOverflowAgain is the failure of a step whose request is too large also
// after the context was compacted for it.
const TextOverflowAgain = "Post-compaction provider attempt cannot recover another overflow"

// Codes of a compaction that failed, beside those of model attempts ("model_"
// and the class).
const (
	CompactionNothing   = "nothing_to_compact"
	CompactionRefused   = "summary_refused" // what came is no summary
	CompactionStopped   = "stopped"         // with the run that it was for
	CompactionExhausted = "recovery_exhausted"
)

// Compacting is the compaction under way.
type Compacting struct {
	ID       event.StepID
	Run      event.RunID // empty: none is active
	Number   int
	Reason   event.CompactionReason
	Route    event.Route
	Entries  int
	TailSeq  int64
	TailStep event.StepID

	Attempt   Attempt
	Failures  int // attempts that broke
	Abandoned int // attempts that a former owner left behind
	Refused   int // answers that are no summary
	Shrunk    int // attempts whose request was too large
	RetryAt   string
	Failed    *event.ModelCallFailed
	Summary   event.Content // once it is checked
}

// Asked is a person's word that the session be compacted.
type Asked struct {
	ID    event.StepID
	Keep  int64
	Route event.Route
}

// beginCompaction begins one for the active run, where it may help: it says
// whether it did. There is one at most for each step.
func (s *State) beginCompaction(w *script, why event.CompactionReason) bool {
	r := s.Active
	plan, limit, step := r.Created.Compaction, fullAt(r.Created), r.Steps
	if r.Step == nil {
		step++
	}
	if plan == nil || !plan.Auto || s.Window.Failures >= MaxCompactionFailures || r.Tried == step {
		return false
	}
	if why == event.CompactAuto && !s.full(r.Created, 0) {
		return false
	}
	at, ok := s.cutAt(keepOf(plan.Keep, r.Created.Route))
	if !ok || why == event.CompactAuto && at.tokens < limit/leastGain {
		return false
	}
	route := r.Created.Route
	if plan.Route != nil {
		route = *plan.Route
	}
	number := s.Window.Started + 1
	w.step = event.StepID("cmp_" + suffix(r.ID) + "_" + strconv.Itoa(number))
	s.startCompaction(w, why, at, route, limit)
	return true
}

func (s *State) startCompaction(w *script, why event.CompactionReason, at cut, route event.Route, limit int64) {
	w.add(&event.CompactionStarted{
		Entries: at.entries, Limit: limit, Number: s.Window.Started + 1, Reason: why, Route: route,
		TailSeq: at.seq, TailStep: at.step, Tokens: s.tokens(),
	})
	w.summaryAttempt(route, 1)
}

func (w *script) summaryAttempt(route event.Route, number int) {
	w.add(&event.ModelCallStarted{Attempt: number, Model: route.Model, Provider: route.Provider, Route: route.Name})
}

// askedCompaction begins what a person asked for, or says that there is nothing to do.
func (s *State) askedCompaction() []Action {
	a := s.Window.Asked
	w := &script{s: s, step: a.ID}
	if at, ok := s.cutAt(keepOf(a.Keep, a.Route)); ok {
		s.startCompaction(w, event.CompactManual, at, a.Route, 0)
	} else {
		w.add(&event.CompactionFailed{
			Code: CompactionNothing, Message: "there is nothing before the newest exchange that a summary could stand for", Reason: event.CompactManual,
		})
	}
	return decide(w)
}

// compactionScript tells what is about the compaction under way.
func (s *State) compactionScript() *script {
	w := newScript(s)
	w.step = s.Window.Open.ID
	return w
}

func (w *script) failCompaction(code, message string) {
	c := w.s.Window.Open
	w.add(&event.CompactionFailed{Code: code, Message: message, Number: c.Number, Reason: c.Reason})
}

// compacting says what the compaction under way asks for.
func (s *State) compacting() []Action {
	c := s.Window.Open
	w := s.compactionScript()
	stopped := s.Active != nil && s.Active.ID == c.Run && s.Active.Stop != nil
	next := func() { w.summaryAttempt(c.Route, c.Attempt.Number+1) }
	switch {
	case c.Attempt.Open && c.Attempt.Epoch == s.Epoch && stopped:
		return []Action{Abort{}}
	case c.Attempt.Open && c.Attempt.Epoch == s.Epoch:
		return []Action{CallModel{Run: c.Run, Step: c.ID, Attempt: c.Attempt.Number}}
	case c.Attempt.Open:
		w.add(&event.ModelCallFailed{
			Attempt: c.Attempt.Number, Class: string(llm.Abandoned), Message: "the owner of this attempt ended before its outcome was recorded",
		})
		switch {
		case stopped:
			w.failCompaction(CompactionStopped, "the run was stopped")
		case c.Abandoned+1 >= maxAbandonedSummaries:
			w.failCompaction(CompactionExhausted, "the daemon ended "+strconv.Itoa(maxAbandonedSummaries)+" times in this compaction")
		default:
			next()
		}
	case stopped:
		w.failCompaction(CompactionStopped, "the run was stopped")
	case c.RetryAt != "":
		next()
		return []Action{Append{NotBefore: c.RetryAt, Events: w.out}}
	case c.Failed != nil && llm.Class(c.Failed.Class) == llm.ContextOverflow && c.Shrunk <= maxShrinks:
		next()
	case c.Failed != nil:
		w.failCompaction("model_"+c.Failed.Class, c.Failed.Message)
	case c.Refused <= maxReminders:
		next()
	default: // the answer that was refused last said so itself
		w.failCompaction(CompactionRefused, "what the model wrote is no summary")
	}
	return decide(w)
}

// overflowed goes on from a request that the provider found too large: once in
// a step, and before any of its output, the context is compacted.
func (s *State) overflowed(w *script) bool {
	st := s.Active.Step
	return !st.Failed.Output && len(st.Kept) == 0 && len(st.Cut) == 0 && s.beginCompaction(w, event.CompactOverflow)
}

// overflow says whether the step ended in a request that was too large.
func (st *Step) overflow() bool {
	return st.Failed != nil && llm.Class(st.Failed.Class) == llm.ContextOverflow
}

// nextTurn begins the next turn, unless the window has to be compacted before:
// that follows from the state as it is then. A repair is never kept waiting: it
// is little, and its request and its step are one append (I-09).
func (w *script) nextTurn() {
	if !w.s.full(w.s.Active.Created, 0) {
		w.nextStep(0)
	}
}

// Summarised tells a whole answer to a summary request as events: the attempt's
// end, and the summary with the window that begins at it where it is one. Text
// alone counts; a call that the model makes all the same is recorded nowhere
// and runs nowhere (I-10).
func Summarised(s *State, a *Answer) []event.Event {
	c := s.Window.Open
	w := s.compactionScript()
	w.add(&event.ModelCallCompleted{
		Attempt: c.Attempt.Number, DurationMS: a.Duration.Milliseconds(), FirstOutputMS: a.FirstOutput.Milliseconds(),
		RawFinish: bounded(a.RawFinish, 64), Usage: TokenUsage(a.Usage),
	})
	text, why, final := summaryOf(a)
	if why != "" {
		if final || c.Refused >= maxReminders {
			w.failCompaction(CompactionRefused, why)
		}
		return w.out
	}
	summary := event.TextContent(text)
	w.add(&event.CompactionEnded{Attempts: c.Attempt.Number, Number: c.Number, Reason: c.Reason, Summary: summary})
	d := &event.ContextCompacted{Entries: c.Entries, Number: c.Number, Reason: c.Reason, TailSeq: c.TailSeq, TailStep: c.TailStep}
	after := s.Clone()
	after.Window.Open.Summary = summary
	after.moveWindow(d)
	d.Tokens = after.tokens()
	w.add(d)
	return w.out
}

// SummaryFailed tells a broken attempt of a summary as events. Nothing of it
// was shown to anyone: it is made again also after output, within the budget.
func SummaryFailed(s *State, a *Answer, e *llm.Error, now time.Time, jitter float64) []event.Event {
	c := s.Window.Open
	w := s.compactionScript()
	d := &event.ModelCallFailed{
		Attempt: c.Attempt.Number, Class: string(e.Class), Code: bounded(e.Code, 64), DurationMS: a.Duration.Milliseconds(),
		Message: bounded(e.Message, 1024), Output: a.hasOutput(), Status: e.Status,
	}
	w.add(d)
	if r := retriesOf(c.Route); e.Class.Retryable() && c.Failures < r.most {
		at := now.Add(r.delay(c.Failures, e.RetryAfter, jitter))
		w.add(&event.RetryScheduled{At: event.FormatTime(at), Attempt: c.Attempt.Number + 1, Class: d.Class})
	}
	return w.out
}

// applyCompaction folds an event about a compaction; false: it is about none.
// What is about a compaction that is not under way changes nothing.
func (s *State) applyCompaction(e *event.Event) bool {
	w := &s.Window
	switch d := e.Data.(type) {
	case *event.CompactionRequested:
		if w.Asked == nil {
			w.Asked = &Asked{ID: e.StepID, Keep: d.Keep, Route: d.Route}
			w.Failures = 0
		}
	case *event.CompactionStarted:
		w.Started = d.Number
		w.Open = &Compacting{
			ID: e.StepID, Run: e.RunID, Number: d.Number, Reason: d.Reason, Route: d.Route,
			Entries: d.Entries, TailSeq: d.TailSeq, TailStep: d.TailStep,
		}
		if r := s.Active; r != nil && r.ID == e.RunID {
			if r.Tried = r.Steps; r.Step == nil {
				r.Tried++
			}
		}
	case *event.CompactionEnded:
		if w.Open != nil && w.Open.ID == e.StepID {
			w.Open.Summary = shrink(d.Summary)
		}
	case *event.ContextCompacted:
		if w.Open == nil || w.Open.ID != e.StepID {
			return true
		}
		s.moveWindow(d)
		if r := s.Active; r != nil && r.Step != nil && d.Reason == event.CompactOverflow {
			r.Step.Compacted, r.Step.Failed = true, nil
			r.Step.Failures-- // it is none of those that a further attempt is bounded by
		}
		s.endCompaction(e.StepID)
	case *event.CompactionFailed:
		if w.Open != nil && w.Open.ID == e.StepID && d.Code != CompactionStopped {
			w.Failures++
		}
		s.endCompaction(e.StepID)
	default:
		if w.Open == nil || w.Open.ID != e.StepID {
			return false
		}
		s.applySummary(e)
	}
	return true
}

func (s *State) endCompaction(id event.StepID) {
	if c := s.Window.Open; c != nil && c.ID == id {
		s.Window.Open = nil
	}
	if a := s.Window.Asked; a != nil && a.ID == id {
		s.Window.Asked = nil
	}
}

// applySummary folds what happens to the attempts of the compaction under way.
// What they use counts for the run.
func (s *State) applySummary(e *event.Event) {
	c := s.Window.Open
	spend := func(u *llm.Usage) {
		if s.Active != nil && s.Active.ID == c.Run {
			s.Active.Usage = s.Active.Usage.Add(u)
		}
	}
	switch d := e.Data.(type) {
	case *event.ModelCallStarted:
		c.Attempt = Attempt{Number: d.Attempt, Epoch: e.Epoch, Open: true}
		c.RetryAt, c.Failed = "", nil
	case *event.ModelCallCompleted:
		if d.Attempt == c.Attempt.Number {
			c.Attempt.Open = false
			c.Refused++ // unless what follows says that it is a summary
			spend(usageOf(d.Usage))
		}
	case *event.ModelCallFailed:
		if d.Attempt != c.Attempt.Number {
			return
		}
		c.Attempt.Open, c.Failed = false, d
		if costs(d) {
			spend(nil)
		}
		switch llm.Class(d.Class) {
		case llm.Abandoned:
			c.Abandoned++
		case llm.ContextOverflow:
			c.Shrunk++
		default:
			c.Failures++
		}
	case *event.RetryScheduled:
		c.RetryAt = d.At
	}
}

// costs says whether a failed attempt may have cost something: refused ones
// cost nothing, of the others nobody knows.
func costs(d *event.ModelCallFailed) bool { return d.Output || d.Status < 400 || d.Status >= 500 }

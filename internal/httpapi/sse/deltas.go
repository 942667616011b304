package sse

import (
	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// sight is what a follower knows of where live deltas belong. Deltas overtake
// the log and fall behind it, the more so when they come from another node: none
// is shown before the start of its attempt, and none after the attempt's end or
// after another owner's claim (I-11).
type sight struct {
	epoch   int64       // the highest that the log has shown
	closed  int64       // sequence of the last event that ended an attempt, or took the session over
	claimed bool        // the owner has changed
	step    string      // of the last event: deltas of this step may be shown
	held    *live.Delta // a delta whose attempt the log has not shown yet
	shown   api.Delta   // the last numbered one, without its text
}

// see takes note of an event that was written, or that is not of the source.
func (s *sight) see(e *event.Event) {
	if e.Epoch > s.epoch {
		s.epoch = e.Epoch
	}
	switch e.Type {
	case event.TypeOwnerClaimed:
		s.claimed = true
		s.closed = e.Seq
	case event.TypeModelCallCompleted, event.TypeModelCallFailed, event.TypeStepEnded, event.TypeStepFailed,
		event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted:
		s.closed = e.Seq
	}
}

// late says that the attempt of a delta is over, or belongs to a former owner.
// What it said is in the log, or will never be.
func (s *sight) late(d *live.Delta) bool {
	return d.Epoch != 0 && d.Epoch < s.epoch || d.After != 0 && d.After < s.closed
}

// next takes the next delta that can still be shown, and holds it; false: there
// is none.
func (f *follower) next() bool {
	for f.held == nil || f.late(f.held) {
		if f.held = f.sub.Delta(); f.held == nil {
			return false
		}
	}
	return true
}

// ahead says that the log has to be read before the held delta is shown.
func (f *follower) ahead() bool { return f.held.StepID != f.step || f.held.After > f.cursor }

// deltasBefore shows the deltas that came before e. They were published before
// e was appended, so that those of this node wait already. Those of a later
// step stay, and none comes before the start of its attempt.
func (f *follower) deltasBefore(e *event.Event) {
	if e.StepID == "" {
		return
	}
	f.step = string(e.StepID)
	if e.Type == event.TypeStepStarted || e.Type == event.TypeModelCallStarted {
		return
	}
	for f.next() && !f.ahead() {
		f.show()
	}
}

// moreDeltas takes what waits of the current attempt, so that one write serves
// for many.
func (f *follower) moreDeltas() {
	for f.waiting() < flushAt && f.next() && !f.ahead() {
		f.show()
	}
	if f.held == nil {
		f.gap(f.sub.Lost())
	}
}

// showHeld shows the delta that waited until the log was read. One that the log
// knows nothing of is no delta of this session.
func (f *follower) showHeld() {
	switch d := f.held; {
	case d == nil:
	case f.late(d):
		f.held = nil
	case d.After > f.cursor:
		f.held = nil
		f.gap(live.Bus)
	default:
		f.step = d.StepID
		f.show()
	}
}

// show writes the held delta: without an id, so that it moves no cursor (I-17).
// What is missing before it is told first.
func (f *follower) show() {
	d := f.held
	f.held = nil
	if f.sub.Quiet() { // it came before the lease was lost
		return
	}
	loss, missing := f.sub.Lost(), int64(0)
	if d.Number != 0 {
		last := &f.shown
		same := last.Epoch == d.Epoch && last.StepID == d.StepID && last.Attempt == d.Attempt
		missing = d.Number - 1
		if same {
			missing -= last.Number
		}
		switch {
		case missing <= 0 || loss != live.None:
		case same:
			loss = live.Bus
		default:
			loss = api.GapLate
		}
		f.shown = d.Delta
		f.shown.Text = ""
	}
	if loss != live.None {
		f.data("gap", api.Gap{Reason: string(loss), RunID: d.RunID, StepID: d.StepID, Attempt: d.Attempt, Missing: missing})
	}
	f.frame(d.Type, -1, d.Wire())
}

// gap tells of a loss after which no delta has come yet.
func (f *follower) gap(loss live.Loss) {
	if loss != live.None {
		f.data("gap", api.Gap{Reason: string(loss)})
	}
}

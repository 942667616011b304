package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// history is the log as the test reads it, by rules of its own: it knows
// nothing of the code that wrote it.
type history struct {
	t        testing.TB
	runs     map[event.RunID]*runHistory
	active   map[event.Stream]event.RunID
	waiting  map[event.Stream][]event.RunID // created and not started, in order
	heads    map[event.Stream]int64
	epochs   map[event.Stream]int64
	sent     map[string]*sendHistory
	enqueued []string
	address  map[string]string // of a delivery: the URL that its run captured
	outputs  map[string]bool   // deliveries that an output named
	met      map[string]int    // what followed from deaths; see recoveries
	erased   map[event.Stream]bool
}

type runHistory struct {
	id        event.RunID
	created   *event.RunCreated
	pinned    *event.PinnedContract
	status    string // of its end; empty: none
	steps     int
	repairs   int
	attempts  int
	scheduled int
	output    string
	partial   bool
	calls     []*callHistory // in order of their requests
	step      event.StepID   // open
	whole     bool           // the step's inference completed
	attempt   bool           // a model attempt is open
	waits     bool
	stopping  bool // its end was asked for
	erased    bool
	types     []event.Type
}

type callHistory struct {
	id, original event.CallID
	name, level  string
	args         string
	policy       bool
	started      bool
	end          event.Type
}

// what names a call as the world sees it.
func (c *callHistory) what() string { return c.name + " " + c.args }

type sendHistory struct {
	run      event.RunID
	attempts int
	open     bool
	end      event.Type
}

// fold reads the whole log and checks the order of things in it.
func fold(t testing.TB, events []event.Event) *history {
	t.Helper()
	h := &history{
		t: t, runs: map[event.RunID]*runHistory{}, active: map[event.Stream]event.RunID{}, waiting: map[event.Stream][]event.RunID{},
		heads: map[event.Stream]int64{}, epochs: map[event.Stream]int64{}, sent: map[string]*sendHistory{},
		address: map[string]string{}, outputs: map[string]bool{}, met: map[string]int{}, erased: map[event.Stream]bool{},
	}
	for i := range events {
		if events[i].Type == event.TypeSessionErased {
			h.erased[events[i].Stream] = true
			h.met["session erased"]++
		}
	}
	for i := range events {
		e := &events[i]
		if e.Seq != h.heads[e.Stream]+1 {
			h.broken(e, "I-01", "follows %d", h.heads[e.Stream])
		}
		if e.Epoch < h.epochs[e.Stream] {
			h.broken(e, "I-15", "epoch %d follows %d", e.Epoch, h.epochs[e.Stream])
		}
		h.heads[e.Stream], h.epochs[e.Stream] = e.Seq, e.Epoch
		if _, ok := e.Stream.Target(); ok {
			h.delivery(e)
		} else if e.RunID != "" && h.erased[e.Stream] {
			h.gone(e)
		} else if e.RunID != "" {
			h.run(e)
		}
	}
	for id, run := range h.runs {
		if run.status == "" {
			t.Errorf("I-05: the run %s has no end", id)
		}
	}
	for id, s := range h.sent {
		if s.end != event.TypeDeliveryDelivered || s.open {
			t.Errorf("I-24: the delivery %s ended with %q (open: %t)", id, s.end, s.open)
		}
		if r := h.runs[s.run]; !h.outputs[id] && (r == nil || !r.erased) {
			t.Errorf("I-24: no output names the delivery %s", id)
		}
	}
	for id := range h.outputs {
		if h.sent[id] == nil {
			t.Errorf("I-24: the delivery %s of an output was never enqueued", id)
		}
	}
	return h
}

func (h *history) broken(e *event.Event, rule, format string, args ...any) {
	h.t.Helper()
	h.t.Errorf(rule+": %s#%d %s of run %s, call %s: "+format, append([]any{e.Stream, e.Seq, e.Type, e.RunID, e.CallID}, args...)...)
}

// gone reads an event of a session that was erased: its content is not there,
// what it was is.
func (h *history) gone(e *event.Event) {
	if !e.Erased() {
		h.broken(e, "I-04", "the content of an erased session is there")
	}
	r := h.runs[e.RunID]
	if r == nil {
		r = &runHistory{id: e.RunID, erased: true}
		h.runs[e.RunID] = r
	}
	r.types = append(r.types, e.Type)
	if !terminalType(string(e.Type)) {
		return
	}
	if r.status != "" {
		h.broken(e, "I-05", "the run is at its end (%s)", r.status)
	}
	r.status = strings.TrimPrefix(string(e.Type), "run.")
}

func (h *history) runByID(id string) *runHistory { return h.runs[event.RunID(id)] }

func (h *history) run(e *event.Event) {
	r := h.runs[e.RunID]
	if d, ok := e.Data.(*event.RunCreated); ok {
		if r != nil {
			h.broken(e, "I-07", "created twice")
			return
		}
		h.runs[e.RunID] = &runHistory{id: e.RunID, created: d}
		h.waiting[e.Stream] = append(h.waiting[e.Stream], e.RunID)
		return
	}
	if r == nil {
		h.broken(e, "I-07", "the run was never created")
		return
	}
	if r.status != "" {
		h.broken(e, "I-05", "the run is at its end (%s)", r.status)
	}
	r.types = append(r.types, e.Type)
	switch d := e.Data.(type) {
	case *event.CancelRequested, *event.InterruptRequested:
		r.stopping = true
		h.met["end asked for"]++
	case *event.RunStarted:
		if h.active[e.Stream] != "" || h.waiting[e.Stream][0] != e.RunID {
			h.broken(e, "I-06", "active %q, queue %v", h.active[e.Stream], h.waiting[e.Stream])
		}
		h.active[e.Stream], h.waiting[e.Stream] = e.RunID, h.waiting[e.Stream][1:]
		r.pinned = d.OutputContract
	case *event.RunCompleted:
		h.end(e, r, "completed")
	case *event.RunFailed:
		h.end(e, r, "failed")
	case *event.RunCancelled:
		h.end(e, r, "cancelled")
	case *event.RunInterrupted:
		h.end(e, r, "interrupted")
	case *event.NeedsAttention:
		r.waits = true
		for _, doubt := range d.Calls {
			if c := r.call(doubt.CallID); c == nil || c.end != event.TypeToolInterrupted {
				h.broken(e, "I-14", "call %s is in no doubt", doubt.CallID)
			}
		}
	case *event.RunResumed:
		if !r.waits {
			h.broken(e, "I-05", "the run did not wait")
		}
		r.waits = false
	case *event.OutputEmitted:
		if r.output != "" {
			h.broken(e, "I-24", "a second output")
		}
		if r.stopping {
			h.broken(e, "C48", "an answer of a run whose end was asked for")
		}
		r.output = d.Content.Text + d.Content.Ref + string(d.StructuredOutput)
		for _, target := range d.Targets {
			h.outputs[string(target.DeliveryID)] = true
		}
	default:
		h.inStep(e, r)
	}
}

func (h *history) end(e *event.Event, r *runHistory, status string) {
	if h.active[e.Stream] == e.RunID {
		h.active[e.Stream] = ""
	} else if i := slices.Index(h.waiting[e.Stream], e.RunID); i >= 0 && status == "cancelled" {
		h.waiting[e.Stream] = slices.Delete(h.waiting[e.Stream], i, i+1)
	} else {
		h.broken(e, "I-06", "the run is not active")
	}
	r.status = status
	stopped := status == "cancelled" || status == "interrupted"
	if stopped != r.stopping {
		h.broken(e, "C48", "its end was asked for: %t", r.stopping)
	}
	if r.attempt || r.step != "" || r.waits && !stopped {
		h.broken(e, "I-12", "step %s is open (attempt: %t, waiting: %t)", r.step, r.attempt, r.waits)
	}
}

func (r *runHistory) call(id event.CallID) *callHistory {
	for _, c := range r.calls {
		if c.id == id {
			return c
		}
	}
	return nil
}

// unsettled gives a call without an end, or nil.
func (r *runHistory) unsettled() *callHistory {
	for _, c := range r.calls {
		if c.end == "" {
			return c
		}
	}
	return nil
}

func (h *history) inStep(e *event.Event, r *runHistory) {
	switch d := e.Data.(type) {
	case *event.StepStarted:
		r.steps++
		if c := r.unsettled(); c != nil || r.step != "" {
			h.broken(e, "I-12", "a step begins while %s and call %+v are open", r.step, c)
		}
		if d.Repair > 0 && (d.Repair != r.repairs || !d.NoTools) {
			h.broken(e, "I-10", "repair %d of %d, without tools: %t", d.Repair, r.repairs, d.NoTools)
		}
		r.step, r.whole = e.StepID, false
	case *event.StepEnded, *event.StepFailed:
		if c := r.unsettled(); c != nil {
			h.broken(e, "I-12", "call %s is open", c.id)
		}
		if r.attempt {
			h.broken(e, "I-19", "a model attempt is open")
		}
		r.step = ""
	case *event.RepairRequested:
		r.repairs++
		if d.Attempt != r.repairs || d.Attempt > d.Budget || d.Budget > 5 {
			h.broken(e, "I-09", "repair %d of %d, the %dth", d.Attempt, d.Budget, r.repairs)
		}
	case *event.ModelCallStarted:
		if r.attempt {
			h.broken(e, "I-19", "the attempt before has no end")
		}
		if r.stopping {
			h.broken(e, "C48", "the end of the run was asked for")
		}
		r.attempt = true
		r.attempts++
	case *event.ModelCallCompleted, *event.ModelCallFailed:
		if f, ok := d.(*event.ModelCallFailed); ok && f.Class == string(llm.Abandoned) {
			h.met["model attempt abandoned"]++
		}
		if !r.attempt {
			h.broken(e, "I-05", "no attempt is open")
		}
		r.attempt = false
	case *event.RetryScheduled:
		r.scheduled++
	case *event.TextEnded:
		r.partial = r.partial || d.Partial
	case *event.InferenceCompleted:
		r.whole = true
	default:
		h.inCall(e, r)
	}
}

func (h *history) inCall(e *event.Event, r *runHistory) {
	c := r.call(e.CallID)
	if d, ok := e.Data.(*event.ToolRequested); ok {
		if c != nil {
			h.broken(e, "I-13", "requested twice")
			return
		}
		r.calls = append(r.calls, &callHistory{id: e.CallID, original: d.Original, name: d.Name, level: d.Level, args: string(d.Arguments) + d.Large.Ref})
		return
	}
	if e.CallID == "" {
		return
	}
	if c == nil {
		h.broken(e, "I-13", "never requested")
		return
	}
	if word, ok := e.Data.(*event.AttentionResolved); ok {
		if word.Resolution == event.ResolveRetry {
			h.met["call retried by a person"]++
		} else {
			h.met["call settled by a person"]++
		}
		return // the one thing that may be said of a call that is at its end
	}
	if c.end != "" {
		h.broken(e, "I-14", "the call is at its end (%s)", c.end)
	}
	switch e.Data.(type) {
	case *event.PolicyChecked:
		c.policy = true
	case *event.ToolStarted:
		if c.started || !c.policy || !r.whole {
			h.broken(e, "I-13", "started: %t, checked: %t, output whole: %t", c.started, c.policy, r.whole)
		}
		if r.stopping {
			h.broken(e, "C48", "the end of the run was asked for")
		}
		c.started = true
	case *event.ToolRetrying:
		if c.level == "read" || c.level == "none" {
			h.met["read repeated"]++
		} else {
			h.met["call repeated under its key"]++
		}
		if !c.started || c.level != "read" && c.level != "none" && c.name != "book" {
			h.broken(e, "I-13", "a call of level %s is repeated", c.level)
		}
	case *event.ToolCompleted, *event.ToolFailed, *event.ToolTimeout, *event.ToolInterrupted, *event.ToolRejected:
		c.end = e.Type
		if d, ok := e.Data.(*event.ToolInterrupted); ok && d.Outcome == "unknown" {
			h.met["call in doubt"]++
		}
	}
}

func (h *history) delivery(e *event.Event) {
	switch d := e.Data.(type) {
	case *event.DeliveryEnqueued:
		id := string(d.DeliveryID)
		if h.sent[id] != nil {
			h.broken(e, "I-24", "enqueued twice")
		}
		h.sent[id] = &sendHistory{run: e.RunID}
		h.enqueued = append(h.enqueued, id)
		if r := h.runs[e.RunID]; r != nil && r.created != nil && len(r.created.ReplyTargets) > 0 {
			h.address[id] = r.created.ReplyTargets[0].URL
		}
	case *event.DeliveryAttemptStarted:
		s := h.sending(e, d.DeliveryID)
		if s.open || d.Attempt != s.attempts+1 {
			h.broken(e, "I-26", "attempt %d after %d (open: %t)", d.Attempt, s.attempts, s.open)
		}
		s.open, s.attempts = true, d.Attempt
	case *event.DeliveryAttemptFailed:
		s := h.sending(e, d.DeliveryID)
		if !s.open || d.Attempt != s.attempts {
			h.broken(e, "I-26", "attempt %d fails after %d (open: %t)", d.Attempt, s.attempts, s.open)
		}
		s.open = false
		if d.Code == "abandoned" {
			h.met["delivery attempt abandoned"]++
		}
	case *event.DeliveryDelivered:
		s := h.sending(e, d.DeliveryID)
		if !s.open {
			h.broken(e, "I-24", "no attempt is open")
		}
		s.open, s.end = false, e.Type
	case *event.DeliveryDeadLettered:
		h.sending(e, d.DeliveryID).end = e.Type
	case *event.DeliveryReplayed:
		h.sending(e, d.DeliveryID).end = ""
	}
}

// sending gives the history of a delivery that is not at its end.
func (h *history) sending(e *event.Event, id event.DeliveryID) *sendHistory {
	s := h.sent[string(id)]
	if s == nil {
		h.broken(e, "I-24", "never enqueued")
		s = &sendHistory{}
		h.sent[string(id)] = s
	}
	if _, replayed := e.Data.(*event.DeliveryReplayed); s.end != "" && !replayed {
		h.broken(e, "I-24", "the delivery is at its end (%s)", s.end)
	}
	return s
}

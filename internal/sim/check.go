// Package sim holds logs to their invariants, event by event, by rules that
// share nothing with the engine. Its tests play seeded histories of the whole
// daemon against them: one to five nodes over one store, in a bubble, one port
// call at a time, with faults, deaths and clients (docs/adr/0016).
package sim

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// Session holds the whole stream of one session, decoded and in order, to the
// invariants of a log. It gives what it found, each with the invariant's name;
// nothing when all hold. A log that ends in the middle of a run is fine.
func Session(events []event.Event) []string {
	l := NewSession()
	for i := range events {
		l.Add(&events[i])
	}
	return l.Found()
}

// Log holds one stream to the invariants, event by event as they come: what an
// event costs does not grow with the stream.
type Log struct {
	c     checker
	lane  *laneChecker // of a target
	job   *jobChecker
	audit bool
}

// New begins with the first event of a stream, of whatever kind it is.
func New(s event.Stream) *Log {
	if s == event.AuditStream {
		return &Log{audit: true}
	}
	if _, ok := s.Target(); ok {
		return NewTarget()
	}
	if _, ok := s.Session(); ok {
		return NewSession()
	}
	if _, ok := s.Job(); ok {
		return NewJob()
	}
	l := &Log{}
	l.c.found = []string{"nothing is known of streams as " + string(s)}
	return l
}

// NewSession begins with the first event of a session.
func NewSession() *Log {
	return &Log{c: checker{
		runs: map[event.RunID]*run{}, calls: map[event.CallID]*call{}, open: map[event.CallID]bool{}, keys: map[string]bool{},
		runSeq: map[int64]event.RunID{}, ended: map[event.RunID]map[event.StepID]bool{},
	}}
}

// NewTarget begins with the first event of a target.
func NewTarget() *Log {
	return &Log{lane: &laneChecker{
		open: map[event.DeliveryID]int{}, attempts: map[event.DeliveryID]int{}, known: map[event.DeliveryID]bool{},
		replays: map[event.DeliveryID]int{},
	}}
}

// Add takes the next event, decoded.
func (l *Log) Add(e *event.Event) {
	c := &l.c
	c.e = e
	c.seq++
	c.must(e.Seq == c.seq, "I-01 sequences are gap-free")
	c.must(e.Hash == e.ChainHash(c.hash), "I-04 each event carries the hash of the one before it")
	c.hash = e.Hash
	if l.audit {
		_, told := e.Data.(event.Audit)
		c.must(told, "the audit stream holds records and nothing else")
		c.must(e.Epoch == 0 && e.UserID == "", "the audit stream is nobody's")
		return
	}
	if l.lane != nil || l.job != nil {
		c.must(e.Epoch >= c.epoch, "I-15 epochs never decrease")
		c.epoch = e.Epoch
		if l.job != nil {
			l.job.event(c)
			return
		}
		l.lane.receiver(c)
		l.lane.event(c)
		return
	}
	c.event()
}

// Found is what was found so far, each with the invariant's name.
func (l *Log) Found() []string { return l.c.found }

type checker struct {
	e      *event.Event
	found  []string
	seq    int64
	hash   event.Digest
	epoch  int64
	runs   map[event.RunID]*run
	queue  []event.RunID
	active event.RunID
	step   *step
	calls  map[event.CallID]*call
	open   map[event.CallID]bool // of the step, not terminal
	keys   map[string]bool
	erased bool

	compaction *compaction
	runSeq     map[int64]event.RunID                 // of run.created
	ended      map[event.RunID]map[event.StepID]bool // steps with all their calls at their end
}

// compaction is the one under way.
type compaction struct {
	id      event.StepID
	started *event.CompactionStarted
	attempt int
	open    bool
	summary bool
}

type run struct {
	created  *event.RunCreated
	contract *event.PinnedContract
	started  bool
	ended    bool
	asked    int // repairs asked for
	repaired int // steps that repair
	turn     int
	output   *event.OutputEmitted
	last     *step // the last that ended
	waiting  bool
}

type step struct {
	id      event.StepID
	started *event.StepStarted
	whole   bool
	attempt int
	open    bool
	text    string // whole parts of the last attempt
	inPlace bool   // text is all of it
}

type call struct {
	level      string
	idempotent bool
	allowed    bool
	starts     int
	done       bool
	inDoubt    bool
	resolved   event.Resolution
}

func (c *checker) must(ok bool, rule string) {
	if !ok && len(c.found) < 20 {
		c.found = append(c.found, fmt.Sprintf("%s: #%d %s %s %s %.300s", rule, c.e.Seq, c.e.Type, c.e.RunID, c.e.CallID, c.e.Raw))
	}
}

func (c *checker) run() *run {
	if r := c.runs[c.e.RunID]; r != nil {
		return r
	}
	c.must(false, "an event of a run that was not created")
	return &run{created: &event.RunCreated{}}
}

func (c *checker) event() {
	e := c.e
	_, claim := e.Data.(*event.OwnerClaimed)
	c.must(e.Epoch >= c.epoch, "I-15 epochs never decrease")
	c.must(claim == (e.Epoch == c.epoch+1) && e.Epoch <= c.epoch+1, "I-11 an epoch begins with its claim and only so")
	c.epoch = e.Epoch
	c.must(!c.erased || claim, "nothing follows an erasure")
	switch d := e.Data.(type) {
	case *event.SessionErased:
		c.must(c.active == "" && len(c.queue) == 0, "a session with work is not erased")
		c.erased = true
	case *event.RunCreated:
		c.must(c.runs[e.RunID] == nil, "a run is created once")
		if k := d.Idempotency; k != nil {
			c.must(!c.keys[k.KeyHash], "I-07 a key has one run")
			c.keys[k.KeyHash] = true
		}
		c.runs[e.RunID] = &run{created: d}
		c.runSeq[e.Seq], c.ended[e.RunID] = e.RunID, map[event.StepID]bool{}
		c.queue = append(c.queue, e.RunID)
	case *event.RunStarted:
		r := c.run()
		c.must(c.active == "" && !r.ended && !r.started, "I-06 one run is active at a time")
		c.must(len(c.queue) > 0 && c.queue[0] == e.RunID, "I-06 runs start in admission order")
		c.queue = slices.DeleteFunc(c.queue, func(id event.RunID) bool { return id == e.RunID })
		c.active, r.started, r.contract = e.RunID, true, d.OutputContract
	case *event.RunCompleted, *event.RunFailed, *event.RunCancelled, *event.RunInterrupted:
		c.end()
	case *event.RepairRequested:
		r := c.run()
		r.asked++
		c.must(r.contract != nil && d.Attempt == r.asked && d.Budget == r.contract.MaxRepairAttempts && r.asked <= d.Budget && d.Budget <= 5, "I-09 repairs stay within the budget")
	case *event.NeedsAttention:
		r := c.run()
		c.must(e.RunID == c.active && !r.waiting, "only the active run waits")
		for _, x := range d.Calls {
			id := x.CallID
			c.must(c.calls[id] != nil && c.calls[id].inDoubt && c.calls[id].resolved == "", "a person is asked about calls in doubt")
		}
		r.waiting = true
	case *event.RunResumed:
		c.run().waiting = false
	case *event.AttentionResolved:
		if x := c.calls[e.CallID]; x != nil && x.inDoubt && x.resolved == "" && c.run().waiting {
			x.resolved = d.Resolution
		}
	case *event.OutputEmitted:
		c.output(d)
	default:
		if !c.compactionEvent() {
			c.stepEvent()
		}
	}
}

// compactionEvent holds compactions to their rules: one at a time, no call open
// and no step going on meanwhile, nothing but a model asked (I-10), the window
// moved only by a summary, and its beginning never between a call and its result
// (I-13): at a run, or at a step of it all of whose calls are at their end.
func (c *checker) compactionEvent() bool {
	e, at := c.e, c.compaction
	if at != nil && e.StepID != at.id {
		switch e.Data.(type) {
		case *event.StepStarted, *event.ModelCallStarted, *event.ToolStarted, *event.RunStarted, *event.RunCompleted, *event.RunFailed, *event.OutputEmitted, *event.StepEnded, *event.StepFailed:
			c.must(false, "nothing goes on while the context is compacted")
		}
		return false
	}
	switch d := e.Data.(type) {
	case *event.CompactionRequested:
		return true
	case *event.CompactionStarted:
		c.must(at == nil && len(c.open) == 0 && (e.RunID == "" || e.RunID == c.active), "one compaction at a time, with no call open")
		c.must((e.RunID == "") == (d.Reason == event.CompactManual) && d.Entries > 0, "a compaction has its reason, and something to stand for")
		run := c.runSeq[d.TailSeq]
		c.must(run != "" && (d.TailStep == "" || c.ended[run][d.TailStep]), "I-13 the kept tail begins at a run, or at a step that has ended")
		c.compaction = &compaction{id: e.StepID, started: d}
		return true
	case *event.CompactionFailed:
		c.must(at != nil && !at.open || at == nil && d.Number == 0, "a compaction ends once, when its attempt has ended")
		c.compaction = nil
		return true
	}
	if at == nil {
		return false
	}
	switch d := e.Data.(type) {
	case *event.ModelCallStarted:
		c.must(!at.open && !at.summary && d.Attempt == at.attempt+1, "one attempt after the other")
		at.attempt, at.open = d.Attempt, true
	case *event.ModelCallCompleted:
		c.must(at.open && d.Attempt == at.attempt, "an attempt ends once")
		at.open = false
	case *event.ModelCallFailed:
		c.must(at.open && d.Attempt == at.attempt, "an attempt ends once")
		at.open = false
	case *event.RetryScheduled:
	case *event.CompactionEnded:
		c.must(!at.open && !at.summary && !d.Summary.Empty() && at.attempt > 0, "a summary comes of an attempt, and is something")
		at.summary = true
	case *event.ContextCompacted:
		c.must(at.summary && d.TailSeq == at.started.TailSeq && d.TailStep == at.started.TailStep, "the window moves by a summary, to where that was begun for")
		c.compaction = nil
	default:
		c.must(false, "I-10 a summary request does nothing else")
	}
	return true
}

// end checks the terminal event of a run.
func (c *checker) end() {
	e, r := c.e, c.run()
	c.must(!r.ended, "I-05 a run has one terminal event")
	queued := slices.Contains(c.queue, e.RunID)
	c.must(queued || c.active == e.RunID && c.step == nil && len(c.open) == 0, "I-12 everything is closed at the end of a run")
	c.must(r.repaired == r.asked, "I-09 each repair that was asked for is one step")
	switch d := e.Data.(type) {
	case *event.RunCompleted:
		c.must(r.output != nil, "a completed run has its output")
	case *event.RunFailed:
		c.must(d.Code != "output_contract_unsatisfied" || r.contract != nil && r.asked == r.contract.MaxRepairAttempts, "I-09 the budget is used up before a run fails")
	}
	if _, ok := e.Data.(*event.RunCompleted); !ok {
		c.must(r.output == nil, "an output only of a completed run")
	}
	r.ended = true
	c.queue = slices.DeleteFunc(c.queue, func(id event.RunID) bool { return id == e.RunID })
	if c.active == e.RunID {
		c.active = ""
	}
}

// output checks an answer against the contract that the run is pinned to.
func (c *checker) output(d *event.OutputEmitted) {
	r := c.run()
	c.must(r.output == nil && c.active == c.e.RunID, "one output of the active run")
	r.output = d
	if r.contract == nil {
		c.must(d.OutputKind == event.OutputText, "I-09 a text without a contract")
		c.must(r.last != nil && (!r.last.inPlace || d.Content.Ref != "" || d.Content.Text == r.last.text), "I-20 the answer is the text of the whole attempt alone")
		return
	}
	c.must(d.OutputKind == event.OutputStructured, "I-09 a structured output under a contract")
	if d.StructuredOutput == nil {
		return // by reference: its text is not in the log
	}
	schema, issues := contract.ParseSchema(r.contract.Schema)
	if len(issues) > 0 {
		c.must(false, "a pinned contract reads")
		return
	}
	value, err := schema.Check(string(d.StructuredOutput))
	c.must(err == nil && string(value) == string(d.StructuredOutput), "I-09 only a conforming answer, canonical, goes out")
}

// stepOver notes a step all of whose calls are at their end.
func (c *checker) stepOver(st *step) {
	if steps := c.ended[c.e.RunID]; steps != nil {
		steps[st.id] = true
	}
}

func (c *checker) stepEvent() {
	e := c.e
	switch d := e.Data.(type) {
	case *event.StepStarted:
		r := c.run()
		c.must(c.step == nil && len(c.open) == 0 && e.RunID == c.active, "I-12 the step before is closed")
		c.must(d.NoTools == (d.Repair > 0 || e.Turn >= r.created.MaxTurns) && e.Turn <= r.created.MaxTurns, "I-10 tools are withheld where they must be")
		if d.Repair > 0 {
			r.repaired++
			c.must(d.Repair == r.repaired && e.Turn == r.turn, "I-09 a repair is one step and no turn")
		}
		r.turn = e.Turn
		c.step = &step{id: e.StepID, started: d}
		return
	case *event.SessionCreated, *event.SessionUpdated, *event.SessionClosed, *event.OwnerClaimed, *event.RunQueued,
		*event.CancelRequested, *event.InterruptRequested, *event.StateEntered, *event.ContextBuilt, *event.ContractChecked:
		return
	}
	if c.step == nil || c.step.id != e.StepID {
		c.must(false, "an event of a step that is not open")
		return
	}
	st := c.step
	switch d := e.Data.(type) {
	case *event.StepEnded:
		c.must(st.whole && len(c.open) == 0, "I-12 a step ends when every call has its terminal")
		c.stepOver(st)
		c.step, c.run().last = nil, st
	case *event.StepFailed:
		c.must(len(c.open) == 0 && !st.open, "I-12 a step ends when everything in it is closed")
		if st.whole {
			c.stepOver(st)
		}
		c.step = nil
	case *event.ModelCallStarted:
		c.must(!st.open && !st.whole && d.Attempt == st.attempt+1, "one attempt after the other")
		st.attempt, st.open, st.text, st.inPlace = d.Attempt, true, "", true
	case *event.ModelCallCompleted:
		c.must(st.open && d.Attempt == st.attempt, "an attempt ends once")
		st.open = false
	case *event.ModelCallFailed:
		c.must(st.open && d.Attempt == st.attempt, "an attempt ends once")
		st.open = false
	case *event.InferenceCompleted:
		c.must(!st.open && !st.whole, "an output is whole once")
		st.whole = true
	case *event.TextEnded:
		if !d.Partial {
			st.text, st.inPlace = st.text+d.Content.Text, st.inPlace && d.Content.Ref == ""
		}
	default:
		c.callEvent(st)
	}
}

func (c *checker) callEvent(st *step) {
	e := c.e
	if d, ok := e.Data.(*event.ToolRequested); ok {
		c.must(c.calls[e.CallID] == nil, "I-13 call ids are unique in the session")
		x := &call{level: d.Level}
		if tools := c.run().created.Tools; d.Name != "" {
			if i := slices.IndexFunc(tools, func(t event.CapturedTool) bool { return t.Name == d.Name }); i >= 0 {
				x.idempotent = tools[i].Idempotent
			}
		}
		if d.Original != "" {
			from := c.calls[d.Original]
			c.must(from != nil && from.resolved == event.ResolveRetry, "I-13 a retry is a person's word")
		}
		c.calls[e.CallID], c.open[e.CallID] = x, true
		return
	}
	if e.CallID == "" {
		return // parts, and what is about the step as a whole
	}
	x := c.calls[e.CallID]
	if x == nil {
		c.must(false, "an event of a call that was not requested")
		return
	}
	switch d := e.Data.(type) {
	case *event.PolicyChecked:
		x.allowed = d.Decision == "allow"
	case *event.ToolStarted:
		x.starts++
		c.must(x.starts == 1 && x.allowed && !x.done, "I-13 a call is checked, then started once")
		c.must(st.whole && !st.started.NoTools, "I-10, I-13 the output is whole and tools are allowed")
	case *event.ToolRetrying:
		c.must(x.starts == 1 && !x.done, "I-13 only what is in flight is begun again")
		c.must(x.level == "read" || x.level == "none" || x.idempotent, "I-13 an effect is not begun again")
	case *event.ToolRejected, *event.ToolCompleted, *event.ToolFailed, *event.ToolTimeout, *event.ToolInterrupted:
		c.must(!x.done, "I-13, I-14 a call has one result")
		x.done = true
		delete(c.open, e.CallID)
		if i, ok := d.(*event.ToolInterrupted); ok {
			x.inDoubt = i.Outcome == "unknown"
		}
	}
}

// Target holds the whole stream of one target, decoded and in order, to the
// invariants of its lane.
func Target(events []event.Event) []string {
	l := NewTarget()
	for i := range events {
		l.Add(&events[i])
	}
	return l.Found()
}

type laneChecker struct {
	lane     []event.DeliveryID // pending, in order
	open     map[event.DeliveryID]int
	attempts map[event.DeliveryID]int
	known    map[event.DeliveryID]bool
	replays  map[event.DeliveryID]int
	flying   int
	circuit  outbox.Circuit
}

// receiver holds what is done to what the stream says of the receiver: nothing
// begins while it is to be left alone, and a probe goes alone.
func (l *laneChecker) receiver(c *checker) {
	now := c.e.Time
	switch d := c.e.Data.(type) {
	case *event.DeliveryAttemptStarted:
		c.must(!l.circuit.Paused, "I-25 nothing is sent to a paused target")
		c.must(l.circuit.State != outbox.Open, "I-25 nothing goes through an open circuit")
		c.must(l.circuit.State == outbox.Closed || l.flying == 0, "I-25 half-open lets exactly one through")
		c.must(!l.circuit.HeldUntil.After(now), "C42 what a receiver asked for holds its target")
		l.flying++
	case *event.DeliveryAttemptFailed:
		l.flying--
		c.must(d.Failures == nil || *d.Failures == 0 || *d.Failures == l.circuit.Failures+1, "failures in a row are counted one by one")
	case *event.DeliveryDelivered:
		l.flying--
		c.must(d.Failures == l.circuit.Failures, "a delivery ends the row of failures that there is")
	case *event.TargetCircuitHalfOpened:
		c.must(l.circuit.State == outbox.Open && !l.circuit.OpenUntil.After(now) && l.flying == 0, "I-25 a circuit is half-open when its time is over")
	case *event.TargetCircuitOpened:
		c.must(l.circuit.State != outbox.Open && d.Opens == l.circuit.Opens+1 && d.Failures == l.circuit.Failures, "a circuit opens by a failure, once")
	case *event.TargetPaused:
		c.must(!l.circuit.Paused, "a target is paused once")
	case *event.TargetResumed:
		c.must(l.circuit.Paused, "only what is paused is resumed")
	}
	l.circuit = l.circuit.Apply(c.e.Data, now)
}

func (l *laneChecker) drop(id event.DeliveryID) {
	l.lane = slices.DeleteFunc(l.lane, func(x event.DeliveryID) bool { return x == id })
}

func (l *laneChecker) event(c *checker) {
	switch d := c.e.Data.(type) {
	case *event.DeliveryEnqueued:
		c.must(!l.known[d.DeliveryID], "I-24 a delivery is enqueued once")
		l.known[d.DeliveryID] = true
		l.lane = append(l.lane, d.DeliveryID)
	case *event.DeliveryReplayed:
		waits := slices.Contains(l.lane, d.DeliveryID)
		c.must(l.known[d.DeliveryID] && l.open[d.DeliveryID] == 0, "what is in flight is not replayed")
		c.must(!waits || d.Forced && l.replays[d.DeliveryID] > 0, "what waits for its turn is replayed by force alone, and when it was before")
		l.replays[d.DeliveryID]++
		c.must(d.Number == l.replays[d.DeliveryID], "replays are counted one by one")
		l.drop(d.DeliveryID) // it goes to the tail
		l.lane = append(l.lane, d.DeliveryID)
	case *event.DeliveryAttemptStarted:
		c.must(len(l.lane) > 0 && l.lane[0] == d.DeliveryID, "I-25 a target's deliveries go in order")
		c.must(l.open[d.DeliveryID] == 0 && d.Attempt == l.attempts[d.DeliveryID]+1, "one attempt after the other")
		l.open[d.DeliveryID], l.attempts[d.DeliveryID] = d.Attempt, d.Attempt
	case *event.DeliveryAttemptFailed:
		c.must(l.open[d.DeliveryID] == d.Attempt, "an attempt ends once")
		l.open[d.DeliveryID] = 0
	case *event.DeliveryDelivered:
		c.must(l.open[d.DeliveryID] == d.Attempt && slices.Contains(l.lane, d.DeliveryID), "I-05 a delivery ends once")
		l.open[d.DeliveryID] = 0
		l.drop(d.DeliveryID)
	case *event.DeliveryDeadLettered:
		c.must(l.open[d.DeliveryID] == 0 && slices.Contains(l.lane, d.DeliveryID), "I-05 a delivery ends once")
		l.drop(d.DeliveryID)
	case *event.DeliveryResolved:
		c.must(l.open[d.DeliveryID] == 0, "I-24 what is in flight is not resolved")
		l.drop(d.DeliveryID)
	}
}

// Told holds the events of one append against each other: a person's word on a
// receiver, and a replay by force, stand in the audit stream of the same append,
// once each, with who gave it; and nothing stands there that was not done.
func Told(events []event.Event) []string {
	type act struct{ actor, what, on string }
	var done, told []act
	for i := range events {
		id, _ := events[i].Stream.Target()
		switch d := events[i].Data.(type) {
		case *event.TargetPaused:
			if d.Code == event.PausedByRequest {
				done = append(done, act{d.Actor, "paused", string(id)})
			}
		case *event.TargetResumed:
			done = append(done, act{d.Actor, "resumed", string(id)})
		case *event.TargetCircuitClosed:
			if d.Actor != "" {
				done = append(done, act{d.Actor, "reset", string(id)})
			}
		case *event.DeliveryReplayed:
			if d.Forced && d.JobID == "" {
				done = append(done, act{d.Actor, "replayed", string(d.DeliveryID)})
			}
		case *event.AuditTargetChanged:
			told = append(told, act{d.Actor, d.Change, string(d.TargetID)})
		case *event.AuditDeliveryReplayed:
			if d.Forced && d.Job == "" {
				told = append(told, act{d.Actor, "replayed", string(d.DeliveryID)})
			}
		}
	}
	if slices.Equal(done, told) {
		return nil
	}
	return []string{fmt.Sprintf("the audit stream tells %v of an append that did %v", told, done)}
}

// Deliveries checks that outputs and deliveries follow from each other, over
// all streams of a log (I-24).
func Deliveries(sessions, targets []event.Event) []string {
	c := &checker{}
	want := map[event.DeliveryID]event.TargetID{}
	for i := range sessions {
		if d, ok := sessions[i].Data.(*event.OutputEmitted); ok {
			for _, t := range d.Targets {
				want[t.DeliveryID] = t.TargetID
			}
		}
	}
	for i := range targets {
		c.e = &targets[i]
		if d, ok := c.e.Data.(*event.DeliveryEnqueued); ok {
			id, _ := c.e.Stream.Target()
			c.must(want[d.DeliveryID] == id, "I-24 a delivery follows from an output")
			delete(want, d.DeliveryID)
		}
	}
	for id, t := range want {
		c.found = append(c.found, fmt.Sprintf("I-24 the output of %s was never enqueued for %s", id, t))
	}
	return c.found
}

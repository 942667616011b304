package sim_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/sim"
)

// watch sees every commit and every act, and holds them against each other as
// they come.
type watch struct {
	h *history

	mu      sync.Mutex
	found   []string
	by      *node // whose append is being made
	streams map[event.Stream]*stream
	order   []*stream
	alias   map[string]string // of ids, in the order in which they came
	runs    map[event.RunID]*runSeen
	calls   map[event.CallID]*callSeen
	lanes   map[event.DeliveryID]*deliverySeen
	owed    map[event.DeliveryID]event.TargetID // that follow from outputs (I-24)
	paused  map[event.Stream]bool
	keys    map[string]event.RunID // by the digest of the key
	open    int                    // runs not at their end
	pending int                    // deliveries not at their end
	jobs    map[event.JobID]*jobSeen
	working int                 // jobs that were started, or called off, and are not at their end
	leases  map[*node]time.Time // until when, by the store's clock; zero: without end
	before  []stood             // of the streams of the append that is being made
}

// stood is where a stream stood before an append.
type stood struct{ head, epoch int64 }

// stream is what was seen of a stream.
type stream struct {
	id     event.Stream
	log    *sim.Log
	hashes []event.Digest
	epoch  int64
	owner  *node // that claimed the epoch
	holder *node // nil: nobody

	active     event.RunID
	attempt    attemptSeen  // of a session: the last that was started
	notool     bool         // in the step that is open
	summarises *event.Route // that the compaction under way is pinned to
	erased     bool
}

type attemptSeen struct {
	step   event.StepID
	number int
	open   bool
	by     *node
	epoch  int64
	asked  int
	notool bool
	said   string // text that the node was given
	kept   string // text that it recorded
	large  bool   // not all of that stands in the log
	over   bool   // its end was just recorded
}

type runSeen struct {
	session event.SessionID
	created *event.RunCreated
	ended   bool
	waiting []event.DoubtCall
}

type callSeen struct {
	level      string
	idempotent bool
	starts     int
	runs       int
	by         *node
	epoch      int64
	done       bool
}

type deliverySeen struct {
	session event.SessionID
	target  event.TargetID
	place   int64 // in its lane
	open    int
	sent    int // number of the attempt that was sent
	by      *node
	epoch   int64
	ended   string
}

func newWatch(h *history) *watch {
	return &watch{
		h: h, streams: map[event.Stream]*stream{}, alias: map[string]string{}, runs: map[event.RunID]*runSeen{}, calls: map[event.CallID]*callSeen{},
		lanes: map[event.DeliveryID]*deliverySeen{}, owed: map[event.DeliveryID]event.TargetID{}, keys: map[string]event.RunID{}, leases: map[*node]time.Time{},
		paused: map[event.Stream]bool{}, jobs: map[event.JobID]*jobSeen{},
	}
}

func (w *watch) find(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

func (w *watch) note(format string, args ...any) {
	if len(w.found) < 20 {
		w.found = append(w.found, fmt.Sprintf(format, args...))
	}
}

func (w *watch) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.found) > 0
}

// called gives the short name of an id.
func (w *watch) called(id any) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s string
	switch id := id.(type) {
	case event.SessionID:
		s = string(id)
	case event.RunID:
		s = string(id)
	case event.TargetID:
		s = string(id)
	case event.DeliveryID:
		s = string(id)
	case event.JobID:
		s = string(id)
	case event.Stream:
		_, s, _ = strings.Cut(string(id), ":")
	case event.CallID:
		body := strings.TrimPrefix(string(id), "call_")
		run, rest, _ := strings.Cut(body, "_")
		if a, ok := w.alias["run_"+run]; ok {
			return "c" + a[1:] + "_" + rest
		}
		return id
	default:
		return id
	}
	if a, ok := w.alias[s]; ok {
		return a
	}
	return id
}

func (w *watch) give(letter, id string) {
	if _, ok := w.alias[id]; !ok {
		w.alias[id] = fmt.Sprintf("%s%d", letter, len(w.alias)+1)
	}
}

// appending is told before an append is made, appended behind it.
func (w *watch) appending(n *node, a *eventlog.Append) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = n
	w.before = w.before[:0]
	for i := range a.Entries {
		var at stood
		if st := w.streams[a.Entries[i].Stream]; st != nil {
			at = stood{int64(len(st.hashes)), st.epoch}
		}
		w.before = append(w.before, at)
	}
}

func (w *watch) appended(n *node, a *eventlog.Append, stamps []eventlog.Stamp, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = nil
	if err != nil {
		w.refused(err)
		return
	}
	if len(stamps) != len(a.Entries) {
		w.note("I-02: %d entries were acknowledged with %d stamps", len(a.Entries), len(stamps))
	}
	for i := range stamps {
		st := w.streams[stamps[i].Stream]
		if st == nil || int64(len(st.hashes)) < stamps[i].Head {
			w.note("I-02: %s was told of an append to %s up to %d that is not in the log", n.name, stamps[i].Stream, stamps[i].Head)
			continue
		}
		for _, e := range stamps[i].Events {
			if e.Seq < 1 || st.hashes[e.Seq-1] != e.Hash {
				w.note("I-01: the log has another event %d in %s than was acknowledged", e.Seq, stamps[i].Stream)
			}
		}
		w.fence(n, st, &a.Entries[i], w.before[i])
	}
}

// refused counts why an append was refused.
func (w *watch) refused(err error) {
	var held *eventlog.HeldError
	switch {
	case errors.As(err, &held):
		w.h.count("append refused: held")
	case errors.Is(err, eventlog.ErrFenced):
		w.h.count("append refused: fenced")
	case errors.Is(err, eventlog.ErrHeadMoved):
		w.h.count("append refused: head moved")
	}
}

// fence holds an accepted entry against who may append to its stream, and notes
// who holds it from then on.
func (w *watch) fence(n *node, st *stream, e *eventlog.Entry, was stood) {
	if e.Expect != eventlog.AnyHead && e.Expect != was.head {
		w.note("I-11: %s appended to %s at the head %d, which stood at %d", n.name, st.id, e.Expect, was.head)
	}
	if e.Node == "" {
		return
	}
	if e.Epoch != was.epoch && (e.Epoch != 0 || !e.Claim) {
		w.note("I-11: %s appended to %s with the epoch %d, which stood at %d", n.name, st.id, e.Epoch, was.epoch)
	}
	if h := st.holder; h != nil && h != n && (!e.Claim || w.alive(h)) {
		w.note("I-11: %s appended to %s, which %s holds", n.name, st.id, h.name)
	}
	if st.holder = n; e.Rest {
		st.holder = nil
	}
}

// alive says whether a node's lease runs, by the store's clock.
func (w *watch) alive(n *node) bool {
	until, ok := w.leases[n]
	return ok && (until.IsZero() || time.Now().Before(until))
}

func (w *watch) beaten(n *node, l eventlog.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases[n] = l.Until
	w.reap()
}

// reap frees what nodes held whose lease has ended: a node that beats anew
// behind that does not hold it any more.
func (w *watch) reap() {
	for _, st := range w.order {
		if st.holder != nil && !w.alive(st.holder) {
			st.holder = nil
		}
	}
}

// afresh is told that the store was opened anew: nobody holds anything.
func (w *watch) afresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.leases)
	for _, st := range w.order {
		st.holder = nil
	}
}

func (w *watch) released(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.leases, n)
	w.reap()
}

// took is told which streams a node was handed.
func (w *watch) took(n *node, list []event.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reap()
	for _, s := range list {
		st := w.streams[s]
		if st == nil {
			w.note("I-11: %s was handed %s, which is not there", n.name, s)
			continue
		}
		if h := st.holder; h != nil && h != n && w.alive(h) {
			w.note("I-11, I-16: %s was handed %s, which %s holds", n.name, s, h.name)
		}
		st.holder = n
	}
}

// letGo is told that a node let go of a stream; head -1: wherever it stands.
func (w *watch) letGo(n *node, s event.Stream, head int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st := w.streams[s]; st != nil && st.holder == n && (head < 0 || head == int64(len(st.hashes))) {
		st.holder = nil
	}
}

// committed is told of every commit, before its append returns. It gives whose
// it was.
func (w *watch) committed(stamps []eventlog.Stamp) *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []event.Event
	for i := range stamps {
		s := &stamps[i]
		all = append(all, s.Events...)
		st := w.streams[s.Stream]
		if st == nil {
			st = &stream{id: s.Stream, log: sim.New(s.Stream)}
			if id, ok := s.Stream.Target(); ok {
				w.give("t", string(id))
			}
			w.streams[s.Stream] = st
			w.order = append(w.order, st)
		}
		before := len(st.log.Found())
		for j := range s.Events {
			e := &s.Events[j]
			st.log.Add(e)
			st.hashes = append(st.hashes, e.Hash)
			if st.epoch != e.Epoch {
				w.taken(st)
				st.epoch, st.owner = e.Epoch, w.by
			}
			w.event(st, e)
		}
		for _, text := range st.log.Found()[before:] {
			w.note("%s", text)
		}
		if a := &st.attempt; a.over {
			a.over = false
			if a.epoch == st.epoch && !a.large && !a.step.IsCompaction() && a.kept != a.said {
				w.note("I-19: of the attempt %s/%d %q was kept, and %q was said", a.step, a.number, a.kept, a.said)
			}
		}
	}
	for _, text := range append(sim.Told(all), sim.Jobs(all)...) {
		w.note("%s", text)
	}
	return w.by
}

// taken counts a claim by what it took from whom.
func (w *watch) taken(st *stream) {
	switch {
	case st.owner == nil || st.owner == w.by:
		return
	case st.owner.gone():
		w.h.count("taken from the dead")
	default:
		w.h.count("taken from the living")
	}
	if st.attempt.open {
		w.h.count("taken in the middle of an answer")
	}
}

// event takes note of a fact, and holds it against what was seen outside.
func (w *watch) event(st *stream, e *event.Event) {
	w.h.count(string(e.Type))
	switch d := e.Data.(type) {
	case *event.SessionCreated:
		w.give("s", string(e.SessionID))
	case *event.SessionErased:
		st.erased = true
	case *event.RunCreated:
		w.give("r", string(e.RunID))
		w.runs[e.RunID] = &runSeen{session: e.SessionID, created: d}
		w.open++
		w.h.clients.admitted(e.RunID, d)
	case *event.RunStarted:
		st.active = e.RunID
	case *event.NeedsAttention:
		w.runs[e.RunID].waiting = d.Calls
	case *event.AttentionResolved:
		w.runs[e.RunID].waiting = d.Remaining
	case *event.RunCompleted, *event.RunFailed, *event.RunCancelled, *event.RunInterrupted:
		r := w.runs[e.RunID]
		r.ended, r.waiting = true, nil
		w.open--
	case *event.OutputEmitted:
		for _, t := range d.Targets {
			w.owed[t.DeliveryID] = t.TargetID
		}
	case *event.StepStarted:
		st.notool = d.NoTools
	case *event.CompactionStarted:
		st.summarises = &d.Route
	case *event.ContextCompacted, *event.CompactionFailed:
		st.summarises = nil
	case *event.ModelCallStarted:
		st.attempt = attemptSeen{step: e.StepID, number: d.Attempt, open: true, by: w.by, epoch: e.Epoch, notool: st.notool || st.summarises != nil}
	case *event.ModelCallCompleted, *event.ModelCallFailed:
		st.attempt.open, st.attempt.over = false, true
	case *event.TextEnded:
		st.attempt.kept += d.Content.Text
		st.attempt.large = st.attempt.large || d.Content.Ref != ""
	default:
		w.about(st, e)
	}
}

// about is event, of calls and deliveries.
func (w *watch) about(st *stream, e *event.Event) {
	outside := &w.h.world.mu
	switch d := e.Data.(type) {
	case *event.ToolRequested:
		c := &callSeen{level: d.Level}
		for _, t := range w.runs[e.RunID].created.Tools {
			if t.Name == d.Name {
				c.idempotent = t.Idempotent
			}
		}
		w.calls[e.CallID] = c
	case *event.ToolStarted, *event.ToolRetrying:
		c := w.calls[e.CallID]
		c.starts++
		c.by, c.epoch = w.by, e.Epoch
	case *event.ToolCompleted:
		outside.Lock()
		defer outside.Unlock()
		w.calls[e.CallID].done = true
		if w.h.world.effects[string(e.CallID)] == 0 {
			w.note("I-13: %s completed and had no effect", e.CallID)
		}
	case *event.ToolFailed:
		outside.Lock()
		defer outside.Unlock()
		w.calls[e.CallID].done = true
		if w.h.world.effects[string(e.CallID)] > 0 && w.calls[e.CallID].lasting() && !strings.Contains(d.Message.Text, "internal error") {
			w.note("I-13: %s failed for sure and had its effect: %s", e.CallID, d.Message.Text)
		}
	case *event.ToolInterrupted:
		outside.Lock()
		defer outside.Unlock()
		w.calls[e.CallID].done = true
		if d.Outcome == "" && w.h.world.effects[string(e.CallID)] > 0 && w.calls[e.CallID].lasting() {
			w.note("I-13: %s had an effect and is not in doubt", e.CallID)
		}
	case *event.ToolTimeout:
		w.calls[e.CallID].done = true
	case *event.ToolRejected:
		w.calls[e.CallID].done = true
		if w.calls[e.CallID].runs > 0 {
			w.note("I-13: %s was rejected and ran", e.CallID)
		}
	case *event.DeliveryEnqueued:
		w.give("d", string(d.DeliveryID))
		id, _ := st.id.Target()
		if w.owed[d.DeliveryID] != id {
			w.note("I-24: the delivery %s to %s follows from no output", d.DeliveryID, id)
		}
		delete(w.owed, d.DeliveryID)
		w.lanes[d.DeliveryID] = &deliverySeen{session: e.SessionID, target: id, place: e.Seq}
		w.pending++
	case *event.DeliveryReplayed:
		l := w.lanes[d.DeliveryID]
		if d.JobID != "" {
			w.replayed(l, d)
		}
		if l.place = e.Seq; l.ended != "" { // else it waits already
			l.ended = ""
			w.pending++
		}
	case *event.DeliveryAttemptStarted:
		l := w.lanes[d.DeliveryID]
		l.open, l.by, l.epoch = d.Attempt, w.by, e.Epoch
	case *event.DeliveryAttemptFailed:
		w.lanes[d.DeliveryID].open = 0
	case *event.DeliveryDelivered:
		outside.Lock()
		defer outside.Unlock()
		if r := w.h.world.received[d.DeliveryID]; r == nil || r.accepted == 0 {
			w.note("I-24: %s is delivered and the receiver never took it", d.DeliveryID)
		}
		w.settled(d.DeliveryID, "delivered")
	case *event.DeliveryDeadLettered:
		w.settled(d.DeliveryID, "dead-lettered")
	case *event.DeliveryResolved:
		w.settled(d.DeliveryID, "resolved")
	case *event.TargetPaused:
		w.paused[st.id] = true
	case *event.TargetResumed:
		delete(w.paused, st.id)
	default:
		w.job(st, e)
	}
}

// parked says whether somebody must resume a target before all can be at its end.
func (w *watch) parked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.paused) > 0
}

// flying lists the targets that are being sent something, in the order of their ids:
// once more, if any is, since there is something to undo then.
func (w *watch) flying() (out []event.TargetID, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var more []event.TargetID
	for _, l := range w.lanes {
		switch {
		case l.open > 1:
			more = append(more, l.target)
		case l.open == 1:
			out = append(out, l.target)
		}
	}
	if again = len(more) > 0; again {
		out = more
	}
	slices.Sort(out)
	return slices.Compact(out), again
}

// lasting says whether a call's effect must not happen twice.
func (c *callSeen) lasting() bool { return c.level != "none" && c.level != "read" }

func (w *watch) settled(id event.DeliveryID, how string) {
	l := w.lanes[id]
	if l.ended == "" {
		w.pending--
	}
	l.open, l.ended = 0, how
}

// disowned says why a node may do nothing for a stream now; empty: it may.
// The act's own check was a moment ago: no port call lies in between.
func (w *watch) disowned(n *node, s event.Stream) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost(n, s)
}

func (w *watch) lost(n *node, s event.Stream) string {
	st := w.streams[s]
	switch {
	case st == nil:
		return "the stream is not there"
	case st.owner != n:
		return fmt.Sprintf("the epoch %d is not its own", st.epoch)
	case st.holder != nil && st.holder != n:
		return "it is held by " + st.holder.name
	case !w.alive(n):
		return "its lease has ended"
	}
	return ""
}

// dispatching is told when a node hands a request to the model.
func (w *watch) dispatching(n *node, req *llm.Request, route event.Route) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := event.SessionID(req.SessionID)
	if text := unpaired(req); text != "" {
		w.note("I-13: a request for %s: %s", id, text)
	}
	if why := w.lost(n, id.Stream()); why != "" {
		w.note("I-11: %s asks the model for %s: %s", n.name, id, why)
		return
	}
	st := w.streams[id.Stream()]
	a := &st.attempt
	a.asked++
	switch {
	case !a.open || a.number != req.Attempt || a.by != n || a.epoch != st.epoch:
		w.note("I-11: %s asks the model for %s, attempt %d, which it has not recorded: %+v", n.name, id, req.Attempt, *a)
	case a.asked > 1:
		w.note("I-11: the attempt %s/%d is asked for %d times", a.step, a.number, a.asked)
	case a.notool != req.NoTools:
		w.note("I-10: the step %s says no tools: %v, the request %v", a.step, a.notool, req.NoTools)
	}
	r := w.runs[st.active]
	pinned := st.summarises
	if pinned == nil && (r == nil || r.ended) {
		w.note("I-06: %s asks the model for %s, which has no active run", n.name, id)
		return
	}
	if pinned == nil {
		pinned = &r.created.Route
	}
	if *pinned != route || req.Model != "" && req.Model != route.Model {
		w.note("I-08: %s is pinned to %v and goes to %v", a.step, *pinned, route)
	}
}

// told is told of text that a node took from the model.
func (w *watch) told(n *node, s event.SessionID, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st := w.streams[s.Stream()]; st != nil && st.attempt.by == n && st.attempt.open {
		st.attempt.said += text
	}
}

// starting is told when a node starts a tool.
func (w *watch) starting(n *node, s event.SessionID, id event.CallID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if why := w.lost(n, s.Stream()); why != "" {
		w.note("I-11: %s starts %s: %s", n.name, id, why)
		return
	}
	c := w.calls[id]
	if c == nil {
		w.note("I-13: %s runs and was never requested", id)
		return
	}
	c.runs++
	switch {
	case c.runs > c.starts:
		w.note("I-13: %s runs %d times and was started %d times", id, c.runs, c.starts)
	case c.done:
		w.note("I-13: %s runs and is at its end", id)
	case c.by != n || c.epoch != w.streams[s.Stream()].epoch:
		w.note("I-11: %s starts %s, whose start is of another epoch", n.name, id)
	}
}

// sending is told when a node sends a delivery.
func (w *watch) sending(n *node, m delivery.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lanes[m.ID]
	if l == nil {
		w.note("I-24: %s is sent and was never enqueued", m.ID)
		return
	}
	if why := w.lost(n, l.target.Stream()); why != "" {
		w.note("I-11: %s sends %s: %s", n.name, m.ID, why)
		return
	}
	switch {
	case l.open == 0 || l.by != n || l.epoch != w.streams[l.target.Stream()].epoch:
		w.note("I-11: %s sends %s, and has recorded no attempt: %+v", n.name, m.ID, *l)
	case l.sent >= l.open:
		w.note("I-26: the attempt %d of %s is sent twice", l.open, m.ID)
	}
	l.sent = l.open
}

// unsettled says what is not at its end.
func (w *watch) unsettled() (runs, deliveries, jobs int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open, w.pending, w.working
}

// letters says whether a delivery is a dead letter.
func (w *watch) letters() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lanes {
		if l.ended == "dead-lettered" {
			return true
		}
	}
	return false
}

// doubts lists the runs that wait for a person, in the order of their creation.
func (w *watch) doubts() map[event.RunID][]event.DoubtCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[event.RunID][]event.DoubtCall{}
	for id, r := range w.runs {
		if len(r.waiting) > 0 {
			out[id] = r.waiting
		}
	}
	return out
}

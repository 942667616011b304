package daemon_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// The log of a storm, read by rules of the test's own: it knows the numbers that
// were configured and the ways of the receivers, and nothing of the code that
// decided. What a line says is read from its JSON.

// telling is the data of any event of a target.
type telling struct {
	DeliveryID string `json:"delivery_id"`
	Attempt    int    `json:"attempt"`
	Attempts   int    `json:"attempts"`
	Cycle      int    `json:"cycle"`
	Code       string `json:"code"`
	Class      string `json:"class"`
	Status     int    `json:"status"`
	RetryAt    string `json:"retry_at"`
	HoldUntil  string `json:"hold_until"`
	Until      string `json:"until"`
	CooldownMS int64  `json:"cooldown_ms"`
	Failures   *int   `json:"failures"`
	Opens      int    `json:"opens"`
	Actor      string `json:"actor"`
	Body       string `json:"body"`
	Forced     bool   `json:"forced"`
}

// letter is a delivery as the log tells it.
type letter struct {
	id       string
	lane     *laneStory
	session  event.SessionID
	run      *stormRun
	body     string // reference
	size     string
	status   string // empty: pending
	code     string // of the dead letter
	attempts int
	cycle    int
	open     bool
	began    time.Time // of the cycle
	started  time.Time
	ended    time.Time // of the last attempt
	retryAt  time.Time
	codes    []string       // of the failed attempts of this cycle
	answers  map[string]int // codes of all failed attempts, and "delivered"
	replays  int
	enqueued time.Time
}

// laneStory is a target as the log tells it.
type laneStory struct {
	way      *way
	queue    []*letter
	inFlight int
	failures int
	circuit  string // empty: closed; open, half_open
	opens    int
	until    time.Time
	hold     time.Time
	reset    time.Time
	paused   bool
	probe    string       // the delivery that half-opening named and that has not begun
	owes     []event.Type // what follows from the last outcome, in the same append
	order    []string     // deliveries as they were enqueued
	opened   []openTime
}

// openTime is when nothing may reach a receiver.
type openTime struct{ from, until time.Time }

// stormStory is the whole log.
type stormStory struct {
	st       *storm
	lanes    map[event.Stream]*laneStory
	letters  map[string]*letter
	outputs  map[string][]string // by run: the deliveries that its output names, in the order of its targets
	met      map[string]int
	findings int
	waits    []time.Duration // from enqueued to delivered, at receivers that are well
}

// slack is what times of one machine's clocks may differ by, stored as they are in
// whole milliseconds.
const slack = 3 * time.Millisecond

// lateness is by how much a wait may be longer than what it was to be: a node does
// not know exactly what time it is in the store, and errs to this side.
const lateness = 10 * time.Second

func (st *storm) tell(events []event.Event) *stormStory {
	h := &stormStory{st: st, lanes: map[event.Stream]*laneStory{}, letters: map[string]*letter{}, outputs: map[string][]string{}, met: map[string]int{}}
	for i := range events {
		if out, ok := events[i].Data.(*event.OutputEmitted); ok {
			for _, to := range out.Targets {
				h.outputs[string(events[i].RunID)] = append(h.outputs[string(events[i].RunID)], string(to.DeliveryID))
			}
		}
	}
	for i := range events {
		if _, ok := events[i].Stream.Target(); ok {
			h.event(&events[i])
		}
	}
	return h
}

func (h *stormStory) broken(e *event.Event, l *letter, rule, format string, args ...any) {
	h.st.t.Helper()
	if h.findings++; h.findings > 60 {
		return // that is enough to see
	}
	where := ""
	if l != nil {
		where = l.id + " at " + l.lane.way.path()
	}
	h.st.t.Errorf(rule+": %s#%d %s of %s (%s): "+format, append([]any{e.Stream, e.Seq, e.Type, where, e.Raw}, args...)...)
}

func stormTime(text string) time.Time {
	at, err := event.ParseTime(text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// event reads one event of a target's stream.
func (h *stormStory) event(e *event.Event) {
	var d telling
	if err := json.Unmarshal(e.Raw, &d); err != nil {
		h.broken(e, nil, "I-01", "%v", err)
		return
	}
	lane := h.lanes[e.Stream]
	if lane == nil {
		lane = &laneStory{}
		h.lanes[e.Stream] = lane
	}
	if len(lane.owes) > 0 && e.Type != event.TypeDeliveryDeadLettered {
		if e.Type != lane.owes[0] {
			h.broken(e, nil, "I-25", "%s was to follow", lane.owes[0])
		}
		lane.owes = lane.owes[1:]
	}
	switch e.Type {
	case event.TypeDeliveryEnqueued:
		h.enqueue(e, lane, &d)
		return
	case event.TypeOwnerClaimed:
		return
	}
	if strings.HasPrefix(string(e.Type), "target.") {
		h.target(e, lane, &d)
		return
	}
	l := h.letters[d.DeliveryID]
	if l == nil || l.lane != lane {
		h.broken(e, nil, "I-24", "never enqueued")
		return
	}
	if l.status != "" && e.Type != event.TypeDeliveryReplayed {
		h.broken(e, l, "I-24", "the delivery is at its end (%s)", l.status)
	}
	switch e.Type {
	case event.TypeDeliveryAttemptStarted:
		h.start(e, l, &d)
	case event.TypeDeliveryAttemptFailed:
		h.fail(e, l, &d)
	case event.TypeDeliveryDelivered:
		h.deliver(e, l, &d)
	case event.TypeDeliveryDeadLettered:
		h.die(e, l, &d)
	case event.TypeDeliveryReplayed:
		if l.status != "dead_lettered" && !(d.Forced && l.status == "delivered") {
			h.broken(e, l, "I-24", "the delivery is %q", l.status)
		}
		h.met["replayed"]++
		l.status, l.code, l.cycle, l.began, l.retryAt, l.codes, l.replays = "", "", 0, e.Time, time.Time{}, nil, l.replays+1
		lane.queue = append(lane.queue, l) // I-25: it joins the tail
	default:
		h.broken(e, l, "I-24", "nobody asked for it")
	}
}

func (h *stormStory) enqueue(e *event.Event, lane *laneStory, d *telling) {
	if h.letters[d.DeliveryID] != nil {
		h.broken(e, h.letters[d.DeliveryID], "I-24", "enqueued twice")
		return
	}
	run := h.st.runs[string(e.RunID)]
	if run == nil {
		h.broken(e, nil, "I-07", "run %s is nobody's", e.RunID)
		return
	}
	place := slices.Index(h.outputs[string(e.RunID)], d.DeliveryID)
	if place < 0 || place >= len(run.paths) {
		h.broken(e, nil, "I-24", "the output of run %s names %v", e.RunID, h.outputs[string(e.RunID)])
		return
	}
	w := h.st.s.ways[run.paths[place]]
	if lane.way != nil && lane.way != w {
		h.broken(e, nil, "I-25", "the target was %s and is %s", lane.way.path(), w.path())
	}
	lane.way = w
	l := &letter{id: d.DeliveryID, lane: lane, session: e.SessionID, run: run, size: run.size, body: d.Body, began: e.Time, enqueued: e.Time, answers: map[string]int{}}
	h.letters[l.id] = l
	lane.queue = append(lane.queue, l)
	lane.order = append(lane.order, l.id)
	h.met["enqueued"]++
}

// start: an attempt begins in its turn, and when it may.
func (h *stormStory) start(e *event.Event, l *letter, d *telling) {
	lane, r := l.lane, l.lane.way.rules()
	if l.open || d.Attempt != l.attempts+1 || d.Cycle != l.cycle+1 {
		h.broken(e, l, "I-26", "attempt %d, of the cycle %d, begins after %d and %d (open: %t)", d.Attempt, d.Cycle, l.attempts, l.cycle, l.open)
	}
	if d.Cycle > r.attempts {
		h.broken(e, l, "I-24", "attempt %d of %d", d.Cycle, r.attempts)
	}
	if !r.loose && (lane.inFlight > 0 || lane.queue[0] != l) {
		h.broken(e, l, "I-25", "%d in flight, at the front stands %s", lane.inFlight, lane.queue[0].id)
	}
	if r.loose && lane.inFlight >= stormInFlight {
		h.broken(e, l, "I-25", "%d are in flight", lane.inFlight)
	}
	if lane.paused {
		h.broken(e, l, "I-25", "the target is paused")
	}
	switch lane.circuit {
	case "open":
		h.broken(e, l, "I-25", "the circuit is open until %s", lane.until)
	case "half_open":
		if lane.inFlight > 0 || lane.probe != "" && lane.probe != l.id {
			h.broken(e, l, "I-25", "the probe is %s, %d in flight", lane.probe, lane.inFlight)
		}
		h.met["probes"]++
	}
	if e.Time.Add(slack).Before(lane.hold) {
		h.broken(e, l, "C42", "the receiver asked to be left alone until %s, it is %s", lane.hold, e.Time)
	}
	if e.Time.Add(slack).Before(l.retryAt) && lane.reset.Before(l.ended) {
		h.broken(e, l, "I-25", "it was to wait until %s", l.retryAt)
	}
	if l.size == "oversize" {
		h.broken(e, l, "I-24", "the body is larger than what is sent")
	}
	lane.probe = ""
	lane.inFlight++
	l.open, l.attempts, l.cycle, l.started = true, d.Attempt, d.Cycle, e.Time
	h.met["attempts"]++
}

// close ends the attempt in flight.
func (h *stormStory) close(e *event.Event, l *letter, d *telling) {
	if !l.open || d.Attempt != l.attempts {
		h.broken(e, l, "I-26", "attempt %d ends after %d (open: %t)", d.Attempt, l.attempts, l.open)
	} else {
		l.lane.inFlight--
	}
	l.open, l.ended = false, e.Time
}

// fail: a failed attempt says when to come again, and counts for the circuit.
func (h *stormStory) fail(e *event.Event, l *letter, d *telling) {
	h.close(e, l, d)
	lane, w, r := l.lane, l.lane.way, l.lane.way.rules()
	l.codes = append(l.codes, d.Code)
	l.answers[d.Code]++
	h.met["attempts failed: "+d.Class]++
	l.retryAt = stormTime(d.RetryAt)
	if d.Code == "abandoned" {
		if d.Failures != nil || d.HoldUntil != "" {
			h.broken(e, l, "I-25", "nobody knows what became of it")
		}
		return
	}
	if d.Code != w.code && !slices.Contains(w.fails, d.Code) {
		h.broken(e, l, "C58", "the way of the receiver is %q or %v", w.code, w.fails)
	}
	h.held(e, l, d)
	if d.RetryAt != "" {
		wait := r.backoff
		for n := 1; n < l.cycle && wait < stormMaxBackoff; n++ {
			wait *= 2
		}
		least := min(wait, stormMaxBackoff) * 8 / 10
		if l.retryAt.Before(l.started.Add(least-slack)) || l.retryAt.After(e.Time.Add(max(stormMaxBackoff, stormRetryAfter)+lateness)) {
			h.broken(e, l, "C42", "attempt %d of the cycle began at %s; the least wait is %s", l.cycle, l.started, least)
		}
	}
	switch {
	case !w.failing(d.Code, d.Status):
		lane.failures = 0
		if lane.circuit != "" {
			lane.owes = append(lane.owes, "target.circuit.closed")
		}
	default:
		lane.failures++
		if lane.circuit == "half_open" || lane.circuit == "" && lane.failures >= stormThreshold {
			lane.owes = append(lane.owes, "target.circuit.opened")
		}
	}
	if d.Failures == nil || *d.Failures != lane.failures {
		h.broken(e, l, "I-25", "%d failures in a row", lane.failures)
	}
	if d.Code == "http_410" && !lane.paused {
		h.met["targets gone"]++
		lane.owes = append(lane.owes, "target.paused")
	}
}

// held: a wait that the receiver asked for holds the target, as long as may be.
func (h *stormStory) held(e *event.Event, l *letter, d *telling) {
	until := stormTime(d.HoldUntil)
	asked := l.lane.way.held || l.lane.way.heldOnce && d.HoldUntil != ""
	switch {
	case !asked && d.HoldUntil != "":
		h.broken(e, l, "C42", "nobody asked for a wait")
	case asked && (until.Before(l.started.Add(stormRetryAfter-slack)) || until.After(e.Time.Add(stormRetryAfter+lateness))):
		h.broken(e, l, "C42", "the attempt began at %s", l.started)
	case asked:
		h.met["waits that receivers asked for"]++
		l.lane.hold = until
	}
}

func (h *stormStory) deliver(e *event.Event, l *letter, d *telling) {
	h.close(e, l, d)
	lane := l.lane
	l.answers["delivered"]++
	if lane.circuit != "" {
		lane.owes = append(lane.owes, "target.circuit.closed")
	}
	lane.failures = 0
	h.over(e, l, "delivered")
	if !lane.way.delivered && (l.replays == 0 || !h.st.s.mended[lane.way.path()]) {
		h.broken(e, l, "C58", "this receiver takes nothing")
	}
	h.met["delivered"]++
	if l.replays == 0 && lane.way.delivered && len(lane.way.fails) == 0 {
		h.waits = append(h.waits, e.Time.Sub(l.enqueued))
	}
}

// die: a dead letter is what the receiver's way leads to, or what deaths did.
func (h *stormStory) die(e *event.Event, l *letter, d *telling) {
	w, r := l.lane.way, l.lane.way.rules()
	h.over(e, l, "dead_lettered")
	l.code = d.Code
	h.met["dead letters: "+d.Class]++
	if d.Attempts != l.attempts || l.open {
		h.broken(e, l, "I-24", "%d attempts (open: %t)", l.attempts, l.open)
	}
	var heard []string
	for _, code := range l.codes {
		if code != "abandoned" {
			heard = append(heard, code)
		}
	}
	switch {
	case l.size == "oversize":
		if d.Code != "payload_too_large" || l.cycle > 0 {
			h.broken(e, l, "C58", "its body is too large to be sent")
		}
	case d.Code == "abandoned": // the process died over the last attempt that there was
		if l.cycle != r.attempts || l.codes[len(l.codes)-1] != "abandoned" {
			h.broken(e, l, "I-24", "attempt %d of %d, after %v", l.cycle, r.attempts, l.codes)
		}
	case w.delivered || l.replays > 0 && h.st.s.mended[w.path()]:
		h.broken(e, l, "C58", "this receiver takes everything, after %v", l.codes)
	case d.Code != w.code:
		h.broken(e, l, "C58", "the way of the receiver is %q", w.code)
	case w.once && len(heard) != 1:
		h.broken(e, l, "C58", "the first answer is the last, after %v", l.codes)
	case d.Code == "expired":
		if e.Time.Before(l.began.Add(r.age - stormMaxBackoff - slack - max(stormRetryAfter, stormMaxBackoff))) {
			h.broken(e, l, "C58", "it was enqueued or replayed at %s", l.began)
		}
	case !w.once && l.cycle != r.attempts:
		h.broken(e, l, "C58", "attempt %d of %d", l.cycle, r.attempts)
	}
}

// over ends a delivery.
func (h *stormStory) over(e *event.Event, l *letter, status string) {
	l.status = status
	i := slices.Index(l.lane.queue, l)
	if i < 0 {
		h.broken(e, l, "I-24", "it does not wait")
		return
	}
	if i > 0 && !l.lane.way.rules().loose { // I-25
		h.broken(e, l, "I-25", "before it stands %s", l.lane.queue[0].id)
	}
	l.lane.queue = slices.Delete(l.lane.queue, i, i+1)
}

// target reads what is said of the receiver itself.
func (h *stormStory) target(e *event.Event, lane *laneStory, d *telling) {
	h.met[string(e.Type)]++
	switch e.Type {
	case "target.circuit.opened":
		if lane.circuit == "open" || lane.circuit == "" && lane.failures < stormThreshold {
			h.broken(e, nil, "I-25", "the circuit is %q, after %d failures", lane.circuit, lane.failures)
		}
		if lane.circuit == "half_open" {
			h.met["probes that failed"]++
		}
		lane.opens++
		cooldown := stormCooldown
		for n := 1; n < lane.opens && cooldown < stormMaxCooldown; n++ {
			cooldown *= 2
		}
		cooldown = min(cooldown, stormMaxCooldown)
		lane.circuit, lane.until = "open", stormTime(d.Until)
		lane.opened = append(lane.opened, openTime{from: e.Time, until: lane.until})
		if d.Opens != lane.opens || d.CooldownMS != cooldown.Milliseconds() || lane.until.After(e.Time.Add(cooldown+lateness)) {
			h.broken(e, nil, "I-25", "opened the %dth time in a row, for %s", lane.opens, cooldown)
		}
	case "target.circuit.half_opened":
		if lane.circuit != "open" || lane.inFlight > 0 && !lane.way.rules().loose || e.Time.Add(slack).Before(lane.until) {
			h.broken(e, nil, "I-25", "the circuit is %q until %s, %d in flight", lane.circuit, lane.until, lane.inFlight)
		}
		lane.circuit, lane.probe = "half_open", d.DeliveryID
		lane.owes = append(lane.owes, event.TypeDeliveryAttemptStarted)
	case "target.circuit.closed":
		lane.circuit, lane.failures, lane.opens, lane.probe = "", 0, 0, ""
		if d.Actor != "" {
			lane.hold, lane.reset = time.Time{}, e.Time
			if n := len(lane.opened); n > 0 && lane.opened[n-1].until.After(e.Time) {
				lane.opened[n-1].until = e.Time
			}
			h.met["circuits reset by people"]++
		}
	case "target.paused":
		lane.paused = true
	case "target.resumed":
		lane.paused = false
	default:
		h.broken(e, nil, "I-25", "it is not known")
	}
}

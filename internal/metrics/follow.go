package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/outbox"
)

const (
	// maxRuns and maxCalls bound the memory of what has begun and not ended.
	maxRuns  = 1 << 16
	maxCalls = 1 << 16
)

// route is the labels of one way to a model, and the series that carry them.
type route struct {
	price                  *llm.Price
	turnEnded, turnFailed  prometheus.Observer
	first                  prometheus.Observer
	calls                  map[string]prometheus.Observer // by outcome
	failures               map[string]prometheus.Counter  // by class
	input, output          prometheus.Counter
	read, write, reasoning prometheus.Counter
	cost, unpriced         prometheus.Counter
	labels                 [3]string
	s                      *series
}

func newRoute(s *series, name, provider, model string, price *llm.Price) *route {
	return &route{price: price, labels: [3]string{name, provider, model}, s: s,
		calls: map[string]prometheus.Observer{}, failures: map[string]prometheus.Counter{}}
}

func (r *route) with(last string) []string {
	return []string{r.labels[0], r.labels[1], r.labels[2], last}
}

// open is a run that has not ended, as far as it is needed.
type open struct {
	created time.Time // zero: before this process
	step    time.Time // of the open turn; zero: none
	route   *route    // of the last model call
	calls   map[event.CallID]string
}

// follower counts events, one after the other.
type follower struct {
	s      *series
	routes map[string]*configured // by name
	none   *route                 // began before this process
	other  *route                 // not configured
	runs   map[event.RunID]*open
	calls  int // remembered, over all runs
	zero   open
}

type configured struct {
	Route
	own, other *route // the configured model, and any other that a caller named
}

func newFollower(s *series, routes []Route) follower {
	f := follower{s: s, routes: map[string]*configured{}, runs: map[event.RunID]*open{},
		none: newRoute(s, unknown, unknown, unknown, nil), other: newRoute(s, other, other, other, nil)}
	for _, r := range routes {
		f.routes[r.Name] = &configured{r, newRoute(s, r.Name, r.Provider, r.Model, r.Price), newRoute(s, r.Name, r.Provider, other, nil)}
	}
	return f
}

// routeOf finds the labels of a call. A model that a caller named is other.
func (f *follower) routeOf(d *event.ModelCallStarted) *route {
	c, ok := f.routes[d.Route]
	switch {
	case !ok || c.Provider != d.Provider:
		return f.other
	case c.Model == d.Model:
		return c.own
	}
	return c.other
}

// run gives the memory of a run. When there is no place for another it gives
// one that forgets.
func (f *follower) run(id event.RunID) *open {
	if o := f.runs[id]; o != nil {
		return o
	}
	if len(f.runs) >= maxRuns {
		f.s.untracked.Inc()
		f.zero = open{}
		return &f.zero
	}
	o := &open{}
	f.runs[id] = o
	return o
}

// known is run that remembers nothing new.
func (f *follower) known(id event.RunID) *open {
	if o := f.runs[id]; o != nil {
		return o
	}
	f.zero = open{}
	return &f.zero
}

func (o *open) way(f *follower) *route {
	if o.route == nil {
		return f.none
	}
	return o.route
}

// event counts one event. Its data is read during the call only.
func (f *follower) event(e *event.Event) {
	s := f.s
	switch d := e.Data.(type) {
	case *event.RunCreated:
		s.submitted.Inc()
		f.run(e.RunID).created = e.Time
	case *event.RunStarted:
		if o := f.known(e.RunID); !o.created.IsZero() {
			s.queueTime.Observe(seconds(e.Time.Sub(o.created)))
		}
	case *event.RunCompleted:
		f.end(e, "completed")
	case *event.RunFailed:
		f.end(e, "failed")
	case *event.RunCancelled:
		f.end(e, "cancelled")
	case *event.RunInterrupted:
		f.end(e, "interrupted")
	case *event.StepStarted:
		f.run(e.RunID).step = e.Time
	case *event.StepEnded:
		f.turn(e, false)
	case *event.StepFailed:
		f.turn(e, true)
	case *event.ModelCallStarted:
		f.run(caller(e)).route = f.routeOf(d)
	case *event.ModelCallCompleted:
		f.known(caller(e)).way(f).completed(d)
	case *event.ModelCallFailed:
		f.known(caller(e)).way(f).failed(d)
	case *event.ContextCompacted:
		f.compacted(e, d.Reason, "compacted")
	case *event.CompactionFailed:
		f.compacted(e, d.Reason, "failed")
	case *event.RetryScheduled:
		s.retries.WithLabelValues(oneOf(d.Class, classes)).Inc()
	case *event.ContractChecked:
		result := "mismatch"
		if d.OK {
			result = "ok"
		}
		s.checks.WithLabelValues(oneOf(d.Gate, gates), result).Inc()
	case *event.RepairRequested:
		s.repairs.Inc()
	default:
		if !f.tool(e) {
			f.delivery(e)
		}
	}
}

// caller is under what the route of a model call is remembered: its run, or the
// compaction whose summary it writes, which may go another route.
func caller(e *event.Event) event.RunID {
	if e.StepID.IsCompaction() {
		return event.RunID(e.StepID)
	}
	return e.RunID
}

// compacted counts the end of a compaction, and forgets it.
func (f *follower) compacted(e *event.Event, why event.CompactionReason, outcome string) {
	f.s.compactions.WithLabelValues(oneOf(string(why), reasons), outcome).Inc()
	delete(f.runs, caller(e))
}

// end forgets a run.
func (f *follower) end(e *event.Event, status string) {
	f.s.ended.WithLabelValues(status).Inc()
	o := f.known(e.RunID)
	if !o.created.IsZero() {
		f.s.runTime.WithLabelValues(status).Observe(seconds(e.Time.Sub(o.created)))
	}
	f.calls -= len(o.calls)
	delete(f.runs, e.RunID)
}

func (f *follower) turn(e *event.Event, failed bool) {
	o := f.known(e.RunID)
	if o.step.IsZero() {
		return
	}
	r := o.way(f)
	at, outcome := &r.turnEnded, "ended"
	if failed {
		at, outcome = &r.turnFailed, "failed"
	}
	if *at == nil {
		*at = f.s.turns.WithLabelValues(r.with(outcome)...)
	}
	(*at).Observe(seconds(e.Time.Sub(o.step)))
	o.step = time.Time{}
}

func (r *route) call(outcome string, ms int64) {
	o := r.calls[outcome]
	if o == nil {
		o = r.s.calls.WithLabelValues(r.with(outcome)...)
		r.calls[outcome] = o
	}
	o.Observe(millis(ms))
}

func (r *route) completed(d *event.ModelCallCompleted) {
	if r.first == nil {
		w := r.labels[:]
		r.first, r.unpriced = r.s.first.WithLabelValues(w...), r.s.unpriced.WithLabelValues(w...)
		for _, k := range []struct {
			to   *prometheus.Counter
			kind string
		}{{&r.input, "input"}, {&r.output, "output"}, {&r.read, "cache_read"}, {&r.write, "cache_write"}, {&r.reasoning, "reasoning"}} {
			*k.to = r.s.tokens.WithLabelValues(r.with(k.kind)...)
		}
		if r.price != nil {
			r.cost = r.s.cost.WithLabelValues(w...)
		}
	}
	r.call("completed", d.DurationMS)
	r.first.Observe(millis(d.FirstOutputMS))
	if u := d.Usage; u != nil {
		count(r.input, u.Input)
		count(r.output, u.Output)
		count(r.read, u.CacheRead)
		count(r.write, u.CacheWrite)
		count(r.reasoning, u.Reasoning)
	}
	if d.Usage == nil || r.price == nil {
		r.unpriced.Inc()
		return
	}
	u := llm.Usage(*d.Usage)
	r.cost.Add(max(r.price.Cost(&u), 0))
}

func (r *route) failed(d *event.ModelCallFailed) {
	outcome := "failed"
	switch llm.Class(d.Class) {
	case llm.Aborted, llm.Abandoned:
		outcome = d.Class
	}
	class := oneOf(d.Class, classes)
	c := r.failures[class]
	if c == nil {
		c = r.s.callFailures.WithLabelValues(r.with(class)...)
		r.failures[class] = c
	}
	c.Inc()
	r.call(outcome, d.DurationMS)
}

// tool counts an event of a tool call; false: it is none.
func (f *follower) tool(e *event.Event) bool {
	switch d := e.Data.(type) {
	case *event.ToolRequested:
		if f.calls >= maxCalls {
			f.s.untracked.Inc()
			return true
		}
		o := f.run(e.RunID)
		if o == &f.zero {
			return true
		}
		if o.calls == nil {
			o.calls = map[event.CallID]string{}
		}
		if _, again := o.calls[e.CallID]; !again {
			f.calls++
		}
		o.calls[e.CallID] = levelOf(d.Level)
	case *event.ToolCompleted:
		f.toolEnded(e, "completed", d.DurationMS)
	case *event.ToolFailed:
		f.toolEnded(e, "failed", d.DurationMS)
	case *event.ToolTimeout:
		f.toolEnded(e, "timeout", -1)
	case *event.ToolRejected:
		f.toolEnded(e, "rejected", -1)
	case *event.ToolInterrupted:
		f.toolEnded(e, "interrupted", -1)
	default:
		return false
	}
	return true
}

// toolEnded counts the end of a call; ms below 0: it took no time that tells anything.
func (f *follower) toolEnded(e *event.Event, outcome string, ms int64) {
	o := f.known(e.RunID)
	level, known := o.calls[e.CallID]
	if known {
		delete(o.calls, e.CallID)
		f.calls--
	} else {
		level = unknown
	}
	f.s.tools.WithLabelValues(level, outcome).Inc()
	if ms >= 0 {
		f.s.toolTime.WithLabelValues(level).Observe(millis(ms))
	}
}

// levelOf takes the level of a call that was asked for; a tool that is not
// configured has none.
func levelOf(level string) string {
	if l := oneOf(level, levels); l != other {
		return l
	}
	return unknown
}

func (f *follower) delivery(e *event.Event) {
	s := f.s
	step := func(name string) { s.deliveries.WithLabelValues(name).Inc() }
	switch d := e.Data.(type) {
	case *event.DeliveryEnqueued:
		step("enqueued")
	case *event.DeliveryDelivered:
		step("delivered")
		s.attempts.WithLabelValues("delivered").Inc()
		s.attemptTime.Observe(millis(d.DurationMS))
		s.lag.Observe(millis(d.LagMS))
	case *event.DeliveryAttemptFailed:
		class := d.Class
		if class == "" { // of an old event
			class = outbox.Class(d.Code, d.Status)
		}
		s.attempts.WithLabelValues(oneOf(class, attemptClasses)).Inc()
		s.attemptTime.Observe(millis(d.DurationMS))
	case *event.DeliveryDeadLettered:
		step("dead_lettered")
	case *event.DeliveryReplayed:
		step("replayed")
	case *event.DeliveryResolved:
		step("resolved")
	}
}

func count(c prometheus.Counter, n int64) {
	if n > 0 { // a vendor's slip must not turn a counter back
		c.Add(float64(n))
	}
}

func millis(ms int64) float64 { return max(float64(ms), 0) / 1000 }

func seconds(d time.Duration) float64 { return max(d.Seconds(), 0) }

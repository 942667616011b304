package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/outbox"
)

// The closed sets of label values. What is in none is other; what began before
// this process and is not remembered is unknown.
const (
	other   = "other"
	unknown = "unknown"
)

var (
	endings        = []string{"completed", "failed", "cancelled", "interrupted"}
	toolOutcomes   = []string{"completed", "failed", "timeout", "rejected", "interrupted"}
	levels         = []string{"none", "read", "write", "external_effect", "irreversible"}
	tokenKinds     = []string{"input", "output", "cache_read", "cache_write", "reasoning"}
	gates          = []string{"input", "output"}
	reasons        = []string{"auto", "overflow", "manual"}
	steps          = []string{"enqueued", "delivered", "dead_lettered", "replayed", "resolved"}
	streamKinds    = []string{"session", "target"}
	takeOutcomes   = []string{"some", "none", "failed"}
	fences         = []string{"fenced", "held"}
	claimKinds     = []string{"first", "moved", "resumed"}
	received       = []string{"accepted", "repeated", "ignored", "challenge", "refused", "conflict", "unauthenticated", "limited", "failed"}
	signals        = []string{"traces", "metrics"}
	exportOutcomes = []string{"sent", "refused", "failed"}
	classes        = []string{
		"auth", "billing", "rate_limit", "overloaded", "context_overflow", "content_filter", "invalid_request",
		"transport", "truncated", "server", "protocol", "unknown", "aborted", "abandoned",
	}
	attemptClasses = append([]string{"delivered"}, outbox.Classes()...)
)

func oneOf(value string, set []string) string {
	if slices.Contains(set, value) {
		return value
	}
	return other
}

// Buckets, in seconds: of what waits for people and models, and of what waits for a disk.
var (
	longBuckets  = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
	lagBuckets   = []float64{.01, .025, .05, .1, .25, .5, 1, 5, 15, 60, 300, 1800, 7200, 21600, 86400, 259200}
	callBuckets  = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600}
	shortBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	sizeBuckets  = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// series is what the followed events move.
type series struct {
	submitted, untracked, repairs             prometheus.Counter
	ended, retries, tokens, cost, unpriced    *prometheus.CounterVec
	callFailures, tools, checks, deliveries   *prometheus.CounterVec
	compactions                               *prometheus.CounterVec
	attempts, exports, exportDrops            *prometheus.CounterVec
	runTime, turns, calls, first, toolTime    *prometheus.HistogramVec
	queueTime, attemptTime, lag               prometheus.Histogram
	batchSize, commit, slowest                prometheus.Histogram
	events, refused, commitFailures, scrapeNo prometheus.Counter
	takes, taken, fenced, claimed             *prometheus.CounterVec
	newsLag                                   prometheus.Histogram
	inbound                                   *prometheus.CounterVec
}

var way = []string{"route", "provider", "model"}

func with(more ...string) []string { return append(slices.Clone(way), more...) }

// define makes every metric of the package.
func (m *Metrics) define() {
	s := &m.series
	m.backlog = newBacklog(m)
	s.submitted = m.counter("holdfast_runs_submitted_total", "Runs that were accepted.").WithLabelValues()
	s.ended = m.counter("holdfast_runs_ended_total", "Runs that came to their end, by status.", "status")
	s.runTime = m.histogram("holdfast_run_duration_seconds", "From submission to the end of a run. Runs submitted before this process began are left out.", longBuckets, "status")
	s.queueTime = m.histogram("holdfast_run_queue_seconds", "From submission to the start of a run. Runs submitted before this process began are left out.", longBuckets).
		WithLabelValues().(prometheus.Histogram)

	s.turns = m.histogram("holdfast_turn_duration_seconds", "From the start of a turn to its end, its tool calls included. Outcome is ended or failed.", callBuckets, with("outcome")...)
	s.calls = m.histogram("holdfast_model_call_duration_seconds", "Duration of a model call, one physical attempt. Outcome is completed, failed, aborted (stopped by us) or abandoned (its process ended).", callBuckets, with("outcome")...)
	s.first = m.histogram("holdfast_model_first_output_seconds", "From the start of a model call to its first output; of calls that completed.", callBuckets, way...)
	s.callFailures = m.counter("holdfast_model_call_failures_total", "Model calls that did not complete, by class of failure.", with("class")...)
	s.retries = m.counter("holdfast_model_retries_total", "Retries of model calls that were scheduled, by class of the failure before.", "class")
	s.tokens = m.counter("holdfast_tokens_total", "Tokens of completed model calls, by kind: input (cache_read and cache_write are part of it) and output (reasoning is part of it).", with("kind")...)
	s.cost = m.counter("holdfast_cost_usd_total", "Cost of completed model calls in US dollars, where the route has a price and the vendor said the usage.", way...)
	s.unpriced = m.counter("holdfast_model_calls_unpriced_total", "Completed model calls whose cost is not known: no price, another model than the route's, or no usage.", way...)

	s.tools = m.counter("holdfast_tool_calls_total", "Tool calls that came to their end, by side-effect level and outcome. Level unknown: of no configured tool, or requested before this process began.", "level", "outcome")
	s.toolTime = m.histogram("holdfast_tool_duration_seconds", "Duration of tool calls that gave a result or an error, by side-effect level.", callBuckets, "level")
	s.checks = m.counter("holdfast_contract_checks_total", "Verdicts of contracts, by gate and result (ok or mismatch).", "gate", "result")
	s.repairs = m.counter("holdfast_contract_repairs_total", "Repairs of answers that were asked for.").WithLabelValues()

	s.compactions = m.counter("holdfast_compactions_total", "Compactions of contexts that came to their end, by reason (auto, overflow, manual) and outcome (compacted, failed). The calls that write summaries are among the model calls.", "reason", "outcome")

	s.deliveries = m.counter("holdfast_deliveries_total", "Steps of deliveries: enqueued, delivered, dead_lettered, replayed, resolved.", "step")
	s.attempts = m.counter("holdfast_delivery_attempts_total", "Attempts of deliveries that ended, by class: delivered, or why not.", "class")
	s.lag = m.histogram("holdfast_delivery_lag_seconds", "From the enqueueing or replay of deliveries until they were delivered.", lagBuckets).WithLabelValues().(prometheus.Histogram)
	s.attemptTime = m.histogram("holdfast_delivery_attempt_duration_seconds", "Duration of attempts of deliveries.", callBuckets).WithLabelValues().(prometheus.Histogram)

	s.inbound = m.counter("holdfast_connector_requests_total", "Requests to connectors, by connector and outcome: accepted (a new run), repeated, ignored, challenge, refused, conflict, unauthenticated, limited, failed.", "connector", "outcome")

	s.batchSize = m.histogram("holdfast_store_append_batch_size", "Appends that one transaction committed.", sizeBuckets).WithLabelValues().(prometheus.Histogram)
	s.commit = m.histogram("holdfast_store_commit_duration_seconds", "From the begin of a transaction to the end of its commit.", shortBuckets).WithLabelValues().(prometheus.Histogram)
	s.slowest = m.histogram("holdfast_store_append_duration_seconds", "From the hand-over of an append to the end of its commit; of each transaction the append that waited longest.", shortBuckets).
		WithLabelValues().(prometheus.Histogram)
	s.events = m.counter("holdfast_store_events_total", "Events that were committed.").WithLabelValues()
	s.refused = m.counter("holdfast_store_appends_refused_total", "Appends that were refused: a moved head, a fence, a precondition. They are made anew.").WithLabelValues()
	s.commitFailures = m.counter("holdfast_store_commit_failures_total", "Transactions that did not commit. A full disk shows here.").WithLabelValues()
	m.gaugeFunc("holdfast_store_appends_waiting", "Appends that wait for the writer.", m.cfg.Waiting)

	m.gaugeFunc("holdfast_sessions_active", "Sessions that are worked on now.", m.cfg.ActiveSessions)
	m.gaugeFunc("holdfast_stream_subscribers", "Open event streams (SSE).", m.cfg.Subscribers)
	m.nodes()
	m.bus()
	m.room()
	s.exports = m.counter("holdfast_telemetry_exports_total", "Requests to the OTLP collector, by signal and outcome (sent, refused, failed).", "signal", "outcome")
	s.exportDrops = m.counter("holdfast_telemetry_dropped_total", "What the collector will not get: traces of runs, sendings of metrics.", "signal")
	s.untracked = m.counter("holdfast_metrics_untracked_total", "Runs and calls that began while too many were remembered: they are counted, their durations and routes are not.").WithLabelValues()
	s.scrapeNo = m.counter("holdfast_metrics_store_errors_total", "Scrapes in which the store could not be asked: its gauges are missing there.").WithLabelValues()
	m.buildInfo()
}

func (m *Metrics) add(c prometheus.Collector, kind, name, help string, labels []string) {
	m.registry.MustRegister(c)
	m.defs = append(m.defs, Definition{Name: name, Type: kind, Help: help, Labels: labels})
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.add(v, "counter", name, help, labels)
	return v
}

// gauge is a gauge with labels.
func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.add(v, "gauge", name, help, labels)
	return v
}

func (m *Metrics) gaugeFunc(name, help string, f func() int) {
	m.add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if f == nil {
			return 0
		}
		return float64(f())
	}), "gauge", name, help, nil)
}

// bus makes the metrics of the bus between nodes.
func (m *Metrics) bus() {
	now := func() Bus {
		if m.cfg.Bus == nil {
			return Bus{}
		}
		return m.cfg.Bus()
	}
	one := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	m.gaugeFunc("holdfast_bus_configured", "Whether there is a bus between nodes: 1, or 0.", func() int { return one(now().Configured) })
	m.gaugeFunc("holdfast_bus_connected", "Whether the bus between nodes can be used now: 1, or 0.", func() int { return one(now().Connected) })
	m.gaugeFunc("holdfast_bus_peers", "Other nodes that were heard of on the bus in the last seconds.", func() int { return now().Peers })
	m.gaugeFunc("holdfast_bus_subjects", "Sessions whose live deltas are subscribed to on the bus.", func() int { return now().Subjects })
	m.counterFunc("holdfast_bus_connects_total", "Connections to the bus that were made.", func() uint64 { return now().Connects })
	m.counterFunc("holdfast_bus_messages_sent_total", "Messages that were sent on the bus, with deltas or without.", func() uint64 { return now().Messages })
	m.counterFunc("holdfast_bus_deltas_sent_total", "Live deltas that were sent because another node wanted them.", func() uint64 { return now().Sent })
	m.counterFunc("holdfast_bus_deltas_received_total", "Live deltas that came from other nodes.", func() uint64 { return now().Received })
	m.counterFunc("holdfast_bus_deltas_dropped_total", "Live deltas that could not be sent, because the bus was away or too slow. Readers are told.", func() uint64 { return now().Dropped })
	m.counterFunc("holdfast_bus_messages_missed_total", "Messages that came faster than they could be read, or that could not be read.", func() uint64 { return now().Missed })
}

// room makes the metrics of what the store has left.
func (m *Metrics) room() {
	now := func() Room {
		if m.cfg.Room == nil {
			return Room{}
		}
		return m.cfg.Room()
	}
	one := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	m.gaugeFunc("holdfast_store_free_bytes", "Free bytes of the disk under the data directory; -1 where that is not known.", func() int {
		if r := now(); r.Known {
			return int(min(r.Free, 1<<62))
		}
		return -1
	})
	m.gaugeFunc("holdfast_store_reserve_bytes", "Bytes of that disk that are kept for the work under way (store.reserve); 0 with database_url.", func() int { return int(now().Reserve) })
	m.gaugeFunc("holdfast_store_full", "Whether new work is refused for want of room: 1, or 0.", func() int { return one(now().Low) })
	m.gaugeFunc("holdfast_store_held", "Whether no model call, tool or delivery begins: for want of room, because the database is damaged, or until a restored data directory is released: 1, or 0.", func() int { return one(now().Held) })
	m.gaugeFunc("holdfast_store_damaged", "Whether the database was found to be damaged; then nothing more is written: 1, or 0.", func() int { return one(now().Damaged) })
	m.counterFunc("holdfast_store_refused_full_total", "Commands and appends that found no room.", func() uint64 { return now().Refused })
}

func (m *Metrics) counterFunc(name, help string, f func() uint64) {
	m.add(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(f()) }), "counter", name, help, nil)
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.add(v, "histogram", name, help, labels)
	return v
}

// begin lets every series that can be foreseen stand at zero from the start,
// so that a rate has something to rise from.
func (m *Metrics) begin() {
	s := &m.series
	zero := func(v *prometheus.CounterVec, values ...[]string) {
		for _, list := range product(values) {
			v.WithLabelValues(list...)
		}
	}
	zero(s.ended, endings)
	zero(s.retries, classes)
	zero(s.tools, append(slices.Clone(levels), unknown), toolOutcomes)
	zero(s.checks, gates, []string{"ok", "mismatch"})
	zero(s.compactions, reasons, []string{"compacted", "failed"})
	zero(s.deliveries, steps)
	zero(s.attempts, attemptClasses)
	zero(s.takes, streamKinds, takeOutcomes)
	zero(s.taken, streamKinds)
	zero(s.fenced, fences)
	zero(s.claimed, claimKinds)
	zero(s.inbound, m.cfg.Connectors, received)
	zero(s.exports, signals, exportOutcomes)
	zero(s.exportDrops, signals)
	for _, r := range m.cfg.Routes {
		w := []string{r.Name, r.Provider, r.Model}
		for _, kind := range tokenKinds {
			s.tokens.WithLabelValues(append(slices.Clone(w), kind)...)
		}
		for _, class := range classes {
			s.callFailures.WithLabelValues(append(slices.Clone(w), class)...)
		}
		s.unpriced.WithLabelValues(w...)
		if r.Price != nil {
			s.cost.WithLabelValues(w...)
		}
	}
}

// product gives every list that takes one value of each set.
func product(sets [][]string) [][]string {
	out := [][]string{nil}
	for _, set := range sets {
		var next [][]string
		for _, head := range out {
			for _, v := range set {
				next = append(next, append(slices.Clone(head), v))
			}
		}
		out = next
	}
	return out
}

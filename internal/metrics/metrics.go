// Package metrics counts what the daemon does, for Prometheus.
//
// What happened is counted from the events of each commit, on the writer of the
// log: nothing is counted that was not committed, and nothing that was is
// missed. Counting takes no lock that a scrape holds for long, does no I/O and
// keeps a bounded memory of what has begun and not ended. What stands now is
// asked of the store when somebody scrapes, from indices that hold the backlog only.
//
// Label values come from closed sets and from the configuration, never from a
// model, a tool or a caller, and never are they ids (I-33).
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Route is a configured way to a model.
type Route struct {
	Name, Provider, Model string
	Price                 *llm.Price // nil: not known
}

// Config says what is counted, and who is asked. Functions that are nil give nothing.
type Config struct {
	Routes            []Route
	Connectors        []string // names of the configured ones
	Version, Revision string
	// Backlog is asked at a scrape, at most once a second.
	Backlog func(ctx context.Context) (eventlog.Backlog, error)
	// Subscribers, ActiveSessions and Waiting are asked at each scrape.
	Subscribers, ActiveSessions, Waiting func() int
	// Bus is asked at each scrape.
	Bus func() Bus
	// Room is asked at each scrape.
	Room func() Room
	// Nodes is asked at each scrape.
	Nodes  func() Nodes
	Logger *slog.Logger // default: none
}

// Bus is what the bus between nodes has done since the process began.
type Bus struct {
	Configured, Connected           bool
	Peers, Subjects                 int
	Connects, Messages              uint64
	Sent, Received, Dropped, Missed uint64
}

// Room is how much the store has left.
type Room struct {
	Free, Reserve      uint64
	Known              bool // what is free
	Low, Held, Damaged bool
	Refused            uint64 // commands, since the process began
}

// Nodes is what this process knows of the nodes that share its store, and of its
// own lease.
type Nodes struct {
	Alive, Draining             int           // nodes, this one included
	TTL, Left                   time.Duration // of the lease; TTL 0: it does not end
	Held                        int           // sessions
	Beats, Late, Failed, Lost   uint64
	SessionsGiven, TargetsGiven uint64
}

// Metrics is one registry and what fills it. It is safe for concurrent use.
type Metrics struct {
	cfg      Config
	registry *prometheus.Registry
	defs     []Definition
	series   series
	backlog  *backlog

	mu     sync.Mutex // of follow
	follow follower
}

// Definition describes a metric, for documentation.
type Definition struct {
	Name, Type, Help string
	Labels           []string
}

// Definitions lists the metrics of this package, in the order of the reference.
func (m *Metrics) Definitions() []Definition { return m.defs }

// New makes a registry of its own. Nothing is registered anywhere else.
func New(cfg Config) *Metrics {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Metrics{cfg: cfg, registry: prometheus.NewRegistry()}
	m.define()
	m.follow = newFollower(&m.series, cfg.Routes)
	m.begin()
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Committed counts the events of a commit. It is called by the writer, in the
// order of commits, before the events' data is anybody else's.
func (m *Metrics) Committed(stamps []eventlog.Stamp) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range stamps {
		m.follow.claims(stamps[i].Events)
		for j := range stamps[i].Events {
			m.follow.event(&stamps[i].Events[j])
		}
	}
}

// Batch is one transaction of the log's writer.
type Batch struct {
	Appends, Refused, Events int
	Took, Longest            time.Duration // see the store
	Failed                   bool
}

// Batch counts a transaction.
func (m *Metrics) Batch(b Batch) {
	s := &m.series
	if b.Failed {
		s.commitFailures.Inc()
		return
	}
	s.refused.Add(float64(b.Refused))
	if b.Appends == 0 {
		return
	}
	s.batchSize.Observe(float64(b.Appends))
	s.commit.Observe(b.Took.Seconds())
	s.slowest.Observe(b.Longest.Seconds())
	s.events.Add(float64(b.Events))
}

// Took counts a question for work: kind is session or target, n how many streams
// came, fresh how many of them this node had not had.
func (m *Metrics) Took(kind string, n, fresh int, err error) {
	outcome := "some"
	switch {
	case err != nil:
		outcome = "failed"
	case n == 0:
		outcome = "none"
	}
	kind = oneOf(kind, streamKinds)
	m.series.takes.WithLabelValues(kind, outcome).Inc()
	m.series.taken.WithLabelValues(kind).Add(float64(fresh))
}

// Fenced counts an append that the store refused because the stream is another
// node's: reason is fenced (handed on) or held (not free to claim).
func (m *Metrics) Fenced(reason string) {
	m.series.fenced.WithLabelValues(oneOf(reason, fences)).Inc()
}

// Heard counts a look that found news of other nodes, the oldest written so long
// before.
func (m *Metrics) Heard(lag time.Duration) { m.series.newsLag.Observe(lag.Seconds()) }

// Exported counts what went to a collector: signal is traces or metrics,
// outcome sent, refused or failed.
func (m *Metrics) Exported(signal, outcome string) {
	m.series.exports.WithLabelValues(oneOf(signal, signals), oneOf(outcome, exportOutcomes)).Inc()
}

// Dropped counts what no collector will get: runs of traces, sendings of metrics.
func (m *Metrics) Dropped(signal string, n int) {
	m.series.exportDrops.WithLabelValues(oneOf(signal, signals)).Add(float64(n))
}

// Gather gives everything, sorted by name. A part that cannot be read is left
// out and counted.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

// ContentType is that of Text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Text gives everything in Prometheus' text format.
func (m *Metrics) Text() ([]byte, error) {
	families, err := m.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return nil, fmt.Errorf("write metrics: %w", err)
		}
	}
	return b.Bytes(), nil
}

func (m *Metrics) buildInfo() {
	m.gauge("holdfast_build_info", "The build: 1, by version, revision and Go version.", "version", "revision", "go_version").
		WithLabelValues(m.cfg.Version, m.cfg.Revision, runtime.Version()).Set(1)
}

package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

const (
	// backlogTTL bounds how often the store is asked, whoever scrapes.
	backlogTTL = time.Second
	// backlogTimeout bounds one question.
	backlogTimeout = 2 * time.Second
)

// backlog gives the gauges that the store is asked for.
type backlog struct {
	m                                              *Metrics
	runs, oldestRun, pending, dead, oldestDelivery *prometheus.Desc
	retrying, blocked, circuits, paused            *prometheus.Desc

	mu   sync.Mutex
	have eventlog.Backlog
	at   time.Time // of have; zero: none
}

func newBacklog(m *Metrics) *backlog {
	b := &backlog{m: m}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		m.defs = append(m.defs, Definition{Name: name, Type: "gauge", Help: help, Labels: labels})
		return prometheus.NewDesc(name, help, labels, nil)
	}
	b.runs = desc("holdfast_runs", "Runs that are not at their end, by status; status queued is the depth of the queue. Counts stop at a million.", "status")
	b.oldestRun = desc("holdfast_queue_oldest_age_seconds", "How long the queued run that waits longest has waited; 0 when none is queued.")
	b.pending = desc("holdfast_deliveries_pending", "Deliveries that are not at their end. The count stops at a million.")
	b.oldestDelivery = desc("holdfast_deliveries_oldest_pending_age_seconds", "How long the pending delivery that waits longest has waited, since it was enqueued or last replayed; 0 when none is pending.")
	b.dead = desc("holdfast_deliveries_dead_lettered", "Dead letters that wait for a person. The count stops at a million.")
	b.retrying = desc("holdfast_deliveries_retrying", "Of the pending deliveries, those whose last attempt failed. The count stops at a million.")
	b.blocked = desc("holdfast_targets_blocked", "Targets at which deliveries wait behind one that is retried. The count stops at a million.")
	b.circuits = desc("holdfast_targets_circuits", "Targets whose circuit is not closed, by its state.", "state")
	b.paused = desc("holdfast_targets_paused", "Targets that are paused, by a person or by a 410.")
	m.registry.MustRegister(b)
	return b
}

// Describe implements prometheus.Collector.
func (b *backlog) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{b.runs, b.oldestRun, b.pending, b.oldestDelivery, b.dead, b.retrying, b.blocked, b.circuits, b.paused} {
		out <- d
	}
}

// Collect implements prometheus.Collector. When the store cannot be asked the
// gauges are missing, which is what is known.
func (b *backlog) Collect(out chan<- prometheus.Metric) {
	have, ok := b.read()
	if !ok {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, status := range []string{"queued", "running", "needs_attention"} {
		gauge(b.runs, float64(have.Runs[status]), status)
	}
	for status, n := range have.Runs { // statuses are the rules' own words
		switch status {
		case "queued", "running", "needs_attention":
		default:
			gauge(b.runs, float64(n), status)
		}
	}
	gauge(b.oldestRun, age(have.OldestQueued))
	gauge(b.pending, float64(have.PendingDeliveries))
	gauge(b.oldestDelivery, age(have.OldestDelivery))
	gauge(b.dead, float64(have.DeadLettered))
	gauge(b.retrying, float64(have.Retrying))
	gauge(b.blocked, float64(have.BlockedTargets))
	gauge(b.circuits, float64(have.OpenCircuits), "open")
	gauge(b.circuits, float64(have.HalfOpenCircuits), "half_open")
	gauge(b.paused, float64(have.PausedTargets))
}

// read asks the store, or gives what it said within the last second.
func (b *backlog) read() (eventlog.Backlog, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m.cfg.Backlog == nil {
		return b.have, false
	}
	now := time.Now()
	if !b.at.IsZero() && now.Sub(b.at) < backlogTTL {
		return b.have, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), backlogTimeout)
	defer cancel()
	have, err := b.m.cfg.Backlog(ctx)
	if err != nil {
		b.at = time.Time{}
		b.m.series.scrapeNo.Inc()
		b.m.cfg.Logger.Warn("metrics: ask the store", "err", err)
		return b.have, false
	}
	b.have, b.at = have, now
	return have, true
}

// age is the time since a stored time, in seconds; 0 when there is none.
func age(stored string) float64 {
	at, err := event.ParseTime(stored)
	if err != nil {
		return 0
	}
	return max(time.Since(at).Seconds(), 0)
}

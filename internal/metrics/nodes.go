package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// nodes makes the metrics of the nodes that share a store, and of who works on what.
func (m *Metrics) nodes() {
	s := &m.series
	l := &leases{ask: m.cfg.Nodes}
	desc := func(kind, name, help string, labels ...string) *prometheus.Desc {
		m.defs = append(m.defs, Definition{Name: name, Type: kind, Help: help, Labels: labels})
		return prometheus.NewDesc(name, help, labels, nil)
	}
	l.alive = desc("gauge", "holdfast_nodes", "Nodes that share the store, this one included, by state (working or draining), as of the last beat of this node.", "state")
	l.ttl = desc("gauge", "holdfast_lease_ttl_seconds", "How long the lease of this node runs from a beat; 0: it does not end, since there are no other nodes.")
	l.left = desc("gauge", "holdfast_lease_remaining_seconds", "How long the lease of this node still runs; 0 when it has ended, and where leases do not end. Below a fifth of the lease nothing new begins.")
	l.beats = desc("counter", "holdfast_lease_beats_total", "Beats of this node, by outcome: in_time, late (taken by the store, when nothing new might begin any more) or failed.", "outcome")
	l.lost = desc("counter", "holdfast_leases_lost_total", "Leases of this node that ended before its next beat. Its work was cut, and went on at other nodes.")
	l.held = desc("gauge", "holdfast_sessions_held", "Sessions that are this node's: those worked on, and those that wait for their time or for a place.")
	l.given = desc("counter", "holdfast_streams_given_total", "Sessions and receivers that still wanted work and that this node gave to others, by kind (session, target).", "kind")
	m.registry.MustRegister(l)
	s.claimed = m.counter("holdfast_session_claims_total", "Sessions that became this node's, by kind: first (nobody's before), moved (another's before, between two runs) or resumed (in the middle of a run that another node had begun).", "kind")
	s.takes = m.counter("holdfast_take_calls_total", "Questions to the store for work, by kind (session, target) and outcome (some, none, failed).", "kind", "outcome")
	s.taken = m.counter("holdfast_streams_taken_total", "Sessions and receivers that the store handed to this node because it asked, by kind (session, target).", "kind")
	s.fenced = m.counter("holdfast_appends_fenced_total", "Appends that the store refused because the stream is another node's, by reason: fenced (it was handed on) or held (it was not free).", "reason")
	s.newsLag = m.histogram("holdfast_news_lag_seconds", "From the writing of events at another node to their being heard of here; of each look the oldest.", shortBuckets).
		WithLabelValues().(prometheus.Histogram)
}

// leases gives what is asked of the tenure, once a scrape.
type leases struct {
	ask                                        func() Nodes
	alive, ttl, left, beats, lost, held, given *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (l *leases) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.alive, l.ttl, l.left, l.beats, l.lost, l.held, l.given} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (l *leases) Collect(out chan<- prometheus.Metric) {
	var n Nodes
	if l.ask != nil {
		n = l.ask()
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(l.alive, float64(n.Alive), "working")
	gauge(l.alive, float64(n.Draining), "draining")
	gauge(l.ttl, n.TTL.Seconds())
	gauge(l.left, n.Left.Seconds())
	counter(l.beats, n.Beats-n.Late, "in_time")
	counter(l.beats, n.Late, "late")
	counter(l.beats, n.Failed, "failed")
	counter(l.lost, n.Lost)
	gauge(l.held, float64(n.Held))
	counter(l.given, n.SessionsGiven, "session")
	counter(l.given, n.TargetsGiven, "target")
}

// claimOf says what a claim among the events of one append was: first, moved or
// resumed; empty: there is none. Of a claim in the middle of a run the events
// behind it speak of a run that they do not begin, nor cancel in the queue.
func claimOf(events []event.Event) string {
	at := 0
	for ; at < len(events); at++ {
		if _, ok := events[at].Data.(*event.OwnerClaimed); ok {
			break
		}
	}
	switch {
	case at == len(events):
		return ""
	case events[at].Epoch <= 1:
		return "first"
	}
	rest := events[at:]
	fresh := map[event.RunID]bool{}
	for i := range rest {
		switch rest[i].Data.(type) {
		case *event.RunStarted, *event.RunCancelled:
			fresh[rest[i].RunID] = true
		}
	}
	for i := range rest {
		if id := rest[i].RunID; id != "" && !fresh[id] {
			return "resumed"
		}
	}
	return "moved"
}

// claims counts a claim of a session.
func (f *follower) claims(events []event.Event) {
	if kind := claimOf(events); kind != "" {
		f.s.claimed.WithLabelValues(kind).Inc()
	}
}

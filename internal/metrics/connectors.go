package metrics

import "slices"

// Received counts a request to a connector. A name that is not configured, or an
// outcome that is none, counts as other.
func (m *Metrics) Received(connector, outcome string) {
	if !slices.Contains(m.cfg.Connectors, connector) {
		connector = other
	}
	m.series.inbound.WithLabelValues(connector, oneOf(outcome, received)).Inc()
}

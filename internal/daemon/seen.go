package daemon

import (
	"context"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// newMetrics makes the registry, before the store, whose writer fills it. What
// is asked at a scrape exists by the time that the door is open.
func (d *Daemon) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Config{
		Routes: meteredRoutes(d.cfg), Version: version.Version, Revision: version.Commit(), Logger: d.log,
		Backlog:        func(ctx context.Context) (eventlog.Backlog, error) { return d.store.Backlog(ctx) },
		Waiting:        func() int { return d.sqlite.Waiting() },
		ActiveSessions: func() int { return d.lane.Active() },
		Subscribers:    func() int { return d.http.Subscribers() },
	})
}

func (d *Daemon) batch(b sqlite.Batch) { d.metrics.Batch(metrics.Batch(b)) }

// meteredRoutes are the routes whose calls are counted under their own names.
func meteredRoutes(cfg *config.Config) []metrics.Route {
	var out []metrics.Route
	for _, name := range slices.Sorted(maps.Keys(cfg.Routes)) {
		r := cfg.Routes[name]
		out = append(out, metrics.Route{Name: name, Provider: r.Provider, Model: modelOf(r), Price: priceOf(r.Price)})
	}
	return out
}

// modelOf is the model of a run that names none.
func modelOf(r config.Route) string {
	if r.Model == "" {
		return r.Provider
	}
	return r.Model
}

func priceOf(p *config.Price) *llm.Price {
	if p == nil {
		return nil
	}
	out := llm.Price{Input: p.Input, Output: p.Output, CacheRead: p.Input, CacheWrite: p.Input}
	if p.CacheRead != nil {
		out.CacheRead = *p.CacheRead
	}
	if p.CacheWrite != nil {
		out.CacheWrite = *p.CacheWrite
	}
	return &out
}

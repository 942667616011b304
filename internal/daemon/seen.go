package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/otlp"
	"github.com/holdfast-dev/holdfast/internal/timeline"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// newMetrics makes the registry, before the store, whose writer fills it. What
// is asked at a scrape exists by the time that the door is open.
func (d *Daemon) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Config{
		Routes: meteredRoutes(d.cfg), Connectors: slices.Sorted(maps.Keys(d.cfg.Connectors)), Version: version.Version, Revision: version.Commit(), Logger: d.log,
		Backlog:        func(ctx context.Context) (eventlog.Backlog, error) { return d.store.Backlog(ctx) },
		Waiting:        d.waiting,
		ActiveSessions: func() int { return d.lane.Active() },
		Nodes:          d.nodeStats,
		Bus:            d.busStats,
		Room:           d.roomStats,
		Subscribers:    func() int { return d.http.Subscribers() },
	})
}

// waiting says how many appends wait for the store's writer.
func (d *Daemon) waiting() int {
	if d.backend == nil {
		return 0
	}
	return d.backend.Waiting()
}

// newExporter makes what sends to the collector, or nil where none is named.
func (d *Daemon) newExporter(opt Options) (*otlp.Exporter, error) {
	t := d.cfg.Telemetry
	if t.OTLPEndpoint == "" {
		return nil, nil
	}
	instance, err := event.NewRunID(opt.Random)
	if err != nil {
		return nil, err
	}
	guard, err := telemetryGuard(d.cfg, &opt)
	if err != nil {
		return nil, fmt.Errorf("network guard: %w", err)
	}
	sample := 1.0
	if t.Sample != nil {
		sample = *t.Sample
	}
	return otlp.New(otlp.Config{
		Endpoint: t.OTLPEndpoint, Headers: d.telemetryHeaders, Sample: sample, Interval: t.Interval.Or(0), Log: d.store, Gather: d.metrics.Gather,
		Version: version.Version, Instance: string(instance[len("run_"):]), HTTP: guard.Client(0), Logger: d.log,
		Exported: d.metrics.Exported, Dropped: d.metrics.Dropped,
	})
}

// telemetryHeaders reads the references at each request, so that a changed
// secret counts at once.
func (d *Daemon) telemetryHeaders() (map[string]string, error) {
	out := map[string]string{}
	for name, ref := range d.cfg.Telemetry.Headers {
		key := "telemetry.headers." + name
		v, err := useFor(d.cfg, config.Reference{Key: key, Ref: ref}, hostOf(d.cfg.Telemetry.OTLPEndpoint))
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", key, err)
		}
		out[name] = v
	}
	return out, nil
}

// exporterPatience is how long a collector may hold up a stop.
const exporterPatience = 3 * time.Second

// stopExporter sends what waits while the log can still be read.
func (d *Daemon) stopExporter(ctx context.Context) {
	if d.exporter == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, exporterPatience)
	defer cancel()
	d.exporter.Stop(ctx)
}

// meteredRoutes are the routes whose calls are counted under their own names.
func meteredRoutes(cfg *config.Config) []metrics.Route {
	var out []metrics.Route
	for _, name := range slices.Sorted(maps.Keys(cfg.Routes)) {
		r := cfg.Routes[name]
		out = append(out, metrics.Route{Name: name, Provider: r.Provider, Model: modelOf(&r, ""), Price: priceOf(r.Price)})
	}
	return out
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

// price gives the price of a route, for timelines.
func (d *Daemon) price(route string) (timeline.Price, bool) {
	p := priceOf(d.cfg.Routes[route].Price)
	if p == nil {
		return timeline.Price{}, false
	}
	return *p, true
}

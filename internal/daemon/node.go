package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
	"github.com/holdfast-dev/holdfast/internal/tool"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// openStore opens the store that the configuration names.
func (d *Daemon) openStore(ctx context.Context, opt Options) (err error) {
	switch {
	case opt.Store != nil:
		d.store = opt.Store
	case d.cfg.DatabaseURL.Set():
		d.backend, err = d.openPostgres(ctx, opt)
	default:
		d.backend, err = sqlite.Open(ctx, sqlite.Config{
			Dir: d.cfg.Path(d.cfg.DataDir), Sync: syncMode(d.cfg.Store.Sync), Rows: eventlog.Rows, Generation: eventlog.RowsVersion,
			CheckSnapshot: eventlog.CheckSnapshot, Random: opt.Random, OnCommit: d.Committed, OnBatch: func(b sqlite.Batch) { d.metrics.Batch(metrics.Batch(b)) },
		})
	}
	if err != nil {
		return err
	}
	if d.backend != nil {
		d.store = d.backend
	}
	if opt.WrapStore != nil {
		d.store = opt.WrapStore(d.store)
	}
	d.newRoom(opt)
	d.store = &roomyStore{&countedStore{d.store, d.metrics}, d.room}
	return nil
}

func syncMode(s string) string {
	if s == "normal" {
		return sqlite.SyncNormal
	}
	return sqlite.SyncFull
}

func (d *Daemon) closeStore(ctx context.Context) error {
	if d.backend == nil {
		return nil
	}
	return d.backend.Close(context.WithoutCancel(ctx))
}

// newNode names this process life.
func (d *Daemon) newNode(opt Options) error {
	life, err := event.NewRunID(opt.Random)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	d.node = eventlog.Node{
		ID: eventlog.NodeID("gen_" + string(life[len("run_"):])), Name: fmt.Sprintf("%.64s/%d", host, os.Getpid()), Version: version.Version,
	}
	return nil
}

// newTenure makes the lease of this process.
func (d *Daemon) newTenure(opt Options, tools []tool.Tool) {
	node, ttl := d.node, d.leaseTTL(opt)
	d.shared = ttl > 0
	for _, t := range append(tools, opt.Tools...) {
		if at, ok := t.(tool.Rooted); ok && !slices.Contains(node.Roots, at.Root()) {
			node.Roots = append(node.Roots, at.Root())
		}
	}
	d.tenure = tenure.New(tenure.Config{
		Nodes: d.store, Node: node, TTL: ttl, Logger: d.log,
		Load:   func() (int, int) { return d.lane.Active(), d.lane.Most() },
		Lapsed: d.hub.Drop,
		Look: func(mine bool) {
			d.lane.Look(mine)
			d.delivery.Look(mine)
			d.jobs.Look(mine)
		},
	})
	if d.shared {
		d.hub.Under(d.tenure.Held)
	}
}

// leased is a tenure whose terms may be wrapped.
type leased struct {
	*tenure.Tenure
	wrap func(eventlog.Term) eventlog.Term
}

func (l leased) Term() eventlog.Term {
	if l.wrap == nil {
		return l.Tenure.Term()
	}
	return l.wrap(l.Tenure.Term())
}

// leaseTTL is how long a lease runs; 0 where this process is the only one.
func (d *Daemon) leaseTTL(opt Options) time.Duration {
	if d.cfg.DatabaseURL.Set() {
		return d.cfg.Lease.TTL.Or(config.DefaultLease)
	}
	return opt.Lease
}

// Committed runs on the log's writer, in the order of commits: it counts, rings
// who reads the streams, and wakes the rooms whose work may have come.
func (d *Daemon) Committed(stamps []eventlog.Stamp) {
	if !d.wired.Load() {
		return
	}
	d.metrics.Committed(stamps)
	if d.exporter != nil {
		d.exporter.Committed(stamps)
	}
	for i := range stamps {
		s := &stamps[i]
		d.hub.Ring(s.Stream, s.Events)
		if !eventlog.Wakes(s.Events) {
			// Who begins a run is at work on it, but where the append came late, and
			// its worker has gone meanwhile. Where there is no place for it now, only a
			// look at what is this node's already finds it.
			if id, ok := s.Stream.Session(); ok && eventlog.Begins(s.Events) && !d.lane.Works(id) {
				d.lane.Wake(id)
				d.lane.Look(true)
			}
			continue
		}
		if id, ok := s.Stream.Session(); ok {
			d.lane.Wake(id)
		}
		if id, ok := s.Stream.Target(); ok {
			d.delivery.Wake(id)
		}
		if id, ok := s.Stream.Job(); ok {
			d.jobs.Wake(id)
		}
	}
}

// Heard is told what other nodes have committed. It must not block.
// What comes while the rooms are being made is told to nobody: they begin with a
// look at all there is.
func (d *Daemon) Heard(news []eventlog.News) {
	if !d.wired.Load() {
		return
	}
	for _, n := range news {
		d.hub.Tell(n.Stream, n.Head)
		if id, ok := n.Stream.Session(); ok {
			if n.Wakes {
				d.lane.Heard(id)
			} else {
				d.lane.Begun(id)
			}
		}
		if id, ok := n.Stream.Target(); ok {
			if n.Wakes {
				d.delivery.Heard(id)
			} else {
				d.delivery.Begun(id)
			}
		}
		if id, ok := n.Stream.Job(); ok {
			if n.Wakes {
				d.jobs.Heard(id)
			} else {
				d.jobs.Begun(id)
			}
		}
	}
}

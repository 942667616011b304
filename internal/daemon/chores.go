package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// chores is what the daemon does now and then, beside its rooms.
type chores struct {
	cancel     context.CancelFunc
	wait       sync.WaitGroup
	unrecorded bool // this start, for want of room
}

const (
	collectEvery = time.Hour
	// recordEvery is the wait before a start is recorded that found no room.
	recordEvery = time.Second
	// collectStep bounds the assets that one transaction deletes.
	collectStep = 16
	// unusedFor is how long an asset that no run uses is kept, by default.
	unusedFor = 24 * time.Hour
)

func (c *chores) start(d *Daemon) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	if c.unrecorded {
		c.wait.Go(func() { d.recordStart(ctx) })
	}
	c.wait.Go(func() {
		tick := time.NewTicker(collectEvery)
		defer tick.Stop()
		for ctx.Err() == nil { // also where the tick has come just now
			d.forgetLeftovers(ctx)
			d.collectAssets(ctx)
			if err := d.secrets.Drop(ctx); err != nil && ctx.Err() == nil {
				d.log.Error("drop former versions of secrets", "err", err)
			}
			d.expire(ctx)
			if d.files != nil {
				d.files.tidy(ctx, d.store, d.log)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

func (c *chores) stop() {
	if c.cancel != nil {
		c.cancel()
	}
	c.wait.Wait()
}

// recordStart records this start once there is room.
func (d *Daemon) recordStart(ctx context.Context) {
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := d.auditStart(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !errors.Is(err, eventlog.ErrFull) {
			d.log.Error("record the start", "err", err)
			return
		}
	}
}

// forgetLeftovers deletes the workspace folders of erased sessions that are still
// here: a process died between the commit and the folder, or another node, which
// has not this folder, took the erasing.
func (d *Daemon) forgetLeftovers(ctx context.Context) {
	forget := forget(d.cfg, d.files)
	for _, t := range d.cfg.Tools {
		if t.Type != "workspace" || t.Shared {
			continue
		}
		held, err := workspace.Held(d.cfg.Path(t.Root))
		for _, id := range held {
			row, rowErr := d.store.Session(ctx, event.SessionID(id))
			if ctx.Err() != nil {
				return
			}
			switch {
			case errors.Is(rowErr, eventlog.ErrNotFound): // somebody else's folder
			case rowErr != nil:
				err = errors.Join(err, rowErr)
			case row.Status == session.Erased:
				err = errors.Join(err, forget(row.UserID, row.ID))
			}
		}
		if err != nil {
			d.log.Error("forget workspaces of erased sessions", "err", err)
		}
	}
}

// expireRest lies between two steps, so that other work comes between.
const expireRest = 50 * time.Millisecond

// expire takes out of the ledger what is past its retention, in small steps.
func (d *Daemon) expire(ctx context.Context) {
	for {
		n, err := d.ledger.Step(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Error("take settled deliveries out of the ledger", "err", err)
		}
		if err != nil || n == 0 {
			return
		}
		select {
		case <-time.After(expireRest):
		case <-ctx.Done():
			return
		}
	}
}

// collectAssets deletes the assets that no run uses, in small steps.
func (d *Daemon) collectAssets(ctx context.Context) {
	for ctx.Err() == nil {
		now, err := d.store.Now(ctx)
		n := 0
		if err == nil {
			n, err = d.store.CollectAssets(ctx, now.Add(-d.cfg.Limits.UnusedAssets.Or(unusedFor)), collectStep)
		}
		if err != nil && ctx.Err() == nil {
			d.log.Error("collect assets", "err", err)
		}
		if err != nil || n == 0 {
			return
		}
	}
}

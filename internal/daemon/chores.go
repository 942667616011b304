package daemon

import (
	"context"
	"sync"
	"time"
)

// chores is what the daemon does now and then, beside its rooms.
type chores struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

const (
	collectEvery = time.Hour
	// collectStep bounds the assets that one transaction deletes.
	collectStep = 16
	// unusedFor is how long an asset that no run uses is kept, by default.
	unusedFor = 24 * time.Hour
)

func (c *chores) start(d *Daemon) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.wait.Go(func() {
		tick := time.NewTicker(collectEvery)
		defer tick.Stop()
		for {
			d.collectAssets(ctx)
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
		if err != nil || n < collectStep {
			return
		}
	}
}

package daemon

import (
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/jobs"
	"github.com/holdfast-dev/holdfast/internal/ledger"
)

// newLetters makes the rooms that work on dead letters and on the ledger.
func (d *Daemon) newLetters(t jobs.Tenure, w *ways) {
	del, def := d.cfg.Delivery, config.DefaultRetention
	d.jobs = jobs.New(jobs.Config{Store: d.store, Tenure: t, CheckTarget: w.usable, Pace: del.ReplayRate, Logger: d.log, Held: d.room.Held})
	d.ledger = ledger.New(ledger.Config{
		Store: d.store, Delivered: del.Retention.Delivered.Or(def.Delivered.Or(0)), Resolved: del.Retention.Resolved.Or(def.Resolved.Or(0)),
		Jobs: del.Retention.Jobs.Or(def.Jobs.Or(0)),
	})
}

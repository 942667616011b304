package sqlite

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// The queries of Backlog stay within the indices of what is rare or waits.
const (
	backlogRuns = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE status <> 'completed' AND status = ? LIMIT ?)"
	backlogRest = "SELECT" +
		" (SELECT coalesce(min(submitted_at), '') FROM runs WHERE status <> 'completed' AND status = '" + statusQueued + "')," +
		" (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE status = '" + statusPending + "' LIMIT ?1))," +
		" (SELECT coalesce(min(created_at), '') FROM outbox WHERE status = '" + statusPending + "')," +
		" (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE status = '" + statusDeadLettered + "' LIMIT ?1))"
)

// Backlog implements eventlog.Views.
func (s *Store) Backlog(ctx context.Context) (eventlog.Backlog, error) {
	b := eventlog.Backlog{Runs: map[string]int64{}}
	for _, status := range []string{session.StatusQueued, session.StatusRunning, session.StatusNeedsAttention} {
		var n int64
		if err := s.readers.row(ctx, []byte(backlogRuns), []any{status, eventlog.MaxBacklog}, &n); err != nil {
			return b, s.readErr("count runs", err)
		}
		if n > 0 {
			b.Runs[status] = n
		}
	}
	err := s.readers.row(ctx, []byte(backlogRest), []any{eventlog.MaxBacklog},
		&b.OldestQueued, &b.PendingDeliveries, &b.OldestDelivery, &b.DeadLettered)
	if err != nil {
		return b, s.readErr("count deliveries", err)
	}
	return b, nil
}

// Batch is one transaction of the writer, as Config.OnBatch is told of it.
type Batch struct {
	Appends int           // that were committed
	Refused int           // that took no part
	Events  int           // that were committed
	Took    time.Duration // from the begin of the transaction to the end of its commit
	// Longest is what the append that was handed over first has waited for, and
	// with it all others of the batch at most: its place in the queue, and Took.
	Longest time.Duration
	Failed  bool // the transaction did not commit; its appends are tried alone, or have failed
}

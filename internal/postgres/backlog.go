package postgres

import (
	"context"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// The queries of Backlog stay within the indices of what is rare or waits.
const (
	backlogRuns = "SELECT count(*) FROM (SELECT 1 FROM @.runs WHERE status <> 'completed' AND status = $1 LIMIT $2) x"
	backlogRest = "SELECT" +
		" (SELECT coalesce(min(submitted_at), '') FROM @.runs WHERE status <> 'completed' AND status = '" + statusQueued + "')," +
		" (SELECT count(*) FROM (SELECT 1 FROM @.outbox WHERE status = '" + statusPending + "' LIMIT $1) x)," +
		" (SELECT coalesce(min(created_at), '') FROM @.outbox WHERE status = '" + statusPending + "')," +
		" (SELECT count(*) FROM (SELECT 1 FROM @.outbox WHERE status = '" + statusDeadLettered + "' LIMIT $1) x)"
)

// Backlog implements eventlog.Views.
func (s *Store) Backlog(ctx context.Context) (eventlog.Backlog, error) {
	b, err := one(ctx, s, "count deliveries", backlogRest, []any{eventlog.MaxBacklog}, func(b *eventlog.Backlog) []any {
		return []any{&b.OldestQueued, &b.PendingDeliveries, &b.OldestDelivery, &b.DeadLettered}
	})
	if err != nil {
		return b, err
	}
	b.Runs = map[string]int64{}
	for _, status := range []string{session.StatusQueued, session.StatusRunning, session.StatusNeedsAttention} {
		n, err := one(ctx, s, "count runs", backlogRuns, []any{status, eventlog.MaxBacklog}, func(n *int64) []any { return []any{n} })
		if err != nil {
			return b, err
		}
		if n > 0 {
			b.Runs[status] = n
		}
	}
	return b, nil
}

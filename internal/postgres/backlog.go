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
		" (SELECT coalesce(min(since), '') FROM (" + // the age of what was replayed counts anew
		"SELECT * FROM (SELECT created_at AS since FROM @.outbox WHERE status <> 'delivered' AND status = '" + statusPending + "' AND n_replays = 0 ORDER BY created_at LIMIT 1) a" +
		" UNION ALL SELECT * FROM (SELECT cycle_at FROM @.outbox WHERE status = 'pending' AND n_replays > 0 ORDER BY cycle_at LIMIT 1) b) x)," +
		" (SELECT count(*) FROM (SELECT 1 FROM @.outbox WHERE status = '" + statusDeadLettered + "' LIMIT $1) x)," +
		" (SELECT count(*) FROM (SELECT 1 FROM @.outbox WHERE status = 'pending' AND last_code <> '' LIMIT $1) x)," +
		" (SELECT count(*) FROM (SELECT DISTINCT target_id FROM @.outbox r WHERE status = 'pending' AND last_code <> ''" +
		" AND EXISTS (SELECT 1 FROM @.outbox b WHERE b.target_id = r.target_id AND b.status = 'pending' AND b.lane_seq > r.lane_seq) LIMIT $1) x)," +
		" (SELECT count(*) FROM @.targets WHERE circuit <> '' AND circuit = 'open')," +
		" (SELECT count(*) FROM @.targets WHERE circuit <> '' AND circuit = 'half_open')," +
		" (SELECT count(*) FROM @.targets WHERE n_paused = 1)"
)

// Backlog implements eventlog.Views.
func (s *Store) Backlog(ctx context.Context) (eventlog.Backlog, error) {
	b, err := one(ctx, s, "count deliveries", backlogRest, []any{eventlog.MaxBacklog}, func(b *eventlog.Backlog) []any {
		return []any{&b.OldestQueued, &b.PendingDeliveries, &b.OldestDelivery, &b.DeadLettered,
			&b.Retrying, &b.BlockedTargets, &b.OpenCircuits, &b.HalfOpenCircuits, &b.PausedTargets}
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

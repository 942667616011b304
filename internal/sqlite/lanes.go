package sqlite

import (
	"context"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

const aheadQuery = `SELECT o.delivery_id, o.target_id, o.session_id, o.run_id, o.user_id, o.type, o.status, o.body, o.address, o.lane_seq,
	o.created_at, o.updated_at, o.next_at, o.cycle_at, o.n_attempts, o.n_cycle, o.n_open, o.n_open_epoch, o.last_code, o.last_class, o.last_at,
	o.n_last_status, o.n_last_ms, o.n_delivered, o.n_replays, o.resolved_at, o.resolved_by, o.resolved_reason, coalesce(length(b.bytes), 0), CASE WHEN length(b.bytes) <= ?1 AND (?4 = '' OR o.next_at <= ?4 OR o.n_open <> 0) THEN b.bytes END, a.bytes, b.bytes IS NULL OR a.bytes IS NULL
	FROM outbox o LEFT JOIN blobs b ON b.owner = o.session_id AND b.ref = o.body LEFT JOIN blobs a ON a.owner = o.session_id AND a.ref = o.address
	WHERE o.target_id = ?2 AND o.status = 'pending' ORDER BY o.lane_seq LIMIT ?3`

// Ahead implements eventlog.Views.
func (s *Store) Ahead(ctx context.Context, t event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error) {
	rows, err := s.readers.query(ctx, []byte(aheadQuery), q.Largest, string(t), q.Limit, q.Due)
	if err != nil {
		return nil, s.readErr("read lane", err)
	}
	defer rows.Close()
	var list []eventlog.Outgoing
	for sum := int64(0); sum < q.Bytes && rows.Next(); {
		var o eventlog.Outgoing
		if err := rows.Scan(append(deliveryDest(&o.DeliveryRow), &o.Size, &o.Message, &o.To, &o.Gone)...); err != nil {
			return nil, s.readErr("read lane", err)
		}
		sum += int64(len(o.Message))
		list = append(list, o)
	}
	if err := rows.Err(); err != nil {
		return nil, s.readErr("read lane", err)
	}
	return list, nil
}

// stateColumns are those of a target's row, which may not be there.
const stateColumns = `coalesce(s.target_id, ''), coalesce(s.user_id, ''), coalesce(s.type, ''), coalesce(s.created_at, ''), coalesce(s.updated_at, ''),
	coalesce(s.circuit, ''), coalesce(s.n_failures, 0), coalesce(s.n_opens, 0), coalesce(s.open_until, ''), coalesce(s.held_until, ''),
	coalesce(s.last_code, ''), coalesce(s.last_class, ''), coalesce(s.failed_at, ''), coalesce(s.n_paused, 0), coalesce(s.paused_at, ''),
	coalesce(s.paused_by, ''), coalesce(s.paused_code, ''), coalesce(s.pause_reason, ''), coalesce(s.resumed_at, ''), coalesce(s.reset_at, '')`

func stateDest(r *eventlog.TargetState) []any {
	return []any{&r.ID, &r.UserID, &r.Type, &r.CreatedAt, &r.UpdatedAt, &r.Circuit, &r.Failures, &r.Opens, &r.OpenUntil, &r.HeldUntil,
		&r.LastCode, &r.LastClass, &r.FailedAt, &r.Paused, &r.PausedAt, &r.PausedBy, &r.PausedCode, &r.PauseReason, &r.ResumedAt, &r.ResetAt}
}

// TargetState implements eventlog.Views.
func (s *Store) TargetState(ctx context.Context, id event.TargetID) (eventlog.TargetState, error) {
	return one(ctx, s, "read target", "SELECT "+stateColumns+" FROM targets s WHERE s.target_id = ?", []any{string(id)}, stateDest)
}

// Attempts implements eventlog.Views.
func (s *Store) Attempts(ctx context.Context, t event.TargetID, id event.DeliveryID, p eventlog.Page) ([]eventlog.AttemptRow, string, error) {
	limit, after, err := storecore.AttemptsAfter(p)
	if err != nil {
		return nil, "", err
	}
	rows, err := many(ctx, s, "list attempts", `SELECT n_attempt, ended_at, code, class, retry_at, n_status, n_duration_ms, excerpt FROM attempts
		WHERE target_id = ? AND delivery_id = ? AND n_attempt > ? ORDER BY n_attempt LIMIT ?`, []any{string(t), string(id), after, limit + 1},
		func(r *eventlog.AttemptRow) []any {
			return []any{&r.Number, &r.EndedAt, &r.Code, &r.Class, &r.RetryAt, &r.Status, &r.DurationMS, &r.Excerpt}
		})
	if err != nil || len(rows) <= limit {
		return rows, "", err
	}
	rows = rows[:limit]
	return rows, storecore.EncodeCursor(storecore.AttemptsKind, []string{strconv.FormatInt(rows[limit-1].Number, 10)}), nil
}

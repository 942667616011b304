package sqlite

import (
	"context"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// targetIDs walks the ids of targets from one on, each by a search in an index:
// a target may have any number of deliveries. "AND 1" stands for the condition of a
// partial index.
const targetIDs = `WITH RECURSIVE ids(id) AS (
	SELECT (SELECT target_id FROM outbox WHERE target_id > ?1 AND 1 ORDER BY target_id LIMIT 1)
	UNION ALL
	SELECT (SELECT target_id FROM outbox WHERE target_id > ids.id AND 1 ORDER BY target_id LIMIT 1) FROM ids WHERE ids.id IS NOT NULL)`

// allTargetIDs is targetIDs with the paused targets of which the ledger has nothing.
const allTargetIDs = `WITH RECURSIVE ids(id) AS (
	SELECT (SELECT min(id) FROM (SELECT * FROM (SELECT target_id AS id FROM outbox WHERE target_id > ?1 ORDER BY target_id LIMIT 1)
		UNION ALL SELECT * FROM (SELECT target_id FROM targets WHERE n_paused = 1 AND target_id > ?1 ORDER BY target_id LIMIT 1)))
	UNION ALL
	SELECT (SELECT min(id) FROM (SELECT * FROM (SELECT target_id AS id FROM outbox WHERE target_id > ids.id ORDER BY target_id LIMIT 1)
		UNION ALL SELECT * FROM (SELECT target_id FROM targets WHERE n_paused = 1 AND target_id > ids.id ORDER BY target_id LIMIT 1))) FROM ids WHERE ids.id IS NOT NULL)`

// targetQuery tells of a target by its id: what is pending and dead by the small
// indexes of those, the rest by the delivery made last. What is in flight stands
// within the first 64 of a lane: nothing that is not is ever begun, and nothing comes
// before what is.
const targetQuery = `SELECT ids.id, coalesce(last.user_id, s.user_id), coalesce(last.type, s.type),
	(SELECT count(*) FROM outbox p WHERE p.target_id = ids.id AND p.status = '` + outbox.Pending + `'),
	(SELECT count(*) FROM outbox d WHERE d.target_id = ids.id AND d.status = '` + outbox.DeadLettered + `'),
	coalesce(first.created_at, ''), coalesce(first.next_at, ''), coalesce(last.delivery_id, ''), coalesce(last.created_at, ''), coalesce(last.status, ''), coalesce(last.last_code, ''),
	coalesce(first.last_at, ''), (SELECT count(*) FROM (SELECT n_open FROM outbox f WHERE f.target_id = ids.id AND f.status = 'pending' ORDER BY f.lane_seq LIMIT 64) x WHERE x.n_open > 0),
	` + stateColumns + `
	FROM ids
	LEFT JOIN outbox last ON last.rowid = (SELECT rowid FROM outbox WHERE target_id = ids.id ORDER BY created_at DESC, delivery_id DESC LIMIT 1)
	LEFT JOIN outbox first ON first.rowid = (SELECT rowid FROM outbox WHERE target_id = ids.id AND status = '` + outbox.Pending + `' ORDER BY lane_seq LIMIT 1)
	LEFT JOIN targets s ON s.target_id = ids.id`

func targetDest(r *eventlog.TargetRow) []any {
	return append([]any{&r.ID, &r.UserID, &r.Type, &r.Pending, &r.DeadLettered, &r.OldestPending, &r.NextAt,
		&r.LastDelivery, &r.LastMade, &r.LastStatus, &r.LastCode, &r.FirstFailedAt, &r.InFlight}, stateDest(&r.State)...)
}

// Target implements eventlog.Views.
func (s *Store) Target(ctx context.Context, id event.TargetID) (eventlog.TargetRow, error) {
	return one(ctx, s, "read target", "WITH ids(id) AS (SELECT ?1) "+targetQuery+" WHERE last.target_id IS NOT NULL", []any{string(id)}, targetDest)
}

// targetList is the query of one page of targets.
func targetList(f eventlog.TargetFilter, p eventlog.Page) (text string, args []any, limit int, err error) {
	limit = storecore.LimitOf(p)
	after := ""
	if p.Cursor != "" {
		parts, err := storecore.DecodeCursor("targets", p.Cursor, 1)
		if err != nil {
			return "", nil, 0, err
		}
		after = parts[0]
	}
	walk := targetIDs
	switch f.Status {
	case "":
		walk = allTargetIDs
	case outbox.Pending, outbox.DeadLettered: // the condition of an index
		walk = strings.ReplaceAll(walk, "AND 1", "AND status = '"+f.Status+"'")
	default:
		return "", nil, 0, problem.New(problem.Invalid, "invalid_parameter", "status must be pending or dead_lettered")
	}
	text = walk + " " + targetQuery + " WHERE (last.target_id IS NOT NULL OR s.n_paused = 1) AND (?2 = '' OR coalesce(last.user_id, s.user_id) = ?2) AND (?3 = '' OR coalesce(last.type, s.type) = ?3) LIMIT ?4"
	return text, []any{after, f.UserID, f.Type, limit + 1}, limit, nil
}

// Targets implements eventlog.Views.
func (s *Store) Targets(ctx context.Context, f eventlog.TargetFilter, p eventlog.Page) ([]eventlog.TargetRow, string, error) {
	text, args, limit, err := targetList(f, p)
	if err != nil {
		return nil, "", err
	}
	rows, err := many(ctx, s, "list targets", text, args, targetDest)
	if err != nil || len(rows) <= limit {
		return rows, "", err
	}
	rows = rows[:limit]
	return rows, storecore.EncodeCursor("targets", []string{string(rows[limit-1].ID)}), nil
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// The values of status columns that the store itself knows.
const (
	statusErased  = "erased"  // of a session
	statusQueued  = "queued"  // of a run
	statusPending = "pending" // of a delivery

	statusDeadLettered = "dead_lettered" // of a delivery
)

// one reads the one row of a view; ErrNotFound when there is none.
func one[T any](ctx context.Context, s *Store, op, text string, args []any, dest func(*T) []any) (T, error) {
	var v T
	err := s.readers.row(ctx, []byte(text), args, dest(&v)...)
	if errors.Is(err, sql.ErrNoRows) {
		err = eventlog.ErrNotFound
	}
	if err != nil {
		return v, s.readErr(op, err)
	}
	return v, nil
}

// many reads all rows of a view.
func many[T any](ctx context.Context, s *Store, op, text string, args []any, dest func(*T) []any) ([]T, error) {
	rows, err := s.readers.query(ctx, []byte(text), args...)
	return scanned(s, op, rows, err, dest)
}

// once is many for a text that is not worth keeping prepared.
func once[T any](ctx context.Context, s *Store, op, text string, args []any, dest func(*T) []any) ([]T, error) {
	stmt, release, err := s.readers.lend(ctx, text, false)
	if err != nil {
		return nil, s.readErr(op, err)
	}
	defer release()
	rows, err := stmt.QueryContext(ctx, args...)
	return scanned(s, op, rows, err, dest)
}

func scanned[T any](s *Store, op string, rows *sql.Rows, err error, dest func(*T) []any) ([]T, error) {
	if err != nil {
		return nil, s.readErr(op, err)
	}
	list, err := collect(rows, func(rows *sql.Rows) (T, error) {
		var v T
		return v, rows.Scan(dest(&v)...)
	})
	if err != nil {
		return nil, s.readErr(op, err)
	}
	return list, nil
}

// hidden writes a column so that no index of it is used.
func hidden(column string) string { return "+" + column }

// page reads a page of a list; last gives the values of the order's columns.
func page[T any](ctx context.Context, s *Store, op string, l *storecore.List, p eventlog.Page, dest func(*T) []any, last func(*T) []string) ([]T, string, error) {
	text, limit, err := l.Query(p)
	if err != nil {
		return nil, "", err
	}
	read := many[T]
	if l.Rare {
		read = once[T]
	}
	items, err := read(ctx, s, op, text, l.Args, dest)
	if err != nil || len(items) <= limit {
		return items, "", err
	}
	items = items[:limit]
	return items, storecore.EncodeCursor(l.CursorKind(), last(&items[limit-1])), nil
}

const sessionQuery = `SELECT session_id, user_id, alias, thread_id, status, title, created_at, updated_at, settings_version,
	instructions, metadata, tools, on_doubt, n_max_turns, n_history_limit, input_contract, output_contract, route_policy, reply_targets
	FROM sessions`

func sessionDest(r *eventlog.SessionRow) []any {
	return []any{&r.ID, &r.UserID, &r.Alias, &r.ThreadID, &r.Status, &r.Title, &r.CreatedAt, &r.UpdatedAt, &r.SettingsVersion,
		&r.Instructions, &r.Metadata, &r.Tools, &r.OnDoubt, &r.MaxTurns, &r.HistoryLimit, &r.InputContract, &r.OutputContract,
		&r.RoutePolicy, &r.ReplyTargets}
}

// Session implements eventlog.Views.
func (s *Store) Session(ctx context.Context, id event.SessionID) (eventlog.SessionRow, error) {
	return one(ctx, s, "read session", sessionQuery+" WHERE session_id = ?", []any{string(id)}, sessionDest)
}

// SessionByAlias implements eventlog.Views.
func (s *Store) SessionByAlias(ctx context.Context, user, alias string) (event.SessionID, error) {
	return one(ctx, s, "read alias", "SELECT session_id FROM aliases WHERE user_id = ? AND alias = ?",
		[]any{user, alias}, func(id *event.SessionID) []any { return []any{id} })
}

func sessionList(f eventlog.SessionFilter) *storecore.List {
	l := &storecore.List{Hide: hidden, Kind: "sessions", From: sessionQuery, Order: []string{"created_at", "session_id"}}
	byThread := f.ThreadID != ""
	if byThread { // the second is the condition of the index
		l.Match("thread_id", f.ThreadID)
		l.Where = append(l.Where, "thread_id <> ''")
		l.Rare = true
	}
	few := l.Status(f.Status, session.Open, byThread)
	if f.Status == "" {
		l.Where = append(l.Where, "status <> '"+statusErased+"'")
	}
	l.Beside("user_id", f.UserID, byThread || few)
	l.MadeAt("created_at", f.Range)
	return l
}

// Sessions implements eventlog.Views.
func (s *Store) Sessions(ctx context.Context, f eventlog.SessionFilter, p eventlog.Page) ([]eventlog.SessionRow, string, error) {
	return page(ctx, s, "list sessions", sessionList(f), p, sessionDest, func(r *eventlog.SessionRow) []string { return []string{r.CreatedAt, string(r.ID)} })
}

// runQuery counts the place of a queued run among those of its session.
const runQuery = `SELECT run_id, session_id, user_id, status, kind, submitted_at, updated_at, started_at, finished_at,
	created_seq, output_seq, source, actor, text_preview, route, provider, model, error_code, error_message, totals, waiting_on,
	CASE WHEN status = '` + statusQueued + `' THEN (SELECT count(*) FROM queue q WHERE q.session_id = runs.session_id
		AND q.status = '` + statusQueued + `' AND q.created_seq <= runs.created_seq) ELSE 0 END
	FROM runs`

func runDest(r *eventlog.RunRow) []any {
	return []any{&r.ID, &r.SessionID, &r.UserID, &r.Status, &r.Kind, &r.SubmittedAt, &r.UpdatedAt, &r.StartedAt, &r.FinishedAt,
		&r.CreatedSeq, &r.OutputSeq, &r.Source, &r.Actor, &r.TextPreview, &r.Route, &r.Provider, &r.Model, &r.ErrorCode,
		&r.ErrorMessage, &r.Totals, &r.WaitingOn, &r.Position}
}

// Run implements eventlog.Views.
func (s *Store) Run(ctx context.Context, id event.RunID) (eventlog.RunRow, error) {
	return one(ctx, s, "read run", runQuery+" WHERE run_id = ?", []any{string(id)}, runDest)
}

func runList(f eventlog.RunFilter) *storecore.List {
	l := &storecore.List{Hide: hidden, Kind: "runs", From: runQuery, Order: []string{"submitted_at", "run_id"}}
	byID := f.SessionID != ""
	switch {
	case byID && f.Status != "" && !session.Terminal(f.Status): // of any number of runs the few that are not at their end
		l.Match("+session_id", string(f.SessionID))
		l.Where = append(l.Where, "run_id IN (SELECT run_id FROM queue WHERE session_id = ?)")
		l.Args = append(l.Args, string(f.SessionID))
	default:
		l.Match("session_id", string(f.SessionID))
	}
	few := l.Status(f.Status, session.StatusCompleted, byID)
	l.Beside("user_id", f.UserID, byID || few)
	l.MadeAt("submitted_at", f.Range)
	return l
}

// Runs implements eventlog.Views.
func (s *Store) Runs(ctx context.Context, f eventlog.RunFilter, p eventlog.Page) ([]eventlog.RunRow, string, error) {
	return page(ctx, s, "list runs", runList(f), p, runDest, func(r *eventlog.RunRow) []string { return []string{r.SubmittedAt, string(r.ID)} })
}

// Idempotency implements eventlog.Views.
func (s *Store) Idempotency(ctx context.Context, id event.SessionID, operation, keyHash string) (eventlog.IdempotencyRow, error) {
	return one(ctx, s, "read key", "SELECT fingerprint, contract, run_id FROM idempotency WHERE session_id = ? AND operation = ? AND key_hash = ?",
		[]any{string(id), operation, keyHash},
		func(r *eventlog.IdempotencyRow) []any { return []any{&r.Fingerprint, &r.Contract, &r.RunID} })
}

// Inbound implements eventlog.Views.
func (s *Store) Inbound(ctx context.Context, user, connector, eventHash string) (eventlog.InboundRow, error) {
	return one(ctx, s, "read event of connector", "SELECT fingerprint, session_id, run_id FROM inbound WHERE user_id = ? AND connector = ? AND event_hash = ?",
		[]any{user, connector, eventHash},
		func(r *eventlog.InboundRow) []any { return []any{&r.Fingerprint, &r.SessionID, &r.RunID} })
}

// Pending implements eventlog.Views.
func (s *Store) Pending(ctx context.Context, id event.SessionID, most int) (int, error) {
	return one(ctx, s, "count pending runs", "SELECT count(*) FROM (SELECT 1 FROM queue WHERE session_id = ? LIMIT ?)",
		[]any{string(id), most}, func(n *int) []any { return []any{n} })
}

// Unfinished implements eventlog.Views.
func (s *Store) Unfinished(ctx context.Context) ([]event.SessionID, error) {
	return many(ctx, s, "list unfinished sessions",
		"SELECT session_id FROM queue GROUP BY session_id ORDER BY min(submitted_at), session_id", nil,
		func(id *event.SessionID) []any { return []any{id} })
}

const deliveryQuery = `SELECT delivery_id, target_id, session_id, run_id, user_id, type, status, body, address, lane_seq,
	created_at, updated_at, next_at, cycle_at, n_attempts, n_cycle, n_open, n_open_epoch, last_code, last_class, last_at, n_last_status, n_last_ms, n_delivered,
	n_replays, resolved_at, resolved_by, resolved_reason FROM outbox`

func deliveryDest(r *eventlog.DeliveryRow) []any {
	return []any{&r.ID, &r.TargetID, &r.SessionID, &r.RunID, &r.UserID, &r.Type, &r.Status, &r.Body, &r.Address, &r.LaneSeq,
		&r.CreatedAt, &r.UpdatedAt, &r.NextAt, &r.CycleAt, &r.Attempts, &r.Cycle, &r.Open, &r.OpenEpoch, &r.LastCode, &r.LastClass, &r.LastAt,
		&r.LastStatus, &r.LastMS, &r.DeliveredAttempt,
		&r.Replays, &r.ResolvedAt, &r.ResolvedBy, &r.ResolvedReason}
}

// Delivery implements eventlog.Views.
func (s *Store) Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error) {
	return one(ctx, s, "read delivery", deliveryQuery+" WHERE delivery_id = ?", []any{string(id)}, deliveryDest)
}

func deliveryList(f eventlog.DeliveryFilter) *storecore.List {
	l := &storecore.List{Hide: hidden, Kind: "deliveries", From: deliveryQuery, Order: []string{"created_at", "delivery_id"}}
	// The run narrows most, then the session, a class of failure, a status that is not the usual one, the target.
	narrow := f.RunID != ""
	l.Match("run_id", string(f.RunID))
	l.Beside("session_id", string(f.SessionID), narrow)
	narrow = narrow || f.SessionID != ""
	if f.Class != "" {
		l.Beside("last_class", f.Class, narrow)
		if !narrow { // the condition of the index
			l.Where = append(l.Where, "last_class <> ''")
		}
		narrow = true
	}
	if f.Tried && !narrow && f.Status == outbox.Pending { // of any number that wait the few that failed: the condition of the index
		l.Where = append(l.Where, "status = '"+statusPending+"' AND last_code <> ''")
		narrow = true
	} else {
		few := l.Status(f.Status, outbox.Delivered, narrow)
		narrow = narrow || few
		if f.Tried {
			l.Where = append(l.Where, "last_code <> ''")
		}
		if f.Untried {
			l.Where = append(l.Where, "last_code = ''")
		}
	}
	l.Beside("target_id", string(f.TargetID), narrow)
	l.Beside("user_id", f.UserID, narrow || f.TargetID != "")
	l.MadeAt("created_at", f.Range)
	return l
}

// Deliveries implements eventlog.Views.
func (s *Store) Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error) {
	return page(ctx, s, "list deliveries", deliveryList(f), p, deliveryDest,
		func(r *eventlog.DeliveryRow) []string { return []string{r.CreatedAt, string(r.ID)} })
}

// NextDelivery implements eventlog.Views.
func (s *Store) NextDelivery(ctx context.Context, t event.TargetID) (eventlog.DeliveryRow, error) {
	return one(ctx, s, "read lane", deliveryQuery+" WHERE target_id = ? AND status = '"+statusPending+"' ORDER BY lane_seq LIMIT 1",
		[]any{string(t)}, deliveryDest)
}

// PendingTargets implements eventlog.Views.
func (s *Store) PendingTargets(ctx context.Context) ([]event.TargetID, error) {
	return many(ctx, s, "list lanes", "SELECT DISTINCT target_id FROM outbox WHERE status = '"+statusPending+"' ORDER BY target_id", nil,
		func(id *event.TargetID) []any { return []any{id} })
}

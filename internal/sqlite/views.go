package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
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

// list is a query of one page: newest first, or with asc oldest first, by
// columns that sort so and that no update changes. So a cursor, the values of
// the last row, stays good whatever is inserted.
type list struct {
	kind  string // first part of the cursor: one list's cursor is no other's
	from  string // the query up to its conditions
	order []string
	asc   bool
	rare  bool // asked in so many forms that its statement is not kept
	where []string
	args  []any
}

// match narrows the list, unless the value is empty.
func (l *list) match(column, value string) {
	if value != "" {
		l.where = append(l.where, column+" = ?")
		l.args = append(l.args, value)
	}
}

// beside narrows the list by a column whose index is kept out of it (the sign
// does that): something else has narrowed it further already.
func (l *list) beside(column, value string, narrowed bool) {
	if narrowed {
		column = "+" + column
	}
	l.match(column, value)
}

// status narrows the list to a status. The index of a status is one of the rows
// whose status is not the usual one, and few; its condition must stand in the
// query as it stands in the index.
func (l *list) status(value, usual string, narrowed bool) (few bool) {
	if value == "" || value == usual || narrowed {
		l.beside("status", value, narrowed)
		return false
	}
	l.match("status", value)
	l.where = append(l.where, "status <> '"+usual+"'")
	return true
}

// madeAt narrows the list to a range of times in a column that the order begins with.
func (l *list) madeAt(column string, r eventlog.Range) {
	l.asc = r.Asc
	if !r.Since.IsZero() {
		l.where = append(l.where, column+" >= ?")
		l.args = append(l.args, storedFrom(r.Since))
	}
	if !r.Until.IsZero() {
		l.where = append(l.where, column+" < ?")
		l.args = append(l.args, storedFrom(r.Until))
	}
	l.rare = l.rare || r != (eventlog.Range{})
}

// storedFrom is the first stored time that is not before t: stored times are
// cut to microseconds.
func storedFrom(t time.Time) string {
	if cut := t.Truncate(time.Microsecond); cut.Before(t) {
		t = cut.Add(time.Microsecond)
	}
	return event.FormatTime(t)
}

// The bounds of a page.
const (
	defaultLimit = 50
	maxLimit     = 200
	maxCursor    = 1024
)

// query makes the text. It asks for one row more than the page holds, which
// tells whether another page follows.
func (l *list) query(p eventlog.Page) (text string, limit int, err error) {
	limit = min(p.Limit, maxLimit)
	if limit < 1 {
		limit = defaultLimit
	}
	sign, way := "<", " DESC"
	if l.asc {
		sign, way = ">", ""
	}
	if p.Cursor != "" {
		after, err := decodeCursor(l.cursorKind(), p.Cursor, len(l.order))
		if err != nil {
			return "", 0, err
		}
		l.where = append(l.where, "("+strings.Join(l.order, ", ")+") "+sign+" (?"+strings.Repeat(", ?", len(after)-1)+")")
		for _, v := range after {
			l.args = append(l.args, v)
		}
	}
	text = l.from
	if len(l.where) > 0 {
		text += " WHERE " + strings.Join(l.where, " AND ")
	}
	text += " ORDER BY " + strings.Join(l.order, way+", ") + way + " LIMIT ?"
	l.args = append(l.args, limit+1)
	return text, limit, nil
}

// cursorKind is the kind that cursors of the list carry: those of the other
// direction are another list's.
func (l *list) cursorKind() string {
	if l.asc {
		return l.kind + "+"
	}
	return l.kind
}

// page reads a page of a list; last gives the values of the order's columns.
func page[T any](ctx context.Context, s *Store, op string, l *list, p eventlog.Page, dest func(*T) []any, last func(*T) []string) ([]T, string, error) {
	text, limit, err := l.query(p)
	if err != nil {
		return nil, "", err
	}
	read := many[T]
	if l.rare {
		read = once[T]
	}
	items, err := read(ctx, s, op, text, l.args, dest)
	if err != nil || len(items) <= limit {
		return items, "", err
	}
	items = items[:limit]
	return items, encodeCursor(l.cursorKind(), last(&items[limit-1])), nil
}

func encodeCursor(kind string, values []string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "\n" + strings.Join(values, "\n")))
}

func decodeCursor(kind, cursor string, n int) ([]string, error) {
	bad := problem.New(problem.Invalid, "invalid_cursor", "the cursor is not one that this list gave")
	if len(cursor) > maxCursor {
		return nil, bad
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return nil, bad.Because(err)
	}
	parts := strings.Split(string(text), "\n")
	if len(parts) != n+1 || parts[0] != kind {
		return nil, bad
	}
	return parts[1:], nil
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

func sessionList(f eventlog.SessionFilter) *list {
	l := &list{kind: "sessions", from: sessionQuery, order: []string{"created_at", "session_id"}}
	byThread := f.ThreadID != ""
	if byThread { // the second is the condition of the index
		l.match("thread_id", f.ThreadID)
		l.where = append(l.where, "thread_id <> ''")
		l.rare = true
	}
	few := l.status(f.Status, session.Open, byThread)
	if f.Status == "" {
		l.where = append(l.where, "status <> '"+statusErased+"'")
	}
	l.beside("user_id", f.UserID, byThread || few)
	l.madeAt("created_at", f.Range)
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

func runList(f eventlog.RunFilter) *list {
	l := &list{kind: "runs", from: runQuery, order: []string{"submitted_at", "run_id"}}
	byID := f.SessionID != ""
	switch {
	case byID && f.Status != "" && !session.Terminal(f.Status): // of any number of runs the few that are not at their end
		l.match("+session_id", string(f.SessionID))
		l.where = append(l.where, "run_id IN (SELECT run_id FROM queue WHERE session_id = ?)")
		l.args = append(l.args, string(f.SessionID))
	default:
		l.match("session_id", string(f.SessionID))
	}
	few := l.status(f.Status, session.StatusCompleted, byID)
	l.beside("user_id", f.UserID, byID || few)
	l.madeAt("submitted_at", f.Range)
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
	created_at, updated_at, next_at, n_attempts, n_cycle, n_open, n_open_epoch, last_code, n_last_status FROM outbox`

func deliveryDest(r *eventlog.DeliveryRow) []any {
	return []any{&r.ID, &r.TargetID, &r.SessionID, &r.RunID, &r.UserID, &r.Type, &r.Status, &r.Body, &r.Address, &r.LaneSeq,
		&r.CreatedAt, &r.UpdatedAt, &r.NextAt, &r.Attempts, &r.Cycle, &r.Open, &r.OpenEpoch, &r.LastCode, &r.LastStatus}
}

// Delivery implements eventlog.Views.
func (s *Store) Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error) {
	return one(ctx, s, "read delivery", deliveryQuery+" WHERE delivery_id = ?", []any{string(id)}, deliveryDest)
}

func deliveryList(f eventlog.DeliveryFilter) *list {
	l := &list{kind: "deliveries", from: deliveryQuery, order: []string{"created_at", "delivery_id"}}
	// The run narrows most, then the session, a status that is not the usual one, the target.
	narrow := f.RunID != ""
	l.match("run_id", string(f.RunID))
	l.beside("session_id", string(f.SessionID), narrow)
	narrow = narrow || f.SessionID != ""
	few := l.status(f.Status, outbox.Delivered, narrow)
	narrow = narrow || few
	l.beside("target_id", string(f.TargetID), narrow)
	l.beside("user_id", f.UserID, narrow || f.TargetID != "")
	if f.Tried {
		l.where = append(l.where, "n_attempts > 0")
	}
	if f.Untried {
		l.where = append(l.where, "n_attempts = 0")
	}
	l.madeAt("created_at", f.Range)
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

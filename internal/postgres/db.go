package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// db is a pool, a connection, or a transaction.
type db interface {
	Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// sql completes a text of ours: "@." before a name becomes the schema, which no
// session state says, so that a pooler may stand in between; and question marks
// become numbered places, where there are some.
func (s *Store) sql(text string) string {
	if done, ok := s.texts.Load(text); ok {
		return done.(string)
	}
	done := strings.ReplaceAll(text, "@.", s.schema+".")
	if strings.Contains(done, "?") {
		var b strings.Builder
		n := 0
		for _, r := range done {
			if r == '?' {
				n++
				b.WriteString("$" + strconv.Itoa(n))
				continue
			}
			b.WriteRune(r)
		}
		done = b.String()
	}
	if s.textCount.Add(1) <= maxTexts {
		s.texts.Store(text, done)
	}
	return done
}

// maxTexts bounds the texts that are kept. They come from the code, so that
// there are a few hundred of them.
const maxTexts = 2048

// scanRow scans a row and reads the texts.
func scanRow(rows interface{ Scan(...any) error }, dest []any) error {
	err := rows.Scan(dest...)
	if err == nil {
		fromTexts(dest)
	}
	return err
}

// one reads the one row of a view; ErrNotFound when there is none.
func one[T any](ctx context.Context, s *Store, op, text string, args []any, dest func(*T) []any) (T, error) {
	v, err := oneOf(ctx, s, s.pool, text, args, dest)
	if err != nil {
		return v, s.readErr(op, err)
	}
	return v, nil
}

// oneOf is one over whatever connection, with the bare error.
func oneOf[T any](ctx context.Context, s *Store, q db, text string, args []any, dest func(*T) []any) (T, error) {
	var v T
	err := scanRow(q.QueryRow(ctx, s.sql(text), toTexts(args)...), dest(&v))
	if errors.Is(err, pgx.ErrNoRows) {
		err = eventlog.ErrNotFound
	}
	return v, err
}

// many reads all rows of a view.
func many[T any](ctx context.Context, s *Store, op, text string, args []any, dest func(*T) []any) ([]T, error) {
	list, err := manyOf(ctx, s, s.pool, text, args, dest)
	if err != nil {
		return nil, s.readErr(op, err)
	}
	return list, nil
}

// manyOf is many over whatever connection, with the bare error.
func manyOf[T any](ctx context.Context, s *Store, q db, text string, args []any, dest func(*T) []any) ([]T, error) {
	rows, err := q.Query(ctx, s.sql(text), toTexts(args)...)
	if err != nil {
		return nil, err
	}
	return collect(rows, dest)
}

func collect[T any](rows pgx.Rows, dest func(*T) []any) ([]T, error) {
	defer rows.Close()
	var list []T
	for rows.Next() {
		var v T
		if err := scanRow(rows, dest(&v)); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// page reads a page of a list; last gives the values of the order's columns.
func page[T any](ctx context.Context, s *Store, op string, l *storecore.List, p eventlog.Page, dest func(*T) []any, last func(*T) []string) ([]T, string, error) {
	text, limit, err := l.Query(p)
	if err != nil {
		return nil, "", err
	}
	args := l.Args
	if l.Rare {
		args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
	}
	items, err := many(ctx, s, op, text, args, dest)
	if err != nil || len(items) <= limit {
		return items, "", err
	}
	items = items[:limit]
	return items, storecore.EncodeCursor(l.CursorKind(), last(&items[limit-1])), nil
}

// away says whether the error is that of a server which cannot be spoken to now.
func away(err error) bool {
	switch codeOf(err) {
	case codeShutdown, codeCrash, codeNotNow, codeTooMany:
		return true
	case "":
		var connect *pgconn.ConnectError
		var op *net.OpError
		return errors.As(err, &connect) || errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed)
	}
	return false
}

// trouble tells a full disk and a damaged database from other failures.
func trouble(err error) error {
	switch codeOf(err) {
	case codeDiskFull:
		return eventlog.Full(err, true)
	case codeDataCorrupted, codeIndexCorrupted:
		return eventlog.Damaged(err)
	}
	return err
}

// readErr names the operation of a failed read. A store that was closed
// meanwhile is the reason, whatever the driver says.
func (s *Store) readErr(op string, err error) error {
	select {
	case <-s.queue.Closing():
		return fmt.Errorf("%s: %w", op, errors.Join(eventlog.ErrClosed, err))
	default:
		err = trouble(err)
		if away(err) {
			return fmt.Errorf("%s: %w: %w", op, eventlog.ErrAway, err)
		}
		return fmt.Errorf("%s: %w", op, err)
	}
}

// write runs f in a transaction of its own, beside the writer. f may be run
// again when another transaction was in its way.
func (s *Store) write(ctx context.Context, op string, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.writeOver(ctx, s.pool, op, f)
}

// writePrime is write for what must not wait behind readers.
func (s *Store) writePrime(ctx context.Context, op string, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.writeOver(ctx, s.prime, op, f)
}

func (s *Store) writeOver(ctx context.Context, pool *pgxpool.Pool, op string, f func(ctx context.Context, tx pgx.Tx) error) error {
	for try := 0; ; try++ {
		err := s.inTx(ctx, pool, f)
		if err == nil {
			return nil
		}
		if again(err) && try < retries {
			continue
		}
		return s.readErr(op, err)
	}
}

// retries bounds how often a transaction is begun anew.
const retries = 3

func (s *Store) inTx(ctx context.Context, pool *pgxpool.Pool, f func(ctx context.Context, tx pgx.Tx) error) error {
	if !s.queue.Unless(func() { s.working.Add(1) }) {
		return eventlog.ErrClosed
	}
	defer s.working.Done()
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if s.settings != "" {
		if _, err := tx.Exec(ctx, s.settings); err != nil {
			return err
		}
	}
	if err := f(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// The codes of PostgreSQL's errors that are looked at.
const (
	codeUnique     = "23505" // unique_violation
	codeSerialize  = "40001" // serialization_failure
	codeDeadlock   = "40P01" // deadlock_detected
	codeShutdown   = "57P01" // admin_shutdown
	codeCrash      = "57P02" // crash_shutdown
	codeNotNow     = "57P03" // cannot_connect_now
	codeTooMany    = "53300" // too_many_connections
	codeDiskFull   = "53100" // disk_full
	codeIdleInTx   = "25P03" // idle_in_transaction_session_timeout
	codeCachedPlan = "0A000" // feature_not_supported, said of a plan whose table changed

	codeDataCorrupted  = "XX001" // data_corrupted
	codeIndexCorrupted = "XX002" // index_corrupted
)

func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// again says whether a transaction that failed so may do better the next time.
func again(err error) bool {
	switch codeOf(err) {
	case codeSerialize, codeDeadlock, codeCachedPlan:
		return true
	}
	return false
}

// broken says whether the error is one of the connection, and not the server's
// word on a statement.
func broken(err error) bool {
	switch code := codeOf(err); code {
	case codeShutdown, codeCrash, codeNotNow, codeIdleInTx:
		return true
	default:
		return code == ""
	}
}

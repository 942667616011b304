package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
	sqlite3 "modernc.org/sqlite/lib"
)

// logColumns are the columns that scanLogRow reads.
const logColumns = "id, stream, first_seq, count, epoch, time, session_id, user_id, meta, data, salt, digests, prev, hash"

// logRow is a row of the log and its place in the order of commits.
type logRow struct {
	id  int64
	bad error // a column that cannot be read
	event.Row
}

// Events reads the row back.
func (r *logRow) Events() ([]event.Event, error) {
	if r.bad != nil {
		return nil, r.bad
	}
	return r.Row.Events()
}

func scanLogRow(rows *sql.Rows) (logRow, error) {
	var r logRow
	var at string
	var prev, hash []byte
	err := rows.Scan(&r.id, &r.Stream, &r.First, &r.Count, &r.Epoch, &at, &r.SessionID, &r.UserID,
		&r.Meta, &r.Data, &r.Salt, &r.Digests, &prev, &hash)
	if err != nil {
		return r, err
	}
	// A time that cannot be read does not hide the row: verification must see it.
	if r.Time, err = event.ParseTime(at); err != nil {
		r.bad = fmt.Errorf("row %s#%d: time: %w", r.Stream, r.First, err)
	}
	// A digest of another length was changed; it does not match what it should.
	copy(r.Prev[:], prev)
	copy(r.Hash[:], hash)
	return r, nil
}

// readErr names the operation of a failed read. A store that was closed
// meanwhile is the reason, whatever the driver says.
func (s *Store) readErr(op string, err error) error {
	select {
	case <-s.queue.Closing():
		return fmt.Errorf("%s: %w", op, errors.Join(eventlog.ErrClosed, err))
	default:
		switch codeOf(err) {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			err = s.damage(err)
		}
		return fmt.Errorf("%s: %w", op, err)
	}
}

// Head implements eventlog.Log.
func (s *Store) Head(ctx context.Context, stream event.Stream) (eventlog.Head, error) {
	h, err := readHead(ctx, s.readers, stream)
	if err != nil {
		return h, s.readErr("read head", err)
	}
	return h, nil
}

func readHead(ctx context.Context, st *statements, stream event.Stream) (eventlog.Head, error) {
	var h eventlog.Head
	var hash []byte
	err := st.row(ctx, []byte("SELECT head, epoch, hash FROM main.streams WHERE stream = ?"), []any{string(stream)}, &h.Seq, &h.Epoch, &hash)
	if errors.Is(err, sql.ErrNoRows) {
		return eventlog.Head{}, nil
	}
	copy(h.Hash[:], hash)
	return h, err
}

// readQuery begins at the row that holds the event after ?2, which may stand
// in the middle of it. Each row has at least one event to give.
const readQuery = "SELECT " + logColumns + ` FROM main.log
	WHERE stream = ?1 AND first_seq + count > ?2 + 1
	AND first_seq >= coalesce((SELECT max(first_seq) FROM main.log WHERE stream = ?1 AND first_seq <= ?2 + 1), 0)
	ORDER BY first_seq LIMIT ?3`

// Read implements eventlog.Log.
func (s *Store) Read(ctx context.Context, stream event.Stream, after int64, limit int) ([]event.Event, error) {
	return s.read(ctx, stream, after, limit, math.MaxInt)
}

// ReadBounded implements eventlog.Log.
func (s *Store) ReadBounded(ctx context.Context, stream event.Stream, after int64, limit int) ([]event.Event, error) {
	return s.read(ctx, stream, after, limit, s.cfg.MaxReadBytes)
}

func (s *Store) read(ctx context.Context, stream event.Stream, after int64, limit, maxBytes int) ([]event.Event, error) {
	if limit <= 0 {
		return nil, nil
	}
	select {
	case <-s.queue.Closing(): // the database says how that went
	default:
		if list, ok := s.tails.Read(stream, max(after, 0), limit, maxBytes); ok {
			return list, ctx.Err()
		}
	}
	list, err := readEvents(ctx, s.readers, stream, after, limit, maxBytes)
	if err != nil {
		return nil, s.readErr("read events", err)
	}
	return list, nil
}

// Facts implements eventlog.Log.
func (s *Store) Facts(ctx context.Context, places []eventlog.Place) ([]event.Event, error) {
	list, err := storecore.Facts(ctx, s.tails, s.queue.Closing(), places, func(left []eventlog.Place) ([]*event.Event, error) {
		var list []*event.Event
		for size := 0; len(list) < len(left) && size <= s.cfg.MaxReadBytes; {
			p := left[len(list)]
			one, err := readEvents(ctx, s.readers, p.Stream, p.Seq-1, 1, math.MaxInt)
			if err != nil {
				return nil, err
			}
			e := storecore.EventAt(one, p.Seq)
			if list = append(list, e); e != nil {
				size += len(e.Raw)
			}
		}
		return list, nil
	})
	if err != nil {
		return nil, s.readErr("read events", err)
	}
	return list, nil
}

// readEvents reads events after a sequence over whatever connection.
func readEvents(ctx context.Context, st *statements, stream event.Stream, after int64, limit, maxBytes int) ([]event.Event, error) {
	rows, err := st.query(ctx, []byte(readQuery), string(stream), max(after, 0), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []event.Event
	size := 0
	for len(list) < limit && size <= maxBytes && rows.Next() {
		row, err := scanLogRow(rows)
		if err != nil {
			return nil, err
		}
		events, err := row.Events()
		if err != nil {
			return nil, err
		}
		if skip := after - row.First + 1; skip > 0 {
			events = events[min(int(skip), len(events)):]
		}
		for i := 0; i < len(events) && len(list) < limit && size <= maxBytes; i++ {
			list = append(list, events[i])
			size += len(events[i].Raw)
		}
	}
	return list, rows.Err()
}

// feedQuery walks the log in the order of commits from the row ?1, which is
// left out when index ?2 is its last. A row that the filter holds back comes
// without its content. The tests of type and run are coarse ones: the words stand
// somewhere in the envelopes.
func feedQuery(f *eventlog.FeedFilter) (text string, args []any) {
	pass := []string{"1"}
	arg := func(v any) string {
		args = append(args, v)
		return "?" + strconv.Itoa(len(args)+3)
	}
	if f.UserID != "" {
		pass = append(pass, "user_id = "+arg(f.UserID))
	}
	if f.SessionID != "" {
		pass = append(pass, "session_id = "+arg(string(f.SessionID)))
	}
	if !f.Since.IsZero() {
		pass = append(pass, "time >= "+arg(storecore.StoredFrom(f.Since)))
	}
	within := func(word string) string { return "instr(meta, CAST(" + arg(word) + " AS BLOB)) > 0" }
	if f.RunID != "" {
		pass = append(pass, within(string(f.RunID)))
	}
	var types []string
	for _, t := range f.Types {
		types = append(types, within(string(t)))
	}
	if types != nil {
		pass = append(pass, "("+strings.Join(types, " OR ")+")")
	}
	return `SELECT id, stream, first_seq, count, epoch, time, session_id, user_id,
	CASE WHEN pass THEN meta END, CASE WHEN pass THEN data END, CASE WHEN pass THEN salt END, CASE WHEN pass THEN digests END, prev, hash
	FROM (SELECT *, ` + strings.Join(pass, " AND ") + ` AS pass FROM log)
	WHERE id >= ?1 AND (id > ?1 OR count - 1 > ?2) ORDER BY id LIMIT ?3`, args
}

// Feed implements eventlog.Log.
func (s *Store) Feed(ctx context.Context, after eventlog.Position, limit int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position, error) {
	window := min(limit, storecore.FeedRows)
	if !f.Empty() {
		window = storecore.FeedWindow
	}
	p := storecore.FeedPage{After: max(after, 0), Limit: limit, Bytes: s.cfg.MaxReadBytes, Filter: f}
	for looked := 0; looked < storecore.FeedRows && !p.Full() && !p.Over; {
		n, err := s.feedWindow(ctx, &p, window)
		if err != nil {
			return nil, 0, s.readErr("read feed", err)
		}
		if looked += n; n < window {
			break
		}
	}
	return p.List, p.After, nil
}

// feedWindow adds what passes of the next rows to a page, moves its position,
// and gives the number of rows it saw.
func (s *Store) feedWindow(ctx context.Context, p *storecore.FeedPage, window int) (int, error) {
	id, index := storecore.PlaceOf(p.After)
	text, args := feedQuery(&p.Filter)
	args = append([]any{id, index, window}, args...)
	stmt, release, err := s.readers.lend(ctx, text, len(p.Filter.Types) < 2 && p.Filter.RunID == "" && p.Filter.Since.IsZero())
	if err != nil {
		return 0, err
	}
	defer release()
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	return p.Read(func() (int64, *event.Row, bool, error) {
		if !rows.Next() {
			return 0, nil, false, rows.Err()
		}
		row, err := scanLogRow(rows)
		if err == nil && row.Meta != nil {
			err = row.bad
		}
		return row.id, &row.Row, err == nil, err
	})
}

// Blob implements eventlog.Log.
func (s *Store) Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error) {
	var kind event.BlobKind
	var data []byte
	err := s.readers.row(ctx, []byte("SELECT kind, bytes FROM blobs WHERE owner = ? AND ref = ?"), []any{string(owner), ref}, &kind, &data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, "", s.noBlob(ctx, owner)
	}
	if err != nil {
		return nil, "", s.readErr("read blob", err)
	}
	return data, kind, nil
}

// noBlob says why a session has no such blob.
func (s *Store) noBlob(ctx context.Context, owner event.SessionID) error {
	var status string
	err := s.readers.row(ctx, []byte("SELECT status FROM sessions WHERE session_id = ?"), []any{string(owner)}, &status)
	switch {
	case err == nil && status == statusErased:
		return fmt.Errorf("blob: %w", eventlog.ErrErased)
	case err == nil || errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("blob: %w", eventlog.ErrNotFound)
	}
	return s.readErr("read blob", err)
}

// Now implements eventlog.Log. One process writes this database, so its own
// clock is the clock.
func (s *Store) Now(context.Context) (time.Time, error) { return time.Now().UTC(), nil }

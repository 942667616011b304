package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// logColumns are the columns that scanLog reads.
const logColumns = "stream, first_seq, count, epoch, time, session_id, user_id, meta, data, salt, digests, prev, hash"

// logRow is a row of the log.
type logRow struct {
	block int64
	place int64
	bad   error // a column that cannot be read
	event.Row
}

// Events reads the row back.
func (r *logRow) Events() ([]event.Event, error) {
	if r.bad != nil {
		return nil, r.bad
	}
	return r.Row.Events()
}

// scanLog scans first, and the columns of the log.
func scanLog(rows pgx.Rows, r *logRow, first ...any) error {
	var at *time.Time
	var prev, hash []byte
	var count int64
	dest := append(first, &r.Stream, &r.First, &count, &r.Epoch, &at, &r.SessionID, &r.UserID, &r.Meta, &r.Data, &r.Salt, &r.Digests, &prev, &hash)
	if err := scanRow(rows, dest); err != nil {
		return err
	}
	r.Count = int(count)
	r.Time = at.UTC()
	// A digest of another length was changed; it does not match what it should.
	copy(r.Prev[:], prev)
	copy(r.Hash[:], hash)
	return nil
}

const headQuery = "SELECT head, epoch, hash FROM @.streams WHERE stream = $1"

// Head implements eventlog.Log.
func (s *Store) Head(ctx context.Context, stream event.Stream) (eventlog.Head, error) {
	type row struct {
		eventlog.Head
		hash []byte
	}
	r, err := oneOf(ctx, s, s.pool, headQuery, []any{string(stream)}, func(r *row) []any { return []any{&r.Seq, &r.Epoch, &r.hash} })
	if errors.Is(err, eventlog.ErrNotFound) {
		return eventlog.Head{}, nil
	}
	if err != nil {
		return eventlog.Head{}, s.readErr("read head", err)
	}
	copy(r.Hash[:], r.hash)
	return r.Head, nil
}

// readQuery begins at the row that holds the event after $2, which may stand in
// the middle of it, and ends with the row that holds event $3. bounded leaves out
// the rows behind which the data of those before, without the first, have more
// than $4 bytes. The last row before is asked for by order: the greatest of all would
// be looked for among all, while the server knows nothing of the table yet.
const (
	readWhere = ` FROM @.log WHERE stream = $1 AND first_seq + count > $2::bigint + 1 AND first_seq <= $3::bigint
		AND first_seq >= coalesce((SELECT first_seq FROM @.log WHERE stream = $1 AND first_seq <= $2 + 1 ORDER BY first_seq DESC LIMIT 1), 0)`
	readQuery    = "SELECT " + logColumns + readWhere + " ORDER BY first_seq"
	boundedQuery = "SELECT " + logColumns + " FROM (SELECT " + logColumns + `,
		sum(coalesce(octet_length(data) - count - 1, 0)) OVER (ORDER BY first_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
		first_value(coalesce(octet_length(data) - count - 1, 0)) OVER (ORDER BY first_seq) AS head` + readWhere + `
		ORDER BY first_seq LIMIT ($3 - $2)) x WHERE coalesce(before - head, 0) <= $4::bigint ORDER BY first_seq`
)

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
		// Only what is there is told from memory: that there is no more is for
		// the database to say, since another process may have written.
		if list, ok := s.tails.Read(stream, max(after, 0), limit, maxBytes); ok && len(list) > 0 {
			return list, ctx.Err()
		}
	}
	list, err := readEvents(ctx, s, s.pool, stream, after, limit, maxBytes)
	if err != nil {
		return nil, s.readErr("read events", err)
	}
	return list, nil
}

// readEvents reads events after a sequence over whatever connection.
func readEvents(ctx context.Context, s *Store, q db, stream event.Stream, after int64, limit, maxBytes int) ([]event.Event, error) {
	after = max(after, 0)
	last := after + int64(min(limit, math.MaxInt32))
	text, args := readQuery, []any{toText(string(stream)), after, last}
	if maxBytes != math.MaxInt {
		text, args = boundedQuery, append(args, maxBytes)
	}
	rows, err := q.Query(ctx, s.sql(text), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []event.Event
	size := 0
	for len(list) < limit && size <= maxBytes && rows.Next() {
		var row logRow
		if err := scanLog(rows, &row); err != nil {
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
	rows.Close()
	return list, rows.Err()
}

// factsQuery gives for each place the row that holds its event, or one that stands before it where there is none. It
// leaves out the rows behind which the data of those before have more than $3 bytes.
const factsQuery = "SELECT n, " + logColumns + " FROM (SELECT n, " + logColumns + `,
		sum(coalesce(octet_length(data), 0)) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
	FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u(s, q, n)
	CROSS JOIN LATERAL (SELECT * FROM @.log WHERE stream = u.s AND first_seq <= u.q ORDER BY first_seq DESC LIMIT 1) l) x
	WHERE coalesce(before, 0) <= $3::bigint ORDER BY n`

// Facts implements eventlog.Log.
func (s *Store) Facts(ctx context.Context, places []eventlog.Place) ([]event.Event, error) {
	list, err := storecore.Facts(ctx, s.tails, s.queue.Closing(), places, func(left []eventlog.Place) ([]*event.Event, error) { return s.factsOf(ctx, left) })
	if err != nil {
		return nil, s.readErr("read events", err)
	}
	return list, nil
}

func (s *Store) factsOf(ctx context.Context, places []eventlog.Place) ([]*event.Event, error) {
	streams, seqs := make([]string, len(places)), make([]int64, len(places))
	for i, p := range places {
		streams[i], seqs[i] = toText(string(p.Stream)), p.Seq
	}
	rows, err := s.pool.Query(ctx, s.sql(factsQuery), streams, seqs, s.cfg.MaxReadBytes)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := make([]*event.Event, len(places))
	var last logRow
	var events []event.Event
	var n int64
	size := 0
	for rows.Next() {
		var row logRow
		if err := scanLog(rows, &row, &n); err != nil {
			return nil, err
		}
		if row.Stream != last.Stream || row.First != last.First { // several places may be in one row
			if events, err = row.Events(); err != nil {
				return nil, err
			}
			last = row
		}
		list[n-1] = storecore.EventAt(events, places[n-1].Seq)
		size += len(row.Data)
	}
	if size > s.cfg.MaxReadBytes { // the others were left out
		list = list[:n]
	}
	return list, rows.Err()
}

// feedQuery walks the log in the order of commits from the row at position $1,
// which is left out when index $2 is its last, over $3 rows: positions have no
// gaps. It ends where the data of the rows have more than $4 bytes. A row that the filter holds back comes
// without its content. The tests of type and run are coarse ones: the words stand
// somewhere in the envelopes.
func feedQuery(f *eventlog.FeedFilter) (text string, args []any) {
	pass := []string{"true"}
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args)+4)
	}
	if f.UserID != "" {
		pass = append(pass, "user_id = "+arg(toText(f.UserID)))
	}
	if f.SessionID != "" {
		pass = append(pass, "session_id = "+arg(toText(string(f.SessionID))))
	}
	if !f.Since.IsZero() {
		pass = append(pass, "time >= "+arg(storedFrom(f.Since)))
	}
	within := func(word string) string { return "position(" + arg([]byte(word)) + "::bytea in meta) > 0" }
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
	return `SELECT pos, stream, first_seq, count, epoch, time, session_id, user_id,
	CASE WHEN pass THEN meta END, CASE WHEN pass THEN data END, CASE WHEN pass THEN salt END, CASE WHEN pass THEN digests END, prev, hash
	FROM (SELECT *, sum(CASE WHEN pass THEN octet_length(data) END) OVER (ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
		FROM (SELECT f.pos - f.rows + 1 + l.place AS pos, l.stream, l.first_seq, l.count, l.epoch, l.time, l.session_id, l.user_id, l.meta, l.data,
			l.salt, l.digests, l.prev, l.hash, ` + strings.Join(pass, " AND ") + ` AS pass
			FROM (SELECT pos, rows, block FROM @.feed WHERE pos >= $1::bigint ORDER BY pos LIMIT $3::bigint + 1) f JOIN @.log l ON l.block = f.block
			WHERE f.pos - f.rows < $1 + $3) r
		WHERE pos >= $1 AND (pos > $1 OR count - 1 > $2::bigint) AND pos <= $1 + $3) x
	WHERE coalesce(before, 0) <= $4::bigint ORDER BY pos LIMIT $3`, args
}

// storedFrom is the first stored time that is not before t.
func storedFrom(t time.Time) time.Time {
	if cut := t.Truncate(time.Microsecond); cut.Before(t) {
		return cut.Add(time.Microsecond)
	}
	return t
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
	row, index := storecore.PlaceOf(p.After)
	text, more := feedQuery(&p.Filter)
	args := append([]any{row, index, int64(window), int64(max(p.Bytes, 0))}, more...)
	if len(p.Filter.Types) > 1 || p.Filter.RunID != "" || !p.Filter.Since.IsZero() {
		args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
	}
	rows, err := s.pool.Query(ctx, s.sql(text), args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	n, err := p.Read(func() (int64, *event.Row, bool, error) {
		if !rows.Next() {
			return 0, nil, false, rows.Err()
		}
		var pos int64
		var r logRow
		err := scanLog(rows, &r, &pos)
		return pos, &r.Row, err == nil, err
	})
	rows.Close()
	if err == nil {
		err = rows.Err()
	}
	return n, err
}

// Blob implements eventlog.Log.
func (s *Store) Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error) {
	type row struct {
		kind  event.BlobKind
		bytes []byte
	}
	b, err := oneOf(ctx, s, s.pool, "SELECT kind, bytes FROM @.blobs WHERE owner = $1 AND ref = $2", []any{string(owner), ref},
		func(r *row) []any { return []any{&r.kind, &r.bytes} })
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, "", s.noBlob(ctx, owner)
	}
	if err != nil {
		return nil, "", s.readErr("read blob", err)
	}
	return b.bytes, b.kind, nil
}

// noBlob says why a session has no such blob.
func (s *Store) noBlob(ctx context.Context, owner event.SessionID) error {
	status, err := oneOf(ctx, s, s.pool, "SELECT status FROM @.sessions WHERE session_id = $1", []any{string(owner)}, func(v *string) []any { return []any{v} })
	switch {
	case err == nil && status == statusErased:
		return fmt.Errorf("blob: %w", eventlog.ErrErased)
	case err == nil || errors.Is(err, eventlog.ErrNotFound):
		return fmt.Errorf("blob: %w", eventlog.ErrNotFound)
	}
	return s.readErr("read blob", err)
}

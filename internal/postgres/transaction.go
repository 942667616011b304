package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// condition names a condition of an append.
type condition struct {
	of    *request
	index int
}

// transaction is one transaction of a writer.
type transaction struct {
	ctx     context.Context
	s       *Store
	conn    *pgx.Conn
	patient bool

	// What the first message brought.
	streams    map[event.Stream]*streamState
	absent     map[event.Stream]bool // of those that are only locked: there is no such stream
	found      map[condition][]any
	exists     map[string]bool // guarded rows
	assets     map[string]bool
	leases     map[eventlog.NodeID]lease
	now        time.Time
	block      int64
	generation int
	fresh      []string // streams that were made, perhaps for nothing

	// What it is going to write.
	changes *changeSet
	touched map[derived.Table]*touched
	guarded map[string]bool // guarded rows: true inserted, false deleted
	rows    []event.Row
	wakes   []bool
	blobs   []event.Blob
	snaps   []*request
	unsaved []*request // snapshots that were not stored, for whatever reason
	erase   event.SessionID
}

// lease is what a node's row says.
type lease struct {
	until time.Time
	alive bool
	known bool
	roots []string
}

func newTransaction(ctx context.Context, s *Store, conn *pgx.Conn, patient bool) *transaction {
	return &transaction{
		ctx: ctx, s: s, conn: conn, patient: patient,
		streams: map[event.Stream]*streamState{}, absent: map[event.Stream]bool{}, found: map[condition][]any{}, exists: map[string]bool{},
		assets: map[string]bool{}, leases: map[eventlog.NodeID]lease{}, changes: newChangeSet(),
		touched: map[derived.Table]*touched{}, guarded: map[string]bool{},
	}
}

// streamsOf lists the streams that an append moves, and those that it must
// find standing still: what its conditions ask of hangs on them.
func (r *request) streamsOf() (moved, still []event.Stream) {
	if r.snap != nil {
		return nil, []event.Stream{r.snap.SessionID.Stream()}
	}
	for i := range r.append.Entries {
		moved = append(moved, r.append.Entries[i].Stream)
	}
	for _, c := range r.append.Require {
		if c.Table == derived.Aliases {
			continue // guarded by its own key
		}
		for _, col := range c.Where {
			v, _ := col.Value.(string)
			var stream event.Stream
			switch {
			case col.Name == "target_id":
				stream = event.TargetID(v).Stream()
			case col.Name == "job_id" && c.Table == derived.Jobs:
				stream = event.JobID(v).Stream()
			case col.Name == "session_id" && c.Table != derived.Outbox:
				stream = event.SessionID(v).Stream()
			default:
				continue
			}
			if !slices.Contains(moved, stream) {
				still = append(still, stream)
			}
		}
	}
	return moved, still
}

const (
	makeStreams = `INSERT INTO @.streams (stream, kind, head, epoch, hash)
		SELECT s, k, 0, 0, '' FROM unnest($1::text[], $2::text[]) AS u(s, k) ON CONFLICT (stream) DO NOTHING`
	// lockStreams locks, gives the streams as they are behind the locks, and last of
	// all a row without a name, which has what is drawn behind them: the time, the block
	// of the log, and by which generation of rules its rows are made.
	lockStreams = `SELECT s.*, NULL::timestamptz, 0::bigint, 0 FROM (SELECT stream, head, epoch, hash, holder, ready_since IS NOT NULL, version, roots FROM @.streams
		WHERE stream = ANY($1::text[]) ORDER BY stream FOR UPDATE%s) s
		UNION ALL SELECT '', 0, 0, '', '', false, 0, '{}', clock_timestamp(), nextval('@.log_blocks'), coalesce((SELECT value FROM @.facts WHERE name = 'generation'), 0)`
	haveStreams = `SELECT stream FROM @.streams WHERE stream = ANY($1::text[])`
	lockAssets  = `SELECT asset_id FROM @.assets WHERE asset_id = ANY($1::text[]) ORDER BY asset_id FOR KEY SHARE`
)

var lockPatiently, lockAtOnce = fmt.Sprintf(lockStreams, ""), fmt.Sprintf(lockStreams, " SKIP LOCKED")

// begin sends the first message: it locks, and asks for all that the checks
// need. What is asked for is seen as it is behind the locks.
func (t *transaction) begin(batch []*request) error {
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	if t.s.settings != "" {
		b.Queue(t.s.settings)
	}
	t.queueStreams(b, batch)
	t.queueConditions(b, batch)
	t.queueGuards(b, batch)
	var uses []string
	for _, r := range batch {
		for _, id := range r.append.Uses {
			uses = append(uses, toText(string(id)))
		}
	}
	if len(uses) > 0 {
		slices.Sort(uses)
		b.Queue(t.s.sql(lockAssets), slices.Compact(uses)).Query(func(rows pgx.Rows) error {
			list, err := collect(rows, func(id *string) []any { return []any{id} })
			for _, id := range list {
				t.assets[id] = true
			}
			return err
		})
	}
	if err := t.conn.SendBatch(t.ctx, b).Close(); err != nil {
		return err
	}
	if t.generation > t.s.cfg.Generation {
		return newer("derived rows", t.generation, t.s.cfg.Generation)
	}
	return nil
}

func (t *transaction) queueStreams(b *pgx.Batch, batch []*request) {
	var lock, still []string
	fresh := map[event.Stream]bool{}
	for _, r := range batch {
		moved, other := r.streamsOf()
		for _, stream := range moved {
			lock = append(lock, toText(string(stream)))
			if t.patient || !t.s.known.has(stream) {
				fresh[stream] = true
			}
		}
		for _, stream := range other {
			lock, still = append(lock, toText(string(stream))), append(still, toText(string(stream)))
			t.absent[stream] = true
		}
	}
	if len(fresh) > 0 {
		for stream := range fresh {
			t.fresh = append(t.fresh, toText(string(stream)))
		}
		slices.Sort(t.fresh)
		kinds := make([]string, len(t.fresh))
		for i, stream := range t.fresh {
			kinds[i] = string(eventlog.KindOf(event.Stream(stream)))
		}
		b.Queue(t.s.sql(makeStreams), t.fresh, kinds)
	}
	slices.Sort(lock)
	text := lockPatiently
	if !t.patient {
		text = lockAtOnce
	}
	b.Queue(t.s.sql(text), slices.Compact(lock)).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			var stream string
			st := &streamState{}
			var hash []byte
			var now *time.Time
			if err := scanRow(rows, []any{&stream, &st.Seq, &st.Epoch, &hash, &st.holder, &st.ready, &st.version, &st.roots, &now, &t.block, &t.generation}); err != nil {
				return err
			}
			if now != nil {
				t.now = now.UTC()
				continue
			}
			copy(st.Hash[:], hash)
			t.streams[event.Stream(stream)] = st
		}
		return rows.Err()
	})
	if len(still) > 0 {
		b.Queue(t.s.sql(haveStreams), still).Query(func(rows pgx.Rows) error {
			list, err := collect(rows, func(id *string) []any { return []any{id} })
			for _, id := range list {
				t.absent[event.Stream(id)] = false
			}
			return err
		})
	}
}

// lease reads a node's row. Only who meets a stream that another node holds, or
// claims one that needs roots, asks.
func (t *transaction) lease(id eventlog.NodeID) (lease, error) {
	if l, ok := t.leases[id]; ok {
		return l, nil
	}
	l, err := oneOf(t.ctx, t.s, t.conn, "SELECT until, NOT released AND until > clock_timestamp(), true, roots FROM @.nodes WHERE node_id = $1",
		[]any{string(id)}, func(l *lease) []any { return []any{&l.until, &l.alive, &l.known, &l.roots} })
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return l, err
	}
	l.until = l.until.UTC()
	t.leases[id] = l
	return l, nil
}

// decide plans the appends of the batch one after the other. What touches a
// stream of one that is not decided here is not decided here either. An error
// is of the connection.
func (t *transaction) decide(batch []*request) error {
	barred := map[event.Stream]fate{}
	for _, r := range batch {
		if r.err != nil {
			continue
		}
		moved, still := r.streamsOf()
		for i, stream := range append(moved, still...) {
			if f := barred[stream]; f != decided {
				r.fate = max(r.fate, f)
			} else if t.streams[stream] == nil && (i < len(moved) || !t.absent[stream]) {
				r.fate = slow
			}
		}
		if r.fate == decided && r.snap != nil {
			t.snaps = append(t.snaps, r)
			continue
		}
		if r.fate == decided {
			if err := t.plan(r); err != nil {
				r.err = err
				if t.conn.IsClosed() || t.conn.PgConn().TxStatus() == 'E' {
					return err
				}
				continue
			}
		}
		if r.fate != decided {
			for _, stream := range moved {
				barred[stream] = max(barred[stream], r.fate)
			}
			continue
		}
		if r.append.Erase != "" {
			t.erase = r.append.Erase
		}
	}
	if t.erase != "" {
		return t.eraseContent()
	}
	return nil
}

// moved gives the streams that the transaction moves.
func (t *transaction) moved() iter.Seq[event.Stream] {
	return func(yield func(event.Stream) bool) {
		for stream, st := range t.streams {
			if st.moved && !yield(stream) {
				return
			}
		}
	}
}

// empty says whether there is nothing to write.
func (t *transaction) empty() bool { return len(t.rows) == 0 && len(t.snaps) == 0 }

func (t *transaction) rollback() {
	if !t.conn.IsClosed() && t.conn.PgConn().TxStatus() != 'I' {
		// What cannot be undone goes with the connection.
		_, _ = t.conn.Exec(t.ctx, "ROLLBACK")
	}
}

const (
	insertBlobs = `INSERT INTO @.blobs (owner, ref, kind, bytes) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[])
		ON CONFLICT DO NOTHING`
	// writeLog has the rows of the log and, with them, the ends of their streams.
	writeLog = `WITH log AS (INSERT INTO @.log (block, place, stream, first_seq, count, epoch, time, session_id, user_id, wakes, meta, data, salt, prev, hash)
		SELECT $1, v0, v1, v2, v3, v4, $2, v5, v6, v7, substring($4::bytea FROM v11 FOR v12), substring($4::bytea FROM v11 + v12 FOR v13), v8, v9, v10
		FROM json_to_recordset($3::json) AS u(v0 int, v1 text, v2 bigint, v3 int, v4 bigint, v5 text, v6 text, v7 boolean, v8 bytea, v9 bytea, v10 bytea,
			v11 int, v12 int, v13 int))
		UPDATE @.streams s SET head = v1, epoch = v2, hash = v3, holder = v4,
		ready_since = CASE WHEN v5 THEN coalesce(s.ready_since, $2) END, version = v6
		FROM json_to_recordset($5::json) AS u(v0 text, v1 bigint, v2 bigint, v3 bytea, v4 text, v5 boolean, v6 int)
		WHERE s.stream = u.v0`
	rootStream  = `UPDATE @.streams SET roots = $2 WHERE stream = $1`
	dropStreams = `DELETE FROM @.streams WHERE stream = ANY($1::text[]) AND head = 0`
	lockFeedRow = `SELECT pg_advisory_xact_lock($1::int, $2::int)`
	insertFeed  = `INSERT INTO @.feed (pos, rows, block, node, time, streams, heads, wakes)
		SELECT coalesce((SELECT pos FROM @.feed ORDER BY pos DESC LIMIT 1), 0) + $1::int, $1::int, $2, $3, $4, $5, $6, $7`
)

// commit sends the second message: all rows, and last of all the lock of the
// feed, its row and the commit.
func (t *transaction) commit() error {
	b := &pgx.Batch{}
	t.queueRows(b)
	t.queueFeed(b)
	var tag pgconn.CommandTag
	b.Queue("COMMIT").Exec(func(ct pgconn.CommandTag) error { tag = ct; return nil })
	if err := t.conn.SendBatch(t.ctx, b).Close(); err != nil {
		var before *pgconn.PgError
		if errors.As(err, &before) && before.Severity != "FATAL" && before.Severity != "PANIC" {
			return err // the server's word on a statement before the commit
		}
		return &commitError{err}
	}
	if tag.String() != "COMMIT" {
		return fmt.Errorf("the commit ended as %q", tag)
	}
	return nil
}

// queueRows puts all rows into a message, but that of the feed.
func (t *transaction) queueRows(b *pgx.Batch) {
	t.queueBlobs(b)
	t.changes.queue(b, t.s.sql, "@.")
	t.queueLog(b, t.heads(b))
	for _, r := range t.snaps {
		t.queueSnapshot(b, r)
	}
}

// queueFeed gives the rows of the log their places in the order of commits, with
// what other nodes are told of them.
func (t *transaction) queueFeed(b *pgx.Batch) {
	if len(t.rows) == 0 {
		return
	}
	streams, heads := make([]string, len(t.rows)), make([]int64, len(t.rows))
	for i := range t.rows {
		streams[i], heads[i] = toText(string(t.rows[i].Stream)), t.rows[i].Last()
	}
	b.Queue(t.s.sql(lockFeedRow), t.s.feedLock, int32(lockFeed))
	b.Queue(t.s.sql(insertFeed), int32(len(t.rows)), t.block, toText(string(t.s.cfg.Node)), t.now, streams, heads, t.wakes)
}

func (t *transaction) queueBlobs(b *pgx.Batch) {
	if len(t.blobs) == 0 {
		return
	}
	slices.SortFunc(t.blobs, func(a, b event.Blob) int { return strings.Compare(a.Owner+"\n"+a.Ref, b.Owner+"\n"+b.Ref) })
	n := len(t.blobs)
	owners, refs, kinds, bytes := make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i, x := range t.blobs {
		owners[i], refs[i], kinds[i], bytes[i] = toText(x.Owner), toText(x.Ref), string(x.Kind), x.Bytes
		if bytes[i] == nil {
			bytes[i] = []byte{} // nil would be NULL
		}
	}
	b.Queue(t.s.sql(insertBlobs), owners, refs, kinds, bytes)
}

func (t *transaction) queueLog(b *pgx.Batch, heads []byte) {
	if len(t.rows) == 0 {
		return
	}
	var rows rowset
	var long []byte // of all rows: their envelopes and data, one after the other
	for i := range t.rows {
		r := &t.rows[i]
		rows.row()
		rows.int(int64(i))
		rows.text(string(r.Stream))
		rows.int(r.First)
		rows.int(int64(r.Count))
		rows.int(r.Epoch)
		rows.text(string(r.SessionID))
		rows.text(r.UserID)
		rows.bool(t.wakes[i])
		rows.bytes(r.Salt)
		rows.bytes(r.Prev[:])
		rows.bytes(r.Hash[:])
		rows.int(int64(len(long) + 1))
		rows.int(int64(len(r.Meta)))
		rows.int(int64(len(r.Data)))
		long = append(append(long, r.Meta...), r.Data...)
	}
	b.Queue(t.s.sql(writeLog), t.block, t.now, rows.arg(), long, heads)
}

// heads gives the ends of the streams that moved, and puts into the message what
// else becomes of streams.
func (t *transaction) heads(b *pgx.Batch) []byte {
	var rows rowset
	for stream, st := range t.streams {
		if !st.moved {
			continue
		}
		rows.row()
		rows.text(string(stream))
		rows.int(st.Seq)
		rows.int(st.Epoch)
		rows.bytes(st.Hash[:])
		rows.text(string(st.holder))
		rows.bool(st.ready)
		rows.int(st.version)
		if st.rooted {
			b.Queue(t.s.sql(rootStream), toText(string(stream)), toTexts([]any{slices.Clone(st.roots)})[0])
		}
	}
	unused := slices.DeleteFunc(t.fresh, func(stream string) bool {
		st := t.streams[event.Stream(fromText(stream))]
		return st == nil || st.Seq > 0
	})
	if len(unused) > 0 {
		b.Queue(t.s.sql(dropStreams), unused)
	}
	return rows.arg()
}

package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// SaveSnapshot implements eventlog.Snapshots.
func (s *Store) SaveSnapshot(ctx context.Context, snap eventlog.Snapshot) error {
	if len(snap.State) == 0 || len(snap.State) > eventlog.MaxSnapshot {
		return fmt.Errorf("save snapshot: a state of %d bytes; from 1 to %d are taken", len(snap.State), eventlog.MaxSnapshot)
	}
	r := &request{ctx: ctx, size: len(snap.State), done: make(chan struct{}), snap: &snap}
	if err := s.wait(ctx, r); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// saveSnapshot stores a snapshot, whose head may be of the same transaction.
// Snapshots of sessions without a row, erased ones too, are not stored: an erasing
// may have overtaken this one on its way. The session's stream is locked.
const saveSnapshot = `INSERT INTO @.snapshots AS old (session_id, version, head, epoch, hash, state)
	SELECT $1::text, $2::bigint, $3::bigint, $4::bigint, l.hash, $5::bytea FROM @.log l
	WHERE l.stream = $6 AND l.first_seq = (SELECT first_seq FROM @.log WHERE stream = $6 AND first_seq <= $3 ORDER BY first_seq DESC LIMIT 1)
	AND l.first_seq + l.count - 1 = $3 AND l.epoch = $4
	AND EXISTS (SELECT 1 FROM @.sessions s WHERE s.session_id = $1 AND s.status <> '` + statusErased + `')
	ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, head = excluded.head, epoch = excluded.epoch,
		hash = excluded.hash, state = excluded.state
	WHERE excluded.version > old.version OR excluded.version = old.version AND excluded.head > old.head`

func (t *transaction) queueSnapshot(b *pgx.Batch, r *request) {
	x := r.snap
	b.Queue(t.s.sql(saveSnapshot), toText(string(x.SessionID)), x.Version, x.Head, x.Epoch, x.State, toText(string(x.SessionID.Stream()))).
		Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				t.unsaved = append(t.unsaved, r)
			}
			return nil
		})
}

const appendEnds = `SELECT count(*) FROM @.log WHERE stream = $1 AND first_seq = (SELECT first_seq FROM @.log WHERE stream = $1 AND first_seq <= $2 ORDER BY first_seq DESC LIMIT 1)
	AND first_seq + count - 1 = $2 AND epoch = $3`

// afterwards says of the snapshots that were not stored whether they might have
// been.
func (t *transaction) afterwards() error {
	for _, r := range t.unsaved {
		x := r.snap
		n, err := oneOf(t.ctx, t.s, t.conn, appendEnds, []any{string(x.SessionID.Stream()), x.Head, x.Epoch}, func(n *int64) []any { return []any{n} })
		if err != nil {
			return err
		}
		if n == 0 {
			r.err = errNoHead
		}
	}
	return nil
}

// errNoHead refuses a snapshot alone; its transaction goes on.
var errNoHead = fmt.Errorf("no append ends there: %w", eventlog.ErrNotFound)

// snapshotText is a snapshot as it is stored.
type snapshotText struct {
	eventlog.Snapshot
	version int64
	hash    []byte
}

func snapshotDest(r *snapshotText) []any {
	return []any{&r.SessionID, &r.version, &r.Head, &r.Epoch, &r.hash, &r.State}
}

// row gives the snapshot. A digest of another length was changed; it does not
// match what it should.
func (r *snapshotText) row() eventlog.Snapshot {
	copy(r.Hash[:], r.hash)
	r.Version = int(r.version)
	return r.Snapshot
}

const snapshotQuery = "SELECT session_id, version, head, epoch, hash, state FROM @.snapshots"

// Snapshot implements eventlog.Snapshots.
func (s *Store) Snapshot(ctx context.Context, id event.SessionID) (eventlog.Snapshot, error) {
	t, err := one(ctx, s, "read snapshot", snapshotQuery+" WHERE session_id = ?", []any{string(id)}, snapshotDest)
	return t.row(), err
}

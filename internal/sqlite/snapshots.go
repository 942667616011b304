package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// SaveSnapshot implements eventlog.Snapshots.
func (s *Store) SaveSnapshot(ctx context.Context, snap eventlog.Snapshot) error {
	if len(snap.State) == 0 || len(snap.State) > eventlog.MaxSnapshot {
		return fmt.Errorf("save snapshot: a state of %d bytes; from 1 to %d are taken", len(snap.State), eventlog.MaxSnapshot)
	}
	r := &request{ctx: ctx, size: len(snap.State), done: make(chan struct{}), beside: func(w *writer) error {
		return w.saveSnapshot(snap)
	}}
	if err := s.wait(ctx, r); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// saveSnapshot stores a snapshot in the open transaction. Snapshots of sessions
// without a row, erased ones too, are not stored: an erasing may have overtaken
// this one on its way.
func (w *writer) saveSnapshot(snap eventlog.Snapshot) error {
	if err := w.flush(); err != nil { // its head may be of this very transaction
		return err
	}
	ctx := context.Background()
	res, err := w.st.exec(ctx, []byte(`INSERT INTO main.snapshots (session_id, version, head, epoch, hash, state)
		SELECT ?1, ?2, ?3, ?4, l.hash, ?5 FROM main.log l
		WHERE l.stream = ?6 AND l.first_seq = (SELECT max(first_seq) FROM main.log WHERE stream = ?6 AND first_seq <= ?3)
		AND l.first_seq + l.count - 1 = ?3 AND l.epoch = ?4
		AND EXISTS (SELECT 1 FROM main.sessions s WHERE s.session_id = ?1 AND s.status <> '`+statusErased+`')
		ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, head = excluded.head, epoch = excluded.epoch,
			hash = excluded.hash, state = excluded.state
		WHERE excluded.version > snapshots.version OR excluded.version = snapshots.version AND excluded.head > snapshots.head`),
		string(snap.SessionID), snap.Version, snap.Head, snap.Epoch, snap.State, string(snap.SessionID.Stream()))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	var one int
	err = w.st.row(ctx, []byte("SELECT 1 FROM main.log WHERE stream = ? AND first_seq + count - 1 = ? AND epoch = ? AND first_seq <= ? ORDER BY first_seq DESC LIMIT 1"),
		[]any{string(snap.SessionID.Stream()), snap.Head, snap.Epoch, snap.Head}, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoHead
	}
	return err
}

// errNoHead refuses a snapshot alone; its transaction goes on.
var errNoHead = fmt.Errorf("no append ends there: %w", eventlog.ErrNotFound)

const snapshotQuery = "SELECT session_id, version, head, epoch, hash, state FROM snapshots"

// snapshotText is a snapshot as it is stored.
type snapshotText struct {
	eventlog.Snapshot
	hash []byte
}

func snapshotDest(r *snapshotText) []any {
	return []any{&r.SessionID, &r.Version, &r.Head, &r.Epoch, &r.hash, &r.State}
}

// row gives the snapshot. A digest of another length was changed; it does not
// match what it should.
func (r *snapshotText) row() eventlog.Snapshot {
	copy(r.Hash[:], r.hash)
	return r.Snapshot
}

// Snapshot implements eventlog.Snapshots.
func (s *Store) Snapshot(ctx context.Context, id event.SessionID) (eventlog.Snapshot, error) {
	t, err := one(ctx, s, "read snapshot", snapshotQuery+" WHERE session_id = ?", []any{string(id)}, snapshotDest)
	return t.row(), err
}

// checkSnapshots finds snapshots that are not what the log gives. One after the
// other is in memory, with a part of its session's events.
func (v *verification) checkSnapshots(ctx context.Context) error {
	for after := ""; ; {
		var t snapshotText
		err := v.st.row(ctx, []byte("SELECT session_id, version, head, epoch, hash, state FROM main.snapshots WHERE session_id > ? ORDER BY session_id LIMIT 1"),
			[]any{after}, snapshotDest(&t)...)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		snap := t.row()
		after = string(snap.SessionID)
		err = v.Walk.Snapshot(snap, func(after int64, limit int) ([]event.Event, error) {
			return readEvents(ctx, v.st, snap.SessionID.Stream(), after, limit, v.s.cfg.MaxReadBytes)
		}, v.s.cfg.CheckSnapshot)
		if err != nil {
			return err
		}
	}
}

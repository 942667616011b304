package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// plan is an append that passed all checks: what there is to write.
type plan struct {
	stamps  []eventlog.Stamp
	rows    []event.Row
	changes []derived.Change
}

// plan checks an append and gives it its place. It writes nothing, so that an
// append that is refused here has left no trace in the transaction.
func (w *writer) plan(r *request, now time.Time) (*plan, error) {
	heads := make([]eventlog.Head, len(r.sealed))
	for i := range r.append.Entries {
		e := &r.append.Entries[i]
		if e.Follows {
			continue // behind the one before, which is checked
		}
		h, err := w.head(e.Stream)
		if err != nil {
			return nil, fmt.Errorf("append: head of %s: %w", e.Stream, err)
		}
		// The fence first: who is not the owner any more has no business
		// with what came since.
		if e.Epoch != 0 && e.Epoch != h.Epoch {
			return nil, fmt.Errorf("%w: %s is of epoch %d, not %d", eventlog.ErrFenced, e.Stream, h.Epoch, e.Epoch)
		}
		if e.Node != "" {
			if err := w.holdings.check(e, now); err != nil {
				return nil, err
			}
		}
		if e.Expect != eventlog.AnyHead && e.Expect != h.Seq {
			return nil, fmt.Errorf("%w: %s is at %d, not at %d", eventlog.ErrHeadMoved, e.Stream, h.Seq, e.Expect)
		}
		if e.Claim {
			h.Epoch++
		}
		heads[i] = h
	}
	ctx := context.Background()
	for i, c := range r.append.Require {
		if err := w.tables.holds(ctx, i, c); err != nil {
			return nil, err
		}
	}
	if err := w.checkUses(ctx, r.append.Uses); err != nil {
		return nil, err
	}
	p := &plan{}
	for i, sealed := range r.sealed {
		if r.append.Entries[i].Follows {
			last := &p.rows[i-1]
			heads[i] = eventlog.Head{Seq: last.Last(), Epoch: last.Epoch, Hash: last.Hash}
		}
		row := sealed.Stamp(heads[i].Seq, heads[i].Epoch, heads[i].Hash, now)
		p.rows = append(p.rows, row)
		p.stamps = append(p.stamps, eventlog.Stamp{Stream: row.Stream, Head: row.Last(), Epoch: row.Epoch, Events: sealed.Events})
		changes, err := storecore.RowsOf(w.s.cfg.Rows, row.Stream, sealed.Events)
		if err != nil {
			return nil, fmt.Errorf("append: %w", err)
		}
		p.changes = append(p.changes, changes...)
	}
	p.changes = derived.Merge(p.changes)
	return p, w.checkChanges(ctx, p.changes)
}

// checkChanges refuses changes that do not fit their tables, and guarded
// inserts of a key that exists or that is inserted twice.
func (w *writer) checkChanges(ctx context.Context, changes []derived.Change) error {
	for i, c := range changes {
		spec, err := storecore.CheckChange(c)
		if err != nil {
			return eventlog.Malformed(err, "append")
		}
		if !spec.Guarded || c.Op != derived.Insert {
			continue
		}
		known, err := w.willExist(ctx, changes[:i], c)
		if err != nil {
			return fmt.Errorf("append: look for %s: %w", c.Table, err)
		}
		if known {
			return &eventlog.DuplicateError{Table: c.Table, Key: c.Key}
		}
	}
	return nil
}

// willExist says whether the row that c inserts exists after the changes before c.
func (w *writer) willExist(ctx context.Context, before []derived.Change, c derived.Change) (bool, error) {
	for _, b := range slices.Backward(before) {
		if b.Table != c.Table {
			continue
		}
		if b.Op == derived.Insert && slices.Equal(b.Key, c.Key) {
			return true, nil
		}
		if b.Op == derived.Delete && slices.Equal(b.Key, c.Key[:len(b.Key)]) {
			return false, nil
		}
	}
	return w.tables.has(ctx, c.Table, c.Key)
}

// execute writes what was planned. An error here leaves the transaction half
// done: it must be undone as a whole.
func (w *writer) execute(r *request, p *plan) error {
	ctx := context.Background()
	if r.append.Erase != "" {
		if err := w.erase(ctx, r.append.Erase); err != nil {
			return fmt.Errorf("erase %s: %w", r.append.Erase, err)
		}
	}
	for _, b := range r.append.Blobs {
		if b.Bytes == nil {
			b.Bytes = []byte{} // nil would be NULL
		}
		if _, err := w.st.exec(ctx, []byte("INSERT OR IGNORE INTO main.blobs (owner, ref, kind, bytes) VALUES (?, ?, ?, ?)"),
			b.Owner, b.Ref, string(b.Kind), b.Bytes); err != nil {
			return fmt.Errorf("insert blob: %w", err)
		}
	}
	for _, c := range p.changes {
		if err := w.tables.apply(ctx, c); err != nil {
			return err
		}
	}
	for i := range p.rows {
		row := &p.rows[i]
		w.rows = append(w.rows, *row)
		w.staged[row.Stream] = eventlog.Head{Seq: row.Last(), Epoch: row.Epoch, Hash: row.Hash}
		if !r.append.Entries[i].Follows {
			w.holdings.appended(&r.append.Entries[i], r.sealed[i].Events)
		}
	}
	return nil
}

// collect reads all rows of a query.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// request is what waits for the writer: an append, or a snapshot that rides in
// a transaction of appends.
type request struct {
	ctx    context.Context // of who waits
	append eventlog.Append
	sealed []*event.Sealed // of append.Entries, in their order
	snap   *eventlog.Snapshot
	guards []guard // guarded rows that it is going to insert
	size   int     // bytes that it adds to a transaction, roughly
	since  time.Time

	done   chan struct{} // closed when stamps and err are set
	stamps []eventlog.Stamp
	err    error
	fate   fate // in the attempt under way
}

// Size implements storecore.Item.
func (r *request) Size() int { return r.size }

// Alone implements storecore.Item: an erasing reads what it changes.
func (r *request) Alone() bool { return r.append.Erase != "" }

// fate is what an attempt comes to for a request.
type fate int

const (
	decided fate = iota // stamps or err say how
	later               // it rests on an append of the same transaction
	slow                // another process has locked a stream of it
)

// guard is a row of a guarded table by its key.
type guard struct {
	table derived.Table
	key   []derived.Col
	name  string // table and key as one string
}

func guardOf(c derived.Change) guard {
	return guard{c.Table, c.Key, string(c.Table) + " " + keyOf(c.Key)}
}

// foresee finds the guarded rows that an append is going to insert, so that
// one look shows whether they exist. What follows from places and times that are
// not known yet may differ; then they are looked for once more.
func (s *Store) foresee(r *request) error {
	for _, sealed := range r.sealed {
		events := slices.Clone(sealed.Events)
		for i := range events {
			events[i].Seq, events[i].Time = int64(i+1), r.since
		}
		changes, err := storecore.RowsOf(s.cfg.Rows, sealed.Stream, events)
		if err != nil {
			return err
		}
		for _, c := range changes {
			spec, err := storecore.CheckChange(c)
			if err != nil {
				return eventlog.Malformed(err, "its rows")
			}
			if spec.Guarded && c.Op == derived.Insert {
				r.guards = append(r.guards, guardOf(c))
			}
		}
	}
	return nil
}

// streamState is a stream as the open transaction sees it.
type streamState struct {
	eventlog.Head
	holder  eventlog.NodeID
	ready   bool
	version int64
	roots   []string
	moved   bool
	rooted  bool // an entry gave other roots
}

// check says whether an entry may be appended here, and with which epoch. The
// fence comes first: who is not the owner any more has no business with what came
// since.
func (t *transaction) check(st *streamState, e *eventlog.Entry) (epoch int64, err error) {
	if e.Epoch != 0 && e.Epoch != st.Epoch {
		return 0, fmt.Errorf("%w: %s is of epoch %d, not %d", eventlog.ErrFenced, e.Stream, st.Epoch, e.Epoch)
	}
	if e.Node != "" {
		if st.holder != "" && st.holder != e.Node {
			if !e.Claim {
				return 0, fmt.Errorf("%w: %s is held by %s", eventlog.ErrFenced, e.Stream, st.holder)
			}
			l, err := t.lease(st.holder)
			if err != nil {
				return 0, err
			}
			if l.alive {
				return 0, &eventlog.HeldError{Stream: e.Stream, By: st.holder, Until: l.until}
			}
		}
		if e.Claim && len(st.roots) > 0 {
			l, err := t.lease(e.Node)
			if err != nil {
				return 0, err
			}
			if l.known && slices.ContainsFunc(st.roots, func(root string) bool { return !slices.Contains(l.roots, root) }) {
				return 0, fmt.Errorf("%w: %s needs a workspace root that %s has not", eventlog.ErrFenced, e.Stream, e.Node)
			}
		}
		if st.version > int64(t.s.cfg.Program) {
			return 0, fmt.Errorf("%w: a newer version of holdfast (%d, this is %d) has owned %s", eventlog.ErrFenced, st.version, t.s.cfg.Program, e.Stream)
		}
	}
	if e.Expect != eventlog.AnyHead && e.Expect != st.Seq {
		return 0, fmt.Errorf("%w: %s is at %d, not at %d", eventlog.ErrHeadMoved, e.Stream, st.Seq, e.Expect)
	}
	if e.Claim {
		return st.Epoch + 1, nil
	}
	return st.Epoch, nil
}

// moves notes what an entry does to its stream.
func (st *streamState) moves(e *eventlog.Entry, row *event.Row, wakes bool, program int) {
	st.Head = eventlog.Head{Seq: row.Last(), Epoch: row.Epoch, Hash: row.Hash}
	st.moved = true
	switch {
	case e.Node != "" && e.Rest:
		st.holder, st.ready = "", false
	case e.Node != "":
		st.holder, st.ready = e.Node, true
	case wakes:
		st.ready = true
	}
	if e.Node != "" {
		st.version = max(st.version, int64(program))
	}
	if len(e.Roots) > 0 {
		st.roots, st.rooted = e.Roots, true
	}
}

// plan checks an append and gives it its place among the rows of the
// transaction. An append that is refused, or is for later, leaves no trace.
func (t *transaction) plan(r *request) error {
	epochs := make([]int64, len(r.sealed))
	for i := range r.append.Entries {
		e := &r.append.Entries[i]
		if e.Follows {
			epochs[i] = epochs[i-1]
			continue // behind the one before, which is checked
		}
		var err error
		if epochs[i], err = t.check(t.streams[e.Stream], e); err != nil {
			return err
		}
	}
	for i, c := range r.append.Require {
		if t.meets(c) {
			r.fate = later
			return nil
		}
		if err := storecore.Holds(i, c, t.found[condition{r, i}]); err != nil {
			return err
		}
	}
	for _, id := range r.append.Uses {
		if !t.assets[string(id)] {
			return &eventlog.AssetError{ID: id}
		}
	}
	var rows []event.Row
	var changes []derived.Change
	stamps := make([]eventlog.Stamp, len(r.sealed))
	for i, sealed := range r.sealed {
		at := t.streams[sealed.Stream].Head
		if r.append.Entries[i].Follows {
			at = eventlog.Head{Seq: rows[i-1].Last(), Hash: rows[i-1].Hash}
		}
		row := sealed.Stamp(at.Seq, epochs[i], at.Hash, t.now)
		rows = append(rows, row)
		stamps[i] = eventlog.Stamp{Stream: row.Stream, Head: row.Last(), Epoch: row.Epoch, Events: sealed.Events}
		more, err := storecore.RowsOf(t.s.cfg.Rows, row.Stream, sealed.Events)
		if err != nil {
			return fmt.Errorf("append: %w", err)
		}
		changes = append(changes, more...)
	}
	changes = derived.Merge(changes)
	if err := t.checkChanges(r, changes); err != nil || r.fate == later {
		return err
	}
	r.stamps = stamps
	for i := range rows {
		wakes := eventlog.Wakes(r.sealed[i].Events)
		t.streams[rows[i].Stream].moves(&r.append.Entries[i], &rows[i], wakes, t.s.cfg.Program)
		t.rows, t.wakes = append(t.rows, rows[i]), append(t.wakes, wakes)
	}
	for _, c := range changes {
		t.change(c)
	}
	t.blobs = append(t.blobs, r.append.Blobs...)
	return nil
}

// checkChanges refuses changes that do not fit their tables, and guarded
// inserts of a key that exists or that is inserted twice.
func (t *transaction) checkChanges(r *request, changes []derived.Change) error {
	for i, c := range changes {
		spec, err := storecore.CheckChange(c)
		if err != nil {
			return eventlog.Malformed(err, "append")
		}
		if !spec.Guarded || c.Op != derived.Insert {
			continue
		}
		known, err := t.willExist(r, changes[:i], c)
		if err != nil {
			return fmt.Errorf("append: look for %s: %w", c.Table, err)
		}
		if known {
			return &eventlog.DuplicateError{Table: c.Table, Key: c.Key}
		}
	}
	return nil
}

// willExist says whether the row that c inserts exists after the changes
// before c and those of the appends before.
func (t *transaction) willExist(r *request, before []derived.Change, c derived.Change) (bool, error) {
	for _, b := range slices.Backward(before) {
		if b.Table != c.Table {
			continue
		}
		if b.Op == derived.Insert && slices.Equal(b.Key, c.Key) {
			return true, nil
		}
		if b.Op == derived.Delete && slices.Equal(b.Key, c.Key[:min(len(b.Key), len(c.Key))]) {
			return false, nil
		}
	}
	g := guardOf(c)
	if there, ok := t.guarded[g.name]; ok {
		return there, nil
	}
	if t.touched[c.Table] != nil && t.touched[c.Table].wide {
		r.fate = later
		return false, nil
	}
	if there, ok := t.exists[g.name]; ok {
		return there, nil
	}
	there, err := t.lookFor(g) // it was not foreseen
	t.exists[g.name] = there
	return there, err
}

// touched is what the appends before have changed in a table, by the first
// column of its key.
type touched struct {
	first map[any]bool
	wide  bool // rows that are not known by it
}

// change takes a change into the transaction.
func (t *transaction) change(c derived.Change) {
	t.changes.add(c)
	x := t.touched[c.Table]
	if x == nil {
		x = &touched{first: map[any]bool{}}
		t.touched[c.Table] = x
	}
	spec := derived.SpecOf(c.Table)
	if c.Key[0].Name == spec.Key[0] {
		x.first[c.Key[0].Value] = true
	}
	if wide(c, spec) {
		x.wide = true
	} else if spec.Guarded && (c.Op == derived.Insert || c.Op == derived.Delete) {
		t.guarded[guardOf(c).name] = c.Op == derived.Insert
	}
}

// meets says whether an append before may have changed what a condition asks for.
func (t *transaction) meets(c eventlog.Condition) bool {
	x := t.touched[c.Table]
	if x == nil {
		return false
	}
	if x.wide {
		return true
	}
	first := derived.SpecOf(c.Table).Key[0]
	for _, col := range c.Where {
		if col.Name == first {
			return x.first[col.Value]
		}
	}
	return true
}

// knownStreams are streams that have a row, which none ever loses: of those the
// first message need not make one. Of two generations the older one is dropped when
// the younger is full.
type knownStreams struct {
	mu         sync.Mutex
	young, old map[event.Stream]struct{}
}

// knownKept is the number of streams in one generation.
const knownKept = 64 << 10

func (k *knownStreams) has(s event.Stream) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.young[s]; ok {
		return true
	}
	_, ok := k.old[s]
	if ok {
		k.put(s)
	}
	return ok
}

func (k *knownStreams) add(s event.Stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(s)
}

func (k *knownStreams) put(s event.Stream) {
	if k.young == nil || len(k.young) >= knownKept {
		k.young, k.old = make(map[event.Stream]struct{}), k.young
	}
	k.young[s] = struct{}{}
}

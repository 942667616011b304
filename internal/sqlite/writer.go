package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// request is what waits for the writer: an append, something that rides in a
// transaction of appends, or a piece of work that wants the writer's connection
// for itself.
type request struct {
	ctx    context.Context // of who waits
	append eventlog.Append
	sealed []*event.Sealed // of append.Entries, in their order
	size   int             // bytes that it adds to a transaction, roughly
	beside func(*writer) error
	since  time.Time // of its hand-over
	work   func(*writer) error

	done   chan struct{} // closed when stamps and err are set
	stamps []eventlog.Stamp
	err    error
}

// Size implements storecore.Item.
func (r *request) Size() int { return r.size }

// Alone implements storecore.Item.
func (r *request) Alone() bool { return r.work != nil }

// writer is the one who writes. All of it belongs to its goroutine.
type writer struct {
	s      *Store
	db     *sql.DB
	conn   *sql.Conn
	st     *statements
	tables *tables
	heads  headCache

	// Of the open transaction: the ends of streams as it leaves them, and the
	// rows of the log that it has not inserted yet.
	staged map[event.Stream]eventlog.Head
	rows   []event.Row
	// erased says that content was taken out since the forgetting of it was begun.
	erased bool
	forget forgetting

	holdings *holdings
}

func newWriter(s *Store, db *sql.DB, conn *sql.Conn) *writer {
	st := newStatements(conn)
	return &writer{s: s, db: db, conn: conn, st: st, tables: newTables(st, "main."),
		staged: make(map[event.Stream]eventlog.Head), forget: forgetting{timer: time.NewTimer(0)}, holdings: newHoldings()}
}

// run serves the queue until it is closed and empty, then closes the store.
func (w *writer) run() {
	defer close(w.s.done)
	for {
		batch, open := w.s.queue.Take(w.s.cfg.MaxBatch, w.s.cfg.MaxBatchBytes, w.forget.timer.C)
		switch {
		case !open:
			w.end()
			return
		case batch == nil:
			w.forgetStep()
		case batch[0].work != nil:
			batch[0].err = w.s.trouble(batch[0].work(w))
			close(batch[0].done)
		default:
			w.commit(batch)
			select { // it goes on also while the queue is never empty
			case <-w.forget.timer.C:
				w.forgetStep()
			default:
			}
		}
	}
}

// end closes the store.
func (w *writer) end() {
	w.forget.timer.Stop()
	w.s.reading.Wait()
	w.s.readers.close()
	w.st.close()
	// Readers first: the last connection to close folds the write-ahead log
	// into the database, and a reader may not.
	w.s.closeErr = errors.Join(w.s.readers.db.(*sql.DB).Close(), w.conn.Close(), w.db.Close(), w.s.lock.Close())
}

// commit commits a batch as one transaction. When that does not work, each of
// its appends is tried alone, so that only the guilty fails.
func (w *writer) commit(batch []*request) {
	err := w.attempt(batch)
	if err == nil || len(batch) == 1 || errors.Is(err, eventlog.ErrDamaged) {
		for _, r := range batch {
			w.finish(r, err)
		}
		return
	}
	for i := range batch {
		alone := batch[i : i+1]
		w.finish(alone[0], w.attempt(alone))
	}
}

// finish tells who waits. failed is the failure of the transaction; the
// append's own refusal stands in r already.
func (w *writer) finish(r *request, failed error) {
	if failed != nil {
		r.stamps, r.err = nil, fmt.Errorf("append: %w", malformed(w.s.trouble(failed)))
	}
	close(r.done)
}

// attempt runs one transaction over the appends of a batch. Refused ones get
// their error and take no part. An error means that nothing was committed, and
// that the verdicts are void, since they may rest on appends that were undone.
func (w *writer) attempt(batch []*request) error {
	began := time.Now()
	err := w.inTx(func() error {
		// Stored times have microseconds; what is returned is what is stored.
		now := time.Now().UTC().Truncate(time.Microsecond)
		for _, r := range batch {
			r.stamps, r.err = nil, r.ctx.Err() // nobody waits for it any more
			if r.err != nil {
				continue
			}
			if r.beside != nil {
				if r.err = r.beside(w); r.err != nil && !errors.Is(r.err, eventlog.ErrNotFound) {
					return r.err
				}
				continue
			}
			p, err := w.plan(r, now)
			if err != nil {
				r.err = err
				continue
			}
			if err := w.execute(r, p); err != nil {
				return err
			}
			r.stamps = p.stamps
		}
		if err := w.flush(); err != nil {
			return err
		}
		return w.writeHeads()
	}, func() {
		var stamps []eventlog.Stamp
		for _, r := range batch {
			stamps = append(stamps, r.stamps...)
		}
		w.s.tails.Land(maps.Keys(w.staged), stamps)
		if len(stamps) > 0 && w.s.cfg.OnCommit != nil {
			w.s.cfg.OnCommit(stamps)
		}
	})
	if w.s.cfg.OnBatch != nil {
		w.s.cfg.OnBatch(batchOf(batch, began, err))
	}
	return err
}

// batchOf says how a transaction went.
func batchOf(batch []*request, began time.Time, failed error) Batch {
	now := time.Now()
	b := Batch{Took: now.Sub(began), Longest: now.Sub(batch[0].since), Failed: failed != nil}
	for _, r := range batch {
		switch {
		case failed != nil:
		case r.err != nil:
			b.Refused++
		default:
			b.Appends++
			for i := range r.stamps {
				b.Events += len(r.stamps[i].Events)
			}
		}
	}
	return b
}

// inTx runs f in a transaction and committed after its commit. An error of f or
// of the commit undoes everything.
func (w *writer) inTx(f func() error, committed func()) error {
	clear(w.staged)
	w.rows = w.rows[:0]
	if err := w.s.Damaged(); err != nil {
		return err
	}
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		w.s.tails.Move(maps.Keys(w.staged), w.erased)
		err = w.exec("COMMIT")
	}
	if err != nil {
		w.s.tails.Stay(maps.Keys(w.staged))
		w.holdings.undoAll()
		// SQLite may have rolled back by itself; then this fails, and it may.
		_ = w.exec("ROLLBACK")
		return err
	}
	for s, h := range w.staged {
		w.heads.put(s, h)
	}
	w.holdings.keep()
	if w.erased {
		w.erased = false
		_ = w.startForgetting(true)
	}
	if committed != nil {
		committed()
	}
	return nil
}

// head gives the end of a stream as the open transaction sees it.
func (w *writer) head(s event.Stream) (eventlog.Head, error) {
	if h, ok := w.staged[s]; ok {
		return h, nil
	}
	if h, ok := w.heads.get(s); ok {
		return h, nil
	}
	h, err := readHead(context.Background(), w.st, s)
	if err == nil {
		w.heads.put(s, h)
	}
	return h, err
}

const insertLog = "INSERT INTO main.log (stream, first_seq, count, epoch, time, session_id, user_id, meta, data, salt, prev, hash) VALUES "

// flush inserts the rows of the log that the transaction has gathered.
func (w *writer) flush() error {
	for rest := w.rows; len(rest) > 0; {
		n := groupSize(len(rest))
		args := make([]any, 0, n*12)
		for i := range rest[:n] {
			r := &rest[i]
			args = append(args, string(r.Stream), r.First, int64(r.Count), r.Epoch, event.FormatTime(r.Time),
				string(r.SessionID), r.UserID, r.Meta, r.Data, r.Salt, r.Prev[:], r.Hash[:])
		}
		if err := w.insertMany(insertLog, "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", "", n, args); err != nil {
			return fmt.Errorf("insert events: %w", err)
		}
		rest = rest[n:]
	}
	clear(w.rows) // let go of the data
	w.rows = w.rows[:0]
	return nil
}

// writeHeads stores the ends of the streams that the transaction moved.
func (w *writer) writeHeads() error {
	args := make([]any, 0, len(w.staged)*4)
	for s, h := range w.staged {
		args = append(args, string(s), h.Seq, h.Epoch, h.Hash[:])
	}
	for len(args) > 0 {
		n := groupSize(len(args) / 4)
		err := w.insertMany("INSERT INTO main.streams (stream, head, epoch, hash) VALUES ", "(?, ?, ?, ?)",
			" ON CONFLICT (stream) DO UPDATE SET head = excluded.head, epoch = excluded.epoch, hash = excluded.hash", n, args[:n*4])
		if err != nil {
			return fmt.Errorf("move heads: %w", err)
		}
		args = args[n*4:]
	}
	return nil
}

// groupSize is the number of rows that the next statement inserts of n: a
// power of two up to 64, so that a handful of prepared statements do.
func groupSize(n int) int {
	size := 1
	for size*2 <= min(n, 64) {
		size *= 2
	}
	return size
}

func (w *writer) insertMany(start, row, end string, n int, args []any) error {
	text := make([]byte, 0, len(start)+n*(len(row)+2)+len(end))
	text = append(text, start...)
	text = append(text, row...)
	text = append(text, strings.Repeat(", "+row, n-1)...)
	text = append(text, end...)
	_, err := w.st.exec(context.Background(), text, args...)
	return err
}

// exec runs a statement without arguments. The writer's own work does not end
// with anybody's context.
func (w *writer) exec(text string) error {
	_, err := w.st.exec(context.Background(), []byte(text))
	return err
}

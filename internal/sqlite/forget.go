package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// forgetting is what remains to be done after an erasing, so that no byte of
// what was erased is left in a file. SQLite overwrites what it frees, but where
// it rearranges a tree (SQLite file format, section 1.6) the unallocated part
// of a page keeps what stood there before: all pages are swept for that. Then
// the write-ahead log is cut to nothing.
//
// Both go on between the transactions of the writer, in steps. What a process
// leaves undone the next one does: the database says that it was not swept, and
// the log is always cut after opening.
type forgetting struct {
	timer    *time.Timer   // says when the next step is due
	wait     time.Duration // after the last step that could not be done
	left     int           // pages that are still to be swept; new ones need not be
	page     int           // the last one that was
	truncate bool          // the write-ahead log is still to be cut
}

const (
	// sweepPages is how many pages one step sweeps.
	sweepPages = 256
	// The time between tries: doubling between these.
	firstForget = 50 * time.Millisecond
	lastForget  = 10 * time.Second
)

// startForgetting begins, or begins anew, with whatever was erased until now.
func (w *writer) startForgetting(sweep bool) error {
	w.forget.truncate = true
	w.forget.wait = 0
	w.forget.timer.Reset(0)
	if !sweep {
		return nil
	}
	if err := w.st.row(context.Background(), []byte("PRAGMA main.page_count"), nil, &w.forget.left); err != nil {
		// Not swept now, but with the next opening.
		return fmt.Errorf("count pages: %w", err)
	}
	return nil
}

// unswept says whether an erasing is remembered whose sweep did not end.
func (w *writer) unswept(ctx context.Context) (bool, error) {
	var one int
	err := w.st.row(ctx, []byte("SELECT 1 FROM main.facts WHERE name = 'unswept'"), nil, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// forgetStep does the next step and says when the one after it, if any, is due. A step
// that fails (a reader is in the way, the disk is full) is tried again.
func (w *writer) forgetStep() {
	f := &w.forget
	var done bool
	if f.left > 0 {
		done = w.sweep() == nil
	} else {
		done = w.truncateLog()
		f.truncate = !done
	}
	if done {
		f.wait = 0
	} else {
		f.wait = min(max(2*f.wait, firstForget), lastForget)
	}
	if f.left > 0 || f.truncate {
		f.timer.Reset(f.wait)
	}
}

// sweepQuery gives the pages of trees from ?1 to ?2, by their first byte. That
// of any other page is the highest of a page number, which is less.
const sweepQuery = `WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
	SELECT p.pgno, p.data FROM n JOIN main.sqlite_dbpage p ON p.pgno = n.i
	WHERE substr(p.data, 1, 1) IN (x'02', x'05', x'0a', x'0d')`

// maxSweepPage is the largest size of a database, in pages, in which no page
// number looks like the kind of a page (128 GiB with pages of 4 KiB).
const maxSweepPage = 0x02000000 - 1

// sweep overwrites the unallocated parts of the next pages.
func (w *writer) sweep() error {
	ctx := context.Background()
	first, last, left := w.forget.page+1, w.forget.page, w.forget.left
	err := w.inTx(func() error {
		var count int
		if err := w.st.row(ctx, []byte("PRAGMA main.page_count"), nil, &count); err != nil {
			return err
		}
		if count > maxSweepPage {
			// A page that is no tree's could look like one: nothing is swept.
			last, left = 0, 0
			return nil
		}
		if first > count {
			first = 1
		}
		last = min(first+min(left, sweepPages)-1, count)
		left -= last - first + 1
		rows, err := w.st.query(ctx, []byte(sweepQuery), max(first, 2), last) // the first page is the schema's
		if err != nil {
			return err
		}
		pages, err := collect(rows, scanPage)
		if err != nil {
			return err
		}
		for _, p := range pages {
			gap := unallocated(p.data)
			if zero(gap) {
				continue
			}
			clear(gap)
			if _, err := w.st.exec(ctx, []byte("UPDATE main.sqlite_dbpage SET data = ? WHERE pgno = ?"), p.data, p.number); err != nil {
				return err
			}
		}
		if left > 0 {
			return nil
		}
		return w.exec("DELETE FROM main.facts WHERE name = 'unswept'")
	}, nil)
	if err != nil {
		return fmt.Errorf("sweep pages: %w", err)
	}
	w.forget.page, w.forget.left = last, left
	return nil
}

type treePage struct {
	number int
	data   []byte
}

func scanPage(rows *sql.Rows) (p treePage, err error) { return p, rows.Scan(&p.number, &p.data) }

// unallocated is the part of a page of a tree between the pointers to its cells
// and the cells (SQLite file format, section 1.6).
func unallocated(page []byte) []byte {
	if len(page) < 12 {
		return nil
	}
	head := 8
	if page[0] == 0x02 || page[0] == 0x05 { // an interior page has one pointer more
		head = 12
	}
	from := head + 2*int(binary.BigEndian.Uint16(page[3:]))
	to := int(binary.BigEndian.Uint16(page[5:]))
	if to == 0 {
		to = 1 << 16
	}
	if from >= to || to > len(page) {
		return nil
	}
	return page[from:to]
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// truncateLog folds the write-ahead log into the database and cuts it to
// nothing, unless a reader is in the way.
func (w *writer) truncateLog() bool {
	if w.exec("PRAGMA busy_timeout = 0") != nil {
		return false
	}
	var busy, frames, moved int
	err := w.conn.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved)
	_ = w.exec("PRAGMA busy_timeout = 5000") // nobody else writes; the timeout is for a person with a shell
	return err == nil && busy == 0
}

// eraseChunk bounds the rows that are in memory while a stream is erased.
const eraseChunk = 64

// erase takes the content out of all rows of the session's stream and deletes
// its blobs and its snapshot. The derived rows go with the changes of the same append.
func (w *writer) erase(ctx context.Context, id event.SessionID) error {
	if err := w.flush(); err != nil { // the stream may have rows in this very transaction
		return err
	}
	w.erased = true
	for after := int64(0); ; {
		rows, err := w.st.query(ctx, []byte("SELECT "+logColumns+
			" FROM main.log WHERE stream = ? AND first_seq > ? AND data IS NOT NULL ORDER BY first_seq LIMIT ?"),
			string(id.Stream()), after, eraseChunk)
		if err != nil {
			return err
		}
		chunk, err := collect(rows, scanLogRow)
		if err != nil {
			return err
		}
		for i := range chunk {
			if err := w.eraseRow(ctx, &chunk[i]); err != nil {
				return err
			}
			after = chunk[i].First
		}
		if len(chunk) < eraseChunk {
			break
		}
	}
	if _, err := w.st.exec(ctx, []byte("DELETE FROM main.blobs WHERE owner = ?"), string(id)); err != nil {
		return err
	}
	if _, err := w.st.exec(ctx, []byte("DELETE FROM main.snapshots WHERE session_id = ?"), string(id)); err != nil {
		return err
	}
	if err := w.eraseAssets(ctx, id); err != nil {
		return err
	}
	return w.exec(markUnswept)
}

// markUnswept remembers that content was taken out whose bytes may still stand in pages.
const markUnswept = "INSERT OR IGNORE INTO main.facts (name, value) VALUES ('unswept', 1)"

func (w *writer) eraseRow(ctx context.Context, row *logRow) error {
	if err := row.Erase(); err != nil {
		return err
	}
	_, err := w.st.exec(ctx, []byte("UPDATE main.log SET data = NULL, salt = NULL, digests = ? WHERE id = ?"), row.Digests, row.id)
	return err
}

package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Copied is what a copy says of itself.
type Copied struct {
	Schema, Rows int   // versions of the tables and of the derived rows
	Size         int64 // bytes of the file
	Ends
}

// Ends are the ends of all streams, in one digest: of two databases with the same
// one the logs are the same, up to the last event (I-04).
type Ends struct {
	Streams int
	Events  int64
	Digest  string // SHA-256 over a line for each stream, in their order: name, head, epoch, hash
	Newest  string // time of the last commit; empty: the log is empty
}

// Copy writes one moment of the database of a data directory into a new file,
// while the process that has the directory goes on: it reads beside it, in
// one read transaction. Without such a process it keeps the directory locked
// meanwhile. What was freed and what was erased is not copied. progress, which
// may be nil, is told how many bytes of about how many are written.
func Copy(ctx context.Context, dir, to string, progress func(done, about int64)) (c Copied, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return c, err
	}
	if to, err = filepath.Abs(to); err != nil {
		return c, err
	}
	path := filepath.Join(dir, DatabaseFile)
	lock, err := dirlock.Lock(dir)
	var held *dirlock.Error
	switch {
	case errors.As(err, &held):
	case err != nil:
		return c, err
	default:
		defer func() { err = errors.Join(err, lock.Close()) }()
		if _, err := examine(ctx, dir); err != nil {
			return c, err
		}
	}
	q := url.Values{"mode": {"ro"}, "_dqs": {"0"}, "_pragma": {"busy_timeout(5000)", "cache_size(-4096)"}}
	if held == nil && sizeOf(path+"-wal") == 0 {
		q.Set("immutable", "1") // closed in order, and ours as long as we hold the lock
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if err := createFile(to); err != nil {
		return c, err
	}
	about := sizeOf(path) + sizeOf(path+"-wal")
	watched := make(chan struct{})
	defer func() { <-watched }()
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(watched)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if progress != nil {
					progress(sizeOf(to), about)
				}
			case <-done:
				return
			}
		}
	}()
	if _, err := db.ExecContext(ctx, "VACUUM main INTO ?", to); err != nil {
		return c, copyTrouble(err)
	}
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return c, err
	}
	return describe(ctx, to, errors.Join(f.Sync(), f.Close()))
}

func copyTrouble(err error) error {
	if codeOf(err) == 13 { // SQLITE_FULL: of the copy
		return fmt.Errorf("there is no room for the copy: %w", err)
	}
	return err
}

// describe reads what a copy holds.
func describe(ctx context.Context, path string, err error) (c Copied, _ error) {
	if err != nil {
		return c, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return c, err
	}
	c.Size = sizeOf(path)
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{"mode": {"ro"}, "immutable": {"1"}}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return c, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := db.QueryRowContext(ctx, "SELECT (SELECT max(version) FROM migrations), (SELECT value FROM facts WHERE name = 'generation')").Scan(&c.Schema, &c.Rows); err != nil {
		return c, err
	}
	var newest sql.NullString
	if err := db.QueryRowContext(ctx, "SELECT (SELECT time FROM log ORDER BY id DESC LIMIT 1)").Scan(&newest); err != nil {
		return c, err
	}
	c.Newest = newest.String
	rows, err := db.QueryContext(ctx, "SELECT stream, head, epoch, hash FROM streams ORDER BY stream")
	if err != nil {
		return c, err
	}
	defer rows.Close()
	sum := sha256.New()
	for rows.Next() {
		var stream event.Stream
		var h eventlog.Head
		var hash []byte
		if err := rows.Scan(&stream, &h.Seq, &h.Epoch, &hash); err != nil {
			return c, err
		}
		fmt.Fprintf(sum, "%s %d %d %x\n", stream, h.Seq, h.Epoch, hash)
		c.Streams++
		c.Events += h.Seq
	}
	c.Digest = hex.EncodeToString(sum.Sum(nil))
	return c, rows.Err()
}

// Describe reads what a database that nobody uses holds, from its file alone.
func Describe(ctx context.Context, path string) (Copied, error) { return describe(ctx, path, nil) }

// Empty takes all rows out of tables of a copy that nobody uses, and overwrites
// them. A table that is not there is passed over.
func Empty(ctx context.Context, path string, tables ...string) (err error) {
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", source(path, "rw", "secure_delete(ON)", "journal_mode(MEMORY)"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	for _, t := range tables {
		var n int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = ?", t).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if _, err := db.ExecContext(ctx, `DELETE FROM main."`+t+`"`); err != nil {
			return err
		}
	}
	return nil
}

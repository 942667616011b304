package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// codeOf gives the primary code of an error of SQLite, or 0.
func codeOf(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// noRoom is the room on a disk below which an error of input and output is
// taken for a want of it: not every file of a database says so itself.
const noRoom = 1 << 20

// malformed tells what the database refuses for what it is (rows that exist
// already, a value that is too large) from trouble that passes.
func malformed(err error) error {
	switch codeOf(err) {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return eventlog.Malformed(err, "the database refuses it")
	}
	return err
}

// trouble tells a full disk and a damaged file from other failures.
func (s *Store) trouble(err error) error {
	switch codeOf(err) {
	case sqlite3.SQLITE_FULL:
		return eventlog.Full(err, false)
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		if free, ok := diskfs.Free(s.cfg.Dir); ok && free < noRoom {
			return eventlog.Full(err, false)
		}
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return s.damage(err)
	}
	return err
}

// damage notes that the database is damaged. From then on nothing is written: more
// writes would only spread it.
func (s *Store) damage(cause error) error {
	err := eventlog.Damaged(cause)
	s.damaged.CompareAndSwap(nil, &err)
	return err
}

// Damaged gives why the store writes nothing any more, or nil. It does not
// come back from that: see eventlog.ErrDamaged.
func (s *Store) Damaged() error {
	if err := s.damaged.Load(); err != nil {
		return *err
	}
	return nil
}

// Limit bounds the pages that the database may have, as a full disk would; 0
// takes the bound away.
func (s *Store) Limit(ctx context.Context, pages int64) error {
	if pages == 0 {
		pages = 1<<32 - 2
	}
	return s.byWriter(ctx, func(w *writer) error { return w.exec(fmt.Sprintf("PRAGMA main.max_page_count = %d", pages)) })
}

// DamagedError says that what stands in a data directory is no database that can
// be worked with. Nothing in the directory was changed.
type DamagedError struct {
	Dir  string
	What string // what is wrong
	Do   string // what to do, beyond what is true of all
}

// Advice says what to do.
func (e *DamagedError) Advice() string {
	if e.Do != "" {
		return e.Do
	}
	return "keep the directory as it is, see with holdfast verify --data-dir " + e.Dir + " how far the damage goes, and restore a backup (holdfast restore) into another directory"
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the database %s cannot be used: %s. Nothing was changed. What to do: %s", filepath.Join(e.Dir, DatabaseFile), e.What, e.Advice())
}

// Is makes it an eventlog.ErrDamaged.
func (e *DamagedError) Is(target error) bool { return target == eventlog.ErrDamaged }

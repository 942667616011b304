package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// Glance is what a look at a data directory from outside tells.
type Glance struct {
	Exists bool // there is a database
	Held   bool // a process uses the directory
	PID    int  // of that process; 0: not known
	// The versions of the tables and of the derived rows: those of the database,
	// and those that this program knows. A smaller Rows is rebuilt, a smaller
	// Schema migrated at the next start; greater ones are refused.
	Schema, KnownSchema int
	Rows                int
	Newest              time.Time // time of the last commit; zero: the log is empty
	Tokens              int
}

// Look reads from a data directory that others may use. It changes nothing in
// it; while it asks whether the directory is in use, for an instant, a start
// there would be refused.
func Look(ctx context.Context, dir string) (g Glance, err error) {
	steps, err := migrations()
	if err != nil {
		return g, err
	}
	g.KnownSchema = len(steps)
	if dir, err = filepath.Abs(dir); err != nil { // a path in an address begins at the root
		return g, err
	}
	path := filepath.Join(dir, DatabaseFile)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			_, err = examine(ctx, dir) // nothing, or what is left of one
		}
		return g, err
	}
	g.Exists = true
	if g.PID, g.Held, err = dirlock.Holder(dir); err != nil {
		return g, fmt.Errorf("look at %s: %w", dir, err)
	}
	// A log that is not in use has no shared memory for readers; who may write
	// makes it and takes it away again. But who opens a database for writing folds the log
	// beside it in, also one that is not its own.
	name := source(path, "ro", "query_only(ON)")
	var damaged error
	if !g.Held {
		if _, damaged = examine(ctx, dir); damaged != nil {
			name = looking(path, sizeOf(path+"-wal") > 0)
		} else {
			name = source(path, "rw", "query_only(ON)")
		}
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return g, fmt.Errorf("look at %s: %w", path, err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	err = g.read(ctx, db)
	if damaged != nil { // what could be read is told all the same
		return g, damaged
	}
	if err != nil {
		return g, fmt.Errorf("look at %s: %w", path, err)
	}
	return g, nil
}

func (g *Glance) read(ctx context.Context, db *sql.DB) error {
	one := func(text string, to any) error {
		err := db.QueryRowContext(ctx, text).Scan(to)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	}
	if err := one("SELECT coalesce(max(version), 0) FROM migrations", &g.Schema); err != nil {
		return err
	}
	if g.Schema > g.KnownSchema {
		return nil // what its tables hold is not known here
	}
	if err := one("SELECT value FROM facts WHERE name = 'generation'", &g.Rows); err != nil {
		return err
	}
	if err := one("SELECT count(*) FROM tokens", &g.Tokens); err != nil {
		return err
	}
	var at string
	if err := one("SELECT time FROM log ORDER BY id DESC LIMIT 1", &at); err != nil || at == "" {
		return err
	}
	var err error
	g.Newest, err = event.ParseTime(at)
	return err
}

package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is one numbered step of the schema. One that was released is never
// changed: its checksum is kept in the database.
type migration struct {
	version  int
	name     string
	text     string
	checksum string
}

// migrations lists the embedded steps in order.
func migrations() ([]migration, error) {
	entries, err := fs.ReadDir(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	list := make([]migration, 0, len(entries))
	for i, entry := range entries {
		text, err := migrationFiles.ReadFile("migrations/" + entry.Name())
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(entry.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s is not number %d", entry.Name(), i+1)
		}
		sum := sha256.Sum256(text)
		list = append(list, migration{version, entry.Name(), string(text), hex.EncodeToString(sum[:])})
	}
	return list, nil
}

// migrate brings the schema up to date, each step in a transaction of its own.
// A database of a newer program gives a *NewerError, and nothing of it changed.
func migrate(ctx context.Context, conn *sql.Conn, generation int) error {
	steps, err := migrations()
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS migrations (
		version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL)`); err != nil {
		return err
	}
	done, err := appliedMigrations(ctx, conn)
	if err != nil {
		return err
	}
	if len(done) > len(steps) {
		return newer("tables", done[len(done)-1].version, len(steps))
	}
	for i, m := range done {
		if m.version != steps[i].version || m.checksum != steps[i].checksum {
			return fmt.Errorf("migration %s of the database is not the one of this program", m.name)
		}
	}
	if len(done) > 0 {
		if err := newerFacts(ctx, conn, generation); err != nil {
			return err
		}
	}
	for _, m := range steps[len(done):] {
		if err := applyMigration(ctx, conn, m); err != nil {
			return fmt.Errorf("migration %s: %w", m.name, err)
		}
	}
	return nil
}

func appliedMigrations(ctx context.Context, conn *sql.Conn) ([]migration, error) {
	rows, err := conn.QueryContext(ctx, `SELECT version, name, checksum FROM migrations ORDER BY version`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var done []migration
	for rows.Next() {
		var m migration
		if err := rows.Scan(&m.version, &m.name, &m.checksum); err != nil {
			return nil, err
		}
		done = append(done, m)
	}
	return done, rows.Err()
}

func applyMigration(ctx context.Context, conn *sql.Conn, m migration) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, m.text); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)`,
		m.version, m.name, m.checksum, event.FormatTime(time.Now())); err != nil {
		return err
	}
	return tx.Commit()
}

package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is one numbered step of the schema. One that was released is never
// changed: its checksum is kept in the database.
type migration struct {
	version  int64
	name     string
	checksum string
	text     string
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
		list = append(list, migration{int64(version), entry.Name(), hex.EncodeToString(sum[:]), string(text)})
	}
	return list, nil
}

// The second key of the schema's advisory locks; the first is its own id.
const (
	lockFeed    = 1 // held by who commits, from the row of the feed on
	lockUpgrade = 2 // held by who changes tables or makes derived rows anew
)

// alone runs f in a transaction that no other process is in at the same time,
// with the schema as its search path and without a limit of time.
func (s *Store) alone(ctx context.Context, f func(tx pgx.Tx) error) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := unhurried(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT set_config('search_path', $1, true), pg_advisory_xact_lock(($1::text::regnamespace)::oid::bigint::bit(32)::int, $2)",
		s.schema, lockUpgrade); err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// unhurried takes the limits of time from a transaction, and lets the server
// choose its plans.
func unhurried(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
		set_config('idle_in_transaction_session_timeout', '600000', true), set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
		set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true)`)
	return err
}

// migrate brings the schema up to date, in one transaction. Several processes
// may start at once: the first does it, the others wait. A database of a newer program
// gives a *NewerError, and nothing of it changed.
func (s *Store) migrate(ctx context.Context) error {
	steps, err := migrations()
	if err != nil {
		return err
	}
	err = s.alone(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS migrations (
			version bigint PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at text NOT NULL)`); err != nil {
			return err
		}
		done, err := manyOf(ctx, s, tx, "SELECT version, name, checksum FROM migrations ORDER BY version", nil,
			func(m *migration) []any { return []any{&m.version, &m.name, &m.checksum} })
		if err != nil {
			return err
		}
		if len(done) > len(steps) {
			return newer("tables", int(done[len(done)-1].version), len(steps))
		}
		for i, m := range done {
			if m.version != steps[i].version || m.checksum != steps[i].checksum {
				return fmt.Errorf("migration %s of the database is not the one of this program", m.name)
			}
		}
		if len(done) > 0 {
			if err := s.newerFacts(ctx, tx); err != nil {
				return err
			}
		}
		for _, m := range steps[len(done):] {
			// Several statements are one text only without arguments.
			if _, err := tx.Conn().PgConn().Exec(ctx, m.text).ReadAll(); err != nil {
				return fmt.Errorf("migration %s: %w", m.name, err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
				m.version, m.name, m.checksum, event.FormatTime(time.Now())); err != nil {
				return err
			}
		}
		var oid uint32
		if err := tx.QueryRow(ctx, "SELECT 'feed'::regclass::oid").Scan(&oid); err != nil {
			return err
		}
		s.feedLock = int32(oid)
		return nil
	})
	if codeOf(err) == "42501" { // insufficient_privilege
		return errors.Join(setup("the role of the database URL may not make tables in the schema %s: GRANT CREATE, USAGE ON SCHEMA %s to it", s.schema, s.schema), err)
	}
	return err
}

func newer(what string, found, known int) error {
	return &NewerError{storecore.NewerError{What: what, Found: found, Known: known, Copy: "database"}}
}

// eventFact begins the names of facts that say which version of a type of
// event the database may hold: the newest that a program knew which opened it.
const eventFact = "event:"

// fact is what a program said of itself.
type fact struct {
	name  string
	value int64
}

func factDest(f *fact) []any { return []any{&f.name, &f.value} }

// newerFacts gives a *NewerError when a program that opened the database made
// other derived rows, or knew events, that this one does not know.
func (s *Store) newerFacts(ctx context.Context, q db) error {
	facts, err := manyOf(ctx, s, q, "SELECT name, value FROM @.facts ORDER BY name", nil, factDest)
	if err != nil {
		return err
	}
	for _, f := range facts {
		if f.name == generationFact && int(f.value) > s.cfg.Generation {
			return newer("derived rows", int(f.value), s.cfg.Generation)
		}
		if t, ok := strings.CutPrefix(f.name, eventFact); ok {
			if _, known, _ := event.New(event.Type(t)); int(f.value) > known {
				return newer("events of type "+t, int(f.value), known)
			}
		}
	}
	return nil
}

const (
	generationFact = "generation"
	noteFacts      = `INSERT INTO @.facts (name, value) SELECT * FROM unnest($1::text[], $2::int[])
		ON CONFLICT (name) DO UPDATE SET value = greatest(facts.value, excluded.value)`
)

// recordEvents notes the versions of all types of events that this program
// may write, before it writes the first.
func (s *Store) recordEvents(ctx context.Context) error {
	return s.alone(ctx, func(tx pgx.Tx) error {
		facts, err := manyOf(ctx, s, tx, "SELECT name, value FROM @.facts", nil, factDest)
		if err != nil {
			return err
		}
		noted := map[string]int64{}
		for _, f := range facts {
			noted[f.name] = f.value
		}
		var names []string
		var values []int32
		for _, t := range event.Types() {
			if _, version, _ := event.New(t); noted[eventFact+string(t)] < int64(version) {
				names, values = append(names, eventFact+string(t)), append(values, int32(version))
			}
		}
		if len(names) == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, s.sql(noteFacts), names, values)
		return err
	})
}

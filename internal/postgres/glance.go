package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// Glance is what a look at a database from outside tells.
type Glance struct {
	At      string // host and port
	Server  string // version, as the server writes it
	Schema  string // as it is quoted in SQL
	Pooled  bool   // a connection pooler stands in between
	Conns   int    // connections that the server takes
	Free    int    // of those, free now; what others may see of it, at most
	PerNode int    // connections that a node takes at most

	// Settings of the server, in its words.
	Sync, Fsync, Encoding, Isolation string

	// The versions of the tables and of the derived rows: those of the database,
	// 0 where there are none yet, and those that this program knows.
	Tables, KnownTables int
	Rows                int

	// Ahead is by how much the database's clock is ahead of this machine's, as
	// far as the time of the question leaves no doubt; negative: behind.
	Ahead time.Duration
	// The time of a commit that waits for the disk: half took at most Median.
	Median, Longest time.Duration
	// Heard is how long a notification took; not where there is a pooler.
	Heard    time.Duration
	HeardErr error // why there was none

	Nodes []eventlog.NodeRow // see ListNodes
	// Rootless is how many sessions want work and need workspace roots that no node
	// which lives has all of: they wait until one comes.
	Rootless int
}

// glanceCommits is how many commits are measured.
const glanceCommits = 20

// Look connects to the database of a configuration and looks at it. It changes
// nothing there. The error is as that of Open where the database will not do or
// cannot be spoken to.
func Look(ctx context.Context, cfg Config) (g Glance, err error) {
	if err := cfg.complete(); err != nil {
		return g, fmt.Errorf("look at the database: %w", err)
	}
	s := &Store{cfg: cfg, queue: storecore.NewQueue[*request](1), done: make(chan struct{})}
	s.cfg.Conns = 4
	if err := s.connect(ctx); err != nil {
		return g, err
	}
	defer s.pool.Close()
	defer s.prime.Close()
	g.At, g.Schema, g.Pooled, g.PerNode = hosts(s.pool.Config().ConnConfig), s.schema, s.pooled, cfg.Conns+1
	if err := g.server(ctx, s); err != nil {
		return g, fmt.Errorf("look at the database: %w", err)
	}
	if err := g.tables(ctx, s); err != nil {
		return g, fmt.Errorf("look at the tables of the database: %w", err)
	}
	if err := g.commits(ctx, s); err != nil {
		return g, fmt.Errorf("measure commits of the database: %w", err)
	}
	if !g.Pooled {
		g.Heard, g.HeardErr = s.probeListen(ctx)
	}
	return g, nil
}

// server asks for settings and for the time.
func (g *Glance) server(ctx context.Context, s *Store) error {
	var used int
	err := s.pool.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
		current_setting('server_encoding'), current_setting('default_transaction_isolation'), current_setting('max_connections')::int
			- current_setting('superuser_reserved_connections')::int, (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend')`).
		Scan(&g.Server, &g.Sync, &g.Fsync, &g.Encoding, &g.Isolation, &g.Conns, &used)
	if err != nil {
		return err
	}
	g.Free = g.Conns - used
	for try := range 3 {
		var now time.Time
		sent := time.Now()
		if err := s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
			return err
		}
		ahead := aheadBy(now, sent, time.Now())
		if try == 0 || ahead.Abs() < g.Ahead.Abs() {
			g.Ahead = ahead
		}
	}
	return nil
}

// aheadBy is by how much a clock that showed now between two instants of ours is
// ahead for certain.
func aheadBy(now, sent, came time.Time) time.Duration {
	switch {
	case now.Before(sent):
		return now.Sub(sent)
	case now.After(came):
		return now.Sub(came)
	}
	return 0
}

// tables says of which version they are, and which nodes are known.
func (g *Glance) tables(ctx context.Context, s *Store) error {
	steps, err := migrations()
	if err != nil {
		return err
	}
	g.KnownTables = len(steps)
	there := false
	if err := s.pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", s.schema+".migrations").Scan(&there); err != nil || !there {
		return err
	}
	if err := s.pool.QueryRow(ctx, s.sql("SELECT coalesce(max(version), 0)::int FROM @.migrations")).Scan(&g.Tables); err != nil {
		return err
	}
	if g.Tables == 0 || g.Tables > g.KnownTables {
		return nil // what its tables hold is not known here
	}
	err = s.pool.QueryRow(ctx, s.sql("SELECT value FROM @.facts WHERE name = $1"), generationFact).Scan(&g.Rows)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if g.Nodes, err = s.ListNodes(ctx); err != nil {
		return err
	}
	return s.pool.QueryRow(ctx, s.sql(`SELECT count(*)::int FROM @.streams s WHERE s.kind = 'session' AND s.ready_since IS NOT NULL AND s.roots <> '{}'
		AND NOT EXISTS (SELECT 1 FROM @.nodes n WHERE NOT n.released AND n.until > clock_timestamp() AND s.roots <@ n.roots)`)).Scan(&g.Rootless)
}

// commits measures commits of transactions that write nothing but a message into
// the server's own log, where nobody reads it.
func (g *Glance) commits(ctx context.Context, s *Store) error {
	took := make([]time.Duration, 0, glanceCommits)
	for range glanceCommits {
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return err
		}
		if s.settings != "" {
			_, err = tx.Exec(ctx, s.settings)
		}
		if err == nil {
			_, err = tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'holdfast', 'doctor')")
		}
		began := time.Now()
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	g.Median, g.Longest = took[len(took)/2], took[len(took)-1]
	return nil
}

// probeWithin bounds the wait for a notification.
const probeWithin = 2 * time.Second

// probeListen sends a notification to itself, on a channel of its own.
func (s *Store) probeListen(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	channel := "holdfast doctor " + rand.Text()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := s.pool.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil {
		return 0, err
	}
	if _, err := conn.WaitForNotification(ctx); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

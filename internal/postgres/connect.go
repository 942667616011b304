package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SetupError says what the database lacks, and what to do about it.
type SetupError struct{ Text string }

func (e *SetupError) Error() string { return e.Text }

func setup(format string, args ...any) error { return &SetupError{fmt.Sprintf(format, args...)} }

// leastVersion is the oldest server that will do.
const leastVersion = 14

// What bounds a transaction, so that the locks of a process that stopped end
// while others still wait for them.
const (
	idleInTx    = 5 * time.Second  // between two messages of a transaction
	waitForLock = 8 * time.Second  // of a statement
	statement   = 30 * time.Second // the whole of it
	wholeTx     = time.Minute      // of the writer, by its own clock: then the connection is given up
)

// sessionSettings are the settings that every connection has. A plan that is
// kept must not hang on how small its table was at the time: all that is asked for
// goes by an index.
func (s *Store) sessionSettings() [][2]string {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	list := [][2]string{
		{"statement_timeout", ms(statement)}, {"lock_timeout", ms(waitForLock)}, {"idle_in_transaction_session_timeout", ms(idleInTx)},
		{"enable_seqscan", "off"}, {"enable_bitmapscan", "off"}, {"enable_hashjoin", "off"}, {"enable_mergejoin", "off"}, {"jit", "off"},
	}
	if s.cfg.Sync == SyncNormal {
		list = append(list, [2]string{"synchronous_commit", "off"})
	}
	return list
}

// connect makes the pool, after a look at what the URL leads to.
func (s *Store) connect(ctx context.Context) error {
	cfg, err := parseURL(s.cfg.URL)
	if err != nil {
		return err
	}
	if !strings.Contains(s.cfg.URL, "pool_max_conns") {
		cfg.MaxConns = int32(min(s.cfg.Conns, 1<<15))
	}
	cc := cfg.ConnConfig
	if !strings.Contains(s.cfg.URL, "connect_timeout") {
		cc.ConnectTimeout = s.cfg.ConnectWithin
	}
	// A peer that is gone without a word is noticed within half a minute.
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	cc.DialFunc = dialer.DialContext
	path, hasPath := cc.RuntimeParams["search_path"]
	delete(cc.RuntimeParams, "search_path")
	if err := s.look(ctx, cc.Copy(), path, hasPath); err != nil {
		return err
	}
	if s.pooled {
		// No server session is ours for longer than a transaction: no statement
		// is kept there, and settings are made anew in each transaction.
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		var calls []string
		for _, set := range s.sessionSettings() {
			calls = append(calls, fmt.Sprintf("set_config('%s', '%s', true)", set[0], set[1]))
		}
		s.settings = "SELECT " + strings.Join(calls, ", ")
	} else {
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		// What is asked for goes by one index whatever its arguments are. To plan it anew
		// by those, which the server may prefer, costs more than to do it.
		cc.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
		for _, set := range s.sessionSettings() {
			cc.RuntimeParams[set[0]] = set[1]
		}
		if cc.RuntimeParams["application_name"] == "" {
			cc.RuntimeParams["application_name"] = "holdfast"
		}
	}
	// Writers and leases do not wait for a connection behind readers.
	first := cfg.Copy()
	first.MaxConns = primeConns
	cfg.MaxConns = max(cfg.MaxConns-primeConns, 2)
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	s.prime, err = pgxpool.NewWithConfig(ctx, first)
	return err
}

// primeConns are the connections of the two writers, of leases, and of the
// handing out of streams.
const primeConns = 4

// look connects once and checks what is there.
func (s *Store) look(ctx context.Context, cc *pgx.ConnConfig, path string, hasPath bool) error {
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return connectErr(ctx, cc, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.Begin(ctx)
	if err != nil {
		return connectErr(ctx, cc, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if hasPath {
		if _, err := tx.Exec(ctx, "SELECT set_config('search_path', $1, true)", path); err != nil {
			return fmt.Errorf("search_path of the database URL: %w", err)
		}
	}
	var pid, version int64
	var encoding, sync, fsync string
	var standby, readOnly bool
	var schema string
	err = tx.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version_num')::bigint, current_setting('server_encoding'),
		current_setting('synchronous_commit'), current_setting('fsync'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
		coalesce(quote_ident(current_schema()), '')`).Scan(&pid, &version, &encoding, &sync, &fsync, &standby, &readOnly, &schema)
	if err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	switch {
	case version/10000 < leastVersion:
		return setup("the server is PostgreSQL %d; version %d or newer is needed", version/10000, leastVersion)
	case standby:
		return setup("the server is a standby, which takes no writes; name the primary in the database URL, or several hosts and target_session_attrs=read-write")
	case readOnly:
		return setup("transactions are read-only here (default_transaction_read_only); holdfast writes")
	case encoding != "UTF8":
		return setup("the database has the encoding %s; create one with ENCODING 'UTF8' (TEMPLATE template0)", encoding)
	case schema == "":
		return setup("no schema of the search path %q exists; create one, or name another with search_path in the database URL", path)
	case s.cfg.Sync == SyncFull && sync == "off":
		return setup("synchronous_commit is off here, so that a crash of the database would take appends that were acknowledged; " +
			"turn it on (ALTER DATABASE … SET synchronous_commit = on), or set the store's sync to NORMAL where that may be")
	}
	if fsync != "on" {
		s.cfg.Log.Warn("PostgreSQL runs with fsync off: a crash of its machine may destroy the database")
	}
	s.schema = schema
	// A pooler gives a process id of its own making for cancelling.
	if s.pooled = s.cfg.pooled || uint32(pid) != conn.PgConn().PID(); s.pooled {
		s.cfg.Log.Info("a connection pooler stands before PostgreSQL: no statements are kept there, and what other nodes write is looked for and not announced",
			"every", s.cfg.NewsEvery)
	}
	return nil
}

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// database is a schema of its own in a PostgreSQL database.
type database struct {
	url    string // that leads to the schema
	schema string
	name   string // under which its connections are known to the server
	env    string // the variable that holds url, for a configuration
	conn   *pgx.Conn
}

// noDatabase is the row of a section that could not be measured.
const noDatabase = "no PostgreSQL"

// openDatabase makes a schema. Nil, and a row that says so: there is no PostgreSQL.
func (b *bench) openDatabase(ctx context.Context) (*database, error) {
	brief, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(brief, b.database)
	if err != nil {
		b.skip(noDatabase, "nothing is measured here; -database names one")
		fmt.Fprintln(os.Stderr, "bench: no PostgreSQL:", err)
		return nil, nil
	}
	name := "bench_" + strings.ToLower(rand.Text())
	d := &database{schema: name, name: name, env: strings.ToUpper(name), conn: conn}
	if _, err := conn.Exec(ctx, "CREATE SCHEMA "+d.schema); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	more := map[string]string{"search_path": d.schema, "application_name": d.name}
	if b.n.conns > 0 {
		more["pool_max_conns"] = fmt.Sprint(b.n.conns)
	}
	if d.url, err = withParams(b.database, more); err != nil {
		return nil, errors.Join(err, d.drop(ctx))
	}
	return d, os.Setenv(d.env, d.url)
}

// withParams adds parameters to a URL, or to libpq's words.
func withParams(text string, more map[string]string) (string, error) {
	if !strings.Contains(text, "://") {
		for key, value := range more {
			text += fmt.Sprintf(" %s=%s", key, value)
		}
		return text, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	q := u.Query()
	for key, value := range more {
		q.Set(key, value)
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// drop takes the schema away with all that is in it.
func (d *database) drop(ctx context.Context) error {
	_, err := d.conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+d.schema+" CASCADE")
	return errors.Join(err, os.Unsetenv(d.env), d.conn.Close(ctx))
}

// yaml is the part of a configuration that leads here.
func (d *database) yaml(ttl time.Duration) string {
	return fmt.Sprintf("database_url: {env: %s}\nlease: {ttl: %s}\n", d.env, ttl)
}

// store opens the database as a node does.
func (d *database) store(ctx context.Context, node eventlog.NodeID) (*postgres.Store, error) {
	return postgres.Open(ctx, postgres.Config{URL: d.url, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion, Node: node})
}

// one asks for one value.
func one[T any](ctx context.Context, d *database, text string, args ...any) (v T, err error) {
	err = d.conn.QueryRow(ctx, text, args...).Scan(&v)
	return v, err
}

// cpu is what the server's processes for the connections of this schema have used
// of the processors so far; 0 where they are not on this machine. What the server does
// beside them, checkpoints above all, is not in it.
func (d *database) cpu() time.Duration {
	const tick = 10 * time.Millisecond // the unit of /proc
	var pids []int
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if d.conn.QueryRow(ctx, "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = $1", d.name).Scan(&pids) != nil {
		return 0
	}
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if !strings.Contains(string(text), "(postgres)") || len(fields) < 13 {
			continue
		}
		var user, system int64
		fmt.Sscan(fields[11], &user)
		fmt.Sscan(fields[12], &system)
		sum += time.Duration(user+system) * tick
	}
	return sum
}

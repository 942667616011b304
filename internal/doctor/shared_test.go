package doctor

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
)

// database makes a schema in the database of the tests.
func database(t *testing.T) string {
	t.Helper()
	base := os.Getenv("HOLDFAST_TEST_DATABASE")
	must := base != "" || os.Getenv("CI") != ""
	if base == "" {
		base = "postgres://postgres@127.0.0.1:5432/test?sslmode=disable"
	}
	schema := "doctor_" + strings.ToLower(rand.Text()[:12])
	do := func(text string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, base)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, text)
		return err
	}
	if err := do("CREATE SCHEMA " + schema); err != nil {
		if must {
			t.Fatalf("no PostgreSQL for the tests: %v", err)
		}
		t.Skipf("no PostgreSQL for the tests (HOLDFAST_TEST_DATABASE names one): %v", err)
	}
	t.Cleanup(func() {
		if err := do("DROP SCHEMA " + schema + " CASCADE"); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

const scriptedRoute = "  a: {provider: scripted, script: s.yaml}\n"

// A database that nodes share is looked at as one of theirs: what it promises,
// what it costs, who is there, and who sees which files.
func TestSharedDatabase(t *testing.T) {
	address := database(t)
	t.Setenv("HF_DOCTOR_DATABASE", address)
	cfg := configured(t, scriptedRoute, "database_url: {env: HF_DOCTOR_DATABASE}", "tools: {files: {type: workspace, root: ./desk}}")
	found := examine(t, Input{Config: cfg})
	want(t, found, "database", OK, "there are no tables yet")
	want(t, found, "database", OK, "synchronous_commit on, fsync ")
	want(t, found, "connections", OK, "a node takes up to 17")
	want(t, found, "commit", OK, "One client alone")
	want(t, found, "news", OK, "LISTEN works")
	want(t, found, "database clock", OK, "leases do not mind")
	want(t, found, "nodes", OK, "none is there now; a lease runs 15s")
	want(t, found, "workspaces", OK, "files: the root is new")
	want(t, found, "daemon", OK, "none runs on this data directory")
	for _, f := range found {
		if f.Check == "disk sync" || strings.Contains(f.Text, "HF_DOCTOR") {
			t.Errorf("%+v", f)
		}
	}

	s, err := postgres.Open(t.Context(), postgres.Config{URL: address, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	desk := cfg.Path("desk")
	if err := os.Mkdir(desk, 0o700); err != nil {
		t.Fatal(err)
	}
	const root = "root_abcdefghijklmnopqrstuvwxyz"
	if err := os.WriteFile(filepath.Join(desk, ".holdfast-root"), []byte(root+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	beat := func(n eventlog.Node) {
		t.Helper()
		if _, err := s.Beat(t.Context(), n, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	want(t, examine(t, Input{Config: cfg}), "workspaces", OK, "files: no node is there now")
	beat(eventlog.Node{ID: "n1", Name: "one/1", Version: "1.0", Active: 3, Most: 256, Roots: []string{root}})
	if err := os.MkdirAll(cfg.Path(cfg.DataDir), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := dirlock.Lock(cfg.Path(cfg.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	found = examine(t, Input{Config: cfg})
	want(t, found, "database", OK, "as this program makes them")
	want(t, found, "nodes", OK, "1 there: one/1 (1.0, 3 of 256 sessions); a lease runs 15s")
	want(t, found, "workspaces", OK, "files: every node sees these files (1)")
	want(t, found, "daemon", OK, "uses the data directory")

	beat(eventlog.Node{ID: "n2", Name: "two/2", Version: "1.1", Most: 256})
	found = examine(t, Input{Config: cfg})
	want(t, found, "nodes", Warn, "they are of different versions")
	want(t, found, "workspaces", Warn, "files: 1 of 2 nodes see these files; sessions that worked in them are not handed to two/2")
}

// What is wrong with a database is told, and its password is not.
func TestSharedDatabaseInTrouble(t *testing.T) {
	for name, c := range map[string]struct{ address, text string }{
		"away":      {"postgres://u:" + key + "@127.0.0.1:1/d?sslmode=disable", "PostgreSQL at 127.0.0.1:1 cannot be reached"},
		"no URL":    {"postgres://u:" + key + "/@h/d", "the database URL cannot be read"},
		"not there": {"", "database_url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HF_DOCTOR_DATABASE", c.address)
			if c.address == "" {
				os.Unsetenv("HF_DOCTOR_DATABASE")
			}
			cfg := configured(t, scriptedRoute, "database_url: {env: HF_DOCTOR_DATABASE}")
			want(t, examine(t, Input{Config: cfg}), "database", Fail, strings.Replace(c.text, "database_url", "HF_DOCTOR_DATABASE", 1))
		})
	}
}

func TestJudgeSharedDatabase(t *testing.T) {
	p := &patient{cfg: configured(t, scriptedRoute)}
	good := postgres.Glance{Server: "15", Fsync: "on", Conns: 100, Free: 50, PerNode: 17, Tables: 3, KnownTables: 3}
	for name, c := range map[string]struct {
		change func(*postgres.Glance)
		tell   func(*postgres.Glance)
		check  string
		level  Level
		text   string
	}{
		"newer":    {func(g *postgres.Glance) { g.Tables = 4 }, p.tables, "database", Fail, "a newer version"},
		"older":    {func(g *postgres.Glance) { g.Tables = 2 }, p.tables, "database", Warn, "an older version"},
		"no fsync": {func(g *postgres.Glance) { g.Fsync = "off" }, p.settings, "database", Warn, "may destroy it"},
		"full":     {func(g *postgres.Glance) { g.Free = 3 }, p.settings, "connections", Warn, "about 3 are free"},
		"slow":     {func(g *postgres.Glance) { g.Median = 30 * time.Millisecond }, p.commits, "commit", Warn, "30.0 ms"},
		"deaf":     {func(g *postgres.Glance) { g.HeardErr = context.DeadlineExceeded }, p.news, "news", Warn, "LISTEN does not work"},
		"pooled":   {func(g *postgres.Glance) { g.Pooled = true }, p.news, "news", OK, "pooler"},
		"ahead":    {func(g *postgres.Glance) { g.Ahead = 10 * time.Minute }, p.skew, "database clock", Warn, "10m0s ahead of this machine's; leases do not mind"},
		"behind":   {func(g *postgres.Glance) { g.Ahead = -time.Minute }, p.skew, "database clock", Warn, "1m0s behind this machine's"},
		"lost":     {func(g *postgres.Glance) { g.Nodes = []eventlog.NodeRow{{}} }, p.nodes, "nodes", Warn, "1 ended without giving their lease back"},
		"rootless": {func(g *postgres.Glance) { g.Rootless = 2 }, p.roots, "workspaces", Warn, "whose files no node sees that is there: 2; they wait"},
	} {
		g := good
		c.change(&g)
		p.found = nil
		c.tell(&g)
		t.Run(name, func(t *testing.T) { want(t, p.found, c.check, c.level, c.text) })
	}
}

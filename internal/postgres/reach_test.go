package postgres

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// Whatever is wrong with a URL, no error repeats its password, and each says
// which kind of trouble it is.
func TestNoErrorHoldsThePassword(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	const password = "hunter2"
	for name, c := range map[string]struct {
		url  string
		away bool // an *UnreachableError, else a *SetupError
		want string
	}{
		"slash in it":    {"postgres://u:" + password + "/x@h/db", false, "cannot be read"},
		"percent":        {"postgres://u:" + password + "%zz@h/db", false, "cannot be read"},
		"port":           {"postgres://u:" + password + "@h:port/db", false, "cannot be read"},
		"sslmode":        {"postgres://u:" + password + "@h/db?sslmode=maybe", false, "sslmode"},
		"in the query":   {"postgres://u@h/db?password=" + password + "&sslmode=maybe", false, "sslmode"},
		"words":          {"host=h password=" + password + " sslmode=maybe", false, "cannot be read"},
		"words, good":    {"host=127.0.0.1 port=1 password=" + password + " dbname=db", false, "want postgres://"},
		"scheme":         {"mysql://u:" + password + "@h/db", false, "cannot be read"},
		"nobody listens": {"postgres://u:" + password + "@127.0.0.1:1/db?sslmode=disable", true, "127.0.0.1:1 cannot be reached: nobody listens there"},
		"no name":        {"postgres://u:" + password + "@there-is-none.invalid/db", true, "there-is-none.invalid:5432 cannot be reached: "},
		"no answer":      {"postgres://u:" + password + "@" + silent.Addr().String() + "/db?sslmode=disable", true, "no answer came in time"},
	} {
		_, err := Open(t.Context(), Config{URL: c.url, Rows: storetest.Rows, ConnectWithin: time.Second})
		if err == nil {
			t.Errorf("%s: opened", name)
			continue
		}
		var away *UnreachableError
		var wrong *SetupError
		if errors.As(err, &away) != c.away || errors.As(err, &wrong) == c.away || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %T %v", name, err, err)
		}
		if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that refuses is told apart from one that is not there.
func TestRefused(t *testing.T) {
	needDatabase(t)
	u, err := neturl(testURL())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/there_is_none"
	var wrong *SetupError
	if _, err := Open(t.Context(), Config{URL: u.String(), Rows: storetest.Rows}); !errors.As(err, &wrong) || !strings.Contains(wrong.Error(), "3D000") {
		t.Errorf("%T %v", err, err)
	}
}

func TestGlance(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	look := func(cfg Config) Glance {
		t.Helper()
		cfg.URL, cfg.Rows = url, storetest.Rows
		g, err := Look(within(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := look(Config{})
	if g.Tables != 0 || g.Rows != 0 || g.KnownTables == 0 || len(g.Nodes) != 0 || g.Encoding != "UTF8" || g.Sync == "" || g.Isolation == "" || g.Server == "" ||
		g.Conns < 10 || g.PerNode != 17 || g.Median <= 0 || g.Longest < g.Median || g.HeardErr != nil || g.Heard <= 0 || g.Ahead.Abs() > time.Second {
		t.Errorf("of an empty schema: %+v", g)
	}
	s := open(t, Config{URL: url, Generation: 3})
	if _, err := s.Beat(t.Context(), eventlog.Node{ID: "n1", Name: "one", Version: "v"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	g = look(Config{pooled: true})
	if g.Tables != g.KnownTables || g.Rows != 3 || len(g.Nodes) != 1 || !g.Nodes[0].Alive || g.Nodes[0].Name != "one" || !g.Pooled || g.Heard != 0 {
		t.Errorf("beside a node: %+v", g)
	}
	const ready = ".streams (stream, kind, head, epoch, hash, ready_since, roots) VALUES "
	raw(t, "INSERT INTO "+s.schema+ready+"('a', 'session', 1, 0, '', now(), '{r1,r2}'), ('b', 'session', 1, 0, '', now(), '{r1}'), ('c', 'session', 1, 0, '', now(), '{}'), ('d', 'session', 1, 0, '', NULL, '{r3}')")
	for want, roots := range map[int][]string{2: {"r2"}, 1: {"r1", "r3"}, 0: {"r2", "r1"}} {
		if _, err := s.Beat(t.Context(), eventlog.Node{ID: "n1", Name: "one", Version: "v", Roots: roots}, time.Minute); err != nil {
			t.Fatal(err)
		}
		if g = look(Config{}); g.Rootless != want {
			t.Errorf("%d sessions wait for a node beside one with %v, want %d", g.Rootless, roots, want)
		}
	}
	raw(t, "INSERT INTO "+s.schema+".migrations VALUES (1000, 'later', '', '')")
	if g = look(Config{}); g.Tables != 1000 || g.Nodes != nil {
		t.Errorf("of a newer program: %+v", g)
	}
	if _, err := Look(context.Background(), Config{URL: "postgres://nobody@127.0.0.1:1/x", Rows: storetest.Rows}); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("%T %v", err, err)
	}
}

func TestAhead(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ now, want time.Duration }{{-time.Minute, -time.Minute}, {0, 0}, {time.Second, 0}, {2 * time.Second, 0}, {time.Hour, time.Hour - 2*time.Second}} {
		if got := aheadBy(at.Add(c.now), at, at.Add(2*time.Second)); got != c.want {
			t.Errorf("%v: %v", c.now, got)
		}
	}
}

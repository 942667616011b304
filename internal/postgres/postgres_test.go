package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// testURL is the database of the tests. Each of them makes a schema of its own there.
func testURL() string {
	u, _ := storetest.DatabaseURL()
	return u
}

var reach = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, testURL())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
})

// needDatabase skips the test where there is no database. Where all tests must
// run there is one, or this one fails.
func needDatabase(t testing.TB) {
	t.Helper()
	err := reach()
	if err == nil {
		return
	}
	if _, wanted := storetest.DatabaseURL(); wanted {
		t.Fatalf("no PostgreSQL for the tests: %v", err)
	}
	t.Skipf("no PostgreSQL for the tests (HOLDFAST_TEST_DATABASE names one): %v", err)
}

// raw runs statements on a connection of its own.
func raw(t testing.TB, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, testURL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.PgConn().Exec(ctx, text).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

var made sync.Map

// schemaFor makes a schema for a name, and gives the URL that leads there. It goes
// at the end of the test.
func schemaFor(t testing.TB, name string) string {
	t.Helper()
	needDatabase(t)
	sum := sha256.Sum256([]byte(name))
	schema := "t_" + hex.EncodeToString(sum[:8])
	if _, there := made.LoadOrStore(schema, true); !there {
		raw(t, "DROP SCHEMA IF EXISTS "+schema+" CASCADE; CREATE SCHEMA "+schema)
		t.Cleanup(func() {
			made.Delete(schema)
			raw(t, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		})
	}
	return withParam(t, testURL(), "search_path", schema)
}

func neturl(s string) (*url.URL, error) { return url.Parse(s) }

func withParam(t testing.TB, to, name, value string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T, dir string, rules storetest.Rules) storetest.Store {
		t.Helper()
		return conforming{open(t, Config{URL: schemaFor(t, dir), Rows: rules.Rows, CheckSnapshot: rules.CheckSnapshot, Sync: SyncNormal})}
	})
}

// open opens a store and closes it at the end of the test.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = schemaFor(t, t.TempDir())
	}
	if cfg.Rows == nil {
		cfg.Rows = storetest.Rows
	}
	if cfg.Conns == 0 {
		cfg.Conns = 8 // the server's are few, and others may test there too
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// conforming is a store as the conformance suite wants it.
type conforming struct{ *Store }

func (c conforming) Findings(ctx context.Context, rebuild bool) ([]string, error) {
	report, err := c.Verify(ctx, VerifyOptions{Rebuild: rebuild})
	var found []string
	for _, f := range report.Findings {
		found = append(found, f.Where+": "+f.Text)
	}
	return found, err
}

func (c conforming) Damage(t *testing.T, d storetest.Damage) {
	t.Helper()
	exec := func(text string, args ...any) {
		t.Helper()
		tag, err := c.pool.Exec(t.Context(), c.sql(text), toTexts(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			t.Fatalf("nothing to damage: %s", text)
		}
	}
	at := []any{string(d.Stream), d.Seq}
	switch d.Kind {
	case storetest.DamageData:
		// The first letter of the first value.
		exec(`UPDATE @.log SET data = overlay(data placing 'X'::bytea from position(':"'::bytea in data) + 2 for 1) WHERE stream = $1 AND first_seq = $2`, at...)
	case storetest.DamageMeta:
		exec(`UPDATE @.log SET meta = convert_to(replace(convert_from(meta, 'UTF8'), 'run_', 'rum_'), 'UTF8') WHERE stream = $1 AND first_seq = $2`, at...)
	case storetest.DamageRemove:
		exec(`DELETE FROM @.log WHERE stream = $1 AND first_seq = $2`, at...)
	case storetest.DamageSnapshot:
		exec("UPDATE @.snapshots SET head = $1, epoch = $2, hash = $3, state = $4 WHERE session_id = $5",
			d.Snapshot.Head, d.Snapshot.Epoch, d.Snapshot.Hash[:], d.Snapshot.State, string(d.Snapshot.SessionID))
	case storetest.DamageSwap:
		exec(`UPDATE @.log SET first_seq = -1 WHERE stream = $1 AND first_seq = $2`, at...)
		exec(`UPDATE @.log SET first_seq = $2 WHERE stream = $1 AND first_seq = $3`, string(d.Stream), d.Seq, d.Other)
		exec(`UPDATE @.log SET first_seq = $2 WHERE stream = $1 AND first_seq = -1`, string(d.Stream), d.Other)
	case storetest.DamageErase:
		events, err := c.Read(t.Context(), d.Stream, d.Seq-1, 1)
		if err != nil {
			t.Fatal(err)
		}
		exec(`UPDATE @.log SET data = NULL, salt = NULL, digests = $3 WHERE stream = $1 AND first_seq = $2`, append(at, events[0].DataDigest[:])...)
	case storetest.DamageDerived:
		var where []string
		args := []any{d.Set.Value}
		for i, k := range d.Key {
			where = append(where, fmt.Sprintf("%s = $%d", k.Name, i+2))
			args = append(args, k.Value)
		}
		exec(fmt.Sprintf("UPDATE @.%s SET %s = $1 WHERE %s", d.Table, d.Set.Name, strings.Join(where, " AND ")), args...)
	case storetest.DamageBlob:
		if _, err := c.pool.Exec(t.Context(), c.sql("DELETE FROM @.blobs WHERE owner = $1 AND ref = $2"), d.Blob.Owner, d.Blob.Ref); err != nil {
			t.Fatal(err)
		}
		if d.Blob.Kind != "" {
			exec("INSERT INTO @.blobs (owner, ref, kind, bytes) VALUES ($1, $2, $3, $4)", d.Blob.Owner, d.Blob.Ref, string(d.Blob.Kind), d.Blob.Bytes)
		}
	default:
		t.Fatalf("damage %q", d.Kind)
	}
}

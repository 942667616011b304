package storetest

import (
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// DatabaseURL is the PostgreSQL database of the tests: what the variable
// HOLDFAST_TEST_DATABASE names, else one on this machine. wanted says that tests
// that cannot reach it fail: it was named, or all tests must run.
func DatabaseURL() (address string, wanted bool) {
	if u := os.Getenv("HOLDFAST_TEST_DATABASE"); u != "" {
		return u, true
	}
	return "postgres://postgres@127.0.0.1:5432/test?sslmode=disable", os.Getenv("CI") != ""
}

// Port gives a port of loopback that is free, and below those that systems hand out by
// themselves: what listens there later, or again, finds it free still.
func Port(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 10_000 + mrand.IntN(20_000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// Database makes a schema for a test in the database of the tests, and gives the
// URL that leads there. Without a database the test is skipped; where all tests
// must run it fails. The schema goes with the test.
func Database(t *testing.T) string {
	t.Helper()
	address, away := DatabaseIf(t)
	if away != nil {
		t.Skipf("no PostgreSQL for the tests (HOLDFAST_TEST_DATABASE names one): %v", away)
	}
	return address
}

// DatabaseIf is Database for a test that has something to do without one too.
func DatabaseIf(t *testing.T) (address string, away error) {
	t.Helper()
	base, wanted := DatabaseURL()
	schema := "test_" + strings.ToLower(rand.Text()[:12])
	do := func(text string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
		if wanted {
			t.Fatalf("no PostgreSQL for the tests: %v", err)
		}
		return "", err
	}
	t.Cleanup(func() {
		if err := do("DROP SCHEMA " + schema + " CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return WithParams(t, base, "search_path", schema), nil
}

// WithParams sets parameters of a URL, in pairs of name and value.
func WithParams(t *testing.T, address string, pairs ...string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// early is a store as a node sees it that looked before another one wrote.
type early struct {
	Store
	looks int
}

func (s *early) ListTokens(ctx context.Context) ([]eventlog.TokenRow, error) {
	if s.looks++; s.looks == 1 {
		return nil, nil
	}
	return s.Store.ListTokens(ctx)
}

// A HOLDFAST_TOKEN that does nothing is said to: one that is known is not.
func TestGivenTokenThatIsNotKnown(t *testing.T) {
	store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	for _, v := range []struct {
		given string
		told  bool
	}{{"a-token-of-a-person", false}, {"a-token-of-a-person\n", false}, {"", false}, {"another-one-of-a-person", true}} {
		var log bytes.Buffer
		d := &Daemon{cfg: &config.Config{DataDir: t.TempDir()}, store: store, random: rand.Reader, log: slog.New(slog.NewTextHandler(&log, nil))}
		if _, err := d.FirstToken(t.Context(), v.given); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(log.String(), "HOLDFAST_TOKEN is not a token of this daemon"); told != v.told || strings.Contains(log.String(), "of-a-person") {
			t.Errorf("%q: %s", v.given, log.String())
		}
	}
}

// Of nodes that begin on an empty database at one moment one makes the admin
// token; the other ones leave no file behind whose token is good for nothing.
func TestOneFirstToken(t *testing.T) {
	store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	first := func() (path, text string) {
		t.Helper()
		d := &Daemon{cfg: &config.Config{DataDir: t.TempDir()}, store: &early{Store: store}, random: rand.Reader}
		path, err := d.FirstToken(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(TokenPath(d.cfg))
		if (path != "") != (err == nil) {
			t.Errorf("said %q, and of the file: %v", path, err)
		}
		return path, string(b)
	}
	if path, text := first(); path == "" || len(text) < 64 {
		t.Errorf("the first one: %q, %d bytes", path, len(text))
	}
	if path, _ := first(); path != "" {
		t.Errorf("the second one wrote %s", path)
	}
	if have, err := store.ListTokens(t.Context()); err != nil || len(have) != 1 {
		t.Errorf("%d tokens, %v", len(have), err)
	}
}

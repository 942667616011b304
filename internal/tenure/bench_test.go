package tenure_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

// held is a lease that has begun.
func held(b *testing.B, ttl time.Duration) *tenure.Tenure {
	b.Helper()
	store, err := sqlite.Open(b.Context(), sqlite.Config{Dir: b.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows})
	if err != nil {
		b.Fatal(err)
	}
	tn := tenure.New(tenure.Config{Nodes: store, Node: eventlog.Node{ID: "a"}, TTL: ttl, Logger: slog.New(slog.DiscardHandler)})
	if err := tn.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		tn.Stop(context.Background())
		if err := store.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return tn
}

// BenchmarkHeld is the check before a delta goes out.
func BenchmarkHeld(b *testing.B) {
	for name, ttl := range map[string]time.Duration{"alone": 0, "shared": time.Hour} {
		b.Run(name, func(b *testing.B) {
			term := held(b, ttl).Term()
			b.ReportAllocs()
			for b.Loop() {
				if !term.Held() {
					b.Fatal("the lease has ended")
				}
			}
		})
	}
}

// BenchmarkAwait is the check before every other act.
func BenchmarkAwait(b *testing.B) {
	term := held(b, time.Hour).Term()
	b.ReportAllocs()
	for b.Loop() {
		if err := term.Await(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

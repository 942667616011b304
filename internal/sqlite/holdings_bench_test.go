package sqlite

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// BenchmarkHoldings is what a run of one step asks of the holdings: a command
// wakes its session, the owner takes it, goes on, and leaves it at rest; beside
// one held stream, and beside very many.
func BenchmarkHoldings(b *testing.B) {
	for name, others := range map[string]int{"1": 1, "100000": 100_000} {
		b.Run(name, func(b *testing.B) {
			h := newHoldings()
			now := time.Now()
			h.beat(eventlog.Node{ID: "a"}, time.Hour, now)
			for range others {
				h.set(newSession(b).Stream(), "a", h.next())
			}
			h.keep()
			stream := newSession(b).Stream()
			wakes := []event.Event{{Data: &event.RunQueued{}}}
			steps := []eventlog.Entry{{Stream: stream}, {Stream: stream, Node: "a"}, {Stream: stream, Node: "a", Rest: true}}
			b.ReportAllocs()
			for b.Loop() {
				for i := range steps {
					if err := h.check(&steps[i], now); i > 0 && err != nil {
						b.Fatal(err)
					}
					h.appended(&steps[i], wakes)
				}
				h.keep()
			}
		})
	}
}

package metrics

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// An append of ten events through the store, with and without somebody who
// counts, as one who waits for each and as many at once.
func BenchmarkAppend(b *testing.B) {
	for _, counted := range []bool{false, true} {
		for _, at := range []int{1, 32} {
			b.Run(fmt.Sprintf("counted=%v/at=%d", counted, at), func(b *testing.B) {
				cfg := sqlite.Config{Dir: b.TempDir(), Rows: eventlog.Rows, Sync: sqlite.SyncNormal}
				if counted {
					m := New(Config{Routes: testRoutes})
					cfg.OnCommit, cfg.OnBatch = m.Committed, func(x sqlite.Batch) { m.Batch(Batch(x)) }
				}
				s, err := sqlite.Open(b.Context(), cfg)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close(b.Context())
				b.SetParallelism(at / 2)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					id, err := event.NewSessionID(rand.Reader)
					if err != nil {
						b.Error(err)
					}
					for pb.Next() {
						run, _ := event.NewRunID(rand.Reader)
						var events []event.Event
						for _, d := range []event.Data{&event.RunStarted{}, &event.StepStarted{Number: 1}, mainCall, &event.TextEnded{MessageID: "m"},
							&event.ModelCallCompleted{Attempt: 1, DurationMS: 5, Usage: &event.TokenUsage{Input: 10, Output: 5}}, &event.InferenceCompleted{Finish: "stop"},
							&event.StepEnded{Finish: "stop"}, &event.ContractChecked{Gate: "output", OK: true}, &event.OutputEmitted{OutputKind: "assistant_text"}, &event.RunCompleted{}} {
							events = append(events, event.Event{SessionID: id, UserID: "u", RunID: run, StepID: "step_1", Data: d})
						}
						if _, err := s.Append(b.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: events}}}); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

package live_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// What a delta costs the one who publishes it: for nobody, for one and for many
// who take it later.
func BenchmarkPublish(b *testing.B) {
	for _, bc := range []struct {
		name string
		subs int
	}{{"nobody", 0}, {"one", 1}, {"ten", 10}} {
		b.Run(bc.name, func(b *testing.B) {
			var h live.Hub
			var subs []*live.Subscription
			for range bc.subs {
				subs = append(subs, h.Follow("session:ses_1", "run_1"))
			}
			b.ReportAllocs()
			n := int64(0)
			for b.Loop() {
				n++
				if h.Listening("session:ses_1") {
					h.Publish("session:ses_1", numbered(n))
				}
				if n%16 == 0 {
					for _, s := range subs {
						for s.Delta() != nil {
						}
					}
				}
			}
		})
	}
}

func numbered(n int64) api.Delta {
	return api.Delta{Type: "text.delta", RunID: "run_1", StepID: "step_1", Attempt: 1, Text: "some words ", Epoch: 1, Number: n}
}

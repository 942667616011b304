package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// A process that dies in the middle of a bulk replay, right before or right
// after a step of it, leaves a job that the next one ends: each delivery is
// replayed once, with the same id and bytes. // I-24, I-26
func TestCrashBulkReplay(t *testing.T) {
	const letters = 5
	for _, kill := range []killAt{
		{Side: "before", N: 1}, {Side: "before", N: 2}, {Side: "before", N: letters}, {Side: "after", N: 1}, {Side: "after", N: 2}, {Side: "after", N: letters},
	} {
		kill.Type = event.TypeJobAdvanced
		t.Run(kill.String(), func(t *testing.T) {
			s := newStage(t, func(_ *world, c map[string]any) {
				c["delivery"].(map[string]any)["replay_rate"] = 50
			})
			s.w.answer = storyAnswer
			s.w.hook = func(_, _ string, n int) int {
				if n == 1 {
					return http.StatusBadRequest // the receiver's word: a dead letter at once
				}
				return http.StatusOK
			}
			l := s.k.start(&kill)
			s.session(api.CreateSession{OutputContract: &api.OutputContract{Schema: outputSchema}})
			for i := range letters {
				run, _, err := s.c.submit(s.ctx, "case", fmt.Sprint("key-", i), fmt.Sprintf("order %d", orderPlain))
				s.must(err)
				s.completes(run.ID)
			}
			sent, err := s.c.deliveries(s.ctx, letters)
			s.must(err)
			for _, d := range sent {
				if d.Status != api.DeliveryDeadLettered {
					t.Fatalf("%+v", d)
				}
			}
			next := s.next(l)
			a, err := s.c.do(s.ctx, http.MethodPost, "/v1/deliveries/replay", api.ReplayDeliveries{Filter: &api.DeliveryFilter{Unresolved: true, ErrorClass: "refused"}, DryRun: true})
			s.must(err)
			var plan api.ReplayPlan
			s.must(a.into(&plan))
			// Said again after the death, the token starts nothing anew.
			_, err = s.c.do(s.ctx, http.MethodPost, "/v1/deliveries/replay", api.ReplayDeliveries{PlanToken: plan.PlanToken})
			s.must(err)
			next()
			if !strings.Contains(l.killed, string(event.TypeJobAdvanced)) {
				t.Fatalf("the first life ended at %q", l.killed)
			}
			j, err := s.c.jobEnds(s.ctx, plan.JobID)
			s.must(err)
			if j.Status != api.JobCompleted || j.Total != letters || j.Done != letters || j.Skipped != 0 {
				t.Errorf("%+v", j)
			}
			sent, err = s.c.deliveries(s.ctx, letters)
			s.must(err)
			for _, d := range sent {
				if d.Status != api.DeliveryDelivered || d.Replays != 1 {
					t.Errorf("%+v", d)
				}
			}
			s.history(s.rests())
			replays, attempts := map[event.DeliveryID]int{}, 0
			for _, e := range readStore(t, s.k.dir) {
				switch d := e.Data.(type) {
				case *event.DeliveryReplayed:
					replays[d.DeliveryID]++
				case *event.DeliveryAttemptStarted:
					attempts++
				}
			}
			if len(replays) != letters {
				t.Errorf("replayed are %v", replays)
			}
			for id, n := range replays {
				if n != 1 {
					t.Errorf("%s was replayed %d times", id, n)
				}
			}
			bodies := map[string]string{}
			for _, h := range s.w.received() {
				if was, known := bodies[h.id]; known && was != string(h.body) {
					t.Errorf("I-26: %s was sent as %s, and before as %s", h.id, h.body, was)
				}
				bodies[h.id] = string(h.body)
			}
			// What was under way when the daemon died may come once more, as another attempt.
			if n := len(s.w.received()); n < 2*letters || n > attempts {
				t.Errorf("%d messages of %d deliveries, and %d attempts", n, letters, attempts)
			}
		})
	}
}

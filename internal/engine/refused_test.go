package engine_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// What the log refuses for good ends the run, once and clearly; what may have
// had its effect is in doubt, what is in flight is stopped, and the run behind
// it goes on (I-05, I-12, I-13).
func TestRefusedForGood(t *testing.T) {
	malformed := eventlog.Malformed(errors.New("too large"), "the database refuses it")
	for name, row := range map[string]struct {
		types   []event.Type
		err     error
		why     string
		asked   int
		ran     int // of the quick tool
		unknown int
	}{
		"the start of the run":   {[]event.Type{event.TypeRunStarted}, malformed, "the log cannot take it", 0, 0, 0},
		"the answer":             {[]event.Type{event.TypeInferenceCompleted}, malformed, "the log cannot take it", 1, 0, 0},
		"the starts of calls":    {[]event.Type{event.TypeToolStarted}, &eventlog.DuplicateError{Table: derived.ToolStarts}, "it is there already", 1, 0, 0},
		"the outcome of one":     {[]event.Type{event.TypeToolCompleted}, &eventlog.ConditionError{}, "a precondition does not hold", 1, 1, 2},
		"what refers to a file":  {[]event.Type{event.TypeToolCompleted}, &eventlog.AssetError{ID: "ast_1"}, "it refers to a file that is not there", 1, 1, 2},
		"all of it, also by far": {[]event.Type{event.TypeInferenceCompleted, event.TypeRunFailed}, malformed, "", 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quick, slow := newFake("quick", tool.Write, gives("done")), newFake("slow", tool.Write, waits(time.Hour, "late"))
				h, p := staged(t, []step{call("quick", "{}", "slow", "{}"), say("next")}, quick, slow)
				defer h.close()
				s := h.session(&api.CreateSession{})
				id := h.submit(s, "go")
				refusals, first := 0, event.RunID("")
				eng, log := h.faultyEngine("gen_1", quick, slow)
				log.set(func(a eventlog.Append) (error, error) {
					run := a.Entries[0].Events[len(a.Entries[0].Events)-1].RunID
					if first == "" {
						first = run
					}
					if run != first || !has(a, row.types...) {
						return nil, nil
					}
					refusals++
					return row.err, nil
				}, nil)
				began := time.Now()
				st, err := eng.Load(t.Context(), s.ID)
				if err != nil {
					t.Fatal(err)
				}
				if row.why == "" { // nothing is left to be said
					if _, _, _, err := eng.Drive(t.Context(), forever{}, st, nil, nil, nil); !errors.Is(err, row.err) || refusals > 2 {
						t.Fatalf("refused %d times: %v", refusals, err)
					}
					h.status(id, "running")
					return
				}
				if _, _, _, err := eng.Drive(t.Context(), forever{}, st, nil, nil, nil); err != nil {
					t.Fatal(err)
				}
				if got := h.run(id); got.Status != "failed" || got.ErrorCode != session.CodeRefused || !strings.Contains(got.ErrorMessage, row.why) {
					t.Errorf("the run is %s (%s %s)", got.Status, got.ErrorCode, got.ErrorMessage)
				}
				if refusals != 1 || p.asked() != row.asked || quick.runs() != row.ran || time.Since(began) > time.Minute {
					t.Errorf("refused %d times, asked %d, ran %d, after %s", refusals, p.asked(), quick.runs(), time.Since(began))
				}
				unknown := 0
				for _, d := range all[*event.ToolInterrupted](h, s.ID) {
					if d.Outcome == session.OutcomeUnknown {
						unknown++
					}
				}
				if unknown != row.unknown {
					t.Errorf("%d calls in doubt", unknown)
				}
				settled(t, h.events(s.ID.Stream()))
				next := h.submit(s, "and then")
				p.mu.Lock()
				p.steps = []step{say("next")}
				p.mu.Unlock()
				h.drive(eng, s.ID)
				h.status(next, "completed")
				h.verify()
			})
		})
	}
}

// settled checks a whole log: every call has one terminal, and has it before
// the one terminal of its step; every run has one terminal (I-05, I-12).
func settled(t *testing.T, events []event.Event) {
	t.Helper()
	open, steps, runs := map[event.CallID]event.StepID{}, map[event.StepID]int{}, map[event.RunID]int{}
	closed := map[event.CallID]bool{}
	for i := range events {
		e := &events[i]
		switch e.Data.(type) {
		case *event.ToolRequested:
			open[e.CallID] = e.StepID
		case *event.ToolCompleted, *event.ToolFailed, *event.ToolTimeout, *event.ToolInterrupted, *event.ToolRejected:
			if _, ok := open[e.CallID]; !ok || closed[e.CallID] {
				t.Errorf("I-12: %s of call %s, which is not open", e.Type, e.CallID)
			}
			delete(open, e.CallID)
			closed[e.CallID] = true
		case *event.StepEnded, *event.StepFailed:
			if steps[e.StepID]++; steps[e.StepID] != 1 {
				t.Errorf("I-12: step %s has %d terminals", e.StepID, steps[e.StepID])
			}
			for call, step := range open {
				if step == e.StepID {
					t.Errorf("I-12: %s before call %s has a terminal", e.Type, call)
				}
			}
		case *event.StepStarted, *event.ModelCallStarted:
			if steps[e.StepID] > 0 {
				t.Errorf("I-12: %s after the terminal of its step", e.Type)
			}
		case *event.RunCompleted, *event.RunFailed, *event.RunCancelled, *event.RunInterrupted:
			if runs[e.RunID]++; runs[e.RunID] != 1 {
				t.Errorf("I-05: run %s has %d terminals", e.RunID, runs[e.RunID])
			}
		}
	}
}

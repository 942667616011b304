package session_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// running is a world with run_1 whose first attempt is open.
func running(t *testing.T) *world {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "Go.", nil)
	w.decide(nil)
	return w
}

func (w *world) answered(parts ...session.OutputPart) []event.Event {
	finish := llm.FinishStop
	for i := range parts {
		parts[i].Index = i
		if parts[i].Kind == llm.ToolCallWhole {
			finish = llm.FinishTools
		}
	}
	return w.append(session.Answered(w.s, &session.Answer{Parts: parts, Finish: finish})...)
}

// What the log cannot hold is an error, not a guess.
func TestApplyRefuses(t *testing.T) {
	w := running(t)
	for name, change := range map[string]func(*event.Event){
		"a gap":             func(e *event.Event) { e.Seq++ },                                                  // I-01
		"a repetition":      func(e *event.Event) { e.Seq-- },                                                  // I-01
		"an older epoch":    func(e *event.Event) { e.Epoch-- },                                                // I-15
		"a second active":   func(e *event.Event) { e.Data = &event.RunStarted{} },                             // I-06
		"a schema of rules": func(e *event.Event) { e.RunID, e.Data = "", badContract(w.s.SettingsVersion+1) }, // not ours
	} {
		e := command("run_2", &event.RunQueued{})
		e.Seq, e.Epoch = w.s.Head+1, w.s.Epoch
		change(&e)
		if err := w.s.Clone().Apply(&e); err == nil {
			t.Errorf("%s was folded", name)
		}
	}
}

func badContract(version int) *event.SessionUpdated {
	return &event.SessionUpdated{Changed: []string{"output_contract"}, Version: version, Settings: event.Settings{
		OutputContract: &event.OutputContract{Schema: []byte(`{"type":"null"}`)},
	}}
}

// I-06: only the head of the queue starts.
func TestOnlyTheHeadStarts(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "Go.", nil)
	w.submit("run_2", "Go.", nil)
	e := command("run_2", &event.RunStarted{})
	e.Seq, e.Epoch = w.s.Head+1, w.s.Epoch
	if err := w.s.Clone().Apply(&e); err == nil {
		t.Error("the second run started before the first")
	}
}

// I-05: whatever ends come after the first, nothing changes.
func TestASecondEndChangesNothing(t *testing.T) {
	w := running(t)
	w.answered(text("Done."))
	w.decide(nil)
	before := w.s.Clone()
	w.append(command("run_1", &event.RunFailed{Code: "late", Message: "late"}), command("run_1", &event.RunCancelled{}))
	w.submit("run_2", "Go.", nil)
	w.decide(nil)
	if got := w.request(); len(got.Messages) != 3 {
		t.Errorf("%d messages, want the first run's two and the task", len(got.Messages))
	}
	if before.Active != nil || w.s.Active.ID != "run_2" {
		t.Error("the queue went on from another place")
	}
}

// What is folded into a clone, and what is put into it, stays there.
func TestCloneStandsAlone(t *testing.T) {
	w := running(t)
	w.answered(text(strings.Repeat("x", event.InlineLimit+1)))
	w.s = w.refold() // as another process reads it
	ask, ok := session.Next(w.s)[0].(session.Resolve)
	if !ok {
		t.Fatalf("asked for %#v", session.Next(w.s))
	}
	clone := w.s.Clone()
	clone.Resolve(ask.Ref, string(w.blobs[ask.Ref]))
	if _, ok := session.Next(w.s)[0].(session.Resolve); !ok {
		t.Error("the text went from the clone into its origin")
	}
	if _, ok := session.Next(clone)[0].(session.Append); !ok {
		t.Errorf("with its text the clone asks for %#v", session.Next(clone))
	}
}

// I-14: an outcome of a call that is not in flight tells nothing.
func TestLateOutcomesTellNothing(t *testing.T) {
	w := running(t)
	w.answered(call("look", `{}`))
	id := session.CallIDAt("step_1_1", 1, 0)
	if got := session.ToolEnded(w.s, id, &session.ToolOutcome{}, clockOfTests, 0); got != nil {
		t.Errorf("of a call that has not started: %v", got)
	}
	w.decide(nil)
	if got := session.ToolEnded(w.s, "call_of_nobody", &session.ToolOutcome{}, clockOfTests, 0); got != nil {
		t.Errorf("of a call that is not there: %v", got)
	}
	w.append(session.ToolEnded(w.s, id, &session.ToolOutcome{}, clockOfTests, 0)...)
	if got := session.ToolEnded(w.s, id, &session.ToolOutcome{Failed: true}, clockOfTests, 0); got != nil {
		t.Errorf("of a call that has ended: %v", got)
	}
	w.decide(nil)
	w.answered(text("Done."))
	w.decide(nil)
	if got := session.ToolEnded(w.s, id, &session.ToolOutcome{}, clockOfTests, 0); got != nil {
		t.Errorf("of a run that has ended: %v", got)
	}
}

// A person's word counts only while it is waited for, whatever step the
// command names; a word that comes too early must not be taken as done.
func TestWordsOfAPerson(t *testing.T) {
	w := running(t)
	w.answered(call("charge", `{}`), call("look", `{}`))
	w.decide(nil)
	charge, look := session.CallIDAt("step_1_1", 1, 0), session.CallIDAt("step_1_1", 1, 1)
	w.append(session.ToolEnded(w.s, charge, &session.ToolOutcome{Unknown: true}, clockOfTests, 0)...)
	word := command("run_1", &event.AttentionResolved{Resolution: event.ResolveRetry})
	word.CallID = charge
	w.append(word)
	w.append(session.ToolEnded(w.s, look, &session.ToolOutcome{}, clockOfTests, 0)...)
	if w.decide(nil); !w.s.Active.Waiting {
		t.Fatal("a word before it was asked for let the run go on")
	}
	w.append(word)
	acts := w.decide(nil)
	if got, ok := acts[0].(session.RunTool); !ok || len(acts) != 1 || w.s.Call(got.Call).Original != charge {
		t.Errorf("the call is not repeated: %#v", acts)
	}
}

// A call that ends the daemon each time is not repeated for ever, though its
// level would allow it.
func TestRepetitionsAreBounded(t *testing.T) {
	for name, doubt := range map[string]bool{"look": false, "pay": true} {
		w := running(t)
		w.answered(call(name, `{}`))
		starts := 0
		for w.s.Active != nil && w.s.Active.Turn == 1 && !w.s.Active.Waiting && starts < 100 {
			for _, a := range w.decide(nil) {
				if _, ok := a.(session.RunTool); ok {
					starts++
				}
			}
			w.crash()
		}
		if starts != session.MaxAbandoned || w.s.Active.Waiting != doubt {
			t.Errorf("%s: %d starts, waiting %v", name, starts, w.s.Active.Waiting)
		}
	}
}

// An attempt that ends the daemon each time fails the run.
func TestAbandonedAttemptsAreBounded(t *testing.T) {
	w := running(t)
	calls := 1
	for w.s.Active != nil && calls < 100 {
		w.crash()
		if acts := w.decide(nil); acts != nil {
			calls++
		}
	}
	last := w.log[len(w.log)-1]
	if failed, ok := last.Data.(*event.RunFailed); !ok || failed.Code != "recovery_exhausted" || calls != session.MaxAbandoned {
		t.Errorf("%d calls, then %s %#v", calls, last.Type, last.Data)
	}
}

// The words of a vendor and of a model are fit for the log, whatever they are.
func TestHostileWords(t *testing.T) {
	bad := strings.Repeat("é", 700) + "\xff\xfe"
	w := running(t)
	w.append(session.Failed(w.s, &session.Answer{Parts: []session.OutputPart{{Kind: llm.ReasoningEnd, Index: 0}}},
		&llm.Error{Class: llm.Server, Message: bad, Code: bad}, w.now, 0)...)
	w.decide(nil)
	w.append(session.Answered(w.s, &session.Answer{
		Parts:  []session.OutputPart{{Kind: llm.TextEnd, Index: 0, Text: bad}, {Kind: llm.ToolCallWhole, Index: 1, Name: bad, Text: bad}},
		Finish: llm.FinishTools, RawFinish: bad[:63], // inside a rune
	})...)
	w.decide(nil)
	for _, e := range w.log {
		if !utf8.Valid(e.Raw) || len(e.Raw) > 4096 {
			t.Errorf("%s holds %d bytes", e.Type, len(e.Raw))
		}
	}
}

// The delay of retries: exponential, jitter upwards, never below what the
// vendor asked, never past the cap, never at the last failure.
func TestRetryDelays(t *testing.T) {
	for _, row := range []struct {
		after  time.Duration
		jitter float64
		want   []time.Duration
	}{
		{0, 0, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}},
		{0, 0.999999, []time.Duration{1500 * time.Millisecond, 3 * time.Second, 6 * time.Second, 12 * time.Second}},
		{5 * time.Second, 0, []time.Duration{5 * time.Second, 5 * time.Second, 5 * time.Second, 8 * time.Second}},
		{time.Hour, 0, []time.Duration{session.DefaultMaxBackoff, session.DefaultMaxBackoff, session.DefaultMaxBackoff, session.DefaultMaxBackoff}},
	} {
		w := running(t)
		for i := range session.DefaultMaxAttempts {
			events := w.append(session.Failed(w.s, &session.Answer{}, &llm.Error{Class: llm.Overloaded, RetryAfter: row.after}, w.now, row.jitter)...)
			plan, ok := events[len(events)-1].Data.(*event.RetryScheduled)
			if ok != (i < session.DefaultMaxAttempts-1) {
				t.Fatalf("after failure %d: another attempt is planned: %v", i+1, ok)
			}
			if !ok {
				break
			}
			at, err := event.ParseTime(plan.At)
			if err != nil {
				t.Fatal(err)
			}
			if got := at.Sub(w.now).Round(time.Millisecond); got != row.want[i] {
				t.Errorf("after %v, jitter %v: delay %d is %v, want %v", row.after, row.jitter, i+1, got, row.want[i])
			}
			w.decide(nil)
		}
	}
}

// What a run is pinned with says how often and when a model is asked again, of its
// steps and, by the route of a summary, of that; the first attempt is one of them. // I-08
func TestRetriesArePinned(t *testing.T) {
	const ms = time.Millisecond
	for _, row := range []struct {
		pinned event.Retries
		after  time.Duration
		jitter float64
		want   []time.Duration
	}{
		{event.Retries{MaxAttempts: 1}, 0, 0, nil},
		{event.Retries{MaxAttempts: 2}, 0, 0, []time.Duration{time.Second}},
		{event.Retries{MaxAttempts: 4, InitialBackoffMS: 20, BackoffPercent: 150, MaxBackoffMS: 40}, 0, 0, []time.Duration{20 * ms, 30 * ms, 40 * ms}},
		{event.Retries{MaxAttempts: 4, InitialBackoffMS: 20, BackoffPercent: 100}, 0, 0, []time.Duration{20 * ms, 20 * ms, 20 * ms}},
		{event.Retries{MaxAttempts: 3, MaxBackoffMS: 1100}, time.Hour, 0, []time.Duration{1100 * ms, 1100 * ms}},
		{event.Retries{MaxAttempts: 3, MaxBackoffMS: 1100}, 0, 0.999999, []time.Duration{1100 * ms, 1100 * ms}},
	} {
		w := newWorld(t)
		w.create(event.Settings{})
		w.submit("run_1", "Go.", func(d *event.RunCreated) { d.Route.Retries = row.pinned })
		w.decide(nil)
		var got []time.Duration
		for range 10 {
			events := w.append(session.Failed(w.s, &session.Answer{}, &llm.Error{Class: llm.Overloaded, RetryAfter: row.after}, w.now, row.jitter)...)
			plan, ok := events[len(events)-1].Data.(*event.RetryScheduled)
			if !ok {
				break
			}
			at, err := event.ParseTime(plan.At)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, at.Sub(w.now).Round(ms))
			w.decide(nil)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%+v, asked to wait %v: %v, want %v", row.pinned, row.after, got, row.want)
		}
	}
}

// What is to stop plans nothing more: no attempt, no repetition of a call. The
// first request to stop says which end it is.
func TestStopPlansNothing(t *testing.T) {
	w := running(t)
	w.append(command("run_1", &event.InterruptRequested{}), command("run_1", &event.CancelRequested{}))
	events := session.Failed(w.s, &session.Answer{}, &llm.Error{Class: llm.Transport}, w.now, 0)
	if len(events) != 1 {
		t.Errorf("the attempt's end is told as %d events", len(events))
	}
	w.append(events...)
	w.decide(nil)
	if last := w.log[len(w.log)-1].Type; last != event.TypeRunInterrupted {
		t.Errorf("the run ends with %s", last)
	}

	w = running(t)
	w.answered(call("pay", `{}`))
	w.decide(nil)
	events = session.ToolEnded(w.s, session.CallIDAt("step_1_1", 1, 0), &session.ToolOutcome{Stopped: true, Unknown: true}, clockOfTests, 0)
	if d, ok := events[0].Data.(*event.ToolInterrupted); !ok || d.Outcome != session.OutcomeUnknown {
		t.Errorf("a stopped call ends as %#v", events[0].Data)
	}
}

// I-14: what is told of a closed call of the open step changes nothing.
func TestAClosedCallStaysClosed(t *testing.T) {
	w := running(t)
	w.answered(call("look", `{}`), call("charge", `{}`))
	w.decide(nil)
	id := session.CallIDAt("step_1_1", 1, 0)
	w.append(session.ToolEnded(w.s, id, &session.ToolOutcome{Output: event.TextContent("a tree")}, clockOfTests, 0)...)
	before := w.s.Clone()
	for _, d := range []event.Data{
		&event.ToolStarted{}, &event.ToolRetrying{Attempt: 2}, &event.ToolCompleted{Output: event.TextContent("late")},
		&event.ToolFailed{Message: event.TextContent("late")}, &event.ToolTimeout{Message: "late"},
		&event.ToolInterrupted{Message: "late", Outcome: session.OutcomeUnknown}, &event.ToolRejected{Message: "late"},
	} {
		e := command("run_1", d)
		e.StepID, e.CallID, e.Seq, e.Epoch = "step_1_1", id, w.s.Head+1, w.s.Epoch
		if err := w.s.Apply(&e); err != nil {
			t.Fatal(err)
		}
		before.Head++
		if !sameState(before, w.s) {
			t.Fatalf("%s changed it to %+v", d.EventType(), w.s.Call(id))
		}
	}
}

// A request to stop a queued run, folded into its origin, leaves a clone alone.
func TestCloneKeepsItsQueue(t *testing.T) {
	w := running(t)
	w.submit("run_2", "Go.", nil)
	clone := w.s.Clone()
	w.append(command("run_2", &event.CancelRequested{}))
	if clone.Queue[0].Stop != nil || w.s.Queue[0].Stop == nil {
		t.Error("the clone's queue is its origin's")
	}
}

// An interrupt that finds its run still queued leaves it there (I-06).
func TestInterruptKeepsTheQueue(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "Go.", nil)
	w.append(command("run_1", &event.InterruptRequested{}))
	if acts := w.decide(nil); acts == nil {
		t.Error("the queued run was stopped")
	}
}

// A request to cancel that came while the run was queued, and is only seen
// once it runs, still counts.
func TestCancelCrossesTheStart(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "Go.", nil)
	start := session.Next(w.s)[0].(session.Append)
	w.append(command("run_1", &event.CancelRequested{Reason: "no"}))
	w.append(start.Events...)
	if _, ok := session.Next(w.s)[0].(session.Abort); !ok {
		t.Errorf("asked for %#v", session.Next(w.s))
	}
}

// A structured output past the limit stands in a blob as its canonical text.
func TestLargeStructuredOutput(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{OutputContract: &event.OutputContract{Schema: []byte(`{"type":"string"}`)}})
	w.submit("run_1", "Go.", nil)
	w.decide(nil)
	big := `"` + strings.Repeat("x", event.InlineLimit) + `"`
	w.answered(text(" " + big))
	w.decide(nil)
	for _, e := range w.log {
		if d, ok := e.Data.(*event.OutputEmitted); ok {
			if d.StructuredOutput != nil || string(w.blobs[d.Content.Ref]) != big || d.OutputKind != event.OutputStructured {
				t.Errorf("%#v", d)
			}
			return
		}
	}
	t.Error("no output")
}

func TestTerminal(t *testing.T) {
	for status, want := range map[string]bool{
		session.StatusQueued: false, session.StatusRunning: false, session.StatusNeedsAttention: false, "": false,
		session.StatusCompleted: true, session.StatusFailed: true, session.StatusInterrupted: true, session.StatusCancelled: true,
	} {
		if session.Terminal(status) != want {
			t.Errorf("%q: terminal %v", status, !want)
		}
	}
}

func TestStepOfCall(t *testing.T) {
	id := session.CallIDAt("step_ab12_7", 3, 4)
	for id, want := range map[event.CallID]event.StepID{
		id: "step_ab12_7", id + "_r_r": "step_ab12_7", "": "", "call_": "", "call_x": "", "step_ab12_7": "",
	} {
		if got := session.StepOfCall(id); got != want {
			t.Errorf("step of %q: %q, want %q", id, got, want)
		}
	}
}

// I-03: of an erased session the log read anew gives the tombstone, in the
// state and in the rows.
func TestErasedLogReadsAsTombstone(t *testing.T) {
	w := running(t)
	w.answered(text("Done."))
	w.decide(nil)
	w.append(command("", &event.SessionErased{Actor: "ann"}))
	for i := range w.log[:len(w.log)-1] {
		w.log[i].Data, w.log[i].Raw = nil, nil
	}
	s := w.refold()
	if s.Status != session.Erased || s.ID != sessionID || s.Active != nil || session.Next(s) != nil {
		t.Errorf("%+v", s)
	}
	rebuilt := tables{}
	if err := rebuilt.exec(session.Rows(w.log)); err != nil {
		t.Fatal(err)
	}
	if rebuilt.String() != w.tables.String() || len(rebuilt["runs"]) != 0 {
		t.Errorf("rebuilt:\n%s\nin place:\n%s", rebuilt, w.tables)
	}
}

// I-20: what a failed attempt had said is no part of the step.
func TestAFailedAttemptSaysNothing(t *testing.T) {
	w := running(t)
	fold := func(d event.Data) {
		e := command("run_1", d)
		e.StepID, e.Seq, e.Epoch = "step_1_1", w.s.Head+1, w.s.Epoch
		if err := w.s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	fold(&event.TextEnded{Content: event.TextContent("half"), Partial: true})
	if parts := w.s.Active.Step.Parts; len(parts) != 0 {
		t.Errorf("a partial text is a part: %+v", parts)
	}
	fold(&event.TextEnded{Content: event.TextContent("whole")})
	fold(&event.ModelCallFailed{Attempt: 1, Class: string(llm.Transport)})
	if parts := w.s.Active.Step.Parts; len(parts) != 0 {
		t.Errorf("the failed attempt left %+v", parts)
	}
}

// Arguments that the tool's schema refuses are kept as the model gave them;
// the call does not run, and the model reads why.
func TestArgumentsThatTheSchemaRefuses(t *testing.T) {
	w := running(t)
	p := call("charge", `{"cents":"five"}`)
	p.Invalid = "$.cents: expected a number, got a string"
	w.answered(p)
	if acts := w.decide(nil); len(acts) != 1 {
		t.Fatalf("asked for %#v", acts)
	}
	said := w.request().Messages[1:]
	if got := said[0].Parts[0]; got.Text != `{"cents":"five"}` {
		t.Errorf("the call is shown as %+v", got)
	}
	if got := said[1].Parts[0]; !got.IsError || !strings.Contains(got.Text, p.Invalid) {
		t.Errorf("its result is %+v", got)
	}
	for _, e := range w.log {
		if e.Type == event.TypeToolStarted {
			t.Error("the call ran")
		}
	}
}

// clockOfTests is when outcomes of tools come in tests.
var clockOfTests = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Calls that a person has repeated get their places like any other: none is
// started that could not begin at once (I-13).
func TestRepeatedCallsHavePlaces(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "Go.", func(c *event.RunCreated) { c.ParallelTools = 2 })
	w.decide(nil)
	var calls []session.OutputPart
	for range 5 {
		calls = append(calls, call("charge", `{}`))
	}
	w.answered(calls...)
	for !w.s.Active.Waiting {
		acts := w.decide(nil)
		if len(acts) > 2 {
			t.Fatalf("%d calls at once", len(acts))
		}
		for _, a := range acts {
			w.append(session.ToolEnded(w.s, a.(session.RunTool).Call, &session.ToolOutcome{Unknown: true}, clockOfTests, 0)...)
		}
	}
	for i := range calls {
		word := command("run_1", &event.AttentionResolved{Resolution: event.ResolveRetry})
		word.CallID = session.CallIDAt("step_1_1", 1, i)
		w.append(word)
	}
	if acts := w.decide(nil); len(acts) != 2 {
		t.Errorf("%d calls are repeated at once", len(acts))
	}
	w.crash()
	w.decide(nil)
	doubt := 0
	for _, c := range w.s.Active.Step.Calls {
		if c.Original != "" && c.InDoubt {
			doubt++
		}
	}
	if doubt != 2 {
		t.Errorf("%d repeated calls are in doubt, 2 had begun", doubt)
	}
}

// What a broken attempt cost is not known, whatever status it broke with; one
// that was refused cost nothing. Counts stay at the largest number.
func TestUsageOfBrokenAttempts(t *testing.T) { // I-29
	for name, c := range map[string]struct {
		err   *llm.Error
		text  string
		known bool
	}{
		"refused":               {&llm.Error{Class: llm.RateLimit, Status: 429}, "", true},
		"server":                {&llm.Error{Class: llm.Server, Status: 502}, "", false},
		"in the stream":         {&llm.Error{Class: llm.Server, Status: 502}, "some", false},
		"in the stream, as 429": {&llm.Error{Class: llm.RateLimit, Status: 429}, "some", false},
		"no status":             {&llm.Error{Class: llm.Transport}, "", false},
	} {
		w := running(t)
		a := &session.Answer{}
		if c.text != "" {
			a.Parts = []session.OutputPart{{Kind: llm.TextEnd, Text: c.text, Open: true}}
		}
		w.append(session.Failed(w.s, a, c.err, clockOfTests, 0)...)
		if known := w.s.Active.Usage != nil; known != c.known {
			t.Errorf("%s: known %v", name, known)
		}
	}
	big := &llm.Usage{Input: 1 << 62}
	if sum := big.Add(big).Add(big); sum.Input != 1<<63-1 {
		t.Errorf("three times 2^62 is %d", sum.Input)
	}
}

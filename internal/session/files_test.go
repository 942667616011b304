package session_test

import (
	"reflect"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// What an owner tells a state of the workspace is recorded by the append that
// follows, and by nothing else: what is stored is at every point a fold of the log.
func TestFilesAreToldAndNotStored(t *testing.T) {
	w := newWorld(t)
	same := func() {
		t.Helper()
		got, err := w.s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		want, err := w.refold().Encode()
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("stored %s\nfolded %s", got, want)
		}
	}
	asks := func(want ...session.Action) {
		t.Helper()
		if got := w.decide(nil); !reflect.DeepEqual(got, want) {
			t.Fatalf("asks for %#v, want %#v", got, want)
		}
		same()
	}
	w.create(event.Settings{})
	w.submit("run_1", "go", nil)
	w.s.AskForFiles(true)
	w.decide(nil)
	w.append(session.Answered(w.s, &session.Answer{Finish: llm.FinishTools, Parts: []session.OutputPart{
		{Kind: llm.ToolCallWhole, Index: 0, Name: "look", Text: "{}"}, {Kind: llm.ToolCallWhole, Index: 1, Name: "note", Text: "{}"},
		{Kind: llm.ToolCallWhole, Index: 2, Name: "charge", Text: "{}"}, {Kind: llm.ToolCallWhole, Index: 3, Name: "note", Text: "{}"},
	}})...)
	step := w.s.Active.Step.ID
	call := func(i int) event.CallID { return session.CallIDAt(step, 1, i) }
	before, after := session.CaptureFiles{Step: step}, session.CaptureFiles{Step: step, After: true}
	run := func(i int) session.Action { return session.RunTool{Call: call(i), Attempt: 1} }
	ended := func(i int) { w.append(session.ToolEnded(w.s, call(i), &session.ToolOutcome{}, w.now, 0)...) }

	// What only reads, and what runs elsewhere, does not wait.
	asks(run(0), run(2), before)
	w.s.FilesCaptured(session.CaptureFiles{Step: "step_1_9"}, session.Captured{}) // of another step: too late
	asks(run(0), run(2), before)
	shot := func(tree string) *event.FileSnapshot { return &event.FileSnapshot{Node: "n", Tree: tree} }
	w.s.FilesCaptured(before, session.Captured{Snapshot: shot("A")})
	same()
	asks(run(0), run(1), run(2)) // the second note waits for the first
	ended(1)
	asks(run(0), run(2), run(3))
	started := 0
	for i := range w.log {
		if d, ok := w.log[i].Data.(*event.ToolStarted); ok && d.Snapshot != nil {
			if started++; w.log[i].CallID != call(1) || d.Snapshot.Tree != "A" {
				t.Errorf("%s starts with %+v", w.log[i].CallID, d.Snapshot)
			}
		}
	}
	if started != 1 {
		t.Errorf("%d starts name a snapshot", started)
	}
	ended(0)
	ended(2)
	ended(3)
	asks(after)

	// Another owner is asked for the same, and one without snapshots for nothing.
	w.s.AskForFiles(true)
	asks(after)
	other := w.s.Clone()
	other.AskForFiles(false)
	if a, ok := session.Next(other)[0].(session.Append); !ok || a.Events[len(a.Events)-1].Data.EventType() == event.TypeRunFailed {
		t.Errorf("without snapshots: %#v", session.Next(other))
	}
	w.s.FilesCaptured(after, session.Captured{Snapshot: shot("B"), Changes: &event.FileChanges{List: []event.FileChange{{Path: "f", Change: event.FileAdded}}}})
	same()
	w.decide(nil)
	same()
	var end *event.StepEnded
	for i := range w.log {
		if d, ok := w.log[i].Data.(*event.StepEnded); ok {
			end = d
		}
	}
	if end == nil || end.Snapshot == nil || end.Snapshot.Tree != "B" || end.Files == nil || end.Files.List[0].Path != "f" {
		t.Errorf("%+v", end)
	}
}

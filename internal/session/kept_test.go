package session_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// An owner folds its drafts before their texts move to the blob store: also
// what stands from before a pause is stored as a fold of the log has it, and is
// counted.
func TestStoredFormOfWhatCameBeforeAPause(t *testing.T) {
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "go", nil)
	w.decide(nil)
	drive := func(drafts []event.Event) { // as the engine does
		ahead := w.s.Clone()
		for i := range drafts {
			e := &drafts[i]
			e.Stream, e.Seq, e.Epoch = sessionID.Stream(), ahead.Head+1, ahead.Epoch
			if err := ahead.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		w.append(drafts...)
		w.s = ahead
	}
	text := strings.Repeat("x", event.InlineLimit+1)
	drive(session.Answered(w.s, &session.Answer{Finish: llm.FinishPause, Parts: []session.OutputPart{{Kind: llm.TextEnd, Text: text}}}))
	next, ok := session.Next(w.s)[0].(session.Append)
	if !ok {
		t.Fatal("the provider is not asked to go on")
	}
	drive(next.Events)
	if w.s.Size() < len(text) {
		t.Errorf("a state that holds a text of %d bytes counts %d", len(text), w.s.Size())
	}
	got, err := w.s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want, err := w.refold().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("stored %.300s\nfolded %.300s", got, want)
	}
}

// What one append holds is bounded, however many calls a provider leaves open
// from pause to pause: an append that the log cannot take would be tried for ever.
func TestHostedCallsLeftOpenAreBounded(t *testing.T) {
	const parts, most = 512, 4096 // of one answer as the engine takes it; of one entry of the log
	w := newWorld(t)
	w.create(event.Settings{})
	w.submit("run_1", "go", nil)
	largest := 0
	took := func(events []event.Event) {
		largest = max(largest, len(events))
	}
	for attempt := 0; ; attempt++ {
		acts := w.decide(func(_ time.Duration, events []event.Event) { took(events) })
		if len(acts) == 0 {
			break
		}
		a := &session.Answer{Finish: llm.FinishPause}
		for i := range parts {
			a.Parts = append(a.Parts, session.OutputPart{
				Kind: llm.HostedCall, Index: i, Name: "web_search", Text: "{}", WireID: fmt.Sprintf("srv_%d_%d", attempt, i),
			})
		}
		if attempt == session.MaxPauses {
			a.Finish = llm.FinishStop
		}
		took(w.append(session.Answered(w.s, a)...))
	}
	if w.s.Active != nil {
		t.Error("the run did not come to its end")
	}
	if largest > most {
		t.Errorf("one append holds %d events", largest)
	}
	requested, ended := 0, 0
	for i := range w.log {
		switch w.log[i].Data.(type) {
		case *event.ToolRequested:
			requested++
		case *event.ToolFailed:
			ended++
		}
	}
	if requested == 0 || requested != ended {
		t.Errorf("%d calls, %d ends", requested, ended) // I-12
	}
}

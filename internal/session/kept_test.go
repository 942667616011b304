package session_test

import (
	"strings"
	"testing"

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

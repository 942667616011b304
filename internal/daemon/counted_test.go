package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/metrics"
)

// answering is a store that gives one answer.
type answering struct {
	Store
	streams []event.Stream
	err     error
}

func (s *answering) Append(context.Context, eventlog.Append) ([]eventlog.Stamp, error) {
	return nil, s.err
}

func (s *answering) Take(context.Context, eventlog.NodeID, eventlog.Kind, int, bool) ([]event.Stream, error) {
	return s.streams, s.err
}

// What the store says of whose a stream is counts, and goes on unchanged. // I-11
func TestCountedStore(t *testing.T) {
	inner := &answering{}
	s := &countedStore{inner, metrics.New(metrics.Config{})}
	for _, err := range []error{
		nil, eventlog.ErrHeadMoved, errors.New("away"), fmt.Errorf("append: %w: handed on", eventlog.ErrFenced),
		&eventlog.HeldError{By: "n"}, fmt.Errorf("append: %w", &eventlog.HeldError{By: "n"}),
	} {
		inner.err = err
		if _, got := s.Append(t.Context(), eventlog.Append{}); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
	inner.err, inner.streams = nil, []event.Stream{"session:a", "session:b"}
	for _, mine := range []bool{false, true} {
		if got, err := s.Take(t.Context(), "n", eventlog.Sessions, 5, mine); err != nil || len(got) != 2 {
			t.Errorf("%v %v", got, err)
		}
	}
	inner.err, inner.streams = eventlog.ErrFenced, nil
	if _, err := s.Take(t.Context(), "n", eventlog.Targets, 5, false); !errors.Is(err, eventlog.ErrFenced) {
		t.Error(err)
	}
	text, err := s.metrics.Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`holdfast_appends_fenced_total{reason="fenced"} 1`, `holdfast_appends_fenced_total{reason="held"} 2`,
		`holdfast_take_calls_total{kind="session",outcome="some"} 2`, `holdfast_streams_taken_total{kind="session"} 2`,
		`holdfast_take_calls_total{kind="target",outcome="failed"} 1`,
	} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

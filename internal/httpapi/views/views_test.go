package views_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
)

// scant is a log that gives a few facts at a time, as one does whose events are large.
type scant struct {
	views.Log
	most, calls int
	err         error
}

func (s *scant) Facts(ctx context.Context, places []eventlog.Place) ([]event.Event, error) {
	s.calls++
	if s.err != nil {
		return nil, s.err
	}
	return s.Log.Facts(ctx, places[:min(len(places), s.most)])
}

// A list of runs is whole, in its order, however few facts the log gives at once,
// and one read where it gives all.
func TestRunsOfAScantLog(t *testing.T) {
	w := apitest.New(t)
	id := w.Session("ann").ID
	for i := range 5 {
		r := w.Submit(id, fmt.Sprint("question ", i))
		if i%2 == 0 {
			w.Finish(&r, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: fmt.Sprint("answer ", i)}})
		}
	}
	rows, _, err := w.Store.Runs(t.Context(), eventlog.RunFilter{}, eventlog.Page{})
	if err != nil || len(rows) != 5 {
		t.Fatalf("%d runs, %v", len(rows), err)
	}
	full := &scant{Log: w.Store, most: eventlog.MaxFacts}
	want, err := views.Runs(t.Context(), full, rows)
	if err != nil || len(want) != 5 || full.calls != 1 {
		t.Fatalf("%d runs in %d reads, %v", len(want), full.calls, err)
	}
	answers := 0
	for i := range want {
		if want[i].ID != string(rows[i].ID) {
			t.Errorf("run %d is %s, want %s", i, want[i].ID, rows[i].ID)
		}
		answers += len(want[i].Outputs)
	}
	if answers != 3 {
		t.Errorf("%d answers, want 3", answers)
	}
	for most := 1; most < 8; most++ {
		got, err := views.Runs(t.Context(), &scant{Log: w.Store, most: most}, rows)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d facts at once: %+v, %v", most, got, err)
		}
		one, err := views.Run(t.Context(), &scant{Log: w.Store, most: most}, &rows[0])
		if err != nil || !reflect.DeepEqual(one, want[0]) {
			t.Errorf("one run, %d facts at once: %+v, %v", most, one, err)
		}
	}
	if _, err := views.Runs(t.Context(), &scant{Log: w.Store, most: 0}, rows); err == nil {
		t.Error("a log that gives nothing is taken for one that goes on")
	}
	// The rows speak of what the log has not: that is not "no such run" (404).
	rows[2].CreatedSeq = 1 << 40
	_, err = views.Runs(t.Context(), w.Store, rows)
	if err == nil || errors.Is(err, eventlog.ErrNotFound) || !strings.Contains(err.Error(), "not in the log") {
		t.Errorf("%v", err)
	}
	for _, refusal := range []error{eventlog.ErrAway, errors.Join(eventlog.ErrClosed, eventlog.ErrNotFound)} {
		if _, err := views.Runs(t.Context(), &scant{Log: w.Store, err: refusal}, rows); !errors.Is(err, refusal) {
			t.Errorf("%v became %v", refusal, err)
		}
	}
}

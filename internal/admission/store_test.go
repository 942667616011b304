package admission_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// full is a store on a full disk: it reads and does not write.
type full struct {
	admission.Store
	err error
}

func (f full) Append(context.Context, eventlog.Append) ([]eventlog.Stamp, error) { return nil, f.err }

// A store that cannot write is no fault of the caller nor a riddle: 503, and
// the cause is for the log alone.
func TestStoreThatCannotWrite(t *testing.T) {
	d := newDesk(t, admission.Limits{})
	s := d.session(&api.CreateSession{})
	set, err := tool.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	for code, cause := range map[string]error{"store_unavailable": errors.New("disk full at /secret/path"), "stopping": eventlog.ErrClosed} {
		a := admission.New(admission.Config{
			Store: full{d.store, cause}, Tools: set, Random: rand.Reader,
			Route: func(string, string) (event.Route, error) {
				return event.Route{Name: "m", Provider: "p", Model: "m"}, nil
			},
		})
		_, _, err := a.Submit(t.Context(), admission.Caller{}, s, &api.SubmitRun{Content: api.Text("work")}, "")
		if e := problem.Of(err); e.Code != code || e.Kind.Status() != 503 || !errors.Is(err, cause) {
			t.Errorf("%v: %+v", cause, e)
		}
		if _, err := a.CreateSession(t.Context(), admission.Caller{}, &api.CreateSession{}); !problem.Is(err, code) {
			t.Errorf("%v: create: %v", cause, err)
		}
	}
}

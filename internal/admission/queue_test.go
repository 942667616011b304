package admission_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// The queue of a session has an end; a known key still finds its run there,
// and other sessions are not touched.
func TestQueueIsBounded(t *testing.T) {
	d := newDesk(t, admission.Limits{QueuedRuns: 2})
	s := d.session(&api.CreateSession{})
	req := &api.SubmitRun{Content: api.Text("work")}
	first := d.submit(s, req, "k", true)
	d.submit(s, req, "", true)
	if _, _, err := d.Submit(t.Context(), admission.Caller{}, s, req, ""); !problem.Is(err, "queue_full") {
		t.Errorf("a third run: %v", err)
	}
	if again := d.submit(s, req, "k", false); again != first {
		t.Errorf("the known key gave %s, not %s", again, first)
	}
	d.submit(d.session(&api.CreateSession{}), req, "", true)
}

package runs_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

// A timeline is told while a run waits, while it runs and after its end, with
// its deliveries from the stream of the target.
func TestTimeline(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) {
		c.Price = func(route string) (timeline.Price, bool) { return timeline.Price{Input: 1e6}, route == "main" }
	})
	s := w.Session("ann")
	run := w.Submit(s.ID, "hello")
	get := func() api.Timeline {
		t.Helper()
		out := apitest.Into[api.Timeline](w.Do("GET", "/v1/runs/"+run.ID+"/timeline", w.Token("reader", "ann"), nil).Want(200))
		sp := out.Totals.Split
		if sum := sp.QueuedMS + sp.ModelMS + sp.ToolsMS + sp.WaitingMS + sp.RetryWaitMS + sp.OverheadMS; sum != out.Totals.WallMS {
			t.Errorf("%+v: the split adds up to %d", out.Totals, sum)
		}
		return out
	}
	if tl := get(); len(tl.Entries) != 1 || tl.Entries[0].Kind != api.EntryQueued || !tl.Entries[0].Open || tl.Status != api.RunQueued || tl.FinishedAt != nil {
		t.Errorf("queued: %+v", tl)
	}
	other := w.Submit(s.ID, "another") // what is of another run does not show
	w.Append(&run, &event.RunStarted{}, &event.StepStarted{Number: 1}, &event.ModelCallStarted{Attempt: 1, Model: "m", Route: "main"})
	if tl := get(); len(tl.Entries) != 3 || !tl.Entries[2].Open || tl.Entries[2].Name != "m" || tl.Status != api.RunRunning || tl.AsOf.Before(tl.SubmittedAt) {
		t.Errorf("running: %+v", tl)
	}
	w.Append(&run, &event.ModelCallCompleted{Attempt: 1, FirstOutputMS: 3, Usage: &event.TokenUsage{Input: 40, Output: 2}}, &event.StepEnded{})
	w.Append(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.TextContent("hi")}, &event.RunCompleted{})
	target := event.TargetIDFor("ann", "webhook", "https://hook.test/")
	body := event.NewBlob(event.SessionID(s.ID), event.BlobDelivery, []byte("body"))
	of := func(run string, d event.Data) event.Event {
		return event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run), Data: d}
	}
	id, foreign := event.DeliveryIDFor(event.RunID(run.ID), target, 1), event.DeliveryIDFor(event.RunID(other.ID), target, 1)
	w.AppendTo(target.Stream(), []event.Blob{body},
		of(other.ID, &event.DeliveryEnqueued{Address: body.Ref, Body: body.Ref, DeliveryID: foreign, Type: "webhook"}),
		of(run.ID, &event.DeliveryEnqueued{Address: body.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"}),
		of(other.ID, &event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: foreign}),
		of(other.ID, &event.DeliveryDelivered{Attempt: 1, DeliveryID: foreign, Status: 200}),
		of(run.ID, &event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: id}),
		of(run.ID, &event.DeliveryAttemptFailed{Attempt: 1, Code: "http_500", DeliveryID: id, Status: 500}),
		of(run.ID, &event.DeliveryAttemptStarted{Attempt: 2, Cycle: 1, DeliveryID: id}),
		of(run.ID, &event.DeliveryDelivered{Attempt: 2, DeliveryID: id, Status: 204}))
	tl := get()
	var kinds []string
	for _, e := range tl.Entries {
		kinds = append(kinds, e.Kind)
		if e.Open {
			t.Errorf("%+v is open", e)
		}
	}
	want := []string{api.EntryQueued, api.EntryStep, api.EntryAttempt, api.EntryDelivery, api.EntryDeliveryAttempt, api.EntryDeliveryAttempt}
	if len(kinds) != len(want) || kinds[3] != want[3] || kinds[5] != want[5] {
		t.Fatalf("%v, want %v", kinds, want)
	}
	if tl.Entries[2].FirstOutputMS != 3 || tl.Entries[2].Cost == nil || *tl.Entries[2].Cost != 40 || *tl.Totals.Cost != 40 || tl.Totals.Usage.Output != 2 {
		t.Errorf("%+v", tl.Entries[2])
	}
	if tl.Entries[4].Class != "http_500" || tl.Entries[5].HTTPStatus != 204 || tl.Entries[3].Status != api.DeliveryDelivered || tl.FinishedAt == nil {
		t.Errorf("%+v", tl.Entries[3:])
	}
	// I-34
	w.Do("GET", "/v1/runs/"+run.ID+"/timeline", w.Token("reader", "ben"), nil).Want(404, "run_not_found")
	w.Do("GET", "/v1/runs/run_none/timeline", w.Admin, nil).Want(404, "run_not_found")
}

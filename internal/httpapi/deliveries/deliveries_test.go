package deliveries_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// filtered is a store that notes by what lists of deliveries are narrowed.
type filtered struct {
	httpapi.Store
	mu      sync.Mutex
	filters []eventlog.DeliveryFilter
}

func (s *filtered) Deliveries(ctx context.Context, f eventlog.DeliveryFilter, p eventlog.Page) ([]eventlog.DeliveryRow, string, error) {
	s.mu.Lock()
	s.filters = append(s.filters, f)
	s.mu.Unlock()
	return s.Store.Deliveries(ctx, f, p)
}

// Deliveries of a run are asked for with its session, which has the index.
func TestDeliveriesAreAskedForBySession(t *testing.T) {
	s := &filtered{}
	w := apitest.New(t, func(c *httpapi.Config) { s.Store, c.Store = c.Store, s })
	ses := w.Session("")
	run := w.Submit(ses.ID, "x")
	dlv := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})
	if got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(200)); len(got.Deliveries) != 1 {
		t.Errorf("%+v", got)
	}
	w.Do("GET", "/v1/runs", w.Admin, nil).Want(200)
	got := apitest.Into[api.List[api.Delivery]](w.Do("GET", "/v1/deliveries?run_id="+run.ID, w.Admin, nil).Want(200)).Items
	if len(got) != 1 || got[0].ID != string(dlv) {
		t.Errorf("%+v", got)
	}
	other := w.Token("reader", "bob")
	for _, path := range []string{"/v1/deliveries?run_id=run_none", "/v1/deliveries?run_id=" + run.ID} {
		token := w.Admin
		if strings.HasSuffix(path, run.ID) {
			token = other // I-34
		}
		if got := apitest.Into[api.List[api.Delivery]](w.Do("GET", path, token, nil).Want(200)).Items; len(got) != 0 {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if len(s.filters) < 3 {
		t.Fatalf("%d lists", len(s.filters))
	}
	for _, f := range s.filters {
		if f.SessionID == "" {
			t.Errorf("a list is narrowed by %+v alone", f)
		}
	}
}

// A person's word ends a delivery; who only reads has none.
func TestResolveDelivery(t *testing.T) {
	w := apitest.New(t)
	ses := w.Session("")
	run := w.Submit(ses.ID, "x")
	id := string(w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}}))
	path := "/v1/deliveries/" + id + "/resolve"
	w.Do("POST", path, w.Token("reader", ""), nil).Want(403, "role_required")
	w.Do("POST", path, w.Token("operator", "bob"), nil).Want(404)
	w.Do("POST", path, w.Admin, `{"cause":"x"}`).Want(400)
	got := apitest.Into[api.Delivery](w.Do("POST", path, w.Admin, api.ResolveDelivery{Reason: "they have it"}).Want(200))
	if got.Status != api.DeliveryResolved {
		t.Errorf("%+v", got)
	}
	w.Do("POST", path, w.Admin, `{"reason":"another"}`).Want(200)
	w.Do("POST", path, w.Admin, nil).Want(400, "invalid_reason")
	if got := apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+id, w.Admin, nil).Want(200)); got.Resolution == nil || got.Resolution.Reason != "they have it" || got.Resolution.Actor == "" {
		t.Errorf("the first reason did not stay: %+v", got.Resolution)
	}
	if got := apitest.Into[api.List[api.Delivery]](w.Do("GET", "/v1/deliveries?status=resolved", w.Admin, nil).Want(200)).Items; len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

package deliveries_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// Every attempt is told, over replays, in pages: those with rows of their own, the
// one by which it was delivered, and the one in flight.
func TestAttempts(t *testing.T) {
	w := apitest.New(t)
	s := apitest.Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, nil).Want(201))
	run := apitest.Into[api.Run](w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"x"}`).Want(202))
	target := event.TargetIDFor("default", "webhook", "https://a.test")
	id := event.DeliveryIDFor(event.RunID(run.ID), target, 1)
	body, said := event.NewBlob(event.SessionID(s.ID), event.BlobDelivery, []byte("body")), event.NewBlob(event.SessionID(s.ID), event.BlobDelivery, []byte("not <now>"))
	put := func(datas ...event.Data) {
		t.Helper()
		for _, d := range datas {
			w.AppendTo(target.Stream(), []event.Blob{body, said}, event.Event{SessionID: event.SessionID(s.ID), UserID: "default", RunID: event.RunID(run.ID), Data: d})
		}
	}
	start := func(n, cycle int) event.Data {
		return &event.DeliveryAttemptStarted{DeliveryID: id, Attempt: n, Cycle: cycle}
	}
	see := func() string {
		t.Helper()
		var whole string
		for limit := 1; limit <= 5; limit++ {
			var got []string
			for cursor := ""; ; {
				page := apitest.Into[api.List[api.Attempt]](w.Do("GET", fmt.Sprintf("/v1/deliveries/%s/attempts?limit=%d&cursor=%s", id, limit, cursor), w.Admin, nil).Want(200))
				if len(page.Items) > limit {
					t.Fatalf("a page of %d holds %d", limit, len(page.Items))
				}
				for _, a := range page.Items {
					got = append(got, fmt.Sprintf("%d %s %s %d %s", a.Number, a.Outcome, a.Code, a.Status, a.Excerpt))
				}
				if cursor = page.NextCursor; cursor == "" {
					break
				}
			}
			if whole = strings.Join(got, "; "); limit > 1 && whole != strings.Join(got, "; ") {
				t.Errorf("pages of %d: %s", limit, whole)
			}
		}
		return whole
	}
	expect := func(want string) {
		t.Helper()
		if got := see(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	put(&event.DeliveryEnqueued{Address: body.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"})
	expect("")
	put(start(1, 1))
	expect("1 in_flight  0 ")
	put(&event.DeliveryAttemptFailed{DeliveryID: id, Attempt: 1, Code: "http_503", Status: 503, Excerpt: said.Ref}, start(2, 2))
	expect("1 failed http_503 503 not <now>; 2 in_flight  0 ")
	put(&event.DeliveryDelivered{DeliveryID: id, Attempt: 2, Status: 200})
	delivered := "1 failed http_503 503 not <now>; 2 delivered  200 "
	expect(delivered)
	put(&event.DeliveryReplayed{DeliveryID: id, Forced: true})
	expect(delivered)
	row, err := w.Store.Delivery(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	third := &event.DeliveryAttemptStarted{DeliveryID: id, Attempt: 3, Cycle: 1, Earlier: &event.EarlierAttempt{Attempt: 2, Status: 200, EndedAt: row.LastAt}}
	put(third)
	expect(delivered + "; 3 in_flight  0 ")
	put(&event.DeliveryAttemptFailed{DeliveryID: id, Attempt: 3, Code: "timeout"})
	expect(delivered + "; 3 failed timeout 0 ")
	put(start(4, 2), &event.DeliveryDelivered{DeliveryID: id, Attempt: 4, Status: 204})
	expect(delivered + "; 3 failed timeout 0 ; 4 delivered  204 ")
	w.Do("GET", "/v1/deliveries/"+string(id)+"/attempts?cursor=nonsense", w.Admin, nil).Want(400, "invalid_cursor")
	w.Do("GET", "/v1/deliveries/dlv_none/attempts", w.Admin, nil).Want(404, "delivery_not_found")
}

// A target tells how it fares; people pause it, resume it and reset it, and say so twice.
func TestTargetsChange(t *testing.T) {
	w := apitest.New(t)
	p := w.Property("ann")
	at := "/v1/targets/" + p.Target
	stream := event.TargetID(p.Target).Stream()
	put := func(datas ...event.Data) {
		t.Helper()
		for _, d := range datas {
			w.AppendTo(stream, nil, event.Event{SessionID: event.SessionID(p.Session), UserID: "ann", RunID: event.RunID(p.Run), Data: d})
		}
	}
	get := func() api.Target {
		t.Helper()
		return apitest.Into[api.Target](w.Do("GET", at, w.Admin, nil).Want(200))
	}
	if got := get(); got.Circuit != api.CircuitClosed || got.Paused != nil || got.LastFailure.Code != "http_500" || got.NextAt != nil || got.Blocked != 0 {
		t.Errorf("%+v", got)
	}
	five := 5
	later := "2099-01-01T00:00:00.000000Z"
	for i := range 3 {
		put(&event.DeliveryEnqueued{DeliveryID: event.DeliveryID(fmt.Sprint("dlv_x", i)), Type: "webhook"})
	}
	before := get().Pending
	first := event.DeliveryID("dlv_x0")
	put(&event.DeliveryAttemptFailed{DeliveryID: first, Attempt: 9, Code: "http_503", Class: "server", Status: 503, RetryAt: later, Failures: &five, HoldUntil: later},
		&event.TargetCircuitOpened{Failures: 5, Opens: 1, Until: later})
	got := get()
	if got.Circuit != api.CircuitOpen || got.Failures != 5 || got.OpenUntil == nil || got.HeldUntil == nil || got.Blocked != before-1 || got.LastFailure.Class != "server" || got.NextAt.Year() != 2099 {
		t.Errorf("%+v", got)
	}
	for i := range 2 {
		got = apitest.Into[api.Target](w.Do("POST", at+"/pause", w.Admin, `{"reason":"it moves"}`).Want(200))
		if got.Unchanged != (i > 0) || got.Paused == nil || got.Paused.Code != event.PausedByRequest || got.Paused.Reason != "it moves" || got.Blocked != before || got.NextAt != nil {
			t.Errorf("%+v %+v", got, got.Paused)
		}
		if got := apitest.Into[api.Target](w.Do("POST", at+"/pause", w.Admin, `{"reason":"again"}`).Want(200)); !got.Unchanged || got.Paused.Reason != "it moves" {
			t.Errorf("paused again: %+v", got)
		}
	}
	if got = apitest.Into[api.Target](w.Do("POST", at+"/reset", w.Admin, nil).Want(200)); got.Paused == nil || got.Circuit != api.CircuitClosed || got.Failures != 0 || got.HeldUntil != nil {
		t.Errorf("%+v", got)
	}
	for i := range 2 {
		if got = apitest.Into[api.Target](w.Do("POST", at+"/resume", w.Admin, `{}`).Want(200)); got.Unchanged != (i > 0) || got.Paused != nil || got.NextAt == nil || got.NextAt.Year() == 2099 {
			t.Errorf("%+v", got)
		}
	}
	events, err := w.Store.Read(t.Context(), stream, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, e := range events[len(events)-3:] {
		types = append(types, string(e.Type))
	}
	if strings.Join(types, " ") != "target.paused target.circuit.closed target.resumed" {
		t.Errorf("the stream ends %v", types)
	}
	w.Do("POST", "/v1/targets/tgt_none/pause", w.Admin, nil).Want(404, "target_not_found")
}

// A target of which the ledger has nothing any more is told of all the same: a pause
// stays, and who ends it is told so.
func TestTargetOfNothing(t *testing.T) {
	w := apitest.New(t)
	p := w.Property("ann")
	at := "/v1/targets/" + p.Target
	w.Do("POST", at+"/pause", w.Admin, `{"reason":"it moves"}`).Want(200)
	w.AppendTo(event.TargetID(p.Target).Stream(), nil, event.Event{UserID: "ann", Data: &event.DeliveryExpired{Deliveries: []event.DeliveryID{event.DeliveryID(p.Delivery)}}})
	got := apitest.Into[api.Target](w.Do("GET", at, w.Admin, nil).Want(200))
	if got.ID != p.Target || got.UserID != "ann" || got.Paused == nil || got.Paused.Reason != "it moves" || got.LastMadeAt != nil || got.Pending != 0 {
		t.Errorf("%+v", got)
	}
	if got = apitest.Into[api.Target](w.Do("POST", at+"/resume", w.Admin, nil).Want(200)); got.Paused != nil {
		t.Errorf("%+v", got)
	}
	w.Do("GET", at, w.Token("reader", "ben"), nil).Want(404, "target_not_found") // I-34
	w.Do("GET", "/v1/targets/tgt_none", w.Admin, nil).Want(404, "target_not_found")
}

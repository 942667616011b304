package deliveries_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// letters makes n dead letters of a user, the oldest first.
func letters(w *apitest.World, user string, n int) (ids []string) {
	w.T.Helper()
	ses := w.Session(user)
	for i := range n {
		run := w.Submit(ses.ID, fmt.Sprint("x", i))
		ids = append(ids, string(w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})))
	}
	return ids
}

// replaysOf counts the replays of a delivery in the log.
func replaysOf(w *apitest.World, id string) (n int) {
	w.T.Helper()
	row, err := w.Store.Delivery(w.T.Context(), event.DeliveryID(id))
	if err != nil {
		w.T.Fatal(err)
	}
	events, err := w.Store.Read(w.T.Context(), row.TargetID.Stream(), 0, 1000)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range events {
		if e.Type == event.TypeDeliveryReplayed && strings.Contains(string(e.Raw), id) {
			n++
		}
	}
	return n
}

// Of twenty replays at once one is made; the others are told so, also with force. // I-24
func TestReplaysAtOnce(t *testing.T) {
	w := apitest.New(t)
	id := letters(w, "", 1)[0]
	path := "/v1/deliveries/" + id + "/replay"
	for _, body := range []string{`{}`, `{"force":true,"reason":"they lost it"}`} {
		before := replaysOf(w, id)
		var mu sync.Mutex
		statuses := map[int]int{}
		var all sync.WaitGroup
		for range 20 {
			req := w.Request("POST", path, w.Admin, body)
			all.Go(func() {
				res, err := w.Server.Client().Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				mu.Lock()
				statuses[res.StatusCode]++
				mu.Unlock()
			})
		}
		all.Wait()
		n := replaysOf(w, id) - before
		if n < 1 || statuses[202] != n || statuses[409] != 20-n || body == `{}` && n != 1 {
			t.Errorf("%s: %d replays, %v", body, n, statuses)
		}
	}
}

// Force overrides that a delivery was replayed, resolved or delivered, and
// nothing else; it is recorded with who and why.
func TestForce(t *testing.T) {
	w := apitest.New(t)
	ids := letters(w, "", 2)
	at := func(i int, what string) string { return "/v1/deliveries/" + ids[i] + "/" + what }
	w.Do("POST", at(0, "replay"), w.Admin, `{"force":true}`).Want(400, "invalid_reason")
	w.Do("POST", at(0, "replay"), w.Admin, `{"reason":"`+strings.Repeat("x", 501)+`"}`).Want(400, "invalid_reason")
	w.Do("POST", at(0, "replay"), w.Admin, `{"reason":"mended"}`).Want(202)
	w.Do("POST", at(0, "replay"), w.Admin, nil).Want(409, "already_replayed")
	if got := w.Audited(); got != "" {
		t.Errorf("a replay of a dead letter is audited: %s", got)
	}
	d := apitest.Into[api.Delivery](w.Do("POST", at(0, "replay"), w.Admin, `{"force":true,"reason":"at once"}`).Want(202))
	if d.Status != api.DeliveryPending || d.Replays != 2 || len(d.ReplayHistory) != 2 || d.ReplayHistory[0].Forced || d.ReplayHistory[0].Reason != "mended" ||
		!d.ReplayHistory[1].Forced || d.ReplayHistory[1].Reason != "at once" {
		t.Errorf("%+v", d)
	}
	w.Do("POST", at(1, "resolve"), w.Admin, `{"reason":"the receiver is gone"}`).Want(200)
	w.Do("POST", at(1, "replay"), w.Admin, nil).Want(409, "delivery_resolved")
	d = apitest.Into[api.Delivery](w.Do("POST", at(1, "replay"), w.Admin, `{"force":true,"reason":"it is back"}`).Want(202))
	if d.Status != api.DeliveryPending || d.Resolution != nil {
		t.Errorf("what is replayed is resolved no more: %+v", d)
	}
	got := w.Audited()
	for _, want := range []string{ids[0], ids[1], `"reason":"at once"`, `"reason":"it is back"`, `"actor":"`} {
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 2 {
			t.Errorf("the audit has not %s: %s", want, got)
		}
	}
	// In flight, nothing overrides.
	row, err := w.Store.Delivery(t.Context(), event.DeliveryID(ids[0]))
	if err != nil {
		t.Fatal(err)
	}
	w.AppendTo(row.TargetID.Stream(), nil, event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID,
		Data: &event.DeliveryAttemptStarted{DeliveryID: row.ID, Attempt: 2, Cycle: 1}})
	w.Do("POST", at(0, "replay"), w.Admin, `{"force":true,"reason":"now"}`).Want(409, "delivery_in_flight")
	w.Do("POST", at(0, "resolve"), w.Admin, `{"reason":"now"}`).Want(409, "delivery_in_flight")
}

// Nothing overrides that the content was erased, or that the address may not be used.
func TestForceHasLimits(t *testing.T) {
	w := apitest.New(t)
	ids := letters(w, "", 2)
	row, err := w.Store.Delivery(t.Context(), event.DeliveryID(ids[0]))
	if err != nil {
		t.Fatal(err)
	}
	blocked := event.NewBlob(row.SessionID, event.BlobDelivery, []byte(`{"type":"webhook","url":"http://blocked.test/"}`))
	target := event.TargetIDFor(row.UserID, "webhook", "http://blocked.test/")
	of := func(d event.Data) event.Event {
		return event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID, Data: d}
	}
	w.AppendTo(target.Stream(), []event.Blob{blocked}, of(&event.DeliveryEnqueued{DeliveryID: "dlv_blocked", Address: blocked.Ref, Body: row.Body, Type: "webhook"}),
		of(&event.DeliveryDeadLettered{DeliveryID: "dlv_blocked", Code: "dial_refused"}))
	w.Do("POST", "/v1/deliveries/dlv_blocked/replay", w.Admin, `{"force":true,"reason":"now"}`).Want(400, "target_not_allowed")
	w.Do("DELETE", "/v1/sessions/"+string(row.SessionID), w.Admin, nil).Want(204)
	for _, id := range ids {
		w.Do("POST", "/v1/deliveries/"+id+"/replay", w.Admin, `{"force":true,"reason":"now"}`).Want(410, "session_erased")
	}
	// In numbers they are skipped, by the job.
	plan := apitest.Into[api.ReplayPlan](w.Do("POST", "/v1/deliveries/replay", w.Admin, `{"dry_run":true,"filter":{"unresolved":true}}`).Want(200))
	if plan.Count != 3 {
		t.Errorf("%+v", plan)
	}
}

// Dry runs write to the log: plans that are open are bounded, by caller too, and one
// that is cancelled, or old, makes room.
func TestOpenPlansAreBounded(t *testing.T) {
	w := apitest.New(t)
	letters(w, "ann", 1)
	const dry = `{"dry_run":true,"filter":{"unresolved":true}}`
	other := w.Token("operator", "ann")
	var own []api.ReplayPlan
	for range 80 {
		own = append(own, apitest.Into[api.ReplayPlan](w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(200)))
	}
	w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(429, "too_many_plans")
	for range 20 {
		w.Do("POST", "/v1/deliveries/replay", other, dry).Want(200)
	}
	w.Do("POST", "/v1/deliveries/replay", other, dry).Want(429, "too_many_plans")
	w.Do("POST", "/v1/jobs/"+own[0].JobID+"/cancel", w.Admin, nil).Want(202)
	w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(200)
	w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(429, "too_many_plans")
	w.Do("POST", "/v1/deliveries/replay", w.Admin, `{"plan_token":"`+own[1].PlanToken+`"}`).Want(202)
	w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(200)
	// Those that expire at once are none.
	w = apitest.New(t, func(c *httpapi.Config) {
		c.Admission = apitest.AdmissionOf(t, c.Store.(*sqlite.Store), admission.Limits{OpenPlans: 1, PlanTime: time.Nanosecond})
	})
	letters(w, "ann", 1)
	for range 3 {
		w.Do("POST", "/v1/deliveries/replay", w.Admin, dry).Want(200)
	}
}

// A dry run shows the exact set, and its token replays exactly that, once.
func TestPlan(t *testing.T) {
	w := apitest.New(t)
	ids := letters(w, "ann", 3)
	plan := func(body string) api.ReplayPlan {
		t.Helper()
		return apitest.Into[api.ReplayPlan](w.Do("POST", "/v1/deliveries/replay", w.Admin, body).Want(200))
	}
	start := func(body string) *apitest.Reply {
		t.Helper()
		return w.Do("POST", "/v1/deliveries/replay", w.Admin, body)
	}
	p := plan(`{"dry_run":true,"filter":{"unresolved":true}}`)
	if fmt.Sprint(p.DeliveryIDs) != fmt.Sprint(ids) || p.Count != 3 || p.Truncated || p.PlanToken == "" || !strings.HasPrefix(p.Digest, "sha256:") || p.ExpiresAt.IsZero() || p.Limit != 10000 {
		t.Errorf("%+v", p)
	}
	for _, id := range ids {
		if n := replaysOf(w, id); n != 0 {
			t.Errorf("a dry run replayed %s", id)
		}
	}
	cut := plan(`{"dry_run":true,"limit":2,"filter":{"error_class":"server","user_id":"ann"}}`)
	if !cut.Truncated || cut.Count != 2 || fmt.Sprint(cut.DeliveryIDs) != fmt.Sprint(ids[:2]) {
		t.Errorf("%+v", cut)
	}
	// The token is the caller's, for what the plan was made with.
	w.Do("POST", "/v1/deliveries/replay", w.Token("operator", ""), `{"plan_token":"`+p.PlanToken+`"}`).Want(400, "invalid_plan_token")
	w.Do("POST", "/v1/deliveries/replay", w.Token("operator", "ann"), `{"plan_token":"`+p.PlanToken+`"}`).Want(400, "invalid_plan_token")
	for body, code := range map[string]string{
		`{"plan_token":"` + p.PlanToken + `x"}`: "invalid_plan_token", `{"plan_token":"` + p.JobID + `"}`: "invalid_plan_token",
		`{"plan_token":"` + p.PlanToken + `","dry_run":true}`: "invalid_body",
	} {
		start(body).Want(400, code)
	}
	for _, body := range []string{`"filter":{"error_class":"server"}`, `"limit":3`, `"force":true,"reason":"x"`, `"reason":"other"`} {
		start(`{"plan_token":"`+p.PlanToken+`",`+body+`}`).Want(409, "plan_mismatch")
	}
	// A set that is not the same any more is not replayed, and the answer says what changed.
	more := letters(w, "ann", 1)[0]
	w.Do("POST", "/v1/deliveries/"+ids[0]+"/resolve", w.Admin, `{"reason":"done by hand"}`).Want(200)
	got := start(`{"plan_token":"`+p.PlanToken+`"}`).Want(409, "plan_drifted")
	if text := string(got.Body); !strings.Contains(text, `{"path":"added","text":"`+more) || !strings.Contains(text, `{"path":"removed","text":"`+ids[0]) {
		t.Errorf("%s", text)
	}
	p = plan(`{"dry_run":true,"filter":{"unresolved":true},"reason":"mended"}`)
	body := `{"plan_token":"` + p.PlanToken + `","filter":{"status":"dead_lettered"},"limit":10000}`
	first := apitest.Into[api.Job](start(body).Want(202))
	again := apitest.Into[api.Job](start(body).Want(202))
	if first.ID != p.JobID || first.Status != api.JobRunning || first.Total != 3 || first.Reason != "mended" || again.ID != first.ID || again.Status != api.JobRunning {
		t.Errorf("%+v\n%+v", first, again)
	}
	if got := w.Audited(); strings.Count(got, "\n") != 1 || !strings.Contains(got, first.ID) || !strings.Contains(got, `"count":3`) {
		t.Errorf("audited: %s", got)
	}
	var listed []string
	cursor := ""
	for range 5 {
		page := apitest.Into[api.List[api.JobDelivery]](w.Do("GET", "/v1/jobs/"+first.ID+"/deliveries?limit=2&cursor="+cursor, w.Admin, nil).Want(200))
		for _, d := range page.Items {
			listed = append(listed, d.DeliveryID)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if fmt.Sprint(listed) != fmt.Sprint([]string{ids[1], ids[2], more}) {
		t.Errorf("listed %v", listed)
	}
	j := apitest.Into[api.Job](w.Do("POST", "/v1/jobs/"+first.ID+"/cancel", w.Admin, `{"reason":"not now"}`).Want(202))
	if j.Status != api.JobCancelling {
		t.Errorf("%+v", j)
	}
	w.Do("POST", "/v1/jobs/"+first.ID+"/cancel", w.Admin, nil).Want(202)
	w.AppendTo(event.JobID(first.ID).Stream(), nil, event.Event{UserID: first.UserID, Data: &event.JobEnded{Status: "completed"}})
	w.Do("POST", "/v1/jobs/"+first.ID+"/cancel", w.Admin, nil).Want(409, "job_state_conflict")
	for status, n := range map[string]int{"": 3, "planned": 2, "running": 0, "completed": 1} {
		if l := apitest.Into[api.List[api.Job]](w.Do("GET", "/v1/jobs?status="+status, w.Admin, nil).Want(200)); len(l.Items) != n {
			t.Errorf("%d jobs are %q, want %d", len(l.Items), status, n)
		}
	}
}

// What is asked for in numbers must be narrowed, and by what is known.
func TestBulkFilter(t *testing.T) {
	w := apitest.New(t)
	letters(w, "ann", 1)
	theirs := letters(w, "ben", 2)
	for body, code := range map[string]string{
		`{}`: "filter_required", `{"filter":{}}`: "filter_required", `{"filter":{"state":"dead"}}`: "invalid_body", `{"filter":{"status":"pending"}}`: "invalid_filter",
		`{"filter":{"status":"resolved"}}`: "invalid_filter", `{"filter":{"status":"resolved"},"force":true}`: "invalid_reason",
		`{"filter":{"status":"resolved","unresolved":true},"force":true,"reason":"x"}`: "invalid_filter", `{"filter":{"error_class":"bad"}}`: "invalid_filter",
		`{"filter":{"unresolved":true},"limit":10001}`: "invalid_limit", `{"filter":{"unresolved":true},"limit":-1}`: "invalid_limit",
		`{"filter":{"unresolved":true},"limit":0}`: "invalid_limit", `{"filter":{"until":"9999-12-31T23:00:00-12:00"}}`: "invalid_filter",
		`{"filter":{"since":"0000-01-01T00:00:00+12:00"},"dry_run":true}`:            "invalid_filter",
		`{"filter":{"since":"2026-01-02T00:00:00Z","until":"2026-01-01T00:00:00Z"}}`: "invalid_filter",
	} {
		w.Do("POST", "/v1/deliveries/replay", w.Admin, body).Want(400, code)
	}
	if list := apitest.Into[api.List[api.Job]](w.Do("GET", "/v1/jobs", w.Admin, nil).Want(200)); len(list.Items) != 0 {
		t.Errorf("what was refused left %+v", list.Items)
	}
	// I-34: a bound token replays what is its own user's.
	bound := w.Token("operator", "ann")
	w.Do("POST", "/v1/deliveries/replay", bound, `{"filter":{"user_id":"ben"}}`).Want(403, "wrong_user")
	for _, body := range []string{`{"filter":{"unresolved":true}}`, `{"filter":{"status":"dead_lettered","session_id":"` + of(w, theirs[0]).SessionID + `"}}`} {
		j := apitest.Into[api.Job](w.Do("POST", "/v1/deliveries/replay", bound, body).Want(202))
		if want := map[bool]int64{true: 0, false: 1}[strings.Contains(body, "session_id")]; j.Total != want || j.UserID != "ann" {
			t.Errorf("%s: %+v", body, j)
		}
	}
	all := apitest.Into[api.Job](w.Do("POST", "/v1/deliveries/replay", w.Admin, `{"filter":{"unresolved":true}}`).Want(202))
	if all.Total != 3 || all.UserID != "" {
		t.Errorf("%+v", all)
	}
	w.Do("GET", "/v1/jobs/"+all.ID, bound, nil).Want(404, "job_not_found")
	// The path of the one beside that of a delivery: other methods are refused as ever.
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		if got := w.Do(method, "/v1/deliveries/replay", w.Admin, nil).Want(405, "method_not_allowed"); got.Header.Get("Allow") != "POST" {
			t.Errorf("%s: Allow is %q", method, got.Header.Get("Allow"))
		}
	}
	w.Do("GET", "/v1/deliveries/replays", w.Admin, nil).Want(404, "delivery_not_found")
}

func of(w *apitest.World, id string) api.Delivery {
	w.T.Helper()
	return apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+id, w.Admin, nil).Want(200))
}

// A run says of how many of its deliveries the ledger does not tell any more.
func TestRunOfExpiredDeliveries(t *testing.T) {
	w := apitest.New(t)
	ses := w.Session("")
	run := w.Submit(ses.ID, "x")
	id := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})
	row, err := w.Store.Delivery(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: row.TargetID.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{UserID: row.UserID, Data: &event.DeliveryExpired{Deliveries: []event.DeliveryID{id}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(200))
	if got.DeliveriesExpired != 1 || len(got.Deliveries) != 0 || len(got.Outputs) != 1 {
		t.Errorf("%+v", got)
	}
	w.Do("GET", "/v1/deliveries/"+string(id), w.Admin, nil).Want(404, "delivery_not_found")
}

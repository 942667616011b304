package httpapi

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
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// letters makes n dead letters of a user, the oldest first.
func (w *world) letters(user string, n int) (ids []string) {
	w.t.Helper()
	ses := w.session(user)
	for i := range n {
		run := w.submit(ses.ID, fmt.Sprint("x", i))
		ids = append(ids, string(w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})))
	}
	return ids
}

// replaysOf counts the replays of a delivery in the log.
func (w *world) replaysOf(id string) (n int) {
	w.t.Helper()
	row, err := w.store.Delivery(w.t.Context(), event.DeliveryID(id))
	if err != nil {
		w.t.Fatal(err)
	}
	events, err := w.store.Read(w.t.Context(), row.TargetID.Stream(), 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range events {
		if e.Type == event.TypeDeliveryReplayed && strings.Contains(string(e.Raw), id) {
			n++
		}
	}
	return n
}

// audited gives the data of what the audit stream holds.
func (w *world) audited() string {
	w.t.Helper()
	events, err := w.store.Read(w.t.Context(), event.AuditStream, 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s %s\n", e.Type, e.Raw)
	}
	return b.String()
}

// Of twenty replays at once one is made; the others are told so, also with force. // I-24
func TestReplaysAtOnce(t *testing.T) {
	w := newWorld(t)
	id := w.letters("", 1)[0]
	path := "/v1/deliveries/" + id + "/replay"
	for _, body := range []string{`{}`, `{"force":true,"reason":"they lost it"}`} {
		before := w.replaysOf(id)
		var mu sync.Mutex
		statuses := map[int]int{}
		var all sync.WaitGroup
		for range 20 {
			req := w.request("POST", path, w.admin, body)
			all.Go(func() {
				res, err := w.server.Client().Do(req)
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
		n := w.replaysOf(id) - before
		if n < 1 || statuses[202] != n || statuses[409] != 20-n || body == `{}` && n != 1 {
			t.Errorf("%s: %d replays, %v", body, n, statuses)
		}
	}
}

// Force overrides that a delivery was replayed, resolved or delivered, and
// nothing else; it is recorded with who and why.
func TestForce(t *testing.T) {
	w := newWorld(t)
	ids := w.letters("", 2)
	at := func(i int, what string) string { return "/v1/deliveries/" + ids[i] + "/" + what }
	w.do("POST", at(0, "replay"), w.admin, `{"force":true}`).want(400, "invalid_reason")
	w.do("POST", at(0, "replay"), w.admin, `{"reason":"`+strings.Repeat("x", 501)+`"}`).want(400, "invalid_reason")
	w.do("POST", at(0, "replay"), w.admin, `{"reason":"mended"}`).want(202)
	w.do("POST", at(0, "replay"), w.admin, nil).want(409, "already_replayed")
	if got := w.audited(); got != "" {
		t.Errorf("a replay of a dead letter is audited: %s", got)
	}
	d := into[api.Delivery](w.do("POST", at(0, "replay"), w.admin, `{"force":true,"reason":"at once"}`).want(202))
	if d.Status != api.DeliveryPending || d.Replays != 2 || len(d.ReplayHistory) != 2 || d.ReplayHistory[0].Forced || d.ReplayHistory[0].Reason != "mended" ||
		!d.ReplayHistory[1].Forced || d.ReplayHistory[1].Reason != "at once" {
		t.Errorf("%+v", d)
	}
	w.do("POST", at(1, "resolve"), w.admin, `{"reason":"the receiver is gone"}`).want(200)
	w.do("POST", at(1, "replay"), w.admin, nil).want(409, "delivery_resolved")
	d = into[api.Delivery](w.do("POST", at(1, "replay"), w.admin, `{"force":true,"reason":"it is back"}`).want(202))
	if d.Status != api.DeliveryPending || d.Resolution != nil {
		t.Errorf("what is replayed is resolved no more: %+v", d)
	}
	got := w.audited()
	for _, want := range []string{ids[0], ids[1], `"reason":"at once"`, `"reason":"it is back"`, `"actor":"`} {
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 2 {
			t.Errorf("the audit has not %s: %s", want, got)
		}
	}
	// In flight, nothing overrides.
	row, err := w.store.Delivery(t.Context(), event.DeliveryID(ids[0]))
	if err != nil {
		t.Fatal(err)
	}
	w.appendTo(row.TargetID.Stream(), nil, event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID,
		Data: &event.DeliveryAttemptStarted{DeliveryID: row.ID, Attempt: 2, Cycle: 1}})
	w.do("POST", at(0, "replay"), w.admin, `{"force":true,"reason":"now"}`).want(409, "delivery_in_flight")
	w.do("POST", at(0, "resolve"), w.admin, `{"reason":"now"}`).want(409, "delivery_in_flight")
}

// Nothing overrides that the content was erased, or that the address may not be used.
func TestForceHasLimits(t *testing.T) {
	w := newWorld(t)
	ids := w.letters("", 2)
	row, err := w.store.Delivery(t.Context(), event.DeliveryID(ids[0]))
	if err != nil {
		t.Fatal(err)
	}
	blocked := event.NewBlob(row.SessionID, event.BlobDelivery, []byte(`{"type":"webhook","url":"http://blocked.test/"}`))
	target := event.TargetIDFor(row.UserID, "webhook", "http://blocked.test/")
	of := func(d event.Data) event.Event {
		return event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID, Data: d}
	}
	w.appendTo(target.Stream(), []event.Blob{blocked}, of(&event.DeliveryEnqueued{DeliveryID: "dlv_blocked", Address: blocked.Ref, Body: row.Body, Type: "webhook"}),
		of(&event.DeliveryDeadLettered{DeliveryID: "dlv_blocked", Code: "dial_refused"}))
	w.do("POST", "/v1/deliveries/dlv_blocked/replay", w.admin, `{"force":true,"reason":"now"}`).want(400, "target_not_allowed")
	w.do("DELETE", "/v1/sessions/"+string(row.SessionID), w.admin, nil).want(204)
	for _, id := range ids {
		w.do("POST", "/v1/deliveries/"+id+"/replay", w.admin, `{"force":true,"reason":"now"}`).want(410, "session_erased")
	}
	// In numbers they are skipped, by the job.
	plan := into[api.ReplayPlan](w.do("POST", "/v1/deliveries/replay", w.admin, `{"dry_run":true,"filter":{"unresolved":true}}`).want(200))
	if plan.Count != 3 {
		t.Errorf("%+v", plan)
	}
}

// Dry runs write to the log: plans that are open are bounded, by caller too, and one
// that is cancelled, or old, makes room.
func TestOpenPlansAreBounded(t *testing.T) {
	w := newWorld(t)
	w.letters("ann", 1)
	const dry = `{"dry_run":true,"filter":{"unresolved":true}}`
	other := w.token("operator", "ann")
	var own []api.ReplayPlan
	for range 80 {
		own = append(own, into[api.ReplayPlan](w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(200)))
	}
	w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(429, "too_many_plans")
	for range 20 {
		w.do("POST", "/v1/deliveries/replay", other, dry).want(200)
	}
	w.do("POST", "/v1/deliveries/replay", other, dry).want(429, "too_many_plans")
	w.do("POST", "/v1/jobs/"+own[0].JobID+"/cancel", w.admin, nil).want(202)
	w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(200)
	w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(429, "too_many_plans")
	w.do("POST", "/v1/deliveries/replay", w.admin, `{"plan_token":"`+own[1].PlanToken+`"}`).want(202)
	w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(200)
	// Those that expire at once are none.
	w = newWorld(t, func(c *Config) {
		c.Admission = admissionOf(t, c.Store.(*sqlite.Store), admission.Limits{OpenPlans: 1, PlanTime: time.Nanosecond})
	})
	w.letters("ann", 1)
	for range 3 {
		w.do("POST", "/v1/deliveries/replay", w.admin, dry).want(200)
	}
}

// A dry run shows the exact set, and its token replays exactly that, once.
func TestPlan(t *testing.T) {
	w := newWorld(t)
	ids := w.letters("ann", 3)
	plan := func(body string) api.ReplayPlan {
		t.Helper()
		return into[api.ReplayPlan](w.do("POST", "/v1/deliveries/replay", w.admin, body).want(200))
	}
	start := func(body string) *reply { t.Helper(); return w.do("POST", "/v1/deliveries/replay", w.admin, body) }
	p := plan(`{"dry_run":true,"filter":{"unresolved":true}}`)
	if fmt.Sprint(p.DeliveryIDs) != fmt.Sprint(ids) || p.Count != 3 || p.Truncated || p.PlanToken == "" || !strings.HasPrefix(p.Digest, "sha256:") || p.ExpiresAt.IsZero() || p.Limit != 10000 {
		t.Errorf("%+v", p)
	}
	for _, id := range ids {
		if n := w.replaysOf(id); n != 0 {
			t.Errorf("a dry run replayed %s", id)
		}
	}
	cut := plan(`{"dry_run":true,"limit":2,"filter":{"error_class":"server","user_id":"ann"}}`)
	if !cut.Truncated || cut.Count != 2 || fmt.Sprint(cut.DeliveryIDs) != fmt.Sprint(ids[:2]) {
		t.Errorf("%+v", cut)
	}
	// The token is the caller's, for what the plan was made with.
	w.do("POST", "/v1/deliveries/replay", w.token("operator", ""), `{"plan_token":"`+p.PlanToken+`"}`).want(400, "invalid_plan_token")
	w.do("POST", "/v1/deliveries/replay", w.token("operator", "ann"), `{"plan_token":"`+p.PlanToken+`"}`).want(400, "invalid_plan_token")
	for body, code := range map[string]string{
		`{"plan_token":"` + p.PlanToken + `x"}`: "invalid_plan_token", `{"plan_token":"` + p.JobID + `"}`: "invalid_plan_token",
		`{"plan_token":"` + p.PlanToken + `","dry_run":true}`: "invalid_body",
	} {
		start(body).want(400, code)
	}
	for _, body := range []string{`"filter":{"error_class":"server"}`, `"limit":3`, `"force":true,"reason":"x"`, `"reason":"other"`} {
		start(`{"plan_token":"`+p.PlanToken+`",`+body+`}`).want(409, "plan_mismatch")
	}
	// A set that is not the same any more is not replayed, and the answer says what changed.
	more := w.letters("ann", 1)[0]
	w.do("POST", "/v1/deliveries/"+ids[0]+"/resolve", w.admin, `{"reason":"done by hand"}`).want(200)
	got := start(`{"plan_token":"`+p.PlanToken+`"}`).want(409, "plan_drifted")
	if text := string(got.body); !strings.Contains(text, `{"path":"added","text":"`+more) || !strings.Contains(text, `{"path":"removed","text":"`+ids[0]) {
		t.Errorf("%s", text)
	}
	p = plan(`{"dry_run":true,"filter":{"unresolved":true},"reason":"mended"}`)
	body := `{"plan_token":"` + p.PlanToken + `","filter":{"status":"dead_lettered"},"limit":10000}`
	first := into[api.Job](start(body).want(202))
	again := into[api.Job](start(body).want(202))
	if first.ID != p.JobID || first.Status != api.JobRunning || first.Total != 3 || first.Reason != "mended" || again.ID != first.ID || again.Status != api.JobRunning {
		t.Errorf("%+v\n%+v", first, again)
	}
	if got := w.audited(); strings.Count(got, "\n") != 1 || !strings.Contains(got, first.ID) || !strings.Contains(got, `"count":3`) {
		t.Errorf("audited: %s", got)
	}
	var listed []string
	cursor := ""
	for range 5 {
		page := into[api.List[api.JobDelivery]](w.do("GET", "/v1/jobs/"+first.ID+"/deliveries?limit=2&cursor="+cursor, w.admin, nil).want(200))
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
	j := into[api.Job](w.do("POST", "/v1/jobs/"+first.ID+"/cancel", w.admin, `{"reason":"not now"}`).want(202))
	if j.Status != api.JobCancelling {
		t.Errorf("%+v", j)
	}
	w.do("POST", "/v1/jobs/"+first.ID+"/cancel", w.admin, nil).want(202)
	w.appendTo(event.JobID(first.ID).Stream(), nil, event.Event{UserID: first.UserID, Data: &event.JobEnded{Status: "completed"}})
	w.do("POST", "/v1/jobs/"+first.ID+"/cancel", w.admin, nil).want(409, "job_state_conflict")
	for status, n := range map[string]int{"": 3, "planned": 2, "running": 0, "completed": 1} {
		if l := into[api.List[api.Job]](w.do("GET", "/v1/jobs?status="+status, w.admin, nil).want(200)); len(l.Items) != n {
			t.Errorf("%d jobs are %q, want %d", len(l.Items), status, n)
		}
	}
}

// What is asked for in numbers must be narrowed, and by what is known.
func TestBulkFilter(t *testing.T) {
	w := newWorld(t)
	w.letters("ann", 1)
	theirs := w.letters("ben", 2)
	for body, code := range map[string]string{
		`{}`: "filter_required", `{"filter":{}}`: "filter_required", `{"filter":{"state":"dead"}}`: "invalid_body", `{"filter":{"status":"pending"}}`: "invalid_filter",
		`{"filter":{"status":"resolved"}}`: "invalid_filter", `{"filter":{"status":"resolved"},"force":true}`: "invalid_reason",
		`{"filter":{"status":"resolved","unresolved":true},"force":true,"reason":"x"}`: "invalid_filter", `{"filter":{"error_class":"bad"}}`: "invalid_filter",
		`{"filter":{"unresolved":true},"limit":10001}`: "invalid_limit", `{"filter":{"unresolved":true},"limit":-1}`: "invalid_limit",
		`{"filter":{"unresolved":true},"limit":0}`: "invalid_limit", `{"filter":{"until":"9999-12-31T23:00:00-12:00"}}`: "invalid_filter",
		`{"filter":{"since":"0000-01-01T00:00:00+12:00"},"dry_run":true}`:            "invalid_filter",
		`{"filter":{"since":"2026-01-02T00:00:00Z","until":"2026-01-01T00:00:00Z"}}`: "invalid_filter",
	} {
		w.do("POST", "/v1/deliveries/replay", w.admin, body).want(400, code)
	}
	if list := into[api.List[api.Job]](w.do("GET", "/v1/jobs", w.admin, nil).want(200)); len(list.Items) != 0 {
		t.Errorf("what was refused left %+v", list.Items)
	}
	// I-34: a bound token replays what is its own user's.
	bound := w.token("operator", "ann")
	w.do("POST", "/v1/deliveries/replay", bound, `{"filter":{"user_id":"ben"}}`).want(403, "wrong_user")
	for _, body := range []string{`{"filter":{"unresolved":true}}`, `{"filter":{"status":"dead_lettered","session_id":"` + w.of(theirs[0]).SessionID + `"}}`} {
		j := into[api.Job](w.do("POST", "/v1/deliveries/replay", bound, body).want(202))
		if want := map[bool]int64{true: 0, false: 1}[strings.Contains(body, "session_id")]; j.Total != want || j.UserID != "ann" {
			t.Errorf("%s: %+v", body, j)
		}
	}
	all := into[api.Job](w.do("POST", "/v1/deliveries/replay", w.admin, `{"filter":{"unresolved":true}}`).want(202))
	if all.Total != 3 || all.UserID != "" {
		t.Errorf("%+v", all)
	}
	w.do("GET", "/v1/jobs/"+all.ID, bound, nil).want(404, "job_not_found")
	// The path of the one beside that of a delivery: other methods are refused as ever.
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		if got := w.do(method, "/v1/deliveries/replay", w.admin, nil).want(405, "method_not_allowed"); got.header.Get("Allow") != "POST" {
			t.Errorf("%s: Allow is %q", method, got.header.Get("Allow"))
		}
	}
	w.do("GET", "/v1/deliveries/replays", w.admin, nil).want(404, "delivery_not_found")
}

func (w *world) of(id string) api.Delivery {
	w.t.Helper()
	return into[api.Delivery](w.do("GET", "/v1/deliveries/"+id, w.admin, nil).want(200))
}

// A run says of how many of its deliveries the ledger does not tell any more.
func TestRunOfExpiredDeliveries(t *testing.T) {
	w := newWorld(t)
	ses := w.session("")
	run := w.submit(ses.ID, "x")
	id := w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})
	row, err := w.store.Delivery(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: row.TargetID.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{UserID: row.UserID, Data: &event.DeliveryExpired{Deliveries: []event.DeliveryID{id}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	got := into[api.Run](w.do("GET", "/v1/runs/"+run.ID, w.admin, nil).want(200))
	if got.DeliveriesExpired != 1 || len(got.Deliveries) != 0 || len(got.Outputs) != 1 {
		t.Errorf("%+v", got)
	}
	w.do("GET", "/v1/deliveries/"+string(id), w.admin, nil).want(404, "delivery_not_found")
}

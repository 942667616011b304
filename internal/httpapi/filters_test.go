package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// listed gives a member of all items of a list, over all its pages of a size.
func listed(w *apitest.World, path, member string, limit int) []string {
	w.T.Helper()
	out := []string{}
	u, err := url.Parse(path)
	if err != nil {
		w.T.Fatal(err)
	}
	q := u.Query()
	q.Set("limit", fmt.Sprint(limit))
	for range 100 {
		u.RawQuery = q.Encode()
		var page struct {
			Items      []map[string]json.RawMessage `json:"items"`
			NextCursor string                       `json:"next_cursor"`
		}
		w.Do("GET", u.String(), w.Admin, nil).Want(200).Into(&page)
		if len(page.Items) > limit {
			w.T.Fatalf("%s: %d items", u, len(page.Items))
		}
		for _, it := range page.Items {
			out = append(out, strings.Trim(string(it[member]), `"`))
		}
		if page.NextCursor == "" {
			return out
		}
		q.Set("cursor", page.NextCursor)
	}
	w.T.Fatalf("%s has no end", path)
	return nil
}

func at(t time.Time) string { return url.QueryEscape(t.Format(time.RFC3339Nano)) }

// Every filter of the lists of rows, in both directions, by pages of one and at once.
func TestFilters(t *testing.T) {
	w := apitest.New(t)
	var ses []api.Session
	for i, body := range []api.CreateSession{{UserID: "ann", ThreadID: "t1"}, {UserID: "ben", ThreadID: "t1"}, {UserID: "ann", ThreadID: "t2"}, {UserID: "ann"}, {UserID: "ann"}} {
		s := apitest.Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, body).Want(201))
		if ses = append(ses, s); i == 4 {
			w.Do("DELETE", "/v1/sessions/"+s.ID, w.Admin, nil).Want(204) // of an erased one no list tells
		}
	}
	w.Do("POST", "/v1/sessions/"+ses[2].ID+"/close", w.Admin, nil).Want(200)
	var runs []api.Run
	for _, s := range []int{0, 0, 1, 3} {
		runs = append(runs, w.Submit(ses[s].ID, "hello"))
	}
	dead := string(w.Finish(&runs[0], &event.OutputEmitted{OutputKind: event.OutputText}))
	w.Append(&runs[2], &event.RunStarted{}, &event.RunFailed{Code: "x"})
	target := event.TargetIDFor("ann", "webhook", "https://other.test/")
	of := func(d event.Data) event.Event {
		return event.Event{SessionID: event.SessionID(ses[0].ID), UserID: "ann", RunID: event.RunID(runs[1].ID), Data: d}
	}
	waiting, tried := event.DeliveryIDFor(event.RunID(runs[1].ID), target, 1), event.DeliveryIDFor(event.RunID(runs[1].ID), target, 2)
	for _, id := range []event.DeliveryID{waiting, tried} {
		w.AppendTo(target.Stream(), nil, of(&event.DeliveryEnqueued{DeliveryID: id, Type: "webhook"}))
	}
	w.AppendTo(target.Stream(), nil, of(&event.DeliveryAttemptStarted{DeliveryID: tried, Attempt: 1}),
		of(&event.DeliveryAttemptFailed{DeliveryID: tried, Attempt: 1, Code: "http_503", Status: 503, RetryAt: "2030-01-01T00:00:00.000000Z"}))
	one := apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+string(waiting), w.Admin, nil).Want(200))

	S := func(list ...int) (ids []string) {
		for _, i := range list {
			ids = append(ids, ses[i].ID)
		}
		return ids
	}
	R := func(list ...int) (ids []string) {
		for _, i := range list {
			ids = append(ids, runs[i].ID)
		}
		return ids
	}
	D := func(list ...string) []string { return list }
	for _, c := range []struct {
		path string
		want []string // oldest first
	}{
		{"/v1/sessions?", S(0, 1, 2, 3)}, {"/v1/sessions?user_id=ben", S(1)}, {"/v1/sessions?status=open", S(0, 1, 3)}, {"/v1/sessions?status=closed", S(2)},
		{"/v1/sessions?thread_id=t1", S(0, 1)}, {"/v1/sessions?thread_id=t1&user_id=ann", S(0)}, {"/v1/sessions?thread_id=none", S()},
		{"/v1/sessions?status=closed&user_id=ben", S()}, {"/v1/sessions?since=" + at(ses[1].CreatedAt), S(1, 2, 3)},
		{"/v1/sessions?until=" + at(ses[1].CreatedAt), S(0)}, {"/v1/sessions?since=" + at(ses[1].CreatedAt) + "&until=" + at(ses[3].CreatedAt), S(1, 2)},
		{"/v1/sessions?since=" + at(ses[1].CreatedAt.Add(1)), S(2, 3)},
		{"/v1/runs?", R(0, 1, 2, 3)}, {"/v1/runs?user_id=ann", R(0, 1, 3)}, {"/v1/runs?session_id=" + ses[0].ID, R(0, 1)}, {"/v1/runs?status=failed", R(2)},
		{"/v1/runs?status=completed", R(0)}, {"/v1/runs?status=queued&user_id=ann", R(1, 3)}, {"/v1/runs?status=queued&session_id=" + ses[0].ID, R(1)},
		{"/v1/runs?since=" + at(runs[1].SubmittedAt) + "&until=" + at(runs[3].SubmittedAt), R(1, 2)}, {"/v1/runs?until=" + at(runs[1].SubmittedAt) + "&session_id=" + ses[0].ID, R(0)},
		{"/v1/deliveries?", D(dead, string(waiting), string(tried))}, {"/v1/deliveries?status=dead_lettered", D(dead)}, {"/v1/deliveries?status=pending", D(string(waiting))},
		{"/v1/deliveries?status=retrying", D(string(tried))}, {"/v1/deliveries?unresolved=true", D(dead)}, {"/v1/deliveries?unresolved=false&error_class=server", D(dead, string(tried))},
		{"/v1/deliveries?unresolved=true&error_class=timeout", D()}, {"/v1/deliveries?error_class=server&status=retrying&user_id=ann", D(string(tried))}, {"/v1/deliveries?status=delivered", D()}, {"/v1/deliveries?run_id=" + runs[1].ID, D(string(waiting), string(tried))},
		{"/v1/deliveries?session_id=" + ses[0].ID, D(dead, string(waiting), string(tried))}, {"/v1/deliveries?target_id=" + string(target), D(string(waiting), string(tried))},
		{"/v1/deliveries?user_id=ben", D()}, {"/v1/deliveries?until=" + at(one.CreatedAt), D(dead)}, {"/v1/deliveries?status=retrying&target_id=" + string(target), D(string(tried))},
		{"/v1/deliveries?run_id=run_none", D()},
	} {
		for _, limit := range []int{1, 100} {
			if got := listed(w, c.path+"&order=asc", "id", limit); !slices.Equal(got, c.want) {
				t.Errorf("%s by %d: %v, want %v", c.path, limit, got, c.want)
			}
			slices.Reverse(c.want)
			if got := listed(w, c.path, "id", limit); !slices.Equal(got, c.want) {
				t.Errorf("%s by %d, newest first: %v, want %v", c.path, limit, got, c.want)
			}
			slices.Reverse(c.want)
		}
	}
}

// Targets are seen by their user only, and narrowed by what waits for them.
func TestTargets(t *testing.T) {
	w := apitest.New(t)
	var ids []string
	for _, user := range []string{"ann", "ben"} {
		run := w.Submit(w.Session(user).ID, "x")
		dlv := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText})
		ids = append(ids, apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+string(dlv), w.Admin, nil).Want(200)).TargetID)
	}
	got := apitest.Into[api.Target](w.Do("GET", "/v1/targets/"+ids[0], w.Token("reader", "ann"), nil).Want(200))
	if got.ID != ids[0] || got.UserID != "ann" || got.DeadLettered != 1 || got.Pending != 0 || got.NextAt != nil || got.LastStatus != "dead_lettered" || got.LastCode != "http_500" {
		t.Errorf("%+v", got)
	}
	w.Do("GET", "/v1/targets/"+ids[1], w.Token("reader", "ann"), nil).Want(404, "target_not_found") // I-34
	w.Do("GET", "/v1/targets?user_id=ben", w.Token("reader", "ann"), nil).Want(403, "wrong_user")
	if list := apitest.Into[api.List[api.Target]](w.Do("GET", "/v1/targets", w.Token("reader", "ann"), nil).Want(200)); len(list.Items) != 1 || list.Items[0].ID != ids[0] {
		t.Errorf("%+v", list)
	}
	slices.Sort(ids)
	for path, want := range map[string][]string{"/v1/targets?": ids, "/v1/targets?status=dead_lettered&type=webhook": ids, "/v1/targets?status=pending": {}, "/v1/targets?type=mail": {}} {
		for _, limit := range []int{1, 10} {
			if got := listed(w, path, "id", limit); !slices.Equal(got, want) {
				t.Errorf("%s by %d: %v, want %v", path, limit, got, want)
			}
		}
	}
	w.Do("GET", "/v1/targets?status=delivered", w.Admin, nil).Want(400, "invalid_parameter")
}

// What is made while somebody pages through a list moves nothing of what is to come.
func TestPagesAreStable(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("ann")
	var want []string
	for range 5 {
		want = append(want, w.Submit(s.ID, "x").ID)
	}
	for _, order := range []string{"asc", "desc"} {
		var got []string
		cursor := ""
		for range len(want) {
			page := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs?limit=1&order="+order+"&cursor="+cursor, w.Admin, nil).Want(200))
			got = append(got, page.Items[0].ID)
			cursor = page.NextCursor
			w.Submit(s.ID, "meanwhile")
		}
		if order == "desc" {
			slices.Reverse(got)
			got, want = got[:1], got[:1] // the newest are those made meanwhile
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", order, got, want)
		}
		other := map[string]string{"asc": "desc", "desc": "asc"}[order]
		w.Do("GET", "/v1/runs?order="+other+"&cursor="+cursor, w.Admin, nil).Want(400, "invalid_cursor")
	}
}

// Events by type, run, session and time: of the feed, of a session, of a run.
func TestEventFilters(t *testing.T) {
	w := apitest.New(t)
	a, b := w.Session("ann"), w.Session("ben")
	r1, r2, r3 := w.Submit(a.ID, "1"), w.Submit(a.ID, "2"), w.Submit(b.ID, "3")
	w.Finish(&r1, &event.OutputEmitted{OutputKind: event.OutputText})
	all := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?limit=1000", w.Admin, nil).Want(200)).Items
	own := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/sessions/"+a.ID+"/events?limit=1000", w.Admin, nil).Want(200)).Items
	ids := func(list []api.Event, pass func(*api.Event) bool) []string {
		out := []string{}
		for i := range list {
			if pass(&list[i]) {
				out = append(out, list[i].ID)
			}
		}
		return out
	}
	middle, mine := all[len(all)/2].Time, own[len(own)/2].Time
	created := func(e *api.Event) bool { return e.Type == "run.created" || e.Type == "run.started" }
	for _, c := range []struct {
		path string
		want []string
	}{
		{"/v1/events?type=run.created,run.started", ids(all, created)},
		{"/v1/events?session_id=" + a.ID, ids(all, func(e *api.Event) bool { return e.SessionID == a.ID })},
		{"/v1/events?run_id=" + r1.ID, ids(all, func(e *api.Event) bool { return e.RunID == r1.ID })},
		{"/v1/events?run_id=" + r2.ID + "&type=run.created", ids(all, func(e *api.Event) bool { return e.RunID == r2.ID && e.Type == "run.created" })},
		{"/v1/events?user_id=ben", ids(all, func(e *api.Event) bool { return e.UserID == "ben" })},
		{"/v1/events?since=" + at(middle), ids(all, func(e *api.Event) bool { return !e.Time.Before(middle) })},
		{"/v1/events?until=" + at(middle), ids(all, func(e *api.Event) bool { return e.Time.Before(middle) })},
		{"/v1/events?since=" + at(middle.Add(time.Hour)), []string{}}, {"/v1/events?until=" + at(middle.Add(-time.Hour)), []string{}},
		{"/v1/sessions/" + a.ID + "/events?type=run.created,run.started", ids(own, created)},
		{"/v1/sessions/" + a.ID + "/events?since=" + at(mine), ids(own, func(e *api.Event) bool { return !e.Time.Before(mine) })},
		{"/v1/sessions/" + a.ID + "/events?until=" + at(mine), ids(own, func(e *api.Event) bool { return e.Time.Before(mine) })},
		{"/v1/runs/" + r1.ID + "/events?type=run.created,run.completed", ids(own, func(e *api.Event) bool {
			return e.RunID == r1.ID && (e.Type == "run.created" || e.Type == "run.completed")
		})},
		{"/v1/runs/" + r3.ID + "/events?type=run.completed", []string{}},
	} {
		for _, limit := range []int{1, 1000} {
			if got := followed(w, c.path, limit); !slices.Equal(got, c.want) {
				t.Errorf("%s by %d: %v, want %v", c.path, limit, got, c.want)
			}
		}
	}
}

// followed reads pages of events, until one is empty and moves no further.
func followed(w *apitest.World, path string, limit int) []string {
	w.T.Helper()
	out := []string{}
	after := ""
	for range 1000 {
		p := path + "&limit=" + fmt.Sprint(limit)
		if after != "" {
			p += "&after=" + after
		}
		page := apitest.Into[api.List[api.Event]](w.Do("GET", p, w.Admin, nil).Want(200))
		for _, e := range page.Items {
			out = append(out, e.ID)
		}
		if page.NextCursor == "" || page.NextCursor == after && len(page.Items) == 0 {
			return out
		}
		after = page.NextCursor
	}
	w.T.Fatalf("%s has no end", path)
	return nil
}

// The inventories are lists like the others.
func TestInventories(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) {
		c.Routes = []api.Route{{Name: "b", Provider: "p"}, {Name: "a", Provider: "q"}, {Name: "c", Provider: "p"}}
		c.Tools = []api.Tool{{Name: "z", Source: "http", SideEffect: "write", InputSchema: api.Raw("{}")}, {Name: "y", Source: "local", SideEffect: "read", InputSchema: api.Raw("{}")}}
	})
	w.Token("reader", "ann")
	w.Token("operator", "ben")
	for _, c := range []struct {
		path, member string
		want         []string
	}{
		{"/v1/routes?", "name", []string{"a", "b", "c"}}, {"/v1/routes?provider=p", "name", []string{"b", "c"}}, {"/v1/routes?provider=none", "name", []string{}},
		{"/v1/tools?", "name", []string{"y", "z"}}, {"/v1/tools?source=http", "name", []string{"z"}}, {"/v1/tools?side_effect=read", "name", []string{"y"}},
		{"/v1/tokens?", "name", []string{"admin-", "reader-ann", "operator-ben"}}, {"/v1/tokens?role=reader", "name", []string{"reader-ann"}},
		{"/v1/tokens?user_id=ben", "name", []string{"operator-ben"}},
	} {
		for _, limit := range []int{1, 100} {
			if got := listed(w, c.path, c.member, limit); !slices.Equal(got, c.want) {
				t.Errorf("%s by %d: %v, want %v", c.path, limit, got, c.want)
			}
		}
	}
	cursor := apitest.Into[api.List[api.Route]](w.Do("GET", "/v1/routes?limit=1", w.Admin, nil).Want(200)).NextCursor
	for _, bad := range []string{"x", "!", cursor} {
		w.Do("GET", "/v1/tools?cursor="+url.QueryEscape(bad), w.Admin, nil).Want(400, "invalid_cursor")
	}
}

// A parameter that a list does not know, and a value that it cannot take, are
// mistakes; the answer names what is known.
func TestBadFilters(t *testing.T) {
	w := apitest.New(t)
	p := apitest.Into[api.Problem](w.Do("GET", "/v1/runs?stauts=failed", w.Admin, nil).Want(400, "unknown_parameter"))
	if !strings.Contains(p.Detail, "it takes cursor, limit, order, session_id, since, status, until, user_id") {
		t.Error(p.Detail)
	}
	if p := apitest.Into[api.Problem](w.Do("GET", "/healthz?x=1", "", nil).Want(400, "unknown_parameter")); !strings.Contains(p.Detail, "it takes none") {
		t.Error(p.Detail)
	}
	for _, path := range []string{
		"/v1/runs?since=yesterday", "/v1/runs?until=2026-11-30", "/v1/runs?since=2026-11-30T12:00:00+01:00", "/v1/runs?since=2026-11-30T12:00:00Z&until=2026-11-30T12:00:00Z",
		"/v1/runs?since=0001-01-01T00:00:00Z", "/v1/runs?order=up", "/v1/runs?status=done", "/v1/runs?limit=0", "/v1/runs?limit=201", "/v1/runs?limit=1&limit=2", "/v1/sessions?status=erased",
		"/v1/deliveries?status=sent", "/v1/deliveries?order=DESC", "/v1/events?type=run.created,", "/v1/events?type=run", "/v1/events?limit=1001", "/v1/events?after=-1",
		"/v1/events?type=" + strings.TrimSuffix(strings.Repeat("run.created,", 17), ","), "/v1/tools?side_effect=big", "/v1/tokens?role=owner", "/v1/events?since=x",
		"/v1/deliveries?until=9999-12-31T23:00:00-12:00", "/v1/jobs?since=1970-01-01T00:00:00%2B12:00",
	} {
		w.Do("GET", path, w.Admin, nil).Want(400, "invalid_parameter")
	}
	w.Do("GET", "/v1/runs?since=2026-11-30T12:00:00%2B01:00", w.Admin, nil).Want(200)
}

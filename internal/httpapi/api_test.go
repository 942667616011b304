package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

func TestSessionLife(t *testing.T) {
	w := newWorld(t)
	made := w.do("POST", "/v1/sessions", w.admin, `{"id":"mine","title":"T","metadata":{"n":9007199254740993},"instructions":"<b> & do"}`).want(201)
	s := into[api.Session](made)
	if made.header.Get("Location") != "/v1/sessions/"+s.ID || made.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", made.header)
	}
	if s.UserID != "default" || s.Alias != "mine" || s.OnDoubt != "ask" || s.MaxTurns != 50 || string(s.Metadata) != `{"n":9007199254740993}` {
		t.Errorf("session %s", made.body)
	}
	if !strings.Contains(string(made.body), "<b> & do") {
		t.Errorf("HTML escapes in %s", made.body)
	}
	w.do("POST", "/v1/sessions", w.admin, `{"id":"mine"}`).want(409, "session_exists")
	w.do("POST", "/v1/sessions", w.admin, nil).want(201) // an empty body is {}

	s = into[api.Session](w.do("PATCH", "/v1/sessions/mine", w.admin, `{"title":null,"max_turns":7,"tools":[]}`).want(200))
	if s.Title != "" || s.MaxTurns != 7 || s.Tools == nil || len(*s.Tools) != 0 || s.Instructions != "<b> & do" {
		t.Errorf("after PATCH: %+v", s)
	}
	s = into[api.Session](w.do("PATCH", "/v1/sessions/mine", w.admin, `{"max_turns":null,"metadata":null,"tools":null}`).want(200))
	if s.MaxTurns != 50 || s.Metadata != nil || s.Tools != nil {
		t.Errorf("after PATCH: %+v", s)
	}
	w.do("PATCH", "/v1/sessions/mine", w.admin, `{}`).want(400, "nothing_to_change")

	for _, c := range []struct{ name, body, shown string }{
		{"input-contract", `{"schema":{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}}`, `"a"`},
		{"output-contract", `{"schema":{"type":"string"},"max_repair_attempts":0}`, `"max_repair_attempts":0`},
		{"route-policy", `{"route":"main","model":"x"}`, `"x"`},
		{"reply-targets", `{"reply_targets":[{"type":"webhook","url":"https://a.test"}]}`, "https://a.test"},
	} {
		path := "/v1/sessions/mine/" + c.name
		if c.name == "reply-targets" {
			w.do("GET", path, w.admin, nil).want(200)
		} else {
			w.do("GET", path, w.admin, nil).want(404, strings.ReplaceAll(c.name, "-", "_")+"_not_set")
		}
		w.do("DELETE", path, w.admin, nil).want(204)
		for _, r := range []*reply{w.do("PUT", path, w.admin, c.body).want(200), w.do("GET", path, w.admin, nil).want(200), w.do("GET", "/v1/sessions/mine", w.admin, nil).want(200)} {
			if !strings.Contains(string(r.body), c.shown) {
				t.Errorf("%s: %s", path, r.body)
			}
		}
		if c.name != "route-policy" { // all of whose members are optional
			w.do("PUT", path, w.admin, "").want(400, "invalid_body")
		}
		w.do("DELETE", path, w.admin, nil).want(204)
	}
	w.do("POST", "/v1/sessions/mine/close", w.admin, nil).want(200)
	if s := into[api.Session](w.do("GET", "/v1/sessions/"+s.ID, w.admin, nil).want(200)); s.Status != "closed" {
		t.Errorf("status %s", s.Status)
	}
	w.do("POST", "/v1/sessions/mine/runs", w.admin, `{"content":"x"}`).want(409, "session_closed")
	w.do("DELETE", "/v1/sessions/mine", w.admin, nil).want(204)
	for _, path := range []string{"", "/events", "/stream", "/input-contract", "/blobs/x"} {
		w.do("GET", "/v1/sessions/"+s.ID+path, w.admin, nil).want(410, "session_erased")
	}
	if list := into[api.List[api.Session]](w.do("GET", "/v1/sessions", w.admin, nil).want(200)); len(list.Items) != 1 {
		t.Errorf("%d sessions are listed", len(list.Items))
	}
}

func TestRunLife(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	made := w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":{"b":1,"a":[2]},"metadata":{"trace":"x"}}`, "Idempotency-Key", "k").want(202)
	run := into[api.Run](made)
	if made.header.Get("Location") != "/v1/runs/"+run.ID || run.Status != "queued" || run.QueuePosition != 1 || string(run.InputMetadata) != `{"trace":"x"}` {
		t.Errorf("run %s", made.body)
	}
	if run.Request.TextPreview != `{"b":1,"a":[2]}` {
		t.Errorf("raw content became %q", run.Request.TextPreview)
	}
	again := w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":{"b":1,"a":[2]}}`, "Idempotency-Key", "k").want(200)
	if into[api.Run](again).ID != run.ID {
		t.Error("the key gave another run")
	}
	w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":"other"}`, "Idempotency-Key", "k").want(409, "idempotency_conflict")
	w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":"other"}`, "Idempotency-Key", "a b").want(400, "invalid_idempotency_key")

	big := `"` + strings.Repeat("x", event.InlineLimit) + `"`
	dlv := w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputStructured, Content: event.Content{Text: big}})
	got := into[api.Run](w.do("GET", "/v1/runs/"+run.ID, w.admin, nil).want(200))
	if !got.Terminal() || string(got.StructuredOutput) != big || got.Outputs[0].Content != big || got.Usage.Input != 40 || got.Counters.Steps != 2 {
		t.Errorf("run %+v", got)
	}
	if len(got.Deliveries) != 1 || got.Deliveries[0].ID != string(dlv) || got.Deliveries[0].LastStatus != 500 {
		t.Errorf("deliveries %+v", got.Deliveries)
	}
	list := into[api.List[api.Run]](w.do("GET", "/v1/runs?session_id="+s.ID+"&status=completed", w.admin, nil).want(200))
	if len(list.Items) != 1 || list.Items[0].Outputs[0].ContentRef != event.RefOf([]byte(big)) || list.Items[0].Outputs[0].Content != "" {
		t.Fatalf("list %+v", list)
	}
	blob := w.do("GET", "/v1/sessions/"+s.ID+"/blobs/"+list.Items[0].Outputs[0].ContentRef, w.admin, nil).want(200)
	if string(blob.body) != big || blob.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(blob.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("blob headers %v", blob.header)
	}
	// I-33: what is sealed, and the body of a delivery, are there for nobody.
	sealed := event.NewBlob(event.SessionID(s.ID), event.BlobSealed, []byte("state"))
	w.appendTo(event.SessionID(s.ID).Stream(), []event.Blob{sealed}, event.Event{SessionID: event.SessionID(s.ID), UserID: "default", Data: &event.SessionClosed{}})
	for _, ref := range []string{sealed.Ref, event.RefOf([]byte("body of " + run.ID)), "sha256:00", "..%2f..%2fetc"} {
		w.do("GET", "/v1/sessions/"+s.ID+"/blobs/"+ref, w.admin, nil).want(404, "blob_not_found")
	}

	w.do("POST", "/v1/runs/"+run.ID+"/cancel", w.admin, nil).want(409, "run_state_conflict")
	w.do("POST", "/v1/runs/"+run.ID+"/attention", w.admin, `{"call_id":"c","resolution":"retry"}`).want(409, "call_not_in_doubt")
	w.do("POST", "/v1/deliveries/"+string(dlv)+"/replay", w.admin, nil).want(202)
	d := into[api.Delivery](w.do("GET", "/v1/deliveries/"+string(dlv), w.admin, nil).want(200))
	if d.Status != api.DeliveryPending || d.Replays != 1 || len(d.ReplayHistory) != 1 || d.ReplayHistory[0].Actor == "" {
		t.Errorf("a delivery that was replayed is %+v", d)
	}
	for status, n := range map[string]int{"": 1, "retrying": 0, "pending": 1, "delivered": 0} {
		list := into[api.List[api.Delivery]](w.do("GET", "/v1/deliveries?run_id="+run.ID+"&status="+status, w.admin, nil).want(200))
		if len(list.Items) != n {
			t.Errorf("%d deliveries are %q, want %d", len(list.Items), status, n)
		}
	}
	w.do("DELETE", "/v1/sessions/"+s.ID, w.admin, nil).want(409, "session_active")
}

func TestNeedsAttention(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run := w.submit(s.ID, "x")
	if into[api.Interrupt](w.do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.admin, nil).want(202)).Requested {
		t.Error("a queued run was interrupted")
	}
	w.append(&run, &event.RunStarted{}, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "call_1", Name: "charge", Reason: "the answer was lost"}}})
	got := into[api.Run](w.do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.admin, nil).want(200)) // at once
	if got.Status != "needs_attention" || len(got.Attention) != 1 || got.Attention[0] != (api.Attention{CallID: "call_1", Tool: "charge", Reason: "the answer was lost"}) {
		t.Fatalf("run %+v", got)
	}
	w.do("POST", "/v1/runs/"+run.ID+"/attention", w.admin, `{"resolution":"retry"}`).want(400, "invalid_body")
	w.do("POST", "/v1/runs/"+run.ID+"/attention", w.admin, `{"call_id":"call_1","resolution":"completed","output":"done"}`).want(202)
	if !into[api.Interrupt](w.do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.admin, `{"reason":"r"}`).want(202)).Requested {
		t.Error("the active run was not interrupted")
	}
	w.append(&run, &event.RunCancelled{Reason: "enough"})
	got = into[api.Run](w.do("POST", "/v1/runs/"+run.ID+"/cancel", w.admin, nil).want(202))
	if got.Error == nil || got.Error.Code != "cancelled" || got.Error.Message != "enough" {
		t.Errorf("error %+v", got.Error)
	}
}

func TestLogAndFeed(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	for i := range 5 {
		run := w.submit(s.ID, fmt.Sprint(i))
		w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "ok"}})
	}
	pages := func(path string, end func(api.List[api.Event]) bool) (all []api.Event) {
		after := "0"
		for range 100 {
			page := into[api.List[api.Event]](w.do("GET", path+"limit=3&after="+after, w.admin, nil).want(200))
			all = append(all, page.Items...)
			if end(page) {
				return all
			}
			after = page.NextCursor
		}
		t.Fatal("no end")
		return nil
	}
	last := func(p api.List[api.Event]) bool { return p.NextCursor == "" }
	events := pages("/v1/sessions/"+s.ID+"/events?", last)
	if len(events) != 1+5*5 {
		t.Errorf("%d events", len(events))
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has seq %d", i, e.Seq)
		}
	}
	run := events[6].RunID
	mine := pages("/v1/runs/"+run+"/events?", last)
	if len(mine) != 5 || mine[0].Type != "run.created" || mine[4].Type != "run.completed" {
		t.Errorf("%d events of the run", len(mine))
	}
	empty := func(p api.List[api.Event]) bool { return len(p.Items) == 0 }
	if all := pages("/v1/events?", empty); len(all) != 26+20 {
		t.Errorf("%d events in the feed", len(all))
	}
	if some := pages("/v1/events?type=run.completed&", empty); len(some) != 5 {
		t.Errorf("%d events in the filtered feed", len(some))
	}
	w.do("GET", "/v1/events?type=no.such", w.admin, nil).want(400, "invalid_parameter")
}

func TestInventoryAndOperations(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Ready = func() error { return fmt.Errorf("secret cause") } })
	if r := into[api.List[api.Route]](w.do("GET", "/v1/routes", w.admin, nil).want(200)); len(r.Items) != 1 || !r.Items[0].Default {
		t.Errorf("routes %+v", r)
	}
	if r := into[api.List[api.Tool]](w.do("GET", "/v1/tools", w.admin, nil).want(200)); len(r.Items) != 1 {
		t.Errorf("tools %+v", r)
	}
	if h := into[api.Health](w.do("GET", "/healthz", "", nil).want(200)); h != (api.Health{Status: "ok", Version: "test"}) {
		t.Errorf("health %+v", h)
	}
	r := w.do("GET", "/readyz", "", nil).want(503, "not_ready")
	if strings.Contains(string(r.body), "secret cause") || r.header.Get("Retry-After") == "" || !strings.Contains(w.logs.String(), "secret cause") {
		t.Errorf("a cause belongs in the log, not in %s", r.body)
	}
	if r := w.do("HEAD", "/healthz", "", nil).want(200); len(r.body) != 0 {
		t.Error("HEAD with a body")
	}
	w.do("GET", "/openapi.json", "", nil).want(200)
}

func TestTokens(t *testing.T) {
	w := newWorld(t)
	made := into[api.Token](w.do("POST", "/v1/tokens", w.admin, `{"name":"ci","role":"operator","user_id":"ann"}`).want(201))
	if !strings.HasPrefix(made.Token, "hf_") || made.UserID != "ann" {
		t.Fatalf("token %+v", made)
	}
	w.do("GET", "/v1/sessions", made.Token, nil).want(200)
	list := w.do("GET", "/v1/tokens", w.admin, nil).want(200)
	if strings.Contains(string(list.body), made.Token) || strings.Contains(string(list.body), tokens.Hash(made.Token)) {
		t.Error("the list shows what is secret")
	}
	w.do("POST", "/v1/tokens", w.admin, `{"role":"root"}`).want(400, "invalid_role")
	w.do("POST", "/v1/tokens", w.admin, `{"role":"public"}`).want(400, "invalid_role")
	w.do("DELETE", "/v1/tokens/"+made.ID, w.admin, nil).want(204)
	w.do("GET", "/v1/sessions", made.Token, nil).want(401, "invalid_token") // at once
	w.do("DELETE", "/v1/tokens/"+made.ID, w.admin, nil).want(404, "token_not_found")

	// An administrator of one user makes nobody stronger than they are.
	ann := w.token("admin", "ann")
	w.do("POST", "/v1/tokens", ann, `{"role":"admin","user_id":"bob"}`).want(403, "wrong_user")
	if made := into[api.Token](w.do("POST", "/v1/tokens", ann, `{"role":"admin"}`).want(201)); made.UserID != "ann" {
		t.Errorf("an unbound token of a bound one: %+v", made)
	}
	if list := into[api.List[api.Token]](w.do("GET", "/v1/tokens", ann, nil).want(200)); len(list.Items) != 2 {
		t.Errorf("%d tokens are seen", len(list.Items))
	}
	all := into[api.List[api.Token]](w.do("GET", "/v1/tokens", w.admin, nil).want(200))
	w.do("DELETE", "/v1/tokens/"+all.Items[0].ID, ann, nil).want(404, "token_not_found")

	// I-33: the text of a token is nowhere: not in the store, not in the log lines.
	files, err := filepath.Glob(filepath.Join(w.dir, "*.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), w.admin[len(w.admin)-64:]) {
			t.Errorf("%s holds a token", f)
		}
	}
	if strings.Contains(w.logs.String(), "hf_") {
		t.Error("the log holds a token")
	}
}

// C53, I-07
func TestEqualSubmissionsAtOnce(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	var wg sync.WaitGroup
	ids, statuses := make([]string, 20), make([]int, 20)
	for i := range ids {
		wg.Go(func() {
			req := w.request("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":"hello"}`, "Idempotency-Key", "k-1")
			res, err := w.server.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			var run api.Run
			if err := json.NewDecoder(res.Body).Decode(&run); err != nil {
				t.Error(err)
			}
			ids[i], statuses[i] = run.ID, res.StatusCode
		})
	}
	wg.Wait()
	slices.Sort(statuses)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("runs %v", ids)
	}
	if statuses[0] != 200 || statuses[18] != 200 || statuses[19] != 202 {
		t.Errorf("statuses %v", statuses)
	}
	if list := into[api.List[api.Event]](w.do("GET", "/v1/events?type=run.created", w.admin, nil)); len(list.Items) != 1 {
		t.Errorf("%d run.created", len(list.Items))
	}
}

func TestLocalDoor(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(w.handler.Local())
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	send := func(token string) int {
		req, err := http.NewRequest("GET", "http://holdfast/v1/tokens", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := send(""); got != 200 {
		t.Errorf("without a token: %d", got)
	}
	if got := send("hf_wrong"); got != 401 {
		t.Errorf("with a wrong token: %d", got)
	}
	if got := send(w.token("reader", "")); got != 403 {
		t.Errorf("with a narrow token: %d", got)
	}
}

package httpapi_test

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
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

func TestSessionLife(t *testing.T) {
	w := apitest.New(t)
	made := w.Do("POST", "/v1/sessions", w.Admin, `{"id":"mine","title":"T","metadata":{"n":9007199254740993},"instructions":"<b> & do"}`).Want(201)
	s := apitest.Into[api.Session](made)
	if made.Header.Get("Location") != "/v1/sessions/"+s.ID || made.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", made.Header)
	}
	if s.UserID != "default" || s.Alias != "mine" || s.OnDoubt != "ask" || s.MaxTurns != 50 || string(s.Metadata) != `{"n":9007199254740993}` {
		t.Errorf("session %s", made.Body)
	}
	if !strings.Contains(string(made.Body), "<b> & do") {
		t.Errorf("HTML escapes in %s", made.Body)
	}
	w.Do("POST", "/v1/sessions", w.Admin, `{"id":"mine"}`).Want(409, "session_exists")
	w.Do("POST", "/v1/sessions", w.Admin, nil).Want(201) // an empty body is {}

	s = apitest.Into[api.Session](w.Do("PATCH", "/v1/sessions/mine", w.Admin, `{"title":null,"max_turns":7,"tools":[]}`).Want(200))
	if s.Title != "" || s.MaxTurns != 7 || s.Tools == nil || len(*s.Tools) != 0 || s.Instructions != "<b> & do" {
		t.Errorf("after PATCH: %+v", s)
	}
	s = apitest.Into[api.Session](w.Do("PATCH", "/v1/sessions/mine", w.Admin, `{"max_turns":null,"metadata":null,"tools":null}`).Want(200))
	if s.MaxTurns != 50 || s.Metadata != nil || s.Tools != nil {
		t.Errorf("after PATCH: %+v", s)
	}
	w.Do("PATCH", "/v1/sessions/mine", w.Admin, `{}`).Want(400, "nothing_to_change")

	for _, c := range []struct{ name, body, shown string }{
		{"input-contract", `{"schema":{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}}`, `"a"`},
		{"output-contract", `{"schema":{"type":"string"},"max_repair_attempts":0}`, `"max_repair_attempts":0`},
		{"route-policy", `{"route":"main","model":"x"}`, `"x"`},
		{"reply-targets", `{"reply_targets":[{"type":"webhook","url":"https://a.test"}]}`, "https://a.test"},
	} {
		path := "/v1/sessions/mine/" + c.name
		if c.name == "reply-targets" {
			w.Do("GET", path, w.Admin, nil).Want(200)
		} else {
			w.Do("GET", path, w.Admin, nil).Want(404, strings.ReplaceAll(c.name, "-", "_")+"_not_set")
		}
		w.Do("DELETE", path, w.Admin, nil).Want(204)
		for _, r := range []*apitest.Reply{w.Do("PUT", path, w.Admin, c.body).Want(200), w.Do("GET", path, w.Admin, nil).Want(200), w.Do("GET", "/v1/sessions/mine", w.Admin, nil).Want(200)} {
			if !strings.Contains(string(r.Body), c.shown) {
				t.Errorf("%s: %s", path, r.Body)
			}
		}
		if c.name != "route-policy" { // all of whose members are optional
			w.Do("PUT", path, w.Admin, "").Want(400, "invalid_body")
		}
		w.Do("DELETE", path, w.Admin, nil).Want(204)
	}
	w.Do("POST", "/v1/sessions/mine/close", w.Admin, nil).Want(200)
	if s := apitest.Into[api.Session](w.Do("GET", "/v1/sessions/"+s.ID, w.Admin, nil).Want(200)); s.Status != "closed" {
		t.Errorf("status %s", s.Status)
	}
	w.Do("POST", "/v1/sessions/mine/runs", w.Admin, `{"content":"x"}`).Want(409, "session_closed")
	w.Do("DELETE", "/v1/sessions/mine", w.Admin, nil).Want(204)
	for _, path := range []string{"", "/events", "/stream", "/input-contract", "/blobs/x"} {
		w.Do("GET", "/v1/sessions/"+s.ID+path, w.Admin, nil).Want(410, "session_erased")
	}
	if list := apitest.Into[api.List[api.Session]](w.Do("GET", "/v1/sessions", w.Admin, nil).Want(200)); len(list.Items) != 1 {
		t.Errorf("%d sessions are listed", len(list.Items))
	}
}

func TestRunLife(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	made := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":{"b":1,"a":[2]},"metadata":{"trace":"x"}}`, "Idempotency-Key", "k").Want(202)
	run := apitest.Into[api.Run](made)
	if made.Header.Get("Location") != "/v1/runs/"+run.ID || run.Status != "queued" || run.QueuePosition != 1 || string(run.InputMetadata) != `{"trace":"x"}` {
		t.Errorf("run %s", made.Body)
	}
	if run.Request.TextPreview != `{"b":1,"a":[2]}` {
		t.Errorf("raw content became %q", run.Request.TextPreview)
	}
	again := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":{"b":1,"a":[2]}}`, "Idempotency-Key", "k").Want(200)
	if apitest.Into[api.Run](again).ID != run.ID {
		t.Error("the key gave another run")
	}
	w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"other"}`, "Idempotency-Key", "k").Want(409, "idempotency_conflict")
	w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"other"}`, "Idempotency-Key", "a b").Want(400, "invalid_idempotency_key")

	big := `"` + strings.Repeat("x", event.InlineLimit) + `"`
	dlv := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputStructured, Content: event.Content{Text: big}})
	got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(200))
	if !got.Terminal() || string(got.StructuredOutput) != big || got.Outputs[0].Content != big || got.Usage.Input != 40 || got.Counters.Steps != 2 {
		t.Errorf("run %+v", got)
	}
	if len(got.Deliveries) != 1 || got.Deliveries[0].ID != string(dlv) || got.Deliveries[0].LastStatus != 500 {
		t.Errorf("deliveries %+v", got.Deliveries)
	}
	list := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs?session_id="+s.ID+"&status=completed", w.Admin, nil).Want(200))
	if len(list.Items) != 1 || list.Items[0].Outputs[0].ContentRef != event.RefOf([]byte(big)) || list.Items[0].Outputs[0].Content != "" {
		t.Fatalf("list %+v", list)
	}
	blob := w.Do("GET", "/v1/sessions/"+s.ID+"/blobs/"+list.Items[0].Outputs[0].ContentRef, w.Admin, nil).Want(200)
	if string(blob.Body) != big || blob.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(blob.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("blob headers %v", blob.Header)
	}
	// I-33: what is sealed, and the body of a delivery, are there for nobody.
	sealed := event.NewBlob(event.SessionID(s.ID), event.BlobSealed, []byte("state"))
	w.AppendTo(event.SessionID(s.ID).Stream(), []event.Blob{sealed}, event.Event{SessionID: event.SessionID(s.ID), UserID: "default", Data: &event.SessionClosed{}})
	for _, ref := range []string{sealed.Ref, event.RefOf([]byte("body of " + run.ID)), "sha256:00", "..%2f..%2fetc"} {
		w.Do("GET", "/v1/sessions/"+s.ID+"/blobs/"+ref, w.Admin, nil).Want(404, "blob_not_found")
	}

	w.Do("POST", "/v1/runs/"+run.ID+"/cancel", w.Admin, nil).Want(409, "run_state_conflict")
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"call_id":"c","resolution":"retry"}`).Want(409, "call_not_in_doubt")
	w.Do("POST", "/v1/deliveries/"+string(dlv)+"/replay", w.Admin, nil).Want(202)
	d := apitest.Into[api.Delivery](w.Do("GET", "/v1/deliveries/"+string(dlv), w.Admin, nil).Want(200))
	if d.Status != api.DeliveryPending || d.Replays != 1 || len(d.ReplayHistory) != 1 || d.ReplayHistory[0].Actor == "" {
		t.Errorf("a delivery that was replayed is %+v", d)
	}
	for status, n := range map[string]int{"": 1, "retrying": 0, "pending": 1, "delivered": 0} {
		list := apitest.Into[api.List[api.Delivery]](w.Do("GET", "/v1/deliveries?run_id="+run.ID+"&status="+status, w.Admin, nil).Want(200))
		if len(list.Items) != n {
			t.Errorf("%d deliveries are %q, want %d", len(list.Items), status, n)
		}
	}
	w.Do("DELETE", "/v1/sessions/"+s.ID, w.Admin, nil).Want(409, "session_active")
}

func TestNeedsAttention(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	if apitest.Into[api.Interrupt](w.Do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.Admin, nil).Want(202)).Requested {
		t.Error("a queued run was interrupted")
	}
	w.Append(&run, &event.RunStarted{}, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "call_1", Name: "charge", Reason: "the answer was lost"}}})
	got := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.Admin, nil).Want(200)) // at once
	if got.Status != "needs_attention" || len(got.Attention) != 1 || got.Attention[0] != (api.Attention{CallID: "call_1", Tool: "charge", Reason: "the answer was lost"}) {
		t.Fatalf("run %+v", got)
	}
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"resolution":"retry"}`).Want(400, "invalid_body")
	w.Do("POST", "/v1/runs/"+run.ID+"/attention", w.Admin, `{"call_id":"call_1","resolution":"completed","output":"done"}`).Want(202)
	if !apitest.Into[api.Interrupt](w.Do("POST", "/v1/sessions/"+s.ID+"/interrupt", w.Admin, `{"reason":"r"}`).Want(202)).Requested {
		t.Error("the active run was not interrupted")
	}
	w.Append(&run, &event.RunCancelled{Reason: "enough"})
	got = apitest.Into[api.Run](w.Do("POST", "/v1/runs/"+run.ID+"/cancel", w.Admin, nil).Want(202))
	if got.Error == nil || got.Error.Code != "cancelled" || got.Error.Message != "enough" {
		t.Errorf("error %+v", got.Error)
	}
}

func TestLogAndFeed(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	for i := range 5 {
		run := w.Submit(s.ID, fmt.Sprint(i))
		w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "ok"}})
	}
	pages := func(path string, end func(api.List[api.Event]) bool) (all []api.Event) {
		after := "0"
		for range 100 {
			page := apitest.Into[api.List[api.Event]](w.Do("GET", path+"limit=3&after="+after, w.Admin, nil).Want(200))
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
	w.Do("GET", "/v1/events?type=no.such", w.Admin, nil).Want(400, "invalid_parameter")
}

func TestInventoryAndOperations(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.Ready = func() error { return fmt.Errorf("secret cause") } })
	if r := apitest.Into[api.List[api.Route]](w.Do("GET", "/v1/routes", w.Admin, nil).Want(200)); len(r.Items) != 1 || !r.Items[0].Default {
		t.Errorf("routes %+v", r)
	}
	if r := apitest.Into[api.List[api.Tool]](w.Do("GET", "/v1/tools", w.Admin, nil).Want(200)); len(r.Items) != 1 {
		t.Errorf("tools %+v", r)
	}
	if h := apitest.Into[api.Health](w.Do("GET", "/healthz", "", nil).Want(200)); h != (api.Health{Status: "ok", Version: "test"}) {
		t.Errorf("health %+v", h)
	}
	r := w.Do("GET", "/readyz", "", nil).Want(503, "not_ready")
	if strings.Contains(string(r.Body), "secret cause") || r.Header.Get("Retry-After") == "" || !strings.Contains(w.Logs.String(), "secret cause") {
		t.Errorf("a cause belongs in the log, not in %s", r.Body)
	}
	if r := w.Do("HEAD", "/healthz", "", nil).Want(200); len(r.Body) != 0 {
		t.Error("HEAD with a body")
	}
	w.Do("GET", "/openapi.json", "", nil).Want(200)
}

func TestTokens(t *testing.T) {
	w := apitest.New(t)
	made := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", w.Admin, `{"name":"ci","role":"operator","user_id":"ann"}`).Want(201))
	if !strings.HasPrefix(made.Token, "hf_") || made.UserID != "ann" {
		t.Fatalf("token %+v", made)
	}
	w.Do("GET", "/v1/sessions", made.Token, nil).Want(200)
	list := w.Do("GET", "/v1/tokens", w.Admin, nil).Want(200)
	if strings.Contains(string(list.Body), made.Token) || strings.Contains(string(list.Body), tokens.Hash(made.Token)) {
		t.Error("the list shows what is secret")
	}
	w.Do("POST", "/v1/tokens", w.Admin, `{"role":"root"}`).Want(400, "invalid_role")
	w.Do("POST", "/v1/tokens", w.Admin, `{"role":"public"}`).Want(400, "invalid_role")
	w.Do("DELETE", "/v1/tokens/"+made.ID, w.Admin, nil).Want(204)
	w.Do("GET", "/v1/sessions", made.Token, nil).Want(401, "invalid_token") // at once
	w.Do("DELETE", "/v1/tokens/"+made.ID, w.Admin, nil).Want(404, "token_not_found")

	// An administrator of one user makes nobody stronger than they are.
	ann := w.Token("admin", "ann")
	w.Do("POST", "/v1/tokens", ann, `{"role":"admin","user_id":"bob"}`).Want(403, "wrong_user")
	if made := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", ann, `{"role":"admin"}`).Want(201)); made.UserID != "ann" {
		t.Errorf("an unbound token of a bound one: %+v", made)
	}
	if list := apitest.Into[api.List[api.Token]](w.Do("GET", "/v1/tokens", ann, nil).Want(200)); len(list.Items) != 2 {
		t.Errorf("%d tokens are seen", len(list.Items))
	}
	all := apitest.Into[api.List[api.Token]](w.Do("GET", "/v1/tokens", w.Admin, nil).Want(200))
	w.Do("DELETE", "/v1/tokens/"+all.Items[0].ID, ann, nil).Want(404, "token_not_found")

	// I-33: the text of a token is nowhere: not in the store, not in the log lines.
	files, err := filepath.Glob(filepath.Join(w.Dir, "*.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), w.Admin[len(w.Admin)-64:]) {
			t.Errorf("%s holds a token", f)
		}
	}
	if strings.Contains(w.Logs.String(), "hf_") {
		t.Error("the log holds a token")
	}
}

// C53, I-07
func TestEqualSubmissionsAtOnce(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	var wg sync.WaitGroup
	ids, statuses := make([]string, 20), make([]int, 20)
	for i := range ids {
		wg.Go(func() {
			req := w.Request("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"hello"}`, "Idempotency-Key", "k-1")
			res, err := w.Server.Client().Do(req)
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
	if list := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil)); len(list.Items) != 1 {
		t.Errorf("%d run.created", len(list.Items))
	}
}

func TestLocalDoor(t *testing.T) {
	w := apitest.New(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(w.Handler.Local())
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
	if got := send(w.Token("reader", "")); got != 403 {
		t.Errorf("with a narrow token: %d", got)
	}
}

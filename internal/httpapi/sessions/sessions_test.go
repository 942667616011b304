package sessions_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
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

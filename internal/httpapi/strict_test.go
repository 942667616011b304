package httpapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// C02, C06: a body is one strict JSON value of the documented form.
func TestStrictBodies(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.MaxBody = 512 << 10 })
	s := w.Session("")
	runs := "/v1/sessions/" + s.ID + "/runs"
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for _, c := range []struct {
		name, body string
		status     int
		code, path string
	}{
		{"two values", `{"content":"a"} {"content":"b"}`, 400, "invalid_json", "$"},
		{"stray bracket", `{"content":"a"}]`, 400, "invalid_json", "$"},
		{"trailing word", `{"content":"a"} thanks`, 400, "invalid_json", "$"},
		{"repeated name", `{"content":"a","content":"b"}`, 400, "invalid_json", "$.content"},
		{"repeated name inside", `{"content":"a","metadata":{"x":{"y":1,"y":2}}}`, 400, "invalid_json", "$.metadata.x.y"},
		{"not UTF-8", "{\"content\":\"\xff\"}", 400, "invalid_json", "$"},
		{"lone surrogate", `{"content":"\ud800"}`, 400, "invalid_json", "$"},
		{"byte order mark", "\ufeff{}", 400, "invalid_json", "$"},
		{"number out of range", `{"content":1e999}`, 400, "invalid_json", "$"},
		{"deep", `{"content":` + deep + `}`, 400, "invalid_json", "$"},
		{"many tokens", `{"content":[` + strings.Repeat("1,", 150_000) + `1]}`, 400, "invalid_json", "$"},
		{"large", `{"content":"` + strings.Repeat("x", 600<<10) + `"}`, 413, "body_too_large", ""},
		{"unknown member", `{"content":"a","contents":"b"}`, 400, "invalid_body", "$.contents"},
		{"other case", `{"Content":"a"}`, 400, "invalid_body", "$.Content"},
		{"unknown member inside", `{"input_items":[{"type":"text","text":"a"},{"type":"text","txt":"b"}]}`, 400, "invalid_body", "$.input_items[1].txt"},
		{"wrong type", `{"content":"a","max_turns":"3"}`, 400, "invalid_body", "$.max_turns"},
		{"fraction", `{"content":"a","max_turns":1.5}`, 400, "invalid_body", "$.max_turns"},
		{"no object", `["content"]`, 400, "invalid_body", "$"},
		{"null", `null`, 400, "invalid_input", ""},
		{"nothing", ``, 400, "invalid_input", ""},
		{"both", `{"content":"a","input_items":[{"type":"text","text":"a"}]}`, 400, "invalid_input", ""},
		{"route", `{"content":"a","route":"nowhere"}`, 400, "unknown_route", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.Do("POST", runs, w.Admin, c.body)
			r.T = t
			r.Want(c.status, c.code)
			p := apitest.Into[api.Problem](r)
			if c.path != "" && (len(p.Issues) != 1 || p.Issues[0].Path != c.path) {
				t.Errorf("issues %v, want path %s", p.Issues, c.path)
			}
			if len(r.Body) > 2000 {
				t.Errorf("a problem of %d bytes", len(r.Body))
			}
		})
	}
	if list := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil)); len(list.Items) != 0 {
		t.Errorf("bad submissions left %d runs", len(list.Items))
	}
	w.Do("POST", runs, w.Admin, `{"content":"still fine"}`).Want(202)
}

// C02: under a contract exactly one value is taken, and canonical.
func TestInputContractOverHTTP(t *testing.T) {
	w := apitest.New(t)
	s := apitest.Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, `{"input_contract":{"schema":{"type":"object","properties":{"subject":{"type":"string"},
		"body":{"type":"string"},"priority":{"type":"string"}},"required":["subject","body"],"additionalProperties":false}}}`).Want(201))
	runs := "/v1/sessions/" + s.ID + "/runs"
	for _, text := range []string{
		`{"subject":"a","body":"b"} {"subject":"c","body":"d"}`,
		`{"subject":"a","body":"b"}]`,
		`{"subject":"a","body":"b"} thanks`,
		"Here you go:\n```json\n{\"subject\":\"a\",\"body\":\"b\"}\n```",
		"```json\n{\"subject\":\"a\",\"body\":\"b\"}\n```\n```json\n{\"subject\":\"c\",\"body\":\"d\"}\n```",
		strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), // C06
	} {
		r := w.Do("POST", runs, w.Admin, api.SubmitRun{Content: api.Text(text)}).Want(400, "input_contract_violated")
		if p := apitest.Into[api.Problem](r); len(p.Issues) != 1 || p.Issues[0].Path == "" {
			t.Errorf("issues %v", p.Issues)
		}
	}
	r := w.Do("POST", runs, w.Admin, `{"content":{"subject":"a","body":7}}`).Want(400, "input_contract_violated")
	if p := apitest.Into[api.Problem](r); p.Issues[0].Path != "$.body" {
		t.Errorf("issues %v", p.Issues)
	}
	run := apitest.Into[api.Run](w.Do("POST", runs, w.Admin, api.SubmitRun{Content: api.Text(" \n\t{\"body\":\"b\" , \"subject\":\"a\"}\n\n")}).Want(202))
	events := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/runs/"+run.ID+"/events", w.Admin, nil).Want(200))
	if !strings.Contains(string(events.Items[0].Data), `"value":{"body":"b","subject":"a"}`) {
		t.Errorf("stored %s", events.Items[0].Data)
	}
	all := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil))
	if len(all.Items) != 1 {
		t.Errorf("%d runs", len(all.Items))
	}
}

// C91: what a web page can send changes nothing.
func TestRequestsOfWebPages(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	host := strings.TrimPrefix(w.Server.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	runs, stream := "/v1/sessions/"+s.ID+"/runs", "/v1/sessions/"+s.ID+"/stream"
	for _, c := range []struct {
		name, method, path, token string
		header                    []string
		status                    int
	}{
		{"simple post", "POST", runs, "", []string{"Origin", "https://evil.test", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, 403},
		{"simple post with a token", "POST", runs, w.Admin, []string{"Origin", "https://evil.test"}, 403},
		{"rebinding", "POST", runs, "", []string{"Host", "evil.test:" + port, "Origin", "http://evil.test:" + port}, 421},
		{"rebinding, stream", "GET", stream, "", []string{"Host", "evil.test:" + port}, 421},
		{"null origin", "POST", runs, w.Admin, []string{"Origin", "null"}, 403},
		{"content type", "POST", runs, w.Admin, []string{"Content-Type", "text/plain"}, 415},
		{"content type of a form", "POST", runs, w.Admin, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"other charset", "POST", runs, w.Admin, []string{"Content-Type", "application/json; charset=latin1"}, 415},
		{"token in the query", "POST", runs + "?token=" + w.Admin, "", nil, 400},
		{"token in the query too", "POST", runs + "?token=" + w.Admin, w.Admin, nil, 400},
		{"token in a form's name", "POST", runs + "?access_token=" + w.Admin, "", nil, 400},
		{"basic", "POST", runs, "", []string{"Authorization", "Basic " + w.Admin}, 401},
		{"command line", "POST", runs, w.Admin, []string{"Host", "localhost:" + port}, 202},
		{"charset", "POST", runs, w.Admin, []string{"Content-Type", "application/json; charset=UTF-8"}, 202},
		{"own origin", "POST", runs, w.Admin, []string{"Origin", "http://" + host}, 202},
	} {
		t.Run(c.name, func(t *testing.T) {
			var body any
			if c.method == "POST" {
				body = `{"content":"x"}`
			}
			r := w.Do(c.method, c.path, c.token, body, c.header...)
			if r.T = t; r.Status != c.status {
				t.Errorf("status %d, want %d: %s", r.Status, c.status, r.Body)
			}
			if r.Status == 401 && !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Error("401 without WWW-Authenticate")
			}
			if r.Header.Get("Access-Control-Allow-Origin") != "" || r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", r.Header)
			}
			if strings.Contains(string(r.Body), w.Admin) {
				t.Error("the answer holds the token")
			}
		})
	}
	if list := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil)); len(list.Items) != 3 {
		t.Errorf("%d runs, want those of the three good requests", len(list.Items))
	}
}

func TestRefusals(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/", 404, "not_found"},
		{"GET", "/v1/nothing", 404, "not_found"},
		{"GET", "/v1/sessions/none", 404, "session_not_found"},
		{"GET", "/v1/sessions/none?user_id=x%00", 400, "invalid_user_id"},
		{"GET", "/v1/runs/run_none", 404, "run_not_found"},
		{"GET", "/v1/runs/run_none?wait=60s", 404, "run_not_found"},
		{"GET", "/v1/deliveries/dlv_none", 404, "delivery_not_found"},
		{"DELETE", "/v1/runs/x", 405, "method_not_allowed"},
		{"OPTIONS", "/v1/sessions", 405, "method_not_allowed"},
		{"GET", "/v1/runs?limit=0", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=201", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=+5", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=5&limit=6", 400, "invalid_parameter"},
		{"GET", "/v1/runs?status=odd", 400, "invalid_parameter"},
		{"GET", "/v1/runs?stauts=failed", 400, "unknown_parameter"},
		{"GET", "/v1/runs?a=%zz", 400, "invalid_parameter"},
		{"GET", "/v1/runs?cursor=x", 400, "invalid_cursor"},
		{"GET", "/v1/runs/x?wait=61s", 400, "invalid_parameter"},
		{"GET", "/v1/runs/x?wait=-1s", 400, "invalid_parameter"},
		{"GET", "/v1/runs/x?wait=soon", 400, "invalid_parameter"},
		{"GET", "/v1/sessions/" + s.ID + "/events?after=-1", 400, "invalid_parameter"},
		{"GET", "/v1/events?after=x", 400, "invalid_parameter"},
	} {
		r := w.Do(c.method, c.path, w.Admin, nil)
		t.Run(c.method+c.path, func(t *testing.T) {
			r.T = t
			r.Want(c.status, c.code)
			if c.status == 405 && r.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	if allow := w.Do("PUT", "/v1/sessions/x", "", nil).Want(405).Header.Get("Allow"); allow != "DELETE, GET, HEAD, PATCH" {
		t.Errorf("Allow: %s", allow)
	}
	// Our own fault: logged, not shown.
	if err := w.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Do("GET", "/v1/runs/x", w.Admin, nil).Want(503, "stopping")
}

// A body that does not come holds nothing up for ever.
func TestBodyThatDoesNotCome(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	r, end := io.Pipe()
	defer end.Close()
	req := w.Request("POST", "/v1/sessions", w.Admin, `{}`)
	req.Body, req.ContentLength = r, 100
	res, err := w.Server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", res.StatusCode)
	}
	// The deadline is of the body alone: what takes longer afterwards goes on.
	run := w.Submit(w.Session("").ID, "x")
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=60ms", w.Admin, nil).Want(200)
}

// Who names a member that is not known is told those that are, of the object it stands in.
func TestUnknownMembers(t *testing.T) {
	w := apitest.New(t)
	for body, says := range map[string]string{
		`{"alias":"x"}`: "$.alias is not a member that is known here; there are history_limit, id, ",
		`{"reply_targets":[{"type":"webhook","uri":"x"}]}`: "$.reply_targets[0].uri is not a member that is known here; there are folder, format, ",
	} {
		r := w.Do("POST", "/v1/sessions", w.Admin, body).Want(400, "invalid_body")
		if !strings.Contains(string(r.Body), says) {
			t.Errorf("%s: %s", body, r.Body)
		}
	}
}

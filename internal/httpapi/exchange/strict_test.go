package exchange_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
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

// FuzzBodies feeds the body of each operation that takes one with anything: it is read
// or refused as the caller's mistake.
func FuzzBodies(f *testing.F) {
	var types []reflect.Type
	for _, rt := range httpapi.Operations() {
		if rt.Body != nil {
			types = append(types, rt.Body)
		}
	}
	for i := range types {
		f.Add(byte(i), `{}`)
		f.Add(byte(i), `{"id":"a","user_id":"u","reply_targets":[{"type":"webhook","url":"https://a.test/","headers":{"a":"b"}}],"input_contract":{"schema":{}},"tools":["x"],"max_turns":1e2,"metadata":{"a":null}}`)
		f.Add(byte(i), `{"role":"reader","name":"n","force":true,"reason":"\ud800","call_id":"c","resolution":"retry","output":"o"}`)
	}
	f.Fuzz(func(t *testing.T, which byte, body string) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		x := exchange.Exchange{Config: &exchange.Config{MaxBody: 1 << 16}, R: r, W: httptest.NewRecorder()}
		err := x.Read(reflect.New(types[int(which)%len(types)]).Interface())
		if err == nil {
			return
		}
		p := exchange.ProblemOf(err)
		if p.Status < 400 || p.Status >= 500 || !utf8.ValidString(p.Detail) || len(p.Detail) > 2008 {
			t.Fatalf("%q: %d %q", body, p.Status, p.Detail)
		}
	})
}

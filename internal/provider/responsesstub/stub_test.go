package responsesstub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

const (
	user = `{"role":"user","content":"x"}`
	tool = `{"type":"function","name":"f","parameters":{"type":"object","properties":{}},"strict":false}`
	call = `{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}`
	out  = `{"type":"function_call_output","call_id":"c","output":"r"}`
)

func post(s *Stub, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/responses", strings.NewReader(body)))
	return w
}

// Each rule of the vendor is enforced, and what keeps them is let through.
func TestRules(t *testing.T) {
	with := func(rest string, items ...string) string {
		return `{"model":"m","input":[` + strings.Join(items, ",") + `]` + rest + `}`
	}
	format := func(f string) string { return `,"text":{"format":` + f + `}` }
	said := func(content string) string { return `{"type":"message","role":"assistant","content":` + content + `}` }
	given := func(content string) string { return `{"type":"message","role":"user","content":[` + content + `]}` }
	strict := `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`
	tests := []struct{ name, body, want string }{
		{"good", with("", user), ""},
		{"good text", `{"model":"m","input":"hello"}`, ""},
		{"good with everything", with(`,"instructions":"s","tools":[`+tool+`,{"type":"web_search"}],"tool_choice":"auto","parallel_tool_calls":false,"stream":true,"store":false,`+
			`"include":["reasoning.encrypted_content"],"reasoning":{"effort":"low","summary":"auto"},"max_output_tokens":16,"prompt_cache_key":"k","stream_options":{"include_obfuscation":false}`,
			user, call, out, said(`"y"`), said(`[{"type":"output_text","text":"y","annotations":[]}]`), said(`[{"type":"refusal","refusal":"y"}]`)), ""},
		{"good strict tool", with(`,"tools":[{"type":"function","name":"f","parameters":`+strict+`}]`, user), ""},
		{"good format", with(format(`{"type":"json_schema","name":"a","strict":true,"schema":`+strict+`}`), user), ""},
		{"good JSON mode", with(format(`{"type":"json_object"}`), `{"role":"developer","content":"Answer in JSON"}`), ""},
		{"good media", with("", given(`{"type":"input_image","image_url":"data:image/png;base64,aGk=","detail":"auto"},{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,aGk="}`)), ""},
		{"good history without tools", with("", user, call, out), ""},
		{"no JSON", `{`, "could not parse"},
		{"repeated name", `{"model":"m","model":"m","input":"x"}`, "could not parse"},
		{"no object", `[]`, "expected an object"},
		{"no model", `{"input":"x"}`, "Missing required parameter: 'model'"},
		{"empty model", `{"model":"","input":"x"}`, "model parameter"},
		{"no input", `{"model":"m"}`, "Missing required parameter: 'input'"},
		{"empty input", with(""), "must be provided"},
		{"odd input", `{"model":"m","input":7}`, "one of a string or array"},
		{"unknown field", with(`,"messages":[]`, user), "Unknown parameter: 'messages'"},
		{"wrong type", with(`,"instructions":7`, user), "Invalid type for 'instructions': expected a string, but got a number"},
		{"unknown field of an item", with("", `{"role":"user","content":"x","name":"y"}`), "Unknown parameter: 'input[0].name'"},
		{"unknown item", with("", `{"type":"tool_result"}`), "Invalid value: 'tool_result'"},
		{"no role", with("", `{"type":"message","content":"x"}`), "'input[0].role'"},
		{"odd role", with("", `{"role":"tool","content":"x"}`), "Invalid value: 'tool'"},
		{"no content", with("", `{"role":"user","content":""}`), "empty"},
		{"odd content", with("", `{"role":"user","content":7}`), "one of a string or array"},
		{"text of the other side", with("", said(`[{"type":"input_text","text":"x"}]`)), "'output_text', 'refusal'"},
		{"text of the other side, user", with("", given(`{"type":"output_text","text":"x"}`)), "'input_text'"},
		{"phase of a user", with("", `{"role":"user","content":"x","phase":"commentary"}`), "phase"},
		{"odd phase", with("", `{"role":"assistant","content":"x","phase":"y"}`), "'commentary'"},
		{"odd message id", with("", `{"role":"assistant","content":"x","id":"y"}`), "begins with 'msg'"},
		{"no base64", with("", given(`{"type":"input_image","image_url":"aGk="}`)), "base64"},
		{"odd picture", with("", given(`{"type":"input_image","image_url":"data:image/bmp;base64,aGk="}`)), "'image/png'"},
		{"odd file", with("", given(`{"type":"input_file","filename":"x","file_data":"data:image/png;base64,aGk="}`)), "'application/pdf'"},
		{"no file name", with("", given(`{"type":"input_file","file_data":"data:application/pdf;base64,aGk="}`)), "filename"},
		{"no output", with("", user, call), "No tool output found for function call c"},
		{"no call", with("", user, out), "No tool call found"},
		{"output before the call", with("", out, call), "No tool call found"},
		{"two outputs", with("", call, out, out), "No tool call found"},
		{"one id twice", with("", call, out, call, out), "stands twice"},
		{"long id", with("", strings.ReplaceAll(call+","+out, `"c"`, `"`+strings.Repeat("c", 65)+`"`)), "string too long"},
		{"arguments no object", with("", strings.Replace(call, `"{}"`, `"[]"`, 1), out), "no JSON object"},
		{"odd called name", with("", strings.Replace(call, `"f"`, `"a.b"`, 1), out), "pattern"},
		{"odd call id", with("", strings.Replace(call, `{`, `{"id":"x",`, 1), out), "begins with 'fc'"},
		{"empty output", with("", call, strings.Replace(out, `"r"`, `""`, 1)), "empty"},
		{"thought without a seal", with("", `{"type":"reasoning","id":"rs_1","summary":[]}`, said(`"y"`)), "not found"},
		{"thought not ours", with("", `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}`, said(`"y"`)), "could not be verified"},
		{"thought without a summary", with("", `{"type":"reasoning","id":"rs_1","content":[{"type":"reasoning_text","text":"x"}]}`, said(`"y"`)), "'input[0].summary'"},
		{"thought without an id", with("", `{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"x"}]}`, said(`"y"`)), "'input[0].id'"},
		{"thought with a null status", with("", `{"type":"reasoning","id":"rs_1","status":null,"summary":[],"content":[{"type":"reasoning_text","text":"x"}]}`, said(`"y"`)), "input[0].status"},
		{"thought alone", with("", `{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"x"}]}`), "required following item"},
		{"thought before a user", with("", `{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"x"}]}`, user), "required following item"},
		{"reference", with("", `{"type":"item_reference","id":"msg_1"}`), "not found"},
		{"hosted item not ours", with("", user, `{"type":"web_search_call","id":"ws_1","status":"completed","action":{}}`), "not found"},
		{"an earlier answer", with(`,"previous_response_id":"resp_1"`, user), "nothing is stored"},
		{"choice without tools", with(`,"tool_choice":"none"`, user), "tool_choice"},
		{"parallel without tools", with(`,"parallel_tool_calls":false`, user), "parallel_tool_calls"},
		{"options without a stream", with(`,"stream_options":{}`, user), "stream_options"},
		{"tool twice", with(`,"tools":[`+tool+`,`+tool+`]`, user), "stands twice"},
		{"tool name", with(`,"tools":[`+strings.Replace(tool, `"f"`, `"a.b"`, 1)+`]`, user), "pattern"},
		{"tool of the other API", with(`,"tools":[{"type":"function","function":{"name":"f"}}]`, user), "Unknown parameter: 'tools[0].function'"},
		{"strict by default", with(`,"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}]`, user), "Invalid schema for function 'f'"},
		{"tool schema", with(`,"tools":[{"type":"function","name":"f","parameters":{"type":"array"},"strict":false}]`, user), "Invalid schema for function 'f'"},
		{"unknown tool", with(`,"tools":[{"type":"teleport"}]`, user), "Invalid value: 'teleport'"},
		{"hosted tool without its needs", with(`,"tools":[{"type":"file_search"}]`, user), "vector_store_ids"},
		{"format not strict", with(format(`{"type":"json_schema","name":"a","strict":true,"schema":{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}}`), user), "Invalid schema for response_format 'a'"},
		{"format without a name", with(format(`{"type":"json_schema","schema":`+strict+`}`), user), "text.format.name"},
		{"odd format", with(format(`{"type":"xml"}`), user), "Invalid value: 'xml'"},
		{"JSON mode unsaid", with(format(`{"type":"json_object"}`)+`,"instructions":"Answer in JSON"`, user), "must contain the word 'json'"},
		{"JSON mode and search", with(format(`{"type":"json_object"}`)+`,"tools":[{"type":"web_search"}]`, `{"role":"user","content":"json"}`), "JSON mode"},
		{"too few tokens", with(`,"max_output_tokens":15`, user), "integer below minimum value"},
		{"no tokens", with(`,"max_output_tokens":0`, user), "integer below minimum value"},
		{"long cache key", with(`,"prompt_cache_key":"`+strings.Repeat("k", 65)+`"`, user), "string too long"},
		{"odd effort", with(`,"reasoning":{"effort":"huge"}`, user), "Invalid value: 'huge'"},
		{"odd summary", with(`,"reasoning":{"summary":"huge"}`, user), "Invalid value: 'huge'"},
		{"odd include", with(`,"include":["everything"]`, user), "Invalid value: 'everything'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Replies(Reply{Text: "ok"}))
			w := post(s, tt.body)
			got := strings.Join(s.Violations(), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) || (w.Code == 200) != (tt.want == "") || len(s.Requests()) != 1 {
				t.Fatalf("status %d, %q", w.Code, got)
			}
			var e struct {
				Error struct{ Message, Type string }
			}
			if tt.want != "" && (json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Error.Type != "invalid_request_error" || e.Error.Message != s.Violations()[0]) {
				t.Errorf("%s", w.Body)
			}
		})
	}
	s := New(Replies(Reply{}))
	s.Dull = true
	for _, rest := range []string{`,"include":["reasoning.encrypted_content"]`, `,"reasoning":{"effort":"low"}`} {
		if w := post(s, with(rest, user)); w.Code != 400 {
			t.Error(rest, w.Body)
		}
	}
	s.Key = "k"
	if w := post(s, with("", user)); w.Code != 401 || !strings.Contains(w.Body.String(), "invalid_api_key") {
		t.Error(w.Code, w.Body)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/v1/responses", nil))
	if w.Code != 404 {
		t.Error(w.Code)
	}
}

// What was handed out is taken back unchanged and in place, and no other way.
func TestIssuedItems(t *testing.T) {
	hosted := `{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}}`
	tests := []struct {
		name   string
		change func(items []json.RawMessage) []json.RawMessage
		want   string
	}{
		{"as they were", func(l []json.RawMessage) []json.RawMessage { return l }, ""},
		{"changed thought", func(l []json.RawMessage) []json.RawMessage {
			l[0] = bytes.Replace(l[0], []byte("think"), []byte("thunk"), 1)
			return l
		}, "could not be verified"},
		{"changed search", func(l []json.RawMessage) []json.RawMessage {
			l[1] = bytes.Replace(l[1], []byte(`"q"`), []byte(`"r"`), 1)
			return l
		}, "not as it was given"},
		{"something between", func(l []json.RawMessage) []json.RawMessage { return []json.RawMessage{l[0], l[2], l[1]} }, "required following item"},
		{"no search", func(l []json.RawMessage) []json.RawMessage { return []json.RawMessage{l[0], l[2]} }, "required following item"},
		{"no thought", func(l []json.RawMessage) []json.RawMessage { return l[1:] }, ""},
	}
	for _, tt := range tests {
		s := New(Replies(Reply{Thoughts: []string{"think"}, Hosted: []string{hosted}, Text: "hi"}))
		w := post(s, `{"model":"m","input":"x","include":["reasoning.encrypted_content"]}`)
		var resp struct{ Output []json.RawMessage }
		if err := json.Unmarshal(w.Body.Bytes(), &resp); err != nil || len(resp.Output) != 3 {
			t.Fatal(err, w.Body)
		}
		items := append(tt.change(resp.Output), json.RawMessage(user))
		post(s, fmt.Sprintf(`{"model":"m","input":%s}`, encode(items)))
		if got := strings.Join(s.Violations(), "; "); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// A stream tells what the plain answer says, its events are numbered, and each
// names its type twice.
func TestStream(t *testing.T) {
	r := Reply{
		Think: true, Text: "h\u00e9llo", Refusal: "no", Calls: []Call{{Name: "f", Arguments: `{"a":"<b>"}`}}, Input: 3, Output: 4,
		Hosted: []string{`{"type":"mcp_call","id":"m","name":"x","server_label":"s","arguments":"{}","status":"completed"}`, `{"type":"image_generation_call","id":"i","status":"completed","result":"x"}`},
	}
	for _, r := range []Reply{r, {Text: "x", Incomplete: "max_output_tokens"}, {Failed: &Failure{"server_error", "x"}}, {DoneOnly: true, Text: "x"}} {
		events := strings.Split(strings.TrimSuffix(string(r.Stream()), "\n\n"), "\n\n")
		for i, ev := range events {
			head, data, _ := strings.Cut(ev, "\n")
			var v struct {
				Type     string
				Sequence int `json:"sequence_number"`
				Response json.RawMessage
			}
			if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &v); err != nil || head != "event: "+v.Type || v.Sequence != i {
				t.Fatalf("%d: %s", i, ev)
			}
			if i == len(events)-1 && string(v.Response) != string(encode(r.answer(0, Request{Model: "stub", Include: []string{"reasoning.encrypted_content"}}).response())) {
				t.Errorf("%s", v.Response)
			}
		}
	}
	for flat, want := range map[bool]string{true: `"code":"x","message":"y"`, false: `"error":{"code":"x"`} {
		if body := string(Reply{Text: "a", Error: &Failure{"x", "y"}, Flat: flat}.Stream()); !strings.Contains(body, want) || strings.Contains(body, "response.completed") {
			t.Error(body)
		}
	}
}

func TestReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Replies(
			Reply{Text: "one", Plain: true}, Reply{Body: []byte("raw"), Status: 503, ContentType: "text/plain"},
			Reply{Text: "three", CutAfter: 10}, Reply{Text: "four", Delay: time.Minute, Hold: true},
		))
		p := chatstub.NewPipe(s)
		defer p.Shutdown()
		ask := func() (*http.Response, string, error) {
			resp, err := p.Client().Post("http://any.test/responses", "application/json", strings.NewReader(`{"model":"m","input":"x","stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var b bytes.Buffer
			_, err = io.CopyN(&b, resp.Body, 800)
			return resp, b.String(), err
		}
		if _, body, _ := ask(); !json.Valid([]byte(body)) || !strings.Contains(body, `"one"`) {
			t.Error(body)
		}
		if resp, body, _ := ask(); resp.StatusCode != 503 || body != "raw" {
			t.Error(resp.StatusCode, body)
		}
		if _, body, err := ask(); len(body) != 10 || err != io.ErrUnexpectedEOF {
			t.Error(body, err)
		}
		start := time.Now()
		if _, body, _ := ask(); !strings.HasPrefix(body, "event: response.created\n") || time.Since(start) != time.Minute {
			t.Error(body, time.Since(start))
		}
	})
}

package messagesstub

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

const (
	hi     = `{"role":"user","content":"x"}`
	tool   = `{"name":"f","input_schema":{"type":"object","properties":{}}}`
	search = `{"type":"web_search_20250305","name":"web_search"}`
	runner = `{"type":"code_execution_20250825","name":"code_execution"}`
)

func from(role string, blocks ...string) string {
	return `{"role":"` + role + `","content":[` + strings.Join(blocks, ",") + `]}`
}

func said(blocks ...string) string  { return from("assistant", blocks...) }
func asked(blocks ...string) string { return from("user", blocks...) }
func text(s string) string          { return string(Text(s).JSON()) }
func use(id string) string          { return string(ToolUse(id, "f", "{}").JSON()) }
func result(id string) string {
	return `{"type":"tool_result","tool_use_id":"` + id + `","content":"r"}`
}
func body(rest string, msgs ...string) string {
	return `{"model":"m","max_tokens":2000,"messages":[` + strings.Join(msgs, ",") + `]` + rest + `}`
}

func post(s *Stub, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/v1/messages", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("X-Api-Key", "test-key")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// rule is a request, and a part of what the stub says of it; "" for nothing.
type rule struct{ name, body, want string }

func file(kind, media, data string) string {
	return `{"type":"` + kind + `","source":{"type":"base64","media_type":"` + media + `","data":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"}}`
}

func tools(list ...string) string { return `,"tools":[` + strings.Join(list, ",") + `]` }

// marked is a message with n marks of the cache.
func marked(n int) string {
	return asked(slices.Repeat([]string{`{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}`}, n)...)
}

const manual = `,"thinking":{"type":"enabled","budget_tokens":1024}`

var (
	thinking = string(Thinking("t").JSON())
	hidden   = string(Hidden("h").JSON())
	redacted = string(Redacted("r").JSON())
	hosted   = string(Hosted("s1", "web_search", "{}").JSON())
	found    = string(Found("s1", "u").JSON())
	code     = string(Hosted("s1", "code_execution", "{}").JSON())
)

// What keeps the rules of the vendor is let through.
func TestGood(t *testing.T) {
	check(t,
		rule{"good", body(`,"system":"s","stream":true,"metadata":{"user_id":"u"},"temperature":1`, hi), ""},
		rule{"good blocks", body(`,"system":[{"type":"text","text":"s"}]`, asked(text("x"), file("image", "image/png", "\x89PNG"), file("document", "application/pdf", "%PDF"))), ""},
		rule{"good tools", body(tools(tool, search)+`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, hi), ""},
		rule{"good round", body(tools(tool)+`,"tool_choice":{"type":"none"}`, hi, said(thinking, text("x"), use("a"), use("b")), asked(result("b"), result("a"), text("y"))), ""},
		rule{"good thinking", body(manual+tools(tool), hi, said(thinking, hidden, redacted, use("a")), asked(result("a")), said(use("b")), asked(result("b"))), ""},
		rule{"good adaptive", body(`,"thinking":{"type":"adaptive","display":"summarized"},"output_config":{"effort":"high"}`+tools(tool), hi, said(use("a")), asked(result("a"))), ""},
		rule{"good pause", body(tools(search), hi, said(text("x "), hosted)), ""},
		rule{"good search", body(tools(search), hi, said(hosted, found, text("x")), hi), ""},
		rule{"good pending", body(tools(tool, search), hi, said(hosted, use("a")), asked(result("a"))), ""},
		rule{"good pending code", body(`,"container":"c"`+tools(tool, runner), hi, said(code, use("a")), asked(result("a"))), ""},
		rule{"good format", body(`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{},"additionalProperties":false}}}`, hi), ""},
		rule{"good two of a role", body("", hi, hi, said(text("x")), said(text("y")), hi), ""},
		rule{"good marks", body("", marked(4)), ""},
	)
}

// Rules of the request, of messages and of files.
func TestMessageRules(t *testing.T) {
	check(t,
		rule{"no JSON", `{`, "not valid JSON"},
		rule{"repeated name", `{"model":"m","model":"m","max_tokens":1,"messages":[` + hi + `]}`, "not valid JSON"},
		rule{"lone surrogate", body("", asked(`{"type":"text","text":"\ud83d"}`)), "not valid JSON"},
		rule{"unknown member", body(`,"x":1`, hi), "unknown field"},
		rule{"wrong type", body(`,"stream":"yes"`, hi), "body:"},
		rule{"no model", `{"max_tokens":1,"messages":[` + hi + `]}`, "model: Field required"},
		rule{"no max_tokens", `{"model":"m","messages":[` + hi + `]}`, "max_tokens: Field required"},
		rule{"too many tokens", `{"model":"m","max_tokens":999999,"messages":[` + hi + `]}`, "max_tokens"},
		rule{"no messages", body(""), "at least one message"},
		rule{"empty system", body(`,"system":[{"type":"text","text":" "}]`, hi), "must be non-empty"},
		rule{"unknown role", body("", from("system", text("x"))), "want user or assistant"},
		rule{"assistant first", body("", said(text("x")), hi), "must use the \"user\" role"},
		rule{"no content", body("", asked()), "non-empty content"},
		rule{"blank text", body("", asked(text(" \n"))), "non-whitespace"},
		rule{"unknown block", body("", asked(`{"type":"video"}`)), "is not known"},
		rule{"unknown member of a block", body("", asked(`{"type":"text","text":"x","mood":1}`)), "Extra inputs"},
		rule{"call of the user", body(tools(tool), asked(use("a"))), "not allowed in `user`"},
		rule{"image of the assistant", body("", hi, said(file("image", "image/png", "\x89PNG")), hi), "not allowed in `assistant`"},
		rule{"result of the assistant", body(tools(tool), hi, said(result("a")), hi), "not allowed in `assistant`"},
		rule{"citations of the user", body("", asked(`{"type":"text","text":"x","citations":[]}`)), "citations are the assistant's"},
		rule{"prefill", body("", hi, said(text("x"))), "prefill"},
		rule{"space at the end", body(tools(search), hi, said(hosted, found, text("x "))), "trailing whitespace"},
		rule{"bad base64", body("", asked(strings.Replace(file("image", "image/png", "\x89PNG"), `"data":"`, `"data":"!`, 1))), "want base64"},
		rule{"media type", body("", asked(file("image", "image/bmp", "BM"))), "not accepted"},
		rule{"PDF as image", body("", asked(file("image", "application/pdf", "%PDF"))), "not accepted"},
		rule{"another file", body("", asked(file("image", "image/png", "GIF89a"))), "Could not process"},
		rule{"huge image", body("", asked(file("image", "image/png", "\x89PNG"+strings.Repeat("x", maxImage)))), "exceeds the maximum"},
	)
}

// Rules of calls and their results.
func TestCallRules(t *testing.T) {
	check(t,
		rule{"no result", body(tools(tool), hi, said(use("a")), hi), "without `tool_result` blocks"},
		rule{"half the results", body(tools(tool), hi, said(use("a"), use("b")), asked(result("a"))), "without `tool_result` blocks"},
		rule{"last call open", body(tools(tool), hi, said(use("a"))), "without `tool_result` blocks"},
		rule{"result too late", body(tools(tool), hi, said(use("a")), hi, said(text("x")), asked(result("a"))), "unexpected `tool_use_id`"},
		rule{"two results", body(tools(tool), hi, said(use("a")), asked(result("a"), result("a"))), "unexpected `tool_use_id`"},
		rule{"result behind text", body(tools(tool), hi, said(use("a")), asked(text("x"), result("a"))), "must come first"},
		rule{"one id twice", body(tools(tool), hi, said(use("a")), asked(result("a")), said(use("a")), asked(result("a"))), "must be unique"},
		rule{"bad id", body(tools(tool), hi, said(use("a b")), asked(result("a b"))), "should match pattern"},
		rule{"input no object", body(tools(tool), hi, said(`{"type":"tool_use","id":"a","name":"f","input":"{}"}`), asked(result("a"))), "valid dictionary"},
		rule{"empty error", body(tools(tool), hi, said(use("a")), asked(`{"type":"tool_result","tool_use_id":"a","content":"","is_error":true}`)), "cannot be empty"},
		rule{"calls without tools", body("", hi, said(use("a")), asked(result("a"))), "must define tools"},
	)
}

// Rules of tools, of the choice and of marks.
func TestToolRules(t *testing.T) {
	check(t,
		rule{"choice without tools", body(`,"tool_choice":{"type":"none"}`, hi), "only be specified while providing tools"},
		rule{"unknown choice", body(tools(tool)+`,"tool_choice":{"type":"must"}`, hi), "is not known"},
		rule{"serial none", body(tools(tool)+`,"tool_choice":{"type":"none","disable_parallel_tool_use":true}`, hi), "Extra inputs"},
		rule{"forced with thinking", body(manual+tools(tool)+`,"tool_choice":{"type":"any"}`, hi), "forces tool use"},
		rule{"tool twice", body(tools(tool, tool), hi), "must be unique"},
		rule{"tool name", body(tools(strings.Replace(tool, `"f"`, `"a.b"`, 1)), hi), "should match pattern"},
		rule{"tool schema", body(tools(`{"name":"f","input_schema":{"anyOf":[],"type":"object"}}`), hi), "input_schema"},
		rule{"unknown member of a tool", body(tools(`{"name":"f","input_schema":{"type":"object"},"x":1}`), hi), "unknown field"},
		rule{"unknown hosted tool", body(tools(`{"type":"telepathy_20250101","name":"t"}`), hi), "is not known"},
		rule{"MCP without its beta", body(tools(`{"type":"mcp_toolset","mcp_server_name":"d"}`)+`,"mcp_servers":[{"type":"url","url":"https://x.test","name":"d"}]`, hi), "mcp_servers: Extra"},
		rule{"MCP without server", body(tools(`{"type":"mcp_toolset","mcp_server_name":"d"}`), hi), "no MCP server"},
		rule{"five marks", body("", marked(5)), "maximum of 4"},
		rule{"odd mark", body("", asked(`{"type":"text","text":"x","cache_control":{"type":"for ever"}}`)), "want ephemeral"},
		rule{"mark on thinking", body("", hi, said(strings.Replace(thinking, `{`, `{"cache_control":{"type":"ephemeral"},`, 1), text("x")), hi), "Extra inputs"},
	)
}

// Rules of thinking.
func TestThinkingRules(t *testing.T) {
	check(t,
		rule{"small budget", body(`,"thinking":{"type":"enabled","budget_tokens":100}`, hi), "greater than or equal to 1024"},
		rule{"large budget", body(`,"thinking":{"type":"enabled","budget_tokens":2000}`, hi), "must be greater than"},
		rule{"no budget", body(`,"thinking":{"type":"enabled"}`, hi), "Field required"},
		rule{"adaptive budget", body(`,"thinking":{"type":"adaptive","budget_tokens":1024}`, hi), "Extra inputs"},
		rule{"binding without its beta", body(`,"thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}`, hi), "Extra inputs"},
		rule{"unknown thinking", body(`,"thinking":{"type":"deep"}`, hi), "is not known"},
		rule{"unknown effort", body(`,"output_config":{"effort":"minimal"}`, hi), "effort"},
		rule{"changed thinking", body("", hi, said(strings.Replace(thinking, `"t"`, `"T"`, 1), text("x")), hi), "Invalid `signature`"},
		rule{"shown thinking", body("", hi, said(strings.Replace(hidden, `"thinking":""`, `"thinking":"x"`, 1), text("x")), hi), "Invalid `signature`"},
		rule{"unsigned thinking", body("", hi, said(`{"type":"thinking","thinking":"t"}`, text("x")), hi), "Invalid `signature`"},
		rule{"changed data", body("", hi, said(strings.Replace(redacted, "red.r", "red.R", 1), text("x")), hi), "Invalid `data`"},
		rule{"thinking last", body("", hi, said(text("x"), thinking), hi), "final block"},
		rule{"manual thinking, none in the turn", body(manual+tools(tool), hi, said(use("a")), asked(result("a"))), "must start with a thinking block"},
		rule{"manual thinking, text first", body(manual+tools(tool), hi, said(text("x"), thinking, use("a")), asked(result("a"))), "must start with a thinking block"},
		rule{"thinking off, thinking last said", body(`,"thinking":{"type":"disabled"}`+tools(search), hi, said(thinking, hosted)), "When thinking is disabled"},
	)
}

// Rules of what the vendor runs itself.
func TestHostedRules(t *testing.T) {
	check(t,
		rule{"search without result", body(tools(search), hi, said(hosted, text("x")), hi), "without a corresponding result"},
		rule{"result without search", body(tools(search), hi, said(found, text("x")), hi), "unexpected `tool_use_id`"},
		rule{"search twice", body(tools(search), hi, said(hosted, found, hosted, found), hi), "must be unique"},
		rule{"code without its container", body(tools(tool, runner), hi, said(code, use("a")), asked(result("a"))), "container_id is required"},
		rule{"container without tool", body(`,"container":"c"`, hi), "runs in a container"},
		rule{"caller without call", body(tools(tool, runner), hi, said(string(CodeUse("a", "f", "{}", "s9").JSON())), asked(result("a"))), "no call of the id"},
		rule{"format behind a pause", body(tools(search)+`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{},"additionalProperties":false}}}`, hi, said(hosted)), "prefilled"},
		rule{"schema of a format", body(`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`, hi), "output_config.format.schema"},
	)
}

func check(t *testing.T, rules ...rule) {
	t.Helper()
	for _, tt := range rules {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Replies(Reply{Blocks: []Block{Text("ok")}}))
			w := post(s, tt.body)
			got := strings.Join(s.Violations(), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) || (w.Code == 200) != (tt.want == "") {
				t.Errorf("status %d, %q", w.Code, got)
			}
			var e struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if tt.want != "" && (json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Type != "error" || e.Error.Type != "invalid_request_error" || e.Error.Message != got) {
				t.Errorf("%s", w.Body)
			}
			if len(s.Requests()) != 1 {
				t.Error("not recorded")
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		header []string
		body   string
		want   int
	}{
		{nil, body("", hi), 200},
		{[]string{"Anthropic-Version", newVersion, "X-Api-Key", "", "Authorization", "Bearer test-key"}, body("", hi), 200},
		{[]string{"Anthropic-Version", newVersion}, body(`,"temperature":1`, hi), 400},
		{[]string{"Anthropic-Version", ""}, body("", hi), 400},
		{[]string{"Content-Type", "text/plain"}, body("", hi), 400},
		{[]string{"X-Api-Key", ""}, body("", hi), 401},
		{nil, strings.Repeat(" ", maxBody+1), 413},
	} {
		s := New(Replies())
		if w := post(s, tt.body, tt.header...); w.Code != tt.want || (len(s.Violations()) == 0) != (tt.want == 200) {
			t.Errorf("%v: %d %s", tt.header, w.Code, w.Body)
		}
	}
	s := New(Replies())
	s.NoAdaptive, s.NoManual = true, true
	for _, rest := range []string{`,"thinking":{"type":"adaptive"}`, `,"thinking":{"type":"enabled","budget_tokens":1024}`, `,"output_config":{"effort":"low"}`} {
		if w := post(s, body(rest, hi)); w.Code != 400 {
			t.Errorf("%s: %d", rest, w.Code)
		}
	}
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, httptest.NewRequest("GET", "/v1/models", nil)); w.Code != 404 {
		t.Error(w.Code)
	}
}

// What was handed out comes back as it was, and where it was.
func TestAsTheyWere(t *testing.T) {
	first := Reply{Blocks: []Block{Thinking("one"), Redacted("r"), Hosted("s1", "web_search", `{"query":"a"}`), Found("s1", "u"), ToolUse("a", "f", "{}")}}
	raw := func(list ...int) string {
		var out []string
		for _, i := range list {
			out = append(out, string(first.Blocks[i].JSON()))
		}
		return said(out...)
	}
	changed := strings.Replace(raw(0, 1, 2, 3, 4), `"a"}`, `"b"}`, 1)
	for _, tt := range []struct {
		name, back string
		good       bool
	}{
		{"all", raw(0, 1, 2, 3, 4), true},
		{"no thinking at all", raw(2, 3, 4), true},
		{"half the thinking", raw(0, 2, 3, 4), false},
		{"another order", raw(1, 0, 2, 3, 4), false},
		{"no search", raw(0, 1, 4), true},
		{"a changed search", changed, false},
	} {
		s := New(Replies(first))
		post(s, body(`,"tools":[`+tool+`,`+search+`]`, hi))
		if w := post(s, body(`,"tools":[`+tool+`,`+search+`]`, hi, tt.back, asked(result("a")))); (w.Code == 200) != tt.good {
			t.Errorf("%s: %d %s", tt.name, w.Code, s.Violations())
		}
	}
}

// A reply is the same as a stream and plain, and breaks where it is told to.
func TestReplies(t *testing.T) {
	r := Reply{Blocks: []Block{Thinking("th"), Text("Hello you"), ToolUse("a", "f", `{"q":1}`)}, Input: 3, Output: 4, Runes: 3}
	s := New(Replies(r, r, Error(529, "overloaded_error", "Overloaded")))
	stream := post(s, body(`,"stream":true`, hi)).Body.String()
	for _, want := range []string{`event: message_start`, `"thinking_delta"`, `"signature_delta"`, `"text":"Hel"`, `"partial_json":"{\"q"`, `"stop_reason":"tool_use"`, `event: message_stop`} {
		if !strings.Contains(stream, want) {
			t.Errorf("no %s in %s", want, stream)
		}
	}
	if stream != string(Reply.Stream(r)) && !strings.Contains(stream, `"model":"m"`) {
		t.Error("Stream gives something else")
	}
	var plain struct {
		Content    []map[string]any
		StopReason string `json:"stop_reason"`
	}
	if err := json.Unmarshal(post(s, body("", hi)).Body.Bytes(), &plain); err != nil || len(plain.Content) != 3 || plain.StopReason != "tool_use" || fmt.Sprint(plain.Content[2]["input"]) != "map[q:1]" {
		t.Errorf("%v %+v", err, plain)
	}
	if w := post(s, body("", hi)); w.Code != 529 || !strings.Contains(w.Body.String(), "overloaded_error") {
		t.Error(w.Code, w.Body)
	}
}

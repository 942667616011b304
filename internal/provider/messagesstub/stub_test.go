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

// Each rule of the vendor is enforced, and what keeps them is let through.
func TestRules(t *testing.T) {
	thinking, hidden, redacted := string(Thinking("t").JSON()), string(Hidden("h").JSON()), string(Redacted("r").JSON())
	hosted, found := string(Hosted("s1", "web_search", "{}").JSON()), string(Found("s1", "u").JSON())
	code := string(Hosted("s1", "code_execution", "{}").JSON())
	file := func(kind, media, data string) string {
		return `{"type":"` + kind + `","source":{"type":"base64","media_type":"` + media + `","data":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"}}`
	}
	tools := func(list ...string) string { return `,"tools":[` + strings.Join(list, ",") + `]` }
	mark := func(n int) string {
		return asked(slices.Repeat([]string{`{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}`}, n)...)
	}
	manual := `,"thinking":{"type":"enabled","budget_tokens":1024}`
	tests := []struct{ name, body, want string }{
		{"good", body(`,"system":"s","stream":true,"metadata":{"user_id":"u"},"temperature":1`, hi), ""},
		{"good blocks", body(`,"system":[{"type":"text","text":"s"}]`, asked(text("x"), file("image", "image/png", "\x89PNG"), file("document", "application/pdf", "%PDF"))), ""},
		{"good tools", body(tools(tool, search)+`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, hi), ""},
		{"good round", body(tools(tool)+`,"tool_choice":{"type":"none"}`, hi, said(thinking, text("x"), use("a"), use("b")), asked(result("b"), result("a"), text("y"))), ""},
		{"good thinking", body(manual+tools(tool), hi, said(thinking, hidden, redacted, use("a")), asked(result("a")), said(use("b")), asked(result("b"))), ""},
		{"good adaptive", body(`,"thinking":{"type":"adaptive","display":"summarized"},"output_config":{"effort":"high"}`+tools(tool), hi, said(use("a")), asked(result("a"))), ""},
		{"good pause", body(tools(search), hi, said(text("x "), hosted)), ""},
		{"good search", body(tools(search), hi, said(hosted, found, text("x")), hi), ""},
		{"good pending", body(tools(tool, search), hi, said(hosted, use("a")), asked(result("a"))), ""},
		{"good pending code", body(`,"container":"c"`+tools(tool, runner), hi, said(code, use("a")), asked(result("a"))), ""},
		{"good format", body(`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{},"additionalProperties":false}}}`, hi), ""},
		{"good two of a role", body("", hi, hi, said(text("x")), said(text("y")), hi), ""},
		{"good marks", body("", mark(4)), ""},

		{"no JSON", `{`, "not valid JSON"},
		{"repeated name", `{"model":"m","model":"m","max_tokens":1,"messages":[` + hi + `]}`, "not valid JSON"},
		{"lone surrogate", body("", asked(`{"type":"text","text":"\ud83d"}`)), "not valid JSON"},
		{"unknown member", body(`,"x":1`, hi), "unknown field"},
		{"wrong type", body(`,"stream":"yes"`, hi), "body:"},
		{"no model", `{"max_tokens":1,"messages":[` + hi + `]}`, "model: Field required"},
		{"no max_tokens", `{"model":"m","messages":[` + hi + `]}`, "max_tokens: Field required"},
		{"too many tokens", `{"model":"m","max_tokens":999999,"messages":[` + hi + `]}`, "max_tokens"},
		{"no messages", body(""), "at least one message"},
		{"empty system", body(`,"system":[{"type":"text","text":" "}]`, hi), "must be non-empty"},
		{"unknown role", body("", from("system", text("x"))), "want user or assistant"},
		{"assistant first", body("", said(text("x")), hi), "must use the \"user\" role"},
		{"no content", body("", asked()), "non-empty content"},
		{"blank text", body("", asked(text(" \n"))), "non-whitespace"},
		{"unknown block", body("", asked(`{"type":"video"}`)), "is not known"},
		{"unknown member of a block", body("", asked(`{"type":"text","text":"x","mood":1}`)), "Extra inputs"},
		{"call of the user", body(tools(tool), asked(use("a"))), "not allowed in `user`"},
		{"image of the assistant", body("", hi, said(file("image", "image/png", "\x89PNG")), hi), "not allowed in `assistant`"},
		{"result of the assistant", body(tools(tool), hi, said(result("a")), hi), "not allowed in `assistant`"},
		{"citations of the user", body("", asked(`{"type":"text","text":"x","citations":[]}`)), "citations are the assistant's"},
		{"prefill", body("", hi, said(text("x"))), "prefill"},
		{"space at the end", body(tools(search), hi, said(hosted, found, text("x "))), "trailing whitespace"},
		{"bad base64", body("", asked(strings.Replace(file("image", "image/png", "\x89PNG"), `"data":"`, `"data":"!`, 1))), "want base64"},
		{"media type", body("", asked(file("image", "image/bmp", "BM"))), "not accepted"},
		{"PDF as image", body("", asked(file("image", "application/pdf", "%PDF"))), "not accepted"},
		{"another file", body("", asked(file("image", "image/png", "GIF89a"))), "Could not process"},
		{"huge image", body("", asked(file("image", "image/png", "\x89PNG"+strings.Repeat("x", maxImage)))), "exceeds the maximum"},

		{"no result", body(tools(tool), hi, said(use("a")), hi), "without `tool_result` blocks"},
		{"half the results", body(tools(tool), hi, said(use("a"), use("b")), asked(result("a"))), "without `tool_result` blocks"},
		{"last call open", body(tools(tool), hi, said(use("a"))), "without `tool_result` blocks"},
		{"result too late", body(tools(tool), hi, said(use("a")), hi, said(text("x")), asked(result("a"))), "unexpected `tool_use_id`"},
		{"two results", body(tools(tool), hi, said(use("a")), asked(result("a"), result("a"))), "unexpected `tool_use_id`"},
		{"result behind text", body(tools(tool), hi, said(use("a")), asked(text("x"), result("a"))), "must come first"},
		{"one id twice", body(tools(tool), hi, said(use("a")), asked(result("a")), said(use("a")), asked(result("a"))), "must be unique"},
		{"bad id", body(tools(tool), hi, said(use("a b")), asked(result("a b"))), "should match pattern"},
		{"input no object", body(tools(tool), hi, said(`{"type":"tool_use","id":"a","name":"f","input":"{}"}`), asked(result("a"))), "valid dictionary"},
		{"empty error", body(tools(tool), hi, said(use("a")), asked(`{"type":"tool_result","tool_use_id":"a","content":"","is_error":true}`)), "cannot be empty"},
		{"calls without tools", body("", hi, said(use("a")), asked(result("a"))), "must define tools"},

		{"choice without tools", body(`,"tool_choice":{"type":"none"}`, hi), "only be specified while providing tools"},
		{"unknown choice", body(tools(tool)+`,"tool_choice":{"type":"must"}`, hi), "is not known"},
		{"serial none", body(tools(tool)+`,"tool_choice":{"type":"none","disable_parallel_tool_use":true}`, hi), "Extra inputs"},
		{"forced with thinking", body(manual+tools(tool)+`,"tool_choice":{"type":"any"}`, hi), "forces tool use"},
		{"tool twice", body(tools(tool, tool), hi), "must be unique"},
		{"tool name", body(tools(strings.Replace(tool, `"f"`, `"a.b"`, 1)), hi), "should match pattern"},
		{"tool schema", body(tools(`{"name":"f","input_schema":{"anyOf":[],"type":"object"}}`), hi), "input_schema"},
		{"unknown member of a tool", body(tools(`{"name":"f","input_schema":{"type":"object"},"x":1}`), hi), "unknown field"},
		{"unknown hosted tool", body(tools(`{"type":"telepathy_20250101","name":"t"}`), hi), "is not known"},
		{"MCP without its beta", body(tools(`{"type":"mcp_toolset","mcp_server_name":"d"}`)+`,"mcp_servers":[{"type":"url","url":"https://x.test","name":"d"}]`, hi), "mcp_servers: Extra"},
		{"MCP without server", body(tools(`{"type":"mcp_toolset","mcp_server_name":"d"}`), hi), "no MCP server"},
		{"five marks", body("", mark(5)), "maximum of 4"},
		{"odd mark", body("", asked(`{"type":"text","text":"x","cache_control":{"type":"for ever"}}`)), "want ephemeral"},
		{"mark on thinking", body("", hi, said(strings.Replace(thinking, `{`, `{"cache_control":{"type":"ephemeral"},`, 1), text("x")), hi), "Extra inputs"},

		{"small budget", body(`,"thinking":{"type":"enabled","budget_tokens":100}`, hi), "greater than or equal to 1024"},
		{"large budget", body(`,"thinking":{"type":"enabled","budget_tokens":2000}`, hi), "must be greater than"},
		{"no budget", body(`,"thinking":{"type":"enabled"}`, hi), "Field required"},
		{"adaptive budget", body(`,"thinking":{"type":"adaptive","budget_tokens":1024}`, hi), "Extra inputs"},
		{"binding without its beta", body(`,"thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}`, hi), "Extra inputs"},
		{"unknown thinking", body(`,"thinking":{"type":"deep"}`, hi), "is not known"},
		{"unknown effort", body(`,"output_config":{"effort":"minimal"}`, hi), "effort"},
		{"changed thinking", body("", hi, said(strings.Replace(thinking, `"t"`, `"T"`, 1), text("x")), hi), "Invalid `signature`"},
		{"shown thinking", body("", hi, said(strings.Replace(hidden, `"thinking":""`, `"thinking":"x"`, 1), text("x")), hi), "Invalid `signature`"},
		{"unsigned thinking", body("", hi, said(`{"type":"thinking","thinking":"t"}`, text("x")), hi), "Invalid `signature`"},
		{"changed data", body("", hi, said(strings.Replace(redacted, "red.r", "red.R", 1), text("x")), hi), "Invalid `data`"},
		{"thinking last", body("", hi, said(text("x"), thinking), hi), "final block"},
		{"manual thinking, none in the turn", body(manual+tools(tool), hi, said(use("a")), asked(result("a"))), "must start with a thinking block"},
		{"manual thinking, text first", body(manual+tools(tool), hi, said(text("x"), thinking, use("a")), asked(result("a"))), "must start with a thinking block"},
		{"thinking off, thinking last said", body(`,"thinking":{"type":"disabled"}`+tools(search), hi, said(thinking, hosted)), "When thinking is disabled"},

		{"search without result", body(tools(search), hi, said(hosted, text("x")), hi), "without a corresponding result"},
		{"result without search", body(tools(search), hi, said(found, text("x")), hi), "unexpected `tool_use_id`"},
		{"search twice", body(tools(search), hi, said(hosted, found, hosted, found), hi), "must be unique"},
		{"code without its container", body(tools(tool, runner), hi, said(code, use("a")), asked(result("a"))), "container_id is required"},
		{"container without tool", body(`,"container":"c"`, hi), "runs in a container"},
		{"caller without call", body(tools(tool, runner), hi, said(string(CodeUse("a", "f", "{}", "s9").JSON())), asked(result("a"))), "no call of the id"},
		{"format behind a pause", body(tools(search)+`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{},"additionalProperties":false}}}`, hi, said(hosted)), "prefilled"},
		{"schema of a format", body(`,"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`, hi), "output_config.format.schema"},
	}
	for _, tt := range tests {
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

package openaicompat

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

func text(s string) llm.Content { return llm.Content{Kind: llm.Text, Text: s} }

func called(id, name, args string) llm.Content {
	return llm.Content{Kind: llm.ToolCall, CallID: id, Name: name, Text: args}
}

func result(id, s string) llm.Content {
	return llm.Content{Kind: llm.ToolResult, CallID: id, Text: s}
}

var lookup = llm.ToolDefinition{Name: "lookup", Description: "Look <it> up", InputSchema: canonjson.Value(`{"properties":{"q":{"type":"string"}},"type":"object"}`)}

// history is a conversation with two parallel calls whose results stand in
// another order, a repair turn, and reasoning of this maker and of another.
func history() *llm.Request {
	return &llm.Request{
		Model: "qwen3", System: "Be brief & <kind>.",
		Tools: []llm.ToolDefinition{lookup}, SerialTools: true, MaxOutputTokens: 100,
		Messages: []llm.Message{
			task("one"), task("two"),
			{Role: llm.Assistant, Parts: []llm.Content{
				{Kind: llm.Reasoning, Maker: "openai_compatible/qwen3", State: []byte(`{"reasoning_content":"I \u003cthink\u003e"}`)},
				{Kind: llm.Reasoning, Maker: "anthropic/claude", State: []byte(`{"reasoning_content":"foreign"}`)},
				text("Let me see."), called("call_a", "lookup", `{"q":"1"}`), called("call_b", "weird name!", `{"q"`),
			}},
			{Role: llm.Tool, Parts: []llm.Content{result("call_b", ""), result("call_a", "found")}},
			{Role: llm.Assistant, Parts: []llm.Content{called("call_c", "lookup", `{}`)}},
			{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, CallID: "call_c", IsError: true}}},
			{Role: llm.Assistant, Parts: []llm.Content{text(`{"status":"ok"}`)}},
			task("Only the corrected JSON."),
			{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.Reasoning, Maker: "openai_compatible/qwen3", State: []byte(`{"reasoning_content":"x"}`)}}},
			task("And \xff now."),
		},
	}
}

const wantHistory = `{"model":"qwen3","messages":[` +
	`{"role":"system","content":"Be brief & <kind>."},` +
	`{"role":"user","content":"one\n\ntwo"},` +
	`{"role":"assistant","content":"Let me see.","reasoning_content":"I <think>","tool_calls":[` +
	`{"id":"call00001","type":"function","function":{"name":"lookup","arguments":"{\"q\":\"1\"}"}},` +
	`{"id":"call00002","type":"function","function":{"name":"weird_name_","arguments":"{}"}}]},` +
	`{"role":"tool","content":"found","tool_call_id":"call00001"},` +
	`{"role":"tool","content":"(no output)","tool_call_id":"call00002"},` +
	`{"role":"assistant","content":null,"tool_calls":[{"id":"call00003","type":"function","function":{"name":"lookup","arguments":"{}"}}]},` +
	`{"role":"tool","content":"(the tool failed and gave no message)","tool_call_id":"call00003"},` +
	`{"role":"assistant","content":"{\"status\":\"ok\"}"},` +
	`{"role":"user","content":"Only the corrected JSON.\n\nAnd ` + "\uFFFD" + ` now."}],` +
	`"tools":[{"type":"function","function":{"name":"lookup","description":"Look <it> up","parameters":{"properties":{"q":{"type":"string"}},"type":"object"}}}],` +
	`"parallel_tool_calls":false,"max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}`

// The exact bytes, the same each time. C41 (1) and (3), I-13
func TestRequestBytes(t *testing.T) {
	m := model(t, Config{})
	for range 3 {
		got, err := m.encode(history())
		if err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(string(got), `\ufffd`, "\uFFFD") != wantHistory {
			t.Fatalf("got\n%s\nwant\n%s", got, wantHistory)
		}
	}
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
	if got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), history()); got.Err != nil || len(stub.Violations()) > 0 {
		t.Error(got, stub.Violations())
	}
	if r := stub.Requests()[0]; !r.Usage || r.Path != "/v1/chat/completions" {
		t.Errorf("%+v", r)
	}
	// Another maker's reasoning is not sent, whatever it holds. C41
	other := model(t, Config{Name: "other"})
	if got, _ := other.encode(history()); bytes.Contains(got, []byte("reasoning_content")) {
		t.Errorf("%s", got)
	}
}

// Reasoning that came as reasoning_content goes back as it came. C41 (1)
func TestReasoningGoesBack(t *testing.T) {
	thought := "Step 1: <look> \u2028 \"up\"\n& go"
	stub := chatstub.New(chatstub.Replies(
		chatstub.Reply{Reasoning: thought, Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}}, chatstub.Reply{Text: "done"}))
	m := model(t, Config{HTTP: over(t, stub)})
	first := ask(t, t.Context(), m, hello)
	if first.Err != nil || first.Reasoning != thought {
		t.Fatal(first)
	}
	req := &llm.Request{Messages: []llm.Message{
		task("hello"),
		{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.Reasoning, State: []byte(first.State), Maker: "openai_compatible/m"}, called("c", "lookup", "{}")}},
		{Role: llm.Tool, Parts: []llm.Content{result("c", "found")}},
	}}
	if got := ask(t, t.Context(), m, req); got.Err != nil || got.Text != "done" {
		t.Fatal(got, stub.Violations())
	}
	back := stub.Requests()[1].Messages[1].ReasoningContent
	if back == nil || *back != thought {
		t.Errorf("%v", back)
	}
}

// A turn without tools sends nothing of them, with a history that has calls. C13, I-10
func TestNoTools(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: `{"status":"ok","count":1}`}))
	m := model(t, Config{HTTP: over(t, stub)})
	req := history()
	req.NoTools, req.Repair = true, 1
	if got := ask(t, t.Context(), m, req); got.Err != nil {
		t.Error(got, stub.Violations())
	}
	none := history()
	none.Tools = nil
	if got := ask(t, t.Context(), m, none); got.Err != nil {
		t.Error(got, stub.Violations())
	}
	for _, r := range stub.Requests() {
		if r.Tools != nil || r.ToolChoice || r.Parallel != nil || bytes.Contains(r.Body, []byte(`"tools"`)) {
			t.Errorf("%s", r.Body)
		}
	}
	parallel := history()
	parallel.SerialTools = false
	if raw, err := m.encode(parallel); err != nil || bytes.Contains(raw, []byte("parallel_tool_calls")) {
		t.Errorf("%s %v", raw, err)
	}
}

// The schema goes to the vendor in the vendor's form where the model and the
// schema have one; the weaker form needs the word; and tools come first. C09
func TestStructuredOutput(t *testing.T) {
	object := canonjson.Value(`{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":[],"type":"object"}`)
	open := canonjson.Value(`{"additionalProperties":false,"properties":{"a":{}},"required":[],"type":"object"}`)
	const native = `"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":` +
		`{"additionalProperties":false,"properties":{"a":{"type":["string","null"]}},"required":["a"],"type":"object"}}}`
	const weak = `"response_format":{"type":"json_object"}`
	caps := func(s llm.Structured) Config { return Config{Caps: llm.Capabilities{Structured: s}} }
	openai := Config{BaseURL: "http://api.openai.com/v1", Caps: llm.Capabilities{Structured: llm.StructuredSchema}}
	for i, tt := range []struct {
		cfg    Config
		schema canonjson.Value
		req    llm.Request
		want   string
	}{
		{Config{}, object, llm.Request{}, ""},
		{caps(llm.StructuredNone), object, llm.Request{}, ""},
		{caps(llm.StructuredSchema), object, llm.Request{}, native},
		{Config{StructuredOutput: true}, object, llm.Request{}, native},
		{caps(llm.StructuredSchema), open, llm.Request{System: "Answer in JSON."}, weak},
		{caps(llm.StructuredSchema), open, llm.Request{System: "Answer."}, ""},
		{caps(llm.StructuredObject), object, llm.Request{System: "as json"}, weak},
		{caps(llm.StructuredSchema), canonjson.Value(`{"type":"string"}`), llm.Request{System: "JSON"}, ""},
		{caps(llm.StructuredSchema), canonjson.Value(`{}`), llm.Request{System: "JSON"}, ""},
		{caps(llm.StructuredSchema), nil, llm.Request{}, ""},
		{caps(llm.StructuredSchema), object, llm.Request{Tools: []llm.ToolDefinition{lookup}}, ""},
		{caps(llm.StructuredSchema), object, llm.Request{Tools: []llm.ToolDefinition{lookup}, NoTools: true}, native},
		{openai, object, llm.Request{Tools: []llm.ToolDefinition{lookup}}, native},
		{Config{Caps: openai.Caps, Quirks: Quirks{ToolsWithSchema: true}}, object, llm.Request{Tools: []llm.ToolDefinition{lookup}}, native},
	} {
		stub := chatstub.NewVendor(chatstub.Rules{NoToolsWithSchema: !tt.cfg.Quirks.ToolsWithSchema && tt.cfg.BaseURL == ""}, chatstub.Replies(chatstub.Reply{Text: "{}"}))
		tt.cfg.HTTP = over(t, stub)
		tt.req.Messages, tt.req.Output = hello.Messages, tt.schema
		if got := ask(t, t.Context(), model(t, tt.cfg), &tt.req); got.Err != nil {
			t.Errorf("%d: %v", i, got)
		}
		body := string(stub.Requests()[0].Body)
		if !strings.Contains(body, tt.want) || tt.want == "" && strings.Contains(body, "response_format") {
			t.Errorf("%d: %s, want %s", i, body, tt.want)
		}
	}
}

// A history whose calls and results do not pair is never sent. I-13
func TestBrokenPairs(t *testing.T) {
	calls := llm.Message{Role: llm.Assistant, Parts: []llm.Content{called("a", "f", "{}"), called("b", "f", "{}")}}
	for name, list := range map[string][]llm.Message{
		"no result":        {calls},
		"half":             {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x")}}},
		"foreign":          {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x"), result("c", "x")}}},
		"twice":            {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x"), result("a", "x")}}},
		"text between":     {calls, task("x"), {Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x")}}},
		"result first":     {{Role: llm.Tool, Parts: []llm.Content{result("a", "x")}}},
		"one id two calls": {{Role: llm.Assistant, Parts: []llm.Content{called("a", "f", "{}"), called("a", "f", "{}")}}},
		"unknown role":     {{Role: "narrator"}},
	} {
		sent := false
		h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent = true })
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, h)}), &llm.Request{Messages: list})
		if got.Err == nil || got.Err.Class != llm.InvalidRequest || sent {
			t.Errorf("%s: %v, sent %v", name, got, sent)
		}
	}
}

func TestNewChecks(t *testing.T) {
	for _, bad := range []string{"", "vendor.test/v1", "ftp://vendor.test", "http://", "http://u:p@vendor.test", "http://vendor.test/?k=1", "http://vendor.test/#x", "http://[::1"} {
		if _, err := New(Config{BaseURL: bad}); err == nil || !strings.HasPrefix(err.Error(), "base_url: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for base, want := range map[string]string{
		"http://vendor.test": "http://vendor.test/chat/completions", "https://vendor.test/v1/": "https://vendor.test/v1/chat/completions",
	} {
		if m := model(t, Config{BaseURL: base}); m.url != want {
			t.Errorf("%q: %q", base, m.url)
		}
	}
}

// The key is read for each call, and is nowhere but in its header. I-33
func TestKey(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
	keys := []string{"first", "second", ""}
	m := model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { k := keys[0]; keys = keys[1:]; return k, nil }})
	for range 3 {
		if got := ask(t, t.Context(), m, hello); got.Err != nil {
			t.Fatal(got)
		}
	}
	want := []string{"Bearer first", "Bearer second", ""}
	for i, r := range stub.Requests() {
		if r.Header.Get("Authorization") != want[i] || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%d: %v", i, r.Header)
		}
	}
	private := errors.New("open /secret/path")
	for _, key := range []func() (string, error){
		func() (string, error) { return "", private },
		func() (string, error) { return "a\nb", nil },
	} {
		got := ask(t, t.Context(), model(t, Config{APIKey: key}), hello)
		if got.Err == nil || got.Err.Class != llm.Auth || strings.Contains(got.Err.Message, "secret") {
			t.Error(got)
		}
	}
}

// The body of a redirected request is not sent on.
func TestRedirect(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/v2"+r.URL.Path, http.StatusPermanentRedirect)
	}))
	defer s.Close()
	got := ask(t, t.Context(), model(t, Config{BaseURL: s.URL, HTTP: pieces.Local(s.URL)}), hello)
	if got.Err == nil || got.Err.Class != llm.InvalidRequest || calls != 1 {
		t.Error(got, calls)
	}
}

// The same connection serves the next request, also when a stream ended with
// [DONE]. The stub breaks C13's rules for no request of ours.
func TestConnectionIsKept(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok", Input: 1, Output: 1}))
	addrs := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addrs[r.RemoteAddr] = true
		stub.ServeHTTP(w, r)
	}))
	defer s.Close()
	m := model(t, Config{BaseURL: s.URL, HTTP: pieces.Local(s.URL)})
	for range 5 {
		if got := ask(t, t.Context(), m, hello); got.Err != nil || got.Text != "ok" {
			t.Fatal(got)
		}
	}
	if len(addrs) != 1 {
		t.Errorf("%d connections", len(addrs))
	}
}

// Whatever the history holds, what is sent is strict JSON that a vendor takes.
func FuzzRequest(f *testing.F) {
	f.Add("system", "user", "name", `{"a":1}`, "result", []byte(`{"reasoning_content":"x"}`))
	f.Add("\xff", "\x00", "n n", `{"a":`, "", []byte("x"))
	f.Fuzz(func(t *testing.T, system, user, name, args, res string, state []byte) {
		req := &llm.Request{Model: "m", System: system, Tools: []llm.ToolDefinition{lookup}, Messages: []llm.Message{
			task("x" + user),
			{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.Reasoning, State: state, Maker: "openai_compatible/m"}, text(user), called("a", name, args)}},
			{Role: llm.Tool, Parts: []llm.Content{result("a", res)}},
		}}
		m := model(t, Config{})
		raw, err := m.encode(req)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(raw) {
			t.Fatalf("%s", raw)
		}
		stub := chatstub.New(chatstub.Replies(chatstub.Reply{}))
		w := httptest.NewRecorder()
		stub.ServeHTTP(w, httptest.NewRequest("POST", "/chat/completions", bytes.NewReader(raw)))
		if v := stub.Violations(); len(v) > 0 {
			t.Fatalf("%v\n%s", v, raw)
		}
	})
}

package anthropic

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

type reply = messagesstub.Reply

var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

func blocks(list ...messagesstub.Block) []messagesstub.Block { return list }

var ok = reply{Blocks: blocks(messagesstub.Text("ok"))}

var lookup = llm.ToolDefinition{Name: "lookup", Description: "Look <it> up", InputSchema: canonjson.Value(`{"properties":{"q":{"type":"string"}},"type":"object"}`)}

var search = canonjson.Value(`{"name":"web_search","type":"web_search_20250305"}`)

const thought = `{"type":"thinking", "thinking":"I <think>","signature":"sig.x/+="}`

// history is a conversation with two parallel calls whose results stand in
// another order, a repair turn, and state of this maker and of another.
func history() *llm.Request {
	return &llm.Request{
		Model: "claude", System: "Be brief & <kind>.",
		Tools: []llm.ToolDefinition{lookup}, SerialTools: true, MaxOutputTokens: 100,
		Messages: []llm.Message{
			task("one"), task("two"),
			said(
				llm.Content{Kind: llm.Reasoning, Maker: "anthropic/claude", State: []byte(thought)},
				llm.Content{Kind: llm.Reasoning, Maker: "openai/gpt", State: []byte(`{"type":"thinking","thinking":"foreign","signature":"x"}`)},
				text("Let me see. "), called("call_a", "lookup", `{"q":"1"}`), called("call_b", "weird name!", `{"q"`),
			),
			answered(result("call_b", ""), result("call_a", "found")),
			said(called("call c", "lookup", `{}`)),
			answered(llm.Content{Kind: llm.ToolResult, CallID: "call c", IsError: true}),
			said(text(`{"status":"ok"}`)),
			task("Only the corrected JSON."),
			said(llm.Content{Kind: llm.Reasoning, Maker: "anthropic/claude", State: []byte(thought)}),
			task("And \xff now."),
		},
	}
}

const wantHistory = `{"model":"claude","max_tokens":100,` +
	`"system":[{"type":"text","text":"Be brief & <kind>.","cache_control":{"type":"ephemeral"}}],` +
	`"messages":[` +
	`{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},` +
	`{"role":"assistant","content":[` + thought + `,{"type":"text","text":"Let me see. "},` +
	`{"type":"tool_use","id":"call_a","name":"lookup","input":{"q":"1"}},{"type":"tool_use","id":"call_b","name":"weird_name_","input":{}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_a","content":"found"},{"type":"tool_result","tool_use_id":"call_b","content":"(no output)"}]},` +
	`{"role":"assistant","content":[{"type":"tool_use","id":"call_45ff1b878d1e5f749b40db93","name":"lookup","input":{}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_45ff1b878d1e5f749b40db93","content":"(the tool failed and gave no message)","is_error":true,"cache_control":{"type":"ephemeral"}}]},` +
	`{"role":"assistant","content":[{"type":"text","text":"{\"status\":\"ok\"}"}]},` +
	`{"role":"user","content":[{"type":"text","text":"Only the corrected JSON."},{"type":"text","text":"And ` + `\ufffd` + ` now.","cache_control":{"type":"ephemeral"}}]}],` +
	`"tools":[{"name":"lookup","description":"Look <it> up","input_schema":{"properties":{"q":{"type":"string"}},"type":"object"},"cache_control":{"type":"ephemeral"}}],` +
	`"tool_choice":{"type":"auto","disable_parallel_tool_use":true},"stream":true}`

func encode(t *testing.T, m *Model, req *llm.Request) string {
	t.Helper()
	raw, err := m.encode(req)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The exact bytes, the same each time; the vendor's own block as it came. I-13
func TestRequestBytes(t *testing.T) {
	m := model(t, Config{Caps: llm.Capabilities{PromptCache: true}})
	for range 3 {
		if got := encode(t, m, history()); got != wantHistory {
			t.Fatalf("got\n%s\nwant\n%s", got, wantHistory)
		}
	}
	// Another maker's state is not sent, whatever it holds.
	for _, other := range []*Model{model(t, Config{Name: "other"}), m} {
		req := history()
		if other == m {
			req.Model = "claude-other"
		}
		if got := encode(t, other, req); strings.Contains(got, "think") {
			t.Error(got)
		}
	}
}

// A longer history begins with the same turns, but for the marks of the cache:
// caches and signatures hang on it.
func TestStablePrefix(t *testing.T) {
	m := model(t, Config{Caps: llm.Capabilities{PromptCache: true}})
	turns := func(n int) string {
		req := history()
		req.Messages = req.Messages[:n]
		raw := encode(t, m, req)
		raw = strings.ReplaceAll(raw, `,"cache_control":{"type":"ephemeral"}`, "")
		_, list, _ := strings.Cut(raw, `"messages":[`)
		list, _, _ = strings.Cut(list, `],"tools"`)
		return strings.TrimRight(list, "]}")
	}
	whole := turns(len(history().Messages))
	for _, n := range []int{2, 4, 6} {
		if part := turns(n); !strings.HasPrefix(whole, part) {
			t.Errorf("%d messages:\n%s\nis not the beginning of\n%s", n, part, whole)
		}
	}
}

// At most four marks, on the system text, the last tool and the ends of the
// last two turns of the user.
func TestCacheMarks(t *testing.T) {
	m, stub := stubbed(t, Config{HostedTools: []canonjson.Value{search}, Caps: llm.Capabilities{PromptCache: true}}, ok)
	req := &llm.Request{System: "s", Tools: []llm.ToolDefinition{lookup, {Name: "other"}}}
	for i := range 20 {
		req.Messages = append(req.Messages, task(fmt.Sprint("q", i)), said(text("a")))
	}
	req.Messages = append(req.Messages, task("last"))
	if got := ask(t, m, req); got.Err != nil {
		t.Fatal(got)
	}
	r := stub.Requests()[0]
	if r.CacheMarks != 4 || !bytes.Contains(r.Body, []byte(`{"type":"text","text":"q19","cache_control"`)) || !bytes.Contains(r.Body, []byte(`{"type":"text","text":"last","cache_control"`)) ||
		bytes.Contains(r.Body, []byte(`"Look <it> up","input_schema":{"properties":{"q":{"type":"string"}},"type":"object"},"cache_control"`)) {
		t.Errorf("%d marks in %s", r.CacheMarks, r.Body)
	}
	if got := encode(t, model(t, Config{HostedTools: []canonjson.Value{search}}), req); strings.Contains(got, "cache_control") { // the server may not know them
		t.Errorf("marks without the capability: %s", got)
	}
}

// A turn that may call no tool is taken by the vendor and has no way to call
// one, whatever its history. C13, I-10
func TestNoTools(t *testing.T) {
	tests := []struct {
		name   string
		change func(*llm.Request, *Config)
		tools  []string
		choice string
	}{
		{"calls in the history", func(*llm.Request, *Config) {}, []string{"lookup"}, "none"},
		{"and hosted tools, without their blocks", func(_ *llm.Request, c *Config) { c.Name, c.HostedTools = "other", []canonjson.Value{search} }, []string{"lookup"}, "none"},
		{"and blocks bound to the hosted tools", func(_ *llm.Request, c *Config) { c.HostedTools = []canonjson.Value{search} }, []string{"web_search", "lookup"}, "none"},
		{"calls of tools that are no more", func(r *llm.Request, _ *Config) { r.Tools = nil }, []string{"lookup", "weird_name_"}, "none"},
		{"the same, when calls are allowed", func(r *llm.Request, _ *Config) { r.Tools, r.NoTools = nil, false }, []string{"lookup", "weird_name_"}, "none"},
		{"no calls in the history", func(r *llm.Request, c *Config) { r.Messages, c.HostedTools = hello.Messages, []canonjson.Value{search} }, nil, ""},
		{"when calls are allowed", func(r *llm.Request, c *Config) { r.NoTools, c.HostedTools = false, []canonjson.Value{search} }, []string{"web_search", "lookup"}, "auto"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := history()
			req.NoTools, req.Repair = true, 1
			cfg := Config{}
			tt.change(req, &cfg)
			for i := range req.Messages { // a signature that the stub takes
				for j := range req.Messages[i].Parts {
					if p := &req.Messages[i].Parts[j]; p.Maker == "anthropic/claude" {
						p.State = messagesstub.Thinking("x").JSON()
					}
				}
			}
			m, stub := stubbed(t, cfg, ok)
			if got := ask(t, m, req); got.Err != nil {
				t.Fatal(got)
			}
			r := stub.Requests()[0]
			if fmt.Sprint(r.Tools) != fmt.Sprint(tt.tools) || r.Choice != tt.choice || r.Serial != (tt.choice == "auto") {
				t.Errorf("%v %q %v", r.Tools, r.Choice, r.Serial)
			}
		})
	}
}

// Signed thinking, thinking that is signed only, and encrypted thinking go back
// as they came and where they stood; unsigned thinking and that of another
// maker does not. C37
func TestThinkingGoesBack(t *testing.T) {
	ts := "Step 1: <look> \u2028 \"up\"\n& go"
	first := reply{Blocks: blocks(
		messagesstub.Thinking(ts), messagesstub.Hidden("h"), messagesstub.Redacted("r"), messagesstub.Text("Let me see."),
		messagesstub.ToolUse("toolu_1", "lookup", `{"q":"1"}`), messagesstub.Thinking("between"), messagesstub.ToolUse("toolu_2", "lookup", `{}`),
	)}
	for _, mode := range []Config{{Effort: "high"}, {ReasoningBudget: 2048}, {}} {
		m, stub := stubbed(t, mode, first, reply{Blocks: blocks(messagesstub.Text("done"))})
		req := &llm.Request{Tools: []llm.ToolDefinition{lookup}, Messages: []llm.Message{task("hello")}}
		got := ask(t, m, req)
		if got.Err != nil || got.text(llm.ReasoningEnd) != ts+"between" {
			t.Fatal(got)
		}
		msg := got.message(maker, "a")
		msg.Parts = append([]llm.Content{{Kind: llm.Reasoning, Maker: maker, State: []byte(`{"type":"thinking","thinking":"never signed"}`)},
			{Kind: llm.Reasoning, Maker: maker, State: []byte(`no JSON`)}, {Kind: llm.Reasoning, Maker: maker}}, msg.Parts...)
		req.Messages = append(req.Messages, msg, results(msg))
		if got := ask(t, m, req); got.Err != nil || got.text(llm.TextEnd) != "done" {
			t.Fatal(got)
		}
		back := stub.Requests()[1].Messages[1].Blocks
		if len(back) != len(first.Blocks) {
			t.Fatalf("%d blocks", len(back))
		}
		for i, b := range first.Blocks {
			if want := string(b.JSON()); b["type"] != "tool_use" && string(back[i].Raw) != want && (b["type"] != "text" || !sameJSON(back[i].Raw, b.JSON())) {
				t.Errorf("block %d: %s, want %s", i, back[i].Raw, want)
			}
		}
		// On another model they are left out, not altered; and back again they stand as before.
		other := *req
		other.Model = "m2"
		if got := ask(t, m, &other); got.Err != nil {
			t.Fatal(got)
		}
		for _, b := range stub.Requests()[2].Messages[1].Blocks {
			if strings.Contains(b.Type, "thinking") {
				t.Errorf("%s", b.Raw)
			}
		}
		if mode.ReasoningBudget > 0 && stub.Requests()[2].Thinking != "" {
			t.Error("manual thinking on a tool turn of another maker")
		}
		if got := ask(t, m, req); got.Err != nil || len(stub.Requests()[3].Messages[1].Blocks) != len(first.Blocks) {
			t.Fatal(got)
		}
	}
}

// What the configuration asks of the thinking, and where the vendor cannot give it.
func TestThinkingConfig(t *testing.T) {
	tests := []struct {
		name     string
		cfg      Config
		req      llm.Request
		thinking string
		budget   int
		effort   string
		max      int
	}{
		{"nothing", Config{}, llm.Request{}, "", 0, "", DefaultMaxOutputTokens},
		{"effort", Config{Effort: "medium"}, llm.Request{}, "adaptive", 0, "medium", DefaultMaxOutputTokens},
		{"least effort", Config{Effort: "minimal"}, llm.Request{}, "", 0, "low", DefaultMaxOutputTokens},
		{"budget", Config{ReasoningBudget: 4000}, llm.Request{}, "enabled", 4000, "", DefaultMaxOutputTokens + 4000},
		{"both", Config{ReasoningBudget: 4000, Effort: "low"}, llm.Request{MaxOutputTokens: 9000}, "enabled", 4000, "low", 9000},
		{"little room", Config{ReasoningBudget: 4000}, llm.Request{MaxOutputTokens: 3000}, "enabled", 1500, "", 3000},
		{"less room", Config{ReasoningBudget: 4000}, llm.Request{MaxOutputTokens: 1100}, "enabled", 1024, "", 1100},
		{"no room", Config{ReasoningBudget: 4000}, llm.Request{MaxOutputTokens: 1024}, "", 0, "", 1024},
		{"configured", Config{MaxOutputTokens: 500}, llm.Request{}, "", 0, "", 500},
		{"known", Config{Caps: llm.Capabilities{Output: 64_000}}, llm.Request{}, "", 0, "", 64_000},
		{"known and asked for", Config{Caps: llm.Capabilities{Output: 64_000}, MaxOutputTokens: 5}, llm.Request{MaxOutputTokens: 100_000}, "", 0, "", 64_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, stub := stubbed(t, tt.cfg, ok)
			req := tt.req
			req.Messages = hello.Messages
			if got := ask(t, m, &req); got.Err != nil {
				t.Fatal(got)
			}
			if r := stub.Requests()[0]; r.Thinking != tt.thinking || r.Budget != tt.budget || r.Effort != tt.effort || r.MaxTokens != tt.max {
				t.Errorf("%q %d %q %d", r.Thinking, r.Budget, r.Effort, r.MaxTokens)
			}
		})
	}
	// Tool turns of another maker: adaptive thinking is taken, manual is not.
	req := history()
	req.Messages = req.Messages[:6]
	for _, cfg := range []Config{{Effort: "high", Name: "x"}, {ReasoningBudget: 2000, Name: "x"}} {
		req.MaxOutputTokens = 5000
		m, stub := stubbed(t, cfg, ok)
		if got := ask(t, m, req); got.Err != nil || (stub.Requests()[0].Thinking == "adaptive") != (cfg.Effort != "") {
			t.Error(got, stub.Requests()[0].Thinking)
		}
		// Behind a word of the user manual thinking is taken again.
		again := *req
		again.Messages = append(req.Messages[:6:6], said(text("x")), task("y"))
		if got := ask(t, m, &again); got.Err != nil || stub.Requests()[1].Thinking == "" {
			t.Error(got, stub.Requests()[1].Thinking)
		}
	}
	// The control of bound thinking goes with its beta only.
	m, _ := stubbed(t, Config{Effort: "high", Betas: []string{betaBinding}}, ok)
	if got := ask(t, m, hello); got.Err != nil || !strings.Contains(encode(t, m, hello), `"block_binding":{"prefix_mismatch_behavior":"drop_block"}`) {
		t.Error(got)
	}
}

// A pause goes back unchanged as the last message, and the next answer ends it. C40
func TestPause(t *testing.T) {
	cfg := Config{Effort: "high", HostedTools: []canonjson.Value{search}, Caps: llm.Capabilities{Structured: llm.StructuredSchema}}
	paused := reply{Stop: "pause_turn", Blocks: blocks(messagesstub.Thinking("t"), messagesstub.Text("Let me search. "), messagesstub.Hosted("srvtoolu_1", "web_search", `{"query":"x <&>"}`))}
	m, stub := stubbed(t, cfg, paused,
		reply{Stop: "pause_turn", Blocks: blocks(messagesstub.Found("srvtoolu_1", "https://x.test/"), messagesstub.Text("More. "), messagesstub.Hosted("srvtoolu_2", "web_search", `{"query":"y"}`))},
		reply{Blocks: blocks(messagesstub.Found("srvtoolu_2", "https://y.test/"), messagesstub.Cited("It is cold.", "https://y.test/"))}, ok)
	req := &llm.Request{Messages: []llm.Message{task("weather?")}, Output: canonjson.Value(`{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}`)}
	first := ask(t, m, req)
	if first.Err != nil || first.Reason != llm.FinishPause || first.of(llm.HostedCall)[0].ID != "srvtoolu_1" {
		t.Fatal(first)
	}
	req.Messages = append(req.Messages, first.message(maker, "a"))
	req.Continues = true
	second := ask(t, m, req)
	if second.Err != nil || second.Reason != llm.FinishPause {
		t.Fatal(second)
	}
	last := stub.Requests()[1].Messages
	if n := len(last); n != 2 || last[1].Role != "assistant" || len(last[1].Blocks) != 3 {
		t.Fatalf("%s", stub.Requests()[1].Body)
	}
	for i, b := range paused.Blocks {
		if string(last[1].Blocks[i].Raw) != string(b.JSON()) && (i != 1 || !sameJSON(last[1].Blocks[i].Raw, b.JSON())) {
			t.Errorf("block %d: %s, want %s", i, last[1].Blocks[i].Raw, b.JSON())
		}
	}
	req.Messages = append(req.Messages, second.message(maker, "b"))
	third := ask(t, m, req)
	if third.Err != nil || third.Reason != llm.FinishStop || third.of(llm.HostedResult)[0].ID != "srvtoolu_2" {
		t.Fatal(third)
	}
	// The conversation goes on, with all of it in its place.
	req.Messages, req.Continues = append(req.Messages, third.message(maker, "c"), task("thanks")), false
	if got := ask(t, m, req); got.Err != nil {
		t.Fatal(got)
	}
	if turns := stub.Requests()[3].Messages; len(turns) != 3 || len(turns[1].Blocks) != 8 || !strings.Contains(string(turns[1].Blocks[7].Raw), `"citations":[{`) {
		t.Errorf("%s", stub.Requests()[3].Body)
	}
	// Where the answer to the pause never came, its open call is left out.
	req.Messages = []llm.Message{task("weather?"), first.message(maker, "a"), task("never mind")}
	if got := ask(t, m, req); got.Err != nil || strings.Contains(string(stub.Requests()[4].Body), "srvtoolu_1") {
		t.Errorf("%v %s", got, stub.Requests()[4].Body)
	}
	// On another model the pause is no pause: what was said stands, and the model is asked to go on.
	req.Messages, req.Continues, req.Model = req.Messages[:2], true, "m2"
	if got := ask(t, m, req); got.Err != nil || !strings.Contains(string(stub.Requests()[5].Body), textGoOn) {
		t.Errorf("%v %s", got, stub.Requests()[5].Body)
	}
}

func sameJSON(a, b []byte) bool {
	x, err := canonjson.Canonicalize(a, stateLimits())
	y, err2 := canonjson.Canonicalize(b, stateLimits())
	return err == nil && err2 == nil && x.Equal(y)
}

// Code under way keeps its container, and the id and caller of the calls that
// it makes, over several tool turns.
func TestCodeUnderWay(t *testing.T) {
	code := canonjson.Value(`{"name":"code_execution","type":"code_execution_20260120"}`)
	m, stub := stubbed(t, Config{HostedTools: []canonjson.Value{code}},
		reply{Container: "container_1", Blocks: blocks(messagesstub.Hosted("srvtoolu_1", "code_execution", `{"code":"x"}`), messagesstub.CodeUse("toolu_1", "lookup", `{"q":"1"}`, "srvtoolu_1"))},
		reply{Container: "container_1", Blocks: blocks(messagesstub.CodeUse("toolu_2", "lookup", `{"q":"2"}`, "srvtoolu_1"))},
		reply{Container: "container_1", Blocks: blocks(messagesstub.Ran("srvtoolu_1", "42"), messagesstub.Text("42"))}, ok)
	req := &llm.Request{Tools: []llm.ToolDefinition{lookup}, Messages: []llm.Message{task("compute")}}
	for i := range 4 {
		got := ask(t, m, req)
		if got.Err != nil {
			t.Fatal(i, got)
		}
		r := stub.Requests()[i]
		if (r.Container == "container_1") != (i > 0) {
			t.Errorf("request %d: container %q", i, r.Container)
		}
		msg := got.message(maker, fmt.Sprint(i))
		req.Messages = append(req.Messages, msg)
		if res := results(msg); res.Parts != nil {
			req.Messages = append(req.Messages, res)
		} else {
			req.Messages = append(req.Messages, task("go on"))
		}
	}
	if b := stub.Requests()[2].Messages[1].Blocks; b[1].ID != "toolu_1" || b[1].Caller != "srvtoolu_1" || b[0].Type != "server_tool_use" {
		t.Errorf("%s", stub.Requests()[2].Body)
	}
	// A word of the user ends it: the open call goes, and the caller with it.
	req.Messages = append(req.Messages[:3:3], task("stop"))
	if got := ask(t, m, req); got.Err != nil || strings.Contains(string(stub.Requests()[4].Body), "srvtoolu_1") {
		t.Errorf("%v %s", got, stub.Requests()[4].Body)
	}
	// A container that has ended is not named.
	if (&boxState{ID: "c", Expires: "2020-01-01T00:00:00Z"}).alive(noon) || !(&boxState{ID: "c", Expires: "2030-01-01T00:00:00Z"}).alive(noon) || !(&boxState{ID: "c"}).alive(noon) {
		t.Error("alive")
	}
}

// Calls whose results were lost come back as results that say so; each call
// keeps exactly one, in order. C45
func TestPairing(t *testing.T) {
	m, stub := stubbed(t, Config{}, reply{Blocks: blocks(messagesstub.ToolUse("c1", "read", "{}"), messagesstub.ToolUse("c2", "charge", `{"cents":5}`))}, ok)
	req := &llm.Request{Tools: []llm.ToolDefinition{{Name: "read"}, {Name: "charge"}}, Messages: []llm.Message{task("pay")}}
	msg := ask(t, m, req).message(maker, "a")
	lost := llm.Content{Kind: llm.ToolResult, CallID: msg.Parts[1].CallID, Text: "Tool execution interrupted", IsError: true}
	req.Messages = append(req.Messages, msg, answered(lost, result(msg.Parts[0].CallID, "r")), task("go on"))
	if got := ask(t, m, req); got.Err != nil {
		t.Fatal(got)
	}
	b := stub.Requests()[1].Messages[2].Blocks
	if len(b) != 3 || b[0].ToolUseID != msg.Parts[0].CallID || b[0].IsError || b[1].ToolUseID != msg.Parts[1].CallID || !b[1].IsError || b[2].Text != "go on" {
		t.Errorf("%s", stub.Requests()[1].Body)
	}
	// One id in two messages still gives two ids on the wire. C21
	twice := &llm.Request{Tools: req.Tools, Messages: []llm.Message{task("x"), said(called("call_x", "read", "{}")), answered(result("call_x", "1")), said(called("call_x", "read", "{}")), answered(result("call_x", "2"))}}
	if got := ask(t, m, twice); got.Err != nil {
		t.Error(got)
	}
}

// A history whose calls and results do not pair is never sent. I-13
func TestBrokenRequests(t *testing.T) {
	calls := said(called("a", "f", "{}"), called("b", "f", "{}"))
	file := func(kind llm.ContentKind, media string, data []byte) llm.Message {
		return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: kind, MediaType: media, Data: data}}}
	}
	for name, list := range map[string][]llm.Message{
		"no result":        {calls},
		"half":             {calls, answered(result("a", "x"))},
		"foreign":          {calls, answered(result("a", "x"), result("b", "x"), result("c", "x"))},
		"twice":            {calls, answered(result("a", "x"), result("b", "x"), result("a", "x"))},
		"text between":     {calls, task("x"), answered(result("a", "x"), result("b", "x"))},
		"result first":     {answered(result("a", "x"))},
		"one id two calls": {said(called("a", "f", "{}"), called("a", "f", "{}"))},
		"unknown role":     {{Role: "narrator"}},
		"nothing":          {},
		"blanks":           {task(" \n"), said(text(""))},
		"an image":         {file(llm.Image, "image/png", []byte("\x89PNG"))},
		"a PDF":            {file(llm.File, "application/pdf", []byte("%PDF"))},
		"a text file":      {file(llm.File, "text/plain", []byte("x"))},
		"an odd file":      {file(llm.File, "audio/wav", []byte("x"))},
	} {
		sent := false
		h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent = true })
		got := ask(t, model(t, Config{HTTP: over(t, h)}), &llm.Request{Messages: list})
		if got.Err == nil || got.Err.Class != llm.InvalidRequest || sent {
			t.Errorf("%s: %v, sent %v", name, got, sent)
		}
	}
	huge := &llm.Request{Messages: []llm.Message{task(strings.Repeat("x", MaxRequest))}}
	if _, err := model(t, Config{}).encode(huge); err == nil {
		t.Error("a huge request")
	}
	caps := llm.Capabilities{Images: true}
	if _, err := model(t, Config{Caps: caps}).encode(&llm.Request{Messages: []llm.Message{file(llm.Image, "image/png", nil)}}); err == nil {
		t.Error("an empty file")
	}
}

func TestFiles(t *testing.T) {
	m, stub := stubbed(t, Config{Caps: llm.Capabilities{Images: true, PDF: true}}, ok)
	files := map[string]string{"image/png": "\x89PNG\r\n", "image/jpeg": "\xff\xd8\xff", "image/gif": "GIF89a", "image/webp": "RIFF\x00\x00\x00\x00WEBP", "application/pdf": "%PDF-1.7 \xff"}
	msg := llm.Message{Role: llm.User, Parts: []llm.Content{text("Look:")}}
	var order []string
	for media, data := range files {
		kind := llm.Image
		if media == "application/pdf" {
			kind = llm.File
		}
		order = append(order, media)
		msg.Parts = append(msg.Parts, llm.Content{Kind: kind, MediaType: media, Data: []byte(data), Name: "a\xff.pdf"})
	}
	if got := ask(t, m, &llm.Request{Messages: []llm.Message{msg}}); got.Err != nil {
		t.Fatal(got)
	}
	for i, b := range stub.Requests()[0].Messages[0].Blocks[1:] {
		if b.MediaType != order[i] || b.Data != base64.StdEncoding.EncodeToString([]byte(files[order[i]])) || (b.Type == "document") != (b.MediaType == "application/pdf") {
			t.Errorf("%s", b.Raw)
		}
	}
}

// The schema goes where the vendor can take it, in its words; the tool schemas
// always do. C09
func TestSchemas(t *testing.T) {
	contract := canonjson.Value(`{"additionalProperties":false,"properties":{"count":{"type":"number"},"status":{"type":"string"},"tags":{"items":{"type":"string"},"type":"array"}},"required":["status","count"],"type":"object"}`)
	mcp := canonjson.Value(`{"$schema":"http://json-schema.org/draft-07/schema#","additionalProperties":false,"properties":{"limit":{"default":5,"type":["integer","null"]},"q":{"type":["string","null"]}},"type":"object"}`)
	union := canonjson.Value(`{"anyOf":[{"properties":{"a":{"type":"string"}},"type":"object"},{"properties":{"b":{"type":"string"}},"type":"object"}]}`)
	for _, tt := range []struct {
		mode   llm.Structured
		schema canonjson.Value
		want   bool
	}{
		{llm.StructuredSchema, contract, true}, {llm.StructuredObject, contract, false}, {llm.StructuredNone, contract, false}, {"", contract, false},
		{llm.StructuredSchema, nil, false}, {llm.StructuredSchema, canonjson.Value(`{"additionalProperties":true,"type":"object"}`), false},
	} {
		m, stub := stubbed(t, Config{Caps: llm.Capabilities{Structured: tt.mode}}, ok)
		req := &llm.Request{Messages: hello.Messages, Output: tt.schema, Tools: []llm.ToolDefinition{
			{Name: "mcp", InputSchema: mcp}, {Name: "union", InputSchema: union}, {Name: "none"}, {Name: "string", InputSchema: canonjson.Value(`{"type":"string"}`)},
		}}
		if got := ask(t, m, req); got.Err != nil || (stub.Requests()[0].Format != nil) != tt.want {
			t.Errorf("%s %s: %v %s", tt.mode, tt.schema, got, stub.Requests()[0].Format)
		}
	}
}

// MCP servers that the vendor calls go where it wants them, with their beta.
func TestMCPServers(t *testing.T) {
	tools := []canonjson.Value{
		canonjson.Value(`{"authorization_token":"tok-secret-value","name":"docs","type":"url","url":"https://mcp.test/sse"}`),
		canonjson.Value(`{"mcp_server_name":"docs","type":"mcp_toolset"}`),
	}
	m, stub := stubbed(t, Config{HostedTools: tools, Betas: []string{"other-2026-01-01"}},
		reply{Blocks: blocks(messagesstub.Block{"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "docs", "input": map[string]any{"q": "x"}},
			messagesstub.Block{"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": false, "content": []any{messagesstub.Block{"type": "text", "text": "t"}}}, messagesstub.Text("ok"))},
		messagesstub.Error(400, "invalid_request_error", "MCP server refused tok-secret-value"))
	req := &llm.Request{Messages: []llm.Message{task("x")}}
	got := ask(t, m, req)
	if calls := got.of(llm.HostedCall); got.Err != nil || len(calls) != 1 || calls[0].Name != "find" || calls[0].Text != `{"q":"x"}` {
		t.Fatal(got)
	}
	if h := stub.Requests()[0].Header.Get("Anthropic-Beta"); h != "other-2026-01-01,"+betaMCP {
		t.Error(h)
	}
	req.Messages = append(req.Messages, got.message(maker, "a"), task("y"))
	again := ask(t, m, req)
	if again.Err == nil || strings.Contains(again.Err.Error(), "secret") || len(stub.Requests()[1].Messages[1].Blocks) != 3 {
		t.Error(again)
	}
	req.NoTools, req.Messages = true, req.Messages[:1]
	if raw := encode(t, m, req); strings.Contains(raw, "mcp") {
		t.Error(raw)
	}
}

func TestNewChecks(t *testing.T) {
	for _, bad := range []string{"vendor.test/v1", "ftp://vendor.test", "http://", "http://u:p@vendor.test", "http://vendor.test/?k=1", "http://vendor.test/#x", "http://[::1"} {
		if _, err := New(Config{BaseURL: bad}); err == nil || !strings.HasPrefix(err.Error(), "base_url: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for base, want := range map[string]string{
		"http://vendor.test/": "http://vendor.test/v1/messages", "https://vendor.test/v1/": "https://vendor.test/v1/messages", "https://vendor.test/v1": "https://vendor.test/v1/messages",
		"": "https://api.anthropic.com/v1/messages", "https://gate.test/anthropic": "https://gate.test/anthropic/v1/messages",
	} {
		if m, err := New(Config{BaseURL: base}); err != nil || m.url != want {
			t.Errorf("%q: %v %v", base, m, err)
		}
	}
	for want, cfg := range map[string]Config{
		"reasoning.effort: ": {Effort: "huge"}, "reasoning.budget: ": {ReasoningBudget: 1000}, "max_output_tokens: ": {MaxOutputTokens: -1}, "betas: ": {Betas: []string{"a\nb"}},
		"hosted_tools[0]: want an object": {HostedTools: []canonjson.Value{canonjson.Value(`[]`)}}, "hosted_tools[0]: want the type": {HostedTools: []canonjson.Value{canonjson.Value(`{"name":"x"}`)}},
		"hosted_tools[0]: a tool of type `bash_20250124`": {HostedTools: []canonjson.Value{canonjson.Value(`{"name":"bash","type":"bash_20250124"}`)}},
		"hosted_tools[1]: want no cache_control":          {HostedTools: []canonjson.Value{search, canonjson.Value(`{"cache_control":{},"type":"web_search_20250305"}`)}},
	} {
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// The key is read for each call, and is nowhere but in its header. I-33
func TestKey(t *testing.T) {
	stub := messagesstub.New(messagesstub.Replies(ok))
	keys := []string{"first", "second", ""}
	m := model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { k := keys[0]; keys = keys[1:]; return k, nil }})
	for i := range 3 {
		if got := ask(t, m, hello); (got.Err == nil) != (i < 2) {
			t.Fatal(got)
		}
	}
	for i, want := range []string{"first", "second", ""} {
		h := stub.Requests()[i].Header
		if h.Get("X-Api-Key") != want || h.Get("Accept-Encoding") != "identity" || h.Get("Anthropic-Version") != version || h.Get("Authorization") != "" {
			t.Errorf("%d: %v", i, h)
		}
	}
	for _, key := range []func() (string, error){
		func() (string, error) { return "", errors.New("open /secret/path") },
		func() (string, error) { return "a\nb", nil },
	} {
		got := ask(t, model(t, Config{APIKey: key}), hello)
		if got.Err == nil || got.Err.Class != llm.Auth || strings.Contains(got.Err.Message, "secret") {
			t.Error(got)
		}
	}
}

// The same connection serves the next request, and a redirect is not followed.
func TestConnection(t *testing.T) {
	stub := messagesstub.New(messagesstub.Replies(ok))
	addrs, redirect, calls := map[string]bool{}, false, 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if addrs[r.RemoteAddr] = true; redirect {
			http.Redirect(w, r, "/other", http.StatusPermanentRedirect)
			return
		}
		stub.ServeHTTP(w, r)
	}))
	defer s.Close()
	m := model(t, Config{BaseURL: s.URL, HTTP: pieces.Local(s.URL)})
	for range 5 {
		if got := ask(t, m, hello); got.Err != nil {
			t.Fatal(got)
		}
	}
	redirect = true
	if got := ask(t, m, hello); got.Err == nil || got.Err.Class != llm.InvalidRequest || calls != 6 || len(addrs) != 1 {
		t.Error(got, calls, addrs)
	}
	m.CloseIdle()
}

// Any conversation that the engine may hold is taken by the vendor.
func TestAnyConversation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{
			Caps:            llm.Capabilities{Images: true, PDF: true, Structured: llm.StructuredSchema},
			Effort:          rapid.SampledFrom([]string{"", "minimal", "high"}).Draw(rt, "effort"),
			ReasoningBudget: rapid.SampledFrom([]int{0, 1024, 5000}).Draw(rt, "budget"),
		}
		if rapid.Bool().Draw(rt, "hosted") {
			cfg.HostedTools = []canonjson.Value{search, canonjson.Value(`{"name":"code_execution","type":"code_execution_20250825"}`)}
		}
		g := &generator{rt: rt}
		req := &llm.Request{
			System: g.text("system"), NoTools: rapid.Bool().Draw(rt, "no tools"), SerialTools: rapid.Bool().Draw(rt, "serial"),
			MaxOutputTokens: rapid.SampledFrom([]int{0, 100, 1025, 9000}).Draw(rt, "max"),
			Tools:           []llm.ToolDefinition{lookup, {Name: "other"}}[:rapid.IntRange(0, 2).Draw(rt, "tools")],
			Output:          canonjson.Value(`{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}`),
		}
		req.Messages = append(g.conversation(), task("last"))
		if rapid.Bool().Draw(rt, "paused") {
			req.Continues = true
			req.Messages = append(req.Messages, g.pause())
		}
		stub := messagesstub.New(messagesstub.Replies(ok))
		raw, err := model(rt, cfg).encode(req)
		if err != nil {
			rt.Fatal(err)
		}
		hr := httptest.NewRequest("POST", "/v1/messages", bytes.NewReader(raw))
		for name, value := range map[string]string{"X-Api-Key": "k", "Anthropic-Version": version, "Content-Type": "application/json"} {
			hr.Header.Set(name, value)
		}
		stub.ServeHTTP(httptest.NewRecorder(), hr)
		if v := stub.Violations(); len(v) > 0 {
			rt.Fatalf("%v\n%s", v, raw)
		}
		turns := stub.Requests()[0].Messages
		for i := 1; i < len(turns); i++ {
			if turns[i].Role == turns[i-1].Role {
				rt.Fatalf("two turns of one role: %s", raw)
			}
		}
	})
}

// generator draws conversations as the engine keeps them.
type generator struct {
	rt *rapid.T
	n  int
}

func (g *generator) text(label string) string {
	return rapid.OneOf(rapid.SampledFrom([]string{"", " \n", "x ", "{}", "\xff\u2028<&>", "\x00"}), rapid.String()).Draw(g.rt, label)
}

func (g *generator) maker() string {
	return rapid.SampledFrom([]string{maker, maker, "openai/gpt", "anthropic/other"}).Draw(g.rt, "maker")
}

func (g *generator) conversation() []llm.Message {
	var out []llm.Message
	for range rapid.IntRange(0, 6).Draw(g.rt, "messages") {
		switch rapid.IntRange(0, 2).Draw(g.rt, "kind") {
		case 0:
			out = append(out, g.user())
		default:
			msg := g.assistant()
			out = append(out, msg)
			if res := results(msg); res.Parts != nil {
				if rapid.Bool().Draw(g.rt, "empty result") {
					res.Parts[0].Text, res.Parts[0].IsError = g.text("result"), rapid.Bool().Draw(g.rt, "failed")
				}
				out = append(out, res)
			}
		}
	}
	return out
}

// pause is what the vendor said before it paused: it begins with thinking, as
// its answers do.
func (g *generator) pause() llm.Message {
	var msg llm.Message
	own := g.maker()
	for _, b := range []messagesstub.Block{
		messagesstub.Thinking("t"), messagesstub.Text("Let me search. "), messagesstub.Hosted("srvtoolu_p", "web_search", `{"query":"x"}`),
		messagesstub.Found("srvtoolu_p", "https://x.test/"), messagesstub.Text(g.text("more") + "more \n"),
	}[:rapid.IntRange(0, 5).Draw(g.rt, "said")] {
		c := llm.Content{Kind: llm.Hosted, Maker: own, State: b.JSON()}
		if b["type"] == "text" {
			c = text(b["text"].(string))
		}
		msg.Parts = append(msg.Parts, c)
	}
	msg.Role = llm.Assistant
	return msg
}

func (g *generator) user() llm.Message {
	msg := llm.Message{Role: llm.User}
	for range rapid.IntRange(1, 3).Draw(g.rt, "parts") {
		switch rapid.IntRange(0, 3).Draw(g.rt, "part") {
		case 0:
			msg.Parts = append(msg.Parts, llm.Content{Kind: llm.Image, MediaType: "image/png", Data: []byte("\x89PNG")})
		case 1:
			msg.Parts = append(msg.Parts, llm.Content{Kind: llm.File, MediaType: "application/pdf", Data: []byte("%PDF"), Name: g.text("name")})
		default:
			msg.Parts = append(msg.Parts, text(g.text("text")))
		}
	}
	return msg
}

func (g *generator) assistant() llm.Message {
	msg := llm.Message{Role: llm.Assistant}
	own := g.maker()
	state := func(kind llm.ContentKind, b messagesstub.Block) {
		raw := []byte(b.JSON())
		if own == "openai/gpt" {
			raw = []byte(`{"id":"rs_1","encrypted":"x"}`)
		}
		msg.Parts = append(msg.Parts, llm.Content{Kind: kind, Maker: own, State: raw})
	}
	for range rapid.IntRange(0, 5).Draw(g.rt, "parts") {
		g.n++
		id := fmt.Sprintf("srvtoolu_%d", g.n)
		switch rapid.IntRange(0, 8).Draw(g.rt, "part") {
		case 0:
			state(llm.Reasoning, messagesstub.Thinking(strings.ToValidUTF8(g.text("thought"), "?")))
		case 1:
			state(llm.Reasoning, messagesstub.Hidden("h"))
		case 2:
			state(llm.Reasoning, messagesstub.Redacted("r"))
		case 3: // never signed
			state(llm.Reasoning, messagesstub.Block{"type": "thinking", "thinking": "x", "signature": ""})
		case 4:
			state(llm.Hosted, messagesstub.Hosted(id, "web_search", `{"query":"x"}`))
			for range rapid.IntRange(1, 2).Draw(g.rt, "results") {
				state(llm.Hosted, messagesstub.Found(id, "https://x.test/"))
			}
		case 5: // cut before the result
			state(llm.Hosted, messagesstub.Hosted(id, "web_search", `{"query":"x"}`))
		case 6:
			state(llm.Hosted, messagesstub.Found(id, "https://x.test/"))
		case 7:
			cid := rapid.SampledFrom([]string{"call_%d", "call with blanks %d", "\u4e16%d"}).Draw(g.rt, "id")
			msg.Parts = append(msg.Parts, called(fmt.Sprintf(cid, g.n), g.text("name"), g.text("arguments")))
		default:
			msg.Parts = append(msg.Parts, text(g.text("text")))
		}
	}
	return msg
}

// Whatever the history holds, what is sent is strict JSON.
func FuzzRequest(f *testing.F) {
	f.Add("system", "user", "name", `{"a":1}`, "result", []byte(thought))
	f.Add("\xff", "\x00", "n n", `{"a":`, "", []byte("x"))
	f.Add("", "", "", "", "", []byte(`{"type":"holdfast_container","id":"c"}`))
	f.Fuzz(func(t *testing.T, system, user, name, args, res string, state []byte) {
		own := llm.Content{Kind: llm.Hosted, State: state, Maker: maker}
		cited := llm.Content{Kind: llm.Text, Text: "x" + user, State: state, Maker: maker}
		call := called("a", name, args)
		call.State, call.Maker = state, maker
		req := &llm.Request{Model: "m", System: system, Tools: []llm.ToolDefinition{lookup}, Messages: []llm.Message{
			task("x" + user), said(own, text(user), cited, call), answered(result("a", res)),
		}}
		raw, err := model(t, Config{HostedTools: []canonjson.Value{search}}).encode(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := canonjson.Parse(raw, stateLimits()); err != nil || !json.Valid(raw) {
			t.Fatalf("%v: %s", err, raw)
		}
	})
}

package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"github.com/holdfast-dev/holdfast/internal/provider/responsesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

func says(s string) llm.Content { return llm.Content{Kind: llm.Text, Text: s} }

func called(id, name, args string) llm.Content {
	return llm.Content{Kind: llm.ToolCall, CallID: id, Name: name, Text: args}
}

func result(id, s string) llm.Content {
	return llm.Content{Kind: llm.ToolResult, CallID: id, Text: s}
}

var (
	lookup   = llm.ToolDefinition{Name: "lookup", Description: "Look <it> up", InputSchema: canonjson.Value(`{"properties":{"q":{"type":"string"}},"type":"object"}`)}
	contract = canonjson.Value(`{"additionalProperties":false,"properties":{"count":{"type":"number"},"status":{"type":"string"},"tags":{"items":{"type":"string"},"type":"array"}},"required":["status","count"],"type":"object"}`)
	search   = canonjson.Value(`{"type":"web_search"}`)
)

// history is a conversation with two parallel calls whose results stand in
// another order, a repair turn, and state of this maker and of another.
func history() *llm.Request {
	own, foreign := "openai/gpt-5", "anthropic/claude"
	return &llm.Request{
		Model: "gpt-5", System: "Be brief & <kind>.", SessionID: "ses_1",
		Tools: []llm.ToolDefinition{lookup}, SerialTools: true, MaxOutputTokens: 100,
		Messages: []llm.Message{
			task("one"), task("two"),
			{Role: llm.Assistant, Parts: []llm.Content{
				{Kind: llm.Reasoning, Maker: own, State: []byte(`{ "type":"reasoning", "id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"a \u003cb\u003e"}]}`)},
				{Kind: llm.Reasoning, Maker: foreign, State: []byte(`{"type":"thinking","signature":"foreign"}`)},
				{Kind: llm.Text, Text: "Let me see.", Maker: own, State: []byte(`{"phase":"commentary"}`)},
				called("call_a", "lookup", `{"q":"1"}`), called("call b!", "weird name!", `{"q"`),
				{Kind: llm.Hosted, Maker: foreign, State: []byte(`{"type":"server_tool_use"}`)},
			}},
			{Role: llm.Tool, Parts: []llm.Content{result("call b!", ""), result("call_a", "found")}},
			{Role: llm.Assistant, Parts: []llm.Content{called("call_c", "lookup", `{}`)}},
			{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, CallID: "call_c", IsError: true}}},
			{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.Text, Text: `{"status":"ok"}`, Maker: foreign, State: []byte(`{"phase":"x"}`)}}},
			task("Only the corrected JSON."),
			{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.Reasoning, Maker: own, State: []byte(`{"type":"reasoning","id":"rs_2","summary":[],"content":[{"type":"reasoning_text","text":"alone"}]}`)}}},
			task("And \xff now."),
		},
	}
}

const wantHistory = `{"model":"gpt-5","instructions":"Be brief & <kind>.","input":[` +
	`{"type":"message","role":"user","content":[{"type":"input_text","text":"one"},{"type":"input_text","text":"two"}]},` +
	`{ "type":"reasoning", "id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"a \u003cb\u003e"}]},` +
	`{"type":"message","role":"assistant","phase":"commentary","content":"Let me see."},` +
	`{"type":"function_call","call_id":"call_a","name":"lookup","arguments":"{\"q\":\"1\"}"},` +
	`{"type":"function_call","call_id":"call_29e6b180ec2e6a9b1266e484e8c61b7b","name":"weird_name_","arguments":"{}"},` +
	`{"type":"function_call_output","call_id":"call_a","output":"found"},` +
	`{"type":"function_call_output","call_id":"call_29e6b180ec2e6a9b1266e484e8c61b7b","output":"(no output)"},` +
	`{"type":"function_call","call_id":"call_c","name":"lookup","arguments":"{}"},` +
	`{"type":"function_call_output","call_id":"call_c","output":"(the tool failed and gave no message)"},` +
	`{"type":"message","role":"assistant","content":"{\"status\":\"ok\"}"},` +
	`{"type":"message","role":"user","content":[{"type":"input_text","text":"Only the corrected JSON."},{"type":"input_text","text":"And ` + "\uFFFD" + ` now."}]}],` +
	`"tools":[{"type":"function","name":"lookup","description":"Look <it> up","parameters":{"properties":{"q":{"type":"string"}},"type":"object"},"strict":false}],` +
	`"parallel_tool_calls":false,"max_output_tokens":100,"include":["reasoning.encrypted_content"],"prompt_cache_key":"ses_1","store":false,"stream":true}`

// The exact bytes, the same each time; state of ours as it came. I-13
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
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok"}))
	if got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), history()); got.Err != nil || len(stub.Violations()) > 0 {
		t.Error(got, stub.Violations())
	}
	if r := stub.Requests()[0]; r.Path != "/v1/responses" || r.CacheKey != "ses_1" {
		t.Errorf("%+v", r)
	}
	// Another maker's state is not sent, whatever it holds.
	for _, other := range []*Model{model(t, Config{Name: "other"}), model(t, Config{Model: "gpt-4"})} {
		req := history()
		if other.cfg.Name == "openai" {
			req.Model = ""
		}
		if got, _ := other.encode(req); bytes.Contains(got, []byte("rs_1")) || bytes.Contains(got, []byte("phase")) {
			t.Errorf("%s", got)
		}
	}
}

// What the vendor gave with an answer goes back byte for byte and in place:
// reasoning, hosted tools, the phase of a text. I-17, C37
func TestStateGoesBack(t *testing.T) {
	reply := responsesstub.Reply{
		Thoughts: []string{"Step 1: <look> \u2028 \"up\"\n& go"},
		Hosted: []string{
			`{"type":"mcp_list_tools","id":"mcpl_1","server_label":"dice","tools":[{"name":"roll","input_schema":{"type":"object"}}]}`,
			`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"a < b & c"}}`,
			`{"type":"mcp_call","id":"mcp_1","status":"completed","name":"roll","server_label":"dice","arguments":"{\"n\":2}","output":"7"}`,
			`{"type":"mcp_call","id":"mcp_2","status":"failed","name":"roll","server_label":"dice","arguments":"{}","error":"no dice"}`,
			`{"type":"file_search_call","id":"fs_1","status":"completed","queries":["x"],"results":[{"file_id":"f"},{"file_id":"g"}]}`,
			`{"type":"image_generation_call","id":"ig_1","status":"completed","result":"aGVsbG8=","revised_prompt":"a cat"}`,
		},
		Text: "Let me see.", Phase: "commentary", Calls: []responsesstub.Call{{Name: "lookup", Arguments: "{}"}},
	}
	for _, how := range []string{"stream", "done events only", "plain"} {
		r := reply
		r.DoneOnly, r.Plain = how == "done events only", how == "plain"
		stub := responsesstub.New(responsesstub.Replies(r, responsesstub.Reply{Text: "done"}))
		m := model(t, Config{HTTP: over(t, stub)})
		first := ask(t, t.Context(), m, &llm.Request{Messages: hello.Messages, Tools: []llm.ToolDefinition{lookup}})
		if first.Err != nil || first.Reasoning != reply.Thoughts[0] || len(first.Calls) != 1 {
			t.Fatal(first)
		}
		hosted := []string{
			`call mcp_list_tools mcpl_1 {"server_label":"dice"}`, `result mcpl_1  false`,
			`call web_search ws_1 {"query":"a < b & c","type":"search"}`, `result ws_1  false`,
			`call mcp.dice.roll mcp_1 {"n":2}`, `result mcp_1 7 false`,
			`call mcp.dice.roll mcp_2 {}`, `result mcp_2 no dice true`,
			`call file_search fs_1 {"queries":["x"]}`, `result fs_1 2 results false`,
			`call image_generation ig_1 {"prompt":"a cat"}`, `result ig_1  false`,
		}
		if !slices.Equal(first.Hosted, hosted) {
			t.Errorf("%s: %q", how, first.Hosted)
		}
		call := first.Parts[len(first.Parts)-1].CallID
		next := &llm.Request{Messages: []llm.Message{task("hello"), {Role: llm.Assistant, Parts: first.Parts}, {Role: llm.Tool, Parts: []llm.Content{result(call, "found")}}}}
		if got := ask(t, t.Context(), m, next); got.Err != nil || got.Text != "done" {
			t.Fatal(got, stub.Violations())
		}
		// Byte for byte as it came, and in place.
		body := string(stub.Requests()[1].Body)
		last := 0
		for _, p := range first.Parts {
			if p.State == nil || p.Kind == llm.Text {
				continue
			}
			at := strings.Index(body, string(p.State))
			if at < last {
				t.Errorf("%s: %s is not in its place in\n%s", how, p.State, body)
			}
			last = at
		}
		in := stub.Requests()[1].Input
		if len(in) != 11 || in[8].Text != "Let me see." || in[8].Phase != "commentary" || in[9].CallID != call {
			t.Errorf("%s: %+v", how, in)
		}
		// For another model it is left out, not altered.
		other := model(t, Config{HTTP: over(t, stub), Model: "m2"})
		if got := ask(t, t.Context(), other, next); got.Err != nil {
			t.Error(got, stub.Violations())
		}
		if in := stub.Requests()[2].Input; len(in) != 4 || in[1].Text != "Let me see." || in[1].Phase != "" {
			t.Errorf("%+v", in)
		}
	}
}

// What is open at the end, or waits for the caller, has no result and is not
// sent back; nor is reasoning that the vendor could not read again.
func TestOpenItems(t *testing.T) {
	open := `{"type":"web_search_call","id":"ws_1","status":"in_progress"}`
	for name, tt := range map[string]struct {
		body   string
		hosted []string
	}{
		"open at the end":  {events(`{"type":"response.output_item.added","output_index":0,"item":`+open+`}`, `{"type":"response.incomplete","response":{"status":"incomplete","output":[`+open+`]}}`), []string{"call web_search ws_1 "}},
		"cut":              {events(`{"type":"response.incomplete","response":{"output":[{"type":"code_interpreter_call","id":"ci","status":"incomplete","code":"x"}]}}`), []string{`call code_interpreter ci {"code":"x"}`}},
		"for the caller":   {events(done(`{"type":"custom_tool_call","id":"ct","name":"x","input":"y","status":"completed"}`)), []string{"call custom_tool ct "}},
		"approval":         {events(done(`{"type":"mcp_approval_request","id":"ap","name":"x","arguments":"{}","server_label":"s"}`)), []string{"call mcp_approval_request ap {}"}},
		"no sealed part":   {events(done(`{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"a"}]}`)), nil},
		"not strict JSON":  {events(done(`{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"x","encrypted_content":"y"}`)), nil},
		"lone surrogate":   {events(done(`{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"\ud83d"}`)), nil},
		"hosted, not UTF8": {events(done("{\"type\":\"web_search_call\",\"id\":\"ws\",\"status\":\"completed\",\"x\":\"\xff\"}")), []string{"call web_search ws ", "result ws  false"}},
	} {
		got := someWays(t, tt.body)
		if got.Err != nil || !slices.Equal(got.Hosted, tt.hosted) {
			t.Errorf("%s: %v", name, got)
		}
		for _, p := range got.Parts {
			if p.State != nil {
				t.Errorf("%s: state %s", name, p.State)
			}
		}
		stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok"}))
		next := &llm.Request{Messages: []llm.Message{task("hello"), {Role: llm.Assistant, Parts: got.Parts}, task("go on")}}
		if again := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), next); again.Err != nil || strings.Contains(string(stub.Requests()[0].Body), `"id"`) {
			t.Error(name, again, stub.Violations())
		}
	}
}

// Hosted calls are given out when their arguments are known, and in order.
func TestHostedInOrder(t *testing.T) {
	add := func(i int, item string) string {
		return fmt.Sprintf(`{"type":"response.output_item.added","output_index":%d,"item":%s}`, i, item)
	}
	end := func(i int, item string) string {
		return fmt.Sprintf(`{"type":"response.output_item.done","output_index":%d,"item":%s}`, i, item)
	}
	ws := `{"type":"web_search_call","id":"ws","status":"completed","action":{"type":"open_page","url":"u"}}`
	got := someWays(t, events(
		add(0, `{"type":"mcp_call","id":"mc","name":"roll","server_label":"d"}`), `{"type":"response.mcp_call_arguments.done","output_index":0,"item_id":"mc","arguments":"{\"n\":1}"}`,
		add(1, `{"type":"web_search_call","id":"ws"}`),
		add(2, `{"type":"message","id":"m"}`), `{"type":"response.output_text.delta","output_index":2,"delta":"a"}`,
		end(0, `{"type":"mcp_call","id":"mc","name":"roll","server_label":"d","arguments":"{\"n\":1}","output":"6"}`), end(1, ws), // while the text goes on
		`{"type":"response.output_text.delta","output_index":2,"delta":"b"}`, done()))
	want := []string{`call mcp.d.roll mc {"n":1}`, `call web_search ws `, `result mc 6 false`, `result ws  false`}
	if got.Err != nil || got.Text != "ab" || !slices.Equal(got.Hosted, want) || len(got.Parts) != 5 || string(got.Parts[4].State) != ws {
		t.Error(got)
	}
	// The same with reasoning that is sealed late.
	sealed := `{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"think"}],"encrypted_content":"x"}`
	got = someWays(t, events(add(0, `{"type":"reasoning","id":"rs"}`), `{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"think"}`,
		`{"type":"response.output_text.delta","output_index":1,"delta":"a"}`, end(0, sealed), `{"type":"response.output_text.delta","output_index":1,"delta":"b"}`, done()))
	if got.Err != nil || got.Text != "ab" || got.Reasoning != "think" || len(got.Parts) != 3 || string(got.Parts[2].State) != sealed {
		t.Error(got)
	}
}

// Thoughts of open models come as text, and go back.
func TestReasoningText(t *testing.T) {
	item := `{"type":"reasoning","id":"rs","summary":[],"content":[{"type":"reasoning_text","text":"why"},{"type":"reasoning_text","text":"how"}]}`
	for name, list := range map[string][]string{
		"deltas": {`{"type":"response.reasoning_text.delta","content_index":0,"delta":"w"}`, `{"type":"response.reasoning_text.delta","content_index":0,"delta":"hy"}`,
			`{"type":"response.reasoning_text.done","content_index":0,"text":"why"}`, `{"type":"response.reasoning_text.delta","content_index":1,"delta":"how"}`,
			`{"type":"response.output_item.done","item":` + item + `}`, done(item)},
		"item only":   {`{"type":"response.output_item.done","item":` + item + `}`, done(item)},
		"answer only": {done(item)},
	} {
		got := someWays(t, events(list...))
		if got.Err != nil || got.Reasoning != "why\n\nhow" || len(got.Parts) != 1 || string(got.Parts[0].State) != item {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A paused answer goes back unchanged as the last of the input.
func TestContinues(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Think: true, Text: "Let me", Phase: "commentary", Incomplete: "max_output_tokens"}, responsesstub.Reply{Text: " see."}))
	m := model(t, Config{HTTP: over(t, stub)})
	first := ask(t, t.Context(), m, hello)
	got := ask(t, t.Context(), m, &llm.Request{Messages: append(slices.Clone(hello.Messages), llm.Message{Role: llm.Assistant, Parts: first.Parts}), Continues: true})
	if got.Err != nil || got.Text != " see." {
		t.Fatal(got, stub.Violations())
	}
	in := stub.Requests()[1].Input
	if last := in[len(in)-1]; len(in) != 3 || in[1].Type != "reasoning" || last.Role != "assistant" || last.Text != "Let me" || last.Phase != "commentary" {
		t.Errorf("%+v", in)
	}
}

// A turn without tools sends nothing of them, with a history that has calls. C13, I-10
func TestNoTools(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: `{"status":"ok","count":1}`}))
	m := model(t, Config{HTTP: over(t, stub), HostedTools: []canonjson.Value{search}})
	req := history()
	req.NoTools, req.Repair = true, 1
	if got := ask(t, t.Context(), m, req); got.Err != nil {
		t.Error(got, stub.Violations())
	}
	if r := stub.Requests()[0]; r.Tools != nil || r.Parallel != nil || bytes.Contains(r.Body, []byte(`"tool`)) {
		t.Errorf("%s", r.Body)
	}
	none := history()
	none.Tools = nil
	if got := ask(t, t.Context(), m, none); got.Err != nil {
		t.Error(got, stub.Violations())
	}
	if r := stub.Requests()[1]; len(r.Tools) != 1 || r.Tools[0].Type != "web_search" || r.Parallel == nil || *r.Parallel {
		t.Errorf("%s", r.Body)
	}
	parallel := history()
	parallel.SerialTools = false
	if raw, err := m.encode(parallel); err != nil || bytes.Contains(raw, []byte("parallel_tool_calls")) {
		t.Errorf("%s %v", raw, err)
	}
}

// C13: a run with one tool, a wrong answer and its repair.
func TestRepair(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(
		responsesstub.Reply{Calls: []responsesstub.Call{{ID: "t1", Name: "lookup", Arguments: "{}"}}},
		responsesstub.Reply{Text: `{"status":"ok"}`}, responsesstub.Reply{Text: `{"status":"ok","count":1,"tags":null}`}))
	m := model(t, Config{HTTP: over(t, stub)})
	req := &llm.Request{Messages: hello.Messages, Tools: []llm.ToolDefinition{lookup}, Output: contract}
	first := ask(t, t.Context(), m, req)
	req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: first.Parts}, llm.Message{Role: llm.Tool, Parts: []llm.Content{result("call_0", "x")}})
	second := ask(t, t.Context(), m, req)
	req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: second.Parts}, task("$.count: missing required field"))
	req.NoTools = true
	third := ask(t, t.Context(), m, req)
	if first.Reason != llm.FinishTools || third.Err != nil || third.Text == "" || len(stub.Violations()) > 0 || stub.Requests()[2].Tools != nil {
		t.Error(first, second, third, stub.Violations())
	}
}

// C09: a contract with an optional member, and a tool whose schema comes from
// anywhere, are taken by the vendor.
func TestSchemas(t *testing.T) {
	wild := llm.ToolDefinition{Name: "wild", InputSchema: canonjson.Value(`{"$schema":"http://json-schema.org/draft-07/schema#","additionalProperties":false,"properties":{"a":{"default":"x","type":["string","null"]},"b":{"items":{},"type":"array"}},"required":["a"],"type":"object"}`)}
	empty := llm.ToolDefinition{Name: "empty"}
	patterned := canonjson.Value(`{"additionalProperties":{"type":"string"},"properties":{"a":{"type":"string"}},"type":"object"}`)
	for _, tt := range []struct {
		mode   llm.Structured
		output canonjson.Value
		hosted []canonjson.Value
		say    string
		want   string // the kind of format
	}{
		{llm.StructuredSchema, contract, nil, "x", "json_schema"},
		{llm.StructuredSchema, patterned, nil, "x", "json_object"},
		{llm.StructuredObject, contract, nil, "Answer in JSON", "json_object"},
		{llm.StructuredObject, contract, nil, "x", "json_object"},
		{llm.StructuredObject, contract, []canonjson.Value{search}, "x", ""},
		{llm.StructuredSchema, contract, []canonjson.Value{search}, "x", "json_schema"},
		{llm.StructuredNone, contract, nil, "x", ""},
		{"", contract, nil, "x", ""},
		{llm.StructuredSchema, nil, nil, "x", ""},
		{llm.StructuredObject, canonjson.Value(`{"type":"string"}`), nil, "x", ""},
		{llm.StructuredObject, canonjson.Value(`true`), nil, "x", ""},
	} {
		stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "{}"}))
		m := model(t, Config{HTTP: over(t, stub), HostedTools: tt.hosted, Caps: llm.Capabilities{Tools: true, Structured: tt.mode}})
		got := ask(t, t.Context(), m, &llm.Request{Messages: []llm.Message{task(tt.say)}, Tools: []llm.ToolDefinition{wild, empty}, Output: tt.output})
		var f struct{ Type string }
		format := stub.Requests()[0].Format
		if format != nil {
			if err := json.Unmarshal(format, &f); err != nil {
				t.Fatal(err)
			}
		}
		if got.Err != nil || f.Type != tt.want {
			t.Errorf("%q %s: %s %v %v", tt.mode, tt.output, format, got.Err, stub.Violations())
		}
	}
}

// Pictures and documents go as the vendor takes them, and only to models that
// take them.
func TestFiles(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok"}))
	m := model(t, Config{HTTP: over(t, stub)})
	with := func(parts ...llm.Content) *llm.Request {
		return &llm.Request{Messages: []llm.Message{{Role: llm.User, Parts: parts}}}
	}
	png := llm.Content{Kind: llm.Image, MediaType: "image/png", Data: []byte("png")}
	pdf := llm.Content{Kind: llm.File, MediaType: "application/pdf", Data: []byte("pdf"), Name: "a \"b\".pdf"}
	bare := pdf
	bare.Name = ""
	if got := ask(t, t.Context(), m, with(says("look"), png, pdf, bare)); got.Err != nil {
		t.Fatal(got, stub.Violations())
	}
	in := stub.Requests()[0].Input
	if len(in) != 1 || !slices.Equal(in[0].Media, []string{"image/png", "application/pdf", "application/pdf"}) || !strings.Contains(string(in[0].Raw), `"filename":"a \"b\".pdf"`) {
		t.Errorf("%+v", in)
	}
	blind := model(t, Config{HTTP: over(t, stub), Caps: llm.Capabilities{Tools: true}})
	for _, tt := range []struct {
		m *Model
		p llm.Content
	}{
		{blind, png}, {blind, pdf},
		{m, llm.Content{Kind: llm.Image, MediaType: "image/bmp", Data: []byte("x")}},
		{m, llm.Content{Kind: llm.Image, MediaType: "application/pdf", Data: []byte("x")}},
		{m, llm.Content{Kind: llm.File, MediaType: "image/png", Data: []byte("x")}},
		{m, llm.Content{Kind: llm.File, MediaType: "text/plain", Data: []byte("x")}},
		{m, llm.Content{Kind: llm.Image, MediaType: "image/png"}},
	} {
		if got := ask(t, t.Context(), tt.m, with(says("look"), tt.p)); got.Err == nil || got.Err.Class != llm.InvalidRequest {
			t.Errorf("%+v: %v", tt.p, got)
		}
	}
	if n := len(stub.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
	if _, err := join(head{}, [][]byte{make([]byte, MaxRequest)}, tail{}); llm.AsError(err).Class != llm.InvalidRequest {
		t.Error(err)
	}
	huge := llm.Content{Kind: llm.Image, MediaType: "image/png", Data: make([]byte, MaxRequest*3/4+1)}
	if _, err := m.encode(with(huge)); llm.AsError(err).Class != llm.InvalidRequest {
		t.Error(err)
	}
}

// What is asked of a model that reasons, and never of one that does not.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		cfg     Config
		dull    bool
		ask     int
		want    string // the reasoning object
		include bool
		most    string
	}{
		{Config{Caps: able}, false, 0, "", true, ""},
		{Config{Caps: llm.Capabilities{Tools: true}}, true, 0, "", false, ""},
		{Config{Caps: llm.Capabilities{Tools: true}, Effort: "low"}, false, 0, `{"effort":"low"}`, true, ""},
		{Config{Caps: able, Effort: "high", Summary: "auto", MaxOutputTokens: 500}, false, 0, `{"effort":"high","summary":"auto"}`, true, "500"},
		{Config{Caps: able, MaxOutputTokens: 500}, false, 20, "", true, "20"},
		{Config{Caps: able}, false, 3, "", true, "16"},
	} {
		stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok"}))
		stub.Dull = tt.dull
		tt.cfg.HTTP = over(t, stub)
		got := ask(t, t.Context(), model(t, tt.cfg), &llm.Request{Messages: hello.Messages, MaxOutputTokens: tt.ask})
		r := stub.Requests()[0]
		if got.Err != nil || r.Reasoning.String() != tt.want || (r.Include != nil) != tt.include || r.MaxOutput != tt.most || !bytes.Contains(r.Body, []byte(`"store":false`)) {
			t.Errorf("%+v: %s %v", tt.cfg, r.Body, got.Err)
		}
	}
}

// A history whose calls and results do not pair is never sent. I-13
func TestBrokenPairs(t *testing.T) {
	calls := llm.Message{Role: llm.Assistant, Parts: []llm.Content{called("a", "f", "{}"), called("b", "f", "{}")}}
	results := llm.Message{Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x")}}
	for name, list := range map[string][]llm.Message{
		"no result":        {calls},
		"half":             {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x")}}},
		"foreign":          {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x"), result("c", "x")}}},
		"twice":            {calls, {Role: llm.Tool, Parts: []llm.Content{result("a", "x"), result("b", "x"), result("a", "x")}}},
		"text between":     {calls, task("x"), results},
		"result first":     {{Role: llm.Tool, Parts: []llm.Content{result("a", "x")}}},
		"one id two calls": {{Role: llm.Assistant, Parts: []llm.Content{called("a", "f", "{}"), called("a", "f", "{}")}}},
		"one id two turns": {calls, results, calls, results},
		"unknown role":     {{Role: "narrator"}},
		"nothing":          nil,
		"nothing but air":  {task(" \n")},
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
	for _, bad := range []string{"vendor.test/v1", "ftp://vendor.test", "http://", "http://u:p@vendor.test", "http://vendor.test/?k=1", "http://vendor.test/#x", "http://[::1"} {
		if _, err := New(Config{BaseURL: bad}); err == nil || !strings.HasPrefix(err.Error(), "base_url: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for base, want := range map[string]string{"": DefaultBaseURL + "/responses", "http://vendor.test": "http://vendor.test/responses", "https://vendor.test/v1/": "https://vendor.test/v1/responses"} {
		m, err := New(Config{BaseURL: base})
		if err != nil || m.url != want {
			t.Errorf("%q: %v", base, err)
		}
	}
	hosted := func(raw string) Config { return Config{HostedTools: []canonjson.Value{search, canonjson.Value(raw)}} }
	for place, cfg := range map[string]Config{
		"reasoning.effort: ":  {Effort: "huge"},
		"summary: ":           {Summary: "long"},
		"reasoning.budget: ":  {ReasoningBudget: 1},
		"max_output_tokens: ": {MaxOutputTokens: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), place) {
			t.Errorf("%s%v", place, err)
		}
	}
	for _, raw := range []string{`[]`, `{}`, `"web_search"`, `{"type":7}`, `{"type":"function","name":"x"}`, `{"type":"custom","name":"x"}`, `{"type":"local_shell"}`,
		`{"type":"shell","environment":{"type":"local"}}`, `{"type":"mcp","server_label":"x"}`, `{"type":"mcp","require_approval":"always"}`, `{"type":"mcp","require_approval":{"never":{}}}`} {
		if _, err := New(hosted(raw)); err == nil || !strings.HasPrefix(err.Error(), "hosted_tools[1]: ") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{`{"type":"mcp","require_approval":"never"}`, `{"type":"file_search","vector_store_ids":["x"]}`, `{"type":"shell","environment":{"type":"container_auto"}}`} {
		if _, err := New(hosted(raw)); err != nil {
			t.Error(err)
		}
	}
}

// The key is read for each call, and is nowhere but in its header. I-33
func TestKey(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok"}))
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

// The same connection serves the next request.
func TestConnectionIsKept(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "ok", Input: 1, Output: 1}))
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

// A conversation of any shape, over several turns with one vendor and with
// state of others in it, is always taken. I-13, C09, C37
func TestConversations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stub := responsesstub.New(func(n int, req responsesstub.Request) responsesstub.Reply { return drawReply(rt, n) })
		client := &http.Client{Transport: direct{stub}}
		m := model(rt, Config{HTTP: client, HostedTools: []canonjson.Value{search}})
		other := model(rt, Config{HTTP: client, Name: "other", Caps: able})
		req := &llm.Request{System: rapid.SampledFrom([]string{"", "Be kind."}).Draw(rt, "system"), Output: contract, SessionID: "ses_1"}
		for turn := range rapid.IntRange(1, 6).Draw(rt, "turns") {
			req.Messages = append(req.Messages, drawUser(rt))
			req.Tools = []llm.ToolDefinition{lookup}[:rapid.IntRange(0, 1).Draw(rt, "tools")]
			req.NoTools = rapid.Bool().Draw(rt, "no tools")
			req.SerialTools = rapid.Bool().Draw(rt, "serial")
			now := m
			if rapid.IntRange(0, 3).Draw(rt, "who") == 0 {
				now = other
			}
			got := ask(rt, t.Context(), now, req)
			if v := stub.Violations(); len(v) > 0 {
				rt.Fatalf("turn %d: %v\n%s", turn, v, stub.Requests()[len(stub.Requests())-1].Body)
			}
			if got.Err != nil && got.Err.Class != llm.ContentFilter {
				rt.Fatalf("turn %d: %v", turn, got)
			}
			if len(got.Parts) == 0 {
				continue
			}
			var results []llm.Content
			for i := range got.Parts {
				if p := &got.Parts[i]; p.Kind == llm.ToolCall {
					p.CallID = fmt.Sprintf("call_%d_%d", turn, i)
					results = append(results, result(p.CallID, rapid.SampledFrom([]string{"", "found", "\xff", "a\nb"}).Draw(rt, "result")))
				}
			}
			req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: got.Parts})
			if results != nil {
				req.Messages = append(req.Messages, llm.Message{Role: llm.Tool, Parts: results})
			}
		}
	})
}

func drawReply(rt *rapid.T, n int) responsesstub.Reply {
	r := responsesstub.Reply{
		Think: rapid.Bool().Draw(rt, "think"), Plain: rapid.Bool().Draw(rt, "plain"), DoneOnly: rapid.Bool().Draw(rt, "done only"),
		Text:       rapid.SampledFrom([]string{"", "hi", "{\"a\":1}", " "}).Draw(rt, "text"),
		Phase:      rapid.SampledFrom([]string{"", "commentary", "final_answer"}).Draw(rt, "phase"),
		Refusal:    rapid.SampledFrom([]string{"", "", "", "no"}).Draw(rt, "refusal"),
		Incomplete: rapid.SampledFrom([]string{"", "", "max_output_tokens"}).Draw(rt, "incomplete"),
	}
	if r.Think && rapid.Bool().Draw(rt, "summary") {
		r.Thoughts = []string{"a", "b"}
	}
	for i := range rapid.IntRange(0, 2).Draw(rt, "hosted") {
		r.Hosted = append(r.Hosted, fmt.Sprintf(`{"type":"web_search_call","id":"ws_%d_%d","status":"completed","action":{"type":"search","query":"q"}}`, n, i))
	}
	for range rapid.IntRange(0, 3).Draw(rt, "calls") {
		r.Calls = append(r.Calls, responsesstub.Call{
			Name:      rapid.SampledFrom([]string{"lookup", "what?", ""}).Draw(rt, "name"),
			Arguments: rapid.SampledFrom([]string{"{}", "", `{"q":1}`, `{"q"`, "[]"}).Draw(rt, "arguments"),
		})
	}
	return r
}

func drawUser(rt *rapid.T) llm.Message {
	parts := []llm.Content{says(rapid.SampledFrom([]string{"x", "\xff", "a\nb"}).Draw(rt, "user"))}
	if rapid.Bool().Draw(rt, "picture") {
		parts = append(parts, llm.Content{Kind: llm.Image, MediaType: "image/webp", Data: []byte("x")})
	}
	if rapid.Bool().Draw(rt, "file") {
		parts = append(parts, llm.Content{Kind: llm.File, MediaType: "application/pdf", Data: []byte("x")})
	}
	return llm.Message{Role: llm.User, Parts: parts}
}

// direct serves a handler on the caller's goroutine, without a connection.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// Whatever the history holds, what is sent is strict JSON that a vendor takes.
func FuzzRequest(f *testing.F) {
	f.Add("system", "user", "name", `{"a":1}`, "result", "ses", []byte(`{"type":"reasoning","id":"rs_1","summary":[]}`))
	f.Add("\xff", "\x00", "n n", `{"a":`, "", "\xff", []byte("x"))
	f.Fuzz(func(t *testing.T, system, user, name, args, res, session string, state []byte) {
		parts := []llm.Content{
			{Kind: llm.Text, Text: user, State: state, Maker: "openai/m"},
			{Kind: llm.Reasoning, State: state, Maker: "foreign/m"}, {Kind: llm.Hosted, State: state, Maker: "foreign/m"}, called("a"+user, name, args),
		}
		req := &llm.Request{Model: "m", System: system, SessionID: session, Tools: []llm.ToolDefinition{lookup}, Messages: []llm.Message{
			task("x" + user), {Role: llm.Assistant, Parts: parts}, {Role: llm.Tool, Parts: []llm.Content{result("a"+user, res)}},
		}}
		m := model(t, Config{})
		raw, err := m.encode(req)
		if err != nil || !json.Valid(raw) {
			t.Fatalf("%v %s", err, raw)
		}
		if phaseOf(state) != "" {
			return // the vendor knows two words only
		}
		stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{}))
		w := httptest.NewRecorder()
		stub.ServeHTTP(w, httptest.NewRequest("POST", "/responses", bytes.NewReader(raw)))
		if v := stub.Violations(); len(v) > 0 {
			t.Fatalf("%v\n%s", v, raw)
		}
		// State of our own stands in it or not; what stands is strict.
		req.Messages[1].Parts[1].Maker, req.Messages[1].Parts[2].Maker = "openai/m", "openai/m"
		if raw, err = m.encode(req); err != nil {
			t.Fatal(err)
		}
		if _, err := canonjson.Parse(raw, wide); err != nil {
			t.Fatalf("%v\n%s", err, raw)
		}
	})
}

var rewrite = flag.Bool("rewrite", false, "write testdata/*.want anew")

// The recordings, as the vendor's documentation shows its streams.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := wire.FindCredential(raw); found != "" {
			t.Errorf("%s holds what looks like a credential: %s", name, found)
		}
		got, golden := someWays(t, string(raw)), strings.TrimSuffix(name, ".sse")+".want"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got.String()+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String()+"\n" != string(want) {
			t.Errorf("%s:\n got %v\nwant %s", name, got, want)
		}
	}
}

// C27, C43: the rows of this dialect.
func TestFieldRows(t *testing.T) {
	var c27 struct {
		Input struct {
			Variants []struct{ Name, Dialect, Body string }
		}
	}
	field(t, "C27", &c27)
	n := 0
	for _, v := range c27.Input.Variants {
		if v.Dialect != "openai_responses" {
			continue
		}
		n++
		if got := someWays(t, v.Body); got.Err == nil || got.Err.Class != llm.Server || got.Err.Code != "server_error" || got.Err.Message != "retry later" || got.Text != "Part" {
			t.Errorf("%s: %v", v.Name, got)
		}
	}
	var c43 struct {
		Input struct {
			Rows []struct {
				Dialect, Body string
				Status        int
				ContentType   string `json:"content_type"`
			}
		}
		Expected struct {
			Rows []struct{ Class string }
		}
	}
	field(t, "C43", &c43)
	words := map[string]llm.Class{
		"context_overflow": llm.ContextOverflow, "billing": llm.Billing, "auth": llm.Auth,
		"invalid_request": llm.InvalidRequest, "config": llm.InvalidRequest,
	}
	for i, r := range c43.Input.Rows {
		if r.Dialect != "openai_responses" && r.Dialect != "openai_chat" {
			continue // the errors of the other dialects have other shapes
		}
		n++
		s := served{media: r.ContentType, status: r.Status, body: func() io.Reader { return strings.NewReader(r.Body) }}
		got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
		if want := words[c43.Expected.Rows[i].Class]; want == "" || got.Err == nil || got.Err.Class != want {
			t.Errorf("%+v: %v", r, got)
		}
	}
	if n < 7 {
		t.Errorf("%d rows", n)
	}
}

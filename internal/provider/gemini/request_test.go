package gemini

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

func text(s string) llm.Content { return llm.Content{Kind: llm.Text, Text: s} }

func called(id, name, args string) llm.Content {
	return llm.Content{Kind: llm.ToolCall, CallID: id, Name: name, Text: args}
}

func result(id, s string) llm.Content {
	return llm.Content{Kind: llm.ToolResult, CallID: id, Text: s}
}

func by(maker string, c llm.Content, state string) llm.Content {
	c.Maker, c.State = maker, []byte(state)
	return c
}

var lookup = llm.ToolDefinition{Name: "lookup", Description: "Look <it> up", InputSchema: canonjson.Value(`{"properties":{"q":{"type":"string"}},"type":"object"}`)}

const own = "gemini/gemini-3-flash"

// history is a conversation with two parallel calls whose results stand in
// another order, a repair turn, and states of this maker and of another.
func history() *llm.Request {
	return &llm.Request{
		Model: "gemini-3-flash", System: "Be brief & <kind>.",
		Tools: []llm.ToolDefinition{lookup}, SerialTools: true, MaxOutputTokens: 100,
		Messages: []llm.Message{
			task("one"), task("two"),
			{Role: llm.Assistant, Parts: []llm.Content{
				by("anthropic/claude", llm.Content{Kind: llm.Reasoning}, `{"thinking":"foreign"}`),
				by(own, text("Let me see."), `{"parts":[{"n":11,"thoughtSignature":"c2lnQQ=="}]}`),
				by(own, called("call_a", "lookup", `{"q":"1"}`), `{"id":"v1","thoughtSignature":"c2lnQg=="}`),
				by(own, called("call_b", "weird name!", `{"q"`), `{"id":"v2"}`),
			}},
			{Role: llm.Tool, Parts: []llm.Content{result("call_b", ""), result("call_a", `{"error":1}`)}},
			{Role: llm.Assistant, Parts: []llm.Content{by("openai/gpt", called("call_c", "lookup", `{}`), `{"id":"foreign"}`)}},
			{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, CallID: "call_c", IsError: true}}},
			{Role: llm.Assistant, Parts: []llm.Content{text(`{"status":"ok"}`)}},
			task("Only the corrected JSON."),
			{Role: llm.Assistant, Parts: []llm.Content{by(own, llm.Content{Kind: llm.Reasoning}, "")}},
			task("And \xff now."),
		},
	}
}

const wantHistory = `{"systemInstruction":{"parts":[{"text":"Be brief & <kind>."}]},` +
	`"tools":[{"functionDeclarations":[{"name":"lookup","description":"Look <it> up","parameters":{"properties":{"q":{"type":"STRING"}},"type":"OBJECT"}}]}],` +
	`"contents":[` +
	`{"role":"user","parts":[{"text":"one\n\ntwo"}]},` +
	`{"role":"model","parts":[{"text":"Let me see.","thoughtSignature":"c2lnQQ=="},` +
	`{"functionCall":{"id":"v1","name":"lookup","args":{"q":"1"}},"thoughtSignature":"c2lnQg=="},` +
	`{"functionCall":{"id":"v2","name":"weird_name_","args":{}}}]},` +
	`{"role":"user","parts":[{"functionResponse":{"id":"v1","name":"lookup","response":{"output":"{\"error\":1}"}}},` +
	`{"functionResponse":{"id":"v2","name":"weird_name_","response":{"output":""}}}]},` +
	`{"role":"model","parts":[{"functionCall":{"name":"lookup","args":{}},"thoughtSignature":"skip_thought_signature_validator"}]},` +
	`{"role":"user","parts":[{"functionResponse":{"name":"lookup","response":{"error":"the tool failed and gave no message"}}}]},` +
	`{"role":"model","parts":[{"text":"{\"status\":\"ok\"}"}]},` +
	`{"role":"user","parts":[{"text":"Only the corrected JSON.\n\nAnd ` + "\uFFFD" + ` now."}]}],` +
	`"generationConfig":{"maxOutputTokens":100}}`

// The exact bytes, the same each time. C41 (1) and (3), I-13
func TestRequestBytes(t *testing.T) {
	m := model(t, Config{})
	for range 3 {
		got, err := m.encode(history(), "gemini-3-flash")
		if err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(string(got), `\ufffd`, "\uFFFD") != wantHistory {
			t.Fatalf("got\n%s\nwant\n%s", got, wantHistory)
		}
	}
	// Another model has none of the states, and no generation before 3 the stand-in.
	got, err := m.encode(history(), "gemini-2.5-pro")
	if err != nil || bytes.Contains(got, []byte("hought")) || bytes.Contains(got, []byte(`"id"`)) {
		t.Errorf("%s %v", got, err)
	}
	got, err = m.encode(history(), "gemini-flash-latest")
	if err != nil || bytes.Count(got, []byte(noSignature)) != 2 || bytes.Contains(got, []byte("c2ln")) {
		t.Errorf("%s %v", got, err)
	}
}

// A turn without tools leaves the model no way to call one. C13, I-10
func TestNoTools(t *testing.T) {
	hosted := []canonjson.Value{canonjson.Value(`{"googleSearch":{}}`)}
	for _, name := range []string{"gemini-3-flash", "gemini-2.5-flash"} {
		stub := geministub.New(geministub.Replies(
			geministub.Reply{Parts: []geministub.Part{geministub.Calls("t1", "lookup", "{}").Signed(sig(1))}},
			geministub.Reply{Parts: []geministub.Part{geministub.Text(`{"status":"ok"}`)}},
			geministub.Reply{Parts: []geministub.Part{geministub.Text(`{"status":"ok","count":1}`)}},
		))
		m := model(t, Config{HTTP: over(t, stub), Model: name, HostedTools: hosted, Caps: files})
		req := &llm.Request{
			Messages: []llm.Message{task("x")}, Tools: []llm.ToolDefinition{lookup},
			Output: canonjson.Value(`{"additionalProperties":false,"properties":{"count":{"type":"number"},"status":{"type":"string"}},"required":["status","count"],"type":"object"}`),
		}
		turn := func() answer {
			t.Helper()
			got := ask(t, t.Context(), m, req)
			if got.Err != nil {
				t.Fatal(got, stub.Violations())
			}
			req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: got.message})
			return got
		}
		got := turn()
		req.Messages = append(req.Messages, llm.Message{Role: llm.Tool, Parts: []llm.Content{result(got.message[0].CallID, "found")}})
		turn()
		req.Messages = append(req.Messages, task("Only the corrected JSON."))
		req.NoTools, req.Repair = true, 1
		turn()
		r := stub.Requests()[2]
		if r.Mode != "NONE" || len(r.Functions) != 1 || r.Hosted != nil {
			t.Errorf("%s", r.Body)
		}
		if r := stub.Requests()[0]; r.Mode != "" || len(r.Functions) != 1 || (len(r.Hosted) == 1) != (name == "gemini-3-flash") {
			t.Errorf("%s", r.Body)
		}
		req.Tools = nil
		if got := ask(t, t.Context(), m, req); got.Err != nil {
			t.Error(got, stub.Violations())
		}
		if r := stub.Requests()[3]; bytes.Contains(r.Body, []byte(`"tool`)) {
			t.Errorf("%s", r.Body)
		}
	}
}

// The schema of an answer and the schemas of tools in the vendor's words. C09
func TestSchemas(t *testing.T) {
	contract := canonjson.Value(`{"additionalProperties":false,"properties":{"count":{"type":"number"},"status":{"type":"string"},"tags":{"items":{"type":"string"},"type":"array"}},"required":["status","count"],"type":"object"}`)
	foreign := llm.ToolDefinition{Name: "mcp", InputSchema: canonjson.Value(`{"$schema":"http://json-schema.org/draft-07/schema#","additionalProperties":false,"properties":{"a":{"default":"x","type":["string","null"]}},"type":"object"}`)}
	none := llm.ToolDefinition{Name: "get_time", InputSchema: canonjson.Value(`{"additionalProperties":false,"properties":{},"type":"object"}`)}
	for _, name := range []string{"gemini-3-flash", "gemini-2.5-flash"} {
		stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
		m := model(t, Config{HTTP: over(t, stub), Model: name, Caps: files})
		for _, tools := range [][]llm.ToolDefinition{nil, {foreign, none, lookup}} {
			if got := ask(t, t.Context(), m, &llm.Request{Messages: hello.Messages, Output: contract, Tools: tools}); got.Err != nil {
				t.Error(got, stub.Violations())
			}
		}
		for i, want := range []bool{true, name == "gemini-3-flash"} { // older models: tools come first
			if r := stub.Requests()[i]; bytes.Contains(r.Body, []byte("responseSchema")) != want || bytes.Contains(r.Body, []byte("additionalProperties")) {
				t.Errorf("%s", r.Body)
			}
		}
	}
	for _, tt := range []struct {
		how    llm.Structured
		schema canonjson.Value
		want   string
	}{
		{llm.StructuredNone, contract, ""},
		{"", contract, ""},
		{llm.StructuredObject, contract, `{"responseMimeType":"application/json"}`},
		{llm.StructuredSchema, canonjson.Value(`{"type":"object"}`), `{"responseMimeType":"application/json"}`}, // no form for it
		{llm.StructuredSchema, nil, ""},
	} {
		raw, err := model(t, Config{Caps: llm.Capabilities{Structured: tt.how}}).encode(&llm.Request{Messages: hello.Messages, Output: tt.schema}, "gemini-3-flash")
		if err != nil || !strings.Contains(string(raw), tt.want) || tt.want == "" && strings.Contains(string(raw), "response") {
			t.Errorf("%s %s: %s %v", tt.how, tt.schema, raw, err)
		}
	}
}

func TestThinking(t *testing.T) {
	for _, tt := range []struct {
		cfg   Config
		model string
		want  string
	}{
		{Config{}, "gemini-3-flash", ""},
		{Config{Caps: llm.Capabilities{Reasoning: true}}, "gemini-2.5-pro", `{"includeThoughts":true}`},
		{Config{Effort: "low"}, "gemini-3-flash", `{"includeThoughts":true,"thinkingLevel":"LOW"}`},
		{Config{Effort: "minimal"}, "gemini-flash-latest", `{"includeThoughts":true,"thinkingLevel":"MINIMAL"}`},
		{Config{Effort: "high"}, "gemini-2.5-flash", `{"includeThoughts":true,"thinkingBudget":24576}`},
		{Config{Effort: "minimal"}, "models/gemini-2.5-pro", `{"includeThoughts":true,"thinkingBudget":512}`},
		{Config{ReasoningBudget: 4000}, "gemini-3-flash", `{"includeThoughts":true,"thinkingBudget":4000}`},
	} {
		stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
		tt.cfg.HTTP = over(t, stub)
		if got := ask(t, t.Context(), model(t, tt.cfg), &llm.Request{Model: tt.model, Messages: hello.Messages}); got.Err != nil {
			t.Error(got, stub.Violations())
		}
		want := `"thinkingConfig":` + tt.want
		if body := string(stub.Requests()[0].Body); strings.Contains(body, "thinkingConfig") != (tt.want != "") || tt.want != "" && !strings.Contains(body, want) {
			t.Errorf("want %s: %s", tt.want, body)
		}
	}
}

func TestMaxOutput(t *testing.T) {
	for _, tt := range []struct {
		cfg, req int
		caps     int64
		want     string
	}{{0, 0, 0, ""}, {100, 0, 0, `"maxOutputTokens":100}`}, {100, 50, 0, `"maxOutputTokens":50}`}, {0, 9000, 8192, `"maxOutputTokens":8192}`}, {0, 0, 8192, ""}} {
		m := model(t, Config{MaxOutputTokens: tt.cfg, Caps: llm.Capabilities{Output: tt.caps}})
		raw, err := m.encode(&llm.Request{Messages: hello.Messages, MaxOutputTokens: tt.req}, "gemini-3-flash")
		if err != nil || !strings.Contains(string(raw), tt.want) || tt.want == "" && bytes.Contains(raw, []byte("generationConfig")) {
			t.Errorf("%+v: %s %v", tt, raw, err)
		}
	}
}

// Files go as they are; what the model or the vendor does not take is never sent.
func TestFiles(t *testing.T) {
	file := func(kind llm.ContentKind, media string) llm.Content {
		return llm.Content{Kind: kind, MediaType: media, Data: []byte("\x89PNG"), Name: "a b.pdf"}
	}
	stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
	m := model(t, Config{HTTP: over(t, stub), Caps: files})
	good := []llm.Content{text("look"), file(llm.Image, "image/png"), file(llm.Image, "image/jpeg"), file(llm.Image, "image/webp"), file(llm.File, "application/pdf"), text("and say")}
	if got := ask(t, t.Context(), m, &llm.Request{Messages: []llm.Message{{Role: llm.User, Parts: good}}}); got.Err != nil {
		t.Fatal(got, stub.Violations())
	}
	want := `{"text":"File ` + "`a b.pdf`" + `:"},{"inlineData":{"mimeType":"application/pdf","data":"iVBORw=="}},{"text":"and say"}]`
	if body := string(stub.Requests()[0].Body); !strings.Contains(body, want) {
		t.Error(body)
	}
	for name, tt := range map[string]struct {
		caps llm.Capabilities
		file llm.Content
	}{
		"no images":       {llm.Capabilities{PDF: true}, file(llm.Image, "image/png")},
		"no PDF":          {llm.Capabilities{Images: true}, file(llm.File, "application/pdf")},
		"nothing known":   {llm.Capabilities{}, file(llm.Image, "image/png")},
		"gif":             {files, file(llm.Image, "image/gif")},
		"svg":             {files, file(llm.Image, "image/svg+xml")},
		"a text":          {files, file(llm.File, "text/plain")},
		"PDF as an image": {files, file(llm.Image, "application/pdf")},
		"image as a file": {files, file(llm.File, "image/png")},
		"empty":           {files, llm.Content{Kind: llm.Image, MediaType: "image/png"}},
	} {
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), Caps: tt.caps}), &llm.Request{Messages: []llm.Message{{Role: llm.User, Parts: []llm.Content{text("x"), tt.file}}}})
		if got.Err == nil || got.Err.Class != llm.InvalidRequest || len(stub.Requests()) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Names that this vendor does not take have others on the wire, and come back
// as ours.
func TestToolNames(t *testing.T) {
	tools := []llm.ToolDefinition{{Name: "3d"}, {Name: "_3d"}, {Name: "-x"}, {Name: "plain"}}
	for i := range tools {
		tools[i].InputSchema = lookup.InputSchema
	}
	stub := geministub.New(func(_ int, r geministub.Request) geministub.Reply {
		var parts []geministub.Part
		for _, name := range append(r.Functions, "default_api.plain", "default_api:__3d", "unknown") {
			parts = append(parts, geministub.Calls("", name, "{}"))
		}
		parts[0] = parts[0].Signed(sig(1))
		return geministub.Reply{Parts: parts}
	})
	m := model(t, Config{HTTP: over(t, stub)})
	req := &llm.Request{Messages: []llm.Message{task("x")}, Tools: tools}
	got := ask(t, t.Context(), m, req)
	var names []string
	for _, c := range got.Calls {
		names = append(names, c.Name)
	}
	if got.Err != nil || strings.Join(names, " ") != "3d _3d -x plain plain 3d unknown" {
		t.Fatal(got, stub.Violations())
	}
	if wire := stub.Requests()[0].Functions; strings.Join(wire, " ") != "__3d _3d _-x plain" {
		t.Error(wire)
	}
	// And they go back under the same names.
	results := llm.Message{Role: llm.Tool}
	for _, c := range got.message {
		results.Parts = append(results.Parts, result(c.CallID, "r"))
	}
	got.message[4].Name, got.message[5].Name = "plain", "3d"
	req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: got.message}, results)
	if got := ask(t, t.Context(), m, req); got.Err != nil {
		t.Error(got, stub.Violations())
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
		"nothing":          {},
		"nothing to say":   {task(" ")},
	} {
		sent := false
		h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent = true })
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, h)}), &llm.Request{Messages: list})
		if got.Err == nil || got.Err.Class != llm.InvalidRequest || sent {
			t.Errorf("%s: %v, sent %v", name, got, sent)
		}
	}
}

// A paused answer of another vendor, with the blocks of its tools, is taken over.
func TestContinues(t *testing.T) {
	stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
	m := model(t, Config{HTTP: over(t, stub)})
	foreign := by("anthropic/claude", llm.Content{Kind: llm.Hosted}, `{"type":"server_tool_use"}`)
	for _, first := range [][]llm.Message{{task("x")}, nil} {
		list := append(first, llm.Message{Role: llm.Assistant, Parts: []llm.Content{text("I am looking"), foreign}})
		if got := ask(t, t.Context(), m, &llm.Request{Messages: list, Continues: true}); got.Err != nil {
			t.Error(got, stub.Violations())
		}
	}
}

func TestNewChecks(t *testing.T) {
	for _, bad := range []string{"vendor.test/v1", "ftp://vendor.test", "http://", "http://u:p@vendor.test", "http://vendor.test/?key=1", "http://vendor.test/#x", "http://[::1"} {
		if _, err := New(Config{BaseURL: bad}); err == nil || !strings.HasPrefix(err.Error(), "base_url: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for want, bad := range map[string]Config{
		"model: ":            {Model: "a b"},
		"reasoning.effort: ": {Effort: "most"},
		"reasoning.budget and reasoning.effort: ": {Effort: "low", ReasoningBudget: 1},
		"reasoning.budget and max":                {ReasoningBudget: -1},
		"hosted_tools[1]: want an":                {HostedTools: []canonjson.Value{canonjson.Value(`{"googleSearch":{}}`), canonjson.Value(`{}`)}},
		"hosted_tools[0]: functions":              {HostedTools: []canonjson.Value{canonjson.Value(`{"functionDeclarations":[]}`)}},
		"hosted_tools[0]: want":                   {HostedTools: []canonjson.Value{canonjson.Value(`{"googleSearch":true}`)}},
	} {
		if _, err := New(bad); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	for _, tt := range []struct{ base, model, want string }{
		{"", "gemini-3-flash", DefaultBaseURL + "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"},
		{"http://vendor.test/x/", "models/gemini-3-flash", "http://vendor.test/x/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"},
		{"http://vendor.test/v1", "tunedModels/mine-1", "http://vendor.test/v1/tunedModels/mine-1:streamGenerateContent?alt=sse"},
		{"http://vendor.test", "google/gemini-3-flash", "http://vendor.test/v1beta/models/google/gemini-3-flash:streamGenerateContent?alt=sse"},
	} {
		m, err := New(Config{BaseURL: tt.base})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.url(tt.model); err != nil || got != tt.want {
			t.Errorf("%q %q: %q %v", tt.base, tt.model, got, err)
		}
	}
	for _, name := range []string{"", "..", "../x", "a:b", "a?key=1", "a/../b", "a//b", "/a", strings.Repeat("a", 300)} {
		if got, err := model(t, Config{}).url(name); err == nil {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// The key is read for each call, and is nowhere but in its header. I-33
func TestKey(t *testing.T) {
	stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
	keys := []string{"first", "second", ""}
	m := model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { k := keys[0]; keys = keys[1:]; return k, nil }})
	for range 3 {
		if got := ask(t, t.Context(), m, hello); got.Err != nil {
			t.Fatal(got)
		}
	}
	for i, want := range []string{"first", "second", ""} {
		if h := stub.Requests()[i].Header; h.Get("X-Goog-Api-Key") != want || h.Get("Authorization") != "" || h.Get("Accept-Encoding") != "identity" {
			t.Errorf("%d: %v", i, h)
		}
	}
	stub.Key = "right"
	got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { return "wrong", nil }}), hello)
	if got.Err == nil || got.Err.Class != llm.Auth {
		t.Error(got)
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

// The body of a redirected request is not sent on, and the same connection
// serves the next request.
func TestConnections(t *testing.T) {
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
	stub := geministub.New(geministub.Replies(rich))
	addrs := map[string]bool{}
	kept := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addrs[r.RemoteAddr] = true
		stub.ServeHTTP(w, r)
	}))
	defer kept.Close()
	m := model(t, Config{BaseURL: kept.URL, HTTP: pieces.Local(kept.URL)})
	defer m.CloseIdle()
	for range 5 {
		if got := ask(t, t.Context(), m, hello); got.Err != nil {
			t.Fatal(got)
		}
	}
	if len(addrs) != 1 {
		t.Errorf("%d connections", len(addrs))
	}
}

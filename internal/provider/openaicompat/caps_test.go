package openaicompat

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"pgregory.net/rapid"
)

var (
	png = []byte("\x89PNG\r\n\x1a\nrest")
	pdf = []byte("%PDF-1.7\nrest")
	all = llm.Capabilities{Tools: true, Images: true, PDF: true, Structured: llm.StructuredSchema}
)

func picture(media string, data []byte) llm.Content {
	return llm.Content{Kind: llm.Image, MediaType: media, Data: data}
}

func document(name string, data []byte) llm.Content {
	return llm.Content{Kind: llm.File, MediaType: "application/pdf", Data: data, Name: name}
}

// Files stand where the user put them, and nowhere but with a model that reads them.
func TestFiles(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
	m := model(t, Config{HTTP: over(t, stub), Caps: all})
	req := &llm.Request{Messages: []llm.Message{
		task("Look:"),
		{Role: llm.User, Parts: []llm.Content{text("one"), text("two"), picture("image/png", png), document("", pdf), text("three")}},
		{Role: llm.User, Parts: []llm.Content{picture("image/jpeg", []byte("\xff\xd8\xffx"))}},
		task("And?"),
	}}
	if got := ask(t, t.Context(), m, req); got.Err != nil {
		t.Fatal(got, stub.Violations())
	}
	b64 := base64.StdEncoding.EncodeToString
	want := `"messages":[{"role":"user","content":[{"type":"text","text":"Look:\n\none\n\ntwo"},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + b64(png) + `"}},` +
		`{"type":"file","file":{"filename":"file.pdf","file_data":"data:application/pdf;base64,` + b64(pdf) + `"}},` +
		`{"type":"text","text":"three"},{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + b64([]byte("\xff\xd8\xffx")) + `"}},` +
		`{"type":"text","text":"And?"}]}]`
	if body := string(stub.Requests()[0].Body); !strings.Contains(body, want) {
		t.Errorf("%s\nwant %s", body, want)
	}
	// The second line: what the model does not take never leaves.
	for name, tt := range map[string]struct {
		caps  llm.Capabilities
		parts []llm.Content
	}{
		"image, nothing known":   {llm.Capabilities{}, []llm.Content{picture("image/png", png)}},
		"PDF for images only":    {llm.Capabilities{Images: true}, []llm.Content{document("a.pdf", pdf)}},
		"image for PDF only":     {llm.Capabilities{PDF: true}, []llm.Content{picture("image/png", png)}},
		"another image":          {all, []llm.Content{picture("image/svg+xml", []byte("<svg/>"))}},
		"text as a file":         {all, []llm.Content{{Kind: llm.File, MediaType: "text/plain", Data: []byte("x")}}},
		"an image that is a PDF": {all, []llm.Content{picture("application/pdf", pdf)}},
		"a file that is a PNG":   {all, []llm.Content{{Kind: llm.File, MediaType: "image/png", Data: png}}},
		"empty":                  {all, []llm.Content{picture("image/png", nil)}},
		"a call of a user":       {all, []llm.Content{called("a", "f", "{}")}},
	} {
		got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: unreachable{}}, Caps: tt.caps}), &llm.Request{Messages: []llm.Message{{Role: llm.User, Parts: tt.parts}}})
		if got.Err == nil || got.Err.Class != llm.InvalidRequest {
			t.Errorf("%s: %v", name, got)
		}
	}
	answer := llm.Message{Role: llm.Assistant, Parts: []llm.Content{picture("image/png", png)}}
	if got := ask(t, t.Context(), m, &llm.Request{Messages: []llm.Message{task("x"), answer, task("y")}}); got.Err == nil || got.Err.Class != llm.InvalidRequest {
		t.Errorf("%v", got)
	}
}

type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("a request was sent")
}

// The limit of an answer and the wish to think, under the names that each server takes.
func TestLimitsAndEffort(t *testing.T) {
	router := Config{BaseURL: "http://openrouter.ai/api/v1"}
	with := func(c Config, effort string, budget, limit int) Config {
		c.Effort, c.ReasoningBudget, c.MaxOutputTokens = effort, budget, limit
		return c
	}
	for i, tt := range []struct {
		cfg   Config
		model string
		max   int // of the request
		want  string
	}{
		{Config{}, "qwen3", 0, ""},
		{Config{}, "qwen3", 100, `"max_tokens":100,`},
		{with(Config{}, "", 0, 50), "qwen3", 0, `"max_tokens":50,`},
		{with(Config{}, "", 0, 50), "qwen3", 100, `"max_tokens":100,`},
		{Config{}, "gpt-5-mini", 100, `"max_completion_tokens":100,`},
		{Config{}, "openai/o4-mini", 100, `"max_completion_tokens":100,`},
		{Config{}, "o1x", 100, `"max_tokens":100,`},
		{Config{BaseURL: "http://api.openai.com/v1"}, "gpt-4o", 100, `"max_completion_tokens":100,`},
		{Config{Quirks: Quirks{MaxTokens: "max_completion_tokens"}}, "qwen3", 100, `"max_completion_tokens":100,`},
		{with(Config{}, "low", 0, 0), "gpt-oss", 0, `"reasoning_effort":"low",`},
		{with(router, "high", 0, 0), "x/y", 0, `"reasoning":{"effort":"high"},`},
		{with(router, "high", 2000, 0), "x/y", 0, `"reasoning":{"max_tokens":2000},`},
	} {
		stub := chatstub.NewVendor(chatstub.Rules{ReasoningObject: tt.cfg.BaseURL == router.BaseURL}, chatstub.Replies(chatstub.Reply{Text: "ok"}))
		tt.cfg.HTTP = over(t, stub)
		got := ask(t, t.Context(), model(t, tt.cfg), &llm.Request{Model: tt.model, Messages: hello.Messages, MaxOutputTokens: tt.max})
		body := string(stub.Requests()[0].Body)
		if got.Err != nil || !strings.Contains(body, tt.want) || tt.want == "" && (strings.Contains(body, "max_") || strings.Contains(body, "reasoning")) {
			t.Errorf("%d: %v %s", i, got, body)
		}
	}
	for want, cfg := range map[string]Config{
		"reasoning.effort: ": {Effort: "much"},
		"reasoning.budget: ": {ReasoningBudget: 1},
		"max_output_tokens":  {MaxOutputTokens: -1},
		"quirks: max_tokens": {Quirks: Quirks{MaxTokens: "max"}},
		"quirks: reasoning":  {Quirks: Quirks{Reasoning: "much"}},
		"hosted_tools[0]: ":  {HostedTools: []canonjson.Value{canonjson.Value(`{}`)}},
	} {
		cfg.BaseURL = "http://vendor.test"
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Servers that know less, and those that demand more. C13
func TestQuirks(t *testing.T) {
	serial := history()
	serial.Model = "gpt-5"
	withheld := history()
	withheld.NoTools = true
	withheld.System += " JSON."
	withheld.Output = canonjson.Value(`{"additionalProperties":false,"properties":{},"required":[],"type":"object"}`)
	for name, tt := range map[string]struct {
		quirks Quirks
		rules  chatstub.Rules
		req    *llm.Request
		want   string
	}{
		"old server":             {Quirks{NoStreamOptions: true, NoParallelToolCalls: true, MaxTokens: "max_tokens"}, chatstub.Rules{Old: true}, history(), `"max_tokens":100,"stream":true}`},
		"developer":              {Quirks{DeveloperRole: true}, chatstub.Rules{}, serial, `{"role":"developer","content":"Be brief & <kind>."}`},
		"list with choice none":  {Quirks{ToolChoiceNone: true}, chatstub.Rules{ToolsWithHistory: true}, withheld, `"tool_choice":"none","response_format":`},
		"nine letters":           {Quirks{}, chatstub.Rules{NineLetters: true}, history(), `"id":"call00001"`},
		"demanded":               {Quirks{ReasoningContent: true}, chatstub.Rules{Reasoning: chatstub.ReasoningDemanded}, history(), noReasoning},
		"demanded by the family": {Quirks{}, chatstub.Rules{Reasoning: chatstub.ReasoningDemanded}, deepseek(history()), noReasoning},
	} {
		stub := chatstub.NewVendor(tt.rules, chatstub.Replies(chatstub.Reply{Text: "{}"}))
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), Quirks: tt.quirks, Caps: all}), tt.req)
		r := stub.Requests()[0]
		if got.Err != nil || !strings.Contains(string(r.Body), tt.want) || tt.req.NoTools && r.CanCall() {
			t.Errorf("%s: %v %v %s", name, got, stub.Violations(), r.Body)
		}
	}
	// The list is not shown where the history has no calls.
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
	m := model(t, Config{HTTP: over(t, stub), Quirks: Quirks{ToolChoiceNone: true}})
	if got := ask(t, t.Context(), m, &llm.Request{Messages: hello.Messages, Tools: []llm.ToolDefinition{lookup}, NoTools: true}); got.Err != nil || stub.Requests()[0].Tools != nil {
		t.Error(got)
	}
}

func deepseek(r *llm.Request) *llm.Request {
	r.Model = "deepseek/deepseek-v4-flash"
	return r
}

// Hosted tools are offered as they are, and withheld with the others. C13
func TestHostedTools(t *testing.T) {
	search := canonjson.Value(`{"type":"web_search","web_search":{"enable":true}}`)
	stub := chatstub.NewVendor(chatstub.Rules{Hosted: []string{"web_search"}}, chatstub.Replies(chatstub.Reply{Text: "ok"}))
	m := model(t, Config{HTTP: over(t, stub), HostedTools: []canonjson.Value{search}})
	for _, none := range []bool{false, true} {
		if got := ask(t, t.Context(), m, &llm.Request{Messages: hello.Messages, Tools: []llm.ToolDefinition{lookup}, NoTools: none}); got.Err != nil {
			t.Fatal(got, stub.Violations())
		}
	}
	r := stub.Requests()
	if !strings.Contains(string(r[0].Body), string(search)) || r[1].CanCall() || strings.Contains(string(r[1].Body), "tools") {
		t.Errorf("%s\n%s", r[0].Body, r[1].Body)
	}
}

// C13: the repair turn of the field case is accepted, and the model cannot call.
func TestRepairAfterTools(t *testing.T) {
	var f struct {
		Input struct {
			Script []struct {
				Content string `json:"content"`
				Calls   []struct {
					ID, Name, Arguments string
				} `json:"tool_calls"`
			} `json:"script"`
		} `json:"input"`
	}
	field(t, "C13", &f)
	for name, vendor := range map[string]struct {
		rules  chatstub.Rules
		quirks Quirks
	}{
		"common": {}, "a router that wants the list": {chatstub.Rules{ToolsWithHistory: true}, Quirks{ToolChoiceNone: true}},
	} {
		stub := chatstub.NewVendor(vendor.rules, func(n int, _ chatstub.Request) chatstub.Reply {
			s := f.Input.Script[n]
			r := chatstub.Reply{Text: s.Content}
			for _, c := range s.Calls {
				r.Calls = append(r.Calls, chatstub.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
			}
			return r
		})
		m := model(t, Config{HTTP: over(t, stub), Quirks: vendor.quirks})
		req := &llm.Request{Messages: hello.Messages, Tools: []llm.ToolDefinition{lookup}}
		first := ask(t, t.Context(), m, req)
		if len(first.Calls) != 1 {
			t.Fatal(name, first, stub.Violations())
		}
		req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: []llm.Content{called("call_1", "lookup", "{}")}},
			llm.Message{Role: llm.Tool, Parts: []llm.Content{result("call_1", "found")}})
		second := ask(t, t.Context(), m, req)
		req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: []llm.Content{text(second.Text)}}, task("$.count: missing required field"))
		req.NoTools, req.Repair = true, 1
		if third := ask(t, t.Context(), m, req); third.Err != nil || third.Text != `{"status":"ok","count":1}` {
			t.Error(name, third, stub.Violations())
		}
		if r := stub.Requests(); len(r) != 3 || r[2].CanCall() || len(stub.Violations()) > 0 {
			t.Error(name, stub.Violations())
		}
	}
}

// Any conversation is accepted by the strict vendor, whoever made its parts,
// and gives the same bytes each time. I-13, C21, C41
func TestAnyConversation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		req := drawConversation(rt)
		rules := chatstub.Rules{NineLetters: true, Reasoning: rapid.SampledFrom([]chatstub.ReasoningRule{chatstub.ReasoningTaken, chatstub.ReasoningDemanded}).Draw(rt, "rule")}
		quirks := Quirks{ReasoningContent: rules.Reasoning == chatstub.ReasoningDemanded}
		if req.Model == "foreign-only" { // nothing in the history is this vendor's
			rules.Reasoning, quirks = chatstub.ReasoningRefused, Quirks{}
		}
		stub := chatstub.NewVendor(rules, chatstub.Replies(chatstub.Reply{Text: "ok"}))
		m := model(t, Config{HTTP: over(t, stub), Caps: all, Quirks: quirks})
		var c collector
		if err := m.Stream(t.Context(), req, c.part); err != nil {
			rt.Fatalf("%v: %v", err, stub.Violations())
		}
		one, err := m.encode(req)
		two, _ := m.encode(req)
		if err != nil || string(one) != string(two) {
			rt.Fatalf("%v\n%s\n%s", err, one, two)
		}
	})
}

// The key of a cache goes to servers that take it, and to no other: they would
// refuse the whole request.
func TestCacheKey(t *testing.T) {
	long := "ses_" + strings.Repeat("0123456789abcdef", 4)
	for _, v := range []struct {
		takes   bool
		session string
		want    string
	}{{true, "ses_1", `"prompt_cache_key":"ses_1"`}, {true, long, `"prompt_cache_key":"` + long[4:] + `"`}, {true, "", ""}, {false, "ses_1", ""}} {
		stub := chatstub.NewVendor(chatstub.Rules{CacheKey: v.takes}, chatstub.Replies(chatstub.Reply{Text: "ok"}))
		m := model(t, Config{HTTP: over(t, stub), Caps: llm.Capabilities{PromptCache: v.takes}})
		var c collector
		if err := m.Stream(t.Context(), &llm.Request{SessionID: v.session, Messages: []llm.Message{task("hello")}}, c.part); err != nil {
			t.Fatalf("%+v: %v", v, err)
		}
		body := string(stub.Requests()[0].Body)
		if has := strings.Contains(body, "prompt_cache_key"); has != (v.want != "") || !strings.Contains(body, v.want) {
			t.Errorf("%+v: %s", v, body)
		}
	}
}

func drawConversation(t *rapid.T) *llm.Request {
	words := rapid.SampledFrom([]string{"", " ", "hello", "a <b> & \u2028", "\xff\xfe", "W\x00s", "\U0001f3f7", `{"a":"<think>"}`})
	own := rapid.SampledFrom([]string{"m", "foreign-only"}).Draw(t, "model")
	states := []llm.Content{
		{Kind: llm.Reasoning, Maker: "anthropic/claude", State: []byte(`{"type":"thinking","thinking":"x","signature":"s"}`)},
		{Kind: llm.Reasoning, Maker: "openai_compatible/m", State: []byte(`{"reasoning_content":"so <it> is"}`)},
		{Kind: llm.Reasoning, Maker: "openai_compatible/m", State: []byte(`nonsense`)},
		{Kind: llm.Reasoning},
		{Kind: llm.Hosted, Maker: "anthropic/claude", State: []byte(`{"type":"server_tool_use"}`)},
	}
	req := &llm.Request{Model: own, System: words.Draw(t, "system"), Messages: []llm.Message{task("first" + words.Draw(t, "first"))}}
	n := 0
	for range rapid.IntRange(0, 6).Draw(t, "turns") {
		switch rapid.IntRange(0, 3).Draw(t, "turn") {
		case 0:
			parts := []llm.Content{text("u" + words.Draw(t, "user"))}
			if rapid.Bool().Draw(t, "image") {
				parts = append(parts, picture("image/png", png), document(words.Draw(t, "name"), pdf))
			}
			if rapid.Bool().Draw(t, "order") {
				parts[0], parts[len(parts)-1] = parts[len(parts)-1], parts[0]
			}
			req.Messages = append(req.Messages, llm.Message{Role: llm.User, Parts: parts})
		case 1:
			parts := []llm.Content{rapid.SampledFrom(states).Draw(t, "state"), text(words.Draw(t, "said")), rapid.SampledFrom(states).Draw(t, "state")}
			req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: parts}, task("go on"))
		default:
			parts := []llm.Content{rapid.SampledFrom(states).Draw(t, "state"), text(words.Draw(t, "said"))}
			var results []llm.Content
			for range rapid.IntRange(1, 3).Draw(t, "calls") {
				n++
				id := fmt.Sprintf("call_%d", n)
				args := rapid.SampledFrom([]string{"{}", `{"q":1}`, `{"q"`, "", "[]", `{"a":"\ud83d"}`}).Draw(t, "args")
				parts = append(parts, called(id, rapid.SampledFrom([]string{"lookup", "", "bad name!", strings.Repeat("x", 90)}).Draw(t, "name"), args))
				r := result(id, words.Draw(t, "result"))
				r.IsError = rapid.Bool().Draw(t, "failed")
				results = append([]llm.Content{r}, results...) // in another order
			}
			req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: parts}, llm.Message{Role: llm.Tool, Parts: results})
		}
	}
	if rapid.Bool().Draw(t, "tools") {
		req.Tools = []llm.ToolDefinition{lookup, {Name: "other", InputSchema: canonjson.Value(`{"anyOf":[{"properties":{"a":{"type":"array"}}},{"required":["a"]}]}`)}, {Name: "bare"}}
		req.NoTools, req.SerialTools = rapid.Bool().Draw(t, "none"), rapid.Bool().Draw(t, "serial")
	}
	if rapid.Bool().Draw(t, "output") {
		req.Output = canonjson.Value(`{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":[],"type":"object"}`)
	}
	if rapid.Bool().Draw(t, "paused") {
		req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: []llm.Content{text("so far"), states[4]}})
		req.Continues = true
	}
	req.MaxOutputTokens = rapid.IntRange(0, 2).Draw(t, "limit")
	return req
}

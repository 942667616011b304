package anthropic

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

// variant is a stream of a field case.
type variant struct {
	Name    string `json:"name"`
	Dialect string `json:"dialect"`
	Body    string `json:"body"`
}

// play reads the variant of a field case every way, with the last blank line
// and without.
func play(t *testing.T, file, name string) answer {
	t.Helper()
	var f struct {
		Input struct {
			Variants []variant `json:"variants"`
		} `json:"input"`
	}
	field(t, file, &f)
	for _, v := range f.Input.Variants {
		if v.Name != name || v.Dialect != "anthropic" {
			continue
		}
		got := everyWay(t, v.Body)
		if open := someWays(t, strings.TrimRight(v.Body, "\n")); open.String() != got.String() {
			t.Fatalf("without the last blank line:\n got %v\nwant %v", open, got)
		}
		return got
	}
	t.Fatal("no such variant")
	return answer{}
}

func sameCalls(t *testing.T, got answer, want ...part) {
	t.Helper()
	calls := got.of(llm.ToolCallWhole)
	if got.Err != nil || len(calls) != len(want) || got.Reason != llm.FinishTools {
		t.Fatalf("%v", got)
	}
	for i, c := range calls {
		if c.ID != want[i].ID || c.Name != want[i].Name || c.Text != want[i].Text {
			t.Errorf("call %d: %v, want %v", i, c, want[i])
		}
	}
}

func call(id, name, args string) part { return part{ID: id, Name: name, Text: args} }

// C35, C17
func TestInputs(t *testing.T) {
	tests := []struct {
		name string
		list []string
		want []part
	}{
		{"fragments behind {}", []string{
			blockStart(0, toolBlock("a", "read")), inputDelta(0, ""), inputDelta(0, `{"file_`), inputDelta(0, `path":"a.md"}`), blockStop(0),
		}, []part{call("a", "read", `{"file_path":"a.md"}`)}},
		{"no fragments", []string{blockStart(0, toolBlock("a", "time")), blockStop(0)}, []part{call("a", "time", "{}")}},
		{"fragments of nothing", []string{blockStart(0, toolBlock("a", "time")), inputDelta(0, ""), inputDelta(0, " \n"), blockStop(0)}, []part{call("a", "time", "{}")}},
		{"fragments of {}", []string{blockStart(0, toolBlock("a", "time")), inputDelta(0, "{"), inputDelta(0, "}"), blockStop(0)}, []part{call("a", "time", "{}")}},
		{"null fragments", []string{
			blockStart(0, toolBlock("a", "time")), blockDelta(0, `{"type":"input_json_delta","partial_json":null}`), blockDelta(0, `{"type":"input_json_delta"}`), blockStop(0),
		}, []part{call("a", "time", "{}")}},
		{"the input in the start", []string{
			blockStart(0, `{"type":"tool_use","id":"a","name":"read","input":{"p": "a"}}`), blockStop(0),
		}, []part{call("a", "read", `{"p": "a"}`)}},
		{"the input in the start, as text", []string{
			blockStart(0, `{"type":"tool_use","id":"a","name":"read","input":"{\"p\":\"a\"}"}`), blockStop(0),
		}, []part{call("a", "read", `{"p":"a"}`)}},
		{"the input in the start, and again", []string{
			blockStart(0, `{"type":"tool_use","id":"a","name":"read","input":{"p":"a"}}`), inputDelta(0, `{"p":`), inputDelta(0, `"a"}`), blockStop(0),
		}, []part{call("a", "read", `{"p":"a"}`)}},
		{"a null input", []string{blockStart(0, `{"type":"tool_use","id":"a","name":"time","input":null}`), blockStop(0)}, []part{call("a", "time", "{}")}},
		{"no input", []string{blockStart(0, `{"type":"tool_use","id":"a","name":"time"}`), blockStop(0)}, []part{call("a", "time", "{}")}},
		{"fragments as values", []string{
			blockStart(0, toolBlock("a", "read")), blockDelta(0, `{"type":"input_json_delta","partial_json":{"p":1}}`), blockStop(0),
		}, []part{call("a", "read", `{"p":1}`)}},
		{"two calls side by side, and text", []string{
			blockStart(0, `{"type":"text","text":""}`), textDelta(0, "I "), blockStart(1, toolBlock("a", "read")), blockStart(2, toolBlock("b", "list")),
			inputDelta(2, `{"p":`), textDelta(0, "look"), inputDelta(1, `{"q"`), inputDelta(2, `"b"}`), blockStop(2), blockStop(0), inputDelta(1, `:"a"}`), blockStop(1),
		}, []part{call("a", "read", `{"q":"a"}`), call("b", "list", `{"p":"b"}`)}},
		{"no stops", []string{blockStart(0, toolBlock("a", "read")), inputDelta(0, `{"p":1}`), blockStart(1, toolBlock("b", "time"))},
			[]part{call("a", "read", `{"p":1}`), call("b", "time", "{}")}},
		{"no indexes", []string{
			`{"type":"content_block_start","content_block":` + toolBlock("a", "read") + `}`, `{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"p\":1}"}}`,
			`{"type":"content_block_stop"}`, `{"type":"content_block_start","index":null,"content_block":` + toolBlock("b", "time") + `}`,
		}, []part{call("a", "read", `{"p":1}`), call("b", "time", "{}")}},
		{"an index twice", []string{
			blockStart(0, toolBlock("a", "read")), inputDelta(0, `{"p":1}`), blockStop(0), blockStart(0, toolBlock("a", "read")), inputDelta(0, `{"p":2}`), blockStop(0),
		}, []part{call("a", "read", `{"p":1}`), call("a", "read", `{"p":2}`)}},
		{"malformed", []string{blockStart(0, toolBlock("a", "read")), inputDelta(0, `{"q"}`), blockStop(0)}, []part{call("a", "read", `{"q"}`)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := append([]string{messageStart(`{"input_tokens":5,"output_tokens":1}`)}, tt.list...)
			ways := someWays
			if strings.HasPrefix(tt.name, "fragments behind") || strings.Contains(tt.name, "side by side") {
				ways = everyWay
			}
			got := ways(t, events(append(list, messageDelta("tool_use"), messageStop)...))
			sameCalls(t, got, tt.want...)
			if strings.Contains(tt.name, "text") && strings.Contains(tt.name, "side") && got.text(llm.TextEnd) != "I look" {
				t.Error(got)
			}
		})
	}
}

// The vendor's word for the stop does not decide whether there are calls. C22
func TestCallsWhateverTheReason(t *testing.T) {
	for _, reason := range []string{"end_turn", "stop_sequence", "other", "", "pause_turn"} {
		body := events(messageStart(`{}`), blockStart(0, `{"type":"text","text":"Let me look. "}`), blockStop(0),
			blockStart(1, toolBlock("a", "read")), inputDelta(1, `{"p":"a"}`), blockStop(1),
			blockStart(2, toolBlock("b", "read")), inputDelta(2, `{"p":"b"}`), blockStop(2), messageDelta(reason), messageStop)
		got := someWays(t, body)
		sameCalls(t, got, call("a", "read", `{"p":"a"}`), call("b", "read", `{"p":"b"}`))
		if got.text(llm.TextEnd) != "Let me look. " || got.Raw != reason {
			t.Error(got)
		}
	}
}

// C26
func TestUsage(t *testing.T) {
	tests := []struct {
		name  string
		start string
		later []string
		want  *llm.Usage
	}{
		{"running totals", `{"input_tokens":25,"cache_read_input_tokens":1000,"output_tokens":1}`,
			[]string{`{"output_tokens":9}`, `{"input_tokens":25,"cache_read_input_tokens":1000,"output_tokens":15}`},
			&llm.Usage{Input: 1025, CacheRead: 1000, Output: 15}},
		{"all counts", `{"input_tokens":3,"cache_creation_input_tokens":40,"cache_read_input_tokens":500,"output_tokens":1,"service_tier":"standard"}`,
			[]string{`{"output_tokens":60,"output_tokens_details":{"thinking_tokens":50}}`},
			&llm.Usage{Input: 543, CacheRead: 500, CacheWrite: 40, Output: 60, Reasoning: 50}},
		{"only at the end", `null`, []string{`{"input_tokens":7,"output_tokens":2}`}, &llm.Usage{Input: 7, Output: 2}},
		{"zeros at the start", `{"input_tokens":0,"output_tokens":0}`, []string{`{"input_tokens":7,"output_tokens":2}`}, &llm.Usage{Input: 7, Output: 2}},
		{"zeros at the end", `{"input_tokens":7,"output_tokens":1}`, []string{`{"input_tokens":0,"output_tokens":2}`}, &llm.Usage{Input: 7, Output: 2}},
		{"nulls", `{"input_tokens":7,"output_tokens":1,"cache_read_input_tokens":null}`, []string{`{"input_tokens":null,"output_tokens":2,"server_tool_use":null}`}, &llm.Usage{Input: 7, Output: 2}},
		{"hosted tools read more", `{"input_tokens":7,"output_tokens":1}`, []string{`{"input_tokens":900,"output_tokens":30}`}, &llm.Usage{Input: 900, Output: 30}},
		{"never counted", `{"input_tokens":0,"output_tokens":0}`, []string{`{"output_tokens":0}`}, nil},
		{"none", `null`, []string{`null`}, nil},
		{"half", `{"input_tokens":7}`, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := []string{messageStart(tt.start), blockStart(0, `{"type":"text","text":"ok"}`), `{"type":"ping"}`, blockStop(0)}
			for _, u := range tt.later {
				list = append(list, `{"type":"message_delta","delta":{},"usage":`+u+`}`)
			}
			ways := someWays
			if tt.name == "running totals" {
				ways = everyWay
			}
			got := ways(t, events(append(list, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`, messageStop)...))
			if got.Err != nil || (got.Usage == nil) != (tt.want == nil) || got.Usage != nil && *got.Usage != *tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// C27, C29
func TestErrorInStream(t *testing.T) {
	got := play(t, "C27", "anthropic_error_event")
	if got.Err == nil || got.Err.Class != llm.Overloaded || got.Err.Code != "overloaded_error" || got.Err.Message != "Overloaded" || got.Usage == nil {
		t.Error(got)
	}
	part := events(messageStart(`{}`), blockStart(0, `{"type":"text","text":"Part"}`))
	for body, want := range map[string]llm.Class{
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow\"}}\n\n":                                   llm.RateLimit,
		"event: error\ndata: {\"error\":{\"type\":\"api_error\",\"message\":\"boom\"}}\n\n":                                                             llm.Server,
		"data: {\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"no\"}}\n\n":                                               llm.Auth,
		"data: {\"error\":{\"message\":\"quota exceeded\"}}\n\n":                                                                                        llm.UnknownClass,
		"event: error\ndata: upstream gone\n\n":                                                                                                         llm.UnknownClass,
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 9 > 8 maximum\"}}\n\n": llm.ContextOverflow,
		"data: nonsense\n\n": llm.Server,
	} {
		if got := someWays(t, part+body+events(messageDelta("end_turn"), messageStop)); got.Err == nil || got.Err.Class != want {
			t.Errorf("%q: %v", body, got)
		}
	}
}

// The rows of real replies that are of this dialect. C43
func TestErrorAnswers(t *testing.T) {
	var file struct {
		Input struct {
			Rows []struct {
				Dialect, Body string
				Status        int
				ContentType   string `json:"content_type"`
			} `json:"rows"`
		} `json:"input"`
		Expected struct {
			Rows []struct{ Class string } `json:"rows"`
		} `json:"expected"`
	}
	field(t, "C43", &file)
	classes := map[string]llm.Class{"context_overflow": llm.ContextOverflow, "billing": llm.Billing, "overloaded": llm.Overloaded}
	rows := 0
	for i, row := range file.Input.Rows {
		if row.Dialect != "anthropic" {
			continue
		}
		rows++
		stub := messagesstub.New(messagesstub.Replies(messagesstub.Reply{Status: row.Status, Body: []byte(row.Body), ContentType: row.ContentType}))
		got := ask(t, model(t, Config{HTTP: over(t, stub)}), hello)
		if want := classes[file.Expected.Rows[i].Class]; got.Err == nil || got.Err.Class != want || got.Parts != nil {
			t.Errorf("row %d: %v, want %s", i, got, want)
		}
	}
	if rows != 5 {
		t.Errorf("%d rows", rows)
	}
	// The words of the vendor besides.
	for _, tt := range []struct {
		status     int
		kind, text string
		want       llm.Class
	}{
		{400, "invalid_request_error", "tools.0.name: String should match pattern", llm.InvalidRequest},
		{401, "authentication_error", "invalid x-api-key", llm.Auth},
		{402, "billing_error", "no credit", llm.Billing},
		{403, "permission_error", "no access", llm.Auth},
		{404, "not_found_error", "model: claude-nope", llm.InvalidRequest},
		{413, "request_too_large", "Request exceeds the maximum size", llm.InvalidRequest},
		{429, "rate_limit_error", "This request would exceed your organization's rate limit of 40,000 input tokens per minute", llm.RateLimit},
		{500, "api_error", "Internal server error", llm.Server},
		{504, "timeout_error", "timed out", llm.Server},
		{529, "overloaded_error", "Overloaded", llm.Overloaded},
	} {
		stub := messagesstub.New(messagesstub.Replies(messagesstub.Error(tt.status, tt.kind, tt.text)))
		got := ask(t, model(t, Config{HTTP: over(t, stub)}), hello)
		if got.Err == nil || got.Err.Class != tt.want || got.Err.Code != tt.kind || got.Err.Message != tt.text || got.Err.Status != tt.status {
			t.Errorf("%d: %v", tt.status, got)
		}
	}
}

// C36
func TestCutCalls(t *testing.T) {
	got := play(t, "C36", "anthropic_max_tokens")
	calls := got.of(llm.ToolCallWhole)
	if got.Err != nil || got.Reason != llm.FinishLength || len(calls) != 1 || calls[0].Name != "create_file" || calls[0].Text != `{"path":"a.md","cont` {
		t.Fatal(got)
	}
	// Whatever the engine keeps of it, valid JSON goes back.
	m, _ := stubbed(t, Config{}, messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Text("ok")}})
	msg := got.message(maker, "x")
	if again := ask(t, m, &llm.Request{Messages: []llm.Message{task("x"), msg, results(msg)}}); again.Err != nil {
		t.Error(again)
	}
	cut := func(reason, args string) answer {
		return someWays(t, events(messageStart(`{}`), blockStart(0, toolBlock("a", "f")), inputDelta(0, args), blockStop(0), messageDelta(reason), messageStop))
	}
	for _, tt := range []struct {
		reason, args string
		want         llm.FinishReason
		whole        string
	}{
		{"max_tokens", `{"path":"a.md"}`, llm.FinishLength, `{"path":"a.md"}`}, // whole by chance
		{"max_tokens", "", llm.FinishLength, ""},                               // and not {}
		{"model_context_window_exceeded", `{"a`, llm.FinishLength, `{"a`},
		{"tool_use", `{"a":"half`, llm.FinishLength, `{"a":"half`}, // a gateway rewrote it
		{"tool_use", `{"a":1}`, llm.FinishTools, `{"a":1}`},
	} {
		got := cut(tt.reason, tt.args)
		if calls := got.of(llm.ToolCallWhole); len(calls) != 1 || calls[0].Text != tt.whole || got.Reason != tt.want {
			t.Errorf("%s %q: %v", tt.reason, tt.args, got)
		}
	}
}

// C15 (c)
func TestRefusals(t *testing.T) {
	said := blockStart(0, `{"type":"text","text":"I will not."}`)
	for _, tt := range []struct {
		name string
		list []string
		want string
	}{
		{"explained", []string{said, `{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"type":"refusal","category":"bio","explanation":"Not this."}}}`}, "Not this."},
		{"with words", []string{said, textDelta(0, " No."), messageDelta("refusal")}, "I will not. No."},
		{"by category", []string{`{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"category":"cyber","explanation":null}}}`}, "the vendor refused to answer (cyber)"},
		{"bare", []string{messageDelta("refusal")}, "the vendor refused to answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := append([]string{messageStart(`{"input_tokens":1,"output_tokens":1}`)}, tt.list...)
			got := someWays(t, events(append(list, messageStop)...))
			if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Code != "refusal" || got.Err.Message != tt.want || got.Usage == nil {
				t.Error(got)
			}
		})
	}
	m, _ := stubbed(t, Config{}, messagesstub.Reply{Stop: "refusal", Refusal: "Not this."})
	if got := ask(t, m, hello); got.Err == nil || got.Err.Message != "Not this." {
		t.Error(got)
	}
}

func TestReasons(t *testing.T) {
	for raw, want := range map[string]llm.FinishReason{
		"end_turn": llm.FinishStop, "stop_sequence": llm.FinishStop, "max_tokens": llm.FinishLength, "pause_turn": llm.FinishPause,
		"model_context_window_exceeded": llm.FinishLength, "tool_use": llm.FinishUnknown, "new_word": llm.FinishUnknown,
	} {
		got := someWays(t, events(messageStart(`{}`), blockStart(0, `{"type":"text","text":"Hi"}`), blockStop(0), messageDelta(raw), messageStop))
		if got.Err != nil || got.Reason != want || got.Raw != raw || got.text(llm.TextEnd) != "Hi" {
			t.Errorf("%s: %v", raw, got)
		}
	}
}

// Where a stream may end, and what that means. C24
func TestStreamEnds(t *testing.T) {
	text := []string{messageStart(`{"input_tokens":1,"output_tokens":1}`), blockStart(0, `{"type":"text","text":""}`), textDelta(0, "Hello")}
	stopped := append(text[:3:3], blockStop(0))
	input := []string{messageStart(`{}`), blockStart(0, toolBlock("a", "f")), inputDelta(0, `{"q":`)}
	tests := []struct {
		name   string
		body   string
		reason llm.FinishReason // "" for truncated
		code   string
	}{
		{"all", events(append(stopped[:4:4], messageDelta("end_turn"), messageStop)...), llm.FinishStop, ""},
		{"no message_stop", events(append(stopped[:4:4], messageDelta("end_turn"))...), llm.FinishStop, ""},
		{"no block stop", events(append(text[:3:3], messageDelta("end_turn"), messageStop)...), llm.FinishStop, ""},
		{"no reason", events(append(stopped[:4:4], messageStop)...), llm.FinishUnknown, ""},
		{"a null reason", events(append(stopped[:4:4], `{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":3}}`, messageStop)...), llm.FinishUnknown, ""},
		{"[DONE] behind it", events(append(stopped[:4:4], messageDelta("end_turn"))...) + "data: [DONE]\n\n", llm.FinishStop, ""},
		{"[DONE] for it", events(stopped...) + "data: [DONE]\n\n", llm.FinishUnknown, ""},
		{"blocks only", events(stopped...), "", ""},
		{"in the text", events(text...), "", ""},
		{"in the event", events(text...) + "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"ind", "", ""},
		{"in the arguments", events(input...), "", ""},
		{"in the arguments, with message_stop", events(append(input[:3:3], messageStop)...), "", ""},
		{"start only", events(messageStart(`{}`)), "", "empty_reply"},
		{"pings only", events(`{"type":"ping"}`, `{"type":"ping"}`), "", "empty_reply"},
		{"comments only", ": hi\n\n: hi\n\n", "", "empty_reply"},
		{"message_stop only", events(messageStop), "", "empty_reply"},
		{"nothing", "", "", "empty_reply"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := someWays(t, tt.body)
			if tt.reason != "" {
				if got.Err != nil || got.Reason != tt.reason || got.text(llm.TextEnd) != "Hello" {
					t.Error(got)
				}
				return
			}
			if got.Err == nil || got.Err.Class != llm.Truncated || got.Err.Code != tt.code || got.of(llm.ToolCallWhole) != nil {
				t.Error(got)
			}
		})
	}
}

// Every cut of an answer before its end is a failure that may be tried again,
// and never an answer.
func TestEveryTruncation(t *testing.T) {
	body := messagesstub.Reply{Blocks: []messagesstub.Block{
		messagesstub.Thinking("th"), messagesstub.Text("Hi"), messagesstub.ToolUse("a", "f", `{"q":1}`),
	}, Input: 3, Output: 4}.Stream()
	end := strings.Index(string(body), "event: message_delta")
	for n := range end {
		got := read(t, "text/event-stream", strings.NewReader(string(body[:n])))
		if got.Err == nil || got.Err.Class != llm.Truncated || got.Reason != "" {
			t.Fatalf("cut at %d: %v", n, got)
		}
	}
	// A connection that breaks is the same.
	for _, n := range []int{40, 300, end} {
		m := model(t, Config{HTTP: over(t, messagesstub.New(messagesstub.Replies(messagesstub.Reply{Body: body, CutAfter: n})))})
		if got := ask(t, m, hello); got.Err == nil || !got.Err.Class.Retryable() || got.Reason != "" {
			t.Errorf("broken at %d: %v", n, got)
		}
	}
}

// Nothing is waited for behind message_stop, and little behind a reason. C24
func TestOpenSocket(t *testing.T) {
	whole := string(messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Text("Hello")}}.Stream())
	open := strings.TrimSuffix(whole, events(messageStop))
	for _, tt := range []struct {
		name, body string
		took       time.Duration
	}{
		{"after message_stop", whole, 0},
		{"after the reason", open, tail},
		{"with pings after the reason", open + strings.Repeat(events(`{"type":"ping"}`), 9), tail},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := chatstub.NewPipe(messagesstub.New(messagesstub.Replies(messagesstub.Reply{Body: []byte(tt.body), Hold: true})))
				defer p.Shutdown()
				start := time.Now()
				got := ask(t, model(t, Config{HTTP: p.Client()}), hello)
				took := time.Since(start)
				if got.Err != nil || got.text(llm.TextEnd) != "Hello" || took < tt.took || took > tt.took+100*time.Millisecond {
					t.Errorf("%v after %s", got, took)
				}
			})
		})
	}
}

// C29, C30
func TestNoise(t *testing.T) {
	whole := events(messageStart(`{}`), blockStart(0, `{"type":"text","text":""}`), textDelta(0, "h\u00e9llo "), textDelta(0, "\u4e16\u754c \U0001f3f7"), blockStop(0), messageDelta("end_turn"), messageStop)
	noise := ": PROCESSING\n\nid: 7\nretry: 1000\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: ping\ndata: x\n\nevent: new_thing\ndata: [1]\n\ndata: {\"type\":\"new_thing\",\"delta\":{\"text\":\"x\"}}\n\n"
	body := noise + strings.ReplaceAll(whole, "\n\n", "\n\n"+noise)
	body = strings.Replace(body, "data: {\"type\":\"message_start\",", "data:{\"type\":\ndata: \"message_start\",", 1)
	got := everyWay(t, body)
	if got.Err != nil || got.text(llm.TextEnd) != "h\u00e9llo \u4e16\u754c \U0001f3f7" || len(got.Parts) != 1 {
		t.Error(got)
	}
	// Unknown members and members of an odd type are as good as absent.
	odd := events(`{"type":"message_start","message":{"usage":"none","content":null,"id":7},"x":1}`, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":null,"x":[]}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ok","thinking":null,"signature":5}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"new_delta","text":null}}`,
		inputDelta(9, "{}"), blockStop(0), textDelta(0, "late"), `{"type":"message_delta","delta":null}`, messageDelta("end_turn"), messageStop)
	// Words whose block never began are not lost.
	bare := events(blockDelta(0, `{"type":"thinking_delta","thinking":"hm"}`), blockDelta(0, `{"type":"signature_delta","signature":"s"}`), blockStop(0), textDelta(1, "o"), textDelta(1, "k"), messageDelta("end_turn"))
	if got := someWays(t, bare); got.Err != nil || got.text(llm.TextEnd) != "ok" || got.Parts[0].State != `{"type":"thinking","thinking":"hm","signature":"s"}` {
		t.Error(got)
	}
	if got := someWays(t, odd); got.Err != nil || got.text(llm.TextEnd) != "ok" {
		t.Error(got)
	}
}

// C32
func TestLongEvents(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		long := strings.Repeat("x", size)
		body := events(messageStart(`{}`), blockStart(0, toolBlock("a", "f")), inputDelta(0, `{"a":"`+long+`"}`), blockStop(0), messageDelta("tool_use"), messageStop)
		got := read(t, "text/event-stream", strings.NewReader(body))
		if calls := got.of(llm.ToolCallWhole); got.Err != nil || len(calls) != 1 || len(calls[0].Text) != size+8 {
			t.Fatalf("%d bytes: %v", size, got.Err)
		}
	}
	m := model(t, Config{HTTP: pieces.Client("text/event-stream", io.MultiReader(strings.NewReader("data: "), forever{})), EventLimit: 1 << 20})
	if got := ask(t, m, hello); got.Err == nil || got.Err.Class != llm.Server || !strings.Contains(got.Err.Message, "larger than the limit of 1048576 bytes") {
		t.Error(got)
	}
}

type forever struct{}

func (forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Whatever is without end is stopped at its bound.
func TestBounds(t *testing.T) {
	endless := func(head string, next func(i int) string) io.Reader {
		i := 0
		return io.MultiReader(strings.NewReader(head), readerFunc(func(p []byte) (int, error) {
			s := next(i)
			i++
			return copy(p, s), nil
		}))
	}
	start := events(messageStart(`{}`))
	long := strings.Repeat("x", 12<<10)
	more := events(textDelta(0, long))
	for name, r := range map[string]io.Reader{
		"calls":  endless(start, func(i int) string { return events(blockStart(i, toolBlock("a", "f")), blockStop(i)) }),
		"blocks": endless(start, func(i int) string { return events(blockStart(i, `{"type":"text","text":""}`), blockStop(i)) }),
		"text":   endless(start+events(blockStart(0, `{"type":"text","text":""}`)), func(int) string { return more }),
	} {
		got := read(t, "text/event-stream", r)
		want := map[string]string{"calls": "more than 256 tool calls", "blocks": "more than 1024 blocks", "text": "larger than 33554432 bytes"}[name]
		if got.Err == nil || got.Err.Class != llm.Server || !strings.Contains(got.Err.Message, want) {
			t.Errorf("%s: %v", name, got.Err)
		}
	}
	// All that is kept counts.
	for _, tt := range []struct{ block, delta string }{
		{`{"type":"thinking","thinking":""}`, `{"type":"thinking_delta","thinking":"` + long + `"}`},
		{`{"type":"thinking","thinking":""}`, `{"type":"signature_delta","signature":"` + long + `"}`},
		{`{"type":"text","text":""}`, `{"type":"citations_delta","citation":{"a":"` + long + `"}}`},
		{toolBlock("a", "f"), `{"type":"input_json_delta","partial_json":"` + long + `"}`},
		{`{"type":"server_tool_use","id":"a","name":"f"}`, `{"type":"input_json_delta","partial_json":"` + long + `"}`},
		{`{"type":"web_search_tool_result","tool_use_id":"a","content":"` + long + `"}`, ""},
	} {
		a := newAssembler(func(llm.Part) error { return nil })
		a.limit = 1 << 20
		var err error
		for i := 0; err == nil && i < 100; i++ {
			e, _ := parseEvent([]byte(blockDelta(0, tt.delta)))
			if i == 0 || tt.delta == "" {
				e, _ = parseEvent([]byte(blockStart(i, tt.block)))
			}
			err = a.event(&e)
		}
		if err == nil || llm.AsError(err).Class != llm.Server {
			t.Errorf("%s %.40s: %v", tt.block, tt.delta, err)
		}
	}
	if got := read(t, "application/json", io.MultiReader(strings.NewReader(`{"content":"`), forever{})); got.Err == nil || got.Err.Class != llm.Server {
		t.Error(got)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// C28
func TestGateways(t *testing.T) {
	reply := messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Thinking("t"), messagesstub.Text("fine")}, Input: 3, Output: 1}
	good, stream := string(reply.Plain("m")), string(reply.Stream())
	for _, tt := range []struct {
		name, media, body string
		class             llm.Class // "" for the text "fine"
	}{
		{"error in a 200", "application/json", `{"type":"error","error":{"type":"overloaded_error","message":"x"}}`, llm.Overloaded},
		{"another error in a 200", "application/json", `{"error":{"message":"limit reached","code":502}}`, llm.Server},
		{"sign-in page", "text/html", "<!doctype html><p>Sign in", llm.InvalidRequest},
		{"empty", "", "", llm.Truncated},
		{"white space", "application/json", " \n", llm.Truncated},
		{"another API", "application/json", `{"choices":[]}`, llm.Server},
		{"broken JSON", "application/json", `{"type":"message","content":[{"type":"text","text":"fi`, llm.Server},
		{"JSON", "application/json", good, ""},
		{"JSON as text", "text/plain", good, ""},
		{"JSON as a stream", "text/event-stream", "\n" + good, ""},
		{"JSON as the only event", "text/event-stream", "data: " + good + "\n\n", ""},
		{"a stream as JSON", "application/json", stream, ""},
		{"a stream as text", "text/plain", ": hi\n\n" + stream, ""},
		{"a stream with a byte order mark", "text/event-stream", "\xef\xbb\xbf" + stream, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := read(t, tt.media, strings.NewReader(tt.body))
			if tt.class == "" {
				if got.Err != nil || got.text(llm.TextEnd) != "fine" || got.Usage == nil || got.Usage.Input != 3 || got.Parts[0].State == "" {
					t.Error(got)
				}
				return
			}
			if got.Err == nil || got.Err.Class != tt.class || strings.Contains(got.Err.Message, "<") {
				t.Error(got)
			}
		})
	}
}

// A plain answer gives the same as its stream.
func TestPlainIsStream(t *testing.T) {
	r := messagesstub.Reply{Blocks: []messagesstub.Block{
		messagesstub.Thinking("a <b> \u2028 & \"c\""), messagesstub.Hidden("h"), messagesstub.Redacted("r"), messagesstub.Cited("Cold.", "https://x.test/?a=1&b=<2>"),
		messagesstub.Hosted("srvtoolu_1", "web_search", `{"query":"q <&>"}`), messagesstub.Found("srvtoolu_1", "https://x.test/"),
		messagesstub.HostedFailed("srvtoolu_2", "web_fetch", "unavailable"), {"type": "container_upload", "file_id": "f"},
		messagesstub.ToolUse("toolu_1", "f", `{"q":[1,{"a":null}]}`), messagesstub.CodeUse("toolu_2", "g", `{}`, "srvtoolu_1"),
	}, Container: "container_1", Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4}
	stream := someWays(t, string(r.Stream()))
	if plain := read(t, "application/json", strings.NewReader(string(r.Plain("m")))); plain.String() != stream.String() {
		t.Errorf("\n got %v\nwant %v", plain, stream)
	}
	var kinds []llm.PartKind
	for i, p := range stream.Parts {
		kinds = append(kinds, p.Kind)
		if i < len(r.Blocks) && r.Blocks[i]["type"] != "text" && p.Kind != llm.ToolCallWhole && p.State != string(r.Blocks[i].JSON()) {
			t.Errorf("state %s\n want %s", p.State, r.Blocks[i].JSON())
		}
	}
	want := []llm.PartKind{llm.ReasoningEnd, llm.ReasoningEnd, llm.ReasoningEnd, llm.TextEnd, llm.HostedCall, llm.HostedResult, llm.HostedResult,
		llm.ReasoningEnd, llm.ToolCallWhole, llm.ToolCallWhole, llm.ReasoningEnd}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("%v", kinds)
	}
	if p := stream.Parts; p[4].Name != "web_search" || p[4].ID != "srvtoolu_1" || p[4].Text != `{"query":"q <&>"}` || p[5].ID != "srvtoolu_1" || p[5].Text != "1 results" || p[5].Failed ||
		!p[6].Failed || p[6].Text != "unavailable" || p[8].State != "" || p[9].State == "" {
		t.Error(stream)
	}
}

// What the caller returns ends the stream, and so does the caller's context.
func TestStops(t *testing.T) {
	stub := messagesstub.New(messagesstub.Replies(messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Text("Hello")}, Hold: true, Pause: time.Hour}))
	synctest.Test(t, func(t *testing.T) {
		p := chatstub.NewPipe(stub)
		defer p.Shutdown()
		m := model(t, Config{HTTP: p.Client(), Idle: time.Minute})
		got := ask(t, m, hello)
		if got.Err == nil || got.Err.Class != llm.Transport {
			t.Error(got)
		}
	})
	stop := errors.New("stop")
	m := model(t, Config{HTTP: pieces.Client("text/event-stream", strings.NewReader(string(messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Text("Hello")}}.Stream())))})
	if err := m.Stream(t.Context(), hello, func(llm.Part) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// No bytes make the reading panic, break the order of parts, or take more time
// than they are.
func FuzzStream(f *testing.F) {
	f.Add([]byte(messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Thinking("t"), messagesstub.ToolUse("a", "f", `{"a":1}`)}, Input: 1, Output: 1}.Stream()))
	f.Add([]byte(events(messageStart(`{}`), blockStart(0, `{"type":"server_tool_use","id":"a","name":"b"}`), inputDelta(0, "{"), messageDelta("pause_turn"), messageStop)))
	f.Add([]byte(messagesstub.Reply{Blocks: []messagesstub.Block{messagesstub.Cited("c", "u")}}.Plain("m")))
	f.Fuzz(func(t *testing.T, body []byte) {
		whole := read(t, "text/event-stream", pieces.Reader(body))
		if cut := read(t, "text/event-stream", pieces.Bytes(body)); cut.String() != whole.String() {
			t.Fatalf("%v\n%v", cut, whole)
		}
		for _, p := range whole.Parts {
			if p.State != "" && keep([]byte(p.State)) == nil {
				t.Fatalf("a state that cannot be sent: %q", p.State)
			}
		}
	})
}

var _ http.Handler = (*messagesstub.Stub)(nil)

package openaicompat

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

// variants is the part of the field cases that holds streams.
type variants struct {
	Input struct {
		Variants []variant `json:"variants"`
	} `json:"input"`
}

type variant struct {
	Name    string `json:"name"`
	Dialect string `json:"dialect"`
	Body    string `json:"body"`
	Stream  *bool  `json:"stream"`
	Hold    int    `json:"hold_open_s"`
}

// play gives the answer of a variant: as a stream every way, with the last
// blank line and without; as plain JSON over the stub.
func (v variant) play(t *testing.T) answer {
	t.Helper()
	if v.Stream == nil {
		got := everyWay(t, v.Body)
		if open := everyWay(t, strings.TrimRight(v.Body, "\n")); open.String() != got.String() {
			t.Fatalf("without the last blank line:\n got %v\nwant %v", open, got)
		}
		return got
	}
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Body: []byte(v.Body), ContentType: "application/json"}))
	return ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), hello)
}

func each(t *testing.T, name string, fn func(t *testing.T, v variant, got answer)) {
	t.Helper()
	var f variants
	field(t, name, &f)
	for _, v := range f.Input.Variants {
		if v.Dialect != "" && v.Dialect != "openai_compatible" || v.Hold > 0 {
			continue
		}
		t.Run(v.Name, func(t *testing.T) { fn(t, v, v.play(t)) })
	}
}

func sameCalls(t *testing.T, got answer, want ...toolCall) {
	t.Helper()
	if got.Err != nil || len(got.Calls) != len(want) || got.Reason != llm.FinishTools {
		t.Fatalf("%v", got)
	}
	for i, c := range got.Calls {
		args, err := canonjson.Canonicalize([]byte(c.Args), canonjson.Limits{})
		if err != nil {
			t.Fatalf("%q: %v", c.Args, err)
		}
		if c.Args = string(args); c != want[i] {
			t.Errorf("call %d: %v, want %v", i, c, want[i])
		}
	}
}

// C17
func TestEmptyArguments(t *testing.T) {
	each(t, "C17", func(t *testing.T, v variant, got answer) {
		sameCalls(t, got, toolCall{"call_a", "get_time", "{}"})
	})
	// Malformed text stays what it is.
	got := everyWay(t, chunks("tool_calls", `{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"q\"}"}}]}`))
	if len(got.Calls) != 1 || got.Calls[0].Args != `{"q"}` || got.Reason != llm.FinishTools {
		t.Error(got)
	}
}

// C18
func TestArgumentsAsObject(t *testing.T) {
	each(t, "C18", func(t *testing.T, v variant, got answer) {
		switch v.Name {
		case "array":
			if len(got.Calls) != 1 || got.Calls[0].Args != `["Oslo"]` {
				t.Error(got)
			}
		case "double_encoded_string":
			if len(got.Calls) != 1 || got.Calls[0].Args != `"{\"city\":\"Oslo\",\"days\":3}"` {
				t.Error(got)
			}
		default:
			sameCalls(t, got, toolCall{"call_a", "get_weather", `{"city":"Oslo","days":3}`})
		}
	})
	// An empty object before the fragments is a converter's, not the model's.
	got := everyWay(t, chunks("tool_calls",
		`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":{}}}]}`,
		`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}`))
	sameCalls(t, got, toolCall{"a", "f", `{"a":1}`})
}

// C19
func TestCallsWithoutIndex(t *testing.T) {
	each(t, "C19", func(t *testing.T, v variant, got answer) {
		sameCalls(t, got, toolCall{"c_a", "read", `{"p":"a"}`}, toolCall{"c_b", "read", `{"p":"b"}`}, toolCall{"c_c", "list", "{}"})
	})
}

// The same kind of fault in other shapes. C19, C21
func TestCallsTold(t *testing.T) {
	a, b := toolCall{"x", "read", `{"p":"a"}`}, toolCall{"y", "read", `{"p":"b"}`}
	sameID := toolCall{"x", "read", `{"p":"b"}`}
	tests := []struct {
		name   string
		deltas []string
		want   []toolCall
	}{
		{"index 0 for every call", []string{
			`{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":"{\"p\":\"a\"}"}}]}`,
			`{"tool_calls":[{"index":0,"id":"y","function":{"name":"read","arguments":"{\"p\":"}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"\"b\"}"}}]}`,
		}, []toolCall{a, b}},
		{"one list, one index, one id", []string{
			`{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":"{\"p\":\"a\"}"}},{"index":0,"id":"x","function":{"name":"read","arguments":"{\"p\":\"b\"}"}}]}`,
		}, []toolCall{a, sameID}},
		{"two indexes, one id", []string{
			`{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":"{\"p\":\"a\"}"}},{"index":1,"id":"x","function":{"name":"read","arguments":"{\"p\":\"b\"}"}}]}`,
		}, []toolCall{a, sameID}},
		{"no index, one id, whole arguments", []string{
			`{"tool_calls":[{"id":"x","function":{"name":"read","arguments":"{\"p\":\"a\"}"}}]}`,
			`{"tool_calls":[{"id":"x","function":{"name":"read","arguments":"{\"p\":\"b\"}"}}]}`,
		}, []toolCall{a, sameID}},
		{"id and name repeated with each fragment", []string{
			`{"tool_calls":[{"id":"x","function":{"name":"read","arguments":"{\"p\":"}}]}`,
			`{"tool_calls":[{"id":"x","function":{"name":"read","arguments":"\"a\"}"}}]}`,
		}, []toolCall{a}},
		{"fragments interleaved by index", []string{
			`{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":""}},{"index":1,"id":"y","function":{"name":"read","arguments":""}}]}`,
			`{"tool_calls":[{"index":1,"function":{"arguments":"{\"p\":"}},{"index":0,"function":{"arguments":"{\"p\":"}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"\"a\"}"}},{"index":1,"function":{"arguments":"\"b\"}"}}]}`,
		}, []toolCall{a, b}},
		{"fragments told apart by id", []string{
			`{"tool_calls":[{"id":"x","function":{"name":"read","arguments":"{"}}]}`,
			`{"tool_calls":[{"id":"y","function":{"name":"read","arguments":"{"}}]}`,
			`{"tool_calls":[{"id":"x","function":{"arguments":"\"p\":\"a\"}"}},{"id":"y","function":{"arguments":"\"p\":\"b\"}"}}]}`,
		}, []toolCall{a, b}},
		{"the name comes late", []string{
			`{"tool_calls":[{"index":0,"id":"x","function":{"arguments":"{\"p\":"}}]}`,
			`{"tool_calls":[{"index":0,"function":{"name":"read","arguments":"\"a\"}"}}]}`,
		}, []toolCall{a}},
		{"no name at all", []string{`{"tool_calls":[{"index":0,"id":"x","function":{"arguments":"{}"}}]}`}, []toolCall{{"x", "", "{}"}}},
		{"text around the call", []string{
			`{"content":"\n"}`, `{"tool_calls":[{"index":0,"id":"x","function":{"name":"read","arguments":"{\"p\":\"a\"}"}}]}`, `{"content":"done"}`,
		}, []toolCall{a}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { sameCalls(t, everyWay(t, chunks("tool_calls", tt.deltas...)), tt.want...) })
	}
}

// C22
func TestCallsWhateverTheReason(t *testing.T) {
	each(t, "C22", func(t *testing.T, v variant, got answer) {
		sameCalls(t, got, toolCall{"c_a", "read", `{"p":"a"}`}, toolCall{"c_b", "read", `{"p":"b"}`})
		if got.Text != "Let me look. " {
			t.Error(got)
		}
	})
}

// C24
func TestStreamEnds(t *testing.T) {
	each(t, "C24", func(t *testing.T, v variant, got answer) {
		switch v.Name {
		case "finish_and_done", "finish_no_done":
			if got.Err != nil || got.Text != "Hello" || got.Reason != llm.FinishStop {
				t.Error(got)
			}
		case "done_without_finish":
			if got.Err != nil || got.Text != "Hello" || got.Reason != llm.FinishUnknown {
				t.Error(got)
			}
		case "done_only", "zero_bytes":
			if got.Err == nil || got.Err.Class != llm.Truncated || got.Err.Code != "empty_reply" {
				t.Error(got)
			}
		default:
			if got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil {
				t.Error(got)
			}
		}
	})
	// [DONE] without a reason inside a call's arguments is no end.
	got := everyWay(t, chunks("", `{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"q"}}]}`))
	if got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil {
		t.Error(got)
	}
}

// Nothing is waited for behind [DONE], and little behind a reason. C24
func TestOpenSocket(t *testing.T) {
	done := chatstub.Reply{Text: "Hello"}
	body := string(done.Stream())
	tests := []struct {
		name  string
		reply chatstub.Reply
		took  time.Duration
	}{
		{"after [DONE]", chatstub.Reply{Text: "Hello", Hold: true}, 0},
		{"after the reason", chatstub.Reply{Body: []byte(strings.TrimSuffix(body, "data: [DONE]\n\n")), Hold: true}, tail},
		{"with comments after the reason", chatstub.Reply{Body: []byte(strings.TrimSuffix(body, "data: [DONE]\n\n") + strings.Repeat(": x\n\n", 9)), Hold: true}, tail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := chatstub.NewPipe(chatstub.New(chatstub.Replies(tt.reply)))
				defer p.Shutdown()
				start := time.Now()
				got := ask(t, t.Context(), model(t, Config{HTTP: p.Client()}), hello)
				took := time.Since(start)
				if got.Err != nil || got.Text != "Hello" || took < tt.took || took > tt.took+100*time.Millisecond {
					t.Errorf("%v after %s", got, took)
				}
			})
		})
	}
}

// C27
func TestErrorInStream(t *testing.T) {
	want := map[string]struct {
		class llm.Class
		text  string
	}{
		"openai_error_empty_choices": {llm.Server, "worker request limit reached"},
		"openai_error_only":          {llm.UnknownClass, "quota exceeded"},
		"openai_finish_error":        {llm.RateLimit, "rate limited upstream"},
	}
	each(t, "C27", func(t *testing.T, v variant, got answer) {
		if w := want[v.Name]; got.Err == nil || got.Err.Class != w.class || got.Err.Message != w.text {
			t.Error(got)
		}
	})
	for body, class := range map[string]llm.Class{
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n": llm.Overloaded,
		"event: error\ndata: upstream gone\n\n": llm.UnknownClass,
		"data: {\"object\":\"error\",\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}\n\n": llm.Server,
		"data: {\"detail\":\"x\"}\n\n":                 llm.UnknownClass,
		"data: {\"error\":\"Rate limit reached\"}\n\n": llm.RateLimit,
		"data: nonsense\n\n":                           llm.Server,
		chunks("error", `{"content":"Part"}`):          llm.Server,
	} {
		if got := everyWay(t, body+"data: [DONE]\n\n"); got.Err == nil || got.Err.Class != class {
			t.Errorf("%q: %v", body, got)
		}
	}
}

// C28
func TestGateways(t *testing.T) {
	good := `{"choices":[{"index":0,"message":{"role":"assistant","content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	stream := string(chatstub.Reply{Text: "fine", Input: 3, Output: 1}.Stream())
	tests := []struct {
		name, media string
		status      int
		body        string
		class       llm.Class // "" for the text "fine"
	}{
		{"error in a 200", "application/json", 200, `{"error":{"message":"limit reached","code":502}}`, llm.Server},
		{"sign-in page", "text/html", 200, "<!doctype html><p>Sign in", llm.InvalidRequest},
		{"gateway page", "text/html", 502, "<html>nginx</html>", llm.Server},
		{"empty", "", 200, "", llm.Truncated},
		{"white space", "application/json", 200, " \n", llm.Truncated},
		{"no choices", "application/json", 200, `{"choices":[]}`, llm.Truncated},
		{"null choices", "application/json", 200, `{"choices":null,"object":"chat.completion"}`, llm.Server},
		{"broken JSON", "application/json", 200, `{"choices":[{"message":{"content":"fi`, llm.Server},
		{"JSON as text", "text/plain", 200, good, ""},
		{"JSON as a stream", "text/event-stream", 200, "\n" + good, ""},
		{"a stream as JSON", "application/json", 200, stream, ""},
		{"a stream as text", "text/plain", 200, ": hi\n\n" + stream, ""},
		{"a stream with a byte order mark", "text/event-stream", 200, "\xef\xbb\xbf" + stream, ""},
		{"no content", "", 204, "", llm.Server},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := served{media: tt.media, status: tt.status, body: func() io.Reader { return strings.NewReader(tt.body) }}
			got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
			if tt.class == "" {
				if got.Err != nil || got.Text != "fine" || got.Usage == nil || got.Usage.Input != 3 {
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

// C29
func TestKeepAlives(t *testing.T) {
	noise := strings.Repeat(": PROCESSING\n\n", 3) + "id: 7\nretry: 1000\n\nevent: ping\ndata: x\n\ndata: {}\n\n"
	body := noise + "data:{\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"ok\"}}]}\n\n" + chunks("stop")
	if got := everyWay(t, body); got.Err != nil || got.Text != "ok" || got.Deltas != 1 {
		t.Error(got)
	}
	got := everyWay(t, strings.Repeat(": PROCESSING\n\n", 3))
	if got.Err == nil || got.Err.Code != "empty_reply" || !got.Err.Class.Retryable() || !strings.HasPrefix(got.Err.Message, "empty reply") {
		t.Error(got)
	}
}

// C30: each body of the case already has its line ends; the borders of CR and
// LF are among the cuts.
func TestLineEnds(t *testing.T) {
	var f variants
	field(t, "C30", &f)
	for _, v := range f.Input.Variants {
		for how, r := range pieces.Cuts([]byte(v.Body)) {
			got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", r)}), hello)
			if got.Err != nil || got.Text != "h\u00e9llo \u4e16\u754c \U0001f3f7 done" || got.Deltas != 2 {
				t.Fatalf("%s, %s: %v", v.Name, how, got)
			}
		}
	}
	if len(f.Input.Variants) == 0 {
		t.Error("no variants")
	}
}

// C32
func TestLongEvents(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		long := strings.Repeat("x", size)
		body := chunks("tool_calls", fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":\"%s\"}"}}]}`, long))
		s := served{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(body) }}
		got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
		if got.Err != nil || len(got.Calls) != 1 || len(got.Calls[0].Args) != size+8 {
			t.Fatalf("%d bytes: %d calls, %v", size, len(got.Calls), got.Err)
		}
	}
	s := served{media: "text/event-stream", body: func() io.Reader { return io.MultiReader(strings.NewReader("data: "), forever{}) }}
	got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}, EventLimit: 1 << 20}), hello)
	if got.Err == nil || got.Err.Class != llm.Server || !strings.Contains(got.Err.Message, "larger than the limit of 1048576 bytes") {
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

// C36
func TestCutCalls(t *testing.T) {
	each(t, "C36", func(t *testing.T, v variant, got answer) {
		if got.Err != nil || got.Reason != llm.FinishLength || len(got.Calls) != 1 || got.Calls[0].Name != "create_file" {
			t.Fatal(got)
		}
		// Whatever the engine keeps of it, valid JSON goes back.
		stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
		next := &llm.Request{Messages: []llm.Message{
			task("x"),
			{Role: llm.Assistant, Parts: []llm.Content{{Kind: llm.ToolCall, CallID: "call_1", Name: got.Calls[0].Name, Text: got.Calls[0].Args}}},
			{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, CallID: "call_1", Text: "cut by the output limit", IsError: true}}},
		}}
		if again := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), next); again.Err != nil || len(stub.Violations()) > 0 {
			t.Error(again, stub.Violations())
		}
	})
	// Empty arguments of a cut reply are not {}.
	got := everyWay(t, chunks("length", `{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}`))
	if len(got.Calls) != 1 || got.Calls[0].Args != "" || got.Reason != llm.FinishLength {
		t.Error(got)
	}
	if got := everyWay(t, chunks("length", `{"content":"half"}`)); got.Err != nil || got.Reason != llm.FinishLength || got.Text != "half" {
		t.Error(got)
	}
}

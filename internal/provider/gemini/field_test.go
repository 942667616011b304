package gemini

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

func strict(raw []byte) bool {
	_, err := canonjson.Parse(raw, canonjson.Limits{Bytes: MaxRequest, Tokens: MaxRequest})
	return err == nil
}

// C15
func TestRefusals(t *testing.T) {
	tests := []struct{ body, code, text string }{
		{`data: {"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4}}` + "\n\n", "SAFETY", "the vendor blocked the prompt: SAFETY"},
		{`data: {"promptFeedback":{"blockReason":"PROHIBITED_CONTENT","blockReasonMessage":"Not this."},"candidates":[]}` + "\n\n", "PROHIBITED_CONTENT", "Not this."},
		{chunks("SAFETY", `{"text":"Half an an"}`), "SAFETY", "the vendor stopped the answer: SAFETY"},
		{`data: {"candidates":[{"finishReason":"RECITATION","finishMessage":"Too close to a source."}]}` + "\n\n", "RECITATION", "Too close to a source."},
	}
	for _, tt := range tests {
		got := everyWay(t, tt.body)
		if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Message != tt.text || got.Err.Code != tt.code || got.Err.Class.Retryable() {
			t.Errorf("%q: %v", tt.body, got)
		}
	}
	for _, r := range []geministub.Reply{{Block: "OTHER", Input: 4}, {Block: "OTHER", Plain: true}, {Block: "OTHER", List: true}} {
		if got := play(t, r); got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Code != "OTHER" {
			t.Error(got)
		}
	}
	if got := play(t, geministub.Reply{Block: "OTHER", Input: 4}); got.Usage == nil || got.Usage.Input != 4 {
		t.Error(got)
	}
}

// C17: the forms in which this dialect tells of a call without arguments.
func TestEmptyArguments(t *testing.T) {
	for _, args := range []string{``, `,"args":{}`, `,"args":null`, `,"args":""`, `,"args":"  "`, `,"args":"{}"`} {
		for name, got := range map[string]answer{
			"stream": everyWay(t, chunks("STOP", `{"functionCall":{"name":"get_time","id":"call_a"`+args+`}}`)),
			"plain":  readText(t, `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"get_time","id":"call_a"`+args+`}}]},"finishReason":"STOP"}]}`),
		} {
			if got.Err != nil || fmt.Sprint(got.Calls) != "[{call_a get_time {}}]" || got.Reason != llm.FinishTools {
				t.Errorf("%s %q: %v", name, args, got)
			}
		}
	}
	// What is no object stays what it is. C18
	for sent, want := range map[string]string{`"{\"q\""`: `{"q"`, `["Oslo"]`: `["Oslo"]`, `7`: `7`, `"{\"q\":1}"`: `{"q":1}`} {
		got := everyWay(t, chunks("STOP", `{"functionCall":{"name":"f","args":`+sent+`}}`))
		if got.Err != nil || len(got.Calls) != 1 || got.Calls[0].Args != want || got.Reason != llm.FinishTools {
			t.Errorf("%s: %v", sent, got)
		}
	}
}

// C22
func TestCallsWhateverTheReason(t *testing.T) {
	for _, reason := range []string{"STOP", "OTHER", "FINISH_REASON_UNSPECIFIED", "SOMETHING_NEW"} {
		got := everyWay(t, chunks(reason, `{"text":"Let me look. "}`, `{"functionCall":{"name":"read","args":{"p":"a"}}}`, `{"functionCall":{"name":"read","args":{"p":"b"}}}`))
		if got.Err != nil || got.Text != "Let me look. " || fmt.Sprint(got.Calls) != `[{ read {"p":"a"}} { read {"p":"b"}}]` || got.Reason != llm.FinishTools {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

// C27
func TestErrorInStream(t *testing.T) {
	var f struct {
		Input struct {
			Variants []struct{ Name, Dialect, Body string } `json:"variants"`
		} `json:"input"`
	}
	field(t, "C27", &f)
	seen := 0
	for _, v := range f.Input.Variants {
		if v.Dialect != "gemini" {
			continue
		}
		seen++
		got := everyWay(t, v.Body)
		if got.Err == nil || got.Err.Class != llm.Overloaded || got.Err.Message != "overloaded" || got.Err.Code != "UNAVAILABLE" {
			t.Errorf("%s: %v", v.Name, got)
		}
	}
	if seen == 0 {
		t.Error("no stream of this dialect")
	}
}

// The same fault in other shapes, behind text and before it. C27
func TestErrorShapes(t *testing.T) {
	retry := `"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"17s"}]`
	tests := []struct {
		name, text string
		want       llm.Class
		wait       time.Duration
	}{
		{"event", "data: {\"error\":{\"code\":503,\"message\":\"x\",\"status\":\"UNAVAILABLE\"}}\n\n", llm.Overloaded, 0},
		{"wait", "data: {\"error\":{\"code\":429,\"message\":\"x\",\"status\":\"RESOURCE_EXHAUSTED\"," + retry + "}}\n\n", llm.RateLimit, 17 * time.Second},
		{"named event", "event: error\ndata: {\"error\":{\"code\":500,\"message\":\"x\",\"status\":\"INTERNAL\"}}\n\n", llm.Server, 0},
		{"named event without JSON", "event: error\ndata: upstream gone\n\n", llm.UnknownClass, 0},
		{"list", "data: [{\"error\":{\"code\":500,\"message\":\"x\",\"status\":\"INTERNAL\"}}]\n\n", llm.Server, 0},
		{"no event at all", "{\"error\":{\"code\":503,\"message\":\"x\",\"status\":\"UNAVAILABLE\"}}", llm.Overloaded, 0},
		{"no event, over lines", "{\n  \"error\": {\n    \"code\": 429,\n    \"message\": \"x\",\n    \"status\": \"RESOURCE_EXHAUSTED\"," + retry + "\n  }\n}\n", llm.RateLimit, 17 * time.Second},
		{"no event, a list", "[{\n  \"error\": {\n    \"code\": 500,\n    \"message\": \"x\",\n    \"status\": \"INTERNAL\"\n  }\n}\n]\n", llm.Server, 0},
		{"no JSON", "data: nonsense\n\n", llm.Server, 0},
		{"overflow", "data: {\"error\":{\"code\":400,\"message\":\"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).\",\"status\":\"INVALID_ARGUMENT\"}}\n\n", llm.ContextOverflow, 0},
	}
	for _, tt := range tests {
		for _, before := range []string{chunks("", `{"text":"Part"}`), strings.Repeat(": x\n\n", 3)} {
			got := everyWay(t, before+tt.text)
			if got.Err == nil || got.Err.Class != tt.want || got.Err.RetryAfter != tt.wait || got.Reason != "" {
				t.Errorf("%s: %v", tt.name, got)
			}
		}
	}
	got := play(t, geministub.Reply{Parts: []geministub.Part{geministub.Text("Part")}, Finish: "-", After: []byte(`{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}`)})
	if got.Err == nil || got.Err.Class != llm.Overloaded {
		t.Error(got)
	}
	// An error in the piece that holds the last text comes after the text.
	got = readText(t, `data: {"candidates":[{"content":{"parts":[{"text":"Part"}]}}],"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}`+"\n\n")
	if got.Err == nil || got.Err.Class != llm.Overloaded {
		t.Error(got)
	}
}

// C28
func TestGateways(t *testing.T) {
	good := string(geministub.Reply{Parts: []geministub.Part{geministub.Text("fine")}, Input: 3, Output: 1, Plain: true}.Stream())
	list := string(geministub.Reply{Parts: []geministub.Part{geministub.Text("fine")}, Input: 3, Output: 1, List: true}.Stream())
	stream := string(geministub.Reply{Parts: []geministub.Part{geministub.Text("fine")}, Input: 3, Output: 1}.Stream())
	tests := []struct {
		name, media string
		status      int
		body        string
		class       llm.Class // "" for the text "fine"
	}{
		{"error in a 200", "application/json", 200, `{"error":{"message":"limit reached","code":502}}`, llm.Server},
		{"error in a list in a 200", "application/json", 200, `[{"error":{"message":"limit reached","code":502}}]`, llm.Server},
		{"sign-in page", "text/html", 200, "<!doctype html><p>Sign in", llm.InvalidRequest},
		{"gateway page", "text/html", 502, "<html>nginx</html>", llm.Server},
		{"empty", "", 200, "", llm.Truncated},
		{"white space", "application/json", 200, " \n", llm.Truncated},
		{"no candidates", "application/json", 200, `{"candidates":[]}`, llm.Truncated},
		{"an empty list", "application/json", 200, `[]`, llm.Truncated},
		{"a list of other things", "application/json", 200, `[1,2]`, llm.Server},
		{"another API", "application/json", 200, `{"choices":[]}`, llm.Server},
		{"broken JSON", "application/json", 200, `{"candidates":[{"content":{"parts":[{"text":"fi`, llm.Server},
		{"a broken list", "application/json", 200, `[{"candidates":[{"content":{"parts":[{"text":"fi"}]}}]} x`, llm.Server},
		{"JSON as text", "text/plain", 200, good, ""},
		{"JSON as a stream", "text/event-stream", 200, "\n" + good, ""},
		{"a list as a stream", "text/event-stream", 200, list, ""},
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
	noise := strings.Repeat(": PROCESSING\n\n", 3) + "id: 7\nretry: 1000\n\nevent: ping\ndata: x\n\ndata: {}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"
	body := noise + "data:{\"candidates\":[{\"content\":{\n: x\ndata: \"parts\":[{\"text\":\"ok\"}]}}]}\n\n" + chunks("STOP")
	if got := everyWay(t, body); got.Err != nil || got.Text != "ok" {
		t.Error(got)
	}
	got := everyWay(t, strings.Repeat(": PROCESSING\n\n", 3))
	if got.Err == nil || got.Err.Code != "empty_reply" || !got.Err.Class.Retryable() || !strings.HasPrefix(got.Err.Message, "empty reply") {
		t.Error(got)
	}
}

// C30
func TestLineEnds(t *testing.T) {
	body := chunks("", `{"text":"h\u00e9llo \u4e16"}`, `{"text":"\u754c \ud83c\udff7 done"}`) + chunks("STOP")
	got := everyWay(t, body)
	if got.Err != nil || got.Text != "h\u00e9llo \u4e16\u754c \U0001f3f7 done" {
		t.Error(got)
	}
	if open := everyWay(t, strings.TrimRight(body, "\n")); open.String() != got.String() {
		t.Errorf("without the last blank line: %v", open)
	}
}

// C32
func TestLongEvents(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		body := chunks("STOP", `{"functionCall":{"name":"f","args":{"a":"`+strings.Repeat("x", size)+`"}}}`)
		if got := readText(t, body); got.Err != nil || len(got.Calls) != 1 || len(got.Calls[0].Args) != size+8 {
			t.Fatalf("%d bytes: %d calls, %v", size, len(got.Calls), got.Err)
		}
	}
	endless := io.MultiReader(strings.NewReader("data: "), forever{})
	got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", endless), EventLimit: 1 << 20}), hello)
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

// C36: also where the arguments happen to be whole.
func TestCutCalls(t *testing.T) {
	for _, args := range []string{`{"path":"a.md"}`, `"{\"path\":\"a.md\",\"content\":\"half of th"`, `null`} {
		got := everyWay(t, chunks("MAX_TOKENS", `{"functionCall":{"name":"create_file","args":`+args+`}}`))
		if got.Err != nil || got.Reason != llm.FinishLength || len(got.Calls) != 1 || got.Calls[0].Name != "create_file" || got.Calls[0].Args == "{}" {
			t.Fatal(got)
		}
		// Whatever the engine keeps of it, valid JSON goes back.
		stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
		next := &llm.Request{Messages: []llm.Message{
			task("x"),
			{Role: llm.Assistant, Parts: got.message},
			{Role: llm.Tool, Parts: []llm.Content{{Kind: llm.ToolResult, CallID: got.message[0].CallID, Text: "cut by the output limit", IsError: true}}},
		}}
		if again := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), next); again.Err != nil || len(stub.Violations()) > 0 {
			t.Error(again, stub.Violations())
		}
	}
	if got := everyWay(t, chunks("MAX_TOKENS", `{"text":"half"}`)); got.Err != nil || got.Reason != llm.FinishLength || got.Text != "half" {
		t.Error(got)
	}
	if got := everyWay(t, chunks("MAX_TOKENS")); got.Err != nil || got.Reason != llm.FinishLength { // all went into thinking
		t.Error(got)
	}
}

// The rows of this dialect, over the adapter, as an object and as a list. C43
func TestErrorTable(t *testing.T) {
	var f struct {
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
	field(t, "C43", &f)
	classes := map[string]llm.Class{"context_overflow": llm.ContextOverflow, "rate_limited": llm.RateLimit}
	seen := 0
	for i, row := range f.Input.Rows {
		if row.Dialect != "gemini" {
			continue
		}
		seen++
		for _, body := range []string{row.Body, "[" + row.Body + "\n]\n"} {
			got := play(t, geministub.Reply{Status: row.Status, ContentType: row.ContentType, Body: []byte(body)})
			if want := classes[f.Expected.Rows[i].Class]; want == "" || got.Err == nil || got.Err.Class != want || got.Err.Status != row.Status {
				t.Errorf("row %d: %v", i, got)
			}
			if got.Err.Class == llm.RateLimit && got.Err.RetryAfter != 17*time.Second {
				t.Errorf("row %d: wait %s", i, got.Err.RetryAfter)
			}
		}
	}
	if seen == 0 {
		t.Error("no rows of this dialect")
	}
}

// More errors of this vendor, in its shape. C43
func TestStatusErrors(t *testing.T) {
	tests := []struct {
		code            int
		status, message string
		want            llm.Class
	}{
		{400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", llm.Auth},
		{400, "FAILED_PRECONDITION", "User location is not supported for the API use.", llm.InvalidRequest},
		{400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts.", llm.InvalidRequest},
		{403, "PERMISSION_DENIED", "Your API key was reported as leaked.", llm.Auth},
		{404, "NOT_FOUND", "models/nope is not found for API version v1beta.", llm.InvalidRequest},
		{429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", llm.RateLimit},
		{500, "INTERNAL", "An internal error has occurred.", llm.Server},
		{503, "UNAVAILABLE", "The model is overloaded. Please try again later.", llm.Overloaded},
		{504, "DEADLINE_EXCEEDED", "The request timed out.", llm.Server},
	}
	for _, tt := range tests {
		raw, err := json.Marshal(map[string]any{"error": map[string]any{"code": tt.code, "message": tt.message + " key my-secret-key", "status": tt.status}})
		if err != nil {
			t.Fatal(err)
		}
		stub := geministub.New(geministub.Replies(geministub.Reply{Status: tt.code, Body: raw}))
		m := model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { return "my-secret-key", nil }})
		got := ask(t, t.Context(), m, hello)
		if got.Err == nil || got.Err.Class != tt.want || got.Err.Code != tt.status || got.Err.Status != tt.code || strings.Contains(got.Err.Message, "my-secret") {
			t.Errorf("%s: %v", tt.message, got)
		}
	}
}

package gemini

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

func sig(n int) string { return fmt.Sprintf("c2lnbmF0dXJl%04d", n) }

// rich is an answer with everything in it.
var rich = geministub.Reply{
	Parts: []geministub.Part{
		geministub.Thought("**Plan**\n\nLook it up."),
		geministub.Text("Let me see, h\u00e9llo \u4e16\u754c \U0001f3f7.").Signed(sig(1)),
		geministub.Calls("id_1", "lookup", `{"q":"a"}`).Signed(sig(2)),
		geministub.Calls("id_2", "lookup", `{"q":"b"}`),
	},
	Input: 20, Output: 9, Thoughts: 30, Cached: 12,
}

// Every split of the bytes gives the same answer, in all three forms.
func TestForms(t *testing.T) {
	want := everyWay(t, string(rich.Stream()))
	if want.Err != nil || want.Reasoning != "**Plan**\n\nLook it up." || want.Text != "Let me see, h\u00e9llo \u4e16\u754c \U0001f3f7." ||
		want.Reason != llm.FinishTools || want.Raw != "STOP" || *want.Usage != (llm.Usage{Input: 20, Output: 39, Reasoning: 30, CacheRead: 12}) {
		t.Fatal(want)
	}
	if fmt.Sprint(want.Calls) != `[{id_1 lookup {"q":"a"}} {id_2 lookup {"q":"b"}}]` {
		t.Fatal(want.Calls)
	}
	list := rich
	list.List = true
	if got := play(t, list); got.String() != want.String() {
		t.Errorf("list:\n got %v\nwant %v", got, want)
	}
	for how, src := range pieces.Cuts(list.Stream()) {
		if got := read(t, src); got.String() != want.String() {
			t.Fatalf("list, %s:\n got %v\nwant %v", how, got, want)
		}
	}
	plain := rich
	plain.Plain = true
	got := play(t, plain)
	got.message, want.message = nil, nil // a signature stands elsewhere in a text that comes whole
	if got.String() != want.String() {
		t.Errorf("plain:\n got %v\nwant %v", got, want)
	}
}

func TestPairsOfSplits(t *testing.T) {
	body := rich.Stream()
	want := readText(t, string(body)).String()
	rapid.Check(t, func(rt *rapid.T) {
		a := rapid.IntRange(1, len(body)-2).Draw(rt, "a")
		b := rapid.IntRange(a+1, len(body)-1).Draw(rt, "b")
		if got := read(t, pieces.Reader(body, a, b)); got.String() != want {
			rt.Fatalf("got %v\nwant %v", got, want)
		}
	})
}

// An answer that breaks at any byte is never taken for a whole one, and no call
// of it is given out. I-20, C24
func TestCutAtEveryByte(t *testing.T) {
	for _, list := range []bool{false, true} {
		r := rich
		r.List = list
		body := string(r.Stream())
		end := strings.Index(body, `"finishReason"`)
		end += strings.Index(body[end:], "\r\n") // here the piece with the reason is whole
		if list {
			end = strings.LastIndex(body, "\n]")
		}
		for n := range len(body) {
			got := readText(t, body[:n])
			if n < end && (got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil) {
				t.Fatalf("list %v, cut at %d (%q): %v", list, n, body[max(0, n-60):n], got)
			}
			if n >= end && (got.Err != nil || len(got.Calls) != 2) {
				t.Fatalf("list %v, cut at %d: %v", list, n, got)
			}
		}
	}
	// The same with a connection that breaks.
	for _, n := range []int{1, 40, 200, 900} {
		r := rich
		r.CutAfter = n
		if got := play(t, r); got.Err == nil || !got.Err.Class.Retryable() || got.Calls != nil {
			t.Errorf("broken after %d: %v", n, got)
		}
	}
}

func TestOddButGood(t *testing.T) {
	for name, body := range map[string]string{
		"several candidates":       `data: {"candidates":[{"index":1,"content":{"parts":[{"text":"no"}]}},{"index":0,"content":{"parts":[{"text":"ok"}]}}]}` + "\n\n" + chunks("STOP"),
		"several parts":            chunks("STOP", `{"text":"o"},{"text":"k"}`),
		"null everywhere":          `data: {"error":null,"promptFeedback":null,"usageMetadata":null,"candidates":[{"index":null,"content":{"parts":[null,{"text":"ok","thought":null,"functionCall":null,"thoughtSignature":null}]},"finishReason":"STOP","groundingMetadata":null}]}` + "\n\n",
		"fields of other types":    `data: {"responseId":7,"candidates":[{"content":{"parts":[{"text":"ok","thought":"x"}],"role":3},"finishReason":"STOP","tokenCount":"y"}]}` + "\n\n",
		"a reason with each chunk": `data: {"candidates":[{"content":{"parts":[{"text":"o"}]},"finishReason":"STOP"}]}` + "\n\n" + `data: {"candidates":[{"content":{"parts":[{"text":"k"}]},"finishReason":"STOP"}]}` + "\n\n",
		"unspecified reasons":      `data: {"candidates":[{"content":{"parts":[{"text":"ok"}]},"finishReason":"FINISH_REASON_UNSPECIFIED"}]}` + "\n\n" + chunks("STOP"),
		"no content in the end":    chunks("", `{"text":"ok"}`) + `data: {"candidates":[{"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":1}}` + "\n\n",
		"[DONE]":                   chunks("STOP", `{"text":"ok"}`) + "data: [DONE]\n\n",
		"events behind [DONE]":     chunks("STOP", `{"text":"ok"}`) + "data: [DONE]\n\n" + `data: {"error":{"message":"x"}}` + "\n\n",
		"feedback without a block": `data: {"promptFeedback":{"safetyRatings":[]}}` + "\n\n" + chunks("STOP", `{"text":"ok"}`),
		"media of the model":       chunks("STOP", `{"inlineData":{"mimeType":"image/png","data":"AAAA"}}`, `{"text":"ok"}`),
		"what is not known":        chunks("STOP", `{"later":{"a":1}}`, `{"text":"ok"}`, `7`),
		"an empty call":            chunks("STOP", `{"functionCall":{}}`, `{"text":"ok"}`),
		"a list in an event":       `data: [{"candidates":[{"content":{"parts":[{"text":"o"}]}}]},{"candidates":[{"content":{"parts":[{"text":"k"}]},"finishReason":"STOP"}]}]` + "\n\n",
	} {
		if got := everyWay(t, body); got.Err != nil || got.Text != "ok" || got.Reason != llm.FinishStop || got.Calls != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A reason is enough; the answer may be empty.
	if got := everyWay(t, chunks("STOP", `{"text":""}`)); got.Err != nil || got.Text != "" || got.Reason != llm.FinishStop {
		t.Error(got)
	}
	// A long word is cut, bytes that are no text are replaced.
	got := everyWay(t, chunks(strings.Repeat("x", 100), `{"text":"a\ud83d`+"\xff"+`"}`))
	if got.Err != nil || len(got.Raw) != 64 || got.Text != "a\uFFFD\uFFFD" || got.Reason != llm.FinishUnknown {
		t.Error(got)
	}
}

// The vendor's reasons that are no answer.
func TestFinishReasons(t *testing.T) {
	for reason, want := range map[string]llm.Class{
		"SAFETY": llm.ContentFilter, "RECITATION": llm.ContentFilter, "PROHIBITED_CONTENT": llm.ContentFilter, "BLOCKLIST": llm.ContentFilter,
		"SPII": llm.ContentFilter, "LANGUAGE": llm.ContentFilter, "IMAGE_SAFETY": llm.ContentFilter,
		"MALFORMED_FUNCTION_CALL": llm.Server, "UNEXPECTED_TOOL_CALL": llm.Server, "TOO_MANY_TOOL_CALLS": llm.Server,
		"MISSING_THOUGHT_SIGNATURE": llm.InvalidRequest,
	} {
		for _, part := range []string{`{"text":"half"}`, `{"functionCall":{"name":"f","args":{}}}`} {
			got := readText(t, chunks(reason, part))
			if got.Err == nil || got.Err.Class != want || got.Err.Code != reason || got.Calls != nil || !strings.Contains(got.Err.Message, reason) {
				t.Errorf("%s: %v", reason, got)
			}
		}
	}
	for reason, want := range map[string]llm.FinishReason{
		"STOP": llm.FinishStop, "MAX_TOKENS": llm.FinishLength, "OTHER": llm.FinishUnknown, "NEW_REASON": llm.FinishUnknown, "FINISH_REASON_UNSPECIFIED": llm.FinishUnknown,
	} {
		if got := readText(t, chunks(reason, `{"text":"half"}`)); got.Err != nil || got.Reason != want || got.Raw != reason {
			t.Errorf("%s: %v", reason, got)
		}
	}
	if got := readText(t, chunks("OTHER")); got.Err == nil || got.Err.Class != llm.UnknownClass || got.Err.Code != "OTHER" {
		t.Error(got)
	}
	got := play(t, geministub.Reply{Finish: "MALFORMED_FUNCTION_CALL", FinishMessage: "Malformed function call: print(default_api.f(a=<b></b>))"})
	if got.Err == nil || !got.Err.Class.Retryable() || strings.Contains(got.Err.Message, "</") {
		t.Error(got)
	}
	got = play(t, geministub.Reply{Finish: "SAFETY", FinishMessage: "Harmful content."})
	if got.Err == nil || got.Err.Message != "Harmful content." {
		t.Error(got)
	}
}

// Nothing is waited for long behind a reason. C24
func TestOpenSocket(t *testing.T) {
	for name, r := range map[string]geministub.Reply{
		"silent":   {Parts: []geministub.Part{geministub.Text("Hello")}, Hold: true},
		"comments": {Body: []byte(chunks("STOP", `{"text":"Hello"}`) + strings.Repeat(": x\n\n", 9)), Hold: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := chatstub.NewPipe(geministub.New(geministub.Replies(r)))
				defer p.Shutdown()
				start := time.Now()
				got := ask(t, t.Context(), model(t, Config{HTTP: p.Client()}), hello)
				took := time.Since(start)
				if got.Err != nil || got.Text != "Hello" || took < tail || took > tail+100*time.Millisecond {
					t.Errorf("%v after %s", got, took)
				}
			})
		})
	}
}

func TestStopsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, reply := range map[string]geministub.Reply{
			"before the head": {Delay: time.Hour},
			"in the stream":   {Parts: []geministub.Part{geministub.Text("a long text of many deltas")}, Pause: time.Hour},
			"in the tail":     {Body: []byte(chunks("", `{"text":"x"}`)), Hold: true},
			"in a list":       {Body: []byte(`[{"candidates":[]}`), ContentType: "application/json", Hold: true},
		} {
			p := chatstub.NewPipe(geministub.New(geministub.Replies(reply)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			got := ask(t, ctx, model(t, Config{HTTP: p.Client(), FirstByte: 2 * time.Hour, Idle: 2 * time.Hour}), hello)
			if got.Err == nil || got.Err.Class != llm.Aborted || !errors.Is(got.Err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %s", name, got, time.Since(start))
			}
			cancel()
			p.Shutdown()
		}
	})
}

func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := chatstub.NewPipe(geministub.New(geministub.Replies(geministub.Reply{Body: []byte(chunks("", `{"text":"x"}`)), Hold: true})))
		defer p.Shutdown()
		start := time.Now()
		got := ask(t, t.Context(), model(t, Config{HTTP: p.Client(), Idle: 30 * time.Second}), hello)
		if got.Err == nil || got.Err.Class != llm.Transport || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %s", got, time.Since(start))
		}
	})
}

func TestYieldStops(t *testing.T) {
	stop := errors.New("enough")
	r := rich
	r.Parts = append(r.Parts, geministub.Part{Raw: []byte(`{"executableCode":{"language":"PYTHON","code":"1"}}`)})
	r.Grounding = []byte(`{"webSearchQueries":["a"]}`)
	m := model(t, Config{HTTP: over(t, geministub.New(geministub.Replies(r)))})
	for n := range 22 {
		seen := 0
		err := m.Stream(t.Context(), hello, func(llm.Part) error {
			if seen++; seen > n {
				return stop
			}
			return nil
		})
		if err != stop || seen != n+1 {
			t.Errorf("after %d parts: %v, %d seen", n, err, seen)
		}
	}
}

// The vendor counts thoughts beside the answer. Unknown usage is not zero.
func TestUsage(t *testing.T) {
	tests := map[string]*llm.Usage{
		`{"promptTokenCount":12,"candidatesTokenCount":5,"thoughtsTokenCount":2,"cachedContentTokenCount":8,"totalTokenCount":19}`: {Input: 12, Output: 7, CacheRead: 8, Reasoning: 2},
		`{"promptTokenCount":12,"toolUsePromptTokenCount":30,"candidatesTokenCount":5,"totalTokenCount":47}`:                       {Input: 42, Output: 5},
		`{"promptTokenCount":12,"thoughtsTokenCount":2,"totalTokenCount":14}`:                                                      {Input: 12, Output: 2, Reasoning: 2},
		`{"promptTokenCount":12,"totalTokenCount":17}`:                                                                             {Input: 12, Output: 5},
		`{"promptTokenCount":12,"totalTokenCount":12}`:                                                                             {Input: 12},
		`{"promptTokenCount":"12","candidatesTokenCount":"5"}`:                                                                     {Input: 12, Output: 5},
		`{"promptTokenCount":0,"candidatesTokenCount":0}`:                                                                          nil,
		`{"promptTokenCount":5}`:                                            nil,
		`{"promptTokenCount":-1,"candidatesTokenCount":5}`:                  nil,
		`{"promptTokenCount":9223372036854775807,"candidatesTokenCount":5}`: nil,
		`null`: nil,
		`"x"`:  nil,
	}
	for usage, want := range tests {
		got := readText(t, chunks("", `{"text":"x"}`)+`data: {"candidates":[{"finishReason":"STOP"}],"usageMetadata":`+usage+"}\n\n")
		if got.Err != nil || got.Text != "x" || fmt.Sprint(got.Usage) != fmt.Sprint(want) {
			t.Errorf("%s: %v", usage, got)
		}
	}
	// Running totals: the last one counts, also when the answer fails.
	r := rich
	r.Finish = "-"
	if got := play(t, r); got.Err == nil || *got.Usage != (llm.Usage{Input: 20, Output: 39, Reasoning: 30, CacheRead: 12}) {
		t.Error(got)
	}
}

// Code that the vendor ran and tools that it reports as parts go back as they
// came; what it tells beside the answer is for the record.
func TestHostedTools(t *testing.T) {
	code := `{"executableCode":{"language":"PYTHON","code":"print(1<2)"},"thoughtSignature":"` + sig(5) + `"}`
	ran := `{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"True\n"}}`
	got := everyWay(t, chunks("STOP", code, ran, `{"executableCode":{"id":"x7","language":"PYTHON","code":"1/0"}}`,
		`{"codeExecutionResult":{"id":"x7","outcome":"OUTCOME_FAILED","output":"ZeroDivisionError"}}`, `{"text":"Yes."}`))
	want := []string{
		`hosted_call code_execution code_0 {"code":"print(1<2)","language":"PYTHON"} false`, "hosted_result  code_0 True\n false",
		`hosted_call code_execution x7 {"code":"1/0","language":"PYTHON"} false`, "hosted_result  x7 ZeroDivisionError true",
	}
	if got.Err != nil || got.Text != "Yes." || fmt.Sprint(got.Hosted) != fmt.Sprint(want) || string(got.message[0].State) != code || string(got.message[1].State) != ran {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	got = everyWay(t, chunks("STOP", `{"toolCall":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","args":{"queries":["q"]}},"thoughtSignature":"`+sig(6)+`"}`,
		`{"toolResponse":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","response":{"suggestions":"x"}}}`, `{"functionCall":{"id":"f1","name":"lookup","args":{}}}`))
	want = []string{`hosted_call google_search_web s1 {"queries":["q"]} false`, `hosted_result  s1 {"suggestions":"x"} false`}
	if got.Err != nil || len(got.Calls) != 1 || got.Reason != llm.FinishTools || fmt.Sprint(got.Hosted) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	got = play(t, geministub.Reply{Parts: []geministub.Part{geministub.Text("Spain.")},
		Grounding: []byte(`{"webSearchQueries":["euro 2024"],"groundingChunks":[{"web":{"uri":"https://a.test/x","title":"a.test"}}]}`)})
	want = []string{`hosted_call google_search google_search {"queries":["euro 2024"]} false`, "hosted_result  google_search a.test https://a.test/x false"}
	if got.Err != nil || got.Text != "Spain." || fmt.Sprint(got.Hosted) != fmt.Sprint(want) || got.message[1].State != nil {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	got = everyWay(t, `data: {"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP","urlContextMetadata":{"urlMetadata":[{"retrievedUrl":"https://a.test","urlRetrievalStatus":"URL_RETRIEVAL_STATUS_SUCCESS"}]}}]}`+"\n\n")
	if want := []string{`hosted_call url_context url_context  false`, "hosted_result  url_context https://a.test SUCCESS false"}; fmt.Sprint(got.Hosted) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	// A result whose call never came has one in the record, and goes back alone.
	got = everyWay(t, chunks("STOP", ran, `{"toolResponse":{"id":"zz"}}`))
	if got.Err != nil || len(got.Hosted) != 4 {
		t.Error(got)
	}
}

func TestAnswerIsBounded(t *testing.T) {
	long := chunks("", `{"text":"`+strings.Repeat("x", 1<<20)+`"}`)
	var size int
	err := model(t, Config{HTTP: pieces.Client("text/event-stream", strings.NewReader(strings.Repeat(long, 40)))}).Stream(t.Context(), hello, func(p llm.Part) error { size += len(p.Text); return nil })
	if llm.AsError(err).Class != llm.Server || size > MaxAnswer {
		t.Errorf("%v after %d bytes", err, size)
	}
	for name, part := range map[string]string{
		"calls":      `{"functionCall":{"name":"f","args":{}}}`,
		"hosted":     `{"executableCode":{"language":"PYTHON","code":"1"}}`,
		"signatures": `{"text":"a","thoughtSignature":"AAAA"},{"text":"a","thoughtSignature":"AAAA"},{"text":"a","thoughtSignature":"AAAA"},{"text":"","thoughtSignature":"AAAA"}`,
	} {
		got := readText(t, chunks("STOP", strings.Split(strings.Repeat(part+"\x00", maxCalls), "\x00")[:maxCalls]...))
		if got.Err != nil {
			t.Errorf("%s: %v", name, got.Err)
		}
		got = readText(t, chunks("STOP", strings.Split(strings.Repeat(part+"\x00", maxCalls+1), "\x00")[:maxCalls+1]...))
		if got.Err == nil || got.Err.Class != llm.Server {
			t.Errorf("%s: %v", name, got.Err)
		}
	}
	got := read(t, io.MultiReader(strings.NewReader(`{"x":"`), forever{}))
	if got.Err == nil || got.Err.Class != llm.Server {
		t.Error(got)
	}
	got = read(t, io.MultiReader(strings.NewReader(`[{"x":"`), forever{}))
	if got.Err == nil || !got.Err.Class.Retryable() {
		t.Error(got)
	}
}

// Whatever bytes come, the parts keep their order and the errors are ours.
func FuzzStream(f *testing.F) {
	f.Add(rich.Stream())
	list := rich
	list.List = true
	f.Add(list.Stream())
	f.Add([]byte(`{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","args":"x"}},{"thoughtSignature":"x"}]},"finishReason":"STOP"}]}`))
	f.Add([]byte(chunks("STOP", `{"executableCode":{}}`, `{"codeExecutionResult":{}}`, `{"toolResponse":{"id":"code_0"}}`, `{"text":"","thought":true,"thoughtSignature":"a"}`)))
	f.Add([]byte("data: {\"promptFeedback\":{\"blockReason\":\"OTHER\"}}\n\n"))
	f.Add([]byte("event: error\ndata: {\"error\":{\"code\":1}}\n\n{\"error\":{\"code\":500}}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", bytes.NewReader(body)), EventLimit: 1 << 16}), hello)
		if got.Err != nil {
			return
		}
		// What came goes back in a request that is strict JSON.
		req := &llm.Request{Messages: []llm.Message{task("x"), {Role: llm.Assistant, Parts: got.message}}}
		if len(got.Calls) > 0 {
			var results []llm.Content
			for _, c := range got.message {
				if c.Kind == llm.ToolCall {
					results = append(results, llm.Content{Kind: llm.ToolResult, CallID: c.CallID})
				}
			}
			req.Messages = append(req.Messages, llm.Message{Role: llm.Tool, Parts: results})
		}
		raw, err := model(t, Config{}).encode(req, "gemini-3-flash")
		if err != nil || !strict(raw) {
			t.Fatalf("%v: %s", err, raw)
		}
	})
}

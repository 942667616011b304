package openaicompat

import (
	"context"
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
)

// C07
func TestThoughtsAreSplitOff(t *testing.T) {
	tests := []struct {
		name      string
		deltas    []string
		text      string
		reasoning string
	}{
		{"field case", []string{`{"content":"<think>maybe {\"status\":\"draft\",\"count\":0}</think>{\"status\":\"ok\",\"count\":2}"}`},
			`{"status":"ok","count":2}`, `maybe {"status":"draft","count":0}`},
		{"in pieces", []string{`{"content":"\n<th"}`, `{"content":"ink>a<"}`, `{"content":"/thi"}`, `{"content":"nk>\n\n"}`, `{"content":"b"}`}, "b", "a"},
		{"a tag that is none", []string{`{"content":"<th"}`, `{"content":"e>"}`}, "<the>", ""},
		{"a string that holds it", []string{`{"content":"{\"s\":\"<think>x</think>\"}"}`}, `{"s":"<think>x</think>"}`, ""},
		{"behind text", []string{`{"content":"a <think>b</think>"}`}, "a <think>b</think>", ""},
		{"only the end", []string{`{"content":"a</think>b"}`}, "a</think>b", ""},
		{"a second one", []string{`{"content":"<think>a</think>b<think>c</think>"}`}, "b<think>c</think>", "a"},
		{"two in a row", []string{`{"content":"<think>a</think>\n<think>b</think>\n\nc"}`}, "c", "ab"},
		{"empty, as models do that were told not to think", []string{`{"content":"<think>\n\n</think>\n\n"}`, `{"content":"c"}`}, "c", "\n\n"},
		{"nothing behind it", []string{`{"content":"<think>a</think>\n"}`}, "", "a"},
		{"a half tag behind it", []string{`{"content":"<think>a</think>\n<th"}`}, "<th", "a"},
		{"other tags", []string{`{"content":"[THI"}`, `{"content":"NK]a[/THINK]b"}`}, "b", "a"},
		{"thinking", []string{`{"content":"<thinking>a</think></thinking>b"}`}, "b", "a</think>"},
		{"thought", []string{`{"content":"<thought>a"}`, `{"content":"</thought>b"}`}, "b", "a"},
		{"white space without end", []string{`{"content":"` + strings.Repeat(" ", 2000) + `<think>a"}`}, strings.Repeat(" ", 2000) + "<think>a", ""},
		{"never closed", []string{`{"content":"<think>a</thi"}`}, "", "a</thi"},
		{"white space only", []string{`{"content":" \n"}`}, " \n", ""},
		{"a cut beginning", []string{`{"content":"<thin"}`}, "<thin", ""},
		{"fields", []string{`{"reasoning":"a"}`, `{"reasoning":"b","content":null}`, `{"content":"c"}`}, "c", "ab"},
		{"parts", []string{`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"a"}]}]}`, `{"content":[{"type":"text","text":"c"}]}`}, "c", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := everyWay(t, chunks("stop", tt.deltas...))
			if got.Err != nil || got.Text != tt.text || got.Reasoning != tt.reasoning || got.State != "" {
				t.Error(got)
			}
		})
	}
}

// C15
func TestRefusals(t *testing.T) {
	for body, text := range map[string]string{
		chunks("stop", `{"role":"assistant","content":null,"refusal":"I cannot"}`, `{"refusal":" help."}`): "I cannot help.",
		chunks("", `{"refusal":"No."}`):                      "No.",
		chunks("content_filter", `{"content":""}`):           "the vendor's content filter stopped the answer",
		chunks("content_filter", `{"content":"Half an an"}`): "the vendor's content filter stopped the answer",
	} {
		got := everyWay(t, body)
		if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Message != text || got.Err.Class.Retryable() {
			t.Error(got)
		}
	}
	plain := chatstub.Reply{ContentType: "application/json", Body: []byte(`{"choices":[{"message":{"content":null,"refusal":"No."},"finish_reason":"stop"}]}`)}
	got := ask(t, t.Context(), model(t, Config{HTTP: over(t, chatstub.New(chatstub.Replies(plain)))}), hello)
	if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Message != "No." {
		t.Error(got)
	}
}

// Unknown usage is not zero.
func TestUsage(t *testing.T) {
	with := func(usage string) string {
		return strings.Replace(chunks("stop", `{"content":"x"}`), "data: [DONE]", "data: {\"choices\":[],\"usage\":"+usage+"}\n\ndata: [DONE]", 1)
	}
	tests := map[string]*llm.Usage{
		`{"prompt_tokens":12,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":2}}`: {Input: 12, Output: 5, CacheRead: 8, Reasoning: 2},
		`{"prompt_tokens":12,"completion_tokens":0,"prompt_cache_hit_tokens":4,"prompt_tokens_details":null}`:                                       {Input: 12, CacheRead: 4},
		`{"prompt_tokens":0,"completion_tokens":0}`:   nil,
		`{"prompt_tokens":5}`:                         nil,
		`{"prompt_tokens":-1,"completion_tokens":5}`:  nil,
		`{"prompt_tokens":"5","completion_tokens":5}`: nil,
		`null`: nil,
		`"x"`:  nil,
	}
	for usage, want := range tests {
		got := everyWay(t, with(usage))
		if got.Err != nil || got.Text != "x" || fmt.Sprint(got.Usage) != fmt.Sprint(want) {
			t.Errorf("%s: %v", usage, got)
		}
	}
	if got := everyWay(t, chunks("stop", `{"content":"x"}`)); got.Usage != nil {
		t.Error(got)
	}
}

func TestOddButGood(t *testing.T) {
	for name, body := range map[string]string{
		"several choices":          `data: {"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"ok"}}]}` + "\n\n" + chunks("stop"),
		"no choice index":          `data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}` + "\n\n",
		"null everywhere":          `data: {"error":null,"usage":null,"choices":[{"index":null,"delta":{"content":"ok","tool_calls":null,"refusal":null},"finish_reason":"stop"}]}` + "\n\n",
		"fields of other types":    `data: {"id":7,"created":"x","choices":[{"index":0,"delta":{"content":"ok","reasoning":{"a":1}},"finish_reason":"stop","logprobs":3}]}` + "\n\n",
		"a reason with the text":   `data: {"choices":[{"index":0,"delta":{"content":"o"},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{"content":"k"}}]}` + "\n\n",
		"empty reasons":            `data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":""}]}` + "\n\n" + chunks("stop"),
		"first chunk of Azure":     `data: {"choices":[],"prompt_filter_results":[{}]}` + "\n\n" + chunks("stop", `{"content":"ok"}`),
		"events behind [DONE]":     chunks("stop", `{"content":"ok"}`) + `data: {"error":{"message":"x"}}` + "\n\n",
		"a role in every chunk":    chunks("stop", `{"role":"assistant","content":"o"}`, `{"role":"assistant","content":"k"}`),
		"a reason of other letter": chunks("STOP", `{"content":"ok"}`),
	} {
		if got := everyWay(t, body); got.Err != nil || got.Text != "ok" || got.Reason != llm.FinishStop {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A reason is enough; the answer may be empty.
	if got := everyWay(t, chunks("stop", `{"content":""}`)); got.Err != nil || got.Text != "" || got.Reason != llm.FinishStop {
		t.Error(got)
	}
	// A long word is cut, bytes that are no text are replaced.
	got := everyWay(t, chunks(strings.Repeat("x", 100), `{"content":"a\ud83d`+"\xff"+`"}`))
	if got.Err != nil || len(got.Raw) != 64 || got.Text != "a\uFFFD\uFFFD" {
		t.Error(got)
	}
}

// An answer that breaks at any byte is never taken for a whole one, and no
// call of it is given out. I-20, C24
func TestCutAtEveryByte(t *testing.T) {
	reply := chatstub.Reply{Reasoning: "why", Text: "some text", Calls: []chatstub.Call{{Name: "f", Arguments: `{"a":1}`}}, Input: 3, Output: 4}
	body := string(reply.Stream())
	end := strings.Index(body, `"finish_reason":"tool_calls"`)
	end += strings.Index(body[end:], "\n\n") // here the event with the reason is whole
	for n := range len(body) {
		s := served{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(body[:n]) }}
		got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
		if n < end && (got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil) {
			t.Fatalf("cut at %d (%q): %v", n, body[:n], got)
		}
		if n >= end && (got.Err != nil || len(got.Calls) != 1) {
			t.Fatalf("cut at %d: %v", n, got)
		}
	}
	// The same with a connection that breaks.
	for _, n := range []int{1, 40, 200, end - 1} {
		reply.CutAfter = n
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, chatstub.New(chatstub.Replies(reply)))}), hello)
		if got.Err == nil || !got.Err.Class.Retryable() || got.Calls != nil {
			t.Errorf("broken after %d: %v", n, got)
		}
	}
}

func TestStopsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, reply := range map[string]chatstub.Reply{
			"before the head": {Delay: time.Hour},
			"in the stream":   {Text: "a long text of many deltas", Pause: time.Hour},
			"in the tail":     {Body: []byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"), Hold: true},
		} {
			p := chatstub.NewPipe(chatstub.New(chatstub.Replies(reply)))
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

func TestYieldStops(t *testing.T) {
	stop := errors.New("enough")
	m := model(t, Config{HTTP: over(t, chatstub.New(chatstub.Replies(chatstub.Reply{Text: "many deltas of text", Hold: true, Calls: []chatstub.Call{{Name: "f", Arguments: "{}"}}, Input: 1, Output: 1})))})
	for n := range 10 {
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

func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := chatstub.NewPipe(chatstub.New(chatstub.Replies(chatstub.Reply{Body: []byte(": x\n\n"), Hold: true})))
		defer p.Shutdown()
		start := time.Now()
		got := ask(t, t.Context(), model(t, Config{HTTP: p.Client(), Idle: 30 * time.Second}), hello)
		if got.Err == nil || got.Err.Class != llm.Transport || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %s", got, time.Since(start))
		}
	})
}

// C43 and C42 over the adapter: status and headers reach the table.
func TestStatusErrors(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{
		Status: 429, ContentType: "application/json", Header: http.Header{"Retry-After": {"7"}},
		Body: []byte(`{"error":{"message":"slow down, key my-secret-key","code":"rate_limit_exceeded"}}`),
	}))
	got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { return "my-secret-key", nil }}), hello)
	if e := got.Err; e == nil || e.Class != llm.RateLimit || e.Status != 429 || e.RetryAfter != 7*time.Second || strings.Contains(e.Message, "my-secret") {
		t.Errorf("%+v", e)
	}
}

func TestAnswerIsBounded(t *testing.T) {
	delta := `{"content":"` + strings.Repeat("x", 1<<20) + `"}`
	long := "data: {\"choices\":[{\"delta\":" + delta + "}]}\n\n"
	s := served{media: "text/event-stream", body: func() io.Reader {
		return strings.NewReader(strings.Repeat(long, 40))
	}}
	var size int
	err := model(t, Config{HTTP: &http.Client{Transport: s}}).Stream(t.Context(), hello, func(p llm.Part) error { size += len(p.Text); return nil })
	if llm.AsError(err).Class != llm.Server || size > MaxAnswer {
		t.Errorf("%v after %d bytes", err, size)
	}
	var many []string
	for i := range maxCalls + 1 {
		many = append(many, fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"x","function":{"name":"f","arguments":"{}"}}]}`, i))
	}
	s.body = func() io.Reader { return strings.NewReader(chunks("stop", many...)) }
	err = model(t, Config{HTTP: &http.Client{Transport: s}}).Stream(t.Context(), hello, func(llm.Part) error { return nil })
	if llm.AsError(err).Class != llm.Server {
		t.Error(err)
	}
}

// Whatever bytes come, the parts keep their order and the errors are ours.
func FuzzStream(f *testing.F) {
	f.Add([]byte(chatstub.Reply{Reasoning: "r", Text: "<think>a</think>b", Calls: []chatstub.Call{{Name: "f", Arguments: "{}"}}, Input: 1, Output: 1}.Stream()))
	f.Add([]byte(`{"choices":[{"message":{"content":[{"text":"x"}],"tool_calls":[{"function":{"name":"a","arguments":{"x":1}}}]}}]}`))
	f.Add([]byte(chunks("stop", `{"tool_calls":[{"function":{"arguments":{"":0}}}]}`))) // a call without a name
	f.Add([]byte(chatstub.Reply{Details: []string{`{"type":"reasoning.text","text":"abc","index":0}`}, Text: "[THINK]a[/THINK]b", Refusal: "no"}.Stream()))
	f.Add([]byte(`{"choices":[{"message":{"content":"x","reasoning_details":[{"a":1,"a":2}],"function_call":{"name":"f"}},"usage":{"prompt_tokens":1,"completion_tokens":1}}]}`))
	f.Add([]byte("event: error\ndata: {\"error\":{\"code\":1}}\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := served{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(string(body)) }}
		ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}, EventLimit: 1 << 16}), hello)
	})
}

func BenchmarkDecodeStream(b *testing.B) {
	body := string(chatstub.Reply{Text: strings.Repeat("word ", 200), Runes: 5, Input: 10, Output: 200}.Stream())
	s := served{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(body) }}
	m, err := New(Config{BaseURL: "http://vendor.test/v1", Model: "m", HTTP: &http.Client{Transport: s}})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		parts := 0
		if err := m.Stream(b.Context(), hello, func(llm.Part) error { parts++; return nil }); err != nil || parts < 200 {
			b.Fatal(parts, err)
		}
	}
}

package openaicompat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// C01, C07: what the model said comes through byte for byte, thoughts aside,
// and the contract takes it without a repair.
func TestFencesComeThrough(t *testing.T) {
	var f struct {
		Input struct {
			Schema   json.RawMessage `json:"schema"`
			Variants []struct{ Name, Text string }
		} `json:"input"`
	}
	field(t, "C01", &f)
	s, issues := contract.ParseSchema(f.Input.Schema)
	if issues != nil {
		t.Fatal(issues)
	}
	const want = "{\"count\":3,\"status\":\"ok\",\"tags\":[\"wrap it in ```json fences```\"]}"
	for _, v := range f.Input.Variants {
		for _, before := range []string{"", "<think>maybe {\"status\":\"draft\",\"count\":0}</think>\n"} {
			for _, runes := range []int{1, 3, 40, 1000} {
				body := string(chatstub.Reply{Text: before + v.Text, Runes: runes}.Stream())
				got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", strings.NewReader(body))}), hello)
				if runes == 40 {
					got = everyWay(t, body)
				}
				if got.Err != nil || got.Text != v.Text {
					t.Fatalf("%s: %v", v.Name, got)
				}
				if value, err := s.Check(got.Text); err != nil || string(value) != want {
					t.Errorf("%s: %s %v", v.Name, value, err)
				}
			}
		}
	}
}

// C05: whatever halves of characters a vendor sends, what goes on is UTF-8,
// and so is the request that carries it back.
func TestHalfCharacters(t *testing.T) {
	tag := "\U0001f3f7"
	for name, body := range map[string]string{
		"a lone half":       chunks("stop", `{"content":"a\ud83d"}`, `{"content":"b"}`),
		"halves apart":      chunks("stop", `{"content":"a\ud83c"}`, `{"content":"\udff7b"}`),
		"raw bytes":         chunks("stop", `{"content":"a`+"\xff\xfe"+`b"}`),
		"a cut rune":        chunks("stop", `{"content":"a`+tag[:2]+`"}`, `{"content":"b"}`),
		"in thoughts":       chunks("stop", `{"reasoning_content":"a\ud83d`+"\xff"+`"}`, `{"content":"ab"}`),
		"in details":        chunks("stop", `{"reasoning_details":[{"type":"reasoning.text","text":"a\ud83d`+"\xff"+`"}]}`, `{"content":"ab"}`),
		"in arguments":      chunks("stop", `{"content":"ab"}`, `{"tool_calls":[{"index":0,"id":"\ud83d","function":{"name":"f`+"\xff"+`","arguments":"{\"a\":\"\ud83d`+"\xff"+`\"}"}}]}`),
		"in arguments, raw": chunks("stop", `{"content":"ab"}`, `{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":{"a":"\ud83d`+"\xff"+`"}}}]}`),
		"in a refusal":      chunks("stop", `{"content":"ab"}`, `{"refusal":"\ud83d`+"\xff"+`"}`),
		"in a reason":       chunks("\xff", `{"content":"ab"}`),
		"in an error":       chunks("", `{"content":"ab"}`) + "data: {\"error\":{\"message\":\"\\ud83d\xff\",\"code\":\"\xff\"}}\n\n",
		"whole":             chunks("stop", `{"content":"a`+tag+`b"}`),
	} {
		got := everyWay(t, body)
		if !utf8.ValidString(got.String()) || !strings.HasPrefix(got.Text, "a") || !strings.HasSuffix(got.Text, "b") {
			t.Errorf("%s: %v", name, got)
		}
		for _, s := range append(got.States, got.Raw) {
			if !utf8.ValidString(s) {
				t.Errorf("%s: %q", name, s)
			}
		}
		if got.Err != nil {
			continue
		}
		parts := []llm.Content{{Kind: llm.Reasoning, State: []byte(got.State), Maker: "openai_compatible/m"}, text(got.Text)}
		messages := []llm.Message{task("x"), {Role: llm.Assistant, Parts: parts}}
		for i, c := range got.Calls {
			messages[1].Parts = append(messages[1].Parts, called(fmt.Sprint(i), c.Name, c.Args))
			messages = append(messages, llm.Message{Role: llm.Tool, Parts: []llm.Content{result(fmt.Sprint(i), "W\x00s\xff"+tag[:1])}})
		}
		raw, err := model(t, Config{}).encode(&llm.Request{Messages: append(messages, task("y"))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := canonjson.Parse(raw, canonjson.Limits{}); err != nil {
			t.Errorf("%s: %v\n%s", name, err, raw)
		}
	}
}

// C21: a vendor's ids repeat, within an answer and over turns; each call still
// has its own result.
func TestRepeatedIds(t *testing.T) {
	call := func(p string) chatstub.Call {
		return chatstub.Call{ID: "x", Name: "read", Arguments: `{"p":"` + p + `"}`}
	}
	stub := chatstub.New(chatstub.Replies(
		chatstub.Reply{Calls: []chatstub.Call{call("1")}}, chatstub.Reply{Calls: []chatstub.Call{call("2")}},
		chatstub.Reply{Calls: []chatstub.Call{call("3"), call("4")}}, chatstub.Reply{Text: "done"}))
	m := model(t, Config{HTTP: over(t, stub)})
	req := &llm.Request{Messages: []llm.Message{task("hello")}}
	n := 0
	for {
		got := ask(t, t.Context(), m, req)
		if got.Err != nil {
			t.Fatal(got, stub.Violations())
		}
		if got.Calls == nil {
			break
		}
		said, results := llm.Message{Role: llm.Assistant}, llm.Message{Role: llm.Tool}
		for _, c := range got.Calls {
			n++
			id := fmt.Sprintf("call_%d", n)
			said.Parts = append(said.Parts, called(id, c.Name, c.Args))
			results.Parts = append(results.Parts, result(id, "R of "+c.Args))
		}
		req.Messages = append(req.Messages, said, results)
	}
	byID, count := map[string]string{}, 0
	for _, m := range stub.Requests()[3].Messages {
		for _, c := range m.ToolCalls {
			byID[c.ID] = c.Function.Arguments
		}
		if m.Role == "tool" {
			count++
			if m.Text() != "R of "+byID[m.ToolCallID] {
				t.Errorf("%s has the result %q", byID[m.ToolCallID], m.Text())
			}
		}
	}
	if n != 4 || count != 4 || len(byID) != 4 {
		t.Errorf("%d calls, %d results, %d ids", n, count, len(byID))
	}
}

// C24, C36: a reply that is cut at any byte by a limit or a connection gives no
// call that could run, and goes back as valid JSON.
func TestCutAnywhere(t *testing.T) {
	args := `{"path":"a.md","content":"half of {\"a\":1} th"}`
	quoted, _ := json.Marshal(args)
	for n := 1; n < len(args); n++ {
		part, _ := json.Marshal(args[:n])
		for _, reason := range []string{"length", "tool_calls", "stop"} {
			body := chunks(reason, fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"create_file","arguments":%s}}]}`, part))
			s := served{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(body) }}
			got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
			if got.Err != nil || got.Reason != llm.FinishLength || len(got.Calls) != 1 || got.Calls[0].Args != args[:n] {
				t.Fatalf("%s, %q: %v", reason, args[:n], got)
			}
			if back := objectOrEmpty(got.Calls[0].Args); back != "{}" {
				t.Errorf("%q goes back as %q", args[:n], back)
			}
		}
	}
	whole := chunks("length", fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"create_file","arguments":%s}}]}`, quoted))
	if got := everyWay(t, whole); got.Reason != llm.FinishLength {
		t.Error(got)
	}
}

// C29: comments are signs of life, and not content.
func TestCommentsAreLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowReader{gap: 50 * time.Second, list: []string{": a\n\n", ": b\n\n", ": c\n\n", chunks("stop", `{"content":"ok"}`)}}
		got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", &slow), Idle: time.Minute}), hello)
		if got.Err != nil || got.Text != "ok" || got.Deltas != 1 {
			t.Error(got)
		}
	})
}

// slowReader gives a piece after each gap.
type slowReader struct {
	gap  time.Duration
	list []string
}

func (s *slowReader) Read(p []byte) (int, error) {
	if len(s.list) == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.gap)
	n := copy(p, s.list[0])
	if s.list[0] = s.list[0][n:]; s.list[0] == "" {
		s.list = s.list[1:]
	}
	return n, nil
}

// C32: long lines anywhere, not only in arguments.
func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 1_200_000)
	for name, delta := range map[string]string{
		"text": `{"content":"` + long + `"}`, "thought": `{"reasoning_content":"` + long + `"}`,
		"details": `{"reasoning_details":[{"type":"reasoning.text","text":"` + long + `"}]}`, "noise": `{"content":"ok","other":"` + long + `"}`,
	} {
		for how, r := range map[string]io.Reader{"whole": strings.NewReader(chunks("stop", delta)), "in pieces": pieces.Reader([]byte(chunks("stop", delta)), 1, 65536, 65537, 1<<20)} {
			got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", r)}), hello)
			if got.Err != nil || name != "noise" && len(got.Text)+len(got.Reasoning) != len(long) {
				t.Errorf("%s, %s: %d bytes, %v", name, how, len(got.Text)+len(got.Reasoning), got.Err)
			}
		}
	}
	// Past the bound it is an error, never a silent end.
	for _, noise := range []string{"data: ", "event: ", "x"} {
		endless := io.MultiReader(strings.NewReader(noise), forever{})
		got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", endless), EventLimit: 1 << 18}), hello)
		if got.Err == nil || got.Err.Class != llm.Server {
			t.Errorf("%q: %v", noise, got)
		}
	}
}

// C42: what an answer asks to wait reaches the caller, within the cap.
func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"7": 7 * time.Second, "1.5": 1500 * time.Millisecond, "-5": 0, "soon": 0, "": 0, "31536000": wire.MaxRetryAfter,
		"Fri, 15 Jan 2100 12:00:00 GMT": wire.MaxRetryAfter, "Wed, 14 Jan 2015 12:00:00 GMT": 0,
	} {
		stub := chatstub.New(chatstub.Replies(chatstub.Reply{Status: 429, Header: http.Header{"Retry-After": {header}}, Body: []byte(`{}`), ContentType: "application/json"}))
		got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), hello)
		if got.Err == nil || got.Err.Class != llm.RateLimit || got.Err.RetryAfter != want || len(stub.Requests()) != 1 {
			t.Errorf("%q: %+v after %d requests", header, got.Err, len(stub.Requests()))
		}
	}
}

// C43: each row of this dialect, over the adapter, as a status and as the same
// error inside a stream.
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
	classes := map[string]llm.Class{
		"context_overflow": llm.ContextOverflow, "rate_limited": llm.RateLimit, "rate_limited_or_quota": llm.RateLimit, "billing": llm.Billing,
		"payload_too_large": llm.InvalidRequest, "invalid_request": llm.InvalidRequest, "server_transient": llm.Server, "auth": llm.Auth, "config": llm.InvalidRequest,
	}
	rows := 0
	for i, row := range f.Input.Rows {
		if row.Dialect != "openai_chat" && row.Dialect != "openai_compatible" {
			continue
		}
		rows++
		want, known := classes[f.Expected.Rows[i].Class]
		s := served{media: row.ContentType, status: row.Status, body: func() io.Reader { return strings.NewReader(row.Body) }}
		got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
		if !known || got.Err == nil || got.Err.Class != want || strings.Contains(got.Err.Message, "<") {
			t.Errorf("row %d: %v, want %s", i, got, want)
		}
		if want == llm.ContextOverflow {
			if got := everyWay(t, "data: "+row.Body+"\n\n"); got.Err == nil || got.Err.Class != want {
				t.Errorf("row %d in a stream: %v", i, got)
			}
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}

// The usage in all places and shapes; the last one counts.
func TestUsageVariants(t *testing.T) {
	for usage, want := range map[string]llm.Usage{
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"cached_tokens":3}`:                                                                                       {Input: 9, Output: 4, CacheRead: 3},
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"cache_read_input_tokens":3,"cache_creation_input_tokens":2}`:                                             {Input: 9, Output: 4, CacheRead: 3, CacheWrite: 2},
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":2}}`:                                      {Input: 9, Output: 4, CacheRead: 3, CacheWrite: 2},
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":20,"completion_tokens_details":{"reasoning_tokens":7}}`:                                    {Input: 9, Output: 11, Reasoning: 7},
		`"usage":{"prompt_tokens":9,"completion_tokens":8,"total_tokens":17,"completion_tokens_details":{"reasoning_tokens":7}}`:                                    {Input: 9, Output: 8, Reasoning: 7},
		`"x_groq":{"usage":{"prompt_tokens":9,"completion_tokens":4}}`:                                                                                              {Input: 9, Output: 4},
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null,"completion_tokens_details":"x","cost":0.1}`:                                 {Input: 9, Output: 4},
		`"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":-1},"completion_tokens_details":{"reasoning_tokens":-2}}`:        {Input: 9, Output: 4},
		`"usage":null,"x_groq":null,"choices":[{"index":0,"delta":{},"finish_reason":null,"usage":{"prompt_tokens":9,"completion_tokens":4,"cached_tokens":null}}]`: {Input: 9, Output: 4},
	} {
		last := "data: {" + usage + "}\n\n"
		if !strings.Contains(usage, "choices") {
			last = "data: {\"choices\":[]," + usage + "}\n\n"
		}
		early := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n"
		got := everyWay(t, early+strings.Replace(chunks("stop"), "data: [DONE]", last+"data: [DONE]", 1))
		if got.Err != nil || got.Usage == nil || *got.Usage != want {
			t.Errorf("%s: %v", usage, got)
		}
	}
}

// Ids and names without end are cut, and count as part of the answer.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("n", 2000)
	got := everyWay(t, chunks("tool_calls",
		`{"tool_calls":[{"id":"`+long+`a","function":{"name":"`+long+`","arguments":"{"}}]}`,
		`{"tool_calls":[{"id":"`+long+`a","function":{"name":"`+long+`","arguments":"}"}}]}`))
	if got.Err != nil || len(got.Calls) != 1 || len(got.Calls[0].ID) != 256 || len(got.Calls[0].Name) != 256 || got.Calls[0].Args != "{}" {
		t.Errorf("%d calls, %v", len(got.Calls), got.Err)
	}
	if name := callName(got.Calls[0].Name); len(name) != 64 {
		t.Error(name)
	}
}

// A pause of another vendor's goes on here by a word, since there is no other way.
func TestContinues(t *testing.T) {
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "ok"}))
	req := &llm.Request{Continues: true, Messages: []llm.Message{task("x"), {Role: llm.Assistant, Parts: []llm.Content{text("so far"), {Kind: llm.Hosted, State: []byte("{}"), Maker: "anthropic/claude"}}}}}
	if got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub)}), req); got.Err != nil {
		t.Fatal(got, stub.Violations())
	}
	if body := stub.Requests()[0].Body; !bytes.Contains(body, []byte(`{"role":"assistant","content":"so far"},{"role":"user","content":"Continue."}`)) {
		t.Errorf("%s", body)
	}
}

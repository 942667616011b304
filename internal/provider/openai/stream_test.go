package openai

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
	"github.com/holdfast-dev/holdfast/internal/provider/responsesstub"
)

const (
	added    = `{"type":"response.output_item.added","output_index":0,"item":{"id":"m1","type":"message","status":"in_progress","role":"assistant","content":[]}}`
	deltaOne = `{"type":"response.output_text.delta","item_id":"m1","output_index":0,"content_index":0,"delta":"hello"}`
	deltaTwo = `{"type":"response.output_text.delta","item_id":"m1","output_index":0,"content_index":0,"delta":" world"}`
	textDone = `{"type":"response.output_text.done","item_id":"m1","output_index":0,"content_index":0,"text":"hello world"}`
	partDone = `{"type":"response.content_part.done","item_id":"m1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"hello world"}}`
	message  = `{"id":"m1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"hello world","annotations":[]}]}`
	itemDone = `{"type":"response.output_item.done","output_index":0,"item":` + message + `}`

	calling  = `{"type":"response.output_item.added","output_index":0,"item":{"id":"fc1","type":"function_call","call_id":"c1","name":"read","arguments":""}}`
	argsDone = `{"type":"response.function_call_arguments.done","item_id":"fc1","output_index":0,"arguments":"{\"p\":\"a\"}"}`
	callItem = `{"id":"fc1","type":"function_call","call_id":"c1","name":"read","arguments":"{\"p\":\"a\"}","status":"completed"}`
	callDone = `{"type":"response.output_item.done","output_index":0,"item":` + callItem + `}`
)

// C33 (1), (2): whatever repeats the text, it counts once.
func TestTextOnce(t *testing.T) {
	for name, list := range map[string][]string{
		"deltas and all that repeats them": {added, deltaOne, deltaTwo, textDone, partDone, itemDone, done(message)},
		"deltas only":                      {added, deltaOne, deltaTwo, done()},
		"deltas without the item":          {deltaOne, deltaTwo, done()},
		"text done only":                   {added, textDone, done()},
		"part done only":                   {added, partDone, done()},
		"item done only":                   {itemDone, done()},
		"the answer only":                  {done(message)},
		"item done and the answer":         {itemDone, done(message)},
		"text done and the answer":         {textDone, done(message)},
		"half of the deltas":               {added, deltaOne, textDone, itemDone, done(message)},
		"half, and the answer":             {added, deltaOne, done(message)},
		"no places": {
			`{"type":"response.output_text.delta","delta":"hello"}`, `{"type":"response.output_text.delta","delta":" world"}`,
			`{"type":"response.output_text.done","text":"hello world"}`, done(message),
		},
		"ids only": {
			`{"type":"response.output_item.added","item":{"id":"m1","type":"message"}}`,
			`{"type":"response.output_text.delta","item_id":"m1","delta":"hello world"}`,
			`{"type":"response.output_item.done","item":` + message + `}`, done(message),
		},
		"a new id with each event": {
			strings.ReplaceAll(added, "m1", "x1"), strings.ReplaceAll(deltaOne, "m1", "x2"), strings.ReplaceAll(deltaTwo, "m1", "x3"),
			strings.ReplaceAll(itemDone, "m1", "x4"), done(strings.ReplaceAll(message, "m1", "x5")),
		},
		"another content index": {added, strings.ReplaceAll(deltaOne, `"content_index":0`, `"content_index":1`),
			strings.ReplaceAll(deltaTwo, `"content_index":0`, `"content_index":1`), itemDone, done(message)},
		"the delta is an object": {added, `{"type":"response.output_text.delta","output_index":0,"delta":{"type":"output_text","text":"hello world"}}`, done(message)},
	} {
		t.Run(name, func(t *testing.T) {
			way := someWays
			if strings.Contains(name, "all") || strings.Contains(name, "only") {
				way = everyWay
			}
			got := way(t, events(list...))
			if got.Err != nil || got.Text != "hello world" || got.Reason != llm.FinishStop || len(got.Parts) != 1 {
				t.Error(got)
			}
		})
	}
	// What is told differently at the end does not come on top.
	if got := everyWay(t, events(added, `{"type":"response.output_text.delta","output_index":0,"delta":"hello, world"}`, itemDone, done(message))); got.Text != "hello, world" {
		t.Error(got)
	}
}

// C33 (3): the arguments in any of the events.
func TestArgumentsOnce(t *testing.T) {
	deltas := []string{
		`{"type":"response.function_call_arguments.delta","item_id":"fc1","output_index":0,"delta":"{\"p\":"}`,
		`{"type":"response.function_call_arguments.delta","item_id":"fc1","output_index":0,"delta":"\"a\"}"}`,
	}
	for name, list := range map[string][]string{
		"all":                     {calling, deltas[0], deltas[1], argsDone, callDone, done(callItem)},
		"arguments done only":     {calling, argsDone, done()},
		"item done only":          {callDone, done()},
		"the answer only":         {done(callItem)},
		"done, but no begin":      {argsDone, callDone, done(callItem)},
		"deltas only":             {calling, deltas[0], deltas[1], done()},
		"a part of the deltas":    {calling, deltas[0], argsDone, done()},
		"lost in the middle":      {calling, deltas[1], argsDone, done()},
		"the name comes late":     {deltas[0], deltas[1], callDone, done()},
		"the name in the done":    {strings.Replace(argsDone, `"arguments"`, `"name":"read","call_id":"c1","arguments"`, 1), done(callItem)},
		"announced whole":         {strings.Replace(calling, `"arguments":""`, `"arguments":"{\"p\":\"a\"}"`, 1), deltas[0], deltas[1], callDone, done(callItem)},
		"announced as an object":  {strings.Replace(calling, `"arguments":""`, `"arguments":{}`, 1), deltas[0], deltas[1], done(callItem)},
		"an object, not a string": {calling, strings.Replace(argsDone, `"{\"p\":\"a\"}"`, `{"p":"a"}`, 1), done()},
		"item id is the call id": {
			`{"type":"response.output_item.added","item":{"type":"function_call","call_id":"c1","name":"read"}}`,
			`{"type":"response.function_call_arguments.delta","item_id":"c1","delta":"{\"p\":\"a\"}"}`, done(callItem),
		},
	} {
		t.Run(name, func(t *testing.T) {
			way := someWays
			if strings.Contains(name, "all") || strings.Contains(name, "only") {
				way = everyWay
			}
			got := way(t, events(list...))
			if got.Err != nil || len(got.Calls) != 1 || got.Calls[0].Name != "read" || got.Calls[0].Args != `{"p":"a"}` || got.Reason != llm.FinishTools {
				t.Error(got)
			}
		})
	}
}

// The same kind of fault in the places that servers make up. C19
func TestCallsTold(t *testing.T) {
	call := func(place, id, call, args string) string {
		return fmt.Sprintf(`{%s"item":{"type":"function_call","id":%q,"call_id":%q,"name":"read","arguments":%q}}`, place, id, call, args)
	}
	begin := func(place, id, c string) string {
		return strings.Replace(call(place, id, c, ""), "{", `{"type":"response.output_item.added",`, 1)
	}
	end := func(place, id, c, args string) string {
		return strings.Replace(call(place, id, c, args), "{", `{"type":"response.output_item.done",`, 1)
	}
	delta := func(place, id, text string) string {
		return fmt.Sprintf(`{"type":"response.function_call_arguments.delta",%s"item_id":%q,"delta":%q}`, place, id, text)
	}
	a, b := `{"p":"a"}`, `{"p":"b"}`
	const zero, one, none = `"output_index":0,`, `"output_index":1,`, ``
	for name, list := range map[string][]string{
		"as documented":               {begin(zero, "f1", "x"), delta(zero, "f1", a), end(zero, "f1", "x", a), begin(one, "f2", "y"), delta(one, "f2", b), end(one, "f2", "y", b)},
		"side by side":                {begin(zero, "f1", "x"), begin(one, "f2", "y"), delta(one, "f2", b[:4]), delta(zero, "f1", a), delta(one, "f2", b[4:])},
		"no index":                    {begin(none, "f1", "x"), delta(none, "f1", a), begin(none, "f2", "y"), delta(none, "f2", b), end(none, "f1", "x", a), end(none, "f2", "y", b)},
		"no index, side by side":      {begin(none, "f1", "x"), begin(none, "f2", "y"), delta(none, "f2", b[:4]), delta(none, "f1", a), delta(none, "f2", b[4:])},
		"index 0 for all":             {begin(zero, "f1", "x"), delta(zero, "f1", a), end(zero, "f1", "x", a), begin(zero, "f2", "y"), delta(zero, "f2", b), end(zero, "f2", "y", b)},
		"index 0, done only":          {end(zero, "f1", "x", a), end(zero, "f2", "y", b)},
		"index 0, never done":         {begin(zero, "f1", "x"), delta(zero, "f1", a), begin(zero, "f2", "y"), delta(zero, "f2", b)},
		"a text with the same index":  {added, deltaOne, begin(zero, "f1", "x"), delta(zero, "f1", a), begin(zero, "f2", "y"), delta(zero, "f2", b)},
		"a text, never announced":     {deltaOne, delta(zero, "f1", a), end(zero, "f1", "x", a), begin(zero, "f2", "y"), delta(zero, "f2", b)},
		"index null":                  {begin(`"output_index":null,`, "f1", "x"), delta(`"output_index":null,`, "f1", a), begin(none, "f2", "y"), delta(none, "f2", b)},
		"ids of the events made up":   {begin(zero, "f1", "x"), delta(zero, "q1", a), end(zero, "q2", "x", a), begin(one, "q3", "y"), delta(one, "q4", b), end(one, "q5", "y", b)},
		"the ids of two are the same": {begin(zero, "f", "x"), delta(zero, "f", a), end(zero, "f", "x", a), begin(one, "f", "y"), delta(one, "f", b), end(one, "f", "y", b)},
	} {
		t.Run(name, func(t *testing.T) {
			for i, last := range []string{done(), done(
				`{"type":"function_call","id":"f1","call_id":"x","name":"read","arguments":"{\"p\":\"a\"}"}`,
				`{"type":"function_call","id":"f2","call_id":"y","name":"read","arguments":"{\"p\":\"b\"}"}`)} {
				body := events(append(list[:len(list):len(list)], last)...)
				got := inOne(t, body)
				if i == 0 {
					got = someWays(t, body)
				}
				want := []toolCall{{"x", "read", a}, {"y", "read", b}}
				if got.Err != nil || fmt.Sprint(got.Calls) != fmt.Sprint(want) || got.Reason != llm.FinishTools {
					t.Errorf("%v", got)
				}
			}
		})
	}
}

// C17, C18: the forms of arguments in an item.
func TestArgumentForms(t *testing.T) {
	for form, want := range map[string]string{
		`"arguments":""`:                      `{}`,
		`"arguments":null`:                    `{}`,
		`"arguments":" "`:                     `{}`,
		`"x":1`:                               `{}`,
		`"arguments":{}`:                      `{}`,
		`"arguments":{"city":"Oslo"}`:         `{"city":"Oslo"}`,
		`"arguments":"{\"city\":\"Oslo\"}"`:   `{"city":"Oslo"}`,
		`"arguments":["Oslo"]`:                `["Oslo"]`,
		`"arguments":"\"{\\\"city\\\":1}\""`:  `"{\"city\":1}"`,
		`"arguments":"{\"q\"}"`:               `{"q"}`,
		`"arguments":"{\"city\":\"Oslo\"} x"`: `{"city":"Oslo"} x`,
	} {
		item := `{"type":"function_call","id":"f","call_id":"c","name":"get",` + form + `}`
		for _, body := range []string{events(done(item)), events(`{"type":"response.output_item.done","output_index":0,"item":`+item+`}`, done())} {
			got := inOne(t, body)
			if got.Err != nil || len(got.Calls) != 1 || got.Calls[0].Args != want || got.Reason != llm.FinishTools {
				t.Errorf("%s: %v", form, got)
			}
		}
	}
}

// C33 (4), C36: a cut answer is never a success, and no call of it runs.
func TestCutAnswers(t *testing.T) {
	cut := func(reason, item string) string {
		return `{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":` + reason + `,"output":[` + item + `]}}`
	}
	for name, list := range map[string][]string{
		"text":            {added, deltaOne, cut(`{"reason":"max_output_tokens"}`, "")},
		"another reason":  {added, deltaOne, cut(`{"reason":"something new"}`, "")},
		"no reason":       {added, deltaOne, cut(`null`, "")},
		"only the status": {added, deltaOne, `{"type":"response.completed","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}`},
		"only the event":  {added, deltaOne, `{"type":"response.incomplete","response":{}}`},
	} {
		if got := everyWay(t, events(list...)); got.Err != nil || got.Reason != llm.FinishLength || got.Text != "hello" {
			t.Errorf("%s: %v", name, got)
		}
	}
	half := strings.Replace(callItem, `"{\"p\":\"a\"}"`, `"{\"path\":\"a.md\",\"content\":\"half of th"`, 1)
	for name, body := range map[string]string{
		"cut":                      events(cut(`{"reason":"max_output_tokens"}`, half)),
		"cut, but valid":           events(cut(`{"reason":"max_output_tokens"}`, callItem)),
		"the server does not tell": events(done(half)),
	} {
		if got := everyWay(t, body); got.Err != nil || got.Reason != llm.FinishLength || len(got.Calls) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
	// Empty arguments of a cut answer are not {}.
	if got := everyWay(t, events(calling, cut(`{"reason":"max_output_tokens"}`, ""))); len(got.Calls) != 1 || got.Calls[0].Args != "" {
		t.Error(got)
	}
}

// C33 (5): the end of the bytes is no end of the answer.
func TestNoTerminalEvent(t *testing.T) {
	for name, list := range map[string][]string{
		"text":         {added, deltaOne, deltaTwo, textDone, partDone, itemDone},
		"a whole call": {calling, argsDone, callDone},
		"[DONE]":       {callDone},
	} {
		body := events(list...)
		if name == "[DONE]" {
			body += "data: [DONE]\n\n"
		}
		if got := everyWay(t, body); got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, body := range []string{": x\n\n", "event: ping\n\n", events(`{"type":"response.created","response":{"status":"in_progress"}}`), "data: [DONE]\n\n"} {
		if got := everyWay(t, body); got.Err == nil || got.Err.Code != "empty_reply" || got.Err.Class != llm.Truncated {
			t.Errorf("%q: %v", body, got)
		}
	}
}

// rich is a reply with everything in it.
var rich = responsesstub.Reply{
	Thoughts: []string{"Let me see.", "Then h\u00e9llo \U0001f3f7."},
	Hosted: []string{
		`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"oslo"}}`,
		`{"type":"code_interpreter_call","id":"ci_1","status":"completed","code":"print(1)","container_id":"cntr_1","outputs":[{"type":"logs","logs":"1\n"}]}`,
	},
	Text: "some \u4e16\u754c text", Phase: "commentary",
	Calls: []responsesstub.Call{{Name: "f", Arguments: `{"a":1}`}, {Name: "g", Arguments: `{}`}},
	Input: 30, Output: 40, Cached: 20, Reasoning: 10,
}

// An answer that breaks at any byte is never taken for a whole one, and no
// call of it is given out. I-20, C24
func TestCutAtEveryByte(t *testing.T) {
	reply := responsesstub.Reply{
		Thoughts: []string{"Let me see."}, Text: "some text", Calls: []responsesstub.Call{{Name: "f", Arguments: `{"a":1}`}}, Input: 3, Output: 4,
		Hosted: []string{`{"type":"web_search_call","id":"ws_1","status":"completed"}`},
	}
	body := string(reply.Stream())
	end := strings.LastIndex(body, "}") + 1 // here the last event is whole
	for n := range len(body) {
		got := inOne(t, body[:n])
		if n < end && (got.Err == nil || got.Err.Class != llm.Truncated || got.Calls != nil) {
			t.Fatalf("cut at %d (%q): %v", n, body[max(0, n-80):n], got)
		}
		if n >= end && (got.Err != nil || len(got.Calls) != 1) {
			t.Fatalf("cut at %d: %v", n, got)
		}
	}
	// The same with a connection that breaks.
	for _, n := range []int{1, 40, 200, end - 200} {
		reply.CutAfter = n
		if got := against(t, reply); got.Err == nil || !got.Err.Class.Retryable() || got.Calls != nil {
			t.Errorf("broken after %d: %v", n, got)
		}
	}
}

// Everything, in every way: as a stream, told by the events of completion
// only, as plain JSON.
func TestEverything(t *testing.T) {
	want := someWays(t, string(rich.Stream()))
	if want.Err != nil || want.Text != rich.Text || want.Reasoning != "Let me see.\n\nThen h\u00e9llo \U0001f3f7." || len(want.Calls) != 2 ||
		want.Reason != llm.FinishTools || *want.Usage != (llm.Usage{Input: 30, Output: 40, CacheRead: 20, Reasoning: 10}) {
		t.Fatal(want)
	}
	hosted := `[call web_search ws_1 {"query":"oslo","type":"search"} result ws_1  false call code_interpreter ci_1 {"code":"print(1)"} result ci_1 1` + "\n" + ` false]`
	if fmt.Sprint(want.Hosted) != hosted {
		t.Errorf("%v", want.Hosted)
	}
	want.Deltas = 0
	for name, change := range map[string]func(*responsesstub.Reply){
		"over the stub":      func(*responsesstub.Reply) {},
		"done events only":   func(r *responsesstub.Reply) { r.DoneOnly = true },
		"plain":              func(r *responsesstub.Reply) { r.Plain = true },
		"plain as text":      func(r *responsesstub.Reply) { r.Plain, r.ContentType = true, "text/plain" },
		"plain as a stream":  func(r *responsesstub.Reply) { r.Plain, r.ContentType = true, "text/event-stream" },
		"one rune at a time": func(r *responsesstub.Reply) { r.Runes = 1 },
	} {
		reply := rich
		change(&reply)
		got := against(t, reply)
		got.Deltas = 0
		if got.String() != want.String() {
			t.Errorf("%s:\n got %v\nwant %v", name, got, want)
		}
	}
}

// C15 (d)
func TestRefusals(t *testing.T) {
	refused := `{"id":"m1","type":"message","content":[{"type":"refusal","refusal":"I cannot help."}]}`
	for name, body := range map[string]string{
		"all":         string(responsesstub.Reply{Refusal: "I cannot help."}.Stream()),
		"done only":   string(responsesstub.Reply{Refusal: "I cannot help.", DoneOnly: true}.Stream()),
		"deltas only": events(`{"type":"response.refusal.delta","delta":"I cannot "}`, `{"type":"response.refusal.delta","delta":"help."}`, done()),
		"item only":   events(done(refused)),
		"cut":         events(`{"type":"response.refusal.delta","delta":"I cannot help."}`),
	} {
		got := someWays(t, body)
		if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Message != "I cannot help." || got.Err.Class.Retryable() {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, reply := range []responsesstub.Reply{{Text: "Half an an", Incomplete: "content_filter"}, {Incomplete: "content_filter"}, {Incomplete: "content_filter", Plain: true}} {
		got := against(t, reply)
		if got.Err == nil || got.Err.Class != llm.ContentFilter || got.Err.Code != "content_filter" || got.Err.Message == "" {
			t.Error(got)
		}
	}
	if got := against(t, responsesstub.Reply{Text: "Sure, ", Refusal: "No.", Plain: true}); got.Err == nil || got.Err.Message != "No." {
		t.Error(got)
	}
}

// Unknown usage is not zero.
func TestUsage(t *testing.T) {
	for usage, want := range map[string]*llm.Usage{
		`{"input_tokens":12,"input_tokens_details":{"cached_tokens":8,"cache_write_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":17}`: {Input: 12, Output: 5, CacheRead: 8, CacheWrite: 3, Reasoning: 2},
		`{"input_tokens":12,"output_tokens":0,"input_tokens_details":null}`: {Input: 12},
		`{"input_tokens":0,"output_tokens":0}`:                              nil,
		`{"input_tokens":5}`:                                                nil,
		`{"input_tokens":-1,"output_tokens":5}`:                             nil,
		`null`:                                                              nil,
		`"x"`:                                                               nil,
	} {
		got := someWays(t, events(`{"type":"response.created","response":{"usage":null}}`, `{"type":"response.completed","response":{"status":"completed","usage":`+usage+`,"output":[`+message+`]}}`))
		if got.Err != nil || got.Text != "hello world" || fmt.Sprint(got.Usage) != fmt.Sprint(want) {
			t.Errorf("%s: %v", usage, got)
		}
	}
	// A failed answer has cost too.
	got := against(t, responsesstub.Reply{Text: "x", Failed: &responsesstub.Failure{Code: "server_error", Message: "sorry"}, Input: 3, Output: 4})
	if got.Err == nil || got.Usage == nil || got.Usage.Output != 4 {
		t.Error(got)
	}
}

// C27, C43: errors inside a stream, in each of their shapes.
func TestErrorInStream(t *testing.T) {
	tests := []struct {
		body, code, text string
		class            llm.Class
	}{
		{`{"type":"error","sequence_number":2,"error":{"type":"server_error","code":"server_error","message":"retry later"}}`, "server_error", "retry later", llm.Server},
		{`{"type":"error","sequence_number":2,"code":"rate_limit_exceeded","message":"slow down","param":null}`, "rate_limit_exceeded", "slow down", llm.RateLimit},
		{`{"type":"error","code":null,"message":"boom"}`, "", "boom", llm.UnknownClass},
		{`{"type":"error","error":{"type":"tokens","code":"rate_limit_exceeded","message":"Limit 30000"}}`, "rate_limit_exceeded", "Limit 30000", llm.RateLimit},
		{`{"type":"error","error":{"type":"too_many_requests","code":"too_many_requests","message":"Too Many Requests"}}`, "too_many_requests", "Too Many Requests", llm.RateLimit},
		{`{"type":"error","error":{"type":"insufficient_quota","code":"credit_balance_exhausted","message":"no credits"}}`, "credit_balance_exhausted", "no credits", llm.Billing},
		{`{"type":"error","code":"credit_balance_exhausted","message":"no credits"}`, "credit_balance_exhausted", "no credits", llm.Billing},
		{`{"type":"error","error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"Your input exceeds the context window of this model."}}`, "context_length_exceeded", "Your input exceeds the context window of this model.", llm.ContextOverflow},
		{`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"sorry"},"output":[]}}`, "server_error", "sorry", llm.Server},
		{`{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"x"}}}`, "rate_limit_exceeded", "x", llm.RateLimit},
		{`{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_prompt","message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy."}}}`, "invalid_prompt", "", llm.ContentFilter},
		{`{"type":"response.failed","response":{"status":"failed","error":{"code":"image_content_policy_violation","message":"no"}}}`, "image_content_policy_violation", "no", llm.ContentFilter},
		{`{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_image_format","message":"no"}}}`, "invalid_image_format", "no", llm.InvalidRequest},
		{`{"type":"response.failed","response":{"status":"failed","error":null}}`, "", "the vendor ended the answer as failed, without an error", llm.Server},
		{`{"type":"response.failed","response":{}}`, "", "", llm.Server},
		{`{"type":"response.completed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}`, "server_error", "x", llm.Server},
		{`{"type":"response.completed","response":{"status":"cancelled"}}`, "", "", llm.Server},
		{`{"type":"response.completed"}`, "", "", llm.Server},
		{`{"error":{"message":"quota exceeded"}}`, "", "quota exceeded", llm.UnknownClass},
		{`{"error":{"message":"x","code":502}}`, "502", "x", llm.Server},
		{`{"detail":"x"}`, "", "x", llm.UnknownClass},
	}
	for _, tt := range tests {
		name := "event: error\n"
		if !strings.HasPrefix(tt.body, `{"type":"error"`) {
			name = ""
		}
		got := someWays(t, events(added, `{"type":"response.output_text.delta","output_index":0,"delta":"Part"}`)+name+"data: "+tt.body+"\n\n")
		if got.Err == nil || got.Err.Class != tt.class || got.Err.Code != tt.code || tt.text != "" && got.Err.Message != tt.text || got.Text != "Part" {
			t.Errorf("%s: %v", tt.body, got)
		}
	}
	for body, class := range map[string]llm.Class{
		"event: error\ndata: upstream gone\n\n":                           llm.UnknownClass,
		"data: nonsense\n\n":                                              llm.Server,
		"event: response.output_text.delta\ndata: [1]\n\n":                llm.Server,
		"event: response.completed\ndata: {\"response\":\"x\"}\n\n":       llm.Server,
		"event: response.completed\ndata: {\"response\":null}\n\n":        llm.Server,
		"event: error\ndata: {\"message\":\"<html>no</html>\"}\n\n":       llm.UnknownClass,
		"event: error\ndata: {}\n\n":                                      llm.UnknownClass,
		"data: {\"object\":\"error\",\"message\":\"x\",\"code\":500}\n\n": llm.Server,
	} {
		if got := someWays(t, body); got.Err == nil || got.Err.Class != class || strings.Contains(got.Err.Message, "<") {
			t.Errorf("%q: %v", body, got)
		}
	}
}

// C29
func TestKeepAlives(t *testing.T) {
	noise := strings.Repeat(": PROCESSING\n\n", 3) + "id: 7\nretry: 1000\n\nevent: ping\ndata: x\n\ndata: {}\n\nevent: keepalive\ndata: {\"type\":\"keepalive\"}\n\n" +
		"data: {\"type\":\"response.something.new\",\"output_index\":{}}\n\ndata: {\"type\":\"response.in_progress\",\"response\":null}\n\n"
	body := noise + "data:{\"type\":\"response.output_text.delta\",\ndata: \"output_index\":0,\"delta\":\"ok\",\"logprobs\":7,\"obfuscation\":\"xx\"}\n\n" + noise + events(done())
	if got := someWays(t, body); got.Err != nil || got.Text != "ok" || got.Deltas != 1 {
		t.Error(got)
	}
}

func TestOddButGood(t *testing.T) {
	for name, body := range map[string]string{
		"no event names":    strings.ReplaceAll(events(added, deltaOne, deltaTwo, done(message)), "event: ", ": "),
		"event names only":  "event: response.output_text.delta\ndata: {\"delta\":\"hello world\"}\n\nevent: response.completed\ndata: {\"response\":{}}\n\n",
		"nulls":             events(`{"type":"response.output_item.added","output_index":null,"item_id":null,"item":null}`, `{"type":"response.output_text.delta","output_index":0,"content_index":null,"delta":"hello world"}`, `{"type":"response.completed","response":{"status":"completed","output":null,"usage":null,"incomplete_details":null,"error":null}}`),
		"other types":       events(`{"type":"response.output_item.added","output_index":"0","item":[]}`, `{"type":"response.output_text.delta","output_index":0,"delta":"hello world","part":7}`, `{"type":"response.completed","response":{"status":7,"output":{},"usage":[]}}`),
		"events behind it":  events(done(message), `{"type":"error","message":"x"}`),
		"[DONE] behind it":  events(done(message)) + "data: [DONE]\n\n",
		"response.done":     events(`{"type":"response.done","response":{"output":[` + message + `]}}`),
		"an open status":    events(`{"type":"response.completed","response":{"status":"in_progress","output":[` + message + `]}}`),
		"content as a text": events(done(`{"type":"message","content":"hello world"}`)),
		"two parts":         events(done(`{"type":"message","content":[{"type":"output_text","text":"hello "},{"type":"output_text","text":"world"}]}`)),
		"two messages": events(
			`{"type":"response.output_text.delta","output_index":0,"delta":"hello"}`, `{"type":"response.output_text.delta","output_index":1,"delta":" world"}`,
			`{"type":"response.output_text.done","output_index":0,"text":"hello"}`, done(`{"type":"message","content":[{"type":"output_text","text":"hello"}]}`, `{"type":"message","content":[{"type":"output_text","text":" world"}]}`)),
	} {
		if got := someWays(t, body); got.Err != nil || got.Text != "hello world" || got.Reason != llm.FinishStop {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := someWays(t, events(done())); got.Err != nil || got.Text != "" || got.Reason != llm.FinishStop {
		t.Error(got)
	}
	got := someWays(t, events(`{"type":"response.output_text.delta","delta":"a\ud83d"}`, `{"type":"response.incomplete","response":{"incomplete_details":{"reason":"`+strings.Repeat("x", 100)+`"}}}`))
	if got.Err != nil || len(got.Raw) != 64 || got.Text != "a\uFFFD" {
		t.Error(got)
	}
}

// C28
func TestGateways(t *testing.T) {
	good := `{"object":"response","status":"completed","output":[` + message + `],"usage":{"input_tokens":3,"output_tokens":1}}`
	stream := events(`{"type":"response.completed","response":` + good + `}`)
	tests := []struct {
		name, media string
		status      int
		body        string
		class       llm.Class // "" for a good answer
	}{
		{"error in a 200", "application/json", 200, `{"error":{"message":"limit reached","code":502}}`, llm.Server},
		{"a failed answer", "application/json", 200, `{"object":"response","status":"failed","error":{"code":"rate_limit_exceeded","message":"x"},"output":[]}`, llm.RateLimit},
		{"an answer that goes on", "application/json", 200, `{"object":"response","status":"queued","output":[]}`, llm.Server},
		{"another API", "application/json", 200, `{"object":"chat.completion","choices":[]}`, llm.Server},
		{"sign-in page", "text/html", 200, "<!doctype html><p>Sign in", llm.InvalidRequest},
		{"gateway page", "text/html", 502, "<html>nginx</html>", llm.Server},
		{"empty", "application/json", 200, "", llm.Truncated},
		{"white space", "application/json", 200, " \n", llm.Truncated},
		{"broken JSON", "application/json", 200, `{"status":"completed","output":[`, llm.Server},
		{"JSON as text", "text/plain", 200, good, ""},
		{"JSON as a stream", "text/event-stream", 200, "\n" + good, ""},
		{"a stream as JSON", "application/json", 200, stream, ""},
		{"a stream as text", "text/plain", 200, ": hi\n\n" + stream, ""},
		{"a stream with a byte order mark", "text/event-stream", 200, "\xef\xbb\xbf" + stream, ""},
		{"no content", "application/json", 204, "", llm.Server},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := served{media: tt.media, status: tt.status, body: func() io.Reader { return strings.NewReader(tt.body) }}
			got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
			if tt.class == "" {
				if got.Err != nil || got.Text != "hello world" || got.Usage == nil || got.Usage.Input != 3 {
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

// C32
func TestLongEvents(t *testing.T) {
	for _, size := range []int{70 << 10, 1_200_000, 12 << 20} {
		args := `{\"a\":\"` + strings.Repeat("x", size) + `\"}`
		got := inOne(t, events(done(strings.Replace(callItem, `{\"p\":\"a\"}`, args, 1))))
		if got.Err != nil || len(got.Calls) != 1 || len(got.Calls[0].Args) != size+8 {
			t.Fatalf("%d bytes: %d calls, %v", size, len(got.Calls), got.Err)
		}
	}
	s := served{body: func() io.Reader { return io.MultiReader(strings.NewReader("data: "), forever{}) }}
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

func TestAnswerIsBounded(t *testing.T) {
	fails := func(name string, body func() io.Reader) {
		t.Helper()
		size, parts := 0, 0
		err := model(t, Config{HTTP: &http.Client{Transport: served{body: body}}}).Stream(t.Context(), hello, func(p llm.Part) error {
			size, parts = size+len(p.Text)+len(p.State), parts+1
			return nil
		})
		if llm.AsError(err).Class != llm.Server || size > MaxAnswer || parts > 4*maxParts {
			t.Errorf("%s: %v after %d bytes, %d parts", name, err, size, parts)
		}
	}
	many := func(n int, line func(i int) string) func() io.Reader {
		return func() io.Reader {
			list := make([]io.Reader, n, n+1)
			for i := range list {
				list[i] = strings.NewReader("data: " + line(i) + "\n\n")
			}
			return io.MultiReader(append(list, strings.NewReader(events(done())))...)
		}
	}
	long := strings.Repeat("x", 1<<20)
	fails("text", many(40, func(int) string { return `{"type":"response.output_text.delta","delta":"` + long + `"}` }))
	fails("arguments", many(40, func(int) string { return `{"type":"response.function_call_arguments.delta","delta":"` + long + `"}` }))
	fails("state", many(40, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_item.done","item":{"type":"reasoning","id":"r%d","encrypted_content":"%s"}}`, i, long)
	}))
	fails("hosted state", many(40, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_item.done","item":{"type":"image_generation_call","id":"r%d","status":"completed","result":"%s"}}`, i, long)
	}))
	fails("calls", many(maxCalls+1, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_item.added","output_index":%d,"item":{"type":"function_call","id":"f%d","name":"f"}}`, i, i)
	}))
	fails("hosted calls", many(maxCalls+1, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_item.added","output_index":%d,"item":{"type":"web_search_call","id":"w%d"}}`, i, i)
	}))
	fails("messages", many(maxItems+1, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_item.added","output_index":%d,"item":{"type":"message","id":"m%d"}}`, i, i)
	}))
	fails("parts", many(maxParts+2, func(i int) string {
		return fmt.Sprintf(`{"type":"response.output_text.delta","output_index":0,"content_index":%d,"delta":"x"}`, i)
	}))
}

// Nothing is waited for behind the end. C24
func TestOpenSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := chatstub.NewPipe(responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "Hello", Hold: true})))
		defer p.Shutdown()
		start := time.Now()
		got := ask(t, t.Context(), model(t, Config{HTTP: p.Client()}), hello)
		if took := time.Since(start); got.Err != nil || got.Text != "Hello" || took > 100*time.Millisecond {
			t.Errorf("%v after %s", got, took)
		}
	})
}

func TestStopsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, reply := range map[string]responsesstub.Reply{
			"before the head": {Delay: time.Hour},
			"in the stream":   {Text: "a long text of many deltas", Pause: time.Hour},
			"in the tail":     {Body: []byte(events(added, deltaOne)), Hold: true},
		} {
			p := chatstub.NewPipe(responsesstub.New(responsesstub.Replies(reply)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			got := ask(t, ctx, model(t, Config{HTTP: p.Client(), FirstByte: 2 * time.Hour, Idle: 2 * time.Hour}), hello)
			if got.Err == nil || got.Err.Class != llm.Aborted || !errors.Is(got.Err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %s", name, got, time.Since(start))
			}
			cancel()
			p.Shutdown()
		}
		p := chatstub.NewPipe(responsesstub.New(responsesstub.Replies(responsesstub.Reply{Body: []byte(": x\n\n"), Hold: true})))
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
	reply := rich
	reply.Hold = true
	m := model(t, Config{HTTP: over(t, responsesstub.New(responsesstub.Replies(reply)))})
	for n := range 40 {
		seen := 0
		err := m.Stream(t.Context(), hello, func(llm.Part) error {
			if seen++; seen > n {
				return stop
			}
			return nil
		})
		if err == nil && seen <= n {
			break // all of it was wanted
		}
		if err != stop || seen != n+1 {
			t.Errorf("after %d parts: %v, %d seen", n, err, seen)
		}
	}
}

// C42 and C43 over the adapter: status and headers reach the table. I-33
func TestStatusErrors(t *testing.T) {
	stub := responsesstub.New(responsesstub.Replies(responsesstub.Reply{
		Status: 429, ContentType: "application/json", Header: http.Header{"Retry-After": {"7"}},
		Body: []byte(`{"error":{"message":"slow down, key my-secret-key","code":"rate_limit_exceeded"}}`),
	}))
	got := ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { return "my-secret-key", nil }}), hello)
	if e := got.Err; e == nil || e.Class != llm.RateLimit || e.Status != 429 || e.RetryAfter != 7*time.Second || strings.Contains(e.Message, "my-secret") {
		t.Errorf("%+v", e)
	}
	stub = responsesstub.New(responsesstub.Replies(responsesstub.Reply{Text: "x"}))
	stub.Key = "right"
	got = ask(t, t.Context(), model(t, Config{HTTP: over(t, stub), APIKey: func() (string, error) { return "wrong-key-x", nil }}), hello)
	if e := got.Err; e == nil || e.Class != llm.Auth || e.Code != "invalid_api_key" {
		t.Errorf("%+v", e)
	}
}

// Whatever bytes come, the parts keep their order and the errors are ours.
func FuzzStream(f *testing.F) {
	f.Add(rich.Stream())
	f.Add([]byte(events(added, deltaOne, textDone, itemDone, done(message))))
	f.Add([]byte(events(calling, argsDone, callDone, done(callItem, message))))
	f.Add([]byte(events(`{"type":"response.reasoning_text.delta","delta":"a"}`, deltaOne, `{"type":"response.output_item.done","item":{"type":"reasoning","encrypted_content":"x"}}`, done())))
	f.Add([]byte(events(`{"type":"response.output_item.added","item":{"type":"mcp_call"}}`, deltaOne, `{"type":"response.mcp_call_arguments.done","arguments":"{}"}`, done(`{"type":"mcp_call"}`))))
	f.Add([]byte(`{"status":"completed","output":[{"type":"x"},{"type":"custom_tool_call"},{"type":"message","content":"y"}]}`))
	f.Add([]byte("event: error\ndata: {\"error\":{\"code\":1}}\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := served{body: func() io.Reader { return strings.NewReader(string(body)) }}
		ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}, EventLimit: 1 << 16}), hello)
	})
}

func BenchmarkDecodeStream(b *testing.B) {
	body := string(responsesstub.Reply{Text: strings.Repeat("word ", 200), Runes: 5, Input: 10, Output: 200}.Stream())
	s := served{body: func() io.Reader { return strings.NewReader(body) }}
	m, err := New(Config{Model: "m", HTTP: &http.Client{Transport: s}})
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

// Package chatstub is a Chat Completions vendor for tests: it plays a script
// of replies and enforces the rules that real vendors enforce, so that a
// request which one of them would refuse is refused here, and recorded.
//
// It is an http.Handler and knows nothing of tests; see Pipe for a way to
// serve it without a socket.
package chatstub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Call is a tool call of a reply. Arguments are sent as they are.
type Call struct {
	ID, Name, Arguments string
}

// Rules say which of the vendors that speak this dialect the stub is. The zero
// value is the common ground.
type Rules struct {
	// Reasoning says what is done with reasoning_content in a history.
	Reasoning ReasoningRule
	// ReasoningObject takes `reasoning: {effort, max_tokens}`, as routers do.
	ReasoningObject bool
	// Old refuses stream_options, parallel_tool_calls and max_completion_tokens.
	Old bool
	// TextOnly refuses images and files.
	TextOnly bool
	// NineLetters wants call ids of nine letters and digits.
	NineLetters bool
	// NoToolsWithSchema refuses response_format beside tools.
	NoToolsWithSchema bool
	// ToolsWithHistory refuses a history with calls when no tools are listed.
	ToolsWithHistory bool
	// CacheKey takes prompt_cache_key of at most 64 characters; others refuse it.
	CacheKey bool
	// Hosted are the types of tools, besides functions, that the vendor runs.
	Hosted []string
}

// ReasoningRule is what a vendor does with reasoning_content in a history.
type ReasoningRule int

// The rules: taken and not looked at; refused as unknown; demanded, not empty,
// with every message that called tools.
const (
	ReasoningTaken ReasoningRule = iota
	ReasoningRefused
	ReasoningDemanded
)

// Reply is one answer of the stub. The zero Reply is an empty answer that
// ends with "stop".
type Reply struct {
	Reasoning string
	// Details are handed out as reasoning_details: JSON objects, whose text and
	// summary a stream sends in pieces. They come back unchanged or not at all.
	Details []string
	Refusal string
	Text    string
	Calls   []Call
	Finish  string // default: "tool_calls" with calls, else "stop"; "-" for none
	Input   int    // usage: prompt tokens; with Output 0 too, no usage is sent
	Output  int
	Runes   int  // runes in each delta; default 8
	Plain   bool // a plain JSON answer instead of a stream

	// Body, when it is not nil, is sent as it is instead of all of the above.
	Body        []byte
	Status      int // default 200
	ContentType string
	Header      http.Header

	CutAfter int           // > 0: the connection breaks after so many bytes of the body
	Hold     bool          // the connection stays open after the body until the client leaves
	Delay    time.Duration // before the head of the answer
	Pause    time.Duration // before each event of a stream
}

// Script gives the reply to the n-th accepted request, from 0.
type Script func(n int, req Request) Reply

// Replies plays a list; past its end the last one is repeated.
func Replies(list ...Reply) Script {
	return func(n int, _ Request) Reply {
		if len(list) == 0 {
			return Reply{}
		}
		return list[min(n, len(list)-1)]
	}
}

// Stub is the vendor. It is safe for concurrent use.
type Stub struct {
	script Script
	rules  Rules

	mu         sync.Mutex
	handed     handedOut
	accepted   int
	requests   []Request
	violations []string
}

// handedOut is what the vendor gave out and knows again, in canonical form.
type handedOut struct{ details map[string]bool }

// New makes a vendor that plays a script.
func New(script Script) *Stub { return NewVendor(Rules{}, script) }

// NewVendor makes a vendor with rules of its own.
func NewVendor(rules Rules, script Script) *Stub {
	return &Stub{script: script, rules: rules, handed: handedOut{map[string]bool{}}}
}

// handedOut gives what was handed out so far.
func (s *Stub) handedOut() handedOut {
	s.mu.Lock()
	defer s.mu.Unlock()
	return handedOut{maps.Clone(s.handed.details)}
}

// handOut remembers what a reply hands out.
func (s *Stub) handOut(r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range r.Details {
		if canon, err := canonjson.Canonicalize([]byte(d), limits); err == nil {
			s.handed.details[string(canon)] = true
		}
	}
}

// Requests gives every request so far, also the refused ones, in order of arrival.
func (s *Stub) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Violations gives what was refused so far, one text for each broken rule.
func (s *Stub) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

const maxBody = 64 << 20

// ServeHTTP answers POST …/chat/completions.
func (s *Stub) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	req, broken := s.check(body)
	req.Path, req.Header, req.Body = hr.URL.Path, hr.Header.Clone(), body
	if hr.Method != http.MethodPost || !strings.HasSuffix(hr.URL.Path, "/chat/completions") {
		broken = append(broken, "not POST /chat/completions")
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	s.violations = append(s.violations, broken...)
	n := s.accepted
	if broken == nil {
		s.accepted++
	}
	s.mu.Unlock()
	if broken != nil {
		refuse(w, strings.Join(broken, "; "))
		return
	}
	reply := s.script(n, req)
	s.handOut(reply)
	play(w, hr, reply, req.Usage)
}

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write(encode(map[string]any{"error": map[string]any{
		"message": why, "type": "invalid_request_error", "code": nil,
	}}))
}

// play sends a reply. A cut connection is aborted the way net/http documents.
func play(w http.ResponseWriter, hr *http.Request, r Reply, usage bool) {
	if !wait(hr, r.Delay) {
		return
	}
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	media, events := "text/event-stream", [][]byte(nil)
	switch {
	case r.Body != nil:
		events = [][]byte{r.Body}
	case r.Plain:
		media, events = "application/json", [][]byte{r.plain()}
	default:
		events = r.events(usage)
	}
	if r.ContentType != "" {
		media = r.ContentType
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(max(r.Status, http.StatusOK))
	flush := http.NewResponseController(w)
	sent := 0
	for _, ev := range events {
		if !wait(hr, r.Pause) {
			return
		}
		if r.CutAfter > 0 && sent+len(ev) >= r.CutAfter {
			_, _ = w.Write(ev[:r.CutAfter-sent])
			_ = flush.Flush()
			panic(http.ErrAbortHandler)
		}
		sent += len(ev)
		if _, err := w.Write(ev); err != nil {
			return
		}
		_ = flush.Flush()
	}
	if r.Hold {
		<-hr.Context().Done()
	}
}

// wait says false when the client left first.
func wait(hr *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-hr.Context().Done():
		return false
	}
}

// Stream gives the bytes of a reply as an event stream.
func (r Reply) Stream() []byte { return slices.Concat(r.events(true)...) }

func (r Reply) events(usage bool) [][]byte {
	var out [][]byte
	add := func(v any) { out = append(out, slices.Concat([]byte("data: "), encode(v), []byte("\n\n"))) }
	delta := func(d map[string]any) {
		add(envelope([]any{map[string]any{"index": 0, "delta": d, "finish_reason": nil}}))
	}
	delta(map[string]any{"role": "assistant", "content": ""})
	for _, t := range chop(r.Reasoning, r.Runes) {
		delta(map[string]any{"reasoning_content": t})
	}
	for _, d := range r.Details {
		for _, piece := range chopDetail(d, r.Runes) {
			delta(map[string]any{"reasoning_details": []any{piece}})
		}
	}
	for _, t := range chop(r.Refusal, r.Runes) {
		delta(map[string]any{"refusal": t})
	}
	for _, t := range chop(r.Text, r.Runes) {
		delta(map[string]any{"content": t})
	}
	for i, c := range r.Calls {
		head := map[string]any{"index": i, "id": c.id(i), "type": "function", "function": map[string]any{"name": c.Name, "arguments": ""}}
		delta(map[string]any{"tool_calls": []any{head}})
		for _, t := range chop(c.Arguments, r.Runes) {
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": t}}}})
		}
	}
	if f := r.finish(); f != "" {
		add(envelope([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": f}}))
	}
	if u := r.usage(); u != nil && usage {
		e := envelope([]any{})
		e["usage"] = u
		add(e)
	}
	return append(out, []byte("data: [DONE]\n\n"))
}

func (r Reply) plain() []byte {
	msg := map[string]any{"role": "assistant", "content": r.Text}
	var calls []any
	for i, c := range r.Calls {
		calls = append(calls, map[string]any{"id": c.id(i), "type": "function",
			"function": map[string]any{"name": c.Name, "arguments": c.Arguments}})
	}
	if calls != nil {
		msg["tool_calls"] = calls
	}
	if r.Reasoning != "" {
		msg["reasoning_content"] = r.Reasoning
	}
	if r.Refusal != "" {
		msg["refusal"], msg["content"] = r.Refusal, nil
	}
	var details []json.RawMessage
	for _, d := range r.Details {
		if json.Valid([]byte(d)) {
			details = append(details, json.RawMessage(d))
		}
	}
	if details != nil {
		msg["reasoning_details"] = details
	}
	e := envelope([]any{map[string]any{"index": 0, "message": msg, "finish_reason": r.finish()}})
	e["object"] = "chat.completion"
	if u := r.usage(); u != nil {
		e["usage"] = u
	}
	return encode(e)
}

func (r Reply) finish() string {
	switch {
	case r.Finish == "-":
		return ""
	case r.Finish != "":
		return r.Finish
	case len(r.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func (r Reply) usage() map[string]any {
	if r.Input+r.Output == 0 {
		return nil
	}
	return map[string]any{"prompt_tokens": r.Input, "completion_tokens": r.Output, "total_tokens": r.Input + r.Output}
}

func (c Call) id(i int) string {
	if c.ID != "" {
		return c.ID
	}
	return fmt.Sprintf("call_%d", i)
}

func envelope(choices []any) map[string]any {
	return map[string]any{"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "stub", "choices": choices}
}

func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // raw members go out as they are
	if err := enc.Encode(v); err != nil {
		panic(err) // only maps of texts, numbers and checked JSON come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// chopDetail gives a detail in pieces, as a stream sends it: the text bit by
// bit, everything else with the first piece, the signature with the last.
func chopDetail(detail string, size int) []any {
	var whole map[string]any
	dec := json.NewDecoder(strings.NewReader(detail))
	dec.UseNumber()
	if dec.Decode(&whole) != nil {
		return nil
	}
	for _, grows := range []string{"text", "summary"} {
		text, ok := whole[grows].(string)
		if !ok {
			continue
		}
		var out []any
		parts := chop(text, size)
		for i, t := range parts {
			piece := map[string]any{"type": whole["type"], "index": whole["index"], grows: t}
			for k, v := range whole {
				if _, there := piece[k]; !there && (k == "signature") == (i == len(parts)-1) && (k == "signature" || i == 0) {
					piece[k] = v
				}
			}
			out = append(out, piece)
		}
		return out
	}
	return []any{whole}
}

func chop(text string, size int) []string {
	if size <= 0 {
		size = 8
	}
	var out []string
	for part := range slices.Chunk([]rune(text), size) {
		out = append(out, string(part))
	}
	return out
}

// Package messagesstub is a vendor of the Messages API for tests: it plays a
// script of replies and enforces the rules of the real one, so that a request
// which that would refuse is refused here, in its words' shape, and recorded.
//
// It is an http.Handler and knows nothing of tests.
package messagesstub

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Reply is one answer of the stub. The zero Reply is an empty answer that
// ends with "end_turn".
type Reply struct {
	Blocks []Block
	Stop   string // default: "tool_use" with a tool_use block, else "end_turn"; "-" for none
	// Refusal is the explanation that goes with the stop reason "refusal".
	Refusal string
	// Container is the id of the container that code ran in.
	Container string

	Input, Output         int // usage; with neither, none is sent
	CacheRead, CacheWrite int
	Thought               int
	Runes                 int // runes in each delta; default 8

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

// Error gives the reply of a failure, in the vendor's shape.
func Error(status int, kind, message string) Reply {
	return Reply{Status: status, ContentType: "application/json", Body: failure(kind, message)}
}

// Script gives the reply to the n-th accepted request, from 0.
type Script func(n int, req *Request) Reply

// Replies plays a list; past its end the last one is repeated.
func Replies(list ...Reply) Script {
	return func(n int, _ *Request) Reply {
		if len(list) == 0 {
			return Reply{}
		}
		return list[min(n, len(list)-1)]
	}
}

// Stub is the vendor. It is safe for concurrent use. The fields are set before
// its first request.
type Stub struct {
	MaxOutput int // the most that max_tokens may say; default 128000
	// NoAdaptive is a model before adaptive thinking, NoManual one behind
	// manual thinking.
	NoAdaptive, NoManual bool

	script Script

	mu         sync.Mutex
	accepted   int
	requests   []*Request
	violations []string
	answers    []answer
}

// answer is what was handed out once and must come back as it was.
type answer struct {
	thoughts []json.RawMessage          // in order
	hosted   map[string]json.RawMessage // by kind and id
}

// New makes a vendor that plays a script.
func New(script Script) *Stub { return &Stub{script: script} }

// Requests gives every request so far, also the refused ones, in order of arrival.
func (s *Stub) Requests() []*Request {
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

// maxBody is the vendor's limit of a request.
const maxBody = 32 << 20

// ServeHTTP answers POST …/v1/messages.
func (s *Stub) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	body, err := io.ReadAll(io.LimitReader(hr.Body, maxBody+1))
	if err != nil {
		return // the client left
	}
	if len(body) > maxBody {
		s.note("the request is too large")
		send(w, Error(http.StatusRequestEntityTooLarge, "request_too_large", "Request exceeds the maximum size"))
		return
	}
	c := &checker{stub: s, header: hr.Header}
	req := c.request(body)
	req.Path, req.Header, req.Body = hr.URL.Path, hr.Header.Clone(), body
	status, kind := http.StatusBadRequest, "invalid_request_error"
	switch {
	case hr.Method != http.MethodPost || !strings.HasSuffix(hr.URL.Path, "/v1/messages"):
		status, kind = http.StatusNotFound, "not_found_error"
		c.broken = append(c.broken, "not POST /v1/messages")
	case hr.Header.Get("X-Api-Key") == "" && !strings.HasPrefix(hr.Header.Get("Authorization"), "Bearer "):
		status, kind = http.StatusUnauthorized, "authentication_error"
		c.broken = append(c.broken, "x-api-key header is required")
	}
	s.mu.Lock()
	if c.broken == nil {
		c.asTheyWere(s.answers)
	}
	s.requests = append(s.requests, req)
	s.violations = append(s.violations, c.broken...)
	n := s.accepted
	if c.broken == nil {
		s.accepted++
	}
	s.mu.Unlock()
	if c.broken != nil {
		send(w, Error(status, kind, strings.Join(c.broken, "; ")))
		return
	}
	r := s.script(n, req)
	s.remember(r)
	r.play(w, hr, req)
}

func (s *Stub) note(rule string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, rule)
}

func (s *Stub) remember(r Reply) {
	a := answer{hosted: map[string]json.RawMessage{}}
	for _, b := range r.Blocks {
		switch kind := b.kind(); {
		case kind == "thinking" || kind == "redacted_thinking":
			a.thoughts = append(a.thoughts, b.JSON())
		case hostedCall(kind) || hostedResult(kind):
			a.hosted[kind+" "+b.text("id")+b.text("tool_use_id")] = b.JSON()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
}

func send(w http.ResponseWriter, r Reply) {
	w.Header().Set("Content-Type", r.ContentType)
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body) // the client may be gone
}

func failure(kind, message string) []byte {
	return encode(map[string]any{"type": "error", "request_id": "req_stub",
		"error": map[string]any{"type": kind, "message": message}})
}

// play sends a reply. A cut connection is aborted the way net/http documents.
func (r Reply) play(w http.ResponseWriter, hr *http.Request, req *Request) {
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
	case !req.Stream:
		media, events = "application/json", [][]byte{r.Plain(req.Model)}
	default:
		events = r.events(req.Model)
	}
	if r.ContentType != "" {
		media = r.ContentType
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Request-Id", "req_stub")
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

// encode writes a value without the escapes for HTML.
func encode(v any) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("messagesstub: %v", err)) // a script that is no JSON
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

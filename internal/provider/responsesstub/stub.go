// Package responsesstub is a vendor of the Responses API for tests: it plays a
// script of replies and enforces the rules that the real one enforces, so that
// a request which it would refuse is refused here, and recorded. Where the
// vendor is known to be strict only at times, it is strict always.
//
// It keeps nothing for its clients (as with store false), save what it needs
// to see that reasoning and the items of hosted tools come back as it gave
// them. It is an http.Handler and knows nothing of tests.
package responsesstub

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Call is a function call of a reply. Arguments are sent as they are.
type Call struct {
	ID, Name, Arguments string
}

// Failure is what a failed response, or an error inside a stream, says.
type Failure struct {
	Code, Message string
}

// Reply is one answer of the stub. Its items come in the order of the fields.
// The zero Reply is a complete answer without items.
type Reply struct {
	Think    bool     // an item of reasoning, also without a summary
	Thoughts []string // its summary, in parts
	Hosted   []string // items of hosted tools as they are when complete, each a JSON object with type and id
	Text     string
	Phase    string // of the message
	Refusal  string // a refusal in the message
	Calls    []Call

	Incomplete string   // the reason of an incomplete answer, whose last item is incomplete too
	Failed     *Failure // the response fails after its items
	Error      *Failure // an error event comes instead of the end
	Flat       bool     // Error in the documented form instead of the one that servers send

	Input, Output     int  // usage; with both 0 none is sent
	Cached, Reasoning int  // parts of Input and Output
	Runes             int  // runes in each delta; default 8
	DoneOnly          bool // no deltas: only the events of completion tell
	Plain             bool // a plain JSON answer although a stream was asked for

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

// Stub is the vendor. It is safe for concurrent use once it serves.
type Stub struct {
	// Key, unless it is "", must come with every request.
	Key string
	// Dull: the model does not reason, and what asks it to is refused.
	Dull bool

	script Script

	mu         sync.Mutex
	accepted   int
	requests   []Request
	violations []string
	issued     map[string]issue
}

// issue is an item that was handed out and may come back.
type issue struct {
	value canonjson.Value
	next  string // the type of the item that followed it
}

// New makes a vendor that plays a script.
func New(script Script) *Stub { return &Stub{script: script, issued: map[string]issue{}} }

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

// ServeHTTP answers POST …/responses.
func (s *Stub) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	if hr.Method != http.MethodPost || !strings.HasSuffix(hr.URL.Path, "/responses") {
		s.note("not POST /responses")
		refuse(w, fault{status: http.StatusNotFound, message: "Invalid URL (" + hr.Method + " " + hr.URL.Path + ")"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	s.mu.Lock()
	c := checker{dull: s.Dull, issued: s.issued}
	c.check(body)
	if s.Key != "" && hr.Header.Get("Authorization") != "Bearer "+s.Key {
		c.broken = append([]fault{{status: http.StatusUnauthorized, code: "invalid_api_key", message: "Incorrect API key provided."}}, c.broken...)
	}
	req := c.req
	req.Path, req.Header, req.Body = hr.URL.Path, hr.Header.Clone(), body
	s.requests = append(s.requests, req)
	for _, f := range c.broken {
		s.violations = append(s.violations, f.message)
	}
	n := s.accepted
	if c.broken == nil {
		s.accepted++
	}
	s.mu.Unlock()
	if c.broken != nil {
		refuse(w, c.broken[0])
		return
	}
	s.play(w, hr, n, req)
}

func (s *Stub) note(violation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, violation)
}

func refuse(w http.ResponseWriter, f fault) {
	if f.status == 0 {
		f.status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_, _ = w.Write(encode(object{"error": object{
		"message": f.message, "type": "invalid_request_error", "param": orNull(f.param), "code": orNull(f.code),
	}}))
}

// play sends a reply. A cut connection is aborted the way net/http documents.
func (s *Stub) play(w http.ResponseWriter, hr *http.Request, n int, req Request) {
	r := s.script(n, req)
	if !wait(hr, r.Delay) {
		return
	}
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	media, events := "text/event-stream", [][]byte{r.Body}
	if r.Body == nil {
		a := r.answer(n, req)
		s.issue(a.items)
		if req.Stream && !r.Plain {
			events = a.events()
		} else {
			media, events = "application/json", [][]byte{encode(a.response())}
		}
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

// issue remembers what was handed out.
func (s *Stub) issue(items []object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range items {
		id, _ := it["id"].(string)
		if id == "" {
			continue
		}
		value, err := canonjson.Canonicalize(encode(it), limits)
		if err != nil {
			panic("a reply holds an item that is not strict JSON: " + err.Error())
		}
		x := issue{value: value}
		if i+1 < len(items) {
			x.next, _ = items[i+1]["type"].(string)
		}
		s.issued[id] = x
	}
}

// Package geministub is a generateContent vendor for tests: it plays a script
// of replies and enforces the rules that the real one enforces, so that a
// request which it would refuse is refused here, and recorded.
//
// It is an http.Handler and knows nothing of tests.
package geministub

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

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

// Stub is the vendor. It is safe for concurrent use. Its models whose names
// begin with "gemini-1" and "gemini-2" keep the rules of those generations, all
// others those of Gemini 3.
type Stub struct {
	// Key is the only key that is taken; "" takes any, and none.
	Key string

	script Script

	mu         sync.Mutex
	accepted   int
	requests   []Request
	violations []string
	signed     map[string]handed // by signature
	ids        map[string]string // function call id → the signature it was handed out with
}

// handed is a part that was handed out with a signature, in canonical form, and
// the model that made it.
type handed struct{ model, part string }

// New makes a vendor that plays a script.
func New(script Script) *Stub {
	return &Stub{script: script, signed: map[string]handed{}, ids: map[string]string{}}
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

// ServeHTTP answers POST /v1beta/models/{model}:streamGenerateContent, as an
// event stream with alt=sse and as a JSON list without, and :generateContent.
func (s *Stub) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		fail(w, http.StatusBadRequest, "INVALID_ARGUMENT", "Request payload size exceeds the limit.")
		return
	}
	model, method, found := target(hr.URL.Path)
	if hr.Method != http.MethodPost || !found {
		s.refused("not POST /v1beta/models/{model}:generateContent")
		fail(w, http.StatusNotFound, "NOT_FOUND", "Requested entity was not found.")
		return
	}
	if s.Key != "" && hr.Header.Get("X-Goog-Api-Key") != s.Key {
		s.refused("API key not valid")
		fail(w, http.StatusBadRequest, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
		return
	}
	s.mu.Lock()
	req, broken := s.check(body, model)
	req.Model, req.Method, req.Header, req.Body = model, method, hr.Header.Clone(), body
	if hr.URL.Query().Has("key") {
		broken = append(broken, "the key stands in the URL")
	}
	s.requests = append(s.requests, req)
	s.violations = append(s.violations, broken...)
	n := s.accepted
	if broken == nil {
		s.accepted++
	}
	s.mu.Unlock()
	if broken != nil {
		fail(w, http.StatusBadRequest, "INVALID_ARGUMENT", strings.Join(broken, "; "))
		return
	}
	reply := s.script(n, req)
	switch {
	case method == "generateContent":
		reply.Plain = true
	case hr.URL.Query().Get("alt") != "sse":
		reply.List = true
	}
	s.Hand(model, reply)
	play(w, hr, reply)
}

func (s *Stub) refused(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, why)
}

// target reads the model and the method from a path.
func target(path string) (model, method string, ok bool) {
	_, rest, ok := strings.Cut(path, "/models/")
	if !ok {
		return "", "", false
	}
	model, method, ok = strings.Cut(rest, ":")
	return model, method, ok && model != "" && (method == "generateContent" || method == "streamGenerateContent")
}

// Hand remembers what a reply holds as handed out by a model, as if it had been
// played.
func (s *Stub) Hand(model string, r Reply) {
	if r.Body != nil || r.Block != "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range r.pieces() {
		raw := encode(p)
		n, err := canonjson.Parse(raw, limits)
		if err != nil {
			continue // a script of broken parts
		}
		signature, _ := n.Get("thoughtSignature")
		if call, ok := n.Get("functionCall"); ok {
			if id, ok := call.Get("id"); ok {
				s.ids[id.Text()] = signature.Text()
			}
		}
		if signature.Text() != "" {
			s.signed[signature.Text()] = handed{model, canonical(n)}
		}
	}
}

// fail answers with an error in the vendor's shape.
func fail(w http.ResponseWriter, status int, name, message string) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(encode(map[string]any{"error": map[string]any{"code": status, "message": message, "status": name}}))
}

// play sends a reply. A cut connection is aborted the way net/http documents.
func play(w http.ResponseWriter, hr *http.Request, r Reply) {
	if !wait(hr, r.Delay) {
		return
	}
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	media, events := "text/event-stream", r.events()
	switch {
	case r.Plain || r.List:
		media = "application/json; charset=UTF-8"
	case r.Body != nil && r.Status >= 400:
		media = "application/json"
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

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("geministub: a reply is not JSON: " + err.Error())
	}
	return raw
}

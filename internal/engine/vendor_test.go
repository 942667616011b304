package engine_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/anthropic"
	"github.com/holdfast-dev/holdfast/internal/provider/gemini"
	"github.com/holdfast-dev/holdfast/internal/provider/openai"
	"github.com/holdfast-dev/holdfast/internal/provider/openaicompat"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// fieldCase reads a machine-readable field case.
func fieldCase(t *testing.T, name string, v any) {
	t.Helper()
	shared := os.Getenv("HOLDFAST_SHARED")
	for dir := "."; shared == "" && len(dir) < 40; dir = filepath.Join(dir, "..") {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			shared = filepath.Join(dir, "..", "shared")
		}
	}
	raw, err := os.ReadFile(filepath.Join(shared, "field", name+".json"))
	if err != nil {
		t.Skip("no field cases here: set HOLDFAST_SHARED")
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}

// reply is an answer of a vendor as it goes over the wire.
type reply struct {
	status int // default 200
	media  string
	header http.Header
	body   func() io.Reader
	hold   bool // the connection stays open behind the body
}

func stream(body string) reply {
	return reply{media: "text/event-stream", body: func() io.Reader { return strings.NewReader(body) }}
}

// vendor answers requests one after the other, the last answer again and
// again, without a network: a bubble has none.
type vendor struct {
	mu      sync.Mutex
	replies []reply
	bodies  [][]byte
}

func (v *vendor) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.replies[min(len(v.bodies), len(v.replies)-1)]
	v.bodies = append(v.bodies, body)
	h := http.Header{}
	for k, vals := range r.header {
		h[k] = vals
	}
	h.Set("Content-Type", r.media)
	src := r.body()
	if r.hold {
		src = io.MultiReader(src, held{req.Context().Done()})
	}
	src = cut{req.Context(), src}
	return &http.Response{
		StatusCode: max(r.status, 200), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req, Header: h, Body: io.NopCloser(src), ContentLength: -1,
	}, nil
}

// cut breaks with its request, as every connection does.
type cut struct {
	ctx context.Context
	src io.Reader
}

func (c cut) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.src.Read(p)
}

// held is a connection on which nothing comes any more.
type held struct{ done <-chan struct{} }

func (h held) Read([]byte) (int, error) {
	<-h.done
	return 0, io.ErrUnexpectedEOF
}

func (v *vendor) asked() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.bodies)
}

// adapter is the real adapter of a dialect before a transport.
func adapter(t *testing.T, dialect string, transport http.RoundTripper) llm.Model {
	t.Helper()
	client := &http.Client{Transport: transport}
	key := func() (string, error) { return "test-key", nil }
	var m llm.Model
	var err error
	switch dialect {
	case "anthropic":
		m, err = anthropic.New(anthropic.Config{Model: "claude-sonnet-4", HTTP: client, APIKey: key})
	case "gemini":
		m, err = gemini.New(gemini.Config{Model: "gemini-3-pro", HTTP: client, APIKey: key})
	case "openai_responses":
		m, err = openai.New(openai.Config{Model: "gpt-5", HTTP: client, APIKey: key})
	default:
		m, err = openaicompat.New(openaicompat.Config{BaseURL: "http://vendor.test/v1", Model: "m", HTTP: client, EventLimit: 16 << 20})
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// whole is a good answer of each dialect with the text "whole".
var whole = map[string]string{
	"anthropic": `event: message_start
data: {"type":"message_start","message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"whole"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

`,
	"gemini": `data: {"candidates":[{"content":{"role":"model","parts":[{"text":"whole"}]},"finishReason":"STOP"}]}

`,
	"openai_responses": `event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"whole","annotations":[]}]}}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":1,"output_tokens":1}}}

`,
	"openai_compatible": `data: {"choices":[{"index":0,"delta":{"content":"whole"},"finish_reason":"stop"}]}

data: [DONE]

`,
}

func wholeOf(dialect string) reply {
	if text, ok := whole[dialect]; ok {
		return stream(text)
	}
	return stream(whole["openai_compatible"])
}

// field is a run over the engine and a real adapter.
type field struct {
	*house
	v    *vendor
	id   event.RunID
	s    event.SessionID
	took time.Duration
	read *fake // a tool that must not run on half an answer
}

// before runs one run before a vendor that gives these answers.
func before(t *testing.T, dialect string, check func(f *field), replies ...reply) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &field{v: &vendor{replies: replies}, read: newFake("read", tool.Read, gives("seen"))}
		f.house = newHouse(t, `rules: [{reply: {text: "unused"}}]`, f.read)
		defer f.close()
		f.model = adapter(t, dialect, f.v)
		row := f.session(&api.CreateSession{})
		f.s, f.id = row.ID, f.submit(row, "go")
		began := time.Now()
		f.drive(f.eng, f.s)
		f.took = time.Since(began)
		settled(t, f.events(f.s.Stream()))
		check(f)
		f.verify()
	})
}

func (f *field) answer() string {
	outs := all[*event.OutputEmitted](f.house, f.s)
	if len(outs) != 1 {
		return ""
	}
	return outs[0].Content.Text
}

// failures are the classes of the attempts that broke.
func (f *field) failures() (out []string) {
	for _, d := range all[*event.ModelCallFailed](f.house, f.s) {
		out = append(out, d.Class)
	}
	return out
}

// over serves a strict stand-in without a network.
type over struct{ h http.Handler }

func (o over) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	o.h.ServeHTTP(w, req)
	return w.Result(), nil
}

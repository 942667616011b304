package openai

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"github.com/holdfast-dev/holdfast/internal/provider/responsesstub"
)

// answer is what a stream amounted to.
type answer struct {
	Text      string
	Reasoning string
	Calls     []toolCall
	Hosted    []string // "call name id args" and "result id text error"
	Usage     *llm.Usage
	Reason    llm.FinishReason
	Raw       string
	Deltas    int
	Err       *llm.Error

	Parts []llm.Content // as the engine would keep them, for the next request
}

type toolCall struct{ ID, Name, Args string }

func (a answer) String() string {
	var u any
	if a.Usage != nil {
		u = *a.Usage
	}
	var states []string
	for _, p := range a.Parts {
		states = append(states, string(p.Kind)+string(p.State))
	}
	return fmt.Sprintf("%q %q %q %q %v %s %q %d %v %q", a.Text, a.Reasoning, a.Calls, a.Hosted, u, a.Reason, a.Raw, a.Deltas, a.Err, states)
}

// collector folds parts into an answer and checks the order that the port
// promises: start, deltas, end for each index, hosted parts alone, and one
// finish as the last.
type collector struct {
	answer
	maker string
	open  map[int]llm.PartKind
	texts map[int]string
	runs  map[string]bool
	seen  int
	bad   string
}

func (c *collector) part(p llm.Part) error {
	if c.open == nil {
		c.open, c.texts, c.runs = map[int]llm.PartKind{}, map[int]string{}, map[string]bool{}
	}
	fail := func(why string) { c.bad += fmt.Sprintf("%s: %+v; ", why, p) }
	if c.Reason != "" {
		fail("behind the finish")
	}
	begins := func() {
		if p.Index != c.seen {
			fail("index out of order")
		}
		for _, k := range c.open {
			if k != llm.ToolInputStart {
				fail("begun while another is open")
			}
		}
		c.seen++
	}
	switch p.Kind {
	case llm.TextStart, llm.ReasoningStart, llm.ToolInputStart:
		begins()
		c.open[p.Index] = p.Kind
	case llm.TextDelta, llm.ReasoningDelta, llm.ToolInputDelta:
		want := map[llm.PartKind]llm.PartKind{llm.TextDelta: llm.TextStart, llm.ReasoningDelta: llm.ReasoningStart, llm.ToolInputDelta: llm.ToolInputStart}
		if c.open[p.Index] != want[p.Kind] || p.Text == "" {
			fail("delta outside its part, or empty")
		}
		c.texts[p.Index] += p.Text
		switch p.Kind {
		case llm.TextDelta:
			c.Text += p.Text
			c.Deltas++
		case llm.ReasoningDelta:
			c.Reasoning += p.Text
		}
	case llm.TextEnd, llm.ReasoningEnd, llm.ToolCallWhole:
		if c.open[p.Index] == "" {
			fail("ended but not open")
		}
		delete(c.open, p.Index)
		kept := llm.Content{Kind: llm.Text, Text: c.texts[p.Index], State: p.State, Maker: c.maker}
		switch p.Kind {
		case llm.ReasoningEnd:
			kept.Kind, kept.Text = llm.Reasoning, ""
		case llm.ToolCallWhole:
			kept.Kind, kept.Text, kept.Name, kept.CallID = llm.ToolCall, p.Text, p.Name, fmt.Sprintf("call_%d", p.Index)
			c.Calls = append(c.Calls, toolCall{p.WireID, p.Name, p.Text})
			if a := c.texts[p.Index]; a != p.Text && p.Text != "{}" && json.Valid([]byte(a)) {
				fail("the deltas are not the whole: " + a)
			}
		}
		c.Parts = append(c.Parts, kept)
	case llm.HostedCall, llm.HostedResult:
		begins()
		line := fmt.Sprintf("call %s %s %s", p.Name, p.WireID, p.Text)
		if p.Kind == llm.HostedResult {
			line = fmt.Sprintf("result %s %s %v", p.WireID, p.Text, p.IsError)
		}
		if p.WireID == "" || c.runs[p.WireID] != (p.Kind == llm.HostedResult) {
			fail("hosted parts do not pair")
		}
		c.runs[p.WireID] = p.Kind == llm.HostedCall
		c.Hosted = append(c.Hosted, line)
		c.Parts = append(c.Parts, llm.Content{Kind: llm.Hosted, State: p.State, Maker: c.maker})
	case llm.UsagePart:
		c.Usage = p.Usage
	case llm.Finish:
		c.Reason, c.Raw = p.Reason, p.Raw
		if len(c.open) > 0 {
			fail("finished with open parts")
		}
	default:
		fail("unknown kind")
	}
	return nil
}

type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

// ask runs one attempt and gives what came of it.
func ask(t tester, ctx context.Context, m *Model, req *llm.Request) answer {
	t.Helper()
	c := collector{maker: m.cfg.Name + "/" + m.cfg.Model}
	err := m.Stream(ctx, req, c.part)
	if err != nil {
		e, ok := err.(*llm.Error)
		if !ok {
			t.Fatalf("not an *llm.Error: %v", err)
		}
		c.Err = e
	}
	if (err == nil) != (c.Reason != "") {
		t.Errorf("error %v but finish %q", err, c.Reason)
	}
	if c.bad != "" {
		t.Errorf("%s", c.bad)
	}
	return c.answer
}

// model makes a model that reasons, reads files and takes schemas.
func model(t tester, cfg Config) *Model {
	t.Helper()
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://vendor.test/v1"
	}
	if cfg.Model == "" {
		cfg.Model = "m"
	}
	if cfg.Caps == (llm.Capabilities{}) {
		cfg.Caps = able
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return m
}

var able = llm.Capabilities{PromptCache: true, Tools: true, Images: true, PDF: true, Reasoning: true, Structured: llm.StructuredSchema}

// over serves an http.Handler without a socket.
func over(t *testing.T, h http.Handler) *http.Client {
	p := chatstub.NewPipe(h)
	t.Cleanup(p.Shutdown)
	return p.Client()
}

// against asks the stub once.
func against(t *testing.T, reply responsesstub.Reply) answer {
	t.Helper()
	return ask(t, t.Context(), model(t, Config{HTTP: over(t, responsesstub.New(responsesstub.Replies(reply)))}), hello)
}

// served gives a client whose every answer is a body read as the source says.
type served struct {
	media  string
	status int
	body   func() io.Reader
}

func (s served) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.status == 0 {
		s.status = 200
	}
	if s.media == "" {
		s.media = "text/event-stream"
	}
	return &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {s.media}}, Body: io.NopCloser(s.body())}, nil
}

func task(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: text}}}
}

var hello = &llm.Request{Messages: []llm.Message{task("hello")}}

// read asks for a body that comes as it is read from r.
func read(t tester, r io.Reader) answer {
	t.Helper()
	return ask(t, context.Background(), model(t, Config{HTTP: pieces.Client("text/event-stream", r)}), hello)
}

// inOne asks for a body that comes in one read.
func inOne(t tester, body string) answer {
	t.Helper()
	return read(t, pieces.Reader([]byte(body)))
}

// everyWay asks for a body in all of someWays, and cut in two at every place;
// with CRLF and CR, which differ there only, around each line end.
func everyWay(t *testing.T, body string) answer {
	t.Helper()
	first := someWays(t, body)
	for how, r := range pieces.Cuts([]byte(body)) {
		first.same(t, how, read(t, r))
	}
	for end, text := range pieces.LineEnds([]byte(body)) {
		for cut := 1; cut < len(text) && end != "LF"; cut++ {
			if text[cut-1] < ' ' || text[cut] < ' ' {
				first.same(t, fmt.Sprintf("%s, cut at %d", end, cut), read(t, pieces.Reader(text, cut)))
			}
		}
	}
	return first
}

// someWays asks for a body with LF, CRLF and CR line ends, whole, byte by byte
// and cut at random pairs of places, and wants the same answer each time.
func someWays(t *testing.T, body string) answer {
	t.Helper()
	first := inOne(t, body)
	for end, text := range pieces.LineEnds([]byte(body)) {
		first.same(t, end, read(t, pieces.Reader(text)))
		first.same(t, end+", byte by byte", read(t, pieces.Bytes(text)))
	}
	t.Run("", func(t *testing.T) { // rapid takes no test that has failed before
		rapid.Check(t, func(rt *rapid.T) {
			text := []byte(strings.ReplaceAll(body, "\n", rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(rt, "line end")))
			a := rapid.IntRange(0, len(text)).Draw(rt, "a")
			b := rapid.IntRange(a, len(text)).Draw(rt, "b")
			first.same(rt, "two cuts", read(rt, pieces.Reader(text, a, b)))
		})
	})
	return first
}

func (a answer) same(t tester, how string, got answer) {
	t.Helper()
	if got.String() != a.String() {
		t.Fatalf("%s:\n got %v\nwant %v", how, got, a)
	}
}

// events makes a stream of JSON objects, each of which names its type.
func events(list ...string) string {
	var b strings.Builder
	for _, data := range list {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(data), &head); err != nil {
			panic(data)
		}
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", head.Type, data)
	}
	return b.String()
}

// done is the event that completes an answer with the given items.
func done(items ...string) string {
	return `{"type":"response.completed","response":{"status":"completed","output":[` + strings.Join(items, ",") + `]}}`
}

// field reads a field case, or skips the test when the folder is absent.
func field(t *testing.T, name string, v any) {
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

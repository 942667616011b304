package gemini

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

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

// answer is what a stream amounted to.
type answer struct {
	Text      string
	Reasoning string
	Calls     []toolCall
	Hosted    []string
	Usage     *llm.Usage
	Reason    llm.FinishReason
	Raw       string
	Err       *llm.Error

	message []llm.Content // what of it goes back, by this model; call ids are "call_<index>"
}

type toolCall struct{ ID, Name, Args string }

func (a answer) String() string {
	var u any
	if a.Usage != nil {
		u = *a.Usage
	}
	var kept []string
	for _, c := range a.message {
		kept = append(kept, fmt.Sprintf("%s %q %s", c.Kind, c.Text, c.State))
	}
	return fmt.Sprintf("%q %q %q %q %v %s %q %v %q", a.Text, a.Reasoning, a.Calls, a.Hosted, u, a.Reason, a.Raw, a.Err, kept)
}

// collector folds parts into an answer and checks the order that the port
// promises: start, deltas, end for each index, and one finish as the last.
type collector struct {
	answer
	maker  string
	open   map[int]llm.PartKind
	texts  map[int]string
	hosted map[string]bool // open hosted calls
	seen   int
	bad    string
}

func (c *collector) part(p llm.Part) error {
	if c.open == nil {
		c.open, c.texts, c.hosted = map[int]llm.PartKind{}, map[int]string{}, map[string]bool{}
	}
	fail := func(why string) { c.bad += fmt.Sprintf("%s: %+v; ", why, p) }
	if c.Reason != "" {
		fail("behind the finish")
	}
	switch p.Kind {
	case llm.TextStart, llm.ReasoningStart, llm.ToolInputStart, llm.HostedCall, llm.HostedResult:
		if p.Index != c.seen {
			fail("index out of order")
		}
		for _, k := range c.open {
			if k != llm.ToolInputStart {
				fail("begun while another is open")
			}
		}
		c.seen++
		c.begun(p, fail)
	case llm.TextDelta, llm.ReasoningDelta, llm.ToolInputDelta:
		want := map[llm.PartKind]llm.PartKind{llm.TextDelta: llm.TextStart, llm.ReasoningDelta: llm.ReasoningStart, llm.ToolInputDelta: llm.ToolInputStart}
		if c.open[p.Index] != want[p.Kind] || p.Text == "" {
			fail("delta outside its part, or empty")
		}
		c.texts[p.Index] += p.Text
	case llm.TextEnd, llm.ReasoningEnd, llm.ToolCallWhole:
		if c.open[p.Index] == "" {
			fail("ended but not open")
		}
		delete(c.open, p.Index)
		c.ended(p, fail)
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

func (c *collector) begun(p llm.Part, fail func(string)) {
	switch p.Kind {
	case llm.HostedCall:
		if c.hosted[p.WireID] || p.WireID == "" || p.Name == "" {
			fail("a hosted call without a name or id of its own")
		}
		c.hosted[p.WireID] = true
	case llm.HostedResult:
		if !c.hosted[p.WireID] {
			fail("a hosted result without its call")
		}
		delete(c.hosted, p.WireID)
	default:
		c.open[p.Index] = p.Kind
		return
	}
	c.Hosted = append(c.Hosted, fmt.Sprintf("%s %s %s %s %v", p.Kind, p.Name, p.WireID, p.Text, p.IsError))
	c.place(p, llm.Content{Kind: llm.Hosted})
}

func (c *collector) ended(p llm.Part, fail func(string)) {
	text := c.texts[p.Index]
	switch p.Kind {
	case llm.ToolCallWhole:
		c.Calls = append(c.Calls, toolCall{p.WireID, p.Name, p.Text})
		if text != p.Text && p.Text != "{}" {
			fail("the deltas are not the whole: " + text)
		}
		c.place(p, llm.Content{Kind: llm.ToolCall, CallID: fmt.Sprintf("call_%d", p.Index), Name: p.Name, Text: p.Text})
	case llm.TextEnd:
		c.Text += text
		c.place(p, llm.Content{Kind: llm.Text, Text: text})
	default:
		c.Reasoning += text
		c.place(p, llm.Content{Kind: llm.Reasoning})
	}
}

// place puts what goes back in the order of the parts.
func (c *collector) place(p llm.Part, part llm.Content) {
	for len(c.message) <= p.Index {
		c.message = append(c.message, llm.Content{Kind: llm.Reasoning})
	}
	part.State, part.Maker = p.State, c.maker
	c.message[p.Index] = part
}

// ask runs one attempt and gives what came of it.
func ask(t testing.TB, ctx context.Context, m *Model, req *llm.Request) answer {
	t.Helper()
	c := collector{maker: m.cfg.Name + "/" + m.cfg.Model}
	if req.Model != "" {
		c.maker = m.cfg.Name + "/" + req.Model
	}
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

// files takes images and PDF, and the schema natively.
var files = llm.Capabilities{Images: true, PDF: true, Tools: true, Structured: llm.StructuredSchema}

func model(t testing.TB, cfg Config) *Model {
	t.Helper()
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://vendor.test"
	}
	if cfg.Model == "" {
		cfg.Model = "gemini-3-flash"
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// over serves an http.Handler without a socket.
func over(t *testing.T, h http.Handler) *http.Client {
	p := chatstub.NewPipe(h)
	t.Cleanup(p.Shutdown)
	return p.Client()
}

// play asks once for a reply of the stub.
func play(t *testing.T, r geministub.Reply) answer {
	t.Helper()
	return ask(t, t.Context(), model(t, Config{HTTP: over(t, geministub.New(geministub.Replies(r)))}), hello)
}

// served gives a client whose every answer is a body read as the source says.
type served struct {
	media  string
	status int
	body   func() io.Reader
}

func (s served) RoundTrip(*http.Request) (*http.Response, error) {
	if s.status == 0 {
		s.status = 200
	}
	return &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {s.media}}, Body: io.NopCloser(s.body())}, nil
}

// read asks for a body as it is read from the source.
func read(t testing.TB, src io.Reader) answer {
	t.Helper()
	return ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", src)}), hello)
}

func readText(t testing.TB, body string) answer {
	t.Helper()
	return read(t, strings.NewReader(body))
}

// everyWay asks for a body in every way in which it may come, and wants the
// same answer each time.
func everyWay(t *testing.T, body string) answer {
	t.Helper()
	var first answer
	for how, src := range pieces.EveryWay([]byte(strings.ReplaceAll(body, "\r\n", "\n"))) {
		got := read(t, src)
		if first.String() == (answer{}).String() {
			first = got
		}
		if got.String() != first.String() {
			t.Fatalf("%s:\n got %v\nwant %v", how, got, first)
		}
	}
	return first
}

func task(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: text}}}
}

var hello = &llm.Request{Messages: []llm.Message{task("hello")}}

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

// chunks makes a stream of the given parts (JSON), and a finish reason unless
// it is "".
func chunks(finish string, parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "data: {\"candidates\":[{\"index\":0,\"content\":{\"role\":\"model\",\"parts\":[%s]}}]}\n\n", p)
	}
	if finish != "" {
		fmt.Fprintf(&b, "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[]},\"finishReason\":%q}]}\n\n", finish)
	}
	return b.String()
}

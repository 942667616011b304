package openaicompat

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
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
	"pgregory.net/rapid"
)

// answer is what a stream amounted to.
type answer struct {
	Text      string
	Reasoning string
	State     string   // all states, joined
	States    []string // of each part of reasoning that has one
	Calls     []toolCall
	Usage     *llm.Usage
	Reason    llm.FinishReason
	Raw       string
	Deltas    int
	Err       *llm.Error
}

type toolCall struct{ ID, Name, Args string }

func (a answer) String() string {
	var u, err any
	if a.Usage != nil {
		u = *a.Usage
	}
	if a.Err != nil {
		err = a.Err
	}
	return fmt.Sprintf("%q %q %s %q %v %s %q %d %v", a.Text, a.Reasoning, a.State, a.Calls, u, a.Reason, a.Raw, a.Deltas, err)
}

// collector folds parts into an answer and checks the order that the port
// promises: start, deltas, end for each index, and one finish as the last.
type collector struct {
	answer
	open map[int]llm.PartKind
	args map[int]string
	seen int
	bad  string
}

func (c *collector) part(p llm.Part) error {
	if c.open == nil {
		c.open, c.args = map[int]llm.PartKind{}, map[int]string{}
	}
	fail := func(why string) { c.bad += fmt.Sprintf("%s: %+v; ", why, p) }
	if c.Reason != "" {
		fail("behind the finish")
	}
	switch p.Kind {
	case llm.TextStart, llm.ReasoningStart, llm.ToolInputStart:
		if p.Index != c.seen {
			fail("index out of order")
		}
		for _, k := range c.open {
			if k != llm.ToolInputStart {
				fail("begun while another is open")
			}
		}
		c.seen++
		c.open[p.Index] = p.Kind
	case llm.TextDelta, llm.ReasoningDelta, llm.ToolInputDelta:
		want := map[llm.PartKind]llm.PartKind{llm.TextDelta: llm.TextStart, llm.ReasoningDelta: llm.ReasoningStart, llm.ToolInputDelta: llm.ToolInputStart}
		if c.open[p.Index] != want[p.Kind] || p.Text == "" {
			fail("delta outside its part, or empty")
		}
		switch p.Kind {
		case llm.TextDelta:
			c.Text += p.Text
			c.Deltas++
		case llm.ReasoningDelta:
			c.Reasoning += p.Text
		default:
			c.args[p.Index] += p.Text
		}
	case llm.TextEnd, llm.ReasoningEnd, llm.ToolCallWhole:
		if c.open[p.Index] == "" {
			fail("ended but not open")
		}
		delete(c.open, p.Index)
		if p.Kind == llm.ToolCallWhole {
			c.Calls = append(c.Calls, toolCall{p.WireID, p.Name, p.Text})
			if a := c.args[p.Index]; a != p.Text && p.Text != "{}" {
				fail("the deltas are not the whole: " + a)
			}
		} else {
			c.State += string(p.State)
			if p.State != nil {
				c.States = append(c.States, string(p.State))
			}
		}
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

// ask runs one attempt and gives what came of it.
func ask(t *testing.T, ctx context.Context, m *Model, req *llm.Request) answer {
	t.Helper()
	var c collector
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

func model(t *testing.T, cfg Config) *Model {
	t.Helper()
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://vendor.test/v1"
	}
	if cfg.Model == "" {
		cfg.Model = "m"
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
	return &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {s.media}}, Body: io.NopCloser(s.body())}, nil
}

func task(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: text}}}
}

var hello = &llm.Request{Messages: []llm.Message{task("hello")}}

// everyWay asks for a body in every way in which a network may deliver it, and
// wants the same answer each time.
func everyWay(t *testing.T, body string) answer {
	t.Helper()
	var first answer
	want := ""
	for how, r := range pieces.EveryWay([]byte(body)) {
		got := ask(t, t.Context(), model(t, Config{HTTP: pieces.Client("text/event-stream", r)}), hello)
		if want == "" {
			first, want = got, got.String()
		}
		if got.String() != want {
			t.Fatalf("%s:\n got %v\nwant %v", how, got, first)
		}
	}
	return first
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

// chunks makes a stream of the given deltas (JSON), a finish reason unless it
// is "", and [DONE].
func chunks(finish string, deltas ...string) string {
	var b strings.Builder
	for _, d := range deltas {
		fmt.Fprintf(&b, "data: {\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":null}]}\n\n", d)
	}
	if finish != "" {
		fmt.Fprintf(&b, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\n", finish)
	}
	return b.String() + "data: [DONE]\n\n"
}

// drawReply gives any reply of the stand-in.
func drawReply(t *rapid.T) chatstub.Reply {
	words := rapid.SampledFrom([]string{"", "hello", "h\u00e9llo \u4e16\u754c \U0001f3f7", "```json\n{}\n```", `{"s":"<think>x</think>"}`, "a\r\nb\rc\n\nd", "data: [DONE]\n\n"})
	r := chatstub.Reply{
		Reasoning: words.Draw(t, "reasoning"), Text: words.Draw(t, "text"), Runes: rapid.IntRange(1, 12).Draw(t, "runes"),
		Input: rapid.IntRange(0, 5).Draw(t, "input"), Finish: rapid.SampledFrom([]string{"", "stop", "length"}).Draw(t, "finish"),
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
		r.Calls = append(r.Calls, chatstub.Call{
			ID: fmt.Sprint("c", i), Name: rapid.SampledFrom([]string{"f", "g"}).Draw(t, "name"),
			Arguments: rapid.SampledFrom([]string{"", "{}", `{"a":"\u00e9\n"}`, `{"q"`}).Draw(t, "args"),
		})
	}
	if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
		r.Refusal = "I cannot help with that."
	}
	return r
}

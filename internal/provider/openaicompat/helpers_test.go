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
)

// answer is what a stream amounted to.
type answer struct {
	Text      string
	Reasoning string
	State     string
	Calls     []toolCall
	Usage     *llm.Usage
	Reason    llm.FinishReason
	Raw       string
	Deltas    int
	Err       *llm.Error
}

type toolCall struct{ ID, Name, Args string }

func (a answer) String() string {
	var u any
	if a.Usage != nil {
		u = *a.Usage
	}
	return fmt.Sprintf("%q %q %s %q %v %s %q %d %v", a.Text, a.Reasoning, a.State, a.Calls, u, a.Reason, a.Raw, a.Deltas, a.Err)
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

// pieces gives one piece for each read.
type pieces []string

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; (*p)[0] == "" {
		*p = (*p)[1:]
	}
	return n, nil
}

func task(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: text}}}
}

var hello = &llm.Request{Messages: []llm.Message{task("hello")}}

// everyWay asks for a body with LF, CRLF and CR line ends, whole, byte by byte
// and cut in two at every place, and wants the same answer each time.
func everyWay(t *testing.T, body string) answer {
	t.Helper()
	var first answer
	for i, end := range []string{"\n", "\r\n", "\r"} {
		text := strings.ReplaceAll(body, "\n", end)
		try := func(how string, list ...string) {
			t.Helper()
			s := served{media: "text/event-stream", body: func() io.Reader { p := pieces(list); return &p }}
			got := ask(t, t.Context(), model(t, Config{HTTP: &http.Client{Transport: s}}), hello)
			if i == 0 && how == "whole" {
				first = got
			}
			if got.String() != first.String() {
				t.Fatalf("line end %q, %s:\n got %v\nwant %v", end, how, got, first)
			}
		}
		try("whole", text)
		try("byte by byte", strings.Split(text, "")...)
		step := 1 // every place in a small stream
		if len(text) > 600 {
			step = len(text) / 60
		}
		for cut := 1; cut < len(text); cut += step {
			try(fmt.Sprintf("cut at %d", cut), text[:cut], text[cut:])
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

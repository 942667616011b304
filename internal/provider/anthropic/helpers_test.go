package anthropic

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
	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/pieces"
)

// answer is what a stream amounted to: its parts, in their order.
type answer struct {
	Parts  []part
	Usage  *llm.Usage
	Reason llm.FinishReason
	Raw    string
	Err    *llm.Error
}

// part is one output part, put together from its pieces.
type part struct {
	Kind     llm.PartKind // the kind that ended it
	Text     string
	Name, ID string
	State    string
	Failed   bool
	Open     bool
}

func (a answer) String() string {
	var b strings.Builder
	for _, p := range a.Parts {
		fmt.Fprintf(&b, "[%s %q %s %s %s %v %v]", p.Kind, p.Text, p.Name, p.ID, p.State, p.Failed, p.Open)
	}
	if a.Usage != nil {
		fmt.Fprintf(&b, " %+v", *a.Usage)
	}
	return fmt.Sprintf("%s %s %q %v", &b, a.Reason, a.Raw, a.Err)
}

// text joins the parts of one kind.
func (a answer) text(kind llm.PartKind) string {
	s := ""
	for _, p := range a.Parts {
		if p.Kind == kind {
			s += p.Text
		}
	}
	return s
}

func (a answer) of(kind llm.PartKind) []part {
	var out []part
	for _, p := range a.Parts {
		if p.Kind == kind {
			out = append(out, p)
		}
	}
	return out
}

// message is the answer as it stands in the history of the next request. Call
// ids are the daemon's own.
func (a answer) message(maker, ids string) llm.Message {
	m := llm.Message{Role: llm.Assistant}
	for i, p := range a.Parts {
		c := llm.Content{Text: p.Text, Maker: maker}
		if p.State != "" {
			c.State = []byte(p.State)
		}
		switch p.Kind {
		case llm.TextEnd:
			c.Kind = llm.Text
		case llm.ReasoningEnd:
			if c.Kind, c.Text = llm.Reasoning, ""; c.State == nil {
				continue
			}
		case llm.ToolCallWhole:
			c.Kind, c.Name, c.CallID = llm.ToolCall, p.Name, fmt.Sprintf("call_%s%d", ids, i)
		case llm.HostedCall, llm.HostedResult:
			c.Kind, c.Text = llm.Hosted, ""
		}
		m.Parts = append(m.Parts, c)
	}
	return m
}

// results answers the calls of a message.
func results(m llm.Message) llm.Message {
	out := llm.Message{Role: llm.Tool}
	for _, p := range m.Parts {
		if p.Kind == llm.ToolCall {
			out.Parts = append(out.Parts, result(p.CallID, "found "+p.CallID))
		}
	}
	return out
}

// collector folds parts into an answer and checks the order that the port
// promises: start, deltas, end for each index, and one finish as the last.
type collector struct {
	answer
	begun map[int]llm.PartKind
	texts []*strings.Builder // of the parts
	bad   string
}

func (c *collector) part(p llm.Part) error {
	if c.begun == nil {
		c.begun = map[int]llm.PartKind{}
	}
	fail := func(why string) { c.bad += fmt.Sprintf("%s: %+v; ", why, p) }
	if c.Reason != "" {
		fail("behind the finish")
	}
	if p.Index < 0 {
		fail("index below 0")
	}
	switch p.Kind {
	case llm.TextStart, llm.ReasoningStart, llm.ToolInputStart, llm.HostedCall, llm.HostedResult:
		if p.Index != len(c.Parts) {
			fail("index out of order")
		}
		for _, k := range c.begun {
			if k != llm.ToolInputStart {
				fail("begun while another is open")
			}
		}
		n := part{Kind: p.Kind, Name: p.Name, ID: p.WireID}
		if p.Kind == llm.HostedCall || p.Kind == llm.HostedResult {
			n.Text, n.State, n.Failed = p.Text, string(p.State), p.IsError
		} else {
			n.Open = true
			c.begun[p.Index] = p.Kind
		}
		c.Parts, c.texts = append(c.Parts, n), append(c.texts, new(strings.Builder))
	case llm.TextDelta, llm.ReasoningDelta, llm.ToolInputDelta:
		want := map[llm.PartKind]llm.PartKind{llm.TextDelta: llm.TextStart, llm.ReasoningDelta: llm.ReasoningStart, llm.ToolInputDelta: llm.ToolInputStart}
		if c.begun[p.Index] != want[p.Kind] || p.Text == "" {
			fail("delta outside its part, or empty")
			return nil
		}
		c.texts[p.Index].WriteString(p.Text)
	case llm.TextEnd, llm.ReasoningEnd, llm.ToolCallWhole:
		want := map[llm.PartKind]llm.PartKind{llm.TextEnd: llm.TextStart, llm.ReasoningEnd: llm.ReasoningStart, llm.ToolCallWhole: llm.ToolInputStart}
		if c.begun[p.Index] != want[p.Kind] {
			fail("ended but not open")
			return nil
		}
		delete(c.begun, p.Index)
		o := &c.Parts[p.Index]
		o.Text = c.texts[p.Index].String()
		if p.Kind == llm.ToolCallWhole {
			if o.Text != p.Text && p.Text != "{}" {
				fail("the deltas are not the whole: " + o.Text)
			}
			o.Text, o.Name, o.ID = p.Text, p.Name, p.WireID
		}
		o.Kind, o.State, o.Open = p.Kind, string(p.State), false
	case llm.UsagePart:
		c.Usage = p.Usage
	case llm.Finish:
		c.Reason, c.Raw = p.Reason, p.Raw
		if len(c.begun) > 0 {
			fail("finished with open parts")
		}
	default:
		fail("unknown kind")
	}
	return nil
}

type tester interface {
	Helper()
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// ask runs one attempt and gives what came of it.
func ask(t tester, m *Model, req *llm.Request) answer {
	t.Helper()
	var c collector
	err := m.Stream(context.Background(), req, c.part)
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
		t.Errorf("%.2000s", c.bad)
	}
	for i := range c.begun {
		c.Parts[i].Text = c.texts[i].String()
	}
	return c.answer
}

func model(t tester, cfg Config) *Model {
	t.Helper()
	if cfg.BaseURL == "" {
		cfg.BaseURL = "http://vendor.test"
	}
	if cfg.Model == "" {
		cfg.Model = "m"
	}
	if cfg.APIKey == nil {
		cfg.APIKey = func() (string, error) { return "test-key", nil }
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return m
}

const maker = "anthropic/m"

// over serves an http.Handler without a socket.
func over(t *testing.T, h http.Handler) *http.Client {
	p := chatstub.NewPipe(h)
	t.Cleanup(p.Shutdown)
	return p.Client()
}

// stubbed gives a model that speaks to a stub with this script. At the end of
// the test no request has broken a rule.
func stubbed(t *testing.T, cfg Config, list ...messagesstub.Reply) (*Model, *messagesstub.Stub) {
	t.Helper()
	stub := messagesstub.New(messagesstub.Replies(list...))
	cfg.HTTP = over(t, stub)
	t.Cleanup(func() {
		if v := stub.Violations(); len(v) > 0 {
			t.Errorf("the vendor refused: %v", v)
		}
	})
	return model(t, cfg), stub
}

func task(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: text}}}
}

func text(s string) llm.Content { return llm.Content{Kind: llm.Text, Text: s} }

func called(id, name, args string) llm.Content {
	return llm.Content{Kind: llm.ToolCall, CallID: id, Name: name, Text: args}
}

func result(id, s string) llm.Content {
	return llm.Content{Kind: llm.ToolResult, CallID: id, Text: s}
}

func said(parts ...llm.Content) llm.Message { return llm.Message{Role: llm.Assistant, Parts: parts} }

func answered(parts ...llm.Content) llm.Message { return llm.Message{Role: llm.Tool, Parts: parts} }

var hello = &llm.Request{Messages: []llm.Message{task("hello")}}

// read gives what comes of a body that is read from r.
func read(t tester, media string, r io.Reader) answer {
	t.Helper()
	return ask(t, model(t, Config{HTTP: pieces.Client(media, r)}), hello)
}

// everyWay reads a stream in some ways, and cut in two at every place with each
// kind of line end, and wants the same answer each time.
func everyWay(t *testing.T, body string) answer {
	t.Helper()
	first := someWays(t, body)
	for how, r := range pieces.EveryWay([]byte(body)) {
		if got := read(t, "text/event-stream", r); got.String() != first.String() {
			t.Fatalf("%s:\n got %v\nwant %v", how, got, first)
		}
	}
	return first
}

// someWays reads a stream with each kind of line end, byte by byte, and in
// several pieces at random, and wants the same answer each time.
func someWays(t *testing.T, body string) answer {
	t.Helper()
	first := read(t, "text/event-stream", strings.NewReader(body))
	same := func(how string, r io.Reader) {
		if got := read(t, "text/event-stream", r); got.String() != first.String() {
			t.Fatalf("%s:\n got %v\nwant %v", how, got, first)
		}
	}
	for end, text := range pieces.LineEnds([]byte(body)) {
		same(end, pieces.Bytes(text))
	}
	rapid.Check(t, func(rt *rapid.T) {
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(rt, "end")
		text := []byte(strings.ReplaceAll(body, "\n", end))
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(text)), 2, 6).Draw(rt, "cuts")
		same(fmt.Sprintf("%q cut at %v", end, cuts), pieces.Reader(text, cuts...))
	})
	return first
}

// events makes a stream of events, each given as its JSON.
func events(list ...string) string {
	var b strings.Builder
	for _, e := range list {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(e), &head); err != nil {
			panic(e)
		}
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", head.Type, e)
	}
	return b.String()
}

const messageStop = `{"type":"message_stop"}`

func messageStart(usage string) string {
	return `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":` + usage + `}}`
}

func blockStart(i int, block string) string {
	return fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, block)
}

func blockDelta(i int, delta string) string {
	return fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, i, delta)
}

func inputDelta(i int, text string) string {
	raw, _ := json.Marshal(text)
	return blockDelta(i, `{"type":"input_json_delta","partial_json":`+string(raw)+`}`)
}

func textDelta(i int, text string) string {
	raw, _ := json.Marshal(text)
	return blockDelta(i, `{"type":"text_delta","text":`+string(raw)+`}`)
}

func blockStop(i int) string { return fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i) }

func messageDelta(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":null},"usage":{"output_tokens":7}}`
}

func toolBlock(id, name string) string {
	return `{"type":"tool_use","id":"` + id + `","name":"` + name + `","input":{}}`
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

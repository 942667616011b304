package openaicompat

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// assembler turns the pieces of a vendor's answer into parts, in order. Text
// and reasoning have at most one open part at a time; tool inputs may be open
// side by side, and are ended together when the answer is.
type assembler struct {
	yield func(llm.Part) error
	parts int // output parts begun
	size  int // bytes of text, reasoning and arguments so far
	any   bool

	open      llm.PartKind // TextStart, ReasoningStart or "": what is open
	openIndex int
	kept      strings.Builder   // reasoning_content of the open part, to be given back
	details   []json.RawMessage // reasoning_details that no part has taken with it yet
	think     thinkSplitter
	streamed  bool // a delta was seen: a whole message behind it says nothing new

	calls   []*call
	byIndex map[int64]*call

	refusal strings.Builder
	total   *llm.Usage
	reason  string // the vendor's finish reason, "" when there was none yet
}

// call is one tool call under way.
type call struct {
	index   int // of its output part
	name    string
	wireID  string
	args    strings.Builder
	started bool
}

func newAssembler(yield func(llm.Part) error) *assembler {
	return &assembler{yield: yield, byIndex: map[int64]*call{}}
}

func (a *assembler) usage(u *usage) error {
	t := u.tokens()
	if t == nil || a.total != nil && *a.total == *t {
		return nil
	}
	a.total = t
	return a.yield(llm.Part{Kind: llm.UsagePart, Index: max(0, a.parts-1), Usage: t})
}

// choice takes what one chunk says of the answer.
func (a *assembler) choice(c *choice) error {
	if c == nil {
		return nil
	}
	d := c.Delta
	if d != nil {
		a.streamed = true
	} else if !a.streamed {
		d = c.Message
	}
	if d != nil {
		if err := a.delta(d); err != nil {
			return err
		}
	}
	if c.FinishReason != "" { // some servers send "" with every chunk
		a.reason = c.FinishReason
	}
	return nil
}

func (a *assembler) delta(d *delta) error {
	if a.refusal.Len() < wire.MaxMessage*4 {
		a.refusal.WriteString(d.Refusal)
	}
	if err := a.thought(d); err != nil {
		return err
	}
	for _, piece := range a.think.split(d.Content.Text) {
		if err := a.piece(piece); err != nil {
			return err
		}
	}
	return a.toolCalls(d.calls())
}

// thought takes the reasoning of a delta. Servers send the same thought in
// more than one field.
func (a *assembler) thought(d *delta) error {
	text := d.Reasoning + d.Content.Thinking
	if d.ReasoningContent != "" {
		text = d.ReasoningContent
	}
	for i, raw := range d.Details {
		raw = cleanDetail(raw)
		d.Details[i] = raw
		if a.size += len(raw); a.size > MaxAnswer {
			return tooLarge()
		}
		a.any = true
		if d.Reasoning == "" && d.ReasoningContent == "" {
			text += detailText(raw)
		}
	}
	a.details = append(a.details, d.Details...)
	return a.reasoning(text, d.ReasoningContent != "")
}

// flush emits the content that was held back because it could begin a tag.
func (a *assembler) flush() error {
	for _, p := range a.think.flush() {
		if err := a.piece(p); err != nil {
			return err
		}
	}
	return nil
}

func (a *assembler) piece(p piece) error {
	if p.thought {
		return a.reasoning(p.text, false)
	}
	return a.text(p.text)
}

func (a *assembler) text(text string) error {
	if text == "" {
		return nil
	}
	if err := a.begin(llm.TextStart); err != nil {
		return err
	}
	return a.grow(llm.Part{Kind: llm.TextDelta, Index: a.openIndex, Text: text})
}

func (a *assembler) reasoning(text string, kept bool) error {
	if text == "" {
		return nil
	}
	if err := a.begin(llm.ReasoningStart); err != nil {
		return err
	}
	if kept {
		a.kept.WriteString(text)
	}
	return a.grow(llm.Part{Kind: llm.ReasoningDelta, Index: a.openIndex, Text: text})
}

// grow emits a delta and keeps the count of the answer's size.
func (a *assembler) grow(p llm.Part) error {
	a.any = true
	if a.size += len(p.Text); a.size > MaxAnswer {
		return tooLarge()
	}
	return a.yield(p)
}

func tooLarge() error {
	return llm.Errorf(llm.Server, "the vendor's answer is larger than %d bytes", MaxAnswer)
}

// begin opens a part of text or reasoning, and ends the other one.
func (a *assembler) begin(kind llm.PartKind) error {
	if a.open == kind {
		return nil
	}
	if err := a.end(); err != nil {
		return err
	}
	a.open, a.openIndex = kind, a.parts
	a.parts++
	return a.yield(llm.Part{Kind: kind, Index: a.openIndex})
}

// end ends the open part of text or reasoning.
func (a *assembler) end() error {
	p := llm.Part{Index: a.openIndex}
	switch a.open {
	case llm.TextStart:
		p.Kind = llm.TextEnd
	case llm.ReasoningStart:
		p.Kind = llm.ReasoningEnd
		raw, err := state{ReasoningContent: a.kept.String(), Details: a.details}.encode()
		if err != nil {
			return llm.Errorf(llm.UnknownClass, "the reasoning cannot be kept").Because(err)
		}
		p.State = raw
		a.kept.Reset()
		a.details = nil
	default:
		return nil
	}
	a.open = ""
	return a.yield(p)
}

func (a *assembler) toolCalls(deltas []callDelta) error {
	var touched map[*call]bool
	for i := range deltas {
		d := &deltas[i]
		if d.Function.Name == "" && d.ID == "" && d.Function.Arguments.Text == "" {
			continue
		}
		c := a.find(d, touched)
		if c == nil {
			if len(a.calls) == maxCalls {
				return llm.Errorf(llm.Server, "the vendor's answer holds more than %d tool calls", maxCalls)
			}
			if err := a.flush(); err != nil {
				return err
			}
			if err := a.end(); err != nil {
				return err
			}
			c = &call{index: a.parts}
			a.parts++
			a.calls = append(a.calls, c)
		}
		if d.Index.known {
			a.byIndex[d.Index.n] = c
		}
		if touched == nil {
			touched = map[*call]bool{}
		}
		touched[c] = true
		if err := a.feed(c, d); err != nil {
			return err
		}
	}
	return nil
}

// find gives the call that a delta goes on with, nil when it begins one. The
// index decides where servers send one that is worth something; some leave it
// out, and some send 0 for every call. Vendor ids are not unique either.
func (a *assembler) find(d *callDelta, touched map[*call]bool) *call {
	var c *call
	switch {
	case d.Index.known:
		c = a.byIndex[d.Index.n]
	case len(a.calls) > 0:
		c = a.calls[len(a.calls)-1]
		for i := len(a.calls) - 1; i >= 0 && d.ID != ""; i-- {
			if a.calls[i].wireID == cutName(d.ID) {
				c = a.calls[i]
				break
			}
		}
	}
	if c == nil || d.Function.Name == "" {
		return c // fragments of arguments carry no name
	}
	switch {
	case touched[c]: // a second call in one list
	case d.ID != "" && cutName(d.ID) != c.wireID && c.name != "":
	case c.name != "" && c.name != cutName(d.Function.Name):
	case !d.Index.known && c.name != "" && whole(c.args.String()):
	default:
		return c
	}
	return nil
}

// feed adds a delta to its call. The start waits for the name.
func (a *assembler) feed(c *call, d *callDelta) error {
	if c.wireID == "" {
		c.wireID = cutName(d.ID)
	}
	if c.name == "" {
		c.name = cutName(d.Function.Name)
	}
	a.any = true
	c.args.WriteString(d.Function.Arguments.Text)
	text := d.Function.Arguments.Text
	if !c.started && c.name == "" {
		if a.size += len(text); a.size > MaxAnswer {
			return tooLarge()
		}
		return nil
	}
	if !c.started {
		c.started = true
		text = c.args.String()
		if err := a.yield(llm.Part{Kind: llm.ToolInputStart, Index: c.index, Name: c.name, WireID: c.wireID}); err != nil {
			return err
		}
	}
	if text == "" {
		return nil
	}
	return a.grow(llm.Part{Kind: llm.ToolInputDelta, Index: c.index, Text: text})
}

// finish ends the answer: reason or done was seen.
func (a *assembler) finish(done bool) error {
	if err := a.flush(); err != nil {
		return err
	}
	reason := finishReason(a.reason)
	if a.refusal.Len() > 0 || reason == llm.FinishFilter {
		return a.refused()
	}
	switch {
	case a.reason == "error":
		return llm.Errorf(llm.Server, "the vendor ended the answer with an error and no message")
	case a.reason == "" && !a.any:
		return emptyReply("the vendor ended the stream without an answer")
	case a.reason == "" && done && !a.wholeCalls():
		return llm.Errorf(llm.Truncated, "the answer ended inside a tool call, without a finish reason")
	}
	if err := a.end(); err != nil {
		return err
	}
	if a.details != nil { // what came behind the thoughts themselves: a signature, or nothing readable at all
		if err := a.begin(llm.ReasoningStart); err != nil {
			return err
		}
		if err := a.end(); err != nil {
			return err
		}
	}
	if len(a.calls) > 0 && reason != llm.FinishLength {
		reason = llm.FinishTools
		if last := a.calls[len(a.calls)-1]; cutOff(last.args.String()) {
			reason = llm.FinishLength // routers rewrite the reason
		}
	} else if len(a.calls) == 0 && reason == llm.FinishTools {
		reason = llm.FinishUnknown
	}
	for _, c := range a.calls {
		if err := a.wholeCall(c, reason); err != nil {
			return err
		}
	}
	return a.yield(llm.Part{Kind: llm.Finish, Index: max(0, a.parts-1), Reason: reason, Raw: cutWord(a.reason)})
}

func (a *assembler) wholeCall(c *call, reason llm.FinishReason) error {
	if !c.started { // it never got a name; the caller answers it as an unknown tool
		if err := a.yield(llm.Part{Kind: llm.ToolInputStart, Index: c.index, WireID: c.wireID}); err != nil {
			return err
		}
		if c.args.Len() > 0 {
			if err := a.yield(llm.Part{Kind: llm.ToolInputDelta, Index: c.index, Text: c.args.String()}); err != nil {
				return err
			}
		}
	}
	args := c.args.String()
	if strings.TrimSpace(args) == "" && reason != llm.FinishLength {
		args = "{}"
	}
	return a.yield(llm.Part{Kind: llm.ToolCallWhole, Index: c.index, Name: c.name, WireID: c.wireID, Text: args})
}

func (a *assembler) refused() error {
	text := wire.Safe(a.refusal.String())
	if text == "" {
		text = "the vendor's content filter stopped the answer"
	}
	return &llm.Error{Class: llm.ContentFilter, Code: cutWord(a.reason), Message: text}
}

func (a *assembler) wholeCalls() bool {
	for _, c := range a.calls {
		if args := strings.TrimSpace(c.args.String()); args != "" && !whole(args) {
			return false
		}
	}
	return true
}

func whole(args string) bool { return json.Valid([]byte(args)) }

// cutOff says that a text is the beginning of a JSON value and not the whole.
func cutOff(args string) bool {
	if strings.TrimSpace(args) == "" {
		return false
	}
	dec := json.NewDecoder(strings.NewReader(args))
	var v json.RawMessage
	return errors.Is(dec.Decode(&v), io.ErrUnexpectedEOF)
}

// finishReason puts the vendors' words into ours.
func finishReason(raw string) llm.FinishReason {
	switch strings.ToLower(raw) {
	case "stop", "eos", "end_turn", "stop_sequence", "complete", "completed", "eos_token":
		return llm.FinishStop
	case "tool_calls", "tool_call", "tool_use", "function_call":
		return llm.FinishTools
	case "length", "max_tokens", "max_length", "model_length", "max_output_tokens", "model_context_window_exceeded":
		return llm.FinishLength
	case "content_filter", "content_filtered", "safety", "sensitive", "refusal":
		return llm.FinishFilter
	}
	return llm.FinishUnknown
}

package gemini

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// assembler turns the pieces of a vendor's answer into parts, in order. Text
// and reasoning have at most one open part at a time; calls stay open and are
// ended together when the answer is.
type assembler struct {
	yield func(llm.Part) error
	names toolNames
	parts int  // output parts begun
	size  int  // bytes of text, reasoning, arguments and states so far
	any   bool // something of an answer came, if only an empty candidate

	open      llm.PartKind // TextStart, ReasoningStart or "": what is open
	openIndex int
	text      signedText // of the open text

	calls  []*call
	hosted hosted

	total   *llm.Usage
	reason  string // the vendor's finish reason, "" when there was none yet
	message string // and its words for it
}

// call is one tool call.
type call struct {
	index int // of its output part
	name  string
	args  string
	state callState
}

func newAssembler(yield func(llm.Part) error, names toolNames) *assembler {
	return &assembler{yield: yield, names: names}
}

func (a *assembler) finished() bool { return a.reason != "" }

func (a *assembler) usage(u *usage) error {
	t := u.tokens()
	if t == nil || a.total != nil && *a.total == *t {
		return nil
	}
	a.total = t
	return a.yield(llm.Part{Kind: llm.UsagePart, Index: max(0, a.parts-1), Usage: t})
}

// feedback is what the vendor says of the prompt. A block of it ends the answer
// before it has begun.
func (a *assembler) feedback(f *promptFeedback) error {
	if f == nil || f.BlockReason == "" || f.BlockReason == "BLOCK_REASON_UNSPECIFIED" || f.BlockReason == "BLOCKED_REASON_UNSPECIFIED" {
		return nil
	}
	return filtered(f.BlockReason, f.BlockReasonMessage, "the vendor blocked the prompt")
}

// candidate takes what one piece says of the answer.
func (a *assembler) candidate(c *candidate) error {
	if c == nil {
		return nil
	}
	a.any = true
	for _, raw := range c.Content.Parts {
		var p part
		if !parseObject(raw, &p) {
			continue
		}
		if err := a.part(&p, raw); err != nil {
			return err
		}
	}
	if c.Grounding != nil {
		a.hosted.grounding = c.Grounding
	}
	if c.URLContext != nil {
		a.hosted.pages = c.URLContext
	}
	if c.FinishReason != "" && c.FinishReason != "FINISH_REASON_UNSPECIFIED" || c.FinishReason != "" && a.reason == "" {
		a.reason, a.message = c.FinishReason, c.FinishMessage
	}
	return nil
}

func (a *assembler) part(p *part, raw json.RawMessage) error {
	switch {
	case p.Call != nil:
		return a.call(p)
	case p.Code != nil, p.CodeResult != nil, p.ToolCall != nil, p.ToolResult != nil:
		return a.hostedPart(p, raw)
	case p.Text == nil && p.Signature == "":
		return nil // media and what is not known
	case p.Thought:
		return a.thought(p, raw)
	case p.Text == nil || *p.Text == "":
		return a.bareSignature(p, raw)
	}
	if err := a.begin(llm.TextStart); err != nil {
		return err
	}
	a.text.add(len(*p.Text), p.Signature)
	return a.grow(llm.Part{Kind: llm.TextDelta, Index: a.openIndex, Text: *p.Text}, len(p.Signature))
}

// bareSignature takes a part without content. Behind text it is the text's last
// piece; elsewhere it is a part of its own that nothing but its state tells.
func (a *assembler) bareSignature(p *part, raw json.RawMessage) error {
	if p.Signature == "" {
		return nil
	}
	if a.open == llm.TextStart && p.Text != nil {
		a.text.add(0, p.Signature)
		return a.count(len(p.Signature))
	}
	return a.signedThought(raw)
}

// thought takes a piece of reasoning. It is shown and not sent back, save a
// signed one, which the vendor wants as it came.
func (a *assembler) thought(p *part, raw json.RawMessage) error {
	if p.Text != nil && *p.Text != "" {
		if err := a.begin(llm.ReasoningStart); err != nil {
			return err
		}
		if err := a.grow(llm.Part{Kind: llm.ReasoningDelta, Index: a.openIndex, Text: *p.Text}, 0); err != nil {
			return err
		}
	}
	if p.Signature == "" {
		return nil
	}
	return a.signedThought(raw)
}

// signedThought ends the open reasoning, or an empty one, with the part that
// goes back.
func (a *assembler) signedThought(raw json.RawMessage) error {
	if err := a.begin(llm.ReasoningStart); err != nil {
		return err
	}
	state, err := a.keep(raw)
	if err != nil {
		return err
	}
	a.open = ""
	return a.yield(llm.Part{Kind: llm.ReasoningEnd, Index: a.openIndex, State: state})
}

// keep gives the state of a part that goes back as it came: none when it is not
// strict JSON, which could not be sent.
func (a *assembler) keep(raw json.RawMessage) ([]byte, error) {
	if wholePart(raw) == nil {
		return nil, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, nil
	}
	return b.Bytes(), a.count(b.Len())
}

// count keeps the count of the answer's size.
func (a *assembler) count(bytes int) error {
	if a.size += bytes; a.size > MaxAnswer {
		return tooLarge()
	}
	if a.text.signed > maxSigned {
		return llm.Errorf(llm.Server, "the vendor's answer holds a text with more than %d signatures", maxSigned)
	}
	return nil
}

// grow emits a delta.
func (a *assembler) grow(p llm.Part, more int) error {
	if err := a.count(len(p.Text) + more); err != nil {
		return err
	}
	return a.yield(p)
}

// begin opens a part of text or reasoning, and ends the other one.
func (a *assembler) begin(kind llm.PartKind) error {
	if a.open == kind {
		return nil
	}
	if err := a.end(); err != nil {
		return err
	}
	a.open, a.openIndex = kind, a.next()
	return a.yield(llm.Part{Kind: kind, Index: a.openIndex})
}

func (a *assembler) next() int {
	a.parts++
	return a.parts - 1
}

// end ends the open part of text or reasoning.
func (a *assembler) end() error {
	p := llm.Part{Index: a.openIndex}
	switch a.open {
	case llm.TextStart:
		p.Kind = llm.TextEnd
		state, err := a.text.state()
		if err != nil {
			return err
		}
		p.State, a.text = state, signedText{}
	case llm.ReasoningStart:
		p.Kind = llm.ReasoningEnd
	default:
		return nil
	}
	a.open = ""
	return a.yield(p)
}

// call takes a tool call, which comes whole in one part.
func (a *assembler) call(p *part) error {
	if p.Call.Name == "" && p.Call.ID == "" && p.Call.Args.Text == "" && p.Signature == "" {
		return nil
	}
	if len(a.calls) == maxCalls {
		return llm.Errorf(llm.Server, "the vendor's answer holds more than %d tool calls", maxCalls)
	}
	if err := a.end(); err != nil {
		return err
	}
	c := &call{index: a.next(), name: a.names.ours(p.Call.Name), args: p.Call.Args.Text, state: callState{p.Call.ID, p.Signature}}
	a.calls = append(a.calls, c)
	if err := a.count(len(p.Signature) + len(p.Call.ID)); err != nil {
		return err
	}
	if err := a.yield(llm.Part{Kind: llm.ToolInputStart, Index: c.index, Name: c.name, WireID: c.state.ID}); err != nil {
		return err
	}
	if c.args == "" {
		return nil
	}
	return a.grow(llm.Part{Kind: llm.ToolInputDelta, Index: c.index, Text: c.args}, 0)
}

// finish ends the answer: a reason was seen.
func (a *assembler) finish() error {
	if !a.finished() {
		if !a.any {
			return emptyReply("the vendor sent no candidate")
		}
		return llm.Errorf(llm.Truncated, "the answer has no finish reason")
	}
	reason := reasons[a.reason] // FinishUnknown for what is not listed
	if reason == "" {
		reason = llm.FinishUnknown
	}
	if reason == llm.FinishFilter {
		return filtered(a.reason, a.message, "the vendor stopped the answer")
	}
	if class, bad := failures[a.reason]; bad {
		return a.failed(class)
	}
	if reason == llm.FinishUnknown && a.parts == 0 {
		return a.failed(llm.UnknownClass)
	}
	if err := a.end(); err != nil {
		return err
	}
	if err := a.reports(); err != nil {
		return err
	}
	if len(a.calls) > 0 && reason != llm.FinishLength {
		reason = llm.FinishTools
	}
	for _, c := range a.calls {
		if err := a.wholeCall(c, reason); err != nil {
			return err
		}
	}
	return a.yield(llm.Part{Kind: llm.Finish, Index: max(0, a.parts-1), Reason: reason, Raw: cutWord(a.reason)})
}

func (a *assembler) wholeCall(c *call, reason llm.FinishReason) error {
	args := c.args
	if strings.TrimSpace(args) == "" && reason != llm.FinishLength {
		args = "{}"
	}
	state, err := c.state.state()
	if err != nil {
		return err
	}
	return a.yield(llm.Part{Kind: llm.ToolCallWhole, Index: c.index, Name: c.name, WireID: c.state.ID, Text: args, State: state})
}

// reasons puts the vendor's words into ours.
var reasons = map[string]llm.FinishReason{
	"STOP":         llm.FinishStop,
	"MAX_TOKENS":   llm.FinishLength,
	"CONTINUATION": llm.FinishLength,

	"SAFETY": llm.FinishFilter, "RECITATION": llm.FinishFilter, "BLOCKLIST": llm.FinishFilter,
	"PROHIBITED_CONTENT": llm.FinishFilter, "SPII": llm.FinishFilter, "LANGUAGE": llm.FinishFilter, "MODEL_ARMOR": llm.FinishFilter,
	"IMAGE_SAFETY": llm.FinishFilter, "IMAGE_PROHIBITED_CONTENT": llm.FinishFilter, "IMAGE_RECITATION": llm.FinishFilter,
}

// failures are reasons that mean that there is no answer, whatever came: the
// model said what the vendor itself could not read, or called what is not
// there. It may do better when asked again.
var failures = map[string]llm.Class{
	"MALFORMED_FUNCTION_CALL": llm.Server, "MALFORMED_RESPONSE": llm.Server,
	"UNEXPECTED_TOOL_CALL": llm.Server, "TOO_MANY_TOOL_CALLS": llm.Server,
	"MISSING_THOUGHT_SIGNATURE": llm.InvalidRequest,
}

func (a *assembler) failed(class llm.Class) error {
	text := wire.Safe(a.message)
	if text == "" {
		text = "the vendor ended the answer with " + cutWord(wire.Safe(a.reason))
	}
	return &llm.Error{Class: class, Code: cutWord(a.reason), Message: text}
}

func filtered(reason, message, instead string) error {
	text := wire.Safe(message)
	if text == "" {
		text = fmt.Sprintf("%s: %s", instead, cutWord(wire.Safe(reason)))
	}
	return &llm.Error{Class: llm.ContentFilter, Code: cutWord(reason), Message: text}
}

func bounded(text string, n int) string {
	clean, _ := canonjson.ReplaceInvalid(text)
	return canonjson.CutRunes(clean, n)
}

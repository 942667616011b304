package anthropic

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// assembler turns the blocks of an answer into parts. Blocks may come side by
// side: they are emitted one behind the other, in the order in which they
// began. Only tool inputs are let stay open beside what follows; all calls are
// ended together when the answer is.
type assembler struct {
	yield func(llm.Part) error
	parts int // output parts begun
	size  int // bytes of all blocks so far
	limit int // and the most of them
	any   bool

	blocks  []*block
	byIndex map[int64]*block
	head    int // the first block that is not yet emitted to its end
	calls   []*block

	said      strings.Builder // the beginning of the answer's text, for a refusal
	total     total
	last      *llm.Usage
	container json.RawMessage
	reason    string // the vendor's stop reason, "" when there was none yet
	details   stopDetails
}

// block is one content block under way.
type block struct {
	content
	raw       json.RawMessage // as it began
	kind      blockKind
	part      int // index of its output part
	started   bool
	stopped   bool
	text      strings.Builder // text, thoughts or input
	emitted   int             // bytes of text that were handed on
	grown     bool            // something came behind the start
	signature string
	citations []json.RawMessage
}

type blockKind int

const (
	kindOther blockKind = iota
	kindText
	kindThinking
	kindCall
	kindHostedCall
	kindHostedResult
)

func kindOf(c *content) blockKind {
	switch {
	case c.Type == "text":
		return kindText
	case c.Type == "thinking":
		return kindThinking
	case c.Type == "tool_use":
		return kindCall
	case strings.HasSuffix(c.Type, "_tool_use"):
		return kindHostedCall
	case strings.HasSuffix(c.Type, "_tool_result"):
		return kindHostedResult
	}
	return kindOther
}

func newAssembler(yield func(llm.Part) error) *assembler {
	return &assembler{yield: yield, limit: MaxAnswer, byIndex: map[int64]*block{}}
}

// message takes a message: the empty one that begins a stream, or a whole answer.
func (a *assembler) message(m *message) error {
	for _, raw := range m.Content {
		b, err := a.start(raw)
		if err != nil {
			return err
		}
		b.stopped = true
		if err := a.pump(); err != nil {
			return err
		}
	}
	a.ends(m.StopReason, m.StopDetails, m.Container)
	return a.usage(m.Usage)
}

// event takes one event of a stream, but for errors and the end.
func (a *assembler) event(e *streamEvent) error {
	switch e.Type {
	case "message_start":
		if e.Message != nil {
			return a.message(e.Message)
		}
	case "content_block_start":
		b, err := a.start(e.Block)
		if err != nil {
			return err
		}
		if e.Index.known {
			a.byIndex[e.Index.n] = b
		}
		return a.pump()
	case "content_block_delta":
		b, err := a.grown(e)
		if b == nil || err != nil {
			return err
		}
		if err := a.grow(b, &e.Delta); err != nil {
			return err
		}
		return a.pump()
	case "content_block_stop":
		if b := a.find(e.Index); b != nil {
			b.stopped = true
			return a.pump()
		}
	case "message_delta":
		a.ends(e.Delta.StopReason, e.Delta.StopDetails, e.Delta.Container)
		return a.usage(e.Usage)
	}
	return nil
}

func (a *assembler) ends(reason string, details stopDetails, container json.RawMessage) {
	if reason != "" {
		a.reason = reason
	}
	if details != (stopDetails{}) {
		a.details = details
	}
	if len(container) > 0 && container[0] == '{' {
		a.container = container
	}
}

func (a *assembler) usage(u *usage) error {
	a.total.add(u)
	t := a.total.tokens()
	if t == nil || a.last != nil && *a.last == *t {
		return nil
	}
	a.last = t
	return a.yield(llm.Part{Kind: llm.UsagePart, Index: max(0, a.parts-1), Usage: t})
}

// find gives the block of an index; without one it is the block that began last.
func (a *assembler) find(index number) *block {
	if index.known {
		return a.byIndex[index.n]
	}
	if len(a.blocks) == 0 {
		return nil
	}
	return a.blocks[len(a.blocks)-1]
}

// grown gives the block that a delta goes on with. Words whose block never
// began begin one: they must not be lost.
func (a *assembler) grown(e *streamEvent) (*block, error) {
	b := a.find(e.Index)
	if b != nil || e.Delta.Text == "" && e.Delta.Thinking == "" {
		return b, nil
	}
	raw := `{"type":"text","text":""}`
	if e.Delta.Text == "" {
		raw = `{"type":"thinking","thinking":"","signature":""}`
	}
	b, err := a.start(json.RawMessage(raw))
	if err == nil && e.Index.known {
		a.byIndex[e.Index.n] = b
	}
	return b, err
}

func (a *assembler) start(raw json.RawMessage) (*block, error) {
	b := &block{raw: raw}
	if !readObject(raw, &b.content) {
		return nil, llm.Errorf(llm.Server, "the vendor began a content block that is not a JSON object")
	}
	if len(a.blocks) == maxBlocks {
		return nil, llm.Errorf(llm.Server, "the vendor's answer holds more than %d blocks", maxBlocks)
	}
	b.kind, b.signature, b.citations = kindOf(&b.content), b.Signature, b.Citations
	switch b.kind {
	case kindText:
		b.text.WriteString(b.Text)
	case kindThinking:
		b.text.WriteString(b.Thinking)
	case kindCall:
		if len(a.calls) == maxCalls {
			return nil, llm.Errorf(llm.Server, "the vendor's answer holds more than %d tool calls", maxCalls)
		}
		a.calls = append(a.calls, b)
	}
	a.blocks, a.any = append(a.blocks, b), true
	return b, a.count(len(raw))
}

func (a *assembler) count(n int) error {
	if a.size += n; a.size > a.limit {
		return llm.Errorf(llm.Server, "the vendor's answer is larger than %d bytes", a.limit)
	}
	return nil
}

// grow adds a delta to its block. What is of no use to the block's kind is
// read over.
func (a *assembler) grow(b *block, d *delta) error {
	if b.stopped {
		return nil
	}
	n := b.text.Len()
	switch {
	case b.kind == kindText:
		b.text.WriteString(d.Text)
		if len(d.Citation) > 0 && d.Citation[0] == '{' {
			b.citations = append(b.citations, d.Citation)
			n -= len(d.Citation)
		}
	case b.kind == kindThinking:
		b.text.WriteString(d.Thinking)
		if d.Signature != "" {
			b.signature = d.Signature
			n -= len(d.Signature)
		}
	case b.kind == kindCall || b.kind == kindHostedCall:
		b.text.WriteString(string(d.PartialJSON))
	}
	b.grown = b.grown || b.text.Len() > n
	return a.count(b.text.Len() - n)
}

// pump emits what may be emitted: all up to the first block that is still open
// and does not let others by, and the inputs of calls before it.
func (a *assembler) pump() error {
	for ; a.head < len(a.blocks); a.head++ {
		b := a.blocks[a.head]
		if err := a.emit(b); err != nil {
			return err
		}
		if !b.stopped && b.kind != kindCall {
			break
		}
	}
	for _, c := range a.calls {
		if c.started && c.emitted < c.text.Len() {
			if err := a.rest(c, llm.ToolInputDelta); err != nil {
				return err
			}
		}
	}
	return nil
}

// emit emits what there is of the block at the head.
func (a *assembler) emit(b *block) error {
	switch b.kind {
	case kindText:
		return a.emitOpen(b, llm.TextStart, llm.TextDelta, llm.TextEnd)
	case kindThinking:
		return a.emitOpen(b, llm.ReasoningStart, llm.ReasoningDelta, llm.ReasoningEnd)
	case kindCall:
		if b.started {
			return nil
		}
		if err := a.begin(b, llm.Part{Kind: llm.ToolInputStart, Name: b.Name, WireID: b.ID}); err != nil {
			return err
		}
		return a.rest(b, llm.ToolInputDelta)
	}
	if !b.stopped {
		return nil
	}
	switch b.kind {
	case kindHostedCall:
		return a.begin(b, llm.Part{Kind: llm.HostedCall, Name: b.Name, WireID: b.ID, Text: b.input(), State: b.state()})
	case kindHostedResult:
		short, failed := b.account()
		return a.begin(b, llm.Part{Kind: llm.HostedResult, WireID: b.ToolUseID, Text: short, IsError: failed, State: b.state()})
	}
	return a.opaque(b.state())
}

// begin emits the first piece of a part.
func (a *assembler) begin(b *block, p llm.Part) error {
	b.started, b.part = true, a.parts
	a.parts++
	p.Index = b.part
	return a.yield(p)
}

// emitOpen emits text or thoughts as they come. A text that is empty to its
// end is no part; thoughts are one all the same, for their signature.
func (a *assembler) emitOpen(b *block, start, more, end llm.PartKind) error {
	if !b.started {
		if b.text.Len() == 0 && (!b.stopped || b.state() == nil) {
			return nil
		}
		if err := a.begin(b, llm.Part{Kind: start}); err != nil {
			return err
		}
	}
	if b.kind == kindText && a.said.Len() < 4*wire.MaxMessage {
		a.said.WriteString(b.text.String()[b.emitted:])
	}
	if err := a.rest(b, more); err != nil || !b.stopped {
		return err
	}
	return a.yield(llm.Part{Kind: end, Index: b.part, State: b.state()})
}

// rest emits what has come since the last time.
func (a *assembler) rest(b *block, kind llm.PartKind) error {
	text := b.text.String()[b.emitted:]
	if text == "" {
		return nil
	}
	b.emitted = b.text.Len()
	return a.yield(llm.Part{Kind: kind, Index: b.part, Text: text})
}

// opaque emits what has nothing but a state.
func (a *assembler) opaque(state []byte) error {
	if state == nil {
		return nil
	}
	index := a.parts
	a.parts++
	if err := a.yield(llm.Part{Kind: llm.ReasoningStart, Index: index}); err != nil {
		return err
	}
	return a.yield(llm.Part{Kind: llm.ReasoningEnd, Index: index, State: state})
}

// finish ends the answer: a reason or the end mark was seen.
func (a *assembler) finish(done bool) error {
	reason := finishReason(a.reason)
	switch {
	case reason == llm.FinishFilter:
		return a.refused()
	case a.reason == "" && !a.any:
		return emptyReply("the vendor ended the stream without an answer")
	case a.reason == "" && done && !a.wholeCalls():
		return llm.Errorf(llm.Truncated, "the answer ended inside a tool call, without a stop reason")
	}
	for _, b := range a.blocks {
		b.stopped = true
	}
	if err := a.pump(); err != nil {
		return err
	}
	if err := a.opaque(containerState(a.container)); err != nil {
		return err
	}
	if len(a.calls) > 0 && reason != llm.FinishLength {
		reason = llm.FinishTools
		if cutOff(a.calls[len(a.calls)-1].input()) {
			reason = llm.FinishLength // gateways rewrite the reason
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

func (a *assembler) wholeCall(b *block, reason llm.FinishReason) error {
	args := b.input()
	if b.text.Len() == 0 && args != "" { // the input stood in the block's start
		if err := a.yield(llm.Part{Kind: llm.ToolInputDelta, Index: b.part, Text: args}); err != nil {
			return err
		}
	}
	if strings.TrimSpace(args) == "" && reason != llm.FinishLength {
		args = "{}"
	}
	return a.yield(llm.Part{Kind: llm.ToolCallWhole, Index: b.part, Name: b.Name, WireID: b.ID, Text: args, State: b.state()})
}

func (a *assembler) refused() error {
	text := wire.Safe(a.details.Explanation)
	if text == "" {
		text = wire.Safe(a.said.String())
	}
	if text == "" {
		text = "the vendor refused to answer"
		if a.details.Category != "" {
			text += " (" + wire.Safe(cutWord(a.details.Category)) + ")"
		}
	}
	return &llm.Error{Class: llm.ContentFilter, Code: wire.Safe(cutWord(a.reason)), Message: text}
}

func (a *assembler) wholeCalls() bool {
	for _, c := range a.calls {
		if args := strings.TrimSpace(c.input()); args != "" && !json.Valid([]byte(args)) {
			return false
		}
	}
	return true
}

// cutOff says that a text is the beginning of a JSON value and not the whole.
func cutOff(args string) bool {
	if strings.TrimSpace(args) == "" {
		return false
	}
	dec := json.NewDecoder(strings.NewReader(args))
	var v json.RawMessage
	return errors.Is(dec.Decode(&v), io.ErrUnexpectedEOF)
}

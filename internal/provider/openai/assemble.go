package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// assembler turns the events of an answer into parts, in order. Text and
// reasoning have at most one open part at a time; tool inputs may be open side
// by side, and are ended together when the answer is.
type assembler struct {
	yield func(llm.Part) error
	track tracker
	parts int // output parts begun
	size  int // bytes of text, reasoning, arguments and state so far
	any   bool

	open  *part
	later []func() error // what stands alone and waits until no part is open
	calls []*call
	asked []*entry        // hosted calls that are not given out yet
	runs  int             // hosted calls
	said  strings.Builder // of a refusal
	full  string          // the refusal as the events of completion tell it
	total *llm.Usage
}

// part is a part of text or reasoning.
type part struct {
	owner *entry
	kind  llm.PartKind // TextStart or ReasoningStart
	index int
}

func newAssembler(yield func(llm.Part) error) *assembler {
	return &assembler{yield: yield, track: newTracker()}
}

func (a *assembler) usage(u *usage) error {
	t := u.tokens()
	if t == nil || a.total != nil && *a.total == *t {
		return nil
	}
	a.total = t
	return a.yield(llm.Part{Kind: llm.UsagePart, Index: max(0, a.parts-1), Usage: t})
}

// event takes one event that neither ends the answer nor is an error. Events
// that it does not know are left out.
func (a *assembler) event(ev *event) error {
	at := place{index: ev.Index, ids: []string{string(ev.ItemID)}}
	message := func() *stretch { return a.track.goesOn("message", at).piece(ev.Content.n) }
	thought := func(kind byte, key number) *stretch { return a.track.goesOn("reasoning", at).thought(kind, key.n) }
	switch ev.Type {
	case "response.output_item.added":
		return a.item(ev, a.announced)
	case "response.output_item.done":
		return a.item(ev, a.complete)
	case "response.output_text.delta":
		return a.delta(message(), string(ev.Delta))
	case "response.output_text.done":
		return a.whole(message(), string(ev.Text))
	case "response.refusal.delta":
		a.refuse(string(ev.Delta))
	case "response.refusal.done":
		a.refuseWhole(string(ev.Refusal))
	case "response.content_part.done":
		return a.partDone(ev, at)
	case "response.reasoning_summary_text.delta", "response.reasoning_summary.delta":
		return a.delta(thought('s', ev.Summary), string(ev.Delta))
	case "response.reasoning_summary_text.done", "response.reasoning_summary.done":
		return a.whole(thought('s', ev.Summary), string(ev.Text))
	case "response.reasoning_text.delta", "response.reasoning.delta":
		return a.delta(thought('t', ev.Content), string(ev.Delta))
	case "response.reasoning_text.done", "response.reasoning.done":
		return a.whole(thought('t', ev.Content), string(ev.Text))
	case "response.function_call_arguments.delta":
		c, err := a.callOf(a.track.goesOn("function_call", at))
		if err != nil {
			return err
		}
		return a.feed(c, string(ev.Delta))
	case "response.function_call_arguments.done":
		c, err := a.callOf(a.track.goesOn("function_call", at))
		if err != nil {
			return err
		}
		return a.argued(c, string(ev.Name), string(ev.Arguments))
	case "response.mcp_call_arguments.done":
		return a.asking("mcp_call", at, string(ev.Arguments))
	case "response.code_interpreter_call_code.done":
		return a.asking("code_interpreter_call", at, object("code", string(ev.Code)))
	}
	return a.bounded()
}

// item reads the item of an event, finds its entry and hands both on.
func (a *assembler) item(ev *event, take func(*entry, *item, json.RawMessage) error) error {
	var it item
	if !parse(ev.Item, &it) || it.Type == "" {
		return nil
	}
	at := place{index: ev.Index, ids: []string{string(it.ID), string(it.CallID)}}
	if at.ids[0] == "" {
		at.ids[0] = string(ev.ItemID)
	}
	var e *entry
	if ev.Type == "response.output_item.added" {
		e = a.track.opens(it.Type, at)
	} else {
		e = a.track.closes(it.Type, at)
	}
	if err := a.bounded(); err != nil {
		return err
	}
	return take(e, &it, ev.Item)
}

func (a *assembler) bounded() error {
	if len(a.track.all) > maxItems {
		return llm.Errorf(llm.Server, "the vendor's answer holds more than %d items", maxItems)
	}
	if a.parts > maxParts {
		return llm.Errorf(llm.Server, "the vendor's answer holds more than %d parts", maxParts)
	}
	return nil
}

// announced takes an item that begins. What it holds already is repeated when
// it is complete, so only its head counts.
func (a *assembler) announced(e *entry, it *item, _ json.RawMessage) error {
	a.any = true
	switch it.Type {
	case "message":
		e.phase = string(it.Phase)
		return nil
	case "reasoning":
		if e.part == nil {
			e.part = &part{owner: e}
		}
		return a.begin(e.part, llm.ReasoningStart)
	case "function_call":
		c, err := a.callOf(e)
		if err != nil {
			return err
		}
		c.head(it)
		return a.feed(c, "")
	}
	return a.hostedBegins(e, it)
}

// complete takes an item that is complete, from its own event or from the
// whole answer. It may come twice.
func (a *assembler) complete(e *entry, it *item, raw json.RawMessage) error {
	a.any = true
	defer func() { e.done = true }()
	switch it.Type {
	case "message":
		if it.Phase != "" {
			e.phase = string(it.Phase)
		}
		return a.messageDone(e, it)
	case "reasoning":
		return a.reasoningDone(e, it, raw)
	case "function_call":
		c, err := a.callOf(e)
		if err != nil {
			return err
		}
		c.head(it)
		return a.argued(c, "", string(it.Arguments))
	}
	return a.hostedDone(e, it, raw)
}

// messageDone adds what the deltas left out. Where the two tell different
// things, what was streamed stands.
func (a *assembler) messageDone(e *entry, it *item) error {
	for key, s := range e.pieces {
		if sent := s.sent.String(); sent != "" && (key < 0 || key >= int64(len(it.Content)) || !strings.HasPrefix(string(it.Content[key].Text), sent)) {
			return a.close(e)
		}
	}
	for i, c := range it.Content {
		if c.Type == "refusal" {
			a.refuseWhole(string(c.Refusal))
			continue
		}
		if err := a.whole(e.piece(int64(i)), string(c.Text)); err != nil {
			return err
		}
	}
	return a.close(e)
}

func (a *assembler) reasoningDone(e *entry, it *item, raw json.RawMessage) error {
	if err := a.thoughtsDone(e, 's', it.Summary); err != nil {
		return err
	}
	if err := a.thoughtsDone(e, 't', it.Content); err != nil {
		return err
	}
	// Without one of the two the vendor could only look the item up, which it
	// has not stored.
	if e.state == nil && (it.Encrypted != "" || len(it.Content) > 0) {
		e.state = a.keep(raw)
	}
	if err := a.close(e); err != nil {
		return err
	}
	if e.state == nil || e.sealed {
		return nil
	}
	return a.alone(func() error { // its part has ended, or it never had one
		if e.sealed {
			return nil
		}
		p := &part{owner: e}
		if err := a.begin(p, llm.ReasoningStart); err != nil {
			return err
		}
		return a.end()
	})
}

func (a *assembler) thoughtsDone(e *entry, kind byte, list contents) error {
	for i, c := range list {
		if c.Text == "" {
			continue
		}
		if err := a.whole(e.thought(kind, int64(i)), string(c.Text)); err != nil {
			return err
		}
	}
	return nil
}

func (a *assembler) partDone(ev *event, at place) error {
	if ev.Part == nil {
		return nil
	}
	switch ev.Part.Type {
	case "output_text":
		return a.whole(a.track.goesOn("message", at).piece(ev.Content.n), string(ev.Part.Text))
	case "refusal":
		a.refuseWhole(string(ev.Part.Refusal))
	}
	return nil
}

// keep gives an item's bytes as state, or nil when they could not be sent back.
func (a *assembler) keep(raw json.RawMessage) []byte {
	if _, err := canonjson.Parse(raw, wide); err != nil {
		return nil
	}
	return bytes.Clone(raw)
}

// wide are the limits for what has been bounded before.
var wide = canonjson.Limits{Depth: 1000, Bytes: MaxAnswer, Tokens: MaxAnswer}

// delta adds text to a stretch.
func (a *assembler) delta(s *stretch, text string) error {
	if err := a.bounded(); err != nil || text == "" {
		return err
	}
	kind, delta, shown := llm.TextStart, llm.TextDelta, text
	if s.kind != 0 {
		kind, delta = llm.ReasoningStart, llm.ReasoningDelta
		if s.sent.Len() == 0 && s.part.owner.thinks() {
			shown = "\n\n" + text
		}
	}
	if err := a.begin(s.part, kind); err != nil {
		return err
	}
	s.sent.WriteString(text)
	return a.grow(llm.Part{Kind: delta, Index: s.part.index, Text: shown})
}

// thinks says whether any thought of an item has been told.
func (e *entry) thinks() bool {
	for _, s := range e.thoughts {
		if s.sent.Len() > 0 {
			return true
		}
	}
	return false
}

// whole takes the full text of a stretch and adds what the deltas left out.
func (a *assembler) whole(s *stretch, text string) error {
	rest, ok := strings.CutPrefix(text, s.sent.String())
	if !ok {
		return nil
	}
	return a.delta(s, rest)
}

// grow emits a delta and keeps the count of the answer's size.
func (a *assembler) grow(p llm.Part) error {
	a.any = true
	if err := a.count(len(p.Text)); err != nil {
		return err
	}
	return a.yield(p)
}

func (a *assembler) count(n int) error {
	if a.size += n; a.size > MaxAnswer {
		return llm.Errorf(llm.Server, "the vendor's answer is larger than %d bytes", MaxAnswer)
	}
	return nil
}

// begin opens a part, and ends the one that is open.
func (a *assembler) begin(p *part, kind llm.PartKind) error {
	if a.open == p {
		return nil
	}
	if err := a.next(); err != nil {
		return err
	}
	p.kind, p.index = kind, a.parts
	a.parts++
	a.open = p
	return a.yield(llm.Part{Kind: kind, Index: p.index})
}

// next makes room for a new part: what is open ends, and hosted calls that
// began before are given out.
func (a *assembler) next() error {
	if err := a.end(); err != nil {
		return err
	}
	return a.askAll()
}

// end ends the open part of text or reasoning.
func (a *assembler) end() error {
	if a.open == nil {
		return nil
	}
	p, e := llm.Part{Kind: llm.TextEnd, Index: a.open.index}, a.open.owner
	if a.open.kind == llm.ReasoningStart {
		p.Kind, p.State = llm.ReasoningEnd, e.state
		e.sealed = e.state != nil
	} else {
		p.State = phaseState(e.phase)
	}
	a.open = nil
	if err := a.count(len(p.State)); err != nil {
		return err
	}
	if err := a.yield(p); err != nil {
		return err
	}
	for len(a.later) > 0 {
		do := a.later[0]
		a.later = a.later[1:]
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// close ends the open part if it is one of this item.
func (a *assembler) close(e *entry) error {
	if a.open != nil && a.open.owner == e {
		return a.end()
	}
	return nil
}

// alone does now what needs that no part is open, or as soon as it is so.
func (a *assembler) alone(do func() error) error {
	if a.open != nil {
		a.later = append(a.later, do)
		return nil
	}
	return do()
}

func (a *assembler) refuse(text string) {
	if a.said.Len() < wire.MaxMessage*4 {
		a.said.WriteString(text)
	}
}

func (a *assembler) refuseWhole(text string) {
	if a.full == "" {
		a.full = text
	}
}

func (a *assembler) refusal() string {
	if a.full != "" {
		return a.full
	}
	return a.said.String()
}

func (a *assembler) refused(code string) error {
	text := wire.Safe(a.refusal())
	if text == "" {
		text = "the vendor's content filter stopped the answer"
	}
	return &llm.Error{Class: llm.ContentFilter, Code: cutWord(code), Message: text}
}

// finish ends the answer with the vendor's last word on it.
func (a *assembler) finish(resp *response, cut bool) error {
	for i, raw := range resp.Output {
		var it item
		if !parse(raw, &it) || it.Type == "" {
			continue
		}
		at := place{index: number{n: int64(i), known: true}, ids: []string{string(it.ID), string(it.CallID)}}
		if err := a.complete(a.track.matches(it.Type, at), &it, raw); err != nil {
			return err
		}
		if err := a.bounded(); err != nil {
			return err
		}
	}
	if a.refusal() != "" || cut && resp.Incomplete.Reason == "content_filter" {
		return a.refused(resp.Incomplete.Reason)
	}
	if err := a.next(); err != nil {
		return err
	}
	reason, raw := llm.FinishStop, resp.Status
	if cut {
		// A cut answer is no whole one, whatever the vendor calls the reason.
		reason, raw = llm.FinishLength, resp.Incomplete.Reason
	} else if len(a.calls) > 0 {
		reason = llm.FinishTools
		if last := a.calls[len(a.calls)-1]; cutOff(last.arguments()) {
			reason = llm.FinishLength // servers that do not tell
		}
	}
	if err := a.wholeCalls(reason); err != nil {
		return err
	}
	return a.yield(llm.Part{Kind: llm.Finish, Index: max(0, a.parts-1), Reason: reason, Raw: cutWord(raw)})
}

// callOf gives the call of an item, and begins it when it is new.
func (a *assembler) callOf(e *entry) (*call, error) {
	if e.call != nil {
		return e.call, a.bounded()
	}
	if len(a.calls) == maxCalls {
		return nil, llm.Errorf(llm.Server, "the vendor's answer holds more than %d tool calls", maxCalls)
	}
	if err := a.next(); err != nil {
		return nil, err
	}
	a.any = true
	e.call = &call{}
	a.calls = append(a.calls, e.call)
	return e.call, nil
}

func (c *call) head(it *item) {
	if c.name == "" {
		c.name = string(it.Name)
	}
	if c.wireID == "" {
		c.wireID = string(it.CallID)
	}
	if c.wireID == "" {
		c.wireID = string(it.ID)
	}
}

// feed adds arguments to a call. The start waits for the name.
func (a *assembler) feed(c *call, text string) error {
	c.args.WriteString(text)
	if !c.started && c.name == "" {
		return a.count(len(text))
	}
	if !c.started {
		if err := a.start(c); err != nil {
			return err
		}
		text = c.args.String()
	}
	if text == "" {
		return nil
	}
	return a.grow(llm.Part{Kind: llm.ToolInputDelta, Index: c.index, Text: text})
}

func (a *assembler) start(c *call) error {
	if err := a.end(); err != nil {
		return err
	}
	c.started, c.index = true, a.parts
	a.parts++
	return a.yield(llm.Part{Kind: llm.ToolInputStart, Index: c.index, Name: c.name, WireID: c.wireID})
}

// argued takes the whole arguments of a call and adds what the deltas left out.
func (a *assembler) argued(c *call, name, args string) error {
	if c.name == "" {
		c.name = name
	}
	rest := ""
	if args != "" {
		c.whole = args
		rest, _ = strings.CutPrefix(args, c.args.String())
		if rest == args && c.args.Len() > 0 {
			rest = ""
		}
	}
	return a.feed(c, rest)
}

// arguments gives what was streamed; what the events of completion say where
// that alone is whole.
func (c *call) arguments() string {
	if args := c.args.String(); c.whole == "" || whole(args) || !whole(c.whole) {
		return args
	}
	return c.whole
}

// wholeCalls gives out the calls. One that never got a name begins only here:
// the caller answers it as an unknown tool.
func (a *assembler) wholeCalls(reason llm.FinishReason) error {
	for _, c := range a.calls {
		if c.started {
			continue
		}
		if err := a.start(c); err != nil {
			return err
		}
		if c.args.Len() > 0 {
			if err := a.yield(llm.Part{Kind: llm.ToolInputDelta, Index: c.index, Text: c.args.String()}); err != nil {
				return err
			}
		}
	}
	for _, c := range slices.SortedFunc(slices.Values(a.calls), func(x, y *call) int { return x.index - y.index }) {
		if err := a.wholeCall(c, reason); err != nil {
			return err
		}
	}
	return nil
}

func (a *assembler) wholeCall(c *call, reason llm.FinishReason) error {
	args := c.arguments()
	if strings.TrimSpace(args) == "" && reason != llm.FinishLength {
		args = "{}"
	}
	return a.yield(llm.Part{Kind: llm.ToolCallWhole, Index: c.index, Name: c.name, WireID: c.wireID, Text: args})
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

package sim_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// world is everything outside of the nodes: it outlives every crash, answers
// by the seed and what it is asked alone, and counts.
type world struct {
	h    *history
	seed uint64

	mu       sync.Mutex
	calm     bool                           // nothing fails any more
	runs     map[string]int                 // of a tool, by call id
	effects  map[string]int                 // of a tool, by call id
	received map[event.DeliveryID]*received // by the receivers
	sends    map[string]int                 // by address
	deltas   map[string]string              // text of a delta → why nobody may be shown it; empty: it may be shown
	asked    map[string]int                 // requests to the model, by session
}

// received is what the receiver knows of a delivery.
type received struct {
	body     []byte
	accepted int
}

func newWorld(h *history, seed uint64) *world {
	return &world{
		h: h, seed: seed, runs: map[string]int{}, effects: map[string]int{}, received: map[event.DeliveryID]*received{},
		sends: map[string]int{}, deltas: map[string]string{}, asked: map[string]int{},
	}
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// draws is a stream of choices that follows from the seed and the words.
type draws struct{ state uint64 }

func (w *world) draw(words ...any) *draws {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, w.seed)
	fmt.Fprintln(h, words...)
	return &draws{h.Sum64()}
}

func (d *draws) below(n int) int { // splitmix64
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

// model is the model as one node reaches it over one route.
type model struct {
	w     *world
	n     *node
	route event.Route
}

var errAborted = llm.Errorf(llm.Aborted, "stopped")

// Stream gives an answer that is a function of the request and the seed. Each
// part waits for its turn, and the stream may be cut before any.
func (m *model) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	w, n := m.w, m.n
	if ctx.Err() != nil || n.gone() {
		return errAborted
	}
	w.h.watch.dispatching(n, req, m.route)
	sid := event.SessionID(req.SessionID)
	about := []any{sid, fmt.Sprintf("t%d.%d.%d", req.Turn, req.Repair, req.Attempt)}
	turn := func(what string) error {
		switch v := w.h.sched.park(ctx, n, outside, name(ctx, n, "model", append(about, what)...)); {
		case v == gone:
			return errAborted
		case ctx.Err() != nil:
			return llm.Errorf(llm.Aborted, "stopped").Because(ctx.Err())
		case v == cut:
			return llm.Errorf(llm.Transport, "the stream broke off")
		case v == twice:
			return errTwice
		}
		return nil
	}
	if err := turn("ask"); err != nil && err != errTwice {
		return err
	}
	w.mu.Lock()
	w.asked[req.SessionID]++
	calm := w.calm
	w.mu.Unlock()
	d := w.draw("model", task(req), req.Turn, req.Attempt, req.Repair, len(req.Messages))
	if n := d.below(100); !calm && n < 3 {
		return llm.Errorf(llm.ContextOverflow, "the request is too large")
	} else if !calm && n < 12 {
		classes := []llm.Class{llm.RateLimit, llm.Overloaded, llm.Transport, llm.Server, llm.Auth}
		e := llm.Errorf(classes[d.below(len(classes))], "the world says so")
		if d.below(2) == 0 {
			e.RetryAfter = time.Duration(d.below(30)) * time.Second
		}
		return e
	}
	for i, p := range w.answer(d, req) {
		times := 1
		if p.Kind == llm.TextDelta || p.Kind == llm.ToolCallWhole || p.Kind == llm.Finish || p.Kind == llm.ReasoningEnd {
			if err := turn(fmt.Sprintf("part %d", i)); err == errTwice && (p.Kind == llm.ToolCallWhole || p.Kind == llm.Finish) {
				times = 2
			} else if err != nil && err != errTwice {
				return err
			}
		}
		if p.Kind == llm.TextDelta {
			w.say(n, sid, p.Text)
		}
		for range times {
			if err := yield(p); err != nil {
				return err
			}
		}
		if p.Kind == llm.TextDelta {
			w.h.watch.told(n, sid, p.Text)
		}
	}
	return nil
}

var errTwice = fmt.Errorf("once more")

// say notes a delta that a node was given, and whether it may show it (I-11).
func (w *world) say(n *node, s event.SessionID, text string) {
	why := w.h.watch.disowned(n, s.Stream())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deltas[text] = why
}

func (w *world) answer(d *draws, req *llm.Request) []llm.Part {
	if strings.HasPrefix(req.System, "You write the record") {
		return w.summary(d, req)
	}
	calls := 0
	if n := d.below(100); !req.NoTools && n < 55 || n < 10 {
		calls = []int{1, 1, 2, 2, 3, 9}[d.below(6)]
	}
	var list []llm.Part
	index := 0
	if d.below(4) == 0 {
		list = append(list, llm.Part{Kind: llm.ReasoningStart}, llm.Part{Kind: llm.ReasoningEnd, State: []byte("state")})
		index++
	}
	if calls == 0 || d.below(4) == 0 {
		text := w.text(d, req)
		list = append(list, llm.Part{Kind: llm.TextStart, Index: index})
		for _, c := range []string{text[:len(text)/2], text[len(text)/2:]} {
			list = append(list, llm.Part{Kind: llm.TextDelta, Index: index, Text: c})
		}
		list = append(list, llm.Part{Kind: llm.TextEnd, Index: index})
		index++
	}
	for range calls {
		names := []string{"think", "look", "note", "note", "charge", "charge", "pay", "pay", "mail", "unheard_of"}
		name := names[d.below(len(names))]
		args := fmt.Sprintf(`{"tag":%d}`, d.below(1<<30))
		switch d.below(20) {
		case 0:
			args = `{"tag":"x"}`
		case 1:
			args = `{"tag":`
		}
		list = append(list, llm.Part{Kind: llm.ToolInputStart, Index: index, Name: name}, llm.Part{Kind: llm.ToolCallWhole, Index: index, Name: name, Text: args})
		index++
	}
	if d.below(2) == 0 {
		list = append(list, llm.Part{Kind: llm.UsagePart, Usage: &llm.Usage{Input: 5, Output: 3}})
	}
	reason := llm.FinishStop
	if calls > 0 {
		reason = llm.FinishTools
	}
	if d.below(25) == 0 {
		reason = llm.FinishLength
	}
	return append(list, llm.Part{Kind: llm.Finish, Reason: reason})
}

// summary is an answer to a request for one, mostly of the form that it wants.
func (w *world) summary(d *draws, req *llm.Request) []llm.Part {
	var b strings.Builder
	for line := range strings.SplitSeq(req.Messages[0].Parts[0].Text, "\n") {
		if strings.HasPrefix(line, "## ") && !strings.Contains(line, "{") {
			fmt.Fprintf(&b, "%s\nnone\n\n", line)
		}
	}
	text := b.String()
	if d.below(6) == 0 {
		text = "I would rather talk."
	}
	list := []llm.Part{{Kind: llm.TextStart}, {Kind: llm.TextDelta, Text: text}, {Kind: llm.TextEnd}}
	if d.below(6) == 0 {
		list = append(list, llm.Part{Kind: llm.ToolInputStart, Index: 1, Name: "charge"}, llm.Part{Kind: llm.ToolCallWhole, Index: 1, Name: "charge", Text: `{"tag":1}`})
	}
	return append(list, llm.Part{Kind: llm.Finish, Reason: llm.FinishStop})
}

// text is an answer proper: under a contract mostly one that meets it.
func (w *world) text(d *draws, req *llm.Request) string {
	if req.Output == nil {
		times := 1
		if d.below(12) == 0 {
			times = 600 // past what stands in an event
		}
		mark := d.below(1 << 30) // so that no two halves are equal
		return fmt.Sprintf("answer %d to %s%s, answer %d", mark, task(req), strings.Repeat(" and so on", times), mark)
	}
	field := "n"
	if bytes.Contains(req.Output, []byte(`"m"`)) {
		field = "m"
	}
	switch d.below(5) {
	case 0:
		return "not yet"
	case 1:
		return `{"n":"wrong"}`
	case 2:
		return fmt.Sprintf("```json\n{ %q : %d }\n```", field, d.below(100))
	}
	return fmt.Sprintf(`{%q:%d}`, field, d.below(100))
}

// task is the text of the last user message that is no request to repair.
func task(req *llm.Request) string {
	for _, m := range slices.Backward(req.Messages) {
		if m.Role != llm.User {
			continue
		}
		for _, p := range slices.Backward(m.Parts) {
			if !strings.HasPrefix(p.Text, "Your last answer") {
				return p.Text
			}
		}
	}
	return ""
}

// unpaired says how a request breaks what vendors demand of calls and results.
func unpaired(req *llm.Request) string {
	var open []string
	seen := map[string]bool{}
	for _, m := range req.Messages {
		if (m.Role == llm.Tool) != (len(open) > 0) {
			return "a tool message does not stand right behind its calls"
		}
		var results, calls []string
		for _, c := range m.Parts {
			switch c.Kind {
			case llm.ToolCall:
				if seen[c.CallID] {
					return "a call stands twice"
				}
				seen[c.CallID] = true
				calls = append(calls, c.CallID)
			case llm.ToolResult:
				results = append(results, c.CallID)
			}
		}
		if m.Role == llm.Tool && !slices.Equal(results, open) {
			return "results are not those of the calls, in their order"
		}
		open = calls
	}
	if len(open) > 0 {
		return "a call has no result"
	}
	return ""
}

// hand is a tool of the world as one node reaches it.
type hand struct {
	w   *world
	n   *node
	def tool.Definition
}

var toolSchema = canonjson.Value(`{"properties":{"tag":{"type":"number"}},"required":["tag"],"type":"object"}`)

func (w *world) tools(n *node) []tool.Tool {
	var list []tool.Tool
	for _, d := range []tool.Definition{
		{Name: "think", Level: tool.None, Source: tool.Local},
		{Name: "look", Level: tool.Read, Source: tool.Local},
		{Name: "note", Level: tool.Write, Source: tool.Local, Confined: true},
		{Name: "charge", Level: tool.ExternalEffect, Source: tool.HTTP, Policy: tool.Allow},
		{Name: "pay", Level: tool.ExternalEffect, Source: tool.HTTP, Policy: tool.Allow, Idempotent: true},
		{Name: "mail", Level: tool.Irreversible, Source: tool.HTTP},
	} {
		d.InputSchema, d.TimeoutMS = toolSchema, 6000
		list = append(list, &hand{w, n, d})
	}
	return list
}

// Definition says what the tool is.
func (h *hand) Definition() tool.Definition { return h.def }

// Run has its effect when its request has its turn, and answers when that has;
// it may fail to say what it did.
func (h *hand) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	w, n := h.w, h.n
	if ctx.Err() != nil || n.gone() {
		return tool.Result{}, context.Canceled
	}
	id := event.CallID(c.CallID)
	w.h.watch.starting(n, event.SessionID(c.SessionID), id)
	w.mu.Lock()
	w.runs[c.CallID]++
	d := w.draw("tool", h.def.Name, string(c.Input), w.runs[c.CallID])
	w.mu.Unlock()
	fate := d.below(20)
	v := w.h.sched.park(ctx, n, outside, name(ctx, n, "tool", id, h.def.Name, "ask"))
	if v == gone && d.below(2) == 0 || v != gone && ctx.Err() != nil && d.below(3) == 0 {
		h.effect(c.CallID) // the request was on its way
		return tool.Result{}, tool.ErrOutcomeUnknown
	}
	if v == gone || ctx.Err() != nil {
		return tool.Result{}, context.Canceled // it was never sent
	}
	w.mu.Lock()
	refused := !w.calm && fate == 0 && w.effects[c.CallID] == 0 // what happened once is not refused under the same key
	w.mu.Unlock()
	if refused {
		return tool.Result{}, tool.NewError("refused", nil)
	}
	h.effect(c.CallID)
	v = w.h.sched.park(ctx, n, outside, name(ctx, n, "tool", id, h.def.Name, "answer"))
	switch {
	case v == gone:
		return tool.Result{}, tool.ErrOutcomeUnknown
	case ctx.Err() != nil && d.below(3) > 0: // else it answers late
		return tool.Result{}, fmt.Errorf("%w: %w", tool.ErrOutcomeUnknown, ctx.Err())
	case w.isCalm():
	case v == cut, fate == 1:
		return tool.Result{}, tool.ErrOutcomeUnknown
	case fate == 2:
		panic("the world breaks")
	case fate == 3:
		<-ctx.Done() // until it is timed out
		return tool.Result{}, ctx.Err()
	}
	return tool.Result{Output: strings.Repeat("result ", 1+d.below(20)/19*4000)}, nil
}

func (h *hand) effect(id string) {
	h.w.mu.Lock()
	if !h.def.Idempotent || h.w.effects[id] == 0 {
		h.w.effects[id]++
	}
	n := h.w.effects[id]
	h.w.mu.Unlock()
	if n > 1 && !h.def.Level.Repeatable() {
		h.w.h.watch.find("I-13: %s had its effect %d times", id, n)
	}
}

// failingSends is how many messages a receiver gets before it takes all that come
// once nothing else fails any more: what a run sends is mostly sent by then.
const failingSends = 8

// send is the receiver of every target, as one node reaches it.
func (w *world) send(n *node, ctx context.Context, m delivery.Message) delivery.Result {
	if ctx.Err() != nil || n.gone() {
		return delivery.Result{Code: "timeout"}
	}
	w.h.watch.sending(n, m)
	w.mu.Lock()
	w.sends[m.Target.URL]++
	r := w.received[m.ID]
	if r == nil {
		r = &received{body: slices.Clone(m.Body)}
		w.received[m.ID] = r
	}
	same := bytes.Equal(r.body, m.Body)
	d, calm := w.draw("send", m.Target.URL, w.sends[m.Target.URL]), w.calm && w.sends[m.Target.URL] > failingSends
	w.mu.Unlock()
	if !same {
		w.h.watch.find("I-26: the bytes of %s changed", m.ID)
	}
	v := w.h.sched.park(ctx, n, outside, name(ctx, n, "send", m.ID))
	fate := d.below(10)
	switch {
	case v == gone && fate < 5, ctx.Err() != nil:
		return delivery.Result{Code: "timeout"}
	case calm:
		fate = 9
	case v == cut:
		fate = 4
	}
	switch fate {
	case 0: // it hangs, or the connection is refused
		if d.below(2) == 0 {
			<-ctx.Done()
			return delivery.Result{Code: "timeout"}
		}
		return delivery.Result{Code: "connection"}
	case 1:
		return delivery.Result{Code: "http_500", Status: 500, Excerpt: []byte("no: " + m.ID)}
	case 2:
		return delivery.Result{Code: "http_429", Status: 429, RetryAfter: time.Duration(d.below(60)) * time.Second}
	case 3:
		return delivery.Result{Code: "http_410", Status: 410, Gone: true}
	}
	if !calm && w.draw("refused", m.ID).below(3) == 0 { // until all is calm, and it is replayed
		return delivery.Result{Code: "http_422", Status: 422}
	}
	w.mu.Lock()
	r.accepted++
	w.mu.Unlock()
	if fate == 4 { // it took the message, and its answer is lost
		<-ctx.Done()
		return delivery.Result{Code: "timeout"}
	}
	return delivery.Result{Delivered: true, Status: 200}
}

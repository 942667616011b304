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

// world is everything outside of the house: it outlives every crash, answers
// by the seed and what it is asked alone, and counts.
type world struct {
	seed int64

	mu       sync.Mutex
	found    []string
	asked    map[string]int // model calls, by session
	runs     map[string]int // of a tool, by call id
	effects  map[string]int // of a tool, by call id
	received map[event.DeliveryID]*received
	sends    map[string]int // by address
	calm     bool           // nothing fails any more
	log      lastWords
}

// lastWords keeps the last lines of the rooms' log.
type lastWords struct {
	mu    sync.Mutex
	lines []string
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines = append(l.lines, string(p)); len(l.lines) > 40 {
		l.lines = l.lines[1:]
	}
	return len(p), nil
}

func (l *lastWords) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}

// received is what the receiver knows of a delivery.
type received struct {
	body     []byte
	attempts int
	accepted int
}

func newWorld(seed int64) *world {
	return &world{
		seed: seed, asked: map[string]int{}, runs: map[string]int{}, effects: map[string]int{},
		received: map[event.DeliveryID]*received{}, sends: map[string]int{},
	}
}

func (w *world) find(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.found) < 20 {
		w.found = append(w.found, fmt.Sprintf(format, args...))
	}
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

func (d *draws) wait(ctx context.Context, most time.Duration) error {
	t := time.NewTimer(time.Duration(d.below(int(most/time.Millisecond)+1)) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stream is the model: its answer is a function of the request and the seed.
func (w *world) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	w.mu.Lock()
	w.asked[req.SessionID]++
	calm := w.calm
	w.mu.Unlock()
	if text := unpaired(req); text != "" {
		w.find("I-13: %s: %+v", text, req.Messages)
	}
	d := w.draw("model", task(req), req.Turn, req.Attempt, req.Repair, len(req.Messages))
	aborted := func(err error) error { return llm.Errorf(llm.Aborted, "stopped").Because(err) }
	if err := d.wait(ctx, 3*time.Second); err != nil {
		return aborted(err)
	}
	give := func(list ...llm.Part) error {
		for _, p := range list {
			if err := yield(p); err != nil {
				return err
			}
		}
		return nil
	}
	if n := d.below(100); !calm && n < 14 {
		classes := []llm.Class{llm.RateLimit, llm.Overloaded, llm.Transport, llm.Server, llm.Auth}
		e := llm.Errorf(classes[d.below(len(classes))], "the world says so")
		if d.below(2) == 0 {
			e.RetryAfter = time.Duration(d.below(30)) * time.Second
		}
		if n < 4 {
			if err := give(llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: "broken off"}); err != nil {
				return err
			}
		}
		return e
	}
	list := w.answer(d, req)
	for _, p := range list {
		if err := yield(p); err != nil {
			return err
		}
		if d.below(6) == 0 {
			if err := d.wait(ctx, time.Second); err != nil {
				return aborted(err)
			}
		}
	}
	return nil
}

func (w *world) answer(d *draws, req *llm.Request) []llm.Part {
	calls := 0
	if n := d.below(100); !req.NoTools && n < 55 || n < 10 {
		calls = []int{1, 2, 3, 4, 11, 11}[d.below(6)]
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
		names := []string{"think", "look", "look", "note", "charge", "pay", "mail", "unheard_of"}
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

// text is an answer proper: under a contract mostly one that meets it.
func (w *world) text(d *draws, req *llm.Request) string {
	if req.Output == nil {
		return strings.Repeat("an answer to "+task(req)+" ", 1+d.below(3)*d.below(400))
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

// hand is a tool of the world.
type hand struct {
	w   *world
	def tool.Definition
}

func (w *world) tools() []tool.Tool {
	schema := canonjson.Value(`{"properties":{"tag":{"type":"number"}},"required":["tag"],"type":"object"}`)
	var list []tool.Tool
	for _, d := range []tool.Definition{
		{Name: "think", Level: tool.None, Source: tool.Local},
		{Name: "look", Level: tool.Read, Source: tool.Local},
		{Name: "note", Level: tool.Write, Source: tool.Local, Confined: true},
		{Name: "charge", Level: tool.ExternalEffect, Source: tool.HTTP, Policy: tool.Allow},
		{Name: "pay", Level: tool.ExternalEffect, Source: tool.HTTP, Policy: tool.Allow, Idempotent: true},
		{Name: "mail", Level: tool.Irreversible, Source: tool.HTTP},
	} {
		d.InputSchema, d.TimeoutMS = schema, 6000
		list = append(list, &hand{w, d})
	}
	return list
}

func (h *hand) Definition() tool.Definition { return h.def }

// Run has its effect somewhere in the middle, and then may fail to say so.
func (h *hand) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	h.w.mu.Lock()
	h.w.runs[c.CallID]++
	n, calm := h.w.runs[c.CallID], h.w.calm
	h.w.mu.Unlock()
	d := h.w.draw("tool", h.def.Name, string(c.Input), n)
	if err := d.wait(ctx, 3*time.Second); err != nil {
		return tool.Result{}, err
	}
	fate := d.below(20)
	h.w.mu.Lock()
	if !calm && fate == 0 && h.w.effects[c.CallID] == 0 { // what happened once is not refused under the same key
		h.w.mu.Unlock()
		return tool.Result{}, tool.NewError("refused", nil)
	}
	if !h.def.Idempotent || h.w.effects[c.CallID] == 0 {
		h.w.effects[c.CallID]++
	}
	h.w.mu.Unlock()
	if err := d.wait(ctx, 4*time.Second); err != nil {
		return tool.Result{}, fmt.Errorf("%w: %w", tool.ErrOutcomeUnknown, err)
	}
	switch {
	case calm:
	case fate == 1:
		return tool.Result{}, tool.ErrOutcomeUnknown
	case fate == 2:
		panic("the world breaks")
	case fate == 3:
		<-ctx.Done() // until it is timed out
		return tool.Result{}, ctx.Err()
	}
	return tool.Result{Output: strings.Repeat("result ", 1+d.below(3)*d.below(4000))}, nil
}

// send is the receiver of every target.
func (w *world) send(ctx context.Context, m delivery.Message) delivery.Result {
	w.mu.Lock()
	w.sends[m.Target.URL]++
	r := w.received[m.ID]
	if r == nil {
		r = &received{body: slices.Clone(m.Body)}
		w.received[m.ID] = r
	}
	r.attempts++
	same := bytes.Equal(r.body, m.Body)
	d, calm := w.draw("send", m.Target.URL, w.sends[m.Target.URL]), w.calm
	w.mu.Unlock()
	if !same {
		w.find("I-26: the bytes of %s changed", m.ID)
	}
	if d.wait(ctx, 2*time.Second) != nil {
		return delivery.Result{Code: "timeout"}
	}
	fate := d.below(10)
	if calm {
		fate = 9
	}
	switch fate {
	case 0, 1:
		return delivery.Result{Code: "http_500", Status: 500}
	case 2:
		return delivery.Result{Code: "http_429", Status: 429, RetryAfter: time.Duration(d.below(60)) * time.Second}
	case 3:
		return delivery.Result{Code: "http_410", Status: 410, Permanent: true}
	}
	w.mu.Lock()
	r.accepted++
	w.mu.Unlock()
	switch fate {
	case 4: // it took the message, and its answer is lost
		<-ctx.Done()
		return delivery.Result{Code: "timeout"}
	}
	return delivery.Result{Delivered: true, Status: 200}
}

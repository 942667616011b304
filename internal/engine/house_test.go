package engine_test

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// strict is what the strictest vendor does to a request: every call has exactly
// one result, in the message right behind it, in call order (I-13).
type strict struct {
	t     *testing.T
	model llm.Model
}

func (m strict) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	if text := unpaired(req); text != "" {
		m.t.Errorf("I-13: %s in %+v", text, req.Messages)
	}
	return m.model.Stream(ctx, req, yield)
}

func unpaired(req *llm.Request) string {
	seen := map[string]bool{}
	var open []string
	if len(req.Messages) == 0 || req.Messages[0].Role != llm.User {
		return "the conversation does not begin with a user"
	}
	for _, m := range req.Messages {
		if (m.Role == llm.Tool) != (len(open) > 0) {
			return "a tool message does not stand right behind its calls"
		}
		var results, calls []string
		for _, c := range m.Parts {
			switch c.Kind {
			case llm.ToolCall:
				if seen[c.CallID] || !strings.HasPrefix(c.Text, "{") {
					return "a call that stands twice or has no object"
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

// play is a model that gives its answers one after the other, the last one
// again and again, and keeps the requests.
type play struct {
	mu    sync.Mutex
	steps []step
	reqs  []*llm.Request
}

type step func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error

func (p *play) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	p.mu.Lock()
	s := p.steps[min(len(p.reqs), len(p.steps)-1)]
	p.reqs = append(p.reqs, req)
	p.mu.Unlock()
	return s(ctx, req, yield)
}

func (p *play) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.reqs)
}

// results are the texts of the tool results in the last message of request n, from 0.
func (p *play) results(n int) []string {
	var out []string
	msgs := p.reqs[n].Messages
	for _, c := range msgs[len(msgs)-1].Parts {
		if c.Kind == llm.ToolResult {
			out = append(out, c.Text)
		}
	}
	return out
}

func parts(list ...llm.Part) step {
	return func(_ context.Context, _ *llm.Request, yield func(llm.Part) error) error {
		for _, p := range list {
			if err := yield(p); err != nil {
				return err
			}
		}
		return nil
	}
}

func say(text string) step {
	return parts(
		llm.Part{Kind: llm.TextStart}, llm.Part{Kind: llm.TextDelta, Text: text}, llm.Part{Kind: llm.TextEnd},
		llm.Part{Kind: llm.UsagePart, Usage: &llm.Usage{Input: 1, Output: 1}}, llm.Part{Kind: llm.Finish, Reason: llm.FinishStop})
}

// call asks for tools: names and arguments in turn.
func call(pairs ...string) step {
	var list []llm.Part
	for i := 0; i < len(pairs); i += 2 {
		list = append(list,
			llm.Part{Kind: llm.ToolInputStart, Index: i / 2, Name: pairs[i]},
			llm.Part{Kind: llm.ToolCallWhole, Index: i / 2, Name: pairs[i], Text: pairs[i+1]})
	}
	return parts(append(list, llm.Part{Kind: llm.Finish, Reason: llm.FinishTools})...)
}

func breaks(err error, before ...llm.Part) step {
	return func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
		if e := parts(before...)(ctx, req, yield); e != nil {
			return e
		}
		return err
	}
}

// hangs gives some parts and then nothing until it is stopped.
func hangs(before ...llm.Part) step {
	return func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
		if err := parts(before...)(ctx, req, yield); err != nil {
			return err
		}
		<-ctx.Done()
		return llm.Errorf(llm.Aborted, "stopped").Because(ctx.Err())
	}
}

func after(d time.Duration, s step) step {
	return func(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
		select {
		case <-time.After(d):
			return s(ctx, req, yield)
		case <-ctx.Done():
			return llm.Errorf(llm.Aborted, "stopped").Because(ctx.Err())
		}
	}
}

// fake is a tool that does what a test says, and counts.
type fake struct {
	def tool.Definition
	run func(context.Context, tool.Call) (tool.Result, error)
	mu  sync.Mutex
	ids []string // of the calls that ran
}

func newFake(name string, level tool.Level, run func(context.Context, tool.Call) (tool.Result, error)) *fake {
	return &fake{run: run, def: tool.Definition{
		Name: name, Level: level, Policy: tool.Allow, Source: tool.Local, InputSchema: canonjson.Value(`{"type":"object"}`),
	}}
}

func (f *fake) Definition() tool.Definition { return f.def }

func (f *fake) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	f.mu.Lock()
	f.ids = append(f.ids, c.CallID)
	f.mu.Unlock()
	return f.run(ctx, c)
}

func (f *fake) runs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids)
}

func gives(text string) func(context.Context, tool.Call) (tool.Result, error) {
	return func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{Output: text}, nil }
}

// waits is a tool that needs a while, and can be stopped.
func waits(d time.Duration, text string) func(context.Context, tool.Call) (tool.Result, error) {
	return func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		select {
		case <-time.After(d):
			return tool.Result{Output: text}, nil
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	}
}

// staged is a house whose model plays steps.
func staged(t *testing.T, steps []step, tools ...tool.Tool) (*house, *play) {
	t.Helper()
	h := newHouse(t, `rules: [{reply: {text: "unused"}}]`, tools...)
	p := &play{steps: steps}
	h.model = p
	return h, p
}

// life is one process life that works on a session.
type life struct {
	h        *house
	id       event.SessionID
	bell     chan struct{}
	draining chan struct{}
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
}

// begin works on a session in the background, as a lane would.
func (h *house) begin(eng *engine.Engine, id event.SessionID) *life {
	return h.beginUnder(eng, id, forever{})
}

// beginUnder works under a lease.
func (h *house) beginUnder(eng *engine.Engine, id event.SessionID, term eventlog.Term) *life {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{h: h, id: id, bell: make(chan struct{}, 1), draining: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		st, err := eng.Load(ctx, id)
		for err == nil {
			var due time.Time
			if st, due, _, err = eng.Drive(ctx, term, st, nil, l.bell, l.draining); err != nil {
				break
			}
			var timer <-chan time.Time
			if !due.IsZero() {
				timer = time.After(time.Until(due))
			}
			select {
			case <-timer:
			case <-l.bell:
			case <-l.draining:
				return
			case <-ctx.Done():
				return
			}
		}
		l.err = err
	}()
	return l
}

func (l *life) ring() {
	select {
	case l.bell <- struct{}{}:
	default:
	}
}

// kill ends the life without a goodbye and waits until it is gone.
func (l *life) kill() {
	l.cancel()
	<-l.done
}

// drain ends the life in order.
func (l *life) drain() {
	close(l.draining)
	<-l.done
	l.cancel()
}

// events reads a whole stream, decoded.
func (h *house) events(s event.Stream) []event.Event {
	h.t.Helper()
	events, err := h.store.Read(context.Background(), s, 0, 10_000)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range events {
		if err := events[i].Decode(); err != nil {
			h.t.Fatal(err)
		}
	}
	return events
}

// all gives the data of one type in a session's stream, in order.
func all[T event.Data](h *house, id event.SessionID) []T {
	h.t.Helper()
	var out []T
	for _, e := range h.events(id.Stream()) {
		if d, ok := e.Data.(T); ok {
			out = append(out, d)
		}
	}
	return out
}

// status checks where a run stands.
func (h *house) status(id event.RunID, want string) {
	h.t.Helper()
	if row := h.run(id); row.Status != want {
		h.t.Fatalf("the run is %s (%s %s), want %s", row.Status, row.ErrorCode, row.ErrorMessage, want)
	}
}

func (h *house) verify() {
	h.t.Helper()
	report, err := h.store.Verify(context.Background(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		h.t.Errorf("verify: %v %+v", err, report.Findings)
	}
}

// other is the engine of another process life, on the same log.
func (h *house) other(owner string, tools ...tool.Tool) *engine.Engine {
	h.t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.engine(set, owner)
}

// faulty stands between an engine and the log and fails when it is told to.
type faulty struct {
	engine.Log
	mu     sync.Mutex
	append func(a eventlog.Append) (before, after error)
	read   func() error
}

var errFault = errors.New("a fault that was put in")

func (f *faulty) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	f.mu.Lock()
	hook := f.append
	f.mu.Unlock()
	var before, after error
	if hook != nil {
		before, after = hook(a)
	}
	if before != nil {
		return nil, before
	}
	stamps, err := f.Log.Append(ctx, a)
	if err == nil && after != nil {
		return nil, after
	}
	return stamps, err
}

func (f *faulty) Read(ctx context.Context, s event.Stream, from int64, limit int) ([]event.Event, error) {
	f.mu.Lock()
	hook := f.read
	f.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return nil, err
		}
	}
	return f.Log.Read(ctx, s, from, limit)
}

func (f *faulty) set(append func(eventlog.Append) (error, error), read func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.append, f.read = append, read
}

// faultyEngine is an engine over a faulty log.
func (h *house) faultyEngine(owner string, tools ...tool.Tool) (*engine.Engine, *faulty) {
	h.t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		h.t.Fatal(err)
	}
	f := &faulty{Log: h.store}
	return engine.New(engine.Config{
		Log: f, Hub: &h.hub, Tools: set, Node: eventlog.NodeID(owner), Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil },
	}), f
}

// has says whether an append holds an event of a type.
func has(a eventlog.Append, types ...event.Type) bool {
	for _, e := range a.Entries {
		for i := range e.Events {
			if slices.Contains(types, e.Events[i].Data.EventType()) {
				return true
			}
		}
	}
	return false
}

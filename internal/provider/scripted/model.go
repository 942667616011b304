// Package scripted is a model that answers by a script: rules in YAML, the
// first that matches answers. People test their sessions, contracts and tools
// with it without a vendor; the demo runs on it.
//
// An answer is a function of the request alone: a restart, a second node or a
// replayed step gets the same one.
package scripted

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Model plays one script. It is safe for concurrent use.
type Model struct {
	rules []rule
}

var _ llm.Model = (*Model)(nil)

// rule is a checked rule.
type rule struct {
	when  when
	reply reply
}

// when holds the conditions of a rule; a nil one is not asked.
type when struct {
	Contains   *string `yaml:"contains"`
	Turn       *int    `yaml:"turn"`
	Attempt    *int    `yaml:"attempt"`
	Repair     *int    `yaml:"repair"`
	ToolResult *string `yaml:"tool_result"`
	System     *string `yaml:"system"`
}

type reply struct {
	text   []string // the deltas
	calls  []call
	delay  time.Duration
	usage  *llm.Usage
	finish llm.FinishReason
	err    *llm.Error // instead of the finish
}

type call struct {
	name      string
	arguments string
}

// Stream implements llm.Model.
//
// The conditions of a rule: `contains` looks into the task, the last user
// message that is no note of the daemon's and no repair message (on repair turn
// n the last n user messages are); `tool_result` into the results of the last tool message behind the
// task; `system` into the system text; `turn`, `attempt` and `repair` are
// equal to the request's. All that are given must hold. Without a matching
// rule the error is of class invalid_request.
func (m *Model) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	if err := stopped(ctx); err != nil {
		return err
	}
	i := slices.IndexFunc(m.rules, func(r rule) bool { return r.when.holds(req) })
	if i < 0 {
		return llm.Errorf(llm.InvalidRequest, "no rule of the script answers turn %d (attempt %d, repair %d)",
			req.Turn, req.Attempt, req.Repair)
	}
	r := m.rules[i].reply
	if r.delay > 0 {
		timer := time.NewTimer(r.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return stopped(ctx)
		}
	}
	for _, p := range r.parts() {
		if err := stopped(ctx); err != nil {
			return err
		}
		if err := yield(p); err != nil {
			return err
		}
	}
	if r.err != nil {
		e := *r.err
		return &e
	}
	return nil
}

// parts gives the parts of a reply, up to its finish or its error.
func (r *reply) parts() []llm.Part {
	var out []llm.Part
	index := 0
	if len(r.text) > 0 {
		out = append(out, llm.Part{Kind: llm.TextStart})
		for _, t := range r.text {
			out = append(out, llm.Part{Kind: llm.TextDelta, Text: t})
		}
		index++
		if r.err != nil { // it breaks in the middle of the text
			return out
		}
		out = append(out, llm.Part{Kind: llm.TextEnd})
	}
	if r.err != nil {
		return out
	}
	for _, c := range r.calls {
		out = append(out,
			llm.Part{Kind: llm.ToolInputStart, Index: index, Name: c.name},
			llm.Part{Kind: llm.ToolInputDelta, Index: index, Text: c.arguments},
			llm.Part{Kind: llm.ToolCallWhole, Index: index, Name: c.name, Text: c.arguments})
		index++
	}
	last := max(0, index-1)
	if r.usage != nil {
		u := *r.usage
		out = append(out, llm.Part{Kind: llm.UsagePart, Index: last, Usage: &u})
	}
	return append(out, llm.Part{Kind: llm.Finish, Index: last, Reason: r.finish, Raw: string(r.finish)})
}

func (w *when) holds(req *llm.Request) bool {
	task := taskAt(req)
	return is(w.Turn, req.Turn) && is(w.Attempt, req.Attempt) && is(w.Repair, req.Repair) &&
		(w.System == nil || strings.Contains(req.System, *w.System)) &&
		(w.Contains == nil || task >= 0 && holdsText(req.Messages[task], llm.Text, *w.Contains)) &&
		(w.ToolResult == nil || resultHolds(req.Messages[task+1:], *w.ToolResult))
}

func is(want *int, got int) bool { return want == nil || *want == got }

// taskAt gives the place of the last user message that is no repair message, -1 if none.
func taskAt(req *llm.Request) int {
	skip := req.Repair
	for i := len(req.Messages) - 1; i >= 0; i-- {
		if m := &req.Messages[i]; m.Role != llm.User || !slices.ContainsFunc(m.Parts, func(c llm.Content) bool { return !c.Note }) {
			continue
		}
		if skip <= 0 {
			return i
		}
		skip--
	}
	return -1
}

func resultHolds(messages []llm.Message, text string) bool {
	for _, m := range slices.Backward(messages) {
		if m.Role == llm.Tool {
			return holdsText(m, llm.ToolResult, text)
		}
	}
	return false
}

func holdsText(m llm.Message, kind llm.ContentKind, text string) bool {
	return slices.ContainsFunc(m.Parts, func(c llm.Content) bool { return c.Kind == kind && strings.Contains(c.Text, text) })
}

func stopped(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
	}
	return nil
}

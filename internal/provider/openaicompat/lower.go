package openaicompat

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// lowering turns neutral messages into the dialect's. Call ids are made from
// the position of the call in the transcript: nine letters and digits, which
// every known server takes, and the same on each request with this history.
type lowering struct {
	maker       string
	caps        llm.Capabilities
	system      string // the role of the system text
	placeholder bool   // reasoning_content is demanded with calls
	out         []chatMessage
	calls       int
	waiting     map[string]string // call id → wire id, of the last assistant message
	order       []string          // the call ids of waiting, in call order
}

// What stands in for the reasoning of a call that another model made, and what
// is asked of a model to go on, since this dialect has no word for a pause.
const (
	noReasoning = "(The reasoning behind this call was not recorded.)"
	goOn        = "Continue."
)

// history lowers the system text and all messages.
func (l *lowering) history(req *llm.Request) error {
	if strings.TrimSpace(req.System) != "" {
		l.out = append(l.out, chatMessage{Role: l.system, Content: req.System})
	}
	for _, msg := range req.Messages {
		if err := l.message(msg); err != nil {
			return err
		}
	}
	if len(l.waiting) > 0 {
		return llm.Errorf(llm.InvalidRequest, "the history ends with tool calls that have no results")
	}
	if n := len(l.out); req.Continues && n > 0 && l.out[n-1].Role == "assistant" {
		l.say("user", goOn)
	}
	return nil
}

func (l *lowering) message(msg llm.Message) error {
	if len(l.waiting) > 0 && msg.Role != llm.Tool {
		return llm.Errorf(llm.InvalidRequest, "tool calls have no results right behind them")
	}
	switch msg.Role {
	case llm.User:
		return l.user(msg.Parts)
	case llm.Assistant:
		return l.assistant(msg.Parts)
	case llm.Tool:
		return l.results(msg.Parts)
	}
	return llm.Errorf(llm.InvalidRequest, "a message has the unknown role %q", cutWord(string(msg.Role)))
}

// user adds what a user said. A message of text only is a plain string, which
// every server takes.
func (l *lowering) user(parts []llm.Content) error {
	list, err := l.userParts(parts)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return nil
	}
	n := len(l.out)
	if n > 0 && l.out[n-1].Role == "user" {
		before, ok := l.out[n-1].Content.([]chatPart)
		if !ok {
			text, _ := l.out[n-1].Content.(string)
			before = []chatPart{{Type: "text", Text: text}}
		}
		if last := &before[len(before)-1]; last.Type == "text" && list[0].Type == "text" {
			last.Text += "\n\n" + list[0].Text
			list = list[1:]
		}
		list = append(before, list...)
		l.out = l.out[:n-1]
	}
	if len(list) == 1 && list[0].Type == "text" {
		l.out = append(l.out, chatMessage{Role: "user", Content: list[0].Text})
	} else {
		l.out = append(l.out, chatMessage{Role: "user", Content: list})
	}
	return nil
}

// say adds text. Neighbours of one role become one message, and an empty one
// is left out, because templates of local models refuse both.
func (l *lowering) say(role, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	if n := len(l.out); n > 0 && l.out[n-1].Role == role && l.out[n-1].ToolCalls == nil {
		if before, ok := l.out[n-1].Content.(string); ok {
			l.out[n-1].Content = before + "\n\n" + text
			return
		}
	}
	l.out = append(l.out, chatMessage{Role: role, Content: text})
}

func (l *lowering) assistant(parts []llm.Content) error {
	text := joinText(parts)
	var calls []chatCall
	var back returned
	waiting, order := map[string]string{}, []string(nil)
	for _, p := range parts {
		switch p.Kind {
		case llm.ToolCall:
			if _, twice := waiting[p.CallID]; twice {
				return llm.Errorf(llm.InvalidRequest, "a call id stands twice in one message")
			}
			l.calls++
			id := fmt.Sprintf("call%05d", l.calls%100_000)
			waiting[p.CallID], order = id, append(order, p.CallID)
			calls = append(calls, chatCall{ID: id, Type: "function", Function: chatCallBody{
				Name: callName(p.Name), Arguments: objectOrEmpty(p.Text),
			}})
		case llm.Reasoning:
			if raw := p.StateFor(l.maker); raw != nil {
				back.add(raw)
			}
		case llm.Image, llm.File:
			return llm.Errorf(llm.InvalidRequest, "an assistant message holds a file, which this dialect has no place for")
		}
	}
	details := back.list()
	if calls == nil {
		n := len(l.out)
		l.say("assistant", text)
		// The details are the router's own and stand with every message of
		// theirs; reasoning_content is wanted where tools were called.
		if len(l.out) > n {
			l.out[n].ReasoningDetails = details
		}
		return nil
	}
	l.waiting, l.order = waiting, order
	msg := chatMessage{Role: "assistant", ToolCalls: calls, ReasoningDetails: details}
	if details == nil {
		msg.ReasoningContent = back.content.String()
		if strings.TrimSpace(msg.ReasoningContent) == "" && l.placeholder {
			msg.ReasoningContent = noReasoning
		}
	}
	if strings.TrimSpace(text) != "" {
		msg.Content = text
	}
	l.out = append(l.out, msg)
	return nil
}

// results adds one message for each result, in call order.
func (l *lowering) results(parts []llm.Content) error {
	texts := map[string]string{}
	for _, p := range parts {
		if p.Kind != llm.ToolResult {
			continue
		}
		if _, known := l.waiting[p.CallID]; !known {
			return llm.Errorf(llm.InvalidRequest, "a tool result has no call right before it")
		}
		if _, twice := texts[p.CallID]; twice {
			return llm.Errorf(llm.InvalidRequest, "a tool call has two results")
		}
		texts[p.CallID] = resultText(p)
	}
	if len(texts) < len(l.waiting) {
		return llm.Errorf(llm.InvalidRequest, "a tool call has no result")
	}
	for _, id := range l.order {
		l.out = append(l.out, chatMessage{Role: "tool", Content: texts[id], ToolCallID: l.waiting[id]})
	}
	l.waiting, l.order = nil, nil
	return nil
}

// resultText: the dialect has no mark for errors, the text has to tell; and
// servers refuse empty messages.
func resultText(p llm.Content) string {
	switch {
	case strings.TrimSpace(p.Text) != "":
		return p.Text
	case p.IsError:
		return "(the tool failed and gave no message)"
	}
	return "(no output)"
}

// objectOrEmpty keeps a history sendable whatever a model once wrote as
// arguments: vendors refuse any that are not a JSON object.
func objectOrEmpty(args string) string {
	n, err := canonjson.ParseString(args, canonjson.Limits{Bytes: MaxAnswer, Tokens: MaxAnswer})
	if err != nil || n.Kind() != canonjson.Object {
		return "{}"
	}
	return args
}

// callName keeps a history sendable when a model once called a tool by a name
// that no tool can have: vendors take letters, digits, `_` and `-`, 64 at most.
func callName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	if name == "" {
		return "unnamed"
	}
	return name[:min(len(name), 64)]
}

func joinText(parts []llm.Content) string {
	var texts []string
	for _, p := range parts {
		if p.Kind == llm.Text && p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n\n")
}

package openaicompat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The request's body, in the order in which it is written: the same request
// gives the same bytes, so that prompt caches hit.
type (
	chatRequest struct {
		Model             string          `json:"model"`
		Messages          []chatMessage   `json:"messages"`
		Tools             []chatTool      `json:"tools,omitempty"`
		ParallelToolCalls *bool           `json:"parallel_tool_calls,omitempty"`
		ResponseFormat    *responseFormat `json:"response_format,omitempty"`
		MaxTokens         int             `json:"max_tokens,omitempty"`
		Stream            bool            `json:"stream"`
		StreamOptions     streamOptions   `json:"stream_options"`
	}
	streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	chatMessage struct {
		Role             string     `json:"role"`
		Content          *string    `json:"content"`
		ReasoningContent string     `json:"reasoning_content,omitempty"`
		ToolCalls        []chatCall `json:"tool_calls,omitempty"`
		ToolCallID       string     `json:"tool_call_id,omitempty"`
	}
	chatCall struct {
		ID       string       `json:"id"`
		Type     string       `json:"type"`
		Function chatCallBody `json:"function"`
	}
	chatCallBody struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	chatTool struct {
		Type     string       `json:"type"`
		Function chatFunction `json:"function"`
	}
	chatFunction struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	responseFormat struct {
		Type       string     `json:"type"`
		JSONSchema jsonSchema `json:"json_schema"`
	}
	jsonSchema struct {
		Name   string          `json:"name"`
		Strict bool            `json:"strict"`
		Schema json.RawMessage `json:"schema"`
	}
)

// encode gives the body for a request. Its errors are of class
// invalid_request: what the engine handed over is not fit to be sent.
func (m *Model) encode(req *llm.Request) ([]byte, error) {
	out := chatRequest{
		Model: req.Model, MaxTokens: req.MaxOutputTokens,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true},
	}
	if out.Model == "" {
		out.Model = m.cfg.Model
	}
	low := lowering{maker: m.cfg.Name + "/" + out.Model}
	low.system(req.System)
	for _, msg := range req.Messages {
		if err := low.message(msg); err != nil {
			return nil, err
		}
	}
	if len(low.waiting) > 0 {
		return nil, llm.Errorf(llm.InvalidRequest, "the history ends with tool calls that have no results")
	}
	out.Messages = low.out
	// Without tools nothing of theirs may be sent: servers refuse a choice or
	// parallel_tool_calls when there is no list, and take a history with calls.
	if !req.NoTools {
		for _, t := range req.Tools {
			params := json.RawMessage(t.InputSchema)
			if len(params) == 0 {
				params = json.RawMessage(`{"type":"object","properties":{}}`)
			}
			out.Tools = append(out.Tools, chatTool{Type: "function", Function: chatFunction{
				Name: t.Name, Description: t.Description, Parameters: params,
			}})
		}
	}
	if req.SerialTools && len(out.Tools) > 0 {
		out.ParallelToolCalls = new(bool)
	}
	if m.cfg.StructuredOutput && isObjectSchema(req.Output) {
		out.ResponseFormat = &responseFormat{Type: "json_schema", JSONSchema: jsonSchema{
			Name: "answer", Schema: json.RawMessage(req.Output),
		}}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the request cannot be written as JSON").Because(err)
	}
	if buf.Len() > MaxRequest {
		return nil, llm.Errorf(llm.InvalidRequest, "the request is larger than %d bytes", MaxRequest)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// isObjectSchema: vendors take a schema only when its root is an object.
func isObjectSchema(schema []byte) bool {
	var s struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(schema, &s) == nil && s.Type == "object"
}

// lowering turns neutral messages into the dialect's. Call ids are made from
// the position of the call in the transcript: nine letters and digits, which
// every known server takes, and the same on each request with this history.
type lowering struct {
	maker   string
	out     []chatMessage
	calls   int
	waiting map[string]string // call id → wire id, of the last assistant message
	order   []string          // the call ids of waiting, in call order
}

func (l *lowering) system(text string) {
	if text != "" {
		l.out = append(l.out, chatMessage{Role: "system", Content: &text})
	}
}

func (l *lowering) message(msg llm.Message) error {
	if len(l.waiting) > 0 && msg.Role != llm.Tool {
		return llm.Errorf(llm.InvalidRequest, "tool calls have no results right behind them")
	}
	switch msg.Role {
	case llm.User:
		l.say("user", joinText(msg.Parts))
		return nil
	case llm.Assistant:
		return l.assistant(msg.Parts)
	case llm.Tool:
		return l.results(msg.Parts)
	}
	return llm.Errorf(llm.InvalidRequest, "a message has the unknown role %q", cutWord(string(msg.Role)))
}

// say adds text. Neighbours of one role become one message, and an empty one
// is left out, because templates of local models refuse both.
func (l *lowering) say(role, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	if n := len(l.out); n > 0 && l.out[n-1].Role == role && l.out[n-1].ToolCalls == nil {
		text = *l.out[n-1].Content + "\n\n" + text
		l.out[n-1].Content = &text
		return
	}
	l.out = append(l.out, chatMessage{Role: role, Content: &text})
}

func (l *lowering) assistant(parts []llm.Content) error {
	text := joinText(parts)
	var calls []chatCall
	var reasoning strings.Builder
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
			if p.Maker == l.maker {
				reasoning.WriteString(reasoningState(p.State))
			}
		}
	}
	if calls == nil {
		l.say("assistant", text)
		return nil
	}
	l.waiting, l.order = waiting, order
	msg := chatMessage{Role: "assistant", ReasoningContent: reasoning.String(), ToolCalls: calls}
	if strings.TrimSpace(text) != "" {
		msg.Content = &text
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
		text := texts[id]
		l.out = append(l.out, chatMessage{Role: "tool", Content: &text, ToolCallID: l.waiting[id]})
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

// state is what Content.State holds of reasoning that came as
// reasoning_content. Reasoning that came in another field has no state: its
// vendors do not want it back.
type state struct {
	ReasoningContent string `json:"reasoning_content"`
}

func reasoningState(raw []byte) string {
	var s state
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s.ReasoningContent
}

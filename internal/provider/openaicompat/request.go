package openaicompat

import (
	"encoding/json"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/dialect"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// The request's body, in the order in which it is written: the same request
// gives the same bytes, so that prompt caches hit.
type (
	chatRequest struct {
		Model               string            `json:"model"`
		Messages            []chatMessage     `json:"messages"`
		Tools               []json.RawMessage `json:"tools,omitempty"`
		ToolChoice          string            `json:"tool_choice,omitempty"`
		ParallelToolCalls   *bool             `json:"parallel_tool_calls,omitempty"`
		ResponseFormat      *responseFormat   `json:"response_format,omitempty"`
		ReasoningEffort     string            `json:"reasoning_effort,omitempty"`
		Reasoning           *reasoningWish    `json:"reasoning,omitempty"`
		MaxTokens           int               `json:"max_tokens,omitempty"`
		MaxCompletionTokens int               `json:"max_completion_tokens,omitempty"`
		Stream              bool              `json:"stream"`
		StreamOptions       *streamOptions    `json:"stream_options,omitempty"`
		PromptCacheKey      string            `json:"prompt_cache_key,omitempty"`
	}
	reasoningWish struct {
		Effort    string `json:"effort,omitempty"`
		MaxTokens int    `json:"max_tokens,omitempty"`
	}
	streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	chatMessage struct {
		Role             string            `json:"role"`
		Content          any               `json:"content"` // nil, a string, or []chatPart
		ReasoningContent string            `json:"reasoning_content,omitempty"`
		ReasoningDetails []json.RawMessage `json:"reasoning_details,omitempty"`
		ToolCalls        []chatCall        `json:"tool_calls,omitempty"`
		ToolCallID       string            `json:"tool_call_id,omitempty"`
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
		Type       string      `json:"type"`
		JSONSchema *jsonSchema `json:"json_schema,omitempty"`
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
	out := chatRequest{Model: req.Model, Stream: true}
	if out.Model == "" {
		out.Model = m.cfg.Model
	}
	if !m.quirks.NoStreamOptions {
		out.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if m.cfg.Caps.PromptCache {
		out.PromptCacheKey = wire.CacheKey(req.SessionID)
	}
	low := lowering{
		maker: m.cfg.Name + "/" + out.Model, caps: m.cfg.Caps, system: "system",
		placeholder: m.quirks.demandsReasoning(out.Model),
	}
	if m.quirks.DeveloperRole {
		low.system = "developer"
	}
	if err := low.history(req); err != nil {
		return nil, err
	}
	out.Messages = low.out
	if err := m.tools(&out, req, low.calls > 0); err != nil {
		return nil, err
	}
	if len(out.Tools) == 0 || out.ToolChoice != "" || m.quirks.ToolsWithSchema {
		out.ResponseFormat = m.format(req, low.out)
	}
	m.limits(&out, req)
	body, err := marshal(out)
	if err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the request cannot be written as JSON").Because(err)
	}
	if len(body) > MaxRequest {
		return nil, llm.Errorf(llm.InvalidRequest, "the request is larger than %d bytes", MaxRequest)
	}
	return body, nil
}

// tools offers the tools, or withholds them: without tools nothing of theirs
// may be sent, because servers refuse a choice or parallel_tool_calls when
// there is no list, and take a history with calls.
func (m *Model) tools(out *chatRequest, req *llm.Request, called bool) error {
	if req.NoTools && !(m.quirks.ToolChoiceNone && called) {
		return nil
	}
	for _, t := range req.Tools {
		params, _ := dialect.OpenAITool(t.InputSchema)
		raw, err := marshal(chatTool{Type: "function", Function: chatFunction{
			Name: t.Name, Description: t.Description, Parameters: json.RawMessage(params),
		}})
		if err != nil {
			return llm.Errorf(llm.InvalidRequest, "a tool cannot be written as JSON").Because(err)
		}
		out.Tools = append(out.Tools, raw)
	}
	if req.NoTools {
		if len(out.Tools) > 0 {
			out.ToolChoice = "none"
		}
		return nil
	}
	if req.SerialTools && len(out.Tools) > 0 && !m.quirks.NoParallelToolCalls {
		out.ParallelToolCalls = new(bool)
	}
	for _, t := range m.cfg.HostedTools {
		out.Tools = append(out.Tools, json.RawMessage(t))
	}
	return nil
}

// format gives the native form of the output schema that the model takes, or
// nil: the schema then stands in the prompt only.
func (m *Model) format(req *llm.Request, sent []chatMessage) *responseFormat {
	mode := m.cfg.Caps.Structured
	if m.cfg.StructuredOutput {
		mode = llm.StructuredSchema
	}
	if req.Output == nil || mode != llm.StructuredSchema && mode != llm.StructuredObject {
		return nil
	}
	if mode == llm.StructuredSchema {
		if schema, ok := dialect.OpenAIOutput(req.Output); ok {
			return &responseFormat{Type: "json_schema", JSONSchema: &jsonSchema{Name: "answer", Strict: true, Schema: json.RawMessage(schema)}}
		}
	}
	// Vendors take json_object only when the word stands in some message.
	if isObjectSchema(req.Output) && saysJSON(sent) {
		return &responseFormat{Type: "json_object"}
	}
	return nil
}

func isObjectSchema(schema canonjson.Value) bool {
	n, err := schema.Node()
	if err != nil {
		return false
	}
	t, _ := n.Get("type")
	return t.Text() == "object"
}

func saysJSON(list []chatMessage) bool {
	says := func(text string) bool { return strings.Contains(strings.ToLower(text), "json") }
	for _, m := range list {
		switch c := m.Content.(type) {
		case string:
			if says(c) {
				return true
			}
		case []chatPart:
			for _, p := range c {
				if says(p.Text) {
					return true
				}
			}
		}
	}
	return false
}

// limits sets how long the answer and its thoughts may be.
func (m *Model) limits(out *chatRequest, req *llm.Request) {
	limit := req.MaxOutputTokens
	if limit == 0 {
		limit = m.cfg.MaxOutputTokens
	}
	if m.quirks.limitName(out.Model) == maxCompletionTokens {
		out.MaxCompletionTokens = limit
	} else {
		out.MaxTokens = limit
	}
	switch {
	case m.cfg.Effort == "" && m.cfg.ReasoningBudget == 0:
	case m.quirks.Reasoning == reasoningEffort:
		out.ReasoningEffort = m.cfg.Effort
	case m.cfg.ReasoningBudget > 0: // a router takes one of the two
		out.Reasoning = &reasoningWish{MaxTokens: m.cfg.ReasoningBudget}
	default:
		out.Reasoning = &reasoningWish{Effort: m.cfg.Effort}
	}
}

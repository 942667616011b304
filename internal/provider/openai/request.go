package openai

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/dialect"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// The request's body, in the order in which it is written: the same request
// gives the same bytes, so that prompt caches hit. The input stands between
// head and tail.
type (
	head struct {
		Model        string `json:"model"`
		Instructions string `json:"instructions,omitempty"`
	}
	tail struct {
		Tools             []json.RawMessage `json:"tools,omitempty"`
		ParallelToolCalls *bool             `json:"parallel_tool_calls,omitempty"`
		Text              *textConfig       `json:"text,omitempty"`
		Reasoning         *reasoning        `json:"reasoning,omitempty"`
		MaxOutputTokens   int               `json:"max_output_tokens,omitempty"`
		Include           []string          `json:"include,omitempty"`
		PromptCacheKey    string            `json:"prompt_cache_key,omitempty"`
		Store             bool              `json:"store"`
		Stream            bool              `json:"stream"`
	}
	function struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      bool            `json:"strict"` // the vendor's default is true
	}
	textConfig struct {
		Format format `json:"format"`
	}
	format struct {
		Type   string          `json:"type"`
		Name   string          `json:"name,omitempty"`
		Schema json.RawMessage `json:"schema,omitempty"`
		Strict bool            `json:"strict,omitempty"`
	}
	reasoning struct {
		Effort  string `json:"effort,omitempty"`
		Summary string `json:"summary,omitempty"`
	}
)

const emptyObject = `{"properties":{},"type":"object"}`

// encode gives the body for a request. Its errors are of class
// invalid_request: what the engine handed over is not fit to be sent.
func (m *Model) encode(req *llm.Request) ([]byte, error) {
	first := head{Model: req.Model, Instructions: req.System}
	if first.Model == "" {
		first.Model = m.cfg.Model
	}
	if strings.TrimSpace(first.Instructions) == "" {
		first.Instructions = ""
	}
	low := lowering{maker: m.cfg.Name + "/" + first.Model, caps: m.cfg.Caps, used: map[string]bool{}}
	for _, msg := range req.Messages {
		if err := low.message(msg); err != nil {
			return nil, err
		}
	}
	if len(low.waiting) > 0 {
		return nil, llm.Errorf(llm.InvalidRequest, "the history ends with tool calls that have no results")
	}
	last := tail{MaxOutputTokens: m.maxOutput(req), Stream: true}
	if m.cfg.Caps.PromptCache {
		last.PromptCacheKey = wire.CacheKey(req.SessionID)
	}
	if m.cfg.Caps.Reasoning || m.cfg.Effort != "" || m.cfg.Summary != "" {
		// Models that do not reason refuse both.
		last.Include = []string{"reasoning.encrypted_content"}
		if m.cfg.Effort != "" || m.cfg.Summary != "" {
			last.Reasoning = &reasoning{Effort: m.cfg.Effort, Summary: m.cfg.Summary}
		}
	}
	if err := m.tools(req, &last); err != nil {
		return nil, err
	}
	if f := m.format(req); f != nil {
		last.Text = &textConfig{Format: *f}
		if f.Type == "json_object" {
			if err := low.mentionJSON(); err != nil {
				return nil, err
			}
		}
	}
	input, err := low.finish()
	if err != nil {
		return nil, err
	}
	return join(first, input, last)
}

// join writes the body. The items stand in it as they are: the encoder would
// write state of the vendor's anew.
func join(first head, input [][]byte, last tail) ([]byte, error) {
	h, err := marshal(first)
	if err != nil {
		return nil, err
	}
	t, err := marshal(last)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	buf.Write(h[:len(h)-1])
	buf.WriteString(`,"input":[`)
	buf.Write(bytes.Join(input, []byte(",")))
	buf.WriteString(`],`)
	buf.Write(t[1:])
	if buf.Len() > MaxRequest {
		return nil, tooLarge()
	}
	return buf.Bytes(), nil
}

func tooLarge() error {
	return llm.Errorf(llm.InvalidRequest, "the request is larger than %d bytes", MaxRequest)
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the request cannot be written as JSON").Because(err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func (m *Model) maxOutput(req *llm.Request) int {
	n := req.MaxOutputTokens
	if n <= 0 {
		n = m.cfg.MaxOutputTokens
	}
	if n <= 0 {
		return 0
	}
	return max(n, minOutput)
}

// tools offers what the model may call. Without tools nothing of theirs is
// sent: the vendor takes a history with calls, and a model without a list has
// no way to call.
func (m *Model) tools(req *llm.Request, last *tail) error {
	if req.NoTools {
		return nil
	}
	for _, t := range req.Tools {
		params := json.RawMessage(emptyObject)
		if len(t.InputSchema) > 0 {
			schema, _ := dialect.OpenAITool(t.InputSchema)
			params = json.RawMessage(schema)
		}
		raw, err := marshal(function{Type: "function", Name: t.Name, Description: t.Description, Parameters: params})
		if err != nil {
			return err
		}
		last.Tools = append(last.Tools, raw)
	}
	for _, t := range m.cfg.HostedTools {
		last.Tools = append(last.Tools, json.RawMessage(t))
	}
	if req.SerialTools && len(last.Tools) > 0 {
		last.ParallelToolCalls = new(bool)
	}
	return nil
}

// format hands the output schema over in the strongest form that the model
// takes, nil for none.
func (m *Model) format(req *llm.Request) *format {
	mode := m.cfg.Caps.Structured
	if req.Output.IsZero() || mode != llm.StructuredSchema && mode != llm.StructuredObject {
		return nil
	}
	if mode == llm.StructuredSchema {
		if schema, ok := dialect.OpenAIOutput(req.Output); ok {
			return &format{Type: "json_schema", Name: "answer", Strict: true, Schema: json.RawMessage(schema)}
		}
	}
	var s struct {
		Type string `json:"type"`
	}
	if !parse(req.Output, &s) || s.Type != "object" || !req.NoTools && searchesWeb(m.cfg.HostedTools) {
		return nil
	}
	return &format{Type: "json_object"}
}

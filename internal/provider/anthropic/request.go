package anthropic

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/dialect"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// object writes a JSON object member by member. The order is fixed, so that
// the same request gives the same bytes, and values are written as they are.
type object []byte

func (o *object) add(name string, value []byte) {
	if len(*o) == 0 {
		*o = append(*o, '{')
	} else {
		*o = append(*o, ',')
	}
	*o = append(append(append(*o, marshal(name)...), ':'), value...)
}

func list[T any](items []T, write func(*T) []byte) []byte {
	out := []byte{'['}
	for i := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, write(&items[i])...)
	}
	return append(out, ']')
}

// encode gives the body for a request. Its errors are of class
// invalid_request: what the engine handed over is not fit to be sent.
func (m *Model) encode(req *llm.Request) ([]byte, error) {
	name := req.Model
	if name == "" {
		name = m.cfg.Model
	}
	low := newLowering(m.cfg.Name+"/"+name, m.cfg.Caps)
	if err := low.conversation(req.Messages, req.Continues); err != nil {
		return nil, err
	}
	tools := m.tools(req, low)
	limit := m.maxTokens(req)
	think, config := m.reasoning(low, limit)
	if last := low.turns[len(low.turns)-1]; last.role == user && m.cfg.Caps.Structured == llm.StructuredSchema && !req.Output.IsZero() {
		// Behind words of the assistant the vendor takes no format.
		if schema, ok := dialect.AnthropicOutput(req.Output); ok {
			config.Format = &outputFormat{"json_schema", json.RawMessage(schema)}
		}
	}
	if m.cfg.Caps.PromptCache {
		low.markCache()
	}

	var out object
	out.add("model", marshal(name))
	out.add("max_tokens", strconv.AppendInt(nil, int64(limit), 10))
	if !blank(req.System) {
		out.add("system", list([]outBlock{{Type: "text", Text: req.System, CacheControl: m.mark()}}, (*outBlock).json))
	}
	out.add("messages", list(low.turns, (*turn).json))
	if tools.list != nil {
		out.add("tools", list(tools.list, func(t *[]byte) []byte { return *t }))
		if tools.hosted && m.servers != nil {
			out.add("mcp_servers", list(m.servers, func(s *[]byte) []byte { return *s }))
		}
		if tools.choice != nil {
			out.add("tool_choice", marshal(tools.choice))
		}
		if tools.hosted && low.box.alive(time.Now()) {
			out.add("container", marshal(low.box.ID))
		}
	}
	if think != nil {
		out.add("thinking", marshal(think))
	}
	if config != (outputConfig{}) {
		out.add("output_config", marshal(config))
	}
	out.add("stream", []byte("true"))
	body := append(out, '}')
	if len(body) > MaxRequest {
		return nil, llm.Errorf(llm.InvalidRequest, "the request is larger than %d bytes", MaxRequest)
	}
	return body, nil
}

func (t *turn) json() []byte {
	var out object
	out.add("role", marshal(t.role))
	out.add("content", list(t.blocks, (*outBlock).json))
	return append(out, '}')
}

// maxTokens gives what the answer may hold, within what the model can give.
func (m *Model) maxTokens(req *llm.Request) int {
	n, most := req.MaxOutputTokens, int(min(m.cfg.Caps.Output, 1<<30))
	if n <= 0 {
		n = m.cfg.MaxOutputTokens
	}
	if n <= 0 {
		n = most
	}
	if n <= 0 {
		n = DefaultMaxOutputTokens + m.cfg.ReasoningBudget
	}
	if most > 0 {
		n = min(n, most)
	}
	return n
}

type (
	thinking struct {
		Type    string   `json:"type"`
		Budget  int      `json:"budget_tokens,omitempty"`
		Binding *binding `json:"block_binding,omitempty"`
	}
	binding struct {
		OnMismatch string `json:"prefix_mismatch_behavior"`
	}
	outputConfig struct {
		Effort string        `json:"effort,omitempty"`
		Format *outputFormat `json:"format,omitempty"`
	}
	outputFormat struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
)

// reasoning gives the thinking of a request. Manual thinking is left out where
// the vendor would refuse it: the answer has no room for it, or the history
// lacks the thinking that must stand in it.
func (m *Model) reasoning(low *lowering, limit int) (*thinking, outputConfig) {
	config := outputConfig{Effort: m.cfg.Effort}
	if config.Effort == "minimal" {
		config.Effort = "low"
	}
	if budget := m.cfg.ReasoningBudget; budget > 0 {
		if budget >= limit {
			budget = max(minBudget, limit/2)
		}
		if budget >= limit || !low.fitsManualThinking() {
			return nil, config
		}
		return &thinking{Type: "enabled", Budget: budget}, config
	}
	if m.cfg.Effort == "" || m.cfg.Effort == "minimal" {
		return nil, config
	}
	t := &thinking{Type: "adaptive"}
	if slices.Contains(m.cfg.Betas, betaBinding) {
		t.Binding = &binding{"drop_block"}
	}
	return t, config
}

type toolDef struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

type toolChoice struct {
	Type   string `json:"type"`
	Serial bool   `json:"disable_parallel_tool_use,omitempty"`
}

type toolset struct {
	list   [][]byte
	hosted bool // hosted tools are among them
	choice *toolChoice
}

const emptySchema = `{"properties":{},"type":"object"}`

// tools gives the list and the choice. The vendor wants a list where the
// history holds tool blocks, also on a turn that may call none; and newer
// models bind their thinking to it. Then it is sent with the choice none, under
// which nothing can be called, hosted tools included.
func (m *Model) tools(req *llm.Request, low *lowering) toolset {
	called, own := low.holds()
	if req.NoTools && !called && !own {
		return toolset{}
	}
	var out toolset
	if !req.NoTools || own {
		out.list, out.hosted = slices.Clone(m.hosted), m.hosted != nil
	}
	defs := make([]toolDef, 0, len(req.Tools))
	for _, t := range req.Tools {
		schema, _ := dialect.AnthropicTool(t.InputSchema)
		if schema.IsZero() {
			schema = []byte(emptySchema)
		}
		defs = append(defs, toolDef{Name: t.Name, Description: t.Description, InputSchema: json.RawMessage(schema)})
	}
	made := len(defs) == 0 && out.list == nil && called
	if made { // tools that are no more: they may be named, not called
		for _, name := range low.names {
			defs = append(defs, toolDef{Name: name, InputSchema: json.RawMessage(emptySchema)})
		}
	}
	for i := range defs {
		if i == len(defs)-1 {
			defs[i].CacheControl = m.mark()
		}
		out.list = append(out.list, marshal(&defs[i]))
	}
	switch {
	case out.list == nil:
	case req.NoTools || made:
		out.choice = &toolChoice{Type: "none"}
	case req.SerialTools && len(defs) > 0:
		out.choice = &toolChoice{Type: "auto", Serial: true}
	}
	return out
}

// holds says whether the history holds calls of tools, and blocks of the
// vendor's own.
func (l *lowering) holds() (called, own bool) {
	for _, t := range l.turns {
		for _, b := range t.blocks {
			called = called || b.Type == "tool_use"
			own = own || b.raw != nil
		}
	}
	return called, own
}

// mark marks the end of what stays the same, where the server keeps prompts.
func (m *Model) mark() *cacheControl {
	if !m.cfg.Caps.PromptCache {
		return nil
	}
	return ephemeral()
}

func ephemeral() *cacheControl { return &cacheControl{Type: "ephemeral"} }

// markCache marks the ends of the last two turns of the user: what the next
// request begins with, and what the one before began with. With the system
// text and the tools these are the four places that the vendor takes.
func (l *lowering) markCache() {
	marked := 0
	for i := len(l.turns) - 1; i >= 0 && marked < 2; i-- {
		if t := &l.turns[i]; t.role == user {
			t.blocks[len(t.blocks)-1].CacheControl = ephemeral()
			marked++
		}
	}
}

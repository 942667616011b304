package messagesstub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/dialect"
)

// Request is one request as the vendor saw it.
type Request struct {
	Path   string
	Header http.Header
	Body   []byte

	Model      string
	MaxTokens  int
	System     string
	Messages   []Message // as they were sent
	Tools      []string  // the names offered, hosted ones too
	Choice     string    // type of tool_choice, "" without one
	Serial     bool      // disable_parallel_tool_use
	Thinking   string    // type of thinking, "" without one
	Budget     int
	Effort     string
	Format     json.RawMessage // the schema of output_config.format
	Container  string
	Stream     bool
	CacheMarks int
}

// Message is one message of a request.
type Message struct {
	Role   string
	Blocks []Content
}

// Content is one content block of a request.
type Content struct {
	Raw       json.RawMessage
	Type      string
	Text      string
	Thinking  string
	Signature string
	Data      string
	ID        string
	Name      string
	Input     json.RawMessage
	ToolUseID string
	IsError   bool
	Caller    string // id of the hosted call whose code called
	MediaType string
}

type wireRequest struct {
	Model        string            `json:"model"`
	MaxTokens    *int              `json:"max_tokens"`
	System       json.RawMessage   `json:"system"`
	Messages     []wireMessage     `json:"messages"`
	Tools        []json.RawMessage `json:"tools"`
	ToolChoice   *wireChoice       `json:"tool_choice"`
	Thinking     *wireThinking     `json:"thinking"`
	OutputConfig *wireOutput       `json:"output_config"`
	MCPServers   []wireServer      `json:"mcp_servers"`
	Container    string            `json:"container"`
	Stream       bool              `json:"stream"`
	Temperature  *float64          `json:"temperature"`
	TopP         *float64          `json:"top_p"`
	TopK         *int              `json:"top_k"`
	Stops        []string          `json:"stop_sequences"`
	Metadata     *struct {
		UserID string `json:"user_id"`
	} `json:"metadata"`
	ServiceTier string     `json:"service_tier"`
	Cache       *wireCache `json:"cache_control"`
}

type (
	wireMessage struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	wireChoice struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Serial bool   `json:"disable_parallel_tool_use"`
	}
	wireThinking struct {
		Type    string  `json:"type"`
		Budget  *int    `json:"budget_tokens"`
		Display *string `json:"display"`
		Binding *struct {
			OnMismatch string `json:"prefix_mismatch_behavior"`
		} `json:"block_binding"`
	}
	wireOutput struct {
		Effort string `json:"effort"`
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	}
	wireServer struct {
		Type  string          `json:"type"`
		URL   string          `json:"url"`
		Name  string          `json:"name"`
		Token string          `json:"authorization_token"`
		Tools json.RawMessage `json:"tool_configuration"`
	}
	wireCache struct {
		Type string `json:"type"`
		TTL  string `json:"ttl"`
	}
	wireTool struct {
		Type        string            `json:"type"`
		Name        string            `json:"name"`
		Description string            `json:"description"`
		Schema      json.RawMessage   `json:"input_schema"`
		Strict      *bool             `json:"strict"`
		Examples    []json.RawMessage `json:"input_examples"`
		Eager       *bool             `json:"eager_input_streaming"`
		Defer       *bool             `json:"defer_loading"`
		Callers     []string          `json:"allowed_callers"`
		Cache       *wireCache        `json:"cache_control"`
	}
)

// newVersion takes less than the one before it, and says it sooner.
const newVersion = "2026-10-21"

var (
	toolName   = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
	toolID     = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	hostedType = regexp.MustCompile(`^(web_search|web_fetch|code_execution|bash|text_editor|memory|computer|tool_search_tool_regex|tool_search_tool_bm25)_20[0-9]{6}$|^mcp_toolset$`)
	limits     = canonjson.Limits{Bytes: maxBody, Tokens: maxBody}
)

// checker gathers every rule that a request breaks.
type checker struct {
	stub   *Stub
	header http.Header
	broken []string
	req    *Request
	turns  []Message // messages of one role in a row are one turn
}

func (c *checker) want(ok bool, rule string, args ...any) {
	if !ok {
		c.broken = append(c.broken, fmt.Sprintf(rule, args...))
	}
}

// strict reads a value whose members are all known.
func (c *checker) strict(raw []byte, v any, where string) bool {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	c.want(err == nil, "%s: %v", where, err)
	return err == nil
}

func (c *checker) request(body []byte) *Request {
	c.req = &Request{}
	version := c.header.Get("Anthropic-Version")
	c.want(version == "2023-06-01" || version == newVersion, "anthropic-version: header is required")
	c.want(strings.HasPrefix(c.header.Get("Content-Type"), "application/json"), "content-type: want application/json")
	if _, err := canonjson.Parse(body, limits); err != nil {
		c.want(false, "the request body is not valid JSON")
		return c.req
	}
	var raw wireRequest
	if !c.strict(body, &raw, "body") {
		return c.req
	}
	c.req.Model, c.req.Stream, c.req.Container = raw.Model, raw.Stream, raw.Container
	c.want(raw.Model != "", "model: Field required")
	most := c.stub.MaxOutput
	if most == 0 {
		most = 128_000
	}
	if c.want(raw.MaxTokens != nil, "max_tokens: Field required"); raw.MaxTokens != nil {
		c.req.MaxTokens = *raw.MaxTokens
		c.want(c.req.MaxTokens >= 1 && c.req.MaxTokens <= most, "max_tokens: %d is not within 1 and %d", c.req.MaxTokens, most)
	}
	sampled := raw.Temperature != nil || raw.TopP != nil || raw.TopK != nil
	c.want(!sampled || version != newVersion, "temperature, top_p, top_k: Extra inputs are not permitted")
	c.system(raw.System)
	c.cache(raw.Cache)
	c.tools(&raw)
	c.thinking(raw.Thinking)
	c.messages(raw.Messages)
	c.output(raw.OutputConfig)
	c.want(c.req.CacheMarks <= 4, "A maximum of 4 blocks with cache_control may be provided. Found %d.", c.req.CacheMarks)
	return c.req
}

func (c *checker) system(raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	if raw[0] == '"' {
		_ = json.Unmarshal(raw, &c.req.System)
		return
	}
	var blocks []struct {
		Type  string     `json:"type"`
		Text  string     `json:"text"`
		Cache *wireCache `json:"cache_control"`
	}
	if !c.strict(raw, &blocks, "system") {
		return
	}
	for i, b := range blocks {
		c.want(b.Type == "text", "system.%d: want text", i)
		c.want(strings.TrimSpace(b.Text) != "", "system: text content blocks must be non-empty")
		c.cache(b.Cache)
		c.req.System += b.Text
	}
}

func (c *checker) cache(m *wireCache) {
	if m == nil {
		return
	}
	c.req.CacheMarks++
	c.want(m.Type == "ephemeral" && slices.Contains([]string{"", "5m", "1h"}, m.TTL), "cache_control: want ephemeral")
}

func (c *checker) tools(raw *wireRequest) {
	hosted := false
	for i, t := range raw.Tools {
		var head struct {
			Type   string     `json:"type"`
			Name   string     `json:"name"`
			Server string     `json:"mcp_server_name"`
			Cache  *wireCache `json:"cache_control"`
		}
		if json.Unmarshal(t, &head) != nil {
			c.want(false, "tools.%d: want an object", i)
			continue
		}
		c.cache(head.Cache)
		if head.Type != "" && head.Type != "custom" {
			hosted = true
			c.want(hostedType.MatchString(head.Type), "tools.%d: Input tag '%s' is not known", i, head.Type)
			if head.Type == "mcp_toolset" {
				c.want(slices.ContainsFunc(raw.MCPServers, func(s wireServer) bool { return s.Name == head.Server }),
					"tools.%d: no MCP server of this name", i)
				continue
			}
			c.want(head.Name != "", "tools.%d.name: Field required", i)
		} else {
			var def wireTool
			if c.strict(t, &def, fmt.Sprintf("tools.%d", i)) {
				err := dialect.CheckAnthropicTool(def.Schema)
				c.want(err == nil, "tools.%d.custom.input_schema: %v", i, err)
			}
		}
		c.want(toolName.MatchString(head.Name), "tools.%d.name: String should match pattern '%s'", i, toolName)
		c.want(!slices.Contains(c.req.Tools, head.Name), "tools: Tool names must be unique.")
		c.req.Tools = append(c.req.Tools, head.Name)
	}
	if raw.MCPServers != nil {
		c.want(strings.Contains(c.header.Get("Anthropic-Beta"), "mcp-client-"), "mcp_servers: Extra inputs are not permitted")
	}
	for i, s := range raw.MCPServers {
		c.want(s.Type == "url" && strings.HasPrefix(s.URL, "https://") && s.Name != "", "mcp_servers.%d: want type, url and name", i)
	}
	c.want(raw.Container == "" || hosted, "container: no tool of the request runs in a container")
	ch := raw.ToolChoice
	if ch == nil {
		return
	}
	c.req.Choice, c.req.Serial = ch.Type, ch.Serial
	c.want(len(raw.Tools) > 0, "tool_choice may only be specified while providing tools")
	c.want(slices.Contains([]string{"auto", "any", "tool", "none"}, ch.Type), "tool_choice: Input tag '%s' is not known", ch.Type)
	c.want(!ch.Serial || ch.Type != "none", "tool_choice.none.disable_parallel_tool_use: Extra inputs are not permitted")
	c.want(ch.Type != "tool" || slices.Contains(c.req.Tools, ch.Name), "tool_choice.tool.name: no such tool")
	if raw.Thinking != nil && raw.Thinking.Type == "enabled" {
		c.want(ch.Type != "any" && ch.Type != "tool", "Thinking may not be enabled when tool_choice forces tool use.")
	}
}

func (c *checker) thinking(t *wireThinking) {
	if t == nil {
		return
	}
	c.req.Thinking = t.Type
	switch t.Type {
	case "enabled":
		c.want(!c.stub.NoManual, "thinking.type.enabled: not supported by this model")
		if c.want(t.Budget != nil, "thinking.enabled.budget_tokens: Field required"); t.Budget != nil {
			c.req.Budget = *t.Budget
			c.want(*t.Budget >= 1024, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
			c.want(*t.Budget < c.req.MaxTokens, "`max_tokens` must be greater than `thinking.budget_tokens`.")
		}
	case "adaptive":
		c.want(!c.stub.NoAdaptive, "adaptive thinking is not supported on this model")
		c.want(t.Budget == nil, "thinking.adaptive.budget_tokens: Extra inputs are not permitted")
	case "disabled":
	default:
		c.want(false, "thinking: Input tag '%s' is not known", t.Type)
	}
	if t.Binding != nil {
		c.want(strings.Contains(c.header.Get("Anthropic-Beta"), "thinking-binding-controls-"), "thinking.block_binding: Extra inputs are not permitted")
	}
}

func (c *checker) output(o *wireOutput) {
	if o == nil {
		return
	}
	c.req.Effort = o.Effort
	c.want(slices.Contains([]string{"", "low", "medium", "high", "xhigh", "max"}, o.Effort), "output_config.effort: unknown")
	c.want(o.Effort == "" || !c.stub.NoAdaptive, "This model does not support the effort parameter.")
	if o.Format == nil {
		return
	}
	c.req.Format = o.Format.Schema
	c.want(o.Format.Type == "json_schema", "output_config.format: Input tag '%s' is not known", o.Format.Type)
	err := dialect.CheckAnthropicOutput(o.Format.Schema)
	c.want(err == nil, "output_config.format.schema: %v", err)
	if n := len(c.turns); n > 0 {
		c.want(c.turns[n-1].Role == "user", "output_config.format: not with a prefilled answer")
	}
}

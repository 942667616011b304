package chatstub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Request is one request as the vendor saw it.
type Request struct {
	Path   string
	Header http.Header
	Body   []byte

	Model      string
	Messages   []Message
	Tools      []string // the names offered
	Stream     bool
	Usage      bool // stream_options.include_usage
	ToolChoice bool // a tool_choice was sent
	Parallel   *bool
	Format     json.RawMessage // response_format
}

// Message is one message of a request.
type Message struct {
	Role             string  `json:"role"`
	Content          *string `json:"content"`
	ReasoningContent *string `json:"reasoning_content"`
	ToolCallID       string  `json:"tool_call_id"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// Text gives the content, "" when there is none.
func (m Message) Text() string {
	if m.Content == nil {
		return ""
	}
	return *m.Content
}

var (
	toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	limits   = canonjson.Limits{Bytes: maxBody, Tokens: 10_000_000}
)

// check reads a request and gives every rule that it breaks.
func check(body []byte) (Request, []string) {
	var c checker
	if _, err := canonjson.Parse(body, limits); err != nil {
		return Request{}, []string{"the body is not strict JSON"}
	}
	var raw struct {
		Model         string    `json:"model"`
		Messages      []Message `json:"messages"`
		Stream        bool      `json:"stream"`
		StreamOptions *struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Tools []struct {
			Type     string `json:"type"`
			Function struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
		ToolChoice json.RawMessage `json:"tool_choice"`
		Parallel   *bool           `json:"parallel_tool_calls"`
		Format     json.RawMessage `json:"response_format"`
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return Request{}, []string{"a field has the wrong type"}
	}
	req := Request{
		Model: raw.Model, Messages: raw.Messages, Stream: raw.Stream,
		ToolChoice: raw.ToolChoice != nil, Parallel: raw.Parallel, Format: raw.Format,
	}
	if raw.StreamOptions != nil {
		req.Usage = raw.StreamOptions.IncludeUsage
		c.want(raw.Stream, "stream_options without stream")
	}
	c.want(raw.Model != "", "no model")
	names := map[string]bool{}
	for _, t := range raw.Tools {
		name := t.Function.Name
		req.Tools = append(req.Tools, name)
		c.want(t.Type == "function", "a tool is no function")
		c.want(toolName.MatchString(name), "a tool name is not accepted")
		c.want(!names[name], "a tool name stands twice")
		c.want(isObject(t.Function.Parameters), "tool parameters are no object")
		names[name] = true
	}
	if len(raw.Tools) == 0 {
		c.want(raw.ToolChoice == nil, "tool_choice is only allowed when tools are specified")
		c.want(raw.Parallel == nil, "parallel_tool_calls is only allowed when tools are specified")
	}
	c.messages(raw.Messages)
	return req, c.broken
}

type checker struct {
	broken []string
}

func (c *checker) want(ok bool, rule string) {
	if !ok {
		c.broken = append(c.broken, rule)
	}
}

// messages checks the order of roles and the pairing of calls and results.
func (c *checker) messages(list []Message) {
	c.want(len(list) > 0, "no messages")
	ids := map[string]bool{}
	var open []string // the calls that wait for their result
	for i, m := range list {
		if m.Role != "tool" && len(open) > 0 {
			c.want(false, fmt.Sprintf("messages[%d]: tool calls must be followed by their results", i))
			open = nil
		}
		switch m.Role {
		case "system":
			c.want(i == 0, "a system message is not the first")
			c.want(m.Text() != "", "an empty system message")
		case "user":
			c.want(m.Text() != "", fmt.Sprintf("messages[%d]: an empty user message", i))
			c.want(i == 0 || list[i-1].Role != "user", fmt.Sprintf("messages[%d]: two user messages in a row", i))
		case "assistant":
			c.want(m.Text() != "" || len(m.ToolCalls) > 0, fmt.Sprintf("messages[%d]: an empty assistant message", i))
			open = c.calls(i, m, ids)
		case "tool":
			c.want(m.Text() != "", fmt.Sprintf("messages[%d]: an empty tool message", i))
			known := false
			for j, id := range open {
				if id == m.ToolCallID {
					open, known = append(open[:j:j], open[j+1:]...), true
					break
				}
			}
			c.want(known, fmt.Sprintf("messages[%d]: a tool result without an open call", i))
		default:
			c.want(false, fmt.Sprintf("messages[%d]: unknown role", i))
		}
	}
	c.want(len(open) == 0, "the last tool calls have no results")
	if n := len(list); n > 0 {
		c.want(list[n-1].Role != "assistant", "the last message is the assistant's")
	}
}

func (c *checker) calls(i int, m Message, ids map[string]bool) (open []string) {
	for _, call := range m.ToolCalls {
		c.want(call.ID != "" && len(call.ID) <= 40, fmt.Sprintf("messages[%d]: a call id is empty or too long", i))
		c.want(!ids[call.ID], fmt.Sprintf("messages[%d]: a call id is not unique", i))
		c.want(call.Type == "function", fmt.Sprintf("messages[%d]: a call is no function", i))
		c.want(toolName.MatchString(call.Function.Name), fmt.Sprintf("messages[%d]: a called name is not accepted", i))
		c.want(isObject([]byte(call.Function.Arguments)), fmt.Sprintf("messages[%d]: arguments are no JSON object", i))
		ids[call.ID] = true
		open = append(open, call.ID)
	}
	return open
}

func isObject(raw []byte) bool {
	n, err := canonjson.Parse(raw, limits)
	return err == nil && n.Kind() == canonjson.Object
}

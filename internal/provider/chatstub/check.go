package chatstub

import (
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
	Messages   []Message
	Tools      []string // the names of the functions offered
	Hosted     []string // the types of the other tools offered
	Stream     bool
	Usage      bool   // stream_options.include_usage
	ToolChoice bool   // a tool_choice was sent
	Choice     string // tool_choice, when it is a word
	Parallel   *bool
	Format     json.RawMessage // response_format
	Limit      int             // max_tokens or max_completion_tokens
	Effort     string          // reasoning_effort
}

// CanCall says whether the model may answer the request with a call.
func (r Request) CanCall() bool { return len(r.Tools)+len(r.Hosted) > 0 && r.Choice != "none" }

// Message is one message of a request.
type Message struct {
	Role             string            `json:"role"`
	Name             string            `json:"name"`
	Content          Content           `json:"content"`
	Refusal          *string           `json:"refusal"`
	ReasoningContent *string           `json:"reasoning_content"`
	ReasoningDetails []json.RawMessage `json:"reasoning_details"`
	ToolCallID       string            `json:"tool_call_id"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Index    *int   `json:"index"` // clients send back what they got
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// Text gives the text of the content, its parts joined; "" when there is none.
func (m Message) Text() string { return m.Content.text() }

// body is what a request may hold. What is not here is refused; `any` are
// parameters of the vendor that public clients send and nothing here reads.
type body struct {
	Model         string    `json:"model"`
	Messages      []Message `json:"messages"`
	Stream        bool      `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools               []json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage   `json:"tool_choice"`
	Parallel            *bool             `json:"parallel_tool_calls"`
	Format              json.RawMessage   `json:"response_format"`
	MaxTokens           *int              `json:"max_tokens"`
	MaxCompletionTokens *int              `json:"max_completion_tokens"`
	Effort              string            `json:"reasoning_effort"`
	CacheKey            *string           `json:"prompt_cache_key"`
	Reasoning           *struct {
		Effort    string `json:"effort"`
		MaxTokens int    `json:"max_tokens"`
	} `json:"reasoning"`
	Temperature any `json:"temperature"`
	TopP        any `json:"top_p"`
	N           any `json:"n"`
	Stop        any `json:"stop"`
	Seed        any `json:"seed"`
	User        any `json:"user"`
	Metadata    any `json:"metadata"`
	Store       any `json:"store"`
}

var (
	toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	limits   = canonjson.Limits{Bytes: maxBody, Tokens: 10_000_000}
	efforts  = []string{"", "none", "minimal", "low", "medium", "high"}
)

// check reads a request and gives every rule that it breaks.
func (s *Stub) check(raw []byte) (Request, []string) {
	c := checker{rules: s.rules}
	if _, err := canonjson.Parse(raw, limits); err != nil {
		return Request{}, []string{"the body is not strict JSON"}
	}
	var b body
	if err := strict(raw, &b); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			return Request{}, []string{"unrecognized request argument: " + err.Error()}
		}
		return Request{}, []string{"a field has the wrong type"}
	}
	req := Request{
		Model: b.Model, Messages: b.Messages, Stream: b.Stream, Parallel: b.Parallel, Format: b.Format, Effort: b.Effort,
	}
	if b.StreamOptions != nil {
		req.Usage = b.StreamOptions.IncludeUsage
		c.want(b.Stream, "stream_options without stream")
		c.want(!s.rules.Old, "unrecognized request argument: stream_options")
	}
	if b.CacheKey != nil {
		c.want(s.rules.CacheKey, "unrecognized request argument: prompt_cache_key")
		c.want(len(*b.CacheKey) <= 64, "prompt_cache_key: string too long")
	}
	c.want(b.Model != "", "no model")
	for _, t := range b.Tools {
		c.tool(t, &req)
	}
	c.choice(&b, &req)
	c.limit(&b, &req)
	c.format(b.Format, b.Messages)
	if s.rules.NoToolsWithSchema && b.Format != nil {
		c.want(len(b.Tools) == 0, "response_format cannot be combined with tools")
	}
	c.messages(b.Messages, s.handedOut())
	if s.rules.ToolsWithHistory && slices.ContainsFunc(b.Messages, func(m Message) bool { return m.ToolCalls != nil }) {
		c.want(len(b.Tools) > 0, "tools must be given when the history holds tool calls")
	}
	return req, c.broken
}

type checker struct {
	rules  Rules
	broken []string
}

func (c *checker) want(ok bool, rule string) {
	if !ok {
		c.broken = append(c.broken, rule)
	}
}

func (c *checker) tool(raw json.RawMessage, req *Request) {
	var t struct {
		Type     string `json:"type"`
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      *bool           `json:"strict"`
		} `json:"function"`
	}
	if err := strict(raw, &t); err != nil || t.Type != "function" {
		var hosted struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal(raw, &hosted) // without a type it is no tool
		c.want(slices.Contains(c.rules.Hosted, hosted.Type), "a tool is no function")
		req.Hosted = append(req.Hosted, hosted.Type)
		return
	}
	name := t.Function.Name
	c.want(toolName.MatchString(name), "a tool name is not accepted")
	c.want(!slices.Contains(req.Tools, name), "a tool name stands twice")
	req.Tools = append(req.Tools, name)
	if t.Function.Parameters == nil {
		return
	}
	check := dialect.CheckOpenAITool
	if t.Function.Strict != nil && *t.Function.Strict {
		check = dialect.CheckOpenAIStrict
	}
	if err := check(t.Function.Parameters); err != nil {
		c.want(false, "invalid schema for function '"+name+"': "+err.Error())
	}
}

// choice: without a list of tools nothing of theirs may be there. (C13)
func (c *checker) choice(b *body, req *Request) {
	if b.ToolChoice != nil {
		req.ToolChoice = true
		_ = json.Unmarshal(b.ToolChoice, &req.Choice) // an object names a function
		c.want(req.Choice == "" || slices.Contains([]string{"none", "auto", "required"}, req.Choice), "tool_choice is not accepted")
	}
	c.want(b.Parallel == nil || !c.rules.Old, "unrecognized request argument: parallel_tool_calls")
	if len(b.Tools) == 0 {
		c.want(b.Tools == nil, "tools: empty array")
		c.want(b.ToolChoice == nil, "tool_choice is only allowed when tools are specified")
		c.want(b.Parallel == nil, "parallel_tool_calls is only allowed when tools are specified")
	}
}

// newLimit are the models that refuse max_tokens.
var newLimit = regexp.MustCompile(`^(?:.*/)?(?:o[134]|gpt-5)(?:[-.].*)?$`)

func (c *checker) limit(b *body, req *Request) {
	for _, n := range []*int{b.MaxTokens, b.MaxCompletionTokens} {
		if n != nil {
			c.want(*n > 0, "a limit of tokens must be positive")
			req.Limit = *n
		}
	}
	c.want(b.MaxTokens == nil || b.MaxCompletionTokens == nil, "max_tokens and max_completion_tokens exclude each other")
	c.want(b.MaxTokens == nil || !newLimit.MatchString(b.Model), "unsupported parameter: max_tokens is not supported with this model, use max_completion_tokens")
	c.want(b.MaxCompletionTokens == nil || !c.rules.Old, "unrecognized request argument: max_completion_tokens")
	c.want(slices.Contains(efforts, b.Effort), "reasoning_effort is not accepted")
	if r := b.Reasoning; r != nil {
		c.want(c.rules.ReasoningObject, "unrecognized request argument: reasoning")
		c.want(r.Effort == "" || r.MaxTokens == 0, "reasoning: effort and max_tokens exclude each other")
	}
}

func (c *checker) format(raw json.RawMessage, list []Message) {
	if raw == nil {
		return
	}
	var f struct {
		Type       string `json:"type"`
		JSONSchema *struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Strict      *bool           `json:"strict"`
			Schema      json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if strict(raw, &f) != nil {
		c.want(false, "response_format has an unknown or wrong field")
		return
	}
	switch f.Type {
	case "text":
	case "json_object":
		c.want(slices.ContainsFunc(list, func(m Message) bool { return strings.Contains(strings.ToLower(m.Text()), "json") }),
			"'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'")
	case "json_schema":
		if f.JSONSchema == nil || !toolName.MatchString(f.JSONSchema.Name) {
			c.want(false, "response_format.json_schema.name is not accepted")
			return
		}
		if f.JSONSchema.Strict != nil && *f.JSONSchema.Strict {
			if err := dialect.CheckOpenAIStrict(f.JSONSchema.Schema); err != nil {
				c.want(false, "invalid schema for response_format: "+err.Error())
			}
		}
	default:
		c.want(false, "response_format.type is not accepted")
	}
}

// messages checks the order of roles and the pairing of calls and results.
func (c *checker) messages(list []Message, handed handedOut) {
	c.want(len(list) > 0, "no messages")
	ids := map[string]bool{}
	var open []string // the calls that wait for their result
	for i, m := range list {
		if m.Role != "tool" && len(open) > 0 {
			c.want(false, fmt.Sprintf("messages[%d]: tool calls must be followed by their results", i))
			open = nil
		}
		at := func(rule string) string { return fmt.Sprintf("messages[%d]: %s", i, rule) }
		c.want(m.Role == "assistant" || m.ReasoningContent == nil && m.ReasoningDetails == nil && m.ToolCalls == nil, at("only an assistant calls and thinks"))
		c.want(m.Role == "tool" || m.ToolCallID == "", at("only a tool has a tool_call_id"))
		c.want(m.Role == "user" || !m.Content.files(), at("only a user sends files"))
		switch m.Role {
		case "system", "developer":
			c.want(i == 0, "a system message is not the first")
			c.want(m.Text() != "", "an empty system message")
		case "user":
			c.want(m.Text() != "" || m.Content.files(), at("an empty user message"))
			c.want(i == 0 || list[i-1].Role != "user", at("two user messages in a row"))
			for _, rule := range m.Content.check(c.rules) {
				c.want(false, at(rule))
			}
		case "assistant":
			c.want(m.Text() != "" || len(m.ToolCalls) > 0, at("an empty assistant message"))
			open = c.calls(i, m, ids)
			c.reasoning(m, handed, at)
		case "tool":
			c.want(m.Text() != "", at("an empty tool message"))
			j := slices.Index(open, m.ToolCallID)
			c.want(j >= 0, at("a tool result without an open call"))
			if j >= 0 {
				open = slices.Delete(open, j, j+1)
			}
		default:
			c.want(false, at("unknown role"))
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
		c.want(!c.rules.NineLetters || nineLetters.MatchString(call.ID), fmt.Sprintf("messages[%d]: a call id must be a-z, A-Z, 0-9, with a length of 9", i))
		c.want(!ids[call.ID], fmt.Sprintf("messages[%d]: a call id is not unique", i))
		c.want(call.Type == "function", fmt.Sprintf("messages[%d]: a call is no function", i))
		c.want(toolName.MatchString(call.Function.Name), fmt.Sprintf("messages[%d]: a called name is not accepted", i))
		c.want(isObject([]byte(call.Function.Arguments)), fmt.Sprintf("messages[%d]: arguments are no JSON object", i))
		ids[call.ID] = true
		open = append(open, call.ID)
	}
	return open
}

var nineLetters = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)

// reasoning: what the vendor handed out comes back unchanged or not at all. (C41)
func (c *checker) reasoning(m Message, handed handedOut, at func(string) string) {
	has := m.ReasoningContent != nil && strings.TrimSpace(*m.ReasoningContent) != ""
	switch c.rules.Reasoning {
	case ReasoningRefused:
		c.want(m.ReasoningContent == nil && m.ReasoningDetails == nil, at("property 'reasoning_content' is unsupported"))
	case ReasoningDemanded:
		c.want(has || len(m.ToolCalls) == 0, at("the reasoning_content in the thinking mode must be passed back to the API"))
	}
	for _, d := range m.ReasoningDetails {
		canon, err := canonjson.Canonicalize(d, limits)
		c.want(err == nil && handed.details[string(canon)], at("a reasoning detail is not as it was handed out"))
	}
}

func isObject(raw []byte) bool {
	n, err := canonjson.Parse(raw, limits)
	return err == nil && n.Kind() == canonjson.Object
}

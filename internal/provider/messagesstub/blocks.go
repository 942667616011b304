package messagesstub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// maxImage is the vendor's limit of an image, in bytes.
const maxImage = 10 << 20

// The members that each kind of block may have. Kinds of hosted tools may have
// any, as they are the vendor's own.
var members = map[string][]string{
	"text":              {"text", "citations", "cache_control"},
	"image":             {"source", "cache_control"},
	"document":          {"source", "title", "context", "citations", "cache_control"},
	"thinking":          {"thinking", "signature"},
	"redacted_thinking": {"data"},
	"tool_use":          {"id", "name", "input", "caller", "toolset_name", "cache_control"},
	"tool_result":       {"tool_use_id", "content", "is_error", "cache_control"},
}

type wireBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
	Cache     *wireCache      `json:"cache_control"`
	Caller    *struct {
		Type   string `json:"type"`
		ToolID string `json:"tool_id"`
	} `json:"caller"`
	Source *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
	} `json:"source"`
}

// messages reads all messages and checks what each block must be.
func (c *checker) messages(list []wireMessage) {
	c.want(len(list) > 0, "messages: at least one message is required")
	for i, m := range list {
		msg := Message{Role: m.Role}
		c.want(m.Role == "user" || m.Role == "assistant", "messages.%d.role: want user or assistant", i)
		var raws []json.RawMessage
		var text string
		switch {
		case json.Unmarshal(m.Content, &text) == nil:
			raws = []json.RawMessage{encode(Text(text))}
		case json.Unmarshal(m.Content, &raws) != nil:
			c.want(false, "messages.%d.content: want a text or a list", i)
		}
		c.want(len(raws) > 0, "messages.%d: all messages must have non-empty content", i)
		for j, raw := range raws {
			msg.Blocks = append(msg.Blocks, c.block(m.Role, at(i, j), raw))
		}
		c.req.Messages = append(c.req.Messages, msg)
		if n := len(c.turns); n > 0 && c.turns[n-1].Role == m.Role {
			c.turns[n-1].Blocks = slices.Concat(c.turns[n-1].Blocks, msg.Blocks)
		} else {
			c.turns = append(c.turns, msg)
		}
	}
	if len(c.turns) == 0 {
		return
	}
	c.want(c.turns[0].Role == "user", "messages: first message must use the \"user\" role")
	c.pairs()
	c.hostedPairs()
	c.thoughts()
	c.prefill()
}

func (c *checker) block(role, where string, raw json.RawMessage) Content {
	var b wireBlock
	var names map[string]json.RawMessage
	if json.Unmarshal(raw, &b) != nil || json.Unmarshal(raw, &names) != nil {
		c.want(false, "%s: a member has the wrong type", where)
		return Content{Raw: raw, Type: b.Type}
	}
	allowed, plain := members[b.Type]
	own := hostedCall(b.Type) || hostedResult(b.Type) || b.Type == "container_upload"
	c.want(plain || own, "%s: Input tag '%s' is not known", where, b.Type)
	for name := range names {
		c.want(!plain || name == "type" || slices.Contains(allowed, name), "%s.%s.%s: Extra inputs are not permitted", where, b.Type, name)
	}
	c.cache(b.Cache)
	fromUser := b.Type == "tool_result" || b.Type == "image" || b.Type == "document"
	c.want(b.Type == "text" || fromUser == (role == "user"), "%s: `%s` blocks are not allowed in `%s` messages", where, b.Type, role)
	out := Content{Raw: raw, Type: b.Type, Text: b.Text, Thinking: b.Thinking, Signature: b.Signature, Data: b.Data,
		ID: b.ID, Name: b.Name, Input: b.Input, ToolUseID: b.ToolUseID, IsError: b.IsError}
	switch {
	case b.Type == "text":
		c.want(strings.TrimSpace(b.Text) != "", "%s: text content blocks must contain non-whitespace text", where)
		c.want(role == "assistant" || len(names["citations"]) == 0, "%s: citations are the assistant's", where)
	case b.Type == "thinking":
		c.want(signed(b.Thinking, b.Signature), "%s: Invalid `signature` in `thinking` block", where)
	case b.Type == "redacted_thinking":
		rest, ok := strings.CutPrefix(b.Data, "red.")
		c.want(ok && sealed("red", rest), "%s: Invalid `data` in `redacted_thinking` block", where)
	case b.Type == "tool_use" || hostedCall(b.Type):
		c.want(toolID.MatchString(b.ID), "%s.%s.id: String should match pattern '%s'", where, b.Type, toolID)
		c.want(toolName.MatchString(b.Name), "%s.%s.name: String should match pattern '%s'", where, b.Type, toolName)
		c.want(isObject(b.Input), "%s.%s.input: Input should be a valid dictionary", where, b.Type)
		if b.Caller != nil {
			out.Caller = b.Caller.ToolID
		}
	case b.Type == "tool_result":
		var text string
		isText := json.Unmarshal(b.Content, &text) == nil
		c.want(!b.IsError || !isText || text != "", "%s: content cannot be empty if `is_error` is true", where)
	case b.Type == "image" || b.Type == "document":
		out.MediaType, out.Data = c.source(where, &b)
	}
	return out
}

var magic = map[string]string{
	"image/png": "\x89PNG", "image/jpeg": "\xff\xd8", "image/gif": "GIF8", "image/webp": "RIFF", "application/pdf": "%PDF",
}

// source checks a file. The bytes must be what the media type says.
func (c *checker) source(where string, b *wireBlock) (media, data string) {
	if b.Source == nil || b.Source.Type != "base64" {
		c.want(false, "%s.source: Field required", where)
		return "", ""
	}
	s := b.Source
	c.want((s.MediaType == "application/pdf") == (b.Type == "document") && magic[s.MediaType] != "",
		"%s.source.base64.media_type: '%s' is not accepted", where, s.MediaType)
	file, err := base64.StdEncoding.DecodeString(s.Data)
	c.want(err == nil && len(file) > 0, "%s.source.base64.data: want base64", where)
	c.want(b.Type == "document" || len(file) <= maxImage, "%s: image exceeds the maximum size", where)
	c.want(strings.HasPrefix(string(file), magic[s.MediaType]), "%s: Could not process %s", where, b.Type)
	return s.MediaType, s.Data
}

// pairs checks that each call has its result right behind it, and that tools
// are listed where there are any.
func (c *checker) pairs() {
	ids := map[string]bool{}
	used := false
	for i, t := range c.turns {
		open := map[string]bool{}
		if i > 0 && t.Role == "user" {
			for _, b := range c.turns[i-1].Blocks {
				if b.Type == "tool_use" {
					open[b.ID] = true
				}
			}
		}
		other := false
		for j, b := range t.Blocks {
			switch b.Type {
			case "tool_use":
				c.want(!ids[b.ID], "messages: `tool_use` ids must be unique")
				ids[b.ID], used = true, true
				c.want(i+1 < len(c.turns), "%s: `tool_use` ids were found without `tool_result` blocks immediately after", at(i, j))
			case "tool_result":
				c.want(open[b.ToolUseID], "%s: unexpected `tool_use_id` found in `tool_result` blocks: %s", at(i, j), b.ToolUseID)
				c.want(!other, "%s: `tool_result` blocks must come first", at(i, j))
				delete(open, b.ToolUseID)
				used = true
			default:
				other = true
			}
		}
		c.want(len(open) == 0, "messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after", i)
	}
	c.want(!used || c.req.Tools != nil, "Requests which include `tool_use` or `tool_result` blocks must define tools")
}

// hostedPairs checks hosted calls and results. A call may wait for its result
// only in what the vendor has not ended yet.
func (c *checker) hostedPairs() {
	open := map[string]int{}
	seen := map[string]bool{}
	code := false
	for i, t := range c.turns {
		for j, b := range t.Blocks {
			switch {
			case hostedCall(b.Type):
				c.want(!seen[b.ID], "%s: `%s` ids must be unique", at(i, j), b.Type)
				open[b.ID], seen[b.ID] = i, true
			case hostedResult(b.Type):
				_, known := open[b.ToolUseID]
				c.want(known, "%s: unexpected `tool_use_id` found in `%s` blocks: %s", at(i, j), b.Type, b.ToolUseID)
				delete(open, b.ToolUseID)
			case b.Caller != "":
				c.want(seen[b.Caller], "%s: no call of the id %s", at(i, j), b.Caller)
			}
		}
	}
	from := c.underWay()
	for id, i := range open {
		c.want(i >= from, "messages.%d: tool use with id '%s' was found without a corresponding result block", i, id)
		for _, b := range c.turns[i].Blocks {
			code = code || b.ID == id && b.Name == "code_execution"
		}
	}
	c.want(!code || c.req.Container != "", "container_id is required when there are pending tool uses generated by code execution with tools.")
}

// underWay gives the first turn of the answer that is not ended: assistant
// turns with nothing but tool results between them, up to the end.
func (c *checker) underWay() int {
	i := len(c.turns)
	if c.turns[i-1].Role == "assistant" {
		i--
	}
	for i >= 2 && c.turns[i-1].Role == "user" && all(c.turns[i-1].Blocks, "tool_result") {
		i -= 2
	}
	return i
}

func all(blocks []Content, kind string) bool {
	return !slices.ContainsFunc(blocks, func(b Content) bool { return b.Type != kind })
}

func isThought(b Content) bool { return b.Type == "thinking" || b.Type == "redacted_thinking" }

// thoughts checks where thinking stands.
func (c *checker) thoughts() {
	last := len(c.turns) - 1
	for i, t := range c.turns {
		if t.Role == "assistant" && i < last && len(t.Blocks) > 0 {
			c.want(!isThought(t.Blocks[len(t.Blocks)-1]), "messages.%d: The final block in an assistant message cannot be `thinking`.", i)
		}
	}
	end := &c.turns[last]
	if c.req.Thinking == "disabled" && end.Role == "assistant" {
		c.want(!slices.ContainsFunc(end.Blocks, isThought), "messages.%d: When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`", last)
	}
	if c.req.Thinking != "enabled" || end.Role == "user" && !hasResult(end) {
		return
	}
	i := last
	for i > 0 && (c.turns[i].Role == "assistant" || hasResult(&c.turns[i])) {
		i--
	}
	first := &c.turns[min(i+1, last)]
	c.want(first.Role == "assistant" && len(first.Blocks) > 0 && isThought(first.Blocks[0]),
		"messages.%d.content.0.type: Expected `thinking` or `redacted_thinking`. When `thinking` is enabled, a final `assistant` message must start with a thinking block", i+1)
}

func hasResult(m *Message) bool {
	return slices.ContainsFunc(m.Blocks, func(b Content) bool { return b.Type == "tool_result" })
}

// prefill: newer models go on from words of the assistant only where they
// paused by themselves.
func (c *checker) prefill() {
	end := c.turns[len(c.turns)-1]
	if end.Role != "assistant" || len(end.Blocks) == 0 {
		return
	}
	paused := slices.ContainsFunc(end.Blocks, func(b Content) bool { return hostedCall(b.Type) || hostedResult(b.Type) })
	c.want(paused, "This model does not support assistant message prefill. The conversation must end with a user message.")
	b := end.Blocks[len(end.Blocks)-1]
	c.want(b.Type != "text" || strings.TrimRight(b.Text, " \t\r\n") == b.Text, "messages: final assistant content cannot end with trailing whitespace")
}

// asTheyWere checks what was handed out in earlier answers: the thinking of one
// answer comes back whole and in its order in the latest assistant turn, if any
// of it does, and hosted blocks come back unchanged wherever they stand.
func (c *checker) asTheyWere(answers []answer) {
	latest := true
	for i := len(c.turns) - 1; i >= 0; i-- {
		if c.turns[i].Role != "assistant" {
			continue
		}
		var thoughts []string
		for j, b := range c.turns[i].Blocks {
			if isThought(b) {
				thoughts = append(thoughts, canonical(b.Raw))
			}
			for _, a := range answers {
				was := a.hosted[b.Type+" "+b.ID+b.ToolUseID]
				c.want(was == nil || canonical(was) == canonical(b.Raw), "%s: the block was changed", at(i, j))
			}
		}
		for _, a := range answers {
			c.want(!latest || unchanged(thoughts, a), "messages.%d: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified", i)
		}
		latest = false
	}
}

func unchanged(sent []string, a answer) bool {
	var want []string
	for _, raw := range a.thoughts {
		want = append(want, canonical(raw))
	}
	first := slices.IndexFunc(sent, func(s string) bool { return slices.Contains(want, s) })
	return first < 0 || slices.Equal(sent[first:min(len(sent), first+len(want))], want)
}

func canonical(raw json.RawMessage) string {
	v, err := canonjson.Canonicalize(raw, limits)
	if err != nil {
		return fmt.Sprintf("bad %x", raw)
	}
	return string(v)
}

func isObject(raw []byte) bool {
	return len(bytes.TrimSpace(raw)) > 0 && bytes.TrimSpace(raw)[0] == '{'
}

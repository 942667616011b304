package anthropic

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// turn is one message as the vendor counts them: users and assistant alternate.
type turn struct {
	role   string
	blocks []outBlock
}

// outBlock is one content block of a request. raw is a block of the vendor's
// own, which goes out as it came in; own is then what is read of it.
type outBlock struct {
	raw []byte
	own content

	Type         string          `json:"type"`
	Text         string          `json:"text,omitempty"`
	Citations    json.RawMessage `json:"citations,omitempty"`
	Source       *source         `json:"source,omitempty"`
	Title        string          `json:"title,omitempty"`
	ID           string          `json:"id,omitempty"`
	Name         string          `json:"name,omitempty"`
	Toolset      string          `json:"toolset_name,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"`
	Caller       json.RawMessage `json:"caller,omitempty"`
	ToolUseID    string          `json:"tool_use_id,omitempty"`
	Content      string          `json:"content,omitempty"`
	IsError      bool            `json:"is_error,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

type (
	source struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
	}
	cacheControl struct {
		Type string `json:"type"`
	}
)

func (b *outBlock) json() []byte {
	if b.raw != nil {
		return b.raw
	}
	return marshal(b)
}

func (b *outBlock) thinks() bool {
	return b.raw != nil && (b.own.Type == "thinking" || b.own.Type == "redacted_thinking")
}

// The texts that stand in for what a conversation lacks: the vendor wants the
// user's word first, and last.
const (
	textBefore = "(The conversation goes on from here.)"
	textGoOn   = "(Go on.)"
)

// lowering turns neutral messages into turns. The same history gives the same
// turns, and a longer one begins with the same: caches and the signatures of
// thinking hang on what stands before them.
type lowering struct {
	maker string
	caps  llm.Capabilities
	turns []turn

	ids     map[string]int    // how often an id was given
	waiting map[string]string // call id → wire id, of the last assistant message
	order   []string          // the call ids of waiting, in call order
	names   []string          // of the tools that were called, in order of appearance
	box     boxState
}

func newLowering(maker string, caps llm.Capabilities) *lowering {
	return &lowering{maker: maker, caps: caps, ids: map[string]int{}}
}

// conversation lowers all messages.
func (l *lowering) conversation(list []llm.Message, continues bool) error {
	for _, msg := range list {
		if err := l.message(msg); err != nil {
			return err
		}
	}
	if len(l.waiting) > 0 {
		return llm.Errorf(llm.InvalidRequest, "the history ends with tool calls that have no results")
	}
	if len(l.turns) == 0 {
		return llm.Errorf(llm.InvalidRequest, "the request holds no message with text")
	}
	l.settle(continues)
	if l.turns[0].role == user {
		return nil
	}
	first := turn{user, []outBlock{{Type: "text", Text: textBefore}}}
	l.turns = slices.Insert(l.turns, 0, first)
	return nil
}

const (
	user      = "user"
	assistant = "assistant"
)

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

// put adds a block; neighbours of one role are one turn.
func (l *lowering) put(role string, b outBlock) {
	if n := len(l.turns); n == 0 || l.turns[n-1].role != role {
		l.turns = append(l.turns, turn{role: role})
	}
	t := &l.turns[len(l.turns)-1]
	t.blocks = append(t.blocks, b)
}

func (l *lowering) user(parts []llm.Content) error {
	for i := range parts {
		switch p := &parts[i]; p.Kind {
		case llm.Text:
			if !blank(p.Text) {
				l.put(user, outBlock{Type: "text", Text: p.Text})
			}
		case llm.Image, llm.File:
			b, err := l.file(p)
			if err != nil {
				return err
			}
			l.put(user, b)
		}
	}
	return nil
}

func (l *lowering) file(p *llm.Content) (outBlock, error) {
	if !l.caps.Takes(p.MediaType) {
		return outBlock{}, llm.Errorf(llm.InvalidRequest, "the model does not take files of type %q", cutWord(p.MediaType))
	}
	if len(p.Data) == 0 {
		return outBlock{}, llm.Errorf(llm.InvalidRequest, "a file of the request is empty")
	}
	b := outBlock{Source: &source{"base64", p.MediaType, base64.StdEncoding.EncodeToString(p.Data)}}
	switch {
	case p.MediaType == "application/pdf":
		b.Type, b.Title = "document", canonjson.CutRunes(strings.ToValidUTF8(p.Name, "\uFFFD"), 255)
	case strings.HasPrefix(p.MediaType, "image/"):
		b.Type = "image"
	default:
		return outBlock{}, llm.Errorf(llm.InvalidRequest, "a file of type %q is to be given as text", cutWord(p.MediaType))
	}
	return b, nil
}

func (l *lowering) assistant(parts []llm.Content) error {
	waiting, order := map[string]string{}, []string(nil)
	for i := range parts {
		p := &parts[i]
		switch p.Kind {
		case llm.Text:
			if !blank(p.Text) {
				l.put(assistant, outBlock{Type: "text", Text: p.Text, Citations: citations(p.StateFor(l.maker))})
			}
		case llm.Reasoning, llm.Hosted:
			l.own(p.StateFor(l.maker))
		case llm.ToolCall:
			if _, twice := waiting[p.CallID]; twice {
				return llm.Errorf(llm.InvalidRequest, "a call id stands twice in one message")
			}
			b := l.call(p)
			waiting[p.CallID], order = b.ID, append(order, p.CallID)
			l.put(assistant, b)
		}
	}
	if order != nil {
		l.waiting, l.order = waiting, order
	}
	return nil
}

// own adds a block of the vendor's own. What cannot be read, and thinking
// without a signature, is left out.
func (l *lowering) own(state []byte) {
	if state = keep(state); state == nil {
		return
	}
	var c content
	if !readObject(state, &c) || c.Type == "" || c.Type == "thinking" && c.Signature == "" {
		return
	}
	if c.Type == boxType {
		l.box = boxState{}
		_ = json.Unmarshal(state, &l.box) // it was read as an object before
		return
	}
	switch c.Type {
	case "text", "image", "document", "tool_use", "tool_result":
		return // these have words of their own
	}
	l.put(assistant, outBlock{raw: state, own: c})
}

func (l *lowering) call(p *llm.Content) outBlock {
	b := outBlock{Type: "tool_use", Name: callName(p.Name), Input: objectOrEmpty(p.Text)}
	var s callState
	if state := keep(p.StateFor(l.maker)); state != nil && readObject(state, &s) && s.Type == "tool_use" {
		b.Caller, b.Toolset = s.Caller, s.Toolset
		// Code that waits for the call knows it by the vendor's id only.
		if s.Caller != nil && wireID.MatchString(s.ID) && l.ids[s.ID] == 0 {
			b.ID = s.ID
			l.ids[s.ID]++
		}
	}
	if b.ID == "" {
		b.ID = l.id(p.CallID)
	}
	if !slices.Contains(l.names, b.Name) {
		l.names = append(l.names, b.Name)
	}
	return b
}

var wireID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// id gives the wire form of a call id of ours: itself where the vendor takes it.
func (l *lowering) id(callID string) string {
	id := callID
	if !wireID.MatchString(id) {
		sum := sha256.Sum256([]byte(callID))
		id = "call_" + hex.EncodeToString(sum[:12])
	}
	for base := id; l.ids[id] > 0; {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", base, l.ids[base]))
		l.ids[base]++
		id = "call_" + hex.EncodeToString(sum[:12])
	}
	l.ids[id]++
	return id
}

// results adds the results of the last calls, in call order.
func (l *lowering) results(parts []llm.Content) error {
	results := map[string]*llm.Content{}
	for i := range parts {
		p := &parts[i]
		if p.Kind != llm.ToolResult {
			continue
		}
		if _, known := l.waiting[p.CallID]; !known {
			return llm.Errorf(llm.InvalidRequest, "a tool result has no call right before it")
		}
		if results[p.CallID] != nil {
			return llm.Errorf(llm.InvalidRequest, "a tool call has two results")
		}
		results[p.CallID] = p
	}
	if len(results) < len(l.waiting) {
		return llm.Errorf(llm.InvalidRequest, "a tool call has no result")
	}
	for _, id := range l.order {
		p := results[id]
		l.put(user, outBlock{Type: "tool_result", ToolUseID: l.waiting[id], Content: resultText(p), IsError: p.IsError})
	}
	l.waiting, l.order = nil, nil
	return nil
}

// resultText: the vendor refuses an error without a text.
func resultText(p *llm.Content) string {
	switch {
	case !blank(p.Text):
		return p.Text
	case p.IsError:
		return "(the tool failed and gave no message)"
	}
	return "(no output)"
}

func citations(state []byte) json.RawMessage {
	var s struct {
		Type      string          `json:"type"`
		Citations json.RawMessage `json:"citations"`
	}
	if state = keep(state); state == nil || !readObject(state, &s) || s.Type != "text" || len(s.Citations) == 0 || s.Citations[0] != '[' {
		return nil
	}
	return s.Citations
}

// objectOrEmpty keeps a history sendable whatever a model once wrote as
// arguments: the vendor refuses any that are not a JSON object.
func objectOrEmpty(args string) json.RawMessage {
	n, err := canonjson.ParseString(args, stateLimits())
	if err != nil || n.Kind() != canonjson.Object {
		return json.RawMessage("{}")
	}
	return json.RawMessage(args)
}

// callName keeps a history sendable when a model once called a tool by a name
// that no tool can have: the vendor takes letters, digits, `_` and `-`.
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

func blank(s string) bool { return strings.TrimSpace(s) == "" }

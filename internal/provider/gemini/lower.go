package gemini

import (
	"encoding/json"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// noSignature is the documented stand-in for the signature of a call that has
// none: the vendor then does not check it. The first call of each model message
// needs a signature, and history from other models has none of this vendor's.
const noSignature = "skip_thought_signature_validator"

// The roles of contents. Results of functions are the user's.
const (
	roleUser  = "user"
	roleModel = "model"
)

// lowering turns neutral messages into contents.
type lowering struct {
	maker string
	caps  llm.Capabilities
	names toolNames
	sign  bool // calls without a signature get the stand-in

	out     []content
	results bool               // the last content holds results, which stand alone
	waiting map[string]outCall // by call id: the calls of the last assistant message
	order   []string           // the call ids of waiting, in call order
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
		return l.answers(msg.Parts)
	}
	return llm.Errorf(llm.InvalidRequest, "a message has the unknown role %q", cutWord(string(msg.Role)))
}

// finish gives the contents. The vendor wants the user to speak first and last.
func (l *lowering) finish() ([]content, error) {
	if len(l.waiting) > 0 {
		return nil, llm.Errorf(llm.InvalidRequest, "the history ends with tool calls that have no results")
	}
	if len(l.out) == 0 {
		return nil, llm.Errorf(llm.InvalidRequest, "the request holds nothing that can be said")
	}
	if l.out[len(l.out)-1].Role == roleModel {
		l.say(roleUser, "Go on.")
	}
	return l.out, nil
}

// add puts parts in the last content of the role, or a new one.
func (l *lowering) add(role string, parts ...outPart) {
	if len(parts) == 0 {
		return
	}
	if len(l.out) == 0 && role == roleModel {
		l.say(roleUser, "(the conversation goes on)")
	}
	if n := len(l.out); n == 0 || l.out[n-1].Role != role || l.results {
		l.out = append(l.out, content{Role: role})
	}
	l.results = false
	last := &l.out[len(l.out)-1]
	last.Parts = append(last.Parts, parts...)
}

// say adds text. Neighbours without a signature become one part; empty ones,
// which the vendor refuses, are left out.
func (l *lowering) say(role, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	if n := len(l.out); n > 0 && l.out[n-1].Role == role && !l.results {
		parts := l.out[n-1].Parts
		if p := &parts[len(parts)-1]; p.Text != nil && p.Signature == "" {
			joined := *p.Text + "\n\n" + text
			p.Text = &joined
			return
		}
	}
	l.add(role, outPart{Text: &text})
}

func (l *lowering) user(parts []llm.Content) error {
	for i := range parts {
		p := &parts[i]
		switch p.Kind {
		case llm.Text:
			l.say(roleUser, p.Text)
		case llm.Image, llm.File:
			if err := l.file(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lowering) file(p *llm.Content) error {
	switch {
	case !l.caps.Takes(p.MediaType), p.Kind == llm.Image != strings.HasPrefix(p.MediaType, "image/"):
		return llm.Errorf(llm.InvalidRequest, "the model takes no %s", cutWord(p.MediaType))
	case p.MediaType == "image/gif":
		return llm.Errorf(llm.InvalidRequest, "the vendor takes no image/gif: png, jpeg and webp are taken")
	case p.MediaType != "application/pdf" && p.Kind == llm.File:
		return llm.Errorf(llm.InvalidRequest, "the vendor takes no file of type %s", cutWord(p.MediaType))
	case len(p.Data) == 0:
		return llm.Errorf(llm.InvalidRequest, "a file is empty")
	}
	if p.Name != "" {
		l.say(roleUser, "File "+canonjson.QuoteName(p.Name)+":")
	}
	l.add(roleUser, outPart{Inline: &blob{MimeType: p.MediaType, Data: p.Data}})
	return nil
}

func (l *lowering) assistant(parts []llm.Content) error {
	l.waiting, l.order = map[string]outCall{}, nil
	for i := range parts {
		p := &parts[i]
		state := p.StateFor(l.maker)
		switch p.Kind {
		case llm.Text:
			if len(state) == 0 {
				l.say(roleModel, p.Text)
			} else {
				l.add(roleModel, textParts(p.Text, state)...)
			}
		case llm.Reasoning, llm.Hosted:
			if raw := wholePart(state); raw != nil {
				l.add(roleModel, outPart{raw: raw})
			}
		case llm.ToolCall:
			if _, twice := l.waiting[p.CallID]; twice {
				return llm.Errorf(llm.InvalidRequest, "a call id stands twice in one message")
			}
			s := callOf(state)
			if s.Signature == "" && l.sign && len(l.order) == 0 {
				s.Signature = noSignature
			}
			c := outCall{ID: s.ID, Name: l.names.wire(p.Name), Args: objectOrEmpty(p.Text)}
			l.waiting[p.CallID], l.order = c, append(l.order, p.CallID)
			l.add(roleModel, outPart{Call: &c, Signature: s.Signature})
		}
	}
	return nil
}

// answers adds one content with all results of one message, in call order.
func (l *lowering) answers(parts []llm.Content) error {
	results := map[string]responseBody{}
	for i := range parts {
		p := &parts[i]
		if p.Kind != llm.ToolResult {
			continue
		}
		if _, known := l.waiting[p.CallID]; !known {
			return llm.Errorf(llm.InvalidRequest, "a tool result has no call right before it")
		}
		if _, twice := results[p.CallID]; twice {
			return llm.Errorf(llm.InvalidRequest, "a tool call has two results")
		}
		results[p.CallID] = resultBody(p)
	}
	if len(results) < len(l.waiting) {
		return llm.Errorf(llm.InvalidRequest, "a tool call has no result")
	}
	if len(l.order) == 0 {
		return nil
	}
	c := content{Role: roleUser}
	for _, id := range l.order {
		call := l.waiting[id]
		c.Parts = append(c.Parts, outPart{Result: &outResult{ID: call.ID, Name: call.Name, Response: results[id]}})
	}
	l.out, l.results = append(l.out, c), true
	l.waiting, l.order = nil, nil
	return nil
}

// resultBody: the text is wrapped whatever it is, so that no word of a tool's
// output is taken for one of the vendor's.
func resultBody(p *llm.Content) responseBody {
	text := p.Text
	if p.IsError {
		if strings.TrimSpace(text) == "" {
			text = "the tool failed and gave no message"
		}
		return responseBody{Error: &text}
	}
	return responseBody{Output: &text}
}

// objectOrEmpty keeps a history sendable whatever a model once wrote as
// arguments: the vendor takes a JSON object only.
func objectOrEmpty(args string) json.RawMessage {
	n, err := canonjson.ParseString(args, stateLimits)
	if err != nil || n.Kind() != canonjson.Object {
		return json.RawMessage("{}")
	}
	return json.RawMessage(args)
}

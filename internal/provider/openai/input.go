package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The items of the input that we write ourselves.
type (
	userMessage struct {
		Type    string  `json:"type"`
		Role    string  `json:"role"`
		Content []input `json:"content"`
	}
	plainMessage struct {
		Type    string `json:"type"`
		Role    string `json:"role"`
		Phase   string `json:"phase,omitempty"`
		Content string `json:"content"`
	}
	input struct {
		Type     string `json:"type"`
		Text     string `json:"text,omitempty"`
		Detail   string `json:"detail,omitempty"`
		ImageURL string `json:"image_url,omitempty"`
		Filename string `json:"filename,omitempty"`
		FileData string `json:"file_data,omitempty"`
	}
	functionCall struct {
		Type      string `json:"type"`
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	functionOutput struct {
		Type   string `json:"type"`
		CallID string `json:"call_id"`
		Output string `json:"output"`
	}
)

// lowering turns neutral messages into input items.
type lowering struct {
	maker string
	caps  llm.Capabilities
	out   [][]byte
	said  []input // of the user message that is open
	json  bool    // the word stands in what was said
	bytes int     // of files, as they are sent

	used    map[string]bool   // wire ids of calls
	waiting map[string]string // call id → wire id, of the last assistant message
	order   []string          // the call ids of waiting, in call order
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
		return l.results(msg.Parts)
	}
	return llm.Errorf(llm.InvalidRequest, "a message has the unknown role %q", cutWord(string(msg.Role)))
}

// user adds to the open user message: neighbours become one, because
// templates of local models refuse two in a row. Empty texts are left out.
func (l *lowering) user(parts []llm.Content) error {
	for _, p := range parts {
		switch p.Kind {
		case llm.Text:
			if strings.TrimSpace(p.Text) != "" {
				l.said = append(l.said, input{Type: "input_text", Text: p.Text})
				l.notice(p.Text)
			}
		case llm.Image, llm.File:
			in, err := l.media(p)
			if err != nil {
				return err
			}
			l.said = append(l.said, in)
		}
	}
	return nil
}

// media gives a picture or a document. Admission has refused before what the
// model does not take; this is the second line.
func (l *lowering) media(p llm.Content) (input, error) {
	picture := strings.HasPrefix(p.MediaType, "image/")
	if picture != (p.Kind == llm.Image) || !picture && p.MediaType != "application/pdf" || !l.caps.Takes(p.MediaType) {
		return input{}, llm.Errorf(llm.InvalidRequest, "the model takes no files of type %q", cutWord(p.MediaType))
	}
	if len(p.Data) == 0 {
		return input{}, llm.Errorf(llm.InvalidRequest, "a file is empty")
	}
	if l.bytes += base64.StdEncoding.EncodedLen(len(p.Data)); l.bytes > MaxRequest {
		return input{}, tooLarge()
	}
	url := "data:" + p.MediaType + ";base64," + base64.StdEncoding.EncodeToString(p.Data)
	if picture {
		return input{Type: "input_image", Detail: "auto", ImageURL: url}, nil
	}
	name := p.Name
	if name == "" {
		name = "document.pdf" // the vendor demands one
	}
	return input{Type: "input_file", Filename: name, FileData: url}, nil
}

// assistant adds what the model said, in its order. An item of reasoning goes
// only where something of the same message follows it: the vendor refuses one
// that stands alone.
func (l *lowering) assistant(parts []llm.Content) error {
	waiting, order := map[string]string{}, []string(nil)
	var thoughts [][]byte
	add := func(v any) error {
		raw, ok := v.([]byte)
		if !ok {
			var err error
			if raw, err = marshal(v); err != nil {
				return err
			}
		}
		if err := l.close(); err != nil {
			return err
		}
		l.out = append(append(l.out, thoughts...), raw)
		thoughts = nil
		return nil
	}
	for _, p := range parts {
		var err error
		switch p.Kind {
		case llm.Text:
			// What leads from a thought to a call may be a line end.
			if p.Text != "" && (p.Maker == l.maker || strings.TrimSpace(p.Text) != "") {
				l.notice(p.Text)
				err = add(plainMessage{Type: "message", Role: "assistant", Phase: phaseOf(p.StateFor(l.maker)), Content: p.Text})
			}
		case llm.Reasoning:
			if raw := p.StateFor(l.maker); isItem(raw) {
				thoughts = append(thoughts, raw)
			}
		case llm.Hosted:
			if raw := p.StateFor(l.maker); isItem(raw) {
				err = add(raw)
			}
		case llm.ToolCall:
			if _, twice := waiting[p.CallID]; twice {
				return llm.Errorf(llm.InvalidRequest, "a call id stands twice in one message")
			}
			id := wireID(p.CallID)
			if l.used[id] {
				return llm.Errorf(llm.InvalidRequest, "a call id stands twice in the history")
			}
			l.used[id] = true
			waiting[p.CallID], order = id, append(order, p.CallID)
			err = add(functionCall{Type: "function_call", CallID: id, Name: callName(p.Name), Arguments: objectOrEmpty(p.Text)})
		}
		if err != nil {
			return err
		}
	}
	if order != nil {
		l.waiting, l.order = waiting, order
	}
	return nil
}

// results adds one item for each result, in call order.
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
		raw, err := marshal(functionOutput{Type: "function_call_output", CallID: l.waiting[id], Output: texts[id]})
		if err != nil {
			return err
		}
		l.out = append(l.out, raw)
	}
	l.waiting, l.order = nil, nil
	return nil
}

// close writes the open user message.
func (l *lowering) close() error {
	if l.said == nil {
		return nil
	}
	raw, err := marshal(userMessage{Type: "message", Role: "user", Content: l.said})
	if err != nil {
		return err
	}
	l.out, l.said = append(l.out, raw), nil
	return nil
}

// finish gives all items.
func (l *lowering) finish() ([][]byte, error) {
	if err := l.close(); err != nil {
		return nil, err
	}
	if len(l.out) == 0 {
		return nil, llm.Errorf(llm.InvalidRequest, "the conversation is empty")
	}
	return l.out, nil
}

func (l *lowering) notice(text string) {
	l.json = l.json || strings.Contains(strings.ToLower(text), "json")
}

// mentionJSON: in its JSON mode the vendor refuses an input without the word,
// and does not look for it in the instructions.
func (l *lowering) mentionJSON() error {
	if l.json {
		return nil
	}
	raw, err := marshal(plainMessage{Type: "message", Role: "developer", Content: "Answer with one JSON object."})
	l.out = append([][]byte{raw}, l.out...)
	return err
}

// resultText: the API has no mark for errors, the text has to tell; and
// servers refuse empty outputs.
func resultText(p llm.Content) string {
	switch {
	case strings.TrimSpace(p.Text) != "":
		return p.Text
	case p.IsError:
		return "(the tool failed and gave no message)"
	}
	return "(no output)"
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// wireID gives a call's name on the wire: our own id where the vendor takes
// it, else one made of it.
func wireID(id string) string {
	if validID.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "call_" + hex.EncodeToString(sum[:16])
}

// objectOrEmpty keeps a history sendable whatever a model once wrote as
// arguments: servers refuse any that are not a JSON object.
func objectOrEmpty(args string) string {
	n, err := canonjson.ParseString(args, wide)
	if err != nil || n.Kind() != canonjson.Object {
		return "{}"
	}
	return args
}

// callName keeps a history sendable when a model once called a tool by a name
// that no tool can have: the vendor takes letters, digits, `_` and `-`, 64 at most.
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

// phase is what Content.State holds of text whose message named its phase:
// models work worse when it does not come back.
type phase struct {
	Phase string `json:"phase"`
}

func phaseState(word string) []byte {
	if word == "" {
		return nil
	}
	return []byte(object("phase", cutWord(word)))
}

func phaseOf(state []byte) string {
	var p phase
	if !parse(state, &p) {
		return ""
	}
	return p.Phase
}

// isItem says whether state is an item that may stand in a request. State
// comes from the vendor by way of the log: what is broken is left out.
func isItem(state []byte) bool {
	if !bytes.HasPrefix(state, []byte("{")) || !json.Valid(state) {
		return false
	}
	n, err := canonjson.Parse(state, wide)
	if err != nil {
		return false
	}
	_, typed := n.Get("type")
	return typed
}

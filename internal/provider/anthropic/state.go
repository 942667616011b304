package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// input is the whole of a call's arguments: the fragments, or what the block
// began with when there were none.
func (b *block) input() string {
	if b.text.Len() > 0 {
		return b.text.String()
	}
	return string(b.Input)
}

// state is what the vendor wants back with the block: the block itself, or,
// where the port keeps the rest of it, what it has besides. Nil means nothing.
func (b *block) state() []byte {
	switch b.kind {
	case kindText:
		if len(b.citations) == 0 {
			return nil
		}
		return keep(marshal(textState{"text", b.citations}))
	case kindThinking:
		if b.signature == "" {
			return nil // the vendor would refuse it
		}
		if !b.grown {
			return keep(b.raw)
		}
		raw := setMember(b.raw, "thinking", marshal(b.text.String()))
		return keep(setMember(raw, "signature", marshal(b.signature)))
	case kindCall:
		return b.callState()
	case kindHostedCall:
		if b.text.Len() == 0 || !json.Valid([]byte(b.text.String())) {
			return keep(b.raw)
		}
		return keep(setMember(b.raw, "input", []byte(b.text.String())))
	}
	return keep(b.raw)
}

// The states that are no blocks.
type (
	textState struct {
		Type      string            `json:"type"`
		Citations []json.RawMessage `json:"citations"`
	}
	callState struct {
		Type    string          `json:"type"`
		ID      string          `json:"id"`
		Caller  json.RawMessage `json:"caller,omitempty"`
		Toolset string          `json:"toolset_name,omitempty"`
	}
	// boxState is the container in which the vendor runs code. A request that
	// goes on with code under way is refused without it.
	boxState struct {
		Type    string `json:"type"`
		ID      string `json:"id"`
		Expires string `json:"expires_at,omitempty"`
	}
)

// boxType marks the state of a container; no block of the vendor is called so.
const boxType = "holdfast_container"

// callState keeps what a call has besides id, name and input: who called, when
// it was not the model itself but code of its, which also binds it to its id.
func (b *block) callState() []byte {
	var caller struct {
		Type string `json:"type"`
	}
	s := callState{Type: "tool_use", ID: b.ID, Toolset: b.Toolset}
	if readObject(b.Caller, &caller) && caller.Type != "direct" {
		s.Caller = b.Caller
	}
	if s.Caller == nil && s.Toolset == "" {
		return nil
	}
	return keep(marshal(s))
}

func containerState(raw json.RawMessage) []byte {
	s := boxState{}
	if !readObject(raw, &s) || s.ID == "" {
		return nil
	}
	s.Type = boxType
	return keep(marshal(s))
}

// alive says whether a container can still be named.
func (s *boxState) alive(now time.Time) bool {
	at, err := time.Parse(time.RFC3339, s.Expires)
	return s.ID != "" && (err != nil || now.Before(at))
}

// account tells in a few words what a hosted tool gave.
func (b *block) account() (text string, failed bool) {
	var c struct {
		Type      string `json:"type"`
		ErrorCode string `json:"error_code"`
	}
	switch {
	case readObject(b.Content, &c):
		failed = b.IsError || c.ErrorCode != "" || strings.HasSuffix(c.Type, "_error")
		if c.ErrorCode != "" {
			return wire.Safe(c.ErrorCode), failed
		}
		return wire.Safe(c.Type), failed
	case len(b.Content) > 0 && b.Content[0] == '[':
		var list []struct{}
		_ = json.Unmarshal(b.Content, &list) // the number is right whatever the entries are
		return fmt.Sprintf("%d results", len(list)), b.IsError
	}
	return "", b.IsError
}

// keep gives a state that can be sent again, or nil: the vendor takes strict
// JSON only, and one bad byte would refuse every later request.
func keep(raw []byte) []byte {
	n, err := canonjson.Parse(raw, stateLimits())
	if err != nil || n.Kind() != canonjson.Object {
		return nil
	}
	return raw
}

func stateLimits() canonjson.Limits { return canonjson.Limits{Bytes: MaxAnswer, Tokens: MaxAnswer} }

// marshal writes a value without the escapes for HTML.
func marshal(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil // only texts, and JSON that was parsed, come here
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// setMember gives the object with one member's value set, the others as they
// were, in their order.
func setMember(object []byte, name string, value []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	out, set := []byte{'{'}, false
	for dec.More() {
		key, err := dec.Token()
		var v json.RawMessage
		if err != nil || dec.Decode(&v) != nil {
			return nil
		}
		if key == name {
			if set {
				continue
			}
			v, set = value, true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, marshal(key)...), ':'), v...)
	}
	if !set {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, marshal(name)...), ':'), value...)
	}
	return append(out, '}')
}

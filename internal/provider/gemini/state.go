package gemini

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// What Content.State holds, by the kind of part:
//
//	text         a textState
//	tool call    a callState
//	reasoning    the vendor's part, as it came
//	hosted       the vendor's part, as it came
type (
	// textState tells the parts that a text came in, since a signature goes back
	// in the very part that had it. The text of each is not repeated.
	textState struct {
		Parts []textPiece `json:"parts"`
	}
	textPiece struct {
		Bytes     int    `json:"n"`
		Signature string `json:"thoughtSignature,omitempty"`
	}
	callState struct {
		ID        string `json:"id,omitempty"`
		Signature string `json:"thoughtSignature,omitempty"`
	}
)

// signedText collects the textState of a growing text. Neighbours without a
// signature are one piece.
type signedText struct {
	list   []textPiece
	signed int
}

func (p *signedText) add(bytes int, signature string) {
	if n := len(p.list); signature == "" && n > 0 && p.list[n-1].Signature == "" {
		p.list[n-1].Bytes += bytes
		return
	}
	if signature != "" {
		p.signed++
	}
	if bytes > 0 || signature != "" {
		p.list = append(p.list, textPiece{bytes, signature})
	}
}

// state is nil for a text without a signature.
func (p *signedText) state() ([]byte, error) {
	if p.signed == 0 {
		return nil, nil
	}
	return marshalState(textState{p.list})
}

func (s callState) state() ([]byte, error) {
	if s == (callState{}) {
		return nil, nil
	}
	return marshalState(s)
}

func marshalState(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, llm.Errorf(llm.UnknownClass, "the state of a part cannot be kept").Because(err)
	}
	return raw, nil
}

// textParts gives the parts that a text came in. A state that does not fit the
// text says nothing: the text is one part without a signature.
func textParts(text string, raw []byte) []outPart {
	var s textState
	if len(raw) > 0 && json.Unmarshal(raw, &s) == nil {
		var out []outPart
		rest := text
		for _, p := range s.Parts {
			if p.Bytes < 0 || p.Bytes > len(rest) || !cleanCut(rest, p.Bytes) {
				rest = "-"
				break
			}
			piece := rest[:p.Bytes]
			rest = rest[p.Bytes:]
			out = append(out, outPart{Text: &piece, Signature: p.Signature})
		}
		if rest == "" && len(out) > 0 {
			return out
		}
	}
	if text == "" {
		return nil
	}
	return []outPart{{Text: &text}}
}

func cleanCut(s string, n int) bool { return n == len(s) || utf8.RuneStart(s[n]) }

// callOf reads the state of a call; what is none says nothing.
func callOf(raw []byte) callState {
	var s callState
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return callState{}
	}
	return s
}

// wholePart gives a part to be sent back as it came, nil if the state holds none.
func wholePart(raw []byte) json.RawMessage {
	n, err := canonjson.Parse(raw, stateLimits)
	if err != nil || n.Kind() != canonjson.Object || n.Len() == 0 {
		return nil
	}
	return json.RawMessage(raw)
}

var stateLimits = canonjson.Limits{Bytes: MaxAnswer, Tokens: MaxAnswer}

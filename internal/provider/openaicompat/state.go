package openaicompat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// state is what Content.State holds of reasoning that its vendor wants back:
// reasoning_content as one text, or the reasoning_details as they came, piece
// by piece. Reasoning that came in another field has no state: its vendors do
// not want it back.
type state struct {
	ReasoningContent string            `json:"reasoning_content,omitempty"`
	Details          []json.RawMessage `json:"reasoning_details,omitempty"`
}

// encode gives the stored form; the details stay byte for byte.
func (s state) encode() ([]byte, error) {
	if s.ReasoningContent == "" && s.Details == nil {
		return nil, nil
	}
	var buf bytes.Buffer
	buf.WriteByte('{')
	if s.ReasoningContent != "" {
		text, err := marshal(s.ReasoningContent)
		if err != nil {
			return nil, err
		}
		buf.WriteString(`"reasoning_content":`)
		buf.Write(text)
	}
	if s.Details != nil {
		if buf.Len() > 1 {
			buf.WriteByte(',')
		}
		buf.WriteString(`"reasoning_details":[`)
		buf.Write(bytes.Join(toBytes(s.Details), []byte(",")))
		buf.WriteByte(']')
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

func toBytes(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, d := range list {
		out[i] = d
	}
	return out
}

// marshal writes JSON without the escapes that HTML wants.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

// returned is the reasoning of one message on its way back to its maker.
type returned struct {
	content strings.Builder
	details []json.RawMessage
}

func (r *returned) add(raw []byte) {
	var s state
	if json.Unmarshal(raw, &s) != nil {
		return // not ours to read, so not ours to send
	}
	r.content.WriteString(s.ReasoningContent)
	r.details = append(r.details, s.Details...)
}

// list gives the details as a whole answer would hold them: pieces of one
// detail, which a stream gave in a row, are joined. What came whole goes back
// byte for byte.
func (r *returned) list() []json.RawMessage {
	var out []json.RawMessage
	var open map[string]any // the last one, decoded, when it was looked at
	for _, raw := range r.details {
		piece := decodeDetail(raw)
		if n := len(out); n > 0 && sameDetail(open, piece) {
			open = join(open, piece)
			if whole, err := marshal(open); err == nil {
				out[n-1] = whole
				continue
			}
		}
		out, open = append(out, raw), piece
	}
	return out
}

// cleanDetail gives a detail as it came, or, when it is no strict JSON (half
// characters, doubled names), the nearest that is.
func cleanDetail(raw json.RawMessage) json.RawMessage {
	lim := canonjson.Limits{Bytes: MaxAnswer, Depth: 1 << 10, Tokens: MaxAnswer}
	if _, err := canonjson.Parse(raw, lim); err == nil {
		return raw
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return json.RawMessage("null")
	}
	clean, err := marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return clean
}

func decodeDetail(raw []byte) map[string]any {
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // ids and indexes keep their digits
	if dec.Decode(&m) != nil {
		return nil
	}
	return m
}

// grows are the members of a detail that a stream sends in pieces.
var grows = []string{"text", "summary", "data"}

// sameDetail says that b goes on with a: same type and index, and no other id.
func sameDetail(a, b map[string]any) bool {
	if a == nil || b == nil || a["type"] != b["type"] {
		return false
	}
	for _, k := range []string{"index", "id"} {
		x, y := a[k], b[k]
		if x != y && (k == "index" || x != nil && y != nil) {
			return false
		}
	}
	return a["index"] != nil && a["type"] != "reasoning.encrypted"
}

func join(a, b map[string]any) map[string]any {
	for k, v := range b {
		old, isText := a[k].(string)
		more, moreText := v.(string)
		switch {
		case v == nil && a[k] != nil:
		case slices.Contains(grows, k) && isText && moreText:
			a[k] = old + more
		default:
			a[k] = v
		}
	}
	return a
}

// detailText gives the readable text of a detail.
func detailText(raw []byte) string {
	var d struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Summary string `json:"summary"`
	}
	if json.Unmarshal(raw, &d) != nil || d.Type == "reasoning.encrypted" {
		return ""
	}
	return d.Text + d.Summary
}

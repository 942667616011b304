package openai

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// What we read of the vendor's events and items.
type (
	event struct {
		Type      string          `json:"type"`
		Index     number          `json:"output_index"`
		ItemID    text            `json:"item_id"`
		Content   number          `json:"content_index"`
		Summary   number          `json:"summary_index"`
		Delta     text            `json:"delta"`
		Text      text            `json:"text"`
		Refusal   text            `json:"refusal"`
		Name      text            `json:"name"`
		Code      text            `json:"code"`
		Arguments arguments       `json:"arguments"`
		Part      *content        `json:"part"`
		Item      json.RawMessage `json:"item"`
		Response  json.RawMessage `json:"response"`
	}
	response struct {
		Status     string            `json:"status"`
		Output     []json.RawMessage `json:"output"`
		Usage      *usage            `json:"usage"`
		Incomplete struct {
			Reason string `json:"reason"`
		} `json:"incomplete_details"`
	}
	item struct {
		Type      string    `json:"type"`
		ID        text      `json:"id"`
		Status    string    `json:"status"`
		Phase     text      `json:"phase"`
		Content   contents  `json:"content"`
		Summary   contents  `json:"summary"`
		Encrypted text      `json:"encrypted_content"`
		CallID    text      `json:"call_id"`
		Name      text      `json:"name"`
		Arguments arguments `json:"arguments"`

		// of hosted tools
		Action      json.RawMessage   `json:"action"`
		Queries     json.RawMessage   `json:"queries"`
		Results     []json.RawMessage `json:"results"`
		Code        text              `json:"code"`
		Outputs     contents          `json:"outputs"`
		Prompt      text              `json:"revised_prompt"`
		ServerLabel text              `json:"server_label"`
		Output      text              `json:"output"`
		Error       json.RawMessage   `json:"error"`
	}
	content struct {
		Type    string `json:"type"`
		Text    text   `json:"text"`
		Refusal text   `json:"refusal"`
		Logs    text   `json:"logs"`
	}
	usage struct {
		Input    number `json:"input_tokens"`
		Output   number `json:"output_tokens"`
		InDetail struct {
			Cached  int64 `json:"cached_tokens"`
			Written int64 `json:"cache_write_tokens"`
		} `json:"input_tokens_details"`
		OutDetail struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	}
)

// parse reads one JSON object. A field of an unexpected type is as good as
// absent; servers differ in all that we do not need. It reports false for
// anything but one whole object.
func parse(data []byte, v any) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	err := json.Unmarshal(data, v)
	var odd *json.UnmarshalTypeError
	return err == nil || errors.As(err, &odd)
}

// tokens gives the usage, or nil when it is not known. Counts of zero for an
// answer are a server's way not to count.
func (u *usage) tokens() *llm.Usage {
	if u == nil || !u.Input.known || !u.Output.known || u.Input.n < 0 || u.Output.n < 0 || u.Input.n+u.Output.n == 0 {
		return nil
	}
	return &llm.Usage{
		Input: u.Input.n, Output: u.Output.n, CacheRead: max(0, u.InDetail.Cached),
		CacheWrite: max(0, u.InDetail.Written), Reasoning: max(0, u.OutDetail.Reasoning),
	}
}

// number is a whole number that may be absent, null or something else: it is
// known only when it is one.
type number struct {
	n     int64
	known bool
}

// UnmarshalJSON never fails: what is no whole number is as good as absent.
func (v *number) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseInt(string(data), 10, 64)
	v.n, v.known = n, err == nil
	return nil
}

// text is a string, or from some servers an object with a text.
type text string

// UnmarshalJSON never fails: what is no text is as good as absent.
func (t *text) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		var s string
		if json.Unmarshal(data, &s) == nil {
			*t = text(s)
		}
	case '{':
		var o struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(data, &o) == nil {
			*t = text(o.Text)
		}
	}
	return nil
}

// contents is a list of parts, or from some servers one text.
type contents []content

// UnmarshalJSON never fails: what is neither is as good as absent.
func (c *contents) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		var t text
		if err := t.UnmarshalJSON(data); err != nil {
			return err
		}
		*c = contents{{Type: "output_text", Text: t}}
	case '[':
		var list []json.RawMessage
		if json.Unmarshal(data, &list) != nil {
			return nil
		}
		for _, raw := range list {
			var one content
			parse(raw, &one) // what cannot be read keeps its place
			*c = append(*c, one)
		}
	}
	return nil
}

// arguments are a string that holds JSON, or, from some servers, the JSON
// value itself.
type arguments string

// UnmarshalJSON keeps a string's value, or any other value as written. An
// empty object that is not in a string says nothing yet: converters put it
// before the fragments.
func (a *arguments) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		var s string
		if json.Unmarshal(data, &s) == nil {
			*a = arguments(s)
		}
	case 'n':
	default:
		if s := string(data); strings.Join(strings.Fields(s), "") != "{}" {
			*a = arguments(s)
		}
	}
	return nil
}

func cutWord(s string) string { return canonjson.CutRunes(strings.ToValidUTF8(s, "\uFFFD"), 64) }

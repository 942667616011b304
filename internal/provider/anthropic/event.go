package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The parts of an answer that we read.
type (
	streamEvent struct {
		Type    string          `json:"type"`
		Index   number          `json:"index"`
		Message *message        `json:"message"`
		Block   json.RawMessage `json:"content_block"`
		Delta   delta           `json:"delta"`
		Usage   *usage          `json:"usage"`
		Error   json.RawMessage `json:"error"`
	}
	message struct {
		Type        string            `json:"type"`
		Content     []json.RawMessage `json:"content"`
		StopReason  string            `json:"stop_reason"`
		StopDetails stopDetails       `json:"stop_details"`
		Container   json.RawMessage   `json:"container"`
		Usage       *usage            `json:"usage"`
	}
	delta struct {
		Type        string          `json:"type"`
		Text        string          `json:"text"`
		Thinking    string          `json:"thinking"`
		Signature   string          `json:"signature"`
		PartialJSON arguments       `json:"partial_json"`
		Citation    json.RawMessage `json:"citation"`
		StopReason  string          `json:"stop_reason"`
		StopDetails stopDetails     `json:"stop_details"`
		Container   json.RawMessage `json:"container"`
	}
	stopDetails struct {
		Explanation string `json:"explanation"`
		Category    string `json:"category"`
	}
	content struct {
		Type      string            `json:"type"`
		Text      string            `json:"text"`
		Thinking  string            `json:"thinking"`
		Signature string            `json:"signature"`
		ID        string            `json:"id"`
		ToolUseID string            `json:"tool_use_id"`
		Name      string            `json:"name"`
		Input     arguments         `json:"input"`
		Citations []json.RawMessage `json:"citations"`
		Caller    json.RawMessage   `json:"caller"`
		Toolset   string            `json:"toolset_name"`
		Content   json.RawMessage   `json:"content"`
		IsError   bool              `json:"is_error"`
	}
	usage struct {
		Input         number `json:"input_tokens"`
		Output        number `json:"output_tokens"`
		CacheCreation number `json:"cache_creation_input_tokens"`
		CacheRead     number `json:"cache_read_input_tokens"`
		Details       struct {
			Thinking number `json:"thinking_tokens"`
		} `json:"output_tokens_details"`
	}
)

// known are the events that an answer is made of; all others are read over.
func known(event string) bool {
	switch event {
	case "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "error", "message":
		return true
	}
	return false
}

// parseEvent reads one JSON object. A field of an unexpected type is as good as
// absent. It reports false for anything but one whole object.
func parseEvent(data []byte) (streamEvent, bool) {
	var e streamEvent
	ok := readObject(data, &e)
	return e, ok
}

func parseMessage(data []byte) (message, bool) {
	var m message
	ok := readObject(bytes.TrimSpace(data), &m)
	return m, ok
}

func readObject(data []byte, v any) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	err := json.Unmarshal(data, v)
	var odd *json.UnmarshalTypeError
	return err == nil || errors.As(err, &odd)
}

// failed says that an event of no known type holds an error.
func (e *streamEvent) failed() bool {
	switch string(bytes.TrimSpace(e.Error)) {
	case "", "null", `""`, "{}", "[]", "false":
		return false
	}
	return true
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

// arguments are a JSON value, or a string that holds one: some gateways send
// the string where the vendor sends the value, and the other way round.
type arguments string

// UnmarshalJSON keeps a string's value, or any other value as written. An
// empty object says nothing yet: it stands before the fragments.
func (a *arguments) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*a = arguments(s)
	case 'n':
	default:
		if strings.Join(strings.Fields(string(data)), "") != "{}" {
			*a = arguments(data)
		}
	}
	return nil
}

// total keeps the running totals of the usage. A later count stands for an
// earlier one; a zero behind a count is a gateway's way to say nothing.
type total struct {
	input, output, written, read, thought number
}

func (t *total) add(u *usage) {
	if u == nil {
		return
	}
	for _, p := range [...]struct{ to, from *number }{
		{&t.input, &u.Input}, {&t.output, &u.Output}, {&t.written, &u.CacheCreation}, {&t.read, &u.CacheRead}, {&t.thought, &u.Details.Thinking},
	} {
		if p.from.known && p.from.n >= 0 && (p.from.n > 0 || !p.to.known) {
			*p.to = *p.from
		}
	}
}

// tokens gives the usage, or nil when it is not known. Counts of zero for an
// answer are a gateway's way not to count. The vendor counts cached input apart.
func (t *total) tokens() *llm.Usage {
	if !t.input.known || !t.output.known {
		return nil
	}
	u := (&llm.Usage{Input: t.input.n, Output: t.output.n}).Add(&llm.Usage{Input: t.written.n, CacheWrite: t.written.n})
	u = u.Add(&llm.Usage{Input: t.read.n, CacheRead: t.read.n, Reasoning: min(t.thought.n, t.output.n)})
	if u.Input == 0 && u.Output == 0 {
		return nil
	}
	return u
}

// finishReason puts the vendor's words into ours.
func finishReason(raw string) llm.FinishReason {
	switch strings.ToLower(raw) {
	case "end_turn", "stop_sequence", "stop":
		return llm.FinishStop
	case "tool_use", "tool_calls":
		return llm.FinishTools
	case "max_tokens", "model_context_window_exceeded", "length":
		return llm.FinishLength
	case "pause_turn":
		return llm.FinishPause
	case "refusal", "content_filter", "sensitive":
		return llm.FinishFilter
	}
	return llm.FinishUnknown
}

func cutWord(s string) string { return canonjson.CutRunes(strings.ToValidUTF8(s, "\uFFFD"), 64) }

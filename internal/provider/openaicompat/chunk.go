package openaicompat

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// The parts of an answer that we read, of a stream's chunk and of a plain
// answer alike.
type (
	chunk struct {
		Choices []choice        `json:"choices"`
		Usage   *usage          `json:"usage"`
		Error   json.RawMessage `json:"error"`
		Object  string          `json:"object"`
		Message json.RawMessage `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Errors  json.RawMessage `json:"errors"`
		Groq    struct {
			Usage *usage `json:"usage"`
		} `json:"x_groq"`
	}
	choice struct {
		Index        int    `json:"index"`
		Delta        *delta `json:"delta"`
		Message      *delta `json:"message"`
		FinishReason string `json:"finish_reason"`
		Usage        *usage `json:"usage"`
	}
	delta struct {
		Content          content           `json:"content"`
		ReasoningContent string            `json:"reasoning_content"`
		Reasoning        string            `json:"reasoning"`
		Details          []json.RawMessage `json:"reasoning_details"`
		Refusal          string            `json:"refusal"`
		ToolCalls        []callDelta       `json:"tool_calls"`
		// FunctionCall is how servers called functions before there were tools.
		FunctionCall *function `json:"function_call"`
	}
	callDelta struct {
		Index    number   `json:"index"`
		ID       string   `json:"id"`
		Function function `json:"function"`
	}
	function struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	}
	usage struct {
		Input  number `json:"prompt_tokens"`
		Output number `json:"completion_tokens"`
		Total  number `json:"total_tokens"`
		Prompt struct {
			Cached     int64 `json:"cached_tokens"`
			CacheWrite int64 `json:"cache_write_tokens"`
		} `json:"prompt_tokens_details"`
		Completion struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
		CacheHit   int64 `json:"prompt_cache_hit_tokens"`     // DeepSeek
		Cached     int64 `json:"cached_tokens"`               // Moonshot
		CacheRead  int64 `json:"cache_read_input_tokens"`     // routers to Anthropic
		CacheWrite int64 `json:"cache_creation_input_tokens"` // the same
	}
)

// parseChunk reads one JSON object. A field of an unexpected type is as good
// as absent; servers differ in all that we do not need. It reports false for
// anything but one whole object.
func parseChunk(data []byte) (chunk, bool) {
	var c chunk
	if len(data) == 0 || data[0] != '{' {
		return c, false
	}
	err := json.Unmarshal(data, &c)
	var odd *json.UnmarshalTypeError
	return c, err == nil || errors.As(err, &odd)
}

// failed says that the chunk is a vendor's error rather than a piece of answer.
func (c chunk) failed() bool {
	switch string(bytes.TrimSpace(c.Error)) {
	case "", "null", `""`, "{}", "[]", "false":
	default:
		return true
	}
	return c.Object == "error" || c.Choices == nil && c.Usage == nil && (c.Message != nil || c.Detail != nil || c.Errors != nil)
}

// first gives the choice that we asked for: there is only one.
func (c chunk) first() *choice {
	for i := range c.Choices {
		if c.Choices[i].Index == 0 {
			return &c.Choices[i]
		}
	}
	return nil
}

// usage gives the usage of a chunk, wherever the server put it.
func (c chunk) usage() *usage {
	if c.Usage != nil {
		return c.Usage
	}
	if ch := c.first(); ch != nil && ch.Usage != nil {
		return ch.Usage
	}
	return c.Groq.Usage
}

// calls gives the pieces of calls of a delta.
func (d *delta) calls() []callDelta {
	if d.FunctionCall == nil || len(d.ToolCalls) > 0 {
		return d.ToolCalls
	}
	return []callDelta{{Index: number{known: true}, Function: *d.FunctionCall}}
}

// tokens gives the usage, or nil when it is not known. Counts of zero for an
// answer are a server's way not to count. Where the total shows that a server
// does not count reasoning as output, it is added.
func (u *usage) tokens() *llm.Usage {
	if u == nil || !u.Input.known || !u.Output.known || u.Input.n < 0 || u.Output.n < 0 || u.Input.n+u.Output.n == 0 {
		return nil
	}
	out := &llm.Usage{
		Input: u.Input.n, Output: u.Output.n, Reasoning: max(0, u.Completion.Reasoning),
		CacheRead:  max(0, u.Prompt.Cached, u.CacheHit, u.Cached, u.CacheRead),
		CacheWrite: max(0, u.Prompt.CacheWrite, u.CacheWrite),
	}
	// Asked in this order, no number that a server may send turns over.
	rest := u.Total.n - out.Reasoning
	if out.Reasoning > 0 && u.Total.known && u.Total.n >= out.Reasoning && rest >= u.Input.n && rest-u.Input.n == out.Output {
		out.Output += out.Reasoning
	}
	return out
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

// content is text, or a list of parts of which some are text.
type content struct {
	Text     string
	Thinking string
}

// UnmarshalJSON reads a string, null, or a list of {type, text} and
// {type: thinking, thinking}; what is neither is left out.
func (t *content) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		return json.Unmarshal(data, &t.Text)
	case '[':
		var parts []struct {
			Text     string  `json:"text"`
			Thinking content `json:"thinking"`
		}
		if err := json.Unmarshal(data, &parts); err != nil {
			return nil // as good as absent
		}
		for _, p := range parts {
			t.Text += p.Text
			t.Thinking += p.Thinking.Text
		}
	}
	return nil
}

// arguments are a string that holds JSON, or, from some servers, the JSON
// value itself.
type arguments struct {
	Text string
	Raw  bool // the value itself
}

// UnmarshalJSON keeps a string's value, or any other value as written. An
// empty object that is not in a string says nothing yet: converters put it
// before the fragments.
func (a *arguments) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		return json.Unmarshal(data, &a.Text)
	case 'n':
		return nil
	}
	a.Raw = true
	if a.Text = strings.ToValidUTF8(string(data), "\uFFFD"); strings.Join(strings.Fields(a.Text), "") == "{}" {
		a.Text = ""
	}
	return nil
}

func cutWord(s string) string { return canonjson.CutRunes(strings.ToValidUTF8(s, "\uFFFD"), 64) }

// cutName bounds ids and names: what is longer than this is neither.
func cutName(s string) string { return canonjson.CutRunes(strings.ToValidUTF8(s, "\uFFFD"), 256) }

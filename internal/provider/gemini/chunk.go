package gemini

import (
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
		Candidates     []candidate     `json:"candidates"`
		PromptFeedback *promptFeedback `json:"promptFeedback"`
		Usage          *usage          `json:"usageMetadata"`
		Error          json.RawMessage `json:"error"`
		ResponseID     string          `json:"responseId"`
		ModelVersion   string          `json:"modelVersion"`
	}
	candidate struct {
		Index   int `json:"index"`
		Content struct {
			Parts []json.RawMessage `json:"parts"`
		} `json:"content"`
		FinishReason  string      `json:"finishReason"`
		FinishMessage string      `json:"finishMessage"`
		Grounding     *grounding  `json:"groundingMetadata"`
		URLContext    *urlContext `json:"urlContextMetadata"`
	}
	promptFeedback struct {
		BlockReason        string `json:"blockReason"`
		BlockReasonMessage string `json:"blockReasonMessage"`
	}
	grounding struct {
		Queries []string `json:"webSearchQueries"`
		Chunks  []struct {
			Web source `json:"web"`
		} `json:"groundingChunks"`
	}
	source struct {
		URI   string `json:"uri"`
		Title string `json:"title"`
	}
	urlContext struct {
		Pages []struct {
			URL    string `json:"retrievedUrl"`
			Status string `json:"urlRetrievalStatus"`
		} `json:"urlMetadata"`
	}
	part struct {
		Text      *string `json:"text"`
		Thought   bool    `json:"thought"`
		Signature string  `json:"thoughtSignature"`
		Call      *struct {
			ID   string    `json:"id"`
			Name string    `json:"name"`
			Args arguments `json:"args"`
		} `json:"functionCall"`
		Code *struct {
			ID       string `json:"id"`
			Language string `json:"language"`
			Code     string `json:"code"`
		} `json:"executableCode"`
		CodeResult *struct {
			ID      string `json:"id"`
			Outcome string `json:"outcome"`
			Output  string `json:"output"`
		} `json:"codeExecutionResult"`
		ToolCall *struct {
			ID   string          `json:"id"`
			Type string          `json:"toolType"`
			Args json.RawMessage `json:"args"`
		} `json:"toolCall"`
		ToolResult *struct {
			ID       string          `json:"id"`
			Type     string          `json:"toolType"`
			Response json.RawMessage `json:"response"`
		} `json:"toolResponse"`
	}
	usage struct {
		Prompt     number `json:"promptTokenCount"`
		ToolPrompt number `json:"toolUsePromptTokenCount"`
		Cached     number `json:"cachedContentTokenCount"`
		Candidates number `json:"candidatesTokenCount"`
		Thoughts   number `json:"thoughtsTokenCount"`
		Total      number `json:"totalTokenCount"`
	}
)

// parseObject reads one JSON object. A field of an unexpected type is as good
// as absent. It reports false for anything but one whole object.
func parseObject(data []byte, v any) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	err := json.Unmarshal(data, v)
	var odd *json.UnmarshalTypeError
	return err == nil || errors.As(err, &odd)
}

// known says that the object is a piece of an answer, also when it tells
// nothing new.
func (c *chunk) known() bool {
	return c.Candidates != nil || c.PromptFeedback != nil || c.Usage != nil || c.ResponseID != "" || c.ModelVersion != ""
}

// first gives the candidate that we asked for: there is only one.
func (c *chunk) first() *candidate {
	for i := range c.Candidates {
		if c.Candidates[i].Index == 0 {
			return &c.Candidates[i]
		}
	}
	return nil
}

// tokens gives the usage, or nil when it is not known. The vendor counts
// thoughts beside the answer, and leaves out counts that are zero.
func (u *usage) tokens() *llm.Usage {
	if u == nil || !u.Prompt.known {
		return nil
	}
	in := u.Prompt.n + u.ToolPrompt.n
	out := u.Candidates.n + u.Thoughts.n
	if !u.Candidates.known {
		if !u.Thoughts.known && !u.Total.known {
			return nil
		}
		out = max(out, u.Total.n-in)
	}
	if in < 0 || out < 0 || in+out <= 0 { // nothing, or past the range
		return nil
	}
	return &llm.Usage{Input: in, Output: out, CacheRead: u.Cached.n, Reasoning: u.Thoughts.n}
}

// number is a whole number from 0 that may be absent, null or something else:
// it is known only when it is one.
type number struct {
	n     int64
	known bool
}

// UnmarshalJSON never fails: what is no such number is as good as absent.
func (v *number) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64) // int64 may be text in this API's JSON
	if err == nil && n >= 0 {
		v.n, v.known = n, true
	}
	return nil
}

// arguments are a JSON object; some gateways send a string that holds one.
type arguments struct{ Text string }

// UnmarshalJSON keeps a string's value, or any other value as written.
func (a *arguments) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '"':
		return json.Unmarshal(data, &a.Text)
	case 'n':
		return nil
	}
	a.Text = string(data)
	return nil
}

func cutWord(s string) string { return canonjson.CutRunes(strings.ToValidUTF8(s, "\uFFFD"), 64) }

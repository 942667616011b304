package openaicompat

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Quirks say where a server differs from the common dialect. The zero value is
// what most servers take; where a model's family or a known host decides, it
// does so without being told.
type Quirks struct {
	// DeveloperRole sends the system text under the role "developer".
	DeveloperRole bool
	// NoStreamOptions leaves stream_options out, for old servers that refuse it.
	// The usage stays unknown unless the server sends it all the same.
	NoStreamOptions bool
	// NoParallelToolCalls never sends parallel_tool_calls, for servers that
	// refuse it. More than one call may then come in one answer.
	NoParallelToolCalls bool
	// ToolChoiceNone sends the list of tools with the choice "none" when tools
	// are withheld and the history holds calls, for routers to vendors that
	// demand the list then.
	ToolChoiceNone bool
	// ToolsWithSchema sends response_format beside tools. Without it a request
	// that offers tools has none, because many servers would keep the model
	// from calling them.
	ToolsWithSchema bool
	// ReasoningContent says that the server demands reasoning_content with
	// every message that called tools; where another model made the call a
	// neutral text stands in.
	ReasoningContent bool
	// MaxTokens is the name of the limit of an answer: "max_tokens" or
	// "max_completion_tokens". Empty: by host and model family.
	MaxTokens string
	// Reasoning is how effort and budget are said: "effort" (reasoning_effort)
	// or "object" (reasoning: {effort, max_tokens}, as OpenRouter does). Empty:
	// by host.
	Reasoning string
}

// The words of Quirks.
const (
	maxTokens           = "max_tokens"
	maxCompletionTokens = "max_completion_tokens"
	reasoningEffort     = "effort"
	reasoningObject     = "object"
)

var efforts = []string{"", "minimal", "low", "medium", "high"}

// resolve fills in what the host decides, and checks the rest.
func (q Quirks) resolve(base *url.URL, cfg *Config) (Quirks, error) {
	host := strings.ToLower(base.Hostname())
	openai := host == "api.openai.com" || strings.HasSuffix(host, ".openai.azure.com") || strings.HasSuffix(host, ".cognitiveservices.azure.com")
	if openai {
		q.ToolsWithSchema = true
		if q.MaxTokens == "" {
			q.MaxTokens = maxCompletionTokens
		}
	}
	if q.Reasoning == "" {
		q.Reasoning = reasoningEffort
		if host == "openrouter.ai" {
			q.Reasoning = reasoningObject
		}
	}
	switch {
	case !slices.Contains([]string{"", maxTokens, maxCompletionTokens}, q.MaxTokens):
		return q, fmt.Errorf("quirks: max_tokens: want %s or %s", maxTokens, maxCompletionTokens)
	case !slices.Contains([]string{reasoningEffort, reasoningObject}, q.Reasoning):
		return q, fmt.Errorf("quirks: reasoning: want %s or %s", reasoningEffort, reasoningObject)
	case !slices.Contains(efforts, cfg.Effort):
		return q, fmt.Errorf("reasoning.effort: want minimal, low, medium or high")
	case cfg.ReasoningBudget < 0 || cfg.MaxOutputTokens < 0:
		return q, fmt.Errorf("max_output_tokens, reasoning_budget: want 0 or more")
	case cfg.ReasoningBudget > 0 && q.Reasoning != reasoningObject:
		return q, fmt.Errorf("reasoning.budget: this dialect has an effort and no budget; only a router that takes the reasoning object has one")
	}
	return q, nil
}

// limitName is the name under which a model takes the limit of its answer.
// The reasoning models of OpenAI refuse max_tokens, on every server.
func (q Quirks) limitName(model string) string {
	if q.MaxTokens != "" {
		return q.MaxTokens
	}
	name := family(model)
	for _, begin := range []string{"o1", "o3", "o4", "gpt-5"} {
		if name == begin || strings.HasPrefix(name, begin+"-") || strings.HasPrefix(name, begin+".") {
			return maxCompletionTokens
		}
	}
	return maxTokens
}

// demandsReasoning says that a model's vendor refuses a message that called
// tools and has no reasoning_content.
func (q Quirks) demandsReasoning(model string) bool {
	if q.ReasoningContent {
		return true
	}
	name := family(model)
	return slices.ContainsFunc([]string{"deepseek-reasoner", "deepseek-v4", "deepseek-flash", "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6"},
		func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// family is the model's name without the path before it.
func family(model string) string {
	return strings.ToLower(model[strings.LastIndexByte(model, '/')+1:])
}

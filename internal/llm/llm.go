// Package llm is the port to language models: what a request is, which parts
// an answer streams in, and which classes of error the rules decide by. Its
// words are neutral; each vendor's adapter translates at the edge.
package llm

import (
	"context"
	"math"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Model is one model behind one route. Implementations are safe for
// concurrent use and never retry: each call is one physical attempt, and
// every retry is a decision of the engine.
type Model interface {
	// Stream runs one attempt and hands each part of the answer to yield, in
	// order, on the caller's goroutine. It returns nil only after exactly one
	// Finish part; any other end is an *Error. When yield returns an error,
	// Stream stops and returns that error. When ctx ends, Stream returns
	// promptly with ctx's error in the chain.
	Stream(ctx context.Context, req *Request, yield func(Part) error) error
}

// Request is one logical model call in neutral words. Adapters do not change it.
type Request struct {
	Model    string // the vendor's model name
	System   string
	Messages []Message
	Tools    []ToolDefinition

	// NoTools withholds tools: the model must have no way to call one. An
	// adapter whose vendor demands the list because the history holds tool
	// blocks sends it with the choice "none".
	NoTools bool
	// SerialTools forbids more than one call in the answer.
	SerialTools bool
	// Output is the JSON Schema of the final answer, nil when there is none.
	// An adapter may hand it to the vendor; the local check stays the judge.
	Output          canonjson.Value
	MaxOutputTokens int // 0: the vendor's default

	// Continues: the last message is what the model said before it paused
	// (FinishPause); it is to go on from there.
	Continues bool

	// Facts about the step, for the scripted model, and, of the session, for the
	// headers and keys by which vendors find what they have in their caches. An
	// empty SessionID: nothing of the session goes out.
	SessionID       string
	ParentSessionID string // of the session that this one works for; empty: none
	Turn            int    // from 1; a repair keeps the turn's number
	Attempt         int    // physical attempt of this step, from 1
	Repair          int    // 0, or the number of the repair turn, from 1
}

// Role says who speaks in a message.
type Role string

// The roles. System text is not a message: see Request.System.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool" // holds tool results only
)

// Message is one entry of the conversation. The results of the calls of one
// assistant message stand in one Tool message right behind it, in call order.
type Message struct {
	Role  Role
	Parts []Content
}

// ContentKind says what a Content holds.
type ContentKind string

// The kinds of content.
const (
	Text       ContentKind = "text"
	Image      ContentKind = "image"       // user messages: MediaType, Data
	File       ContentKind = "file"        // user messages: MediaType (application/pdf), Data, Name = file name or empty
	Reasoning  ContentKind = "reasoning"   // State only, for the provider that made it
	ToolCall   ContentKind = "tool_call"   // CallID, Name, Text = arguments (canonical JSON object)
	ToolResult ContentKind = "tool_result" // CallID, Text, IsError
	Hosted     ContentKind = "hosted"      // a call, or a result, of a tool that the provider runs: State only, as with Reasoning
)

// Content is one part of a message. The parts of an assistant message stand in
// the order in which the model gave them.
type Content struct {
	Kind      ContentKind
	Text      string
	CallID    string // the daemon's own id, never the vendor's
	Name      string
	IsError   bool
	MediaType string // of Data
	Data      []byte // the file's bytes; shared, never changed
	Note      bool   // text of a user message that is ours: about the step, not the task
	// State is what a provider wants back with this part, byte for byte, and
	// Maker the provider and model that made it ("openai_compatible/qwen3"). It
	// is sent only to its maker. Text and calls may have one too (a signature).
	State []byte
	Maker string
}

// StateFor gives the state of a part if maker made it, else nil.
func (c *Content) StateFor(maker string) []byte {
	if c.Maker != maker {
		return nil
	}
	return c.State
}

// ToolDefinition is a tool as the model sees it.
type ToolDefinition struct {
	Name        string
	Description string
	InputSchema canonjson.Value // JSON Schema of the arguments, an object
}

// PartKind says what a Part is.
type PartKind string

// The kinds of stream parts, in the order they come for one output part:
// start, deltas, end.
const (
	TextStart      PartKind = "text_start"
	TextDelta      PartKind = "text_delta"
	TextEnd        PartKind = "text_end"
	ReasoningStart PartKind = "reasoning_start"
	ReasoningDelta PartKind = "reasoning_delta"
	ReasoningEnd   PartKind = "reasoning_end" // State = what the provider wants back
	ToolInputStart PartKind = "tool_input_start"
	ToolInputDelta PartKind = "tool_input_delta"
	ToolCallWhole  PartKind = "tool_call" // ends the input: Text = the whole arguments as sent
	// HostedCall is a call that the provider runs itself: Name, WireID, Text =
	// its arguments (or empty), State. It stands alone under its own index.
	HostedCall PartKind = "hosted_call"
	// HostedResult ends the HostedCall of the same WireID, of this answer or of
	// the one that paused before it. It has an index of its own; State is what
	// goes back, Text a short account for the record (or empty), IsError says
	// that the call failed.
	HostedResult PartKind = "hosted_result"
	UsagePart    PartKind = "usage" // running totals: the last one counts
	Finish       PartKind = "finish"
)

// Part is one piece of a streamed answer. Index is the position of its output
// part in the answer, from 0, in order of appearance; all pieces of one output
// part share it.
type Part struct {
	Kind   PartKind
	Index  int
	Text   string // a delta, or the whole value of a tool call's arguments
	Name   string // tool name
	WireID string // the vendor's call id, kept for diagnosis and to pair hosted results
	// State is what the provider wants back with this part: of reasoning, of
	// hosted calls and results, and, with TextEnd and ToolCallWhole, of a
	// signature. Only its maker gets it.
	State   []byte
	IsError bool         // HostedResult only
	Usage   *Usage       // UsagePart only
	Reason  FinishReason // Finish only
	Raw     string       // Finish: the vendor's own word; bounded to 64 bytes
}

// FinishReason says why a model stopped.
type FinishReason string

// The reasons. Unknown means that the vendor gave none although the answer is whole.
const (
	FinishStop   FinishReason = "stop"
	FinishTools  FinishReason = "tool_calls"
	FinishLength FinishReason = "length"
	FinishFilter FinishReason = "content_filter"
	// FinishPause: the provider stopped in the middle, mostly while a hosted
	// call is open. What came goes back unchanged as the last assistant message,
	// and the model goes on.
	FinishPause   FinishReason = "pause"
	FinishUnknown FinishReason = "unknown"
)

// Usage counts tokens of one attempt. A nil *Usage means unknown, which is
// not zero. Input includes cached input; Output includes reasoning.
type Usage struct {
	CacheRead  int64 `json:"cache_read,omitzero"`
	CacheWrite int64 `json:"cache_write,omitzero"`
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	Reasoning  int64 `json:"reasoning,omitzero"`
}

// Add gives the sum of two usages; unknown plus anything is unknown.
func (u *Usage) Add(v *Usage) *Usage {
	if u == nil || v == nil {
		return nil
	}
	return &Usage{
		CacheRead: sum(u.CacheRead, v.CacheRead), CacheWrite: sum(u.CacheWrite, v.CacheWrite),
		Input: sum(u.Input, v.Input), Output: sum(u.Output, v.Output), Reasoning: sum(u.Reasoning, v.Reasoning),
	}
}

// sum adds counts that a vendor gave; it stays at the largest number instead
// of turning over.
func sum(a, b int64) int64 {
	if c := a + b; c >= a || b < 0 {
		return c
	}
	return math.MaxInt64
}

// Package tool is the port to tools: what a tool declares about itself, how a
// call reaches it, and what may come back.
package tool

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Level is the side-effect level of a tool, in growing order of consequence.
type Level string

// The levels. A call of None or Read may be repeated after a crash; one of
// Write or above never is, except under the tool's declared idempotency key.
const (
	None           Level = "none"
	Read           Level = "read"
	Write          Level = "write"
	ExternalEffect Level = "external_effect"
	Irreversible   Level = "irreversible"
)

var rank = map[Level]int{None: 0, Read: 1, Write: 2, ExternalEffect: 3, Irreversible: 4}

// Valid says whether l is one of the five levels.
func (l Level) Valid() bool { _, ok := rank[l]; return ok }

// Repeatable says whether a call whose outcome is not known may simply run again.
func (l Level) Repeatable() bool { return l == None || l == Read }

// Source says where a tool comes from.
type Source string

// The sources.
const (
	Local  Source = "local"
	HTTP   Source = "http"
	MCP    Source = "mcp"
	Hosted Source = "hosted" // run by the provider
)

// Policy is what the configuration says of a tool; empty: nothing.
type Policy string

// The configured policies.
const (
	Allow  Policy = "allow"
	Review Policy = "review"
	Deny   Policy = "deny"
)

// Definition is what a tool declares. Its canonical JSON form is what a run
// captures, so that a later change of configuration does not change the run.
type Definition struct {
	// Confined says that effects stay inside the session's own workspace.
	Confined    bool   `json:"confined,omitzero"`
	Description string `json:"description,omitzero"`
	// Idempotent says that the tool takes an idempotency key and answers a
	// repeated key without a second effect.
	Idempotent   bool            `json:"idempotent,omitzero"`
	InputSchema  canonjson.Value `json:"input_schema"` // JSON Schema of an object
	Level        Level           `json:"level"`
	Name         string          `json:"name"` // ^[A-Za-z0-9_-]{1,64}$
	OutputSchema canonjson.Value `json:"output_schema,omitzero"`
	Policy       Policy          `json:"policy,omitzero"`
	Source       Source          `json:"source"`
	// TimeoutMS bounds one call, in milliseconds; 0: the daemon's default.
	TimeoutMS int64 `json:"timeout_ms,omitzero"`
}

// Timeout is the bound of one call, or fallback when the tool has none.
func (d Definition) Timeout(fallback time.Duration) time.Duration {
	if d.TimeoutMS > 0 {
		return time.Duration(d.TimeoutMS) * time.Millisecond
	}
	return fallback
}

// Call is one call of a tool. Input was checked against InputSchema.
type Call struct {
	SessionID string
	UserID    string
	RunID     string
	CallID    string // unique in the session; the idempotency key of an idempotent tool
	Input     canonjson.Value
}

// Tool runs calls. Implementations are safe for concurrent use.
type Tool interface {
	Definition() Definition
	// Run does one call and returns the text that the model sees. An error is
	// a failed call: the text of an *Error reaches the model, any other error
	// only as a fixed text. When ctx ends, Run returns promptly. The tool
	// reports ErrOutcomeUnknown in the chain when the effect may have happened
	// although no answer came.
	Run(ctx context.Context, call Call) (Result, error)
}

// Rooted is a tool that works on files of a root that not every node may have.
type Rooted interface {
	Tool
	// Root gives the identity of the root: the same on every node that has it.
	Root() string
}

// Result is what a call gave.
type Result struct {
	Output string // any text; the engine bounds it and makes it valid UTF-8
	// JSON says that Output is JSON, to be checked against OutputSchema.
	JSON bool
}

// ErrOutcomeUnknown marks a failure after which nobody knows whether the
// effect happened: the request was sent and the answer was lost.
var ErrOutcomeUnknown = errors.New("outcome unknown")

// Error is a failed call with a text that the model may see.
type Error struct {
	Message string
	cause   error
}

// NewError makes a failure with a text for the model and a private cause, which may be nil.
func NewError(message string, cause error) *Error { return &Error{Message: message, cause: cause} }

// Error gives the text for the model.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

package event

import (
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// RunCreated holds the canonical input and everything else that shapes the run.
type RunCreated struct {
	Actor           string          `json:"actor,omitzero"`
	Compaction      *Compaction     `json:"compaction,omitzero"` // absent: never
	Hops            int             `json:"hops,omitzero"`       // how many runs answered into a session, one into the next, before this one
	Idempotency     *IdempotencyKey `json:"idempotency,omitzero"`
	Input           []InputItem     `json:"input"`
	InputContract   string          `json:"input_contract,omitzero"` // digest of the contract that the input met
	Kind            string          `json:"kind"`
	MaxTurns        int             `json:"max_turns"`
	Metadata        canonjson.Value `json:"metadata,omitzero"`
	OnDoubt         OnDoubt         `json:"on_doubt"`
	ParallelTools   int             `json:"parallel_tools,omitzero"` // calls of one turn that run at once; 0: the rules' default
	ReplyTargets    []ReplyTarget   `json:"reply_targets,omitzero"`
	Route           Route           `json:"route"`
	SettingsVersion int             `json:"settings_version"`
	Source          string          `json:"source"`
	TextPreview     string          `json:"text_preview,omitzero"`
	Tools           []CapturedTool  `json:"tools,omitzero"`
	Toolset         string          `json:"toolset,omitzero"` // blob of the full definitions
}

// IdempotencyKey makes a submission safe to repeat (I-07). Only the digest of
// the caller's key is stored.
type IdempotencyKey struct {
	// Contract is the digest of the input contract under whose canonical form
	// the fingerprint was taken; empty: over the exact content.
	Contract    string `json:"contract,omitzero"`
	Fingerprint string `json:"fingerprint"`
	KeyHash     string `json:"key_hash"`
	// Operation says what the key is of. Of a submission it is unique within its
	// session; of a connector (see ConnectorOperation) within the user, so that
	// one event never makes runs in two sessions.
	Operation string `json:"operation"`
}

// connectorPrefix begins the operation of a key that a connector gives.
const connectorPrefix = "inbound:"

// ConnectorOperation is the operation of the keys that a connector gives: the
// ids of its events.
func ConnectorOperation(name string) string { return connectorPrefix + name }

// Connector names the connector that gave the key; empty: none did.
func (k *IdempotencyKey) Connector() string {
	if name, ok := strings.CutPrefix(k.Operation, connectorPrefix); ok {
		return name
	}
	return ""
}

// InputItem is one item of a run's input. A text item has either Content or,
// under an input contract, the parsed value itself, whose canonical bytes are
// the text; an item of type asset has Asset.
type InputItem struct {
	Asset      *AssetRef       `json:"asset,omitzero"` // of an item of type asset
	Content    Content         `json:"content,omitzero"`
	Structured bool            `json:"structured,omitzero"` // Content is canonical JSON
	Type       string          `json:"type"`
	Value      canonjson.Value `json:"value,omitzero"`
}

// Types of input items.
const (
	InputText  = "text"
	InputAsset = "asset"
)

// AssetRef names a file that was handed in. The file itself stands outside the log.
type AssetRef struct {
	Bytes     int64   `json:"bytes"`         // its size
	Digest    string  `json:"digest"`        // of the bytes
	ID        AssetID `json:"id"`            // ast_…
	MediaType string  `json:"media_type"`    // found in the bytes, not believed
	Name      string  `json:"name,omitzero"` // a file name, never a path
}

// Route is a resolved way to a model.
type Route struct {
	Context  int64   `json:"context,omitzero"` // tokens of prompt and answer together; absent: not known
	Model    string  `json:"model"`
	Name     string  `json:"name"`
	Output   int64   `json:"output,omitzero"` // the most tokens of one answer; absent: not known
	Provider string  `json:"provider"`
	Retries  Retries `json:"retries,omitzero"` // of an attempt that failed
	Server   string  `json:"server,omitzero"`  // digest of the server's address, where the configuration names one
}

// Retries is how often and when a model is asked again by one step. A member that is
// absent is as the rules have it.
type Retries struct {
	BackoffPercent   int   `json:"backoff_percent,omitzero"`    // of each wait to the one before
	InitialBackoffMS int64 `json:"initial_backoff_ms,omitzero"` // the wait after the first failure
	MaxAttempts      int   `json:"max_attempts,omitzero"`       // the first included
	MaxBackoffMS     int64 `json:"max_backoff_ms,omitzero"`     // the longest wait, also where the vendor asks for more
}

// Maker names who answers on the route: whose state goes back to whom.
func (r Route) Maker() string {
	if r.Server == "" {
		return r.Provider + "/" + r.Model
	}
	return r.Provider + "@" + r.Server + "/" + r.Model
}

// CapturedTool is what the rules must know of a tool.
type CapturedTool struct {
	Confined   bool   `json:"confined,omitzero"`
	Digest     string `json:"digest"` // of the definition
	Idempotent bool   `json:"idempotent,omitzero"`
	Level      string `json:"level"`
	Name       string `json:"name"`
	Policy     string `json:"policy,omitzero"`
	Source     string `json:"source"`
}

// RunQueued places the run behind the session's earlier ones.
type RunQueued struct{}

// RunStarted pins the output contract in force (I-08).
type RunStarted struct {
	OutputContract *PinnedContract `json:"output_contract,omitzero"`
}

// PinnedContract is the output contract of one run, and how often a wrong
// answer may be repaired.
type PinnedContract struct {
	Digest            string          `json:"digest"`
	MaxRepairAttempts int             `json:"max_repair_attempts"`
	Schema            canonjson.Value `json:"schema"`
}

// CancelRequested asks one run to end, queued or active.
type CancelRequested struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// InterruptRequested asks the active run to stop; queued runs stay.
type InterruptRequested struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// NeedsAttention makes the run wait for a person to settle effects in doubt.
type NeedsAttention struct {
	Calls []DoubtCall `json:"calls"`
}

// DoubtCall is a call that began and whose outcome nobody knows.
type DoubtCall struct {
	CallID CallID `json:"call_id"`
	Name   string `json:"name"`            // of the tool
	Reason string `json:"reason,omitzero"` // what is known of it
}

// Resolution is a person's word on an effect in doubt.
type Resolution string

// The resolutions.
const (
	ResolveCompleted Resolution = "completed" // it happened; Output is what the model sees
	ResolveFailed    Resolution = "failed"    // it did not
	ResolveRetry     Resolution = "retry"     // start it again, under a new call id
)

// AttentionResolved settles one call in doubt (I-14). The envelope's call id is the call.
type AttentionResolved struct {
	Actor      string      `json:"actor,omitzero"`
	Output     Content     `json:"output,omitzero"`
	Reason     string      `json:"reason,omitzero"`
	Remaining  []DoubtCall `json:"remaining"` // calls that the run still waits for
	Resolution Resolution  `json:"resolution"`
}

// RunResumed ends a waiting.
type RunResumed struct{}

// Totals are the counters of a run at its end. Usage nil: not known.
type Totals struct {
	Repairs int         `json:"repairs,omitzero"`
	Steps   int         `json:"steps,omitzero"`
	Tools   int         `json:"tools,omitzero"`
	Turns   int         `json:"turns,omitzero"`
	Usage   *TokenUsage `json:"usage,omitzero"`
}

// TokenUsage counts tokens.
type TokenUsage struct {
	CacheRead  int64 `json:"cache_read,omitzero"`
	CacheWrite int64 `json:"cache_write,omitzero"`
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	Reasoning  int64 `json:"reasoning,omitzero"`
}

// RunCompleted is the end of a run that gave its answer.
type RunCompleted struct {
	Totals Totals `json:"totals"`
}

// RunFailed is the end of a run that could not.
type RunFailed struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Totals  Totals `json:"totals"`
}

// RunCancelled is the deliberate end of this run.
type RunCancelled struct {
	Reason string `json:"reason,omitzero"`
	Totals Totals `json:"totals,omitzero"`
}

// RunInterrupted is the end of a run caught by something broader.
type RunInterrupted struct {
	Reason string `json:"reason,omitzero"`
	Totals Totals `json:"totals,omitzero"`
}

// StateEntered is a step on the process path; the envelope names the state entered.
type StateEntered struct {
	From string `json:"from"`
}

// OutputEmitted is the answer of a run. A structured output within InlineLimit
// stands as JSON in StructuredOutput and its text is the canonical form of it;
// else the text is in Content.
type OutputEmitted struct {
	Content          Content         `json:"content,omitzero"`
	OutputKind       string          `json:"output_kind"`
	StructuredOutput canonjson.Value `json:"structured_output,omitzero"`
	Targets          []TargetRef     `json:"targets,omitzero"`
}

// TargetRef names a target and the delivery that goes to it.
type TargetRef struct {
	DeliveryID DeliveryID `json:"delivery_id"`
	TargetID   TargetID   `json:"target_id"`
}

// Output kinds.
const (
	OutputText       = "assistant_text"
	OutputStructured = "structured_output"
)

func (*RunCreated) EventType() Type         { return TypeRunCreated }
func (*RunQueued) EventType() Type          { return TypeRunQueued }
func (*RunStarted) EventType() Type         { return TypeRunStarted }
func (*CancelRequested) EventType() Type    { return TypeCancelRequested }
func (*InterruptRequested) EventType() Type { return TypeInterruptRequested }
func (*NeedsAttention) EventType() Type     { return TypeNeedsAttention }
func (*AttentionResolved) EventType() Type  { return TypeAttentionResolved }
func (*RunResumed) EventType() Type         { return TypeRunResumed }
func (*RunCompleted) EventType() Type       { return TypeRunCompleted }
func (*RunFailed) EventType() Type          { return TypeRunFailed }
func (*RunCancelled) EventType() Type       { return TypeRunCancelled }
func (*RunInterrupted) EventType() Type     { return TypeRunInterrupted }
func (*StateEntered) EventType() Type       { return TypeStateEntered }
func (*OutputEmitted) EventType() Type      { return TypeOutputEmitted }

func (d *RunCreated) contents() []*Content {
	cs := make([]*Content, len(d.Input))
	for i := range d.Input {
		cs[i] = &d.Input[i].Content
	}
	return cs
}
func (d *AttentionResolved) contents() []*Content { return []*Content{&d.Output} }
func (d *OutputEmitted) contents() []*Content     { return []*Content{&d.Content} }

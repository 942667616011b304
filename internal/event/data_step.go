package event

import "github.com/holdfast-dev/holdfast/internal/canonjson"

// ContextBuilt says what the model is shown, not its text: which part of the
// stream was read, and what of it was left out.
type ContextBuilt struct {
	Budget  int   `json:"budget"`            // entries allowed from earlier runs
	FromSeq int64 `json:"from_seq,omitzero"` // the oldest event whose content is shown; 0: nothing earlier
	Items   int   `json:"items"`             // entries shown
	Omitted int   `json:"omitted,omitzero"`  // entries of earlier runs left out by the budget
	Summary int   `json:"summary,omitzero"`  // number of the compaction whose summary it begins with; absent: none
	Tools   int   `json:"tools,omitzero"`    // tools offered
}

// StepStarted begins one logical model call.
type StepStarted struct {
	NoTools bool `json:"no_tools,omitzero"` // tools are withheld (I-10)
	Number  int  `json:"number"`            // of the step in the run, from 1
	Repair  int  `json:"repair,omitzero"`   // number of the repair, from 1
}

// StepEnded ends a step; every call it asked for is terminal. Files and Snapshot
// are there when a call may have changed the workspace and snapshots could be made.
type StepEnded struct {
	Files     *FileChanges  `json:"files,omitzero"` // what differs from the workspace before the step; absent: not known
	Finish    string        `json:"finish"`
	MessageID string        `json:"message_id"`
	Snapshot  *FileSnapshot `json:"snapshot,omitzero"` // the workspace after the step
	Usage     *TokenUsage   `json:"usage,omitzero"`    // absent: not known
}

// FileSnapshot names the content of a workspace at one time. It stands in the
// private store of one node.
type FileSnapshot struct {
	Node string `json:"node"` // whose store it is
	Tree string `json:"tree"` // `sha256:…` of the root listing: equal files, equal trees
}

// FileChanges are the files of a workspace that differ between two snapshots,
// whoever changed them. They are bounded.
type FileChanges struct {
	List []FileChange `json:"list"`          // in the order of folders and names; empty: nothing changed
	More int          `json:"more,omitzero"` // how many more there are
}

// FileChange is one file or link that differs.
type FileChange struct {
	Before int64      `json:"before,omitzero"` // its size before, in bytes; 0 where it is new
	Bytes  int64      `json:"bytes,omitzero"`  // its size, in bytes; 0 where it was deleted
	Change FileAction `json:"change"`
	Path   string     `json:"path"` // in the workspace; bytes that are no UTF-8 are replaced, and a long one is cut
}

// FileAction says how a file differs.
type FileAction string

// The ways in which a file differs.
const (
	FileAdded    FileAction = "added"
	FileModified FileAction = "modified" // its content, or what kind of file it is
	FileDeleted  FileAction = "deleted"
	FileMode     FileAction = "mode" // its permissions alone
)

// Bounds of FileChanges in an event: files that are listed, and bytes of their paths.
const (
	MaxFileChanges = 100
	MaxFilePaths   = 16 << 10
)

// StepFailed ends a step without an answer.
type StepFailed struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

// ModelCallStarted is the intent of one physical attempt.
type ModelCallStarted struct {
	Attempt  int    `json:"attempt"` // of the step, from 1
	Model    string `json:"model"`
	Provider string `json:"provider"`
	Route    string `json:"route"`
}

// ModelCallCompleted ends an attempt whose stream was whole.
type ModelCallCompleted struct {
	AnswerBytes   int         `json:"answer_bytes,omitzero"` // of a pause: what the step's answer holds so far
	Attempt       int         `json:"attempt"`
	DurationMS    int64       `json:"duration_ms"`
	FirstOutputMS int64       `json:"first_output_ms,omitzero"`
	Paused        bool        `json:"paused,omitzero"`     // the provider goes on in another attempt of the step
	RawFinish     string      `json:"raw_finish,omitzero"` // the vendor's own word
	Usage         *TokenUsage `json:"usage,omitzero"`      // absent: not known
}

// ModelCallFailed ends an attempt that broke. Output says that some of the
// answer had come; it is never part of the answer.
type ModelCallFailed struct {
	Attempt    int    `json:"attempt"`
	Class      string `json:"class"`
	Code       string `json:"code,omitzero"`
	DurationMS int64  `json:"duration_ms,omitzero"`
	Message    string `json:"message"`
	Output     bool   `json:"output,omitzero"`
	Status     int    `json:"status,omitzero"`
}

// RetryScheduled plans the next attempt at an absolute time.
type RetryScheduled struct {
	At      string `json:"at"` // see FormatTime
	Attempt int    `json:"attempt"`
	Class   string `json:"class"`
}

// InferenceCompleted says that the step's output is whole. Calls and parts
// stand before it; no tool has started.
type InferenceCompleted struct {
	Calls     int    `json:"calls,omitzero"`
	Finish    string `json:"finish"`
	MessageID string `json:"message_id"`
}

// TextEnded is a whole text part, or what had come of one when its attempt
// broke. State refers to a sealed blob that goes back to its maker with the text.
type TextEnded struct {
	Content   Content `json:"content,omitzero"`
	Maker     string  `json:"maker,omitzero"`
	MessageID string  `json:"message_id"`
	Part      int     `json:"part"`
	Partial   bool    `json:"partial,omitzero"`
	State     string  `json:"state,omitzero"`
}

// ReasoningEnded is a reasoning part. State refers to a sealed blob that only
// its maker gets back; the thoughts themselves are not stored elsewhere (I-17).
type ReasoningEnded struct {
	Maker     string `json:"maker,omitzero"`
	MessageID string `json:"message_id"`
	Part      int    `json:"part"`
	Partial   bool   `json:"partial,omitzero"`
	State     string `json:"state,omitzero"`
}

// ToolInputEnded records the arguments of a call that was cut before it was whole.
type ToolInputEnded struct {
	Content   Content `json:"content,omitzero"`
	MessageID string  `json:"message_id"`
	Name      string  `json:"name,omitzero"`
	Part      int     `json:"part"`
	Partial   bool    `json:"partial"`
}

// ToolRequested is a call that the model asked for. Arguments is the canonical
// object, or past InlineLimit Large; when what came is none, Raw holds it. Malformed says why the call
// cannot run: no JSON object, or not one that the tool's schema takes. A call
// of source hosted is run by the provider; it is recorded when its attempt is whole.
type ToolRequested struct {
	Arguments canonjson.Value `json:"arguments,omitzero"`
	Large     Content         `json:"large,omitzero"`
	Level     string          `json:"level,omitzero"`
	Maker     string          `json:"maker,omitzero"`
	Malformed string          `json:"malformed,omitzero"`
	MessageID string          `json:"message_id"`
	Name      string          `json:"name"`
	Original  CallID          `json:"original,omitzero"` // the call that this one answers, by a person's retry
	Part      int             `json:"part"`
	Raw       Content         `json:"raw,omitzero"`
	Source    string          `json:"source,omitzero"`
	State     string          `json:"state,omitzero"`   // sealed blob that its maker gets back with the call
	WireID    string          `json:"wire_id,omitzero"` // hosted: the provider's id of the call
}

// PolicyChecked is the decision on a call. Rule names what decided.
type PolicyChecked struct {
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitzero"`
	Rule     string `json:"rule"`
}

// ToolRejected ends a call that never started.
type ToolRejected struct {
	By      string `json:"by"` // policy, limit, input
	Message string `json:"message"`
}

// ToolStarted is the intent of an effect. It is unique for a call (I-13).
type ToolStarted struct {
	Level    string        `json:"level"`
	Name     string        `json:"name"`
	Snapshot *FileSnapshot `json:"snapshot,omitzero"` // of the step's first call that may change files: the workspace before it
}

// ToolRetrying starts a call again whose outcome is not known, which its level
// or its idempotency key allows; with At it plans that.
type ToolRetrying struct {
	At      string `json:"at,omitzero"` // planned for then (see FormatTime); empty: it begins now
	Attempt int    `json:"attempt"`     // from 2
	Reason  string `json:"reason"`
}

// ToolCompleted ends a call with a result. Of a hosted call State is the sealed
// result as the provider wants it back, at place Part of the answer.
type ToolCompleted struct {
	DurationMS  int64    `json:"duration_ms"`
	Maker       string   `json:"maker,omitzero"`
	Output      Content  `json:"output,omitzero"`
	OutputPaths []string `json:"output_paths,omitzero"` // blobs that hold what was cut off
	Part        int      `json:"part,omitzero"`
	State       string   `json:"state,omitzero"`
	TotalBytes  int      `json:"total_bytes,omitzero"` // of the whole result, where Output is cut
}

// ToolFailed ends a call with an error that the model sees. Maker, Part and
// State are those of ToolCompleted.
type ToolFailed struct {
	DurationMS int64   `json:"duration_ms,omitzero"`
	Maker      string  `json:"maker,omitzero"`
	Message    Content `json:"message"`
	Part       int     `json:"part,omitzero"`
	State      string  `json:"state,omitzero"`
}

// ToolTimeout ends a call that took too long and whose effect cannot be in doubt.
type ToolTimeout struct {
	AfterMS int64  `json:"after_ms"`
	Message string `json:"message"`
}

// ToolInterrupted ends a call that was stopped. Outcome is "unknown" when it had started.
type ToolInterrupted struct {
	Message string `json:"message"`
	Outcome string `json:"outcome,omitzero"`
	Reason  string `json:"reason,omitzero"`
}

// ContractChecked is the verdict of a gate.
type ContractChecked struct {
	Error string `json:"error,omitzero"` // first mismatch, with its path
	Gate  string `json:"gate"`
	OK    bool   `json:"ok"`
}

// RepairRequested asks the model for a corrected answer.
type RepairRequested struct {
	Attempt int    `json:"attempt"` // from 1
	Budget  int    `json:"budget"`
	Error   string `json:"error"`
}

func (*ContextBuilt) EventType() Type       { return TypeContextBuilt }
func (*StepStarted) EventType() Type        { return TypeStepStarted }
func (*StepEnded) EventType() Type          { return TypeStepEnded }
func (*StepFailed) EventType() Type         { return TypeStepFailed }
func (*ModelCallStarted) EventType() Type   { return TypeModelCallStarted }
func (*ModelCallCompleted) EventType() Type { return TypeModelCallCompleted }
func (*ModelCallFailed) EventType() Type    { return TypeModelCallFailed }
func (*RetryScheduled) EventType() Type     { return TypeRetryScheduled }
func (*InferenceCompleted) EventType() Type { return TypeInferenceCompleted }
func (*TextEnded) EventType() Type          { return TypeTextEnded }
func (*ReasoningEnded) EventType() Type     { return TypeReasoningEnded }
func (*ToolInputEnded) EventType() Type     { return TypeToolInputEnded }
func (*ToolRequested) EventType() Type      { return TypeToolRequested }
func (*PolicyChecked) EventType() Type      { return TypePolicyChecked }
func (*ToolRejected) EventType() Type       { return TypeToolRejected }
func (*ToolStarted) EventType() Type        { return TypeToolStarted }
func (*ToolRetrying) EventType() Type       { return TypeToolRetrying }
func (*ToolCompleted) EventType() Type      { return TypeToolCompleted }
func (*ToolFailed) EventType() Type         { return TypeToolFailed }
func (*ToolTimeout) EventType() Type        { return TypeToolTimeout }
func (*ToolInterrupted) EventType() Type    { return TypeToolInterrupted }
func (*ContractChecked) EventType() Type    { return TypeContractChecked }
func (*RepairRequested) EventType() Type    { return TypeRepairRequested }

func (d *TextEnded) contents() []*Content      { return []*Content{&d.Content} }
func (d *ToolInputEnded) contents() []*Content { return []*Content{&d.Content} }
func (d *ToolRequested) contents() []*Content  { return []*Content{&d.Large, &d.Raw} }
func (d *ToolCompleted) contents() []*Content  { return []*Content{&d.Output} }
func (d *ToolFailed) contents() []*Content     { return []*Content{&d.Message} }

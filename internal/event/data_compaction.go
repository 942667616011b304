package event

import "strings"

// Compaction is how the context of a run is kept within its model's window.
type Compaction struct {
	Auto   bool   `json:"auto,omitzero"`   // by itself, when the window fills or the provider says that it is full
	Buffer int64  `json:"buffer,omitzero"` // tokens of the window that stay free; 0: none asked for
	Keep   int64  `json:"keep,omitzero"`   // tokens of the newest conversation that stay as they are
	Route  *Route `json:"route,omitzero"`  // that writes the summary; absent: the run's own
}

// CompactionReason says why a context is compacted.
type CompactionReason string

// The reasons.
const (
	CompactAuto     CompactionReason = "auto"     // the window fills
	CompactOverflow CompactionReason = "overflow" // the provider said that it is full
	CompactManual   CompactionReason = "manual"   // a person asked for it
)

// CompactionRequested asks for a compaction of a session that has no run under
// way. The envelope's step id names it.
type CompactionRequested struct {
	Actor string `json:"actor,omitzero"`
	Keep  int64  `json:"keep,omitzero"` // tokens of the newest conversation that stay as they are
	Route Route  `json:"route"`         // that writes the summary
}

// CompactionStarted is the intent to put a summary in the place of the older
// conversation. Until it has ended and the context is compacted nothing
// changes. The calls of the model that write the summary stand under the same
// step id, which is no step of the run.
type CompactionStarted struct {
	Entries  int              `json:"entries"`            // of the conversation that the summary will stand for
	Limit    int64            `json:"limit,omitzero"`     // tokens past which the window counts as full; absent: not known
	Number   int              `json:"number"`             // of the compaction in the session, from 1
	Reason   CompactionReason `json:"reason"`             // why
	Route    Route            `json:"route"`              // that writes the summary
	TailSeq  int64            `json:"tail_seq"`           // of the run.created whose run the kept tail begins in
	TailStep StepID           `json:"tail_step,omitzero"` // first step of that run that is kept; absent: the whole run is
	Tokens   int64            `json:"tokens"`             // in the window, as far as is known
}

// CompactionEnded holds the summary, checked.
type CompactionEnded struct {
	Attempts int              `json:"attempts"`         // calls of the model that it took
	Number   int              `json:"number"`           // of the compaction in the session
	Reason   CompactionReason `json:"reason"`           // why
	Summary  Content          `json:"summary,omitzero"` // as the model wrote it
}

// CompactionFailed ends a compaction that gave no summary; the context stays
// as it was. Number is absent when it had not started.
type CompactionFailed struct {
	Code    string           `json:"code"`
	Message string           `json:"message"`
	Number  int              `json:"number,omitzero"` // of the compaction in the session
	Reason  CompactionReason `json:"reason"`          // why
}

// ContextCompacted moves the window of the model: from now on it is shown the
// summary and what is kept. The log keeps everything.
type ContextCompacted struct {
	Entries  int              `json:"entries"`            // of the conversation that the summary stands for
	Number   int              `json:"number"`             // of the compaction in the session
	Reason   CompactionReason `json:"reason"`             // why
	TailSeq  int64            `json:"tail_seq"`           // of the run.created whose run the kept tail begins in
	TailStep StepID           `json:"tail_step,omitzero"` // first step of that run that is kept; absent: the whole run is
	Tokens   int64            `json:"tokens"`             // in the window from now on, as an estimate
}

// IsCompaction says whether the id names a compaction and no step of a run.
func (id StepID) IsCompaction() bool { return strings.HasPrefix(string(id), "cmp_") }

func (*CompactionRequested) EventType() Type { return TypeCompactionRequested }
func (*CompactionStarted) EventType() Type   { return TypeCompactionStarted }
func (*CompactionEnded) EventType() Type     { return TypeCompactionEnded }
func (*CompactionFailed) EventType() Type    { return TypeCompactionFailed }
func (*ContextCompacted) EventType() Type    { return TypeContextCompacted }

func (d *CompactionEnded) contents() []*Content { return []*Content{&d.Summary} }

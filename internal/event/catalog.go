package event

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Type names a kind of fact. The set is closed; a type gains fields or a
// version, it never changes meaning.
type Type string

// Data is the typed content of an event, always a pointer to one of the
// catalogue's structs.
type Data interface{ EventType() Type }

// The types of the catalogue.
const (
	TypeSessionCreated Type = "session.created"
	TypeSessionUpdated Type = "session.updated"
	TypeSessionClosed  Type = "session.closed"
	TypeSessionErased  Type = "session.erased"
	TypeOwnerClaimed   Type = "session.owner.claimed"

	TypeRunCreated         Type = "run.created"
	TypeRunQueued          Type = "run.queued"
	TypeRunStarted         Type = "run.started"
	TypeCancelRequested    Type = "run.cancel.requested"
	TypeInterruptRequested Type = "run.interrupt.requested"
	TypeNeedsAttention     Type = "run.needs_attention"
	TypeAttentionResolved  Type = "run.attention.resolved"
	TypeRunResumed         Type = "run.resumed"
	TypeRunCompleted       Type = "run.completed"
	TypeRunFailed          Type = "run.failed"
	TypeRunCancelled       Type = "run.cancelled"
	TypeRunInterrupted     Type = "run.interrupted"

	TypeStateEntered Type = "fsm.state.entered"
	TypeContextBuilt Type = "context.build.completed"

	TypeCompactionRequested Type = "context.compaction.requested"
	TypeCompactionStarted   Type = "context.compaction.started"
	TypeCompactionEnded     Type = "context.compaction.ended"
	TypeCompactionFailed    Type = "context.compaction.failed"
	TypeContextCompacted    Type = "context.compacted"

	TypeStepStarted        Type = "step.started"
	TypeStepEnded          Type = "step.ended"
	TypeStepFailed         Type = "step.failed"
	TypeModelCallStarted   Type = "model.call.started"
	TypeModelCallCompleted Type = "model.call.completed"
	TypeModelCallFailed    Type = "model.call.failed"
	TypeRetryScheduled     Type = "model.retry.scheduled"
	TypeInferenceCompleted Type = "inference.completed"

	TypeTextEnded      Type = "text.ended"
	TypeReasoningEnded Type = "reasoning.ended"
	TypeToolInputEnded Type = "tool.input.ended"

	TypeToolRequested   Type = "tool.call.requested"
	TypePolicyChecked   Type = "tool.policy.checked"
	TypeToolRejected    Type = "tool.call.rejected"
	TypeToolStarted     Type = "tool.call.started"
	TypeToolRetrying    Type = "tool.call.retrying"
	TypeToolCompleted   Type = "tool.call.completed"
	TypeToolFailed      Type = "tool.call.failed"
	TypeToolTimeout     Type = "tool.call.timeout"
	TypeToolInterrupted Type = "tool.call.interrupted"

	TypeContractChecked Type = "contract.checked"
	TypeRepairRequested Type = "contract.repair.requested"
	TypeOutputEmitted   Type = "output.emitted"

	TypeDeliveryEnqueued       Type = "delivery.enqueued"
	TypeDeliveryAttemptStarted Type = "delivery.attempt.started"
	TypeDeliveryDelivered      Type = "delivery.delivered"
	TypeDeliveryAttemptFailed  Type = "delivery.attempt.failed"
	TypeDeliveryDeadLettered   Type = "delivery.dead_lettered"
	TypeDeliveryReplayed       Type = "delivery.replayed"
	TypeDeliveryResolved       Type = "delivery.resolved"
	TypeDeliveryExpired        Type = "delivery.expired"

	TypeJobPlanned         Type = "job.planned"
	TypeJobItemsAdded      Type = "job.items.added"
	TypeJobStarted         Type = "job.started"
	TypeJobAdvanced        Type = "job.advanced"
	TypeJobCancelRequested Type = "job.cancel.requested"
	TypeJobEnded           Type = "job.ended"
	TypeJobExpired         Type = "job.expired"

	TypeTargetTestStarted Type = "target.test.started"
	TypeTargetTestEnded   Type = "target.test.ended"
	TypeCircuitOpened     Type = "target.circuit.opened"
	TypeCircuitHalfOpened Type = "target.circuit.half_opened"
	TypeCircuitClosed     Type = "target.circuit.closed"
	TypeTargetPaused      Type = "target.paused"
	TypeTargetResumed     Type = "target.resumed"
)

// Live-only kinds: they are shown to subscribers, never enter the log and
// never move a cursor (I-17).
const (
	LiveTextStarted      = "text.started"
	LiveTextDelta        = "text.delta"
	LiveReasoningStarted = "reasoning.started"
	LiveReasoningDelta   = "reasoning.delta"
	LiveInputStarted     = "tool.input.started"
	LiveInputDelta       = "tool.input.delta"
)

// entry is one row of the catalogue: the current version of a type and how its
// data is made. Older versions are decoded by the functions in old.
type entry struct {
	version int
	empty   func() Data
	old     map[int]func(canonjson.Value) (Data, error)
}

func current[T any, P interface {
	*T
	Data
}](version int) entry {
	return entry{version: version, empty: func() Data { return P(new(T)) }}
}

// catalog is the closed set. Settlement events of steps are of version 2, as
// the field's event schemas number them.
var catalog = map[Type]entry{
	TypeSessionCreated: current[SessionCreated](1),
	TypeSessionUpdated: current[SessionUpdated](1),
	TypeSessionClosed:  current[SessionClosed](1),
	TypeSessionErased:  current[SessionErased](1),
	TypeOwnerClaimed:   current[OwnerClaimed](1),

	TypeRunCreated:         current[RunCreated](1),
	TypeRunQueued:          current[RunQueued](1),
	TypeRunStarted:         current[RunStarted](1),
	TypeCancelRequested:    current[CancelRequested](1),
	TypeInterruptRequested: current[InterruptRequested](1),
	TypeNeedsAttention:     current[NeedsAttention](1),
	TypeAttentionResolved:  current[AttentionResolved](1),
	TypeRunResumed:         current[RunResumed](1),
	TypeRunCompleted:       current[RunCompleted](1),
	TypeRunFailed:          current[RunFailed](1),
	TypeRunCancelled:       current[RunCancelled](1),
	TypeRunInterrupted:     current[RunInterrupted](1),

	TypeStateEntered: current[StateEntered](1),
	TypeContextBuilt: current[ContextBuilt](1),

	TypeCompactionRequested: current[CompactionRequested](1),
	TypeCompactionStarted:   current[CompactionStarted](1),
	TypeCompactionEnded:     current[CompactionEnded](1),
	TypeCompactionFailed:    current[CompactionFailed](1),
	TypeContextCompacted:    current[ContextCompacted](1),

	TypeStepStarted:        current[StepStarted](1),
	TypeStepEnded:          current[StepEnded](2),
	TypeStepFailed:         current[StepFailed](2),
	TypeModelCallStarted:   current[ModelCallStarted](1),
	TypeModelCallCompleted: current[ModelCallCompleted](1),
	TypeModelCallFailed:    current[ModelCallFailed](1),
	TypeRetryScheduled:     current[RetryScheduled](1),
	TypeInferenceCompleted: current[InferenceCompleted](1),

	TypeTextEnded:      current[TextEnded](1),
	TypeReasoningEnded: current[ReasoningEnded](1),
	TypeToolInputEnded: current[ToolInputEnded](1),

	TypeToolRequested:   current[ToolRequested](1),
	TypePolicyChecked:   current[PolicyChecked](1),
	TypeToolRejected:    current[ToolRejected](1),
	TypeToolStarted:     current[ToolStarted](1),
	TypeToolRetrying:    current[ToolRetrying](1),
	TypeToolCompleted:   current[ToolCompleted](1),
	TypeToolFailed:      current[ToolFailed](1),
	TypeToolTimeout:     current[ToolTimeout](1),
	TypeToolInterrupted: current[ToolInterrupted](1),

	TypeContractChecked: current[ContractChecked](1),
	TypeRepairRequested: current[RepairRequested](1),
	TypeOutputEmitted:   current[OutputEmitted](1),

	TypeDeliveryEnqueued:       current[DeliveryEnqueued](1),
	TypeDeliveryAttemptStarted: current[DeliveryAttemptStarted](1),
	TypeDeliveryDelivered:      current[DeliveryDelivered](1),
	TypeDeliveryAttemptFailed:  current[DeliveryAttemptFailed](1),
	TypeDeliveryDeadLettered:   current[DeliveryDeadLettered](1),
	TypeDeliveryReplayed:       current[DeliveryReplayed](1),
	TypeDeliveryResolved:       current[DeliveryResolved](1),
	TypeDeliveryExpired:        current[DeliveryExpired](1),

	TypeJobPlanned:         current[JobPlanned](1),
	TypeJobItemsAdded:      current[JobItemsAdded](1),
	TypeJobStarted:         current[JobStarted](1),
	TypeJobAdvanced:        current[JobAdvanced](1),
	TypeJobCancelRequested: current[JobCancelRequested](1),
	TypeJobEnded:           current[JobEnded](1),
	TypeJobExpired:         current[JobExpired](1),

	TypeCircuitOpened:         current[TargetCircuitOpened](1),
	TypeCircuitHalfOpened:     current[TargetCircuitHalfOpened](1),
	TypeCircuitClosed:         current[TargetCircuitClosed](1),
	TypeTargetPaused:          current[TargetPaused](1),
	TypeTargetResumed:         current[TargetResumed](1),
	TypeAuditStarted:          current[AuditStarted](1),
	TypeAuditRefused:          current[AuditRefused](1),
	TypeAuditTokenCreated:     current[AuditTokenCreated](1),
	TypeAuditTokenRevoked:     current[AuditTokenRevoked](1),
	TypeAuditTargetChanged:    current[AuditTargetChanged](1),
	TypeAuditSecretChanged:    current[AuditSecretChanged](1),
	TypeAuditDeliveryReplayed: current[AuditDeliveryReplayed](1),
	TypeTargetTestStarted:     current[TargetTestStarted](1),
	TypeTargetTestEnded:       current[TargetTestEnded](1),
}

// Types lists the catalogue, sorted.
func Types() []Type {
	ts := make([]Type, 0, len(catalog))
	for t := range catalog {
		ts = append(ts, t)
	}
	slices.Sort(ts)
	return ts
}

// Known says whether t is in the catalogue.
func Known(t Type) bool { _, ok := catalog[t]; return ok }

// New gives empty data of a type, for documentation and tests.
func New(t Type) (data Data, version int, ok bool) {
	e, ok := catalog[t]
	if !ok {
		return nil, 0, false
	}
	return e.empty(), e.version, true
}

// seal sets type, version and canonical data of a draft. A draft whose data is
// not in the catalogue is a programmer's mistake.
func (e *Event) seal() error {
	t := e.Data.EventType()
	row, ok := catalog[t]
	if !ok {
		panic("event: not in the catalogue: " + string(t))
	}
	// Deterministic sorts maps by bytes; their keys are ASCII (header names), so
	// that this is the canonical order too.
	raw, err := json.Marshal(e.Data, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrEncode, t, err)
	}
	e.Type, e.Version, e.Raw = t, row.version, canonjson.Value(raw)
	return nil
}

// Decode fills Data from Raw. Erased events stay without data. An event of a
// type or version that this binary does not know is an error: an older binary
// must not act on what a newer one wrote.
func (e *Event) Decode() error {
	if e.Raw == nil || e.Data != nil {
		return nil
	}
	row, ok := catalog[e.Type]
	if !ok {
		return fmt.Errorf("event %s: type %q is not known to this version", e.ID(), e.Type)
	}
	if e.Version != row.version {
		old, ok := row.old[e.Version]
		if !ok {
			return fmt.Errorf("event %s: version %d of %s is not known to this version", e.ID(), e.Version, e.Type)
		}
		d, err := old(e.Raw)
		e.Data = d
		return err
	}
	d := row.empty()
	if err := json.Unmarshal(e.Raw, d, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("event %s: decode %s: %w", e.ID(), e.Type, err)
	}
	e.Data = d
	return nil
}

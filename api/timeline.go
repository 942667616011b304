package api

import "time"

// Kinds of timeline entries.
const (
	EntryQueued          = "queued"           // the wait for the runs before it
	EntryStep            = "step"             // one logical model call with its tools; Repair > 0: a repair
	EntryAttempt         = "attempt"          // one physical model call
	EntryRetryWait       = "retry_wait"       // until the planned next attempt, of a model or of a tool
	EntryTool            = "tool"             // one start of a tool call
	EntryCompaction      = "compaction"       // a summary takes the place of older conversation; its attempts follow it
	EntryWaiting         = "waiting"          // for a person
	EntryNoOwner         = "no_owner"         // from the last word of a former owner to the first of the next
	EntryDelivery        = "delivery"         // an answer on its way to a receiver
	EntryDeliveryAttempt = "delivery_attempt" // one attempt of it
)

// Timeline says where the time and the money of a run went.
type Timeline struct {
	RunID       string     `json:"run_id"`
	SessionID   string     `json:"session_id"`
	Status      string     `json:"status"`
	SubmittedAt time.Time  `json:"submitted_at"`
	FinishedAt  *time.Time `json:"finished_at,omitempty"`
	// AsOf is the moment that open entries and the totals reach to: the end of
	// the run, or now.
	AsOf time.Time `json:"as_of"`
	// Entries are in the order of their beginnings; what a step holds follows it.
	// Deliveries stand at the end.
	Entries []TimelineEntry `json:"entries"`
	Omitted int             `json:"omitted,omitempty"` // entries past the bound of 2,000; the totals count them
	Totals  TimelineTotals  `json:"totals"`
}

// TimelineEntry is one stretch of time. Offsets count milliseconds from submitted_at.
type TimelineEntry struct {
	Kind    string `json:"kind"`
	StartMS int64  `json:"start_ms"`
	EndMS   int64  `json:"end_ms"`
	Open    bool   `json:"open,omitempty"` // it goes on; end_ms is as_of
	// Status says how it ended: ok, failed, abandoned, retrying, rejected,
	// timeout, interrupted, in_doubt, cut; of a delivery its own status.
	Status  string `json:"status,omitempty"`
	Seq     int64  `json:"seq,omitempty"` // of the event that began it, in its stream
	Step    int    `json:"step,omitempty"`
	Turn    int    `json:"turn,omitempty"`
	Repair  int    `json:"repair,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Name    string `json:"name,omitempty"`  // of a tool; of an attempt its model
	Route   string `json:"route,omitempty"` // of an attempt
	CallID  string `json:"call_id,omitempty"`
	// Class is the class of a failure, or the code of a failed delivery attempt.
	Class         string   `json:"class,omitempty"`
	HTTPStatus    int      `json:"http_status,omitempty"`
	FirstOutputMS int64    `json:"first_output_ms,omitempty"` // from the start of the attempt
	Usage         *Usage   `json:"usage,omitempty"`           // absent: not known
	Cost          *float64 `json:"cost,omitempty"`            // absent: tokens or price not known
	DeliveryID    string   `json:"delivery_id,omitempty"`
	TargetID      string   `json:"target_id,omitempty"`
}

// TimelineTotals add up. The members of Split add up to WallMS exactly.
type TimelineTotals struct {
	WallMS    int64         `json:"wall_ms"`
	Split     TimelineSplit `json:"split"`
	NoOwnerMS int64         `json:"no_owner_ms"` // of the overhead: nobody worked on it
	Steps     int           `json:"steps"`
	Attempts  int           `json:"attempts"`
	ToolCalls int           `json:"tool_calls"`
	Repairs   int           `json:"repairs"`
	Usage     Usage         `json:"usage"`
	// UsagePartial: of some attempt the tokens are not known, so there may be more.
	UsagePartial bool     `json:"usage_partial,omitempty"`
	Cost         *float64 `json:"cost,omitempty"`         // of the attempts whose cost is known; absent: of none
	CostPartial  bool     `json:"cost_partial,omitempty"` // of some attempt the cost is not known
}

// TimelineSplit gives each instant of the wall time to one cause. Where several
// tools run at once the instant counts once.
type TimelineSplit struct {
	QueuedMS    int64 `json:"queued_ms"`
	ModelMS     int64 `json:"model_ms"`
	ToolsMS     int64 `json:"tools_ms"`
	WaitingMS   int64 `json:"waiting_ms"` // for a person
	RetryWaitMS int64 `json:"retry_wait_ms"`
	OverheadMS  int64 `json:"overhead_ms"` // everything else
}

package api

import "time"

// ReplayDelivery is the body of POST /v1/deliveries/{d}/replay. Force replays
// one that is no dead letter any more: it was replayed already, resolved, or
// delivered. It wants a reason.
type ReplayDelivery struct {
	Force  bool   `json:"force,omitempty"`
	Reason string `json:"reason,omitempty"` // 500 characters at most
}

// ResolveDelivery is the body of POST /v1/deliveries/{d}/resolve.
type ResolveDelivery struct {
	Reason string `json:"reason,omitempty"` // 1 to 500 characters; it must be given
}

// Replay is one replay of a delivery.
type Replay struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Forced bool      `json:"forced,omitempty"` // it was no dead letter
	JobID  string    `json:"job_id,omitempty"` // the job that did it
}

// Resolution is a person's word that a delivery is done with.
type Resolution struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor,omitempty"`
	Reason string    `json:"reason"`
}

// DeliveryFilter chooses deliveries; an empty member narrows nothing. It must
// have at least one.
type DeliveryFilter struct {
	Status     string     `json:"status,omitempty"`      // `dead_lettered`, also when absent, or `resolved`
	Unresolved bool       `json:"unresolved,omitempty"`  // dead letters that nobody resolved
	SessionID  string     `json:"session_id,omitempty"`  // of this session (`ses_…`)
	RunID      string     `json:"run_id,omitempty"`      // of this run
	TargetID   string     `json:"target_id,omitempty"`   // to this target
	ErrorClass string     `json:"error_class,omitempty"` // of the last failure
	UserID     string     `json:"user_id,omitempty"`     // of this user; a token that is bound to one fixes it
	Since      *time.Time `json:"since,omitempty"`       // made from then on
	Until      *time.Time `json:"until,omitempty"`       // made before then
}

// ReplayDeliveries is the body of POST /v1/deliveries/replay: a filter, or the
// token of a plan that a dry run gave.
type ReplayDeliveries struct {
	Filter    *DeliveryFilter `json:"filter,omitempty"`
	DryRun    bool            `json:"dry_run,omitempty"`    // show the set, and replay nothing
	PlanToken string          `json:"plan_token,omitempty"` // replay exactly the set that a dry run showed
	Limit     int             `json:"limit,omitempty"`      // deliveries at most, oldest first; 10,000 when absent, and at most
	Force     bool            `json:"force,omitempty"`      // for deliveries that were resolved; wants a reason
	Reason    string          `json:"reason,omitempty"`     // 500 characters at most
}

// ReplayPlan is the answer of a dry run: the set as it is now, and the token
// that replays exactly it.
type ReplayPlan struct {
	JobID     string         `json:"job_id"` // its deliveries are all listed there
	Filter    DeliveryFilter `json:"filter"`
	Count     int64          `json:"count"`
	Truncated bool           `json:"truncated"` // more deliveries pass the filter than the limit lets in
	Limit     int64          `json:"limit"`
	Force     bool           `json:"force,omitempty"`
	Digest    string         `json:"digest"` // of the set
	// DeliveryIDs are the first 100, oldest first.
	DeliveryIDs []string  `json:"delivery_ids"`
	PlanToken   string    `json:"plan_token"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// Job status.
const (
	JobPlanned    = "planned"    // nothing is done until its plan is started
	JobExpired    = "expired"    // its plan was not started in time
	JobRunning    = "running"    // started, and not at its end
	JobCancelling = "cancelling" // its end was asked for
	JobCompleted  = "completed"
	JobCancelled  = "cancelled"
)

// Job is work over many deliveries. It goes on over restarts, and at another
// node when its own dies.
type Job struct {
	ID         string         `json:"id"`
	Kind       string         `json:"kind"` // replay
	Status     string         `json:"status"`
	UserID     string         `json:"user_id,omitempty"` // absent: of all users
	Actor      string         `json:"actor,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Filter     DeliveryFilter `json:"filter"`
	Force      bool           `json:"force,omitempty"`
	Limit      int64          `json:"limit"`
	Total      int64          `json:"total"`     // deliveries of its set
	Done       int64          `json:"done"`      // that were replayed
	Skipped    int64          `json:"skipped"`   // that could not be: see its deliveries
	Truncated  bool           `json:"truncated"` // more deliveries passed the filter than the limit let in
	Digest     string         `json:"digest"`
	CreatedAt  time.Time      `json:"created_at"`
	UpdatedAt  time.Time      `json:"updated_at"`
	StartedAt  *time.Time     `json:"started_at,omitempty"`
	FinishedAt *time.Time     `json:"finished_at,omitempty"`
	ExpiresAt  *time.Time     `json:"expires_at,omitempty"` // of a plan that was not started
}

// JobDelivery is one delivery of a job and what came of it.
type JobDelivery struct {
	DeliveryID string `json:"delivery_id"`
	TargetID   string `json:"target_id"`
	// Outcome is replayed, or why it was not; absent: the job has not come to it.
	Outcome string `json:"outcome,omitempty"`
}

// CancelJob is the body of POST /v1/jobs/{j}/cancel.
type CancelJob struct {
	Reason string `json:"reason,omitempty"`
}

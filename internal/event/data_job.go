package event

// A job is work over many deliveries that a person asked for. Its stream holds
// ids, codes and numbers only. Until it is started it is a plan: the exact set,
// shown to whoever asked for it, who may start it with a token.

// JobPlanned begins a job: what it is to do, and to how many deliveries. Which
// they are say the events behind it.
type JobPlanned struct {
	Actor     string    `json:"actor,omitzero"`
	Count     int       `json:"count"`               // deliveries of the set
	Digest    string    `json:"digest"`              // SHA-256 of the set
	ExpiresAt string    `json:"expires_at,omitzero"` // from when on the plan cannot be started; empty: it was started at once
	Filter    JobFilter `json:"filter"`              // by which the set was chosen
	Force     bool      `json:"force,omitzero"`      // deliveries that were resolved are replayed too
	Kind      string    `json:"kind"`                // `replay`
	Limit     int       `json:"limit"`               // how many the set may hold at most
	Reason    string    `json:"reason,omitzero"`
	TokenHash string    `json:"token_hash,omitzero"` // SHA-256 of the secret that starts the plan
	Truncated bool      `json:"truncated,omitzero"`  // more deliveries passed the filter than the set may hold
}

// JobFilter says which deliveries a job is about; an empty member narrows nothing.
type JobFilter struct {
	ErrorClass string    `json:"error_class,omitzero"` // of the failure that made the dead letter
	RunID      RunID     `json:"run_id,omitzero"`      // of this run
	SessionID  SessionID `json:"session_id,omitzero"`  // of this session
	Since      string    `json:"since,omitzero"`       // made from then on
	Status     string    `json:"status"`               // `dead_lettered` or `resolved`
	TargetID   TargetID  `json:"target_id,omitzero"`   // to this target
	Until      string    `json:"until,omitzero"`       // made before then
	UserID     string    `json:"user_id,omitzero"`     // of this user
}

// JobItemsAdded is a part of the set, in the order in which it is worked on.
type JobItemsAdded struct {
	Items []JobItem `json:"items"` // deliveries
}

// JobItem is one delivery of a job, as it stood when the set was chosen: a
// replay in between gives it another place in its lane.
type JobItem struct {
	DeliveryID DeliveryID `json:"delivery_id"`
	LaneSeq    int64      `json:"lane_seq"` // its place in its target's lane
	TargetID   TargetID   `json:"target_id"`
}

// JobStarted says that the work is to be done. It is the last word on the set.
type JobStarted struct {
	Actor string `json:"actor,omitzero"`
}

// JobAdvanced says what was done: in the same append as the replays themselves.
type JobAdvanced struct {
	Done    []DeliveryID `json:"done,omitzero"`    // that were replayed
	Skipped []JobSkipped `json:"skipped,omitzero"` // that could not be
}

// JobSkipped is a delivery that could not be replayed, and why.
type JobSkipped struct {
	Code       string     `json:"code"`
	DeliveryID DeliveryID `json:"delivery_id"`
}

// JobCancelRequested asks for the end of a job. What was done stays.
type JobCancelRequested struct {
	Actor  string `json:"actor,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// JobEnded is the end of a job.
type JobEnded struct {
	Done    int    `json:"done"`             // deliveries that were replayed
	Left    int    `json:"left,omitzero"`    // that were not come to
	Skipped int    `json:"skipped,omitzero"` // that could not be replayed
	Status  string `json:"status"`           // `completed` or `cancelled`
}

// JobExpired takes the job out of the list, after its retention. Its events stay.
type JobExpired struct{}

func (*JobPlanned) EventType() Type         { return TypeJobPlanned }
func (*JobItemsAdded) EventType() Type      { return TypeJobItemsAdded }
func (*JobStarted) EventType() Type         { return TypeJobStarted }
func (*JobAdvanced) EventType() Type        { return TypeJobAdvanced }
func (*JobCancelRequested) EventType() Type { return TypeJobCancelRequested }
func (*JobEnded) EventType() Type           { return TypeJobEnded }
func (*JobExpired) EventType() Type         { return TypeJobExpired }

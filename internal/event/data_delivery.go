package event

// The streams of targets hold ids, codes and digests only: erasing a session
// must leave nothing of it in the stream of a target. The envelope of each of
// these events names the session and the run.

// DeliveryEnqueued begins a delivery; its row in the outbox follows. Body and
// Address are blobs of the session: the exact bytes of every attempt (I-26),
// and where they go.
type DeliveryEnqueued struct {
	Address    string     `json:"address"`
	Body       string     `json:"body"`
	DeliveryID DeliveryID `json:"delivery_id"`
	Type       string     `json:"type"`
}

// DeliveryAttemptStarted is the intent of one attempt.
type DeliveryAttemptStarted struct {
	Attempt    int        `json:"attempt"` // from 1; goes on over replays
	Cycle      int        `json:"cycle"`   // from 1; begins anew with a replay
	DeliveryID DeliveryID `json:"delivery_id"`
	// Earlier is the attempt that had delivered it before a forced replay: its
	// place among the rows is about to be another's, and history keeps it.
	Earlier *EarlierAttempt `json:"earlier,omitzero"`
}

// EarlierAttempt is an attempt that a receiver took.
type EarlierAttempt struct {
	Attempt    int    `json:"attempt"`
	DurationMS int64  `json:"duration_ms,omitzero"`
	EndedAt    string `json:"ended_at"` // see FormatTime
	Status     int    `json:"status,omitzero"`
}

// DeliveryDelivered ends a delivery: the receiver took it.
type DeliveryDelivered struct {
	Attempt    int        `json:"attempt"`
	DeliveryID DeliveryID `json:"delivery_id"`
	DurationMS int64      `json:"duration_ms"`
	// Failures of the target in a row that this ends; 0 when there were none, and
	// then nothing of the target's row changes.
	Failures int `json:"failures,omitzero"`
	// LagMS is the time since it was enqueued or replayed.
	LagMS  int64 `json:"lag_ms,omitzero"`
	Status int   `json:"status"`
}

// DeliveryAttemptFailed ends an attempt; the next one is due at RetryAt.
type DeliveryAttemptFailed struct {
	Attempt    int        `json:"attempt"`
	Class      string     `json:"class,omitzero"` // one of a few words; empty in old events
	Code       string     `json:"code"`
	DeliveryID DeliveryID `json:"delivery_id"`
	DurationMS int64      `json:"duration_ms,omitzero"`
	// Excerpt is a blob of the session: the beginning of what was answered.
	Excerpt string `json:"excerpt,omitzero"`
	// Failures of the target in a row, this one counted; 0 where it says that the
	// receiver is there. Absent in old events, and where it says nothing of the receiver.
	Failures *int `json:"failures,omitzero"`
	// HoldUntil is when the receiver asked to be left alone until; see FormatTime.
	HoldUntil string `json:"hold_until,omitzero"`
	RetryAt   string `json:"retry_at,omitzero"` // see FormatTime; empty: no further attempt
	Status    int    `json:"status,omitzero"`
}

// DeliveryDeadLettered parks a delivery until a person replays it.
type DeliveryDeadLettered struct {
	Attempts   int        `json:"attempts"`
	Class      string     `json:"class,omitzero"`
	Code       string     `json:"code"`
	DeliveryID DeliveryID `json:"delivery_id"`
}

// DeliveryReplayed puts a delivery at the tail of its target's lane again.
type DeliveryReplayed struct {
	Actor      string     `json:"actor,omitzero"`
	DeliveryID DeliveryID `json:"delivery_id"`
	Forced     bool       `json:"forced,omitzero"`
	JobID      JobID      `json:"job_id,omitzero"` // the job that did it
	Number     int        `json:"number,omitzero"` // which replay of the delivery, from 1; absent in old events
	Reason     string     `json:"reason,omitzero"`
}

// DeliveryResolved is a person's word that a delivery is done with: it is not
// sent any more.
type DeliveryResolved struct {
	Actor      string     `json:"actor,omitzero"`
	DeliveryID DeliveryID `json:"delivery_id"`
	Reason     string     `json:"reason,omitzero"`
}

// DeliveryExpired takes deliveries of a target out of the ledger, after their
// retention. Their events stay, and their bodies are their sessions'. It is about
// several sessions, and its envelope names none.
type DeliveryExpired struct {
	Deliveries []DeliveryID `json:"deliveries"` // that leave
}

func (*DeliveryExpired) EventType() Type        { return TypeDeliveryExpired }
func (*DeliveryResolved) EventType() Type       { return TypeDeliveryResolved }
func (*DeliveryEnqueued) EventType() Type       { return TypeDeliveryEnqueued }
func (*DeliveryAttemptStarted) EventType() Type { return TypeDeliveryAttemptStarted }
func (*DeliveryDelivered) EventType() Type      { return TypeDeliveryDelivered }
func (*DeliveryAttemptFailed) EventType() Type  { return TypeDeliveryAttemptFailed }
func (*DeliveryDeadLettered) EventType() Type   { return TypeDeliveryDeadLettered }
func (*DeliveryReplayed) EventType() Type       { return TypeDeliveryReplayed }

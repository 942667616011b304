package api

import "time"

// Outcomes of an attempt of a delivery.
const (
	AttemptDelivered = "delivered"
	AttemptFailed    = "failed"
	AttemptInFlight  = "in_flight"
)

// Attempt is one attempt of a delivery.
type Attempt struct {
	Number  int64  `json:"number"` // from 1; goes on over replays
	Outcome string `json:"outcome"`
	// Code and Class say why it failed.
	Code       string     `json:"code,omitempty"`
	Class      string     `json:"class,omitempty"`
	Status     int64      `json:"status,omitempty"` // of HTTP, when one came
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	DurationMS int64      `json:"duration_ms,omitempty"`
	// NextAt is when the next attempt was due then; absent: it was to be the last.
	NextAt *time.Time `json:"next_at,omitempty"`
	// Excerpt is the beginning of the answer to an attempt that failed, without
	// what was secret in the request. It goes when the session is erased.
	Excerpt string `json:"excerpt,omitempty"`
}

// States of the circuit of a target.
const (
	CircuitClosed   = "closed"
	CircuitOpen     = "open"
	CircuitHalfOpen = "half_open"
)

// Pause says since when nothing is sent to a target, and why.
type Pause struct {
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"` // who asked for it
	Code   string    `json:"code"`         // requested, or gone: the receiver answered 410
	Reason string    `json:"reason,omitempty"`
}

// Failure is the last failed attempt at a target.
type Failure struct {
	At    time.Time `json:"at"`
	Code  string    `json:"code"`
	Class string    `json:"class"`
}

// ChangeTarget is the body of POST /v1/targets/{target}/reset, pause and resume.
type ChangeTarget struct {
	Reason string `json:"reason,omitempty"`
}

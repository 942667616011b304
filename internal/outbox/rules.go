package outbox

import (
	"slices"
	"time"
)

// Rules are what holds for the deliveries to one target. Zero fields take the
// defaults.
type Rules struct {
	MaxAttempts    int // of one cycle; a replay begins another
	InitialBackoff time.Duration
	Factor         float64 // of each wait to the one before
	MaxBackoff     time.Duration
	MaxAge         time.Duration // of the cycle: enqueued or replayed until given up
	MaxRetryAfter  time.Duration // that a receiver can ask for
	RetryStatuses  []int         // that are tried again though their class is not
	Timeout        time.Duration // of one attempt, from the connect to the end of the answer
	InFlight       int           // attempts at once; 1: strictly in order

	Threshold   int // failures in a row that open the circuit
	Cooldown    time.Duration
	MaxCooldown time.Duration
}

// Defaults of Rules, and their bounds.
const (
	DefaultMaxAttempts    = 12
	DefaultInitialBackoff = 5 * time.Second
	DefaultFactor         = 3
	DefaultMaxBackoff     = 6 * time.Hour
	DefaultMaxAge         = 72 * time.Hour
	DefaultMaxRetryAfter  = time.Hour
	DefaultTimeout        = 15 * time.Second
	DefaultThreshold      = 5
	DefaultCooldown       = 30 * time.Second
	DefaultMaxCooldown    = 15 * time.Minute
	MaxInFlight           = 4
)

// WithDefaults fills what is zero.
func (r Rules) WithDefaults() Rules {
	for _, n := range []struct {
		to *int
		by int
	}{{&r.MaxAttempts, DefaultMaxAttempts}, {&r.InFlight, 1}, {&r.Threshold, DefaultThreshold}} {
		if *n.to <= 0 {
			*n.to = n.by
		}
	}
	for _, d := range []struct {
		to *time.Duration
		by time.Duration
	}{
		{&r.InitialBackoff, DefaultInitialBackoff}, {&r.MaxBackoff, DefaultMaxBackoff}, {&r.MaxAge, DefaultMaxAge}, {&r.MaxRetryAfter, DefaultMaxRetryAfter},
		{&r.Timeout, DefaultTimeout}, {&r.Cooldown, DefaultCooldown}, {&r.MaxCooldown, DefaultMaxCooldown},
	} {
		if *d.to <= 0 {
			*d.to = d.by
		}
	}
	if !(r.Factor >= 1) { // not a number is not either
		r.Factor = DefaultFactor
	}
	r.InFlight = min(r.InFlight, MaxInFlight)
	return r
}

// Outcome is a failed attempt, as its sender tells it.
type Outcome struct {
	Code       string
	Status     int
	RetryAfter time.Duration // that the receiver asked for; 0: it did not
	Permanent  bool          // no further attempt can help, whatever the class
	Gone       bool          // the receiver is gone for good
}

// Verdict is what follows from a failed attempt.
type Verdict struct {
	Class  string
	Health Health
	// RetryAt is when the next attempt is due; zero: there is none, and Code and
	// DeadClass are those of the dead letter.
	RetryAt         time.Time
	Code, DeadClass string
	// HoldUntil is until when the target is left alone, whatever waits for it.
	HoldUntil time.Time
	Pause     bool // the target is paused
}

// Judge says what follows from a failed attempt, which was the cycle-th since
// the delivery was enqueued or replayed, which was at began. jitter is in [0,1).
func (r Rules) Judge(o Outcome, cycle int, began, now time.Time, jitter float64) Verdict {
	r = r.WithDefaults()
	class := Class(o.Code, o.Status)
	v := Verdict{Class: class, Health: healthOf(class), Code: o.Code, DeadClass: class, Pause: o.Gone || class == ClassGone}
	again := Retryable(class) && !o.Permanent
	if o.Status != 0 && slices.Contains(r.RetryStatuses, o.Status) {
		again, v.Health, v.Pause = true, Failing, false
	}
	asked := max(0, min(o.RetryAfter, r.MaxRetryAfter))
	if asked > 0 {
		v.HoldUntil = now.Add(asked)
	}
	if !again || cycle >= r.MaxAttempts {
		return v
	}
	at := now.Add(max(r.Backoff(cycle, jitter), asked))
	if at.Sub(began) > r.MaxAge {
		v.Code, v.DeadClass = CodeExpired, ClassExpired
		return v
	}
	v.RetryAt = at
	return v
}

// Backoff is the own wait after the n-th failed attempt of a cycle: a geometric
// row, spread by U(0.8, 1.2), never past MaxBackoff and never nothing.
func (r Rules) Backoff(n int, jitter float64) time.Duration {
	r = r.WithDefaults()
	limit := float64(r.MaxBackoff)
	d := min(float64(r.InitialBackoff), limit)
	for i := 1; i < n && d < limit && r.Factor > 1; i++ {
		d = min(d*r.Factor, limit) // bounded before it can overflow
	}
	if !(jitter >= 0 && jitter <= 1) {
		jitter = 0.5
	}
	wait := time.Duration(min(d*(0.8+0.4*jitter), limit)) // which a float of more than a hundred days may pass by a nanosecond
	return max(min(wait, r.MaxBackoff), time.Millisecond)
}

// Expires is when a delivery is given up that is not delivered by then: its age
// counts from its enqueueing or replay, waits for the circuit included, and
// anew from the end of a pause.
func (r Rules) Expires(cycleAt time.Time, c Circuit) time.Time {
	if c.ResumedAt.After(cycleAt) {
		cycleAt = c.ResumedAt
	}
	return cycleAt.Add(r.WithDefaults().MaxAge)
}

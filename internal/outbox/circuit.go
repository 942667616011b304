package outbox

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// States of a circuit.
const (
	Closed   = ""
	Open     = "open"
	HalfOpen = "half_open"
)

// Circuit is how a target fares: the row of the target, in the words of the
// rules. Whoever owns the target's stream holds it in memory and brings it forward
// by the events that it appends; everybody else reads the row.
type Circuit struct {
	State     string
	Failures  int       // retryable ones, in a row
	Opens     int       // in a row
	OpenUntil time.Time // while it is open
	HeldUntil time.Time // the receiver asked for it
	Paused    bool
	ResumedAt time.Time
	ResetAt   time.Time
}

// Wait is until when nothing may be sent to the target; not after now: now.
// A pause has no such time.
func (c Circuit) Wait() time.Time {
	at := c.HeldUntil
	if c.State == Open && c.OpenUntil.After(at) {
		at = c.OpenUntil
	}
	return at
}

// Due is when a delivery may be attempted, by its own time and by the target's.
// failedAt is when its last attempt ended: a reset after that lets it go at once.
func (c Circuit) Due(nextAt, failedAt time.Time) time.Time {
	if !c.ResetAt.IsZero() && !c.ResetAt.Before(failedAt) {
		nextAt = time.Time{}
	}
	if at := c.Wait(); at.After(nextAt) {
		return at
	}
	return nextAt
}

// Single says that the target gets one attempt at a time for now, a probe.
func (c Circuit) Single() bool { return c.State != Closed }

// Begin gives what is told with the start of an attempt: one that goes through an
// open circuit, whose time is over, is its probe.
func (c Circuit) Begin(id event.DeliveryID) []event.Data {
	if c.State != Open {
		return nil
	}
	return []event.Data{&event.TargetCircuitHalfOpened{DeliveryID: id}}
}

// After gives what an outcome says of the target: how many failures in a row
// there are now, nil where it says nothing, and the events that follow.
//
// An answer that settles its message, be it a refusal, says that the receiver is
// there: it ends a row of failures and closes the circuit. A failure of a probe
// opens it anew, for longer.
func (r Rules) After(c Circuit, h Health, now time.Time) (failures *int, out []event.Data) {
	r = r.WithDefaults()
	n := 0
	switch h {
	case There:
		if c.State != Closed {
			out = append(out, &event.TargetCircuitClosed{})
		}
		return &n, out
	case Failing:
		n = c.Failures + 1
	default:
		return nil, nil
	}
	if c.State == HalfOpen || c.State == Closed && n >= r.Threshold {
		opens := c.Opens + 1
		cooldown := r.CooldownOf(opens)
		out = append(out, &event.TargetCircuitOpened{
			CooldownMS: cooldown.Milliseconds(), Failures: n, Opens: opens, Until: event.FormatTime(now.Add(cooldown)),
		})
	}
	return &n, out
}

// CooldownOf is how long the circuit stays open at the n-th time in a row: it
// doubles, up to MaxCooldown.
func (r Rules) CooldownOf(n int) time.Duration {
	r = r.WithDefaults()
	d := min(r.Cooldown, r.MaxCooldown)
	for i := 1; i < n && d < r.MaxCooldown; i++ {
		if d > r.MaxCooldown/2 {
			return r.MaxCooldown
		}
		d *= 2
	}
	return d
}

// Apply brings the circuit forward by an event of its stream, at the time of
// that event, as the row of the target is.
func (c Circuit) Apply(data event.Data, at time.Time) Circuit {
	switch d := data.(type) {
	case *event.DeliveryDelivered:
		if d.Failures > 0 {
			c.Failures = 0
		}
	case *event.DeliveryAttemptFailed:
		if d.Failures != nil {
			c.Failures = *d.Failures
		}
		if until, err := event.ParseTime(d.HoldUntil); err == nil {
			c.HeldUntil = until
		}
	case *event.TargetCircuitOpened:
		c.State, c.Failures, c.Opens = Open, d.Failures, d.Opens
		c.OpenUntil, _ = event.ParseTime(d.Until)
	case *event.TargetCircuitHalfOpened:
		c.State = HalfOpen
	case *event.TargetCircuitClosed:
		c.State, c.Failures, c.Opens, c.OpenUntil = Closed, 0, 0, time.Time{}
		if d.Actor != "" {
			c.HeldUntil, c.ResetAt = time.Time{}, at
		}
	case *event.TargetPaused:
		c.Paused = true
	case *event.TargetResumed:
		c.Paused, c.ResumedAt = false, at
	}
	return c
}

package config

import "time"

// Retries are when and how often a model is asked again whose attempt failed in a
// way that may pass, or broke off. They are pinned to each run when it is submitted.
type Retries struct {
	// MaxAttempts of one step, the first included. At most 100. Default 5.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure; each wait is longer by up
	// to a half, by chance. From 1ms to 1h. Default 1s.
	InitialBackoff Duration `yaml:"initial_backoff"`
	// BackoffFactor of each wait to the one before, from 1 to 10. Default 2.
	BackoffFactor float64 `yaml:"backoff_factor"`
	// MaxBackoff is the longest wait, also where the vendor asks for more
	// (Retry-After). From 1ms to 24h. Default 15m.
	MaxBackoff Duration `yaml:"max_backoff"`
}

func (r Retries) check(path string) *Error {
	for _, n := range []bound{
		{"max_attempts", int64(r.MaxAttempts), 100, false}, {"initial_backoff", int64(r.InitialBackoff), int64(time.Hour), true},
		{"max_backoff", int64(r.MaxBackoff), int64(24 * time.Hour), true},
	} {
		if err := n.check(path); err != nil {
			return err
		}
		if n.duration && n.v > 0 && n.v < int64(time.Millisecond) {
			return mistake(path+"."+n.name, "must be at least 1ms")
		}
	}
	if f := r.BackoffFactor; f != 0 && !(f >= 1 && f <= 10) { // not a number is neither
		return mistake(path+".backoff_factor", "must be from 1 to 10")
	}
	return nil
}

// With gives the retries with what a route says in their place.
func (r Retries) With(o Retries) Retries {
	if o.MaxAttempts != 0 {
		r.MaxAttempts = o.MaxAttempts
	}
	if o.InitialBackoff != 0 {
		r.InitialBackoff = o.InitialBackoff
	}
	if o.BackoffFactor != 0 {
		r.BackoffFactor = o.BackoffFactor
	}
	if o.MaxBackoff != 0 {
		r.MaxBackoff = o.MaxBackoff
	}
	return r
}

package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Delivery bounds the attempts of deliveries, and how many there are at once.
type Delivery struct {
	// MaxAttempts before the dead letter. At most 1000. Default 12.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure; each wait is spread by a
	// factor from 0.8 to 1.2. At most 24h. Default 5s.
	InitialBackoff Duration `yaml:"initial_backoff"`
	// BackoffFactor of each wait to the one before, from 1 to 10. Default 3.
	BackoffFactor float64 `yaml:"backoff_factor"`
	// MaxBackoff is the longest wait of our own. At most 168h. Default 6h.
	MaxBackoff Duration `yaml:"max_backoff"`
	// MaxAge is how long a delivery is tried since it was enqueued or replayed,
	// waits for the circuit included. At most 8760h. Default 72h.
	MaxAge Duration `yaml:"max_age"`
	// Timeout of one attempt, from the connect to the end of the answer. At most
	// 10m. Default 15s.
	Timeout Duration `yaml:"timeout"`
	// RetryStatuses are tried again besides 408, 425, 429 and 5xx.
	RetryStatuses []int `yaml:"retry_statuses"`
	// Circuit leaves a target alone that keeps failing.
	Circuit Circuit `yaml:"circuit"`
	// RetryAfterLimit is the longest wait that a receiver can ask for
	// (Retry-After). At most 24h. Default 1h.
	RetryAfterLimit Duration `yaml:"retry_after_limit"`
	// ConnectTimeout of an attempt, the look-up of the name included; the TLS
	// handshake may take as long again. At most 1m. Default 5s.
	ConnectTimeout Duration `yaml:"connect_timeout"`
	// Slots is how many attempts are in flight at once, over all targets. At most
	// 4096. Default 32.
	Slots int `yaml:"slots"`
	// FailingSlots is how many of the slots targets have whose last attempt
	// failed, at most half. Targets that were not tried yet since the start leave
	// as many to those that answered. Default 8.
	FailingSlots int `yaml:"failing_slots"`
	// SlowAfter is when an attempt in flight gives its slot to others, as long as
	// there is one of failing_slots for it. At most 1m. Default 3s.
	SlowAfter Duration `yaml:"slow_after"`
	// PayloadBytes of a body; a larger one is a dead letter
	// (payload_too_large). At most 16 MiB. Default 1 MiB.
	PayloadBytes int `yaml:"payload_bytes"`
	// ResponseBytes that are read of an answer. At most 16 MiB. Default 64 KiB.
	ResponseBytes int `yaml:"response_bytes"`
	// ExcerptBytes that are kept of the answer to an attempt that failed. At most
	// 64 KiB. Default 8 KiB.
	ExcerptBytes int `yaml:"excerpt_bytes"`
	// ReplayRate is how many deliveries of one target a bulk replay puts into its
	// lane each second. At most 1000. Default 10.
	ReplayRate int `yaml:"replay_rate"`
	// PlanTime is how long the plan of a bulk replay can be started. At most 24h.
	// Default 15m.
	PlanTime Duration `yaml:"plan_time"`
	// OpenPlans is how many plans of bulk replays are open at once: not started, not
	// cancelled, not expired. One caller has four fifths of them at most. At most
	// 200. Default 100.
	OpenPlans int `yaml:"open_plans"`
	// Retention is how long the ledger keeps what is settled.
	Retention Retention `yaml:"retention"`
}

// DeliveryRules are what can be said for all targets, and for one.
type DeliveryRules struct {
	MaxAttempts                                 int
	InitialBackoff, MaxBackoff, MaxAge, Timeout Duration
	BackoffFactor                               float64
	RetryStatuses                               []int
	Circuit                                     Circuit
}

// Rules are those of all targets.
func (d *Delivery) Rules() DeliveryRules {
	return DeliveryRules{MaxAttempts: d.MaxAttempts, InitialBackoff: d.InitialBackoff, MaxBackoff: d.MaxBackoff, MaxAge: d.MaxAge, Timeout: d.Timeout,
		BackoffFactor: d.BackoffFactor, RetryStatuses: d.RetryStatuses, Circuit: d.Circuit}
}

// Rules are what the override says.
func (o *TargetOverride) Rules() DeliveryRules {
	return DeliveryRules{MaxAttempts: o.MaxAttempts, InitialBackoff: o.InitialBackoff, MaxBackoff: o.MaxBackoff, MaxAge: o.MaxAge, Timeout: o.Timeout,
		BackoffFactor: o.BackoffFactor, RetryStatuses: o.RetryStatuses, Circuit: o.Circuit}
}

// Circuit leaves a target alone that keeps failing.
type Circuit struct {
	// Failures in a row that open it. At most 1000. Default 5.
	Failures int `yaml:"failures"`
	// Cooldown is how long it stays open; it doubles each time that the one
	// attempt let through then fails. At most 24h. Default 30s.
	Cooldown Duration `yaml:"cooldown"`
	// MaxCooldown is the longest. At most 24h. Default 15m.
	MaxCooldown Duration `yaml:"max_cooldown"`
}

// TargetOverride is rules of targets: of one by its id, or of those whose address
// has an origin and, where it is said, a path that begins so.
type TargetOverride struct {
	// TargetID is the id of a target (tgt_…), as targets list shows it.
	TargetID string `yaml:"target_id"`
	// Origin is scheme, host and port of addresses, such as https://hooks.example.com.
	Origin string `yaml:"origin"`
	// PathPrefix narrows origin to paths that begin so, whole segments.
	PathPrefix string `yaml:"path_prefix"`

	// MaxAttempts before the dead letter, here.
	MaxAttempts int `yaml:"max_attempts"`
	// InitialBackoff is the wait after the first failure, here.
	InitialBackoff Duration `yaml:"initial_backoff"`
	// BackoffFactor of each wait to the one before, here.
	BackoffFactor float64 `yaml:"backoff_factor"`
	// MaxBackoff is the longest wait of our own, here.
	MaxBackoff Duration `yaml:"max_backoff"`
	// MaxAge is how long a delivery is tried, here.
	MaxAge Duration `yaml:"max_age"`
	// Timeout of one attempt, here.
	Timeout Duration `yaml:"timeout"`
	// RetryStatuses are tried again, here, in the place of those of delivery.
	RetryStatuses []int `yaml:"retry_statuses"`
	// Circuit leaves the target alone that keeps failing.
	Circuit Circuit `yaml:"circuit"`
	// Order is strict: one delivery after the other, the front holds up the rest;
	// or none: several in flight, what waits for a retry is passed. Default strict.
	Order string `yaml:"order"`
	// InFlight is how many attempts are in flight at once where order is none. At
	// most 4. Default 4.
	InFlight int `yaml:"in_flight"`
}

func (c *Config) checkDelivery() *Error {
	d := &c.Delivery
	if err := d.Rules().check("delivery"); err != nil {
		return err
	}
	for _, n := range []bound{
		{"slots", int64(d.Slots), 4096, false}, {"failing_slots", int64(d.FailingSlots), 4096, false},
		{"payload_bytes", int64(d.PayloadBytes), 16 << 20, false}, {"response_bytes", int64(d.ResponseBytes), 16 << 20, false},
		{"excerpt_bytes", int64(d.ExcerptBytes), 64 << 10, false},
		{"retry_after_limit", int64(d.RetryAfterLimit), int64(24 * time.Hour), true}, {"connect_timeout", int64(d.ConnectTimeout), int64(time.Minute), true},
		{"slow_after", int64(d.SlowAfter), int64(time.Minute), true},
	} {
		if err := n.check("delivery"); err != nil {
			return err
		}
	}
	if err := d.checkLetters(); err != nil {
		return err
	}
	for i := range c.Targets.Overrides {
		if err := c.Targets.Overrides[i].check(fmt.Sprintf("targets.overrides[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

// bound is a number from 0, which is the default, to a limit.
type bound struct {
	name     string
	v, most  int64
	duration bool
}

func (b bound) check(path string) *Error {
	switch path += "." + b.name; {
	case b.v < 0:
		return mistake(path, "must not be negative")
	case b.v > b.most && b.duration:
		return mistake(path, "must be at most %v", time.Duration(b.most))
	case b.v > b.most:
		return mistake(path, "must be at most %d", b.most)
	}
	return nil
}

func (r DeliveryRules) check(path string) *Error {
	for _, n := range []bound{
		{"max_attempts", int64(r.MaxAttempts), 1000, false}, {"circuit.failures", int64(r.Circuit.Failures), 1000, false},
		{"initial_backoff", int64(r.InitialBackoff), int64(24 * time.Hour), true}, {"max_backoff", int64(r.MaxBackoff), int64(168 * time.Hour), true},
		{"max_age", int64(r.MaxAge), int64(8760 * time.Hour), true}, {"timeout", int64(r.Timeout), int64(10 * time.Minute), true},
		{"circuit.cooldown", int64(r.Circuit.Cooldown), int64(24 * time.Hour), true}, {"circuit.max_cooldown", int64(r.Circuit.MaxCooldown), int64(24 * time.Hour), true},
	} {
		if err := n.check(path); err != nil {
			return err
		}
	}
	if f := r.BackoffFactor; f != 0 && !(f >= 1 && f <= 10) { // not a number is neither
		return mistake(path+".backoff_factor", "must be from 1 to 10")
	}
	if len(r.RetryStatuses) > 100 {
		return mistake(path+".retry_statuses", "must be at most 100")
	}
	for i, s := range r.RetryStatuses {
		if s < 400 || s > 599 {
			return mistake(fmt.Sprintf("%s.retry_statuses[%d]", path, i), "%d is not a status of a failure, 400 to 599", s)
		}
	}
	return nil
}

func (o *TargetOverride) check(path string) *Error {
	switch {
	case o.TargetID == "" && o.Origin == "":
		return mistake(path, "says of no target: it wants target_id or origin")
	case o.TargetID != "" && (o.Origin != "" || o.PathPrefix != ""):
		return mistake(path+".target_id", "is one target; origin and path_prefix belong to another override")
	case o.TargetID != "" && !strings.HasPrefix(o.TargetID, "tgt_"):
		return mistake(path+".target_id", "%.64q is not the id of a target (tgt_…)", o.TargetID)
	case o.PathPrefix != "" && !strings.HasPrefix(o.PathPrefix, "/"):
		return mistake(path+".path_prefix", "must begin with /")
	}
	if o.Origin != "" {
		u, err := url.Parse(o.Origin)
		if err != nil || u.Host == "" || originOf(u) != strings.ToLower(o.Origin) {
			return mistake(path+".origin", "is scheme, host and, where it is not the usual one, port: https://hooks.example.com")
		}
	}
	switch o.Order {
	case "", "strict", "none":
	default:
		return mistake(path+".order", "must be strict or none")
	}
	if o.InFlight != 0 && o.Order != "none" {
		return mistake(path+".in_flight", "wants order: none, since more than one in flight is not in order")
	}
	if err := (bound{"in_flight", int64(o.InFlight), 4, false}).check(path); err != nil {
		return err
	}
	return o.Rules().check(path)
}

// originOf is scheme, host and port of an address, in one form.
func originOf(u *url.URL) string {
	scheme, host, port := strings.ToLower(u.Scheme), strings.ToLower(u.Hostname()), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == "" || scheme == "https" && port == "443" || scheme == "http" && port == "80" {
		return scheme + "://" + host
	}
	return scheme + "://" + host + ":" + port
}

// Override gives the override of a target, by its id and its address, of which
// the origin alone may be known; nil: there is none.
func (t *Targets) Override(id, address string) *TargetOverride {
	origin, path := "", ""
	if u, err := url.Parse(address); err == nil {
		origin, path = originOf(u), u.EscapedPath()
	}
	for i := range t.Overrides {
		o := &t.Overrides[i]
		switch {
		case o.TargetID != "":
			if o.TargetID == id {
				return o
			}
		case strings.ToLower(o.Origin) == origin:
			prefix := strings.TrimSuffix(o.PathPrefix, "/")
			if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
				return o
			}
		}
	}
	return nil
}

// With gives the rules with what an override says in their place.
func (r DeliveryRules) With(o DeliveryRules) DeliveryRules {
	for _, n := range []struct{ to, by *int }{{&r.MaxAttempts, &o.MaxAttempts}, {&r.Circuit.Failures, &o.Circuit.Failures}} {
		if *n.by != 0 {
			*n.to = *n.by
		}
	}
	for _, d := range []struct{ to, by *Duration }{
		{&r.InitialBackoff, &o.InitialBackoff}, {&r.MaxBackoff, &o.MaxBackoff}, {&r.MaxAge, &o.MaxAge}, {&r.Timeout, &o.Timeout},
		{&r.Circuit.Cooldown, &o.Circuit.Cooldown}, {&r.Circuit.MaxCooldown, &o.Circuit.MaxCooldown},
	} {
		if *d.by != 0 {
			*d.to = *d.by
		}
	}
	if o.BackoffFactor != 0 {
		r.BackoffFactor = o.BackoffFactor
	}
	if o.RetryStatuses != nil {
		r.RetryStatuses = o.RetryStatuses
	}
	return r
}

package daemon

import (
	"cmp"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/version"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// deliveryConfig completes what the delivery room works with by the configuration.
func deliveryConfig(cfg *config.Config, c delivery.Config) delivery.Config {
	d := &cfg.Delivery
	c.Slots, c.FailingSlots, c.SlowAfter = d.Slots, d.FailingSlots, d.SlowAfter.Or(0)
	c.MaxPayload, c.MaxExcerpt = int64(d.PayloadBytes), d.ExcerptBytes
	c.Rules = rulesOf(cfg)
	return c
}

// rulesOf gives the rules of each target: those of all, and what overrides say.
func rulesOf(cfg *config.Config) func(event.TargetID, event.ReplyTarget) outbox.Rules {
	all := rules(cfg, nil)
	each := make(map[*config.TargetOverride]outbox.Rules, len(cfg.Targets.Overrides))
	for i := range cfg.Targets.Overrides {
		o := &cfg.Targets.Overrides[i]
		each[o] = rules(cfg, o)
	}
	return func(id event.TargetID, t event.ReplyTarget) outbox.Rules {
		if len(each) == 0 {
			return all
		}
		if o := cfg.Targets.Override(string(id), cmp.Or(t.URL, t.Origin)); o != nil {
			return each[o]
		}
		return all
	}
}

// rules are those of the configuration, for all targets or for those of an override.
func rules(cfg *config.Config, o *config.TargetOverride) outbox.Rules {
	inFlight := 1
	r := cfg.Delivery.Rules()
	if o != nil {
		r = r.With(o.Rules())
		if o.Order == "none" {
			if inFlight = o.InFlight; inFlight == 0 {
				inFlight = outbox.MaxInFlight
			}
		}
	}
	return outbox.Rules{
		MaxAttempts: r.MaxAttempts, InitialBackoff: r.InitialBackoff.Or(0), Factor: r.BackoffFactor, MaxBackoff: r.MaxBackoff.Or(0), MaxAge: r.MaxAge.Or(0),
		MaxRetryAfter: cfg.Delivery.RetryAfterLimit.Or(0), RetryStatuses: r.RetryStatuses, Timeout: r.Timeout.Or(0), InFlight: inFlight,
		Threshold: r.Circuit.Failures, Cooldown: r.Circuit.Cooldown.Or(0), MaxCooldown: r.Circuit.MaxCooldown.Or(0),
	}.WithDefaults()
}

// senderConfig is that of the sender of webhooks. The room bounds each attempt by
// its target's timeout; the sender's own is as long as the longest of them.
func senderConfig(cfg *config.Config) webhook.Config {
	longest := rules(cfg, nil).Timeout
	for i := range cfg.Targets.Overrides {
		longest = max(longest, rules(cfg, &cfg.Targets.Overrides[i]).Timeout)
	}
	d := &cfg.Delivery
	return webhook.Config{
		Timeout: longest + time.Second, Version: version.Version, MaxRetryAfter: d.RetryAfterLimit.Or(0), MaxResponse: int64(d.ResponseBytes), MaxExcerpt: d.ExcerptBytes,
	}
}

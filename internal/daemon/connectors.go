package daemon

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// makeConnectors makes the configured connectors. What the intake would refuse of
// a template or of reply targets is a mistake of the file, told at the start.
func (d *Daemon) makeConnectors(ctx context.Context) (connectors.Set, error) {
	out := connectors.Set{Standard: verifyStandard, Counted: d.metrics.Received}
	for _, name := range slices.Sorted(maps.Keys(d.cfg.SessionTemplates)) {
		t, cerr := d.cfg.Template(name)
		if cerr != nil {
			return out, cerr
		}
		if err := d.intake.CheckSession(ctx, admission.DefaultUser, t); err != nil {
			return out, d.cfg.Mistake("session_templates."+name, "%s", problem.Of(err).Detail)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.cfg.Connectors)) {
		k := d.cfg.Connectors[name]
		rules, cerr := d.cfg.Connector(name)
		if cerr != nil {
			return out, cerr
		}
		one := connectors.Connector{
			Rules: rules, User: k.UserID, Secrets: connectorSecrets(d.cfg, name), Template: k.Session.Template,
			Remember: k.RememberTargets, Rate: k.Limits.Rate, Burst: float64(k.Limits.Burst),
		}
		if one.User == "" {
			one.User = admission.DefaultUser
		}
		if one.Targets, cerr = d.cfg.ReplyTargets(name); cerr != nil {
			return out, cerr
		}
		if one.Targets != nil {
			if err := d.intake.CheckSession(ctx, one.User, &api.CreateSession{ReplyTargets: *one.Targets}); err != nil {
				return out, d.cfg.Mistake("connectors."+name+".reply_targets", "%s", problem.Of(err).Detail)
			}
		}
		if k.Session.Template != "" {
			if one.Session, cerr = d.cfg.Template(k.Session.Template); cerr != nil {
				return out, cerr
			}
		}
		out.List = append(out.List, one)
	}
	return out, nil
}

// connectorSecrets reads the secrets at each request, so that a changed one counts
// at once. One that cannot be read does not keep the others from counting.
func connectorSecrets(cfg *config.Config, name string) func(context.Context) ([]string, error) {
	refs := cfg.Connectors[name].Auth.Secrets
	return func(ctx context.Context) ([]string, error) {
		var out []string
		var first error
		for i, ref := range refs {
			values, err := cfg.UseFor(ctx, config.Reference{Key: fmt.Sprintf("connectors.%s.auth.secrets[%d]", name, i), Ref: ref}, "")
			if err == nil {
				out = append(out, values...) // during a rotation those before count too
			} else if first == nil {
				first = err
			}
		}
		if len(out) == 0 {
			return nil, first
		}
		return out, nil
	}
}

// verifyStandard verifies a signature of Standard Webhooks by a secret (whsec_), or
// by a sender's public key (whpk_).
func verifyStandard(h http.Header, body []byte, secret string, now time.Time, tolerance time.Duration) error {
	if public, err := webhook.ParsePublicKey(secret); err == nil {
		return webhook.VerifyPublic(h, body, public, now, tolerance)
	}
	key, err := webhook.ParseSecret(secret)
	if err != nil {
		return err
	}
	return webhook.Verify(h, body, key, now, tolerance)
}

// canVerify says whether a secret can verify signatures of Standard Webhooks.
func canVerify(secret string) bool {
	_, err := webhook.ParseSecret(secret)
	_, err2 := webhook.ParsePublicKey(secret)
	return err == nil || err2 == nil
}

// shortSecret is the length below which a secret of a connector is warned of.
const shortSecret = 16

// checkConnectors says what of the connectors works and may not be meant so.
func checkConnectors(cfg *config.Config) (warnings []string) {
	warn := func(name, format string, args ...any) {
		warnings = append(warnings, "connectors."+name+": "+fmt.Sprintf(format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Connectors)) {
		k := cfg.Connectors[name]
		rules, err := cfg.Connector(name)
		if err != nil {
			continue // told where the file is read
		}
		if k.Unauthenticated {
			warn(name, "everybody who reaches the daemon can make runs here: unauthenticated is true")
		}
		if h := rules.EventHeader; h != "" && rules.Auth.Sealed() && !rules.Covers(h) {
			warn(name, "the signature does not cover the header %s that holds the id of events: who has seen one can send it again under another id", h)
		}
		for _, ref := range k.Auth.Secrets {
			v, err := cfg.Secret(ref)
			if err != nil {
				continue // told of every reference
			}
			if rules.Auth == inbound.AuthStandard && !canVerify(v) {
				warn(name, "%s has not the form of a secret of Standard Webhooks (whsec_ and base64) or of a public key (whpk_)", ref)
			} else if len(v) < shortSecret {
				warn(name, "%s is shorter than %d characters, which can be guessed", ref, shortSecret)
			}
		}
	}
	return warnings
}

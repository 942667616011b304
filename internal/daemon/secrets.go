package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/masterkey"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// hostOf gives where a request to an address goes, as host:port. What is no
// address goes to a host that nothing is bound to.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "invalid.invalid:0"
	}
	return secret.HostOf(u)
}

// useFor gives the current value of a reference, to be sent to a host.
func useFor(cfg *config.Config, at config.Reference, host string) (string, error) {
	values, err := cfg.UseFor(context.Background(), at, host) // it bounds its time itself
	if err != nil {
		return "", err
	}
	return values[0], nil
}

// watched makes the configuration this daemon's own, and its log lines free of
// every secret that is in use.
func (d *Daemon) watched(cfg *config.Config) {
	own := *cfg
	if own.Known == nil {
		own.Known = new(secret.Known)
	}
	d.cfg = &own
	d.log = slog.New(secret.NewLogHandler(d.log.Handler(), own.Known))
}

// openSecrets finds the master key and makes the room of secrets. Slots that no
// key here opens are an error, told at the start.
func (d *Daemon) openSecrets(ctx context.Context, opt Options) error {
	ring, why, err := d.masterKey(ctx, opt)
	if err != nil {
		return err
	}
	named := map[string]slots.Named{}
	for name, n := range d.cfg.Secrets {
		ref := n.Ref()
		hosts, bound := n.Bound()
		named[name] = slots.Named{Read: func() (string, error) { return d.cfg.Secret(ref) }, Hosts: hosts, Bound: bound, Shared: n.Shared}
	}
	d.secrets = slots.New(slots.Config{
		Store: d.store, Ring: ring, Why: why, Named: named, DefaultUser: admission.DefaultUser, Known: d.cfg.Known,
		Generate:  func() (string, error) { return webhook.NewSecret(d.random) },
		FormerFor: d.cfg.Slots.FormerFor.Or(0), PerOwner: d.cfg.Slots.PerOwner, Logger: d.log,
	})
	d.cfg.Resolve = d.secrets.For(slots.Daemon)
	if opt.Store != nil { // it is another's to look at
		return nil
	}
	return d.secrets.Check(ctx)
}

// SlotsOf makes a room over a store that is no running daemon's, such as a
// backup, with the master key of a configuration: to carry slots out of it, or
// into it. No key is made.
func SlotsOf(ctx context.Context, cfg *config.Config, store eventlog.Secrets) (*slots.Room, error) {
	m := keysOf(cfg)
	if m.Current == (masterkey.Source{}) {
		return nil, cfg.Mistake("master_key", "there is none; name the one of the nodes")
	}
	ring, _, err := masterkey.Load(ctx, m)
	if err != nil {
		return nil, cfg.Mistake("master_key", "%v", err)
	}
	return slots.New(slots.Config{Store: store, Ring: ring, PerOwner: cfg.Slots.PerOwner}), nil
}

// keysOf says where the keys of a configuration are.
func keysOf(cfg *config.Config) masterkey.Config {
	m := &cfg.MasterKey
	out := masterkey.Config{Current: masterkey.Source{File: cfg.MasterKeyFile(), Env: m.Env}}
	for _, ref := range m.Former {
		out.Former = append(out.Former, masterkey.Source{File: cfg.Path(ref.File), Env: ref.Env})
	}
	if len(m.KMS.Command) > 0 {
		out.Hook = &masterkey.Hook{Command: slices.Clone(m.KMS.Command), PassEnv: m.KMS.PassEnv, Timeout: m.KMS.Timeout.Or(0)}
	}
	return out
}

// masterKey reads the keys; nil, with the reason, where there is none and none
// has to be.
func (d *Daemon) masterKey(ctx context.Context, opt Options) (ring *seal.Ring, why string, err error) {
	m := &d.cfg.MasterKey
	if opt.Store != nil && m.File == "" && m.Env == "" {
		return nil, "set master_key", nil
	}
	if d.cfg.MasterKeyFile() == "" && m.Env == "" {
		return nil, "several nodes share one: make it with holdfast secrets new-key, and name it in master_key on every node", nil
	}
	cfg := keysOf(d.cfg)
	cfg.Random = d.random
	// A key that is lost is not made anew: what it sealed would stay closed.
	if !d.cfg.DatabaseURL.Set() && opt.Store == nil {
		sealed, err := d.store.SecretKeys(ctx)
		if err != nil {
			return nil, "", err
		}
		cfg.Make = len(sealed) == 0
	}
	ring, made, err := masterkey.Load(ctx, cfg)
	var missing *masterkey.MissingError
	var cannot *masterkey.CannotMakeError
	switch {
	case errors.As(err, &cannot) && m.File == "":
		why = fmt.Sprintf("%v; name another place in master_key.file", cannot)
		d.log.Warn("secret slots cannot be used", "why", why)
		return nil, why, nil
	case errors.As(err, &missing) && !d.cfg.DatabaseURL.Set() && !cfg.Make:
		return nil, missing.Error(), nil // Check tells which key is wanted
	case err != nil:
		return nil, "", d.cfg.Mistake("master_key", "%v", err)
	case made:
		d.log.Info("first start: the master key of secret slots is in a file; keep a copy of it apart from copies of the data directory", "path", cfg.Current.File)
	}
	for _, s := range append([]masterkey.Source{cfg.Current}, cfg.Former...) {
		d.known(s)
	}
	return ring, "", nil
}

// known has the text of a key taken out of whatever is logged or kept.
func (d *Daemon) known(s masterkey.Source) {
	if v, err := d.cfg.Secret(config.Ref{File: s.File, Env: s.Env}); err == nil {
		d.cfg.Known.Keep(v)
	}
}

// missSlots warns of slots that the configuration refers to and nobody has set.
func (d *Daemon) missSlots(ctx context.Context) {
	refs := d.cfg.References()
	if name := d.cfg.Targets.SigningSecret; name != "" {
		refs = append(refs, config.Reference{Key: "targets.signing_secret", Ref: config.Ref{Secret: name}})
	}
	for _, at := range refs {
		if !d.cfg.Slotted(at.Ref) {
			continue
		}
		if err := d.secrets.Has(ctx, slots.Daemon, at.Ref.Secret); problem.Is(err, "unknown_secret") {
			d.log.Warn("no secret of this name is in the configuration nor in a slot; what needs it fails until it is set with holdfast secrets set", "key", at.Key, "secret", at.Ref.Secret)
		}
	}
}

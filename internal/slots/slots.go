// Package slots is the room of secrets: those that the configuration names, and
// the slots that people fill over the API, which are stored sealed. It gives a
// value to who may have it, for a host that it is bound to, at the moment of its
// use; nothing else ever reads one.
package slots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// Defaults and bounds.
const (
	DefaultFormerFor = 24 * time.Hour
	MaxFormerFor     = 7 * 24 * time.Hour
	DefaultPerOwner  = 200
	// MaxVersions is how many versions of a slot count at once.
	MaxVersions = 4
	// MinValue is the shortest value: of a shorter one an echo could not be told
	// from other words.
	MinValue = secret.MinLength

	// cacheFor bounds how long a value that another node replaced still counts.
	cacheFor  = 2 * time.Second
	maxCached = 1024
)

// Daemon is the owner of the slots that the configuration refers to.
const Daemon = ""

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Named is a secret of the configuration.
type Named struct {
	Read   func() (string, error) // the error holds no value
	Hosts  secret.Hosts           // that it may be sent to
	Bound  bool                   // Hosts counts; else the operator names secret and place in one file
	Shared bool                   // sessions of all users may name it
}

// Config says what the room works with.
type Config struct {
	Store eventlog.Secrets
	// Ring seals and opens. Nil: there is no master key, and Why says what to do.
	Ring *seal.Ring
	Why  string
	// Named are the secrets of the configuration. The daemon's slots are in the
	// same name space, where these come first.
	Named map[string]Named
	// DefaultUser is the user whose sessions are the operator's own: they may
	// name the daemon's secrets.
	DefaultUser string
	Known       *secret.Known          // is told each value that is given out
	Generate    func() (string, error) // a new signing secret
	FormerFor   time.Duration          // 0: DefaultFormerFor
	PerOwner    int                    // 0: DefaultPerOwner
	Logger      *slog.Logger           // nil: nothing is logged
}

// Room gives secrets. It is safe for concurrent use.
type Room struct {
	cfg Config

	mu    sync.Mutex
	cache map[place]cached
	turn  int // counts writes: what was read before one is not kept after it
}

type place struct{ owner, name string }

type cached struct {
	versions []open
	until    time.Time
}

// open is an opened version.
type open struct {
	value secret.Value
	hosts secret.Hosts
	until time.Time // zero: the newest
}

// New makes the room.
func New(cfg Config) *Room {
	if cfg.FormerFor == 0 {
		cfg.FormerFor = DefaultFormerFor
	}
	if cfg.PerOwner == 0 {
		cfg.PerOwner = DefaultPerOwner
	}
	if cfg.Known == nil {
		cfg.Known = new(secret.Known)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Room{cfg: cfg, cache: map[place]cached{}}
}

// For gives the port of one user: what the user's sessions may name. Of the
// operator's own user, and of the daemon itself, those are the daemon's secrets
// too; of any other only what the configuration shares.
func (r *Room) For(owner string) secret.Resolve {
	return func(ctx context.Context, name, host string) ([]string, error) { return r.Use(ctx, owner, name, host) }
}

// Use gives the values of a secret that an owner may name, as secret.Resolve has it.
func (r *Room) Use(ctx context.Context, owner, name, host string) ([]string, error) {
	var err error
	if owner != Daemon {
		versions, err := r.versions(ctx, owner, name)
		if err == nil {
			return r.give(name, host, versions)
		}
		if !errors.Is(err, eventlog.ErrNotFound) {
			return nil, err
		}
		if owner != r.cfg.DefaultUser && !r.cfg.Named[name].Shared {
			return nil, unknown(name)
		}
	}
	if n, ok := r.cfg.Named[name]; ok {
		if host != "" && n.Bound && !n.Hosts.Allows(host) {
			return nil, notForHost(name)
		}
		v, err := n.Read()
		if err != nil {
			return nil, problem.New(problem.Unavailable, "secret_unavailable", "the secret %s cannot be read", name).Because(err)
		}
		r.cfg.Known.Add(v)
		return []string{v}, nil
	}
	versions, err := r.versions(ctx, Daemon, name)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, unknown(name)
	}
	if err != nil {
		return nil, err
	}
	return r.give(name, host, versions)
}

// Has says whether Use would find a secret, without opening it.
func (r *Room) Has(ctx context.Context, owner, name string) error {
	named, ok := r.cfg.Named[name]
	all := owner == Daemon || owner == r.cfg.DefaultUser
	if ok && (all || named.Shared) {
		return nil
	}
	if !nameForm.MatchString(name) {
		return unknown(name)
	}
	_, err := r.cfg.Store.Secret(ctx, owner, name)
	if errors.Is(err, eventlog.ErrNotFound) && all && owner != Daemon {
		_, err = r.cfg.Store.Secret(ctx, Daemon, name)
	}
	if errors.Is(err, eventlog.ErrNotFound) {
		return unknown(name)
	}
	return err
}

func unknown(name string) error {
	return problem.New(problem.Invalid, "unknown_secret", "no secret is named %.64q", name)
}

func notForHost(name string) error {
	return problem.New(problem.Forbidden, "secret_not_for_host", "the secret %.64s is not bound to this host; set it with the host among its hosts", name)
}

// give gives the versions that count now and may be sent to a host.
func (r *Room) give(name, host string, versions []open) ([]string, error) {
	now := time.Now()
	var out []string
	for i, v := range versions {
		switch {
		case host != "" && !v.hosts.Allows(host):
			if i == 0 {
				return nil, notForHost(name)
			}
		case i == 0 || now.Before(v.until):
			out = append(out, v.value.Reveal())
		}
	}
	return out, nil
}

// versions gives the opened versions of a slot, the newest first.
func (r *Room) versions(ctx context.Context, owner, name string) ([]open, error) {
	if !nameForm.MatchString(name) {
		return nil, eventlog.ErrNotFound
	}
	at := place{owner, name}
	now := time.Now()
	r.mu.Lock()
	hit, ok := r.cache[at]
	turn := r.turn
	r.mu.Unlock()
	if ok && now.Before(hit.until) {
		return hit.versions, nil
	}
	rows, err := r.cfg.Store.Secret(ctx, owner, name)
	if err != nil {
		return nil, err
	}
	if r.cfg.Ring == nil {
		return nil, r.noKey()
	}
	var out []open
	for i, row := range rows {
		value, err := r.cfg.Ring.Open(placeOf(&row), row.KeyID, row.Sealed)
		if err != nil {
			if i > 0 { // one that only counts beside the newest
				r.cfg.Logger.Warn("a former version of a secret cannot be opened", "secret", name, "owner", owner, "version", row.Version, "key", row.KeyID, "err", err)
				continue
			}
			return nil, problem.New(problem.Unavailable, "secret_unreadable", "the secret %.64s cannot be opened: %v", name, err)
		}
		v := open{value: secret.New(value), hosts: hostsOf(row.Hosts)}
		if row.Until != "" {
			if v.until, err = event.ParseTime(row.Until); err != nil {
				return nil, fmt.Errorf("secret %s: %w", name, err)
			}
		}
		r.cfg.Known.Add(value)
		out = append(out, v)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turn == turn {
		if len(r.cache) >= maxCached {
			clear(r.cache)
		}
		r.cache[at] = cached{out, now.Add(cacheFor)}
	}
	return out, nil
}

// forget has the next use read what is stored.
func (r *Room) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cache)
	r.turn++
}

func (r *Room) noKey() error {
	return problem.New(problem.Unavailable, "no_master_key", "there is no master key to seal secrets with: %s", r.cfg.Why)
}

func placeOf(row *eventlog.SecretRow) seal.Place {
	return seal.Place{Owner: row.Owner, Name: row.Name, Version: row.Version, Hosts: row.Hosts}
}

func hostsOf(text string) secret.Hosts {
	if text == "" {
		return secret.Hosts{}
	}
	return strings.Split(text, ",")
}

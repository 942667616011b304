package slots

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// Setting is what a slot is set to.
type Setting struct {
	Owner, Name string
	Value       secret.Value
	Generate    bool     // draw a signing secret instead of taking Value
	Hosts       []string // nil: those of the version before; of a first one none
	// FormerFor is how long the versions before count beside this one; 0: not at
	// all; nil: as the configuration says.
	FormerFor *time.Duration
	Actor     string
	// Record is called when the slot is about to be changed, with whether it is
	// new and the hosts; where it fails nothing is. nil: nobody wants to know.
	Record func(created bool, hosts string) error
}

// Done is what came of a Setting.
type Done struct {
	Rows  []eventlog.SecretRow // the versions that count, the newest first
	Drawn secret.Value         // the value that was drawn, which nothing shows again
	New   bool                 // there was no such slot
}

// Set writes a new version and gives the slot as it is then.
func (r *Room) Set(ctx context.Context, s Setting) (*Done, error) {
	if r.cfg.Ring == nil {
		return nil, r.noKey()
	}
	if !nameForm.MatchString(s.Name) {
		return nil, problem.New(problem.Invalid, "invalid_secret_name", "a secret's name is [A-Za-z0-9_-]{1,64}")
	}
	if _, ok := r.cfg.Named[s.Name]; ok && s.Owner == Daemon {
		return nil, problem.New(problem.Conflict, "secret_in_configuration", "the configuration names the secret %s already, under secrets; take it out there first, or use another name", s.Name)
	}
	hosts, err := secret.ParseHosts(s.Hosts)
	if err != nil {
		return nil, err
	}
	value, err := r.valueOf(s)
	if err != nil {
		return nil, err
	}
	formerFor := r.cfg.FormerFor
	if s.FormerFor != nil {
		formerFor = *s.FormerFor
	}
	if formerFor < 0 || formerFor > MaxFormerFor {
		return nil, problem.New(problem.Invalid, "invalid_former_for", "former_for must be from 0s to %s", MaxFormerFor)
	}
	rows, err := r.cfg.Store.Secret(ctx, s.Owner, s.Name)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return nil, err
	}
	now := time.Now()
	row := eventlog.SecretRow{Owner: s.Owner, Name: s.Name, Version: 1, Hosts: strings.Join(hosts, ","), CreatedAt: event.FormatTime(now), CreatedBy: s.Actor}
	if len(rows) > 0 {
		row.Version = rows[0].Version + 1
		if s.Hosts == nil {
			row.Hosts = rows[0].Hosts
		}
	}
	if s.FormerFor == nil && !s.Generate && r.same(rows, row.Hosts, value) {
		rows, err = r.Get(ctx, s.Owner, s.Name)
		return &Done{Rows: rows}, err // a repeated request
	}
	if formerFor > 0 && counting(rows, row.CreatedAt) >= MaxVersions {
		return nil, problem.New(problem.Conflict, "too_many_versions", "%d versions of this secret count now; wait until one has ended, or end them all with former_for 0s", MaxVersions)
	}
	if row.KeyID, row.Sealed, err = r.cfg.Ring.Seal(placeOf(&row), value.Reveal()); err != nil {
		return nil, fmt.Errorf("seal secret: %w", err)
	}
	until := ""
	if formerFor > 0 {
		until = event.FormatTime(now.Add(formerFor))
	}
	if s.Record != nil {
		if err := s.Record(len(rows) == 0, row.Hosts); err != nil {
			return nil, err
		}
	}
	if err := r.put(ctx, row, until); err != nil {
		return nil, err
	}
	r.cfg.Known.Add(value.Reveal())
	r.cfg.Logger.Info("a secret was set", "secret", s.Name, "owner", s.Owner, "version", row.Version, "by", s.Actor)
	done := &Done{New: len(rows) == 0}
	if s.Generate {
		done.Drawn = value
	}
	done.Rows, err = r.Get(ctx, s.Owner, s.Name)
	return done, err
}

func (r *Room) valueOf(s Setting) (secret.Value, error) {
	text := s.Value.Reveal()
	switch {
	case s.Generate && text != "":
		return secret.Value{}, problem.New(problem.Invalid, "invalid_secret", "give value or generate, not both")
	case s.Generate:
		drawn, err := r.cfg.Generate()
		return secret.New(drawn), err
	case len(text) < MinValue:
		return secret.Value{}, problem.New(problem.Invalid, "invalid_secret", "value must hold at least %d bytes: of a shorter one an echo could not be told from other words", MinValue)
	case len(text) > seal.MaxValue:
		return secret.Value{}, problem.New(problem.TooLarge, "secret_too_large", "value holds more than %d bytes", seal.MaxValue)
	}
	return s.Value, nil
}

// same says whether the newest version has this value and these hosts.
func (r *Room) same(rows []eventlog.SecretRow, hosts string, value secret.Value) bool {
	if len(rows) == 0 || rows[0].Hosts != hosts {
		return false
	}
	old, err := r.cfg.Ring.Open(placeOf(&rows[0]), rows[0].KeyID, rows[0].Sealed)
	return err == nil && subtle.ConstantTimeCompare([]byte(old), []byte(value.Reveal())) == 1
}

// counting says how many versions count at a time.
func counting(rows []eventlog.SecretRow, now string) int {
	n := 0
	for _, row := range rows {
		if row.Until == "" || row.Until > now {
			n++
		}
	}
	return n
}

func (r *Room) put(ctx context.Context, row eventlog.SecretRow, formerUntil string) error {
	err := r.cfg.Store.PutSecret(ctx, row, formerUntil, r.cfg.PerOwner)
	r.forget()
	switch {
	case errors.Is(err, eventlog.ErrSecretMoved):
		return problem.New(problem.Conflict, "secret_conflict", "somebody else set this secret at the same moment; look at it and try again")
	case errors.Is(err, eventlog.ErrQuota):
		return problem.New(problem.Limited, "too_many_secrets", "there are %d secrets of this owner, the most there may be (slots.per_owner)", r.cfg.PerOwner)
	}
	return err
}

// Get gives the versions of a slot that count now, the newest first, without
// what is sealed.
func (r *Room) Get(ctx context.Context, owner, name string) ([]eventlog.SecretRow, error) {
	rows, err := r.cfg.Store.Secret(ctx, owner, name)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, problem.New(problem.NotFound, "secret_not_found", "there is no secret %.64q of this owner", name)
	}
	now := event.FormatTime(time.Now())
	kept := rows[:0]
	for _, row := range rows {
		if row.Until == "" || row.Until > now {
			row.Sealed = nil
			kept = append(kept, row)
		}
	}
	return kept, err
}

// List gives the newest version of each slot of an owner; empty: of all.
func (r *Room) List(ctx context.Context, owner string, p eventlog.Page) ([]eventlog.SecretRow, string, error) {
	return r.cfg.Store.ListSecrets(ctx, owner, p)
}

// Delete deletes a slot with all versions.
func (r *Room) Delete(ctx context.Context, owner, name, actor string) error {
	err := r.cfg.Store.DeleteSecret(ctx, owner, name)
	r.forget()
	if errors.Is(err, eventlog.ErrNotFound) {
		return problem.New(problem.NotFound, "secret_not_found", "there is no secret %.64q of this owner", name)
	}
	if err == nil {
		r.cfg.Logger.Info("a secret was deleted", "secret", name, "owner", owner, "by", actor)
	}
	return err
}

// Drop deletes versions whose time is over.
func (r *Room) Drop(ctx context.Context) error {
	const step = 100
	for ctx.Err() == nil {
		n, err := r.cfg.Store.DropSecrets(ctx, event.FormatTime(time.Now()), step)
		if err != nil || n < step {
			return err
		}
	}
	return nil
}

// UnknownKeyError says that there are slots that no key here opens.
type UnknownKeyError struct {
	Keys     []string // their ids
	Versions int64
	Current  string // id of the key here; empty: there is none
	Why      string // there is none
}

func (e *UnknownKeyError) Error() string {
	here := "here the current key is " + e.Current
	if e.Current == "" {
		here = "here there is none (" + e.Why + ")"
	}
	return fmt.Sprintf("%d versions of secret slots are sealed under the master key %s, and %s: name that key in master_key.former, or give every node the same master_key",
		e.Versions, strings.Join(e.Keys, ", "), here)
}

// Check says with an *UnknownKeyError whether a slot is sealed under a key that
// is not here. An unreadable slot is better told at the start than at its use.
func (r *Room) Check(ctx context.Context) error {
	keys, err := r.cfg.Store.SecretKeys(ctx)
	if err != nil {
		return err
	}
	e := &UnknownKeyError{Why: r.cfg.Why}
	if r.cfg.Ring != nil {
		e.Current = r.cfg.Ring.Current()
	}
	for _, k := range keys {
		if r.cfg.Ring == nil || !r.cfg.Ring.Has(k.ID) {
			e.Keys = append(e.Keys, k.ID)
			e.Versions += k.Versions
		}
	}
	if e.Keys != nil {
		return e
	}
	return nil
}

// Rekeyed says what a step of Rekey did.
type Rekeyed struct {
	Key      string // the current one
	Resealed int    // versions, in this step
	Left     int64  // versions under other keys
}

// Rekey seals up to limit versions anew under the current key. It is called
// until nothing is left; one that stopped in between goes on where it was, and
// several at once do not harm each other.
func (r *Room) Rekey(ctx context.Context, limit int) (Rekeyed, error) {
	if r.cfg.Ring == nil {
		return Rekeyed{}, r.noKey()
	}
	out := Rekeyed{Key: r.cfg.Ring.Current()}
	rows, err := r.cfg.Store.SecretsUnder(ctx, out.Key, limit)
	if err != nil {
		return out, err
	}
	for _, row := range rows {
		value, err := r.cfg.Ring.Open(placeOf(&row), row.KeyID, row.Sealed)
		if err != nil {
			return out, problem.New(problem.Conflict, "secret_unreadable", "version %d of the secret %s cannot be sealed anew: %v (master key %s)", row.Version, row.Name, err, row.KeyID)
		}
		was := row.Sealed
		if row.KeyID, row.Sealed, err = r.cfg.Ring.Seal(placeOf(&row), value); err != nil {
			return out, fmt.Errorf("seal secret: %w", err)
		}
		done, err := r.cfg.Store.ResealSecret(ctx, row, was)
		if err != nil {
			return out, err
		}
		if done {
			out.Resealed++
		}
	}
	keys, err := r.cfg.Store.SecretKeys(ctx)
	for _, k := range keys {
		if k.ID != out.Key {
			out.Left += k.Versions
		}
	}
	return out, err
}

package door

import (
	"errors"
	"net/netip"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

var (
	errNoToken      = problem.New(problem.Unauthenticated, "token_required", "send a token as Authorization: Bearer …")
	errInvalidToken = problem.New(problem.Unauthenticated, "invalid_token", "the token is not known, or was revoked")
	errExpired      = problem.New(problem.Unauthenticated, "token_expired", "the token has expired; an administrator makes another one: holdfast token create")
)

// Authenticate finds out who asks.
//
// What is limited are attempts that fail, by the peer that makes them, so that
// nobody behind the same address can lock out who has a good token: that one is
// looked at however many others have failed. Guessing is no use against the
// secrets that are drawn here. A token of another form, which a person chose, is
// looked at only as long as its peer is within the limit, unless this process
// knows it already.
func (v *Visit) Authenticate() error {
	who, err := v.authenticate()
	if err == nil {
		v.Who = who
	}
	return err
}

func (v *Visit) authenticate() (Caller, error) {
	text, none, ok := tokens.Bearer(v.r.Header)
	switch {
	case none && v.local:
		return Caller{Caller: admission.Caller{Actor: "local"}, Role: gate.Admin}, nil
	case !ok:
		return Caller{}, v.Stranger(errNoToken)
	}
	p, now := tokens.Present(text), time.Now()
	row, state := v.door.tokens.Look(p.Hash, now)
	if state == tokens.Fresh {
		return v.admit(row, p, now)
	}
	if peer, ok := v.Peer(); ok && state == tokens.Unknown && v.door.failures.Over(gate.Household(peer), now) {
		if p.ID == "" {
			return Caller{}, v.failed(errInvalidToken, now)
		}
		// A flood of these must not take the readers of the store from the work.
		select {
		case v.door.lookups <- struct{}{}:
			defer func() { <-v.door.lookups }()
		case <-v.r.Context().Done():
			return Caller{}, v.r.Context().Err()
		}
	}
	row, err := v.door.tokens.Get(v.r.Context(), v.door.cfg.Tokens, p)
	if errors.Is(err, eventlog.ErrNotFound) {
		v.Who.Actor = row.ID
		return Caller{}, v.failed(errInvalidToken, now)
	}
	if err != nil {
		return Caller{}, err
	}
	return v.admit(row, p, now)
}

// admit gives the caller of a token that is known.
func (v *Visit) admit(row eventlog.TokenRow, p tokens.Presented, now time.Time) (Caller, error) {
	who, err := callerOf(row, p, now)
	if err != nil {
		v.Who.Actor = who.Actor
		if errors.Is(err, errExpired) {
			err = v.failed(errExpired, now)
		}
		return Caller{}, err
	}
	if ok, wait := v.door.rates.Take(row.ID, now); !ok {
		v.Who.Actor = who.Actor
		return Caller{}, exchange.Later(wait, problem.New(problem.Limited, "rate_limited", "this token sends more requests than limits.token_rate allows; try again"))
	}
	if v.door.tokens.Used(row.ID, now) {
		v.door.keeper.wake()
	}
	return who, nil
}

// callerOf gives the caller of a token's row.
func callerOf(row eventlog.TokenRow, p tokens.Presented, now time.Time) (Caller, error) {
	actor := row.ID
	if row.Name != "" {
		actor = row.Name + " (" + row.ID + ")" // names need not be unique
	}
	who := Caller{Caller: admission.Caller{Actor: actor, UserID: row.UserID}, token: p}
	if !row.ExpiresAt.IsZero() && !now.Before(row.ExpiresAt) {
		return who, errExpired
	}
	var ok bool
	if who.Role, ok = gate.RoleOf(row.Role); !ok {
		return who, problem.New(problem.Forbidden, "role_required", "the token has no known role")
	}
	return who, nil
}

// failed counts an attempt that failed, and says so, or that there were too many.
func (v *Visit) failed(err error, now time.Time) error {
	peer, ok := v.Peer()
	if !ok {
		return err
	}
	if ok, wait := v.door.failures.Take(gate.Household(peer), now); !ok {
		return exchange.Later(wait, problem.New(problem.Limited, "too_many_failures", "too many tokens that are not good came from this address (limits.auth_failures); a good one still works"))
	}
	return err
}

// Stranger counts a request of somebody who showed no token, and gives err, or
// says that there were too many.
func (v *Visit) Stranger(err error) error {
	peer, ok := v.Peer()
	if !ok {
		return err
	}
	if ok, wait := v.door.strangers.Take(gate.Household(peer), time.Now()); !ok {
		return exchange.Later(wait, problem.New(problem.Limited, "rate_limited", "too many requests without a token came from this address (limits.peer_rate); try again"))
	}
	return err
}

// Still says whether the caller of a long stream is still let in.
func (v *Visit) Still() error {
	if v.Who.token.Hash == "" {
		return nil
	}
	row, err := v.door.tokens.Get(v.r.Context(), v.door.cfg.Tokens, v.Who.token)
	if errors.Is(err, eventlog.ErrNotFound) {
		return errInvalidToken
	}
	if err == nil {
		_, err = callerOf(row, v.Who.token, time.Now())
	}
	return err
}

// Peer is who asks, behind proxies that are believed. False: who opened the unix
// socket, or a caller within the process.
func (v *Visit) Peer() (netip.Addr, bool) {
	if v.local {
		return netip.Addr{}, false
	}
	remote, ok := gate.Remote(v.r.RemoteAddr)
	if !ok || v.door.cfg.Proxies == nil {
		return remote, ok
	}
	return v.door.cfg.Proxies.Peer(remote, v.r.Header), true
}

// PeerText is the peer for the record.
func (v *Visit) PeerText() string {
	if v.local {
		return bySocket
	}
	if peer, ok := v.Peer(); ok {
		return peer.String()
	}
	return ""
}

// Unbound refuses a caller who is bound to one user (I-34).
func (v *Visit) Unbound(why string) error {
	if v.Who.UserID == "" {
		return nil
	}
	return problem.New(problem.Forbidden, "unbound_token_required", "%s; this wants a token that is not bound to one", why)
}

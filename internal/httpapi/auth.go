package httpapi

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

// authenticate finds out who asks.
//
// What is limited are attempts that fail, by the peer that makes them, so that
// nobody behind the same address can lock out who has a good token: that one is
// looked at however many others have failed. Guessing is no use against the
// secrets that are drawn here. A token of another form, which a person chose, is
// looked at only as long as its peer is within the limit, unless this process
// knows it already.
func (c *call) authenticate(local bool) (caller, error) {
	text, none, ok := tokens.Bearer(c.R.Header)
	switch {
	case none && local:
		return caller{Caller: admission.Caller{Actor: "local"}, role: gate.Admin}, nil
	case !ok:
		return caller{}, c.stranger(errNoToken)
	}
	p, now := tokens.Present(text), time.Now()
	row, state := c.tokens.Look(p.Hash, now)
	if state == tokens.Fresh {
		return c.admit(row, p, now)
	}
	if peer, ok := c.peer(); ok && state == tokens.Unknown && c.failures.Over(gate.Household(peer), now) {
		if p.ID == "" {
			return caller{}, c.failed(errInvalidToken, now)
		}
		// A flood of these must not take the readers of the store from the work.
		select {
		case c.lookups <- struct{}{}:
			defer func() { <-c.lookups }()
		case <-c.Ctx().Done():
			return caller{}, c.Ctx().Err()
		}
	}
	row, err := c.tokens.Get(c.Ctx(), c.cfg.Store, p)
	if errors.Is(err, eventlog.ErrNotFound) {
		c.who.Actor = row.ID
		return caller{}, c.failed(errInvalidToken, now)
	}
	if err != nil {
		return caller{}, err
	}
	return c.admit(row, p, now)
}

// admit gives the caller of a token that is known.
func (c *call) admit(row eventlog.TokenRow, p tokens.Presented, now time.Time) (caller, error) {
	who, err := callerOf(row, p, now)
	if err != nil {
		c.who.Actor = who.Actor
		if errors.Is(err, errExpired) {
			err = c.failed(errExpired, now)
		}
		return caller{}, err
	}
	if ok, wait := c.rates.Take(row.ID, now); !ok {
		c.who.Actor = who.Actor
		return caller{}, exchange.Later(wait, problem.New(problem.Limited, "rate_limited", "this token sends more requests than limits.token_rate allows; try again"))
	}
	if c.tokens.Used(row.ID, now) {
		c.keeper.wake()
	}
	return who, nil
}

// callerOf gives the caller of a token's row.
func callerOf(row eventlog.TokenRow, p tokens.Presented, now time.Time) (caller, error) {
	actor := row.ID
	if row.Name != "" {
		actor = row.Name + " (" + row.ID + ")" // names need not be unique
	}
	who := caller{Caller: admission.Caller{Actor: actor, UserID: row.UserID}, token: p}
	if !row.ExpiresAt.IsZero() && !now.Before(row.ExpiresAt) {
		return who, errExpired
	}
	var ok bool
	if who.role, ok = gate.RoleOf(row.Role); !ok {
		return who, problem.New(problem.Forbidden, "role_required", "the token has no known role")
	}
	return who, nil
}

// failed counts an attempt that failed, and says so, or that there were too many.
func (c *call) failed(err error, now time.Time) error {
	peer, ok := c.peer()
	if !ok {
		return err
	}
	if ok, wait := c.failures.Take(gate.Household(peer), now); !ok {
		return exchange.Later(wait, problem.New(problem.Limited, "too_many_failures", "too many tokens that are not good came from this address (limits.auth_failures); a good one still works"))
	}
	return err
}

// stranger counts a request of somebody who showed no token, and gives err, or
// says that there were too many.
func (c *call) stranger(err error) error {
	peer, ok := c.peer()
	if !ok {
		return err
	}
	if ok, wait := c.strangers.Take(gate.Household(peer), time.Now()); !ok {
		return exchange.Later(wait, problem.New(problem.Limited, "rate_limited", "too many requests without a token came from this address (limits.peer_rate); try again"))
	}
	return err
}

// still says whether the caller of a long stream is still let in.
func (c *call) still() error {
	if c.who.token.Hash == "" {
		return nil
	}
	row, err := c.tokens.Get(c.Ctx(), c.cfg.Store, c.who.token)
	if errors.Is(err, eventlog.ErrNotFound) {
		return errInvalidToken
	}
	if err == nil {
		_, err = callerOf(row, c.who.token, time.Now())
	}
	return err
}

// peer is who asks, behind proxies that are believed. False: who opened the unix
// socket, or a caller within the process.
func (c *call) peer() (netip.Addr, bool) {
	if c.local {
		return netip.Addr{}, false
	}
	remote, ok := gate.Remote(c.R.RemoteAddr)
	if !ok || c.cfg.Proxies == nil {
		return remote, ok
	}
	return c.cfg.Proxies.Peer(remote, c.R.Header), true
}

// peerText is the peer for the record.
func (c *call) peerText() string {
	if c.local {
		return bySocket
	}
	if peer, ok := c.peer(); ok {
		return peer.String()
	}
	return ""
}

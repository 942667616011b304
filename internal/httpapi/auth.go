package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// maxToken bounds a token that is presented, in bytes.
const maxToken = 512

// The parts of a token that this package makes: hf_<id>_<secret>, in hexadecimal.
const (
	tokenPrefix = "hf_"
	idBytes     = 8
	secretBytes = 32
)

// NewToken draws a token: the text that is shown once, and the row that is
// stored, which holds only its SHA-256.
func NewToken(random io.Reader, name, role, user string, now time.Time) (text string, row eventlog.TokenRow, err error) {
	var raw [idBytes + secretBytes]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", row, err
	}
	id := hex.EncodeToString(raw[:idBytes])
	text = tokenPrefix + id + "_" + hex.EncodeToString(raw[idBytes:])
	return text, eventlog.TokenRow{ID: "tok_" + id, Name: name, Role: role, UserID: user, Hash: TokenHash(text), CreatedAt: now}, nil
}

// TokenHash is the form in which a token is stored: hexadecimal SHA-256 of its
// text. A slow hash would guard nothing: the secret is 256 bits of chance.
func TokenHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// presented is a token as it was sent: its digest, and the id that stands in it.
type presented struct {
	id   string // tok_…; empty: a token of another form, as HOLDFAST_TOKEN may be
	hash string
}

func presentedOf(text string) presented {
	p := presented{hash: TokenHash(text)}
	rest, ours := strings.CutPrefix(text, tokenPrefix)
	if id, secret, ok := strings.Cut(rest, "_"); ours && ok && isHex(id, idBytes) && isHex(secret, secretBytes) {
		p.id = "tok_" + id
	}
	return p
}

func isHex(s string, bytes int) bool {
	if len(s) != 2*bytes {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// bearer reads the one token of a request (RFC 6750, section 2.1: in the header,
// never in the query). none: there is no such header at all.
func bearer(h http.Header) (text string, none, ok bool) {
	header := h["Authorization"]
	if len(header) == 0 {
		return "", true, false
	}
	scheme, text, found := strings.Cut(header[0], " ")
	text = strings.TrimSpace(text)
	if len(header) > 1 || !found || !strings.EqualFold(scheme, "Bearer") || text == "" || len(text) > maxToken {
		return "", false, false
	}
	return text, false, true
}

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
	text, none, ok := bearer(c.r.Header)
	switch {
	case none && local:
		return caller{Caller: admission.Caller{Actor: "local"}, role: admin}, nil
	case !ok:
		return caller{}, c.stranger(errNoToken)
	}
	p, now := presentedOf(text), time.Now()
	row, state := c.tokens.look(p.hash, now)
	if state == tokenFresh {
		return c.admit(row, p, now)
	}
	if peer, ok := c.peer(); ok && state == tokenUnknown && c.failures.Over(gate.Household(peer), now) {
		if p.id == "" {
			return caller{}, c.failed(errInvalidToken, now)
		}
		// A flood of these must not take the readers of the store from the work.
		select {
		case c.lookups <- struct{}{}:
			defer func() { <-c.lookups }()
		case <-c.ctx().Done():
			return caller{}, c.ctx().Err()
		}
	}
	row, err := c.tokens.get(c.ctx(), c.cfg.Store, p)
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
func (c *call) admit(row eventlog.TokenRow, p presented, now time.Time) (caller, error) {
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
		return caller{}, later(wait, problem.New(problem.Limited, "rate_limited", "this token sends more requests than limits.token_rate allows; try again"))
	}
	if c.tokens.used(row.ID, now) {
		c.keeper.wake()
	}
	return who, nil
}

// callerOf gives the caller of a token's row.
func callerOf(row eventlog.TokenRow, p presented, now time.Time) (caller, error) {
	actor := row.ID
	if row.Name != "" {
		actor = row.Name + " (" + row.ID + ")" // names need not be unique
	}
	who := caller{Caller: admission.Caller{Actor: actor, UserID: row.UserID}, token: p}
	if !row.ExpiresAt.IsZero() && !now.Before(row.ExpiresAt) {
		return who, errExpired
	}
	var ok bool
	if who.role, ok = roleOf(row.Role); !ok {
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
		return later(wait, problem.New(problem.Limited, "too_many_failures", "too many tokens that are not good came from this address (limits.auth_failures); a good one still works"))
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
		return later(wait, problem.New(problem.Limited, "rate_limited", "too many requests without a token came from this address (limits.peer_rate); try again"))
	}
	return err
}

// still says whether the caller of a long stream is still let in.
func (c *call) still() error {
	if c.who.token.hash == "" {
		return nil
	}
	row, err := c.tokens.get(c.ctx(), c.cfg.Store, c.who.token)
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
	remote, ok := gate.Remote(c.r.RemoteAddr)
	if !ok || c.cfg.Proxies == nil {
		return remote, ok
	}
	return c.cfg.Proxies.Peer(remote, c.r.Header), true
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

// find looks a token up: by the id that stands in it, comparing the digest in
// constant time, else by its digest, about which the time that takes tells
// nothing. Of a token whose id is known and whose secret is wrong the row comes
// with the error, for the record.
func find(ctx context.Context, store eventlog.Tokens, p presented) (eventlog.TokenRow, error) {
	if p.id != "" {
		row, err := store.TokenByID(ctx, p.id)
		switch {
		case err == nil && subtle.ConstantTimeCompare([]byte(row.Hash), []byte(p.hash)) == 1:
			return row, nil
		case err == nil:
			return eventlog.TokenRow{ID: row.ID}, eventlog.ErrNotFound
		case !errors.Is(err, eventlog.ErrNotFound):
			return eventlog.TokenRow{}, err
		}
		// HOLDFAST_TOKEN may have been made by another daemon; it has an id of its own here.
	}
	return store.TokenByHash(ctx, p.hash)
}

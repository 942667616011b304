package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// maxToken bounds a token that is presented, in bytes.
const maxToken = 512

// NewToken draws a token: the text that is shown once, and the row that is
// stored, which holds only its SHA-256.
func NewToken(random io.Reader, name, role, user string, now time.Time) (text string, row eventlog.TokenRow, err error) {
	var raw [40]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", row, err
	}
	id := hex.EncodeToString(raw[:8])
	text = "hf_" + id + "_" + hex.EncodeToString(raw[8:])
	return text, eventlog.TokenRow{ID: "tok_" + id, Name: name, Role: role, UserID: user, Hash: TokenHash(text), CreatedAt: now}, nil
}

// TokenHash is the form in which a token is stored: hexadecimal SHA-256 of its text.
func TokenHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

var errNoToken = problem.New(problem.Unauthenticated, "token_required", "send a token as Authorization: Bearer …")

// authenticate finds out who asks (RFC 6750, section 2.1: in the header, never
// in the query). A token is found by its digest, so that how long the search
// takes tells nothing about a token's text.
func (s *server) authenticate(r *http.Request, trust bool) (caller, error) {
	header := r.Header.Values("Authorization")
	if len(header) == 0 {
		if trust {
			return caller{Caller: admission.Caller{Actor: "local"}, role: admin}, nil
		}
		return caller{}, errNoToken
	}
	scheme, text, ok := strings.Cut(header[0], " ")
	text = strings.TrimSpace(text)
	if len(header) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || text == "" || len(text) > maxToken {
		return caller{}, errNoToken
	}
	return s.callerOf(r.Context(), TokenHash(text))
}

// callerOf gives the caller of a token's digest.
func (s *server) callerOf(ctx context.Context, hash string) (caller, error) {
	row, err := s.tokens.get(ctx, s.cfg.Store, hash)
	if errors.Is(err, eventlog.ErrNotFound) {
		return caller{}, problem.New(problem.Unauthenticated, "invalid_token", "the token is not known, or was revoked")
	}
	if err != nil {
		return caller{}, err
	}
	role, ok := roleOf(row.Role)
	if !ok {
		return caller{}, problem.New(problem.Forbidden, "role_required", "the token has no known role")
	}
	actor := row.ID
	if row.Name != "" {
		actor = row.Name + " (" + row.ID + ")" // names need not be unique
	}
	return caller{Caller: admission.Caller{Actor: actor, UserID: row.UserID}, role: role, token: hash}, nil
}

// still says whether the caller of a long stream is still let in.
func (c *call) still() error {
	if c.who.token == "" {
		return nil
	}
	_, err := c.callerOf(c.ctx(), c.who.token)
	return err
}

// tokenTTL bounds how long a token that another node revoked still counts;
// this node forgets at once what it revokes itself.
const tokenTTL = 2 * time.Second

// maxCached bounds the cache.
const maxCached = 4096

// tokenCache spares a read for each request. Only known tokens are kept. The
// zero value is ready.
type tokenCache struct {
	mu    sync.Mutex
	known map[string]cachedToken
	turn  int // counts clears: what was read before one is not kept after it
}

type cachedToken struct {
	row   eventlog.TokenRow
	until time.Time
}

func (t *tokenCache) get(ctx context.Context, store eventlog.Tokens, hash string) (eventlog.TokenRow, error) {
	now := time.Now()
	t.mu.Lock()
	hit, ok := t.known[hash]
	turn := t.turn
	t.mu.Unlock()
	if ok && now.Before(hit.until) {
		return hit.row, nil
	}
	row, err := store.TokenByHash(ctx, hash)
	if err != nil {
		return row, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn != turn {
		return row, nil
	}
	if t.known == nil || len(t.known) >= maxCached {
		t.known = map[string]cachedToken{}
	}
	t.known[hash] = cachedToken{row, now.Add(tokenTTL)}
	return row, nil
}

// clear forgets everything.
func (t *tokenCache) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = nil
	t.turn++
}

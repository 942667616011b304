package httpapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// tokenTTL bounds how long a token that another node revoked still counts;
// this node forgets at once what it revokes itself.
const tokenTTL = 2 * time.Second

// maxCached bounds the cache.
const maxCached = 4096

// tokenCache spares a read for each request, and notes when tokens were used.
// Only known tokens are kept, past their time too: that one was good a short
// while ago is known as long as there is room. The zero value is ready.
type tokenCache struct {
	mu      sync.Mutex
	known   map[string]cachedToken
	turn    int // counts revocations: what was read before one is not kept after it
	touched map[string]time.Time
}

type cachedToken struct {
	row   eventlog.TokenRow
	until time.Time
}

// tokenState is what the cache knows of a token.
type tokenState int

const (
	tokenUnknown tokenState = iota
	tokenStale              // was good when it was read last
	tokenFresh
)

func (t *tokenCache) look(hash string, now time.Time) (eventlog.TokenRow, tokenState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch hit, ok := t.known[hash]; {
	case !ok:
		return eventlog.TokenRow{}, tokenUnknown
	case now.Before(hit.until):
		return hit.row, tokenFresh
	default:
		return hit.row, tokenStale
	}
}

// get gives the row of a token, eventlog.ErrNotFound when there is none.
func (t *tokenCache) get(ctx context.Context, store eventlog.Tokens, p presented) (eventlog.TokenRow, error) {
	now := time.Now()
	t.mu.Lock()
	hit, ok := t.known[p.hash]
	turn := t.turn
	t.mu.Unlock()
	if ok && now.Before(hit.until) {
		return hit.row, nil
	}
	row, err := find(ctx, store, p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, eventlog.ErrNotFound) {
		delete(t.known, p.hash)
	}
	if err != nil || t.turn != turn {
		return row, err
	}
	if t.known == nil || len(t.known) >= maxCached {
		t.known = map[string]cachedToken{}
	}
	t.known[p.hash] = cachedToken{row, now.Add(tokenTTL)}
	return row, nil
}

// forget takes a token out.
func (t *tokenCache) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn++
	for hash, hit := range t.known {
		if hit.row.ID == id {
			delete(t.known, hash)
		}
	}
}

// usedGrain is how exactly it is told when a token was used last.
const usedGrain = time.Minute

// used notes that a token was used. True: it is the first of its kind since the
// notes were taken.
func (t *tokenCache) used(id string, now time.Time) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, known := t.touched[id]
	if known && now.Sub(at) < usedGrain {
		return false
	}
	if t.touched == nil {
		t.touched = map[string]time.Time{}
	}
	t.touched[id] = now.UTC().Truncate(usedGrain)
	return len(t.touched) == 1 && !known
}

// take gives the notes and begins anew.
func (t *tokenCache) take() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	touched := t.touched
	t.touched = nil
	return touched
}

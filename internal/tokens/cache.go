package tokens

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// ttl bounds how long a token that another node revoked still counts;
// this node forgets at once what it revokes itself.
const ttl = 2 * time.Second

// maxCached bounds the cache.
const maxCached = 4096

// Cache spares a read for each request, and notes when tokens were used.
// Only known tokens are kept, past their time too: that one was good a short
// while ago is known as long as there is room. The zero value is ready.
type Cache struct {
	mu      sync.Mutex
	known   map[string]cached
	turn    int // counts revocations: what was read before one is not kept after it
	touched map[string]time.Time
}

type cached struct {
	row   eventlog.TokenRow
	until time.Time
}

// State is what the cache knows of a token.
type State int

// What there is to know: nothing, that it was good when it was read last, and what it is.
const (
	Unknown State = iota
	Stale         // was good when it was read last
	Fresh
)

// Look gives what is known of a token without asking anybody.
func (t *Cache) Look(hash string, now time.Time) (eventlog.TokenRow, State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch hit, ok := t.known[hash]; {
	case !ok:
		return eventlog.TokenRow{}, Unknown
	case now.Before(hit.until):
		return hit.row, Fresh
	default:
		return hit.row, Stale
	}
}

// Get gives the row of a token, eventlog.ErrNotFound when there is none.
func (t *Cache) Get(ctx context.Context, store eventlog.Tokens, p Presented) (eventlog.TokenRow, error) {
	now := time.Now()
	t.mu.Lock()
	hit, ok := t.known[p.Hash]
	turn := t.turn
	t.mu.Unlock()
	if ok && now.Before(hit.until) {
		return hit.row, nil
	}
	row, err := find(ctx, store, p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, eventlog.ErrNotFound) {
		delete(t.known, p.Hash)
	}
	if err != nil || t.turn != turn {
		return row, err
	}
	if t.known == nil || len(t.known) >= maxCached {
		t.known = map[string]cached{}
	}
	t.known[p.Hash] = cached{row, now.Add(ttl)}
	return row, nil
}

// Forget takes a token out.
func (t *Cache) Forget(id string) {
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

// Used notes that a token was used. True: it is the first of its kind since the
// notes were taken.
func (t *Cache) Used(id string, now time.Time) (first bool) {
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

// Take gives the notes and begins anew.
func (t *Cache) Take() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	touched := t.touched
	t.touched = nil
	return touched
}

package secret

import (
	"slices"
	"sync"
	"sync/atomic"
)

// maxKnown bounds how many secrets are remembered: those that were used last.
const maxKnown = 256

// Known is every secret that a process has used lately, so that texts of others
// (what a receiver answers, what a vendor says of a failure, a line of the log)
// can be held against all of them. The zero value knows none. It is safe for
// concurrent use.
type Known struct {
	now    atomic.Pointer[known]
	mu     sync.Mutex
	values []string // the newest last
}

type known struct {
	has      map[string]bool
	scrubber *Scrubber
}

// Add remembers secrets. It is cheap for those that are known.
func (k *Known) Add(values ...string) {
	now := k.now.Load()
	if !slices.ContainsFunc(values, func(v string) bool { return len(v) >= MinLength && (now == nil || !now.has[v]) }) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range values {
		if len(v) >= MinLength && !slices.Contains(k.values, v) {
			k.values = append(k.values, v)
		}
	}
	if over := len(k.values) - maxKnown; over > 0 {
		// Some more than must go, so that this is not done for each one that comes.
		k.values = slices.Delete(k.values, 0, min(len(k.values), over+maxKnown/4))
	}
	next := &known{has: make(map[string]bool, len(k.values)), scrubber: NewScrubber(k.values...)}
	for _, v := range k.values {
		next.has[v] = true
	}
	k.now.Store(next)
}

// Scrub takes every known secret out of a text.
func (k *Known) Scrub(text string) string {
	if now := k.now.Load(); now != nil {
		return now.scrubber.Text(text)
	}
	return text
}

// ScrubJSON takes every known secret out of a text that is JSON, or begins like
// it, so that it stays JSON.
func (k *Known) ScrubJSON(text string) string {
	if now := k.now.Load(); now != nil {
		text, _ = now.scrubber.JSON(text)
	}
	return text
}

// Reach is Scrubber.Reach over all known secrets.
func (k *Known) Reach() int {
	if now := k.now.Load(); now != nil {
		return now.scrubber.Reach()
	}
	return 0
}

package secret

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// maxKnown bounds how many secrets are remembered besides those that are kept:
// those that were used last.
const maxKnown = 256

// Known is every secret that a process has used lately, so that texts of others
// (what a receiver answers, what a vendor says of a failure, a line of the log)
// can be held against all of them. The zero value knows none. It is safe for
// concurrent use.
type Known struct {
	now atomic.Pointer[known]
	use atomic.Int64 // counts uses
	mu  sync.Mutex
}

// known never changes but for the time of the last use.
type known struct {
	used     map[string]*atomic.Int64
	scrubber *Scrubber
}

// kept is the last use of a secret that is never forgotten.
const kept = math.MaxInt64

// Add remembers secrets, and that they are used now. It is cheap for those that
// are known.
func (k *Known) Add(values ...string) { k.add(false, values) }

// Keep remembers secrets as long as the process lives: those of the daemon itself,
// which are not read again at each use.
func (k *Known) Keep(values ...string) { k.add(true, values) }

func (k *Known) add(keep bool, values []string) {
	if !k.touch(keep, values) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now.Load()
	next := &known{used: make(map[string]*atomic.Int64, len(values))}
	if now != nil {
		for v, used := range now.used {
			next.used[v] = used
		}
	}
	for _, v := range values {
		if len(v) < MinLength {
			continue
		}
		if next.used[v] == nil {
			next.used[v] = new(atomic.Int64)
		}
		k.mark(next.used[v], keep)
	}
	next.forget()
	next.scrubber = new(Scrubber)
	for v := range next.used {
		next.scrubber.Add(v)
	}
	k.now.Store(next)
}

// touch notes the use of secrets. True: there is one that is not known.
func (k *Known) touch(keep bool, values []string) (unknown bool) {
	now := k.now.Load()
	for _, v := range values {
		switch {
		case len(v) < MinLength:
		case now == nil || now.used[v] == nil:
			unknown = true
		default:
			k.mark(now.used[v], keep)
		}
	}
	return unknown
}

func (k *Known) mark(used *atomic.Int64, keep bool) {
	if old := used.Load(); keep {
		used.Store(kept)
	} else if old != kept {
		used.CompareAndSwap(old, k.use.Add(1)) // another use, or Keep, in this moment counts as well
	}
}

// forget takes the secrets out that have not been used for the longest, where
// there are too many.
func (n *known) forget() {
	type last struct {
		value string
		use   int64
	}
	var list []last
	for v, used := range n.used {
		if at := used.Load(); at != kept {
			list = append(list, last{v, at})
		}
	}
	over := len(list) - maxKnown
	if over <= 0 {
		return
	}
	slices.SortFunc(list, func(a, b last) int { return cmp.Compare(a.use, b.use) })
	// Some more than must go, so that this is not done for each one that comes.
	for _, l := range list[:min(len(list), over+maxKnown/4)] {
		delete(n.used, l.value)
	}
}

// Scrub takes every known secret out of a text.
func (k *Known) Scrub(text string) string {
	if now := k.now.Load(); now != nil {
		return now.scrubber.Text(text)
	}
	return text
}

// Excerpt is Scrubber.Excerpt with all known secrets.
func (k *Known) Excerpt(body []byte, limit int) []byte {
	if now := k.now.Load(); now != nil {
		return now.scrubber.Excerpt(body, limit)
	}
	return new(Scrubber).Excerpt(body, limit)
}

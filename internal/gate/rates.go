package gate

import (
	"sync"
	"time"
)

// Rates counts how often each of many comes, by the generic cell rate algorithm:
// of each it knows one instant, and who has not come for a while is as one who
// never came, so that forgetting such ones forgets nothing.
type Rates[K comparable] struct {
	every time.Duration // between two that come steadily
	ahead time.Duration // by how much one may be ahead of that
	most  int
	began time.Time

	mu     sync.Mutex
	next   map[K]time.Duration // since began: when all that was taken is earned
	last   time.Duration       // since began: when one was taken last
	shared time.Duration       // of those that the table has no place for
	swept  time.Duration
}

// NewRates allows a burst, and so many within each period. The table holds most
// of them; those beyond share one allowance, and what is used of it counts for each
// that gets a place later.
func NewRates[K comparable](within time.Duration, count, burst, most int, now time.Time) *Rates[K] {
	every := max(within/time.Duration(count), 1)
	return &Rates[K]{every: every, ahead: every * time.Duration(burst-1), most: most, began: now, next: map[K]time.Duration{}}
}

// Take counts one more, and says whether that is within the allowance; if not,
// how long to wait until it is.
func (r *Rates[K]) Take(k K, now time.Time) (ok bool, wait time.Duration) {
	return r.look(k, now, true)
}

// Over says whether the allowance is used up, without using it.
func (r *Rates[K]) Over(k K, now time.Time) bool {
	ok, _ := r.look(k, now, false)
	return !ok
}

func (r *Rates[K]) look(k K, now time.Time, take bool) (bool, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Who looked at the clock, waited for something, and was passed by others is not
	// ahead of its time.
	at := max(now.Sub(r.began), r.last)
	if take {
		r.last = at
	}
	next, known := r.next[k]
	if take && !known && len(r.next) >= r.most {
		r.sweep(at)
	}
	full := !known && len(r.next) >= r.most
	if !known { // it may have come while there was no place for it
		next = r.shared
	}
	next = max(next, at)
	if wait := next - at - r.ahead; wait > 0 {
		return false, wait
	}
	switch next += r.every; {
	case !take:
	case full:
		r.shared = next
	default:
		r.next[k] = next
	}
	return true, 0
}

// sweepEvery bounds what a full table costs.
const sweepEvery = 100 * time.Millisecond

func (r *Rates[K]) sweep(at time.Duration) {
	if at-r.swept < sweepEvery && r.swept != 0 {
		return
	}
	r.swept = max(at, 1)
	for k, next := range r.next {
		if next <= at {
			delete(r.next, k)
		}
	}
}

// Len is how many the table holds.
func (r *Rates[K]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.next)
}

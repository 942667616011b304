package inbound

import (
	"math"
	"sync"
	"time"
)

// Bucket bounds how many events a connector takes in a time: Rate a second, and
// Burst at once. It is safe for concurrent use; the zero time of its first use
// counts as full.
type Bucket struct {
	Rate, Burst float64

	mu   sync.Mutex
	used bool
	left float64
	last time.Time
}

// Take takes one event at a time. False: there are too many.
func (b *Bucket) Take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.used {
		b.used, b.left, b.last = true, b.Burst, now
	}
	if passed := now.Sub(b.last); passed > 0 {
		b.left = math.Min(b.Burst, b.left+passed.Seconds()*b.Rate)
		b.last = now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

package gate

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Refusal is why one was turned away. What is not the reason and the peer is told
// of the first of several.
type Refusal struct {
	Peer   netip.Addr // zero: a unix socket, or many peers
	Reason string
	Actor  string // the token, where it is known
	Method string
	Path   string
	Detail string
}

// Counted is a refusal with how often it was.
type Counted struct {
	Refusal
	Count int64
	Since time.Time
}

// Refusals gathers refusals until they are taken, in bounded room: so many peers
// apart, the others together by reason. The zero value is ready.
type Refusals struct {
	mu   sync.Mutex
	seen map[refusalKey]*Counted
}

type refusalKey struct {
	peer   netip.Addr
	reason string
}

// maxApart is how many peers and reasons are told apart.
const maxApart = 32

// Note counts one. True: it is the first since they were taken.
func (r *Refusals) Note(f Refusal, now time.Time) (first bool) {
	f.Peer = Household(f.Peer)
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{f.Peer, f.Reason}
	c := r.seen[key]
	if c == nil && len(r.seen) >= maxApart {
		f = Refusal{Reason: f.Reason}
		key.peer = netip.Addr{}
		c = r.seen[key]
	}
	if c == nil {
		if r.seen == nil {
			r.seen = map[refusalKey]*Counted{}
		}
		c = &Counted{Refusal: f, Since: now}
		r.seen[key] = c
	}
	c.Count++
	return len(r.seen) == 1 && c.Count == 1
}

// Take gives what was gathered, the oldest first, and begins anew.
func (r *Refusals) Take() []Counted {
	r.mu.Lock()
	seen := r.seen
	r.seen = nil
	r.mu.Unlock()
	list := make([]Counted, 0, len(seen))
	for _, c := range seen {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Counted) int {
		return cmp.Or(a.Since.Compare(b.Since), a.Peer.Compare(b.Peer), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

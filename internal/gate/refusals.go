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
	Peer   netip.Addr // zero: the unix socket, or many peers
	Socket bool       // it came by the unix socket
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

// Refusals gathers refusals until they are taken, in bounded room: of each reason,
// of which there are few, so many peers apart, the others together. A flood for
// one reason hides no other. The zero value is ready.
type Refusals struct {
	mu    sync.Mutex
	seen  map[refusalKey]*Counted
	apart map[string]int // peers by reason
}

type refusalKey struct {
	peer   netip.Addr
	socket bool
	reason string
}

// maxApart is how many peers of one reason are told apart.
const maxApart = 8

// Note counts one. True: it is the first since they were taken.
func (r *Refusals) Note(f Refusal, now time.Time) (first bool) {
	f.Peer = Household(f.Peer)
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{f.Peer, f.Socket, f.Reason}
	c := r.seen[key]
	if c == nil && r.apart[f.Reason] >= maxApart {
		f = Refusal{Reason: f.Reason}
		key.peer, key.socket = netip.Addr{}, false
		c = r.seen[key]
	}
	if c == nil {
		if r.seen == nil {
			r.seen, r.apart = map[refusalKey]*Counted{}, map[string]int{}
		}
		r.apart[f.Reason]++
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
	r.seen, r.apart = nil, nil
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

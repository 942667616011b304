// Package live carries what is not truth: doorbells that say "look again", and
// deltas of streaming output. Neither is ever waited for by a writer: a bell
// that is not heard costs a look, a subscriber that is too slow loses deltas
// and reads the whole value from the log (I-17).
package live

import (
	"sync"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// DeltaBuffer is how many deltas wait for one subscriber; past it they are dropped.
const DeltaBuffer = 256

// Hub fans out bells and deltas by stream, within one process. The zero value
// is ready.
type Hub struct {
	mu   sync.RWMutex
	subs map[event.Stream]map[*Subscription]struct{}
	all  map[*Subscription]struct{}
}

// Subscription hears one stream, or all.
type Subscription struct {
	// Bell holds one ring at most; a reader that takes it looks at the log.
	Bell chan struct{}
	// Deltas of the stream; of a subscription to all streams there are none.
	Deltas chan api.Delta

	hub    *Hub
	stream event.Stream
}

// Subscribe hears a stream; the empty stream means all. The caller ends it with Close.
func (h *Hub) Subscribe(s event.Stream) *Subscription {
	sub := &Subscription{Bell: make(chan struct{}, 1), hub: h, stream: s}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s == "" {
		if h.all == nil {
			h.all = map[*Subscription]struct{}{}
		}
		h.all[sub] = struct{}{}
		return sub
	}
	sub.Deltas = make(chan api.Delta, DeltaBuffer)
	if h.subs == nil {
		h.subs = map[event.Stream]map[*Subscription]struct{}{}
	}
	if h.subs[s] == nil {
		h.subs[s] = map[*Subscription]struct{}{}
	}
	h.subs[s][sub] = struct{}{}
	return sub
}

// Close ends the subscription. Channels are not closed.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.all, s)
	if set := s.hub.subs[s.stream]; set != nil {
		delete(set, s)
		if len(set) == 0 {
			delete(s.hub.subs, s.stream)
		}
	}
}

// Ring says that a stream has grown.
func (h *Hub) Ring(s event.Stream) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for sub := range h.subs[s] {
		sub.ring()
	}
	for sub := range h.all {
		sub.ring()
	}
}

func (s *Subscription) ring() {
	select {
	case s.Bell <- struct{}{}:
	default:
	}
}

// Publish hands a delta to whoever listens to the stream now.
func (h *Hub) Publish(s event.Stream, d api.Delta) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for sub := range h.subs[s] {
		select {
		case sub.Deltas <- d:
		default:
		}
	}
}

// Listening says whether anyone hears the stream; who would publish may skip
// the work when nobody does.
func (h *Hub) Listening(s event.Stream) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.subs[s]) > 0
}

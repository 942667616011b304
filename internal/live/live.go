// Package live carries what is not truth: doorbells that say "look again", and
// deltas of streaming output. Neither is ever waited for by a writer: a bell
// that is not heard costs a look, a subscriber that is too slow loses deltas
// and reads the whole value from the log (I-17).
//
// What is published to a stream stands once for all who listen to it, and many
// bells are rung beside the one who has them rung: it costs a writer the same
// whether one or ten thousand listen.
package live

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// DeltaBuffer is how many deltas of a stream are kept for who has not taken
// them yet; past it the oldest are dropped.
const DeltaBuffer = 256

// direct is how many bells are rung on the spot. To ring one may wake a
// goroutine, some hundred nanoseconds; more than these are rung beside.
const direct = 64

// Hub fans out bells and deltas by stream, within one process. The zero value
// is ready.
type Hub struct {
	mu    sync.RWMutex
	rooms map[event.Stream]*room
	all   map[*Subscription]struct{}
	cries sync.WaitGroup
}

// Wait waits until nobody rings bells beside any more.
func (h *Hub) Wait() { h.cries.Wait() }

// Delta is a delta on its way.
type Delta struct {
	api.Delta
	once sync.Once
	wire []byte
}

// Wire is the delta as JSON, made once for all who send it.
func (d *Delta) Wire() []byte {
	d.once.Do(func() { // strings and numbers, which always marshal
		d.wire, _ = json.Marshal(d.Delta, jsontext.AllowInvalidUTF8(true))
	})
	return d.wire
}

// Subscription hears one stream, or all.
type Subscription struct {
	// Bell holds one ring at most; who takes it looks at the log and at what
	// waits of deltas.
	Bell chan struct{}

	hub    *Hub
	room   *room                       // nil: all streams
	run    atomic.Pointer[event.RunID] // nil: the whole stream
	deltas bool
	turns  bool // hears only of what may settle a run

	// Of the room's lock.
	at   int    // place in the room
	next uint64 // number of the delta that comes next
}

// Subscribe hears a stream, its bells and deltas; the empty stream means all,
// without deltas. The caller ends it with Close.
func (h *Hub) Subscribe(s event.Stream) *Subscription {
	return h.subscribe(s, &Subscription{deltas: true})
}

// Follow hears of a stream what is about a run, or about no run at all. An
// empty run is the whole stream.
func (h *Hub) Follow(s event.Stream, run event.RunID) *Subscription {
	sub := &Subscription{deltas: true}
	if run != "" {
		sub.Narrow(run)
	}
	return h.subscribe(s, sub)
}

// Watch is for who waits for a run to settle: its bell is rung when a run has
// come to its end or wants a person, and when something is about no run. Who
// does not know its run yet waits for any, until Narrow.
func (h *Hub) Watch(s event.Stream) *Subscription {
	return h.subscribe(s, &Subscription{turns: true})
}

// Narrow has the subscription hear only what is about a run or about none. What
// has rung before it stays rung.
func (s *Subscription) Narrow(run event.RunID) { s.run.Store(&run) }

func (h *Hub) subscribe(s event.Stream, sub *Subscription) *Subscription {
	sub.Bell, sub.hub = make(chan struct{}, 1), h
	h.mu.Lock()
	defer h.mu.Unlock()
	if s == "" {
		if h.all == nil {
			h.all = map[*Subscription]struct{}{}
		}
		h.all[sub] = struct{}{}
		return sub
	}
	if h.rooms == nil {
		h.rooms = map[event.Stream]*room{}
	}
	if sub.room = h.rooms[s]; sub.room == nil {
		sub.room = &room{stream: s}
		h.rooms[s] = sub.room
	}
	sub.room.add(sub)
	return sub
}

// Close ends the subscription. Its channel is not closed.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.room == nil {
		delete(s.hub.all, s)
		return
	}
	if s.room.remove(s) && s.hub.rooms[s.room.stream] == s.room {
		delete(s.hub.rooms, s.room.stream)
	}
}

// Head is the last sequence of the stream that was told of since somebody
// listens to it; 0: none was. The log has that event, and may have more. It is
// known before the bells are rung, and before any delta that follows it.
func (s *Subscription) Head() int64 {
	if s.room == nil {
		return 0
	}
	return s.room.head.Load()
}

// Delta takes the next delta that waits, or gives nil.
func (s *Subscription) Delta() *Delta {
	if s.room == nil || !s.deltas {
		return nil
	}
	return s.room.take(s)
}

// Ring says that a stream has grown by these events.
func (h *Hub) Ring(s event.Stream, events []event.Event) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if r := h.rooms[s]; r != nil && len(events) > 0 {
		r.tell(h, newsOf(events))
	}
	for sub := range h.all {
		sub.ring()
	}
}

// Tell says that a stream has grown up to a head by what another process
// appended. Of what it is about nothing is known: everybody who hears the stream
// looks.
func (h *Hub) Tell(s event.Stream, head int64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if r := h.rooms[s]; r != nil {
		r.tell(h, news{head: head, turn: true})
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
	if r := h.rooms[s]; r != nil && r.put(&Delta{Delta: d}) {
		r.tell(h, news{deltas: true, runs: []event.RunID{event.RunID(d.RunID)}})
	}
}

// Listening says whether anyone hears the stream; who would publish may skip
// the work when nobody does.
func (h *Hub) Listening(s event.Stream) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.rooms[s] != nil
}

// news are what bells are rung for.
type news struct {
	head   int64 // 0: the log has not grown
	deltas bool
	turn   bool          // a run may have settled
	runs   []event.RunID // whom it is about; empty: everybody
}

// maxRuns bounds the runs of news that are put together.
const maxRuns = 64

func newsOf(events []event.Event) news {
	n := news{head: events[len(events)-1].Seq, turn: slices.ContainsFunc(events, settles)}
	for i := range events {
		run := events[i].RunID
		if run == "" || len(n.runs) == maxRuns {
			n.runs = nil
			return n
		}
		if !slices.Contains(n.runs, run) {
			n.runs = append(n.runs, run)
		}
	}
	return n
}

// settles says whether a run may have settled with an event.
func settles(e event.Event) bool {
	switch e.Type {
	case event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted, event.TypeNeedsAttention:
		return true
	}
	return e.RunID == ""
}

// and puts news together.
func (n news) and(m news) news {
	out := news{head: max(n.head, m.head), deltas: n.deltas || m.deltas, turn: n.turn || m.turn}
	if len(n.runs) == 0 || len(m.runs) == 0 || len(n.runs)+len(m.runs) > maxRuns {
		return out
	}
	out.runs = slices.Clone(n.runs)
	for _, run := range m.runs {
		if !slices.Contains(out.runs, run) {
			out.runs = append(out.runs, run)
		}
	}
	return out
}

func (n news) concern(s *Subscription) bool {
	run := s.run.Load()
	return (n.turn || n.head > 0 && !s.turns || n.deltas && s.deltas) && (run == nil || len(n.runs) == 0 || slices.Contains(n.runs, *run))
}

func (n news) ring(s *Subscription) {
	if n.concern(s) {
		s.ring()
	}
}

// room is a stream that somebody listens to.
type room struct {
	stream event.Stream
	head   atomic.Int64 // changed under the lock

	mu     sync.Mutex
	subs   []*Subscription
	deltas []*Delta // a ring of the last ones, by number
	count  uint64   // deltas so far
	later  *news    // that are still to be rung beside
	crying bool
}

func (r *room) add(s *Subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.at, s.next = len(r.subs), r.count
	r.subs = append(r.subs, s)
}

// remove takes a subscription out; true: nobody is left.
func (r *room) remove(s *Subscription) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.at < 0 {
		return len(r.subs) == 0
	}
	last := r.subs[len(r.subs)-1]
	r.subs[s.at], last.at = last, s.at
	r.subs[len(r.subs)-1] = nil
	r.subs = r.subs[:len(r.subs)-1]
	s.at = -1
	return len(r.subs) == 0
}

// put keeps a delta; false: nobody hears any.
func (r *room) put(d *Delta) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deltas == nil {
		if !slices.ContainsFunc(r.subs, func(s *Subscription) bool { return s.deltas }) {
			return false
		}
		r.deltas = make([]*Delta, DeltaBuffer)
	}
	r.deltas[r.count%DeltaBuffer] = d
	r.count++
	return true
}

func (r *room) take(s *Subscription) *Delta {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count-s.next > DeltaBuffer {
		s.next = r.count - DeltaBuffer
	}
	for s.next < r.count {
		d := r.deltas[s.next%DeltaBuffer]
		s.next++
		if run := s.run.Load(); run == nil || d.RunID == string(*run) {
			return d
		}
	}
	return nil
}

// tell rings the bells that news concern.
func (r *room) tell(h *Hub, n news) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.head > r.head.Load() {
		r.head.Store(n.head)
	}
	if len(r.subs) <= direct && !r.crying {
		for _, s := range r.subs {
			n.ring(s)
		}
		return
	}
	if r.later != nil {
		n = r.later.and(n)
	}
	r.later = &n
	if !r.crying {
		r.crying = true
		h.cries.Go(r.cry)
	}
}

// cry rings until there is nothing more to tell.
func (r *room) cry() {
	for {
		r.mu.Lock()
		n := r.later
		if r.later = nil; n == nil {
			r.crying = false
			r.mu.Unlock()
			return
		}
		subs := slices.Clone(r.subs)
		r.mu.Unlock()
		for _, s := range subs {
			n.ring(s)
		}
	}
}

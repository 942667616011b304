// Package live carries what is not truth: doorbells that say "look again", and
// deltas of streaming output. Neither is ever waited for by a writer: a bell
// that is not heard costs a look, a subscriber that is too slow loses deltas
// and reads the whole value from the log (I-17).
//
// Between nodes deltas go by way of a Far, which a hub may have. Publishers
// number their deltas within each attempt and say in which epoch it runs, so
// that a hub drops what comes twice and what a former owner still sends (I-11),
// and a reader sees where something is missing.
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
	far   Far // nil: there are no other nodes
	shift atomic.Uint64
	cries sync.WaitGroup
	held  atomic.Pointer[func() bool] // nil: always
}

// Far takes deltas to other nodes. Its methods do not block, and are called
// under locks of the hub: they must not call the hub.
type Far interface {
	// Wants says whether Send would do anything with a delta of the stream.
	Wants(s event.Stream) bool
	// Send takes a delta that was published here. It may be lost.
	Send(s event.Stream, d *Delta)
	// Listen says that somebody here hears the stream's deltas from now on; with
	// false, that nobody does any more. The two alternate.
	Listen(s event.Stream, on bool)
}

// Connect gives the hub a way to other nodes, before anybody listens.
func (h *Hub) Connect(f Far) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.far = f
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
	at     int    // place in the room
	next   uint64 // number of the delta that comes next
	losses uint64 // of the room, as far as they were told
	slow   bool   // it was too slow for deltas, which was not told yet
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
	if sub.room.add(sub) && h.far != nil {
		h.far.Listen(s, true)
	}
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
	empty, deaf := s.room.remove(s)
	if empty && s.hub.rooms[s.room.stream] == s.room {
		delete(s.hub.rooms, s.room.stream)
	}
	if deaf && s.hub.far != nil {
		s.hub.far.Listen(s.room.stream, false)
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
	if s.room == nil || !s.deltas || s.Quiet() {
		return nil
	}
	return s.room.take(s)
}

// Quiet says that no delta is to be shown now: see Hub.Under.
func (s *Subscription) Quiet() bool {
	held := s.hub.held.Load()
	return held != nil && !(*held)()
}

// Under has deltas shown only while held says so: while this node has its lease.
// What was published before it lost it waits; Drop says that it never will be
// shown. It is told once, before anybody subscribes.
func (h *Hub) Under(held func() bool) { h.held.Store(&held) }

// Drop forgets the deltas that wait to be shown, of all streams: the lease under
// which they were published has ended, and another node may be at work (I-11).
// Who waits for them is told that they are lost.
func (h *Hub) Drop() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, r := range h.rooms {
		r.drop()
		r.lose(h)
	}
}

func (r *room) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.subs {
		s.next = r.count
	}
}

// Loss is why deltas are missing.
type Loss string

// The losses.
const (
	None Loss = ""
	Slow Loss = api.GapSlow // the subscription did not take them in time
	Bus  Loss = api.GapBus  // they did not come from another node
)

// Lost says, once for each, that deltas were lost to this subscription, or may
// have been: before the one that Delta gave last, or since.
func (s *Subscription) Lost() Loss {
	if s.room == nil || !s.deltas {
		return None
	}
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.room.skip(s)
	switch {
	case s.slow:
		s.slow = false
		return Slow
	case s.losses != s.room.losses:
		s.losses = s.room.losses
		return Bus
	}
	return None
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

// Tell says that a stream has grown up to a sequence: Ring for who does not
// have the events. What was told already rings nobody who listens to the stream.
func (h *Hub) Tell(s event.Stream, head int64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if r := h.rooms[s]; r != nil && head > r.head.Load() {
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

// Publish hands a delta of this node's work to whoever listens to the stream
// now, here or at another node.
func (h *Hub) Publish(s event.Stream, d api.Delta) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	r := h.rooms[s]
	if r == nil && h.far == nil {
		return
	}
	delta := &Delta{Delta: d}
	if h.far != nil {
		h.far.Send(s, delta)
	}
	if r != nil {
		r.hand(h, delta)
	}
}

// Deliver hands a delta of another node's work to whoever listens here.
func (h *Hub) Deliver(s event.Stream, d api.Delta) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if r := h.rooms[s]; r != nil {
		r.hand(h, &Delta{Delta: d})
	}
}

// Lost says that deltas of these streams may be missing here from now on;
// without streams, of all.
func (h *Hub) Lost(streams ...event.Stream) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, s := range streams {
		if r := h.rooms[s]; r != nil {
			r.lose(h)
		}
	}
	if len(streams) > 0 {
		return
	}
	for _, r := range h.rooms {
		r.lose(h)
	}
}

// Shift says that the way to other nodes has come or gone.
func (h *Hub) Shift() {
	h.shift.Add(1)
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, r := range h.rooms {
		r.tell(h, news{deltas: true})
	}
}

// Shifts counts the calls of Shift.
func (h *Hub) Shifts() uint64 { return h.shift.Load() }

// Listening says whether anyone hears the stream; who would publish may skip
// the work when nobody does.
func (h *Hub) Listening(s event.Stream) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.rooms[s] != nil || h.far != nil && h.far.Wants(s)
}

// news are what bells are rung for.
type news struct {
	head   int64 // 0: the log has not grown
	epoch  int64 // of the last event; 0: not known
	deltas bool
	turn   bool          // a run may have settled
	runs   []event.RunID // whom it is about; empty: everybody
}

// maxRuns bounds the runs of news that are put together.
const maxRuns = 64

func newsOf(events []event.Event) news {
	last := &events[len(events)-1]
	n := news{head: last.Seq, epoch: last.Epoch, turn: slices.ContainsFunc(events, settles)}
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
	ears   int      // subscriptions that hear deltas
	deltas []*Delta // a ring of the last ones, by number
	count  uint64   // deltas so far
	losses uint64   // how often some may have been lost on their way here
	epoch  int64    // the highest that was seen
	last   *Delta   // the last numbered one
	later  *news    // that are still to be rung beside
	crying bool
}

// add takes a subscription in; true: it is the first that hears deltas.
func (r *room) add(s *Subscription) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.at, s.next, s.losses = len(r.subs), r.count, r.losses
	r.subs = append(r.subs, s)
	if s.deltas {
		r.ears++
	}
	return s.deltas && r.ears == 1
}

// remove takes a subscription out. empty: nobody is left; deaf: it was the last
// that heard deltas.
func (r *room) remove(s *Subscription) (empty, deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.at < 0 {
		return len(r.subs) == 0, false
	}
	last := r.subs[len(r.subs)-1]
	r.subs[s.at], last.at = last, s.at
	r.subs[len(r.subs)-1] = nil
	r.subs = r.subs[:len(r.subs)-1]
	s.at = -1
	if s.deltas {
		r.ears--
	}
	return len(r.subs) == 0, s.deltas && r.ears == 0
}

// hand keeps a delta and rings who hears it.
func (r *room) hand(h *Hub, d *Delta) {
	if r.put(d) {
		r.tell(h, news{deltas: true, runs: []event.RunID{event.RunID(d.RunID)}})
	}
}

// lose notes that deltas may be missing.
func (r *room) lose(h *Hub) {
	r.mu.Lock()
	r.losses++
	r.mu.Unlock()
	r.tell(h, news{deltas: true})
}

// put keeps a delta; false: nobody hears any, or nobody may hear this one.
func (r *room) put(d *Delta) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ears == 0 || d.Epoch != 0 && d.Epoch < r.epoch { // a former owner's (I-11)
		return false
	}
	if d.Number != 0 {
		if l := r.last; l != nil && d.Number <= l.Number && d.Attempt == l.Attempt && d.Epoch == l.Epoch && d.StepID == l.StepID {
			return false // it was here already
		}
		r.last = d
	}
	r.epoch = max(r.epoch, d.Epoch)
	if r.deltas == nil {
		r.deltas = make([]*Delta, DeltaBuffer)
	}
	r.deltas[r.count%DeltaBuffer] = d
	r.count++
	return true
}

// skip goes on to the oldest delta that is kept. Whether those that were let go
// were about the subscription's run is not known any more.
func (r *room) skip(s *Subscription) {
	if r.count-s.next > DeltaBuffer {
		s.next, s.slow = r.count-DeltaBuffer, true
	}
}

func (r *room) take(s *Subscription) *Delta {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skip(s)
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
	r.epoch = max(r.epoch, n.epoch)
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

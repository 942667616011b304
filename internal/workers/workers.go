// Package workers gives each key that has something to do one worker, and
// stops them in order. What the keys are and what work is, rooms say: the lane
// has one worker for each session, the outbox one for each target.
//
// Where several processes share the work, a pool draws from a source that hands
// each key to one of them. A wake by this process begins at once while there is a
// place; everything else, what others woke and what found no place, comes from
// the source, in its order.
package workers

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Work looks at what a key has to do and does it, until there is nothing more
// for now. It gives the time at which there will be, zero when nobody knows. A
// key is worked on by one worker at a time.
type Work[K comparable] func(ctx context.Context, key K, w *Worker) (due time.Time)

// Worker is what work hears.
type Worker struct {
	// Bell holds one ring at most: the key was woken.
	Bell <-chan struct{}
	// Draining is closed when nothing new may begin.
	Draining <-chan struct{}

	bell  chan struct{}
	mu    *sync.Mutex
	again bool // woken since work began
	gives bool // see Gives
}

// Rest says that work gives up for now: what woke the key so far is looked at
// when the time comes that work gives, not at once.
func (w *Worker) Rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = false
}

// Gives says that the source is told soon that the key wants nothing more. Until
// it knows, the key is this pool's: nobody else is handed it, so that what comes to
// it meanwhile, whoever brings it, begins here.
func (w *Worker) Gives() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gives = true
}

// Stopping says whether nothing new may begin.
func (w *Worker) Stopping() bool {
	select {
	case <-w.Draining:
		return true
	default:
		return false
	}
}

// Source hands out keys that want work.
type Source[K comparable] struct {
	// Take gives up to limit keys that nobody works on, from then on this
	// pool's. With mine also those that are this pool's already.
	Take func(ctx context.Context, limit int, mine bool) ([]K, error)
	// Share is how many keys this process works on before it leaves what comes
	// to others, for a moment. Nil: as many as there are places.
	Share func() int
	// Failed is told why Take failed, the first time in a row; it is asked again.
	Failed func(error)
}

// When a pool looks at its source.
const (
	everyLook = time.Second            // at the latest: a signal may be lost
	everyMine = 30                     // looks, of which one asks for its own too
	calmLook  = 5 * time.Second        // while it is heard that others begin what they wake
	yieldLook = 400 * time.Millisecond // after a wake that was left to others
	heardLook = 150 * time.Millisecond // after another's wake of a key that nobody was heard to begin; longer while that takes them longer
	takeMost  = 16                     // keys at once: who asks at the same time gets as many
	mostHeard = 4096                   // keys of which it is remembered that another woke them
	givesFor  = time.Second            // after work gave a key back: it may be this pool's still
)

// Pool runs the workers. Stop it once, or again.
type Pool[K comparable] struct {
	work   Work[K]
	most   int
	source *Source[K]    // nil: all keys are this process's
	poked  chan struct{} // something to look at; holds one

	ctx      context.Context // of the work: ends when the drain is over
	cancel   context.CancelFunc
	draining chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	active  map[K]*Worker
	waiting *list.List // of K: woken while the most were at work
	queued  map[K]bool
	timers  map[K]*time.Timer
	stopped bool
	look    time.Time // when the source is to be looked at next
	wanted  bool      // there is a reason for that look
	open    time.Time // from when on a look takes more than a share
	mine    bool      // that look asks for this pool's own too
	more    bool      // the source had more than there were places
	looks   int
	looked  time.Time // when it was looked at last

	given   map[K]time.Time // what was given back last, and when; see Worker.Gives
	heard   map[K]time.Time // what others woke and nobody was heard to begin, and when
	left    int             // how many were heard of long enough ago, and are to be asked for
	tell    time.Time       // when heard is to be gone through; zero: there is no need
	settled time.Time       // when another was last heard to begin what was woken
	usual   time.Duration   // how long that takes them, on a moving average
	failing bool            // the last question to the source failed
}

// New makes a pool in which at most most keys are worked on at once; 0: all.
func New[K comparable](most int, work Work[K]) *Pool[K] {
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool[K]{
		work: work, most: most, ctx: ctx, cancel: cancel, draining: make(chan struct{}),
		active: map[K]*Worker{}, waiting: list.New(), queued: map[K]bool{}, timers: map[K]*time.Timer{},
		poked: make(chan struct{}, 1), heard: map[K]time.Time{}, given: map[K]time.Time{},
	}
}

// Draw has the pool draw from a source, from now until Stop. What this process
// has from a former time comes first.
func (p *Pool[K]) Draw(s Source[K]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.source, p.mine, p.look, p.wanted = &s, true, time.Now(), true
	p.running.Go(p.draw)
}

// Look has the source looked at once more within a time; with mine for what is
// this pool's already too.
func (p *Pool[K]) Look(within time.Duration, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mine = p.mine || mine
	p.lookBy(time.Now().Add(within))
}

// lookBy brings the next look forward; the lock is held.
func (p *Pool[K]) lookBy(at time.Time) {
	p.wanted = true
	if at.Before(p.look) {
		p.look = at
		p.poke()
	}
}

func (p *Pool[K]) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// Heard says that another process woke a key. Who works on it here is rung. Else
// the other one most likely begins it itself: where that is not heard of soon,
// the source is asked for as many keys as were left so. To ask at once would take
// from under its hands what the other one begins.
func (p *Pool[K]) Heard(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.active[key]; w != nil {
		w.ring()
		return
	}
	if t := p.timers[key]; t != nil {
		t.Reset(0)
		return
	}
	if p.gives(key) {
		if p.full() {
			p.queue(key)
		} else {
			p.begin(key)
		}
		return
	}
	now := time.Now()
	if !now.Before(p.open) {
		p.open = now.Add(yieldLook)
	}
	if _, known := p.heard[key]; known || p.source == nil {
		return
	}
	if len(p.heard) >= mostHeard {
		p.lookBy(now.Add(p.patience()))
		return
	}
	p.heard[key] = now
	if p.tell.IsZero() {
		p.tell = now.Add(p.patience())
		p.poke()
	}
}

// gives says whether a key that nobody works on may be this pool's still, though
// work has given it back; the lock is held.
func (p *Pool[K]) gives(key K) bool {
	at, known := p.given[key]
	return known && !p.stopped && time.Since(at) < givesFor
}

// gave notes that work has given a key back; the lock is held.
func (p *Pool[K]) gave(key K) {
	if p.source == nil {
		return
	}
	now := time.Now()
	if len(p.given) >= mostHeard {
		maps.DeleteFunc(p.given, func(_ K, at time.Time) bool { return now.Sub(at) >= givesFor })
	}
	if len(p.given) >= mostHeard { // of those that are let go of in such numbers the source is asked instead
		p.mine, p.wanted = true, true
		clear(p.given)
	}
	p.given[key] = now
}

// Begun says that another process did something with a key that was no wake: it
// works on it.
func (p *Pool[K]) Begun(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.given, key)
	if at, known := p.heard[key]; known {
		delete(p.heard, key)
		p.settled = time.Now()
		p.usual += (p.settled.Sub(at) - p.usual) / 8
	}
}

// patience is how long another has to begin what it woke: under load all takes
// longer, and what is taken from it then makes for more load. The lock is held.
func (p *Pool[K]) patience() time.Duration {
	return min(max(heardLook, 4*p.usual), everyLook)
}

// draw looks at the source until the pool stops.
func (p *Pool[K]) draw() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.poked:
		case <-p.draining:
			return
		}
		p.mu.Lock()
		if p.stopped { // also where the time to look has come just now
			p.mu.Unlock()
			return
		}
		limit, mine, whole := p.ask(time.Now())
		p.mu.Unlock()
		if limit > 0 {
			p.take(limit, mine, whole)
		}
		p.mu.Lock()
		next := p.look
		if !p.tell.IsZero() && p.tell.Before(next) {
			next = p.tell
		}
		timer.Reset(time.Until(next))
		p.mu.Unlock()
	}
}

// ask says how many keys the source is to be asked for now; whole: for all that
// there may be, and not only for what others left. The lock is held.
func (p *Pool[K]) ask(now time.Time) (limit int, mine, whole bool) {
	p.count(now)
	look := !now.Before(p.look)
	if look && !p.wanted && now.Sub(p.settled) < everyLook && now.Sub(p.looked) < calmLook {
		p.look, look = now.Add(everyLook), false
	}
	if look {
		limit, next := p.free(now)
		if p.looks++; p.looks%everyMine == 0 {
			p.mine = true
		}
		if mine = p.mine; mine {
			limit += len(p.active) + len(p.timers)
		}
		p.mine, p.more, p.left, p.looked = false, limit <= 0, 0, now
		p.look, p.wanted = next, next.Equal(p.open)
		return limit, mine, true
	}
	if p.left == 0 {
		return 0, false, false
	}
	limit, next := p.free(now)
	switch limit = min(limit, p.left); {
	case limit > 0:
		p.left -= limit
	case p.full(): // asked for when there is a place
		p.more, p.left = true, 0
	}
	if p.left > 0 {
		p.tell = now
		if limit <= 0 {
			p.tell = next
		}
	}
	return limit, false, false
}

// count notes what was heard of long enough ago; the lock is held.
func (p *Pool[K]) count(now time.Time) {
	if p.tell.IsZero() || now.Before(p.tell) {
		return
	}
	p.tell = time.Time{}
	patience := p.patience()
	for key, at := range p.heard {
		due := at.Add(patience)
		switch {
		case !now.Before(due):
			delete(p.heard, key)
			p.left++
		case p.tell.IsZero() || due.Before(p.tell):
			p.tell = due
		}
	}
}

// free is how many keys to ask for now, and when to look again if nothing comes
// up before. The lock is held.
func (p *Pool[K]) free(now time.Time) (keys int, next time.Time) {
	keys, next = takeMost, now.Add(everyLook)
	if p.most > 0 {
		keys = min(keys, p.most-len(p.active))
		if keys > 0 { // a few more, which wait here, so that not every place that frees is a look
			keys = max(keys, min(takeMost, p.most/16))
		}
	}
	if p.source.Share != nil && now.Before(p.open) {
		// Only where the share holds back some there is more to ask for then. To look
		// all the same takes from others what they are about to begin.
		if share := p.source.Share() - len(p.active); share < keys {
			keys, next = share, p.open
		}
	}
	return keys, next
}

// take begins what the source gives.
func (p *Pool[K]) take(limit int, mine, whole bool) {
	keys, err := p.source.Take(p.ctx, limit, mine)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mine, p.wanted = true, true // what it gave may be this pool's, though its answer did not come
		if p.ctx.Err() == nil && p.source.Failed != nil && !p.failing {
			p.source.Failed(err)
		}
		p.failing = true
		return
	}
	p.failing = false
	fresh := false
	for _, key := range keys {
		switch {
		case p.stopped:
			return
		case p.active[key] != nil, p.timers[key] != nil, p.queued[key]: // known, and heard of
			continue
		case p.full(): // it is this pool's, and waits for a place
			p.queue(key)
		default:
			p.begin(key)
		}
		fresh = true
	}
	if whole && len(keys) >= limit {
		p.more = true
		p.mine = p.mine || mine && fresh // its own may be more than it asked for
		if !p.full() {
			p.look, p.wanted = time.Now(), true
		}
	}
}

// Drain lets nothing new begin, and gives the keys that wait for their time, or
// here for a place: nothing is done for them here any more.
func (p *Pool[K]) Drain() []K {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.stopped = true
		close(p.draining)
		for _, t := range p.timers {
			t.Stop()
		}
	}
	return slices.AppendSeq(slices.Collect(maps.Keys(p.timers)), maps.Keys(p.queued))
}

// Stop drains, waits for what is in flight until ctx ends, then ends the context
// of the work and waits for that.
func (p *Pool[K]) Stop(ctx context.Context) {
	p.Drain()
	done := make(chan struct{})
	go func() { p.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		p.cancel()
		<-done
	}
	p.cancel()
}

// Wake says that a key may have something to do. It never blocks, and no wake
// is lost: a key that is being worked on is looked at once more.
func (p *Pool[K]) Wake(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if w := p.active[key]; w != nil {
		w.ring()
		return
	}
	switch {
	case p.source != nil && p.full() && p.timers[key] == nil && !p.queued[key] && !p.gives(key): // the source knows it
		p.more = true
	case p.full():
		p.queue(key)
	case p.source != nil && p.source.Share != nil && len(p.active) >= p.source.Share() && p.timers[key] == nil && !p.gives(key):
		p.lookBy(time.Now().Add(yieldLook))
	default:
		p.begin(key)
	}
}

// Begin starts the work on a key at rest, of which the source does not know yet that
// it will want some. It says whether it did: not where the key is worked on or waits, where
// there is no place, and where this process has more than its share.
func (p *Pool[K]) Begin(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.stopped, p.active[key] != nil, p.timers[key] != nil, p.queued[key], p.full():
		return false
	case p.source != nil && p.source.Share != nil && len(p.active) >= p.source.Share():
		return false
	}
	p.begin(key)
	return true
}

// due begins a key whose time has come.
func (p *Pool[K]) due(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.timers[key] == nil {
		return
	}
	delete(p.timers, key)
	if p.full() {
		p.queue(key)
		return
	}
	p.begin(key)
}

// ring says that the key was woken; the lock is held.
func (w *Worker) ring() {
	w.again = true
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// Works says whether a key is worked on now.
func (p *Pool[K]) Works(key K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active[key] != nil
}

// Active says how many keys are worked on now.
func (p *Pool[K]) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active)
}

// Held says how many keys are this pool's: those worked on, and those that wait
// for their time or for a place.
func (p *Pool[K]) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active) + len(p.timers) + len(p.queued)
}

func (p *Pool[K]) full() bool { return p.most > 0 && len(p.active) >= p.most }

// queue lets a key wait for a place; the lock is held.
func (p *Pool[K]) queue(key K) {
	if !p.queued[key] {
		p.queued[key] = true
		p.waiting.PushBack(key)
	}
}

// begin starts a worker; the lock is held.
func (p *Pool[K]) begin(key K) {
	if t := p.timers[key]; t != nil {
		t.Stop()
		delete(p.timers, key)
	}
	delete(p.heard, key)
	delete(p.given, key)
	bell := make(chan struct{}, 1)
	w := &Worker{Bell: bell, Draining: p.draining, bell: bell, mu: &p.mu}
	p.active[key] = w
	p.running.Go(func() {
		for !p.end(key, w, p.work(p.ctx, key, w)) {
		}
	})
}

// end retires the worker, unless its key was woken meanwhile. When others wait
// for a place such a key goes behind them.
func (p *Pool[K]) end(key K, w *Worker, due time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := w.again && !p.stopped
	gives := w.gives
	w.gives = false
	if w.again = false; again && p.waiting.Len() == 0 {
		return false
	}
	delete(p.active, key)
	switch {
	case p.stopped:
		return true
	case again:
		p.queue(key)
	case due.IsZero() && gives:
		p.gave(key)
	case !due.IsZero():
		p.timers[key] = time.AfterFunc(time.Until(due), func() { p.due(key) })
	}
	if p.more {
		p.lookBy(time.Now())
	}
	for p.waiting.Len() > 0 && !p.full() {
		next := p.waiting.Remove(p.waiting.Front()).(K)
		delete(p.queued, next)
		if p.active[next] == nil {
			p.begin(next)
		}
	}
	return true
}

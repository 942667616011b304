// Package workers gives each key that has something to do one worker, and
// stops them in order. What the keys are and what work is, rooms say: the lane
// has one worker for each session, the outbox one for each target.
package workers

import (
	"container/list"
	"context"
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
}

// Rest says that work gives up for now: what woke the key so far is looked at
// when the time comes that work gives, not at once.
func (w *Worker) Rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = false
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

// Pool runs the workers. Stop it once, or again.
type Pool[K comparable] struct {
	work Work[K]
	most int

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
}

// New makes a pool in which at most most keys are worked on at once; 0: all.
func New[K comparable](most int, work Work[K]) *Pool[K] {
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool[K]{
		work: work, most: most, ctx: ctx, cancel: cancel, draining: make(chan struct{}),
		active: map[K]*Worker{}, waiting: list.New(), queued: map[K]bool{}, timers: map[K]*time.Timer{},
	}
}

// Stop lets nothing new begin, waits for what is in flight until ctx ends, then
// ends the context of the work and waits for that.
func (p *Pool[K]) Stop(ctx context.Context) {
	p.mu.Lock()
	if !p.stopped {
		p.stopped = true
		close(p.draining)
		for _, t := range p.timers {
			t.Stop()
		}
	}
	p.mu.Unlock()
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
		w.again = true
		select {
		case w.bell <- struct{}{}:
		default:
		}
		return
	}
	if p.full() {
		p.queue(key)
		return
	}
	p.begin(key)
}

// Active says how many keys are worked on now.
func (p *Pool[K]) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active)
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
	if w.again = false; again && p.waiting.Len() == 0 {
		return false
	}
	delete(p.active, key)
	switch {
	case p.stopped:
		return true
	case again:
		p.queue(key)
	case !due.IsZero():
		p.timers[key] = time.AfterFunc(time.Until(due), func() { p.Wake(key) })
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

// Package lane decides which sessions are worked on: a session with something
// to do has one worker, which drives it until it asks for nothing more.
//
// A wake-up is only a hint. At start every unfinished session is looked at,
// those waiting longest first; after that commits wake the sessions they
// concern.
package lane

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Driver works on one session: the engine.
type Driver interface {
	Load(ctx context.Context, id event.SessionID) (*session.State, error)
	Drive(ctx context.Context, st *session.State, bell, draining <-chan struct{}) (*session.State, time.Time, error)
}

// Config bounds the lane. Zero fields take the defaults.
type Config struct {
	Driver     Driver
	Unfinished func(ctx context.Context) ([]event.SessionID, error)
	Logger     *slog.Logger
	MaxActive  int // sessions worked on at once; default 256
	CacheSize  int // states of idle sessions kept in memory; default 1000
}

// Lane runs the workers. Start it once, Stop it once.
type Lane struct {
	cfg      Config
	ctx      context.Context // of the work: ends when the drain is over
	cancel   context.CancelFunc
	draining chan struct{}
	workers  sync.WaitGroup

	mu      sync.Mutex
	active  map[event.SessionID]*worker
	waiting *list.List // of event.SessionID: woken while MaxActive were at work
	queued  map[event.SessionID]bool
	timers  map[event.SessionID]*time.Timer
	cache   *stateCache
	stopped bool
}

// worker is one session at work.
type worker struct {
	bell  chan struct{}
	again bool // woken since its driver looked last
}

// New makes a lane.
func New(cfg Config) *Lane {
	if cfg.MaxActive == 0 {
		cfg.MaxActive = 256
	}
	if cfg.CacheSize == 0 {
		cfg.CacheSize = 1000
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Lane{
		cfg: cfg, ctx: ctx, cancel: cancel, draining: make(chan struct{}),
		active: map[event.SessionID]*worker{}, waiting: list.New(), queued: map[event.SessionID]bool{},
		timers: map[event.SessionID]*time.Timer{}, cache: newStateCache(cfg.CacheSize),
	}
}

// Start looks at every unfinished session.
func (l *Lane) Start(ctx context.Context) error {
	ids, err := l.cfg.Unfinished(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		l.Wake(id)
	}
	return nil
}

// Stop lets nothing new begin, waits for what is in flight until ctx ends, and
// then leaves it in doubt, as a crash would.
func (l *Lane) Stop(ctx context.Context) {
	l.mu.Lock()
	if !l.stopped {
		l.stopped = true
		close(l.draining)
		for _, t := range l.timers {
			t.Stop()
		}
	}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() { l.workers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		l.cancel()
		<-done
	}
	l.cancel()
}

// Wake says that a session may have something to do. It never blocks.
func (l *Lane) Wake(id event.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	if w := l.active[id]; w != nil {
		w.again = true
		select {
		case w.bell <- struct{}{}:
		default:
		}
		return
	}
	if len(l.active) >= l.cfg.MaxActive {
		l.queue(id)
		return
	}
	l.begin(id)
}

// queue lets a session wait for a place; the lock is held.
func (l *Lane) queue(id event.SessionID) {
	if !l.queued[id] {
		l.queued[id] = true
		l.waiting.PushBack(id)
	}
}

// begin starts a worker; the lock is held.
func (l *Lane) begin(id event.SessionID) {
	if t := l.timers[id]; t != nil {
		t.Stop()
		delete(l.timers, id)
	}
	w := &worker{bell: make(chan struct{}, 1)}
	l.active[id] = w
	l.workers.Go(func() { l.work(id, w) })
}

// work drives a session until it is idle and nobody woke it meanwhile.
func (l *Lane) work(id event.SessionID, w *worker) {
	st := l.take(id)
	for {
		var due time.Time
		var err error
		if st == nil {
			st, err = l.cfg.Driver.Load(l.ctx, id)
		}
		if err == nil {
			st, due, err = l.cfg.Driver.Drive(l.ctx, st, w.bell, l.draining)
		}
		if err != nil {
			due = l.failed(id, err)
			st = nil
		}
		if l.end(id, w, st, due) {
			return
		}
	}
}

// retryAfter is how long a session rests whose driver failed.
const retryAfter = 5 * time.Second

// failed logs what ended a drive, and says when to look again.
func (l *Lane) failed(id event.SessionID, err error) time.Time {
	switch {
	case l.ctx.Err() != nil:
		return time.Time{}
	case errors.Is(err, eventlog.ErrFenced):
		l.cfg.Logger.Info("session has another owner", "session_id", id)
		return time.Time{}
	}
	l.cfg.Logger.Error("session", "session_id", id, "err", err, "retry_in", retryAfter)
	return time.Now().Add(retryAfter)
}

// end retires the worker, unless the session was woken since it looked. When
// others wait for a place such a session goes behind them.
func (l *Lane) end(id event.SessionID, w *worker, st *session.State, due time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := w.again && !l.stopped && (st != nil || due.IsZero())
	if again && l.waiting.Len() == 0 {
		w.again = false
		return false
	}
	delete(l.active, id)
	if st != nil {
		l.cache.put(st)
	}
	if l.stopped {
		return true
	}
	switch {
	case again:
		l.queue(id)
	case !due.IsZero():
		l.timers[id] = time.AfterFunc(time.Until(due), func() { l.Wake(id) })
	}
	for l.waiting.Len() > 0 && len(l.active) < l.cfg.MaxActive {
		next := l.waiting.Remove(l.waiting.Front()).(event.SessionID)
		delete(l.queued, next)
		if l.active[next] == nil {
			l.begin(next)
		}
	}
	return true
}

func (l *Lane) take(id event.SessionID) *session.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cache.take(id)
}

// stateCache keeps the states of idle sessions; the least recently worked on
// goes first. A state that is behind catches up when it is driven.
type stateCache struct {
	limit int
	order *list.List // of *session.State
	byID  map[event.SessionID]*list.Element
}

func newStateCache(limit int) *stateCache {
	return &stateCache{limit: limit, order: list.New(), byID: map[event.SessionID]*list.Element{}}
}

func (c *stateCache) put(st *session.State) {
	c.byID[st.ID] = c.order.PushFront(st)
	if c.order.Len() > c.limit {
		old := c.order.Remove(c.order.Back()).(*session.State)
		delete(c.byID, old.ID)
	}
}

func (c *stateCache) take(id event.SessionID) *session.State {
	el, ok := c.byID[id]
	if !ok {
		return nil
	}
	delete(c.byID, id)
	return c.order.Remove(el).(*session.State)
}

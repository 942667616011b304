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
	"github.com/holdfast-dev/holdfast/internal/workers"
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
	CacheBytes int // what those take, roughly; default 32 MiB
}

// Lane runs the workers. Start it once; Stop ends it.
type Lane struct {
	cfg   Config
	pool  *workers.Pool[event.SessionID]
	mu    sync.Mutex // of the cache
	cache *stateCache
}

// New makes a lane.
func New(cfg Config) *Lane {
	if cfg.MaxActive == 0 {
		cfg.MaxActive = 256
	}
	if cfg.CacheSize == 0 {
		cfg.CacheSize = 1000
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = 32 << 20
	}
	l := &Lane{cfg: cfg, cache: newStateCache(cfg.CacheSize, cfg.CacheBytes)}
	l.pool = workers.New(cfg.MaxActive, l.work)
	return l
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
func (l *Lane) Stop(ctx context.Context) { l.pool.Stop(ctx) }

// Wake says that a session may have something to do. It never blocks.
func (l *Lane) Wake(id event.SessionID) { l.pool.Wake(id) }

// Active says how many sessions are worked on now.
func (l *Lane) Active() int { return l.pool.Active() }

// work drives a session until it is idle.
func (l *Lane) work(ctx context.Context, id event.SessionID, w *workers.Worker) time.Time {
	l.mu.Lock()
	st := l.cache.take(id)
	l.mu.Unlock()
	var due time.Time
	var err error
	if st == nil {
		st, err = l.cfg.Driver.Load(ctx, id)
	}
	if err == nil {
		st, due, err = l.cfg.Driver.Drive(ctx, st, w.Bell, w.Draining)
	}
	if err != nil {
		return l.failed(ctx, id, w, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cache.put(st)
	return due
}

// retryAfter is how long a session rests whose driver failed.
const retryAfter = 5 * time.Second

// failed logs what ended a drive, and says when to look again.
func (l *Lane) failed(ctx context.Context, id event.SessionID, w *workers.Worker, err error) time.Time {
	switch {
	case ctx.Err() != nil:
		return time.Time{}
	case errors.Is(err, eventlog.ErrFenced):
		l.cfg.Logger.Info("session has another owner", "session_id", id)
		return time.Time{}
	}
	l.cfg.Logger.Error("session", "session_id", id, "err", err, "retry_in", retryAfter)
	w.Rest()
	return time.Now().Add(retryAfter)
}

// stateCache keeps the states of idle sessions, bounded in number and in bytes;
// the least recently worked on goes first. A state that is behind catches up
// when it is driven.
type stateCache struct {
	most, mostBytes int
	bytes           int
	order           *list.List // of cached
	byID            map[event.SessionID]*list.Element
}

type cached struct {
	st    *session.State
	bytes int
}

func newStateCache(most, mostBytes int) *stateCache {
	return &stateCache{most: most, mostBytes: mostBytes, order: list.New(), byID: map[event.SessionID]*list.Element{}}
}

func (c *stateCache) put(st *session.State) {
	size := st.Size()
	if size > c.mostBytes/4 { // one session does not push out all others
		return
	}
	c.byID[st.ID] = c.order.PushFront(cached{st, size})
	for c.bytes += size; c.order.Len() > c.most || c.bytes > c.mostBytes; {
		c.remove(c.order.Back())
	}
}

func (c *stateCache) take(id event.SessionID) *session.State {
	el, ok := c.byID[id]
	if !ok {
		return nil
	}
	return c.remove(el)
}

func (c *stateCache) remove(el *list.Element) *session.State {
	x := c.order.Remove(el).(cached)
	c.bytes -= x.bytes
	delete(c.byID, x.st.ID)
	return x.st
}

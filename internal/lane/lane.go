// Package lane decides which sessions are worked on: a session with something
// to do has one worker, which drives it until it asks for nothing more.
//
// A wake-up is only a hint. What this process commits wakes its sessions at once
// while there is a place; all else comes from the store, which hands each session
// that wants work to one node, those waiting longest first.
package lane

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
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
	// Drive takes what is offered, where there is something, or declines it.
	Drive(ctx context.Context, term eventlog.Term, st *session.State, offer *eventlog.Offer, bell, draining <-chan struct{}) (_ *session.State, due time.Time, rested bool, err error)
}

// Tenure is the lease under which the sessions are worked on.
type Tenure interface {
	Node() eventlog.NodeID
	// Term is the lease as it is now.
	Term() eventlog.Term
	// Rest lets go of a stream that wants nothing more, Yield of one that others
	// are to go on with.
	Rest(s event.Stream, head int64)
	Yield(s event.Stream)
	// Share is how many sessions this node works on before it leaves new ones to others.
	Share() int
	// Grace is how long nothing is to be taken yet.
	Grace() time.Duration
}

// Config bounds the lane. Zero fields take the defaults.
type Config struct {
	Driver     Driver
	Tenure     Tenure
	Take       func(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error)
	Logger     *slog.Logger
	MaxActive  int // sessions worked on at once; default 256
	CacheSize  int // states of idle sessions kept in memory; default 1000
	CacheBytes int // what those take, roughly; default 32 MiB
}

// Lane runs the workers. Start it once; Stop ends it.
type Lane struct {
	cfg    Config
	pool   *workers.Pool[event.SessionID]
	mu     sync.Mutex // of what follows
	cache  *stateCache
	offers map[event.SessionID]*eventlog.Offer // that a worker is to take up
	fails  map[event.SessionID]int             // drives in a row that failed
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
	l := &Lane{cfg: cfg, cache: newStateCache(cfg.CacheSize, cfg.CacheBytes), offers: map[event.SessionID]*eventlog.Offer{}, fails: map[event.SessionID]int{}}
	l.pool = workers.New(cfg.MaxActive, l.work)
	return l
}

// Start takes work from the store, from now on.
func (l *Lane) Start() {
	l.pool.Draw(workers.Source[event.SessionID]{
		Take: l.take, Share: l.cfg.Tenure.Share,
		Failed: func(err error) {
			l.cfg.Logger.Log(context.Background(), tookLevel(err), "no sessions could be taken up; they are asked for again every second", "err", err)
		},
	})
}

// tookLevel is how loud it is that nothing could be taken: who has no lease just
// now takes nothing, which is said where leases are.
func tookLevel(err error) slog.Level {
	if errors.Is(err, eventlog.ErrFenced) {
		return slog.LevelDebug
	}
	return slog.LevelError
}

func (l *Lane) take(ctx context.Context, limit int, mine bool) ([]event.SessionID, error) {
	if wait := l.cfg.Tenure.Grace(); wait > 0 {
		l.pool.Look(wait, mine)
		return nil, nil
	}
	streams, err := l.cfg.Take(ctx, l.cfg.Tenure.Node(), eventlog.Sessions, limit, mine)
	ids := make([]event.SessionID, 0, len(streams))
	for _, s := range streams {
		if id, ok := s.Session(); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Stop lets nothing new begin, waits for what is in flight until ctx ends, and
// then leaves it in doubt, as a crash would. What comes to rest, or waits for its
// time, is given to others at once.
func (l *Lane) Stop(ctx context.Context) {
	planned := l.pool.Drain() // before they are given away: a node does not go on with what it yields (I-11)
	slices.Sort(planned)
	var gone sync.WaitGroup
	gone.Go(func() {
		for _, id := range planned {
			l.cfg.Tenure.Yield(id.Stream())
		}
	})
	l.pool.Stop(ctx)
	gone.Wait()
}

// Look has the store asked for work, with mine also for what this node holds already.
func (l *Lane) Look(mine bool) { l.pool.Look(0, mine) }

// Heard says that another node has woken a session.
func (l *Lane) Heard(id event.SessionID) { l.pool.Heard(id) }

// Begun says that another node works on a session.
func (l *Lane) Begun(id event.SessionID) { l.pool.Begun(id) }

// Wake says that a session may have something to do. It never blocks.
func (l *Lane) Wake(id event.SessionID) { l.pool.Wake(id) }

// Rests gives a session that is at rest here, as it was when it was last worked on:
// what is offered to it is likely to be taken.
func (l *Lane) Rests(id event.SessionID) (eventlog.Resting, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.cache.get(id)
	if st == nil || l.offers[id] != nil || !st.AtRest() || l.pool.Works(id) {
		return eventlog.Resting{}, false
	}
	return eventlog.Resting{UserID: st.UserID, Status: st.Status, Settings: st.Settings, Version: int64(st.SettingsVersion)}, true
}

// Offer hands a command to a session that rests here, to be appended together with
// what follows from it. Not taken: nothing of it is in the log, and the caller appends
// it. It waits for the append; the end of ctx ends the waiting alone, once it is under way.
func (l *Lane) Offer(ctx context.Context, id event.SessionID, a eventlog.Append) (taken bool, err error) {
	if _, rests := l.Rests(id); !rests {
		return false, nil
	}
	o := eventlog.NewOffer(a)
	l.mu.Lock()
	if l.offers[id] != nil {
		l.mu.Unlock()
		return false, nil
	}
	l.offers[id] = o
	l.mu.Unlock()
	if !l.pool.Begin(id) {
		l.mu.Lock()
		mine := l.offers[id] == o
		if mine {
			delete(l.offers, id)
		}
		l.mu.Unlock()
		if mine { // else a worker that somebody woke meanwhile has it
			return false, nil
		}
	}
	return o.Wait(ctx)
}

// Most says how many sessions are worked on at once at most.
func (l *Lane) Most() int { return l.cfg.MaxActive }

// Works says whether a session is worked on here now.
func (l *Lane) Works(id event.SessionID) bool { return l.pool.Works(id) }

// Active says how many sessions are worked on now.
func (l *Lane) Active() int { return l.pool.Active() }

// Held says how many sessions this node has: those it works on, and those that
// wait for their time or for a place.
func (l *Lane) Held() int { return l.pool.Held() }

// work drives a session until it is idle.
func (l *Lane) work(ctx context.Context, id event.SessionID, w *workers.Worker) time.Time {
	l.mu.Lock()
	st, offer := l.cache.take(id), l.offers[id]
	delete(l.offers, id)
	l.mu.Unlock()
	if offer != nil {
		defer offer.Decline() // where nobody came to answer it
	}
	term := l.cfg.Tenure.Term()
	if term.Context().Err() != nil {
		l.forgive(id)
		return time.Time{} // looked at when the lease begins anew
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term.Context(), cancel)()
	var due time.Time
	var rested bool
	var err error
	if st == nil {
		if offer != nil { // it was dropped just now: loading it is nothing that an answer should wait for
			offer.Decline()
			offer = nil
		}
		st, err = l.cfg.Driver.Load(ctx, id)
	}
	if err == nil {
		st, due, rested, err = l.cfg.Driver.Drive(ctx, term, st, offer, w.Bell, w.Draining)
	}
	if err != nil {
		return l.failed(ctx, id, w, err)
	}
	switch {
	case rested:
	case due.IsZero() && session.Next(st) == nil:
		w.Gives()
		l.cfg.Tenure.Rest(id.Stream(), st.Head)
	case w.Stopping():
		l.cfg.Tenure.Yield(id.Stream())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.fails, id)
	l.cache.put(st)
	return due
}

// How long a session rests whose driver failed: doubling between these, since most
// often a connection was lost that is there again at once.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// mostFails is how many sessions are counted; the others rest for the longest.
var mostFails = 4096

// retryIn counts a failure, and says how long the session rests for it.
func (l *Lane) retryIn(id event.SessionID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, counted := l.fails[id]
	if !counted && len(l.fails) >= mostFails {
		return lastRetry
	}
	l.fails[id] = n + 1
	return min(firstRetry<<min(n, 10), lastRetry)
}

// forgive forgets the failures of a session that is worked on here no more.
func (l *Lane) forgive(id event.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.fails, id)
}

// failed logs what ended a drive, and says when to look again.
func (l *Lane) failed(ctx context.Context, id event.SessionID, w *workers.Worker, err error) time.Time {
	fenced := errors.Is(err, eventlog.ErrFenced)
	if fenced || ctx.Err() != nil {
		l.forgive(id)
		if ctx.Err() == nil {
			l.cfg.Logger.Info("session has another owner", "session_id", id)
		}
		return time.Time{}
	}
	wait := l.retryIn(id)
	l.cfg.Logger.Error("session", "session_id", id, "err", err, "retry_in", wait)
	w.Rest()
	return time.Now().Add(wait)
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

// get gives a state that stays where it is: it is only to be looked at.
func (c *stateCache) get(id event.SessionID) *session.State {
	if el, ok := c.byID[id]; ok {
		return el.Value.(cached).st
	}
	return nil
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

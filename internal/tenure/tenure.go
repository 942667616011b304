// Package tenure keeps this process's lease at the store: it beats, says
// whether there is time enough left for an act, and ends the work when the lease
// has ended. It hands the others what this process lets go of.
//
// A lease is measured from the moment at which its beat was sent, by this
// machine's clocks, so that it ends here before it ends at the store, whatever
// those clocks show (I-16). It counts what both the monotonic and the wall clock
// say: the first stands still while a virtual machine is suspended.
package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// ErrLost: the lease has ended. Nothing more is done for what was held, and
// nothing is said in the log (I-11).
var ErrLost = errors.New("the lease has ended")

// Config says whose lease it is.
type Config struct {
	Nodes eventlog.Nodes
	Node  eventlog.Node // ID, Name, Version, Roots
	// TTL is how long the lease runs from a beat; 0: it does not end, and there
	// are no others.
	TTL time.Duration
	// Load says how many sessions are worked on, and how many may be.
	Load func() (active, most int)
	// Look is called when there may be work to take that nobody will tell of:
	// another node's lease has ended. With mine also when this one's own has begun
	// anew.
	Look func(mine bool)
	// Lapsed is called when the lease has ended, before the next one counts. It
	// must not call back.
	Lapsed func()
	Logger *slog.Logger
}

// Tenure is the lease of this process. It is safe for concurrent use.
type Tenure struct {
	cfg   Config
	clock atomic.Pointer[span]
	stop  chan struct{}
	done  sync.WaitGroup
	once  sync.Once

	mu       sync.Mutex
	term     *term
	over     time.Time // when the lease of the last beat has ended, by both clocks
	ending   *time.Timer
	beaten   chan struct{} // closed with the next beat
	begun    bool
	since    time.Time // when the lease began anew after it was in trouble
	draining bool
	share    int
	living   map[eventlog.NodeID]string // the others by name, when they were last looked at
	failing  int                        // beats that failed in a row
	stats    Stats
	rests    map[event.Stream]int64
	flush    chan struct{}
	soon     chan struct{} // closed when the next beat is not to wait
	peers    *time.Timer
}

// span is the time for which the last beat is good.
type span struct {
	forever bool
	until   time.Time // with margin; by the monotonic clock
	wall    time.Time // the same, by the wall clock
}

// New makes a tenure that has not begun.
func New(cfg Config) *Tenure {
	t := &Tenure{cfg: cfg, stop: make(chan struct{}), beaten: make(chan struct{}), rests: map[event.Stream]int64{}, flush: make(chan struct{}, 1), soon: make(chan struct{})}
	t.clock.Store(&span{})
	t.term = t.newTerm()
	t.term.finish()
	return t
}

func (t *Tenure) newTerm() *term {
	m := &term{t: t}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// Node is whose lease it is.
func (t *Tenure) Node() eventlog.NodeID { return t.cfg.Node.ID }

// Shares of a lease: a beat every third of it; an act wants a fifth left.
func (t *Tenure) beatEvery() time.Duration { return t.cfg.TTL / 3 }
func (t *Tenure) margin() time.Duration    { return t.cfg.TTL / 5 }

// beatTimeout bounds a beat where leases do not end.
const beatTimeout = 10 * time.Second

// Start makes the node known and keeps it so until Stop.
func (t *Tenure) Start(ctx context.Context) error {
	if err := t.beat(ctx); err != nil {
		return err
	}
	t.done.Go(t.run)
	return nil
}

// Drain says that this process takes nothing more. The others hear of it with a
// beat that is sent now.
func (t *Tenure) Drain() {
	t.mu.Lock()
	again := t.draining
	t.draining = true
	t.mu.Unlock()
	if !again {
		close(t.soon)
	}
}

// Stop ends the tenure: what is still held is free for others at once. A second
// call does nothing.
func (t *Tenure) Stop(ctx context.Context) {
	t.once.Do(func() { t.close(ctx) })
}

func (t *Tenure) close(ctx context.Context) {
	close(t.stop)
	t.done.Wait()
	t.lose()
	t.mu.Lock()
	t.watch(nil)
	t.mu.Unlock()
	if err := t.cfg.Nodes.Release(ctx, t.cfg.Node.ID); err != nil {
		t.cfg.Logger.Warn("the lease could not be given back; others go on when it has ended", "node", t.cfg.Node.ID, "err", err)
		return
	}
	if s := t.Stats(); t.cfg.TTL > 0 {
		t.cfg.Logger.Info("the lease is given back; what was held is free for other nodes", "node", t.cfg.Node.ID,
			"sessions_given", s.SessionsGiven, "targets_given", s.TargetsGiven)
	}
}

// Term is the lease as it is now.
func (t *Tenure) Term() eventlog.Term {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.term
}

// Held says whether the lease has time enough left for an act outside the log.
func (t *Tenure) Held() bool {
	s := t.clock.Load()
	if s.forever {
		return true
	}
	now := time.Now()
	return now.Before(s.until) && now.Round(0).Before(s.wall)
}

// term is one lease, from a beat on for as long as the next ones come in time. A
// lease that begins anew is another: who held what may have changed in between.
type term struct {
	t     *Tenure
	ctx   context.Context
	end   context.CancelFunc
	ended atomic.Bool
}

var _ eventlog.Term = (*term)(nil)

func (m *term) Context() context.Context { return m.ctx }

// Held looks at the clock first: a term is marked as ended before the next one
// sets the clock.
func (m *term) Held() bool { return m.t.Held() && !m.ended.Load() }

func (m *term) Await(ctx context.Context) error {
	for !m.Held() {
		m.t.mu.Lock()
		beaten := m.t.beaten
		m.t.mu.Unlock()
		if m.ended.Load() {
			return ErrLost
		}
		select {
		case <-beaten:
		case <-m.ctx.Done():
			return ErrLost
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (m *term) finish() {
	m.ended.Store(true)
	m.end()
}

// run beats and lets go.
func (t *Tenure) run() {
	every := t.beatEvery()
	if t.cfg.TTL == 0 {
		every = time.Hour // for what the node says of itself
	}
	timer := time.NewTimer(every)
	defer timer.Stop()
	soon := t.soon
	for {
		// Where several are ready the order is always the same, so that a history can
		// be played again: the end, what is let go of, then the beat.
		select {
		case <-t.stop:
			t.letGo()
			return
		default:
		}
		select {
		case <-t.flush:
			t.letGo()
			continue
		default:
		}
		select {
		case <-t.stop:
			continue
		case <-t.flush:
			t.letGo()
			continue
		case <-soon:
		case <-timer.C:
		}
		select {
		case <-soon:
			soon = nil // one beat tells the others, whatever it was that began it
		default:
		}
		next := every
		if err := t.beat(context.Background()); err != nil {
			t.failed(err)
			next = min(every, max(every/10, 50*time.Millisecond))
		}
		timer.Reset(next)
	}
}

// beat lets the lease run on.
func (t *Tenure) beat(ctx context.Context) error {
	limit := beatTimeout
	if t.cfg.TTL > 0 {
		limit = t.beatEvery()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n := t.cfg.Node
	if t.cfg.Load != nil {
		n.Active, n.Most = t.cfg.Load()
	}
	t.mu.Lock()
	n.Draining = t.draining
	t.mu.Unlock()
	sent := time.Now()
	lease, err := t.cfg.Nodes.Beat(ctx, n, t.cfg.TTL)
	if err != nil {
		return err
	}
	if t.renewed(sent) && t.cfg.Look != nil {
		t.cfg.Look(true)
	}
	if t.cfg.TTL == 0 {
		return nil
	}
	rows, err := t.cfg.Nodes.ListNodes(ctx)
	if err != nil {
		return fmt.Errorf("look at the other nodes: %w", err)
	}
	if t.others(rows, lease, n.Most) && t.cfg.Look != nil {
		t.cfg.Look(false)
	}
	return nil
}

// renewed notes a beat that was sent then. It says whether the lease began anew:
// at the first beat, and when the one before had ended, whether or not anybody
// here has come to notice it.
func (t *Tenure) renewed(sent time.Time) (fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if !t.over.IsZero() && !(now.Before(t.over) && now.Round(0).Before(t.over.Round(0))) {
		t.lapsed(t.term)
	}
	fresh = t.term.ended.Load()
	late := t.begun && !t.Held()
	if late {
		t.since = now
	}
	t.tellBeat(fresh, late)
	t.begun = true
	if fresh {
		t.term = t.newTerm()
	}
	if t.cfg.TTL == 0 {
		t.clock.Store(&span{forever: true})
	} else {
		t.over = sent.Add(t.cfg.TTL)
		until := t.over.Add(-t.margin())
		t.clock.Store(&span{until: until, wall: until.Round(0)})
		if t.ending != nil {
			t.ending.Stop()
		}
		m := t.term
		t.ending = time.AfterFunc(time.Until(t.over), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.term == m && !time.Now().Before(t.over) {
				t.lapsed(m)
			}
		})
	}
	close(t.beaten)
	t.beaten = make(chan struct{})
	return fresh
}

// lapsed ends a term whose lease has ended; the lock is held.
func (t *Tenure) lapsed(m *term) {
	if !m.ended.Load() {
		t.stats.Lost++
		t.cfg.Logger.Error("the lease has ended: work stops without a word, and other nodes go on with it; this node takes up work again with its next beat",
			"node", t.cfg.Node.ID, "failed_beats", t.failing)
	}
	m.finish()
	if t.cfg.Lapsed != nil {
		t.cfg.Lapsed()
	}
}

// lose ends the term.
func (t *Tenure) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term.finish()
	t.clock.Store(&span{})
	if t.ending != nil {
		t.ending.Stop()
	}
}

// Grace says how long nothing is to be taken from others yet: after a time in
// which this process could not beat, perhaps since the store was away, the others
// are left the time to beat too.
func (t *Tenure) Grace() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cfg.TTL == 0 || t.since.IsZero() {
		return 0
	}
	return time.Until(t.since.Add(min(t.beatEvery(), 2*time.Second)))
}

// others works out a fair share of the work, and when to look whether other
// nodes' leases have ended. It says whether one has since it looked last.
func (t *Tenure) others(rows []eventlog.NodeRow, lease eventlog.Lease, most int) (ended bool) {
	alive, active := 0, 0
	living := map[eventlog.NodeID]string{}
	var ends []time.Time
	now := time.Now()
	for i := range rows {
		r := &rows[i]
		if !r.Alive || r.ID == t.cfg.Node.ID {
			continue
		}
		ends = append(ends, now.Add(r.Until.Sub(lease.Now)+time.Millisecond))
		living[r.ID] = r.Name
		if !r.Draining {
			alive++
			active += r.Active
		}
	}
	share := 0 // no bound
	if alive > 0 {
		mean := active / alive
		share = max(mean+mean/4+8, most/leastShare)
	}
	slices.SortFunc(ends, time.Time.Compare)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.share = share
	ended = t.tellOthers(rows, living)
	t.living = living
	t.stats.Alive, t.stats.Draining = 1+alive, len(living)-alive
	if t.cfg.Look != nil {
		t.watch(ends)
	}
	return ended
}

// watch looks at each of these times, in their order, until the next beat gives
// others; the lock is held.
func (t *Tenure) watch(ends []time.Time) {
	if t.peers != nil {
		t.peers.Stop()
		t.peers = nil
	}
	if len(ends) == 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(ends[0]), func() {
		t.cfg.Look(false)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.peers == timer {
			t.watch(ends[1:])
		}
	})
	t.peers = timer
}

// leastShare is the part of its places, one of so many, that a node fills before
// it leaves anything to others. What they said last of their work is old by up to a
// beat, and a session that moves costs a claim and is read anew there: for a handful
// of sessions that is dearer than what it evens out.
const leastShare = 4

// tellOthers says in the log who has come and gone since the last look, and
// whether a node has gone; the lock is held.
func (t *Tenure) tellOthers(rows []eventlog.NodeRow, living map[eventlog.NodeID]string) (ended bool) {
	log := t.cfg.Logger
	for i := range rows {
		r := &rows[i]
		if _, known := t.living[r.ID]; !known && r.Alive && r.ID != t.cfg.Node.ID {
			log.Info("another node is there", "other", r.ID, "name", r.Name, "version", r.Version)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.living)) {
		if _, lives := living[id]; lives {
			continue
		}
		ended = true
		i := slices.IndexFunc(rows, func(r eventlog.NodeRow) bool { return r.ID == id })
		if i >= 0 && rows[i].Released {
			log.Info("another node has ended in order", "other", id, "name", t.living[id])
		} else {
			log.Warn("the lease of another node has ended; its work is taken over", "other", id, "name", t.living[id])
		}
	}
	return ended
}

// manyShares stands for no bound.
const manyShares = 1 << 30

// Share is how many sessions this process works on before it leaves new ones to
// the others, which have fewer.
func (t *Tenure) Share() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return 0
	}
	if t.share == 0 {
		return manyShares
	}
	return t.share
}

// Rest lets go of a stream that wants nothing more, seen at a head; soon, and
// together with others.
func (t *Tenure) Rest(s event.Stream, head int64) {
	t.mu.Lock()
	t.rests[s] = head
	t.mu.Unlock()
	select {
	case t.flush <- struct{}{}:
	default:
	}
}

// restBatch is how many streams are let go of in one transaction.
const restBatch = 256

// letGo hands over what rests. What fails is looked at again by whoever takes it.
func (t *Tenure) letGo() {
	t.mu.Lock()
	list := make([]eventlog.Rested, 0, len(t.rests))
	for s, head := range t.rests {
		list = append(list, eventlog.Rested{Stream: s, Head: head})
	}
	clear(t.rests)
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b eventlog.Rested) int {
		if a.Stream < b.Stream {
			return -1
		}
		return 1
	})
	for chunk := range slices.Chunk(list, restBatch) {
		ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
		if err := t.cfg.Nodes.Rest(ctx, t.cfg.Node.ID, chunk); err != nil {
			t.cfg.Logger.Warn("let go of streams at rest", "count", len(chunk), "err", err)
		}
		cancel()
	}
}

// Yield lets go of a stream that still wants work; others may go on with it at
// once.
func (t *Tenure) Yield(s event.Stream) {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if err := t.cfg.Nodes.Yield(ctx, t.cfg.Node.ID, []event.Stream{s}); err != nil {
		t.cfg.Logger.Warn("give a stream to others", "stream", s, "err", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, session := s.Session(); session {
		t.stats.SessionsGiven++
	} else {
		t.stats.TargetsGiven++
	}
}

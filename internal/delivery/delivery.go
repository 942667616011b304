// Package delivery sends what stands in the outbox: one lane for each target,
// in order, every delivery until it is delivered or dead-lettered (I-24, I-25).
package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/workers"
)

// Store is what deliveries need of the log and its views.
type Store interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	Head(ctx context.Context, s event.Stream) (eventlog.Head, error)
	Ahead(ctx context.Context, t event.TargetID, q eventlog.Ahead) ([]eventlog.Outgoing, error)
	TargetState(ctx context.Context, id event.TargetID) (eventlog.TargetState, error)
	Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error)
	Now(ctx context.Context) (time.Time, error)
}

// Tenure is the lease under which targets are worked on.
type Tenure interface {
	Node() eventlog.NodeID
	// Term is the lease as it is now.
	Term() eventlog.Term
	// Rest lets go of a stream that wants nothing more, Yield of one that others
	// are to go on with.
	Rest(s event.Stream, head int64)
	Yield(s event.Stream)
	// Grace is how long nothing is to be taken yet.
	Grace() time.Duration
}

// Message is one attempt: the same id and bytes each time (I-26).
type Message struct {
	ID     event.DeliveryID
	UserID string // whose session said it
	Target event.ReplyTarget
	Body   []byte
	At     time.Time
}

// Result is what came of an attempt.
type Result struct {
	Delivered  bool
	Code       string // stable word for a failure; see outbox.Class
	Status     int
	RetryAfter time.Duration // that the receiver asked for
	Permanent  bool          // no further attempt can help, whatever its class says
	Gone       bool          // the receiver is gone for good: its target is paused
	Detail     string        // for the daemon's log, safe
	// Excerpt is the beginning of a failed attempt's answer, bounded, and without
	// anything secret that was sent.
	Excerpt []byte
}

// Sender makes one attempt. It never retries, and returns promptly when ctx ends.
type Sender func(ctx context.Context, m Message) Result

// Config is what the room works with. Zero fields take the defaults.
type Config struct {
	Store  Store
	Tenure Tenure
	Send   Sender
	// Rules are those of a target; nil: the defaults for all.
	Rules func(id event.TargetID, t event.ReplyTarget) outbox.Rules
	// Slots are the attempts in flight over all targets, FailingSlots those of
	// them that targets have whose last attempt failed.
	Slots, FailingSlots int
	// SlowAfter is when an attempt in flight counts as one of those that fail.
	SlowAfter  time.Duration
	MaxPayload int64 // bytes of a body
	MaxExcerpt int   // bytes that are kept of an answer
	Rand       *rand.Rand
	Logger     *slog.Logger
	// Held says whether no attempt may begin now, for want of room to record what
	// would come of it. Nil: never.
	Held func() bool
}

// heldAfter is how soon is looked again whether what was held back may begin.
const heldAfter = time.Second

// Defaults of Config.
const (
	DefaultSlots        = 32
	DefaultFailingSlots = 8
	DefaultSlowAfter    = 3 * time.Second
	DefaultMaxPayload   = 1 << 20
	DefaultMaxExcerpt   = 8 << 10
)

// Room runs one lane for each target that has something to send.
type Room struct {
	cfg   Config
	pool  *workers.Pool[event.TargetID]
	slots *slots

	kept budget

	mu    sync.Mutex
	lanes map[event.TargetID]*lane
}

// New makes the room.
func New(cfg Config) *Room {
	if cfg.Slots <= 0 {
		cfg.Slots = DefaultSlots
	}
	if cfg.FailingSlots <= 0 {
		cfg.FailingSlots = DefaultFailingSlots
	}
	if cfg.SlowAfter <= 0 {
		cfg.SlowAfter = DefaultSlowAfter
	}
	if cfg.MaxPayload <= 0 {
		cfg.MaxPayload = DefaultMaxPayload
	}
	if cfg.MaxExcerpt <= 0 {
		cfg.MaxExcerpt = DefaultMaxExcerpt
	}
	if cfg.Rules == nil {
		cfg.Rules = func(event.TargetID, event.ReplyTarget) outbox.Rules { return outbox.Rules{} }
	}
	r := &Room{cfg: cfg, slots: newSlots(cfg.Slots, cfg.FailingSlots), lanes: map[event.TargetID]*lane{}}
	r.pool = workers.New(0, r.work)
	return r
}

// Start takes work from the store, from now on.
func (r *Room) Start() {
	r.pool.Draw(workers.Source[event.TargetID]{
		Take: r.take, Failed: func(err error) {
			level := slog.LevelError
			if errors.Is(err, eventlog.ErrFenced) { // there is no lease just now, which is said where leases are
				level = slog.LevelDebug
			}
			r.cfg.Logger.Log(context.Background(), level, "no receivers could be taken up; they are asked for again every second", "err", err)
		},
	})
}

func (r *Room) take(ctx context.Context, limit int, mine bool) ([]event.TargetID, error) {
	if wait := r.cfg.Tenure.Grace(); wait > 0 {
		r.pool.Look(wait, mine)
		return nil, nil
	}
	streams, err := r.cfg.Store.Take(ctx, r.cfg.Tenure.Node(), eventlog.Targets, limit, mine)
	ids := make([]event.TargetID, 0, len(streams))
	for _, s := range streams {
		if id, ok := s.Target(); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Stop begins no further attempt and waits for those in flight until ctx ends;
// what is cut then is in doubt, and is sent again under the same id. Lanes that
// wait for their time are given to others at once.
func (r *Room) Stop(ctx context.Context) {
	planned := r.pool.Drain() // before they are given away: a node does not go on with what it yields (I-11)
	slices.Sort(planned)
	var gone sync.WaitGroup
	gone.Go(func() {
		for _, id := range planned {
			r.cfg.Tenure.Yield(id.Stream())
		}
	})
	r.pool.Stop(ctx)
	gone.Wait()
}

// Look has the store asked for work, with mine also for what this node holds already.
func (r *Room) Look(mine bool) { r.pool.Look(0, mine) }

// Heard says that another node has given a target something to send.
func (r *Room) Heard(id event.TargetID) { r.pool.Heard(id) }

// Begun says that another node works on a target.
func (r *Room) Begun(id event.TargetID) { r.pool.Begun(id) }

// Wake says that a target may have something to send. It never blocks.
func (r *Room) Wake(id event.TargetID) { r.pool.Wake(id) }

// retakeAfter is how soon a lane looks again that was overtaken.
const retakeAfter = 20 * time.Millisecond

// restAfter is how long a lane rests that could not read or write the log.
const restAfter = 2 * time.Second

// work sends what is due in a target's lane.
func (r *Room) work(ctx context.Context, id event.TargetID, w *workers.Worker) time.Time {
	term := r.cfg.Tenure.Term()
	if term.Context().Err() != nil {
		return time.Time{} // looked at when the lease begins anew
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term.Context(), cancel)()
	l := r.lane(id)
	l.stale = true
	t := &turn{Room: r, lane: l, w: w, term: term}
	defer l.ahead.take()
	for fenced := false; ; {
		due, more, err := t.run(ctx)
		if err != nil || !more {
			l.ahead.take()
		}
		var other *eventlog.ConditionError
		var held *eventlog.HeldError
		switch {
		case ctx.Err() != nil, term.Context().Err() != nil, errors.As(err, &held):
			return time.Time{} // another node's, which was woken too
		case errors.Is(err, eventlog.ErrFenced) && !fenced:
			fenced = true // what was remembered of it is forgotten: once more, with a claim
		case errors.Is(err, eventlog.ErrFenced):
			return time.Time{}
		case errors.As(err, &other): // a person resolved it in between, or paused the target: look at what is next
			return time.Now().Add(retakeAfter)
		case err != nil:
			r.cfg.Logger.Error("delivery", "target_id", id, "err", err, "retry_in", restAfter)
			w.Rest()
			return time.Now().Add(restAfter)
		case w.Stopping() && (more || !due.IsZero()):
			r.cfg.Tenure.Yield(id.Stream())
			return due
		case !more:
			return due
		}
	}
}

// lane gives what is remembered of a target.
func (r *Room) lane(id event.TargetID) *lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[id]
	if l == nil {
		if len(r.lanes) >= maxLanes {
			clear(r.lanes) // who is forgotten is claimed again
		}
		l = &lane{id: id, ahead: ahead{room: &r.kept}}
		r.lanes[id] = l
	}
	return l
}

// maxLanes bounds what is remembered of targets.
const maxLanes = 100_000

func (r *Room) jitter() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cfg.Rand.Float64()
}

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

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/workers"
)

// Store is what deliveries need of the log and its views.
type Store interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	Head(ctx context.Context, s event.Stream) (eventlog.Head, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	NextDelivery(ctx context.Context, t event.TargetID) (eventlog.DeliveryRow, error)
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
	Target event.ReplyTarget
	Body   []byte
	At     time.Time
}

// Result is what came of an attempt.
type Result struct {
	Delivered  bool
	Code       string // stable word for a failure
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
	Store    Store
	Tenure   Tenure
	Send     Sender
	Schedule outbox.Schedule
	Timeout  time.Duration // of one attempt; default 15 s
	Slots    int           // attempts at once over all targets; default 256
	Rand     *rand.Rand
	Logger   *slog.Logger
}

// Room runs one lane for each target that has something to send.
type Room struct {
	cfg   Config
	pool  *workers.Pool[event.TargetID]
	slots chan struct{}

	mu     sync.Mutex
	epochs map[event.TargetID]int64 // of the targets that this process has claimed
}

// New makes the room.
func New(cfg Config) *Room {
	if cfg.Timeout == 0 {
		cfg.Timeout = 15 * time.Second
	}
	if cfg.Slots == 0 {
		cfg.Slots = 256
	}
	cfg.Schedule = cfg.Schedule.WithDefaults()
	r := &Room{cfg: cfg, slots: make(chan struct{}, cfg.Slots), epochs: map[event.TargetID]int64{}}
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

// work sends what is due in a target's lane, one after the other.
func (r *Room) work(ctx context.Context, id event.TargetID, w *workers.Worker) time.Time {
	term := r.cfg.Tenure.Term()
	if term.Context().Err() != nil {
		return time.Time{} // looked at when the lease begins anew
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term.Context(), cancel)()
	for fenced := false; ; {
		due, more, err := r.step(ctx, id, w, term)
		var other *eventlog.ConditionError
		var held *eventlog.HeldError
		switch {
		case ctx.Err() != nil, term.Context().Err() != nil, errors.As(err, &held):
			return time.Time{} // another node's, which was woken too
		case errors.Is(err, eventlog.ErrFenced) && !fenced:
			fenced = true // what was remembered of it is forgotten: once more, with a claim
		case errors.Is(err, eventlog.ErrFenced):
			return time.Time{}
		case errors.As(err, &other): // a person resolved it in between: look at what is next
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

// step looks at the head of the lane. It gives when to come back if that is
// not due yet, and whether there may be more to do now.
func (r *Room) step(ctx context.Context, id event.TargetID, w *workers.Worker, term eventlog.Term) (due time.Time, more bool, err error) {
	head, err := r.cfg.Store.Head(ctx, id.Stream())
	if err != nil {
		return due, false, err
	}
	row, err := r.cfg.Store.NextDelivery(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		w.Gives()
		r.cfg.Tenure.Rest(id.Stream(), head.Seq) // what came after this head wakes it again
		return due, false, nil
	}
	if err != nil {
		return due, false, err
	}
	now, err := r.cfg.Store.Now(ctx)
	if err != nil {
		return due, false, err
	}
	if row.Open == 0 && row.NextAt != "" {
		at, err := event.ParseTime(row.NextAt)
		if err != nil {
			return due, false, err
		}
		if at.After(now) {
			return time.Now().Add(at.Sub(now)), false, nil // by this machine's clock, which may be off (I-16)
		}
	}
	select {
	case r.slots <- struct{}{}:
	case <-w.Draining:
		return due, true, nil
	case <-ctx.Done():
		return due, true, ctx.Err()
	}
	defer func() { <-r.slots }()
	if w.Stopping() {
		return due, true, nil
	}
	if now, err = r.cfg.Store.Now(ctx); err != nil { // the place may have been long in coming
		return due, false, err
	}
	return due, true, r.attempt(ctx, &row, now, term)
}

// attempt makes one attempt: intent, act, outcome. An attempt that a former
// owner left open is closed first; its message may have arrived, and the
// receiver knows the id.
func (r *Room) attempt(ctx context.Context, row *eventlog.DeliveryRow, now time.Time, term eventlog.Term) error {
	var events []event.Data
	if row.Open != 0 {
		events = append(events, &event.DeliveryAttemptFailed{
			Attempt: int(row.Open), Code: "abandoned", DeliveryID: row.ID, RetryAt: event.FormatTime(now),
		})
		if row.Cycle >= int64(r.cfg.Schedule.MaxAttempts) {
			return r.append(ctx, row, row.Open, append(events, &event.DeliveryDeadLettered{Attempts: int(row.Attempts), Code: "abandoned", DeliveryID: row.ID}))
		}
	}
	msg, problem, err := r.message(ctx, row)
	if err != nil {
		return err
	}
	number := int(row.Attempts) + 1
	if problem != "" {
		return r.append(ctx, row, row.Open, append(events, &event.DeliveryDeadLettered{Attempts: int(row.Attempts), Code: problem, DeliveryID: row.ID}))
	}
	started := &event.DeliveryAttemptStarted{Attempt: number, Cycle: int(row.Cycle) + 1, DeliveryID: row.ID}
	if err := r.append(ctx, row, row.Open, append(events, started)); err != nil {
		return err
	}
	if err := term.Await(ctx); err != nil { // I-11
		return errors.Join(eventlog.ErrFenced, err)
	}
	sctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	began := time.Now()
	msg.At = now
	res := r.cfg.Send(sctx, msg)
	took := time.Since(began).Milliseconds()
	if ctx.Err() != nil {
		return ctx.Err() // in doubt: the next start closes it
	}
	log := r.cfg.Logger.With("target_id", row.TargetID, "delivery_id", row.ID, "run_id", row.RunID, "attempt", number)
	if res.Delivered {
		log.Info("delivered", "status", res.Status)
		return r.record(ctx, row, number, []event.Data{&event.DeliveryDelivered{Attempt: number, DeliveryID: row.ID, DurationMS: took, Status: res.Status}})
	}
	log.Warn("delivery attempt failed", "code", res.Code, "status", res.Status, "detail", res.Detail)
	return r.record(ctx, row, number, r.failed(ctx, row, started, res, took))
}

// record appends the outcome of an attempt. It is a fact: a store in trouble
// must not cost it, or what was delivered would be sent again.
func (r *Room) record(ctx context.Context, row *eventlog.DeliveryRow, attempt int, datas []event.Data) error {
	for {
		err := r.append(ctx, row, int64(attempt), datas)
		var other *eventlog.ConditionError
		var held *eventlog.HeldError
		if err == nil || ctx.Err() != nil || errors.Is(err, eventlog.ErrFenced) || errors.As(err, &held) || errors.Is(err, eventlog.ErrClosed) || errors.As(err, &other) {
			return err
		}
		r.cfg.Logger.Error("record delivery attempt", "delivery_id", row.ID, "err", err, "retry_in", restAfter)
		select {
		case <-time.After(restAfter):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// failed tells a failed attempt, and what follows from it.
func (r *Room) failed(ctx context.Context, row *eventlog.DeliveryRow, s *event.DeliveryAttemptStarted, res Result, took int64) []event.Data {
	now, err := r.cfg.Store.Now(ctx)
	if err != nil {
		now = time.Now()
	}
	began := now // age counts from the first enqueueing; a replay has no age limit but its attempts
	if row.Cycle == row.Attempts {
		if t, err := event.ParseTime(row.CreatedAt); err == nil {
			began = t
		}
	}
	r.mu.Lock()
	jitter := r.cfg.Rand.Float64()
	r.mu.Unlock()
	d := &event.DeliveryAttemptFailed{Attempt: s.Attempt, Code: res.Code, DeliveryID: row.ID, DurationMS: took, Status: res.Status}
	next := r.cfg.Schedule.Next(s.Cycle, began, now, res.RetryAfter, res.Permanent, jitter)
	if next.IsZero() {
		return []event.Data{d, &event.DeliveryDeadLettered{Attempts: s.Attempt, Code: res.Code, DeliveryID: row.ID}}
	}
	d.RetryAt = event.FormatTime(next)
	return []event.Data{d}
}

// message loads what is sent. problem is a code when it never can be.
func (r *Room) message(ctx context.Context, row *eventlog.DeliveryRow) (m Message, problem string, err error) {
	m.ID = row.ID
	m.Body, _, err = r.cfg.Store.Blob(ctx, row.SessionID, row.Body)
	if err == nil {
		var address []byte
		if address, _, err = r.cfg.Store.Blob(ctx, row.SessionID, row.Address); err == nil {
			err = json.Unmarshal(address, &m.Target)
		}
	}
	if errors.Is(err, eventlog.ErrErased) || errors.Is(err, eventlog.ErrNotFound) {
		return m, "erased", nil
	}
	return m, "", err
}

// append writes to the target's stream as its owner; the first append of this
// process claims it. The delivery must be pending, with the attempt open in
// flight (0: none) and as many attempts as are known here, so that an append whose
// answer was lost is not made twice, and one that lands late begins nothing.
func (r *Room) append(ctx context.Context, row *eventlog.DeliveryRow, open int64, datas []event.Data) error {
	r.mu.Lock()
	epoch, owned := r.epochs[row.TargetID]
	r.mu.Unlock()
	events := make([]event.Event, len(datas))
	for i, d := range datas {
		events[i] = event.Event{SessionID: row.SessionID, UserID: row.UserID, RunID: row.RunID, Data: d}
	}
	here := []derived.Col{{Name: "target_id", Value: string(row.TargetID)}, {Name: "delivery_id", Value: string(row.ID)}}
	stamps, err := r.cfg.Store.Append(ctx, eventlog.Append{
		Entries: []eventlog.Entry{{Stream: row.TargetID.Stream(), Expect: eventlog.AnyHead, Epoch: epoch, Claim: !owned, Events: events, Node: r.cfg.Tenure.Node()}},
		Require: []eventlog.Condition{
			{Table: derived.Outbox, Where: here, Column: "status", In: []any{outbox.Pending}},
			{Table: derived.Outbox, Where: here, Column: "n_open", In: []any{open}},
			{Table: derived.Outbox, Where: here, Column: "n_attempts", In: []any{max(row.Attempts, open)}},
		},
	})
	var held *eventlog.HeldError
	if errors.Is(err, eventlog.ErrFenced) || errors.As(err, &held) {
		r.mu.Lock()
		delete(r.epochs, row.TargetID)
		r.mu.Unlock()
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	if len(r.epochs) >= maxEpochs {
		clear(r.epochs) // who is forgotten is claimed again
	}
	r.epochs[row.TargetID] = stamps[0].Epoch
	r.mu.Unlock()
	return nil
}

// maxEpochs bounds what is remembered of claimed targets.
const maxEpochs = 100_000

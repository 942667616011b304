// Package jobs works on jobs: one worker for each that is started, on the node
// that owns it, delivery by delivery until it is at its end. What was done is
// told in the append that does it, so that each delivery of a job is replayed once,
// whoever dies in between.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/workers"
)

// Store is what jobs need of the log and its views.
type Store interface {
	Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error)
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	Delivery(ctx context.Context, id event.DeliveryID) (eventlog.DeliveryRow, error)
	Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error)
	Now(ctx context.Context) (time.Time, error)
}

// Tenure is the lease under which jobs are worked on.
type Tenure interface {
	Node() eventlog.NodeID
	Term() eventlog.Term
	Rest(s event.Stream, head int64)
	Yield(s event.Stream)
	Grace() time.Duration
}

// Config is what the room works with. Zero fields take the defaults.
type Config struct {
	Store  Store
	Tenure Tenure
	// CheckTarget says whether an address may be used now; its error is why not.
	CheckTarget func(ctx context.Context, user string, t event.ReplyTarget) (event.ReplyTarget, error)
	Pace        int // replays to one target, each second, of one job; default job.DefaultPace
	Active      int // jobs at once; default 16
	Logger      *slog.Logger
	// Held says whether nothing may begin now, for want of room to record it. Nil: never.
	Held func() bool
}

// heldAfter is how soon is looked again whether what was held back may begin.
const heldAfter = time.Second

// Room runs one worker for each job.
type Room struct {
	cfg  Config
	pool *workers.Pool[event.JobID]
}

// New makes the room.
func New(cfg Config) *Room {
	if cfg.Pace == 0 {
		cfg.Pace = job.DefaultPace
	}
	if cfg.Active == 0 {
		cfg.Active = 16
	}
	r := &Room{cfg: cfg}
	r.pool = workers.New(cfg.Active, r.work)
	return r
}

// Start takes work from the store, from now on.
func (r *Room) Start() {
	r.pool.Draw(workers.Source[event.JobID]{
		Take: r.take, Failed: func(err error) {
			level := slog.LevelError
			if errors.Is(err, eventlog.ErrFenced) { // there is no lease just now, which is said where leases are
				level = slog.LevelDebug
			}
			r.cfg.Logger.Log(context.Background(), level, "no jobs could be taken up; they are asked for again every second", "err", err)
		},
	})
}

func (r *Room) take(ctx context.Context, limit int, mine bool) ([]event.JobID, error) {
	if wait := r.cfg.Tenure.Grace(); wait > 0 {
		r.pool.Look(wait, mine)
		return nil, nil
	}
	streams, err := r.cfg.Store.Take(ctx, r.cfg.Tenure.Node(), eventlog.Jobs, limit, mine)
	ids := make([]event.JobID, 0, len(streams))
	for _, s := range streams {
		if id, ok := s.Job(); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Stop begins no further step and waits for those in flight until ctx ends.
// Jobs that wait for their time are given to others at once.
func (r *Room) Stop(ctx context.Context) {
	for _, id := range r.pool.Drain() {
		r.cfg.Tenure.Yield(id.Stream())
	}
	r.pool.Stop(ctx)
}

// Look has the store asked for work, with mine also for what this node holds already.
func (r *Room) Look(mine bool) { r.pool.Look(0, mine) }

// Heard says that another node has started a job, or asked for its end.
func (r *Room) Heard(id event.JobID) { r.pool.Heard(id) }

// Begun says that another node works on a job.
func (r *Room) Begun(id event.JobID) { r.pool.Begun(id) }

// Wake says that a job has something to do. It never blocks.
func (r *Room) Wake(id event.JobID) { r.pool.Wake(id) }

// retakeAfter is how soon a job looks again whose step was overtaken, restAfter
// how long it rests when it could not read or write the log.
const (
	retakeAfter = 20 * time.Millisecond
	restAfter   = 2 * time.Second
)

// owned is a job in the hands of a worker.
type owned struct {
	*job.State
	claimed bool // in this run of the worker
}

// work does what a job asks for, step by step, until it is at its end, must
// wait longer than a moment, or is another's.
func (r *Room) work(ctx context.Context, id event.JobID, w *workers.Worker) time.Time {
	term := r.cfg.Tenure.Term()
	if term.Context().Err() != nil {
		return time.Time{} // looked at when the lease begins anew
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term.Context(), cancel)()
	o := &owned{State: &job.State{ID: id}}
	for {
		if w.Stopping() {
			r.cfg.Tenure.Yield(id.Stream())
			return time.Time{}
		}
		wait, more, err := r.step(ctx, o)
		var held *eventlog.HeldError
		var other *eventlog.ConditionError
		switch {
		case ctx.Err() != nil, term.Context().Err() != nil, errors.As(err, &held), errors.Is(err, eventlog.ErrFenced):
			return time.Time{} // another node's, which was woken too
		case errors.As(err, &other), errors.Is(err, eventlog.ErrHeadMoved):
			// A delivery, or the job, is not as it was seen: look again.
			wait, more = retakeAfter, true
		case err != nil:
			r.cfg.Logger.Error("job", "job_id", id, "err", err, "retry_in", restAfter)
			w.Rest()
			return time.Now().Add(restAfter)
		case !more:
			w.Gives()
			r.cfg.Tenure.Rest(id.Stream(), o.Head)
			return time.Time{}
		}
		if !pause(ctx, w, wait) {
			return time.Time{}
		}
	}
}

// pause waits; a wake ends it, and a drain. False: the work is cut.
func pause(ctx context.Context, w *workers.Worker, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.Bell:
	case <-w.Draining:
	case <-ctx.Done():
		return false
	}
	return true
}

// readAtOnce bounds the events of one read.
const readAtOnce = 256

// catchUp folds what came since.
func (r *Room) catchUp(ctx context.Context, st *job.State) error {
	for {
		events, err := r.cfg.Store.ReadBounded(ctx, st.ID.Stream(), st.Head, readAtOnce)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return nil
		}
		for i := range events {
			if err := events[i].Decode(); err != nil {
				return err
			}
			if err := st.Apply(&events[i]); err != nil {
				return err
			}
		}
	}
}

// step does the next thing. It gives how long to wait before the one after it,
// and whether there is one.
func (r *Room) step(ctx context.Context, o *owned) (wait time.Duration, more bool, err error) {
	if err := r.catchUp(ctx, o.State); err != nil {
		return 0, false, err
	}
	now, err := r.cfg.Store.Now(ctx)
	if err != nil {
		return 0, false, err
	}
	next := o.Next(now, r.cfg.Pace)
	switch {
	case next.End != "":
		return 0, true, r.append(ctx, o, []event.Data{o.End(next.End)}, nil, nil)
	case len(next.Items) > 0 && r.cfg.Held != nil && r.cfg.Held():
		return heldAfter, true, nil
	case len(next.Items) > 0:
		return 0, true, r.replay(ctx, o, next.Items)
	case !next.Wait.IsZero():
		return next.Wait.Sub(now), true, nil // by this machine's clock, which may be off (I-16)
	}
	return 0, false, nil
}

// replay puts deliveries at the tails of their lanes, all of them and the word
// that they were in one append.
func (r *Room) replay(ctx context.Context, o *owned, items []event.JobItem) error {
	var done []event.DeliveryID
	var skipped []event.JobSkipped
	var entries []eventlog.Entry
	var require []eventlog.Condition
	for _, it := range items {
		row, code, err := r.look(ctx, o, it)
		if err != nil {
			return err
		}
		if code != "" {
			skipped = append(skipped, event.JobSkipped{DeliveryID: it.DeliveryID, Code: code})
			continue
		}
		e, c := row.Replay(&event.DeliveryReplayed{
			Actor: o.Plan.Actor, Forced: row.Status != outbox.DeadLettered, JobID: o.ID, Reason: o.Plan.Reason,
		})
		entries, require = append(entries, e), append(require, c...)
		done = append(done, it.DeliveryID)
	}
	return r.append(ctx, o, o.Advance(done, skipped), entries, require)
}

// look says whether a delivery can be replayed now, or by a word why not.
func (r *Room) look(ctx context.Context, o *owned, it event.JobItem) (row eventlog.DeliveryRow, skip string, err error) {
	row, err = r.cfg.Store.Delivery(ctx, it.DeliveryID)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		return row, job.SkipGone, nil
	case err != nil:
		return row, "", err
	case row.LaneSeq != it.LaneSeq, row.Status == outbox.Pending, row.Status == outbox.Delivered:
		return row, job.SkipReplayed, nil
	case row.Status == outbox.Resolved && !o.Plan.Force:
		return row, job.SkipResolved, nil
	}
	if code := outbox.Replayable(row.Status, row.Open, row.Replays, o.Plan.Force); code != "" {
		return row, code, nil
	}
	address, _, err := r.cfg.Store.Blob(ctx, row.SessionID, row.Address)
	if errors.Is(err, eventlog.ErrErased) || errors.Is(err, eventlog.ErrNotFound) {
		return row, job.SkipErased, nil
	}
	if err != nil {
		return row, "", err
	}
	var target event.ReplyTarget
	if json.Unmarshal(address, &target) != nil {
		return row, job.SkipRefused, nil
	}
	if r.cfg.CheckTarget != nil {
		if _, err := r.cfg.CheckTarget(ctx, row.UserID, target); refused(err) {
			return row, job.SkipRefused, nil
		}
	}
	return row, "", ctx.Err()
}

// refused says whether an address may not be used, which is a word on it. That it
// cannot be told now, for want of a secret mostly, is none: the attempt asks again.
func refused(err error) bool {
	var p *problem.Error
	if !errors.As(err, &p) {
		return false
	}
	switch p.Kind {
	case problem.Invalid, problem.Forbidden, problem.NotFound, problem.Gone:
		return true
	}
	return false
}

// append writes to the job's stream as its owner; the first append of a worker
// claims it. It must stand where it was folded to, so that an append whose answer
// was lost is not made twice.
func (r *Room) append(ctx context.Context, o *owned, datas []event.Data, entries []eventlog.Entry, require []eventlog.Condition) error {
	mine := eventlog.Entry{Stream: o.ID.Stream(), Expect: o.Head, Node: r.cfg.Tenure.Node(), Claim: !o.claimed, Epoch: o.Epoch}
	for _, d := range datas {
		mine.Events = append(mine.Events, event.Event{UserID: o.UserID, Data: d})
		if _, end := d.(*event.JobEnded); end {
			mine.Rest = true
		}
	}
	_, err := r.cfg.Store.Append(ctx, eventlog.Append{Entries: append([]eventlog.Entry{mine}, entries...), Require: require})
	if err != nil {
		return fmt.Errorf("append to job: %w", err)
	}
	o.claimed = true
	if mine.Rest {
		r.cfg.Logger.Info("job ended", "job_id", o.ID, "done", o.Done, "of", len(o.Items))
	}
	return nil
}

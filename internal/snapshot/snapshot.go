// Package snapshot is the room that keeps sessions as they are folded, so that
// a long session loads as fast as a short one.
//
// A snapshot follows from the log and is never more than a short cut: one that
// is missing, of another version, or not what its place in the log says is
// passed over, and the session is folded from its first event. Snapshots are
// made and written beside the work, by one goroutine; when more are offered than
// it can write, the next ones are not made.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/workers"
)

// Every is the number of events between two snapshots of a session. To fold so
// many takes some milliseconds, which is not felt at a load; a snapshot costs
// about as much to make as the last entries that a model may be shown are
// large, and is so spread over some dozens of runs.
const Every = 500

// maxWaiting bounds the states that wait to be written, each of which may hold
// some megabytes.
const maxWaiting = 64

// patience is how long the store may take for one snapshot.
const patience = 30 * time.Second

// Store is what the room needs of the log.
type Store interface {
	eventlog.Snapshots
	Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
}

// Config says what the room works with. Zero fields take the defaults.
type Config struct {
	Store  Store
	Logger *slog.Logger // default: nothing is logged
	Every  int64        // events; default Every
}

// Room keeps snapshots. It is safe for concurrent use; Stop ends it.
type Room struct {
	cfg  Config
	pool *workers.Pool[event.SessionID]

	mu      sync.Mutex
	waiting map[event.SessionID]*session.State
	stopped bool
}

// New makes the room.
func New(cfg Config) *Room {
	if cfg.Every == 0 {
		cfg.Every = Every
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Room{cfg: cfg, waiting: map[event.SessionID]*session.State{}}
	r.pool = workers.New(1, r.save)
	return r
}

// Stop takes nothing more, drops what waits, and awaits the one that is being
// written until ctx ends.
func (r *Room) Stop(ctx context.Context) {
	r.mu.Lock()
	r.stopped = true
	clear(r.waiting)
	r.mu.Unlock()
	r.pool.Stop(ctx)
}

// Due says whether a session that had the first head has, with the second, a
// snapshot to come. It goes by the sequences alone, so that nothing need be
// remembered of a session.
func (r *Room) Due(before, now int64) bool { return before/r.cfg.Every != now/r.cfg.Every }

// Offer has a snapshot written of a state, which is the room's from now on. It
// never blocks.
func (r *Room) Offer(st *session.State) {
	if st.Status == session.Erased || st.Size() > 2*eventlog.MaxSnapshot {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.waiting[st.ID]
	if r.stopped || !known && len(r.waiting) >= maxWaiting {
		return
	}
	r.waiting[st.ID] = st
	r.pool.Wake(st.ID)
}

// save writes the snapshot that waits of a session.
func (r *Room) save(ctx context.Context, id event.SessionID, _ *workers.Worker) time.Time {
	r.mu.Lock()
	st := r.waiting[id]
	delete(r.waiting, id)
	r.mu.Unlock()
	if st == nil {
		return time.Time{}
	}
	if err := r.write(ctx, st); err != nil && !errors.Is(err, eventlog.ErrClosed) && ctx.Err() == nil {
		r.cfg.Logger.Warn("snapshot not written", "session_id", id, "head", st.Head, "err", err)
	}
	return time.Time{}
}

func (r *Room) write(ctx context.Context, st *session.State) error {
	data, err := st.Encode()
	if err != nil {
		return err
	}
	if len(data) > eventlog.MaxSnapshot {
		r.cfg.Logger.Debug("session too large for a snapshot", "session_id", st.ID, "bytes", len(data))
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.cfg.Store.SaveSnapshot(ctx, eventlog.Snapshot{
		SessionID: st.ID, Version: session.StateVersion, Head: st.Head, Epoch: st.Epoch, State: data,
	})
}

// Load gives a session as its snapshot has it, or nil when there is none to
// begin with. What the log holds behind it is still to be folded.
func (r *Room) Load(ctx context.Context, id event.SessionID) *session.State {
	snap, err := r.cfg.Store.Snapshot(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil
	}
	var st *session.State
	if err == nil {
		if snap.Version != session.StateVersion { // of an older program, or of a newer one
			return nil
		}
		st, err = r.read(ctx, &snap)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.cfg.Logger.Warn("snapshot not used", "session_id", id, "head", snap.Head, "err", err)
		}
		return nil
	}
	return st
}

// read decodes a snapshot and holds it against the event that it ends with.
func (r *Room) read(ctx context.Context, snap *eventlog.Snapshot) (*session.State, error) {
	events, err := r.cfg.Store.Read(ctx, snap.SessionID.Stream(), snap.Head-1, 1)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 || events[0].Seq != snap.Head || events[0].Hash != snap.Hash {
		return nil, fmt.Errorf("the log has another event %d", snap.Head)
	}
	st, err := session.DecodeState(snap.State)
	if err != nil {
		return nil, err
	}
	if st.ID != snap.SessionID || st.Head != snap.Head || st.Epoch != snap.Epoch {
		return nil, errors.New("it holds another place of the log than it says")
	}
	return st, nil
}

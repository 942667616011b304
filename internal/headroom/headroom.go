// Package headroom keeps the last of the disk for work that is under way, and
// says when nothing new may begin.
//
// There are two lines. Below the reserve commands are refused that would bring
// more work; what ends work or makes room is still taken, and what runs goes on. Below a
// quarter of it no act begins either (a model call, a tool, a delivery), so
// that what is in flight finds room for its outcome. Above both everything goes on by
// itself. A store that is damaged, and a data directory that was restored
// and is not released, hold acts back in the same way.
package headroom

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// RestoredFile is the name of the file in a data directory that says that it
// was restored from a backup and is not released yet.
const RestoredFile = "RESTORED"

// fullFor is how long an append that found no room speaks for the store, when
// none is tried after it.
const fullFor = 10 * time.Second

// Config says what is watched. Nil functions stand for nothing to watch.
type Config struct {
	// Free gives the free bytes of the disk; false: they cannot be told.
	Free    func() (uint64, bool)
	Reserve uint64
	// Damaged gives why the store takes no more, once it is damaged.
	Damaged func() error
	// Restored says whether the data directory was restored and is not released.
	Restored func() bool
	Every    time.Duration // how long an answer of Free and Restored counts; default 500 ms
	Logger   *slog.Logger
}

// Room is safe for concurrent use.
type Room struct {
	cfg Config

	mu       sync.Mutex
	asked    time.Time
	free     uint64
	known    bool
	restored bool
	full     time.Time // the last append that found no room, while none has found some since
	refused  uint64
	told     string
}

// New makes a room.
func New(cfg Config) *Room {
	if cfg.Every == 0 {
		cfg.Every = 500 * time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Room{cfg: cfg}
}

// State is how the room stands.
type State struct {
	Free, Reserve uint64
	Known         bool // what is free
	Low           bool // commands are refused
	Full          bool // an append found no room a moment ago
	Damaged       error
	Restored      bool
	Refused       uint64 // commands, since the start
}

// Held says whether acts may not begin.
func (s *State) Held() bool {
	return s.Damaged != nil || s.Restored || s.Known && s.Free < s.Reserve/4
}

// State gives how the room stands.
func (r *Room) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.asked.IsZero() || now.Sub(r.asked) >= r.cfg.Every {
		r.asked = now
		if r.cfg.Free != nil {
			r.free, r.known = r.cfg.Free()
		}
		r.restored = r.cfg.Restored != nil && r.cfg.Restored()
	}
	s := State{Free: r.free, Reserve: r.cfg.Reserve, Known: r.known, Restored: r.restored, Refused: r.refused}
	s.Low = s.Known && s.Free < s.Reserve
	s.Full = !r.full.IsZero() && time.Since(r.full) < fullFor
	if r.cfg.Damaged != nil {
		s.Damaged = r.cfg.Damaged()
	}
	r.tell(&s)
	return s
}

// tell writes a change of the state into the daemon's log.
func (r *Room) tell(s *State) {
	var text string
	switch {
	case s.Damaged != nil:
		text = "damaged"
	case s.Held() && !s.Restored:
		text = "held"
	case s.Low || s.Full:
		text = "low"
	}
	if text == r.told {
		return
	}
	before := r.told
	r.told = text
	log := r.cfg.Logger.With("free_bytes", s.Free, "reserve_bytes", s.Reserve)
	switch text {
	case "damaged":
		log.Error("the database is damaged: nothing more is written and no work begins; what can be read is served. Stop the daemon, keep its data directory as it is, and restore a backup", "err", s.Damaged)
	case "held":
		log.Error("the disk is nearly full: no model call, tool or delivery begins until there is room; outcomes are still recorded")
	case "low":
		log.Error("the disk is filling up: new work is refused (507 storage_full); what runs goes on")
	default:
		log.Info("there is room again; work goes on", "before", before)
	}
}

// Held says whether acts may not begin now. What is held back asks again a moment later.
func (r *Room) Held() bool {
	s := r.State()
	return s.Held()
}

// Ready says why no new work is taken, or nil. What it says is fit for everybody.
func (r *Room) Ready() error {
	var why string
	switch s := r.State(); {
	case s.Damaged != nil:
		why = "the database is damaged: nothing more is written, what can be read is served; restore a backup"
	case s.Low:
		why = "the disk is nearly full: new work is refused until there is room (store.reserve)"
	case s.Full:
		why = "no space is left for the store: new work is refused until there is room"
	case s.Restored:
		why = "the data directory was restored from a backup: no work begins until it is released (holdfast restore --release)"
	default:
		return nil
	}
	return problem.New(problem.Unavailable, "not_ready", "%s", why)
}

// Take says whether an append may go to the store, or why not: a
// *eventlog.FullError for one that would bring work while the reserve is in use.
func (r *Room) Take(a *eventlog.Append) error {
	if ends(a) {
		return nil
	}
	return r.Grow()
}

// Grow is Take for what is stored beside the log.
func (r *Room) Grow() error {
	s := r.State()
	if !s.Low {
		return nil
	}
	r.mu.Lock()
	r.refused++
	r.mu.Unlock()
	return &eventlog.FullError{Kept: true, Free: s.Free, Reserve: s.Reserve}
}

// Note is told what came of each append.
func (r *Room) Note(err error) {
	full := errors.Is(err, eventlog.ErrFull)
	if err != nil && !full {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case full:
		r.full = time.Now()
		r.refused++
	case !r.full.IsZero():
		r.full = time.Time{}
	}
}

// brings says whether an event is new work, also where it begins in the append in which
// it is submitted.
func brings(e event.Event) bool {
	return e.Data != nil && e.Data.EventType() == event.TypeRunCreated
}

// ends says whether an append belongs to work that is under way, ends work or a
// danger, or makes room; or is the record of a start, which brings back what was
// under way.
func ends(a *eventlog.Append) bool {
	if a.Erase != "" {
		return true
	}
	for i := range a.Entries {
		e := &a.Entries[i]
		if e.Node != "" { // an owner's; what goes with it into other streams belongs to it
			return !slices.ContainsFunc(e.Events, brings)
		}
		for j := range e.Events {
			if e.Events[j].Data == nil {
				return false
			}
			switch e.Events[j].Data.EventType() {
			case event.TypeCancelRequested, event.TypeInterruptRequested, event.TypeAttentionResolved,
				event.TypeSessionClosed, event.TypeSessionErased, event.TypeDeliveryResolved, event.TypeTargetPaused,
				event.TypeJobCancelRequested, event.TypeDeliveryExpired, event.TypeJobExpired,
				// What leaked is taken back, and a daemon starts, whatever room there is.
				event.TypeAuditStarted, event.TypeAuditTokenRevoked, event.TypeAuditSecretChanged, event.TypeAuditTargetChanged:
			default:
				return false
			}
		}
	}
	return true
}

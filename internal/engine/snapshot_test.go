package engine_test

import (
	"context"
	"log/slog"
	mathrand "math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/snapshot"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// reads notes from where the log is read.
type reads struct {
	*sqlite.Store
	mu    sync.Mutex
	first int64 // -1: nothing was read
}

func (r *reads) Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	r.mu.Lock()
	if r.first < 0 || after < r.first {
		r.first = after
	}
	r.mu.Unlock()
	return r.Store.Read(ctx, s, after, limit)
}

// offers notes what is offered to a room.
type offers struct {
	*snapshot.Room
	heads []int64
	busy  int // of sessions that were not at rest
}

func (o *offers) Offer(st *session.State) {
	o.heads = append(o.heads, st.Head)
	if st.Active != nil || len(st.Queue) > 0 {
		o.busy++
	}
	o.Room.Offer(st)
}

func (h *house) withSnapshots(every int64, owner string) (*engine.Engine, *offers, *reads) {
	h.t.Helper()
	set, err := tool.NewSet()
	if err != nil {
		h.t.Fatal(err)
	}
	log := &reads{Store: h.store, first: -1}
	o := &offers{Room: snapshot.New(snapshot.Config{Store: h.store, Every: every})}
	return engine.New(engine.Config{
		Log: log, Snapshots: o, Hub: &h.hub, Tools: set, Node: eventlog.NodeID(owner), Rand: mathrand.New(mathrand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		Model: func(event.Route) (llm.Model, error) { return strict{h.t, h.model}, nil },
	}), o, log
}

// A session is loaded from its snapshot and what stands behind it, and goes on
// as one that is folded from its first event.
func TestLoadFromSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, `rules: [{reply: {text: "ok"}}]`)
		defer h.close()
		s := h.session(&api.CreateSession{})
		eng, made, _ := h.withSnapshots(40, "gen_1")
		for range 20 {
			h.submit(s, "go")
			h.drive(eng, s.ID)
		}
		synctest.Wait()
		snap, err := h.store.Snapshot(t.Context(), s.ID)
		if err != nil || len(made.heads) < 3 {
			t.Fatalf("snapshots at %v: %v", made.heads, err)
		}
		next, _, log := h.withSnapshots(40, "gen_2")
		st, err := next.Load(t.Context(), s.ID)
		if err != nil || log.first != snap.Head {
			t.Fatalf("the log was read from %d, the snapshot stands at %d: %v", log.first, snap.Head, err)
		}
		plain := h.other("gen_3")
		whole, err := plain.Load(t.Context(), s.ID)
		if err != nil || !reflect.DeepEqual(st.Clone(), whole.Clone()) {
			t.Fatalf("%+v, from the first event %+v %v", st, whole, err)
		}
		h.status(h.submit(s, "again"), session.StatusQueued)
		h.drive(next, s.ID)
		h.verify()
	})
}

// A long session without a snapshot gets one when it is loaded.
func TestSnapshotAtLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, `rules: [{reply: {text: "ok"}}]`)
		defer h.close()
		s := h.session(&api.CreateSession{})
		for range 5 {
			h.submit(s, "go")
			h.drive(h.eng, s.ID)
		}
		eng, made, _ := h.withSnapshots(40, "gen_1")
		for range 2 { // the second begins with the snapshot of the first
			if _, err := eng.Load(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if len(made.heads) != 1 {
			t.Errorf("snapshots at %v", made.heads)
		}
	})
}

// A session that does not come to rest has snapshots too.
func TestSnapshotsWithoutRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, `rules: [{reply: {text: "ok"}}]`)
		defer h.close()
		s := h.session(&api.CreateSession{})
		for range 350 {
			h.submit(s, "go")
		}
		eng, made, _ := h.withSnapshots(100, "gen_1")
		h.drive(eng, s.ID)
		synctest.Wait()
		if made.busy == 0 {
			t.Errorf("snapshots only at %v", made.heads)
		}
		for i, head := range made.heads[1:] {
			if head-made.heads[i] > 3000 {
				t.Errorf("snapshots at %v", made.heads)
			}
		}
		h.verify()
	})
}

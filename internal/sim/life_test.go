package sim_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/lane"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/snapshot"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// faults stands between the rooms of one life and the store. At append number
// crashAt it cuts the rooms off, before the commit or behind it; in between it
// fails now and then.
type faults struct {
	*sqlite.Store
	mu      sync.Mutex
	random  *rand.Rand
	appends int
	saved   int // snapshots
	loaded  int
	crashAt int // 0: never
	behind  bool
	rate    int // failures in a thousand
	dead    bool
	crashed chan struct{}
}

var errFault = errors.New("a fault that was put in")

// failed draws whether an operation fails; dead: the life is over.
func (f *faults) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.dead:
		return eventlog.ErrClosed
	case f.random.IntN(1000) < f.rate:
		return errFault
	}
	return nil
}

// calm ends the faults of this life.
func (f *faults) calm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt, f.rate = 0, 0
}

func (f *faults) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dead {
		f.dead = true
		close(f.crashed)
	}
}

func (f *faults) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	if err := f.failed(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.appends++
	now := f.appends == f.crashAt
	lost := f.random.IntN(1000) < f.rate
	f.mu.Unlock()
	if now && !f.behind {
		f.die()
		return nil, eventlog.ErrClosed
	}
	stamps, err := f.Store.Append(ctx, a)
	if now {
		f.die()
		return nil, eventlog.ErrClosed
	}
	if err == nil && lost {
		return nil, errFault
	}
	return stamps, err
}

func (f *faults) Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	if err := f.failed(); err != nil {
		return nil, err
	}
	return f.Store.Read(ctx, s, after, limit)
}

func (f *faults) Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error) {
	if err := f.failed(); err != nil {
		return nil, "", err
	}
	return f.Store.Blob(ctx, owner, ref)
}

func (f *faults) SaveSnapshot(ctx context.Context, s eventlog.Snapshot) error {
	if err := f.failed(); err != nil {
		return err
	}
	if err := f.Store.SaveSnapshot(ctx, s); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saved++
	return nil
}

func (f *faults) Snapshot(ctx context.Context, id event.SessionID) (eventlog.Snapshot, error) {
	if err := f.failed(); err != nil {
		return eventlog.Snapshot{}, err
	}
	s, err := f.Store.Snapshot(ctx, id)
	if err == nil {
		f.mu.Lock()
		f.loaded++
		f.mu.Unlock()
	}
	return s, err
}

func (f *faults) NextDelivery(ctx context.Context, t event.TargetID) (eventlog.DeliveryRow, error) {
	if err := f.failed(); err != nil {
		return eventlog.DeliveryRow{}, err
	}
	return f.Store.NextDelivery(ctx, t)
}

// life is one process life of the house.
type life struct {
	store     *sqlite.Store
	faults    *faults
	adm       *admission.Admission
	lane      *lane.Lane
	lease     *tenure.Tenure
	delivery  *delivery.Room
	snapshots *snapshot.Room
	hub       live.Hub
}

// chance is the one source of random bytes of all lives.
type chance struct {
	mu  sync.Mutex
	src *rand.ChaCha8
}

func (c *chance) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.src.Read(p)
}

// open begins a life on a data directory.
func open(t *testing.T, w *world, dir, owner string, random io.Reader, seed uint64, crashAt, rate int, behind bool) *life {
	t.Helper()
	l := &life{}
	var mu sync.Mutex // rooms are wired while the store works already
	store, err := sqlite.Open(context.Background(), sqlite.Config{
		Dir: dir, Sync: sqlite.SyncNormal, Rows: eventlog.Rows, CheckSnapshot: eventlog.CheckSnapshot, Random: random,
		OnCommit: func(stamps []eventlog.Stamp) {
			mu.Lock()
			defer mu.Unlock()
			l.committed(stamps)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	l.store = store
	l.faults = &faults{
		Store: store, random: rand.New(rand.NewPCG(seed, 1)), crashAt: crashAt, behind: behind, rate: rate, crashed: make(chan struct{}),
	}
	tools, err := tool.NewSet(w.tools()...)
	if err != nil {
		t.Fatal(err)
	}
	words := slog.New(slog.NewTextHandler(&w.log, nil))
	// So often that lives begin with snapshots, in the middle of runs too.
	l.snapshots = snapshot.New(snapshot.Config{Store: l.faults, Logger: words, Every: 10})
	eng := engine.New(engine.Config{
		Log: l.faults, Snapshots: l.snapshots, Hub: &l.hub, Tools: tools, Node: eventlog.NodeID(owner), Rand: rand.New(rand.NewPCG(seed, 2)), Logger: words, MaxParallel: 3,
		Model: func(event.Route) (llm.Model, error) { return w, nil },
	})
	l.lease = tenure.New(tenure.Config{Nodes: l.faults, Node: eventlog.Node{ID: eventlog.NodeID(owner)}, Logger: words})
	l.lane = lane.New(lane.Config{Driver: eng, Tenure: l.lease, Take: store.Take, Logger: words, MaxActive: 2, CacheSize: 2})
	l.delivery = delivery.New(delivery.Config{
		Store: l.faults, Tenure: l.lease, Send: w.send, Rand: rand.New(rand.NewPCG(seed, 3)), Logger: words, Timeout: 5 * time.Second,
		Schedule: outbox.Schedule{MaxAttempts: 4, InitialBackoff: time.Second, MaxBackoff: time.Minute},
	})
	l.adm = admission.New(admission.Config{
		Store: l.faults, Tools: tools, Random: random,
		Route: func(string, string) (event.Route, error) {
			return event.Route{Name: "main", Provider: "world", Model: "world"}, nil
		},
		CheckTarget: func(event.ReplyTarget) error { return nil },
	})
	return l
}

func (l *life) start(t *testing.T) {
	t.Helper()
	if err := l.lease.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	l.lane.Start()
	l.delivery.Start()
}

func (l *life) committed(stamps []eventlog.Stamp) {
	for i := range stamps {
		for j := range stamps[i].Events {
			switch stamps[i].Events[j].Type {
			case event.TypeRunQueued, event.TypeCancelRequested, event.TypeInterruptRequested, event.TypeAttentionResolved:
				if id, ok := stamps[i].Stream.Session(); ok {
					l.lane.Wake(id)
				}
			case event.TypeDeliveryEnqueued, event.TypeDeliveryReplayed:
				if id, ok := stamps[i].Stream.Target(); ok {
					l.delivery.Wake(id)
				}
			}
		}
	}
}

// kill drops the rooms without a goodbye: nothing of this life reaches the store any more.
func (l *life) kill(t *testing.T) {
	t.Helper()
	l.faults.die()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	l.stop(t, ended)
}

// stop ends the life in order; what is not done when ctx ends is cut.
func (l *life) stop(t *testing.T, ctx context.Context) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { l.lane.Stop(ctx) })
	wg.Go(func() { l.delivery.Stop(ctx) })
	wg.Wait()
	l.lease.Stop(context.Background())
	l.snapshots.Stop(ctx)
	if err := l.store.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

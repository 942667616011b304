package tenure_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

// nodes stands between a tenure and a real store: a test cuts it off or delays it.
type nodes struct {
	*sqlite.Store
	mu    sync.Mutex
	fail  bool
	delay time.Duration
	beats int
}

func (n *nodes) trouble(fail bool, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail, n.delay = fail, delay
}

func (n *nodes) Beat(ctx context.Context, node eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	n.mu.Lock()
	fail, delay := n.fail, n.delay
	n.beats++
	n.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return eventlog.Lease{}, ctx.Err()
		}
	}
	if fail {
		return eventlog.Lease{}, errors.New("no way to the store")
	}
	return n.Store.Beat(ctx, node, ttl)
}

const ttl = 15 * time.Second

// house is a store with tenures over it.
type house struct {
	t      *testing.T
	store  *sqlite.Store
	mu     sync.Mutex
	looks  []bool // of node a
	looked time.Time
}

func newHouse(t *testing.T) *house {
	t.Helper()
	store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Sync: sqlite.SyncNormal, Rows: eventlog.Rows})
	if err != nil {
		t.Fatal(err)
	}
	return &house{t: t, store: store}
}

func (h *house) close() {
	if err := h.store.Close(context.Background()); err != nil {
		h.t.Error(err)
	}
}

func (h *house) tenure(id eventlog.NodeID, ttl time.Duration, active *int) (*tenure.Tenure, *nodes) {
	h.t.Helper()
	n := &nodes{Store: h.store}
	tn := tenure.New(tenure.Config{
		Nodes: n, Node: eventlog.Node{ID: id}, TTL: ttl, Logger: slog.New(slog.DiscardHandler),
		Load: func() (int, int) {
			if active == nil {
				return 0, 256
			}
			return *active, 256
		},
		Look: func(mine bool) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if id == "a" {
				h.looks, h.looked = append(h.looks, mine), time.Now()
			}
		},
	})
	if tn.Held() || tn.Term().Context().Err() == nil {
		h.t.Error("a tenure begins before its first beat")
	}
	if err := tn.Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return tn, n
}

func (h *house) alive(id eventlog.NodeID) bool {
	h.t.Helper()
	rows, err := h.store.ListNodes(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	i := slices.IndexFunc(rows, func(r eventlog.NodeRow) bool { return r.ID == id })
	return i >= 0 && rows[i].Alive
}

func rest(d time.Duration) { <-time.After(d); synctest.Wait() }

// A node that cannot beat stops in time: first it begins nothing more, then it
// ends what it does, and only then is its lease over at the store. // I-11 I-16
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		tn, way := h.tenure("a", ttl, nil)
		defer tn.Stop(t.Context())
		rest(time.Minute)
		if !tn.Held() || !h.alive("a") || way.beats < 12 || way.beats > 15 {
			t.Fatalf("held %v, alive %v after %d beats", tn.Held(), h.alive("a"), way.beats)
		}
		term := tn.Term()
		way.trouble(true, 0)
		var held, lives, working time.Duration
		began := time.Now()
		for time.Since(began) < 2*ttl {
			rest(100 * time.Millisecond)
			at := time.Since(began)
			if tn.Held() {
				held = at
			}
			if term.Context().Err() == nil {
				working = at
			}
			if h.alive("a") {
				lives = at
			}
		}
		if held >= working || working > lives || held < ttl/2 || lives > ttl+time.Second {
			t.Errorf("it began acts until %v and worked until %v; at the store it lived until %v", held, working, lives)
		}
		if err := term.Await(t.Context()); !errors.Is(err, tenure.ErrLost) {
			t.Errorf("an act after the end: %v", err)
		}
		h.looks = nil
		way.trouble(false, 0)
		rest(time.Second)
		if term.Held() || !errors.Is(term.Await(t.Context()), tenure.ErrLost) {
			t.Error("the term that ended goes on with the next beat")
		}
		if !tn.Held() || tn.Term().Context().Err() != nil || !slices.Contains(h.looks, true) {
			t.Errorf("held %v with the next beat, looks %v", tn.Held(), h.looks)
		}
		if g := tn.Grace(); g <= 0 || g > 2*time.Second {
			t.Errorf("grace %v after a time without beats", g)
		}
		rest(3 * time.Second)
		if tn.Grace() > 0 {
			t.Error("the grace does not end")
		}
	})
}

// A late beat holds acts up and cuts nothing; a lease counts from when its beat
// was sent. // I-11
func TestLateBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		tn, way := h.tenure("a", ttl, nil)
		defer tn.Stop(t.Context())
		term := tn.Term()
		way.trouble(true, 0)
		rest(12500 * time.Millisecond)
		if tn.Held() || term.Context().Err() != nil {
			t.Fatalf("held %v, term %v", tn.Held(), term.Context().Err())
		}
		waited := make(chan error, 1)
		go func() { waited <- tn.Term().Await(t.Context()) }()
		rest(time.Second)
		select {
		case err := <-waited:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		way.trouble(false, 0)
		rest(time.Second)
		if err := <-waited; err != nil || term.Context().Err() != nil {
			t.Errorf("after the beat: %v, term %v", err, term.Context().Err())
		}
		way.trouble(false, 4*time.Second) // each beat is 4 s on its way
		rest(time.Minute)
		sent := time.Now()
		for !tn.Held() || tn.Term().Context().Err() != nil {
			t.Fatal("slow beats are beats")
		}
		way.trouble(true, 0)
		for tn.Held() {
			rest(50 * time.Millisecond)
		}
		if d := time.Since(sent); d > ttl-ttl/5 {
			t.Errorf("held for %v after the last beat was asked for", d)
		}
	})
}

// On a clean stop what is held is free at once; a lease without an end needs no beats.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		a, way := h.tenure("a", 0, nil)
		rest(10 * time.Hour)
		if !a.Held() || !h.alive("a") || way.beats > 11 {
			t.Errorf("held %v after %d beats", a.Held(), way.beats)
		}
		if a.Share() < 1<<20 || a.Grace() != 0 {
			t.Errorf("alone it has a share of %d and waits %v", a.Share(), a.Grace())
		}
		stream := event.SessionID("ses_1").Stream()
		run := func(node eventlog.NodeID, head int64) error {
			_, err := h.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{
				Stream: stream, Expect: head, Claim: true, Node: node,
				Events: []event.Event{{SessionID: "ses_1", UserID: "ann", Data: &event.OwnerClaimed{Owner: string(node)}}},
			}}})
			return err
		}
		if err := run("a", 0); err != nil {
			t.Fatal(err)
		}
		var held *eventlog.HeldError
		if err := run("b", 1); !errors.As(err, &held) {
			t.Fatal(err)
		}
		a.Stop(t.Context())
		a.Stop(t.Context())
		if a.Held() || a.Term().Context().Err() == nil || h.alive("a") {
			t.Error("a stopped node lives")
		}
		if err := run("b", 1); err != nil {
			t.Error(err)
		}
	})
}

// A stop that comes while a beat hangs ends the tenure when that beat has failed:
// the beat that was to tell others of the drain is not begun then, in one of two
// stops or at all.
func TestStopInABeat(t *testing.T) {
	for range 16 {
		synctest.Test(t, func(t *testing.T) {
			h := newHouse(t)
			defer h.close()
			a, way := h.tenure("a", ttl, nil)
			way.trouble(true, time.Hour)
			rest(ttl/3 + time.Second) // the second beat hangs
			asked := time.Now()
			a.Drain()
			a.Stop(t.Context())
			if took := time.Since(asked); way.beats != 2 || took > ttl/3-time.Second || h.alive("a") {
				t.Fatalf("%d beats, stopped after %v", way.beats, took)
			}
		})
	}
}

// A node knows its share of the work, and looks at once when another's lease ends.
func TestOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		mine, theirs := 0, 80
		a, _ := h.tenure("a", ttl, &mine)
		defer a.Stop(t.Context())
		b, way := h.tenure("b", ttl, &theirs)
		rest(6 * time.Second)
		if s := a.Share(); s != 108 {
			t.Errorf("share %d beside one with 80", s)
		}
		if s := b.Share(); s != 64 {
			t.Errorf("share %d of 256 beside an idle one", s)
		}
		way.trouble(true, 0)
		for h.alive("b") {
			rest(10 * time.Millisecond)
		}
		rest(10 * time.Millisecond)
		if late := time.Since(h.looked); late > 30*time.Millisecond {
			t.Errorf("the last look is %v old when a lease has ended", late)
		}
		b.Drain()
		if b.Share() != 0 {
			t.Error("who drains takes more")
		}
		b.Stop(t.Context())
	})
}

// Two leases that end between the same two beats are both looked at when they end.
func TestManyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		a, _ := h.tenure("a", ttl, nil)
		defer a.Stop(t.Context())
		var ways []*nodes
		for _, id := range []eventlog.NodeID{"b", "c", "d"} {
			rest(time.Second)
			n, way := h.tenure(id, ttl, nil)
			defer n.Stop(t.Context())
			ways = append(ways, way)
		}
		rest(6 * time.Second)
		for _, way := range ways {
			way.trouble(true, 0)
		}
		for _, id := range []eventlog.NodeID{"b", "c", "d"} {
			for h.alive(id) {
				rest(10 * time.Millisecond)
			}
			rest(10 * time.Millisecond)
			if late := time.Since(h.looked); late > 30*time.Millisecond {
				t.Errorf("the last look is %v old when the lease of %s has ended", late, id)
			}
		}
	})
}

// What rests is let go of together, and only where it has not moved on.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		a, _ := h.tenure("a", ttl, nil)
		defer a.Stop(t.Context())
		var streams []event.Stream
		for _, id := range []event.SessionID{"ses_1", "ses_2", "ses_3"} {
			streams = append(streams, id.Stream())
			if _, err := h.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{
				Stream: id.Stream(), Expect: 0, Claim: true, Node: "a",
				Events: []event.Event{{SessionID: id, UserID: "ann", Data: &event.OwnerClaimed{Owner: "a"}}},
			}}}); err != nil {
				t.Fatal(err)
			}
		}
		a.Rest(streams[0], 1)
		a.Rest(streams[1], 0) // it has moved on
		a.Yield(streams[2])
		synctest.Wait()
		if _, err := h.store.Beat(t.Context(), eventlog.Node{ID: "b"}, ttl); err != nil {
			t.Fatal(err)
		}
		got, err := h.store.Take(t.Context(), "b", eventlog.Sessions, 9, false)
		if err != nil || !slices.Equal(got, streams[2:]) {
			t.Errorf("b got %v, %v", got, err)
		}
		if got, err = h.store.Take(t.Context(), "a", eventlog.Sessions, 9, true); err != nil || !slices.Equal(got, streams[1:2]) {
			t.Errorf("a has %v, %v", got, err)
		}
	})
}

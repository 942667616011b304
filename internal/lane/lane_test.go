package lane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/lane"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// driver plays the engine: each drive takes a while, and a test says what comes of it.
type driver struct {
	mu     sync.Mutex
	loads  map[event.SessionID]int
	drives []event.SessionID // as they began
	now    map[event.SessionID]int
	weight map[event.SessionID]int // bytes of their states
	most   int
	took   time.Duration
	rested bool
	answer func(id event.SessionID, n int) (time.Time, error) // n: drive of this session, from 1
	bells  int
	told   int // drives that heard of the draining

	offered []*eventlog.Offer     // as they came
	takes   func(*eventlog.Offer) // what comes of an offer; nil: it is not answered
	shape   func(*session.State)  // of a state that is loaded
}

func newDriver() *driver {
	return &driver{loads: map[event.SessionID]int{}, now: map[event.SessionID]int{}, took: time.Second}
}

func (d *driver) Load(_ context.Context, id event.SessionID) (*session.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads[id]++
	st := &session.State{ID: id}
	if n := d.weight[id]; n > 0 {
		st.Queue = []*session.Queued{{Created: &event.RunCreated{}, Instructions: event.Content{Text: strings.Repeat("x", n)}}}
	}
	if d.shape != nil {
		d.shape(st)
	}
	return st, nil
}

func (d *driver) Drive(ctx context.Context, _ eventlog.Term, st *session.State, offer *eventlog.Offer, bell, draining <-chan struct{}) (*session.State, time.Time, bool, error) {
	id := st.ID
	d.mu.Lock()
	d.now[id]++
	if d.now[id] > 1 {
		panic("two workers drive " + string(id))
	}
	d.drives = append(d.drives, id)
	n, all := 0, 0
	for _, x := range d.drives {
		if x == id {
			n++
		}
	}
	for _, x := range d.now {
		all += x
	}
	d.most = max(d.most, all)
	took := d.took
	if offer != nil {
		d.offered = append(d.offered, offer)
	}
	takes := d.takes
	d.mu.Unlock()
	if offer != nil && takes != nil {
		takes(offer)
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.now[id]--
	}()
	timer := time.After(took)
	for done := false; !done; {
		select {
		case <-timer:
			done = true
		case <-bell:
			d.mu.Lock()
			d.bells++
			d.mu.Unlock()
		case <-draining:
			draining = nil
			d.mu.Lock()
			d.told++
			d.mu.Unlock()
		case <-ctx.Done():
			return nil, time.Time{}, false, ctx.Err()
		}
	}
	if d.answer == nil {
		return st, time.Time{}, d.rested, nil
	}
	due, err := d.answer(id, n)
	return st, due, d.rested, err
}

// term is a lease that a test ends and begins anew, and the store's word on who
// gets what.
type term struct {
	mu      sync.Mutex
	ctx     context.Context
	end     context.CancelFunc
	share   int
	grace   time.Time
	ready   []event.SessionID // what the store hands out
	mine    []event.SessionID
	rests   []event.Stream
	yields  []event.Stream
	takes   int
	failing bool
}

func newTerm(ready ...event.SessionID) *term {
	t := &term{share: 1 << 30, ready: ready}
	t.begin()
	return t
}

func (t *term) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx, t.end = context.WithCancel(context.Background())
}

func (t *term) Node() eventlog.NodeID { return "n" }

func (t *term) Term() eventlog.Term {
	t.mu.Lock()
	defer t.mu.Unlock()
	return spell{t.ctx}
}

// spell is a term that a test ends.
type spell struct{ ctx context.Context }

func (s spell) Held() bool                      { return s.ctx.Err() == nil }
func (s spell) Await(ctx context.Context) error { return errors.Join(s.ctx.Err(), ctx.Err()) }
func (s spell) Context() context.Context        { return s.ctx }

func (t *term) Share() int { return t.share }

func (t *term) Grace() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.grace)
}

func (t *term) Rest(s event.Stream, _ int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rests = append(t.rests, s)
	t.mine = slices.DeleteFunc(t.mine, func(id event.SessionID) bool { return id.Stream() == s })
}

// set changes what the store says.
func (t *term) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

func (t *term) Yield(s event.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.yields = append(t.yields, s)
}

func (t *term) take(_ context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) (out []event.Stream, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takes++
	if id != "n" || kind != eventlog.Sessions || t.failing {
		return nil, errors.New("no store")
	}
	if mine {
		for _, x := range t.mine {
			out = append(out, x.Stream())
		}
	}
	for len(t.ready) > 0 && len(out) < limit {
		out, t.ready, t.mine = append(out, t.ready[0].Stream()), t.ready[1:], append(t.mine, t.ready[0])
	}
	return out, nil
}

// began says how many drives there were, working how many of a session there are.
func (d *driver) began() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.drives)
}

func (d *driver) working(id event.SessionID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now[id]
}

func (d *driver) count(id event.SessionID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, x := range d.drives {
		if x == id {
			n++
		}
	}
	return n
}

func newLane(d *driver, change func(*lane.Config)) *lane.Lane {
	cfg := lane.Config{Driver: d, Tenure: newTerm(), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	return lane.New(cfg)
}

func rest(d time.Duration) { <-time.After(d); synctest.Wait() }

func id(n int) event.SessionID { return event.SessionID(fmt.Sprintf("ses_%d", n)) }

// A session has one worker; what wakes it meanwhile is heard, and never lost.
func TestOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		l.Wake("ses_1")
		rest(500 * time.Millisecond)
		for range 10 {
			l.Wake("ses_1")
		}
		rest(10 * time.Second)
		if n := d.count("ses_1"); n != 2 || d.bells == 0 || d.loads["ses_1"] != 1 {
			t.Errorf("%d drives, %d bells heard, %d loads", n, d.bells, d.loads["ses_1"])
		}
		l.Wake("ses_1")
		rest(10 * time.Second)
		if n := d.count("ses_1"); n != 3 || d.loads["ses_1"] != 1 { // from the cache
			t.Errorf("%d drives, %d loads", n, d.loads["ses_1"])
		}
	})
}

// No more sessions are at work than allowed; those that wait go in their order.
func TestMaxActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		var ids []event.SessionID
		for i := range 9 {
			ids = append(ids, id(i))
		}
		store := newTerm(ids...)
		l := newLane(d, func(c *lane.Config) { c.MaxActive, c.Tenure, c.Take = 2, store, store.take })
		defer l.Stop(t.Context())
		l.Start()
		synctest.Wait()
		for range 3 {
			l.Wake(id(8)) // the store knows it
		}
		rest(5 * time.Second)
		if d.most != 2 || len(d.drives) != 9 {
			t.Errorf("%d at once, drives %v", d.most, d.drives)
		}
		for i, x := range d.drives {
			if slices.Index(ids, x)/2 != i/2 {
				t.Errorf("they went in the order %v", d.drives)
			}
		}
	})
}

// A session whose driver failed is tried again soon, and then more and more seldom;
// what succeeds begins anew, and a wake in between is heard.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.took = 0
		var at []time.Duration
		began := time.Now()
		fails := 10
		d.answer = func(_ event.SessionID, n int) (time.Time, error) {
			at = append(at, time.Since(began))
			began = time.Now()
			if n <= fails {
				return time.Time{}, errors.New("the connection was lost")
			}
			return time.Time{}, nil
		}
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		l.Wake("ses_1")
		rest(time.Minute)
		const ms = time.Millisecond
		if want := []time.Duration{0, 50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(at, want) {
			t.Errorf("tried after %v, want %v", at, want)
		}
		at, fails, began = nil, 12, time.Now()
		l.Wake("ses_1") // the eleventh drive succeeded: this one fails, and the next
		rest(20 * ms)
		l.Wake("ses_1") // and does not wait for its time
		rest(time.Minute)
		if want := []time.Duration{0, 20 * ms, 0}; !slices.Equal(at[:2], want[:2]) {
			t.Errorf("tried after %v", at)
		}
	})
}

// However many sessions fail: each is tried every few seconds, and not all of them at
// once again and again.
func TestRetryOfMany(t *testing.T) {
	lane.CountFails(t, 64)
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.took = 0
		d.answer = func(event.SessionID, int) (time.Time, error) { return time.Time{}, errors.New("none can be read") }
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		const many = 100
		name := func(i int) event.SessionID { return event.SessionID(fmt.Sprint("ses_", i)) }
		count := func() (n int) {
			for i := range many {
				n += d.count(name(i))
			}
			return n
		}
		for i := range many {
			l.Wake(name(i))
		}
		rest(20 * time.Second)
		before := count()
		rest(10 * time.Second)
		if n := count() - before; n < many || n > 3*many { // 5 s each
			t.Errorf("%d tries of %d sessions in 10 s", n, many)
		}
	})
}

// What is due is looked at when it is due; a wake-up before that is heard.
func TestDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		due := time.Now().Add(time.Minute)
		d.answer = func(_ event.SessionID, n int) (time.Time, error) {
			if time.Now().Before(due) {
				return due, nil
			}
			return time.Time{}, nil
		}
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		l.Wake("ses_1")
		rest(30 * time.Second)
		l.Wake("ses_1")
		rest(20 * time.Second)
		if n := d.count("ses_1"); n != 2 {
			t.Errorf("%d drives before it is due", n)
		}
		rest(20 * time.Second)
		if n := d.count("ses_1"); n != 3 {
			t.Errorf("%d drives when it is due", n)
		}
		rest(time.Hour)
		if n := d.count("ses_1"); n != 3 {
			t.Errorf("%d drives in the end: a timer is left", n)
		}
	})
}

// A driver that fails rests, however often it is woken, and is tried again from
// the log; one that lost its session is left alone.
func TestFailedDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.answer = func(s event.SessionID, n int) (time.Time, error) {
			switch {
			case s == "ses_lost":
				return time.Time{}, fmt.Errorf("append: %w", eventlog.ErrFenced)
			case s == "ses_1" && n < 3:
				return time.Time{}, errors.New("no store")
			}
			return time.Time{}, nil
		}
		l := newLane(d, nil)
		defer l.Stop(t.Context())
		l.Wake("ses_1")
		l.Wake("ses_lost")
		l.Wake("ses_2")
		rest(500 * time.Millisecond)
		l.Wake("ses_1") // while it works
		rest(520 * time.Millisecond)
		if n := d.count("ses_1"); n != 1 {
			t.Errorf("%d drives: it does not rest", n)
		}
		rest(time.Minute)
		if n := d.count("ses_1"); n != 3 || d.loads["ses_1"] != 3 {
			t.Errorf("%d drives, %d loads", n, d.loads["ses_1"])
		}
		if d.count("ses_lost") != 1 || d.count("ses_2") != 1 {
			t.Errorf("drives %v", d.drives)
		}
	})
}

// States of idle sessions are kept within bounds, the most recent ones.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		l := newLane(d, func(c *lane.Config) { c.CacheSize = 3 })
		defer l.Stop(t.Context())
		for _, n := range []int{1, 2, 3, 1, 4} { // 2 falls out
			l.Wake(id(n))
			rest(2 * time.Second)
		}
		for _, n := range []int{1, 3, 4, 2} {
			l.Wake(id(n))
			rest(2 * time.Second)
		}
		if d.loads[id(1)] != 1 || d.loads[id(3)] != 1 || d.loads[id(4)] != 1 || d.loads[id(2)] != 2 {
			t.Errorf("loads %v", d.loads)
		}
	})
}

// A few large sessions take the place of many small ones; one that is larger
// than its share is not kept at all.
func TestCacheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.weight = map[event.SessionID]int{id(1): 100_000, id(2): 100_000, id(3): 100_000, id(4): 100_000, id(5): 200_000, id(6): 100_000}
		l := newLane(d, func(c *lane.Config) { c.CacheBytes = 440_000 })
		defer l.Stop(t.Context())
		for _, n := range []int{1, 2, 3, 4, 5, 1, 6, 1, 2, 5, 6} { // 6 pushes 2 out, which comes again
			l.Wake(id(n))
			rest(2 * time.Second)
		}
		want := map[event.SessionID]int{id(1): 1, id(2): 2, id(3): 1, id(4): 1, id(5): 2, id(6): 1}
		if !maps.Equal(d.loads, want) {
			t.Errorf("loads %v, want %v", d.loads, want)
		}
	})
}

// Stopping lets nothing begin, waits for what is at work, and cuts it when its time is over.
func TestStop(t *testing.T) {
	for _, patience := range []time.Duration{10 * time.Second, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			d := newDriver()
			d.took = 5 * time.Second
			d.answer = func(event.SessionID, int) (time.Time, error) { return time.Now().Add(time.Second), nil }
			l := newLane(d, func(c *lane.Config) { c.MaxActive = 1 })
			l.Wake("ses_1")
			l.Wake("ses_2") // waits for a place
			synctest.Wait()
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			l.Stop(ctx)
			if took := time.Since(began); took != min(patience, 5*time.Second) {
				t.Errorf("stopped after %v", took)
			}
			l.Wake("ses_3")
			rest(time.Minute)
			if !slices.Equal(d.drives, []event.SessionID{"ses_1"}) || d.told != 1 {
				t.Errorf("drives %v, %d of them told to end", d.drives, d.told)
			}
			l.Stop(ctx) // again
		})
	}
}

// A session that is woken without end does not keep the others from a place.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		l := newLane(d, func(c *lane.Config) { c.MaxActive = 1 })
		defer l.Stop(t.Context())
		d.answer = func(s event.SessionID, _ int) (time.Time, error) {
			if s == "ses_busy" {
				l.Wake(s)
			}
			return time.Time{}, nil
		}
		l.Wake("ses_busy")
		synctest.Wait()
		l.Wake("ses_1")
		l.Wake("ses_2")
		rest(10 * time.Second)
		if d.count("ses_1") != 1 || d.count("ses_2") != 1 || d.count("ses_busy") < 5 {
			t.Errorf("drives %v", d.drives)
		}
	})
}

// What finds no place is the store's to hand out, and this node asks again as
// soon as there is one; what another node woke is rung here, or asked for.
func TestFromTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDriver(), newTerm()
		l := newLane(d, func(c *lane.Config) { c.MaxActive, c.Tenure, c.Take = 1, store, store.take })
		defer l.Stop(t.Context())
		l.Start()
		l.Wake("ses_1")
		synctest.Wait()
		store.set(func() { store.ready = append(store.ready, "ses_2") })
		l.Wake("ses_2")
		rest(1100 * time.Millisecond)
		if !slices.Equal(d.drives, []event.SessionID{"ses_1", "ses_2"}) {
			t.Errorf("drives %v", d.drives)
		}
		l.Heard("ses_2")
		synctest.Wait()
		if d.bells != 1 {
			t.Error("a bell of another node was not heard")
		}
		rest(5 * time.Second)
		store.set(func() { store.ready = append(store.ready, "ses_3") })
		l.Heard("ses_3")
		rest(200 * time.Millisecond)
		if d.count("ses_3") != 1 {
			t.Error("what another node woke was not asked for")
		}
		rest(5 * time.Second)
		store.set(func() { store.failing, store.ready = true, []event.SessionID{"ses_4"} })
		rest(5 * time.Second)
		store.set(func() { store.failing = false })
		rest(1500 * time.Millisecond)
		if d.count("ses_4") != 1 {
			t.Error("a store in trouble was not asked again")
		}
	})
}

// A node with more than its share leaves what it woke to others for a moment,
// and then takes what they left.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDriver(), newTerm()
		store.share = 1
		l := newLane(d, func(c *lane.Config) { c.Tenure, c.Take = store, store.take })
		defer l.Stop(t.Context())
		l.Start()
		rest(time.Second / 2)
		l.Wake("ses_1")
		store.set(func() { store.ready = append(store.ready, "ses_2") })
		l.Wake("ses_2")
		rest(100 * time.Millisecond)
		if d.count("ses_2") != 0 {
			t.Error("it did not leave it to others")
		}
		rest(500 * time.Millisecond)
		if d.count("ses_2") != 1 {
			t.Error("nobody took it")
		}
	})
}

// When the lease ends all work ends and nothing new begins; with the next one
// this node goes on with what nobody took. // I-11
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDriver(), newTerm("ses_1")
		d.took = time.Hour
		l := newLane(d, func(c *lane.Config) { c.Tenure, c.Take = store, store.take })
		defer l.Stop(t.Context())
		l.Start()
		rest(time.Second)
		store.end()
		synctest.Wait()
		if d.working("ses_1") != 0 || len(store.rests)+len(store.yields) != 0 {
			t.Errorf("%d at work, let go of %v %v", d.working("ses_1"), store.rests, store.yields)
		}
		l.Wake("ses_2")
		rest(time.Minute)
		if d.began() != 1 {
			t.Errorf("work began without a lease: %v", d.drives)
		}
		d.mu.Lock()
		d.took = time.Second
		d.mu.Unlock()
		store.begin()
		store.set(func() { store.grace = time.Now().Add(time.Second) })
		l.Look(true)
		rest(900 * time.Millisecond)
		if d.began() != 1 {
			t.Error("the grace was not kept")
		}
		rest(2 * time.Second)
		if d.count("ses_1") != 2 || d.loads["ses_1"] != 2 {
			t.Errorf("drives %v", d.drives)
		}
	})
}

// A session that wants nothing is let go of, unless its last append did; at a
// stop what still wants work is given to others.
func TestLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDriver(), newTerm()
		l := newLane(d, func(c *lane.Config) { c.Tenure, c.Take = store, store.take })
		l.Start()
		l.Wake("ses_1")
		rest(2 * time.Second)
		if !slices.Equal(store.rests, []event.Stream{"session:ses_1"}) {
			t.Errorf("at rest: %v", store.rests)
		}
		d.rested = true
		l.Wake("ses_1")
		rest(2 * time.Second)
		d.rested = false
		d.answer = func(event.SessionID, int) (time.Time, error) { return time.Now().Add(time.Hour), nil }
		l.Wake("ses_2")
		rest(2 * time.Second)
		l.Wake("ses_3") // in the middle of work at the stop
		synctest.Wait()
		if len(store.rests) != 1 || len(store.yields) != 0 {
			t.Errorf("let go of %v %v", store.rests, store.yields)
		}
		l.Stop(t.Context())
		slices.Sort(store.yields)
		if !slices.Equal(store.yields, []event.Stream{"session:ses_2", "session:ses_3"}) {
			t.Errorf("given to others: %v", store.yields)
		}
	})
}

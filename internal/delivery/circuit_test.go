package delivery_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

var (
	down    = delivery.Result{Code: "http_503", Status: 503}
	refused = delivery.Result{Code: "http_400", Status: 400}
	steady  = outbox.Rules{MaxAttempts: 100, InitialBackoff: time.Second, Factor: 1}
)

// at are the times of the attempts at a target, in seconds.
func (p *post) at(url string) (list []float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attempts {
		if a.m.Target.URL == url {
			list = append(list, a.at.Seconds())
		}
	}
	return list
}

// order are the deliveries to a target in the order of their first attempts.
func (p *post) order(url string) (list []event.DeliveryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attempts {
		if a.m.Target.URL == url && !slices.Contains(list, a.m.ID) {
			list = append(list, a.m.ID)
		}
	}
	return list
}

func (p *post) circuit(url string) outbox.Circuit {
	p.t.Helper()
	s, err := p.store.TargetState(context.Background(), target(url))
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := delivery.CircuitOf(&s)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// command appends a person's word to a target's stream and wakes it.
func (p *post) command(url string, d event.Data) {
	p.t.Helper()
	if _, err := p.store.Append(p.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: target(url).Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{UserID: user, Data: d}}}}}); err != nil {
		p.t.Fatal(err)
	}
	p.room.Wake(target(url))
}

// C57: D hangs, E answers 500, G is well. G is done in normal time. The circuits of
// D and E open after five failures in a row; while they are open nothing is sent;
// half-open lets one through; a failed probe opens for longer; success drains in order.
func TestC57(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d, e, g = "http://d.test/", "http://e.test/", "http://g.test/"
		var mu sync.Mutex
		flying, most := map[string]int{}, map[string]int{}
		var well bool
		var p *post
		p = newPost(t, func(ctx context.Context, m delivery.Message, _ int) delivery.Result {
			mu.Lock()
			flying[m.Target.URL]++
			most[m.Target.URL] = max(most[m.Target.URL], flying[m.Target.URL])
			fine, probes := well, 0
			mu.Unlock()
			defer func() { mu.Lock(); flying[m.Target.URL]--; mu.Unlock() }()
			probes = len(p.at(m.Target.URL)) - 5
			switch {
			case m.Target.URL == g, fine && probes > 1:
				return taken
			case probes > 0: // the first probe: connection refused
				return delivery.Result{Code: "connection"}
			case m.Target.URL == d:
				<-ctx.Done() // thirty seconds, or as long as it may take
				return delivery.Result{Code: "timeout"}
			}
			return delivery.Result{Code: "http_500", Status: 500}
		})
		defer p.close()
		p.open(func(c *delivery.Config) { c.Rules = rules(steady) })
		for i := range 100 {
			for _, url := range []string{d, e, g} {
				p.enqueue(url, event.DeliveryID(fmt.Sprintf("dlv_%s_%03d", url[7:8], i)))
			}
		}
		rest(time.Second)
		if n := len(p.at(g)); n != 100 {
			t.Errorf("the healthy one got %d of 100 within a second", n)
		}
		rest(9 * time.Second)
		if c := p.circuit(e); c.State != outbox.Open || c.Failures != 5 || len(p.at(e)) != 5 {
			t.Errorf("after %d failures: %+v", len(p.at(e)), c)
		}
		rest(75 * time.Second)
		mu.Lock()
		well = true
		mu.Unlock()
		rest(200 * time.Second)
		for url, opens := range map[string]float64{d: 5*15 + 4*1, e: 4} { // when, give or take the jitter
			at := p.at(url)
			if len(at) != 106 {
				t.Fatalf("%s: %d attempts, want five, a probe that fails and a hundred", url, len(at))
			}
			if gap := at[5] - at[4]; gap < 30 || gap > 46 {
				t.Errorf("%s: the first probe comes %v s after the fifth failure began", url, gap)
			}
			if gap := at[6] - at[5]; gap < 60 || gap > 61 {
				t.Errorf("%s: the second probe comes after %v s", url, gap)
			}
			if last := at[105] - at[6]; last > 1 {
				t.Errorf("%s: it drains in %v s", url, last)
			}
			if at[4] < opens*0.8-15 || at[4] > opens*1.2 {
				t.Errorf("%s: the fifth failure began at %v", url, at[4])
			}
			if most[url] != 1 {
				t.Errorf("%s: %d at once", url, most[url])
			}
			if order := p.order(url); !slices.IsSorted(order) || len(order) != 100 {
				t.Errorf("%s: out of order: %v", url, order)
			}
			first := event.DeliveryID(fmt.Sprintf("dlv_%s_000", url[7:8]))
			p.status(first, outbox.Delivered, 7) // waiting burns no attempt
			if c := p.circuit(url); c != (outbox.Circuit{}) {
				t.Errorf("%s: %+v", url, c)
			}
		}
	})
}

// C57: refusals do not open a circuit, and are dead letters at once.
func TestRefusalsDoNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return refused })
		defer p.close()
		p.open(nil)
		for i := range 20 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%02d", i)))
		}
		rest(time.Second)
		if c := p.circuit(urlA); c != (outbox.Circuit{}) || len(p.at(urlA)) != 20 {
			t.Errorf("%+v after %d", c, len(p.at(urlA)))
		}
		p.status("dlv_19", outbox.DeadLettered, 1)
	})
}

// The state of a circuit survives crashes, at every moment, and over all lives one
// probe goes through at a time.
func TestCircuitOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flying, most int
		var mu sync.Mutex
		p := newPost(t, func(ctx context.Context, _ delivery.Message, _ int) delivery.Result {
			mu.Lock()
			flying++
			most = max(most, flying)
			mu.Unlock()
			defer func() { mu.Lock(); flying--; mu.Unlock() }()
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
			}
			return down
		})
		defer p.close()
		change := func(c *delivery.Config) { c.Rules = rules(steady) }
		p.open(change)
		p.enqueue(urlA, "dlv_1")
		p.enqueue(urlA, "dlv_2")
		for range 300 { // a crash every 700 ms: some of them over a probe
			rest(700 * time.Millisecond)
			p.kill()
			p.open(change)
		}
		at := p.at(urlA)
		// Five failures, then probes 30, 60 and 120 s apart; what a crash cut is tried anew, at once.
		if n := len(at); n < 8 || n > 14 || most != 1 {
			t.Errorf("%d attempts in 210 s, %d at once: %v", n, most, at)
		}
		if c := p.circuit(urlA); c.State == outbox.Closed || c.Opens < 2 {
			t.Errorf("%+v", c)
		}
		if row := p.row("dlv_2"); row.Attempts != 0 {
			t.Errorf("the second was attempted %d times behind the first", row.Attempts)
		}
	})
}

// Two nodes on one store: half-open lets exactly one attempt through over both.
func TestProbeOverNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		flying, most, by := 0, 0, map[string]int{}
		p := newPost(t, nil)
		defer func() {
			if err := p.store.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		var rooms []*delivery.Room
		var leases []*tenure.Tenure
		for i := range 2 {
			name := fmt.Sprint("node", i)
			lease := tenure.New(tenure.Config{Nodes: p.store, Node: eventlog.Node{ID: eventlog.NodeID(name)}, TTL: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
			if err := lease.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			room := delivery.New(delivery.Config{Store: p.store, Tenure: lease, Rules: rules(steady), Rand: rand.New(rand.NewPCG(1, uint64(i))), Logger: slog.New(slog.DiscardHandler),
				Send: func(ctx context.Context, _ delivery.Message) delivery.Result {
					mu.Lock()
					flying++
					most = max(most, flying)
					by[name]++
					mu.Unlock()
					defer func() { mu.Lock(); flying--; mu.Unlock() }()
					select {
					case <-time.After(2 * time.Second):
					case <-ctx.Done():
					}
					return down
				}})
			room.Start()
			rooms, leases = append(rooms, room), append(leases, lease)
		}
		for i := range 5 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%d", i)))
		}
		for i := range 240 {
			rest(time.Second)
			for _, r := range rooms { // both believe that there is something to do
				r.Wake(target(urlA))
				r.Heard(target(urlA))
				r.Look(true)
			}
			if i == 100 { // and one of them ends, over whatever it does
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				rooms[0].Stop(ctx)
				leases[0].Stop(context.WithoutCancel(ctx))
				rooms = rooms[1:]
			}
		}
		mu.Lock()
		n := by["node0"] + by["node1"]
		if most != 1 || n < 7 || n > 11 {
			t.Errorf("%d at once, %v", most, by)
		}
		mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		rooms[0].Stop(ctx)
		leases[1].Stop(context.WithoutCancel(ctx))
	})
}

// 410 is a dead letter and pauses its target: what comes later is parked, over
// restarts and for as long as it takes, and goes out in order when it is resumed.
func TestGonePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, m delivery.Message, _ int) delivery.Result {
			if m.ID == "dlv_1" {
				return delivery.Result{Code: "http_410", Status: 410, Gone: true}
			}
			return taken
		})
		defer p.close()
		change := func(c *delivery.Config) { c.Rules = rules(outbox.Rules{MaxAge: time.Hour}) }
		p.open(change)
		for _, id := range []event.DeliveryID{"dlv_1", "dlv_2", "dlv_3"} {
			p.enqueue(urlA, id)
		}
		rest(time.Minute)
		p.kill()
		p.open(change)
		rest(3 * time.Hour) // far past their age
		p.status("dlv_1", outbox.DeadLettered, 1)
		p.status("dlv_2", outbox.Pending, 0)
		if c := p.circuit(urlA); !c.Paused || len(p.at(urlA)) != 1 {
			t.Errorf("%+v after %v", c, p.at(urlA))
		}
		p.command(urlA, &event.TargetResumed{Actor: user})
		rest(time.Second)
		p.status("dlv_2", outbox.Delivered, 1)
		p.status("dlv_3", outbox.Delivered, 1)
		if order := p.order(urlA); !slices.IsSorted(order) {
			t.Errorf("%v", order)
		}
	})
}

// A person who pauses a target while an attempt is in flight has said why: that the
// receiver is gone, as its answer tells then, takes no word of it away.
func TestGoneUnderAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result {
			<-time.After(time.Second)
			return delivery.Result{Code: "http_410", Status: 410, Gone: true}
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		rest(500 * time.Millisecond)
		p.command(urlA, &event.TargetPaused{Actor: user, Reason: "it is moved"})
		rest(time.Minute)
		p.status("dlv_1", outbox.DeadLettered, 1)
		if s, err := p.store.TargetState(t.Context(), target(urlA)); err != nil || s.Paused == 0 || s.PausedBy != user || s.PauseReason != "it is moved" {
			t.Errorf("%+v %v", s, err)
		}
	})
}

// A pause counts from its commit: no attempt begins after it, though the lane was
// in full flow and nobody woke it.
func TestPauseStopsTheFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result {
			<-time.After(100 * time.Millisecond)
			return taken
		})
		defer p.close()
		p.open(nil)
		for i := range 50 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%02d", i)))
		}
		rest(550 * time.Millisecond)
		if _, err := p.store.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: target(urlA).Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{UserID: user, Data: &event.TargetPaused{Code: event.PausedByRequest}}}}}}); err != nil {
			t.Fatal(err)
		}
		n := len(p.at(urlA))
		rest(time.Hour)
		if got := len(p.at(urlA)); got != n {
			t.Errorf("%d attempts after the pause", got-n)
		}
		p.command(urlA, &event.TargetResumed{})
		rest(10 * time.Second)
		if got := p.order(urlA); len(got) != 50 || !slices.IsSorted(got) || len(p.at(urlA)) != 50 {
			t.Errorf("%d of 50 in %d attempts", len(got), len(p.at(urlA)))
		}
	})
}

// A reset has what waits tried at once, whatever it waits for.
func TestResetTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		result := delivery.Result{Code: "http_503", Status: 503, RetryAfter: time.Hour}
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return result })
		defer p.close()
		p.open(func(c *delivery.Config) { c.Rules = rules(outbox.Rules{Threshold: 1}) })
		p.enqueue(urlA, "dlv_1")
		rest(time.Minute)
		for i := range 3 {
			p.command(urlA, &event.TargetCircuitClosed{Actor: user})
			rest(time.Second)
			if n := len(p.at(urlA)); n != i+2 {
				t.Fatalf("%d attempts after %d resets", n, i+1)
			}
		}
		result = taken
		p.command(urlA, &event.TargetCircuitClosed{Actor: user})
		rest(time.Second)
		p.status("dlv_1", outbox.Delivered, 5)
	})
}

// C42: Retry-After holds the target, over a restart, also where the message that
// was answered so is a dead letter.
func TestRetryAfterHoldsTheTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(_ context.Context, m delivery.Message, _ int) delivery.Result {
			if m.ID == "dlv_1" {
				return delivery.Result{Code: "http_413", Status: 413, RetryAfter: 10 * time.Minute}
			}
			return taken
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		p.enqueue(urlA, "dlv_2")
		rest(time.Minute)
		p.kill()
		p.open(nil)
		rest(8 * time.Minute)
		p.status("dlv_1", outbox.DeadLettered, 1)
		p.status("dlv_2", outbox.Pending, 0)
		rest(2 * time.Minute)
		p.status("dlv_2", outbox.Delivered, 1)
		if at := p.at(urlA); at[1] < 600 || at[1] > 601 {
			t.Errorf("%v", at)
		}
	})
}

// Age counts from the enqueueing, waits for the circuit included: what is too old
// is a dead letter without an attempt, in the place of one.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return down })
		defer p.close()
		p.open(func(c *delivery.Config) {
			c.Rules = rules(outbox.Rules{MaxAge: time.Hour, Threshold: 1, Cooldown: 40 * time.Minute, MaxCooldown: 40 * time.Minute, InitialBackoff: time.Second})
		})
		for i := range 40 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%02d", i)))
		}
		rest(59 * time.Minute)
		p.status("dlv_00", outbox.Pending, 2)
		rest(2 * time.Minute)
		p.status("dlv_00", outbox.DeadLettered, 2)
		p.status("dlv_39", outbox.DeadLettered, 0)
		if row := p.row("dlv_39"); row.LastCode != outbox.CodeExpired || row.LastClass != outbox.ClassExpired {
			t.Errorf("%+v", row)
		}
		if n := len(p.at(urlA)); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

// A body past the bound is a dead letter that says so, and holds up nobody.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		p.open(func(c *delivery.Config) { c.MaxPayload = int64(len(`{"id":"dlv_1"}`)) })
		for _, id := range []event.DeliveryID{"dlv_1", "dlv_too_large", "dlv_2"} {
			p.enqueue(urlA, id)
		}
		rest(time.Second)
		p.status("dlv_1", outbox.Delivered, 1)
		p.status("dlv_2", outbox.Delivered, 1)
		p.status("dlv_too_large", outbox.DeadLettered, 0)
		if row := p.row("dlv_too_large"); row.LastCode != outbox.CodeTooLarge || row.LastClass != outbox.ClassInvalid {
			t.Errorf("%+v", row)
		}
	})
}

// Where order is given up several go at once, what is due passes what waits, and
// a circuit still lets one through.
func TestLoose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		flying, most, bad := 0, 0, false
		p := newPost(t, func(_ context.Context, m delivery.Message, n int) delivery.Result {
			mu.Lock()
			flying++
			most = max(most, flying)
			fails := bad || m.ID == "dlv_03" && n == 1
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			flying--
			mu.Unlock()
			if fails {
				return down
			}
			return taken
		})
		defer p.close()
		r := steady
		r.InFlight, r.InitialBackoff = 4, time.Minute
		p.open(func(c *delivery.Config) { c.Rules = rules(r) })
		for i := range 20 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%02d", i)))
		}
		rest(10 * time.Second)
		p.status("dlv_03", outbox.Pending, 1)
		for i := range 20 {
			if i != 3 {
				p.status(event.DeliveryID(fmt.Sprintf("dlv_%02d", i)), outbox.Delivered, 1)
			}
		}
		rest(2 * time.Minute)
		p.status("dlv_03", outbox.Delivered, 2)
		mu.Lock()
		if most != 4 {
			t.Errorf("%d at once", most)
		}
		bad, most = true, 0
		mu.Unlock()
		for i := range 20 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_x%02d", i)))
		}
		rest(20 * time.Second)
		c, n := p.circuit(urlA), len(p.at(urlA))
		if c.State != outbox.Open || n > 21+8 { // five failures, and those that were in flight with the fifth
			t.Errorf("%+v after %d attempts", c, n-21)
		}
		mu.Lock()
		most, bad = 0, false
		mu.Unlock()
		rest(12 * time.Second)
		mu.Lock()
		if len(p.attempts) != n+1 && most > 1 && flying > 1 {
			t.Errorf("%d went through at once", most)
		}
		mu.Unlock()
		rest(2 * time.Minute)
		for i := range 20 {
			if row := p.row(event.DeliveryID(fmt.Sprintf("dlv_x%02d", i))); row.Status != outbox.Delivered {
				t.Errorf("%s is %s", row.ID, row.Status)
			}
		}
		// Each is attempted once at a time, whatever is in flight with it.
		events, err := p.store.Read(context.Background(), target(urlA).Stream(), 0, 4000)
		if err != nil {
			t.Fatal(err)
		}
		open := map[event.DeliveryID]bool{}
		for _, e := range events {
			if err := e.Decode(); err != nil {
				t.Fatal(err)
			}
			switch d := e.Data.(type) {
			case *event.DeliveryAttemptStarted:
				if open[d.DeliveryID] {
					t.Errorf("%s is begun twice", d.DeliveryID)
				}
				open[d.DeliveryID] = true
			case *event.DeliveryDelivered:
				open[d.DeliveryID] = false
			case *event.DeliveryAttemptFailed:
				open[d.DeliveryID] = false
			}
		}
	})
}

// I-25: hung receivers, more of them than there are slots, delay nobody who was
// well before, and nobody at all for longer than one timeout.
func TestHungDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		flying, most := 0, 0
		p := newPost(t, func(ctx context.Context, m delivery.Message, _ int) delivery.Result {
			mu.Lock()
			flying++
			most = max(most, flying)
			mu.Unlock()
			defer func() { mu.Lock(); flying--; mu.Unlock() }()
			if strings.HasPrefix(m.Target.URL, "http://hung") {
				<-ctx.Done()
				return delivery.Result{Code: "timeout"}
			}
			<-time.After(10 * time.Millisecond)
			return taken
		})
		defer p.close()
		p.open(func(c *delivery.Config) { c.Rules = nil })
		well := func(i int) string { return fmt.Sprintf("http://well%d.test/", i) }
		for i := range 10 {
			p.enqueue(well(i), event.DeliveryID(fmt.Sprintf("dlv_w%d", i)))
		}
		rest(time.Second)
		for i := range 100 {
			url := fmt.Sprintf("http://hung%d.test/", i)
			for j := range 3 {
				p.enqueue(url, event.DeliveryID(fmt.Sprintf("dlv_h%d_%d", i, j)))
			}
		}
		rest(100 * time.Millisecond)
		for i := range 10 { // those that answered before
			p.enqueue(well(i), event.DeliveryID(fmt.Sprintf("dlv_w%d_1", i)))
		}
		rest(time.Second)
		for i := range 10 {
			p.status(event.DeliveryID(fmt.Sprintf("dlv_w%d_1", i)), outbox.Delivered, 1)
		}
		rest(20 * time.Minute) // by now all that hang are known to
		for i := range 20 {    // also somebody new
			p.enqueue(well(i), event.DeliveryID(fmt.Sprintf("dlv_w%d_2", i)))
		}
		rest(time.Second)
		for i := range 20 {
			p.status(event.DeliveryID(fmt.Sprintf("dlv_w%d_2", i)), outbox.Delivered, 1)
		}
		if most > delivery.DefaultSlots {
			t.Errorf("%d in flight", most)
		}
	})
}

// 32 targets that nobody knows, all of which hang: others wait for one timeout at most.
func TestNewOnesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, m delivery.Message, _ int) delivery.Result {
			if strings.HasPrefix(m.Target.URL, "http://hung") {
				<-ctx.Done()
				return delivery.Result{Code: "timeout"}
			}
			return taken
		})
		defer p.close()
		p.open(func(c *delivery.Config) { c.Rules = nil })
		for i := range 32 {
			p.enqueue(fmt.Sprintf("http://hung%d.test/", i), event.DeliveryID(fmt.Sprintf("dlv_h%d", i)))
		}
		synctest.Wait()
		for i := range 50 {
			p.enqueue(fmt.Sprintf("http://well%d.test/", i), event.DeliveryID(fmt.Sprintf("dlv_w%d", i)))
		}
		rest(15*time.Second + time.Millisecond)
		for i := range 50 {
			p.status(event.DeliveryID(fmt.Sprintf("dlv_w%d", i)), outbox.Delivered, 1)
		}
	})
}

// The outcome of an attempt and the start of the next are one append, and the
// happy path writes nothing of the target.
func TestOneAppendEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result { return taken })
		defer p.close()
		appends := 0
		p.fault = func(a eventlog.Append) error { appends++; return nil }
		for i := range 30 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%02d", i)))
		}
		before, err := p.store.TargetState(t.Context(), target(urlA))
		if err != nil {
			t.Fatal(err)
		}
		p.open(nil)
		rest(time.Second)
		if appends != 31 {
			t.Errorf("%d appends for 30 deliveries", appends)
		}
		if after, err := p.store.TargetState(t.Context(), target(urlA)); err != nil || after != before {
			t.Errorf("%+v became %+v (%v)", before, after, err)
		}
	})
}

// What a person resolves under the hands of the lane is not sent, and costs
// nothing that is.
func TestResolvedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(context.Context, delivery.Message, int) delivery.Result {
			<-time.After(time.Second)
			return taken
		})
		defer p.close()
		for i := range 10 {
			p.enqueue(urlA, event.DeliveryID(fmt.Sprintf("dlv_%d", i)))
		}
		p.open(nil)
		rest(500 * time.Millisecond) // the first is in flight, all are read
		for _, id := range []event.DeliveryID{"dlv_1", "dlv_5"} {
			p.put(target(urlA).Stream(), &event.DeliveryResolved{DeliveryID: id})
		}
		rest(time.Minute)
		if got := p.ids(); len(got) != 8 || slices.Contains(got, "dlv_1") || slices.Contains(got, "dlv_5") || !slices.IsSorted(got) {
			t.Errorf("%v", got)
		}
		p.status("dlv_0", outbox.Delivered, 1)
		p.status("dlv_9", outbox.Delivered, 1)
	})
}

// An attempt that a crash left open at a target that is paused by then is closed,
// so that people can be done with it.
func TestPausedWithAnOpenAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(ctx context.Context, _ delivery.Message, _ int) delivery.Result {
			<-ctx.Done()
			return delivery.Result{Code: "timeout"}
		})
		defer p.close()
		p.open(nil)
		p.enqueue(urlA, "dlv_1")
		rest(time.Second)
		p.kill()
		p.put(target(urlA).Stream(), &event.TargetPaused{Code: event.PausedByRequest})
		p.open(nil)
		rest(time.Second)
		p.status("dlv_1", outbox.Pending, 1)
		if row := p.row("dlv_1"); row.LastClass != outbox.ClassAbandoned {
			t.Errorf("%+v", row)
		}
	})
}

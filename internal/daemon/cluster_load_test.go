package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// all does something for 0 to n-1, some at once.
func all(n int, do func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// sessions makes n of them, called s0 and so on, and submits one run to each,
// all through one node.
func (c *cluster) sessions(on, n, order int) (runs []string) {
	c.t.Helper()
	runs = make([]string, n)
	all(n, func(i int) {
		alias := fmt.Sprintf("s%d", i)
		err := c.on[on].createSession(c.ctx, api.CreateSession{ID: alias})
		if err == nil {
			var run api.Run
			run, _, err = c.on[on].submit(c.ctx, alias, "key", fmt.Sprintf("order %d", order+i))
			runs[i] = run.ID
		}
		if err != nil {
			c.t.Error(err)
		}
	})
	if c.t.Failed() {
		c.t.FailNow()
	}
	return runs
}

// end waits until all of the runs have completed.
func (c *cluster) end(on int, runs []string) {
	c.t.Helper()
	all(len(runs), func(i int) {
		if _, err := c.settled(on, runs[i]); err != nil {
			c.t.Error(err)
		}
	})
}

// asks notes when the model was asked, by order, and holds the first request of
// those that it is told to.
type asks struct {
	mu   sync.Mutex
	at   map[int][]time.Time
	gate chan struct{}
	open func()
}

func (c *cluster) asks(hold func(order int) bool, reply func(order, step int, req chatstub.Request) chatstub.Reply) *asks {
	a := &asks{at: map[int][]time.Time{}, gate: make(chan struct{})}
	a.open = sync.OnceFunc(func() { close(a.gate) })
	c.t.Cleanup(a.open)
	c.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
		a.mu.Lock()
		a.at[order] = append(a.at[order], time.Now())
		n := len(a.at[order])
		a.mu.Unlock()
		if n == 1 && hold(order) {
			select {
			case <-a.gate:
			case <-c.w.hung:
			}
		}
		return reply(order, step, req)
	}
	return a
}

// times gives, of each order that was asked for at least n times, when it was for the n-th.
func (a *asks) times(n int) (at []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.at {
		if len(t) >= n {
			at = append(at, t[n-1])
		}
	}
	return at
}

func always(int) bool { return true }

// A node with many runs in work is killed. Once its lease has ended, by the
// database's clock, another goes on with each of them, and nothing is lost. How
// long it takes is measured: the goal is 5 s for 1,000 runs.
func TestClusterKill(t *testing.T) {
	n := *clusterActive
	c := newCluster(t, 2, func(_ int, _ *world, m map[string]any) {
		m["limits"] = map[string]any{"active_sessions": max(256, 2*n)}
	})
	a := c.asks(always, storyAnswer)
	c.begin(0)
	runs := c.sessions(0, n, 1000)
	c.until("all runs are in work", func() bool { return len(a.times(1)) == n })
	c.begin(1)
	victim := c.leaseOf(1, 0)
	c.nodes[0].kill(c.nodes[0].life())
	end := *c.nodeOf(1, victim).LeaseUntil
	c.until("all runs go on", func() bool { return len(a.times(2)) == n })
	var took []time.Duration
	for _, at := range a.times(2) {
		if at.Before(end) {
			t.Errorf("I-16: a session was taken %s before its lease ended", end.Sub(at))
		}
		took = append(took, at.Sub(end))
	}
	t.Logf("from the end of the lease to the first request of the new owner, %s", spreadOf(took))
	c.end(1, runs)
	h, events := c.history()
	if len(h.runs) != n {
		t.Errorf("%d runs in the log, want %d", len(h.runs), n)
	}
	for stream, by := range owners(events) {
		if len(by) != 2 {
			t.Errorf("%s went from %v", stream, by)
		}
	}
	if times := a.times(3); len(times) > 0 {
		t.Errorf("%d runs were asked for three times", len(times))
	}
}

// leaseOf gives the id of the present life of a node, as another sees it.
func (c *cluster) leaseOf(on, node int) string {
	c.t.Helper()
	suffix := fmt.Sprintf("/%d", c.nodes[node].life().cmd.Process.Pid)
	for _, n := range c.leases(on) {
		if strings.HasSuffix(n.Name, suffix) {
			return n.ID
		}
	}
	c.t.Fatalf("node %d is not among %+v", node, c.leases(on))
	return ""
}

func (c *cluster) nodeOf(on int, id string) api.Node {
	c.t.Helper()
	list := c.leases(on)
	i := slices.IndexFunc(list, func(n api.Node) bool { return n.ID == id })
	if i < 0 || list[i].LeaseUntil == nil {
		c.t.Fatalf("%s is not among %+v", id, list)
	}
	return list[i]
}

// One session, over and over: its owner is killed, and the time from the end of
// the lease to the first act of the next one is measured. The goal is 250 ms.
func TestClusterTakeover(t *testing.T) {
	c := newCluster(t, 2, nil)
	a := c.asks(always, storyAnswer)
	c.start()
	var took []time.Duration
	for round := range *clusterRounds {
		alias, order := fmt.Sprintf("round-%d", round), 1000+round
		c.session(0, alias)
		run := c.submit(round%2, alias, order)
		c.until("the model is asked", func() bool { return a.count(order) == 1 })
		owner, next := 0, 1 // either may have been the first
		log, err := c.on[0].sessionEvents(c.ctx, alias)
		c.must(err)
		if victim := c.leaseOf(0, 1); slices.ContainsFunc(log, func(e api.Event) bool { return strings.Contains(string(e.Data), victim) }) {
			owner, next = 1, 0
		}
		victim := c.leaseOf(next, owner)
		c.nodes[owner].kill(c.nodes[owner].life())
		end := *c.nodeOf(next, victim).LeaseUntil
		c.until("another goes on", func() bool { return a.count(order) == 2 })
		a.mu.Lock()
		took = append(took, a.at[order][1].Sub(end))
		a.mu.Unlock()
		c.completes(next, run.ID)
		c.begin(owner)
	}
	if slices.Min(took) < 0 {
		t.Errorf("I-16: taken before the lease ended: %v", took)
	}
	t.Logf("from the end of the lease to the first request of the new owner, %s", spreadOf(took))
	c.delivered(0, *clusterRounds)
	c.history()
}

func (a *asks) count(order int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at[order])
}

// C48 over nodes: a node that is told to stop gives away what comes to rest, while
// it still waits for what is in flight. Another goes on with it before the first
// is gone; nothing is cancelled, and nothing waits for a lease.
func TestClusterDrain(t *testing.T) {
	t.Parallel()
	const n, held = 20, 1000
	c := newCluster(t, 2, func(_ int, _ *world, m map[string]any) {
		m["shutdown"] = map[string]any{"drain": "2m"}
		m["lease"] = map[string]any{"ttl": "10m"} // whoever waits for one comes too late
	})
	told := make(chan struct{}) // the node knows that it is to stop
	a := c.asks(func(order int) bool { return order == held }, func(_, step int, _ chatstub.Request) chatstub.Reply {
		if step == 0 { // else what is quick is at its end before
			select {
			case <-told:
			case <-c.w.hung:
			}
		}
		if step < 3 {
			return chatstub.Reply{Delay: 300 * time.Millisecond, Calls: []chatstub.Call{{Name: "lookup", Arguments: fmt.Sprintf(`{"order":%d}`, step)}}}
		}
		return chatstub.Reply{Text: "done"}
	})
	c.begin(0)
	runs := c.sessions(0, n, held)
	c.until("all runs are in work", func() bool { return len(a.times(1)) == n })
	c.begin(1)
	l := c.nodes[0].life()
	c.signal(0, syscall.SIGTERM)
	c.until("it drains", func() bool { return slices.ContainsFunc(c.leases(1), func(n api.Node) bool { return n.Draining }) })
	close(told)
	c.end(1, runs[1:])
	if l.over(c.nodes[0]) {
		t.Error("C48: the node was gone before its work had been given away")
	}
	a.open()
	select {
	case <-l.gone:
	case <-c.ctx.Done():
		t.Fatal("the node does not stop")
	}
	if l.err != nil {
		t.Errorf("the node stopped with %v", l.err)
	}
	c.end(1, runs)
	h, events := c.history()
	for id, r := range h.runs {
		if r.status != "completed" {
			t.Errorf("C48: run %s is %s", id, r.status)
		}
	}
	moved := 0
	for _, by := range owners(events) {
		if len(by) > 1 {
			moved++
		}
	}
	for i := range events {
		if events[i].Type == event.TypeToolInterrupted || events[i].Type == event.TypeModelCallFailed {
			t.Errorf("C48: %s of run %s: what was in flight was to be awaited", events[i].Type, events[i].RunID)
		}
	}
	if moved != n {
		t.Errorf("C48: %d of %d sessions changed hands", moved, n)
	}
}

// A session that needs a workspace root stays with the nodes that have it.
func TestClusterRoots(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, func(i int, _ *world, m map[string]any) {
		m["tools"].(map[string]any)["desk"].(map[string]any)["root"] = fmt.Sprintf("work-%d", i)
	})
	a := c.asks(func(order int) bool { return order < 50 }, storyAnswer)
	c.begin(0)
	c.session(0, "rooted")
	run := c.submit(0, "rooted", 41)
	c.until("the model is asked", func() bool { return a.count(41) == 1 })
	c.begin(1) // not before: it might have been the first to take the run, and with its own root
	victim := c.leaseOf(1, 0)
	c.nodes[0].kill(c.nodes[0].life())
	c.until("the lease has ended", func() bool { return !c.nodeOf(1, victim).Alive })
	c.session(1, "other") // and its own goes on
	c.completes(1, c.submit(1, "other", 51).ID)
	c.passes(clusterLease)
	if n := a.count(41); n != 1 {
		t.Errorf("a node without the root went on: %d requests", n)
	}
	c.begin(0)
	c.completes(1, run.ID)
	c.delivered(1, 2)
	c.history()
}

// PostgreSQL ends under load: once in order, once at once, as in a crash. No run
// is lost, no effect happens twice, and the nodes live on.
func TestClusterDatabaseRestarts(t *testing.T) {
	t.Parallel()
	const n = 30
	db := newDatabase(t)
	c := newClusterAt(t, db.url, 2, func(_ int, _ *world, m map[string]any) {
		delete(m, "store") // what is committed is on the disk
	})
	c.asks(func(int) bool { return false }, func(order, step int, _ chatstub.Request) chatstub.Reply {
		if step < 4 {
			return chatstub.Reply{Delay: 150 * time.Millisecond, Calls: []chatstub.Call{{Name: "charge", Arguments: fmt.Sprintf(`{"order":%d,"cents":%d}`, order, step)}}}
		}
		return chatstub.Reply{Text: "done"}
	})
	c.start()
	runs := c.sessions(0, n, 1000)
	effects := func() int {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		return len(c.w.effects)
	}
	for _, how := range []struct {
		after  int // effects
		signal syscall.Signal
	}{{n / 2, syscall.SIGINT}, {2 * n, syscall.SIGQUIT}} {
		c.until("the work goes on", func() bool { return effects() >= how.after })
		db.stop(how.signal)
		db.start()
	}
	for i := range c.nodes {
		c.end(i, runs)
	}
	for i, k := range c.nodes {
		if k.life().over(k) {
			t.Errorf("node %d did not live through it", i)
		}
	}
	c.session(1, "after")
	c.completes(0, c.submit(1, "after", 2000).ID)
	c.delivered(0, 1)
	h, _ := c.history()
	if len(h.runs) != n+1 {
		t.Errorf("%d runs in the log, want %d", len(h.runs), n+1)
	}
	checkEffects(t, c.w, h)
}

// A node that is alone and loses its lease goes on with all that it had, once it
// has one again.
func TestClusterLapseAlone(t *testing.T) {
	t.Parallel()
	n := *clusterActive
	c := newCluster(t, 1, func(_ int, _ *world, m map[string]any) {
		m["limits"] = map[string]any{"active_sessions": max(256, 2*n)}
	})
	a := c.asks(always, storyAnswer)
	c.start()
	runs := c.sessions(0, n, 1000)
	c.until("all runs are in work", func() bool { return len(a.times(1)) == n })
	c.signal(0, syscall.SIGSTOP)
	c.passes(clusterLease + clusterLease/2)
	c.signal(0, syscall.SIGCONT)
	c.end(0, runs)
	h, _ := c.history()
	if len(h.runs) != n {
		t.Errorf("%d runs in the log, want %d", len(h.runs), n)
	}
}

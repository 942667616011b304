package daemon_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

var (
	clusterActive = flag.Int("cluster.active", 100, "runs in work on the node that is killed")
	clusterRounds = flag.Int("cluster.rounds", 1, "takeovers of one session that are measured")
)

// The tests of the cluster have real daemons over a real PostgreSQL: in a bubble
// there is no second process that sleeps and wakes, and no clock that is wrong.

// clusterLease is the lease of the nodes: that of C46.
const clusterLease = 2 * time.Second

// cluster is a world with some daemons over one database.
type cluster struct {
	t     *testing.T
	w     *world
	url   string
	ctx   context.Context
	nodes []*keeper
	on    []*caller // a client of each node
}

// newCluster makes n nodes that have not begun. change sees the configuration of each.
func newCluster(t *testing.T, n int, change func(i int, w *world, c map[string]any)) *cluster {
	t.Helper()
	return newClusterAt(t, storetest.Database(t), n, change)
}

func newClusterAt(t *testing.T, database string, n int, change func(i int, w *world, c map[string]any)) *cluster {
	t.Helper()
	c := &cluster{t: t, w: newWorld(t), ctx: within(t, *patience), url: database}
	c.w.answer = storyAnswer
	desk := t.TempDir() // all have the same workspace root
	for i := range n {
		k := newKeeper(t, c.w.config(func(m map[string]any) {
			m["database_url"] = storetest.WithParams(t, database, "pool_max_conns", "6")
			m["lease"] = map[string]any{"ttl": clusterLease.String()}
			m["tools"].(map[string]any)["desk"].(map[string]any)["root"] = desk
			if change != nil {
				change(i, c.w, m)
			}
		}))
		c.nodes, c.on = append(c.nodes, k), append(c.on, newCaller(t, k))
	}
	return c
}

// start begins a life of each node, and waits until all listen.
func (c *cluster) start() {
	c.t.Helper()
	for i := range c.nodes {
		c.begin(i)
	}
}

func (c *cluster) begin(i int) *life {
	c.t.Helper()
	l := c.nodes[i].start(nil)
	c.nodes[i].listens(l, c.ctx.Done())
	if l.over(c.nodes[i]) {
		c.t.Fatalf("node %d does not begin", i)
	}
	return l
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// session makes a session whose answers go to the receiver.
func (c *cluster) session(on int, alias string) {
	c.t.Helper()
	c.must(c.on[on].createSession(c.ctx, api.CreateSession{ID: alias,
		ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: c.w.hookSrv.URL + "/" + alias}}}))
}

func (c *cluster) submit(on int, alias string, order int) api.Run {
	c.t.Helper()
	run, _, err := c.on[on].submit(c.ctx, alias, fmt.Sprintf("key-%d", order), fmt.Sprintf("order %d", order))
	c.must(err)
	return run
}

// completes waits until a run has completed, as a node tells it. A person says of
// what is in doubt that it was done.
func (c *cluster) completes(on int, id string) api.Run {
	c.t.Helper()
	run, err := c.settled(on, id)
	c.must(err)
	return run
}

// settled is completes for any goroutine; the store may be away for a while.
func (c *cluster) settled(on int, id string) (run api.Run, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		run = api.Run{}
		err = c.on[on].get(c.ctx, "/v1/runs/"+id+"?wait=2s", &run)
		switch {
		case err == nil && run.Status == api.RunCompleted:
			return run, nil
		case err == nil && run.Terminal(), c.ctx.Err() != nil:
			return run, fmt.Errorf("run %s is %s (%+v): %w", id, run.Status, run.Error, c.ctx.Err())
		case err == nil:
			for _, d := range run.Attention {
				_, _ = c.on[on].do(c.ctx, http.MethodPost, "/v1/runs/"+id+"/attention",
					api.ResolveAttention{CallID: d.CallID, Resolution: "completed", Output: "done"}) // a conflict: it was said before
			}
		}
		select {
		case <-tick.C:
		case <-c.ctx.Done():
		}
	}
}

// delivered waits until there are n deliveries, all at their end.
func (c *cluster) delivered(on, n int) {
	c.t.Helper()
	c.until(fmt.Sprintf("%d deliveries are at their end", n), func() bool {
		var page api.List[api.Delivery]
		c.must(c.on[on].get(c.ctx, "/v1/deliveries?limit=200", &page))
		ended := 0
		for _, d := range page.Items {
			if d.Status == api.DeliveryDelivered {
				ended++
			}
		}
		return ended == n
	})
}

// until asks again and again, in short steps, until is says true.
func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			c.t.Fatalf("it does not come to pass: %s", what)
		}
	}
}

// passes lets time go by in which nothing must happen.
func (c *cluster) passes(d time.Duration) {
	c.t.Helper()
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
		c.t.Fatal("the test has no time left")
	}
}

// arm has a node stop, or die, at a place from now on.
func (c *cluster) arm(i int, at killAt) {
	c.t.Helper()
	k, l := c.nodes[i], c.nodes[i].life()
	_, err := l.stdin.Write(append(quoted(at), '\n'))
	c.must(err)
	c.must(k.await(c.ctx, func() bool { return len(l.told["armed"]) > 0 }))
}

// stopped waits until a process is stopped.
func (c *cluster) stopped(i int) {
	c.t.Helper()
	stat := fmt.Sprintf("/proc/%d/stat", c.nodes[i].life().cmd.Process.Pid)
	c.until(fmt.Sprintf("node %d is stopped", i), func() bool {
		text, err := os.ReadFile(stat)
		if err != nil {
			c.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

func (c *cluster) signal(i int, s syscall.Signal) {
	c.t.Helper()
	c.must(c.nodes[i].life().cmd.Process.Signal(s))
}

// address gives where the present life of a node listens.
func (c *cluster) address(i int) string {
	k := c.nodes[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cur.address
}

// said gives what a life has told by a word, and how much it has committed.
func (c *cluster) said(i int, word string) (texts, commits []string) {
	k := c.nodes[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.cur.told[word]), slices.Clone(k.cur.commits)
}

// log gives what the present life of a node wrote for people.
func (c *cluster) log(i int) string {
	text, err := os.ReadFile(c.nodes[i].life().log)
	c.must(err)
	return string(text)
}

// feed reads the log as a node gives it.
func (c *cluster) feed(on int) []api.Event {
	c.t.Helper()
	all, err := c.on[on].feed(c.ctx)
	c.must(err)
	return all
}

// leases gives the nodes as one of them sees them.
func (c *cluster) leases(on int) []api.Node {
	c.t.Helper()
	var list api.List[api.Node]
	c.must(c.on[on].get(c.ctx, "/v1/nodes", &list))
	return list.Items
}

// owners gives, of each session, the nodes that have claimed it, in order. They
// are told by the epochs, which never go down.
func owners(events []event.Event) map[event.Stream][]string {
	out := map[event.Stream][]string{}
	for i := range events {
		if d, ok := events[i].Data.(*event.OwnerClaimed); ok {
			out[events[i].Stream] = append(out[events[i].Stream], d.Owner)
		}
	}
	return out
}

// history stops the nodes that live and reads the log: whatever is wrong with it
// fails the test (I-01, I-03 to I-07, I-13, I-15, I-24).
func (c *cluster) history() (*history, []event.Event) {
	c.t.Helper()
	for _, k := range c.nodes {
		if l := k.life(); l != nil && !l.over(k) {
			k.stop(l)
		}
	}
	for _, v := range c.w.model.Violations() {
		c.t.Errorf("the model refused a request: %s", v)
	}
	c.w.mu.Lock()
	for _, f := range c.w.faults {
		c.t.Errorf("the receiver: %s", f)
	}
	c.w.mu.Unlock()
	events := readCluster(c.t, c.url)
	return fold(c.t, events), events
}

func (l *life) over(k *keeper) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.ended
}

// readCluster verifies the store that nobody works on any more, and gives every
// event in the order of commits.
func readCluster(t *testing.T, database string) []event.Event {
	t.Helper()
	ctx := context.Background()
	s, err := postgres.Open(ctx, postgres.Config{URL: database, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	report, err := s.Verify(ctx, postgres.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		t.Errorf("verify: %s: %s", f.Where, f.Text)
	}
	var all []event.Event
	for pos := eventlog.Position(0); ; {
		page, next, err := s.Feed(ctx, pos, 500, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page {
			if err := p.Event.Decode(); err != nil {
				t.Fatal(err)
			}
			all = append(all, p.Event)
		}
		if next == pos {
			return all
		}
		pos = next
	}
}

// spreadOf says how durations are spread.
func spreadOf(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	d = slices.Clone(d)
	slices.Sort(d)
	at := func(p float64) time.Duration { return d[int(p*float64(len(d)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%d: least %s, median %s, 90 %% %s, 99 %% %s, most %s", len(d), at(0), at(.5), at(.9), at(.99), at(1))
}

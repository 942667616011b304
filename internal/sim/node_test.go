package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// split says how a node is cut off from the store.
type split string

const (
	joined split = ""
	errs   split = "errors"
	hangs  split = "hangs"
)

// node is one process life of the daemon.
type node struct {
	h    *history
	name string
	d    *daemon.Daemon
	door http.Handler

	// Of the scheduler's lock.
	dead bool

	// Of the one goroutine that plays the history.
	started, stopping, paused bool
	split                     split
	wakes, heals              time.Time
	news                      []eventlog.News // of what others committed, that it was not told of yet

	hub  *live.Hub
	airs []aired // deltas of others, that it did not get yet

	up chan struct{} // closed when its start is over
}

func (n *node) gone() bool {
	n.h.sched.mu.Lock()
	defer n.h.sched.mu.Unlock()
	return n.dead
}

// chance is a source of random bytes.
type chance struct {
	mu  sync.Mutex
	src *rand.ChaCha8
}

func newChance(seed uint64, what string) *chance {
	var key [32]byte
	copy(key[:], fmt.Sprintf("%d %s", seed, what))
	return &chance{src: rand.NewChaCha8(key)}
}

func (c *chance) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.src.Read(p)
}

const configuration = `
listen: 127.0.0.1:0
default_route: main
routes:
  main: {provider: openai_compatible, base_url: "http://127.0.0.1:1/v1", model: m, capabilities: {context: 2000, output: 200}}
  other: {provider: openai_compatible, base_url: "http://127.0.0.1:1/v1", model: n}
secrets: {hooks: {env: HOLDFAST_SIM_NONE}}
targets: {signing_secret: hooks, allow_private: ["127.0.0.0/8"]}
compaction: {buffer: 200, keep: 200}
delivery: {max_attempts: 4, initial_backoff: 1s, max_backoff: 1m, timeout: 5s, slots: 4, failing_slots: 1, slow_after: 1s, circuit: {failures: 2, cooldown: 2s, max_cooldown: 10s}}
limits: {active_sessions: %d, cached_sessions: 2, parallel_tools: 3}
shutdown: {drain: 8s}
`

// begin starts a node beside the history; its work waits at its ports.
func (h *history) begin() {
	if h.ttl == 0 && h.lives > 0 { // the process that held the directory is dead
		if err := errors.Join(h.store.Close(context.Background()), h.openStore()); err != nil {
			h.t.Fatal(err)
		}
		h.watch.afresh()
	}
	h.lives++
	n := &node{h: h, name: fmt.Sprintf("n%d", h.lives), up: make(chan struct{})}
	cfg, err := config.Parse(fmt.Appendf(nil, configuration, 2+h.lives%3), "sim.yaml", h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	n.d, err = daemon.Open(context.Background(), cfg, daemon.Options{
		Logger: slog.New(slog.NewTextHandler(&words{h: h, n: n}, nil)), Random: newChance(h.seed, n.name), Store: h.store,
		Lease:     h.ttl,
		WrapStore: func(s daemon.Store) daemon.Store { return &port{under: h.mutant.store(s, n), n: n} },
		Model: func(r event.Route) (llm.Model, error) {
			return h.mutant.model(&model{w: h.world, n: n, route: r}, n), nil
		},
		Send:          h.mutant.send(func(ctx context.Context, m delivery.Message) delivery.Result { return h.world.send(n, ctx, m) }, n),
		Tools:         h.mutant.tools(h.world.tools(n), n),
		SnapshotEvery: 10,
		Far:           func(hub *live.Hub) live.Far { n.hub = hub; return &wireless{n} },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	n.door = n.d.Handler(true)
	h.nodes = append(h.nodes, n)
	n.started = true
	h.beside.Go(func() {
		defer close(n.up)
		if err := n.d.Start(context.Background()); err != nil {
			h.say("%s did not start: %v", n.name, err)
			h.crash(n)
		}
	})
}

// crash ends a node without a goodbye. What its requests were about to do
// outside they may do all the same.
func (h *history) crash(n *node) {
	h.sched.mu.Lock()
	known := n.dead
	h.sched.mu.Unlock()
	if known {
		return
	}
	h.count("crash")
	h.sched.drop(n)
	h.beside.Go(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		<-n.up
		_ = n.d.Stop(ended) // what a dead node says is heard by nobody
	})
}

// linger lets a request of a caller who is gone land some time, or never.
func (h *history) linger(n *node, key string, call func()) {
	h.count("request that lingers")
	rest := &node{h: h, name: n.name}
	h.tallyMu.Lock()
	h.ghosts = append(h.ghosts, rest)
	h.tallyMu.Unlock()
	h.beside.Go(func() {
		if v := h.sched.park(context.Background(), rest, appends, key+" lingers"); v == proceed || v == late {
			h.count("request that landed behind its caller's end")
			call()
		}
	})
}

// stop ends a node in order.
func (h *history) stop(n *node) {
	h.count("stop in order")
	n.stopping = true
	h.beside.Go(func() {
		<-n.up
		if err := n.d.Stop(context.Background()); err != nil && !n.gone() {
			h.watch.find("%s stops with %v", n.name, err)
		}
		h.sched.drop(n)
	})
}

// alive lists the nodes that are not dead.
func (h *history) alive() []*node {
	h.sched.mu.Lock()
	defer h.sched.mu.Unlock()
	var out []*node
	for _, n := range h.nodes {
		if !n.dead {
			out = append(out, n)
		}
	}
	return out
}

// serving lists the nodes that take requests.
func (h *history) serving() []*node {
	var out []*node
	for _, n := range h.alive() {
		if !n.stopping {
			out = append(out, n)
		}
	}
	return out
}

// wireless is the bus as one node has it: every delta goes to every other node,
// some time or never.
type wireless struct{ n *node }

// aired is a delta on its way.
type aired struct {
	stream event.Stream
	delta  api.Delta
}

// maxAirs bounds the deltas on their way to one node.
const maxAirs = 64

func (w *wireless) Wants(event.Stream) bool   { return true }
func (w *wireless) Listen(event.Stream, bool) {}

func (w *wireless) Send(s event.Stream, d *live.Delta) {
	for _, n := range w.n.h.alive() {
		if n != w.n {
			n.h.tallyMu.Lock()
			if len(n.airs) < maxAirs {
				n.airs = append(n.airs, aired{s, d.Delta})
			}
			n.h.tallyMu.Unlock()
		}
	}
}

// takeAirs gives the deltas that wait.
func (n *node) takeAirs() []aired {
	n.h.tallyMu.Lock()
	defer n.h.tallyMu.Unlock()
	out := n.airs
	n.airs = nil
	return out
}

// hears says whether deltas wait.
func (n *node) hears() bool {
	n.h.tallyMu.Lock()
	defer n.h.tallyMu.Unlock()
	return len(n.airs) > 0
}

// words keeps what a node logs, for people.
type words struct {
	h *history
	n *node
}

func (w *words) Write(p []byte) (int, error) {
	w.h.say("%s says: %s", w.n.name, strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ io.Writer = (*words)(nil)

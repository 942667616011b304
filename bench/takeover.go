package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// takeover measures how long sessions stand still whose node was killed
// (SIGKILL of its process): from the end of its lease, by the database's clock,
// until the node that goes on has asked their model anew. What stands between is
// the look at the store, the claim with the sweep of what was open, its commit, and
// the request. The provider answers nobody, so that all sessions are active.
func takeover(ctx context.Context, b *bench) (err error) {
	d, err := b.openDatabase(ctx)
	if d == nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	w, err := newWall(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p := play{route: w.route(), more: d.yaml(1500*time.Millisecond) + "limits: {active_sessions: 4096}\n"}
	if err := oneByOne(ctx, b, d, w, p); err != nil {
		return err
	}
	return allAtOnce(ctx, b, d, w, p)
}

// oneByOne kills nodes with one session each, beside one that stays.
func oneByOne(ctx context.Context, b *bench, d *database, w *wall, p play) (err error) {
	stays, err := openNodesWith(ctx, filepath.Join(b.dir, "stays"), 1, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.release(func() error { return stays.close(ctx) })) }()
	var claimed, asked []time.Duration
	for i := 0; len(asked) < b.n.takeovers; i++ {
		n, err := startNodeWith(filepath.Join(b.dir, fmt.Sprintf("killed-%d", i)), p)
		if err != nil {
			return err
		}
		m, err := killed(ctx, d, w, n, 1)
		if errors.Is(err, errElsewhere) && i < 2*b.n.takeovers+3 {
			continue
		}
		if err != nil {
			return err
		}
		claimed, asked = append(claimed, m.claimed...), append(asked, m.asked...)
	}
	of := fmt.Sprintf("of %d nodes that were killed, one after the other", b.n.takeovers)
	b.row("lease's end to the claim of another node, p50", ms(quantile(claimed, .5)), "ms", "", of)
	b.row("lease's end to the request of another node, p50", ms(quantile(asked, .5)), "ms", "", of)
	b.row("lease's end to the request of another node, p90", ms(quantile(asked, .9)), "ms", "", of)
	b.row("lease's end to the request of another node, most", ms(quantile(asked, 1)), "ms", "below 250", of)
	return nil
}

// allAtOnce kills a node with many active sessions. The other node comes when
// the first one has them, so that it holds them all.
func allAtOnce(ctx context.Context, b *bench, d *database, w *wall, p play) (err error) {
	n, err := startNodeWith(filepath.Join(b.dir, "many"), p)
	if err != nil {
		return err
	}
	var stays nodes
	defer func() { err = errors.Join(err, w.release(func() error { return stays.close(ctx) })) }()
	m, err := killedWith(ctx, d, w, n, b.n.moved, func() error {
		stays, err = openNodesWith(ctx, filepath.Join(b.dir, "takes"), 1, p)
		return err
	})
	if err != nil {
		return err
	}
	of := fmt.Sprintf("%d active sessions of a node that was killed", b.n.moved)
	b.row("lease's end until half of them asked their model anew", quantile(m.asked, .5).Seconds(), "s", "", of)
	b.row("lease's end until all of them were claimed", quantile(m.claimed, 1).Seconds(), "s", "", of)
	b.row("lease's end until all of them asked their model anew", quantile(m.asked, 1).Seconds(), "s", "below 5", of)
	return nil
}

// errElsewhere: another node was quicker to begin the session, so that there is
// nothing to take over. On a busy machine that happens.
var errElsewhere = errors.New("the sessions are held by another node than the one to be killed")

// moved are times since the end of a lease, of each session.
type moved struct{ claimed, asked []time.Duration }

func killed(ctx context.Context, d *database, w *wall, n *node, sessions int) (moved, error) {
	return killedWith(ctx, d, w, n, sessions, func() error { return nil })
}

// killedWith has a node work on sessions, kills it, and waits until others have
// gone on with all of them.
func killedWith(ctx context.Context, d *database, w *wall, n *node, sessions int, ready func() error) (m moved, err error) {
	alive := true
	defer func() {
		if alive {
			err = errors.Join(err, n.kill())
		}
	}()
	first := w.expect(sessions)
	ids := make([]event.SessionID, sessions)
	err = at64(sessions, func(i int) error {
		id, err := n.session(`{}`)
		if err != nil {
			return err
		}
		ids[i] = event.SessionID(id)
		var run struct{ ID string }
		return n.do("POST", "/v1/sessions/"+id+"/runs", `{"content":"hello"}`, &run)
	})
	if err != nil {
		return m, err
	}
	if _, err := first.wait(); err != nil {
		return m, fmt.Errorf("before the node is killed: %w", err)
	}
	if err := ready(); err != nil {
		return m, err
	}
	streams := make([]string, len(ids))
	for i, id := range ids {
		streams[i] = string(id.Stream())
	}
	var holders []string
	if holders, err = one[[]string](ctx, d, "SELECT array_agg(DISTINCT holder) FROM "+d.schema+".streams WHERE stream = ANY($1)", streams); err != nil {
		return m, err
	}
	victim, err := one[string](ctx, d, "SELECT node_id FROM "+d.schema+".nodes WHERE name LIKE '%/' || $1::text", fmt.Sprint(n.cmd.Process.Pid))
	if err != nil {
		return m, err
	}
	if len(holders) != 1 || holders[0] != victim {
		return m, errElsewhere
	}
	again := w.expect(sessions)
	alive = false
	if err := n.kill(); err != nil {
		return m, err
	}
	asked, err := again.wait()
	if err != nil {
		return m, fmt.Errorf("after the node was killed: %w", err)
	}
	// The database's clock and this process's are those of one machine.
	ended, err := one[time.Time](ctx, d, "SELECT until FROM "+d.schema+".nodes WHERE node_id = $1", victim)
	if err != nil {
		return m, err
	}
	claims, err := one[[]time.Time](ctx, d, "SELECT array_agg(t) FROM (SELECT min(time) t FROM "+d.schema+".log WHERE stream = ANY($1) AND epoch = 2 GROUP BY stream) c", streams)
	if err != nil {
		return m, err
	}
	if len(claims) != sessions {
		return m, fmt.Errorf("%d of %d sessions were claimed", len(claims), sessions)
	}
	for i := range claims {
		m.claimed, m.asked = append(m.claimed, claims[i].Sub(ended)), append(m.asked, asked[i].Sub(ended))
	}
	return m, nil
}

// at64 calls f for numbers below n, 64 at a time.
func at64(n int, f func(i int) error) error { return atMost(64, n, f) }

func atMost(most, n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, most)
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range min(most, n) {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// wall is a provider that takes requests and does not answer them before it is told to.
type wall struct {
	server *http.Server
	addr   net.Addr
	done   chan error

	mu   sync.Mutex
	seen *seen
	open chan struct{} // closed: it answers
}

// seen are the sessions that a provider waits for.
type seen struct {
	missing int
	at      map[string]time.Time // by session
	all     chan struct{}
}

func newWall(ctx context.Context) (*wall, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wall{addr: l.Addr(), done: make(chan error, 1), open: make(chan struct{})}
	w.server = &http.Server{Handler: w}
	go func() { w.done <- w.server.Serve(l) }()
	return w, nil
}

func (w *wall) route() string {
	return fmt.Sprintf(`{provider: openai_compatible, base_url: "http://%s/v1", model: m}`, w.addr)
}

func (w *wall) close() error {
	if err := errors.Join(w.server.Close(), <-w.done); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP notes when a session's request came, and holds it.
func (w *wall) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	now, id := time.Now(), r.Header.Get("X-Session-Id")
	w.mu.Lock()
	if s := w.seen; s != nil && s.missing > 0 && s.at[id].IsZero() {
		s.at[id] = now
		if s.missing--; s.missing == 0 {
			close(s.all)
		}
	}
	open := w.open
	w.mu.Unlock()
	select {
	case <-open:
		http.Error(out, `{"error":{"message":"over"}}`, http.StatusBadRequest)
	case <-r.Context().Done():
	}
}

// expect waits for requests of n sessions from now on.
func (w *wall) expect(n int) *seen {
	s := &seen{missing: n, at: map[string]time.Time{}, all: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = s
	return s
}

// wait gives the times at which they came.
func (s *seen) wait() ([]time.Time, error) {
	select {
	case <-s.all:
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%d sessions asked their model within a minute, and not all", len(s.at))
	}
	var times []time.Time
	for _, t := range s.at {
		times = append(times, t)
	}
	return times, nil
}

// release answers all that is held, and what comes while f runs.
func (w *wall) release(f func() error) error {
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	close(open)
	err := f()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = make(chan struct{})
	return err
}

package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// C50: 50 submissions to one session over two nodes at once. Runs go in the order
// in which they were accepted, one at a time, each on what the one before it
// answered; none is lost. // I-06
func TestClusterC50(t *testing.T) {
	t.Parallel()
	const n = 50
	c := newCluster(t, 2, func(_ int, _ *world, m map[string]any) {
		m["limits"] = map[string]any{"queued_runs": 2 * n}
	})
	c.w.answer = func(order, _ int, _ chatstub.Request) chatstub.Reply {
		return chatstub.Reply{Text: fmt.Sprintf("line %d", order)}
	}
	c.start()
	c.session(0, "case")
	var wg sync.WaitGroup
	runs := make([]api.Run, n)
	for i := range n {
		wg.Go(func() {
			var err error
			if runs[i], _, err = c.on[i%2].submit(c.ctx, "case", fmt.Sprintf("key-%d", i), fmt.Sprintf("order %d", 100+i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, r := range runs {
		r = c.completes((i+1)%2, r.ID)
		if len(r.Outputs) != 1 || r.Outputs[0].Content != fmt.Sprintf("line %d", 100+i) {
			t.Errorf("C50: run %d answered %+v", i, r.Outputs)
		}
	}
	c.delivered(0, n)
	_, events := c.history() // I-06: one at a time, in the order of acceptance
	var order []int
	for i := range events {
		if d, ok := events[i].Data.(*event.RunCreated); ok {
			found := orderForm.FindStringSubmatch(string(quoted(d)))
			at, _ := strconv.Atoi(found[1])
			order = append(order, at)
		}
	}
	requests := c.w.model.Requests()
	if len(requests) < n || len(order) != n {
		t.Fatalf("C50: %d requests, %d runs", len(requests), len(order))
	}
	last := 0
	for _, req := range requests { // a run may have been asked for twice, over a change of hands
		at, _ := placeOf(req)
		k := 0
		for order[k] != at {
			k++
		}
		if k < last || k > last+1 {
			t.Errorf("C50: the run accepted as %d was asked for after that of %d", k, last)
		}
		last = k
		want := 0
		for _, m := range req.Messages {
			if m.Role == "assistant" {
				if m.Text() != fmt.Sprintf("line %d", order[want]) {
					t.Fatalf("C50: request of run %d: answer %d is %q, want that of order %d", k, want, m.Text(), order[want])
				}
				want++
			}
		}
		if want != k {
			t.Errorf("C50: the request of run %d holds %d answers", k, want)
		}
	}
}

// C53: 20 equal submissions at once, over two nodes, are one run; so they are
// after a restart, and when the node dies before or after it has written it. // I-07
func TestClusterC53(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	c.start()
	c.session(0, "case")
	ids := func(n int, key string) map[string]int {
		var mu sync.Mutex
		var wg sync.WaitGroup
		out := map[string]int{}
		for i := range n {
			wg.Go(func() {
				run, _, err := c.on[i%2].submit(c.ctx, "case", key, "order 31")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				out[run.ID]++
			})
		}
		wg.Wait()
		return out
	}
	first := ids(20, "k-1")
	if len(first) != 1 {
		t.Fatalf("C53: %v", first)
	}
	for id := range first {
		c.completes(1, id)
	}
	for i, k := range c.nodes {
		k.stop(k.life())
		c.begin(i)
	}
	if again := ids(2, "k-1"); fmt.Sprint(keysOf(again)) != fmt.Sprint(keysOf(first)) {
		t.Errorf("C53: after a restart %v, before %v", again, first)
	}
	want := 1
	for _, side := range []string{"before", "after"} {
		c.arm(0, killAt{Side: side, N: 1, Type: event.TypeRunCreated})
		l := c.nodes[0].life()
		ctx, cancel := context.WithCancel(c.ctx)
		address := c.address(0)
		go func() { // it dies of it, and never answers
			_, _ = c.on[0].once(ctx, address, http.MethodPost, "/v1/sessions/case/runs", quoted(api.SubmitRun{Content: quoted("order 32")}), []string{"Idempotency-Key", "k-" + side})
		}()
		select {
		case <-l.gone:
		case <-c.ctx.Done():
			t.Fatal("the node does not die")
		}
		cancel()
		run, created, err := c.on[1].submit(c.ctx, "case", "k-"+side, "order 32")
		c.must(err)
		if created != (side == "before") {
			t.Errorf("C53: killed %s the write, the other node says created: %t", side, created)
		}
		want++
		c.begin(0)
		again, created, err := c.on[0].submit(c.ctx, "case", "k-"+side, "order 32")
		c.must(err)
		if created || again.ID != run.ID {
			t.Errorf("C53: %s and then %s", run.ID, again.ID)
		}
		c.completes(0, run.ID)
	}
	c.delivered(0, want)
	h, _ := c.history()
	if len(h.runs) != want {
		t.Errorf("C53: %d runs, want %d", len(h.runs), want)
	}
}

func keysOf(m map[string]int) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// C85: ten clients read the stream of a session and drop again and again, each
// time from a node at random, while others write. Each sees each event once, in
// order. // I-18
func TestClusterC85(t *testing.T) {
	t.Parallel()
	const clients, drops, runs = 10, 20, 110 // some 2,000 events
	c := newCluster(t, 2, func(_ int, _ *world, m map[string]any) {
		m["limits"] = map[string]any{"queued_runs": 2 * runs}
	})
	c.w.answer = func(order, _ int, _ chatstub.Request) chatstub.Reply {
		return chatstub.Reply{Text: fmt.Sprintf("line %d", order), Pause: time.Millisecond}
	}
	c.start()
	c.session(0, "case")
	for i := range runs {
		c.submit(i%2, "case", 100+i)
	}
	var wg sync.WaitGroup
	done := make(chan struct{}) // closed once the head is known
	var head int64
	for n := range clients {
		wg.Go(func() {
			rnd := seeded(uint64(n))
			last, left := int64(0), drops
			for {
				most := 1 + rnd.IntN(60)
				if left == 0 {
					<-done
					most = 1 << 30
				}
				left = max(0, left-1)
				on, byHeader := rnd.IntN(2), rnd.IntN(2) == 0
				var err error
				if last, err = c.readSome(on, last, most, byHeader, &head, done); err != nil {
					t.Errorf("C85: client %d: %v", n, err)
					return
				}
				select {
				case <-done:
					if last == head {
						return
					}
				default:
				}
			}
		})
	}
	var list api.List[api.Run]
	c.until("all runs are at their end", func() bool {
		c.must(c.on[1].get(c.ctx, "/v1/runs?limit=200", &list))
		ended := 0
		for i := range list.Items {
			if list.Items[i].Terminal() {
				ended++
			}
		}
		return ended == runs
	})
	log, err := c.on[0].sessionEvents(c.ctx, "case")
	c.must(err)
	head = log[len(log)-1].Seq
	close(done)
	wg.Wait()
	t.Logf("%d events, %d clients", head, clients)
	for i := range 2 { // the edges, on each node
		for after, want := range map[string]int{"-1": http.StatusBadRequest, "abc": http.StatusBadRequest, "0": http.StatusOK} {
			req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.address(i)+"/v1/sessions/case/stream?after="+after, nil)
			c.must(err)
			req.Header.Set("Authorization", "Bearer "+crashToken)
			res, err := c.on[i].http.Do(req)
			c.must(err)
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("C85: after=%s: %s", after, res.Status)
			}
		}
	}
	c.delivered(0, runs)
	c.history()
}

// readSome reads up to most events of the session's stream after last, and gives
// the last one seen.
func (c *cluster) readSome(on int, last int64, most int, byHeader bool, head *int64, done <-chan struct{}) (int64, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	path := c.address(on) + "/v1/sessions/case/stream"
	if !byHeader {
		path += "?after=" + strconv.FormatInt(last, 10)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return last, err
	}
	req.Header.Set("Authorization", "Bearer "+crashToken)
	if byHeader {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(last, 10))
	}
	res, err := c.on[on].http.Do(req)
	if err != nil {
		return last, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return last, fmt.Errorf("status %s", res.Status)
	}
	lines := bufio.NewReader(res.Body)
	for range most {
		kind, id, data, err := readFrame(lines)
		if err != nil {
			return last, err
		}
		if strings.HasSuffix(kind, ".delta") && id != "" {
			return last, fmt.Errorf("I-17: a delta has the id %s", id)
		}
		if id == "" {
			select {
			case <-done:
				if last >= *head {
					return last, nil
				}
			default:
			}
			continue
		}
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return last, err
		}
		if e.Seq != last+1 || id != strconv.FormatInt(e.Seq, 10) {
			return last, fmt.Errorf("I-18: event %d, id %s, follows %d", e.Seq, id, last)
		}
		last = e.Seq
		select {
		case <-done:
			if last >= *head {
				return last, nil
			}
		default:
		}
	}
	return last, nil
}

// C50: people ask for compactions through both nodes while runs are submitted to
// both: each is done between two runs, or refused with 409; runs keep their order,
// one at a time, and none is lost. // I-06
func TestClusterC50Compactions(t *testing.T) {
	t.Parallel()
	const n = 30
	c := newCluster(t, 2, func(_ int, _ *world, m map[string]any) {
		m["limits"] = map[string]any{"queued_runs": 2 * n}
	})
	c.w.answer = func(order, _ int, req chatstub.Request) chatstub.Reply {
		for _, m := range req.Messages {
			if m.Role == "system" && strings.Contains(m.Text(), "record of a conversation") {
				return chatstub.Reply{Text: "## Goal\n\nLines.\n"}
			}
		}
		return chatstub.Reply{Text: fmt.Sprintf("line %d", order)}
	}
	c.start()
	c.session(0, "case")
	var wg sync.WaitGroup
	runs := make([]api.Run, n)
	for i := range n {
		wg.Go(func() {
			var err error
			if runs[i], _, err = c.on[i%2].submit(c.ctx, "case", fmt.Sprintf("key-%d", i), fmt.Sprintf("order %d", 100+i)); err != nil {
				t.Error(err)
			}
		})
	}
	over := make(chan struct{})
	var asked sync.WaitGroup
	for i := range 2 {
		asked.Go(func() {
			for {
				a, err := c.on[i].do(c.ctx, http.MethodPost, "/v1/sessions/case/compact", nil)
				if err != nil || a.status != http.StatusAccepted && a.status != http.StatusConflict {
					t.Errorf("C50: a compaction was answered %d %s: %v", a.status, a.body, err)
					return
				}
				select {
				case <-over:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
	for i, r := range runs {
		if r = c.completes((i+1)%2, r.ID); len(r.Outputs) != 1 || r.Outputs[0].Content != fmt.Sprintf("line %d", 100+i) {
			t.Errorf("C50: run %d answered %+v", i, r.Outputs)
		}
	}
	c.until("a compaction is done", func() bool { // between two runs, or now
		for _, e := range c.feed(0) {
			if e.Type == string(event.TypeContextCompacted) {
				return true
			}
		}
		return false
	})
	close(over)
	asked.Wait()
	c.delivered(0, n)
	_, events := c.history()
	var active event.RunID
	open := false
	for i := range events {
		switch e := &events[i]; e.Data.(type) {
		case *event.RunStarted:
			if active != "" || open {
				t.Errorf("I-06: run %s starts beside %q, a compaction under way: %v", e.RunID, active, open)
			}
			active = e.RunID
		case *event.RunCompleted:
			active = ""
		case *event.CompactionStarted:
			if active != "" || open {
				t.Errorf("C50: a compaction that a person asked for begins beside %q, another under way: %v", active, open)
			}
			open = true
		case *event.CompactionEnded, *event.CompactionFailed:
			open = false
		}
	}
}

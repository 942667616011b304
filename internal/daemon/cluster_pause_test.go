package daemon_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// C46: a node that owns a run is stopped, its lease ends, another takes over and
// finishes, and the first one wakes: it asks no model, publishes no delta, starts
// and fails no tool, and appends nothing. What it was about to write is refused by
// the store, whatever it believes itself. It lives on, and works again. // I-11
func TestClusterC46(t *testing.T) {
	type point struct {
		name    string
		at      killAt
		held    bool // the model answers the first request when it is let go
		parts   int  // of the first answer, after which the model waits
		order   int
		refused bool // it wakes in the middle of an append
		charged int  // effects in the end
	}
	before := func(typ event.Type) killAt { return killAt{Side: "before", N: 1, Type: typ, Stop: true} }
	after := func(typ event.Type) killAt { return killAt{Side: "after", N: 1, Type: typ, Stop: true} }
	for _, p := range []point{
		{name: "before-provider-dispatch", at: after(event.TypeModelCallStarted), order: orderLast},
		{name: "after-3rd-delta", parts: 5, order: orderLast},
		{name: "before-local-tool-start", at: after(event.TypeToolStarted), order: orderText},
		{name: "before-the-started-event", at: before(event.TypeToolStarted), order: orderText, refused: true, charged: 1},
		{name: "tool-finished-result-not-committed", at: before(event.TypeToolCompleted), order: orderText, refused: true, charged: 1},
		{name: "before-run-completed", at: before(event.TypeRunCompleted), order: orderLast, refused: true},
		{name: "in-the-heartbeat", at: killAt{Side: "before", N: 1, Beat: true, Stop: true}, held: true, order: orderLast},
		{name: "in-the-heartbeat-answered", at: killAt{Side: "after", N: 1, Beat: true, Stop: true}, held: true, order: orderLast},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, nil)
			gate := make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			wait := func() {
				select {
				case <-gate:
				case <-c.w.hung:
				}
			}
			var first atomic.Pointer[http.Request]
			var asked atomic.Int32
			reached := make(chan struct{})
			c.w.answer = func(order, step int, req chatstub.Request) chatstub.Reply {
				if order == p.order && asked.Add(1) == 1 && p.held {
					close(reached)
					wait()
				}
				a := storyAnswer(order, step, req)
				if order == orderText && step == 0 {
					a.Calls = a.Calls[:1] // one beside it might be past its check
				}
				if order == orderLast {
					a.Text = strings.Repeat("a word after another ", 20)
				}
				return a
			}
			c.w.wrote = func(r *http.Request, n int) {
				if p.parts == 0 {
					return
				}
				first.CompareAndSwap(nil, r)
				if first.Load() == r && n == p.parts {
					close(reached)
					wait()
				}
			}
			const a, b = 0, 1
			c.begin(a)
			c.session(a, "case")
			live := c.on[a].follow(c.ctx, "case", "", false)
			deltas := func() int {
				live.mu.Lock()
				defer live.mu.Unlock()
				return live.deltas
			}
			if p.at.N > 0 && !p.at.Beat {
				c.arm(a, p.at)
			}
			submitted := make(chan api.Run, 1)
			go func() { // A may be stopped before it answers
				run, _, err := c.on[a].submit(c.ctx, "case", "key", "order "+order(p.order))
				if err != nil {
					t.Error(err)
				}
				submitted <- run
			}()
			if p.held || p.parts > 0 {
				select {
				case <-reached:
				case <-c.ctx.Done():
					t.Fatal("the model is not asked")
				}
			}
			switch {
			case p.at.Beat:
				c.arm(a, p.at)
			case p.parts > 0:
				c.until("A publishes deltas", func() bool { return deltas() >= 3 })
				c.signal(a, syscall.SIGSTOP)
			}
			c.stopped(a)
			c.begin(b) // not before: it might have been the first to take the run

			var run string
			c.until("B knows of the run", func() bool {
				for _, e := range c.feed(b) {
					if e.Type == string(event.TypeRunCreated) {
						run = e.RunID
					}
				}
				return run != ""
			})
			c.completes(b, run)
			c.delivered(b, 1)
			type state struct{ asked, charged, deltas, commits, hits, events int }
			look := func() state {
				_, commits := c.said(a, "")
				c.w.mu.Lock()
				defer c.w.mu.Unlock()
				return state{c.w.asked[p.order], c.w.effects[`charge {"cents":7,"order":11}`], deltas(), len(commits), len(c.w.hits), 0}
			}
			was := look()
			was.events = len(c.feed(b))

			c.signal(a, syscall.SIGCONT)
			open() // what the model still has to say comes to A at once
			lost := func() bool {
				text := c.log(a)
				return strings.Contains(text, "lease has ended") || strings.Contains(text, "another owner")
			}
			c.until("A says that it has lost its sessions", lost)
			c.passes(clusterLease)
			is := look()
			is.events = len(c.feed(b))
			if p.at.Type != "" && p.at.Type != event.TypeModelCallStarted {
				is.deltas, was.deltas = 0, 0 // those of the whole answer were published before it stopped, and may be on their way
			}
			if is != was {
				t.Errorf("C46: after the takeover A went on: %+v, before it woke %+v", is, was)
			}
			if refused, _ := c.said(a, "refused"); p.refused != (len(refused) > 0) {
				t.Errorf("C46: the store refused %q", refused)
			}
			select {
			case r := <-submitted: // A answers, at last, with the run that B has ended
				if r.ID != run {
					t.Errorf("A accepted run %s, B ended %s", r.ID, run)
				}
			case <-c.ctx.Done():
				t.Fatal("A does not answer")
			}
			// A lives on: alone, it takes what is new.
			c.nodes[b].stop(c.nodes[b].life())
			c.session(a, "next")
			c.completes(a, c.submit(a, "next", orderLast+1).ID)
			c.delivered(a, 2)
			h, events := c.history()
			if charged := c.w.effects[`charge {"cents":7,"order":11}`]; charged != p.charged {
				t.Errorf("I-13: %d effects, want %d", charged, p.charged)
			}
			checkEffects(t, c.w, h)
			ends := 0
			for _, e := range events {
				if string(e.RunID) == run && terminalType(string(e.Type)) {
					ends++
				}
				if e.Type == event.TypeToolInterrupted && p.charged == 1 && p.refused && p.name == "before-the-started-event" {
					t.Error("C46: a call that never began was failed")
				}
			}
			if ends != 1 {
				t.Errorf("I-05: %d terminal events", ends)
			}
			for stream, by := range owners(events) {
				if len(slices.Compact(by)) > 2 {
					t.Errorf("%s went from %v", stream, by)
				}
			}
		})
	}
}

func order(n int) string { return string(quoted(n)) }

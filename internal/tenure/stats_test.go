package tenure_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/tenure"
)

// lines is what a tenure logs.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take gives the lines since the last take, level and message of each.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// An operator sees in figures and in one line each what becomes of leases: beats
// that fail, one that is lost and begins anew, nodes that come, end and are lost,
// and what is given away.
func TestStatsAndLines(t *testing.T) { // I-11, I-16
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		var log lines
		n := &nodes{Store: h.store}
		a := tenure.New(tenure.Config{Nodes: n, Node: eventlog.Node{ID: "a"}, TTL: ttl, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect := func(what string, want tenure.Stats, words ...string) {
			t.Helper()
			if got := a.Stats(); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
			text := log.take()
			if strings.Count(text, "\n") != len(words) {
				t.Errorf("%s: logged\n%s", what, text)
			}
			for _, w := range words {
				level, msg, _ := strings.Cut(w, " ")
				if !strings.Contains(text, "level="+level+" msg=\""+msg) {
					t.Errorf("%s: no line %q in\n%s", what, w, text)
				}
			}
		}
		expect("alone", tenure.Stats{TTL: ttl, Left: ttl, Alive: 1, Beats: 1})

		b, _ := h.tenure("b", ttl, nil)
		c, away := h.tenure("c", ttl, nil)
		rest(ttl / 3)
		expect("with two others", tenure.Stats{TTL: ttl, Left: ttl, Alive: 3, Beats: 2}, "INFO another node is there", "INFO another node is there")

		b.Stop(context.Background())
		away.trouble(true, 0)
		rest(ttl / 3)
		expect("one ended", tenure.Stats{TTL: ttl, Left: ttl, Alive: 2, Beats: 3}, "INFO another node has ended in order")
		rest(ttl / 3 * 3)
		expect("one is lost", tenure.Stats{TTL: ttl, Left: ttl, Alive: 1, Beats: 6}, "WARN the lease of another node has ended")

		n.trouble(true, 0)
		rest(ttl/3 + ttl/30*3)
		got := a.Stats()
		if got.Failed < 3 || got.Left <= 0 || got.Left >= ttl*2/3 {
			t.Errorf("in trouble: %+v", got)
		}
		n.trouble(false, 0)
		rest(ttl / 30)
		got.Beats, got.Left = 7, a.Stats().Left
		expect("over it", got, "WARN the node could not beat", "INFO the node beats again")

		n.trouble(true, 0)
		rest(2 * ttl)
		got = a.Stats()
		if got.Lost != 1 || got.Left != 0 || got.Late != 0 {
			t.Errorf("lost: %+v", got)
		}
		expect("lost", got, "WARN the node could not beat", "ERROR the lease has ended")
		n.trouble(false, 0)
		rest(ttl / 30)
		got.Beats, got.Late, got.Left = 8, 1, a.Stats().Left
		expect("anew", got, "WARN the lease has begun anew")

		a.Drain()
		synctest.Wait()
		if rows, err := h.store.ListNodes(t.Context()); err != nil || !slices.ContainsFunc(rows, func(r eventlog.NodeRow) bool { return r.ID == "a" && r.Draining }) {
			t.Errorf("the others do not hear of a drain at once: %+v %v", rows, err)
		}
		got.Alive, got.Draining, got.Beats, got.Left = 0, 1, got.Beats+1, ttl
		a.Yield(event.SessionID("ses_1").Stream())
		a.Yield(event.SessionID("ses_2").Stream())
		a.Yield(event.TargetID("tgt_1").Stream())
		got.SessionsGiven, got.TargetsGiven = 2, 1
		expect("draining", got)
		a.Stop(context.Background())
		if text := log.take(); !strings.Contains(text, "sessions_given=2 targets_given=1") {
			t.Errorf("at the end: %s", text)
		}
		c.Stop(context.Background())
	})
}

// A lease that does not end has no time left, and its node is alone.
func TestStatsOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		defer h.close()
		a, _ := h.tenure("a", 0, nil)
		if got := a.Stats(); got != (tenure.Stats{Alive: 1, Beats: 1}) {
			t.Errorf("%+v", got)
		}
		a.Stop(context.Background())
	})
}

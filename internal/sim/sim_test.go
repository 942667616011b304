package sim_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

var (
	fromFlag  = flag.Uint64("sim.from", 0, "first seed; 0: the short set")
	countFlag = flag.Int("sim.count", 1, "how many seeds, ascending; 0: until told to stop")
	nodesFlag = flag.Int("sim.nodes", 0, "nodes at most; 0: by the seed")
	traceFlag = flag.Bool("sim.trace", false, "print the history of each seed")
)

// TestMain plays on one processor: what is left to the order in which the
// machine runs goroutines is then the same each time, nearly always.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// plan says which history is played.
type plan struct {
	seed   uint64
	nodes  int
	dir    string
	script []string
	mutant *mutant
}

func sessionStream(id string) event.Stream { return event.SessionID(id).Stream() }

// tmp is a folder in memory where there is one: nothing here outlives a test.
func tmp(t testing.TB) string {
	if dir, err := os.MkdirTemp("/dev/shm", "holdfast-sim-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// run plays one history in a bubble of its own.
func run(t *testing.T, p plan) (out *outcome) {
	if p.nodes == 0 {
		p.nodes = nodesOf(p.seed)
	}
	if p.mutant == nil {
		p.mutant = &mutant{}
	}
	base := p.dir
	p.dir = fmt.Sprintf("%s/%d", base, p.seed)
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.dir)
	synctest.Test(t, func(t *testing.T) { out = play(t, p) })
	return out
}

// nodesOf is how many nodes a seed has at most.
func nodesOf(seed uint64) int { return 1 + int(seed%5) }

func (o *outcome) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d nodes, %d steps:\n", o.seed, o.nodes, o.steps)
	for _, f := range o.found {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	fmt.Fprintf(&b, "again: go test ./internal/sim -run Histories -sim.from=%d -sim.nodes=%d -sim.trace\n", o.seed, o.nodes)
	return b.String()
}

// TestSame plays seeds twice: a seed gives the same history, byte for byte.
func TestSame(t *testing.T) {
	dir := tmp(t)
	from, count := *fromFlag, *countFlag
	if from == 0 {
		from, count = 1, 25
	}
	for i := range count {
		p := plan{seed: from + uint64(i), nodes: *nodesFlag, dir: dir}
		a, b := run(t, p), run(t, p)
		if a.sum == b.sum {
			continue
		}
		for j := range a.lines {
			if j >= len(b.lines) || a.lines[j] != b.lines[j] {
				t.Errorf("seed %d is not the same from step %d on:\n%s\n---\n%s", p.seed, j,
					strings.Join(a.lines[max(0, j-12):min(j+2, len(a.lines))], "\n"), strings.Join(b.lines[max(0, j-12):min(j+2, len(b.lines))], "\n"))
				break
			}
		}
	}
}

// TestHistories plays seeded histories of the whole daemon.
func TestHistories(t *testing.T) {
	dir := tmp(t)
	from, count := *fromFlag, *countFlag
	if from == 0 {
		from, count = 1, 100
	}
	total := map[string]int{}
	steps := 0
	var longest, slowest = time.Duration(0), uint64(0)
	began := time.Now()
	for i := range count {
		o := run(t, plan{seed: from + uint64(i), nodes: *nodesFlag, dir: dir})
		steps += o.steps
		if o.calmed > longest {
			longest, slowest = o.calmed, o.seed
		}
		for k, v := range o.tally {
			total[k] += v
		}
		if len(o.found) > 0 {
			t.Error(o.report())
		}
		if *traceFlag || len(o.found) > 0 && testing.Verbose() {
			t.Log(strings.Join(o.lines, "\n"))
			t.Log(strings.Join(o.words, "\n"))
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds, %d steps in %v: %.0f steps/s", count, steps, took.Round(time.Millisecond), float64(steps)/took.Seconds())
	t.Logf("settled at the latest %v behind the last fault (seed %d)", longest.Round(time.Millisecond), slowest)
	t.Log(total)
}

package sim_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

var (
	fromFlag    = flag.Uint64("sim.from", 0, "first seed; 0: the short set")
	countFlag   = flag.Int("sim.count", 1, "how many seeds, ascending; 0: until told to stop")
	nodesFlag   = flag.Int("sim.nodes", 0, "nodes at most; 0: by the seed, one to five")
	traceFlag   = flag.Bool("sim.trace", false, "print the history of each seed")
	procsFlag   = flag.Int("sim.procs", 0, "processes; 0: one for each processor")
	keepFlag    = flag.String("sim.keep", "", "folder for the scripts of seeds that failed; empty: one of the system's")
	mutantsFlag = flag.Bool("sim.mutants", false, "break every guard, not only two")
	reportFlag  = flag.String("sim.report", "", "document that the figures of a series are written to")
	partFlag    = flag.String("sim.part", "", "which of the seeds this process plays, as 1/4; used by the processes that are started")
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
	nodes  int // at once at most; 0: by the seed
	dir    string
	script []string
	// choices makes other decisions where the script has none; the world, the
	// clients and the clock stay those of the seed.
	choices uint64
	mutant  *mutant
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
		p.nodes = 1 + int(p.seed%5)
	}
	if p.mutant == nil {
		p.mutant = &mutant{}
	}
	p.dir = filepath.Join(p.dir, fmt.Sprint(p.seed))
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.dir)
	if err := fresh(p.dir); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { out = play(t, p) })
	return out
}

// blank is an empty database, made once: to make its tables takes as long as a
// hundred steps.
var blank = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "holdfast-sim-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := sqlite.Open(context.Background(), sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		return nil, err
	}
	if err := s.Close(context.Background()); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, sqlite.DatabaseFile))
})

// fresh puts an empty database in a folder.
func fresh(dir string) error {
	data, err := blank()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sqlite.DatabaseFile), data, 0o600)
}

// again says how a history is played once more.
func (o *outcome) again() string {
	return fmt.Sprintf("go test ./internal/sim -run Seed -sim.from=%d -sim.nodes=%d -sim.trace -v", o.seed, o.nodes)
}

func (o *outcome) report() string {
	return fmt.Sprintf("seed %d, %d nodes, %d steps:\n  %s\nagain: %s", o.seed, o.nodes, o.steps, strings.Join(o.found, "\n  "), o.again())
}

// TestSeed plays the seeds that are named, in this process.
func TestSeed(t *testing.T) {
	from := max(*fromFlag, 1)
	dir := tmp(t)
	for i := range *countFlag {
		o := run(t, plan{seed: from + uint64(i), nodes: *nodesFlag, dir: dir})
		if *traceFlag {
			t.Logf("%s\n%s", strings.Join(o.lines, "\n"), strings.Join(o.words, "\n"))
		}
		if len(o.found) > 0 {
			t.Error(o.report())
		}
	}
}

// TestHistories plays seeded histories of the whole daemon: one to five nodes
// over one store, with clients, faults and deaths; then nothing fails any more,
// and every run and delivery must come to its end. All invariants that can be
// seen are held after every step.
func TestHistories(t *testing.T) {
	s := &series{from: 1, count: 300, procs: *procsFlag, dir: tmp(t)}
	switch {
	case *fromFlag != 0:
		s.from, s.count = *fromFlag, *countFlag
	case raceEnabled:
		s.count = 16
	case testing.Short():
		s.count = 60
	}
	if *reportFlag != "" { // before hours of work
		if _, _, err := reportPlace(*reportFlag); err != nil {
			t.Fatal(err)
		}
	}
	s.play(t)
	t.Log(s.total.String())
	if *reportFlag != "" {
		if err := s.report(*reportFlag); err != nil {
			t.Error(err)
		}
	}
	if *fromFlag != 0 || s.count < 300 {
		return
	}
	for _, what := range []string{ // a world in which nothing happens proves nothing
		"run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.needs_attention", "run.attention.resolved", "tool.call.interrupted",
		"tool.call.retrying", "model.retry.scheduled", "context.compacted", "contract.repair.requested", "delivery.delivered", "delivery.dead_lettered", "delivery.replayed",
		"target.circuit.opened", "target.circuit.half_opened", "target.paused", "target.resumed", "audit.target.changed", "audit.delivery.replayed",
		"job.planned", "job.started", "job.advanced", "job.cancel.requested", "job completed", "job cancelled", "dry run", "progress seen", "skipped already_replayed", "refused plan_drifted",
		"crash-before", "crash-after", "err-before", "err-after", "late", "cut", "twice", "pause", "split errors", "split hangs", "disk full", "news lost",
		"stop in order", "taken from the dead", "taken from the living", "taken in the middle of an answer", "append refused: held", "append refused: fenced",
		"append refused: head moved", "request that landed behind its caller's end", "known key", "key conflict", "refused input_contract_violated",
		"begun with its submission", "begun with its submission, and not told so", "snapshot saved", "snapshot loaded", "followed", "delta seen", "delta from another node", "delta lost on the way",
	} {
		if s.total.Tally[what] == 0 {
			t.Errorf("no history had: %s", what)
		}
	}
}

// TestPart plays its part of a series, and tells the process that started it.
func TestPart(t *testing.T) {
	var part, of int
	if _, err := fmt.Sscanf(*partFlag, "%d/%d", &part, &of); err != nil || of == 0 {
		return // nobody started it
	}
	dir := tmp(t)
	for i := part; *countFlag == 0 || i < *countFlag; i += of {
		o := run(t, plan{seed: *fromFlag + uint64(i), nodes: *nodesFlag, dir: dir})
		tell(o)
	}
}

// TestSame plays seeds twice: a seed gives the same history, byte for byte.
func TestSame(t *testing.T) {
	dir := tmp(t)
	from, count := *fromFlag, *countFlag
	if from == 0 {
		from, count = 1, 60
	}
	if testing.Short() || raceEnabled {
		count = min(count, 6)
	}
	for i := range count {
		p := plan{seed: from + uint64(i), nodes: *nodesFlag, dir: dir}
		a, b := run(t, p), run(t, p)
		if j := differs(a.lines, b.lines); j >= 0 {
			t.Errorf("seed %d is not the same from step %d on:\n%s\n---\n%s", p.seed, j,
				strings.Join(a.lines[max(0, j-12):min(j+2, len(a.lines))], "\n"), strings.Join(b.lines[max(0, j-12):min(j+2, len(b.lines))], "\n"))
		}
	}
}

// differs gives the first line that two histories do not share; -1: none.
func differs(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// A script is a history that broke an invariant once: what it found, its seed
// and nodes, and every decision. It is followed as long as it fits; from there
// on the seed decides.

func (o *outcome) script() string {
	var b strings.Builder
	for _, f := range o.found {
		fmt.Fprintf(&b, "# %s\n", strings.Join(strings.Fields(f), " "))
	}
	fmt.Fprintf(&b, "seed %d\nnodes %d\n%s\n", o.seed, o.nodes, strings.Join(o.lines, "\n"))
	return b.String()
}

func parseScript(text string) (p plan, err error) {
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
	if len(lines) < 2 {
		return p, fmt.Errorf("no seed and nodes")
	}
	if _, err = fmt.Sscanf(lines[0], "seed %d", &p.seed); err == nil {
		_, err = fmt.Sscanf(lines[1], "nodes %d", &p.nodes)
	}
	p.script = lines[2:]
	return p, err
}

// TestScripts plays the histories that broke an invariant once.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := tmp(t)
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := parseScript(string(text))
			if err != nil {
				t.Fatal(err)
			}
			p.dir = dir
			o := run(t, p)
			if len(o.found) > 0 {
				t.Error(o.report())
			}
			if o.strayed > 0 {
				t.Logf("%d of %d decisions do not fit any more", o.strayed, len(p.script))
			}
		})
	}
}

// A script is followed to its end, and finds what the seed found.
func TestScriptFollows(t *testing.T) {
	dir := tmp(t)
	broken := mutants[slices.IndexFunc(mutants, func(m *mutant) bool { return m.name == "a tool runs each call twice" })]
	for seed := uint64(1); seed < 50; seed++ {
		first := run(t, plan{seed: seed, dir: dir, mutant: broken})
		if len(first.found) == 0 {
			continue
		}
		p, err := parseScript(first.script())
		if err != nil {
			t.Fatal(err)
		}
		p.dir, p.mutant, p.choices = dir, broken, 1000
		if o := run(t, p); o.strayed > 0 || differs(first.lines, o.lines) >= 0 || !slices.Equal(first.found, o.found) {
			t.Errorf("%d decisions did not fit; from line %d on it went another way:\n%s", o.strayed, differs(first.lines, o.lines), o.report())
		}
		return
	}
	t.Error("no history in which the tool ran")
}

// TestMutants breaks guards on purpose: each must be seen within a minute.
func TestMutants(t *testing.T) {
	dir := tmp(t)
	for _, m := range mutants {
		if !*mutantsFlag && !m.always {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			began, steps := time.Now(), 0
			for seed := uint64(1); time.Since(began) < time.Minute; seed++ {
				o := run(t, plan{seed: seed, dir: dir, mutant: m})
				if steps += o.steps; len(o.found) > 0 {
					t.Logf("seen in %d seeds, %d steps, %v: %.160s", seed, steps, time.Since(began).Round(time.Millisecond), o.found[0])
					return
				}
			}
			t.Errorf("not seen in a minute, %d steps", steps)
		})
	}
}

package sim_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// series is many seeds over several processes: each plays on one processor, so
// that its histories are the same each time.
type series struct {
	from  uint64
	count int // 0: until told to stop
	procs int
	dir   string
	total total
}

// told is what one seed came to, as one process tells another.
type told struct {
	Seed   uint64         `json:"seed"`
	Nodes  int            `json:"nodes"`
	Steps  int            `json:"steps"`
	Calmed time.Duration  `json:"calmed"`
	Tally  map[string]int `json:"tally"`
	Found  []string       `json:"found"`
	Script string         `json:"script"`
}

const toldMark = "sim told: "

func tell(o *outcome) {
	t := told{Seed: o.seed, Nodes: o.nodes, Steps: o.steps, Calmed: o.calmed, Tally: o.tally, Found: o.found}
	if len(o.found) > 0 {
		t.Script = o.script()
	}
	line, err := json.Marshal(&t)
	if err != nil {
		panic(err) // of our own types
	}
	fmt.Printf("%s%s\n", toldMark, line)
}

// total is what a series came to.
type total struct {
	seeds, steps int
	failed       []uint64
	took         time.Duration
	longest      time.Duration // until all was settled
	slowest      uint64        // the seed of that
	Tally        map[string]int
}

func (o *total) add(t *told) {
	o.seeds++
	o.steps += t.Steps
	if t.Calmed > o.longest {
		o.longest, o.slowest = t.Calmed, t.Seed
	}
	for what, n := range t.Tally {
		o.Tally[what] += n
	}
	if len(t.Found) > 0 {
		o.failed = append(o.failed, t.Seed)
	}
}

func (o *total) line() string {
	s := o.took.Seconds()
	return fmt.Sprintf("%d seeds, %d steps in %v: %.1f seeds/s, %.0f steps/s; %d failed", o.seeds, o.steps, o.took.Round(time.Second), float64(o.seeds)/s,
		float64(o.steps)/s, len(o.failed))
}

func (o *total) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nall was settled %v behind the last fault at the latest (seed %d)\n", o.line(), o.longest.Round(time.Millisecond), o.slowest)
	for _, what := range slices.Sorted(maps.Keys(o.Tally)) {
		if what != "" {
			fmt.Fprintf(&b, "%8d %s\n", o.Tally[what], what)
		}
	}
	return b.String()
}

// The figures of a series stand between these lines.
const (
	reportBegin = "<!-- sim: written by `make sim` with -sim.report -->"
	reportEnd   = "<!-- end of sim -->"
)

// reportPlace gives what stands before and behind the figures in a document.
func reportPlace(path string) (before, after string, err error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	before, rest, ok := strings.Cut(string(doc), reportBegin)
	_, after, whole := strings.Cut(rest, reportEnd)
	if !ok || !whole {
		return "", "", fmt.Errorf("%s has no place for the figures", path)
	}
	return before, after, nil
}

// report writes the figures into a document.
func (s *series) report(path string) error {
	before, after, err := reportPlace(path)
	if err != nil {
		return err
	}
	o := &s.total
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\nSeeds from %d to about %d, %s, on %s/%s, %s, in %v.\n\n| | |\n| --- | ---: |\n", before, reportBegin, s.from, s.from+uint64(o.seeds)-1,
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.Version(), o.took.Round(time.Second))
	row := func(what string, n int) { fmt.Fprintf(&b, "| %s | %d |\n", what, n) }
	row("**histories**", o.seeds)
	row("**steps**", o.steps)
	row("**histories with a finding**", len(o.failed))
	row("seconds of virtual time until all was settled, at the most", int(o.longest/time.Second))
	for _, of := range reported {
		n := 0
		for _, key := range of[1:] {
			n += o.Tally[key]
		}
		row(of[0], n)
	}
	b.WriteString(reportEnd + after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// reported are the figures of the report: what a reader calls it, and what is counted.
var reported = [][]string{
	{"nodes that died", "crash"},
	{"nodes that stopped in order", "stop in order"},
	{"nodes paused", "pause"},
	{"nodes cut off from the store", "split errors", "split hangs"},
	{"disks full", "disk full"},
	{"store calls that failed", "err-before", "err-after", "err-apart", "err-no-room"},
	{"requests that landed behind their caller's end", "request that landed behind its caller's end"},
	{"sessions and targets taken from a dead node", "taken from the dead"},
	{"sessions and targets taken from a living node", "taken from the living"},
	{"taken in the middle of an answer", "taken in the middle of an answer"},
	{"appends refused: held, fenced, head moved", "append refused: held", "append refused: fenced", "append refused: head moved"},
	{"model streams cut", "cut"},
	{"runs", "run.created"},
	{"runs begun in the append of their submission", "begun with its submission", "begun with its submission, and not told so"},
	{"model attempts", "model.call.started"},
	{"tool calls started", "tool.call.started", "tool.call.retrying"},
	{"tool calls interrupted", "tool.call.interrupted"},
	{"deliveries attempted", "delivery.attempt.started"},
	{"contexts compacted", "context.compacted"},
	{"events followed", "followed"},
	{"live deltas seen", "delta seen"},
}

// play plays the series; seeds that break an invariant are errors of t, and
// their scripts are kept.
func (s *series) play(t *testing.T) {
	t.Helper()
	if s.procs == 0 {
		s.procs = runtime.NumCPU()
	}
	s.total.Tally = map[string]int{}
	results := make(chan told)
	var parts sync.WaitGroup
	var cmds []*exec.Cmd
	for part := range s.procs {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPart$", "-test.timeout=0", fmt.Sprintf("-sim.part=%d/%d", part, s.procs),
			fmt.Sprintf("-sim.from=%d", s.from), fmt.Sprintf("-sim.count=%d", s.count), fmt.Sprintf("-sim.nodes=%d", *nodesFlag))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
		parts.Go(func() {
			var rest []string
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, 64<<20)
			for lines.Scan() {
				text, ok := strings.CutPrefix(lines.Text(), toldMark)
				var one told
				if !ok || json.Unmarshal([]byte(text), &one) != nil {
					rest = append(rest, lines.Text())
					continue
				}
				results <- one
			}
			if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
				t.Errorf("a part ended with %v:\n%s", err, strings.Join(rest, "\n"))
			}
		})
	}
	go func() { parts.Wait(); close(results) }()
	s.collect(t, results, cmds)
}

// collect takes what the parts tell until they end, or somebody says stop.
func (s *series) collect(t *testing.T, results <-chan told, cmds []*exec.Cmd) {
	began := time.Now()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case one, ok := <-results:
			s.total.took = time.Since(began)
			if !ok {
				return
			}
			s.total.add(&one)
			if len(one.Found) > 0 {
				s.keep(t, &one)
			}
		case <-tick.C:
			if s.total.took = time.Since(began); *fromFlag != 0 {
				fmt.Println(s.total.line())
			}
		case <-stop:
			for _, c := range cmds { // which this test started
				_ = c.Process.Kill()
			}
			s.total.took = time.Since(began)
			fmt.Printf("%sfailed: %v\n", &s.total, s.total.failed)
			if *reportFlag != "" {
				if err := s.report(*reportFlag); err != nil {
					fmt.Println(err)
				}
			}
			os.Exit(min(len(s.total.failed), 1))
		}
	}
}

// keep writes the script of a seed that failed.
func (s *series) keep(t *testing.T, one *told) {
	o := &outcome{seed: one.Seed, nodes: one.Nodes, steps: one.Steps, found: one.Found}
	dir := *keepFlag
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "holdfast-sim")
	}
	path := filepath.Join(dir, fmt.Sprintf("seed_%d.txt", one.Seed))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(one.Script), 0o644)
	}
	t.Errorf("%s\nits script, for internal/sim/testdata: %s (%v)", o.report(), path, err)
	if *fromFlag != 0 {
		fmt.Println(o.report())
	}
}

// Command bench measures, in one run and on one disk, the machine's floor and
// what Holdfast makes of it. Each section gives rows of one table; see
// sections for what there is.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// section measures one subject. Sections are independent of each other: each
// has a directory of its own.
type section struct {
	name  string
	about string
	run   func(ctx context.Context, b *bench) error
}

// sections lists what can be measured, in the order of the table.
func sections() []section {
	return []section{
		{"floor", "what the disk can do: raw append and fdatasync", floor},
		{"log", "appends a second through the log", logAppends},
		{"runs", "one-step runs a second over HTTP", runs},
		{"turns", "five-turn runs with tools a second over HTTP", turns},
		{"delta", "from a byte of the provider to a subscriber", deltas},
		{"storage", "what runs leave on the disk", storage},
		{"history", "a session with many past runs; pages of a long log", history},
		{"start", "a start with many unfinished sessions", start},
		{"idle", "memory with many idle sessions", idle},
		{"subscribers", "many readers of event streams", subscribers},
	}
}

// result is one figure: a row of the table.
type result struct {
	Section string  `json:"section"`
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Target  string  `json:"target,omitempty"` // what is promised; empty: nothing
	Note    string  `json:"note,omitempty"`
}

// bench is what a section works with.
type bench struct {
	dir string        // of the section
	d   time.Duration // how long a rate is measured
	n   sizes

	section string
	target  string // of the next rate
	results []result
}

// sizes are how many of what there are.
type sizes struct {
	runs        int
	events      int
	unfinished  int
	idle        int
	subscribers int
	deltas      int
	clients     []int
}

// row adds a figure and prints it.
func (b *bench) row(name string, value float64, unit, target, note string) {
	r := result{Section: b.section, Name: name, Value: value, Unit: unit, Target: target, Note: note}
	b.results = append(b.results, r)
	fmt.Printf("| %-58s | %12s | %-9s | %-12s | %s |\n", r.Name, figure(r.Value), r.Unit, r.Target, r.Note)
}

func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == childArg {
		if err := child(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench child:", err)
			os.Exit(1)
		}
		return
	}
	var b bench
	flag.DurationVar(&b.d, "for", 3*time.Second, "how long each rate is measured")
	flag.IntVar(&b.n.runs, "runs", 10_000, "history: past runs of the session")
	flag.IntVar(&b.n.events, "events", 1_000_000, "history: events of the long log")
	flag.IntVar(&b.n.unfinished, "unfinished", 10_000, "start: unfinished sessions")
	flag.IntVar(&b.n.idle, "idle", 100_000, "idle: sessions")
	flag.IntVar(&b.n.subscribers, "subscribers", 9_500, "subscribers: readers (each takes an open file here and in the daemon)")
	flag.IntVar(&b.n.deltas, "deltas", 2000, "delta: pieces of each answer")
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	var (
		dir     = flag.String("dir", "", "where to write; default a temporary directory")
		only    = flag.String("only", "", "sections, with commas: "+strings.Join(names, ", "))
		short   = flag.Bool("short", false, "smaller numbers: a minute instead of six")
		doc     = flag.String("doc", "", "write the table into this page too, between its marks")
		out     = flag.String("json", "", "write the figures to this file too")
		clients = flag.String("clients", "1,16,64", "runs, turns: clients at once, with commas")
		memory  = flag.String("memprofile", "", "write what was allocated to this file")
		profile = flag.String("cpuprofile", "", "write a CPU profile to this file")
	)
	flag.Parse()
	if err := json.Unmarshal([]byte("["+*clients+"]"), &b.n.clients); err != nil {
		fmt.Fprintln(os.Stderr, "bench: -clients:", err)
		os.Exit(2)
	}
	if *short {
		b.d = time.Second
		b.n.runs, b.n.events, b.n.unfinished, b.n.idle, b.n.subscribers, b.n.deltas = 500, 50_000, 1000, 5000, 1000, 500
	}
	began := loadNow()
	if err := profiled(*profile, func() error { return run(&b, *dir, *only, *out) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if *memory != "" {
		if err := allocated(*memory); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
	if *doc != "" {
		if err := b.page(*doc, began, loadNow()); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
}

// profiled runs f, under the CPU profiler when there is a file for it.
func profiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err == nil {
		err = pprof.StartCPUProfile(out)
	}
	if err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

// allocated writes what was allocated until now.
func allocated(file string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(out, 0), out.Close())
}

func run(b *bench, dir, only, out string) error {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "holdfast-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	var wanted []string
	if only != "" {
		wanted = strings.Split(only, ",")
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(sections(), func(s section) bool { return s.name == name }) {
			return fmt.Errorf("there is no section %q", name)
		}
	}
	fmt.Printf("%s, %d cores, %s\n\n", runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	fmt.Printf("| %-58s | %12s | %-9s | %-12s | %s |\n", "what", "value", "unit", "target", "note")
	fmt.Printf("| %-58s | %12s | %-9s | %-12s | %s |\n", "---", "---:", "---", "---", "---")
	for _, s := range sections() {
		if wanted != nil && !slices.Contains(wanted, s.name) {
			continue
		}
		b.section, b.dir = s.name, filepath.Join(dir, s.name)
		if err := os.MkdirAll(b.dir, 0o700); err != nil {
			return err
		}
		if err := s.run(context.Background(), b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(b.results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// measure calls do from n goroutines for a while and adds the rate. do gets the
// number of its goroutine and of its call. What it gives back are the median and the rate.
func (b *bench) measure(what string, n int, do func(worker, call int) error) (p50 time.Duration, rate float64, err error) {
	var (
		wg    sync.WaitGroup
		fail  atomic.Pointer[error]
		times = make([][]time.Duration, n)
		spent = cpuTime()
		begin = time.Now()
		until = begin.Add(b.d)
	)
	for w := range n {
		wg.Go(func() {
			for call := 0; time.Now().Before(until) && fail.Load() == nil; call++ {
				t := time.Now()
				if err := do(w, call); err != nil {
					fail.CompareAndSwap(nil, &err)
					return
				}
				times[w] = append(times[w], time.Since(t))
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	spent = cpuTime() - spent
	if err := fail.Load(); err != nil {
		return 0, 0, *err
	}
	all := slices.Concat(times...)
	if len(all) == 0 {
		return 0, 0, fmt.Errorf("%s: nothing done", what)
	}
	rate, p50 = float64(len(all))/took.Seconds(), quantile(all, .5)
	b.row(what, rate, "a second", b.target, fmt.Sprintf("p50 %.2f ms, p99 %.2f ms; %.3f ms of CPU each",
		ms(p50), ms(quantile(all, .99)), ms(spent/time.Duration(len(all)))))
	b.target = ""
	return p50, rate, nil
}

// quantile sorts the times.
func quantile(times []time.Duration, q float64) time.Duration {
	slices.Sort(times)
	return times[int(q*float64(len(times)-1))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

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
	"io"
	"math"
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
		{"deliveries", "webhooks a second to many targets, signed and durable", deliveries},
		{"postgres", "one-step runs a second on PostgreSQL: one node, and three", postgresRuns},
		{"ownership", "what the checks of ownership cost, and what beats cost", ownership},
		{"takeover", "from the end of a lease until others go on", takeover},
		{"bus", "from a byte of the provider to a subscriber at another node", busDeltas},
		{"large", "append, read and list beside a long log", large},
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
	Skipped bool    `json:"skipped,omitempty"` // there is no figure; the note says why
}

// bench is what a section works with.
type bench struct {
	dir string        // of the section
	d   time.Duration // how long a rate is measured
	n   sizes
	out io.Writer // of the table, as it grows

	database string // URL of PostgreSQL
	nats     string // address of a NATS server; where there is none one is started

	section string
	target  string               // of the next rate
	server  func() time.Duration // processor time of the database so far; nil: it is not counted
	results []result
}

// row adds a figure and prints it.
func (b *bench) row(name string, value float64, unit, target, note string) {
	b.add(result{Section: b.section, Name: name, Value: value, Unit: unit, Target: target, Note: note})
}

// unknownHere is the note of a figure that this system does not have.
const unknownHere = "not known on this system"

// skip says why there is no figure.
func (b *bench) skip(name, note string) {
	b.add(result{Section: b.section, Name: name, Note: note, Skipped: true})
}

func (b *bench) add(r result) {
	b.results = append(b.results, r)
	fmt.Fprintf(b.out, "| %-58s | %12s | %-9s | %-12s | %s |\n", r.Name, r.figure(), r.Unit, r.Target, r.Note)
}

func (r *result) figure() string {
	if r.Skipped {
		return "–"
	}
	return figure(r.Value)
}

func figure(v float64) string {
	switch size := math.Abs(v); {
	case size >= 100:
		return fmt.Sprintf("%.0f", v)
	case size >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func main() {
	if isChild() {
		return
	}
	b := bench{out: os.Stdout}
	flag.DurationVar(&b.d, "for", 3*time.Second, "how long each rate is measured")
	flag.IntVar(&b.n.runs, "runs", 10_000, "history: past runs of the session")
	flag.IntVar(&b.n.events, "events", 1_000_000, "history: events of the long log")
	flag.IntVar(&b.n.unfinished, "unfinished", 10_000, "start: unfinished sessions")
	flag.IntVar(&b.n.idle, "idle", 100_000, "idle: sessions")
	flag.IntVar(&b.n.subscribers, "subscribers", 9_500, "subscribers: readers (each takes an open file here and in the daemon)")
	flag.IntVar(&b.n.deltas, "deltas", 2000, "delta, bus: pieces of each answer")
	flag.IntVar(&b.n.takeovers, "takeovers", 20, "takeover: nodes that are killed, one after the other")
	flag.IntVar(&b.n.moved, "moved", 1000, "takeover: sessions of the node that is killed with many")
	flag.IntVar(&b.n.owned, "owned", 100_000, "ownership: sessions of a node that beats")
	flag.IntVar(&b.n.large, "large", 1_000_000, "large: events of the long log; 0: none is made, 10000000: some minutes and 10 GB")
	flag.IntVar(&b.n.beside, "beside", 20_000, "large: events of the short log; 20000 is the least for full lists")
	flag.IntVar(&b.n.reads, "reads", 1000, "large: reads of each kind, behind a tenth as many that do not count")
	flag.IntVar(&b.n.stored, "stored", 200, "storage: one-step runs; half as many of five turns, a quarter with long answers")
	flag.IntVar(&b.n.deliveries, "deliveries", 30_000, "deliveries: webhooks of a rate")
	flag.IntVar(&b.n.queued, "queued", 1_000_000, "deliveries: of the long queue")
	flag.IntVar(&b.n.pairs, "pairs", 20, "deliveries, postgres: pairs of windows that are compared; three times as many for a target that hangs")
	flag.StringVar(&b.database, "database", "postgres://postgres@127.0.0.1:5432/test?sslmode=disable", "a PostgreSQL database, where schemas are made and dropped")
	flag.StringVar(&b.nats, "nats", "127.0.0.1:4222", "bus: a NATS server; where there is none one is started in this process")
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	var (
		dir     = flag.String("dir", "", "where to write; default a temporary directory")
		only    = flag.String("only", "", "sections, with commas: "+strings.Join(names, ", "))
		short   = flag.Bool("short", false, "smaller numbers: two or three minutes instead of twelve")
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
		b.short()
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
		if err := b.measureSection(context.Background(), s, dir); err != nil {
			return err
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

// measureSection measures one subject in a directory of its own.
func (b *bench) measureSection(ctx context.Context, s section, dir string) error {
	b.section, b.dir = s.name, filepath.Join(dir, s.name)
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	if err := s.run(ctx, b); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// rate is how fast something went, and what one took.
type rate struct {
	second      float64 // so many a second
	p50, p99    time.Duration
	cpu, server time.Duration // of the processors, here and by the database
	served      bool          // the database was counted
}

func (r rate) String() string {
	text := fmt.Sprintf("p50 %.2f ms, p99 %.2f ms; %.3f ms of CPU each", ms(r.p50), ms(r.p99), ms(r.cpu))
	if r.served {
		text += fmt.Sprintf(", and %.3f of the database", ms(r.server))
	}
	return text
}

// measure calls do from n goroutines for a while and adds the rate. do gets the
// number of its goroutine and of its call. What it gives back are the median and the rate.
func (b *bench) measure(what string, n int, do func(worker, call int) error) (p50 time.Duration, second float64, err error) {
	r, err := b.timed(b.d, n, do)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", what, err)
	}
	b.row(what, r.second, "a second", b.target, r.String())
	b.target = ""
	return r.p50, r.second, nil
}

// timed calls do from n goroutines for a while, and once at least.
func (b *bench) timed(d time.Duration, n int, do func(worker, call int) error) (rate, error) {
	served := func() time.Duration { return 0 }
	if b.server != nil {
		served = b.server
	}
	var (
		wg     sync.WaitGroup
		fail   atomic.Pointer[error]
		times  = make([][]time.Duration, n)
		theirs = served()
		spent  = cpuTime()
		begin  = time.Now()
		until  = begin.Add(d)
	)
	for w := range n {
		wg.Go(func() {
			for call := 0; (call == 0 || time.Now().Before(until)) && fail.Load() == nil; call++ {
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
	spent, theirs = cpuTime()-spent, served()-theirs
	if err := fail.Load(); err != nil {
		return rate{}, *err
	}
	all := slices.Concat(times...)
	if len(all) == 0 {
		return rate{}, errors.New("nothing done")
	}
	each := time.Duration(len(all))
	return rate{float64(len(all)) / took.Seconds(), quantile(all, .5), quantile(all, .99), spent / each, theirs / each, b.server != nil}, nil
}

// quantile sorts the times.
func quantile(times []time.Duration, q float64) time.Duration {
	slices.Sort(times)
	return times[int(q*float64(len(times)-1))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

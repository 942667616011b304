// Command bench measures, in one run and on one disk, the machine's floor and
// what Holdfast makes of it: appends a second through the log, and one-step
// runs a second over HTTP, client and server on the same machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	var (
		seconds = flag.Duration("for", 3*time.Second, "how long each figure is measured")
		dir     = flag.String("dir", "", "where to write; default a temporary directory")
		only    = flag.String("only", "", "floor, log or runs")
		profile = flag.String("cpuprofile", "", "write a CPU profile to this file")
	)
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	if err := run(*dir, *only, *seconds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(dir, only string, d time.Duration) error {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "holdfast-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	fmt.Printf("%s, %d cores, %s\n\n", runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	fmt.Printf("| %-46s | %12s | %9s | %9s |\n", "what", "a second", "p50 ms", "p99 ms")
	fmt.Printf("| %-46s | %12s | %9s | %9s |\n", "---", "---:", "---:", "---:")
	ctx := context.Background()
	for _, part := range []struct {
		name string
		run  func(context.Context, string, time.Duration) error
	}{{"floor", floor}, {"log", logAppends}, {"runs", runs}} {
		if only != "" && only != part.name {
			continue
		}
		if err := part.run(ctx, dir, d); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// measure calls do from n goroutines for d and prints what came of it. do gets
// the number of its goroutine and of its call.
func measure(what string, n int, d time.Duration, do func(worker, call int) error) (float64, error) {
	var (
		wg    sync.WaitGroup
		fail  atomic.Pointer[error]
		times = make([][]time.Duration, n)
		begin = time.Now()
		until = begin.Add(d)
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
	if err := fail.Load(); err != nil {
		return 0, *err
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	if len(all) == 0 {
		return 0, fmt.Errorf("%s: nothing done", what)
	}
	rate := float64(len(all)) / took.Seconds()
	ms := func(q float64) float64 {
		return float64(all[int(q*float64(len(all)-1))].Microseconds()) / 1000
	}
	fmt.Printf("| %-46s | %12.0f | %9.2f | %9.2f |\n", what, rate, ms(.5), ms(.99))
	return rate, nil
}

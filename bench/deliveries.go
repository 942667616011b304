package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"
)

// deliveries measures webhooks on loopback, signed, each outcome durable: a
// daemon in a process of its own works off a queue, and the receiver, here, shares
// the machine with it.
func deliveries(ctx context.Context, b *bench) error {
	r, err := openReceiver()
	if err != nil {
		return err
	}
	defer r.close()
	dir := filepath.Join(b.dir, "even")
	if err := enqueue(ctx, dir, r.url, b.n.deliveries); err != nil {
		return err
	}
	even, err := drained(ctx, r, dir, b.n.deliveries/10, b.n.deliveries)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("webhook deliveries, %d targets", receivers), even.rate(), "/s", "at least 3000", even.note())
	b.row("one of them: processor time of daemon and receiver", micros(even.each()), "µs", "", "of all cores")
	if err := hungInTurns(ctx, b, r); err != nil {
		return err
	}
	return fewAndMany(ctx, b, r)
}

// hungInTurns measures what it costs the others that a target hangs: one daemon
// works off one queue, and the target hangs for every second window of it. Windows
// are of as many deliveries of the others each; which kind comes first changes from
// pair to pair.
func hungInTurns(ctx context.Context, b *bench, r *receiver) error {
	pairs, queued := 3*b.n.pairs, 6*b.n.deliveries // they differ among each other by far more than by the target
	others := queued - queued/receivers
	s := newSwing("/0", others/10, others*85/100/(2*pairs), 2*pairs)
	dir := filepath.Join(b.dir, "hung")
	if err := enqueue(ctx, dir, r.url, queued); err != nil {
		return err
	}
	load := loadNow()
	if err := r.serve(ctx, dir, s, s.done, func(*node) {}); err != nil {
		return fmt.Errorf("one target hangs: %w", err)
	}
	var rates, lost []float64
	for i := 0; i < len(s.windows); i += 2 {
		plain, hung := s.windows[i], s.windows[i+1]
		if s.hangs(i) {
			plain, hung = hung, plain
		}
		rates = append(rates, float64(s.size)/hung.Seconds())
		lost = append(lost, 100*(1-plain.Seconds()/hung.Seconds()))
	}
	of := fmt.Sprintf("median of %d windows of %d deliveries to the others", pairs, s.size)
	b.row("the same, one of the targets hangs", median(rates), "/s", "", of+", in turn with as many in which it answers; load "+load)
	b.row("what the others lose by it", median(lost), "%", "below 5", fmt.Sprintf("median of %d pairs of windows; %s", pairs, spread(lost, "%.1f")))
	return nil
}

// The queues whose deliveries are compared. A lane reads 64 deliveries ahead, so that
// a window of a long queue has to have as many of each lane, or a multiple of it.
const (
	few      = 1000 // in a short queue
	fewTimes = 6    // short queues beside a window of the long one
	ahead    = 64 * receivers
)

// fewAndMany compares the processor time of a delivery out of short queues and out of
// a very long one, in turn. Each time a daemon is started on the queue. A lane of a
// short queue has five deliveries: what it costs to begin a lane is theirs. The long
// one is measured from when that is past.
func fewAndMany(ctx context.Context, b *bench, r *receiver) error {
	long := filepath.Join(b.dir, "many")
	if err := enqueue(ctx, long, r.url, b.n.queued); err != nil {
		return err
	}
	rounds := max(b.n.pairs/4, 1)
	window := min(ahead, b.n.queued/(2*rounds+1))
	var times [2][]float64
	var ratios []float64
	load := loadNow()
	for i := range rounds {
		var pair [2]float64
		for _, k := range []int{i % 2, 1 - i%2} {
			var f flow
			var err error
			if k == 0 {
				f, err = shortQueues(ctx, r, filepath.Join(b.dir, fmt.Sprintf("few-%d", i)))
			} else {
				f, err = drained(ctx, r, long, window, 2*window)
			}
			if err != nil {
				return err
			}
			pair[k] = micros(f.each())
			times[k] = append(times[k], pair[k])
		}
		ratios = append(ratios, pair[1]/pair[0])
	}
	b.row(fmt.Sprintf("processor time of one, %d queued", few), median(times[0]), "µs", "", fmt.Sprintf("median of %d times %d queues; load %s", rounds, fewTimes, load))
	b.row(fmt.Sprintf("processor time of one, %d queued", b.n.queued), median(times[1]), "µs", "", fmt.Sprintf("median of %d times %d deliveries, in turn with those", rounds, window))
	b.row("the one over the other", median(ratios), "times", "at most 1", fmt.Sprintf("median of %d pairs; %s", rounds, spread(ratios, "%.3f")))
	return nil
}

// shortQueues has daemons work off short queues, one after the other.
func shortQueues(ctx context.Context, r *receiver, dir string) (all flow, err error) {
	for i := range fewTimes {
		dir := fmt.Sprintf("%s-%d", dir, i)
		if err := enqueue(ctx, dir, r.url, few); err != nil {
			return all, err
		}
		f, err := drained(ctx, r, dir, few/10, few)
		if err != nil {
			return all, err
		}
		all.n, all.took, all.cpu = all.n+f.n, all.took+f.took, all.cpu+f.cpu
	}
	return all, nil
}

// median is the middle one, or that between the two in the middle.
func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// spread says how far apart they are: all of them, and the half in the middle.
func spread(list []float64, as string) string {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	text := func(i int) string { return fmt.Sprintf(as, list[i]) }
	return fmt.Sprintf("from %s to %s, half of them from %s to %s", text(0), text(n-1), text((n-1)/4), text(n-1-(n-1)/4))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// flow is how fast deliveries went.
type flow struct {
	n    int
	took time.Duration
	cpu  time.Duration // of both processes
	load string
}

func (f *flow) rate() float64 { return float64(f.n) / f.took.Seconds() }

// each is the processor time of one.
func (f *flow) each() time.Duration { return f.cpu / time.Duration(f.n) }

func (f *flow) note() string {
	return fmt.Sprintf("%d in %v; load %s", f.n, f.took.Round(time.Millisecond), f.load)
}

// drained has a daemon work off its queue until so many have come, and measures
// from when a part of them had.
func drained(ctx context.Context, r *receiver, dir string, from, until int) (f flow, err error) {
	in := newIntake(from, until)
	f.load = loadNow()
	if err := r.serve(ctx, dir, in, in.done, in.begin); err != nil {
		return f, fmt.Errorf("%d of %d came: %w", in.came.Load(), until, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	first, last := in.at[0], in.at[1]
	f.n, f.took, f.cpu = last.n-first.n, last.when.Sub(first.when), last.cpu-first.cpu
	return f, in.err
}

// serve has a daemon on a queue deliver to h until done. What is sent before the
// daemon is known here waits. It ends as one that is told to, so that the next one
// finds nothing in doubt.
func (r *receiver) serve(ctx context.Context, dir string, h http.Handler, done <-chan struct{}, known func(*node)) (err error) {
	open := make(chan struct{})
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-open:
			h.ServeHTTP(w, q)
		case <-q.Context().Done():
		}
	}))
	r.now.Store(&handler)
	n, err := startNodeWith(dir, play{more: "targets: {allow_private: [127.0.0.0/8]}\n"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	known(n)
	close(open)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Minute):
		return errors.New("not in ten minutes")
	}
}

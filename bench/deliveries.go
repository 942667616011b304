package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// receivers is how many targets the deliveries go to.
const receivers = 200

// deliveries measures webhooks on loopback, signed, each outcome durable: a
// daemon in a process of its own works off a queue, and the receiver, here, shares
// the machine with it.
func deliveries(ctx context.Context, b *bench) error {
	even, err := drained(ctx, b, "even", b.n.deliveries, b.n.deliveries, "")
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("webhook deliveries, %d targets", receivers), even.rate, "/s", "at least 3000", even.note())
	b.row("one of them: processor time of daemon and receiver", even.cpu.Seconds()*1e6, "µs", "", "of all cores")
	hung, err := drained(ctx, b, "hung", b.n.deliveries, b.n.deliveries-b.n.deliveries/receivers, "/0")
	if err != nil {
		return err
	}
	b.row("the same, one of the targets hangs", hung.rate, "/s", "", hung.note())
	b.row("what the others lose by it", 100*(1-hung.rate/even.rate), "%", "below 5", "")
	few, err := fewQueued(ctx, b)
	if err != nil {
		return err
	}
	many, err := drained(ctx, b, "many", b.n.queued, min(20_000, b.n.queued/2), "")
	if err != nil {
		return err
	}
	b.row("processor time of one, 1000 queued", few.cpu.Seconds()*1e6, "µs", "", few.note())
	b.row(fmt.Sprintf("processor time of one, %d queued", b.n.queued), many.cpu.Seconds()*1e6, "µs", fmt.Sprintf("at most %.0f", few.cpu.Seconds()*1e6), many.note())
	return nil
}

// fewQueued has daemons work off short queues, one after the other, as often as
// makes up for how short they are.
func fewQueued(ctx context.Context, b *bench) (all flow, err error) {
	const times = 10
	for i := range times {
		f, err := drained(ctx, b, fmt.Sprint("few", i), 1000, 1000, "")
		if err != nil {
			return all, err
		}
		all.cpu += f.cpu / times // of as many each
		all.n, all.took, all.load = all.n+f.n, all.took+f.took, f.load
	}
	return all, nil
}

// flow is how fast deliveries went.
type flow struct {
	rate float64       // a second
	cpu  time.Duration // of one, in both processes
	n    int
	took time.Duration
	load string
}

func (f *flow) note() string {
	return fmt.Sprintf("%d in %v; load %s", f.n, f.took.Round(time.Millisecond), f.load)
}

// drained has a daemon work off a queue until so many have come; at hangs a receiver.
func drained(ctx context.Context, b *bench, name string, queued, until int, at string) (f flow, err error) {
	in := &intake{until: int64(until), hangs: at, done: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
	}
	srv := &http.Server{Handler: in, ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	defer func() { err = errors.Join(err, srv.Close()); serving.Wait() }()
	dir := filepath.Join(b.dir, name)
	if err := enqueue(ctx, filepath.Join(dir, "holdfast-data"), "http://"+l.Addr().String(), queued); err != nil {
		return f, err
	}
	f.load = loadNow()
	n, err := startNodeWith(dir, play{more: "targets: {allow_private: [127.0.0.0/8]}\n"})
	if err != nil {
		return f, err
	}
	in.pid.Store(int64(n.cmd.Process.Pid))
	defer func() { err = errors.Join(err, n.kill()) }()
	select {
	case <-in.done:
	case <-time.After(10 * time.Minute):
		return f, fmt.Errorf("%d of %d came", in.came.Load(), until)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	f.n, f.took = until-in.from, in.last.Sub(in.first)
	f.rate = float64(f.n) / f.took.Seconds()
	f.cpu = (cpuTime() - in.cpu + processTime(n.cmd.Process.Pid) - in.theirs) / time.Duration(f.n)
	return f, nil
}

// intake takes deliveries. It counts from when a part of them has come: what a
// start costs is no delivery's.
type intake struct {
	until int64
	hangs string
	came  atomic.Int64
	pid   atomic.Int64 // of the daemon; 0 as long as it is not known
	done  chan struct{}

	mu          sync.Mutex
	from        int
	first, last time.Time
	cpu, theirs time.Duration
}

func (in *intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	if in.hangs != "" && r.URL.Path == in.hangs {
		<-r.Context().Done()
		return
	}
	switch n := in.came.Add(1); {
	case n == max(in.until/10, 1):
		in.mark(int(n))
	case n == in.until:
		in.mu.Lock()
		in.last = time.Now()
		in.mu.Unlock()
		close(in.done)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (in *intake) mark(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.from, in.first, in.cpu = n, time.Now(), cpuTime()
	in.theirs = processTime(int(in.pid.Load()))
}

// sharers is how many sessions answer to a target.
const sharers = 4

// enqueue fills a queue: bodies of a usual size, of several sessions for each target.
func enqueue(ctx context.Context, dir, url string, n int) (err error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Sync: sqlite.SyncNormal})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	text := strings.Repeat("an answer of a usual length, so to say. ", 10)
	for t := range receivers {
		var sessions [sharers]event.SessionID
		for i := range sessions {
			if sessions[i], err = event.NewSessionID(rand.Reader); err != nil {
				return err
			}
		}
		run, err := event.NewRunID(rand.Reader)
		if err != nil {
			return err
		}
		to := event.ReplyTarget{Type: "webhook", URL: fmt.Sprintf("%s/%d", url, t)}
		address, err := json.Marshal(to)
		if err != nil {
			return err
		}
		id := event.TargetIDFor("bench", to.Type, to.URL)
		at := event.RefOf(address)
		var a eventlog.Append
		for i := t; i < n; i += receivers {
			ses := sessions[i/receivers%sharers]
			d := event.DeliveryID(fmt.Sprintf("dlv_%s_%d", run[len("run_"):], i))
			m := outbox.Message{DeliveryID: d, SessionID: ses, RunID: run, OutputKind: event.OutputText, Text: text}
			body := event.NewBlob(ses, event.BlobDelivery, m.Body())
			a.Blobs = append(a.Blobs, body, event.NewBlob(ses, event.BlobDelivery, address))
			a.Entries = append(a.Entries, eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead, Follows: len(a.Entries) > 0, Events: []event.Event{{SessionID: ses, UserID: "bench", RunID: run,
				Data: &event.DeliveryEnqueued{Address: at, Body: body.Ref, DeliveryID: d, Type: to.Type}}}})
			if len(a.Entries) == 500 || i+receivers >= n {
				if _, err := s.Append(ctx, a); err != nil {
					return err
				}
				a = eventlog.Append{}
			}
		}
	}
	return nil
}

// processTime is the processor time of a process so far; 0 where it cannot be read.
func processTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond // ticks of a hundredth of a second
}

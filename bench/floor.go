package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// payload is the size of one appended event, in bytes.
const payload = 512

// floor is what the disk can do: raw append + fdatasync, one each, and with
// whatever waits written and synced together.
func floor(_ context.Context, b *bench) error {
	for _, n := range []int{1, 64} {
		f, err := os.OpenFile(filepath.Join(b.dir, fmt.Sprintf("raw-%d", n)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		line := make([]byte, payload)
		if _, _, err := b.measure(fmt.Sprintf("raw append + fdatasync, %d writers", n), n, func(int, int) error {
			mu.Lock()
			defer mu.Unlock()
			if _, err := f.Write(line); err != nil {
				return err
			}
			return fdatasync(f)
		}); err != nil {
			return err
		}
		f.Close()
	}
	f, err := os.OpenFile(filepath.Join(b.dir, "raw-group"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = grouped(b, "raw append + fdatasync, 64 writers, grouped", func(n int) error {
		if _, err := f.Write(make([]byte, n*payload)); err != nil {
			return err
		}
		return fdatasync(f)
	})
	return err
}

// group does the work of all that wait at once.
type group struct {
	work func(n int) error
	in   chan chan error
}

func (g *group) append() error {
	c := make(chan error, 1)
	g.in <- c
	return <-c
}

func (g *group) run(stop <-chan struct{}) {
	for {
		var batch []chan error
		select {
		case c := <-g.in:
			batch = append(batch, c)
		case <-stop:
			return
		}
	more:
		for {
			select {
			case c := <-g.in:
				batch = append(batch, c)
			default:
				break more
			}
		}
		err := g.work(len(batch))
		for _, c := range batch {
			c <- err
		}
	}
}

// grouped measures appends of 64 writers that are done together.
func grouped(b *bench, name string, work func(n int) error) (float64, error) {
	g := &group{work: work, in: make(chan chan error, 1024)}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { g.run(stop); close(done) }()
	_, rate, err := b.measure(name, 64, func(int, int) error { return g.append() })
	close(stop)
	<-done
	return rate, err
}

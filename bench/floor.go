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
		if _, err := b.measure(fmt.Sprintf("raw append + fdatasync, %d writers", n), n, func(int, int) error {
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
	g := &group{f: f, in: make(chan chan error, 1024)}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { g.run(stop); close(done) }()
	_, err = b.measure("raw append + fdatasync, 64 writers, grouped", 64, func(int, int) error { return g.append() })
	close(stop)
	<-done
	return err
}

// group writes what waits with one sync.
type group struct {
	f  *os.File
	in chan chan error
}

func (g *group) append() error {
	c := make(chan error, 1)
	g.in <- c
	return <-c
}

func (g *group) run(stop <-chan struct{}) {
	line := make([]byte, payload)
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
		buf := make([]byte, 0, payload*len(batch))
		for range batch {
			buf = append(buf, line...)
		}
		_, err := g.f.Write(buf)
		if err == nil {
			err = fdatasync(g.f)
		}
		for _, c := range batch {
			c <- err
		}
	}
}

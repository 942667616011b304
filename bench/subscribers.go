package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// subscribers measures readers of event streams: what one costs, and how long
// it takes until all have an event, when all follow one session and when each
// follows its own.
func subscribers(ctx context.Context, b *bench) error {
	n, err := startNode(b.dir)
	if err != nil {
		return err
	}
	one, err := n.session(`{}`)
	if err != nil {
		return err
	}
	before := n.memory(false)
	group, err := follow(n.addr, b.n.subscribers, func(int) string { return one })
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("memory of one of %d readers of one session", b.n.subscribers), (n.memory(false)-before)*1024/float64(b.n.subscribers), "KiB", "", "in the daemon")
	for _, name := range []string{"first", "second"} {
		begin := time.Now()
		if err := n.run(one); err != nil {
			return err
		}
		answered := time.Since(begin)
		if err := group.all("event: run.completed"); err != nil {
			return err
		}
		b.row("until all of them have the end of a run, "+name, time.Since(begin).Seconds(), "s", "", fmt.Sprintf("who submitted it had it after %.0f ms", ms(answered)))
	}
	group.close()

	sessions := make([]string, b.n.subscribers)
	for i := range sessions {
		if sessions[i], err = n.session(`{}`); err != nil {
			return err
		}
	}
	before = n.memory(false)
	if group, err = follow(n.addr, len(sessions), func(i int) string { return sessions[i] }); err != nil {
		return err
	}
	b.row(fmt.Sprintf("memory of one of %d readers of as many sessions", len(sessions)), (n.memory(false)-before)*1024/float64(len(sessions)), "KiB", "", "beyond what was free of the others")
	var each []time.Duration
	for i := range min(300, len(sessions)) {
		begin := time.Now()
		if err := n.run(sessions[i]); err != nil {
			return err
		}
		each = append(each, time.Since(begin))
	}
	b.row("a run while each session has its reader", ms(quantile(each, .5)), "ms", "", fmt.Sprintf("p50 of %d, one after the other", len(each)))
	b.row("memory of the daemon at most", n.memory(true), "MiB", "", "")
	group.close()
	return n.stop()
}

// readers are connections that follow streams.
type readers struct {
	conns []net.Conn
	bufs  []*bufio.Reader
}

// follow opens streams and waits until each is live.
func follow(addr string, n int, session func(i int) string) (*readers, error) {
	g := &readers{conns: make([]net.Conn, n), bufs: make([]*bufio.Reader, n)}
	err := g.each(func(i int) (err error) {
		if g.conns[i], err = net.Dial("tcp", addr); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(g.conns[i], "GET /v1/sessions/%s/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", session(i), token); err != nil {
			return err
		}
		g.bufs[i] = bufio.NewReaderSize(g.conns[i], 512)
		return g.until(i, "event: synced")
	})
	return g, err
}

// each calls f for all, some at a time.
func (g *readers) each(f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	next := make(chan int, len(g.conns))
	for i := range g.conns {
		next <- i
	}
	close(next)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (g *readers) all(line string) error {
	return g.each(func(i int) error { return g.until(i, line) })
}

// until reads up to a line.
func (g *readers) until(i int, want string) error {
	g.conns[i].SetReadDeadline(time.Now().Add(time.Minute))
	for {
		line, err := g.bufs[i].ReadString('\n')
		if err != nil {
			return fmt.Errorf("reader %d: %w", i, err)
		}
		if strings.HasPrefix(line, want) {
			return nil
		}
		if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.Contains(line, " 200 ") {
			return fmt.Errorf("reader %d: %s", i, strings.TrimSpace(line))
		}
	}
}

func (g *readers) close() {
	for _, c := range g.conns {
		if c != nil {
			c.Close()
		}
	}
}

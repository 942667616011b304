package call

import (
	"sync"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

// places are those of open streams and waits. One token has four fifths of them at
// most, and so has all of the unix socket, so that who keeps all of its own open
// shuts out itself.
type places struct {
	most int

	mu     sync.Mutex
	taken  int
	shares map[string]int // by the hash of the token
}

func (p *places) take(who string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.most:
		return errBusy
	case p.shares[who] >= p.most-p.most/5:
		return errShare
	}
	if p.shares == nil {
		p.shares = map[string]int{}
	}
	p.taken++
	p.shares[who]++
	return nil
}

func (p *places) give(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.shares[who]--; p.shares[who] == 0 {
		delete(p.shares, who)
	}
}

// count is how many are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

var (
	errBusy  = problem.New(problem.Limited, "too_many_streams", "too many streams and waits are open; try again")
	errShare = problem.New(problem.Limited, "too_many_streams", "this token has four fifths of limits.streams open, streams and waits, and the others are kept for others; end some, and try again")
)

// Acquire takes a place among the open streams and waits; an error when there is none.
func (c *Call) Acquire() error { return c.server.streams.take(c.Who.Token()) }

// Release gives it back.
func (c *Call) Release() { c.server.streams.give(c.Who.Token()) }

package gate

import (
	"context"
	"net/netip"
	"sync"
)

// Places are so many places, of which one peer takes a quarter at most: who holds
// all that are one's own keeps nobody else waiting. It is safe for concurrent use.
type Places struct {
	all  chan struct{}
	each int

	mu    sync.Mutex
	peers map[netip.Addr]*share
}

// share is what one peer has of the places.
type share struct {
	taken chan struct{}
	users int // that hold one of it, or wait
}

// NewPlaces makes so many.
func NewPlaces(count int) *Places {
	return &Places{all: make(chan struct{}, count), each: max(1, count/4), peers: map[netip.Addr]*share{}}
}

// Enter takes a place for a peer, and waits for one until ctx ends; the error is
// ctx's then. leave gives it back.
func (p *Places) Enter(ctx context.Context, peer netip.Addr) (leave func(), err error) {
	s := p.share(peer)
	for _, c := range []chan struct{}{s.taken, p.all} {
		select {
		case c <- struct{}{}:
		case <-ctx.Done():
			if c == p.all {
				<-s.taken
			}
			p.done(peer, s)
			return nil, ctx.Err()
		}
	}
	return func() { <-p.all; <-s.taken; p.done(peer, s) }, nil
}

func (p *Places) share(peer netip.Addr) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[peer]
	if s == nil {
		s = &share{taken: make(chan struct{}, p.each)}
		p.peers[peer] = s
	}
	s.users++
	return s
}

func (p *Places) done(peer netip.Addr, s *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(p.peers, peer)
	}
}

// Peers is how many peers hold a place, or wait for one.
func (p *Places) Peers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers)
}

package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// kind is the kind of a port call.
type kind byte

const (
	reads   kind = 'r' // of the store
	appends kind = 'a' // to the log
	writes  kind = 'w' // to the store, beside the log
	outside kind = 'o' // model, tool, sender
)

// verdict is what becomes of a parked call.
type verdict string

const (
	proceed     verdict = ""             // it goes on
	errBefore   verdict = "err-before"   // an error, and nothing was done
	errApart    verdict = "err-apart"    // the store cannot be reached
	errNoRoom   verdict = "err-no-room"  // the disk is full
	errAfter    verdict = "err-after"    // it was done, and the answer is an error
	crashBefore verdict = "crash-before" // the node dies, and nothing was done
	crashAfter  verdict = "crash-after"  // the node dies right behind the commit
	late        verdict = "late"         // it is done, and the answer takes its time
	cut         verdict = "cut"          // a stream breaks off
	twice       verdict = "twice"        // what comes from outside comes once more
	gone        verdict = "gone"         // the node is dead
	lingers     verdict = "lingers"      // its caller is gone; it is on its way and lands some time, or never
)

// parked is a port call that waits for its turn.
type parked struct {
	key  string
	n    *node
	kind kind
	ctx  context.Context
	turn chan verdict
}

// scheduler holds every port call of every node until its turn comes.
type scheduler struct {
	mu      sync.Mutex
	waiting []*parked
	arrived chan struct{} // one element when a call has parked
}

// park waits for the call's turn. It does not end with ctx: a call whose caller
// gave up comes back when it is its turn, as everything does, so that two never
// go on at once.
func (s *scheduler) park(ctx context.Context, n *node, k kind, key string) verdict {
	p := &parked{key: key, n: n, kind: k, ctx: ctx, turn: make(chan verdict, 1)}
	s.mu.Lock()
	if n.dead {
		s.mu.Unlock()
		return gone
	}
	s.waiting = append(s.waiting, p)
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
	return <-p.turn
}

// ready gives the calls that may go on, in the order of their names, which is
// none of the machine's making.
func (s *scheduler) ready() []*parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.waiting, func(a, b *parked) int { return strings.Compare(a.key, b.key) })
	out := make([]*parked, 0, len(s.waiting))
	for _, p := range s.waiting {
		if p.n.paused || p.n.split == hangs && p.kind != outside {
			continue
		}
		out = append(out, p)
	}
	return out
}

// release lets a call go on.
func (s *scheduler) release(p *parked, v verdict) {
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(x *parked) bool { return x == p })
	s.mu.Unlock()
	p.turn <- v
}

// drop marks a node as dead and ends its calls; it gives their names.
func (s *scheduler) drop(n *node) []*parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.dead {
		return nil
	}
	n.dead = true
	var mine []*parked
	s.waiting = slices.DeleteFunc(s.waiting, func(x *parked) bool {
		if x.n == n {
			mine = append(mine, x)
		}
		return x.n == n
	})
	slices.SortStableFunc(mine, func(a, b *parked) int { return strings.Compare(a.key, b.key) })
	for _, p := range mine {
		v := gone
		if (p.kind == appends || p.kind == writes) && n.h.world.draw("lingers", p.key, n.h.steps).below(3) == 0 {
			v = lingers
		}
		p.turn <- v
	}
	return mine
}

// labelled says in whose name a port is called: a client's, or nobody's.
type labelled struct{}

func withLabel(ctx context.Context, label string) context.Context {
	return context.WithValue(ctx, labelled{}, label)
}

func labelOf(ctx context.Context) string {
	if l, ok := ctx.Value(labelled{}).(string); ok {
		return " for " + l
	}
	return ""
}

// name makes the name of a port call.
func name(ctx context.Context, n *node, op string, about ...any) string {
	var b strings.Builder
	b.WriteString(n.name)
	b.WriteByte(' ')
	b.WriteString(op)
	for _, a := range about {
		fmt.Fprintf(&b, " %v", n.h.watch.called(a))
	}
	b.WriteString(labelOf(ctx))
	return b.String()
}

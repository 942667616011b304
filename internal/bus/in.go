package bus

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// ear is a session that somebody hears at this node, or did until a moment ago.
type ear struct {
	on   bool
	left time.Time // when the last one left
	sub  *nats.Subscription
}

// Listen says that somebody here hears the stream's deltas from now on, or that
// nobody does any more.
func (b *Bus) Listen(s event.Stream, on bool) {
	if _, ok := subjectOf(s); !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.ears[s]
	switch {
	case e == nil && !on:
		return
	case e == nil:
		e = &ear{}
		b.ears[s] = e
	}
	e.on = on
	if !on {
		e.left = time.Now()
		if e.sub == nil {
			delete(b.ears, s)
			delete(b.changed, s)
		}
		return
	}
	if b.up {
		b.changed[s] = true
		b.rouse()
	}
}

// subscribe brings the subscriptions in line with who listens here, and tells
// the others of those who came.
func (b *Bus) subscribe(l *link) error {
	b.mu.Lock()
	changed := b.changed
	if len(changed) == 0 {
		b.mu.Unlock()
		return nil
	}
	b.changed = map[event.Stream]bool{}
	b.mu.Unlock()
	var come []string
	for s := range changed {
		on, err := b.settle(l, s)
		if err != nil {
			return err
		}
		if on {
			come = append(come, sessionOf(s))
		}
		if len(come) == maxIDs {
			if err := b.post(l, allSubject, "", encodeNotice(notice{Node: b.cfg.Node, Want: come})); err != nil {
				return err
			}
			come = nil
		}
	}
	if len(come) == 0 {
		return nil
	}
	return b.post(l, allSubject, "", encodeNotice(notice{Node: b.cfg.Node, Want: come}))
}

// settle subscribes to one session, or ends that; on: somebody listens.
func (b *Bus) settle(l *link, s event.Stream) (on bool, err error) {
	b.mu.Lock()
	e := b.ears[s]
	if e == nil {
		b.mu.Unlock()
		return false, nil
	}
	on = e.on
	sub := e.sub
	if !on && time.Since(e.left) >= Grace {
		delete(b.ears, s)
	}
	forget := b.ears[s] == nil
	b.mu.Unlock()
	switch {
	case on && sub == nil:
		if sub, err = l.conn.ChanSubscribe(liveSubject+sessionOf(s), l.in); err != nil {
			return false, err
		}
		b.mu.Lock()
		left := b.ears[s] != e // and there is nobody to listen for
		e.sub = sub
		b.mu.Unlock()
		if left {
			return false, sub.Unsubscribe()
		}
	case forget && sub != nil:
		return false, sub.Unsubscribe()
	}
	return on, nil
}

// take looks at a message that came. Whoever may speak on the bus is trusted to
// show text to the readers of its sessions, and with nothing else.
func (b *Bus) take(m *nats.Msg) {
	if s, ok := streamOf(m.Subject, nodeSubject+b.cfg.Node+"."); ok {
		b.mu.Lock()
		b.answer(s, m.Header.Get("Status") != "503") // which the server says: nobody is there
		b.mu.Unlock()
		return
	}
	if m.Subject == allSubject {
		b.heed(m)
		return
	}
	s, ok := streamOf(m.Subject, liveSubject)
	if !ok {
		b.missed.Add(1)
		return
	}
	if len(m.Data) == 0 {
		b.mu.Lock()
		if e := b.ears[s]; e != nil && e.on && answers(m.Reply, s) {
			b.enqueue(item{stream: s, to: m.Reply})
		}
		b.mu.Unlock()
		return
	}
	deltas, lost, err := decode(m.Data)
	if err != nil {
		b.missed.Add(1)
		b.cfg.Hub.Lost(s)
		return
	}
	b.received.Add(uint64(len(deltas))) // first: who has seen one finds it counted
	for i := range deltas {
		b.cfg.Hub.Deliver(s, deltas[i])
	}
	if lost {
		b.cfg.Hub.Lost(s)
	}
}

// answers says whether a subject is one at which a node hears who listens to a
// stream. To others nothing is sent: who asks says where the answer goes, and may be
// somebody who could not speak there himself.
func answers(subject string, s event.Stream) bool {
	node, ok := strings.CutPrefix(subject, nodeSubject)
	node, id, dot := strings.Cut(node, ".")
	return ok && dot && wellFormed(node) && id == sessionOf(s)
}

// heed looks at what a node tells all others.
func (b *Bus) heed(m *nats.Msg) {
	n, err := decodeNotice(m.Data)
	if err != nil {
		b.missed.Add(1)
		return
	}
	b.mu.Lock()
	if _, known := b.peers[n.Node]; n.Bye {
		delete(b.peers, n.Node)
	} else if known || len(b.peers) < maxPeers {
		b.peers[n.Node] = time.Now()
	}
	for _, id := range n.Want {
		b.answer(event.SessionID(id).Stream(), true)
	}
	b.mu.Unlock()
	if n.Lost {
		b.cfg.Hub.Lost()
	}
}

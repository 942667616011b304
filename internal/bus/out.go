package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// outlet is a session whose deltas are published at this node.
type outlet struct {
	state   state
	asked   time.Time // last
	deaf    int       // questions without an answer
	used    time.Time // last
	waiting []*live.Delta
}

// state says whether anybody elsewhere wants a session's deltas.
type state int8

const (
	asking state = iota
	wanted
	unwanted
)

// item is something to send.
type item struct {
	stream event.Stream
	delta  *live.Delta // nil: a question, or with to an answer
	to     string      // subject of an answer
}

// Wants says whether a delta of the stream would go anywhere.
func (b *Bus) Wants(s event.Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		b.lose(s, 0) // whoever listens elsewhere is told when it is up again
		return false
	}
	o := b.outlets[s]
	return o == nil || o.state != unwanted || time.Since(o.asked) >= askEvery
}

// Send takes a delta that was published here.
func (b *Bus) Send(s event.Stream, d *live.Delta) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := subjectOf(s); !ok || d.Number == 0 {
		return
	}
	if !b.up {
		b.lose(s, 1)
		return
	}
	now := time.Now()
	o := b.outlets[s]
	if o == nil {
		if len(b.outlets) >= MaxOutlets {
			b.lose(s, 1)
			return
		}
		o = &outlet{}
		b.outlets[s] = o
		b.ask(s, o, now)
	}
	o.used = now
	switch {
	case o.state == asking && now.Sub(o.asked) >= askWait: // nobody has answered
		o.state, o.waiting = unwanted, nil
	case o.state == unwanted && now.Sub(o.asked) >= askEvery:
		o.state = asking
		b.ask(s, o, now)
	case o.state == wanted && now.Sub(o.asked) >= askEvery:
		if o.deaf++; o.deaf > 3 {
			o.state = unwanted
		}
		b.ask(s, o, now)
	}
	switch o.state {
	case wanted:
		b.enqueue(item{stream: s, delta: d})
	case asking:
		if len(o.waiting) < MaxWaiting {
			o.waiting = append(o.waiting, d)
		} else {
			b.lose(s, 1)
		}
	}
}

// ask asks who listens. Under the lock.
func (b *Bus) ask(s event.Stream, o *outlet, now time.Time) {
	o.asked = now
	b.enqueue(item{stream: s})
}

// enqueue adds to what is to be sent, or drops it. Under the lock.
func (b *Bus) enqueue(i item) {
	size := 256 // roughly what it takes
	if i.delta != nil {
		size += len(i.delta.Text) + len(i.delta.Name)
	}
	if b.queued+size > MaxQueue {
		if i.delta != nil {
			b.lose(i.stream, 1)
		}
		return
	}
	b.queue = append(b.queue, i)
	b.queued += size
	b.rouse()
}

// answer takes note of whether a session's deltas are wanted. Under the lock.
func (b *Bus) answer(s event.Stream, yes bool) {
	o := b.outlets[s]
	if o == nil {
		return // nothing is published here, or not of late
	}
	o.deaf = 0
	waiting := o.waiting
	o.waiting = nil
	if !yes {
		o.state = unwanted
		return
	}
	o.state = wanted
	for _, d := range waiting {
		b.enqueue(item{stream: s, delta: d})
	}
}

// errClosed says that the server, or the way to it, has gone.
var errClosed = errors.New("the connection ended")

// work sends and subscribes until the connection ends.
func (b *Bus) work(ctx context.Context, l *link) error {
	tick := time.NewTicker(sweep)
	defer tick.Stop()
	limit := MaxMessage
	if n := int(l.conn.MaxPayload()); n > 0 {
		limit = min(limit, n)
	}
	beat := time.Time{}
	for {
		if now := time.Now(); now.Sub(beat) >= beatEvery {
			beat = now
			if err := b.post(l, allSubject, "", encodeNotice(notice{Node: b.cfg.Node})); err != nil {
				return err
			}
		}
		if err := b.subscribe(l); err != nil {
			return err
		}
		if err := b.flush(l, limit); err != nil {
			return err
		}
		select {
		case <-b.wake:
		case <-tick.C:
			b.tidy()
		case <-l.closed:
			if err := l.conn.LastError(); err != nil {
				return err
			}
			return errClosed
		case <-ctx.Done():
			return b.post(l, allSubject, "", encodeNotice(notice{Node: b.cfg.Node, Bye: true}))
		}
	}
}

// flush sends what waits: all of a session in one message, as far as it fits.
func (b *Bus) flush(l *link, limit int) error {
	b.mu.Lock()
	queue, lossy, all := b.queue, b.lossy, b.allLost
	b.queue, b.queued, b.allLost = nil, 0, false
	if len(lossy) > 0 {
		b.lossy = map[event.Stream]bool{}
	} else {
		lossy = nil // it stays where it is, and is not looked at without the lock
	}
	b.mu.Unlock()
	err := b.sendAll(l, limit, queue)
	for s := range lossy {
		if err == nil {
			err = b.post(l, liveSubject+sessionOf(s), "", encodeLost())
		}
	}
	if err == nil && all {
		err = b.post(l, allSubject, "", encodeNotice(notice{Node: b.cfg.Node, Lost: true}))
	}
	if err != nil && (all || len(lossy) > 0) { // the next connection tells
		b.mu.Lock()
		b.allLost = true
		b.mu.Unlock()
	}
	return err
}

// sendAll sends what waited.
func (b *Bus) sendAll(l *link, limit int, queue []item) error {
	var order []event.Stream
	batches := map[event.Stream][]*live.Delta{}
	for i := range queue {
		it := &queue[i]
		switch {
		case it.delta != nil:
			if batches[it.stream] == nil {
				order = append(order, it.stream)
			}
			batches[it.stream] = append(batches[it.stream], it.delta)
		case it.to != "":
			if err := b.post(l, it.to, "", answerYes); err != nil {
				return err
			}
		default:
			subject, id := liveSubject, sessionOf(it.stream)
			if err := b.post(l, subject+id, nodeSubject+b.cfg.Node+"."+id, nil); err != nil {
				return err
			}
		}
	}
	for _, s := range order {
		if err := b.send(l, s, batches[s], limit); err != nil {
			return err
		}
	}
	return nil
}

// send sends deltas of one session.
func (b *Bus) send(l *link, s event.Stream, deltas []*live.Delta, limit int) error {
	var m message
	post := func() error {
		if m.count == 0 {
			return nil
		}
		b.sent.Add(uint64(m.count))
		body := m.finish()
		m = message{}
		return b.post(l, liveSubject+sessionOf(s), "", body)
	}
	for _, d := range deltas {
		if m.sizeWith(d) > limit {
			if err := post(); err != nil {
				return err
			}
		}
		if m.sizeWith(d) > limit { // alone, too
			b.mu.Lock()
			b.lose(s, 1)
			b.mu.Unlock()
			b.rouse()
			continue
		}
		m.add(d)
	}
	return post()
}

func (b *Bus) post(l *link, subject, reply string, body []byte) error {
	b.messages.Add(1)
	return l.conn.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: body})
}

// tidy forgets what was not used for long, and nodes that fell silent.
func (b *Bus) tidy() {
	now := time.Now()
	gone := false
	b.mu.Lock()
	for s, o := range b.outlets {
		if now.Sub(o.used) >= idleAfter {
			delete(b.outlets, s)
		}
	}
	for s, e := range b.ears {
		if !e.on && now.Sub(e.left) >= Grace {
			b.changed[s] = true
		}
	}
	for id, at := range b.peers {
		if now.Sub(at) >= goneAfter {
			delete(b.peers, id)
			gone = true
		}
	}
	b.mu.Unlock()
	if gone { // without a word: whose session it worked on is not known here
		b.cfg.Hub.Lost()
	}
}

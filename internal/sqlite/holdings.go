package sqlite

import (
	linked "container/list"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// holdings are the nodes of this process and what they hold. They stand in
// memory: the lock of the directory makes sure that nodes of a former process
// are dead, so that at the start nobody holds anything and what is unfinished
// wants work. Only the writer touches them. A stream is in here while it is held
// or wants work; what rests costs nothing.
type holdings struct {
	nodes   map[eventlog.NodeID]*member
	order   []eventlog.NodeID // by first beat
	streams map[event.Stream]*holding
	free    map[eventlog.Kind]*linked.List // of *holding: held by nobody, those that wait longest first
	clock   int64                          // numbers the streams in the order in which they came to want work
	roots   map[event.Stream][]string      // kept once nodes differ in theirs
	differ  bool
	undo    []func() // of the open transaction
}

type member struct {
	eventlog.NodeRow
	held map[event.Stream]*holding
}

// holding is a stream that is held, or wants work.
type holding struct {
	stream event.Stream
	by     eventlog.NodeID // empty: nobody
	since  int64
	at     *linked.Element // in free; nil: held
}

func newHoldings() *holdings {
	return &holdings{
		nodes: map[eventlog.NodeID]*member{}, streams: map[event.Stream]*holding{}, roots: map[event.Stream][]string{},
		free: map[eventlog.Kind]*linked.List{eventlog.Sessions: linked.New(), eventlog.Targets: linked.New(), eventlog.Jobs: linked.New()},
	}
}

// keep ends the open transaction: what it did to the holdings stays.
func (h *holdings) keep() {
	clear(h.undo)
	h.undo = h.undo[:0]
}

// undoAll takes back what the open transaction did.
func (h *holdings) undoAll() {
	for _, f := range slices.Backward(h.undo) {
		f()
	}
	h.keep()
}

// set makes a stream held by a node, or by nobody; with since 0 it is at rest.
func (h *holdings) set(s event.Stream, by eventlog.NodeID, since int64) {
	was := holding{stream: s}
	if old := h.streams[s]; old != nil {
		was = *old
		if was.by == by && since == was.since {
			return
		}
	}
	h.undo = append(h.undo, func() { h.put(s, was.by, was.since) })
	h.put(s, by, since)
}

func (h *holdings) put(s event.Stream, by eventlog.NodeID, since int64) {
	x := h.streams[s]
	switch {
	case x == nil:
		x = &holding{stream: s}
	case x.at != nil:
		h.free[eventlog.KindOf(s)].Remove(x.at)
		x.at = nil
	case h.nodes[x.by] != nil:
		delete(h.nodes[x.by].held, s)
	}
	if since == 0 {
		delete(h.streams, s)
		return
	}
	x.by, x.since = by, since
	h.streams[s] = x
	if m := h.nodes[by]; m != nil {
		m.held[s] = x
		return
	}
	x.by = "" // a node that never said that it lives does not hold anything
	// By age: what is given back goes before what came later.
	l := h.free[eventlog.KindOf(s)]
	at := l.Back()
	for at != nil && at.Value.(*holding).since > since {
		at = at.Prev()
	}
	if at == nil {
		x.at = l.PushFront(x)
	} else {
		x.at = l.InsertAfter(x, at)
	}
}

// next numbers a stream that comes to want work.
func (h *holdings) next() int64 {
	h.clock++
	return h.clock
}

// check says whether a node may append to a stream as its owner.
func (h *holdings) check(e *eventlog.Entry, now time.Time) error {
	if m := h.nodes[e.Node]; e.Claim && m != nil && !subset(h.roots[e.Stream], m.Roots) {
		return fmt.Errorf("%w: %s needs a workspace root that %s has not", eventlog.ErrFenced, e.Stream, e.Node)
	}
	x := h.streams[e.Stream]
	if x == nil || x.by == "" || x.by == e.Node {
		return nil
	}
	m := h.nodes[x.by]
	if !e.Claim {
		return fmt.Errorf("%w: %s is held by %s", eventlog.ErrFenced, e.Stream, x.by)
	}
	if m.alive(now) {
		return &eventlog.HeldError{Stream: e.Stream, By: x.by, Until: m.Until}
	}
	return nil
}

// appended notes what an entry does to who holds its stream.
func (h *holdings) appended(e *eventlog.Entry, events []event.Event) {
	x := h.streams[e.Stream]
	switch {
	case e.Node != "" && e.Rest:
		h.set(e.Stream, "", 0)
	case e.Node != "" && x != nil:
		h.set(e.Stream, e.Node, x.since)
	case e.Node != "":
		h.set(e.Stream, e.Node, h.next())
	case x == nil && eventlog.Wakes(events):
		h.set(e.Stream, "", h.next())
	}
	if len(e.Roots) > 0 && h.differ {
		h.roots[e.Stream] = e.Roots // also after a rollback: it asks for nothing that the next append would not
	}
}

func (m *member) alive(now time.Time) bool {
	return !m.Released && (m.Until.IsZero() || now.Before(m.Until))
}

// remembered is how long nodes that ended are listed.
const remembered = time.Hour

// beat makes a node known or lets its lease run on.
func (h *holdings) beat(n eventlog.Node, ttl time.Duration, now time.Time) eventlog.Lease {
	m := h.nodes[n.ID]
	if m == nil {
		m = &member{held: map[event.Stream]*holding{}, NodeRow: eventlog.NodeRow{Since: now}}
		h.nodes[n.ID] = m
		h.order = append(h.order, n.ID)
	}
	for _, other := range h.nodes {
		h.differ = h.differ || m != other && !slices.Equal(other.Roots, n.Roots)
	}
	m.Node, m.Released, m.Until = n, false, time.Time{}
	if ttl > 0 {
		m.Until = now.Add(ttl)
	}
	h.reap(now)
	h.order = slices.DeleteFunc(h.order, func(id eventlog.NodeID) bool {
		m := h.nodes[id]
		if m.alive(now) || len(m.held) > 0 || now.Sub(m.Until) < remembered {
			return false
		}
		delete(h.nodes, id)
		return true
	})
	return eventlog.Lease{Now: now, Until: m.Until}
}

// release ends a node in order.
func (h *holdings) release(id eventlog.NodeID, now time.Time) {
	if m := h.nodes[id]; m != nil {
		m.Released, m.Until = true, now
		h.reap(now)
	}
}

// reap frees what dead nodes hold.
func (h *holdings) reap(now time.Time) {
	for _, id := range h.order {
		if m := h.nodes[id]; !m.alive(now) {
			for _, x := range m.sorted("") {
				h.set(x.stream, "", x.since)
			}
		}
	}
}

// sorted gives what a node holds of a kind, or of all, by age.
func (m *member) sorted(kind eventlog.Kind) []*holding {
	var out []*holding
	for _, x := range m.held {
		if kind == "" || eventlog.KindOf(x.stream) == kind {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b *holding) int { return int(a.since - b.since) })
	return out
}

// take hands out work.
func (h *holdings) take(id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool, now time.Time) ([]event.Stream, error) {
	m := h.nodes[id]
	if m == nil || !m.alive(now) {
		return nil, fmt.Errorf("%w: %s has no lease", eventlog.ErrFenced, id)
	}
	h.reap(now)
	var out []event.Stream
	if mine {
		for _, x := range m.sorted(kind) {
			if len(out) < limit {
				out = append(out, x.stream)
			}
		}
	}
	for at := h.free[kind].Front(); at != nil && len(out) < limit; {
		x := at.Value.(*holding)
		at = at.Next()
		if !subset(h.roots[x.stream], m.Roots) {
			continue
		}
		h.set(x.stream, id, x.since)
		out = append(out, x.stream)
	}
	return out, nil
}

func subset(need, have []string) bool {
	for _, r := range need {
		if !slices.Contains(have, r) {
			return false
		}
	}
	return true
}

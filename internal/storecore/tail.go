package storecore

import (
	lru "container/list"
	"iter"
	"slices"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

const (
	// TailEvents and TailBytes bound what is kept of one stream, EventCost is
	// what an event takes beside its data, roughly.
	TailEvents = 128
	TailBytes  = 64 << 10
	EventCost  = 512
)

// Tails keeps the last events of the streams that were written last. Who is
// woken by a commit asks for just those, and there may be thousands of them.
// It holds what is committed and nothing else, and all of it up to the head: a
// stream whose commit is under way is not answered for. It is changed by
// one at a time; the least recently written stream goes first.
type Tails struct {
	most int // bytes of all streams together

	mu    sync.RWMutex
	bytes int
	order *lru.List // of *tail
	by    map[event.Stream]*lru.Element
	// erases: the commit under way erases content.
	erases bool
	// Of the commit under way: the streams that somebody else has written to since
	// it began, all of them where passed is nil.
	under  bool
	passed map[event.Stream]bool
}

// tail is the end of one stream: consecutive events, the last one its head.
type tail struct {
	stream event.Stream
	pieces [][]event.Event // of one append each, with Raw and without Data
	first  int64           // sequence of the first event
	count  int
	bytes  int
	moving bool // an append is being committed
}

func (x *tail) add(events []event.Event) {
	if x.first+int64(x.count) != events[0].Seq {
		x.pieces, x.count, x.bytes, x.first = nil, 0, 0, events[0].Seq
	}
	piece := slices.Clone(events)
	for i := range piece {
		piece[i].Data = nil // whoever appended it may change it
	}
	x.pieces = append(x.pieces, piece)
	x.count += len(piece)
	x.bytes += sizeOf(piece)
	for x.count > TailEvents || x.bytes > TailBytes {
		gone := x.pieces[0]
		x.pieces[0] = nil
		x.pieces = x.pieces[1:]
		x.first += int64(len(gone))
		x.count -= len(gone)
		x.bytes -= sizeOf(gone)
	}
}

func sizeOf(events []event.Event) int {
	n := len(events) * EventCost
	for i := range events {
		n += len(events[i].Raw)
	}
	return n
}

// NewTails makes tails of so many bytes together.
func NewTails(most int) *Tails {
	return &Tails{most: most, order: lru.New(), by: make(map[event.Stream]*lru.Element)}
}

// Move says that a commit is about to move these streams, or, where content is
// erased, to change any of them: from now on nothing is told of them.
func (t *Tails) Move(streams iter.Seq[event.Stream], erases bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.erases = erases; erases {
		t.clear()
	}
	t.mark(streams, true)
	t.under, t.passed = true, map[event.Stream]bool{}
}

func (t *Tails) mark(streams iter.Seq[event.Stream], moving bool) {
	for s := range streams {
		if el, ok := t.by[s]; ok {
			el.Value.(*tail).moving = moving
		}
	}
}

// Stay says that nothing was committed.
func (t *Tails) Stay(streams iter.Seq[event.Stream]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark(streams, false)
	t.under = false
}

// Land says that the commit is done, and what it added. What was committed
// with an erasing may have been erased by it, and what somebody else wrote behind it
// before this was told may be an erasing too.
func (t *Tails) Land(streams iter.Seq[event.Stream], stamps []eventlog.Stamp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under = false
	if t.erases || t.passed == nil {
		return
	}
	for i := range stamps {
		if t.passed[stamps[i].Stream] {
			continue
		}
		el, ok := t.by[stamps[i].Stream]
		if !ok {
			el = t.order.PushFront(&tail{stream: stamps[i].Stream})
			t.by[stamps[i].Stream] = el
		}
		t.order.MoveToFront(el)
		x := el.Value.(*tail)
		t.bytes -= x.bytes
		x.add(stamps[i].Events)
		if t.bytes += x.bytes; x.count == 0 {
			t.remove(el)
		}
	}
	for t.bytes > t.most {
		t.remove(t.order.Back())
	}
	t.mark(streams, false)
}

func (t *Tails) remove(el *lru.Element) {
	x := t.order.Remove(el).(*tail)
	t.bytes -= x.bytes
	delete(t.by, x.stream)
}

// Read gives what Read would, or false when the log has to be asked.
func (t *Tails) Read(s event.Stream, after int64, limit, maxBytes int) ([]event.Event, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	el, ok := t.by[s]
	if !ok {
		return nil, false
	}
	x := el.Value.(*tail)
	if x.moving || after+1 < x.first {
		return nil, false
	}
	var list []event.Event
	skip, size := int(min(after+1-x.first, int64(x.count))), 0
	for _, piece := range x.pieces {
		if skip >= len(piece) {
			skip -= len(piece)
			continue
		}
		for i := skip; i < len(piece); i++ {
			if len(list) == limit || size > maxBytes {
				return list, true
			}
			list = append(list, piece[i])
			size += len(piece[i].Raw)
		}
		skip = 0
	}
	return list, true
}

// Drop forgets the end of a stream: somebody else has written to it.
func (t *Tails) Drop(s event.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if el, ok := t.by[s]; ok {
		t.remove(el)
	}
	if t.under && t.passed != nil {
		t.passed[s] = true
	}
}

// Clear forgets everything.
func (t *Tails) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	t.passed = nil
}

func (t *Tails) clear() {
	t.bytes = 0
	t.order.Init()
	clear(t.by)
}

// Kept is how much is kept now.
func (t *Tails) Kept() (streams, bytes int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.by), t.bytes
}

package sqlite

import (
	lru "container/list"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

const (
	// tailEvents and tailBytes bound what is kept of one stream, eventCost is
	// what an event takes beside its data, roughly.
	tailEvents = 128
	tailBytes  = 64 << 10
	eventCost  = 512
)

// tails keeps the last events of the streams that were written last. Who is
// woken by a commit asks for just those, and there may be thousands of them.
// It holds what is committed and nothing else, and all of it up to the head: a
// stream whose commit is under way is not answered for. Only the writer changes
// it; the least recently written stream goes first.
type tails struct {
	most int // bytes of all streams together

	mu    sync.RWMutex
	bytes int
	order *lru.List // of *tail
	by    map[event.Stream]*lru.Element
	// erases: the commit under way erases content.
	erases bool
}

// tail is the end of one stream: consecutive events, the last one its head.
type tail struct {
	stream event.Stream
	events []event.Event // with Raw and without Data
	bytes  int
	moving bool // an append is being committed
}

func (x *tail) add(events []event.Event) {
	if n := len(x.events); n > 0 && x.events[n-1].Seq+1 != events[0].Seq {
		x.events, x.bytes = nil, 0
	}
	for i := range events {
		e := events[i]
		e.Data = nil // whoever appended it may change it
		x.events = append(x.events, e)
		x.bytes += len(e.Raw) + eventCost
	}
	cut := 0
	for ; len(x.events)-cut > tailEvents || x.bytes > tailBytes; cut++ {
		x.bytes -= len(x.events[cut].Raw) + eventCost
		x.events[cut] = event.Event{}
	}
	x.events = x.events[cut:]
}

func newTails(most int) *tails {
	return &tails{most: most, order: lru.New(), by: make(map[event.Stream]*lru.Element)}
}

// move says that a commit is about to move these streams, or, where content is
// erased, to change any of them: from now on nothing is told of them.
func (t *tails) move(streams map[event.Stream]eventlog.Head, erases bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.erases = erases; erases {
		t.bytes = 0
		t.order.Init()
		clear(t.by)
	}
	t.mark(streams, true)
}

func (t *tails) mark(streams map[event.Stream]eventlog.Head, moving bool) {
	for s := range streams {
		if el, ok := t.by[s]; ok {
			el.Value.(*tail).moving = moving
		}
	}
}

// stay says that nothing was committed.
func (t *tails) stay(streams map[event.Stream]eventlog.Head) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark(streams, false)
}

// land says that the commit is done, and what it added. What was committed
// with an erasing may have been erased by it.
func (t *tails) land(streams map[event.Stream]eventlog.Head, stamps []eventlog.Stamp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.erases {
		return
	}
	for i := range stamps {
		el, ok := t.by[stamps[i].Stream]
		if !ok {
			el = t.order.PushFront(&tail{stream: stamps[i].Stream})
			t.by[stamps[i].Stream] = el
		}
		t.order.MoveToFront(el)
		x := el.Value.(*tail)
		t.bytes -= x.bytes
		x.add(stamps[i].Events)
		if t.bytes += x.bytes; len(x.events) == 0 {
			t.remove(el)
		}
	}
	for t.bytes > t.most {
		t.remove(t.order.Back())
	}
	t.mark(streams, false)
}

func (t *tails) remove(el *lru.Element) {
	x := t.order.Remove(el).(*tail)
	t.bytes -= x.bytes
	delete(t.by, x.stream)
}

// read gives what Read would, or false when the log has to be asked.
func (t *tails) read(s event.Stream, after int64, limit, maxBytes int) ([]event.Event, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	el, ok := t.by[s]
	if !ok {
		return nil, false
	}
	x := el.Value.(*tail)
	if x.moving || after+1 < x.events[0].Seq {
		return nil, false
	}
	rest := x.events[min(after+1-x.events[0].Seq, int64(len(x.events))):]
	size, n := 0, 0
	for n < len(rest) && n < limit && size <= maxBytes {
		size += len(rest[n].Raw)
		n++
	}
	return append([]event.Event(nil), rest[:n]...), true
}

package httpapi

import (
	"context"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// tailBytes bounds what all tails keep together, in bytes.
const tailBytes = 32 << 20

// tails keep the ends of the streams that several readers follow, so that what
// is new is read and rendered once for all of them. What they keep was read
// from the log. The zero value is ready.
type tails struct {
	mu       sync.Mutex
	byStream map[event.Stream]*tail
	bytes    int
}

// shown is an event and its form on the wire.
type shown struct {
	event.Event
	wire []byte
}

// tail is the last page that was read at the end of one stream.
type tail struct {
	all    *tails
	stream event.Stream

	users int // of the lock of tails

	mu    sync.Mutex
	page  []shown
	bytes int // of page, counted in all
}

// join gives the tail of a stream to one more reader, who leaves it.
func (t *tails) join(s event.Stream) *tail {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byStream[s]
	if x == nil {
		if t.byStream == nil {
			t.byStream = map[event.Stream]*tail{}
		}
		x = &tail{all: t, stream: s}
		t.byStream[s] = x
	}
	x.users++
	return x
}

func (t *tails) leave(x *tail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.users--; x.users == 0 {
		delete(t.byStream, x.stream)
		t.bytes -= x.bytes
	}
}

// room says whether a page of so many bytes may be kept in the place of the one
// that is; a single reader has nobody to keep it for.
func (t *tails) room(x *tail, bytes int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.users < 2 || t.bytes-x.bytes+bytes > tailBytes {
		bytes = 0
	}
	t.bytes += bytes - x.bytes
	x.bytes = bytes
	return bytes > 0
}

// read gives events after a sequence, as ReadBounded does. Readers at the end
// of the stream wait for each other: the first one reads. Those further back
// read for themselves.
func (t *tail) read(ctx context.Context, log Log, after int64) ([]shown, error) {
	t.mu.Lock()
	if n := len(t.page); n > 0 {
		first, last := t.page[0].Seq, t.page[n-1].Seq
		if after >= first-1 && after < last {
			page := t.page[after-first+1:]
			t.mu.Unlock()
			return page, nil
		}
		if after < first {
			t.mu.Unlock()
			page, _, err := load(ctx, log, t.stream, after)
			return page, err
		}
	}
	defer t.mu.Unlock()
	page, bytes, err := load(ctx, log, t.stream, after)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	if t.page = nil; t.all.room(t, bytes) {
		t.page = page
	}
	return page, nil
}

func load(ctx context.Context, log Log, s event.Stream, after int64) ([]shown, int, error) {
	events, err := log.ReadBounded(ctx, s, after, readPage)
	if err != nil {
		return nil, 0, err
	}
	page, bytes := make([]shown, len(events)), 0
	for i := range events {
		page[i] = shown{events[i], events[i].AppendWire(nil)}
		bytes += len(events[i].Raw) + len(page[i].wire) + 512
	}
	return page, bytes, nil
}

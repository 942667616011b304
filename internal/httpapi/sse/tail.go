package sse

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
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

// tailEvents bounds what the tail of one stream keeps: a reader that is woken
// late finds there what came in a few appends.
const tailEvents = 4 * logs.ReadPage

// tail is what was read last at the end of one stream, without a gap.
type tail struct {
	all    *tails
	stream event.Stream

	users int // of the lock of tails
	bytes int // of kept; of the lock of tails

	lock chan struct{} // holds one element while somebody reads
	kept []shown       // its elements never change
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
		x = &tail{all: t, stream: s, lock: make(chan struct{}, 1)}
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

// room says whether a tail may keep so many bytes; a single reader has nobody
// to keep them for.
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
func (t *tail) read(ctx context.Context, log logs.Reader, after int64) ([]shown, error) {
	select {
	case t.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if n := len(t.kept); n > 0 {
		first, last := t.kept[0].Seq, t.kept[n-1].Seq
		if after < first-1 {
			<-t.lock
			return load(ctx, log, t.stream, after)
		}
		if after < last {
			page := t.kept[after-first+1:]
			<-t.lock
			return page[:min(len(page), logs.ReadPage)], nil
		}
	}
	defer func() { <-t.lock }()
	page, err := load(ctx, log, t.stream, after)
	if err == nil && len(page) > 0 {
		t.keep(page)
	}
	return page, err
}

// keep adds a page behind what is kept, and lets go of what is old.
func (t *tail) keep(page []shown) {
	kept := page
	if n := len(t.kept); n > 0 && t.kept[n-1].Seq == page[0].Seq-1 {
		kept = slices.Concat(t.kept[max(0, n+len(page)-tailEvents):], page)
	}
	bytes := 0
	for i := len(kept) - 1; i >= 0; i-- {
		if bytes += kept[i].size(); bytes > tailBytes/16 && i < len(kept)-len(page) {
			kept = kept[i+1:]
			break
		}
	}
	if t.kept = nil; t.all.room(t, bytes) {
		t.kept = kept
	}
}

func (e *shown) size() int { return len(e.Raw) + len(e.wire) + 512 }

func load(ctx context.Context, log logs.Reader, s event.Stream, after int64) ([]shown, error) {
	events, err := log.ReadBounded(ctx, s, after, logs.ReadPage)
	if err != nil {
		return nil, err
	}
	page := make([]shown, len(events))
	for i := range events {
		page[i] = shown{events[i], events[i].AppendWire(nil)}
	}
	return page, nil
}

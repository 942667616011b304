package sse

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
)

// countedLog is a log of one stream that takes a moment for each read, and counts.
type countedLog struct {
	logs.Reader
	mu    sync.Mutex
	head  int64
	text  string
	reads int
	fail  error
}

func (l *countedLog) grow(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head += n
}

func (l *countedLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.reads
	l.reads = 0
	return n
}

func (l *countedLog) ReadBounded(ctx context.Context, _ event.Stream, after int64, limit int) ([]event.Event, error) {
	l.mu.Lock()
	l.reads++
	head, fail := l.head, l.fail
	l.mu.Unlock()
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var events []event.Event
	for seq := after + 1; seq <= head && len(events) < limit; seq++ {
		events = append(events, event.Event{Seq: seq, Type: event.TypeTextEnded, Raw: []byte(fmt.Sprintf(`{"text":%q}`, l.text))})
	}
	return events, fail
}

// reader reads a tail to the end of the log and checks what it is given.
func (l *countedLog) reader(t *testing.T, x *tail, after int64) {
	for {
		page, err := x.read(t.Context(), l, after)
		if err != nil {
			t.Error(err)
			return
		}
		if len(page) == 0 {
			return
		}
		for i := range page {
			if after++; page[i].Seq != after || string(page[i].wire) != string(page[i].AppendWire(nil)) {
				t.Errorf("event %d, want %d", page[i].Seq, after)
				return
			}
		}
		if after == l.head {
			return // as a bell tells
		}
	}
}

// Many readers of one stream read what is new once for all of them, also those
// that come a few appends late; who is far back reads for himself.
func TestTailIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tails
		l := &countedLog{}
		x := all.join("session:a")
		for range 99 {
			if all.join("session:a") != x {
				t.Fatal("another tail of the same stream")
			}
		}
		together := func(after int64) {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { l.reader(t, x, after) })
			}
			wg.Wait()
		}
		l.grow(10)
		together(0)
		if n := l.count(); n != 1 {
			t.Errorf("%d reads for one page", n)
		}
		for range 10 {
			l.grow(15)
			l.reader(t, x, l.head-15)
		}
		l.count()
		together(10) // 150 events late
		if n := l.count(); n != 0 {
			t.Errorf("%d reads of what is kept", n)
		}
		l.grow(1000)
		l.reader(t, x, 160)
		if n := len(x.kept); n != tailEvents {
			t.Errorf("%d events are kept", n)
		}
		l.count()
		l.reader(t, x, 0)
		if n := l.count(); n < 5 || x.kept[len(x.kept)-1].Seq != l.head {
			t.Errorf("%d reads of the past, and the tail ends at %d", n, x.kept[len(x.kept)-1].Seq)
		}
		for range 100 {
			all.leave(x)
		}
		if len(all.byStream) != 0 || all.bytes != 0 {
			t.Errorf("%d bytes of %d streams are left", all.bytes, len(all.byStream))
		}
	})
}

// A reader that goes, or a log in trouble, costs the others nothing but a read.
func TestTailErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tails
		l := &countedLog{head: 3, fail: errors.New("a disk")}
		x := all.join("session:a")
		all.join("session:a")
		if _, err := x.read(t.Context(), l, 0); err == nil || x.kept != nil {
			t.Error("an error is no page")
		}
		l.fail = nil
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := x.read(gone, l, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		l.reader(t, x, 0)
		if page, err := x.read(t.Context(), l, 50); err != nil || len(page) != 0 || len(x.kept) != 3 {
			t.Errorf("behind the end: %d %v", len(page), err)
		}
	})
}

// What all tails keep is bounded; a single reader keeps nothing.
func TestTailBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tails
		l := &countedLog{head: 60, text: strings.Repeat("x", 20<<10)}
		alone := all.join("session:alone")
		l.reader(t, alone, 0)
		if alone.kept != nil || all.bytes != 0 {
			t.Errorf("a single reader keeps %d bytes", all.bytes)
		}
		var list []*tail
		for i := range 40 {
			x := all.join(event.Stream(fmt.Sprint("session:", i)))
			all.join(x.stream)
			l.reader(t, x, 0)
			list = append(list, x)
		}
		if list[0].kept == nil || list[39].kept != nil || all.bytes > tailBytes {
			t.Errorf("%d bytes are kept", all.bytes)
		}
		for _, x := range list {
			all.leave(x)
			all.leave(x)
		}
		if all.bytes != 0 {
			t.Errorf("%d bytes are left", all.bytes)
		}
	})
}

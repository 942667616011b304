package sqlite

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// request is what waits for the writer: an append, something that rides in a
// transaction of appends, or a piece of work that wants the writer's connection
// for itself.
type request struct {
	ctx    context.Context // of who waits
	append eventlog.Append
	sealed []*event.Sealed // of append.Entries, in their order
	size   int             // bytes that it adds to a transaction, roughly
	beside func(*writer) error
	since  time.Time // of its hand-over
	work   func(*writer) error

	done   chan struct{} // closed when stamps and err are set
	stamps []eventlog.Stamp
	err    error
}

// queue is the way to the writer: bounded, first in first out.
type queue struct {
	slots   chan struct{} // one token for each request that waits
	closing chan struct{}
	wake    chan struct{}

	mu      sync.Mutex
	closed  bool
	waiting []*request
}

func newQueue(size int) *queue {
	return &queue{slots: make(chan struct{}, size), closing: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// put hands r over. It waits while the queue is full.
func (q *queue) put(ctx context.Context, r *request) error {
	select {
	case <-q.closing: // first, so that a closed queue never takes anything
		return eventlog.ErrClosed
	default:
	}
	select {
	case q.slots <- struct{}{}:
	case <-q.closing:
		return eventlog.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		<-q.slots
		return eventlog.ErrClosed
	}
	q.waiting = append(q.waiting, r)
	q.signal()
	return nil
}

// take waits for requests and gives the front of the queue: appends within the
// bounds, or one piece of work; or nothing when due gives something and nobody
// waits. False: the queue is closed and empty.
func (q *queue) take(maxCount, maxBytes int, due <-chan time.Time) ([]*request, bool) {
	for {
		q.mu.Lock()
		if n := q.front(maxCount, maxBytes); n > 0 {
			batch := slices.Clone(q.waiting[:n])
			q.waiting = slices.Delete(q.waiting, 0, n)
			q.mu.Unlock()
			for range n {
				<-q.slots
			}
			return batch, true
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil, false
		}
		select {
		case <-q.wake:
		case <-due:
			return nil, true
		}
	}
}

func (q *queue) front(maxCount, maxBytes int) int {
	size := 0
	for i, r := range q.waiting {
		size += r.size
		if i > 0 && (i == maxCount || size > maxBytes || r.work != nil) {
			return i
		}
		if r.work != nil {
			return 1
		}
	}
	return len(q.waiting)
}

// close ends intake. What waits is still taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.closing)
		q.signal()
	}
}

// signal wakes the writer. One signal is enough for any number of requests.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

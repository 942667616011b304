// Package storecore is what stores have in common whatever their database: the
// way to the writer, the checks of derived changes and conditions, the queries of
// lists, pages of the feed, what verification reports, and which blobs events refer to.
package storecore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Item is what waits in a queue.
type Item interface {
	Size() int   // bytes that it adds to a transaction, roughly
	Alone() bool // it shares a transaction with nothing else
}

// Queue is the way to the writer: bounded, first in first out.
type Queue[T Item] struct {
	slots   chan struct{} // one token for each item that waits
	closing chan struct{}
	wake    chan struct{}

	mu      sync.Mutex
	closed  bool
	waiting []T
}

// NewQueue makes a queue in which size items may wait before callers do.
func NewQueue[T Item](size int) *Queue[T] {
	return &Queue[T]{slots: make(chan struct{}, size), closing: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// Put hands an item over. It waits while the queue is full. A closed queue takes
// nothing: eventlog.ErrClosed.
func (q *Queue[T]) Put(ctx context.Context, item T) error {
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
	q.waiting = append(q.waiting, item)
	q.signal()
	return nil
}

// Take waits for items and gives the front of the queue, within the bounds or
// one item; or nothing when due gives something and nobody waits. False: the
// queue is closed and empty.
func (q *Queue[T]) Take(maxCount, maxBytes int, due <-chan time.Time) ([]T, bool) {
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

func (q *Queue[T]) front(maxCount, maxBytes int) int {
	size := 0
	for i, item := range q.waiting {
		size += item.Size()
		if i > 0 && (i == maxCount || size > maxBytes || item.Alone()) {
			return i
		}
		if item.Alone() {
			return 1
		}
	}
	return len(q.waiting)
}

// Waiting says how many items wait.
func (q *Queue[T]) Waiting() int { return len(q.slots) }

// Closing is closed when the queue is.
func (q *Queue[T]) Closing() <-chan struct{} { return q.closing }

// Unless runs f, unless the queue is closed: then it does nothing and gives
// false. The queue does not close while f runs.
func (q *Queue[T]) Unless(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	f()
	return true
}

// Close ends intake. What waits is still taken.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.closing)
		q.signal()
	}
}

// signal wakes the writer. One signal is enough for any number of items.
func (q *Queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

package sqlite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

var _ eventlog.Nodes = (*Store)(nil)

// beside has f run on the writer, in a transaction with the appends that wait.
// What f does may be undone and done again, also when beside has ended with an error
// already, since ctx has: what f sets is read only where there was none.
func (s *Store) beside(ctx context.Context, what string, f func(w *writer, now time.Time) error) error {
	r := &request{ctx: ctx, done: make(chan struct{}), beside: func(w *writer) error {
		return f(w, time.Now().UTC().Truncate(time.Microsecond))
	}}
	if err := s.wait(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Beat implements eventlog.Nodes. Only here, where the directory is locked, may
// a lease have no end: with a ttl of 0.
func (s *Store) Beat(ctx context.Context, n eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	n.Roots = slices.Sorted(slices.Values(n.Roots))
	var l eventlog.Lease
	err := s.beside(ctx, "beat", func(w *writer, now time.Time) error {
		l = w.holdings.beat(n, ttl, now)
		return nil
	})
	if err != nil {
		return eventlog.Lease{}, err
	}
	return l, nil
}

// Release implements eventlog.Nodes.
func (s *Store) Release(ctx context.Context, id eventlog.NodeID) error {
	return s.beside(ctx, "release node", func(w *writer, now time.Time) error {
		w.holdings.release(id, now)
		return nil
	})
}

// ListNodes implements eventlog.Nodes.
func (s *Store) ListNodes(ctx context.Context) ([]eventlog.NodeRow, error) {
	var rows []eventlog.NodeRow
	err := s.beside(ctx, "list nodes", func(w *writer, now time.Time) error {
		rows = rows[:0]
		for _, id := range w.holdings.order {
			m := w.holdings.nodes[id]
			row := m.NodeRow
			row.Alive = m.alive(now)
			rows = append(rows, row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Take implements eventlog.Nodes.
func (s *Store) Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error) {
	var taken []event.Stream
	var refused error
	err := s.beside(ctx, "take", func(w *writer, now time.Time) error {
		taken, refused = w.holdings.take(id, kind, limit, mine, now)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return nil, fmt.Errorf("take: %w", refused)
	}
	return taken, nil
}

// Rest implements eventlog.Nodes.
func (s *Store) Rest(ctx context.Context, id eventlog.NodeID, streams []eventlog.Rested) error {
	return s.beside(ctx, "rest", func(w *writer, _ time.Time) error {
		for _, r := range streams {
			if x := w.holdings.streams[r.Stream]; x == nil || x.by != "" && x.by != id {
				continue
			}
			head, err := w.head(r.Stream)
			if err != nil {
				return err
			}
			if head.Seq == r.Head {
				w.holdings.set(r.Stream, "", 0)
			}
		}
		return nil
	})
}

// Yield implements eventlog.Nodes.
func (s *Store) Yield(ctx context.Context, id eventlog.NodeID, streams []event.Stream) error {
	return s.beside(ctx, "yield", func(w *writer, _ time.Time) error {
		for _, stream := range streams {
			if x := w.holdings.streams[stream]; x != nil && x.by == id {
				w.holdings.set(stream, "", x.since)
			}
		}
		return nil
	})
}

// seed makes what is unfinished want work: nobody holds anything when a
// database is opened.
func (w *writer) seed(ctx context.Context) error {
	sessions, err := w.s.Unfinished(ctx)
	if err != nil {
		return err
	}
	targets, err := w.s.PendingTargets(ctx)
	if err != nil {
		return err
	}
	for _, id := range sessions {
		w.holdings.set(id.Stream(), "", w.holdings.next())
	}
	jobs, err := w.s.UnfinishedJobs(ctx)
	if err != nil {
		return err
	}
	for _, id := range jobs {
		w.holdings.set(id.Stream(), "", w.holdings.next())
	}
	for _, id := range targets {
		w.holdings.set(id.Stream(), "", w.holdings.next())
	}
	w.holdings.keep()
	return nil
}

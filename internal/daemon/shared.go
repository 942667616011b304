package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/metrics"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// openPostgres connects to the database that the nodes share. The data directory
// holds what is of this node alone, and is locked as that of SQLite is: two nodes
// in one would write over each other's address and snapshots.
func (d *Daemon) openPostgres(ctx context.Context, opt Options) (backend, error) {
	url, err := d.cfg.Database()
	if err != nil {
		return nil, d.cfg.Mistake("database_url", "%v", err)
	}
	dir := d.cfg.Path(d.cfg.DataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := dirlock.Lock(dir)
	if err != nil {
		return nil, err
	}
	store, err := d.reach(ctx, postgres.Config{
		URL: url, Sync: syncMode(d.cfg.Store.Sync), Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion,
		CheckSnapshot: eventlog.CheckSnapshot, Random: opt.Random, Log: d.log, Node: d.node.ID,
		OnCommit: d.Committed, OnBatch: func(b postgres.Batch) { d.metrics.Batch(metrics.Batch(b)) },
		OnNews: func(news []postgres.News) {
			heard := make([]eventlog.News, len(news))
			for i, n := range news {
				heard[i] = eventlog.News(n)
			}
			d.Heard(heard)
		},
		OnLag: d.metrics.Heard,
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &sharedStore{store, lock}, nil
}

// How long a start leaves a database alone that cannot be reached: doubling
// between these.
const (
	firstReach = 250 * time.Millisecond
	lastReach  = 5 * time.Second
)

// reach opens the database, and tries again for as long as the configuration
// says while nobody answers there.
func (d *Daemon) reach(ctx context.Context, cfg postgres.Config) (*postgres.Store, error) {
	limit := d.cfg.Store.Wait.Or(config.DefaultWait)
	began := time.Now()
	for wait := firstReach; ; wait = min(2*wait, lastReach) {
		s, err := postgres.Open(ctx, cfg)
		var away *postgres.UnreachableError
		if err == nil || !errors.As(err, &away) {
			return s, err
		}
		left := limit - time.Since(began)
		if left <= 0 {
			return nil, fmt.Errorf("%w; it was tried for %s (store.wait)", away, limit)
		}
		d.log.Warn("the database cannot be reached; the start waits for it", "at", away.At, "why", away.Why, "again_in", min(wait, left).Round(time.Millisecond), "for_at_most", left.Round(time.Second))
		select {
		case <-time.After(min(wait, left)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// sharedStore is a store whose data directory is locked until it is closed.
type sharedStore struct {
	*postgres.Store
	lock io.Closer
}

// Close implements backend.
func (s *sharedStore) Close(ctx context.Context) error {
	err := s.Store.Close(ctx)
	if ctx.Err() != nil {
		return err // it goes on closing, and so the directory is still ours
	}
	return errors.Join(err, s.lock.Close())
}

// countedStore counts what says whose the streams are.
type countedStore struct {
	Store
	metrics *metrics.Metrics
}

// Append implements eventlog.Log.
func (s *countedStore) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	stamps, err := s.Store.Append(ctx, a)
	if err != nil {
		var held *eventlog.HeldError
		switch {
		case errors.As(err, &held):
			s.metrics.Fenced("held")
		case errors.Is(err, eventlog.ErrFenced):
			s.metrics.Fenced("fenced")
		}
	}
	return stamps, err
}

// Take implements eventlog.Nodes.
func (s *countedStore) Take(ctx context.Context, id eventlog.NodeID, kind eventlog.Kind, limit int, mine bool) ([]event.Stream, error) {
	streams, err := s.Store.Take(ctx, id, kind, limit, mine)
	fresh := len(streams)
	if mine { // most of these it has already
		fresh = 0
	}
	s.metrics.Took(string(kind), len(streams), fresh, err)
	return streams, err
}

// nodeStats are the figures of the lease, and of the nodes as it sees them.
func (d *Daemon) nodeStats() metrics.Nodes {
	s := d.tenure.Stats()
	return metrics.Nodes{
		Alive: s.Alive, Draining: s.Draining, TTL: s.TTL, Left: s.Left, Held: d.lane.Held(), Beats: s.Beats, Late: s.Late, Failed: s.Failed, Lost: s.Lost,
		SessionsGiven: s.SessionsGiven, TargetsGiven: s.TargetsGiven,
	}
}

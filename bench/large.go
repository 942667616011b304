package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// The log that fills up: sessions of ten runs, a hundred sessions of each user.
// A run has 20 events in two rows, as one that answers at once.
const (
	runsEach  = 10
	eventsOf  = 20
	perUser   = 100
	perAppend = 100 // sessions in one append
	fillers   = 8   // appends at once
	inUse     = 100 // sessions that are read again and again
)

// large measures append, read and list beside a log of very many events, over
// the same beside one of a few, on SQLite and on PostgreSQL.
func large(ctx context.Context, b *bench) error {
	if b.n.large == 0 {
		b.skip("a long log", "-large 0: not measured")
		return nil
	}
	if err := largeSQLite(ctx, b); err != nil {
		return err
	}
	return largePostgres(ctx, b)
}

// filled is a store with sessions in it.
type filled struct {
	daemon.Store
	close func(context.Context) error
	ids   []event.SessionID
	own   event.SessionID // for appends
	yaml  string          // the part of a configuration that leads a daemon here
}

func largeSQLite(ctx context.Context, b *bench) (err error) {
	open := func(dir, sync string) (*sqlite.Store, error) {
		return sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(b.dir, dir), Sync: sync, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	}
	return compare(ctx, b, "SQLite", func(name string) (fills, measured func() (*filled, error), err error) {
		return func() (*filled, error) {
				s, err := open(name, sqlite.SyncNormal)
				if err != nil {
					return nil, err
				}
				return &filled{Store: s, close: s.Close}, nil
			}, func() (*filled, error) {
				s, err := open(name, sqlite.SyncFull)
				if err != nil {
					return nil, err
				}
				return &filled{Store: s, close: s.Close, yaml: fmt.Sprintf("data_dir: %q\n", filepath.Join(b.dir, name))}, nil
			}, nil
	})
}

func largePostgres(ctx context.Context, b *bench) (err error) {
	var made []*database
	defer func() {
		for _, d := range made {
			err = errors.Join(err, d.drop(ctx))
		}
	}()
	for range 2 {
		d, err := b.openDatabase(ctx)
		if d == nil {
			return err
		}
		made = append(made, d)
	}
	left := made
	return compare(ctx, b, "PostgreSQL", func(string) (fills, measured func() (*filled, error), err error) {
		d := left[0]
		left = left[1:]
		return func() (*filled, error) {
				s, err := postgres.Open(ctx, postgres.Config{URL: d.url, Sync: postgres.SyncNormal, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion})
				if err != nil {
					return nil, err
				}
				return &filled{Store: s, close: s.Close}, nil
			}, func() (*filled, error) {
				// What the server would do by itself some time later, and what it has to write.
				for _, table := range []string{"log", "feed", "streams", "sessions", "runs", "queue"} {
					if _, err := d.conn.Exec(ctx, "VACUUM ANALYZE "+d.schema+"."+table); err != nil {
						return nil, err
					}
				}
				if _, err := d.conn.Exec(ctx, "CHECKPOINT"); err != nil {
					return nil, fmt.Errorf("checkpoint, for which a superuser is needed: %w", err)
				}
				s, err := d.store(ctx, "large")
				if err != nil {
					return nil, err
				}
				return &filled{Store: s, close: s.Close, yaml: d.yaml(leaseOf)}, nil
			}, nil
	})
}

// compare fills two stores and measures them in turn.
func compare(ctx context.Context, b *bench, kind string, open func(name string) (fills, measured func() (*filled, error), err error)) (err error) {
	var both []*filled
	for _, n := range []int{b.n.beside, b.n.large} {
		fills, measured, err := open(fmt.Sprintf("%s-%d", kind, n))
		if err != nil {
			return err
		}
		s, err := fills()
		if err != nil {
			return err
		}
		begin := time.Now()
		ids, err := fillRuns(ctx, s, n)
		took := time.Since(begin)
		if err = errors.Join(err, s.close(ctx)); err != nil {
			return err
		}
		if s, err = measured(); err != nil {
			return err
		}
		defer func() {
			if s.Store != nil {
				err = errors.Join(err, s.close(ctx))
			}
		}()
		s.ids = ids
		if s.own, err = event.NewSessionID(rand.Reader); err != nil {
			return err
		}
		if err := said(ctx, s); err != nil {
			return err
		}
		both = append(both, s)
		if n == b.n.large {
			b.row(kind+": filling the log", float64(n)/took.Seconds(), "events/s", "", fmt.Sprintf("%d events of %d runs in %.0f s, in big appends through the store", n, n/eventsOf, took.Seconds()))
		}
	}
	for _, x := range acts {
		err := b.inTurn(kind+": "+x.name, "", func(i int) error {
			if x.name != acts[0].name { // a log that lives: what readers have cached of it may be old
				return said(ctx, both[i])
			}
			return nil
		}, func(i int) error { return x.do(ctx, both[i]) })
		if err != nil {
			return err
		}
	}
	return doors(ctx, b, kind, both)
}

// inTurn measures one thing at both logs, in turn, so that both have the same
// weather: before is not measured.
func (b *bench) inTurn(name, target string, before, do func(i int) error) error {
	var times [2][]time.Duration
	for n := range b.n.reads + b.n.reads/10 {
		for i := range times {
			if err := before(i); err != nil {
				return err
			}
			begin := time.Now()
			if err := do(i); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if n >= b.n.reads/10 {
				times[i] = append(times[i], time.Since(begin))
			}
		}
	}
	short, long := quantile(times[0], .5), quantile(times[1], .5)
	b.row(name, float64(long)/float64(short), "times", target, fmt.Sprintf("p50 %.3f ms beside %d events over %.3f beside %d", ms(long), b.n.large, ms(short), b.n.beside))
	return nil
}

// acts are what is measured.
var acts = []struct {
	name string
	do   func(ctx context.Context, s *filled) error
}{
	{"append of an event", said},
	{"64 events of a session in use", func(ctx context.Context, s *filled) error {
		events, err := s.Read(ctx, s.ids[mathrand.IntN(inUse)*len(s.ids)/inUse].Stream(), 70, 64)
		return want(len(events), 64, err)
	}},
	{"64 events of any session", func(ctx context.Context, s *filled) error {
		events, err := s.Read(ctx, s.any().Stream(), 70, 64)
		return want(len(events), 64, err)
	}},
	{"a session's row", func(ctx context.Context, s *filled) error {
		_, err := s.Session(ctx, s.any())
		return err
	}},
	{"the newest 50 sessions", func(ctx context.Context, s *filled) error {
		rows, _, err := s.Sessions(ctx, eventlog.SessionFilter{}, eventlog.Page{Limit: 50})
		return want(len(rows), 50, err)
	}},
	{"50 sessions of a user", func(ctx context.Context, s *filled) error {
		rows, _, err := s.Sessions(ctx, eventlog.SessionFilter{UserID: userOf(mathrand.IntN(len(s.ids)))}, eventlog.Page{Limit: 50})
		return want(len(rows), 50, err)
	}},
	{"50 runs of a user", func(ctx context.Context, s *filled) error {
		rows, _, err := s.Runs(ctx, eventlog.RunFilter{UserID: userOf(mathrand.IntN(len(s.ids)))}, eventlog.Page{Limit: 50})
		return want(len(rows), 50, err)
	}},
	{"the runs of any session", func(ctx context.Context, s *filled) error {
		rows, _, err := s.Runs(ctx, eventlog.RunFilter{SessionID: s.any()}, eventlog.Page{Limit: 50})
		return want(len(rows), runsEach, err)
	}},
}

// said appends an event.
func said(ctx context.Context, s *filled) error {
	_, err := s.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: s.own.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{
		{SessionID: s.own, UserID: "bench", Data: &event.TextEnded{Content: event.Content{Text: strings.Repeat("x", payload-120)}}},
	}}}})
	return err
}

func (s *filled) any() event.SessionID { return s.ids[mathrand.IntN(len(s.ids))] }

func userOf(session int) string { return fmt.Sprintf("user-%d", session/perUser) }

func want(got, n int, err error) error {
	if err == nil && got != n {
		return fmt.Errorf("%d and not %d", got, n)
	}
	return err
}

// fillRuns puts sessions with runs into a store.
func fillRuns(ctx context.Context, s *filled, events int) ([]event.SessionID, error) {
	ids := make([]event.SessionID, events/(runsEach*eventsOf))
	for i := range ids {
		var err error
		if ids[i], err = event.NewSessionID(rand.Reader); err != nil {
			return nil, err
		}
	}
	return ids, atMost(fillers, (len(ids)+perAppend-1)/perAppend, func(i int) error {
		return fillSessions(ctx, s, ids[i*perAppend:min(len(ids), (i+1)*perAppend)], userOf(i*perAppend))
	})
}

// fillSessions gives sessions their runs, one append for a half of a run of each.
func fillSessions(ctx context.Context, s *filled, ids []event.SessionID, user string) error {
	for n := range runsEach {
		runs := make([]event.RunID, len(ids))
		for _, second := range []bool{false, true} {
			var a eventlog.Append
			for i, id := range ids {
				if !second {
					var err error
					if runs[i], err = event.NewRunID(rand.Reader); err != nil {
						return err
					}
				}
				// Its last word says that the session is at rest: nobody has work left from it.
				e := eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead, Rest: second}
				if second {
					e.Node = "filler"
				}
				for _, data := range half(n == 0, second) {
					e.Events = append(e.Events, event.Event{SessionID: id, UserID: user, RunID: runs[i], Data: data})
				}
				a.Entries = append(a.Entries, e)
			}
			if _, err := s.Append(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// half is one half of the events of a run, ten.
func half(first, second bool) []event.Data {
	const text = "some text of a usual length, so to say"
	data := []event.Data{created("hello"), &event.RunQueued{}, &event.RunStarted{}}
	if first {
		data = append([]event.Data{&event.SessionCreated{}}, data...)
	}
	last := []event.Data{}
	if second {
		data, last = nil, []event.Data{&event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: text}}, &event.RunCompleted{}}
	}
	for len(data)+len(last) < eventsOf/2 {
		data = append(data, &event.TextEnded{Content: event.Content{Text: text}})
	}
	return append(data, last...)
}

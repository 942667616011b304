package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// atOnce runs act b.N times over n goroutines and reports acts a second and
// the median and 99th percentile of their times.
func atOnce(b *testing.B, n int, unit string, act func(worker int) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	times := make([][]time.Duration, n)
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				if err := act(w); err != nil {
					b.Error(err)
					return
				}
				times[w] = append(times[w], time.Since(start))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(times...)
	slices.Sort(all)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), unit+"/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

// named is a schema whose sessions have the node's name.
func named(b *testing.B) string {
	return withParam(b, schemaFor(b, b.TempDir()), "application_name", "bench")
}

var workers = []int{1, 8, 64}

// BenchmarkAppend is Append of one event of 512 bytes, a session for each
// goroutine.
func BenchmarkAppend(b *testing.B) {
	text := strings.Repeat("x", 480)
	for _, n := range workers {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, Config{URL: named(b), Node: "bench"})
			ids := make([]event.SessionID, n)
			for i := range ids {
				ids[i] = newSession(b)
				mustAppend(b, s, created(ids[i], ""))
			}
			report := reportProcessor(b, s)
			defer report()
			atOnce(b, n, "appends", func(w int) error {
				_, err := s.Append(context.Background(), said(ids[w], text))
				return err
			})
		})
	}
}

// BenchmarkFloor is what the database and the driver can do: one row of 512
// bytes in a transaction of its own, and the row of its stream, in one statement.
func BenchmarkFloor(b *testing.B) {
	for _, n := range workers {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, Config{Conns: n + 2})
			ctx := context.Background()
			if _, err := s.pool.Exec(ctx, s.sql("CREATE TABLE @.floor (s int, n bigint, d bytea, PRIMARY KEY (s, n))")); err != nil {
				b.Fatal(err)
			}
			if _, err := s.pool.Exec(ctx, s.sql("CREATE TABLE @.ends (s int PRIMARY KEY, n bigint) WITH (fillfactor = 50)")); err != nil {
				b.Fatal(err)
			}
			for w := range n {
				if _, err := s.pool.Exec(ctx, s.sql("INSERT INTO @.ends VALUES ($1, 0)"), w); err != nil {
					b.Fatal(err)
				}
			}
			data := make([]byte, 512)
			atOnce(b, n, "appends", func(w int) error {
				_, err := s.pool.Exec(ctx, s.sql("WITH e AS (UPDATE @.ends SET n = n + 1 WHERE s = $1 RETURNING n) INSERT INTO @.floor SELECT $1, n, $2 FROM e"), w, data)
				return err
			})
		})
	}
}

// BenchmarkRun is what a run of one step asks of the store of a session at rest: two
// appends of its owner, of 14 and 26 events with derived rows.
func BenchmarkRun(b *testing.B) {
	for _, n := range workers {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, Config{URL: named(b), Node: "bench", Rows: eventlog.Rows})
			if _, err := s.Beat(context.Background(), eventlog.Node{ID: "me"}, time.Hour); err != nil {
				b.Fatal(err)
			}
			ids := make([]event.SessionID, n)
			for i := range ids {
				ids[i] = newSession(b)
				mustAppend(b, s, created(ids[i], ""))
			}
			report := reportProcessor(b, s)
			atOnce(b, n, "runs", func(w int) error { return oneRun(s, ids[w]) })
			report()
		})
	}
}

func oneRun(s *Store, id event.SessionID) error {
	run, err := event.NewRunID(rand.Reader)
	if err != nil {
		return err
	}
	first := []event.Data{&event.RunCreated{Kind: "message"}, &event.RunQueued{}, &event.RunStarted{}}
	last := []event.Data{&event.OutputEmitted{}, &event.RunCompleted{}}
	for i, size := range []int{14, 26} {
		data := [][]event.Data{first, last}[i]
		for len(data) < size {
			data = append(data, &event.TextEnded{Content: event.Content{Text: "some text of a usual length, so to say"}})
		}
		a := said(id, "")
		a.Entries[0].Events = nil
		for _, d := range data {
			a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: id, UserID: "ann", RunID: run, Data: d})
		}
		a.Entries[0].Node, a.Entries[0].Rest = "me", i == 1
		if _, err := s.Append(context.Background(), a); err != nil {
			return err
		}
	}
	return nil
}

// fill puts a log of so many events behind the store's back: sessions of ten
// runs, runs of three rows of the log, rows of 13 events.
func fill(b testing.TB, s *Store, events int) {
	b.Helper()
	ctx := context.Background()
	rows := events / 13
	texts := []string{
		`INSERT INTO @.log (block, place, stream, first_seq, count, epoch, time, session_id, user_id, wakes, meta, data, salt, prev, hash)
			SELECT -n, 0, 'session:ses_' || lpad((n / 30)::text, 12, '0'), 1 + (n % 30) * 13, 13, 1, now() - n * interval '1 ms', 'ses_' || lpad((n / 30)::text, 12, '0'),
			'user_' || n / 3000, false, convert_to(repeat('{"t":"text.ended"}', 13), 'UTF8'), decode(repeat(md5(n::text), 30), 'hex'), decode(md5(n::text), 'hex'),
			sha256(int8send(n)), sha256(int8send(n + 1)) FROM generate_series(1::bigint, $1) n`,
		`INSERT INTO @.feed SELECT n, 1, -n, 'filler' FROM generate_series(1::bigint, $1) n`,
		`INSERT INTO @.streams (stream, kind, head, epoch, hash) SELECT 'session:ses_' || lpad(n::text, 12, '0'), 'session', 390, 1, sha256(int8send(n))
			FROM generate_series(0::bigint, $1 / 30) n`,
		`INSERT INTO @.sessions (session_id, user_id, status, title, created_at, updated_at) SELECT 'ses_' || lpad(n::text, 12, '0'), 'user_' || n / 100, 'open', 'a title',
			'2026-01-01T00:00:00.' || lpad(n::text, 6, '0') || 'Z', '2026' FROM generate_series(0::bigint, $1 / 30) n`,
		`INSERT INTO @.runs (session_id, run_id, user_id, status, kind, submitted_at, updated_at, finished_at, totals) SELECT 'ses_' || lpad((n / 10)::text, 12, '0'),
			'run_' || lpad(n::text, 12, '0'), 'user_' || n / 1000, CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'completed' END, 'message',
			'2026-01-01T00:00:00.' || lpad(n::text, 6, '0') || 'Z', '2026', '2026', repeat('x', 100) FROM generate_series(0::bigint, $1 / 3) n`,
	}
	for _, text := range texts {
		if _, err := s.pool.Exec(ctx, "SET statement_timeout = 0"); err != nil {
			b.Fatal(err)
		}
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "SET statement_timeout = 0"); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Exec(ctx, s.sql(text), int64(rows)); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "SET statement_timeout = 30000"); err != nil {
			b.Fatal(err)
		}
		conn.Release()
	}
	for _, table := range []string{"log", "feed", "streams", "sessions", "runs"} {
		if _, err := s.pool.Exec(ctx, s.sql("ANALYZE @."+table)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLarge is append, read and list beside ten million events and beside
// none, in turn, so that what else the machine does meets both.
func BenchmarkLarge(b *testing.B) {
	const many = 10_000_000
	type side struct {
		*Store
		id     event.SessionID
		events int
	}
	var sides []side
	for _, events := range []int{0, many} {
		s := open(b, Config{URL: named(b), Node: "bench", Conns: 6})
		if events > 0 {
			fill(b, s, events)
		}
		id := newSession(b)
		mustAppend(b, s, created(id, ""))
		for range 100 {
			mustAppend(b, s, said(id, "x"))
			mustAppend(b, s, single(newSession(b), &event.SessionCreated{}))
		}
		sides = append(sides, side{s, id, events})
	}
	ctx := context.Background()
	for _, x := range []struct {
		name string
		act  func(s side) error
	}{
		{"append", func(s side) error { _, err := s.Append(ctx, said(s.id, "x")); return err }},
		{"read", func(s side) error {
			_, err := readEvents(ctx, s.Store, s.pool, s.id.Stream(), 50, 50, s.cfg.MaxReadBytes)
			return err
		}},
		{"sessions", func(s side) error {
			_, _, err := s.Sessions(ctx, eventlog.SessionFilter{UserID: "ann"}, eventlog.Page{})
			return err
		}},
		{"feed", func(s side) error {
			_, _, err := s.Feed(ctx, eventlog.Position(s.events/13+100)<<12, 50, eventlog.FeedFilter{})
			return err
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			times := make([][]time.Duration, len(sides))
			for range b.N {
				for i, s := range sides {
					start := time.Now()
					if err := x.act(s); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(start))
				}
			}
			for i, name := range []string{"empty", "large"} {
				slices.Sort(times[i])
				b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds()), "p50-"+name+"-µs")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

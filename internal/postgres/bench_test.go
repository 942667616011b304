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

// BenchmarkRun is what a run of one step asks of the store: three appends of 4,
// 10 and 26 events with derived rows, of which the owner makes two.
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
	first := []event.Data{&event.RunCreated{Kind: "message"}, &event.RunQueued{}}
	last := []event.Data{&event.OutputEmitted{}, &event.RunCompleted{}}
	for i, size := range []int{4, 10, 26} {
		data := [][]event.Data{first, {&event.RunStarted{}}, last}[i]
		for len(data) < size {
			data = append(data, &event.TextEnded{Content: event.Content{Text: "some text of a usual length, so to say"}})
		}
		a := said(id, "")
		a.Entries[0].Events = nil
		for _, d := range data {
			a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: id, UserID: "ann", RunID: run, Data: d})
		}
		if i > 0 {
			a.Entries[0].Node, a.Entries[0].Rest = "me", i == 2
		}
		if _, err := s.Append(context.Background(), a); err != nil {
			return err
		}
	}
	return nil
}

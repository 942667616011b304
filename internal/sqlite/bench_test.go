package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// atOnce runs act b.N times over n goroutines and reports acts a second and
// the median and 99th percentile of their times.
func atOnce(b *testing.B, n int, act func(worker int) error) {
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
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

var workers = []int{1, 8, 64}

// BenchmarkAppend is Append of one event of 512 bytes, a session for each
// goroutine, beside what the machine and the driver can do.
func BenchmarkAppend(b *testing.B) {
	text := strings.Repeat("x", 480)
	for _, n := range workers {
		b.Run(fmt.Sprintf("store/%d", n), func(b *testing.B) {
			benchStore(b, n, Config{}, text)
		})
	}
	for _, n := range workers {
		b.Run(fmt.Sprintf("store-one-each/%d", n), func(b *testing.B) {
			benchStore(b, n, Config{MaxBatch: 1}, text)
		})
	}
}

func benchStore(b *testing.B, n int, cfg Config, text string) {
	cfg.Dir = b.TempDir()
	s := open(b, cfg)
	ids := make([]event.SessionID, n)
	for i := range ids {
		ids[i] = newSession(b)
		mustAppend(b, s, created(ids[i], ""))
	}
	atOnce(b, n, func(w int) error {
		_, err := s.Append(context.Background(), said(ids[w], text))
		return err
	})
}

// grouped gathers writes of many callers: the first to find nobody at work
// does the work of all that wait.
type grouped struct {
	mu      sync.Mutex
	work    func(n int) error
	waiting []chan error
	busy    bool
}

func (g *grouped) do() error {
	done := make(chan error, 1)
	g.mu.Lock()
	g.waiting = append(g.waiting, done)
	if g.busy {
		g.mu.Unlock()
		return <-done
	}
	g.busy = true
	for len(g.waiting) > 0 {
		batch := g.waiting
		g.waiting = nil
		g.mu.Unlock()
		err := g.work(len(batch))
		for _, c := range batch {
			c <- err
		}
		g.mu.Lock()
	}
	g.busy = false
	g.mu.Unlock()
	return <-done
}

// BenchmarkDriver is the driver alone: rows of 512 bytes with a unique key and
// the head of their stream.
func BenchmarkDriver(b *testing.B) {
	for _, group := range []bool{false, true} {
		for _, n := range workers {
			b.Run(fmt.Sprintf("group-%v/%d", group, n), func(b *testing.B) {
				db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "d")+
					"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=wal_autocheckpoint(4000)")
				if err != nil {
					b.Fatal(err)
				}
				defer db.Close()
				db.SetMaxOpenConns(1)
				if _, err := db.Exec(`CREATE TABLE l (id INTEGER PRIMARY KEY, s TEXT, n INTEGER, d BLOB); CREATE UNIQUE INDEX li ON l (s, n);
					CREATE TABLE h (s TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID; INSERT INTO h VALUES ('s', 0)`); err != nil {
					b.Fatal(err)
				}
				insert, err := db.Prepare("INSERT INTO l (s, n, d) VALUES ('s', ?, ?)")
				if err != nil {
					b.Fatal(err)
				}
				move, err := db.Prepare("UPDATE h SET n = ? WHERE s = 's' AND n = ?")
				if err != nil {
					b.Fatal(err)
				}
				head := 0
				data := make([]byte, 512)
				benchWork(b, n, group, func(k int) error {
					tx, err := db.Begin()
					if err != nil {
						return err
					}
					defer tx.Rollback()
					for range k {
						head++
						if _, err := tx.Stmt(insert).Exec(head, data); err != nil {
							return err
						}
						if _, err := tx.Stmt(move).Exec(head, head-1); err != nil {
							return err
						}
					}
					return tx.Commit()
				})
			})
		}
	}
}

// benchWork runs work for one at a time, or for all that wait.
func benchWork(b *testing.B, n int, group bool, work func(k int) error) {
	b.Helper()
	g := &grouped{work: work}
	var mu sync.Mutex
	atOnce(b, n, func(int) error {
		if group {
			return g.do()
		}
		mu.Lock()
		defer mu.Unlock()
		return work(1)
	})
}

// BenchmarkRead reads 10,000 events of one session.
func BenchmarkRead(b *testing.B) {
	s := open(b, Config{Dir: b.TempDir(), Sync: SyncNormal})
	id := newSession(b)
	for range 1000 {
		a := said(id, strings.Repeat("x", 200))
		for range 9 {
			a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: id, UserID: "ann", Data: &event.TextEnded{Content: event.Content{Text: rand.Text()}}})
		}
		mustAppend(b, s, a)
	}
	for b.Loop() {
		if events, err := s.Read(b.Context(), id.Stream(), 0, 10_000); err != nil || len(events) != 10_000 {
			b.Fatal(len(events), err)
		}
	}
}

// BenchmarkRun is what a run of one step asks of the store: three appends of 4,
// 10 and 26 events with derived rows.
func BenchmarkRun(b *testing.B) {
	for _, n := range workers {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, Config{Dir: b.TempDir()})
			ids := make([]event.SessionID, n)
			for i := range ids {
				ids[i] = newSession(b)
				mustAppend(b, s, created(ids[i], ""))
			}
			atOnce(b, n, func(w int) error {
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
					a := said(ids[w], "")
					a.Entries[0].Events = nil
					for _, d := range data {
						a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: ids[w], UserID: "ann", RunID: run, Data: d})
					}
					if _, err := s.Append(context.Background(), a); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

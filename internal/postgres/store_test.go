package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

func newSession(t testing.TB) event.SessionID {
	t.Helper()
	id, err := event.NewSessionID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func created(id event.SessionID, alias string) eventlog.Append {
	return single(id, &event.SessionCreated{Alias: alias})
}

func said(id event.SessionID, text string) eventlog.Append {
	return single(id, &event.TextEnded{Content: event.Content{Text: text}})
}

// single is an append of one event by anybody.
func single(id event.SessionID, data event.Data) eventlog.Append {
	return eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: id, UserID: "ann", Data: data}}}}}
}

func mustAppend(t testing.TB, s *Store, a eventlog.Append) []eventlog.Stamp {
	t.Helper()
	stamps, err := s.Append(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	return stamps
}

func mustVerify(t testing.TB, s *Store) Report {
	t.Helper()
	report, err := s.Verify(context.Background(), VerifyOptions{})
	if err != nil || !report.OK() {
		t.Fatalf("verify: %v, %+v", err, report)
	}
	return report
}

// within gives a context that ends with the test, or after a generous time.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// hold keeps the writer of a store from ending a transaction until release.
func hold(s *Store) (release func()) {
	s.commits.Lock()
	return s.commits.Unlock
}

// asOneBatch appends all at once, in order: a transaction before them is held
// until all wait.
func asOneBatch(t *testing.T, s *Store, appends ...eventlog.Append) []error {
	t.Helper()
	release := hold(s)
	first := make(chan error, 1)
	go func() { _, err := s.Append(context.Background(), created(newSession(t), "")); first <- err }()
	for !s.between.Load() {
		runtime.Gosched()
	}
	errs := make([]error, len(appends))
	var wg sync.WaitGroup
	for i, a := range appends {
		wg.Go(func() { _, errs[i] = s.Append(context.Background(), a) })
		for s.queue.Waiting() <= i {
			runtime.Gosched()
		}
	}
	release()
	wg.Wait()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	return errs
}

// In one transaction: refused appends drop out alone, a bad one fails alone,
// and verdicts that rested on it are given anew.
func TestBatch(t *testing.T) {
	id, other := newSession(t), newSession(t)
	again := created(id, "") // the row exists: found by the database, and only on writing
	after := said(id, "after")
	after.Entries[0].Expect = 3
	closing := single(id, &event.SessionClosed{})
	open1, closed := said(id, "open"), said(id, "closed")
	is := func(status string) []eventlog.Condition {
		return []eventlog.Condition{{Table: derived.Sessions, Where: []derived.Col{{Name: "session_id", Value: string(id)}}, Column: "status", In: []any{status}}}
	}
	open1.Require, closed.Require = is("open"), is("closed")
	for name, c := range map[string]struct {
		appends []eventlog.Append
		bad     []bool
		commits int // transactions, when nothing is bad
	}{
		"all good":        {[]eventlog.Append{said(id, "1"), said(id, "2"), after, created(other, "")}, []bool{false, false, false, false}, 3},
		"one refused":     {[]eventlog.Append{said(id, "1"), after, said(id, "2"), created(other, "")}, []bool{false, true, false, false}, 3},
		"one bad":         {[]eventlog.Append{said(id, "1"), again, created(other, ""), said(id, "2")}, []bool{false, true, false, false}, 0},
		"rests on a bad":  {[]eventlog.Append{said(id, "1"), again, after, said(id, "2"), after}, []bool{false, true, true, false, false}, 0},
		"rests on a good": {[]eventlog.Append{open1, closing, open1, closed, said(id, "2")}, []bool{false, false, true, false, false}, 4},
		"one alias":       {[]eventlog.Append{created(other, "home"), created(newSession(t), "home"), created(newSession(t), "other")}, []bool{false, true, false}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var commits [][]eventlog.Stamp
			told := 0 // appends that OnBatch says were committed
			s := open(t, Config{OnCommit: func(stamps []eventlog.Stamp) { mu.Lock(); defer mu.Unlock(); commits = append(commits, stamps) },
				OnBatch: func(b Batch) {
					mu.Lock()
					defer mu.Unlock()
					if told += b.Appends; b.Failed && b.Appends != 0 {
						t.Errorf("of what failed %d were committed", b.Appends)
					}
				}})
			mustAppend(t, s, created(id, ""))
			errs := asOneBatch(t, s, c.appends...)
			good := 2
			for i, err := range errs {
				if (err != nil) != c.bad[i] {
					t.Errorf("append %d: %v", i, err)
				}
				if err == nil {
					good++
				}
			}
			seqs := make(map[event.Stream]int64)
			for _, stamps := range commits {
				for _, st := range stamps {
					good--
					if seqs[st.Stream]++; st.Head != seqs[st.Stream] {
						t.Errorf("%s#%d was announced out of order", st.Stream, st.Head)
					}
				}
			}
			if told != len(slices.Concat(commits...)) {
				t.Errorf("%d appends told of, %d committed", told, len(slices.Concat(commits...)))
			}
			if good != 0 || c.commits != 0 && len(commits) != c.commits {
				t.Errorf("%d transactions announced, %d appends not", len(commits), good)
			}
			mustVerify(t, s)
		})
	}
}

func TestBatchBounds(t *testing.T) {
	var sizes []int
	s := open(t, Config{MaxBatch: 4, MaxBatchBytes: 10_000, OnBatch: func(b Batch) {
		if sizes = append(sizes, b.Appends); b.Failed || b.Refused != 0 || b.Events != b.Appends || b.Longest < b.Took {
			t.Errorf("%+v", b)
		}
	}})
	id := newSession(t)
	var appends []eventlog.Append
	for range 6 {
		appends = append(appends, said(id, "x"))
	}
	for range 3 {
		appends = append(appends, said(id, strings.Repeat("x", 8000)))
	}
	asOneBatch(t, s, appends...)
	if fmt.Sprint(sizes) != "[1 4 3 1 1]" {
		t.Errorf("transactions of %v appends", sizes)
	}
}

// held is a transaction of another process that has written its rows.
type held struct {
	t  *testing.T
	tx *transaction
	r  *request
}

// begin makes a transaction as a writer does, up to its rows, on a connection of
// its own.
func begin(t *testing.T, s *Store, a eventlog.Append) *held {
	t.Helper()
	cfg := s.pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	r, err := s.prepare(within(t), a)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{t, newTransaction(within(t), s, conn, true), r}
	if err := h.tx.begin([]*request{r}); err != nil {
		t.Fatal(err)
	}
	if err := h.tx.decide([]*request{r}); err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	h.send(h.tx.queueRows)
	return h
}

func (h *held) send(queue func(*pgx.Batch)) {
	h.t.Helper()
	b := &pgx.Batch{}
	queue(b)
	if err := h.tx.conn.SendBatch(h.tx.ctx, b).Close(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *held) end(word string) {
	h.t.Helper()
	h.send(func(b *pgx.Batch) { b.Queue(word) })
}

// waitFor waits until something holds, or fails the test.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ctx := within(t); !holds(); {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

// locked says how many sessions wait for a lock of the feed.
func (s *Store) waitingForFeed(t *testing.T) int {
	t.Helper()
	var n int
	if err := s.pool.QueryRow(within(t), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND NOT granted",
		int64(uint32(s.feedLock)), lockFeed).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What commits late is not below the cursor of a reader that has seen what
// committed before; what is rolled back stalls nobody. // I-01 C88
func TestLateCommit(t *testing.T) {
	for _, word := range []string{"COMMIT", "ROLLBACK"} {
		for _, where := range []string{"rows", "place"} { // how far A is when B commits
			t.Run(word+" after its "+where, func(t *testing.T) {
				url := schemaFor(t, t.TempDir())
				var mu sync.Mutex
				var news []News
				watcher := open(t, Config{URL: url, NewsEvery: 10 * time.Millisecond, OnNews: func(list []News) {
					mu.Lock()
					defer mu.Unlock()
					news = append(news, list...)
				}})
				s := open(t, Config{URL: url})
				target := event.TargetIDFor("ann", "webhook", "https://example.com")
				a, b := newSession(t), newSession(t)
				deliver := func(id event.SessionID, n int) eventlog.Append {
					app := created(id, "")
					app.Entries = append(app.Entries, eventlog.Entry{Stream: event.TargetIDFor("ann", "webhook", string(id)).Stream(), Expect: eventlog.AnyHead,
						Events: []event.Event{{SessionID: id, UserID: "ann", Data: &event.DeliveryEnqueued{DeliveryID: event.DeliveryIDFor("run_1", target, n), Type: "webhook"}}}})
					return app
				}
				tx := begin(t, s, deliver(a, 1))
				done := make(chan error, 1)
				commitB := func() { _, err := s.Append(within(t), deliver(b, 2)); done <- err }
				if where == "place" {
					tx.send(tx.tx.queueFeed)
					go commitB()
					waitFor(t, "B waits for A", func() bool { return s.waitingForFeed(t) == 1 })
				} else {
					commitB()
				}
				var got []string
				var at eventlog.Position
				poll := func() {
					t.Helper()
					for {
						items, next, err := watcher.Feed(t.Context(), at, 100, eventlog.FeedFilter{})
						if err != nil {
							t.Fatal(err)
						}
						for _, p := range items {
							got = append(got, string(p.Event.Stream))
						}
						if next == at {
							return
						}
						at = next
					}
				}
				poll()
				if where == "rows" {
					tx.send(tx.tx.queueFeed)
				}
				poll()
				tx.end(word)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				poll()
				want := []string{string(b.Stream()), string(event.TargetIDFor("ann", "webhook", string(b)).Stream())}
				if word == "COMMIT" {
					want = append(want, string(a.Stream()), string(event.TargetIDFor("ann", "webhook", string(a)).Stream()))
				}
				slices.Sort(want)
				sorted := slices.Sorted(slices.Values(got))
				if !slices.Equal(sorted, want) {
					t.Errorf("the feed gave %v, want %v", got, want)
				}
				waitFor(t, "the news are complete", func() bool {
					mu.Lock()
					defer mu.Unlock()
					return len(news) >= len(want)
				})
				mu.Lock()
				defer mu.Unlock()
				heard := []string{}
				for _, n := range news {
					heard = append(heard, string(n.Stream))
					if _, isTarget := n.Stream.Target(); n.Head != 1 || n.Wakes != isTarget {
						t.Errorf("news %+v", n)
					}
				}
				if !slices.Equal(heard, got) {
					t.Errorf("the follower heard %v, the feed gave %v", heard, got)
				}
				targets, err := watcher.PendingTargets(t.Context())
				if err != nil || len(targets) != len(want)/2 {
					t.Errorf("pending targets %v %v", targets, err)
				}
				for _, id := range targets {
					if _, err := watcher.NextDelivery(t.Context(), id); err != nil {
						t.Error(err)
					}
				}
				if word == "ROLLBACK" { // the stream that A made is made anew
					mustAppend(t, s, created(a, ""))
				}
				mustVerify(t, s)
			})
		}
	}
}

// Two processes append to the same streams at once: sequences have no gaps, and
// each hears of all that the other wrote. // I-01
func TestTwoProcesses(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	type end struct {
		mu    sync.Mutex
		heard map[event.Stream][]int64
		wrote map[event.Stream][]int64
	}
	var ends [2]end
	var stores [2]*Store
	for i := range ends {
		e := &ends[i]
		e.heard, e.wrote = map[event.Stream][]int64{}, map[event.Stream][]int64{}
		stores[i] = open(t, Config{URL: url, NewsEvery: time.Hour, OnNews: func(list []News) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, n := range list {
				e.heard[n.Stream] = append(e.heard[n.Stream], n.Head)
			}
		}, OnCommit: func(stamps []eventlog.Stamp) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, st := range stamps {
				e.wrote[st.Stream] = append(e.wrote[st.Stream], st.Head)
			}
		}})
	}
	ids := []event.SessionID{newSession(t), newSession(t), newSession(t)}
	var wg sync.WaitGroup
	const each, many = 60, 12
	for i := range many {
		wg.Go(func() {
			for n := range each {
				if _, err := stores[i%2].Append(within(t), said(ids[(i/2+n)%len(ids)], fmt.Sprint(i, n))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	total := int64(0)
	for _, id := range ids {
		h, err := stores[0].Head(t.Context(), id.Stream())
		if err != nil {
			t.Fatal(err)
		}
		total += h.Seq
		for i := range ends {
			e, other := &ends[i], &ends[1-i]
			other.mu.Lock()
			want := slices.Clone(other.wrote[id.Stream()])
			other.mu.Unlock()
			if !slices.IsSorted(want) {
				t.Errorf("process %d told of %v", 1-i, want)
			}
			waitFor(t, "the news are there", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.heard[id.Stream()]) >= len(want) })
			e.mu.Lock()
			if got := e.heard[id.Stream()]; !slices.Equal(got, want) {
				t.Errorf("process %d heard %v, process %d wrote %v", i, got, 1-i, want)
			}
			e.mu.Unlock()
		}
	}
	if total != each*many {
		t.Errorf("%d events, want %d", total, each*many)
	}
	// A block is drawn behind the locks of the streams of a transaction: those of a stream ascend.
	var back int
	if err := stores[0].pool.QueryRow(t.Context(), stores[0].sql(`SELECT count(*) FROM
		(SELECT ROW(block, place) AS at, lag(ROW(block, place)) OVER (PARTITION BY stream ORDER BY first_seq) AS before FROM @.log) l WHERE before >= at`)).Scan(&back); err != nil || back > 0 {
		t.Errorf("%d rows of the log stand before one that they follow (%v)", back, err)
	}
	mustVerify(t, stores[0])
}

// An erasing goes through the whole of a session; nobody else waits for it.
func TestErasingHoldsUpNobody(t *testing.T) {
	s := open(t, Config{})
	gone, other := newSession(t), newSession(t)
	mustAppend(t, s, created(gone, ""))
	mustAppend(t, s, created(other, ""))
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), s.sql("SELECT 1 FROM @.log WHERE stream = $1 FOR UPDATE"), string(gone.Stream())); err != nil {
		t.Fatal(err) // so that the erasing takes long
	}
	a := single(gone, &event.SessionErased{Actor: "ann"})
	a.Erase = gone
	erased := make(chan error, 1)
	go func() { _, err := s.Append(within(t), a); erased <- err }()
	waitFor(t, "the erasing to begin", func() bool {
		n, err := oneOf(t.Context(), s, s.pool, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%log l SET data = NULL%'",
			[]any{s.schema}, func(n *int64) []any { return []any{n} })
		return err == nil && n > 0
	})
	for range 3 {
		mustAppend(t, s, said(other, "y"))
	}
	select {
	case err := <-erased:
		t.Fatalf("the others waited until it was over: %v", err)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-erased; err != nil {
		t.Error(err)
	}
	mustVerify(t, s)
}

// An append to a stream that another process has locked waits for it, and
// nobody else does.
func TestLockedStream(t *testing.T) {
	s := open(t, Config{})
	a, b := newSession(t), newSession(t)
	mustAppend(t, s, created(a, ""))
	mustAppend(t, s, created(b, ""))
	tx := begin(t, s, said(a, "of another"))
	late := make(chan error, 2)
	for range cap(late) {
		go func() { _, err := s.Append(within(t), said(a, "x")); late <- err }()
	}
	for range 20 {
		mustAppend(t, s, said(b, "y"))
	}
	select {
	case err := <-late:
		t.Errorf("it went by the lock: %v", err)
	default:
	}
	tx.send(tx.tx.queueFeed)
	tx.end("COMMIT")
	for range cap(late) {
		if err := <-late; err != nil {
			t.Error(err)
		}
	}
	if h, err := s.Head(t.Context(), a.Stream()); err != nil || h.Seq != 4 {
		t.Errorf("%+v %v", h, err)
	}
	mustVerify(t, s)
}

// What text cannot hold is stored and found all the same. // C90
func TestOddText(t *testing.T) {
	s := open(t, Config{})
	for _, odd := range []string{"W\x00s\x00l", "\x01", "a\x0100b", "literal \\u0000 stays", "\xff\xfe", "é\x00\x01é", "\x01zz", ""} {
		if got := fromText(toText(odd)); got != odd {
			t.Errorf("%q became %q", odd, got)
		}
		if strings.ContainsRune(toText(odd), 0) {
			t.Errorf("%q is written with NUL", odd)
		}
	}
	id := newSession(t)
	mustAppend(t, s, eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{
		{SessionID: id, UserID: "a\x00b", Data: &event.SessionCreated{Alias: "h\x00me", Settings: event.Settings{Title: "W\x00s\x00l"}}},
		{SessionID: id, UserID: "a\x00b", Data: &event.TextEnded{Content: event.Content{Text: "a\x00b literal \\u0000 stays"}}},
	}}}})
	row, err := s.Session(t.Context(), id)
	if err != nil || row.Title != "W\x00s\x00l" || row.UserID != "a\x00b" || row.Alias != "h\x00me" {
		t.Errorf("%+v %v", row, err)
	}
	if got, err := s.SessionByAlias(t.Context(), "a\x00b", "h\x00me"); err != nil || got != id {
		t.Errorf("%v %v", got, err)
	}
	if list, _, err := s.Sessions(t.Context(), eventlog.SessionFilter{UserID: "a\x00b"}, eventlog.Page{}); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	events, err := s.Read(t.Context(), id.Stream(), 1, 1)
	if err != nil || len(events) != 1 || string(events[0].Raw) != `{"content":{"text":"a\u0000b literal \\u0000 stays"}}` && !strings.Contains(string(events[0].Raw), `a\u0000b literal \\u0000 stays`) {
		t.Errorf("%s %v", events[0].Raw, err)
	}
	if items, _, err := s.Feed(t.Context(), 0, 10, eventlog.FeedFilter{UserID: "a\x00b"}); err != nil || len(items) != 2 {
		t.Errorf("%d events in the feed of the user, %v", len(items), err)
	}
	mustVerify(t, s)
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", "\x00", "\x0100", "\x01", "é\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w := toText(s)
		if fromText(w) != s || strings.IndexByte(w, 0) >= 0 || strings.ToValidUTF8(w, "?") != w {
			t.Errorf("%q is written as %q and read as %q", s, w, fromText(w))
		}
	})
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no URL":   {Rows: storetest.Rows},
		"no rows":  {URL: "postgres://localhost/x"},
		"sync":     {URL: "postgres://localhost/x", Rows: storetest.Rows, Sync: "OFF"},
		"negative": {URL: "postgres://localhost/x", Rows: storetest.Rows, MaxBatch: -1},
		"bad URL":  {URL: "postgres://user:secret@localhost:port/x", Rows: storetest.Rows},
	} {
		_, err := Open(t.Context(), cfg)
		if err == nil {
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What will not do is refused in words that say what to do.
func TestSetup(t *testing.T) {
	needDatabase(t)
	base := schemaFor(t, t.TempDir())
	for name, c := range map[string]struct{ url, want string }{
		"no schema":      {withParam(t, testURL(), "search_path", "there_is_none"), "there_is_none"},
		"read-only":      {withParam(t, base, "default_transaction_read_only", "on"), "read-only"},
		"no synchronous": {withParam(t, base, "synchronous_commit", "off"), "synchronous_commit"},
	} {
		_, err := Open(t.Context(), Config{URL: c.url, Rows: storetest.Rows})
		var setup *SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), Config{URL: "postgres://nobody@127.0.0.1:1/x", Rows: storetest.Rows, ConnectWithin: time.Second}); err == nil {
		t.Error("connected to nothing")
	}
	open(t, Config{URL: base}) // of all that nothing is left
}

// Several processes start at once on an empty schema: one makes the tables.
func TestStartAtOnce(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			s, err := Open(within(t), Config{URL: url, Rows: storetest.Rows, Conns: 4})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(within(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A database that a newer program had is refused, and an older program that is
// still at work writes no more.
func TestNewer(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	old := open(t, Config{URL: url})
	id := newSession(t)
	mustAppend(t, old, created(id, ""))
	young := open(t, Config{URL: url, Generation: 2})
	mustAppend(t, young, said(id, "x"))
	var newer *NewerError
	if _, err := old.Append(t.Context(), said(id, "y")); !errors.As(err, &newer) || newer.Found != 2 || newer.Known != 1 {
		t.Errorf("an append of an older program: %v", err)
	}
	if _, err := Open(t.Context(), Config{URL: url, Rows: storetest.Rows}); !errors.As(err, &newer) || newer.What != "derived rows" {
		t.Errorf("an older program starts: %v", err)
	}
	exec := func(text string) {
		if _, err := young.pool.Exec(t.Context(), young.sql(text)); err != nil {
			t.Fatal(err)
		}
	}
	exec("INSERT INTO @.facts (name, value) VALUES ('event:of.the.future', 1)")
	if _, err := Open(t.Context(), Config{URL: url, Rows: storetest.Rows, Generation: 2}); !errors.As(err, &newer) || !strings.Contains(newer.What, "of.the.future") {
		t.Errorf("events of the future: %v", err)
	}
	exec("INSERT INTO @.migrations VALUES (99, '99', '', '')")
	if _, err := Open(t.Context(), Config{URL: url, Rows: storetest.Rows, Generation: 2}); !errors.As(err, &newer) || newer.What != "tables" || newer.Found != 99 {
		t.Errorf("tables of the future: %v", err)
	}
}

// A stream that a newer program's node has owned goes to no older one.
func TestNewerOwner(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	old, young := open(t, Config{URL: url}), open(t, Config{URL: url, Program: 2})
	id := newSession(t)
	for _, n := range []eventlog.NodeID{"old", "young"} {
		if _, err := old.Beat(t.Context(), eventlog.Node{ID: n}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, old, single(id, &event.RunQueued{}))
	claim := func(node eventlog.NodeID) eventlog.Append {
		a := said(id, "mine")
		a.Entries[0].Node, a.Entries[0].Claim = node, true
		return a
	}
	mustAppend(t, young, claim("young"))
	if err := young.Yield(t.Context(), "young", []event.Stream{id.Stream()}); err != nil {
		t.Fatal(err)
	}
	if got, err := old.Take(t.Context(), "old", eventlog.Sessions, 9, false); err != nil || len(got) != 0 {
		t.Errorf("an older node took %v %v", got, err)
	}
	if _, err := old.Append(t.Context(), claim("old")); !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("an older node claims: %v", err)
	}
	if got, err := young.Take(t.Context(), "young", eventlog.Sessions, 9, false); err != nil || len(got) != 1 {
		t.Errorf("the newer node took %v %v", got, err)
	}
}

// An answer ends with the event whose data go past the bound, also within a row.
func TestMaxReadBytes(t *testing.T) {
	s := open(t, Config{MaxReadBytes: 1000})
	id := newSession(t)
	a := said(id, strings.Repeat("x", 600))
	for range 9 {
		a.Entries[0].Events = append(a.Entries[0].Events, a.Entries[0].Events[0])
	}
	mustAppend(t, s, a)
	mustAppend(t, s, said(id, strings.Repeat("x", 5000)))
	mustAppend(t, s, said(id, "small"))
	var got []int
	for seen := int64(0); ; {
		events, err := s.ReadBounded(t.Context(), id.Stream(), seen, 100)
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, len(events)); len(events) == 0 {
			break
		}
		seen = events[len(events)-1].Seq
	}
	if want := "[2 2 2 2 2 1 1 0]"; fmt.Sprint(got) != want {
		t.Errorf("read by %v, want %v", got, want)
	}
	got = nil
	for at := eventlog.Position(0); ; {
		items, next, err := s.Feed(t.Context(), at, 100, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, len(items)); next == at {
			break
		}
		at = next
	}
	if want := "[2 2 2 2 2 1 1 0]"; fmt.Sprint(got) != want {
		t.Errorf("fed by %v, want %v", got, want)
	}
	if events, err := s.Read(t.Context(), id.Stream(), 0, 100); err != nil || len(events) != 12 {
		t.Errorf("read without a bound: %d events, %v", len(events), err)
	}
}

// One call of a feed that lets nothing pass looks at so much of the log, and
// says where to go on.
func TestFeedLooksAtSoMuch(t *testing.T) {
	s := open(t, Config{Sync: SyncNormal})
	id := newSession(t)
	const rows = 2*storecore.FeedRows + 100
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range (rows - 1) / 64 {
				mustAppend(t, s, said(id, ""))
			}
		})
	}
	wg.Wait()
	for range (rows - 1) % 64 {
		mustAppend(t, s, said(id, ""))
	}
	mustAppend(t, s, single(id, &event.SessionClosed{}))
	at := eventlog.Position(0)
	pos := storecore.PositionOf
	for call, want := range []struct {
		items int
		at    eventlog.Position
	}{{0, pos(storecore.FeedRows, 0)}, {0, pos(2*storecore.FeedRows, 0)}, {1, pos(rows, 0)}, {0, pos(rows, 0)}} {
		items, next, err := s.Feed(t.Context(), at, 10, eventlog.FeedFilter{Types: []event.Type{event.TypeSessionClosed}})
		if err != nil || len(items) != want.items || next != want.at {
			t.Errorf("call %d: %d items, to %d, want %d to %d (%v)", call, len(items), next, want.items, want.at, err)
		}
		at = next
	}
	if items, next, err := s.Feed(t.Context(), 0, 2*storecore.FeedRows, eventlog.FeedFilter{}); err != nil || len(items) != storecore.FeedRows || next != pos(storecore.FeedRows, 0) {
		t.Errorf("without a filter: %d items to %d, %v", len(items), next, err)
	}
}

// A stream that is being handed to another node is fenced as soon as it was,
// also against an append that was under way. // I-11
func TestHandedOverMeanwhile(t *testing.T) {
	s := open(t, Config{})
	id := newSession(t)
	for _, n := range []eventlog.NodeID{"a", "b"} {
		if _, err := s.Beat(t.Context(), eventlog.Node{ID: n}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	mine := said(id, "mine")
	mine.Entries[0].Node, mine.Entries[0].Claim = "a", true
	mustAppend(t, s, mine)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), s.sql("UPDATE @.streams SET holder = 'b' WHERE stream = $1"), string(id.Stream())); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		a := said(id, "still mine")
		a.Entries[0].Node, a.Entries[0].Epoch, a.Entries[0].Rest = "a", 1, true
		_, err := s.Append(within(t), a)
		done <- err
	}()
	waitFor(t, "the append waits", func() bool {
		var n int
		err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1", "%"+s.schema+".streams%").Scan(&n)
		return err == nil && n == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("it was appended: %v", err)
	}
}

// What another process wrote shows to readers here once its news were told,
// and that there is nothing more is never said from memory.
func TestReadBesideOthers(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	heard := make(chan News, 10)
	s := open(t, Config{URL: url, OnNews: func(list []News) {
		for _, n := range list {
			heard <- n
		}
	}})
	other := open(t, Config{URL: url})
	id := newSession(t)
	read := func(after int64, want int) {
		t.Helper()
		events, err := s.Read(t.Context(), id.Stream(), after, 10)
		if err != nil || len(events) != want {
			t.Errorf("after %d: %d events, want %d (%v)", after, len(events), want, err)
		}
	}
	mustAppend(t, s, created(id, ""))
	mustAppend(t, s, said(id, "x"))
	read(0, 2)
	mustAppend(t, other, said(id, "y"))
	read(2, 1) // at once
	<-heard
	read(0, 3)
	mustAppend(t, s, said(id, "z"))
	read(0, 4)
	read(3, 1)
	read(4, 0)
}

// What a program wrote that did not put its news beside the feed is told from the
// log, in the same words.
func TestNewsFromTheLog(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	heard := make(chan []News, 10)
	s := open(t, Config{URL: url, OnNews: func(list []News) { heard <- list }})
	other := open(t, Config{URL: url})
	id := newSession(t)
	var told []News
	for _, a := range []eventlog.Append{created(id, ""), said(id, "x")} {
		before := s.follow.seen.Load()
		mustAppend(t, other, a)
		told = <-heard
		waitFor(t, "it is read", func() bool { return s.follow.seen.Load() > before })
		for _, text := range []string{"streams = NULL, heads = NULL, wakes = NULL, time = NULL", "streams = '{x}', heads = '{}'"} {
			if _, err := s.pool.Exec(t.Context(), s.sql("UPDATE @.feed SET "+text)); err != nil {
				t.Fatal(err)
			}
			s.follow.seen.Store(before)
			signal(s.follow.wake)
			if again := <-heard; !slices.Equal(again, told) || len(told) == 0 || told[0].Head == 0 {
				t.Errorf("%s: told %+v, was %+v", text, again, told)
			}
			waitFor(t, "it is read again", func() bool { return s.follow.seen.Load() > before })
		}
	}
}

// Who has heard of another node of late hears more of it without a signal.
func TestNewsInARow(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	heard := make(chan []News, 10)
	s := open(t, Config{URL: url, pooled: true, NewsEvery: time.Hour, OnNews: func(list []News) { heard <- list }}) // which nobody signals
	other := open(t, Config{URL: url})
	id := newSession(t)
	mustAppend(t, other, created(id, ""))
	for head := int64(2); head < 6; head++ { // a machine that stands still for a second is given another try
		s.follow.heard.Store(time.Now().UnixNano())
		signal(s.follow.wake)
		waitFor(t, "it looks", func() bool { return len(s.follow.wake) == 0 })
		mustAppend(t, other, said(id, "x"))
		for late := time.After(10 * awake); late != nil; {
			select {
			case list := <-heard:
				if list[len(list)-1].Head == head {
					return
				}
			case <-late:
				late = nil
			}
		}
	}
	t.Error("what another node writes in a row is not heard of")
}

// Readers that have all connections keep neither appends nor leases waiting.
func TestReadersDoNotHoldUp(t *testing.T) {
	s := open(t, Config{Conns: 6})
	id := newSession(t)
	mustAppend(t, s, created(id, ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 8 {
		wg.Go(func() { _, _ = s.pool.Exec(ctx, "SELECT pg_sleep(20)") })
	}
	waitFor(t, "readers have all", func() bool { return s.pool.Stat().AcquiredConns() == s.pool.Stat().MaxConns() })
	if _, err := s.Beat(within(t), eventlog.Node{ID: "a"}, time.Hour); err != nil {
		t.Error(err)
	}
	mustAppend(t, s, said(id, "x"))
	if _, err := s.Take(within(t), "a", eventlog.Sessions, 1, false); err != nil {
		t.Error(err)
	}
	cancel()
}

// After a failover that lost commits nothing is told from memory that is not
// there, and news go on.
func TestLostCommits(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	heard := make(chan News, 10)
	s := open(t, Config{URL: url, NewsEvery: 10 * time.Millisecond, OnNews: func(list []News) {
		for _, n := range list {
			heard <- n
		}
	}})
	a, b := newSession(t), newSession(t)
	mustAppend(t, s, created(a, ""))
	mustAppend(t, s, created(b, ""))
	waitFor(t, "the feed is read to its end", func() bool { return s.follow.seen.Load() == 2 })
	for _, text := range []string{"DELETE FROM @.feed WHERE pos = 2", "DELETE FROM @.log WHERE stream = 'session:" + string(b) + "'",
		"DELETE FROM @.streams WHERE stream = 'session:" + string(b) + "'", "DELETE FROM @.sessions WHERE session_id = '" + string(b) + "'"} {
		if _, err := s.pool.Exec(t.Context(), s.sql(text)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "it is noticed", func() bool { return s.follow.seen.Load() == 1 })
	if events, err := s.Read(t.Context(), b.Stream(), 0, 10); err != nil || len(events) != 0 {
		t.Errorf("%d events that are lost, %v", len(events), err)
	}
	other := open(t, Config{URL: url})
	mustAppend(t, other, created(b, ""))
	if n := <-heard; n.Stream != b.Stream() {
		t.Errorf("news %+v", n)
	}
	mustAppend(t, s, said(b, "x"))
	mustVerify(t, s)
}

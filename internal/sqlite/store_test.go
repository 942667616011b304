package sqlite

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
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

// asOneBatch appends all at once, in order: the writer is held until all wait.
func asOneBatch(t *testing.T, s *Store, appends ...eventlog.Append) []error {
	t.Helper()
	held, release := make(chan struct{}), make(chan struct{})
	go s.byWriter(context.Background(), func(*writer) error { close(held); <-release; return nil })
	<-held
	errs := make([]error, len(appends))
	var wg sync.WaitGroup
	for i, a := range appends {
		wg.Go(func() { _, errs[i] = s.Append(context.Background(), a) })
		for s.queue.Waiting() <= i {
			runtime.Gosched()
		}
	}
	close(release)
	wg.Wait()
	return errs
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, Config{Dir: dir})
	_, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows})
	var locked *dirlock.Error
	if !errors.As(err, &locked) || locked.PID != os.Getpid() || locked.Dir != dir || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatalf("second open: %v", err)
	}
	mustAppend(t, s, created(newSession(t), ""))
	for name, want := range map[string]os.FileMode{".": 0o700, dirlock.File: 0o600, DatabaseFile: 0o600, DatabaseFile + "-wal": 0o600, DatabaseFile + "-shm": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v", name, info.Mode(), want)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: dir})
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no directory": {Rows: storetest.Rows},
		"no rows":      {Dir: t.TempDir()},
		"sync":         {Dir: t.TempDir(), Rows: storetest.Rows, Sync: "OFF"},
		"negative":     {Dir: t.TempDir(), Rows: storetest.Rows, MaxBatch: -1},
	} {
		if _, err := Open(t.Context(), cfg); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, DatabaseFile), bytes.Repeat([]byte("no database"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the lock is let go of
		if _, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows}); err == nil || errors.As(err, new(*dirlock.Error)) {
			t.Errorf("a file that is no database: %v", err)
		}
	}
}

func TestSync(t *testing.T) {
	for sync, want := range map[string]string{"": "2", SyncFull: "2", SyncNormal: "1"} {
		s := open(t, Config{Dir: t.TempDir(), Sync: sync})
		err := s.byWriter(t.Context(), func(w *writer) error {
			for pragma, want := range map[string]string{"synchronous": want, "journal_mode": "wal", "secure_delete": "1", "busy_timeout": "5000"} {
				var got string
				if err := w.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
					t.Errorf("sync %q: %s is %q, want %q (%v)", sync, pragma, got, want, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.readers.exec(t.Context(), []byte("DELETE FROM log")); err == nil {
			t.Error("a reader may write")
		}
	}
}

// A path with characters that mean something in a URI.
func TestOddPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c=%41&#d")
	s := open(t, Config{Dir: dir})
	mustAppend(t, s, created(newSession(t), ""))
	if _, err := os.Stat(filepath.Join(dir, DatabaseFile)); err != nil {
		t.Fatal(err)
	}
}

// tamper runs a statement on the database of a closed store.
func tamper(t *testing.T, dir, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", source(filepath.Join(dir, DatabaseFile), "rw"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(text); err != nil {
		t.Fatal(err)
	}
}

// A database that a newer program had is refused, in words that name both
// versions and the way out, and nothing of it is changed. That of a program
// with other tables is refused too.
func TestNewerAndForeign(t *testing.T) {
	steps, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, want string
		newer      bool
	}{
		{"INSERT INTO migrations VALUES (99, '0099_later.sql', 'x', '')",
			fmt.Sprintf("its tables are of version 99, this program knows version %d; run the newer program, or put back the copy", len(steps)), true},
		{"UPDATE facts SET value = 9 WHERE name = 'generation'", "its derived rows are of version 9, this program knows version 1; run the newer", true},
		{"UPDATE facts SET value = 3 WHERE name = 'event:step.ended'", "its events of type step.ended are of version 3, this program knows version 2;", true},
		{"INSERT INTO facts VALUES ('event:run.invented', 1)", "its events of type run.invented are of version 1, this program knows none;", true},
		{"UPDATE migrations SET checksum = 'x' WHERE version = 1", "is not the one of this program", false},
		// Also where steps are missing: they are not made.
		{"DELETE FROM migrations WHERE version > 1; UPDATE facts SET value = 9 WHERE name = 'generation'", "its derived rows", true},
	} {
		dir := t.TempDir()
		open(t, Config{Dir: dir}).Close(t.Context())
		tamper(t, dir, c.text)
		_, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows})
		newer := (*NewerError)(nil)
		if err == nil || errors.As(err, &newer) != c.newer || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// What an older program may have written is noted anew, once.
func TestEventsAreRecorded(t *testing.T) {
	dir := t.TempDir()
	open(t, Config{Dir: dir}).Close(t.Context())
	tamper(t, dir, "DELETE FROM facts WHERE name LIKE 'event:%' AND name <> 'event:run.created'; UPDATE facts SET value = 1 WHERE name = 'event:step.ended'")
	s := open(t, Config{Dir: dir})
	rows, err := s.readers.query(t.Context(), []byte("SELECT substr(name, 7), value FROM facts WHERE name LIKE 'event:%' ORDER BY name"))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []event.Type
	for rows.Next() {
		var name event.Type
		var version int
		if err := rows.Scan(&name, &version); err != nil {
			t.Fatal(err)
		}
		if _, known, _ := event.New(name); version != known {
			t.Errorf("%s is noted with version %d", name, version)
		}
		got = append(got, name)
	}
	if rows.Err() != nil || !slices.Equal(got, event.Types()) {
		t.Errorf("%v, %v", got, rows.Err())
	}
}

// No database is made, nor a lock, where the disk is none.
func TestNetworkDisk(t *testing.T) {
	for _, refused := range []string{"", DatabaseFile} {
		dir := filepath.Join(t.TempDir(), "data")
		_, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows, Disk: func(path string) error {
			if path == filepath.Join(dir, refused) {
				return &diskfs.NetworkError{Dir: path, Kind: "nfs"}
			}
			return nil
		}})
		if network := (*diskfs.NetworkError)(nil); !errors.As(err, &network) || network.Kind != "nfs" {
			t.Errorf("%q: %v", refused, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: %v", refused, err)
		}
	}
}

// I-03
func TestGenerationRebuilds(t *testing.T) {
	dir := t.TempDir()
	id := newSession(t)
	s := open(t, Config{Dir: dir, Rows: func(event.Stream, []event.Event) []derived.Change { return nil }})
	mustAppend(t, s, created(id, "home"))
	s.Close(t.Context())
	s = open(t, Config{Dir: dir, Generation: 2})
	if got, err := s.SessionByAlias(t.Context(), "ann", "home"); err != nil || got != id {
		t.Fatalf("rebuilt: %v %v", got, err)
	}
	mustVerify(t, s)
	s.Close(t.Context())
	if _, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows}); !errors.As(err, new(*NewerError)) {
		t.Fatalf("older program: %v", err)
	}
}

// The tables are those that derived describes, column for column.
func TestTablesFitTheirDescription(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	for _, spec := range derived.Specs() {
		rows, err := s.readers.query(t.Context(), []byte("SELECT name, type, \"notnull\", pk FROM pragma_table_info(?) ORDER BY cid"), string(spec.Table))
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for rows.Next() {
			var name, kind string
			var notNull, pk int
			if err := rows.Scan(&name, &kind, &notNull, &pk); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(name, " ", kind, " ", notNull, " ", pk))
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		for i, name := range storecore.ColumnsOf(spec) {
			kind, pk := "TEXT", 0
			if storecore.Integer(name) {
				kind = "INTEGER"
			}
			if i < len(spec.Key) && spec.Table != derived.Runs { // of a run the id alone is unique, by its index
				pk = i + 1
			}
			want = append(want, fmt.Sprint(name, " ", kind, " ", 1, " ", pk))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\n got %q\nwant %q", spec.Table, got, want)
		}
	}
}

// In one transaction: refused appends drop out alone, a bad one fails alone,
// and verdicts that rested on it are given anew.
func TestBatch(t *testing.T) {
	id, other := newSession(t), newSession(t)
	again := created(id, "") // the row exists: found by the database, and only on writing
	after := said(id, "after")
	after.Entries[0].Expect = 3
	for name, c := range map[string]struct {
		appends []eventlog.Append
		bad     []bool
	}{
		"all good":       {[]eventlog.Append{said(id, "1"), said(id, "2"), after, created(other, "")}, []bool{false, false, false, false}},
		"one refused":    {[]eventlog.Append{said(id, "1"), after, said(id, "2"), created(other, "")}, []bool{false, true, false, false}},
		"one bad":        {[]eventlog.Append{said(id, "1"), again, created(other, ""), said(id, "2")}, []bool{false, true, false, false}},
		"rests on a bad": {[]eventlog.Append{said(id, "1"), again, after, said(id, "2"), after}, []bool{false, true, true, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var commits [][]eventlog.Stamp
			told := 0 // appends that OnBatch says were committed
			s := open(t, Config{Dir: t.TempDir(), OnCommit: func(stamps []eventlog.Stamp) { commits = append(commits, stamps) },
				OnBatch: func(b Batch) {
					if told += b.Appends; b.Failed && b.Appends != 0 {
						t.Errorf("of what failed %d were committed", b.Appends)
					}
				}})
			mustAppend(t, s, created(id, ""))
			errs := asOneBatch(t, s, c.appends...)
			good := 1
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
			alone := strings.Contains(name, "bad")
			if good != 0 || !alone && len(commits) != 2 {
				t.Errorf("%d transactions announced, %d appends not", len(commits), good)
			}
			mustVerify(t, s)
		})
	}
}

func TestBatchBounds(t *testing.T) {
	var sizes []int
	var told []int // what OnBatch says of the same
	s := open(t, Config{Dir: t.TempDir(), MaxBatch: 4, MaxBatchBytes: 10_000, OnCommit: func(stamps []eventlog.Stamp) { sizes = append(sizes, len(stamps)) },
		OnBatch: func(b Batch) {
			if told = append(told, b.Appends); b.Failed || b.Refused != 0 || b.Events != b.Appends || b.Longest < b.Took {
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
	if fmt.Sprint(sizes) != "[4 3 1 1]" || fmt.Sprint(told) != fmt.Sprint(sizes) {
		t.Errorf("transactions of %v appends, told as %v", sizes, told)
	}
}

func TestDiskFull(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	id := newSession(t)
	mustAppend(t, s, created(id, ""))
	limit := func(pages int) {
		if err := s.byWriter(t.Context(), func(w *writer) error { return w.exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages)) }); err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // as large as it is
	big := said(id, strings.Repeat("x", 100_000))
	errs := asOneBatch(t, s, said(id, "small"), big, said(id, "small"))
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("on a full disk: %v", errs)
	}
	limit(1 << 20)
	if stamps := mustAppend(t, s, big); stamps[0].Head != 4 {
		t.Errorf("afterwards: %+v", stamps)
	}
	mustVerify(t, s)
}

func TestQueueFull(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(context.Background(), Config{Dir: dir, Rows: storetest.Rows, QueueSize: 2})
		if err != nil {
			t.Fatal(err)
		}
		id := newSession(t)
		release := make(chan struct{})
		go s.byWriter(context.Background(), func(*writer) error { <-release; return nil })
		synctest.Wait()
		results := make(chan error, 5)
		for range cap(results) {
			go func() { _, err := s.Append(context.Background(), said(id, "x")); results <- err }()
		}
		synctest.Wait() // two wait in the queue, three for a place in it
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := s.Append(ctx, said(id, "x")); !errors.Is(err, context.Canceled) {
			t.Errorf("a full queue: %v", err)
		}
		if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("close that may not wait: %v", err)
		}
		synctest.Wait() // those without a place were sent away
		close(release)
		committed := 0
		for range cap(results) {
			if err := <-results; err == nil {
				committed++
			} else if !errors.Is(err, eventlog.ErrClosed) {
				t.Error(err)
			}
		}
		if committed != 2 {
			t.Errorf("%d of 2 that waited were committed", committed)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// A whole life of a store in a bubble: no goroutine is left, or synctest.Test fails.
func TestInBubble(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(context.Background(), Config{Dir: dir, Rows: storetest.Rows})
		if err != nil {
			t.Fatal(err)
		}
		id := newSession(t)
		mustAppend(t, s, created(id, ""))
		time.Sleep(time.Hour)
		stamps := mustAppend(t, s, said(id, "hello"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		events, err := s.Read(ctx, id.Stream(), 0, 10)
		if err != nil || len(events) != 2 || events[1].Time.Sub(events[0].Time) != time.Hour || !events[1].Time.Equal(stamps[0].Events[0].Time) {
			t.Errorf("%d events, %v", len(events), err)
		}
		synctest.Wait() // everybody waits for work, on channels
		mustVerify(t, s)
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Readers see the last commit while the writer is busy in a transaction.
func TestReadersDoNotWait(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	id := newSession(t)
	mustAppend(t, s, created(id, ""))
	err := s.byWriter(t.Context(), func(w *writer) error {
		return w.inTx(func() error {
			if err := w.exec("DELETE FROM main.log"); err != nil {
				return err
			}
			events, err := s.Read(t.Context(), id.Stream(), 0, 10)
			if err != nil || len(events) != 1 {
				t.Errorf("%d events, %v", len(events), err)
			}
			return errors.New("undo")
		}, nil)
	})
	if err == nil {
		t.Error("the transaction was committed")
	}
	mustVerify(t, s)
}

func TestHeadCache(t *testing.T) {
	var c headCache
	for i := range 5 * headsKept / 2 {
		c.put(event.Stream(fmt.Sprint(i)), eventlog.Head{Seq: int64(i)})
		if len(c.young)+len(c.old) > 2*headsKept {
			t.Fatal("not bounded")
		}
		if h, ok := c.get("0"); !ok || h.Seq != 0 {
			t.Fatalf("what is in use was dropped after %d", i)
		}
	}
	if _, ok := c.get("1"); ok {
		t.Error("what is not in use is kept")
	}
}

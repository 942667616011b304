package snapshot_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/snapshot"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

const id = event.SessionID("ses_1")

// house is a store with one session, and the room.
type house struct {
	*sqlite.Store
	t    *testing.T
	dir  string
	room *snapshot.Room
	log  bytes.Buffer
}

func newHouse(t *testing.T) *house {
	h := &house{t: t, dir: t.TempDir()}
	h.open()
	h.append("", &event.SessionCreated{Settings: event.Settings{Title: "first"}})
	return h
}

func (h *house) open() {
	h.t.Helper()
	var err error
	h.Store, err = sqlite.Open(context.Background(), sqlite.Config{
		Dir: h.dir, Sync: sqlite.SyncNormal, Rows: eventlog.Rows, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		h.t.Fatal(err)
	}
	h.room = snapshot.New(snapshot.Config{Store: h.Store, Logger: slog.New(slog.NewTextHandler(&h.log, nil))})
}

func (h *house) close() {
	h.t.Helper()
	h.room.Stop(context.Background())
	if err := h.Store.Close(context.Background()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) append(run event.RunID, data ...event.Data) {
	h.t.Helper()
	entry := eventlog.Entry{Stream: id.Stream(), Expect: eventlog.AnyHead}
	for _, d := range data {
		entry.Events = append(entry.Events, event.Event{SessionID: id, UserID: "ann", RunID: run, Data: d})
	}
	if _, err := h.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{entry}}); err != nil {
		h.t.Fatal(err)
	}
}

// runs lets runs be queued and cancelled.
func (h *house) runs(from, to int) {
	for i := from; i < to; i++ {
		run := event.RunID(fmt.Sprintf("run_%d", i))
		h.append(run, &event.RunCreated{Input: []event.InputItem{{Type: "text", Content: event.TextContent("private")}}}, &event.RunQueued{})
	}
}

func (h *house) folded() *session.State {
	h.t.Helper()
	st := &session.State{ID: id}
	events, err := h.Read(context.Background(), id.Stream(), 0, 1<<20)
	for i := range events {
		if err == nil {
			err = events[i].Decode()
		}
		if err == nil {
			err = st.Apply(&events[i])
		}
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

// saved offers the session as it is and waits until it is written.
func (h *house) saved() *session.State {
	h.t.Helper()
	st := h.folded()
	h.room.Offer(st.Clone())
	synctest.Wait()
	return st
}

func (h *house) sound() {
	h.t.Helper()
	report, err := h.Verify(context.Background(), sqlite.VerifyOptions{})
	if err != nil || !report.OK() {
		h.t.Errorf("%v %+v", err, report.Findings)
	}
}

func bubble(t *testing.T, f func(*house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		f(h)
		h.close()
	})
}

// A session comes back as it was folded, over a restart too.
func TestRoundTrip(t *testing.T) {
	bubble(t, func(h *house) {
		if h.room.Load(context.Background(), id) != nil {
			t.Fatal("a snapshot of nothing")
		}
		h.runs(0, 3)
		st := h.saved()
		h.runs(3, 5)
		h.close()
		h.open()
		got := h.room.Load(context.Background(), id)
		if got == nil || !reflect.DeepEqual(got, st) {
			t.Fatalf("%+v, want %+v", got, st)
		}
		h.sound()
		if h.log.Len() != 0 {
			t.Errorf("it says %s", &h.log)
		}
	})
}

// What is not right is passed over, with a line in the log that has no content.
func TestPassedOver(t *testing.T) {
	for name, c := range map[string]struct {
		damage string
		quiet  bool
	}{
		"no JSON":         {"UPDATE snapshots SET state = CAST('{\"private' AS BLOB)", false},
		"a hash":          {"UPDATE snapshots SET hash = zeroblob(32)", false},
		"a head":          {"UPDATE snapshots SET head = head - 1", false},
		"an epoch":        {"UPDATE snapshots SET epoch = 7", false},
		"an older form":   {"UPDATE snapshots SET version = version - 1", true},
		"a newer form":    {"UPDATE snapshots SET version = version + 1", true},
		"another session": {"UPDATE snapshots SET session_id = 'ses_2'", true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(h *house) {
				h.runs(0, 3)
				h.saved()
				h.close()
				db, err := sql.Open("sqlite", filepath.Join(h.dir, sqlite.DatabaseFile))
				if err == nil {
					_, err = db.Exec(c.damage)
				}
				if err == nil {
					err = db.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
				h.open()
				if st := h.room.Load(context.Background(), id); st != nil {
					t.Errorf("loaded %+v", st)
				}
				if said := h.log.String(); strings.Contains(said, "snapshot not used") == c.quiet || strings.Contains(said, "private") {
					t.Errorf("it says %q", said)
				}
			})
		})
	}
}

// An older program leaves alone what a newer one wrote; its own is not kept.
func TestNewerStays(t *testing.T) {
	bubble(t, func(h *house) {
		head, err := h.Head(context.Background(), id.Stream())
		if err != nil {
			t.Fatal(err)
		}
		newer := eventlog.Snapshot{SessionID: id, Version: session.StateVersion + 1, Head: head.Seq, Epoch: head.Epoch, State: []byte("of tomorrow")}
		if err := h.SaveSnapshot(context.Background(), newer); err != nil {
			t.Fatal(err)
		}
		h.runs(0, 3)
		h.saved()
		got, err := h.Snapshot(context.Background(), id)
		if err != nil || string(got.State) != "of tomorrow" {
			t.Fatalf("%+v %v", got, err)
		}
		if h.log.Len() != 0 {
			t.Errorf("it says %s", &h.log)
		}
	})
}

// What was erased does not come back, whatever is on its way.
func TestErased(t *testing.T) {
	bubble(t, func(h *house) {
		before := h.saved()
		_, err := h.Append(context.Background(), eventlog.Append{Erase: id, Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead,
			Events: []event.Event{{SessionID: id, UserID: "ann", Data: &event.SessionErased{}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		h.room.Offer(before)
		synctest.Wait()
		if st := h.room.Load(context.Background(), id); st != nil {
			t.Fatalf("loaded %+v", st)
		}
		h.sound()
	})
}

// slow is a store that takes its time.
type slow struct {
	snapshot.Store
	mu    sync.Mutex
	saved []eventlog.Snapshot
}

func (s *slow) SaveSnapshot(ctx context.Context, snap eventlog.Snapshot) error {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = append(s.saved, snap)
	return nil
}

// Offers never block: past a bound they are dropped, and of one session the
// newest counts. What is too large is not made.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{}
		room := snapshot.New(snapshot.Config{Store: store})
		began := time.Now()
		for i := range 500 {
			room.Offer(&session.State{ID: event.SessionID(fmt.Sprint("ses_", i)), Head: 1})
		}
		synctest.Wait() // the first is being written
		large := &session.State{ID: "ses_large", Head: 1, Queue: []*session.Queued{{ID: "run_1", Created: &event.RunCreated{
			Metadata: []byte(`"` + strings.Repeat("x", eventlog.MaxSnapshot) + `"`)}}}}
		room.Offer(&session.State{ID: "ses_5", Head: 2})
		room.Offer(&session.State{ID: "ses_erased", Status: session.Erased})
		if time.Since(began) != 0 {
			t.Error("offers took time")
		}
		time.Sleep(10 * time.Second)
		room.Offer(large)
		time.Sleep(5 * time.Minute)
		if n := len(store.saved); n < 60 || n > 70 {
			t.Errorf("%d were written", n)
		}
		for _, s := range store.saved {
			if s.SessionID == "ses_5" && s.Head != 2 || s.SessionID == "ses_large" || s.SessionID == "ses_erased" {
				t.Errorf("%s at %d was written", s.SessionID, s.Head)
			}
		}
		room.Offer(&session.State{ID: "ses_1", Head: 5})
		room.Offer(&session.State{ID: "ses_2", Head: 5})
		synctest.Wait()
		began = time.Now()
		room.Stop(context.Background())
		if took := time.Since(began); took > time.Second { // the one in the making, not what waits
			t.Errorf("the stop took %v", took)
		}
		room.Offer(&session.State{ID: "ses_3", Head: 5})
		synctest.Wait()
		if last := store.saved[len(store.saved)-1]; last.SessionID == "ses_3" || last.Head != 5 {
			t.Errorf("%+v was written", last)
		}
	})
}

func TestDue(t *testing.T) {
	room := snapshot.New(snapshot.Config{Every: 10})
	defer room.Stop(context.Background())
	for _, c := range []struct {
		before, now int64
		want        bool
	}{{0, 9, false}, {0, 10, true}, {9, 10, true}, {10, 19, false}, {10, 10, false}, {19, 45, true}} {
		if got := room.Due(c.before, c.now); got != c.want {
			t.Errorf("from %d to %d: %v", c.before, c.now, got)
		}
	}
}

package logs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/logs"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// watched is a store that counts what is read of it, and may give the feed in
// small portions.
type watched struct {
	*sqlite.Store
	sparing atomic.Bool

	mu    sync.Mutex
	reads int
}

func (s *watched) Read(ctx context.Context, stream event.Stream, after int64, limit int) ([]event.Event, error) {
	s.mu.Lock()
	s.reads++
	s.mu.Unlock()
	if limit > 1 {
		return nil, errors.New("a page is read without a bound in bytes")
	}
	return s.Store.Read(ctx, stream, after, limit)
}

// ReadBounded gives one event at a time where the store is sparing.
func (s *watched) ReadBounded(ctx context.Context, stream event.Stream, after int64, limit int) ([]event.Event, error) {
	s.mu.Lock()
	s.reads++
	s.mu.Unlock()
	if s.sparing.Load() {
		limit = 1
	}
	return s.Store.ReadBounded(ctx, stream, after, limit)
}

// Feed gives one row at a time, as a store that bounds a page by its bytes may,
// and none where the filter held it back.
func (s *watched) Feed(ctx context.Context, after eventlog.Position, limit int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position, error) {
	if !s.sparing.Load() {
		return s.Store.Feed(ctx, after, limit, f)
	}
	list, next, err := s.Store.Feed(ctx, after, 1, eventlog.FeedFilter{})
	if err != nil || len(list) == 0 || f.Passes(&list[0].Event) {
		return list, next, err
	}
	return nil, next, nil
}

func (s *watched) count(f func()) int {
	s.mu.Lock()
	s.reads = 0
	s.mu.Unlock()
	f()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func newWatched(t *testing.T) (*apitest.World, *watched) {
	t.Helper()
	s := &watched{}
	w := apitest.New(t, func(c *httpapi.Config) {
		s.Store = c.Store.(*sqlite.Store)
		c.Store = s
	})
	return w, s
}

// What asks for the rest of a run that is over does not read the log of its
// session, however long that became.
func TestFinishedRunIsNotSearched(t *testing.T) {
	w, s := newWatched(t)
	ses := w.Session("")
	good, bad, later := w.Submit(ses.ID, "good"), w.Submit(ses.ID, "bad"), w.Submit(ses.ID, "later")
	w.Finish(&good, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})
	w.Append(&bad, &event.RunStarted{})
	w.Append(&bad, &event.RunFailed{Code: "c"})
	const many = 3000
	for n := 0; n < many; n += 500 {
		list := make([]event.Data, 500)
		for i := range list {
			list[i] = &event.StateEntered{From: "x"}
		}
		w.Append(&later, list...)
	}
	for _, run := range []api.Run{good, bad} {
		all := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/runs/"+run.ID+"/events", w.Admin, nil).Want(200)).Items
		last := all[len(all)-1].Seq
		for _, after := range []int64{last, last + 1, last + 1000, last + 10*many} {
			n := s.count(func() {
				w.Do("GET", fmt.Sprintf("/v1/runs/%s/stream?after=%d", run.ID, after), w.Admin, nil).Want(204)
				got := apitest.Into[api.List[api.Event]](w.Do("GET", fmt.Sprintf("/v1/runs/%s/events?after=%d", run.ID, after), w.Admin, nil).Want(200))
				if len(got.Items) != 0 || got.NextCursor != "" {
					t.Errorf("after %d: %+v", after, got)
				}
			})
			if n > 8 {
				t.Errorf("after %d: %d reads of the log", after, n)
			}
		}
		for i, e := range all { // every cursor before the end still has the rest
			got := apitest.Into[api.List[api.Event]](w.Do("GET", fmt.Sprintf("/v1/runs/%s/events?after=%d", run.ID, e.Seq), w.Admin, nil).Want(200)).Items
			if len(got) != len(all)-i-1 {
				t.Errorf("after %d: %d events, want %d", e.Seq, len(got), len(all)-i-1)
			}
		}
	}
}

// A run that waited long in the queue has events on both sides of many others'.
func TestCursorWithinARunFarApart(t *testing.T) {
	w, _ := newWatched(t)
	ses := w.Session("")
	first, second := w.Submit(ses.ID, "first"), w.Submit(ses.ID, "second")
	list := make([]event.Data, 500)
	for i := range list {
		list[i] = &event.StateEntered{From: "x"}
	}
	w.Append(&first, list...)
	w.Append(&second, &event.RunCancelled{})
	for _, after := range []int64{3, 100, 300, 450} {
		got := apitest.Into[api.List[api.Event]](w.Do("GET", fmt.Sprintf("/v1/runs/%s/events?after=%d", second.ID, after), w.Admin, nil).Want(200)).Items
		if len(got) == 0 || got[len(got)-1].Type != string(event.TypeRunCancelled) {
			t.Errorf("after %d: %+v", after, got)
		}
	}
}

// A short page, or an empty one that moved, is not the end of the feed.
func TestFeedOfASparingStore(t *testing.T) {
	w, s := newWatched(t)
	ses := w.Session("")
	for range 5 {
		w.Submit(ses.ID, "x")
	}
	for _, query := range []string{"?limit=1000", "?limit=3&type=run.queued", "?limit=1000&type=run.queued", "?limit=4"} {
		s.sparing.Store(false)
		want := w.Do("GET", "/v1/events"+query, w.Admin, nil).Want(200)
		s.sparing.Store(true)
		got := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events"+query, w.Admin, nil).Want(200))
		if list := apitest.Into[api.List[api.Event]](want).Items; len(got.Items) != len(list) || len(list) == 0 || got.Items[len(list)-1].ID != list[len(list)-1].ID {
			t.Errorf("%s: %d events, want %d", query, len(got.Items), len(list))
		}
	}
}

// The same holds for the log of a session and of a run, read or followed.
func TestLogOfASparingStore(t *testing.T) {
	w, s := newWatched(t)
	ses := w.Session("")
	run, other := w.Submit(ses.ID, "x"), w.Submit(ses.ID, "y")
	w.Append(&other, &event.StateEntered{From: "x"}, &event.StateEntered{From: "y"})
	w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "done"}})
	w.Append(&other, &event.StateEntered{From: "z"})
	for _, path := range []string{"/v1/sessions/" + ses.ID, "/v1/runs/" + run.ID} {
		s.sparing.Store(false)
		want := apitest.Into[api.List[api.Event]](w.Do("GET", path+"/events", w.Admin, nil).Want(200)).Items
		s.sparing.Store(true)
		if got := apitest.Into[api.List[api.Event]](w.Do("GET", path+"/events", w.Admin, nil).Want(200)).Items; len(got) != len(want) || len(want) < 5 {
			t.Errorf("%s: %d events, want %d", path, len(got), len(want))
		}
		f := w.Follow(path + "/stream")
		for _, e := range want {
			f.Want(fmt.Sprintf("%s#%d", e.Type, e.Seq))
		}
		f.Close()
		w.Do("GET", "/v1/runs/"+run.ID+"/stream?after=1000", w.Admin, nil).Want(204)
	}
}

// A feed from a time on begins close before it, wherever that is in the log, and
// shows what is of that time and later.
func TestSeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t)
		w.Admin = w.Token("admin", "")
		for range 20 {
			w.Knock(apitest.Knock{Method: "POST", Path: "/v1/sessions", Token: w.Admin}).Want(201)
			time.Sleep(10 * time.Minute)
		}
		feed, _, err := w.Store.Feed(t.Context(), 0, 100, eventlog.FeedFilter{})
		if err != nil || len(feed) != 20 {
			t.Fatal(len(feed), err)
		}
		for i, e := range feed {
			for off, first := range map[time.Duration]int{-time.Second: i, 0: i, time.Second: i + 1} {
				since := e.Event.Time.Add(off)
				from, err := logs.Seek(t.Context(), w.Store, since)
				if err != nil {
					t.Fatal(err)
				}
				rest, _, err := w.Store.Feed(t.Context(), from, 100, eventlog.FeedFilter{})
				if err != nil || len(rest) != len(feed)-first {
					t.Errorf("from event %d %+s on: %d events, want %d (%v)", i, off, len(rest), len(feed)-first, err)
				}
				page := w.Knock(apitest.Knock{Path: "/v1/events?limit=100&since=" + since.Format(time.RFC3339), Token: w.Admin}).Want(200)
				if n := strings.Count(string(page.Body), `"type":"session.created"`); n != len(feed)-first {
					t.Errorf("since event %d %+s: %d events, want %d", i, off, n, len(feed)-first)
				}
			}
		}
	})
}

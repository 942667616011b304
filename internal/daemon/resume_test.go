package daemon_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tokens"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// resumes is C85 over any number of doors to one store: readers who drop their
// stream at random and go on at a door at random, by header or by query.
type resumes struct {
	doors          []string // base URLs
	token          string
	session, run   string // run: the second half of the readers follows it alone
	last           int64  // sequence of the run's last event, and of the session's
	readers, drops int
	// furthest is the highest sequence that any reader has come to. Who appends stays
	// close to it, so that readers stand at the end, and not all before it.
	furthest atomic.Int64
}

// readerPatience is how long one connection of a reader may take.
const readerPatience = time.Minute

// lead is how far the log may be ahead of its fastest reader.
const lead = 12

// await waits until the fastest reader is close to a sequence.
func (r *resumes) await(ctx context.Context, seq int64) error {
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for r.furthest.Load() < seq-lead {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// play reads until every reader has every event: each once, ascending, with no
// gap (I-18). Somebody else appends meanwhile.
func (r *resumes) play(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range r.readers {
		wg.Go(func() {
			rng := mrand.New(mrand.NewPCG(85, uint64(i)))
			path, last := "/v1/sessions/"+r.session+"/stream", int64(0)
			if i%2 == 1 {
				path, last = "/v1/runs/"+r.run+"/stream", 1 // a run begins behind session.created
			}
			for drop := 0; last < r.last; drop++ {
				patience := 1 + rng.Int64N(2*r.last/int64(r.drops))
				if drop >= r.drops {
					patience = r.last
				}
				if err := r.read(path, rng, &last, patience); err != nil {
					t.Errorf("reader %d after %d: %v", i, last, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// read goes on with a stream for some events, and drops it.
func (r *resumes) read(path string, rng *mrand.Rand, last *int64, patience int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), readerPatience)
	defer cancel()
	url := r.doors[rng.IntN(len(r.doors))] + path
	header := rng.IntN(2) == 0
	if !header {
		url += "?after=" + strconv.FormatInt(*last, 10)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	if header {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(*last, 10))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	var id string
	synced := false
	for seen := int64(0); seen < patience && *last < r.last; {
		if !lines.Scan() {
			return fmt.Errorf("the stream ended: %w", lines.Err())
		}
		line := lines.Text()
		switch name, value, _ := strings.Cut(line, ": "); name {
		case "event":
			if value == "synced" && synced {
				return fmt.Errorf("synced twice")
			}
			synced = synced || value == "synced"
			id = ""
		case "id":
			id = value
		case "data":
			var e api.Event
			if id == "" {
				continue
			}
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return err
			}
			if e.Seq != *last+1 || id != strconv.FormatInt(e.Seq, 10) {
				return fmt.Errorf("event %s with seq %d after %d", id, e.Seq, *last)
			}
			*last = e.Seq
			for far := r.furthest.Load(); e.Seq > far && !r.furthest.CompareAndSwap(far, e.Seq); far = r.furthest.Load() {
			}
			seen++
		}
	}
	return nil
}

// I-18, C85: over two doors with hubs of their own, where the second hears of
// commits by heads alone, as a node hears of what another one committed.
func TestResumeOverTwoDoors(t *testing.T) {
	var near, far live.Hub
	news := make(chan eventlog.Stamp, 4096)
	store, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: sqlite.SyncNormal,
		OnCommit: func(stamps []eventlog.Stamp) {
			for _, s := range stamps {
				near.Ring(s.Stream, s.Events)
				news <- s
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	var telling sync.WaitGroup
	telling.Go(func() {
		for s := range news {
			far.Tell(s.Stream, s.Events[len(s.Events)-1].Seq)
		}
	})
	defer func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
		close(news)
		telling.Wait()
	}()
	tools, err := tool.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	text, row, err := tokens.New(rand.Reader, "t", "admin", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.AddToken(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	intake := admission.New(admission.Config{Store: store, Tools: tools, Random: rand.Reader,
		Route: func(string, string) (event.Route, error) {
			return event.Route{Name: "main", Provider: "p", Model: "m"}, nil
		},
		CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) { return t, nil }})
	var doors []string
	for _, hub := range []*live.Hub{&near, &far} {
		h, err := httpapi.New(httpapi.Config{Store: store, Admission: intake, Hub: hub, Version: "v", Logger: slog.New(slog.DiscardHandler), Heartbeat: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(h)
		defer srv.Close()
		doors = append(doors, srv.URL)
	}
	c, err := client.New(doors[0], text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	run, _, err := c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	const last = 2000
	readers := &resumes{doors: doors, token: text, session: s.ID, run: run.ID, last: last, readers: 10, drops: 200}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := mrand.New(mrand.NewPCG(1, 2))
		id := event.SessionID(s.ID)
		for n := 3; n < last; {
			var list []event.Event
			for range min(1+rng.IntN(8), last-n) {
				list = append(list, event.Event{SessionID: id, UserID: run.UserID, RunID: event.RunID(run.ID), Data: &event.StateEntered{}})
			}
			if readers.await(ctx, int64(n)) != nil {
				return // they have given up
			}
			if n += len(list); n == last {
				list[len(list)-1].Data = &event.RunCompleted{}
			}
			if _, err := store.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: list}}}); err != nil {
				t.Error(err)
				return
			}
			for _, hub := range []*live.Hub{&near, &far} {
				hub.Deliver(id.Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Number: int64(n), Epoch: 1, After: 3, Text: "live"})
			}
		}
	})
	readers.play(t)
	cancel()
	wg.Wait()
}

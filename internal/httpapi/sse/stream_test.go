package sse_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// I-18, C85: over drops at any place each client sees each event once, in order.
func TestResume(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	const events, clients, drops = 2000, 10, 20
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for n := 3; n < events; {
			batch := min(1+rng.IntN(40), events-n)
			var list []event.Data
			for range batch {
				list = append(list, &event.StateEntered{From: strconv.Itoa(n)})
			}
			w.Append(&run, list...)
			w.Hub.Publish(event.SessionID(s.ID).Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Text: "live"})
			n += batch
		}
		w.Append(&run, &event.RunCompleted{})
	})
	for i := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i)))
			path := "/v1/runs/" + run.ID + "/stream"
			if i%2 == 0 {
				path = "/v1/sessions/" + s.ID + "/stream"
			}
			var last int64
			if i%2 == 1 {
				last = 1 // a run begins with its run.created
			}
			for drop := 0; ; drop++ {
				patience := 1 + rng.IntN(events/drops)
				if drop >= drops {
					patience = events + 1
				}
				if err := readFrom(w, path, rng, &last, patience); err != nil {
					t.Errorf("client %d after %d: %v", i, last, err)
					return
				}
				if last == events {
					return
				}
			}
		})
	}
	wg.Wait()
}

// readFrom goes on with a stream for some events, and drops it.
func readFrom(w *apitest.World, path string, rng *rand.Rand, last *int64, patience int) error {
	var header []string
	if rng.IntN(2) == 0 {
		header = []string{"Last-Event-ID", fmt.Sprint(*last)}
		path += "?after=7" // the header wins
	} else {
		path += "?after=" + fmt.Sprint(*last)
	}
	s, err := w.Open(w.Server.Client(), path, w.Admin, header...)
	if err != nil {
		return err
	}
	defer s.Close()
	for seen := 0; seen < patience && *last < 2000; {
		m, err := s.Next()
		if err != nil {
			return err
		}
		if m.ID == "" {
			if m.Kind != "synced" && !strings.HasSuffix(m.Kind, ".delta") {
				return fmt.Errorf("a durable %s without an id", m.Kind)
			}
			continue
		}
		var e api.Event
		if err := json.Unmarshal([]byte(m.Data), &e); err != nil {
			return err
		}
		if e.Seq != *last+1 || m.ID != fmt.Sprint(e.Seq) || m.Kind != e.Type {
			return fmt.Errorf("event %s#%s with seq %d", m.Kind, m.ID, e.Seq)
		}
		*last = e.Seq
		seen++
	}
	return nil
}

// C85, the edges.
func TestStreamCursor(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run := w.Submit(s.ID, "x") // 3 events
	path := "/v1/sessions/" + s.ID + "/stream"
	for _, bad := range []string{"-1", "abc", "1.0", "%201", "%2b1", "99999999999999999999", "0x1"} {
		w.Do("GET", path+"?after="+bad, w.Admin, nil).Want(400, "invalid_parameter")
		w.Do("GET", path+"?after=1", w.Admin, nil, "Last-Event-ID", "x"+bad).Want(400, "invalid_parameter")
	}
	w.Follow(path).Want("session.created#1", "run.created#2", "run.queued#3", "synced")
	w.Follow(path+"?after=1").Want("run.created#2", "run.queued#3", "synced")
	w.Follow(path+"?after=0", "Last-Event-ID", "2").Want("run.queued#3", "synced")
	head, past := w.Follow(path+"?after=3"), w.Follow(path+"?after=4")
	head.Want("synced")
	past.Want("synced")
	w.Append(&run, &event.RunStarted{}, &event.StateEntered{})
	head.Want("run.started#4", "fsm.state.entered#5")
	past.Want("fsm.state.entered#5")
}

func TestRunStreamEnds(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run, next := w.Submit(s.ID, "x"), w.Submit(s.ID, "y")
	path := "/v1/runs/" + run.ID + "/stream"
	live, past, whole := w.Follow(path), w.Follow(path+"?after=1000"), w.Follow("/v1/sessions/"+s.ID+"/stream?after=5")
	live.Want("run.created#2", "run.queued#3", "synced")
	past.Want("synced")
	whole.Want("synced")
	w.Append(&run, &event.RunStarted{}, &event.RunCompleted{})
	live.Want("run.started#6", "run.completed#7")
	live.Ends()
	past.Ends()
	w.Append(&next, &event.RunStarted{})
	whole.Want("run.started#6", "run.completed#7", "run.started#8") // a session's stream goes on

	over := w.Follow(path, "Last-Event-ID", "3")
	over.Want("run.started#6", "run.completed#7")
	over.Ends()
	for _, after := range []string{"7", "8", "1000"} {
		w.Do("GET", path+"?after="+after, w.Admin, nil).Want(204)
	}
	if r := w.Do("HEAD", path, w.Admin, nil).Want(200); len(r.Body) != 0 {
		t.Error("HEAD with a body")
	}
}

// I-17: deltas have no id, and stand between the start of their step and its end.
func TestDeltas(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run, other := w.Submit(s.ID, "x"), w.Submit(s.ID, "y")
	stream := event.SessionID(s.ID).Stream()
	step := func(step string, data ...event.Data) {
		var drafts []event.Event
		for _, d := range data {
			drafts = append(drafts, event.Event{SessionID: event.SessionID(s.ID), UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
		}
		w.AppendTo(stream, nil, drafts...)
	}
	whole, only := w.Follow("/v1/sessions/"+s.ID+"/stream?after=5"), w.Follow("/v1/runs/"+run.ID+"/stream?after=5")
	whole.Want("synced")
	only.Want("synced")
	var kinds []string
	for i := range 20 {
		id := fmt.Sprint("step_", i)
		step(id, &event.StepStarted{}, &event.ModelCallStarted{})
		for j := range 3 {
			w.Hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: id, Text: fmt.Sprint(j)})
		}
		step(id, &event.TextEnded{}, &event.StepEnded{})
		kinds = append(kinds, "step.started", "model.call.started", "0", "1", "2", "text.ended", "step.ended")
	}
	for name, s := range map[string]*apitest.SSE{"session": whole, "run": only} {
		for i, want := range kinds {
			m, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			got := m.Kind
			if m.Kind == event.LiveTextDelta {
				var d api.Delta
				if err := json.Unmarshal([]byte(m.Data), &d); err != nil || m.ID != "" {
					t.Fatalf("delta %+v: %v", m, err)
				}
				got = d.Text
			}
			if got != want {
				t.Fatalf("%s, message %d: got %s, want %s", name, i, got, want)
			}
		}
	}
	w.Hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: other.ID, StepID: "step_of_other"})
	w.Hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: "step_19", Text: "mine"})
	if m := only.Want(event.LiveTextDelta)[0]; !strings.Contains(m.Data, "mine") {
		t.Errorf("a run's stream shows another's delta: %s", m.Data)
	}
	log := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/sessions/"+s.ID+"/events?limit=1000", w.Admin, nil))
	if len(log.Items) != 5+20*4 {
		t.Errorf("%d events in the log", len(log.Items))
	}
}

func TestStreamOfErasedSession(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	w.Append(&run, &event.RunStarted{})
	whole, only := w.Follow("/v1/sessions/"+s.ID+"/stream?after=4"), w.Follow("/v1/runs/"+run.ID+"/stream?after=4")
	whole.Want("synced")
	only.Want("synced")
	_, err := w.Store.Append(t.Context(), eventlog.Append{Erase: event.SessionID(s.ID), Entries: []eventlog.Entry{{
		Stream: event.SessionID(s.ID).Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: event.SessionID(s.ID), UserID: "default", Data: &event.SessionErased{}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	whole.Want("session.erased#5")
	for _, s := range []*apitest.SSE{whole, only} {
		if m := s.Want("problem")[0]; !strings.Contains(m.Data, `"status":410`) {
			t.Errorf("problem %s", m.Data)
		}
		s.Ends()
	}
}

func TestHeartbeatAndRevocation(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.Heartbeat = 10 * time.Millisecond })
	s := w.Session("")
	made := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", w.Admin, `{"role":"reader"}`).Want(201))
	f, err := w.Open(w.Server.Client(), "/v1/sessions/"+s.ID+"/stream?after=1", made.Token)
	if err != nil {
		t.Fatal(err)
	}
	f.Want("synced")
	for range 3 {
		if m, err := f.Next(); err != nil || m.Comment == "" || m.ID != "" || m.Kind != "" {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	w.Do("DELETE", "/v1/tokens/"+made.ID, w.Admin, nil).Want(204)
	for {
		m, err := f.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Comment == "" {
			if m.Kind != "problem" || !strings.Contains(m.Data, `"invalid_token"`) {
				t.Errorf("%+v", m)
			}
			break
		}
	}
	f.Ends()
}

func TestStreamsAreBoundedAndStop(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.MaxStreams = 2 })
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	path := "/v1/sessions/" + s.ID + "/stream?after=3"
	a, b := w.Follow(path), w.Follow(path)
	a.Want("synced")
	b.Want("synced")
	if r := w.Do("GET", path, w.Admin, nil).Want(429, "too_many_streams"); r.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=1s", w.Admin, nil).Want(429, "too_many_streams")
	close(w.Stop)
	a.Ends()
	b.Ends()
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.Admin, nil).Want(200) // at once
}

// What was told of before a stop is shown before the stream ends, also where both
// come in one moment. // I-18
func TestNewsBeforeAStop(t *testing.T) {
	for range 10 {
		hub := &live.Hub{} // which hears of nothing by itself
		w := apitest.New(t, func(c *httpapi.Config) { c.Hub = hub })
		s := w.Session("")
		run := w.Submit(s.ID, "x")
		f := w.Follow("/v1/sessions/" + s.ID + "/stream?after=3")
		f.Want("synced")
		w.Append(&run, &event.TextEnded{Content: event.Content{Text: "the last"}})
		hub.Tell(event.SessionID(s.ID).Stream(), 4)
		close(w.Stop)
		f.Want("text.ended#4")
		f.Ends()
	}
}

// C87: a reader that does not read costs nobody else anything, and is let go.
func TestSlowReader(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.WriteTimeout = 5 * time.Second })
	let := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.Handler.ServeHTTP(rw, r)
		if r.Header.Get("X-Slow") != "" {
			close(let)
		}
	}))
	t.Cleanup(srv.Close)
	w.Server.Close()
	w.Server = srv
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	const events = 20_000
	path := "/v1/sessions/" + s.ID + "/stream"
	slow, err := w.Open(srv.Client(), path, w.Admin, "X-Slow", "1")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 5 {
		f := w.Follow(path)
		wg.Go(func() {
			for n := int64(0); n < events; {
				m, err := f.Next()
				if err != nil {
					t.Errorf("after %d: %v", n, err)
					return
				}
				if m.ID != "" {
					if n++; m.ID != fmt.Sprint(n) {
						t.Errorf("event %s, want %d", m.ID, n)
						return
					}
				}
			}
		})
	}
	text := strings.Repeat("k", 1000)
	for n := 3; n < events; {
		batch := min(200, events-n)
		list := make([]event.Data, batch)
		for i := range list {
			list[i] = &event.TextEnded{Content: event.Content{Text: text}}
		}
		w.Append(&run, list...)
		n += batch
	}
	wg.Wait()
	<-let
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 24<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	var last int64
	for {
		m, err := slow.Next()
		if err != nil {
			break
		}
		if m.ID != "" {
			last++
		}
	}
	if last == 0 || last == events {
		t.Fatalf("the slow reader got %d events before it was let go", last)
	}
	rest := w.Follow(path, "Last-Event-ID", fmt.Sprint(last))
	for last < events {
		m, err := rest.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m.ID == "" {
			continue
		}
		if last++; m.ID != fmt.Sprint(last) {
			t.Fatalf("event %s, want %d", m.ID, last)
		}
	}
}

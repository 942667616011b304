package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// sse is one open stream, read as its lines say.
type sse struct {
	t      testing.TB
	res    *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// message is one server-sent event, or a comment.
type message struct{ kind, id, data, comment string }

// open opens a stream; it is closed with the test at the latest.
func (w *world) open(client *http.Client, path, token string, header ...string) (*sse, error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	res, err := client.Do(w.request("GET", path, token, nil, header...).WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	s := &sse{t: w.t, res: res, lines: bufio.NewReader(res.Body), cancel: cancel}
	w.t.Cleanup(s.close)
	return s, nil
}

func (w *world) follow(path string, header ...string) *sse {
	w.t.Helper()
	s, err := w.open(w.server.Client(), path, w.admin, header...)
	if err != nil {
		w.t.Fatal(err)
	}
	if s.res.StatusCode != 200 || s.res.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("status %d, %v", s.res.StatusCode, s.res.Header)
	}
	return s
}

func (s *sse) close() {
	s.cancel()
	s.res.Body.Close()
}

// next reads a message; io.EOF when the stream has ended.
func (s *sse) next() (message, error) {
	var m message
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return m, err
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "event":
			m.kind = value
		case "id":
			m.id = value
		case "data":
			m.data += value
		case "":
			if line != "\n" {
				m.comment = line
			}
			if line == "\n" {
				return m, nil
			}
		}
	}
}

// want reads messages and compares kinds, with ids where there are some.
func (s *sse) want(list ...string) (got []message) {
	s.t.Helper()
	for _, want := range list {
		m, err := s.next()
		if err != nil {
			s.t.Fatalf("want %s: %v", want, err)
		}
		text := m.kind
		if m.id != "" {
			text += "#" + m.id
		}
		if text != want {
			s.t.Fatalf("got %s %s, want %s", text, m.data, want)
		}
		got = append(got, m)
	}
	return got
}

// ends checks that nothing follows.
func (s *sse) ends() {
	s.t.Helper()
	if m, err := s.next(); !errors.Is(err, io.EOF) {
		s.t.Fatalf("after the end: %+v, %v", m, err)
	}
}

// I-18, C85: over drops at any place each client sees each event once, in order.
func TestResume(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run := w.submit(s.ID, "x")
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
			w.append(&run, list...)
			w.hub.Publish(event.SessionID(s.ID).Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Text: "live"})
			n += batch
		}
		w.append(&run, &event.RunCompleted{})
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
				if err := w.readFrom(path, rng, &last, patience); err != nil {
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
func (w *world) readFrom(path string, rng *rand.Rand, last *int64, patience int) error {
	var header []string
	if rng.IntN(2) == 0 {
		header = []string{"Last-Event-ID", fmt.Sprint(*last)}
		path += "?after=7" // the header wins
	} else {
		path += "?after=" + fmt.Sprint(*last)
	}
	s, err := w.open(w.server.Client(), path, w.admin, header...)
	if err != nil {
		return err
	}
	defer s.close()
	for seen := 0; seen < patience && *last < 2000; {
		m, err := s.next()
		if err != nil {
			return err
		}
		if m.id == "" {
			if m.kind != "synced" && !strings.HasSuffix(m.kind, ".delta") {
				return fmt.Errorf("a durable %s without an id", m.kind)
			}
			continue
		}
		var e api.Event
		if err := json.Unmarshal([]byte(m.data), &e); err != nil {
			return err
		}
		if e.Seq != *last+1 || m.id != fmt.Sprint(e.Seq) || m.kind != e.Type {
			return fmt.Errorf("event %s#%s with seq %d", m.kind, m.id, e.Seq)
		}
		*last = e.Seq
		seen++
	}
	return nil
}

// C85, the edges.
func TestStreamCursor(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run := w.submit(s.ID, "x") // 3 events
	path := "/v1/sessions/" + s.ID + "/stream"
	for _, bad := range []string{"-1", "abc", "1.0", "%201", "%2b1", "99999999999999999999", "0x1"} {
		w.do("GET", path+"?after="+bad, w.admin, nil).want(400, "invalid_parameter")
		w.do("GET", path+"?after=1", w.admin, nil, "Last-Event-ID", "x"+bad).want(400, "invalid_parameter")
	}
	w.follow(path).want("session.created#1", "run.created#2", "run.queued#3", "synced")
	w.follow(path+"?after=1").want("run.created#2", "run.queued#3", "synced")
	w.follow(path+"?after=0", "Last-Event-ID", "2").want("run.queued#3", "synced")
	head, past := w.follow(path+"?after=3"), w.follow(path+"?after=4")
	head.want("synced")
	past.want("synced")
	w.append(&run, &event.RunStarted{}, &event.StateEntered{})
	head.want("run.started#4", "fsm.state.entered#5")
	past.want("fsm.state.entered#5")
}

func TestRunStreamEnds(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run, next := w.submit(s.ID, "x"), w.submit(s.ID, "y")
	path := "/v1/runs/" + run.ID + "/stream"
	live, past, whole := w.follow(path), w.follow(path+"?after=1000"), w.follow("/v1/sessions/"+s.ID+"/stream?after=5")
	live.want("run.created#2", "run.queued#3", "synced")
	past.want("synced")
	whole.want("synced")
	w.append(&run, &event.RunStarted{}, &event.RunCompleted{})
	live.want("run.started#6", "run.completed#7")
	live.ends()
	past.ends()
	w.append(&next, &event.RunStarted{})
	whole.want("run.started#6", "run.completed#7", "run.started#8") // a session's stream goes on

	over := w.follow(path, "Last-Event-ID", "3")
	over.want("run.started#6", "run.completed#7")
	over.ends()
	for _, after := range []string{"7", "8", "1000"} {
		w.do("GET", path+"?after="+after, w.admin, nil).want(204)
	}
	if r := w.do("HEAD", path, w.admin, nil).want(200); len(r.body) != 0 {
		t.Error("HEAD with a body")
	}
}

// I-17: deltas have no id, and stand between the start of their step and its end.
func TestDeltas(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run, other := w.submit(s.ID, "x"), w.submit(s.ID, "y")
	stream := event.SessionID(s.ID).Stream()
	step := func(step string, data ...event.Data) {
		var drafts []event.Event
		for _, d := range data {
			drafts = append(drafts, event.Event{SessionID: event.SessionID(s.ID), UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
		}
		w.appendTo(stream, nil, drafts...)
	}
	whole, only := w.follow("/v1/sessions/"+s.ID+"/stream?after=5"), w.follow("/v1/runs/"+run.ID+"/stream?after=5")
	whole.want("synced")
	only.want("synced")
	var kinds []string
	for i := range 20 {
		id := fmt.Sprint("step_", i)
		step(id, &event.StepStarted{}, &event.ModelCallStarted{})
		for j := range 3 {
			w.hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: id, Text: fmt.Sprint(j)})
		}
		step(id, &event.TextEnded{}, &event.StepEnded{})
		kinds = append(kinds, "step.started", "model.call.started", "0", "1", "2", "text.ended", "step.ended")
	}
	for name, s := range map[string]*sse{"session": whole, "run": only} {
		for i, want := range kinds {
			m, err := s.next()
			if err != nil {
				t.Fatal(err)
			}
			got := m.kind
			if m.kind == event.LiveTextDelta {
				var d api.Delta
				if err := json.Unmarshal([]byte(m.data), &d); err != nil || m.id != "" {
					t.Fatalf("delta %+v: %v", m, err)
				}
				got = d.Text
			}
			if got != want {
				t.Fatalf("%s, message %d: got %s, want %s", name, i, got, want)
			}
		}
	}
	w.hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: other.ID, StepID: "step_of_other"})
	w.hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: "step_19", Text: "mine"})
	if m := only.want(event.LiveTextDelta)[0]; !strings.Contains(m.data, "mine") {
		t.Errorf("a run's stream shows another's delta: %s", m.data)
	}
	log := into[api.List[api.Event]](w.do("GET", "/v1/sessions/"+s.ID+"/events?limit=1000", w.admin, nil))
	if len(log.Items) != 5+20*4 {
		t.Errorf("%d events in the log", len(log.Items))
	}
}

func TestStreamOfErasedSession(t *testing.T) {
	w := newWorld(t)
	s := w.session("")
	run := w.submit(s.ID, "x")
	w.append(&run, &event.RunStarted{})
	whole, only := w.follow("/v1/sessions/"+s.ID+"/stream?after=4"), w.follow("/v1/runs/"+run.ID+"/stream?after=4")
	whole.want("synced")
	only.want("synced")
	_, err := w.store.Append(t.Context(), eventlog.Append{Erase: event.SessionID(s.ID), Entries: []eventlog.Entry{{
		Stream: event.SessionID(s.ID).Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: event.SessionID(s.ID), UserID: "default", Data: &event.SessionErased{}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	whole.want("session.erased#5")
	for _, s := range []*sse{whole, only} {
		if m := s.want("problem")[0]; !strings.Contains(m.data, `"status":410`) {
			t.Errorf("problem %s", m.data)
		}
		s.ends()
	}
}

func TestHeartbeatAndRevocation(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	s := w.session("")
	made := into[api.Token](w.do("POST", "/v1/tokens", w.admin, `{"role":"reader"}`).want(201))
	f, err := w.open(w.server.Client(), "/v1/sessions/"+s.ID+"/stream?after=1", made.Token)
	if err != nil {
		t.Fatal(err)
	}
	f.want("synced")
	for range 3 {
		if m, err := f.next(); err != nil || m.comment == "" || m.id != "" || m.kind != "" {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	w.do("DELETE", "/v1/tokens/"+made.ID, w.admin, nil).want(204)
	for {
		m, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.comment == "" {
			if m.kind != "problem" || !strings.Contains(m.data, `"invalid_token"`) {
				t.Errorf("%+v", m)
			}
			break
		}
	}
	f.ends()
}

func TestStreamsAreBoundedAndStop(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxStreams = 2 })
	s := w.session("")
	run := w.submit(s.ID, "x")
	path := "/v1/sessions/" + s.ID + "/stream?after=3"
	a, b := w.follow(path), w.follow(path)
	a.want("synced")
	b.want("synced")
	if r := w.do("GET", path, w.admin, nil).want(429, "too_many_streams"); r.header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	w.do("GET", "/v1/runs/"+run.ID+"?wait=1s", w.admin, nil).want(429, "too_many_streams")
	close(w.stop)
	a.ends()
	b.ends()
	w.do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.admin, nil).want(200) // at once
}

// One token cannot take all streams and waits: a fifth stays for others, and what it
// gives back it may take again.
func TestOneTokenHasAShareOfTheStreams(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxStreams = 5 })
	other := w.token("admin", "")
	s := w.session("")
	run := w.submit(s.ID, "x")
	path := "/v1/sessions/" + s.ID + "/stream?after=3"
	for range 3 {
		w.follow(path).want("synced")
	}
	last := w.follow(path)
	last.want("synced")
	w.do("GET", "/v1/runs/"+run.ID+"?wait=5ms", w.admin, nil).want(429, "too_many_streams")
	if r := w.do("GET", path, w.admin, nil).want(429, "too_many_streams"); r.header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	w.do("GET", "/v1/runs/"+run.ID+"?wait=5ms", other, nil).want(200)
	last.close()
	for w.handler.server.streams.count() > 3 {
		w.do("GET", "/healthz", "", nil).want(200)
	}
	w.do("GET", "/v1/runs/"+run.ID+"?wait=5ms", w.admin, nil).want(200)
}

// What was told of before a stop is shown before the stream ends, also where both
// come in one moment. // I-18
func TestNewsBeforeAStop(t *testing.T) {
	for range 10 {
		hub := &live.Hub{} // which hears of nothing by itself
		w := newWorld(t, func(c *Config) { c.Hub = hub })
		s := w.session("")
		run := w.submit(s.ID, "x")
		f := w.follow("/v1/sessions/" + s.ID + "/stream?after=3")
		f.want("synced")
		w.append(&run, &event.TextEnded{Content: event.Content{Text: "the last"}})
		hub.Tell(event.SessionID(s.ID).Stream(), 4)
		close(w.stop)
		f.want("text.ended#4")
		f.ends()
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDoor(t)
		w.admin = w.token("admin", "")
		ask := func(method, path, body string) *reply {
			k := knock{method: method, path: path, token: w.admin, body: body}
			if body != "" {
				k.header = []string{"Content-Type", "application/json"}
			}
			return w.knock(k)
		}
		s := into[api.Session](ask("POST", "/v1/sessions", `{}`).want(201))
		run := into[api.Run](ask("POST", "/v1/sessions/"+s.ID+"/runs", `{"content":"x"}`).want(202))
		begin := time.Now()
		if got := into[api.Run](ask("GET", "/v1/runs/"+run.ID+"?wait=5ms", "").want(200)); got.Status != "queued" || time.Since(begin) != 5*time.Millisecond {
			t.Errorf("status %s after %s", got.Status, time.Since(begin))
		}
		begin = time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if got := into[api.Run](ask("GET", "/v1/runs/"+run.ID+"?wait=60s", "")); got.Status != "completed" || len(got.Outputs) != 1 {
					t.Errorf("status %s", got.Status)
				}
			})
		}
		synctest.Wait()
		w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: "ok"}})
		wg.Wait()
		if took := time.Since(begin); took >= lookAgain {
			t.Errorf("it took %s: nobody heard the bell", took)
		}
	})
}

// C87: a reader that does not read costs nobody else anything, and is let go.
func TestSlowReader(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WriteTimeout = 5 * time.Second })
	let := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.handler.ServeHTTP(rw, r)
		if r.Header.Get("X-Slow") != "" {
			close(let)
		}
	}))
	t.Cleanup(srv.Close)
	w.server.Close()
	w.server = srv
	s := w.session("")
	run := w.submit(s.ID, "x")
	const events = 20_000
	path := "/v1/sessions/" + s.ID + "/stream"
	slow, err := w.open(srv.Client(), path, w.admin, "X-Slow", "1")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 5 {
		f := w.follow(path)
		wg.Go(func() {
			for n := int64(0); n < events; {
				m, err := f.next()
				if err != nil {
					t.Errorf("after %d: %v", n, err)
					return
				}
				if m.id != "" {
					if n++; m.id != fmt.Sprint(n) {
						t.Errorf("event %s, want %d", m.id, n)
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
		w.append(&run, list...)
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
		m, err := slow.next()
		if err != nil {
			break
		}
		if m.id != "" {
			last++
		}
	}
	if last == 0 || last == events {
		t.Fatalf("the slow reader got %d events before it was let go", last)
	}
	rest := w.follow(path, "Last-Event-ID", fmt.Sprint(last))
	for last < events {
		m, err := rest.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.id == "" {
			continue
		}
		if last++; m.id != fmt.Sprint(last) {
			t.Fatalf("event %s, want %d", m.id, last)
		}
	}
}

package sse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	"github.com/holdfast-dev/holdfast/internal/live"
)

// between does something in the middle of what a stream reads.
type between struct {
	httpapi.Store
	mu                             sync.Mutex
	beforeHead, afterHead, pageOne func()
}

func (b *between) once(f *func()) {
	b.mu.Lock()
	do := *f
	*f = nil
	b.mu.Unlock()
	if do != nil {
		do()
	}
}

func (b *between) Head(ctx context.Context, s event.Stream) (h eventlog.Head, err error) {
	b.once(&b.beforeHead)
	h, err = b.Store.Head(ctx, s)
	b.once(&b.afterHead)
	return h, err
}

func (b *between) ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error) {
	list, err := b.Store.ReadBounded(ctx, s, after, limit)
	b.once(&b.pageOne)
	return list, err
}

// I-18: listen, read the end, replay, one synced, go on. What is committed
// between any two of them comes once, in order, and on its own side of the
// marker; nobody waits for a heartbeat.
func TestOrderOfAJoin(t *testing.T) {
	b := &between{}
	w := apitest.New(t, func(c *httpapi.Config) {
		c.Heartbeat = time.Hour
		b.Store = c.Store
		c.Store = b
	})
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	add := func() { w.Append(&run, &event.StateEntered{}) }
	b.mu.Lock()
	b.beforeHead, b.afterHead, b.pageOne = add, add, add
	b.mu.Unlock()
	f := w.Follow("/v1/sessions/" + s.ID + "/stream?after=1")
	got := f.Want("run.created#2", "run.queued#3", "fsm.state.entered#4", "synced", "fsm.state.entered#5", "fsm.state.entered#6")
	if got[3].Data != `{"seq":4,"live":"local"}` {
		t.Errorf("marker %s", got[3].Data)
	}
	add()
	f.Want("fsm.state.entered#7")
}

// twin is a second door over the same store, as another node has: it hears of
// commits by Tell, and of deltas by Deliver.
func twin(w *apitest.World, change ...func(*httpapi.Config)) *apitest.World {
	w.T.Helper()
	x := *w
	x.Hub = &live.Hub{}
	cfg := w.Config
	cfg.Hub = x.Hub
	for _, f := range change {
		f(&cfg)
	}
	h, err := httpapi.New(cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	x.Handler = h
	x.Server = httptest.NewServer(h)
	w.T.Cleanup(x.Server.Close)
	return &x
}

// attempt appends the start of an attempt and gives what its deltas say of it.
func attempt(w *apitest.World, run *api.Run, step string, number int, first ...event.Data) api.Delta {
	w.T.Helper()
	id := event.SessionID(run.SessionID)
	drafts := []event.Event{}
	for _, d := range append(first, &event.ModelCallStarted{Attempt: number}) {
		drafts = append(drafts, event.Event{SessionID: id, UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
	}
	w.AppendTo(id.Stream(), nil, drafts...)
	h, err := w.Store.Head(w.T.Context(), id.Stream())
	if err != nil {
		w.T.Fatal(err)
	}
	return api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: step, Attempt: number, Epoch: h.Epoch, After: h.Seq}
}

func step(w *apitest.World, run *api.Run, step string, data ...event.Data) {
	w.T.Helper()
	id := event.SessionID(run.SessionID)
	for _, d := range data {
		w.AppendTo(id.Stream(), nil, event.Event{SessionID: id, UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
	}
}

func claim(w *apitest.World, run *api.Run) {
	w.T.Helper()
	id := event.SessionID(run.SessionID)
	h, err := w.Store.Head(w.T.Context(), id.Stream())
	if err != nil {
		w.T.Fatal(err)
	}
	_, err = w.Store.Append(w.T.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: h.Seq, Epoch: h.Epoch, Claim: true,
		Events: []event.Event{{SessionID: id, UserID: run.UserID, Data: &event.OwnerClaimed{Owner: "gen_2"}}}}}})
	if err != nil {
		w.T.Fatal(err)
	}
}

func numbered(d api.Delta, n int64) api.Delta {
	d.Number, d.Text = n, fmt.Sprintf("%d/%d", d.Attempt, n)
	return d
}

// gap reads a gap marker.
func gap(s *apitest.SSE, want api.Gap) {
	s.T.Helper()
	var got api.Gap
	if m := s.Want("gap")[0]; json.Unmarshal([]byte(m.Data), &got) != nil || got != want {
		s.T.Fatalf("gap %s, want %+v", m.Data, want)
	}
}

// text reads deltas.
func text(s *apitest.SSE, want ...string) {
	s.T.Helper()
	for _, text := range want {
		var d api.Delta
		if m := s.Want(event.LiveTextDelta)[0]; json.Unmarshal([]byte(m.Data), &d) != nil || d.Text != text {
			s.T.Fatalf("delta %s, want %s", m.Data, text)
		}
	}
}

// I-11, I-17: deltas of another node overtake the doorbell and come late, twice
// or not at all. None is shown before the start of its attempt, after its end or
// after another owner's claim, and what is missing is told.
func TestDeltasFromElsewhere(t *testing.T) {
	w := apitest.New(t)
	there := twin(w, func(c *httpapi.Config) { c.Heartbeat = time.Hour })
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	claim(w, &run)
	stream := event.SessionID(s.ID).Stream()
	path := "/v1/sessions/" + s.ID + "/stream?after=4"
	f, own := there.Follow(path), there.Follow("/v1/runs/"+run.ID+"/stream?after=4")
	both := func(check func(*apitest.SSE)) {
		t.Helper()
		check(f)
		check(own)
	}
	send := func(d api.Delta, numbers ...int64) {
		for _, n := range numbers {
			there.Hub.Deliver(stream, numbered(d, n))
		}
	}
	both(func(f *apitest.SSE) { f.Want("synced") })

	one := attempt(w, &run, "step_1", 1, &event.StepStarted{})
	send(one, 1, 2, 2, 1, 3) // and nobody has told of the events
	both(func(f *apitest.SSE) { f.Want("step.started#5", "model.call.started#6"); text(f, "1/1", "1/2", "1/3") })
	send(one, 7)
	both(func(f *apitest.SSE) {
		gap(f, api.Gap{Reason: "bus", RunID: run.ID, StepID: "step_1", Attempt: 1, Missing: 3})
		text(f, "1/7")
	})
	late := there.Follow("/v1/sessions/" + s.ID + "/stream?after=6")
	late.Want("synced")
	send(one, 8)
	both(func(f *apitest.SSE) { text(f, "1/8") })
	gap(late, api.Gap{Reason: "late", RunID: run.ID, StepID: "step_1", Attempt: 1, Missing: 7})
	text(late, "1/8")
	late.Close()

	step(w, &run, "step_1", &event.ModelCallFailed{Attempt: 1}) // the log is faster than the bus
	there.Hub.Tell(stream, 7)
	both(func(f *apitest.SSE) { f.Want("model.call.failed#7") })
	send(one, 9, 10)
	two := attempt(w, &run, "step_1", 2)
	send(two, 1)
	both(func(f *apitest.SSE) { f.Want("model.call.started#8"); text(f, "2/1") })

	claim(w, &run) // #9
	three := attempt(w, &run, "step_1", 3)
	there.Hub.Tell(stream, three.After)
	f.Want("session.owner.claimed#9")
	both(func(f *apitest.SSE) { f.Want("model.call.started#10") })
	send(two, 2, 3) // a former owner that wakes up
	joined := there.Follow("/v1/sessions/" + s.ID + "/stream?after=10")
	joined.Want("synced")
	send(two, 4)
	send(three, 1)
	both(func(f *apitest.SSE) { text(f, "3/1") })
	text(joined, "3/1")

	strange := three
	strange.After = 1 << 40 // of a log that is not this one
	send(strange, 2)
	both(func(f *apitest.SSE) { gap(f, api.Gap{Reason: "bus"}) })
	there.Hub.Lost(stream)
	both(func(f *apitest.SSE) { gap(f, api.Gap{Reason: "bus"}) })
	step(w, &run, "step_1", &event.TextEnded{})
	there.Hub.Tell(stream, 11)
	both(func(f *apitest.SSE) { f.Want("text.ended#11") })
}

// Where live deltas come from is told with synced, and when it changes.
func TestWhereLiveComesFrom(t *testing.T) {
	var now atomic.Value
	now.Store(api.LiveNone)
	asked := make(chan struct{}, 16)
	w := apitest.New(t, func(c *httpapi.Config) {
		c.Heartbeat = time.Hour
		c.Live = func(event.Stream) string { asked <- struct{}{}; return now.Load().(string) }
	})
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	f := w.Follow("/v1/sessions/" + s.ID + "/stream?after=3")
	if m := f.Want("synced")[0]; m.Data != `{"seq":3,"live":"none"}` {
		t.Errorf("marker %s", m.Data)
	}
	<-asked
	w.Hub.Shift() // nothing has changed for this reader
	<-asked
	now.Store(api.LiveBus)
	w.Hub.Shift()
	if m := f.Want("live")[0]; m.Data != `{"live":"bus"}` || m.ID != "" {
		t.Errorf("marker %+v", m)
	}
	now.Store(api.LiveLocal)
	claim(w, &run)
	f.Want("session.owner.claimed#4")
	if m := f.Want("live")[0]; m.Data != `{"live":"local"}` {
		t.Errorf("marker %s", m.Data)
	}
}

// C87: a reader that takes what it is sent too late is told where to resume, and
// what it lost of live text; one that takes nothing is let go.
func TestCut(t *testing.T) {
	for _, tc := range []struct {
		pause time.Duration
		want  string
	}{{9 * time.Second, "gap"}, {12 * time.Second, "cut"}, {20 * time.Second, ""}} {
		t.Run(tc.pause.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { cutAfter(t, tc.pause, tc.want) }) })
	}
}

func cutAfter(t *testing.T, pause time.Duration, want string) {
	w := apitest.NewDoor(t)
	w.Admin = w.Token("admin", "")
	ask := func(path, body string, into any) {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://127.0.0.1"+path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+w.Admin)
		r.Header.Set("Content-Type", "application/json")
		w.Handler.ServeHTTP(rec, r)
		if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil || rec.Code > 299 {
			t.Fatalf("%d %s: %v", rec.Code, rec.Body, err)
		}
	}
	var s api.Session
	var run api.Run
	ask("/v1/sessions", "{}", &s)
	ask("/v1/sessions/"+s.ID+"/runs", `{"content":"x"}`, &run)
	ours, _ := w.OverPipes()
	fmt.Fprintf(ours, "GET /v1/sessions/%s/stream?after=3 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", s.ID, w.Admin)
	lines := bufio.NewReaderSize(ours, 16)
	res, err := http.ReadResponse(lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := apitest.NewSSE(t, res)
	f.Want("synced")
	synctest.Wait()
	w.Append(&run, &event.TextEnded{Content: event.Content{Text: strings.Repeat("x", 8000)}}) // it begins to take it
	synctest.Wait()
	for i := range live.DeltaBuffer + 1 {
		w.Hub.Publish(event.SessionID(s.ID).Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Part: i})
	}
	w.Append(&run, &event.StateEntered{})
	time.Sleep(pause)
	m, err := f.Next()
	if want == "" {
		if err == nil {
			t.Fatalf("%+v", m)
		}
		return
	}
	if err != nil || m.ID != "4" {
		t.Fatalf("%v, %+v", err, m)
	}
	switch want {
	case "cut":
		if m := f.Want("cut")[0]; m.Data != `{"resume_after":4,"reason":"slow_reader"}` || m.ID != "" {
			t.Errorf("%+v", m)
		}
		if m, err := f.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the cut: %+v, %v", m, err)
		}
	case "gap":
		var kinds []string
		for range 4 {
			m, err := f.Next()
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, m.Kind)
		}
		if text := strings.Join(kinds, " "); !strings.Contains(text, "gap text.delta") {
			t.Errorf("what was lost is not told: %s", text)
		}
	}
}

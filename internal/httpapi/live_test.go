package httpapi

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
	"github.com/holdfast-dev/holdfast/internal/live"
)

// between does something in the middle of what a stream reads.
type between struct {
	Store
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
	w := newWorld(t, func(c *Config) {
		c.Heartbeat = time.Hour
		b.Store = c.Store
		c.Store = b
	})
	s := w.session("")
	run := w.submit(s.ID, "x")
	add := func() { w.append(&run, &event.StateEntered{}) }
	b.mu.Lock()
	b.beforeHead, b.afterHead, b.pageOne = add, add, add
	b.mu.Unlock()
	f := w.follow("/v1/sessions/" + s.ID + "/stream?after=1")
	got := f.want("run.created#2", "run.queued#3", "fsm.state.entered#4", "synced", "fsm.state.entered#5", "fsm.state.entered#6")
	if got[3].data != `{"seq":4,"live":"local"}` {
		t.Errorf("marker %s", got[3].data)
	}
	add()
	f.want("fsm.state.entered#7")
}

// twin is a second door over the same store, as another node has: it hears of
// commits by Tell, and of deltas by Deliver.
func (w *world) twin(change ...func(*Config)) *world {
	w.t.Helper()
	x := *w
	x.hub = &live.Hub{}
	cfg := w.handler.server.cfg
	cfg.Hub = x.hub
	for _, f := range change {
		f(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	x.handler = h
	x.server = httptest.NewServer(h)
	w.t.Cleanup(x.server.Close)
	return &x
}

// attempt appends the start of an attempt and gives what its deltas say of it.
func (w *world) attempt(run *api.Run, step string, number int, first ...event.Data) api.Delta {
	w.t.Helper()
	id := event.SessionID(run.SessionID)
	drafts := []event.Event{}
	for _, d := range append(first, &event.ModelCallStarted{Attempt: number}) {
		drafts = append(drafts, event.Event{SessionID: id, UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
	}
	w.appendTo(id.Stream(), nil, drafts...)
	h, err := w.store.Head(w.t.Context(), id.Stream())
	if err != nil {
		w.t.Fatal(err)
	}
	return api.Delta{Type: event.LiveTextDelta, RunID: run.ID, StepID: step, Attempt: number, Epoch: h.Epoch, After: h.Seq}
}

func (w *world) step(run *api.Run, step string, data ...event.Data) {
	w.t.Helper()
	id := event.SessionID(run.SessionID)
	for _, d := range data {
		w.appendTo(id.Stream(), nil, event.Event{SessionID: id, UserID: run.UserID, RunID: event.RunID(run.ID), StepID: event.StepID(step), Data: d})
	}
}

func (w *world) claim(run *api.Run) {
	w.t.Helper()
	id := event.SessionID(run.SessionID)
	h, err := w.store.Head(w.t.Context(), id.Stream())
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = w.store.Append(w.t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: h.Seq, Epoch: h.Epoch, Claim: true,
		Events: []event.Event{{SessionID: id, UserID: run.UserID, Data: &event.OwnerClaimed{Owner: "gen_2"}}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func numbered(d api.Delta, n int64) api.Delta {
	d.Number, d.Text = n, fmt.Sprintf("%d/%d", d.Attempt, n)
	return d
}

// gap reads a gap marker.
func (s *sse) gap(want api.Gap) {
	s.t.Helper()
	var got api.Gap
	if m := s.want("gap")[0]; json.Unmarshal([]byte(m.data), &got) != nil || got != want {
		s.t.Fatalf("gap %s, want %+v", m.data, want)
	}
}

// text reads deltas.
func (s *sse) text(want ...string) {
	s.t.Helper()
	for _, text := range want {
		var d api.Delta
		if m := s.want(event.LiveTextDelta)[0]; json.Unmarshal([]byte(m.data), &d) != nil || d.Text != text {
			s.t.Fatalf("delta %s, want %s", m.data, text)
		}
	}
}

// I-11, I-17: deltas of another node overtake the doorbell and come late, twice
// or not at all. None is shown before the start of its attempt, after its end or
// after another owner's claim, and what is missing is told.
func TestDeltasFromElsewhere(t *testing.T) {
	w := newWorld(t)
	there := w.twin(func(c *Config) { c.Heartbeat = time.Hour })
	s := w.session("")
	run := w.submit(s.ID, "x")
	w.claim(&run)
	stream := event.SessionID(s.ID).Stream()
	path := "/v1/sessions/" + s.ID + "/stream?after=4"
	f, own := there.follow(path), there.follow("/v1/runs/"+run.ID+"/stream?after=4")
	both := func(check func(*sse)) {
		t.Helper()
		check(f)
		check(own)
	}
	send := func(d api.Delta, numbers ...int64) {
		for _, n := range numbers {
			there.hub.Deliver(stream, numbered(d, n))
		}
	}
	both(func(f *sse) { f.want("synced") })

	one := w.attempt(&run, "step_1", 1, &event.StepStarted{})
	send(one, 1, 2, 2, 1, 3) // and nobody has told of the events
	both(func(f *sse) { f.want("step.started#5", "model.call.started#6"); f.text("1/1", "1/2", "1/3") })
	send(one, 7)
	both(func(f *sse) {
		f.gap(api.Gap{Reason: "bus", RunID: run.ID, StepID: "step_1", Attempt: 1, Missing: 3})
		f.text("1/7")
	})
	late := there.follow("/v1/sessions/" + s.ID + "/stream?after=6")
	late.want("synced")
	send(one, 8)
	both(func(f *sse) { f.text("1/8") })
	late.gap(api.Gap{Reason: "late", RunID: run.ID, StepID: "step_1", Attempt: 1, Missing: 7})
	late.text("1/8")
	late.close()

	w.step(&run, "step_1", &event.ModelCallFailed{Attempt: 1}) // the log is faster than the bus
	there.hub.Tell(stream, 7)
	both(func(f *sse) { f.want("model.call.failed#7") })
	send(one, 9, 10)
	two := w.attempt(&run, "step_1", 2)
	send(two, 1)
	both(func(f *sse) { f.want("model.call.started#8"); f.text("2/1") })

	w.claim(&run) // #9
	three := w.attempt(&run, "step_1", 3)
	there.hub.Tell(stream, three.After)
	f.want("session.owner.claimed#9")
	both(func(f *sse) { f.want("model.call.started#10") })
	send(two, 2, 3) // a former owner that wakes up
	joined := there.follow("/v1/sessions/" + s.ID + "/stream?after=10")
	joined.want("synced")
	send(two, 4)
	send(three, 1)
	both(func(f *sse) { f.text("3/1") })
	joined.text("3/1")

	strange := three
	strange.After = 1 << 40 // of a log that is not this one
	send(strange, 2)
	both(func(f *sse) { f.gap(api.Gap{Reason: "bus"}) })
	there.hub.Lost(stream)
	both(func(f *sse) { f.gap(api.Gap{Reason: "bus"}) })
	w.step(&run, "step_1", &event.TextEnded{})
	there.hub.Tell(stream, 11)
	both(func(f *sse) { f.want("text.ended#11") })
}

// Where live deltas come from is told with synced, and when it changes.
func TestWhereLiveComesFrom(t *testing.T) {
	var now atomic.Value
	now.Store(api.LiveNone)
	asked := make(chan struct{}, 16)
	w := newWorld(t, func(c *Config) {
		c.Heartbeat = time.Hour
		c.Live = func(event.Stream) string { asked <- struct{}{}; return now.Load().(string) }
	})
	s := w.session("")
	run := w.submit(s.ID, "x")
	f := w.follow("/v1/sessions/" + s.ID + "/stream?after=3")
	if m := f.want("synced")[0]; m.data != `{"seq":3,"live":"none"}` {
		t.Errorf("marker %s", m.data)
	}
	<-asked
	w.hub.Shift() // nothing has changed for this reader
	<-asked
	now.Store(api.LiveBus)
	w.hub.Shift()
	if m := f.want("live")[0]; m.data != `{"live":"bus"}` || m.id != "" {
		t.Errorf("marker %+v", m)
	}
	now.Store(api.LiveLocal)
	w.claim(&run)
	f.want("session.owner.claimed#4")
	if m := f.want("live")[0]; m.data != `{"live":"local"}` {
		t.Errorf("marker %s", m.data)
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
	w := newDoor(t)
	w.admin = w.token("admin", "")
	ask := func(path, body string, into any) {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://127.0.0.1"+path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+w.admin)
		r.Header.Set("Content-Type", "application/json")
		w.handler.ServeHTTP(rec, r)
		if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil || rec.Code > 299 {
			t.Fatalf("%d %s: %v", rec.Code, rec.Body, err)
		}
	}
	var s api.Session
	var run api.Run
	ask("/v1/sessions", "{}", &s)
	ask("/v1/sessions/"+s.ID+"/runs", `{"content":"x"}`, &run)
	ours, _ := w.overPipes()
	fmt.Fprintf(ours, "GET /v1/sessions/%s/stream?after=3 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", s.ID, w.admin)
	lines := bufio.NewReaderSize(ours, 16)
	res, err := http.ReadResponse(lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &sse{t: t, res: res, lines: bufio.NewReaderSize(res.Body, 16), cancel: func() {}}
	f.want("synced")
	synctest.Wait()
	w.append(&run, &event.TextEnded{Content: event.Content{Text: strings.Repeat("x", 8000)}}) // it begins to take it
	synctest.Wait()
	for i := range live.DeltaBuffer + 1 {
		w.hub.Publish(event.SessionID(s.ID).Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Part: i})
	}
	w.append(&run, &event.StateEntered{})
	time.Sleep(pause)
	m, err := f.next()
	if want == "" {
		if err == nil {
			t.Fatalf("%+v", m)
		}
		return
	}
	if err != nil || m.id != "4" {
		t.Fatalf("%v, %+v", err, m)
	}
	switch want {
	case "cut":
		if m := f.want("cut")[0]; m.data != `{"resume_after":4,"reason":"slow_reader"}` || m.id != "" {
			t.Errorf("%+v", m)
		}
		if m, err := f.next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the cut: %+v, %v", m, err)
		}
	case "gap":
		var kinds []string
		for range 4 {
			m, err := f.next()
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, m.kind)
		}
		if text := strings.Join(kinds, " "); !strings.Contains(text, "gap text.delta") {
			t.Errorf("what was lost is not told: %s", text)
		}
	}
}

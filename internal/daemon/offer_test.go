package daemon_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// counting is a store that counts the appends to sessions that were made.
type counting struct {
	daemon.Store
	mu   sync.Mutex
	made map[event.Stream]int
	read map[event.Stream]int // how often it was read
}

func (s *counting) Read(ctx context.Context, stream event.Stream, after int64, limit int) ([]event.Event, error) {
	s.mu.Lock()
	s.read[stream]++
	s.mu.Unlock()
	return s.Store.Read(ctx, stream, after, limit)
}

// reads says how often a stream was read.
func (s *counting) reads(stream event.Stream) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read[stream]
}

func (s *counting) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	stamps, err := s.Store.Append(ctx, a)
	if err == nil && len(a.Entries) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.made[a.Entries[0].Stream]++
	}
	return stamps, err
}

// take gives how many there were since it was asked last.
func (s *counting) take(stream event.Stream) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.made[stream]
	s.made[stream] = 0
	return n
}

// atRest waits until no session is worked on.
func (h *house) atRest() {
	h.t.Helper()
	eventually(h.t, "the sessions do not come to rest", func() bool {
		text, err := h.c.Metrics(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		return strings.Contains(string(text), "\nholdfast_sessions_active 0\n")
	})
}

// countingHouse is one whose appends are counted.
func countingHouse(t *testing.T, free func() (uint64, bool), script chatstub.Script) (*house, *counting) {
	t.Helper()
	count := &counting{made: map[event.Stream]int{}, read: map[event.Stream]int{}}
	h := &house{t: t, stub: chatstub.New(script)}
	vendor := httptest.NewServer(h.stub)
	t.Cleanup(vendor.Close)
	h.opt = daemon.Options{Free: free, WrapStore: func(s daemon.Store) daemon.Store {
		count.Store = s
		return count
	}}
	h.beginAt(vendor.URL)
	return h, count
}

func saysDone(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: "done"} }

// A run of a session that rests here is one append less, and the log reads as ever. // I-02
func TestRunFromRest(t *testing.T) {
	h, count := countingHouse(t, nil, saysDone)
	s := h.session(&api.CreateSession{})
	stream := event.SessionID(s).Stream()
	var first []string
	for n := range 4 {
		count.take(stream)
		r := h.submit(s, &api.SubmitRun{Content: api.Text("go")})
		h.atRest()
		made := count.take(stream)
		if want := map[bool]int{true: 3, false: 2}[n == 0]; r.Status != api.RunCompleted || made != want {
			t.Errorf("run %d is %s, in %d appends, want %d", n, r.Status, made, want)
		}
		page, err := h.c.SessionEvents(t.Context(), s, client.EventsQuery{}, 0, 500)
		if err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, e := range page.Items {
			if e.RunID == r.ID {
				types = append(types, e.Type)
			}
		}
		if n == 0 {
			first = types
		} else if !slices.Equal(types, first) {
			t.Errorf("run %d reads\n%v, the first\n%v", n, types, first)
		}
	}
}

// An append that begins a run, and lands when the worker that made it has gone, is
// looked at: nobody else is told of it. One that has its worker begins nothing.
func TestBegunWithoutAWorker(t *testing.T) {
	h, count := countingHouse(t, nil, saysDone)
	id := event.SessionID(h.session(&api.CreateSession{}))
	h.submit(string(id), &api.SubmitRun{Content: api.Text("go")})
	h.atRest()
	before := count.reads(id.Stream())
	told := func(typ event.Type) {
		h.d.Committed([]eventlog.Stamp{{Stream: id.Stream(), Events: []event.Event{{Type: typ, SessionID: id}}}})
	}
	told(event.TypeStepStarted)
	h.atRest()
	if n := count.reads(id.Stream()); n != before {
		t.Errorf("the session was looked at %d times though nothing began", n-before)
	}
	told(event.TypeRunStarted)
	eventually(t, "nobody looks at the session", func() bool { return count.reads(id.Stream()) > before })
}

// Equal keys at once, to a session at rest, are one run, which the model is asked for
// once. // I-07
func TestOneKeyFromRest(t *testing.T) {
	const rounds, callers = 10, 20
	h, _ := countingHouse(t, nil, saysDone)
	s := h.session(&api.CreateSession{})
	h.submit(s, &api.SubmitRun{Content: api.Text("before")})
	for n := range rounds {
		h.atRest()
		var all sync.WaitGroup
		var made atomic.Int64
		ids := make([]string, callers)
		for i := range callers {
			all.Go(func() {
				r, created, err := h.c.Submit(t.Context(), s, &api.SubmitRun{Content: api.Text("go")}, client.IdempotencyKey(fmt.Sprint("key-", n)))
				if err != nil {
					t.Error(err)
					return
				}
				if created {
					made.Add(1)
				}
				ids[i] = r.ID
			})
		}
		all.Wait()
		if slices.Sort(ids); made.Load() != 1 || ids[0] != ids[callers-1] {
			t.Fatalf("%d runs were made: %v", made.Load(), ids)
		}
		if r, err := h.c.Wait(t.Context(), ids[0]); err != nil || r.Status != api.RunCompleted {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if n := len(h.stub.Requests()); n != rounds+1 {
		t.Errorf("the model was asked %d times", n)
	}
}

// Submissions to a session at rest that race with its close, or with the cancelling of
// one of them: what was accepted comes to its end, and of what was not nothing is there. // I-02 I-05 I-06
func TestRacesFromRest(t *testing.T) {
	for name, race := range map[string]func(h *house, s, run string) error{
		"close":  func(h *house, s, _ string) error { _, err := h.c.CloseSession(h.t.Context(), s, "over"); return err },
		"cancel": func(h *house, _, run string) error { _, err := h.c.Cancel(h.t.Context(), run, "enough"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := countingHouse(t, nil, saysDone)
			for range 20 {
				s := h.session(&api.CreateSession{})
				h.submit(s, &api.SubmitRun{Content: api.Text("before")})
				h.atRest()
				var mu sync.Mutex
				var all sync.WaitGroup
				var accepted []string
				for range 3 {
					all.Go(func() {
						r, _, err := h.c.Submit(t.Context(), s, &api.SubmitRun{Content: api.Text("go")})
						if code := client.Code(err); err != nil && (name != "close" || code != "session_closed") {
							t.Errorf("submit: %v", err)
						}
						if err != nil {
							return
						}
						if name == "cancel" {
							if err := race(h, s, r.ID); err != nil && client.Code(err) != "run_state_conflict" {
								t.Errorf("cancel: %v", err)
							}
						}
						mu.Lock()
						defer mu.Unlock()
						accepted = append(accepted, r.ID)
					})
				}
				if name == "close" {
					all.Go(func() {
						if err := race(h, s, ""); err != nil {
							t.Errorf("close: %v", err)
						}
					})
				}
				all.Wait()
				for _, id := range accepted {
					if r, err := h.c.Wait(t.Context(), id); err != nil || r.Status != api.RunCompleted && r.Status != api.RunCancelled {
						t.Errorf("%+v, %v", r, err)
					}
				}
				page, err := h.c.SessionEvents(t.Context(), s, client.EventsQuery{Types: []string{"run.created"}}, 0, 500)
				if err != nil || len(page.Items) != 1+len(accepted) {
					t.Errorf("%d runs are there, %d were accepted: %v", len(page.Items)-1, len(accepted), err)
				}
			}
		})
	}
}

// While the reserve is in use new work is refused also where the session is at rest
// and its run would begin at once; nothing of it is there, and it is taken when there is room.
func TestReserveFromRest(t *testing.T) {
	const plenty, low = 1 << 40, 40 << 20
	var free atomic.Uint64
	free.Store(plenty)
	h, _ := countingHouse(t, func() (uint64, bool) { return free.Load(), true }, saysDone)
	s := h.session(&api.CreateSession{})
	h.submit(s, &api.SubmitRun{Content: api.Text("before")})
	h.atRest()
	free.Store(low)
	eventually(t, "the daemon is ready within its reserve", func() bool { return status(t, "http://"+h.address+"/readyz") == 503 })
	for range 2 { // also the one whose session has just declined
		_, _, err := h.c.Submit(t.Context(), s, &api.SubmitRun{Content: api.Text("go")})
		wantFull(t, err)
	}
	if n := len(h.stub.Requests()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	free.Store(plenty)
	eventually(t, "the daemon does not see that there is room", func() bool { return status(t, "http://"+h.address+"/readyz") == 200 })
	if r := h.submit(s, &api.SubmitRun{Content: api.Text("go")}); r.Status != api.RunCompleted {
		t.Errorf("with room: %+v", r)
	}
}

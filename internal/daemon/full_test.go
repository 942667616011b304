package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// wantFull checks that a request was refused for want of room.
func wantFull(t *testing.T, err error) {
	t.Helper()
	var ce *client.Error
	if !errors.As(err, &ce) || ce.Status != http.StatusInsufficientStorage || ce.Problem.Code != "storage_full" {
		t.Errorf("without room: %v", err)
	}
}

func status(t *testing.T, url string) int {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// Below the reserve new work is refused with 507 and what to do, what runs goes
// on, and what ends work is taken; below a quarter of it nothing begins. When there
// is room again all of it goes on, without a restart.
func TestReserve(t *testing.T) {
	const plenty, low, nearly = 1 << 40, 40 << 20, 1 << 20
	var free atomic.Uint64
	free.Store(plenty)
	began, goOn := make(chan struct{}, 8), make(chan struct{})
	stub := chatstub.New(func(n int, _ chatstub.Request) chatstub.Reply {
		if n == 0 {
			began <- struct{}{}
			<-goOn
		}
		return chatstub.Reply{Text: "done"}
	})
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	h := &house{t: t, stub: stub, opt: daemon.Options{Free: func() (uint64, bool) { return free.Load(), true }}}
	h.beginAt(vendor.URL)
	ctx := t.Context()
	s := h.session(&api.CreateSession{})
	first, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("one")}, client.IdempotencyKey("k1"))
	if err != nil {
		t.Fatal(err)
	}
	<-began
	second, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("two")})
	if err != nil {
		t.Fatal(err)
	}
	third, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("three")})
	if err != nil {
		t.Fatal(err)
	}
	leaked, err := h.c.CreateToken(ctx, &api.CreateToken{Name: "leaked", Role: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.SetSecret(ctx, "leaked", &api.PutSecret{Value: "a value that leaked"}); err != nil {
		t.Fatal(err)
	}
	free.Store(nearly)
	eventually(t, "the daemon is ready although its disk is full", func() bool { return status(t, "http://"+h.address+"/readyz") == 503 })
	_, _, err = h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("four")})
	wantFull(t, err)
	_, err = h.c.CreateSession(ctx, &api.CreateSession{})
	wantFull(t, err)
	_, err = h.c.CreateToken(ctx, &api.CreateToken{Name: "x", Role: "reader"})
	wantFull(t, err)
	_, err = h.c.SetSecret(ctx, "new", &api.PutSecret{Value: "a value of a new one"})
	wantFull(t, err)
	// What was leaked is taken back all the same.
	if err := h.c.RevokeToken(ctx, leaked.ID); err != nil {
		t.Errorf("revoke: %v", err)
	}
	if _, err := h.c.SetSecret(ctx, "leaked", &api.PutSecret{Value: "another value of it"}); err != nil {
		t.Errorf("rotate: %v", err)
	}
	if err := h.c.DeleteSecret(ctx, "leaked"); err != nil {
		t.Errorf("delete: %v", err)
	}
	// So it is at a start: a daemon that would not come up could not record what was in flight.
	if err := h.d.AuditStart(ctx); err != nil {
		t.Errorf("a start on a disk that is nearly full: %v", err)
	}
	if again, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("one")}, client.IdempotencyKey("k1")); err != nil || again.ID != first.ID {
		t.Errorf("a submission that is there already: %+v, %v", again, err)
	}
	if _, err := h.c.Cancel(ctx, third.ID, "no room"); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if status(t, "http://"+h.address+"/healthz") != 200 {
		t.Error("the daemon counts as dead")
	}
	close(goOn) // the outcome of what is in flight is recorded, and nothing begins
	if r, err := h.c.Wait(ctx, first.ID); err != nil || r.Status != api.RunCompleted {
		t.Errorf("what was in flight: %+v, %v", r, err)
	}
	if r, err := h.c.Run(ctx, second.ID); err != nil || r.Status != "queued" || len(stub.Requests()) != 1 {
		t.Errorf("what waited: %+v, %v; the model was asked %d times", r, err, len(stub.Requests()))
	}
	free.Store(low) // acts begin again, new work is refused
	if r, err := h.c.Wait(ctx, second.ID); err != nil || r.Status != api.RunCompleted {
		t.Errorf("within the reserve: %+v, %v", r, err)
	}
	_, _, err = h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("five")})
	wantFull(t, err)
	free.Store(plenty)
	eventually(t, "the daemon does not see that there is room", func() bool { return status(t, "http://"+h.address+"/readyz") == 200 })
	if r := h.submit(s, &api.SubmitRun{Content: api.Text("six")}); r.Status != api.RunCompleted {
		t.Errorf("with room: %+v", r)
	}
	if r, err := h.c.Run(ctx, third.ID); err != nil || r.Status != api.RunCancelled {
		t.Errorf("the cancelled one: %+v, %v", r, err)
	}
}

// A daemon that is killed while the disk is full comes back: what can be read is
// served, what ends work is taken, a token can be revoked, and the start is in the
// audit stream, at once within the reserve, and as soon as there is room where
// there was none. // I-02
func TestStartOnAFullDisk(t *testing.T) {
	for name, none := range map[string]bool{"within the reserve": false, "no room at all": true} {
		t.Run(name, func(t *testing.T) {
			var free atomic.Uint64
			free.Store(1 << 40)
			h := &house{t: t, stub: chatstub.New(func(int, chatstub.Request) chatstub.Reply { return chatstub.Reply{Text: "done"} })}
			vendor := httptest.NewServer(h.stub)
			defer vendor.Close()
			full := &fullStore{}
			h.opt = daemon.Options{Free: func() (uint64, bool) { return free.Load(), true }, WrapStore: func(s daemon.Store) daemon.Store {
				full.Store = s
				return full
			}}
			h.beginAt(vendor.URL)
			ctx := t.Context()
			s := h.session(&api.CreateSession{})
			run := h.submit(s, &api.SubmitRun{Content: api.Text("one")})
			token, err := h.c.CreateToken(ctx, &api.CreateToken{Name: "leaked", Role: "reader"})
			if err != nil {
				t.Fatal(err)
			}
			free.Store(1 << 20)
			full.none.Store(none)
			h.restart()
			if r, err := h.c.Run(ctx, run.ID); err != nil || r.Status != api.RunCompleted {
				t.Errorf("a read: %+v, %v", r, err)
			}
			_, _, err = h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("two")})
			wantFull(t, err)
			if err := h.c.RevokeToken(ctx, token.ID); (err != nil) != none {
				t.Errorf("revoke: %v", err)
			}
			full.none.Store(false)
			eventually(t, "the start is not recorded", func() bool { return len(h.audit("audit.started")) == 2 })
			free.Store(1 << 40)
			eventually(t, "the daemon does not see that there is room", func() bool { return status(t, "http://"+h.address+"/readyz") == 200 })
			if r := h.submit(s, &api.SubmitRun{Content: api.Text("three")}); r.Status != api.RunCompleted {
				t.Errorf("with room: %+v", r)
			}
		})
	}
}

// fullStore has no room for records of the audit stream while it says so.
type fullStore struct {
	daemon.Store
	none atomic.Bool
}

func (s *fullStore) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	if s.none.Load() && len(a.Entries) > 0 && a.Entries[0].Stream == event.AuditStream {
		return nil, &eventlog.FullError{}
	}
	return s.Store.Append(ctx, a)
}

// audit gives the records of a type.
func (h *house) audit(typ string) (list []api.Event) {
	h.t.Helper()
	page, err := h.c.Audit(h.t.Context(), client.EventsQuery{Types: []string{typ}}, 0, 100)
	if err != nil {
		h.t.Fatal(err)
	}
	return page.Items
}

// The database is full in the middle of runs, tool calls and deliveries: reads go
// on, submissions are refused, and when there is room everything ends, each
// tool call and each message once. // C70 I-02 I-03 I-13 I-24 I-26
func TestDatabaseFull(t *testing.T) {
	const runs = 24
	var limited interface {
		Limit(ctx context.Context, pages int64) error
	}
	stub := chatstub.New(func(_ int, req chatstub.Request) chatstub.Reply {
		if req.Messages[len(req.Messages)-1].Role == "user" {
			return chatstub.Reply{Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}}
		}
		return chatstub.Reply{Text: "done"}
	})
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	var mu sync.Mutex
	got := map[string]int{} // messages by their id
	var refuse atomic.Bool
	refuse.Store(true) // so that attempts fail too while there is no room
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if refuse.Load() {
			w.WriteHeader(503)
			return
		}
		mu.Lock()
		got[r.Header.Get("webhook-id")]++
		mu.Unlock()
	}))
	defer receiver.Close()
	h := &house{t: t, stub: stub, opt: daemon.Options{WrapStore: func(s daemon.Store) daemon.Store {
		limited = s.(interface {
			Limit(ctx context.Context, pages int64) error
		})
		return s
	}}}
	h.beginAt(vendor.URL)
	ctx := t.Context()
	var ids []string
	var wait sync.WaitGroup
	for i := range runs {
		s := h.session(&api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: fmt.Sprint(receiver.URL, "/", i%4)}}})
		wait.Go(func() {
			r, _, err := h.c.Submit(ctx, s, &api.SubmitRun{Content: api.Text("go")})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			ids = append(ids, r.ID)
			mu.Unlock()
		})
		if i == runs/2 {
			wait.Wait()
			if err := limited.Limit(ctx, 1); err != nil { // no page more than there are now
				t.Fatal(err)
			}
			eventually(t, "the store did not become full", func() bool {
				_, err := h.c.CreateSession(ctx, &api.CreateSession{Metadata: api.Raw(`{"x":"` + strings.Repeat("x", 3000) + `"}`)})
				return err != nil
			})
			_, err := h.c.CreateSession(ctx, &api.CreateSession{Metadata: api.Raw(`{"x":"` + strings.Repeat("x", 3000) + `"}`)})
			wantFull(t, err)
			if status(t, "http://"+h.address+"/readyz") != 503 {
				t.Error("a full store is ready")
			}
			if _, err := h.c.Runs(ctx, client.RunsQuery{}, client.Page{}); err != nil {
				t.Errorf("a full store does not read: %v", err)
			}
			if err := limited.Limit(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait.Wait()
	refuse.Store(false)
	for _, id := range ids {
		r, err := h.c.Wait(ctx, id)
		if err != nil || r.Status != api.RunCompleted || r.Counters.Tools != 1 {
			t.Errorf("%s: %+v, %v", id, r, err)
			continue
		}
		h.delivered(r.Deliveries[0].ID)
	}
	if len(ids) != runs || h.called.Load() != runs {
		t.Errorf("%d runs, %d tool calls", len(ids), h.called.Load())
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	if len(got) != runs {
		t.Errorf("%d messages came, want %d", len(got), runs)
	}
}

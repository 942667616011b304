package httpapi_test

import (
	"context"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// waiting is a store whose lists wait.
type waiting struct {
	httpapi.Store
	come, gone chan struct{}
}

func (s *waiting) Sessions(ctx context.Context, f eventlog.SessionFilter, p eventlog.Page) ([]eventlog.SessionRow, string, error) {
	s.come <- struct{}{}
	<-s.gone
	return s.Store.Sessions(ctx, f, p)
}

// As many requests as may be are answered at once; one more is told to come again,
// while streams, waits and probes have places of their own.
func TestCrowd(t *testing.T) {
	s := &waiting{come: make(chan struct{}), gone: make(chan struct{})}
	w := apitest.New(t, func(c *httpapi.Config) { s.Store, c.Store, c.MaxRequests = c.Store, s, 2 })
	ses := w.Session("")
	run := w.Submit(ses.ID, "x")
	leave := sync.OnceFunc(func() { close(s.gone) })
	defer leave()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { w.Do("GET", "/v1/sessions", w.Admin, nil).Want(200) })
		<-s.come
	}
	r := w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(429, "too_many_requests")
	if r.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After: %q", r.Header.Get("Retry-After"))
	}
	w.Do("GET", "/healthz", "", nil).Want(200)
	w.Follow("/v1/sessions/" + ses.ID + "/stream").Close()
	leave()
	all.Wait()
	// Who waits for a run takes no place. They come one after the other: each has one
	// until it waits.
	waits := func(n int) {
		for w.Handler.Places() != n {
			w.Do("GET", "/healthz", "", nil).Want(200)
		}
	}
	waits(0) // the reader above is gone
	for i := range 3 {
		all.Go(func() { w.Do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.Admin, nil).Want(200) })
		waits(i + 1)
	}
	w.Do("GET", "/v1/runs/"+run.ID, w.Admin, nil).Want(200)
	w.Append(&run, &event.RunCancelled{})
	all.Wait()
}

// One token cannot take all streams and waits: a fifth stays for others, and what it
// gives back it may take again.
func TestOneTokenHasAShareOfTheStreams(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.MaxStreams = 5 })
	other := w.Token("admin", "")
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	path := "/v1/sessions/" + s.ID + "/stream?after=3"
	for range 3 {
		w.Follow(path).Want("synced")
	}
	last := w.Follow(path)
	last.Want("synced")
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=5ms", w.Admin, nil).Want(429, "too_many_streams")
	if r := w.Do("GET", path, w.Admin, nil).Want(429, "too_many_streams"); r.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=5ms", other, nil).Want(200)
	last.Close()
	for w.Handler.Places() > 3 {
		w.Do("GET", "/healthz", "", nil).Want(200)
	}
	w.Do("GET", "/v1/runs/"+run.ID+"?wait=5ms", w.Admin, nil).Want(200)
}

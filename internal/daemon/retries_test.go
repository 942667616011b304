package daemon_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// The retries of a route are those of the configuration, member by member, and are
// pinned to each run when it is submitted. // I-08
func TestRetriesOfARoute(t *testing.T) {
	var asked atomic.Int64
	vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"error":{"message":"not now"}}`)
	}))
	t.Cleanup(vendor.Close)
	h := &house{t: t, more: "model_retries: {max_attempts: 3, initial_backoff: 4ms, backoff_factor: 1.25}\n"}
	route := func(name, more string) string {
		return "  " + name + ": {provider: openai_compatible, base_url: \"" + vendor.URL + "/v1\", model: m" + more + "}\n"
	}
	h.begin("default_route: main\nroutes:\n"+route("main", "")+route("once", ", retries: {max_attempts: 1}")+route("short", ", retries: {backoff_factor: 3, max_backoff: 2ms}"), "found")
	play := func(route string, attempts int, want event.Retries) {
		t.Helper()
		s, err := h.c.CreateSession(t.Context(), &api.CreateSession{})
		if err != nil {
			t.Fatal(err)
		}
		asked.Store(0)
		if r := h.submit(s.ID, &api.SubmitRun{Content: api.Text("go"), Route: route}); r.Status != api.RunFailed {
			t.Fatalf("%s: %+v", route, r)
		}
		page, err := h.c.SessionEvents(t.Context(), s.ID, client.EventsQuery{Types: []string{"run.created", "model.retry.scheduled"}}, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var created event.RunCreated
		if err := json.Unmarshal(page.Items[0].Data, &created); err != nil {
			t.Fatal(err)
		}
		if got := created.Route.Retries; asked.Load() != int64(attempts) || len(page.Items) != attempts || got != want {
			t.Errorf("%s: %d attempts, %d of them planned, by %+v; want %d by %+v", route, asked.Load(), len(page.Items)-1, got, attempts, want)
		}
	}
	play("main", 3, event.Retries{BackoffPercent: 125, InitialBackoffMS: 4, MaxAttempts: 3})
	play("once", 1, event.Retries{BackoffPercent: 125, InitialBackoffMS: 4, MaxAttempts: 1})
	play("short", 3, event.Retries{BackoffPercent: 300, InitialBackoffMS: 4, MaxAttempts: 3, MaxBackoffMS: 2})
	h.cfg.ModelRetries = config.Retries{MaxAttempts: 2, InitialBackoff: config.Duration(time.Millisecond)}
	h.restart()
	play("main", 2, event.Retries{InitialBackoffMS: 1, MaxAttempts: 2})
}

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A run that waits ends a follow, with --json too; one that waited long ago and
// goes on does not.
func TestFollowOverAWaiting(t *testing.T) {
	for _, now := range []string{"needs_attention", "running"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/stream") {
				status := now
				if r.URL.Query().Has("wait") {
					status = "completed"
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"id":"run_1","status":%q}`, status)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for seq, kind := range []string{"", "run.queued", "run.needs_attention", "run.resumed", "run.completed"} {
				if kind != "" && fmt.Sprint(seq) > r.Header.Get("Last-Event-ID") {
					fmt.Fprintf(w, "id: %d\nevent: %s\ndata: {\"seq\":%d,\"type\":%q}\n\n", seq, kind, seq, kind)
				}
			}
		}))
		var out, errOut strings.Builder
		Main([]string{"--json", "--server", server.URL, "--token", "x", "runs", "follow", "run_1"}, strings.NewReader(""), &out, &errOut)
		server.Close()
		var types []string
		for line := range strings.Lines(out.String()) {
			var v struct{ Type, Status string }
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%q is no line of JSON: %v", line, err)
			}
			types = append(types, v.Type+v.Status)
		}
		want := "run.queued run.needs_attention needs_attention"
		if now == "running" {
			want = "run.queued run.needs_attention run.resumed run.completed running"
		}
		if got := strings.Join(types, " "); got != want {
			t.Errorf("%s: %s, want %s\n%s", now, got, want, &errOut)
		}
	}
}

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// C48: while a stop drains work the door answers: who follows a run sees what
// it still does, and a wait goes on. Then streams and waits end, and the stop.
func TestStopDrainsBeforeTheDoorCloses(t *testing.T) { // C48
	asked, gate := make(chan struct{}), make(chan struct{})
	let := sync.OnceFunc(func() { close(gate) })
	h := newHouse(t, func(int, chatstub.Request) chatstub.Reply {
		close(asked)
		<-gate
		return chatstub.Reply{Text: "done"}
	})
	t.Cleanup(let) // before the house stops
	s, err := h.c.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := h.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	once, err := client.New("http://"+h.address, houseToken, client.WithRetry(0, nil))
	if err != nil {
		t.Fatal(err)
	}
	synced, streamed, waited := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		seen := ""
		err := once.StreamRun(t.Context(), r.ID, 0, func(m client.Message) error {
			if m.Synced != nil {
				close(synced)
			}
			if m.Event != nil {
				seen += " " + m.Event.Type
			}
			return nil
		})
		if errors.Is(err, client.ErrUnreachable) {
			err = nil // the stream ended before the run did
		}
		if !strings.Contains(seen, " text.ended") {
			err = fmt.Errorf("the stream saw%s (%w)", seen, err)
		}
		streamed <- err
	}()
	waits := make(chan struct{})
	go func() {
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { close(waits) },
		}), http.MethodGet, "http://"+h.address+"/v1/runs/"+r.ID+"?wait=60s", nil)
		if err != nil {
			waited <- err
			return
		}
		req.Header.Set("Authorization", "Bearer "+houseToken)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			if res.Body.Close(); res.StatusCode != http.StatusOK {
				err = fmt.Errorf("the wait ended with %s", res.Status)
			}
		}
		waited <- err
	}()
	<-synced
	<-waits
	stopped := make(chan error, 1)
	go func() { stopped <- h.d.Stop(context.Background()) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := h.c.Ready(t.Context()); client.Code(err) == "not_ready" {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := h.c.Run(t.Context(), r.ID); err != nil || got.Status != api.RunRunning {
		t.Errorf("while it drains: %+v, %v", got, err)
	}
	for name, c := range map[string]chan error{"stream": streamed, "wait": waited, "stop": stopped} {
		select {
		case err := <-c:
			t.Errorf("the %s ended before the work: %v", name, err)
		default:
		}
	}
	let()
	for name, c := range map[string]chan error{"stream": streamed, "wait": waited, "stop": stopped} {
		select {
		case err := <-c:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(*patience):
			t.Fatalf("the %s does not end", name)
		}
	}
	if err := h.d.Stop(context.Background()); err != nil {
		t.Errorf("another stop: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(*patience)); err != nil {
		t.Fatal(err)
	}
	h.d.Serve(l, false) // too late: the listener is closed
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener after the stop: %v", err)
	}
}

// Bodies that never come do not hold up a stop: those who promised one are answered
// before the door closes on whoever is left. Nor do connections that say nothing, or
// half of a request; see TestConnectionsAreBounded.
func TestStopIsNotHeldUp(t *testing.T) {
	h := newHouse(t, chatstub.Replies(chatstub.Reply{Text: "done"}))
	h.run(nil, api.Text("go"))
	var promised []net.Conn
	for _, head := range []string{
		"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
		"POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
		"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + houseToken + "\r\nContent-Length: 100\r\n\r\n{",
		"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n",
		"",
	} {
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(head, "POST") {
			promised = append(promised, conn)
		}
	}
	if _, err := h.c.Health(t.Context()); err != nil { // they were accepted before it
		t.Fatal(err)
	}
	if err := h.d.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for i, conn := range promised {
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 4") && !strings.HasPrefix(string(got), "HTTP/1.1 503") {
			t.Errorf("%d: %q, %v", i, got, err)
		}
	}
}

// Connections that a model keeps end with the daemon.
func TestStopEndsVendorConnections(t *testing.T) {
	ended := make(chan struct{})
	vendor := httptest.NewUnstartedServer(chatstub.New(chatstub.Replies(chatstub.Reply{Text: "done"})))
	vendor.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(ended)
		}
	}
	vendor.Start()
	t.Cleanup(vendor.Close)
	h := newHouseAt(t, vendor.URL, nil)
	h.run(nil, api.Text("go"))
	select {
	case <-ended:
		t.Fatal("the connection is not kept")
	default:
	}
	if err := h.d.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(*patience):
		t.Error("the connection to the vendor is open still")
	}
}

// I-33: a workspace that holds the configuration, the record or a credential
// is refused at the start.
func TestWorkspaceMustBeApart(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"keys/api", "hooks/secret", "heads/token"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("k"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for root, refused := range map[string]bool{
		".": true, "data": true, "data/below": true, "keys": true, "hooks": true, "heads": true, "..": true,
		"work": false, "holdfast.yaml.d": false,
	} {
		cfg, err := config.Parse(fmt.Appendf(nil, `
data_dir: data
routes: {main: {provider: openai_compatible, base_url: "http://127.0.0.1:1/v1", model: m, api_key: {file: keys/api}}}
secrets: {hook: {file: hooks/secret}}
tools:
  files: {type: workspace, root: %q, shared: true}
  look: {type: http, url: "http://127.0.0.1:1/", side_effect: read, input_schema: {type: object}, headers: {X-Token: {file: heads/token}}}
`, root), "holdfast.yaml", dir)
		if err != nil {
			t.Fatal(err)
		}
		d, err := daemon.Open(t.Context(), cfg, daemon.Options{})
		if err == nil {
			if err := d.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "which no workspace may reach") {
			t.Errorf("%s: %v", root, err)
		}
	}
}

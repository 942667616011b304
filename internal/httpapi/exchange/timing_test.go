package exchange_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// say opens a connection and sends what is given.
func say(w *apitest.World, text string) net.Conn {
	w.T.Helper()
	conn, err := net.Dial("tcp", w.Server.Listener.Addr().String())
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		w.T.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		w.T.Fatal(err)
	}
	return conn
}

// heads are requests that promise a body which never comes.
func heads(w *apitest.World) map[string]string {
	host, body := " HTTP/1.1\r\nHost: localhost\r\n", "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
	token := "Authorization: Bearer " + w.Admin + "\r\n"
	return map[string]string{
		"no token":   "POST /v1/sessions" + host + body,
		"no path":    "POST /nope" + host + body,
		"no method":  "PUT /healthz" + host + body,
		"other path": "POST //v1/sessions" + host + body,
		"no body":    "GET /healthz" + host + body,
		"chunks":     "GET /healthz" + host + "Transfer-Encoding: chunked\r\n\r\n4\r\nab",
		"half":       "DELETE /v1/sessions/x" + host + token + body + `{"a":`,
		"parameter":  "POST /v1/sessions?x=1" + host + token + body,
	}
}

// A peer that promises a body and sends none is answered, and let go.
func TestUnreadBodyHasADeadline(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.UnreadTimeout = 100 * time.Millisecond })
	for name, head := range heads(w) {
		if got, err := io.ReadAll(say(w, head)); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 ") || !strings.Contains(string(got), "Connection: close") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// A peer that waits for 100 Continue is not held: no body is on its way.
	conn := say(w, "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n")
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 401") {
		t.Errorf("expects: %q, %v", got, err)
	}
}

// A body that comes is read over, and the connection serves on.
func TestUnreadBodyThatComes(t *testing.T) {
	w := apitest.New(t)
	conn := say(w, "")
	in := bufio.NewReader(conn)
	for range 3 {
		for _, first := range []string{"POST /nope", "GET /healthz", "POST /v1/sessions"} {
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", first)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(first, err)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Close {
				t.Errorf("%s: closes %v, %v", first, res.Close, err)
			}
		}
	}
}

// A stop waits for no body: neither for one that nobody wants nor for one that is read.
func TestStopWaitsForNoBody(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.UnreadTimeout, c.BodyTimeout = time.Hour, time.Hour })
	heads := heads(w)
	heads["read"] = "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + w.Admin + "\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
	begun := make(chan struct{}, len(heads)) // net/http drops what it had not begun
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		w.Handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(srv.Close)
	w.Server.Close()
	w.Server = srv
	conns := map[string]net.Conn{}
	for name, head := range heads {
		conns[name] = say(w, head)
		<-begun
	}
	close(w.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.Server.Config.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	for name, conn := range conns {
		got, err := io.ReadAll(conn)
		if err != nil || len(got) == 0 || name == "read" && !strings.Contains(string(got), `"code":"stopping"`) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// The deadline of a body is none of the answer: a stream and a wait go on.
func TestDeadlineOfBodyEndsWithIt(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.UnreadTimeout, c.Heartbeat = 100*time.Millisecond, 50*time.Millisecond })
	s := w.Session("")
	run := w.Submit(s.ID, "x")
	for _, body := range []string{"", "Content-Length: 2\r\n\r\nab"} {
		head := " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + w.Admin + "\r\n" + body
		if body == "" {
			head += "\r\n"
		}
		in := bufio.NewReader(say(w, "GET /v1/sessions/"+s.ID+"/stream"+head))
		for beats := 0; beats < 8; {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatalf("with body %q: %v", body, err)
			}
			if strings.HasPrefix(line, ": ") {
				beats++
			}
		}
		res, err := http.ReadResponse(bufio.NewReader(say(w, "GET /v1/runs/"+run.ID+"?wait=400ms"+head)), nil)
		if err != nil || res.StatusCode != 200 {
			t.Errorf("wait with body %q: %+v, %v", body, res, err)
		}
	}
}

// A reader of an ordinary answer who does not take it is let go, one who is
// only slow is not.
func TestSlowReaderOfAnAnswer(t *testing.T) {
	get := "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for _, request := range []string{get, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			w := apitest.NewDoor(t, func(c *httpapi.Config) { c.WriteTimeout = time.Second })
			conn, closed := w.OverPipes()
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			<-closed
			if took := time.Since(began); took != time.Second {
				t.Errorf("%q: a reader that takes nothing is let go after %s", request, took)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t, func(c *httpapi.Config) { c.WriteTimeout = time.Second })
		doc := w.Knock(apitest.Knock{Path: "/openapi.json"}).Want(200).Body
		conn, _ := w.OverPipes()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		in := bufio.NewReader(&slow{conn, tick.C})
		began := time.Now()
		for time.Since(began) < 2*time.Second { // more than the write timeout
			if _, err := io.WriteString(conn, get); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, res.Body); err != nil || n != int64(len(doc)) {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
	})
}

// slow reads at the pace of a clock.
type slow struct {
	net.Conn
	tick <-chan time.Time
}

func (s *slow) Read(p []byte) (int, error) {
	<-s.tick
	return s.Conn.Read(p[:min(len(p), 2<<10)])
}

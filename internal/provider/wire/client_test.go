package wire

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// vendor answers with a body that comes in pieces, each after a pause.
type vendor struct {
	head   time.Duration
	pieces []string
	pause  time.Duration
	err    error // behind the last piece; nil: it stays open
}

func (v vendor) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := sleep(r.Context(), v.head); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 200, Body: &slowBody{ctx: r.Context(), vendor: v}}, nil
}

type slowBody struct {
	ctx context.Context
	vendor
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	if err := sleep(b.ctx, b.pause); err != nil {
		return 0, err
	}
	n := copy(p, b.pieces[0])
	b.pieces = b.pieces[1:]
	return n, nil
}

func (b *slowBody) Close() error { return nil }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func exchange(ctx context.Context, v vendor, each func(*Answer)) (string, error) {
	c := NewClient(&http.Client{Transport: v}, Limits{FirstByte: 10 * time.Second, Idle: 5 * time.Second})
	req, _ := http.NewRequest("POST", "http://vendor.test/", nil)
	a, err := c.Do(ctx, req)
	if err != nil {
		return "", err
	}
	defer a.Close(true)
	var all strings.Builder
	buf := make([]byte, 100)
	for {
		n, err := a.Read(buf)
		all.Write(buf[:n])
		if err != nil {
			return all.String(), err
		}
		if each != nil {
			each(a)
		}
	}
}

func TestClientLimits(t *testing.T) {
	tests := []struct {
		name   string
		vendor vendor
		each   func(*Answer)
		class  llm.Class // "" for io.EOF
		body   string
		took   time.Duration
	}{
		{"good", vendor{head: 9 * time.Second, pieces: []string{"a", "b"}, pause: 4 * time.Second, err: io.EOF}, nil, "", "ab", 17 * time.Second},
		{"no first byte", vendor{head: time.Hour}, nil, llm.Transport, "", 10 * time.Second},
		{"stall", vendor{pieces: []string{"a"}, pause: time.Second}, nil, llm.Transport, "a", 6 * time.Second},
		{"comments are life", vendor{pieces: []string{":", ":", ":", ":"}, pause: 4 * time.Second, err: io.EOF}, nil, "", "::::", 16 * time.Second},
		{"our own slowness is not the vendor's", vendor{pieces: []string{"a", "b"}, err: io.EOF}, func(*Answer) { time.Sleep(time.Minute) }, "", "ab", 2 * time.Minute},
		{"end within", vendor{pieces: []string{":", ":", ":", ":"}, pause: time.Second},
			func(a *Answer) {
				if a.last.IsZero() {
					a.EndWithin(2500 * time.Millisecond)
				}
			}, llm.Transport, ":::", 3500 * time.Millisecond},
		{"broken", vendor{pieces: []string{"a"}, err: errors.New("reset")}, nil, llm.Transport, "a", 0},
		{"cut", vendor{pieces: []string{"a"}, err: io.ErrUnexpectedEOF}, nil, llm.Truncated, "a", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				body, err := exchange(t.Context(), tt.vendor, tt.each)
				took := time.Since(start)
				if body != tt.body || took < tt.took || took > tt.took+drainTime {
					t.Errorf("%q after %s", body, took)
				}
				if tt.class == "" && err != io.EOF || tt.class != "" && llm.AsError(err).Class != tt.class {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

func TestClientStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, v := range []vendor{{head: time.Hour}, {pieces: []string{"a"}}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := exchange(ctx, v, nil)
			if llm.AsError(err).Class != llm.Aborted || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
			cancel()
		}
	})
}

func TestClientReach(t *testing.T) {
	closed := "http://user:secret@127.0.0.1:1"
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	defer plain.Close()
	secure := httptest.NewUnstartedServer(plain.Config.Handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	tests := map[string]string{
		closed:    "the vendor refuses the connection: is the server running?",
		plain.URL: "the vendor closed the connection without an answer",
		strings.Replace(plain.URL, "http:", "https:", 1): "the vendor's server speaks HTTP, not HTTPS: check base_url",
		secure.URL: "the vendor's TLS certificate is not valid",
	}
	for url, want := range tests {
		req, _ := http.NewRequest("POST", url, nil)
		_, err := NewClient(&http.Client{Transport: http.DefaultTransport}, Limits{}).Do(t.Context(), req)
		e := llm.AsError(err)
		if e.Class != llm.Transport || e.Message != want {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

func TestClientFollowsNoRedirect(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	req, _ := http.NewRequest("POST", s.URL, strings.NewReader("x"))
	a, err := NewClient(s.Client(), Limits{}).Do(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	if a.Status != 307 || calls != 1 {
		t.Errorf("status %d after %d calls", a.Status, calls)
	}
}

func TestReadAllIsBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(endlessly("x", ""), 1<<20))
	}))
	defer s.Close()
	req, _ := http.NewRequest("GET", s.URL, nil)
	a, err := NewClient(&http.Client{Transport: http.DefaultTransport}, Limits{}).Do(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	if body, more, err := a.ReadAll(100); len(body) != 100 || !more || err != nil {
		t.Errorf("%d bytes, more %v, %v", len(body), more, err)
	}
}

// A vendor that goes over to another protocol, unasked, has answered nothing, and
// holds no run.
func TestClientSwitchesToNothing(t *testing.T) {
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer close(ended)
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, rw) // until the other side has ended it
	}))
	defer s.Close()
	req, err := http.NewRequest("POST", s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewClient(&http.Client{Transport: http.DefaultTransport}, Limits{}).Do(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(true)
	<-ended
	if a.Status != http.StatusSwitchingProtocols {
		t.Errorf("status %d", a.Status)
	}
}

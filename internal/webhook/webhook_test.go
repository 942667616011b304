package webhook

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/netguard"
)

var testSecret = bytes.Repeat([]byte{7}, 32)

// pipes is a network of pipes: each dial runs serve on the far end.
type pipes struct {
	wg    sync.WaitGroup
	dials atomic.Int64
	serve func(n int, c net.Conn) // n-th connection, from 1
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	n := int(p.dials.Add(1))
	p.wg.Go(func() {
		defer theirs.Close()
		p.serve(n, theirs)
	})
	return ours, nil
}

// sender is a Sender over p, in a bubble.
func sender(t *testing.T, p *pipes) *Sender {
	t.Helper()
	g, err := netguard.New(netguard.Config{Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender(Config{Version: "1.2.3"}, g)
	t.Cleanup(func() { s.Close(); p.wg.Wait() })
	return s
}

// one reads one request, body included.
func one(t *testing.T, c net.Conn) (*http.Request, []byte) {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return r, body
}

func request() Request {
	return Request{
		URL: "http://hook.test/in?t=hunter22", ID: "dlv_1", Body: []byte(`{"count":3,"status":"ok"}`), Keys: []Key{HMACKey(testSecret)}, Timestamp: time.Now(),
		Headers: map[string]string{"X-Tenant": "acme"},
	}
}

// C56, I-26: every attempt has the same id and bytes, and a signature that
// verifies over the raw bytes that came.
func TestAttemptsAreRecognisable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type seen struct {
			id, stamp, body string
		}
		var (
			mu  sync.Mutex
			got []seen
		)
		p := &pipes{serve: func(n int, c net.Conn) {
			r, body := one(t, c)
			if r == nil {
				return
			}
			if err := Verify(r.Header, body, testSecret, time.Now(), 0); err != nil {
				t.Errorf("attempt %d: %v", n, err)
			}
			if r.Method != "POST" || r.Header.Get("User-Agent") != "holdfast/1.2.3" || r.Header.Get("Content-Type") != "application/json" ||
				r.Header.Get("X-Tenant") != "acme" || r.Host != "hook.test" {
				t.Errorf("request %s %s %v", r.Method, r.Host, r.Header)
			}
			mu.Lock()
			got = append(got, seen{r.Header.Get(HeaderID), r.Header.Get(HeaderTimestamp), string(body)})
			mu.Unlock()
			switch n {
			case 1:
				_, _ = io.WriteString(c, "HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			case 2: // took the body, never answers
				_, _ = io.Copy(io.Discard, c)
			default:
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			}
		}}
		s := sender(t, p)
		var codes []string
		for range 4 {
			o := s.Send(t.Context(), request())
			if o.Delivered() {
				codes = append(codes, "ok")
			} else {
				codes = append(codes, o.Failed.Code)
			}
			time.Sleep(time.Minute)
		}
		if strings.Join(codes, " ") != "http_500 timeout ok ok" {
			t.Errorf("outcomes %v", codes)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(got) != 4 {
			t.Fatalf("%d attempts reached the receiver", len(got))
		}
		for i, g := range got {
			if g.id != "dlv_1" || g.body != `{"count":3,"status":"ok"}` || (i > 0 && g.stamp == got[i-1].stamp) {
				t.Errorf("attempt %d: %+v", i+1, g)
			}
		}
	})
}

func TestStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			line  string
			code  string
			after time.Duration
		}{
			{"200 OK", "", 0},
			{"201 Created", "", 0},
			{"204 No Content", "", 0},
			{"299 Odd\r\nRetry-After: 5", "", 0},
			{"300 Choices", "redirect", 0},
			{"302 Found\r\nLocation: http://169.254.169.254/", "redirect", 0}, // C60
			{"304 Not Modified", "redirect", 0},
			{"307 Temporary Redirect\r\nLocation: http://hook.test/2", "redirect", 0},
			{"400 Bad Request", "http_400", 0},
			{"401 Unauthorized", "http_401", 0},
			{"404 Not Found", "http_404", 0},
			{"408 Request Timeout", "http_408", 0},
			{"410 Gone", "http_410", 0},
			{"422 Unprocessable", "http_422", 0},
			{"425 Too Early", "http_425", 0},
			{"429 Slow\r\nRetry-After: 7", "http_429", 7 * time.Second},
			{"429 Slow\r\nRetry-After: -7", "http_429", 0},
			{"503 Down\r\nRetry-After: 31536000", "http_503", time.Hour},
			{"507 Full", "http_507", 0},
			{"999 Odd", "http_999", 0},
		} {
			p := &pipes{serve: func(_ int, c net.Conn) {
				one(t, c)
				_, _ = io.WriteString(c, "HTTP/1.1 "+test.line+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			}}
			o := sender(t, p).Send(t.Context(), request())
			if o.Delivered() != (test.code == "") || test.line[:3] != strconv.Itoa(o.Status) {
				t.Errorf("%s: %+v", test.line, o)
				continue
			}
			if f := o.Failed; f != nil && (f.Code != test.code || f.Permanent || f.Gone != (o.Status == 410) || f.RetryAfter != test.after) {
				t.Errorf("%s: %+v", test.line, f)
			}
			if p.dials.Load() != 1 {
				t.Errorf("%s: %d connections", test.line, p.dials.Load())
			}
		}
	})
}

func TestReceiversThatMisbehave(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve func(c net.Conn)
		code  string
		took  time.Duration
	}{
		{"never answers", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, CodeTimeout, DefaultTimeout},
		{"closes at once", func(net.Conn) {}, CodeConnection, 0},
		{"closes after the request", func(c net.Conn) { one(t, c) }, CodeConnection, 0},
		{"nonsense", func(c net.Conn) { one(t, c); _, _ = io.WriteString(c, "what?\r\n\r\n") }, CodeConnection, 0},
		{"drips its header", func(c net.Conn) {
			one(t, c)
			for {
				if _, err := io.WriteString(c, "H"); err != nil {
					return
				}
				time.Sleep(100 * time.Second)
			}
		}, CodeTimeout, DefaultTimeout},
		// The status is the answer; the rest is dropped, and not waited for.
		{"drips its body", func(c net.Conn) {
			one(t, c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}, "", drainTime},
		{"endless body", func(c net.Conn) {
			one(t, c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "400\r\n"+strings.Repeat("x", 1024)+"\r\n"); err != nil {
					return
				}
			}
		}, "", 0},
		{"body breaks off", func(c net.Conn) {
			one(t, c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
		}, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := sender(t, &pipes{serve: func(_ int, c net.Conn) { test.serve(c) }})
			start := time.Now()
			o := s.Send(t.Context(), request())
			code := ""
			if o.Failed != nil {
				code = o.Failed.Code
				if o.Failed.Permanent || strings.Contains(o.Failed.Detail, "hunter22") { // I-33
					t.Errorf("%s: %+v", test.name, o.Failed)
				}
			}
			if took := time.Since(start); code != test.code || took != test.took {
				t.Errorf("%s: %q after %s, want %q after %s", test.name, code, took, test.code, test.took)
			}
		})
	}
}

func TestCancelAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sender(t, &pipes{serve: func(_ int, c net.Conn) { _, _ = io.Copy(io.Discard, c) }})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if o := s.Send(ctx, request()); o.Delivered() || o.Failed.Code != CodeInterrupted {
			t.Errorf("cancelled: %+v", o.Failed)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := s.Send(ctx, request()); o.Delivered() || o.Failed.Code != CodeTimeout {
			t.Errorf("deadline: %+v", o.Failed)
		}
	})
}

// A kept connection that the receiver closed must not make a second delivery
// behind the ledger's back once a byte was written.
func TestNoHiddenSecondPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var posts atomic.Int64
		p := &pipes{serve: func(n int, c net.Conn) {
			in := bufio.NewReader(c)
			for {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if posts.Add(1) == 2 {
					return // took it, and closed without an answer
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}}
		s := sender(t, p)
		if o := s.Send(t.Context(), request()); !o.Delivered() {
			t.Fatalf("first: %+v", o.Failed)
		}
		if o := s.Send(t.Context(), request()); o.Delivered() || o.Failed.Code != CodeConnection {
			t.Errorf("second: %+v", o)
		}
		if posts.Load() != 2 || p.dials.Load() != 1 {
			t.Errorf("%d requests over %d connections, want 2 over 1", posts.Load(), p.dials.Load())
		}
	})
}

func TestUnsendableRequests(t *testing.T) {
	g, err := netguard.New(netguard.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialled")
		return nil, io.EOF
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender(Config{}, g)
	defer s.Close()
	for name, change := range map[string]func(*Request){
		"url":     func(r *Request) { r.URL = "ftp://hunter22/" },
		"user":    func(r *Request) { r.URL = "http://u:hunter22@h/" },
		"id":      func(r *Request) { r.ID = "dlv.1" },
		"no id":   func(r *Request) { r.ID = "" },
		"secret":  func(r *Request) { r.Keys = nil },
		"headers": func(r *Request) { r.Headers = map[string]string{"Host": "hunter22"} },
	} {
		r := request()
		change(&r)
		o := s.Send(t.Context(), r)
		if o.Delivered() || o.Failed.Code != CodeInvalid || !o.Failed.Permanent || strings.Contains(o.Failed.Detail, "hunter22") {
			t.Errorf("%s: %+v", name, o.Failed)
		}
	}
}

// C60: over real sockets, with the guard's own dialer.
func TestRefusedAddressAndAllowList(t *testing.T) {
	var hits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer server.Close()
	for _, allow := range []bool{false, true} {
		var c netguard.Config
		if allow {
			c.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}
		g, err := netguard.New(c)
		if err != nil {
			t.Fatal(err)
		}
		s := NewSender(Config{}, g)
		r := request()
		r.URL = server.URL
		o := s.Send(t.Context(), r)
		s.Close()
		if o.Delivered() != allow {
			t.Errorf("allowed %v: %+v", allow, o.Failed)
		}
		if !allow && (o.Failed.Code != CodeDialRefused || o.Failed.Permanent || hits.Load() != 0) {
			t.Errorf("refused: %+v, %d hits", o.Failed, hits.Load())
		}
	}
	// A plain receiver behind an https address.
	g, err := netguard.New(netguard.Config{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	tlsServer := httptest.NewUnstartedServer(http.NotFoundHandler())
	tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsServer.StartTLS()
	defer tlsServer.Close()
	s := NewSender(Config{}, g)
	defer s.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	hasty := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hasty.Close()
	for url, v := range map[string][2]string{
		tlsServer.URL: {CodeTLS, "an authority that this system does not trust"},
		strings.Replace(server.URL, "http:", "https:", 1): {CodeTLS, "speaks no TLS"},
		gone.URL:  {CodeConnection, "nobody listens there"},
		hasty.URL: {CodeConnection, "closed before an answer"},
	} {
		r := request()
		r.URL = url
		if o := s.Send(t.Context(), r); o.Delivered() || o.Failed.Code != v[0] || !strings.Contains(o.Failed.Detail, v[1]) {
			t.Errorf("%s: %+v, want %s", url, o.Failed, v)
		}
	}
}

// A receiver that goes over to another protocol, unasked, and says nothing more
// holds nobody: the attempt has failed. // I-25
func TestSwitchingProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{serve: func(_ int, c net.Conn) {
			one(t, c)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, _ = io.ReadAll(c)
		}}
		done := make(chan Outcome, 1)
		go func() { done <- sender(t, p).Send(t.Context(), request()) }()
		select {
		case o := <-done:
			if o.Failed == nil || o.Failed.Code != "http_101" || o.Failed.Permanent {
				t.Errorf("%+v", o.Failed)
			}
		case <-time.After(time.Hour):
			panic("an hour later it still waits")
		}
	})
}

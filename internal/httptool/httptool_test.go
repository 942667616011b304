package httptool

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// service is a network of pipes with one service behind it.
type service struct {
	wg     sync.WaitGroup
	dials  atomic.Int64
	posts  atomic.Int64
	refuse error // of the dial
	// answer gets the n-th request, from 1, with its body read, and writes what
	// it likes; the connection ends when it returns false.
	answer func(n int, r *http.Request, body string, c net.Conn) bool
}

func (s *service) dial(context.Context, string, string) (net.Conn, error) {
	s.dials.Add(1)
	if s.refuse != nil {
		return nil, s.refuse
	}
	ours, theirs := net.Pipe()
	s.wg.Go(func() {
		defer theirs.Close()
		in := bufio.NewReader(theirs)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil || !s.answer(int(s.posts.Add(1)), r, string(body), theirs) {
				return
			}
		}
	})
	return ours, nil
}

func config(level tool.Level) Config {
	return Config{
		Name: "charge", URL: "http://pay.test/charge", SideEffect: level, InputSchema: canonjson.Value(`{"type":"object"}`),
		Headers: map[string]func() (string, error){"Authorization": func() (string, error) { return "Bearer hunter2-hunter2", nil }},
	}
}

// with makes a tool over s, in a bubble.
func with(t *testing.T, s *service, c Config) *Tool {
	t.Helper()
	g, err := netguard.New(netguard.Config{Dial: s.dial})
	if err != nil {
		t.Fatal(err)
	}
	made, err := New(c, g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close(); s.wg.Wait() })
	return made
}

func call(input string) tool.Call {
	return tool.Call{SessionID: "ses_1", UserID: "u", RunID: "run_1", CallID: "call_7", Input: canonjson.Value(input)}
}

func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen, body string
		var header http.Header
		s := &service{answer: func(_ int, r *http.Request, b string, c net.Conn) bool {
			seen, body, header = r.Method+" "+r.RequestURI, b, r.Header
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/problem+json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}")
			return false
		}}
		for _, test := range []struct {
			method, url, input, seen, body string
		}{
			{"", "http://pay.test/charge", `{"cents":5}`, "POST /charge", `{"cents":5}`},
			{"PUT", "http://pay.test/charge", `{"cents":5}`, "PUT /charge", `{"cents":5}`},
			{"DELETE", "http://pay.test/charge", ``, "DELETE /charge", `{}`},
			{"GET", "http://pay.test/q?fixed=1", `{"a":[1],"b":true,"n":null,"s":"x y&z=ü","t":"12","u":{"v":1}}`,
				"GET /q?fixed=1&a=%5B1%5D&b=true&s=x+y%26z%3D%C3%BC&t=12&u=%7B%22v%22%3A1%7D", ""},
			{"GET", "http://pay.test/q", `{}`, "GET /q", ""},
			{"GET", "http://pay.test/q", `{"a":1}`, "GET /q?a=1", ""},
		} {
			c := config(tool.Write)
			c.Method, c.URL, c.IdempotencyHeader = test.method, test.url, "Idempotency-Key"
			result, err := with(t, s, c).Run(t.Context(), call(test.input))
			if err != nil || result.Output != "{}" || !result.JSON {
				t.Errorf("%s: %+v, %v", test.seen, result, err)
			}
			if seen != test.seen || body != test.body {
				t.Errorf("got %s %q, want %s %q", seen, body, test.seen, test.body)
			}
			if header.Get("Authorization") != "Bearer hunter2-hunter2" || header.Get("Idempotency-Key") != "call_7" ||
				(header.Get("Content-Type") == "application/json") != (test.body != "") {
				t.Errorf("%s: headers %v", test.seen, header)
			}
		}
	})
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name    string
		level   tool.Level
		answer  string
		output  string // of a result
		message string // of a failure
		unknown bool
	}{
		{"text", tool.Write, "200 OK\r\nContent-Length: 3\r\n\r\nyes", "yes", "", false},
		{"no content", tool.Write, "204 No Content\r\n\r\n", "the service answered 204 No Content and no content", "", false},
		{"bytes that are not UTF-8", tool.Read, "200 OK\r\nContent-Length: 3\r\n\r\na\xff\xfe", "a\ufffd\ufffd", "", false}, // C05
		{"refused", tool.Write, "422 No\r\nContent-Length: 8\r\n\r\nno money", "", "the service answered 422 Unprocessable Entity: no money", false},
		{"refused without a word", tool.Irreversible, "404 No\r\nContent-Length: 0\r\n\r\n", "", "the service answered 404 Not Found", false},
		{"repeat elsewhere", tool.Write, "307 T\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "", "the service answered 307 Temporary Redirect", false},
		{"see other", tool.Write, "303 T\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "",
			"the service answered 303 See Other; whether the call took effect is not known", true},
		{"see other of a read", tool.Read, "302 T\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "", "the service answered 302 Found", false},
		{"server error", tool.Write, "500 No\r\nContent-Length: 4\r\n\r\nboom", "",
			"the service answered 500 Internal Server Error: boom; whether the call took effect is not known", true},
		{"server error of a read", tool.Read, "503 No\r\nContent-Length: 0\r\n\r\n", "", "the service answered 503 Service Unavailable", false},
		{"closed", tool.ExternalEffect, "", "", "the connection broke before the answer came; whether the call took effect is not known", true},
		{"closed on none", tool.None, "", "", "the connection broke before the answer came", false},
		{"breaks off", tool.Write, "200 OK\r\nContent-Length: 9\r\n\r\nyes", "",
			"the service answered 200 OK, but its answer broke off; whether the call took effect is not known", true},
		{"refusal breaks off", tool.Write, "400 No\r\nContent-Length: 9\r\n\r\nno", "", "the service answered 400 Bad Request: no", false},
		{"echoed secret", tool.Read, "200 OK\r\nContent-Length: 42\r\n\r\nBearer hunter2-hunter2, or hunter2-hunter2", "[redacted], or [redacted]", "", false},           // I-33
		{"echoed secret in a refusal", tool.Read, "401 No\r\nContent-Length: 15\r\n\r\nhunter2-hunter2", "", "the service answered 401 Unauthorized: [redacted]", false}, // I-33
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
				if test.answer != "" {
					_, _ = io.WriteString(c, "HTTP/1.1 "+test.answer)
				}
				return false
			}}
			result, err := with(t, s, config(test.level)).Run(t.Context(), call(`{}`))
			message := ""
			var e *tool.Error
			if errors.As(err, &e) {
				message = e.Message
			}
			if result.Output != test.output || message != test.message || (err != nil) != (test.message != "") || result.JSON {
				t.Errorf("%s: %q, %v", test.name, result.Output, err)
			}
			if errors.Is(err, tool.ErrOutcomeUnknown) != test.unknown {
				t.Errorf("%s: unknown %v, want %v", test.name, !test.unknown, test.unknown)
			}
			if s.posts.Load() != 1 {
				t.Errorf("%s: %d requests", test.name, s.posts.Load())
			}
		})
	}
}

// I-13: what the service took and did not answer is in doubt, what never left is not.
func TestTimeoutAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
			_, _ = io.Copy(io.Discard, c)
			return false
		}}
		c := config(tool.Write)
		c.Timeout = 3 * time.Second
		start := time.Now()
		_, err := with(t, hangs, c).Run(t.Context(), call(`{}`))
		if !errors.Is(err, tool.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := with(t, hangs, c).Run(ctx, call(`{}`)); !errors.Is(err, tool.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		c.SideEffect = tool.Read
		if _, err := with(t, hangs, c).Run(t.Context(), call(`{}`)); err == nil || errors.Is(err, tool.ErrOutcomeUnknown) {
			t.Errorf("read: %v", err)
		}
	})
}

func TestNothingWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		c := config(tool.Irreversible)
		c.URL = "http://pay.test/charge?q=hunter2-hunter2"
		for name, run := range map[string]func() error{
			"refused": func() error {
				_, err := with(t, &service{refuse: netguard.ErrRefused}, c).Run(t.Context(), call(`{}`))
				return err
			},
			"no name": func() error {
				_, err := with(t, &service{refuse: &net.DNSError{IsTimeout: true}}, c).Run(t.Context(), call(`{}`))
				return err
			},
			"no connection": func() error {
				_, err := with(t, &service{refuse: io.ErrUnexpectedEOF}, c).Run(t.Context(), call(`{}`))
				return err
			},
			"ended before": func() error { _, err := with(t, &service{}, c).Run(ended, call(`{}`)); return err },
			"no credential": func() error {
				c := c
				c.Headers = map[string]func() (string, error){"X": func() (string, error) { return "", io.EOF }}
				_, err := with(t, &service{}, c).Run(t.Context(), call(`{}`))
				return err
			},
			"bad credential": func() error {
				c := c
				c.Headers = map[string]func() (string, error){"X": func() (string, error) { return "hunter2-hunter2\n", nil }}
				_, err := with(t, &service{}, c).Run(t.Context(), call(`{}`))
				return err
			},
			"no call id": func() error {
				c := c
				c.IdempotencyHeader = "X-Key"
				_, err := with(t, &service{}, c).Run(t.Context(), tool.Call{})
				return err
			},
			"fixed parameter": func() error {
				c := c
				c.Method = "GET"
				_, err := with(t, &service{}, c).Run(t.Context(), call(`{"q":"other"}`))
				return err
			},
			"long query": func() error {
				c := c
				c.Method = "GET"
				_, err := with(t, &service{}, c).Run(t.Context(), call(`{"a":"`+strings.Repeat("x", maxQuery)+`"}`))
				return err
			},
		} {
			err := run()
			var e *tool.Error
			if !errors.As(err, &e) || errors.Is(err, tool.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for cause := err; cause != nil; cause = errors.Unwrap(cause) { // I-33: the log sees the causes
				if strings.Contains(cause.Error(), "hunter2") {
					t.Errorf("%s: %v", name, cause)
				}
			}
		}
	})
}

// net/http would repeat these by itself: a GET, and a POST with an idempotency
// key, on a kept connection that the service closes when the request arrives.
func TestNoHiddenRepetition(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{answer: func(n int, _ *http.Request, _ string, c net.Conn) bool {
				if n == 2 {
					return false // took it, and closed without an answer
				}
				_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				return err == nil
			}}
			c := config(tool.Write)
			c.Method, c.IdempotencyHeader = method, "Idempotency-Key"
			made := with(t, s, c)
			if _, err := made.Run(t.Context(), call(`{}`)); err != nil {
				t.Fatal(err)
			}
			if _, err := made.Run(t.Context(), call(`{}`)); !errors.Is(err, tool.ErrOutcomeUnknown) {
				t.Errorf("%s: %v, want an unknown outcome", method, err)
			}
			if s.posts.Load() != 2 || s.dials.Load() != 2 {
				t.Errorf("%s: %d requests over %d connections, want 2 over 2", method, s.posts.Load(), s.dials.Load())
			}
		})
	}
}

// Calls that may be repeated share connections.
func TestReadsKeepTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			return err == nil
		}}
		made := with(t, s, config(tool.Read))
		for range 3 {
			if _, err := made.Run(t.Context(), call(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
		if s.dials.Load() != 1 {
			t.Errorf("%d connections", s.dials.Load())
		}
	})
}

// C05: the cut is at a rune border, and no part of a secret stays at the cut.
func TestLongAnswerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		for name, body := range map[string]string{
			"rune on the border":   strings.Repeat("x", limit-1) + "🏷y",
			"secret on the border": strings.Repeat("x", limit-6) + "hunter2-hunter2 y",
			"endless":              strings.Repeat("x", 1<<20),
		} {
			s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"+body)
				return false
			}}
			c := config(tool.Write)
			c.MaxResponse = limit
			result, err := with(t, s, c).Run(t.Context(), call(`{}`))
			text, marked := strings.CutSuffix(result.Output, "\n[cut: the answer is longer than 100 bytes]")
			if err != nil || !marked || result.JSON || !utf8.ValidString(text) || len(text) > limit || strings.Contains(text, "hunt") {
				t.Errorf("%s: %q, %v", name, result.Output, err)
			}
		}
	})
}

// C60: over a real socket, with the guard's own dialer.
func TestGuarded(t *testing.T) {
	var hits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer server.Close()
	for _, allow := range []bool{false, true} {
		var gc netguard.Config
		if allow {
			gc.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		}
		g, err := netguard.New(gc)
		if err != nil {
			t.Fatal(err)
		}
		c := config(tool.Write)
		c.URL = server.URL
		made, err := New(c, g)
		if err != nil {
			t.Fatal(err)
		}
		_, err = made.Run(t.Context(), call(`{}`))
		made.Close()
		if (err == nil) != allow || (!allow && (!errors.Is(err, netguard.ErrRefused) || errors.Is(err, tool.ErrOutcomeUnknown) || hits.Load() != 0)) {
			t.Errorf("allowed %v: %v, %d hits", allow, err, hits.Load())
		}
	}
}

func TestDeclarations(t *testing.T) {
	g, err := netguard.New(netguard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := config(tool.ExternalEffect)
	c.Policy, c.IdempotencyHeader, c.Description = tool.Allow, "Idempotency-Key", "Charge a card"
	made, err := New(c, g)
	if err != nil {
		t.Fatal(err)
	}
	d := made.Definition()
	if d.Name != "charge" || d.Level != tool.ExternalEffect || !d.Idempotent || d.Source != tool.HTTP || d.Policy != tool.Allow || d.Confined || d.TimeoutMS != 30_000 {
		t.Errorf("definition %+v", d)
	}
	value := func() (string, error) { return "v", nil }
	for name, change := range map[string]func(*Config){
		"name":            func(c *Config) { c.Name = "a b" },
		"method":          func(c *Config) { c.Method = "TRACE" },
		"lower case":      func(c *Config) { c.Method = "get" },
		"url":             func(c *Config) { c.URL = "file:///etc/passwd" },
		"schema":          func(c *Config) { c.InputSchema = nil },
		"level":           func(c *Config) { c.SideEffect = "" },
		"policy":          func(c *Config) { c.Policy = "yes" },
		"key header":      func(c *Config) { c.IdempotencyHeader = "Host" },
		"header":          func(c *Config) { c.Headers = map[string]func() (string, error){"Content-Length": value} },
		"header name":     func(c *Config) { c.Headers = map[string]func() (string, error){"a b": value} },
		"same header":     func(c *Config) { c.Headers = map[string]func() (string, error){"X-A": value, "x-a": value} },
		"key as header":   func(c *Config) { c.IdempotencyHeader = "X"; c.Headers = map[string]func() (string, error){"x": value} },
		"user in the url": func(c *Config) { c.URL = "http://u:p@h/" },
	} {
		c := config(tool.Write)
		change(&c)
		if _, err := New(c, g); !problem.Is(err, "invalid_tool") && !problem.Is(err, "invalid_url") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A service that goes over to another protocol, unasked, holds no call.
func TestSwitchingProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, _ = io.ReadAll(c)
			return false
		}}
		made := with(t, s, config(tool.Write))
		done := make(chan error, 1)
		go func() { _, err := made.Run(t.Context(), call(`{}`)); done <- err }()
		select {
		case err := <-done:
			if err == nil {
				t.Error("the call succeeded")
			}
		case <-time.After(time.Hour):
			panic("an hour later it still waits")
		}
	})
}

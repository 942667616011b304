package daemon_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// houseWith is a house whose configuration has further lines.
func houseWith(t *testing.T, lines string, script chatstub.Script) *house {
	t.Helper()
	h := &house{t: t, stub: chatstub.New(script)}
	vendor := httptest.NewServer(h.stub)
	t.Cleanup(vendor.Close)
	h.begin(fmt.Sprintf("routes: {main: {provider: openai_compatible, base_url: %q, model: m}}\n%s", vendor.URL+"/v1", lines), "found")
	return h
}

// as is the client of a token.
func (h *house) as(token string) *client.Client {
	h.t.Helper()
	c, err := client.New("http://"+h.address, token)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// I-34: the work of one user's session is serial, that of others waits for nobody,
// also under one alias.
func TestUsersWorkApart(t *testing.T) { // I-06, I-34
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	h := newHouse(t, func(_ int, req chatstub.Request) chatstub.Reply {
		if req.Messages[len(req.Messages)-1].Text() == "long" {
			<-hold
		}
		return chatstub.Reply{Text: "done"}
	})
	t.Cleanup(release)
	ctx := t.Context()
	users := map[string]*client.Client{}
	for _, user := range []string{"ann", "bob"} {
		tok, err := h.c.CreateToken(ctx, &api.CreateToken{Role: "operator", UserID: user})
		if err != nil {
			t.Fatal(err)
		}
		users[user] = h.as(tok.Token)
		if _, err := users[user].CreateSession(ctx, &api.CreateSession{ID: "work"}); err != nil {
			t.Fatal(err)
		}
	}
	submit := func(user, text string) *api.Run {
		r, _, err := users[user].Submit(ctx, "work", &api.SubmitRun{Content: api.Text(text)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ended := func(user string, r *api.Run) {
		t.Helper()
		if got, err := users[user].Wait(ctx, r.ID); err != nil || got.Status != api.RunCompleted {
			t.Errorf("%s: %+v %v", user, got, err)
		}
	}
	first, second := submit("ann", "long"), submit("ann", "short")
	other := submit("bob", "short")
	ended("bob", other)
	if got, err := users["ann"].Run(ctx, second.ID); err != nil || got.Status != api.RunQueued {
		t.Errorf("ann's second run, before the first is over: %+v %v", got, err)
	}
	if _, err := users["bob"].Run(ctx, first.ID); client.Code(err) != "run_not_found" {
		t.Errorf("bob sees ann's run: %v", err)
	}
	release()
	ended("ann", first)
	ended("ann", second)
}

// A storm of requests, good ones, bad ones and idle connections, is told to come
// again, and work that is under way goes to its end.
func TestStormOfRequests(t *testing.T) {
	const turns = 40
	h := houseWith(t, "limits: {requests: 2, token_rate: 200, peer_rate: 20, auth_failures: 10, connections: 60}", func(n int, _ chatstub.Request) chatstub.Reply {
		if n < turns {
			return chatstub.Reply{Calls: []chatstub.Call{{Name: "lookup", Arguments: "{}"}}}
		}
		return chatstub.Reply{Text: "done"}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _, err := h.c.Submit(ctx, h.session(&api.CreateSession{}), &api.SubmitRun{Content: api.Text("go"), MaxTurns: turns + 1})
	if err != nil {
		t.Fatal(err)
	}
	strong, err := h.c.CreateToken(ctx, &api.CreateToken{Role: "operator", Name: "storm"})
	if err != nil {
		t.Fatal(err)
	}
	var told [600]atomic.Int64
	var storm sync.WaitGroup
	for i := range 8 {
		storm.Go(func() {
			hc := &http.Client{Transport: &http.Transport{}}
			defer hc.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				method, path, token := "GET", "/v1/sessions", strong.Token
				switch (i + n) % 4 {
				case 0:
					method = "POST"
				case 1:
					token = fmt.Sprintf("hf_%016x_%064x", i, n)
				case 2:
					path, token = "/healthz", ""
				}
				req, err := http.NewRequestWithContext(ctx, method, "http://"+h.address+path, strings.NewReader(""))
				if err != nil {
					t.Error(err)
					return
				}
				if token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				res, err := hc.Do(req)
				if err != nil {
					continue // the connection was idle when others came
				}
				told[res.StatusCode].Add(1)
				if res.StatusCode == 429 && res.Header.Get("Retry-After") == "" {
					t.Error("no word on when to come again")
				}
				res.Body.Close()
			}
		})
	}
	var idle []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	// The operator follows the work, by a stream that was there before the worst.
	for r.Status != api.RunCompleted {
		got, err := h.c.Wait(t.Context(), r.ID)
		if err != nil {
			if code := client.Code(err); code != "too_many_requests" && code != "rate_limited" && code != "too_many_streams" {
				t.Fatal(err)
			}
			continue
		}
		r = got
	}
	cancel()
	storm.Wait()
	for _, c := range idle {
		c.Close()
	}
	if r.Counters.Tools != turns || h.called.Load() != turns {
		t.Errorf("%d calls of the tool: %+v", h.called.Load(), r.Counters)
	}
	if told[429].Load() == 0 || told[500].Load()+told[503].Load() > 0 {
		t.Errorf("429 was told %d times, 500 %d, 503 %d", told[429].Load(), told[500].Load(), told[503].Load())
	}
}

// Over TLS everything is as without: HTTP/2, bodies, streams, the end.
func TestOverTLS(t *testing.T) {
	h := newHouse(t, chatstub.Replies(chatstub.Reply{Text: "done"}))
	// A certificate for 127.0.0.1, of a test server.
	dummy := httptest.NewTLSServer(http.NotFoundHandler())
	defer dummy.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pair := dummy.TLS.Certificates[0]
	h.d.ServeTLS(l, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
	pool := x509.NewCertPool()
	pool.AddCert(dummy.Certificate())
	for _, protocol := range []string{"HTTP/2.0", "HTTP/1.1"} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: protocol == "HTTP/2.0"}
		if protocol == "HTTP/1.1" {
			transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		hc := &http.Client{Transport: transport}
		c, err := client.New("https://"+l.Addr().String(), houseToken, client.WithHTTPClient(hc))
		if err != nil {
			t.Fatal(err)
		}
		res, err := hc.Get("https://" + l.Addr().String() + "/healthz")
		if err != nil || res.Proto != protocol {
			t.Fatalf("%+v %v", res, err)
		}
		res.Body.Close()
		s, err := c.CreateSession(t.Context(), &api.CreateSession{Instructions: strings.Repeat("long ", 20_000)})
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		if err := c.StreamRun(t.Context(), r.ID, 0, func(m client.Message) error {
			if m.Event != nil {
				last = m.Event.Type
			}
			return nil
		}); err != nil || last != "run.completed" {
			t.Errorf("%s: the stream ends with %s: %v", protocol, last, err)
		}
		// A body that nobody wants ends with its own answer, and no other request's.
		req, err := http.NewRequest("POST", "https://"+l.Addr().String()+"/v1/sessions", strings.NewReader(strings.Repeat("x", 3<<20)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+houseToken)
		if res, err := hc.Do(req); err == nil { // the connection may end before the body is sent
			if res.StatusCode != 413 {
				t.Errorf("%s: a large body: %d", protocol, res.StatusCode)
			}
			res.Body.Close()
		}
		if _, err := c.Session(t.Context(), s.ID); err != nil {
			t.Errorf("%s: afterwards: %v", protocol, err)
		}
		hc.CloseIdleConnections()
	}
}

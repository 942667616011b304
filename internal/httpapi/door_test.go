package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// knock is a request as the door sees it, from a peer.
type knock struct {
	method, path, token, peer, host string
	body                            string
	header                          []string
}

func (w *world) knock(k knock) *reply {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), orDefault(k.method, "GET"), "http://"+orDefault(k.host, "127.0.0.1:7411")+k.path, strings.NewReader(k.body))
	r.RemoteAddr = orDefault(k.peer, "192.0.2.1") + ":4711"
	if strings.Contains(k.peer, ":") {
		r.RemoteAddr = "[" + k.peer + "]:4711"
	}
	if k.token != "" {
		r.Header.Set("Authorization", "Bearer "+k.token)
	}
	for i := 0; i < len(k.header); i += 2 {
		r.Header.Add(k.header[i], k.header[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return &reply{t: w.t, status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
}

// C91: the eight requests of the field case, and what comes of them.
func TestFieldCaseC91(t *testing.T) {
	var c struct {
		Input struct {
			Requests []struct {
				Name, Method, Path, Body, Expect string
				Headers                          map[string]string
			}
		}
		Expected struct {
			RunsCreated int `json:"runs_created_by_4xx"`
		}
	}
	text, err := os.ReadFile("testdata/field/C91.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &c); err != nil || len(c.Input.Requests) != 8 {
		t.Fatalf("%d requests: %v", len(c.Input.Requests), err)
	}
	w := newWorld(t)
	s := w.session("")
	good := 0
	for _, rq := range c.Input.Requests {
		method, path, body := orDefault(rq.Method, "POST"), "/v1/sessions/"+s.ID+"/runs", rq.Body
		switch rq.Path {
		case "events stream":
			path = "/v1/sessions/" + s.ID + "/stream"
		case "?token=good":
			path += "?token=" + w.admin
		case "":
		default:
			t.Fatalf("%s: path %q", rq.Name, rq.Path)
		}
		if body == "" && method == "POST" {
			body = `{"content":"x"}`
		}
		header := []string{}
		if rq.Headers["Content-Type"] == "" && method == "POST" {
			header = append(header, "Content-Type", "application/json")
		}
		for name, value := range rq.Headers {
			value = strings.NewReplacer("PORT", "7411", "good", w.admin).Replace(value)
			if name != "Host" {
				header = append(header, name, value)
			}
		}
		r := w.knock(knock{method: method, path: path, host: strings.ReplaceAll(rq.Headers["Host"], "PORT", "7411"), body: body, header: header})
		ok := r.status/100 == 4
		switch {
		case rq.Expect == "2xx":
			ok = r.status/100 == 2
			good++
		case strings.HasPrefix(rq.Expect, "415"):
			ok = r.status == 415 || r.status == 400
		}
		if !ok {
			t.Errorf("%s: %d, want %s: %s", rq.Name, r.status, rq.Expect, r.body)
		}
		if strings.Contains(string(r.body), w.admin) || strings.Contains(w.logs.String(), w.admin) {
			t.Errorf("%s: the token is shown", rq.Name)
		}
	}
	runs := into[api.List[api.Run]](w.do("GET", "/v1/runs", w.admin, nil).want(200))
	if len(runs.Items)-good != c.Expected.RunsCreated {
		t.Errorf("%d runs of %d good requests", len(runs.Items), good)
	}
	// Health shows nothing but that it is alive.
	health := w.knock(knock{path: "/healthz"}).want(200)
	if got := string(health.body); got != `{"status":"ok","version":"test"}`+"\n" {
		t.Errorf("health shows %s", got)
	}
}

// C91, further: what a browser may send for a page elsewhere is refused, reads
// too, with a token and without, and every answer has the strict headers.
func TestBrowsers(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		var err error
		if c.Hosts, err = gate.NewHosts("agents.example.com"); err != nil {
			t.Fatal(err)
		}
	})
	s := w.session("")
	stream := "/v1/sessions/" + s.ID + "/stream"
	for _, c := range []struct {
		name   string
		k      knock
		status int
		code   string
	}{
		{"image of another site", knock{path: "/v1/sessions", header: []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}}, 403, "cross_origin"},
		{"another port of this host", knock{path: "/v1/sessions", header: []string{"Sec-Fetch-Site", "same-site"}}, 403, "cross_origin"},
		{"an unknown word for the site", knock{path: "/v1/sessions", header: []string{"Sec-Fetch-Site", "elsewhere"}}, 403, "cross_origin"},
		{"EventSource of another page", knock{path: stream, header: []string{"Origin", "https://evil.test", "Accept", "text/event-stream"}}, 403, "cross_origin"},
		{"EventSource of a file", knock{path: stream, header: []string{"Origin", "null"}}, 403, "cross_origin"},
		{"EventSource of another port", knock{path: stream, header: []string{"Origin", "http://127.0.0.1:9999"}}, 403, "cross_origin"},
		{"two origins", knock{path: "/v1/sessions", header: []string{"Origin", "http://127.0.0.1:7411", "Origin", "http://evil.test"}}, 403, "cross_origin"},
		{"health too", knock{path: "/healthz", header: []string{"Origin", "https://evil.test"}}, 403, "cross_origin"},
		{"preflight", knock{method: "OPTIONS", path: "/v1/sessions", header: []string{"Origin", "https://evil.test", "Access-Control-Request-Method", "POST"}}, 403, "cross_origin"},
		{"rebinding to health", knock{path: "/healthz", host: "evil.test:7411"}, 421, "host_not_allowed"},
		{"all addresses", knock{path: "/healthz", host: "0.0.0.0:7411"}, 421, "host_not_allowed"},
		{"rebinding where nothing is", knock{path: "/nope", host: "evil.test"}, 421, "host_not_allowed"},
		{"a form to what reads no body", knock{method: "POST", path: "/v1/sessions/" + s.ID + "/compact", header: []string{"Content-Type", "text/plain"}, body: "x"}, 415, "unsupported_media_type"},
		{"a form without a body", knock{method: "POST", path: "/v1/sessions/" + s.ID + "/close", header: []string{"Content-Type", "application/x-www-form-urlencoded"}}, 415, "unsupported_media_type"},
		{"an upload posing as JSON", knock{method: "POST", path: "/v1/sessions", header: []string{"Content-Type", "multipart/form-data; boundary=x"}, body: "{}"}, 415, "unsupported_media_type"},
		{"token in the query of a stream", knock{path: stream + "?access_token=x"}, 400, "token_in_query"},
		{"nothing there", knock{path: "/nope"}, 404, "not_found"},
		{"not that way", knock{method: "PUT", path: "/v1/sessions"}, 405, "method_not_allowed"},
		{"own page", knock{path: "/v1/sessions", header: []string{"Origin", "http://127.0.0.1:7411", "Sec-Fetch-Site", "same-origin"}}, 200, ""},
		{"address line", knock{path: "/v1/sessions", header: []string{"Sec-Fetch-Site", "none"}}, 200, ""},
		{"public name", knock{path: "/v1/sessions", host: "Agents.example.com.:443", header: []string{"Origin", "https://agents.example.com"}}, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.k.token = w.admin
			r := w.knock(c.k)
			r.t = t
			if r.want(c.status); c.code != "" {
				r.want(c.status, c.code)
			}
			for name, want := range map[string]string{
				"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Access-Control-Allow-Origin": "", "Set-Cookie": "",
			} {
				if got := r.header.Get(name); got != want {
					t.Errorf("%s: %q", name, got)
				}
			}
			if c.code == "host_not_allowed" && !strings.Contains(string(r.body), "public_names") {
				t.Errorf("the answer does not name the setting: %s", r.body)
			}
		})
	}
	if got := into[api.Session](w.do("GET", "/v1/sessions/"+s.ID, w.admin, nil)); got.Status != "open" {
		t.Errorf("a refused request changed the session: %+v", got)
	}
	// The unix socket has no name, and is asked under any.
	rec := httptest.NewRecorder()
	w.handler.Local().ServeHTTP(rec, httptest.NewRequest("GET", "http://holdfast/v1/sessions", nil))
	if rec.Code != 200 {
		t.Errorf("by the socket: %d", rec.Code)
	}
}

func (w *world) auditTypes() (list []string) {
	w.t.Helper()
	for _, e := range into[api.List[api.Event]](w.do("GET", "/v1/audit", w.admin, nil).want(200)).Items {
		list = append(list, e.Type)
	}
	return list
}

// Who has a good token is not locked out by those who share the address and have
// none; who has none is told to come later.
func TestFailuresAreLimited(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.AuthFailures = 0 }) // the default
	const word = "a-word-that-a-person-chose"
	if err := w.store.AddToken(t.Context(), eventlog.TokenRow{ID: "tok_word", Role: "reader", Hash: tokens.Hash(word), CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	other := w.token("reader", "")
	bad := func(i int) string { return fmt.Sprintf("hf_%016x_%064x", i, i) }
	for i := range 10 {
		w.knock(knock{path: "/v1/sessions", token: bad(i)}).want(401, "invalid_token")
	}
	r := w.knock(knock{path: "/v1/sessions", token: bad(11)}).want(429, "too_many_failures")
	if n, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || n < 1 || n > 60 {
		t.Errorf("Retry-After: %q", r.header.Get("Retry-After"))
	}
	// Good tokens of the same address work, whether they were seen before or not.
	w.knock(knock{path: "/v1/sessions", token: w.admin}).want(200)
	w.knock(knock{path: "/v1/sessions", token: other}).want(200)
	// A word may be guessed: from this address it is not looked at now, from another it is ...
	w.knock(knock{path: "/v1/sessions", token: word}).want(429, "too_many_failures")
	w.knock(knock{path: "/v1/sessions", token: word, peer: "192.0.2.2"}).want(200)
	// ... and whose word this process knows goes on.
	w.knock(knock{path: "/v1/sessions", token: word}).want(200)
	// Another host of the address's network is another peer; of IPv6 it is the same.
	w.knock(knock{path: "/v1/sessions", token: bad(12), peer: "192.0.2.3"}).want(401)
	for i := range 11 {
		r = w.knock(knock{path: "/v1/sessions", token: bad(i), peer: fmt.Sprintf("2001:db8::%x", i)})
	}
	r.want(429, "too_many_failures")
	// No token at all is no guess.
	w.knock(knock{path: "/v1/sessions"}).want(401, "token_required")
}

// Behind a proxy the peer is whom the proxy names, and others are refused.
func TestBehindProxy(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.AuthFailures = 1
		c.Proxies = &gate.Proxies{Header: gate.ForwardedFor, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}}
	})
	bad := "hf_" + strings.Repeat("0", 16) + "_" + strings.Repeat("0", 64)
	ask := func(peer, forwarded, token string) *reply {
		return w.knock(knock{path: "/v1/sessions", peer: peer, token: token, header: []string{"X-Forwarded-For", forwarded, "Forwarded", "for=8.8.8.8"}})
	}
	ask("10.0.0.7", "192.0.2.1", bad).want(401)
	ask("10.0.0.7", "203.0.113.9, 192.0.2.1", bad).want(429, "too_many_failures") // what a client wrote before does not count
	ask("10.0.0.7", "192.0.2.2", bad).want(401)
	ask("10.0.0.7", "192.0.2.1", w.admin).want(200)
	ask("10.0.0.8", "192.0.2.5", w.admin).want(403, "proxy_required")
	ask("127.0.0.1", "192.0.2.1", w.admin).want(200) // this machine, as itself
	ask("127.0.0.1", "192.0.2.1", bad).want(401)
	w.handler.Stop(t.Context())
	if audit := string(w.do("GET", "/v1/audit", w.admin, nil).body); !strings.Contains(audit, `"peer":"192.0.2.1"`) || !strings.Contains(audit, "proxy_required") || strings.Contains(audit, "8.8.8.8") {
		t.Errorf("audit: %s", audit)
	}
}

// A token ends when it was said to, and streams that it holds open with it.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDoor(t, func(c *Config) { c.MaxTokenExpiry = 48 * time.Hour })
		w.admin = w.token("admin", "")
		create := func(body string) *reply {
			return w.knock(knock{method: "POST", path: "/v1/tokens", token: w.admin, body: body, header: []string{"Content-Type", "application/json"}})
		}
		for _, bad := range []string{`"expires_in":"0s"`, `"expires_in":"-1h"`, `"expires_in":"soon"`, `"expires_in":"49h"`, `"expires_at":"1999-01-01T00:00:00Z"`,
			`"expires_in":"1h","expires_at":"2000-01-01T02:00:00Z"`, `"expires_at":"9999-01-01T00:00:00Z"`} {
			create(`{"role":"reader",`+bad+`}`).want(400, "invalid_expiry")
		}
		tok := into[api.Token](create(`{"role":"reader","expires_in":"1h"}`).want(201))
		if tok.ExpiresAt == nil || time.Until(*tok.ExpiresAt) != time.Hour {
			t.Fatalf("token %+v at %s", tok, time.Now())
		}
		if tok := into[api.Token](create(`{"role":"reader"}`).want(201)); tok.ExpiresAt == nil || time.Until(*tok.ExpiresAt) != 48*time.Hour {
			t.Errorf("without a word: %+v", tok)
		}
		s := into[api.Session](w.knock(knock{method: "POST", path: "/v1/sessions", token: w.admin}).want(201))
		w.knock(knock{path: "/v1/sessions", token: tok.Token}).want(200)
		over := make(chan *reply)
		go func() { over <- w.knock(knock{path: "/v1/sessions/" + s.ID + "/stream", token: tok.Token}) }()
		time.Sleep(time.Hour - time.Nanosecond)
		w.knock(knock{path: "/v1/sessions", token: tok.Token}).want(200)
		time.Sleep(time.Nanosecond)
		w.knock(knock{path: "/v1/sessions", token: tok.Token}).want(401, "token_expired")
		if r := <-over; !strings.Contains(string(r.body), "event: problem") || !strings.Contains(string(r.body), "token_expired") {
			t.Errorf("the stream ends with %s", r.body)
		}
		w.handler.Stop(t.Context())
		if last := w.lastAudit(); !strings.Contains(last, `"reason":"token_expired"`) || !strings.Contains(last, tok.ID) {
			t.Errorf("audit: %s", last)
		}
	})
}

func (w *world) lastAudit() string {
	w.t.Helper()
	events, err := w.store.Read(w.t.Context(), event.AuditStream, 0, 1000)
	if err != nil || len(events) == 0 {
		w.t.Fatalf("%d records: %v", len(events), err)
	}
	return string(events[len(events)-1].Raw)
}

// touches counts what is written of uses.
type touches struct {
	Store
	mu    sync.Mutex
	calls []map[string]time.Time
}

func (s *touches) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	s.mu.Lock()
	s.calls = append(s.calls, used)
	s.mu.Unlock()
	return s.Store.TouchTokens(ctx, used)
}

// When a token was used is told to the minute, and written at most once a minute,
// beside the requests.
func TestLastUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &touches{}
		w := newDoor(t, func(c *Config) { s.Store, c.Store = c.Store, s })
		w.admin = w.token("admin", "")
		w.handler.Start()
		began := time.Now()
		for range 10 * 60 { // ten minutes
			w.knock(knock{path: "/v1/sessions", token: w.admin}).want(200)
			time.Sleep(time.Second)
		}
		used := time.Now().Add(-time.Second).UTC().Truncate(time.Minute)
		w.handler.Stop(t.Context())
		rows, err := w.store.ListTokens(t.Context())
		if err != nil || len(rows) != 1 || !rows[0].LastUsed.Equal(used) || len(s.calls) < 9 || len(s.calls) > 12 {
			t.Errorf("used %s, told %+v; %d writes in %s: %v", used, rows, len(s.calls), time.Since(began), err)
		}
		if l := into[api.List[api.Token]](w.knock(knock{path: "/v1/tokens", token: w.admin}).want(200)); l.Items[0].LastUsed == nil || !l.Items[0].LastUsed.Equal(used) {
			t.Errorf("shown: %+v", l.Items)
		}
	})
}

// However many are turned away, the audit stream grows by a bounded step a minute,
// tells all of them, and holds no secret (I-33).
func TestAuditOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDoor(t)
		w.admin = w.token("admin", "")
		w.handler.Start()
		sum := func() (events int, count int64) {
			list, err := w.store.Read(t.Context(), event.AuditStream, 0, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				if err := list[i].Decode(); err != nil {
					t.Fatal(err)
				}
				count += list[i].Data.(*event.AuditRefused).Count
			}
			return len(list), count
		}
		secret := "hf_" + strings.Repeat("5", 16) + "_" + strings.Repeat("c", 64)
		w.knock(knock{path: "/v1/sessions?x=" + secret, token: secret}).want(401)
		time.Sleep(2 * time.Second)
		if events, count := sum(); events != 1 || count != 1 {
			t.Errorf("%d events tell %d after two seconds", events, count)
		}
		const many = 3000
		for i := range many {
			w.knock(knock{path: "/v1/sessions", token: fmt.Sprintf("hf_%016x_%064x", i, i), peer: fmt.Sprintf("198.51.%d.%d", i>>8, i&255)}).want(401)
		}
		w.knock(knock{path: "/v1/sessions", host: "evil.test"}).want(421)
		time.Sleep(2 * time.Minute)
		events, count := sum()
		if events > 1+10 || count != many+2 {
			t.Errorf("%d events tell %d of %d", events, count, many+2)
		}
		w.handler.Stop(t.Context())
		list, err := w.store.Read(t.Context(), event.AuditStream, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for i := range list {
			all += string(list[i].Raw)
		}
		if strings.Contains(all, strings.Repeat("c", 64)) || strings.Contains(w.logs.String(), strings.Repeat("c", 64)) || !strings.Contains(all, "evil.test") {
			t.Errorf("the stream: %s", all)
		}
	})
}

// Changes of tokens are recorded before they are made, and not made when that fails.
func TestAuditOfTokens(t *testing.T) {
	broken := &failing{}
	w := newWorld(t, func(c *Config) { broken.to, c.Audit = c.Audit, broken })
	tok := into[api.Token](w.do("POST", "/v1/tokens", w.admin, `{"name":"ci","role":"reader","user_id":"ann","expires_in":"1h"}`).want(201))
	last := w.lastAudit()
	for _, want := range []string{tok.ID, `"role":"reader"`, `"user_id":"ann"`, `"name":"ci"`, `"peer":"127.0.0.1"`, `"actor":"admin- (tok_`, `"expires_at":"`} {
		if !strings.Contains(last, want) {
			t.Errorf("no %s in %s", want, last)
		}
	}
	if strings.Contains(last, tok.Token) || strings.Contains(last, tokens.Hash(tok.Token)) {
		t.Errorf("I-33: %s", last)
	}
	broken.err = errors.New("no space")
	w.do("POST", "/v1/tokens", w.admin, `{"role":"reader"}`).want(500)
	w.do("DELETE", "/v1/tokens/"+tok.ID, w.admin, nil).want(500)
	w.do("GET", "/v1/sessions", tok.Token, nil).want(200)
	broken.err = nil
	w.do("DELETE", "/v1/tokens/"+tok.ID, w.admin, nil).want(204)
	w.do("GET", "/v1/sessions", tok.Token, nil).want(401, "invalid_token")
	if got := w.auditTypes(); strings.Join(got, " ") != "audit.token.created audit.token.revoked" {
		t.Errorf("records %v", got)
	}
	if rows, err := w.store.ListTokens(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("%d tokens: %v", len(rows), err)
	}
	// The feed shows the stream to those who may read it, and to nobody else.
	for token, want := range map[string]bool{w.admin: true, w.token("operator", ""): false, w.token("reader", ""): false, w.token("admin", "ann"): false} {
		feed := string(w.do("GET", "/v1/events?limit=1000", token, nil).want(200).body)
		if strings.Contains(feed, "audit.token") != want {
			t.Errorf("feed: %s", feed)
		}
	}
}

type failing struct {
	to  eventlog.Auditor
	err error
}

func (f *failing) Audit(ctx context.Context, records ...event.Audit) error {
	if f.err != nil {
		return f.err
	}
	return f.to.Audit(ctx, records...)
}

// One token's flood is cut at its rate, and nobody else's requests are.
func TestRatesOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDoor(t, func(c *Config) { c.TokenRate, c.PeerRate = 5, 3 })
		w.admin = w.token("admin", "")
		calm := w.token("reader", "")
		count := func(n int, k knock) map[int]int {
			got := map[int]int{}
			for range n {
				got[w.knock(k).status]++
			}
			return got
		}
		if got := count(50, knock{path: "/v1/sessions", token: w.admin}); got[200] != 10 || got[429] != 40 {
			t.Errorf("a flood with a token: %v", got)
		}
		w.knock(knock{path: "/v1/sessions", token: calm}).want(200)
		if got := count(50, knock{path: "/healthz"}); got[200] != 6 || got[429] != 44 {
			t.Errorf("a flood without one: %v", got)
		}
		w.knock(knock{path: "/v1/sessions", token: calm}).want(200) // from the very address
		w.knock(knock{path: "/healthz", peer: "192.0.2.9"}).want(200)
		if r := w.knock(knock{path: "/nope"}).want(429, "rate_limited"); r.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After: %q", r.header.Get("Retry-After"))
		}
		time.Sleep(time.Second)
		if got := count(50, knock{path: "/v1/sessions", token: w.admin}); got[200] != 5 {
			t.Errorf("a second later: %v", got)
		}
	})
}

// waiting is a store whose lists wait.
type waiting struct {
	Store
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
	w := newWorld(t, func(c *Config) { s.Store, c.Store, c.MaxRequests = c.Store, s, 2 })
	ses := w.session("")
	run := w.submit(ses.ID, "x")
	leave := sync.OnceFunc(func() { close(s.gone) })
	defer leave()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { w.do("GET", "/v1/sessions", w.admin, nil).want(200) })
		<-s.come
	}
	r := w.do("GET", "/v1/runs/"+run.ID, w.admin, nil).want(429, "too_many_requests")
	if r.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After: %q", r.header.Get("Retry-After"))
	}
	w.do("GET", "/healthz", "", nil).want(200)
	w.follow("/v1/sessions/" + ses.ID + "/stream").close()
	leave()
	all.Wait()
	// Who waits for a run takes no place. They come one after the other: each has one
	// until it waits.
	waits := func(n int) {
		for w.handler.server.streams.count() != n {
			w.do("GET", "/healthz", "", nil).want(200)
		}
	}
	waits(0) // the reader above is gone
	for i := range 3 {
		all.Go(func() { w.do("GET", "/v1/runs/"+run.ID+"?wait=60s", w.admin, nil).want(200) })
		waits(i + 1)
	}
	w.do("GET", "/v1/runs/"+run.ID, w.admin, nil).want(200)
	w.append(&run, &event.RunCancelled{})
	all.Wait()
}

// Whatever stands in the header, nobody comes in by it, and nothing of it is told.
// A token's id in a request is looked for as it stands, whatever else it looks like.
func TestTokensOfOtherForms(t *testing.T) {
	w := newWorld(t)
	given := "hf_" + strings.Repeat("0", 16) + "_" + strings.Repeat("d", 64) // made elsewhere, and given as HOLDFAST_TOKEN
	for id, text := range map[string]string{"tok_a": given, "tok_b": "sixteen letters!", "tok_c": "hf_not_one_of_ours"} {
		if err := w.store.AddToken(t.Context(), eventlog.TokenRow{ID: id, Role: "reader", Hash: tokens.Hash(text), CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
		w.do("GET", "/v1/sessions", text, nil).want(200)
	}
	// The id of one, the secret of another.
	mine := w.token("reader", "")
	w.do("GET", "/v1/sessions", mine[:20]+given[20:], nil).want(401, "invalid_token")
	w.handler.Stop(t.Context())
	if last := w.lastAudit(); !strings.Contains(last, "tok_"+mine[3:19]) {
		t.Errorf("the record does not name the token: %s", last)
	}
}

package door_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
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
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

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
	w := apitest.New(t)
	s := w.Session("")
	good := 0
	for _, rq := range c.Input.Requests {
		method, path, body := cmp.Or(rq.Method, "POST"), "/v1/sessions/"+s.ID+"/runs", rq.Body
		switch rq.Path {
		case "events stream":
			path = "/v1/sessions/" + s.ID + "/stream"
		case "?token=good":
			path += "?token=" + w.Admin
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
			value = strings.NewReplacer("PORT", "7411", "good", w.Admin).Replace(value)
			if name != "Host" {
				header = append(header, name, value)
			}
		}
		r := w.Knock(apitest.Knock{Method: method, Path: path, Host: strings.ReplaceAll(rq.Headers["Host"], "PORT", "7411"), Body: body, Header: header})
		ok := r.Status/100 == 4
		switch {
		case rq.Expect == "2xx":
			ok = r.Status/100 == 2
			good++
		case strings.HasPrefix(rq.Expect, "415"):
			ok = r.Status == 415 || r.Status == 400
		}
		if !ok {
			t.Errorf("%s: %d, want %s: %s", rq.Name, r.Status, rq.Expect, r.Body)
		}
		if strings.Contains(string(r.Body), w.Admin) || strings.Contains(w.Logs.String(), w.Admin) {
			t.Errorf("%s: the token is shown", rq.Name)
		}
	}
	runs := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs", w.Admin, nil).Want(200))
	if len(runs.Items)-good != c.Expected.RunsCreated {
		t.Errorf("%d runs of %d good requests", len(runs.Items), good)
	}
	// Health shows nothing but that it is alive.
	health := w.Knock(apitest.Knock{Path: "/healthz"}).Want(200)
	if got := string(health.Body); got != `{"status":"ok","version":"test"}`+"\n" {
		t.Errorf("health shows %s", got)
	}
}

// C91, further: what a browser may send for a page elsewhere is refused, reads
// too, with a token and without, and every answer has the strict headers.
func TestBrowsers(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) {
		var err error
		if c.Hosts, err = gate.NewHosts("agents.example.com"); err != nil {
			t.Fatal(err)
		}
	})
	s := w.Session("")
	stream := "/v1/sessions/" + s.ID + "/stream"
	for _, c := range []struct {
		name   string
		k      apitest.Knock
		status int
		code   string
	}{
		{"image of another site", apitest.Knock{Path: "/v1/sessions", Header: []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}}, 403, "cross_origin"},
		{"another port of this host", apitest.Knock{Path: "/v1/sessions", Header: []string{"Sec-Fetch-Site", "same-site"}}, 403, "cross_origin"},
		{"an unknown word for the site", apitest.Knock{Path: "/v1/sessions", Header: []string{"Sec-Fetch-Site", "elsewhere"}}, 403, "cross_origin"},
		{"EventSource of another page", apitest.Knock{Path: stream, Header: []string{"Origin", "https://evil.test", "Accept", "text/event-stream"}}, 403, "cross_origin"},
		{"EventSource of a file", apitest.Knock{Path: stream, Header: []string{"Origin", "null"}}, 403, "cross_origin"},
		{"EventSource of another port", apitest.Knock{Path: stream, Header: []string{"Origin", "http://127.0.0.1:9999"}}, 403, "cross_origin"},
		{"two origins", apitest.Knock{Path: "/v1/sessions", Header: []string{"Origin", "http://127.0.0.1:7411", "Origin", "http://evil.test"}}, 403, "cross_origin"},
		{"health too", apitest.Knock{Path: "/healthz", Header: []string{"Origin", "https://evil.test"}}, 403, "cross_origin"},
		{"preflight", apitest.Knock{Method: "OPTIONS", Path: "/v1/sessions", Header: []string{"Origin", "https://evil.test", "Access-Control-Request-Method", "POST"}}, 403, "cross_origin"},
		{"rebinding to health", apitest.Knock{Path: "/healthz", Host: "evil.test:7411"}, 421, "host_not_allowed"},
		{"all addresses", apitest.Knock{Path: "/healthz", Host: "0.0.0.0:7411"}, 421, "host_not_allowed"},
		{"rebinding where nothing is", apitest.Knock{Path: "/nope", Host: "evil.test"}, 421, "host_not_allowed"},
		{"a form to what reads no body", apitest.Knock{Method: "POST", Path: "/v1/sessions/" + s.ID + "/compact", Header: []string{"Content-Type", "text/plain"}, Body: "x"}, 415, "unsupported_media_type"},
		{"a form without a body", apitest.Knock{Method: "POST", Path: "/v1/sessions/" + s.ID + "/close", Header: []string{"Content-Type", "application/x-www-form-urlencoded"}}, 415, "unsupported_media_type"},
		{"an upload posing as JSON", apitest.Knock{Method: "POST", Path: "/v1/sessions", Header: []string{"Content-Type", "multipart/form-data; boundary=x"}, Body: "{}"}, 415, "unsupported_media_type"},
		{"token in the query of a stream", apitest.Knock{Path: stream + "?access_token=x"}, 400, "token_in_query"},
		{"nothing there", apitest.Knock{Path: "/nope"}, 404, "not_found"},
		{"not that way", apitest.Knock{Method: "PUT", Path: "/v1/sessions"}, 405, "method_not_allowed"},
		{"own page", apitest.Knock{Path: "/v1/sessions", Header: []string{"Origin", "http://127.0.0.1:7411", "Sec-Fetch-Site", "same-origin"}}, 200, ""},
		{"address line", apitest.Knock{Path: "/v1/sessions", Header: []string{"Sec-Fetch-Site", "none"}}, 200, ""},
		{"public name", apitest.Knock{Path: "/v1/sessions", Host: "Agents.example.com.:443", Header: []string{"Origin", "https://agents.example.com"}}, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.k.Token = w.Admin
			r := w.Knock(c.k)
			r.T = t
			if r.Want(c.status); c.code != "" {
				r.Want(c.status, c.code)
			}
			for name, want := range map[string]string{
				"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Access-Control-Allow-Origin": "", "Set-Cookie": "",
			} {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s: %q", name, got)
				}
			}
			if c.code == "host_not_allowed" && !strings.Contains(string(r.Body), "public_names") {
				t.Errorf("the answer does not name the setting: %s", r.Body)
			}
		})
	}
	if got := apitest.Into[api.Session](w.Do("GET", "/v1/sessions/"+s.ID, w.Admin, nil)); got.Status != "open" {
		t.Errorf("a refused request changed the session: %+v", got)
	}
	// The unix socket has no name, and is asked under any.
	rec := httptest.NewRecorder()
	w.Handler.Local().ServeHTTP(rec, httptest.NewRequest("GET", "http://holdfast/v1/sessions", nil))
	if rec.Code != 200 {
		t.Errorf("by the socket: %d", rec.Code)
	}
}

// Who has a good token is not locked out by those who share the address and have
// none; who has none is told to come later.
func TestFailuresAreLimited(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.AuthFailures = 0 }) // the default
	const word = "a-word-that-a-person-chose"
	if err := w.Store.AddToken(t.Context(), eventlog.TokenRow{ID: "tok_word", Role: "reader", Hash: tokens.Hash(word), CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	other := w.Token("reader", "")
	bad := func(i int) string { return fmt.Sprintf("hf_%016x_%064x", i, i) }
	for i := range 10 {
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: bad(i)}).Want(401, "invalid_token")
	}
	r := w.Knock(apitest.Knock{Path: "/v1/sessions", Token: bad(11)}).Want(429, "too_many_failures")
	if n, err := strconv.Atoi(r.Header.Get("Retry-After")); err != nil || n < 1 || n > 60 {
		t.Errorf("Retry-After: %q", r.Header.Get("Retry-After"))
	}
	// Good tokens of the same address work, whether they were seen before or not.
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: w.Admin}).Want(200)
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: other}).Want(200)
	// A word may be guessed: from this address it is not looked at now, from another it is ...
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: word}).Want(429, "too_many_failures")
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: word, Peer: "192.0.2.2"}).Want(200)
	// ... and whose word this process knows goes on.
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: word}).Want(200)
	// Another host of the address's network is another peer; of IPv6 it is the same.
	w.Knock(apitest.Knock{Path: "/v1/sessions", Token: bad(12), Peer: "192.0.2.3"}).Want(401)
	for i := range 11 {
		r = w.Knock(apitest.Knock{Path: "/v1/sessions", Token: bad(i), Peer: fmt.Sprintf("2001:db8::%x", i)})
	}
	r.Want(429, "too_many_failures")
	// No token at all is no guess.
	w.Knock(apitest.Knock{Path: "/v1/sessions"}).Want(401, "token_required")
}

// Behind a proxy the peer is whom the proxy names, and others are refused.
func TestBehindProxy(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) {
		c.AuthFailures = 1
		c.Proxies = &gate.Proxies{Header: gate.ForwardedFor, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}}
	})
	bad := "hf_" + strings.Repeat("0", 16) + "_" + strings.Repeat("0", 64)
	ask := func(peer, forwarded, token string) *apitest.Reply {
		return w.Knock(apitest.Knock{Path: "/v1/sessions", Peer: peer, Token: token, Header: []string{"X-Forwarded-For", forwarded, "Forwarded", "for=8.8.8.8"}})
	}
	ask("10.0.0.7", "192.0.2.1", bad).Want(401)
	ask("10.0.0.7", "203.0.113.9, 192.0.2.1", bad).Want(429, "too_many_failures") // what a client wrote before does not count
	ask("10.0.0.7", "192.0.2.2", bad).Want(401)
	ask("10.0.0.7", "192.0.2.1", w.Admin).Want(200)
	ask("10.0.0.8", "192.0.2.5", w.Admin).Want(403, "proxy_required")
	ask("127.0.0.1", "192.0.2.1", w.Admin).Want(200) // this machine, as itself
	ask("127.0.0.1", "192.0.2.1", bad).Want(401)
	w.Handler.Stop(t.Context())
	if audit := string(w.Do("GET", "/v1/audit", w.Admin, nil).Body); !strings.Contains(audit, `"peer":"192.0.2.1"`) || !strings.Contains(audit, "proxy_required") || strings.Contains(audit, "8.8.8.8") {
		t.Errorf("audit: %s", audit)
	}
}

// A token ends when it was said to, and streams that it holds open with it.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t, func(c *httpapi.Config) { c.MaxTokenExpiry = 48 * time.Hour })
		w.Admin = w.Token("admin", "")
		create := func(body string) *apitest.Reply {
			return w.Knock(apitest.Knock{Method: "POST", Path: "/v1/tokens", Token: w.Admin, Body: body, Header: []string{"Content-Type", "application/json"}})
		}
		for _, bad := range []string{`"expires_in":"0s"`, `"expires_in":"-1h"`, `"expires_in":"soon"`, `"expires_in":"49h"`, `"expires_at":"1999-01-01T00:00:00Z"`,
			`"expires_in":"1h","expires_at":"2000-01-01T02:00:00Z"`, `"expires_at":"9999-01-01T00:00:00Z"`} {
			create(`{"role":"reader",`+bad+`}`).Want(400, "invalid_expiry")
		}
		tok := apitest.Into[api.Token](create(`{"role":"reader","expires_in":"1h"}`).Want(201))
		if tok.ExpiresAt == nil || time.Until(*tok.ExpiresAt) != time.Hour {
			t.Fatalf("token %+v at %s", tok, time.Now())
		}
		if tok := apitest.Into[api.Token](create(`{"role":"reader"}`).Want(201)); tok.ExpiresAt == nil || time.Until(*tok.ExpiresAt) != 48*time.Hour {
			t.Errorf("without a word: %+v", tok)
		}
		s := apitest.Into[api.Session](w.Knock(apitest.Knock{Method: "POST", Path: "/v1/sessions", Token: w.Admin}).Want(201))
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: tok.Token}).Want(200)
		over := make(chan *apitest.Reply)
		go func() { over <- w.Knock(apitest.Knock{Path: "/v1/sessions/" + s.ID + "/stream", Token: tok.Token}) }()
		time.Sleep(time.Hour - time.Nanosecond)
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: tok.Token}).Want(200)
		time.Sleep(time.Nanosecond)
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: tok.Token}).Want(401, "token_expired")
		if r := <-over; !strings.Contains(string(r.Body), "event: problem") || !strings.Contains(string(r.Body), "token_expired") {
			t.Errorf("the stream ends with %s", r.Body)
		}
		w.Handler.Stop(t.Context())
		if last := w.LastAudit(); !strings.Contains(last, `"reason":"token_expired"`) || !strings.Contains(last, tok.ID) {
			t.Errorf("audit: %s", last)
		}
	})
}

// touches counts what is written of uses.
type touches struct {
	httpapi.Store
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
		w := apitest.NewDoor(t, func(c *httpapi.Config) { s.Store, c.Store = c.Store, s })
		w.Admin = w.Token("admin", "")
		w.Handler.Start()
		began := time.Now()
		for range 10 * 60 { // ten minutes
			w.Knock(apitest.Knock{Path: "/v1/sessions", Token: w.Admin}).Want(200)
			time.Sleep(time.Second)
		}
		used := time.Now().Add(-time.Second).UTC().Truncate(time.Minute)
		w.Handler.Stop(t.Context())
		rows, err := w.Store.ListTokens(t.Context())
		if err != nil || len(rows) != 1 || !rows[0].LastUsed.Equal(used) || len(s.calls) < 9 || len(s.calls) > 12 {
			t.Errorf("used %s, told %+v; %d writes in %s: %v", used, rows, len(s.calls), time.Since(began), err)
		}
		if l := apitest.Into[api.List[api.Token]](w.Knock(apitest.Knock{Path: "/v1/tokens", Token: w.Admin}).Want(200)); l.Items[0].LastUsed == nil || !l.Items[0].LastUsed.Equal(used) {
			t.Errorf("shown: %+v", l.Items)
		}
	})
}

// However many are turned away, the audit stream grows by a bounded step a minute,
// tells all of them, and holds no secret (I-33).
func TestAuditOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := apitest.NewDoor(t)
		w.Admin = w.Token("admin", "")
		w.Handler.Start()
		sum := func() (events int, count int64) {
			list, err := w.Store.Read(t.Context(), event.AuditStream, 0, 1000)
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
		w.Knock(apitest.Knock{Path: "/v1/sessions?x=" + secret, Token: secret}).Want(401)
		time.Sleep(2 * time.Second)
		if events, count := sum(); events != 1 || count != 1 {
			t.Errorf("%d events tell %d after two seconds", events, count)
		}
		const many = 3000
		for i := range many {
			w.Knock(apitest.Knock{Path: "/v1/sessions", Token: fmt.Sprintf("hf_%016x_%064x", i, i), Peer: fmt.Sprintf("198.51.%d.%d", i>>8, i&255)}).Want(401)
		}
		w.Knock(apitest.Knock{Path: "/v1/sessions", Host: "evil.test"}).Want(421)
		time.Sleep(2 * time.Minute)
		events, count := sum()
		if events > 1+10 || count != many+2 {
			t.Errorf("%d events tell %d of %d", events, count, many+2)
		}
		w.Handler.Stop(t.Context())
		list, err := w.Store.Read(t.Context(), event.AuditStream, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for i := range list {
			all += string(list[i].Raw)
		}
		if strings.Contains(all, strings.Repeat("c", 64)) || strings.Contains(w.Logs.String(), strings.Repeat("c", 64)) || !strings.Contains(all, "evil.test") {
			t.Errorf("the stream: %s", all)
		}
	})
}

// Changes of tokens are recorded before they are made, and not made when that fails.
func TestAuditOfTokens(t *testing.T) {
	broken := &failing{}
	w := apitest.New(t, func(c *httpapi.Config) { broken.to, c.Audit = c.Audit, broken })
	tok := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", w.Admin, `{"name":"ci","role":"reader","user_id":"ann","expires_in":"1h"}`).Want(201))
	last := w.LastAudit()
	for _, want := range []string{tok.ID, `"role":"reader"`, `"user_id":"ann"`, `"name":"ci"`, `"peer":"127.0.0.1"`, `"actor":"admin- (tok_`, `"expires_at":"`} {
		if !strings.Contains(last, want) {
			t.Errorf("no %s in %s", want, last)
		}
	}
	if strings.Contains(last, tok.Token) || strings.Contains(last, tokens.Hash(tok.Token)) {
		t.Errorf("I-33: %s", last)
	}
	broken.err = errors.New("no space")
	w.Do("POST", "/v1/tokens", w.Admin, `{"role":"reader"}`).Want(500)
	w.Do("DELETE", "/v1/tokens/"+tok.ID, w.Admin, nil).Want(500)
	w.Do("GET", "/v1/sessions", tok.Token, nil).Want(200)
	broken.err = nil
	w.Do("DELETE", "/v1/tokens/"+tok.ID, w.Admin, nil).Want(204)
	w.Do("GET", "/v1/sessions", tok.Token, nil).Want(401, "invalid_token")
	if got := w.AuditTypes(); strings.Join(got, " ") != "audit.token.created audit.token.revoked" {
		t.Errorf("records %v", got)
	}
	if rows, err := w.Store.ListTokens(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("%d tokens: %v", len(rows), err)
	}
	// The feed shows the stream to those who may read it, and to nobody else.
	for token, want := range map[string]bool{w.Admin: true, w.Token("operator", ""): false, w.Token("reader", ""): false, w.Token("admin", "ann"): false} {
		feed := string(w.Do("GET", "/v1/events?limit=1000", token, nil).Want(200).Body)
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
		w := apitest.NewDoor(t, func(c *httpapi.Config) { c.TokenRate, c.PeerRate = 5, 3 })
		w.Admin = w.Token("admin", "")
		calm := w.Token("reader", "")
		count := func(n int, k apitest.Knock) map[int]int {
			got := map[int]int{}
			for range n {
				got[w.Knock(k).Status]++
			}
			return got
		}
		if got := count(50, apitest.Knock{Path: "/v1/sessions", Token: w.Admin}); got[200] != 10 || got[429] != 40 {
			t.Errorf("a flood with a token: %v", got)
		}
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: calm}).Want(200)
		if got := count(50, apitest.Knock{Path: "/healthz"}); got[200] != 6 || got[429] != 44 {
			t.Errorf("a flood without one: %v", got)
		}
		w.Knock(apitest.Knock{Path: "/v1/sessions", Token: calm}).Want(200) // from the very address
		w.Knock(apitest.Knock{Path: "/healthz", Peer: "192.0.2.9"}).Want(200)
		if r := w.Knock(apitest.Knock{Path: "/nope"}).Want(429, "rate_limited"); r.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After: %q", r.Header.Get("Retry-After"))
		}
		time.Sleep(time.Second)
		if got := count(50, apitest.Knock{Path: "/v1/sessions", Token: w.Admin}); got[200] != 5 {
			t.Errorf("a second later: %v", got)
		}
	})
}

// Whatever stands in the header, nobody comes in by it, and nothing of it is told.
// A token's id in a request is looked for as it stands, whatever else it looks like.
func TestTokensOfOtherForms(t *testing.T) {
	w := apitest.New(t)
	given := "hf_" + strings.Repeat("0", 16) + "_" + strings.Repeat("d", 64) // made elsewhere, and given as HOLDFAST_TOKEN
	for id, text := range map[string]string{"tok_a": given, "tok_b": "sixteen letters!", "tok_c": "hf_not_one_of_ours"} {
		if err := w.Store.AddToken(t.Context(), eventlog.TokenRow{ID: id, Role: "reader", Hash: tokens.Hash(text), CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
		w.Do("GET", "/v1/sessions", text, nil).Want(200)
	}
	// The id of one, the secret of another.
	mine := w.Token("reader", "")
	w.Do("GET", "/v1/sessions", mine[:20]+given[20:], nil).Want(401, "invalid_token")
	w.Handler.Stop(t.Context())
	if last := w.LastAudit(); !strings.Contains(last, "tok_"+mine[3:19]) {
		t.Errorf("the record does not name the token: %s", last)
	}
}

// C91: what a web page can send changes nothing.
func TestRequestsOfWebPages(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	host := strings.TrimPrefix(w.Server.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	runs, stream := "/v1/sessions/"+s.ID+"/runs", "/v1/sessions/"+s.ID+"/stream"
	for _, c := range []struct {
		name, method, path, token string
		header                    []string
		status                    int
	}{
		{"simple post", "POST", runs, "", []string{"Origin", "https://evil.test", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, 403},
		{"simple post with a token", "POST", runs, w.Admin, []string{"Origin", "https://evil.test"}, 403},
		{"rebinding", "POST", runs, "", []string{"Host", "evil.test:" + port, "Origin", "http://evil.test:" + port}, 421},
		{"rebinding, stream", "GET", stream, "", []string{"Host", "evil.test:" + port}, 421},
		{"null origin", "POST", runs, w.Admin, []string{"Origin", "null"}, 403},
		{"content type", "POST", runs, w.Admin, []string{"Content-Type", "text/plain"}, 415},
		{"content type of a form", "POST", runs, w.Admin, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"other charset", "POST", runs, w.Admin, []string{"Content-Type", "application/json; charset=latin1"}, 415},
		{"token in the query", "POST", runs + "?token=" + w.Admin, "", nil, 400},
		{"token in the query too", "POST", runs + "?token=" + w.Admin, w.Admin, nil, 400},
		{"token in a form's name", "POST", runs + "?access_token=" + w.Admin, "", nil, 400},
		{"basic", "POST", runs, "", []string{"Authorization", "Basic " + w.Admin}, 401},
		{"command line", "POST", runs, w.Admin, []string{"Host", "localhost:" + port}, 202},
		{"charset", "POST", runs, w.Admin, []string{"Content-Type", "application/json; charset=UTF-8"}, 202},
		{"own origin", "POST", runs, w.Admin, []string{"Origin", "http://" + host}, 202},
	} {
		t.Run(c.name, func(t *testing.T) {
			var body any
			if c.method == "POST" {
				body = `{"content":"x"}`
			}
			r := w.Do(c.method, c.path, c.token, body, c.header...)
			if r.T = t; r.Status != c.status {
				t.Errorf("status %d, want %d: %s", r.Status, c.status, r.Body)
			}
			if r.Status == 401 && !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Error("401 without WWW-Authenticate")
			}
			if r.Header.Get("Access-Control-Allow-Origin") != "" || r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", r.Header)
			}
			if strings.Contains(string(r.Body), w.Admin) {
				t.Error("the answer holds the token")
			}
		})
	}
	if list := apitest.Into[api.List[api.Event]](w.Do("GET", "/v1/events?type=run.created", w.Admin, nil)); len(list.Items) != 3 {
		t.Errorf("%d runs, want those of the three good requests", len(list.Items))
	}
}

// FuzzAuthorization sends any Authorization: it is refused, with the one word for it. // CVE-2026-42208
func FuzzAuthorization(f *testing.F) {
	for _, s := range []string{"Bearer x", "Bearer hf_a_b", "bearer  ", "Basic YTpi", "Bearer ' OR 1=1 --", "Bearer hf_%27_\x00", "Bearer " + strings.Repeat("a", 9000), "Bearer a, Bearer b"} {
		f.Add(s)
	}
	w := apitest.NewDoor(f)
	f.Fuzz(func(t *testing.T, value string) {
		r := httptest.NewRequest("GET", "/v1/sessions", nil)
		r.Header["Authorization"] = []string{value}
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		if rec.Code != 401 && rec.Code != 429 && rec.Code != 400 && rec.Code != 403 && rec.Code != 421 {
			t.Fatalf("%q: %d %s", value, rec.Code, rec.Body)
		}
	})
}

// Every operation but the few public ones is refused without a token, whatever
// else is wrong with the request: nothing is parsed, checked or run for a stranger.
// CVE-2025-3248 CVE-2026-22812 CVE-2025-49596 CVE-2026-7482
func TestStrangersAreRefusedFirst(t *testing.T) {
	w := apitest.NewDoor(t)
	open := map[string]bool{"healthz": true, "readyz": true, "openapi": true, "receiveEvent": true} // the last has senders of its own: see TestConnectorSenders
	for _, rt := range httpapi.Operations() {
		r := httptest.NewRequest(rt.Method, regexp.MustCompile(`{[^}]+}`).ReplaceAllString(rt.Path, "x")+"?odd=1", strings.NewReader(`{"a":1,"a":`))
		r.Host, r.RemoteAddr = "127.0.0.1:7411", "127.0.0.1:5"
		r.Header.Set("Content-Type", "text/plain")
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		if public := rt.Role == gate.Public; public != open[rt.ID] || !public && (rec.Code != http.StatusUnauthorized || !strings.Contains(rec.Body.String(), "token_required")) {
			t.Errorf("%s from loopback without a token: %d (public: %v)", rt.ID, rec.Code, public)
		}
	}
}

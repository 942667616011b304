package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/netguard/dnsstub"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/slots"
)

// outside is a daemon whose name service answers from a script, in an environment
// that names a proxy.
type outside struct {
	t     *testing.T
	d     *daemon.Daemon
	c     *client.Client
	dns   *dnsstub.Stub
	proxy atomic.Int64 // requests that came to the proxy
	logs  *lockedText
	cfg   *config.Config
}

// answering is a server on loopback whose connections end with each answer, so that each
// request makes a new one.
func answering(t *testing.T, h http.HandlerFunc) (port string, hits *atomic.Int64) {
	t.Helper()
	hits = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		h(w, r)
	}))
	s.Config.SetKeepAlivesEnabled(false)
	s.Start()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port(), hits
}

func newOutside(t *testing.T, dns *dnsstub.Stub, text string) *outside {
	t.Helper()
	o := &outside{t: t, dns: dns, logs: &lockedText{}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { o.proxy.Add(1); w.WriteHeader(502) }))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	var err error
	if o.cfg, err = config.Parse([]byte("listen: 127.0.0.1:0\ndelivery: {initial_backoff: 10ms, max_attempts: 2}\n"+text), "holdfast.yaml", t.TempDir()); err != nil {
		t.Fatal(err)
	}
	o.d, err = daemon.Open(t.Context(), o.cfg, daemon.Options{Logger: slog.New(slog.NewTextHandler(o.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Resolver: dns.Resolver()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.d.FirstToken(t.Context(), houseToken); err != nil {
		t.Fatal(err)
	}
	if err := o.d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.d.Serve(l, false)
	if o.c, err = client.New("http://"+l.Addr().String(), houseToken); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if n := o.proxy.Load(); n != 0 {
			t.Errorf("%d requests went through the proxy of the environment", n)
		}
	})
	return o
}

// run submits and waits for the end; it gives the run and all its events as text.
func (o *outside) run(req *api.CreateSession) (*api.Run, string) {
	t := o.t
	t.Helper()
	s, err := o.c.CreateSession(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := o.c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("go")})
	if err == nil {
		r, err = o.c.Wait(t.Context(), r.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, o.events()
}

func (o *outside) events() string {
	o.t.Helper()
	page, err := o.c.Events(o.t.Context(), client.EventsQuery{}, "", 1000)
	if err != nil {
		o.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range page.Items {
		fmt.Fprintf(&b, "%s %s\n", e.Type, e.Data)
	}
	return b.String()
}

// delivery waits until a delivery is at its end.
func (o *outside) delivery(id string) *api.Delivery {
	o.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(*patience); time.Now().Before(end); {
		d, err := o.c.Delivery(o.t.Context(), id)
		if err != nil {
			o.t.Fatal(err)
		}
		if d.Status != "pending" && d.Status != "retrying" {
			return d
		}
		<-tick.C
	}
	o.t.Fatalf("the delivery has no end\n%s", o.events())
	return nil
}

// C60 at each attempt of a webhook, and at a replay: what a name leads to is
// looked at when the connection is made.
func TestWebhooksStayOutside(t *testing.T) {
	port, hits := answering(t, func(http.ResponseWriter, *http.Request) {})
	target := func(host string) []api.ReplyTarget {
		return []api.ReplyTarget{{Type: "webhook", URL: "http://" + host + ":" + port + "/"}}
	}
	dns := dnsstub.New(map[string][]string{
		"changes.test": {"127.0.0.1", "127.0.0.2"}, "meta.test": {"169.254.169.254"}, "private.test": {"10.0.0.1"}, "azure.test": {"168.63.129.16"},
		"2130706433": {"127.0.0.2"}, "0x7f.1": {"127.0.0.2"}, "zero.test": {"0.0.0.0"},
	})
	o := newOutside(t, dns, "targets: {allow_private: [127.0.0.1/32]}\nroutes: {main: {provider: openai_compatible, base_url: \"http://127.0.0.1:"+vendorOf(t, chatstub.Reply{Text: "hi"})+"/v1\", model: m}}\n")
	r, _ := o.run(&api.CreateSession{ReplyTargets: target("changes.test")})
	id := r.Deliveries[0].ID
	if d := o.delivery(id); d.Status != "delivered" || hits.Load() != 1 {
		t.Fatalf("%+v after %d requests", d, hits.Load())
	}
	if _, err := o.c.ReplayDelivery(t.Context(), id, &api.ReplayDelivery{Force: true, Reason: "once more"}); err != nil {
		t.Fatal(err)
	}
	if d := o.delivery(id); d.Status != "dead_lettered" || !strings.Contains(o.events(), `"dial_refused"`) || hits.Load() != 1 {
		t.Errorf("a replay to a changed name: %+v after %d requests\n%s", d, hits.Load(), o.events())
	}
	for _, host := range []string{"meta.test", "private.test", "azure.test", "2130706433", "0x7f.1", "zero.test"} {
		r, _ := o.run(&api.CreateSession{ReplyTargets: target(host)})
		if d := o.delivery(r.Deliveries[0].ID); d.Status != "dead_lettered" {
			t.Errorf("%s: %+v", host, d)
		}
		if dns.Asked(host) == 0 && host != "2130706433" { // the resolver takes no number for a name
			t.Errorf("%s was not looked up", host)
		}
	}
	if hits.Load() != 1 {
		t.Errorf("the receiver saw %d requests", hits.Load())
	}
	for _, host := range []string{"[::ffff:10.0.0.1]", "169.254.169.254", "127.0.0.2", "[::1]"} {
		if _, err := o.c.CreateSession(t.Context(), &api.CreateSession{ReplyTargets: target(host)}); client.Code(err) != "target_not_allowed" || !strings.Contains(err.Error(), "targets.allow_private") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// C60: a redirect is a failed attempt, of a webhook, a tool and a provider.
func TestRedirectsLeadNowhere(t *testing.T) {
	inside, reached := answering(t, func(http.ResponseWriter, *http.Request) {})
	away := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://127.0.0.1:"+inside+"/latest/")
		w.WriteHeader(http.StatusFound)
	}
	port, hits := answering(t, away)
	text := fmt.Sprintf("targets: {allow_private: [127.0.0.0/8]}\nroutes: {main: {provider: openai_compatible, base_url: 'http://127.0.0.1:%s/v1', model: m}, away: {provider: openai_compatible, base_url: 'http://127.0.0.1:%s/v1', model: m, api_key: {env: HF_GUARD_KEY}}}\ndefault_route: main\n"+
		"tools: {lookup: {type: http, url: 'http://127.0.0.1:%s/', side_effect: read, input_schema: {type: object}, headers: {X-Api-Key: {env: HF_GUARD_KEY}}}}\n", vendorOf(t, call(), chatstub.Reply{Text: "hi"}), port, port)
	t.Setenv("HF_GUARD_KEY", "guard-key-guard-key")
	o := newOutside(t, dnsstub.New(nil), text)
	r, _ := o.run(&api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "http://127.0.0.1:" + port + "/"}}})
	if d := o.delivery(r.Deliveries[0].ID); d.Status != "dead_lettered" {
		t.Errorf("%+v", d)
	}
	if r, _ := o.run(&api.CreateSession{RoutePolicy: &api.RoutePolicy{Route: "away"}}); r.Status != api.RunFailed {
		t.Errorf("%+v", r)
	}
	if hits.Load() < 3 || reached.Load() != 0 {
		t.Errorf("%d requests were sent away, %d arrived", hits.Load(), reached.Load())
	}
}

// vendorOf is a vendor on loopback that plays replies; it gives the port.
func vendorOf(t *testing.T, list ...chatstub.Reply) string {
	t.Helper()
	port, _ := answering(t, chatstub.New(chatstub.Replies(list...)).ServeHTTP)
	return port
}

// call is a turn that calls the tool lookup.
func call() chatstub.Reply {
	return chatstub.Reply{Calls: []chatstub.Call{{ID: "call_1", Name: "lookup", Arguments: "{}"}}}
}

// C60 for declared tools and providers, whose names may come to lead elsewhere:
// nothing is sent there, and the refusal names the setting.
func TestToolsAndProvidersStayOutside(t *testing.T) {
	toolPort, toolHits := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "found") })
	for _, list := range [][]string{{"10.0.0.1"}, {"169.254.169.254"}, {"127.0.0.2"}} {
		toolHits.Store(0)
		dns := dnsstub.New(map[string][]string{
			"tool.test":   {"127.0.0.1", list[0]},
			"vendor.test": {"127.0.0.1", "127.0.0.1", "169.254.169.254"},
		})
		vendor := chatstub.New(chatstub.Replies(call(), call(), chatstub.Reply{Text: "hi"}))
		vendorPort, vendorHits := answering(t, vendor.ServeHTTP)
		o := newOutside(t, dns, fmt.Sprintf("routes: {main: {provider: openai_compatible, base_url: 'http://vendor.test:%s/v1', model: m, allow_private: [127.0.0.1/32]}}\n"+
			"tools: {lookup: {type: http, url: 'http://tool.test:%s/', side_effect: read, input_schema: {type: object}, allow_private: [127.0.0.1/32]}}\n", vendorPort, toolPort))
		r, events := o.run(nil)
		if r.Status != api.RunFailed || vendorHits.Load() != 2 || toolHits.Load() != 1 {
			t.Errorf("%s: %s, %d requests to the vendor, %d to the tool\n%s", list[0], r.Status, vendorHits.Load(), toolHits.Load(), events)
		}
		for _, word := range []string{"tools.lookup.allow_private", "routes.main.allow_private", "found"} {
			if !strings.Contains(events, word) {
				t.Errorf("%s: no event says %q\n%s", list[0], word, events)
			}
		}
		for _, addr := range []string{"10.0.0.1", "169.254.169.254", "127.0.0.2"} { // a map of the network is nobody's business
			if strings.Contains(events, addr) {
				t.Errorf("an event tells the address %s", addr)
			}
		}
	}
}

// A proxy that a route names is used, and only by it.
func TestProxyOfARoute(t *testing.T) {
	vendorPort := vendorOf(t, chatstub.Reply{Text: "by a proxy"})
	var by atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by.Add(1)
		r.RequestURI = ""
		r.URL.Host = "127.0.0.1:" + vendorPort
		res, err := new(http.Transport).RoundTrip(r)
		if err != nil {
			w.WriteHeader(502)
			return
		}
		defer res.Body.Close()
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		io.Copy(w, res.Body)
	}))
	defer proxy.Close()
	o := newOutside(t, dnsstub.New(nil), fmt.Sprintf("routes: {main: {provider: openai_compatible, base_url: 'http://far.test/v1', model: m, proxy: %q}}\n", proxy.URL))
	if r, events := o.run(nil); r.Status != api.RunCompleted || by.Load() != 1 {
		t.Errorf("%s, %d requests by the proxy\n%s", r.Status, by.Load(), events)
	}
}

// A secret that is bound to other hosts stays here: nothing is sent (I-33).
func TestSecretsStayWithTheirHosts(t *testing.T) {
	toolPort, toolHits := answering(t, func(http.ResponseWriter, *http.Request) {})
	otlpPort, otlpHits := answering(t, func(http.ResponseWriter, *http.Request) {})
	lockedPort, lockedHits := answering(t, func(http.ResponseWriter, *http.Request) {})
	t.Setenv("HF_GUARD_KEY", "guard-key-guard-key")
	o := newOutside(t, dnsstub.New(nil), fmt.Sprintf("targets: {allow_private: [127.0.0.0/8]}\n"+
		"secrets: {bound: {env: HF_GUARD_KEY, hosts: ['elsewhere.test']}}\n"+
		"routes: {main: {provider: openai_compatible, base_url: 'http://127.0.0.1:%s/v1', model: m}, locked: {provider: openai_compatible, base_url: 'http://127.0.0.1:%s/v1', model: m, api_key: {secret: bound}}}\ndefault_route: main\n"+
		"telemetry: {otlp_endpoint: 'http://127.0.0.1:%s', interval: 1s, headers: {x-key: {secret: bound}}}\n"+
		"tools: {lookup: {type: http, url: 'http://127.0.0.1:%s/', side_effect: read, input_schema: {type: object}, headers: {X-Api-Key: {secret: slot}}}}\n",
		vendorOf(t, call(), chatstub.Reply{Text: "hi"}, call(), chatstub.Reply{Text: "hi"}), lockedPort, otlpPort, toolPort))
	if _, err := o.c.SetSecret(t.Context(), "slot", &api.PutSecret{Value: "slot-value-slot-value", Hosts: []string{"127.0.0.1:1", "tool.test"}}); err != nil {
		t.Fatal(err)
	}
	_, events := o.run(nil)
	r, more := o.run(&api.CreateSession{RoutePolicy: &api.RoutePolicy{Route: "locked"}})
	if r.Status != api.RunFailed || strings.Count(events+more, "secret_not_for_host") < 2 {
		t.Errorf("%s\n%s%s", r.Status, events, more)
	}
	for !strings.Contains(o.logs.String(), "telemetry.headers.x-key") {
		select {
		case <-t.Context().Done():
			t.Fatal("the collector's headers were never asked for")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if toolHits.Load()+lockedHits.Load()+otlpHits.Load() != 0 {
		t.Errorf("%d requests to the tool, %d to the vendor, %d to the collector", toolHits.Load(), lockedHits.Load(), otlpHits.Load())
	}
	// Bound to the right host it goes.
	if _, err := o.c.SetSecret(t.Context(), "slot", &api.PutSecret{Value: "slot-value-slot-value", Hosts: []string{"127.0.0.1:" + toolPort}}); err != nil {
		t.Fatal(err)
	}
	if _, more := o.run(nil); toolHits.Load() != 1 {
		t.Errorf("%d requests to the tool\n%s", toolHits.Load(), more)
	}
}

// The master key stands beside the data directory, so that a copy of that holds
// no key; one that is lost is missed, and not made anew.
func TestMasterKeyFile(t *testing.T) {
	h := newHouse(t, chatstub.Replies(chatstub.Reply{Text: "hi"}))
	path := filepath.Join(h.dir, "holdfast-data.key")
	key, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.SetSecret(t.Context(), "some", &api.PutSecret{Value: "some-value-of-it"}); err != nil {
		t.Fatal(err)
	}
	restart := func() error {
		if err := h.d.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		d, err := daemon.Open(t.Context(), h.cfg, daemon.Options{})
		if err == nil {
			err = d.Stop(context.Background())
		}
		return err
	}
	if err := restart(); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := restart(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var unknown *slots.UnknownKeyError
	if err := restart(); err == nil || !errors.As(err, &unknown) || !strings.Contains(err.Error(), "there is no master key in the file") {
		t.Errorf("a key that is lost: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("another key was made")
	}
	if err := os.WriteFile(path, bytes.TrimSpace(key), 0o600); err != nil {
		t.Fatal(err)
	}
	h.open()
	if s, err := h.c.Secret(t.Context(), "some"); err != nil || s.Version != 1 {
		t.Errorf("%+v %v", s, err)
	}
}

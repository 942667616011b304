package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

const key = "sk-never-shown"

// configured writes a configuration with these routes into a folder of its own.
func configured(t *testing.T, routes string, more ...string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "holdfast.yaml")
	text := "listen: unix:" + filepath.Join(t.TempDir(), "s") + "\ndefault_route: a\nroutes:\n" + routes + "\n" + strings.Join(more, "\n") + "\n"
	for name, content := range map[string]string{"holdfast.yaml": text, "s.yaml": "rules: [{reply: {text: hi}}]\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HF_DOCTOR_KEY", key)
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func examine(t *testing.T, in Input) []Finding {
	t.Helper()
	in.SyncCount, in.RowsVersion = 3, eventlog.RowsVersion
	if in.Vendors == nil {
		in.Vendors = http.DefaultTransport
	}
	found := Examine(t.Context(), in)
	for _, f := range found {
		if f.Level != OK && f.Do == "" {
			t.Errorf("%+v does not say what to do", f)
		}
		if strings.Contains(fmt.Sprint(f), key) {
			t.Errorf("a secret is shown: %+v", f) // I-33
		}
	}
	return found
}

// want looks for a finding of a check at a level that says something.
func want(t *testing.T, found []Finding, check string, level Level, text string) {
	t.Helper()
	for _, f := range found {
		if f.Check == check && f.Level == level && strings.Contains(f.Text, text) {
			return
		}
	}
	t.Errorf("no %s of %s with %q in %+v", level, check, text, found)
}

// server is a vendor that notes the keys it is sent.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	keys []string
}

func serving(t *testing.T, f http.HandlerFunc) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		for _, name := range []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key"} {
			if v := r.Header.Get(name); v != "" {
				s.keys = append(s.keys, r.URL.Path+" "+name+": "+v)
			}
		}
		s.mu.Unlock()
		f(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func route(name, provider, base string) string {
	return fmt.Sprintf("  %s: {provider: %s, base_url: %q, model: m, api_key: {env: HF_DOCTOR_KEY}}\n", name, provider, base)
}

func TestRoutes(t *testing.T) {
	other := serving(t, func(http.ResponseWriter, *http.Request) {})
	good := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			w.WriteHeader(404)
		}
	})
	refuses := serving(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })
	moved := serving(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/v1/models", http.StatusTemporaryRedirect)
	})
	bare := serving(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
	broken := serving(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	cfg := configured(t, "  a: {provider: scripted, script: s.yaml}\n"+route("good", "openai_compatible", good.URL+"/v1")+
		route("refuses", "openai_compatible", refuses.URL)+route("moved", "openai_compatible", moved.URL)+route("bare", "openai_compatible", bare.URL)+
		route("broken", "openai_compatible", broken.URL)+route("gone", "openai_compatible", gone.URL))

	found := examine(t, Input{Config: cfg})
	for _, name := range []string{"good", "refuses", "moved", "bare", "broken"} {
		want(t, found, "route "+name, OK, "to a request without a key")
	}
	want(t, found, "route a", OK, "scripted")
	want(t, found, "route gone", Fail, "refuses the connection")
	for _, s := range []*server{good, refuses, moved, bare, broken, other} {
		if len(s.keys) > 0 {
			t.Fatalf("without --online a key was sent: %v", s.keys)
		}
	}

	found = examine(t, Input{Config: cfg, Online: true})
	want(t, found, "route good", OK, "takes the key")
	want(t, found, "route refuses", Fail, "refuses the key (401)")
	want(t, found, "route moved", Fail, "sends elsewhere (307)")
	want(t, found, "route bare", Warn, "no list of models")
	want(t, found, "route broken", Warn, "answers 500")
	if Worst(found) != Fail {
		t.Errorf("worst is %s", Worst(found))
	}
	if len(good.keys) != 1 || good.keys[0] != "/v1/models Authorization: Bearer "+key {
		t.Errorf("keys sent: %v", good.keys)
	}
	if len(other.keys) > 0 {
		t.Errorf("the key followed a redirect: %v", other.keys)
	}
}

// Each vendor is asked in its own way.
func TestVendors(t *testing.T) {
	for provider, sent := range map[string]string{
		"openai": "/v1/models Authorization: Bearer ", "anthropic": "/v1/models X-Api-Key: ", "gemini": "/v1/models X-Goog-Api-Key: ", "openai_compatible": "/v1/models Authorization: Bearer ",
	} {
		s := serving(t, func(http.ResponseWriter, *http.Request) {})
		cfg := configured(t, "  a: {provider: scripted, script: s.yaml}")
		p := &patient{Input: Input{Online: true, Timeout: time.Minute}, cfg: cfg, client: wireClient()}
		p.route(t.Context(), "x", config.Route{Provider: provider, BaseURL: s.URL + "/v1/", APIKey: &config.Ref{Env: "HF_DOCTOR_KEY"}})
		want(t, p.found, "route x", OK, "takes the key")
		if len(s.keys) != 1 || s.keys[0] != sent+key {
			t.Errorf("%s: %v", provider, s.keys)
		}
	}
	// As with the adapter, the address of gemini may stand without a version.
	s := serving(t, func(http.ResponseWriter, *http.Request) {})
	cfg := configured(t, "  a: {provider: scripted, script: s.yaml}")
	p := &patient{Input: Input{Online: true, Timeout: time.Minute}, cfg: cfg, client: wireClient()}
	p.route(t.Context(), "x", config.Route{Provider: "gemini", BaseURL: s.URL, APIKey: &config.Ref{Env: "HF_DOCTOR_KEY"}})
	if len(s.keys) != 1 || s.keys[0] != "/v1beta/models X-Goog-Api-Key: "+key {
		t.Errorf("gemini without a version: %v", s.keys)
	}
	p = &patient{}
	p.route(t.Context(), "x", config.Route{Provider: "of_the_future"})
	want(t, p.found, "route x", Warn, "not known here")
	p = &patient{Input: Input{Timeout: time.Nanosecond}, client: wireClient()}
	p.route(t.Context(), "x", config.Route{Provider: "openai_compatible", BaseURL: "http://192.0.2.1/v1", APIKey: &config.Ref{Env: "X"}})
	want(t, p.found, "route x", Warn, "unencrypted")
	want(t, p.found, "route x", Fail, "no answer within 1ns")
}

// The bus is asked with its credentials, and they are in nothing that is told.
func TestBus(t *testing.T) {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, Username: "holdfast", Password: key})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	at := s.Addr().String()
	scripted := "  a: {provider: scripted, script: s.yaml}"
	cfg := configured(t, scripted, "bus_url: {env: HF_DOCTOR_BUS}")
	for _, c := range []struct {
		url   string
		level Level
		text  string
	}{
		{"", Fail, "HF_DOCTOR_BUS is not set"},
		{"nats://holdfast:" + key + "@" + at, OK, at + " answers"},
		{"nats://holdfast:wrong" + key + "@" + at, Fail, "uthoriz"},
		{"nats://holdfast:" + key + "@127.0.0.1:1", Fail, ""},
		{"redis://" + key + "@h", Fail, "env HF_DOCTOR_BUS holds cannot be used"},
	} {
		t.Setenv("HF_DOCTOR_BUS", c.url)
		want(t, examine(t, Input{Config: cfg}), "bus", c.level, c.text)
	}
	for _, f := range examine(t, Input{Config: configured(t, scripted)}) {
		if f.Check == "bus" {
			t.Errorf("there is none: %+v", f)
		}
	}
}

func TestSkew(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 300, time.UTC)
	for _, c := range []struct {
		date  time.Time
		level Level
	}{
		{at.Truncate(time.Second), OK}, {at.Add(3 * time.Second), OK}, {at.Add(-5 * time.Second), OK}, {at.Add(-30 * time.Second), Warn}, {at.Add(time.Minute), Warn},
		{at.Add(-time.Hour), Fail}, {at.Add(6 * time.Minute), Fail},
	} {
		if level, off := judgeSkew(c.date, at, at.Add(2*time.Second)); level != c.level {
			t.Errorf("%s: %s, off by %s", c.date, level, off)
		}
	}
	s := serving(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", "Mon, 02 Jan 2006 15:04:05 GMT") })
	found := examine(t, Input{Config: configured(t, route("a", "openai_compatible", s.URL))})
	want(t, found, "clock", Fail, "away from that of 127.0.0.1")
	want(t, found, "route a", OK, "answers (200")
}

func TestClock(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		newest, began, now time.Time
		level              Level
	}{
		{time.Time{}, now, now, OK}, {now.Add(-time.Hour), now, now, OK}, {now.Add(time.Second), now, now, OK}, {now.Add(10 * time.Second), now, now, Warn}, {now.Add(time.Hour), now, now, Fail},
		{time.Time{}, now, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), Fail},
	} {
		p := &patient{glance: sqlite.Glance{Newest: c.newest}}
		p.clock(c.began, c.now)
		if len(p.found) != 1 || p.found[0].Level != c.level {
			t.Errorf("%+v: %+v", c, p.found)
		}
	}
}

func TestSync(t *testing.T) {
	many := func(d time.Duration) []time.Duration { return []time.Duration{d, d, d, 3 * d} }
	for _, c := range []struct {
		took  time.Duration
		level Level
		text  string
	}{
		{time.Microsecond, Warn, "does not survive a loss of power"}, {100 * time.Microsecond, OK, "half took at most 0.100 ms, 99 of 100 at most 0.300 ms. One client alone gets up to 10000 commits"},
		{30 * time.Millisecond, Warn, "one client alone gets 33 commits a second"},
	} {
		if level, text, do := judgeSync(many(c.took)); level != c.level || !strings.Contains(text, c.text) || (do == "") != (level == OK) {
			t.Errorf("%s: %s %s (%s)", c.took, level, text, do)
		}
	}
	dir := t.TempDir()
	took, err := measure(dir, 5)
	if err != nil || len(took) != 5 {
		t.Fatal(took, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := measure(filepath.Join(dir, "none"), 5); err == nil {
		t.Error("a folder that is not there was measured")
	}
}

// A variable that is not set is told once, however many refer to it by a name.
func TestMissingIsToldOnce(t *testing.T) {
	cfg := configured(t, "  a: {provider: openai, model: m, api_key: {secret: k}}\n  b: {provider: openai, model: m, api_key: {secret: k}}", "secrets: {k: {env: HF_NEVER_SET}}")
	p := &patient{Input: Input{Config: cfg}, cfg: cfg}
	p.secrets()
	if len(p.found) != 1 || p.found[0].Level != Warn || !strings.Contains(p.found[0].Text, "secrets.k: the environment variable HF_NEVER_SET is not set") {
		t.Errorf("%+v", p.found)
	}
}

// What stands in the way of a start is found; what others may read is a fault.
func TestFiles(t *testing.T) {
	cfg := configured(t, "  a: {provider: scripted, script: s.yaml}", "secrets: {f: {file: f.secret}}")
	secret := cfg.Path("f.secret")
	if err := os.WriteFile(secret, []byte(key), 0o640); err != nil {
		t.Fatal(err)
	}
	data := cfg.Path(cfg.DataDir)
	found := examine(t, Input{Config: cfg})
	want(t, found, "secrets", Warn, "the group of "+secret)
	want(t, found, "data directory", OK, "is not there yet")
	if err := os.Chmod(secret, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found = examine(t, Input{Config: cfg, Warnings: []string{"targets.signing_secret: weak", "lease.ttl: short"}, Mistakes: []string{"x:1:1: wrong"}})
	want(t, found, "secrets", Fail, "everybody on this machine may use "+secret)
	want(t, found, "secrets", Warn, "targets.signing_secret: weak")
	want(t, found, "configuration", Warn, "lease.ttl: short")
	want(t, found, "configuration", Fail, "x:1:1: wrong")
	want(t, found, "data directory", Fail, "is no folder")
	want(t, found, "database", Fail, "not a directory")
}

// A daemon beside us is asked; one that does not answer, or is of another version, is told.
func TestDaemon(t *testing.T) {
	cfg := configured(t, "  a: {provider: scripted, script: s.yaml}")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Dir: cfg.Path(cfg.DataDir), Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
	if err != nil {
		t.Fatal(err)
	}
	id := event.SessionID("ses_1")
	_, err = s.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: id, UserID: "u", Data: &event.SessionCreated{}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	asked := func(v string, err error) []Finding {
		return examine(t, Input{Config: cfg, Version: "2", Running: func(context.Context) (string, error) { return v, err }})
	}
	pid := fmt.Sprintf("pid %d", os.Getpid())
	want(t, asked("2", nil), "daemon", OK, pid+" runs, is of this version")
	want(t, asked("1", nil), "daemon", Warn, "runs version 1 and is ready; this program is 2")
	want(t, asked("", fmt.Errorf("no answer")), "daemon", Warn, "does not answer: no answer")
	want(t, asked("", &NotReadyError{Why: "it was restored"}), "daemon", Warn, "runs and is not ready: it was restored")
	found := examine(t, Input{Config: cfg})
	want(t, found, "daemon", OK, "uses the data directory")
	want(t, found, "database", OK, "as this program makes them")
	g, err := sqlite.Look(t.Context(), cfg.Path(cfg.DataDir))
	if err != nil || !g.Held || g.PID != os.Getpid() || g.Newest.IsZero() || g.Schema != g.KnownSchema || g.Rows != eventlog.RowsVersion {
		t.Errorf("%+v %v", g, err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	found = examine(t, Input{Config: cfg, Running: func(context.Context) (string, error) { t.Error("asked"); return "", nil }})
	want(t, found, "daemon", OK, "none runs")
	if after, err := sqlite.Look(t.Context(), cfg.Path(cfg.DataDir)); err != nil || after.Held || !after.Newest.Equal(g.Newest) {
		t.Errorf("%+v %v", after, err)
	}
	in := Input{Config: cfg, SyncCount: 1, RowsVersion: eventlog.RowsVersion + 1}
	want(t, Examine(t.Context(), in), "database", Warn, "an older version of holdfast has written it")
	in.RowsVersion = eventlog.RowsVersion - 1
	want(t, Examine(t.Context(), in), "database", Fail, "a newer version of holdfast has written it")
	if err := os.Remove(filepath.Join(cfg.Path(cfg.DataDir), sqlite.DatabaseFile)); err != nil {
		t.Fatal(err)
	}
	found = examine(t, Input{Config: cfg})
	want(t, found, "database", Fail, "holdfast.db: the file is not there, and the directory once held it")
	for _, f := range found {
		if f.Check == "database" && (!strings.Contains(f.Do, "restore a backup") || !strings.Contains(f.Do, "move this directory away")) {
			t.Errorf("what to do: %s", f.Do)
		}
	}
}

func wireClient() *wire.Client {
	return wire.NewClient(&http.Client{Transport: http.DefaultTransport}, wire.Limits{})
}

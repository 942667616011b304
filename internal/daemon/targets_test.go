package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// outlets is a daemon with every way out, and what stands at their ends.
type outlets struct {
	t      *testing.T
	dir    string
	cfg    *config.Config
	d      *daemon.Daemon
	c      *client.Client
	stdout safeBuffer
	logs   safeBuffer

	hooks *httptest.Server
	mu    sync.Mutex
	posts map[string][]post // by path, as they came
	fails map[string]int    // posts of a path that are answered with 503, still
	mails []string
	nats  *server.Server
}

type post struct {
	header http.Header
	body   []byte
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const (
	signingSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	pathCanary    = "canary-hunter2-path"
)

// newOutlets starts them all. fallback is YAML of targets.fallback.
func newOutlets(t *testing.T, fallback string) *outlets {
	t.Helper()
	o := &outlets{t: t, dir: t.TempDir(), posts: map[string][]post{}, fails: map[string]int{}}
	o.hooks = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.posts[r.URL.Path] = append(o.posts[r.URL.Path], post{r.Header, body})
		if o.fails[r.URL.Path] > 0 {
			o.fails[r.URL.Path]--
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "%s is not the time", r.URL.Path) // a receiver that repeats what it was sent
		}
	}))
	t.Cleanup(o.hooks.Close)
	o.startNATS()
	private, _, err := webhook.NewKey(bytes.NewReader(bytes.Repeat([]byte{9}, 64)))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"script.yaml": `rules: [{reply: {text: "the <answer>"}}]`, "hook.secret": signingSecret, "key.secret": private,
		"url.secret": o.hooks.URL + "/" + pathCanary, "token.secret": "canary-plugin-token",
		"plugin.sh": "#!/bin/sh\ncat >>\"$1\"\necho '{\"delivered\":true}'\n",
	} {
		mode := os.FileMode(0o600)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o700
		}
		if err := os.WriteFile(filepath.Join(o.dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(o.dir, "answers"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`
routes: {main: {provider: scripted, script: script.yaml}}
secrets: {hook: {file: hook.secret}, key: {file: key.secret}, address: {file: url.secret}, token: {file: token.secret}}
delivery: {initial_backoff: 20ms}
targets:
  signing_secret: hook
  allow_private: [127.0.0.0/8]
  folders: {answers: ./answers}
  stdout: true
  mail: {office: {address: %q, tls: none, from: holdfast@house.test, recipients: ["*@example.com"]}}
  nats: {main: {url: %q, subjects: ["answers.>"]}}
  plugins: {append: {command: [./plugin.sh, plugged], secrets: {token: {secret: token}}}}
  max_hops: 2
  %s
`, o.startMail(), o.nats.ClientURL(), fallback)
	if o.cfg, err = config.Parse([]byte(text), "holdfast.yaml", o.dir); err != nil {
		t.Fatal(err)
	}
	o.open()
	t.Cleanup(func() {
		if err := o.d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *outlets) open() {
	o.t.Helper()
	var err error
	o.d, err = daemon.Open(o.t.Context(), o.cfg, daemon.Options{Stdout: &o.stdout, Logger: slog.New(slog.NewTextHandler(&o.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		o.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.d.FirstToken(o.t.Context(), houseToken); err != nil {
		o.t.Fatal(err)
	}
	if err := o.d.Start(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	o.d.Serve(l, false)
	if o.c, err = client.New("http://"+l.Addr().String(), houseToken); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outlets) startNATS() {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		o.t.Fatal(err)
	}
	s.Start()
	o.t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(*patience) {
		o.t.Fatal("no NATS server")
	}
	o.nats = s
}

// startMail takes mail without a word of its own, and gives its address.
func (o *outlets) startMail() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	var serving sync.WaitGroup
	o.t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				io.WriteString(c, "220 x\r\n")
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					switch strings.ToUpper(line[:min(4, len(line))]) {
					case "DATA":
						io.WriteString(c, "354 x\r\n")
						var b strings.Builder
						for {
							s, err := r.ReadString('\n')
							if err != nil {
								return
							}
							if s == ".\r\n" {
								break
							}
							b.WriteString(s)
						}
						o.mu.Lock()
						o.mails = append(o.mails, b.String())
						o.mu.Unlock()
					}
					if _, err := io.WriteString(c, "250 x\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

func (o *outlets) got(path string) []post {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.posts[path])
}

func (o *outlets) session(req *api.CreateSession) *api.Session {
	o.t.Helper()
	s, err := o.c.CreateSession(o.t.Context(), req)
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

// run submits, and waits until the run and its deliveries are at their end.
func (o *outlets) run(session string, req *api.SubmitRun) (*api.Run, []api.Delivery) {
	o.t.Helper()
	run, _, err := o.c.Submit(o.t.Context(), session, req)
	if err != nil {
		o.t.Fatal(err)
	}
	return o.settled(run.ID)
}

func (o *outlets) settled(id string) (*api.Run, []api.Delivery) {
	o.t.Helper()
	run, err := o.c.Wait(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	deadline := time.NewTimer(*patience)
	defer deadline.Stop()
	for {
		list, err := o.c.Deliveries(o.t.Context(), client.DeliveriesQuery{RunID: id}, client.Page{})
		if err != nil {
			o.t.Fatal(err)
		}
		open := slices.ContainsFunc(list.Items, func(d api.Delivery) bool { return d.Status == api.DeliveryPending || d.Status == api.DeliveryRetrying })
		if !open {
			return run, list.Items
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			o.t.Fatalf("deliveries are not at their end: %+v", list.Items)
		}
	}
}

// One run, every way out: each its own delivery, each delivered, and nothing
// secret anywhere. I-24, I-26, I-33.
func TestEveryWayOut(t *testing.T) {
	o := newOutlets(t, "")
	nc, err := nats.Connect(o.nats.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("answers.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	o.fails = map[string]int{"/" + pathCanary: 1, "/slack": 1, "/structured": 1, "/binary": 1}
	next := o.session(&api.CreateSession{ID: "next"})
	strict := o.session(&api.CreateSession{ID: "strict", InputContract: &api.InputContract{Schema: api.Raw(`{"type":"number"}`)}})
	s := o.session(&api.CreateSession{ReplyTargets: []api.ReplyTarget{
		{Type: "webhook", URLSecret: "address", Secret: "key", Signing: "ed25519"},
		{Type: "webhook", URL: o.hooks.URL + "/slack", Format: "slack"},
		{Type: "webhook", URL: o.hooks.URL + "/structured", Format: "cloudevents"},
		{Type: "webhook", URL: o.hooks.URL + "/binary", Format: "cloudevents_binary"},
		{Type: "file", Folder: "answers", Path: "2027/all.jsonl"},
		{Type: "session", Session: "next"},
		{Type: "session", Session: strict.ID},
		{Type: "stdout"},
	}})
	if got := s.ReplyTargets[0]; got.URL != "" || got.Origin != o.hooks.URL || got.URLSecret != "address" {
		t.Errorf("shown %+v", got)
	}
	run, first := o.run(s.ID, &api.SubmitRun{Content: api.Text("go")})
	rest, err := o.c.ReplyTargets(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.c.SetReplyTargets(t.Context(), s.ID, rest); err != nil { // what was read can be set
		t.Error(err)
	}
	_, second := o.run(s.ID, &api.SubmitRun{Content: api.Text("go"), ReplyTargets: &[]api.ReplyTarget{
		{Type: "mail", Server: "office", To: []string{"ann@example.com"}, Subject: "Answer"},
		{Type: "nats", Server: "main", Subject: "answers.a"},
		{Type: "plugin", Plugin: "append"},
	}})
	if len(first) != 8 || len(second) != 3 {
		t.Fatalf("%d and %d deliveries", len(first), len(second))
	}
	ids := map[string]string{} // by type, of those that have one
	for _, d := range append(first, second...) {
		ids[d.Type] = d.ID
		if d.Status == api.DeliveryDeadLettered && d.Type == "session" && d.LastCode == "contract_violated" {
			continue // I-07: the strict session has no run, see below
		}
		if d.Status != api.DeliveryDelivered {
			t.Errorf("%s is %s: %s", d.Type, d.Status, d.LastCode)
		}
	}

	o.checkHooks(run.ID)
	for _, text := range []string{readFile(t, filepath.Join(o.dir, "answers", "2027", "all.jsonl")), o.stdout.String()} {
		if strings.Count(text, `"delivery_id"`) != 1 || !strings.Contains(text, `"content":"the <answer>"`) {
			t.Errorf("a line: %q", text)
		}
	}
	if len(o.mails) != 1 || !strings.Contains(o.mails[0], "Message-ID: <"+ids["mail"]+"@house.test>\r\n") || !strings.Contains(o.mails[0], "\r\n\r\nthe <answer>\r\n") {
		t.Errorf("mails %q", o.mails)
	}
	if m, err := sub.NextMsg(*patience); err != nil || m.Header.Get("Nats-Msg-Id") != ids["nats"] || !strings.Contains(string(m.Data), `"content":"the <answer>"`) {
		t.Errorf("%+v, %v", m, err)
	}
	plugged := readFile(t, filepath.Join(o.dir, "plugged"))
	if !strings.Contains(plugged, ids["plugin"]) || !strings.Contains(plugged, "canary-plugin-token") {
		t.Errorf("the plugin had %q", plugged)
	}
	runs, err := o.c.Runs(t.Context(), client.RunsQuery{SessionID: next.ID}, client.Page{})
	if err != nil || len(runs.Items) != 1 || runs.Items[0].Request.TextPreview != "the <answer>" || runs.Items[0].Request.Source != "session" {
		t.Errorf("runs of the next session: %+v, %v", runs, err)
	}
	if runs, err := o.c.Runs(t.Context(), client.RunsQuery{SessionID: strict.ID}, client.Page{}); err != nil || len(runs.Items) != 0 { // I-07
		t.Errorf("runs of the strict session: %+v, %v", runs, err)
	}
	o.nothingSecret()
}

// checkHooks checks what came over HTTP: twice the same, each signed anew.
func (o *outlets) checkHooks(run string) {
	t := o.t
	t.Helper()
	oracle, err := standardwebhooks.NewWebhook(signingSecret)
	if err != nil {
		t.Fatal(err)
	}
	key, err := o.c.SigningKey(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	public, err := webhook.ParsePublicKey(key.PublicKeys[0])
	if err != nil {
		t.Fatal(err)
	}
	for path, media := range map[string]string{
		"/" + pathCanary: "application/json", "/slack": "application/json", "/structured": "application/cloudevents+json; charset=utf-8", "/binary": "application/json",
	} {
		posts := o.got(path)
		if len(posts) != 2 {
			t.Fatalf("%s: %d attempts", path, len(posts))
		}
		for i, p := range posts {
			if p.header.Get("webhook-id") != posts[0].header.Get("webhook-id") || !bytes.Equal(p.body, posts[0].body) { // I-26
				t.Errorf("%s: attempt %d differs", path, i+1)
			}
			if path == "/"+pathCanary {
				err = webhook.VerifyPublic(p.header, p.body, public, time.Now(), time.Minute)
			} else {
				err = oracle.Verify(p.body, p.header)
			}
			if err != nil || p.header.Get("Content-Type") != media {
				t.Errorf("%s: attempt %d of %s: %v", path, i+1, p.header.Get("Content-Type"), err)
			}
		}
		last := posts[1]
		switch path {
		case "/slack":
			if want := `{"text":"the &lt;answer&gt;","unfurl_links":false,"unfurl_media":false}`; string(last.body) != want {
				t.Errorf("%s", last.body)
			}
		case "/structured":
			var e map[string]any
			if err := json.Unmarshal(last.body, &e); err != nil || e["specversion"] != "1.0" || e["id"] != last.header.Get("webhook-id") || e["subject"] != run {
				t.Errorf("%s %v", last.body, err)
			}
		case "/binary":
			if h := last.header; h.Get("ce-specversion") != "1.0" || h.Get("ce-id") != h.Get("webhook-id") || h.Get("ce-subject") != run || !strings.HasPrefix(h.Get("ce-source"), "/v1/sessions/ses_") || h.Get("ce-type") == "" {
				t.Errorf("%v", h)
			}
		}
	}
}

// nothingSecret looks for what was secret in everything that is stored, logged and shown.
func (o *outlets) nothingSecret() {
	t := o.t
	t.Helper()
	var shown bytes.Buffer
	for e, err := range o.c.AllEvents(t.Context(), client.EventsQuery{}, "") {
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(raw)
	}
	list, err := o.c.Deliveries(t.Context(), client.DeliveriesQuery{}, client.Page{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	shown.Write(raw)
	places := map[string]string{"the API": shown.String(), "the log": o.logs.String()}
	entries, err := os.ReadDir(filepath.Join(o.dir, "holdfast-data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			places[e.Name()] = readFile(t, filepath.Join(o.dir, "holdfast-data", e.Name()))
		}
	}
	for place, text := range places {
		for _, secret := range []string{pathCanary, "canary-plugin-token", signingSecret, "whsk_", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))[:30]} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %s", place, secret)
			}
		}
	}
}

// A loop of sessions that answer each other ends, as a dead letter.
func TestLoopOfSessions(t *testing.T) {
	o := newOutlets(t, "")
	a := o.session(&api.CreateSession{ID: "a"})
	b := o.session(&api.CreateSession{ID: "b", ReplyTargets: []api.ReplyTarget{{Type: "session", Session: "a"}}})
	if _, err := o.c.SetReplyTargets(t.Context(), "a", &api.ReplyTargets{ReplyTargets: []api.ReplyTarget{{Type: "session", Session: "b"}}}); err != nil {
		t.Fatal(err)
	}
	run, _ := o.run(a.ID, &api.SubmitRun{Content: api.Text("go")})
	seen := []string{run.SessionID}
	for _, session := range []string{b.ID, a.ID} { // max_hops: 2
		runs, err := o.c.Runs(t.Context(), client.RunsQuery{SessionID: session}, client.Page{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		next, deliveries := o.settled(runs.Items[0].ID)
		seen = append(seen, next.SessionID)
		if len(deliveries) != 1 {
			t.Fatalf("%+v", deliveries)
		}
		if last := len(seen) == 3; last != (deliveries[0].LastCode == "refused_hop_limit" && deliveries[0].Status == api.DeliveryDeadLettered) {
			t.Errorf("after %q: %+v", seen, deliveries[0])
		}
	}
	all, err := o.c.Runs(t.Context(), client.RunsQuery{}, client.Page{})
	if err != nil || len(all.Items) != 3 {
		t.Errorf("%d runs, %v", len(all.Items), err)
	}
}

// I-08: the daemon's fallback, where neither run nor session names a target.
func TestFallbackTarget(t *testing.T) {
	o := newOutlets(t, "fallback: [{type: file, folder: answers, path: fallback.jsonl}]")
	s := o.session(&api.CreateSession{})
	if _, d := o.run(s.ID, &api.SubmitRun{Content: api.Text("go")}); len(d) != 1 || d[0].Type != "file" || d[0].Status != api.DeliveryDelivered {
		t.Errorf("%+v", d)
	}
	if _, d := o.run(s.ID, &api.SubmitRun{Content: api.Text("go"), ReplyTargets: &[]api.ReplyTarget{}}); len(d) != 0 {
		t.Errorf("none wanted: %+v", d)
	}
	if got := readFile(t, filepath.Join(o.dir, "answers", "fallback.jsonl")); strings.Count(got, `"delivery_id"`) != 1 {
		t.Errorf("%q", got)
	}
}

// A test takes the way of a delivery, through every way out, and leaves no run.
func TestTargetTests(t *testing.T) {
	o := newOutlets(t, "")
	o.session(&api.CreateSession{ID: "next"})
	o.fails["/down"] = 1
	for _, row := range []struct {
		target api.ReplyTarget
		code   string
	}{
		{api.ReplyTarget{Type: "webhook", URLSecret: "address", Secret: "key", Signing: "ed25519"}, ""},
		{api.ReplyTarget{Type: "webhook", URL: o.hooks.URL + "/structured", Format: "cloudevents"}, ""},
		{api.ReplyTarget{Type: "webhook", URL: o.hooks.URL + "/binary", Format: "cloudevents_binary"}, ""},
		{api.ReplyTarget{Type: "webhook", URL: o.hooks.URL + "/down"}, "http_503"},
		{api.ReplyTarget{Type: "webhook", URL: "http://localtest.invalid./"}, "dns"},
		{api.ReplyTarget{Type: "file", Folder: "answers", Path: "a"}, ""},
		{api.ReplyTarget{Type: "stdout"}, ""},
		{api.ReplyTarget{Type: "mail", Server: "office", To: []string{"ann@example.com"}}, ""},
		{api.ReplyTarget{Type: "nats", Server: "main", Subject: "answers.a"}, ""},
		{api.ReplyTarget{Type: "plugin", Plugin: "append"}, ""},
		{api.ReplyTarget{Type: "session", Session: "next"}, "not_sent"},
	} {
		got, err := o.c.TestTarget(t.Context(), &row.target)
		if err != nil || got.Code != row.code || got.Delivered != (row.code == "") {
			t.Errorf("%+v: %+v, %v", row.target, got, err)
		}
	}
	oracle, err := standardwebhooks.NewWebhook(signingSecret)
	if err != nil {
		t.Fatal(err)
	}
	if p := o.got("/structured")[0]; oracle.Verify(p.body, p.header) != nil || !strings.Contains(string(p.body), `"output_kind":"test"`) {
		t.Errorf("%s", p.body)
	}
	for target, code := range map[*api.ReplyTarget]string{
		{Type: "webhook", URL: "http://169.254.169.254/"}:                                 "target_not_allowed",
		{Type: "webhook", URLSecret: "none"}:                                              "unknown_secret",
		{Type: "webhook", URLSecret: "hook"}:                                              "invalid_url",
		{Type: "webhook", URL: o.hooks.URL, Secret: "hook", Signing: "ed25519"}:           "invalid_reply_target",
		{Type: "file", Folder: "none", Path: "a"}:                                         "target_not_configured",
		{Type: "mail", Server: "none", To: []string{"a@example.com"}}:                     "target_not_configured",
		{Type: "mail", Server: "office", To: []string{"a@example.com", "eve@other.test"}}: "target_not_allowed",
		{Type: "nats", Server: "none", Subject: "answers.a"}:                              "target_not_configured",
		{Type: "nats", Server: "main", Subject: "other.a"}:                                "target_not_allowed",
		{Type: "plugin", Plugin: "none"}:                                                  "target_not_configured",
		{Type: "session", Session: "none"}:                                                "session_not_found",
	} {
		if got, err := o.c.TestTarget(t.Context(), target); client.Code(err) != code {
			t.Errorf("%+v: %+v, %v, want %s", target, got, err, code)
		}
	}
	if runs, err := o.c.Runs(t.Context(), client.RunsQuery{}, client.Page{}); err != nil || len(runs.Items) != 0 {
		t.Errorf("%+v, %v", runs, err)
	}
	if _, err := o.c.SigningKey(t.Context(), "hook"); client.Code(err) != "signing_key_not_found" {
		t.Errorf("a shared secret is shown: %v", err)
	}
	o.nothingSecret()
}

// A secret that changed counts at the next attempt: the address, and the key.
func TestChangedSecrets(t *testing.T) {
	o := newOutlets(t, "")
	s := o.session(&api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URLSecret: "address"}}})
	if err := os.WriteFile(filepath.Join(o.dir, "url.secret"), []byte(o.hooks.URL+"/moved"), 0o600); err != nil {
		t.Fatal(err)
	}
	const other = "whsec_plJ3nmyCDGBKInavdOK15jsl"
	if err := os.WriteFile(filepath.Join(o.dir, "hook.secret"), []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run(s.ID, &api.SubmitRun{Content: api.Text("go")})
	oracle, err := standardwebhooks.NewWebhook(other)
	if err != nil {
		t.Fatal(err)
	}
	if posts := o.got("/moved"); len(posts) != 1 || oracle.Verify(posts[0].body, posts[0].header) != nil {
		t.Errorf("%+v", posts)
	}
}

// What the configuration cannot do is told when the daemon starts, with the key.
func TestTargetMistakes(t *testing.T) {
	for text, says := range map[string]string{
		"folders: {a: ./none}":                                   "targets.folders.a: there is no folder",
		"plugins: {a: {command: [./none]}}":                      "targets.plugins.a.command",
		"plugins: {a: {command: [./script.yaml]}}":               "is not executable",
		"fallback: [{type: file, folder: x, path: a}]":           "targets.fallback[0]: no folder is named",
		"fallback: [{type: webhook, url: \"http://10.0.0.1/\"}]": "targets.fallback[0]: 10.0.0.1 is no public address",
		"fallback: [{type: mail, server: m, to: [a@h.test]}]":    "targets.fallback[0]: no mail server is named",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(`rules: [{reply: {text: x}}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse([]byte("routes: {main: {provider: scripted, script: script.yaml}}\ntargets:\n  "+text), "holdfast.yaml", dir)
		if err == nil {
			_, cerr := daemon.Check(cfg)
			if cerr == nil || !strings.Contains(cerr.Error(), says) {
				t.Errorf("%s: the check says %v, want %q", text, cerr, says)
			}
			_, err = daemon.Open(t.Context(), cfg, daemon.Options{})
		}
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "holdfast.yaml:") {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

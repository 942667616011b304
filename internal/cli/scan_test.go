package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/otlp/otlpstub"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// canary is a secret that must be seen nowhere: where it is put, and what it is.
type canary struct{ place, text string }

// forms are the ways in which a text may stand somewhere.
func (c canary) forms() map[string][]byte {
	s := c.text
	out := map[string][]byte{
		"as it is": []byte(s), "in hexadecimal": []byte(hex.EncodeToString([]byte(s))), "in upper hexadecimal": []byte(strings.ToUpper(hex.EncodeToString([]byte(s)))),
		"in a query": []byte(url.QueryEscape(s)), "in a path": []byte(url.PathEscape(s)),
	}
	if quoted, err := json.Marshal(s); err == nil {
		out["in JSON"] = quoted[1 : len(quoted)-1]
		out["in JSON with escaped slashes"] = bytes.ReplaceAll(out["in JSON"], []byte("/"), []byte(`\/`))
	}
	for before := range 3 { // within a longer text; the characters that the secret alone decides
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), s...))
		text = text[(before*8+5)/6 : (before+len(s))*8/6]
		out[fmt.Sprint("in base64 ", before)] = []byte(text)
		out[fmt.Sprint("in URL base64 ", before)] = []byte(strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	return out
}

// echo says a text back in every form, as a careless or hostile server does.
func echo(s string) string {
	var b strings.Builder
	for _, form := range (canary{"", s}).forms() {
		b.Write(form)
		b.WriteByte(' ')
	}
	return base64.StdEncoding.EncodeToString([]byte("key "+s+" end")) + " " + b.String()
}

// scan is a daemon as a process, with servers around it that echo what they are
// sent, and everything that it shows.
type scan struct {
	t        *testing.T
	dir      string
	canaries []canary
	seen     lockedBuffer // logs, and every answer over HTTP
	vendor   *httptest.Server
	tool     *httptest.Server
	hook     *httptest.Server
	stub     *otlpstub.Stub
	otlp     *httptest.Server
	asked    int // of the vendor
	calm     bool
	hooked   int
	tooled   int
	mu       sync.Mutex
	done     chan struct{} // a delivery that came through
	cmd      *exec.Cmd
	token    string
	base     string
	c        *client.Client
	unused   map[string]bool // canaries that no server has seen
	ways     *ways
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// plant makes a canary for a place. Its signs are those that differ between forms.
func (s *scan) plant(place string) string {
	text := "cn4ry/" + place + `+"7%\` + "-0123456789"
	s.canaries = append(s.canaries, canary{place, text})
	return text
}

// saw notes that a server was sent a secret, so that its absence elsewhere means something.
func (s *scan) saw(r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all strings.Builder
	for name, list := range r.Header {
		for _, v := range list {
			fmt.Fprintf(&all, "%s: %s\n", name, v)
			for _, c := range s.canaries {
				if strings.Contains(v, c.text) {
					delete(s.unused, c.place)
				}
			}
		}
	}
	return all.String()
}

func (s *scan) servers(signing string) {
	serve := func(h http.HandlerFunc) *httptest.Server {
		srv := httptest.NewServer(h)
		s.t.Cleanup(srv.Close)
		return srv
	}
	s.vendor = serve(func(w http.ResponseWriter, r *http.Request) {
		s.saw(r)
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		n := s.asked
		s.asked++
		if s.calm {
			n = 6
		}
		s.mu.Unlock()
		say := func(status int, media, body string) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
		fault := func() string {
			b, _ := json.Marshal(map[string]any{"error": map[string]any{"message": "no access with " + key + ", that is " + echo(key), "type": "server_error", "code": key}})
			return string(b)
		}
		switch n {
		case 0:
			say(500, "application/json", fault())
		case 1:
			say(503, "text/plain", "overloaded; you are "+echo(key))
		case 2: // a stream that ends in an error
			say(200, "text/event-stream", "data: "+fault()+"\n\n")
		case 3, 4, 5:
			say(200, "application/json", `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_`+fmt.Sprint(n)+`","type":"function","function":{"name":"lookup","arguments":"{}"}}]}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		case 6:
			say(200, "application/json", `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"visible answer"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		default:
			say(400, "application/json", fault())
		}
	})
	s.tool = serve(func(w http.ResponseWriter, r *http.Request) {
		all := s.saw(r)
		s.mu.Lock()
		n := s.tooled
		s.tooled++
		s.mu.Unlock()
		header := r.Header.Get("X-Api-Key")
		switch n {
		case 0:
			w.Header().Set("Content-Type", "application/json")
			b, _ := json.Marshal(map[string]string{"you sent": all, "that is": echo(header), "bearer": echo(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))})
			_, _ = w.Write(b)
		case 1:
			w.WriteHeader(403)
			io.WriteString(w, "not with "+header+"\n"+echo(header))
		default:
			w.WriteHeader(500)
			io.WriteString(w, all)
		}
	})
	s.done = make(chan struct{}, 64)
	s.hook = serve(func(w http.ResponseWriter, r *http.Request) {
		s.saw(r)
		s.mu.Lock()
		n := s.hooked
		s.hooked++
		s.mu.Unlock()
		if n < 2 { // a receiver knows the signing secret, and may say it
			w.WriteHeader(500)
			io.WriteString(w, "verified with "+signing+" "+echo(signing))
			return
		}
		s.done <- struct{}{}
	})
	s.stub = &otlpstub.Stub{}
	s.otlp = serve(func(w http.ResponseWriter, r *http.Request) {
		s.saw(r)
		s.stub.ServeHTTP(w, r)
	})
}

// start runs the daemon as people do, and waits for its address.
func (s *scan) start(env ...string) {
	s.t.Helper()
	program, err := exec.LookPath("holdfast")
	if err != nil {
		s.t.Fatal(err)
	}
	address := filepath.Join(s.dir, "address")
	_ = os.Remove(address)
	s.cmd = exec.CommandContext(context.Background(), program, "serve", "--config", filepath.Join(s.dir, "holdfast.yaml"), "--address-file", address)
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.seen, &s.seen
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd := s.cmd
	s.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	s.until("the daemon listens", func() bool { _, err := os.Stat(address); return err == nil })
	at, err := os.ReadFile(address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.base = "http://" + strings.TrimPrefix(strings.TrimSpace(string(at)), "http://")
	if s.c, err = client.New(s.base, s.token, client.WithHTTPClient(&http.Client{Transport: s})); err != nil {
		s.t.Fatal(err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.cmd.Process.Pid))
	if err == nil { // only where there is such a thing
		_, _ = s.seen.Write(line)
	}
}

func (s *scan) until(what string, f func() bool) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); !f(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatalf("in two minutes not: %s\n%s", what, s.seen.bytes())
		}
	}
}

// RoundTrip keeps every answer.
func (s *scan) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	fmt.Fprintf(&s.seen, "%s %s: %d %v %s\n", r.Method, r.URL.Path, res.StatusCode, res.Header, body)
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, err
}

// get reads a path with the token, whatever it answers.
func (s *scan) get(method, path, token, body string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	if _, err := s.RoundTrip(r); err != nil {
		s.t.Fatal(err)
	}
}

// live makes runs that call tools, fail, are tried again and are delivered, and
// reads everything that there is to read.
func (s *scan) live(signing string) {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	toolKey := s.plant("slot-tool")
	for name, req := range map[string]*api.PutSecret{
		"tool_key": {Value: toolKey, Hosts: []string{strings.TrimPrefix(s.tool.URL, "http://")}},
		"wrong":    {Value: s.plant("slot-of-another-host"), Hosts: []string{"elsewhere.test"}},
		"hook":     {Value: "whsec_" + base64.StdEncoding.EncodeToString([]byte("a former signing secret 0"))},
	} {
		if _, err := s.c.SetSecret(ctx, name, req); err != nil {
			t.Fatal(err)
		}
	}
	s.unused["slot-tool"] = true
	if _, err := s.c.SetSecret(ctx, "hook", &api.PutSecret{Value: signing}); err != nil {
		t.Fatal(err)
	}
	bad := s.plant("refused-value")
	quoted, err := json.Marshal(bad)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`{"value":` + string(quoted) + `,"hosts":["http://x"]}`, `{"value":` + string(quoted) + `,"former_for":"x"}`, `{"value":` + string(quoted),
		`{"value":[` + string(quoted) + `]}`, `{"value":` + string(quoted) + `} 1`, `{"value":` + string(quoted) + `,"value":1}`,
	} {
		s.get("PUT", "/v1/secrets/other", s.token, body)
	}
	s.get("GET", "/v1/sessions", s.plant("wrong-token"), "")
	session, err := s.c.CreateSession(ctx, &api.CreateSession{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: s.hook.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	var runs []string
	for _, text := range []string{"visible-input of the first", "of the second"} {
		run, _, err := s.c.Submit(ctx, session.ID, &api.SubmitRun{Content: api.Text(text)})
		if err != nil {
			t.Fatal(err)
		}
		if run, err = s.c.Wait(ctx, run.ID); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run.ID)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		t.Fatalf("nothing was delivered\n%s", s.seen.bytes())
	}
	s.get("GET", "/v1/events?limit=1000", s.token, "")
	paths := []string{
		"/openapi.json", "/metrics", "/healthz", "/readyz", "/v1/sessions", "/v1/sessions/" + session.ID, "/v1/sessions/" + session.ID + "/events?limit=1000", "/v1/runs", "/v1/deliveries",
		"/v1/targets", "/v1/secrets", "/v1/secrets/hook", "/v1/secrets/tool_key", "/v1/tokens", "/v1/routes", "/v1/tools", "/v1/nodes", "/v1/assets", "/nothing",
	}
	for _, run := range runs {
		paths = append(paths, "/v1/runs/"+run, "/v1/runs/"+run+"/events?limit=1000", "/v1/runs/"+run+"/stream", "/v1/runs/"+run+"/timeline")
	}
	for _, path := range paths {
		s.get("GET", path, s.token, "")
	}
	s.get("POST", "/v1/rekey-secrets", s.token, "")
	s.until("the collector has traces", func() bool { return s.stub.Requests("/v1/traces") > 0 })
}

func (s *scan) end() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Fatalf("%v\n%s", err, s.seen.bytes())
	}
}

// clean looks for every canary, in every form, in every place. where is what
// each place holds; a word that must be found shows that the search sees.
func (s *scan) clean(where map[string][]byte) {
	t := s.t
	t.Helper()
	for place, data := range where {
		for _, c := range s.canaries {
			for form, text := range c.forms() {
				if i := bytes.Index(data, text); i >= 0 {
					t.Errorf("I-33: the canary of %s is in %s, %s: …%q…", c.place, place, form, data[max(0, i-80):min(len(data), i+len(text)+40)])
				}
			}
		}
	}
}

// files reads everything below a folder.
func files(t *testing.T, dir string, where map[string][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		where[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// newScan makes the servers, plants the canaries and writes the configuration.
func newScan(t *testing.T, more string) (s *scan, env []string, signing string) {
	s = &scan{t: t, dir: t.TempDir(), unused: map[string]bool{}}
	// Of a signing secret and of a key both the text and the bytes are canaries.
	raw := "cn4ry/signing+bytes 7%"
	signing = "whsec_" + base64.StdEncoding.EncodeToString([]byte(raw))
	s.canaries = append(s.canaries, canary{"signing", signing}, canary{"signing bytes", raw})
	keyBytes := []byte("cn4ry/master+key bytes 7% 012345")
	key, err := seal.ParseKey(base64.StdEncoding.EncodeToString(keyBytes))
	if err != nil {
		t.Fatal(err)
	}
	s.canaries = append(s.canaries, canary{"master key", key.Text()}, canary{"master key bytes", string(keyBytes)})
	s.servers(signing)
	s.token = s.plant("first-token")
	s.unused["api-key"], s.unused["tool-bearer"], s.unused["collector"] = true, true, true
	env = []string{
		"HOLDFAST_TOKEN=" + s.token, "HOLDFAST_SERVER=", "SCAN_API_KEY=" + s.plant("api-key"), "SCAN_BEARER=Bearer " + s.plant("tool-bearer"), "SCAN_MASTER=" + key.Text(),
		"HTTP_PROXY=http://proxy.invalid:1", "HTTPS_PROXY=http://proxy.invalid:1", "ALL_PROXY=http://proxy.invalid:1",
	}
	var targets, others string
	var also []string
	s.ways, targets, others, also = s.newWays()
	env = append(env, also...)
	collector := filepath.Join(s.dir, "collector.secret")
	if err := os.WriteFile(collector, []byte(s.plant("collector")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
routes: {main: {provider: openai_compatible, base_url: %q, model: m, api_key: {secret: key}}}
secrets: {key: {env: SCAN_API_KEY, hosts: [%q]}}
master_key: {env: SCAN_MASTER}
targets: {allow_private: [127.0.0.0/8], signing_secret: hook%s}
delivery: {initial_backoff: 10ms, circuit: {cooldown: 20ms, max_cooldown: 100ms}}
telemetry: {otlp_endpoint: %q, interval: 1s, headers: {x-collector: {file: collector.secret}}}
log: {level: debug, format: json}
tools:
  lookup: {type: http, url: %q, side_effect: read, input_schema: {type: object, properties: {}}, headers: {X-Api-Key: {secret: tool_key}, Authorization: {env: SCAN_BEARER}}}
  wrong: {type: http, url: %q, side_effect: read, input_schema: {type: object, properties: {}}, headers: {X-Api-Key: {secret: wrong}}}
%s
%s
`, s.vendor.URL+"/v1", strings.TrimPrefix(s.vendor.URL, "http://"), targets, s.otlp.URL, s.tool.URL, s.tool.URL, others, more)
	if err := os.WriteFile(filepath.Join(s.dir, "holdfast.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, env, signing
}

// check looks at everything after a life, but the files that are secrets themselves.
func (s *scan) check(where map[string][]byte, stored func() string) {
	t := s.t
	t.Helper()
	where["logs, answers and arguments"] = s.seen.bytes()
	where["what the collector was sent"] = s.stub.Raw()
	s.clean(where)
	for place := range s.unused {
		t.Errorf("nobody was sent the secret of %s, so that this shows nothing", place)
	}
	for word, in := range map[string]string{"visible-input": stored(), "visible answer": string(where["logs, answers and arguments"]), "[redacted]": string(where["logs, answers and arguments"]), `"level":"DEBUG"`: string(where["logs, answers and arguments"])} {
		if !strings.Contains(in, word) {
			t.Errorf("%q is not seen, so that this search shows nothing", word)
		}
	}
}

// I-33, over the whole way with an embedded database: canary secrets in every
// place that takes one are nowhere but where they belong.
func TestNoSecretIsSeen(t *testing.T) {
	t.Parallel() // its time is waits for a model's next attempt
	s, env, signing := newScan(t, "")
	s.start(env...)
	s.live(signing)
	s.visit(s.ways)
	where := map[string][]byte{}
	files(t, filepath.Join(s.dir, "holdfast-data"), where) // while it runs, with what is not yet moved
	running := map[string][]byte{}
	for path, data := range where {
		running["running "+path] = data
	}
	s.end()
	files(t, filepath.Join(s.dir, "holdfast-data"), running)
	s.check(running, func() string {
		var all []string
		for _, data := range running {
			all = append(all, string(data))
		}
		return strings.Join(all, "\n")
	})
	// A second life fails in other ways: what it refers to is gone.
	s.start(slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return strings.HasPrefix(v, "SCAN_API_KEY") || strings.HasPrefix(v, "SCAN_BEARER")
	})...)
	session, err := s.c.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	run, _, err := s.c.Submit(t.Context(), session.ID, &api.SubmitRun{Content: api.Text("x")})
	if err == nil {
		run, err = s.c.Wait(t.Context(), run.ID)
	}
	if err != nil || run.Status != api.RunFailed {
		t.Errorf("%+v %v", run, err)
	}
	s.end()
	// A third has another master key, and says which one it wants.
	other, err := seal.ParseKey(strings.Repeat("B", 42) + "A")
	if err != nil {
		t.Fatal(err)
	}
	s.refuses("master_key.former", append(env, "SCAN_MASTER="+other.Text())...)
	s.clean(map[string][]byte{"logs, answers and arguments": s.seen.bytes()})
}

// refuses starts a daemon that ends at once, and looks for a word in what it says.
func (s *scan) refuses(word string, env ...string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "holdfast", "serve", "--config", filepath.Join(s.dir, "holdfast.yaml"))
	cmd.Env = append(os.Environ(), env...)
	said, err := cmd.CombinedOutput()
	_, _ = s.seen.Write(said)
	if err == nil || !bytes.Contains(said, []byte(word)) {
		s.t.Errorf("%v: %s; want %s", err, said, word)
	}
}

// I-33 in a cluster: also the URLs of the database and of the bus are secrets.
func TestNoSecretIsSeenInACluster(t *testing.T) {
	t.Parallel() // its time is waits for a model's next attempt
	database := storetest.Database(t)
	s, env, signing := newScan(t, "database_url: {env: SCAN_DATABASE}\nbus_url: {env: SCAN_BUS}\nstore: {wait: 5s}\n")
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	if _, has := u.User.Password(); !has { // a server that wants none does not mind one
		u.User = url.UserPassword(u.User.Username(), s.plant("database-password"))
	}
	bus := url.URL{Scheme: "nats", Host: "127.0.0.1:4222", User: url.UserPassword("bus", s.plant("bus-password"))}
	env = append(env, "SCAN_DATABASE="+u.String(), "SCAN_BUS="+bus.String())
	s.start(env...)
	s.live(signing)
	s.visit(s.ways)
	s.end()
	where := map[string][]byte{}
	files(t, filepath.Join(s.dir, "holdfast-data"), where)
	where["the database"] = dump(t, database)
	s.check(where, func() string { return string(where["the database"]) })
	gone := *u
	gone.Host = "127.0.0.1:1"
	s.refuses("cannot be reached", append(env, "SCAN_DATABASE="+gone.String())...)
	gone.Host = u.Host
	gone.Path = "/no_such_database"
	s.refuses("no_such_database", append(env, "SCAN_DATABASE="+gone.String())...)
	other, err := seal.ParseKey(strings.Repeat("B", 42) + "A")
	if err != nil {
		t.Fatal(err)
	}
	s.refuses("give every node the same master_key", append(env, "SCAN_MASTER="+other.Text())...)
	s.clean(map[string][]byte{"logs, answers and arguments": s.seen.bytes()})
}

// dump gives every row of every table, and the bytes of its binary columns.
func dump(t *testing.T, database string) []byte {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables
		WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	var out bytes.Buffer
	for _, table := range tables {
		rows, err := conn.Query(t.Context(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				if b, ok := v.([]byte); ok {
					out.Write(b)
				} else {
					fmt.Fprint(&out, v)
				}
				out.WriteByte('\n')
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

package daemon_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// old is the world around the database of a release, in a bubble: the model is
// a script, tools run in this process, receivers are behind pipes.
type old struct {
	t   *testing.T
	dir string // of the configuration; its data directory is data
	// later: the receiver that was down answers, and the tool that hung too.
	later bool
	seed  byte

	mu   sync.Mutex
	hits []string // paths of receivers that took a message
}

// largeText stands outside the log by its size.
var largeText = strings.Repeat("a line of a large text\n", 1000)

var oldScript = fmt.Sprintf(`rules:
  - when: {contains: typed, turn: 1}
    reply: {tool_calls: [{name: peek, arguments: {what: stock}}, {name: charge, arguments: {what: once}}]}
  - when: {contains: typed, turn: 2, repair: 0}
    reply: {text: '{"left":"three"}', usage: {input: 20, output: 5}}
  - when: {contains: typed}
    reply: {text: '{"left":3}', usage: {input: 30, output: 5}}
  - when: {contains: doubtful, turn: 1}
    reply: {tool_calls: [{name: charge, arguments: {what: lost}}]}
  - when: {contains: large, turn: 1}
    reply: {tool_calls: [{name: peek, arguments: {what: large}}]}
  - when: {contains: large}
    reply: {text: %q}
  - when: {contains: hanging, attempt: 1}
    reply: {text: never, delay: 1h}
  - when: {contains: peeking, turn: 1}
    reply: {tool_calls: [{name: peek, arguments: {what: hang}}]}
  - when: {contains: refused}
    reply: {error: {class: auth, message: no such key}}
  - when: {contains: limited, attempt: 1}
    reply: {error: {class: rate_limit, message: slow down, retry_after: 2s}}
  - reply: {text: done}
`, largeText)

const oldConfig = `
data_dir: data
routes: {main: {provider: scripted, script: script.yaml}}
secrets: {hook: {env: HF_UPGRADE_SECRET}}
targets: {signing_secret: hook, allow_private: [127.0.0.0/8]}
delivery: {initial_backoff: 1h}
shutdown: {drain: 1s}
`

// oldTool is a tool of this process.
type oldTool struct {
	o     *old
	name  string
	level tool.Level
}

func (u oldTool) Definition() tool.Definition {
	return tool.Definition{
		Name: u.name, Level: u.level, Policy: tool.Allow, Source: tool.Local,
		InputSchema: canonjson.Value(`{"additionalProperties":false,"properties":{"what":{"type":"string"}},"required":["what"],"type":"object"}`),
	}
}

func (u oldTool) Run(ctx context.Context, call tool.Call) (tool.Result, error) {
	switch {
	case strings.Contains(string(call.Input), "lost"):
		return tool.Result{}, fmt.Errorf("no answer: %w", tool.ErrOutcomeUnknown)
	case strings.Contains(string(call.Input), "large"):
		return tool.Result{Output: largeText}, nil
	case strings.Contains(string(call.Input), "hang") && !u.o.later:
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}
	return tool.Result{Output: "three are left"}, nil
}

// chance is a source of chance that gives the same each time.
type chance struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

func (s *chance) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(p)
}

// open opens a daemon on the data directory; start begins its work. stop ends it.
func (o *old) open(start bool) (c *client.Client, stop func()) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, "script.yaml"), []byte(oldScript), 0o600); err != nil {
		o.t.Fatal(err)
	}
	cfg, err := config.Parse([]byte(oldConfig), "holdfast.yaml", o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	hooks := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	receiver := &http.Server{Handler: http.HandlerFunc(o.receive)}
	served := make(chan error, 1)
	go func() { served <- receiver.Serve(hooks) }()
	d, err := daemon.Open(context.Background(), cfg, daemon.Options{
		Random: &chance{r: rand.NewChaCha8([32]byte{o.seed})},
		Dial:   hooks.dial,
		Tools:  []tool.Tool{oldTool{o, "peek", tool.Read}, oldTool{o, "charge", tool.ExternalEffect}},
	})
	if err != nil {
		receiver.Close()
		<-served
		o.t.Fatal(err)
	}
	if start {
		if err := d.Start(context.Background()); err != nil {
			o.t.Fatal(err)
		}
	}
	c, err = client.New("http://house", "", client.WithHTTPClient(&http.Client{Transport: direct{d.Handler(true)}}))
	if err != nil {
		o.t.Fatal(err)
	}
	return c, func() {
		if err := d.Stop(context.Background()); err != nil {
			o.t.Error(err)
		}
		receiver.Close()
		<-served
	}
}

func (o *old) receive(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	status := http.StatusOK
	switch {
	case r.URL.Path == "/no":
		status = http.StatusGone
	case r.URL.Path == "/down" && !o.later:
		status = http.StatusServiceUnavailable
	default:
		o.mu.Lock()
		o.hits = append(o.hits, r.URL.Path)
		o.mu.Unlock()
	}
	w.WriteHeader(status)
}

// direct calls a handler in place of the network.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	d.h.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// pipes are the network to the receivers.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

// show gives a text as a listing has it: short ones as they are.
func show(text string) string {
	if len(text) <= 60 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(text), sha256.Sum256([]byte(text)))
}

// listing tells what people and programs see of the whole database, in words
// that later releases keep: what they add to the API is not in it.
func listing(t *testing.T, c *client.Client) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	sessions, err := c.Sessions(t.Context(), "", client.Page{Limit: 100})
	must(err)
	slices.SortFunc(sessions.Items, func(a, b api.Session) int { return strings.Compare(a.ID, b.ID) })
	for _, s := range sessions.Items {
		fmt.Fprintf(&b, "session %s %q %s version %d title %q metadata %s\n", s.ID, s.Alias, s.Status, s.SettingsVersion, s.Title, s.Metadata)
		if s.InputContract != nil {
			fmt.Fprintf(&b, "  input contract %s\n", s.InputContract.Schema)
		}
		if s.OutputContract != nil {
			fmt.Fprintf(&b, "  output contract %s\n", s.OutputContract.Schema)
		}
		for _, r := range s.ReplyTargets {
			fmt.Fprintf(&b, "  target %s %s\n", r.Type, r.URL)
		}
		n, types := int64(0), map[string]int{}
		for {
			events, err := c.SessionEvents(t.Context(), s.ID, n, 100)
			must(err)
			for _, e := range events.Items {
				n = e.Seq
				types[e.Type]++
				if len(events.Items) < 100 && e.Seq == events.Items[len(events.Items)-1].Seq {
					fmt.Fprintf(&b, "  %d events, the last %s of epoch %d, hash %s\n", e.Seq, e.Type, e.Epoch, e.Hash)
				}
			}
			if len(events.Items) < 100 {
				break
			}
		}
		var kinds []string
		for k, n := range types {
			kinds = append(kinds, fmt.Sprintf("%s %d", k, n))
		}
		slices.Sort(kinds)
		fmt.Fprintf(&b, "  %s\n", strings.Join(kinds, ", "))
	}
	runs, err := c.Runs(t.Context(), client.RunsQuery{}, client.Page{Limit: 100})
	must(err)
	slices.SortFunc(runs.Items, func(a, b api.Run) int { return strings.Compare(a.ID, b.ID) })
	for i := range runs.Items {
		r, err := c.Run(t.Context(), runs.Items[i].ID)
		must(err)
		listRun(t, c, &b, r)
	}
	return b.String()
}

func listRun(t *testing.T, c *client.Client, b *bytes.Buffer, r *api.Run) {
	t.Helper()
	fmt.Fprintf(b, "run %s in %s: %s, %q by %s\n", r.ID, r.SessionID, r.Status, r.Request.TextPreview[:min(len(r.Request.TextPreview), 60)], r.Request.Route)
	if r.Counters != nil {
		fmt.Fprintf(b, "  %d turns, %d tools, %d repairs\n", r.Counters.Turns, r.Counters.Tools, r.Counters.Repairs)
	}
	if r.Usage != nil {
		fmt.Fprintf(b, "  %d tokens in, %d out\n", r.Usage.Input, r.Usage.Output)
	}
	if r.Error != nil {
		fmt.Fprintf(b, "  error %s\n", r.Error.Code)
	}
	for _, a := range r.Attention {
		fmt.Fprintf(b, "  in doubt: %s of %s\n", a.CallID, a.Tool)
	}
	for _, o := range r.Outputs {
		text := o.Content
		if o.ContentRef != "" {
			blob, err := c.Blob(t.Context(), r.SessionID, o.ContentRef)
			if err != nil {
				t.Fatal(err)
			}
			text = string(blob)
		}
		fmt.Fprintf(b, "  %s output %s %s\n", o.OutputKind, show(text), o.StructuredOutput)
	}
	for _, d := range r.Deliveries {
		fmt.Fprintf(b, "  delivery %s to %s: %s after %d attempts, %q\n", d.ID, d.TargetID, d.Status, d.Attempts, d.LastCode)
	}
}

func (o *old) submit(c *client.Client, alias, text string, opts ...client.SubmitOption) *api.Run {
	o.t.Helper()
	r, _, err := c.Submit(o.t.Context(), alias, &api.SubmitRun{Content: api.Text(text)}, opts...)
	if err != nil {
		o.t.Fatalf("%s: %v", alias, err)
	}
	return r
}

func (o *old) wait(c *client.Client, id, status string) *api.Run {
	o.t.Helper()
	r, err := c.Wait(o.t.Context(), id)
	if err != nil || r.Status != status {
		o.t.Fatalf("run %s: %+v, %v, want %s", id, r, err, status)
	}
	return r
}

func (o *old) session(c *client.Client, req *api.CreateSession) *api.Session {
	o.t.Helper()
	s, err := c.CreateSession(o.t.Context(), req)
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const script = `rules: [{reply: {text: '{"ok":true}', usage: {input: 10, output: 4}}}]`

// runs measures one-step runs over HTTP: submit, the model answers at once,
// completed and durable, told to the client. One session for each client.
func runs(ctx context.Context, b *bench) error {
	for _, clients := range b.n.clients {
		target := ""
		if clients == 64 {
			target = "at least 2000"
		}
		p50, err := runsWith(ctx, b, clients, "one-step runs over HTTP", target, oneStep(), `{}`)
		if err != nil {
			return err
		}
		if clients == 1 {
			b.row("the time of one, 1 client", ms(p50), "ms", "at most 2.5", "p50")
		}
	}
	return nil
}

// turns measures runs of five turns: four call a tool, one that reads and one
// that writes in turn, the fifth answers.
func turns(ctx context.Context, b *bench) error {
	for _, clients := range b.n.clients {
		target := ""
		if clients == 64 {
			target = "at least 500"
		}
		if _, err := runsWith(ctx, b, clients, "five-turn runs with four tool calls", target, fiveTurns(), `{"history_limit":40,"tools":["look","note"]}`); err != nil {
			return err
		}
	}
	return nil
}

func runsWith(ctx context.Context, b *bench, clients int, name, target string, p play, session string) (p50 time.Duration, err error) {
	h, err := openHouseWith(ctx, filepath.Join(b.dir, fmt.Sprintf("runs-%d", clients)), p)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	sessions := make([]string, clients)
	for i := range sessions {
		if sessions[i], err = h.session(session); err != nil {
			return 0, err
		}
	}
	b.target = target
	p50, _, err = b.measure(fmt.Sprintf("%s, %d clients", name, clients), clients, func(w, _ int) error {
		return h.run(sessions[w])
	})
	return p50, err
}

// fiveTurns is a model that calls tools four times and answers.
func fiveTurns() play {
	return play{tools: []tool.Tool{local{"look", tool.Read}, local{"note", tool.Write}}, script: `rules:
  - {when: {turn: 1}, reply: {tool_calls: [{name: look, arguments: {what: disk}}], usage: {input: 10, output: 4}}}
  - {when: {turn: 2}, reply: {tool_calls: [{name: note, arguments: {what: full}}], usage: {input: 10, output: 4}}}
  - {when: {turn: 3}, reply: {tool_calls: [{name: look, arguments: {what: again}}], usage: {input: 10, output: 4}}}
  - {when: {turn: 4}, reply: {tool_calls: [{name: note, arguments: {what: free}}], usage: {input: 10, output: 4}}}
  - {reply: {text: '{"ok":true}', usage: {input: 10, output: 4}}}
`}
}

// local is a tool in this process that is done at once.
type local struct {
	name  string
	level tool.Level
}

func (l local) Definition() tool.Definition {
	return tool.Definition{Name: l.name, Level: l.level, Policy: tool.Allow, Source: tool.Local, Description: "for the benchmark",
		InputSchema: canonjson.Value(`{"properties":{"what":{"type":"string"}},"required":["what"],"type":"object"}`)}
}

func (l local) Run(context.Context, tool.Call) (tool.Result, error) {
	return tool.Result{Output: "done: " + l.name}, nil
}

// house is a daemon in this process, and a client of it.
type house struct {
	*caller
	dm *daemon.Daemon
}

// openHouse makes a daemon in a directory, or opens the one that is there.
func openHouse(ctx context.Context, dir string) (*house, error) {
	return openHouseWith(ctx, dir, oneStep())
}

func openHouseWith(ctx context.Context, dir string, p play) (*house, error) {
	dm, err := openPlay(ctx, dir, p)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		_, err = dm.FirstToken(ctx, token)
	}
	if err == nil {
		err = dm.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, dm.Stop(ctx))
	}
	dm.Serve(l, false)
	return &house{dm: dm, caller: newCaller(l.Addr().String())}, nil
}

const token = "bench-token-bench-token"

// errorsOnly tells of what should not happen while something is measured.
var errorsOnly = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))

// play is what a daemon works with.
type play struct {
	script string // of the scripted model
	route  string // YAML of the one route; empty: the scripted model
	more   string // YAML: further lines of the configuration
	tools  []tool.Tool

	lease func(eventlog.Term) eventlog.Term // put around the terms of the node
}

// oneStep is a model that answers at once.
func oneStep() play { return play{script: script} }

func openPlay(ctx context.Context, dir string, p play) (*daemon.Daemon, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(p.script), 0o600); err != nil {
		return nil, err
	}
	if p.route == "" {
		p.route = "{provider: scripted, script: s.yaml}"
	}
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\nroutes: {s: "+p.route+"}\n"+p.more), "bench", dir)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, cfg, daemon.Options{Tools: p.tools, WrapTerm: p.lease, Logger: errorsOnly})
}

func (h *house) close(ctx context.Context) error {
	h.http.CloseIdleConnections()
	return h.dm.Stop(ctx)
}

// caller is the smallest client: what is measured is the daemon.
type caller struct {
	base, token string
	http        *http.Client
}

func newCaller(addr string) *caller {
	return &caller{base: "http://" + addr, token: token, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxIdleConns: 64}}}
}

func (c *caller) session(body string) (string, error) {
	var s struct{ ID string }
	err := c.do("POST", "/v1/sessions", body, &s)
	return s.ID, err
}

// run submits a run and waits for its end.
func (c *caller) run(session string) error { return c.say(session, "hello") }

func (c *caller) say(session, text string) error {
	var r struct{ ID, Status string }
	body, err := json.Marshal(map[string]string{"content": text})
	if err != nil {
		return err
	}
	if err := c.do("POST", "/v1/sessions/"+session+"/runs?wait=30s", string(body), &r); err != nil {
		return err
	}
	if r.Status != "completed" {
		return fmt.Errorf("run %s is %s", r.ID, r.Status)
	}
	return nil
}

func (c *caller) do(method, path, body string, into any) error {
	req, err := http.NewRequest(method, c.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s", method, path, resp.Status, data)
	}
	return json.Unmarshal(data, into)
}

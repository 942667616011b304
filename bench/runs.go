package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
)

const script = `rules: [{reply: {text: '{"ok":true}', usage: {input: 10, output: 4}}}]`

// runs measures one-step runs over HTTP: submit, the model answers at once,
// completed and durable, told to the client. One session for each client.
func runs(ctx context.Context, b *bench) error {
	for _, clients := range []int{1, 16, 64} {
		if err := runsWith(ctx, b, clients); err != nil {
			return err
		}
	}
	return nil
}

func runsWith(ctx context.Context, b *bench, clients int) (err error) {
	h, err := openHouse(ctx, filepath.Join(b.dir, fmt.Sprintf("runs-%d", clients)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	sessions := make([]string, clients)
	for i := range sessions {
		if sessions[i], err = h.session(`{}`); err != nil {
			return err
		}
	}
	_, err = b.measure(fmt.Sprintf("one-step runs over HTTP, %d clients", clients), clients, func(w, _ int) error {
		return h.run(sessions[w])
	})
	return err
}

// house is a daemon in this process, and a client of it.
type house struct {
	*caller
	dm *daemon.Daemon
}

// openHouse makes a daemon in a directory, or opens the one that is there.
func openHouse(ctx context.Context, dir string) (*house, error) {
	dm, err := openDaemon(ctx, dir)
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

func openDaemon(ctx context.Context, dir string) (*daemon.Daemon, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(script), 0o600); err != nil {
		return nil, err
	}
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\nroutes: {s: {provider: scripted, script: s.yaml}}\n"), "bench", dir)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, cfg, daemon.Options{})
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
func (c *caller) run(session string) error {
	var r struct{ ID, Status string }
	if err := c.do("POST", "/v1/sessions/"+session+"/runs?wait=30s", `{"content":"hello"}`, &r); err != nil {
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

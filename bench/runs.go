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
	"time"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
)

const script = `rules: [{reply: {text: '{"ok":true}', usage: {input: 10, output: 4}}}]`

// runs measures one-step runs over HTTP: submit, the model answers at once,
// completed and durable, told to the client. One session for each client.
func runs(ctx context.Context, dir string, d time.Duration) error {
	for _, clients := range []int{1, 16, 64} {
		if err := runsWith(ctx, filepath.Join(dir, fmt.Sprintf("runs-%d", clients)), clients, d); err != nil {
			return err
		}
	}
	return nil
}

func runsWith(ctx context.Context, dir string, clients int, d time.Duration) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(script), 0o600); err != nil {
		return err
	}
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\nroutes: {s: {provider: scripted, script: s.yaml}}\n"), "bench", dir)
	if err != nil {
		return err
	}
	dm, err := daemon.Open(ctx, cfg, daemon.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dm.Stop(ctx)) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	const token = "bench-token-bench-token"
	if _, err := dm.FirstToken(ctx, token); err != nil {
		return err
	}
	if err := dm.Start(ctx); err != nil {
		return err
	}
	dm.Serve(l, false)
	c := &caller{base: "http://" + l.Addr().String(), token: token, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients, MaxIdleConns: clients}}}
	sessions := make([]string, clients)
	for i := range sessions {
		var s struct{ ID string }
		if err := c.do("POST", "/v1/sessions", `{}`, &s); err != nil {
			return err
		}
		sessions[i] = s.ID
	}
	_, err = measure(fmt.Sprintf("one-step runs over HTTP, %d clients", clients), clients, d, func(w, _ int) error {
		var r struct{ ID, Status string }
		if err := c.do("POST", "/v1/sessions/"+sessions[w]+"/runs?wait=30s", `{"content":"hello"}`, &r); err != nil {
			return err
		}
		if r.Status != "completed" {
			return fmt.Errorf("run %s is %s", r.ID, r.Status)
		}
		return nil
	})
	c.http.CloseIdleConnections()
	return err
}

// caller is the smallest client: what is measured is the daemon.
type caller struct {
	base, token string
	http        *http.Client
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

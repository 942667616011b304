package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// A daemon whose database turns out to be damaged takes no more work and says
// so, serves what can be read, and does not start again on it. // C70
func TestDamagedDaemon(t *testing.T) {
	stub := chatstub.New(func(int, chatstub.Request) chatstub.Reply {
		return chatstub.Reply{Text: strings.Repeat("answer ", 20_000)}
	})
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	cfg, err := config.Parse(fmt.Appendf(nil, `{listen: "127.0.0.1:0", routes: {main: {provider: openai_compatible, base_url: %q, model: m}}, shutdown: {drain: 1s}}`, vendor.URL+"/v1"), "holdfast.yaml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	begin := func() (*daemon.Daemon, *client.Client, string) {
		d, err := daemon.Open(t.Context(), cfg, daemon.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.FirstToken(t.Context(), houseToken); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		door := httptest.NewServer(d.Handler(false))
		t.Cleanup(door.Close)
		c, err := client.New(door.URL, houseToken)
		if err != nil {
			t.Fatal(err)
		}
		return d, c, door.URL
	}
	ctx := t.Context()
	d, c, _ := begin()
	var ids []string
	for range 24 {
		s, err := c.CreateSession(ctx, &api.CreateSession{})
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := c.Submit(ctx, s.ID, &api.SubmitRun{Content: api.Text("go")})
		if err == nil {
			_, err = c.Wait(ctx, r.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	if err := d.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	d, c, url := begin() // nothing is in its caches
	file, err := os.OpenFile(cfg.Path(cfg.DataDir)+"/"+sqlite.DatabaseFile, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // not before the store: it would let go of its locks
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := info.Size() / 8192 * 4096; at < info.Size(); at += 4096 {
		if _, err := file.WriteAt(bytes.Repeat([]byte{0x5a}, 4096), at); err != nil {
			t.Fatal(err)
		}
	}
	var broken error
	for _, id := range ids {
		if _, broken = c.SessionEvents(ctx, id, client.EventsQuery{}, 0, 100); broken != nil {
			break // a client tries each some times
		}
	}
	wantDamaged := func(what string, err error) {
		t.Helper()
		var ce *client.Error
		if !errors.As(err, &ce) || ce.Status != http.StatusServiceUnavailable || ce.Problem.Code != "store_damaged" {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantDamaged("what cannot be read", broken)
	_, err = c.CreateSession(ctx, &api.CreateSession{})
	wantDamaged("a command", err)
	if status(t, url+"/readyz") != 503 || status(t, url+"/healthz") != 200 {
		t.Error("a daemon with a damaged database is ready, or counts as dead")
	}
	if _, err := c.Routes(ctx, client.RoutesQuery{}, client.Page{}); err != nil {
		t.Errorf("what can be read: %v", err)
	}
	if err := d.Stop(context.Background()); err != nil {
		t.Logf("stop: %v", err)
	}
	if _, err := daemon.Open(ctx, cfg, daemon.Options{}); err == nil {
		t.Error("it starts again")
	} else if damaged := new(sqlite.DamagedError); !errors.As(err, &damaged) {
		t.Errorf("it says %v", err)
	}
}

package daemon_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/postgres"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// sharedConfig is a node's configuration.
func sharedConfig(t *testing.T, database, more string) *config.Config {
	t.Helper()
	t.Setenv("HF_TEST_SHARED", database)
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\ndatabase_url: {env: HF_TEST_SHARED}\nlease: {ttl: 10s}\n"+
		"routes: {main: {provider: openai_compatible, base_url: http://127.0.0.1:1/v1, model: m}}\n"+more), "holdfast.yaml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Two nodes in one data directory would write over each other's address: the
// second is refused as with SQLite, and may start when the first has ended.
func TestNodesDoNotShareADataDirectory(t *testing.T) {
	cfg := sharedConfig(t, storetest.Database(t), "")
	first, err := daemon.Open(t.Context(), cfg, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var locked *dirlock.Error
	if second, err := daemon.Open(t.Context(), cfg, daemon.Options{}); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("%v", err)
		if err == nil {
			second.Stop(context.Background())
		}
	}
	if err := first.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	again, err := daemon.Open(t.Context(), cfg, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// A start waits for a database that is not there yet, within its bound, and gives
// the data directory back when it gives up.
func TestStartWaitsForTheDatabase(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", storetest.Port(t)) // nobody listens there
	const password = "hunter2"
	cfg := sharedConfig(t, "postgres://u:"+password+"@"+address+"/d?sslmode=disable", "store: {wait: 300ms}\n")
	var lines tellingLog
	began := time.Now()
	_, err := daemon.Open(t.Context(), cfg, daemon.Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	var away *postgres.UnreachableError
	if took := time.Since(began); !errors.As(err, &away) || took < 300*time.Millisecond {
		t.Fatalf("after %v: %v", took, err)
	}
	if all := err.Error() + lines.text(); strings.Contains(all, password) || !strings.Contains(all, "the start waits for it") || !strings.Contains(all, address) {
		t.Error(all)
	}
	if _, err := daemon.Open(t.Context(), cfg, daemon.Options{}); errors.As(err, new(*dirlock.Error)) {
		t.Error("the directory of a start that gave up is locked")
	}

	// Now a database comes while a start waits.
	there := storetest.Database(t)
	u, err := url.Parse(there)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	u.Host = address
	late := sharedConfig(t, u.String(), "store: {wait: 1m}\n")
	waits := make(chan struct{})
	lines = tellingLog{heard: sync.OnceFunc(func() { close(waits) })}
	opened := make(chan error, 1)
	var d *daemon.Daemon
	go func() {
		var err error
		d, err = daemon.Open(t.Context(), late, daemon.Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		opened <- err
	}()
	<-waits
	forward(t, address, target)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// tellingLog keeps what is logged, and says that something was.
type tellingLog struct {
	mu    sync.Mutex
	all   []byte
	heard func()
}

func (l *tellingLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, b...)
	if l.heard != nil {
		l.heard()
	}
	return len(b), nil
}

func (l *tellingLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

// forward takes connections at an address and joins them with a target.
func forward(t *testing.T, at, target string) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				s, err := net.Dial("tcp", target)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				defer s.Close()
				all.Go(func() { io.Copy(s, c); s.Close() })
				io.Copy(c, s)
			})
		}
	})
}

// Each metric of ownership is moved by what it tells of, on two nodes of a real
// database: C46 and C50 in small.
func TestFiguresOfNodes(t *testing.T) {
	database := storetest.Database(t)
	stub := chatstub.New(chatstub.Replies(chatstub.Reply{Text: "one"}, chatstub.Reply{Text: "two"}))
	vendor := httptest.NewServer(stub)
	defer vendor.Close()
	node := func() *house {
		h := &house{t: t, dir: t.TempDir()}
		h.cfg = sharedConfig(t, database, "")
		h.cfg.Routes["main"] = config.Route{Provider: "openai_compatible", BaseURL: vendor.URL + "/v1", Model: "m"}
		h.open()
		return h
	}
	a := node()
	b := node()
	bGone := sync.OnceFunc(func() {
		if err := b.d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	defer bGone()
	defer func() {
		if err := a.d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	figure := func(h *house, name string) float64 {
		t.Helper()
		text, err := h.c.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == "holdfast_"+name {
				f, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
		}
		t.Fatalf("there is no %s", name)
		return 0
	}
	s := a.session(&api.CreateSession{})
	if r := a.submit(s, &api.SubmitRun{Content: api.Text("go")}); r.Status != api.RunCompleted {
		t.Fatalf("%+v", r)
	}
	if r := b.submit(s, &api.SubmitRun{Content: api.Text("on")}); r.Status != api.RunCompleted {
		t.Fatalf("%+v", r)
	}
	if first, moved := figure(a, `session_claims_total{kind="first"}`)+figure(b, `session_claims_total{kind="first"}`),
		figure(a, `session_claims_total{kind="moved"}`)+figure(b, `session_claims_total{kind="moved"}`); first != 1 || moved > 1 {
		t.Errorf("claims: first %v, moved %v", first, moved)
	}
	if ttl, left := figure(a, "lease_ttl_seconds"), figure(a, "lease_remaining_seconds"); ttl != 10 || left <= 5 || left > 10 {
		t.Errorf("a lease of %v has %v left", ttl, left)
	}
	eventually(t, "a node hears what the other writes", func() bool { return figure(b, "news_lag_seconds_count") > 0 })
	eventually(t, "a node asks for work", func() bool { return figure(b, `take_calls_total{kind="session",outcome="none"}`) > 0 })
	eventually(t, "nodes see each other", func() bool { return figure(a, `nodes{state="working"}`) == 2 })
	if beats := figure(a, `lease_beats_total{outcome="in_time"}`); beats < 1 {
		t.Errorf("%v beats", beats)
	}
	bGone()
	eventually(t, "one node is left", func() bool { return figure(a, `nodes{state="working"}`) == 1 })
}

// cutStore takes no beats while it is off.
type cutStore struct {
	daemon.Store
	off atomic.Bool
}

func (s *cutStore) Beat(ctx context.Context, n eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	if s.off.Load() {
		return eventlog.Lease{}, errors.New("cut off")
	}
	return s.Store.Beat(ctx, n, ttl)
}

// A node that cannot beat says that it is not ready, so that whoever stands before
// the nodes asks another one, and is ready again with its next beat.
func TestNotReadyWithoutALease(t *testing.T) {
	var cut *cutStore
	cfg := sharedConfig(t, storetest.Database(t), "")
	cfg.Lease.TTL = config.Duration(3 * time.Second)
	d, err := daemon.Open(t.Context(), cfg, daemon.Options{WrapStore: func(s daemon.Store) daemon.Store { cut = &cutStore{Store: s}; return cut }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop(context.Background())
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready := func() bool {
		w := httptest.NewRecorder()
		d.Handler(true).ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		return w.Code == 200
	}
	if !ready() {
		t.Error("a node that has begun is not ready")
	}
	cut.off.Store(true)
	eventually(t, "a node without a lease is not ready", func() bool { return !ready() })
	cut.off.Store(false)
	eventually(t, "it is ready again", ready)
}

// A node that starts hears at once what others write, also before its rooms are
// made: it is told to nobody then. Under the race detector.
func TestNewsWhileANodeIsMade(t *testing.T) {
	database := storetest.Database(t)
	other, err := postgres.Open(t.Context(), postgres.Config{
		URL: database, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Program: session.StateVersion, CheckSnapshot: eventlog.CheckSnapshot,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			id, err := event.NewSessionID(rand.Reader)
			if err == nil {
				_, err = other.Append(ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Events: []event.Event{
					{SessionID: id, UserID: "u", Data: &event.SessionCreated{}}, {SessionID: id, UserID: "u", Data: &event.InterruptRequested{}}}}}})
			}
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	d, err := daemon.Open(t.Context(), sharedConfig(t, database, ""), daemon.Options{})
	cancel()
	writing.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Stop(context.Background()), other.Close(context.Background())); err != nil {
		t.Error(err)
	}
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"os/user"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// line is the way to the database, which a test may cut.
type line struct {
	t    *testing.T
	at   net.Listener
	to   string
	mu   sync.Mutex
	ends []net.Conn
	down bool
	// mute loses what the server answers from now on.
	mute atomic.Bool
}

func newLine(t *testing.T, url string) (*line, string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{t: t, at: at, to: net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))}
	if strings.HasPrefix(cfg.Host, "/") {
		l.to = filepath.Join(cfg.Host, fmt.Sprintf(".s.PGSQL.%d", cfg.Port))
	}
	go l.serve()
	t.Cleanup(func() { at.Close(); l.cut() })
	u, err := neturl(url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = at.Addr().String()
	return l, u.String()
}

func (l *line) serve() {
	for {
		c, err := l.at.Accept()
		if err != nil {
			return
		}
		network := "tcp"
		if strings.HasPrefix(l.to, "/") {
			network = "unix"
		}
		s, err := net.Dial(network, l.to)
		l.mu.Lock()
		if err != nil || l.down {
			c.Close()
			if s != nil {
				s.Close()
			}
			l.mu.Unlock()
			continue
		}
		l.ends = append(l.ends, c, s)
		l.mu.Unlock()
		go func() { io.Copy(s, c); s.Close(); c.Close() }()
		go func() {
			defer c.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := s.Read(buf)
				if err != nil {
					return
				}
				if !l.mute.Load() {
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}
		}()
	}
}

// cut ends all connections and lets none be made.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, c := range l.ends {
		c.Close()
	}
	l.ends = nil
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
	l.mute.Store(false)
}

// The database is away for a while under load: what was in flight fails and is
// tried again by whoever wants it; what was acknowledged is there, once; and the store
// lives on, with its news.
func TestOutage(t *testing.T) {
	l, url := newLine(t, schemaFor(t, t.TempDir()))
	heard := make(chan News, 1000)
	s := open(t, Config{URL: url, NewsEvery: 20 * time.Millisecond, OnNews: func(list []News) {
		for _, n := range list {
			heard <- n
		}
	}})
	const many = 8
	ids := make([]event.SessionID, many)
	acknowledged := make([][]string, many)
	var failures, tries atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range ids {
		ids[i] = newSession(t)
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				tries.Add(1)
				text := fmt.Sprintf("%d %d", i, n)
				_, err := s.Append(within(t), said(ids[i], text))
				switch {
				case err == nil:
					acknowledged[i] = append(acknowledged[i], text)
				case errors.Is(err, eventlog.ErrClosed) || eventlog.Refusal(err) != "":
					t.Errorf("an outage is told as %v", err)
				default:
					failures.Add(1)
				}
			}
		})
	}
	waitFor(t, "work is done", func() bool { return tries.Load() > 200 })
	l.cut()
	waitFor(t, "appends fail", func() bool { return failures.Load() > many })
	if _, err := s.Head(t.Context(), ids[0].Stream()); !errors.Is(err, eventlog.ErrAway) || errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("a read in the outage: %v", err)
	}
	l.mend()
	before := tries.Load()
	waitFor(t, "work goes on", func() bool {
		_, err := s.Append(within(t), said(ids[0], "again"))
		return err == nil && tries.Load() > before+100
	})
	close(stop)
	wg.Wait()
	for i, id := range ids {
		events, err := s.Read(t.Context(), id.Stream(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, e := range events {
			if err := e.Decode(); err != nil {
				t.Fatal(err)
			}
			found[e.Data.(*event.TextEnded).Content.Text]++
		}
		for _, text := range acknowledged[i] {
			if found[text] != 1 {
				t.Fatalf("%q was acknowledged and is there %d times", text, found[text])
			}
		}
	}
	other := open(t, Config{URL: schemaURL(t, url, l)})
	id := newSession(t)
	mustAppend(t, other, created(id, ""))
	ctx := within(t)
	for {
		select {
		case n := <-heard:
			if n.Stream != id.Stream() {
				t.Errorf("news of %s, which this process wrote", n.Stream)
				continue
			}
		case <-ctx.Done():
			t.Error("no news after the outage")
		}
		break
	}
	mustVerify(t, s)
}

// schemaURL leads past the line.
func schemaURL(t *testing.T, url string, l *line) string {
	t.Helper()
	u, err := neturl(url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.to
	return u.String()
}

// When the answer to a commit is lost, nobody is told that it failed for good,
// nor that it was committed.
func TestUnknownCommit(t *testing.T) {
	l, url := newLine(t, schemaFor(t, t.TempDir()))
	s := open(t, Config{URL: url})
	id := newSession(t)
	mustAppend(t, s, created(id, ""))
	mustAppend(t, s, said(id, "x")) // statements are prepared
	release := hold(s)
	done := make(chan error, 1)
	go func() { _, err := s.Append(within(t), said(id, "y")); done <- err }()
	waitFor(t, "the writer is between its messages", s.between.Load)
	l.mute.Store(true)
	release()
	past := open(t, Config{URL: schemaURL(t, url, l)})
	waitFor(t, "it is committed", func() bool { h, err := past.Head(t.Context(), id.Stream()); return err == nil && h.Seq == 3 })
	l.cut()
	var unknown *commitError
	if err := <-done; !errors.As(err, &unknown) || errors.Is(err, eventlog.ErrClosed) || eventlog.Refusal(err) != "" {
		t.Errorf("told as %v", err)
	}
	l.mend()
	waitFor(t, "the store lives on", func() bool { _, err := s.Append(within(t), said(id, "z")); return err == nil })
	mustVerify(t, past)
}

// Locks of a process that stopped end by the database's word.
func TestSettings(t *testing.T) {
	for _, pooled := range []bool{false, true} {
		s := open(t, Config{pooled: pooled})
		mustAppend(t, s, created(newSession(t), ""))
		tx, err := s.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if pooled {
			if _, err := tx.Exec(t.Context(), s.settings); err != nil {
				t.Fatal(err)
			}
		}
		for _, set := range s.sessionSettings() {
			var ms string
			if err := tx.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = $1", set[0]).Scan(&ms); err != nil || ms != set[1] {
				t.Errorf("pooled %v: %s is %s, want %s (%v)", pooled, set[0], ms, set[1], err)
			}
		}
	}
	s := open(t, Config{})
	id := newSession(t)
	mustAppend(t, s, created(id, ""))
	tx := begin(t, s, said(id, "of a process that stops"))
	tx.send(func(b *pgx.Batch) { b.Queue("SET LOCAL idle_in_transaction_session_timeout = 100") })
	stamps := mustAppend(t, s, said(id, "x"))
	if stamps[0].Head != 2 {
		t.Errorf("%+v", stamps)
	}
}

// As behind a pooler that gives a server session for a transaction only: no
// prepared statement, no setting and no notification outlives it.
func TestPooledConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T, dir string, rules storetest.Rules) storetest.Store {
		t.Helper()
		return conforming{open(t, Config{URL: schemaFor(t, dir), Rows: rules.Rows, CheckSnapshot: rules.CheckSnapshot, Sync: SyncNormal, pooled: true})}
	})
}

// TestPgBouncer is the same against a real one, where there is one.
func TestPgBouncer(t *testing.T) {
	url := schemaFor(t, t.TempDir())
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		if path = "/usr/sbin/pgbouncer"; !exists(path) {
			t.Log("no pgbouncer here: only TestPooledConformance says how the store fares")
			return
		}
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "bouncer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port := storetest.Port(t)
	// Few server connections, so that those of the store change theirs all the time.
	ini := fmt.Sprintf("[databases]\n* = host=%s port=%d\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nauth_type = any\npool_mode = transaction\n"+
		"default_pool_size = 3\nmax_client_conn = 200\nunix_socket_dir =\nlogfile = %s/log\nauth_user = %s\n", cfg.Host, cfg.Port, port, dir, cfg.User)
	ini = strings.Replace(ini, "* = host", "* = user="+cfg.User+" host", 1)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, file)
	if os.Getuid() == 0 { // it does not run as root
		u, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	out := &strings.Builder{}
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	u, err := neturl(url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	waitFor(t, "pgbouncer listens", func() bool {
		c, err := net.Dial("tcp", u.Host)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	heard := make(chan News, 100)
	s := open(t, Config{URL: u.String(), NewsEvery: 20 * time.Millisecond, OnNews: func(list []News) {
		for _, n := range list {
			heard <- n
		}
	}})
	if !s.pooled {
		t.Fatal("the pooler was not noticed")
	}
	other := open(t, Config{URL: u.String()})
	id := newSession(t)
	mustAppend(t, other, created(id, ""))
	if n := <-heard; n.Stream != id.Stream() {
		t.Errorf("news %+v", n)
	}
	ids := []event.SessionID{newSession(t), newSession(t), newSession(t)}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for n := range 15 {
				if _, err := []*Store{s, other}[i%2].Append(within(t), said(ids[(i+n)%3], fmt.Sprint(i, n))); err != nil {
					t.Error(err)
				}
				if _, _, err := s.Feed(within(t), 0, 10, eventlog.FeedFilter{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := s.Beat(t.Context(), eventlog.Node{ID: "a"}, time.Minute); err != nil {
		t.Error(err)
	}
	mustVerify(t, s)
	if report, err := s.Verify(t.Context(), VerifyOptions{Rebuild: true}); err != nil || !report.OK() || !report.Rebuilt {
		t.Errorf("rebuild: %+v %v %s", report, err, out)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

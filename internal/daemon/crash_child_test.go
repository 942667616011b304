package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// The crash tests kill a real process. It is this test binary, which starts
// itself again with these variables set and then is a daemon.
const (
	envConfig = "HOLDFAST_CRASH_CONFIG"
	envKill   = "HOLDFAST_CRASH_KILL"
	envSecret = "HOLDFAST_CRASH_SECRET"

	crashToken  = "crash-test-admin-token"
	crashSecret = "whsec_Y3Jhc2gtdGVzdC1zaWduaW5nLXNlY3JldC0wMDA="

	exitLocked = 4 // the data directory is another's
)

func TestMain(m *testing.M) {
	if file := os.Getenv(envConfig); file != "" {
		os.Exit(beDaemon(file))
	}
	os.Exit(m.Run())
}

// killAt is where the child kills itself: right before or right after an
// append is committed.
type killAt struct {
	Side string     `json:"side"` // before, after
	N    int        `json:"n"`    // which append, from 1
	Type event.Type `json:"type"` // count only appends that hold an event of this type
}

func (k killAt) String() string {
	if k.Type == "" {
		return fmt.Sprintf("%s append %d", k.Side, k.N)
	}
	return fmt.Sprintf("%s append %d with %s", k.Side, k.N, k.Type)
}

// beDaemon is the life of the child. It tells its parent on stdout, in lines,
// its address, what it committed, and that it is about to die.
func beDaemon(file string) int {
	err := runDaemon(file)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	var locked *dirlock.Error
	if errors.As(err, &locked) {
		return exitLocked
	}
	return 1
}

func runDaemon(file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // the parent holds the other end: nobody outlives the test
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
	w := &witness{}
	if text := os.Getenv(envKill); text != "" {
		w.kill = new(killAt)
		if err := json.Unmarshal([]byte(text), w.kill); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d, err := daemon.Open(ctx, cfg, daemon.Options{Logger: log, WrapStore: func(s daemon.Store) daemon.Store {
		w.Store = s
		return w
	}})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return err
	}
	if _, err := d.FirstToken(ctx, crashToken); err != nil {
		return err
	}
	if err := d.Start(ctx); err != nil {
		return err
	}
	d.Serve(l, false)
	w.tell("address", "http://"+l.Addr().String())
	<-ctx.Done()
	return d.Stop(context.WithoutCancel(ctx))
}

// witness stands between the rooms and the store: it counts appends, tells
// the parent of each one that is committed, and dies where it was told to.
type witness struct {
	daemon.Store
	kill *killAt

	mu    sync.Mutex
	count int // of the appends that the kill counts
}

func (w *witness) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	types := typesOf(a)
	if w.at("before", types) {
		w.die(types)
	}
	stamps, err := w.Store.Append(ctx, a)
	if err != nil {
		return stamps, err
	}
	if w.at("after", types) {
		w.die(types)
	}
	w.tell("commit", types)
	return stamps, nil
}

// at counts an append on the side that the kill looks at, and says whether it
// is the one to die of. Before the commit every append counts, behind it only
// those that were not refused.
func (w *witness) at(side, types string) bool {
	if w.kill == nil || w.kill.Side != side ||
		w.kill.Type != "" && !slices.Contains(strings.Split(types, ","), string(w.kill.Type)) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	return w.count == w.kill.N
}

func (w *witness) die(types string) {
	w.tell("kill", types)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// tell writes a line in one write, so that lines do not mix.
func (w *witness) tell(word, text string) { _, _ = os.Stdout.WriteString(word + " " + text + "\n") }

func typesOf(a eventlog.Append) string {
	var types []string
	for _, e := range a.Entries {
		for i := range e.Events {
			types = append(types, string(e.Events[i].Data.EventType()))
		}
	}
	return strings.Join(types, ",")
}

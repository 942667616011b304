package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
	envClock  = "HOLDFAST_CRASH_CLOCK" // how far the child's clock is off

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
	// Stop: it is stopped as by SIGSTOP, and lives on when the parent says so.
	Stop bool `json:"stop,omitempty"`
	// Beat: it is a beat of its lease, not an append.
	Beat bool `json:"beat,omitempty"`
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
	w := &witness{}
	go func() { // the parent holds the other end: nobody outlives the test
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			at := new(killAt)
			if json.Unmarshal(lines.Bytes(), at) == nil {
				w.arm(at)
			}
		}
		os.Exit(3)
	}()
	if off := os.Getenv(envClock); off != "" {
		d, err := time.ParseDuration(off)
		if err == nil {
			err = shiftClock(d)
		}
		if err != nil {
			return err
		}
	}
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
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

// arm sets where it dies, or is stopped, from now on.
func (w *witness) arm(at *killAt) {
	w.mu.Lock()
	w.kill, w.count = at, 0
	w.mu.Unlock()
	w.tell("armed", at.Side)
}

func (w *witness) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	types := typesOf(a)
	stopped := w.at("before", types, false)
	if stopped {
		w.die(types)
		ctx = context.WithoutCancel(ctx) // the store is to refuse it, not the end of the work
	}
	stamps, err := w.Store.Append(ctx, a)
	if err != nil {
		if stopped {
			w.tell("refused", err.Error())
		}
		return stamps, err
	}
	dies := w.at("after", types, false)
	if dies && !w.stops() {
		w.die(types)
	}
	w.tell("commit", types)
	if dies {
		w.die(types)
	}
	return stamps, nil
}

func (w *witness) Beat(ctx context.Context, n eventlog.Node, ttl time.Duration) (eventlog.Lease, error) {
	if w.at("before", "", true) {
		w.die("beat")
	}
	lease, err := w.Store.Beat(ctx, n, ttl)
	if err == nil && w.at("after", "", true) {
		w.die("beat")
	}
	return lease, err
}

// at counts an append on the side that the kill looks at, and says whether it
// is the one to die of. Before the commit every append counts, behind it only
// those that were not refused.
func (w *witness) at(side, types string, beat bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kill == nil || w.kill.Side != side || w.kill.Beat != beat ||
		w.kill.Type != "" && !slices.Contains(strings.Split(types, ","), string(w.kill.Type)) {
		return false
	}
	w.count++
	return w.count == w.kill.N
}

func (w *witness) stops() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kill.Stop
}

// die ends the process where it is; or stops it, until the parent has it go on.
func (w *witness) die(types string) {
	if w.stops() {
		w.tell("stop", types)
		stopSelf()
		w.tell("awake", types)
		return
	}
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

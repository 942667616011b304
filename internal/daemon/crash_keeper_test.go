package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var patience = flag.Duration("crash.patience", 3*time.Minute, "bound of every wait; what takes longer hangs")

// keeper starts the daemon of one data directory over and over.
type keeper struct {
	t      *testing.T
	dir    string
	config string
	env    []string // beside that of the test
	quiet  bool     // what its lives wrote is not shown when the test fails

	mu      sync.Mutex
	cur     *life
	lives   int
	kills   int           // lives that ended by SIGKILL
	ends    []string      // where each of them ended
	changed chan struct{} // closed, and made anew, when something happened
}

// life is one process.
type life struct {
	number  int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	log     string // path of what it wrote to stderr
	gone    chan struct{}
	address string   // empty: not up yet; the keeper's lock guards it
	commits []string // event types of each append that it told of
	kill    *killAt
	killed  string              // event types of the append at which it killed itself
	told    map[string][]string // what else it said, by word
	ended   bool
	err     error // of Wait, once gone
}

func newKeeper(t *testing.T, config map[string]any) *keeper {
	k := &keeper{t: t, dir: t.TempDir(), changed: make(chan struct{})}
	k.config = filepath.Join(k.dir, "holdfast.yaml")
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(k.config, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l := k.life(); l != nil {
			k.kill(l)
		}
		if t.Failed() && !k.quiet {
			k.showLogs()
		}
	})
	return k
}

// start begins a life; nobody else may hold the directory.
func (k *keeper) start(kill *killAt) *life {
	k.t.Helper()
	l, err := k.spawn(kill)
	if err != nil {
		k.t.Fatal(err)
	}
	k.mu.Lock()
	k.cur = l
	k.mu.Unlock()
	return l
}

// restart is start for other goroutines than the test's: when it cannot, the
// test fails and there is no life.
func (k *keeper) restart(kill *killAt) *life {
	l, err := k.spawn(kill)
	if err != nil {
		k.t.Errorf("restart: %v", err)
		return nil
	}
	k.mu.Lock()
	k.cur = l
	k.mu.Unlock()
	return l
}

func (k *keeper) spawn(kill *killAt) (*life, error) {
	k.mu.Lock()
	k.lives++
	l := &life{number: k.lives, kill: kill, gone: make(chan struct{}), log: filepath.Join(k.dir, fmt.Sprintf("life%d.log", k.lives))}
	k.mu.Unlock()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l.cmd = exec.Command(self)
	l.cmd.Env = append(os.Environ(), envConfig+"="+k.config, envSecret+"="+crashSecret)
	l.cmd.Env = append(l.cmd.Env, k.env...)
	if kill != nil {
		text, err := json.Marshal(kill)
		if err != nil {
			return nil, err
		}
		l.cmd.Env = append(l.cmd.Env, envKill+"="+string(text))
	}
	log, err := os.Create(l.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	l.cmd.Stderr = log
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go k.listen(l, out)
	return l, nil
}

// listen reads what a life tells until it ends.
func (k *keeper) listen(l *life, out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, text, _ := strings.Cut(lines.Text(), " ")
		k.note(func() {
			switch word {
			case "address":
				l.address = text
			case "commit":
				l.commits = append(l.commits, text)
			case "kill":
				l.killed = text
			default:
				if l.told == nil {
					l.told = map[string][]string{}
				}
				l.told[word] = append(l.told[word], text)
			}
		})
	}
	err := l.cmd.Wait()
	k.note(func() {
		l.err, l.ended = err, true
		if s, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signal() == syscall.SIGKILL {
			k.kills++
			where := "instant"
			if l.address == "" {
				where = "start"
			}
			if l.killed != "" && l.kill != nil {
				where = l.kill.Side + " " + l.killed
			}
			k.ends = append(k.ends, where)
		}
	})
	close(l.gone)
}

func (k *keeper) note(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

// signal gives a channel that is closed at the next change.
func (k *keeper) signal() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

func (k *keeper) life() *life {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cur
}

// await waits until is says true; it is asked with the lock held, after each
// change, and so looks only at what the keeper knows: a daemon that it asked
// would need the lock.
func (k *keeper) await(ctx context.Context, is func() bool) error {
	for {
		k.mu.Lock()
		ok, changed := is(), k.changed
		k.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// up waits for a life after number that listens, and gives it with its address.
func (k *keeper) up(ctx context.Context, after int) (l *life, address string, err error) {
	err = k.await(ctx, func() bool {
		l = k.cur
		if l == nil || l.number <= after || l.address == "" {
			return false
		}
		address = l.address
		return true
	})
	return l, address, err
}

// listens waits until a life listens, is gone, or nobody is interested.
func (k *keeper) listens(l *life, over <-chan struct{}) {
	for {
		k.mu.Lock()
		ok, changed := l.address != "" || l.ended, k.changed
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-over:
			return
		}
	}
}

// kill ends a life by SIGKILL and waits for its end.
func (k *keeper) kill(l *life) {
	_ = l.cmd.Process.Signal(syscall.SIGKILL)
	<-l.gone
	l.stdin.Close()
}

// stop ends a life in order.
func (k *keeper) stop(l *life) {
	k.t.Helper()
	err := k.await(within(k.t, *patience), func() bool { return l.address != "" || l.ended })
	if err == nil { // before that it does not listen to signals either
		err = l.cmd.Process.Signal(syscall.SIGTERM)
	}
	if err != nil {
		k.t.Fatalf("stop: %v", err)
	}
	select {
	case <-l.gone:
	case <-time.After(*patience):
		k.t.Fatalf("the daemon does not stop within %s", *patience)
	}
	l.stdin.Close()
	if l.err != nil {
		k.t.Fatalf("the daemon stopped with %v", l.err)
	}
}

func (k *keeper) killCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kills
}

func (k *keeper) showLogs() {
	for n := 1; n <= k.lives; n++ {
		text, err := os.ReadFile(filepath.Join(k.dir, fmt.Sprintf("life%d.log", n)))
		if err == nil {
			k.t.Logf("life %d:\n%s", n, text)
		}
	}
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is one life of the daemon.
type process struct {
	cmd     *exec.Cmd
	log     string        // its file: a daemon that is kept outlives every pipe to us
	done    chan struct{} // closed when the process is gone
	address string
}

// spawn starts this very binary as a daemon and waits until it listens.
func spawn(ctx context.Context, dir string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "address")
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p := &process{done: make(chan struct{}), log: filepath.Join(dir, "serve.log")}
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(self, "serve", "--config", filepath.Join(dir, "holdfast.yaml"), "--address-file", file)
	p.cmd.Stderr = log
	p.cmd.Env = append(os.Environ(), "HOLDFAST_TOKEN=")
	// A process group of its own: an interrupt at the terminal is for us to handle.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	go func() { p.cmd.Wait(); close(p.done) }()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		if data, err := os.ReadFile(file); err == nil {
			p.address = strings.TrimSpace(string(data))
			return p, nil
		}
		select {
		case <-ticker.C:
		case <-p.done:
			return nil, fmt.Errorf("the daemon ended at its start:\n%s", p.tail())
		case <-limit.C:
			p.kill()
			return nil, fmt.Errorf("the daemon does not listen:\n%s", p.tail())
		case <-ctx.Done():
			p.kill()
			return nil, ctx.Err()
		}
	}
}

// kill ends the daemon without a word, as a crash would, and waits until it is gone.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// stop asks the daemon to end, and ends it when it does not.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

// tail is the end of what the daemon logged.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-tailSize):])
}

const tailSize = 8 << 10

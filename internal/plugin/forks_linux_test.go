package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

// Nothing of a plugin's group outlives it, whether it ends by itself or not, and a
// process that holds the output open delays nothing.
func TestForks(t *testing.T) {
	for _, more := range [][]string{nil, {"hang"}} {
		file := filepath.Join(t.TempDir(), "pid")
		p := self(append([]string{"fork", file}, more...)...)
		p.Timeout = time.Minute
		pid, result := 0, make(chan delivery.Result, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { result <- Send(ctx, p, "dlv_1", body) }()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(p.Timeout); pid == 0; <-tick.C { // it has a child
			text, _ := os.ReadFile(file)
			pid, _ = strconv.Atoi(string(text))
			if time.Now().After(end) {
				t.Fatalf("%v: no child", more)
			}
		}
		if more != nil {
			cancel()
		}
		if r := <-result; r.Delivered != (more == nil) || r.Permanent {
			t.Errorf("%v: %+v", more, r)
		}
		if !gone(t, pid) {
			t.Errorf("%v: the child %d lives", more, pid)
		}
	}
}

// gone says whether a process ends within some time: it was killed, and somebody
// has to take notice.
func gone(t *testing.T, pid int) bool {
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return false
		}
	}
}

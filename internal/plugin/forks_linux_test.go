package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Nothing of a plugin's group outlives it, whether it ends by itself or not, and a
// process that holds the output open delays nothing.
func TestForks(t *testing.T) {
	for _, more := range [][]string{nil, {"hang"}} {
		file := filepath.Join(t.TempDir(), "pid")
		p := self(append([]string{"fork", file}, more...)...)
		if more != nil {
			p.Timeout = 2 * time.Second
		}
		r := Send(t.Context(), p, "dlv_1", body)
		if more == nil && !r.Delivered || more != nil && r.Code != "timeout" {
			t.Errorf("%v: %+v", more, r)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			t.Fatal(err)
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

//go:build !linux

package daemon_test

import (
	"os"
	"syscall"
)

// stopSelf stops this process until it is told to go on.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

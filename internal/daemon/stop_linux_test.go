package daemon_test

import (
	"os"
	"runtime"
	"syscall"
)

// stopSelf stops this process until it is told to go on. The signal is for this
// very thread, so that not one instruction of it runs before the stop.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
}

package plugin

import (
	"syscall"
	"unsafe"
)

const (
	idPID   = 1          // P_PID
	exited  = 0x4        // WEXITED
	noReap  = 0x01000000 // WNOWAIT
	infoLen = 128        // of a siginfo_t
)

// waitable blocks until a child has ended, and leaves it to be waited for.
func waitable(pid int) bool {
	var info [infoLen / 8]uint64
	for {
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, idPID, uintptr(pid), uintptr(unsafe.Pointer(&info[0])), exited|noReap, 0, 0)
		if e != syscall.EINTR {
			return e == 0
		}
	}
}

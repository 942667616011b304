//go:build unix

package plugin

import (
	"os/exec"
	"syscall"
)

// group gives a command a process group of its own, which is killed as one.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// end waits until a command that was started has ended and kills what it left in
// its group. The command is not waited for yet, so that its id is still its own.
func end(cmd *exec.Cmd) {
	if waitable(cmd.Process.Pid) {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}

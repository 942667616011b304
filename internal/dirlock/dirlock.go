//go:build unix

// Package dirlock gives a data directory to one process at a time: a store in
// it, or a node of a cluster whose address and token stand there.
package dirlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// File is the name of the file in a data directory whose lock its one
// user holds. It holds that process's id.
const File = "holdfast.lock"

// Error says that another process, or another user in this one, has the data
// directory.
type Error struct {
	Dir string
	PID int // of the holder; 0: not known
}

func (e *Error) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("data directory %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("data directory %s is in use by the process with pid %d", e.Dir, e.PID)
}

// Lock takes the directory for this process, until the file is closed; a
// directory that is taken gives an *Error. The kernel lets go of the lock
// when the process dies, however it dies. The file stays: removing it would let
// two processes lock two files of one name.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, File), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		return nil, &Error{Dir: dir, PID: readPID(f)}
	}
	if err := writePID(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return f, nil
}

// Holder says whether a process uses the directory, and which; 0: not known. It
// asks for a share of the lock, which it gives back at once.
func Holder(dir string) (pid int, held bool, err error) {
	f, err := os.Open(filepath.Join(dir, File))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return readPID(f), true, nil
	}
	return 0, false, err
}

// readPID reads the process id of a lock file; 0: not known.
func readPID(f *os.File) int {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

package diskfs

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// ask asks the kernel.
func ask(path string) (answer, error) {
	var st syscall.Statfs_t
	if err := again(func() error { return syscall.Statfs(path, &st) }); err != nil {
		return answer{}, pathError(path, err)
	}
	var file syscall.Stat_t
	if err := again(func() error { return syscall.Stat(path, &file) }); err != nil {
		return answer{}, pathError(path, err)
	}
	return answer{magic: uint32(st.Type), device: device(uint64(file.Dev))}, nil
}

// again repeats a call that a signal interrupted.
func again(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

// device is the number of a device as the list of mounts has it.
func device(n uint64) string {
	major := n>>8&0xfff | n>>32&^0xfff
	minor := n&0xff | n>>12&0xffffff00
	return fmt.Sprintf("%d:%d", major, minor)
}

// mounts reads the list of mounts.
func mounts() ([]byte, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxMounts))
}

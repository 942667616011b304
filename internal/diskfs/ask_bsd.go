//go:build darwin || freebsd

package diskfs

import (
	"errors"
	"syscall"
)

// mntLocal is the flag of a mount whose files are on this machine.
const mntLocal = 0x1000

// ask asks the kernel.
func ask(path string) (answer, error) {
	var st syscall.Statfs_t
	for {
		err := syscall.Statfs(path, &st)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return answer{}, pathError(path, err)
		}
		break
	}
	var name []byte
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return answer{name: string(name), remote: st.Flags&mntLocal == 0}, nil
}

func mounts() ([]byte, error) { return nil, errors.ErrUnsupported }

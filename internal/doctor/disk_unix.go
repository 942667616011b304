//go:build linux || darwin || freebsd

package doctor

import (
	"io/fs"
	"syscall"
)

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

package filetree

import (
	"io/fs"
	"syscall"
	"time"
)

// statOf gives how a file stands, where the system tells enough of it to say
// later that it did not change.
func statOf(info fs.FileInfo) (stat, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stat{}, false
	}
	return stat{
		size: info.Size(), mode: info.Mode(), device: uint64(st.Dev), inode: st.Ino,
		modified: info.ModTime().UnixNano(), changed: time.Unix(int64(st.Ctim.Sec), int64(st.Ctim.Nsec)).UnixNano(),
	}, true
}

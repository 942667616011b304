//go:build linux || darwin || freebsd

package diskfs

import "syscall"

// Free gives the room, in bytes, that is left at a folder for who is not root;
// false where that cannot be told. It is one call to the kernel.
func Free(dir string) (uint64, bool) {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return 0, false
	}
	return uint64(st.Bavail) * uint64(st.Bsize), true
}

//go:build !linux && !darwin && !freebsd

package diskfs

// Free cannot be told here.
func Free(string) (uint64, bool) { return 0, false }

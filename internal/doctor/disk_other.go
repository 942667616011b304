//go:build !linux && !darwin && !freebsd

package doctor

import "io/fs"

func freeBytes(string) (uint64, bool) { return 0, false }

func ownerOf(fs.FileInfo) (int, bool) { return 0, false }

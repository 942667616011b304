//go:build unix

package fileout

import "syscall"

const nonblock = syscall.O_NONBLOCK

//go:build !unix

package fileout

const nonblock = 0

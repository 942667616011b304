//go:build !linux && !darwin && !freebsd

package listener

import (
	"errors"
	"net"
)

// peerUID is not known here: the socket answers to nobody.
func peerUID(*net.UnixConn) (uid int, err error) {
	return 0, errors.New("this system does not tell; listen on 127.0.0.1")
}

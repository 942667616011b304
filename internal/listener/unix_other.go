//go:build !unix

package listener

import (
	"errors"
	"net"
)

func listenPrivate(string) (net.Listener, error) {
	return nil, errors.New("unix sockets are not available on this system; listen on 127.0.0.1")
}

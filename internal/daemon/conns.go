package daemon

import (
	"net"
	"net/http"
	"sync"
)

// unused are the connections on which no request has come yet; browsers and
// connection pools open them in advance. A stop closes them, where
// http.Server.Shutdown would wait five seconds for each to say something.
type unused struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// track is the ConnState of a server.
func (u *unused) track(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(u.conns, c)
	case u.closed:
		c.Close()
	default:
		if u.conns == nil {
			u.conns = map[net.Conn]struct{}{}
		}
		u.conns[c] = struct{}{}
	}
}

// close ends them, and those that still come.
func (u *unused) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for c := range u.conns {
		c.Close()
	}
}

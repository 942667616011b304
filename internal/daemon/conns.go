package daemon

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// conns are the connections of all listeners. Their number is bounded: for one
// too many the one is closed that has been idle the longest, so that who opens
// connections and says nothing shuts nobody out; when all are busy, itself.
//
// Those on which no request has come yet (browsers and connection pools open
// them in advance) are closed by a stop, where http.Server.Shutdown would wait
// five seconds for each to say something.
type conns struct {
	most int // 0: any number

	mu     sync.Mutex
	all    map[net.Conn]*conn
	idle   list.List // of net.Conn, those that say nothing, the longest first
	closed bool
}

type conn struct {
	idle *list.Element // nil: a request is being answered
	used bool          // a request has come
}

// defaultConnections is how many there may be.
const defaultConnections = 25_000

// track is the ConnState of a server.
func (u *conns) track(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[net.Conn]*conn{}
	}
	at := u.all[c]
	switch {
	case state == http.StateClosed || state == http.StateHijacked:
		u.drop(c)
	case state == http.StateNew && u.closed:
		end(c)
	case state == http.StateNew:
		u.all[c] = &conn{idle: u.idle.PushBack(c)}
		if u.most > 0 && len(u.all) > u.most {
			oldest := u.idle.Front().Value.(net.Conn) // itself, when all others are busy
			u.drop(oldest)
			end(oldest)
		}
	case at == nil: // it was closed a moment ago
	case state == http.StateActive:
		at.used = true
		if at.idle != nil {
			u.idle.Remove(at.idle)
			at.idle = nil
		}
	case state == http.StateIdle && at.idle == nil:
		at.idle = u.idle.PushBack(c)
	}
}

func (u *conns) drop(c net.Conn) {
	if at := u.all[c]; at != nil && at.idle != nil {
		u.idle.Remove(at.idle)
	}
	delete(u.all, c)
}

// end closes a connection without the farewell of TLS, which may block.
func end(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}

// close ends those on which nothing has come, and those that still come.
func (u *conns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for c, at := range u.all {
		if !at.used {
			end(c)
		}
	}
}

package daemon

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/gate"
)

// conns are the connections of all listeners. Their number is bounded: for one
// too many the one is closed that has been idle the longest, so that who opens
// connections and says nothing shuts nobody out; when all are busy, itself. One peer
// has four fifths of them at most, by the same rule among its own, so that who keeps
// all of its connections busy shuts out itself.
//
// Those on which no request has come yet (browsers and connection pools open
// them in advance) are closed by a stop, where http.Server.Shutdown would wait
// five seconds for each to say something.
type conns struct {
	most int // 0: any number

	mu     sync.Mutex
	all    map[net.Conn]*conn
	idle   list.List // of net.Conn, those that say nothing, the longest first
	peers  map[netip.Addr]*connPeer
	closed bool
}

type conn struct {
	idle *list.Element // nil: a request is being answered
	own  *list.Element // the same among the peer's
	used bool          // a request has come
	peer netip.Addr
}

// connPeer is who has connections: a household, or all of the unix socket.
type connPeer struct {
	count int
	idle  list.List // as that of all
}

// defaultConnections is how many there may be.
const defaultConnections = 25_000

// track is the ConnState of a server.
func (u *conns) track(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all, u.peers = map[net.Conn]*conn{}, map[netip.Addr]*connPeer{}
	}
	at := u.all[c]
	switch {
	case state == http.StateClosed || state == http.StateHijacked:
		u.drop(c)
	case state == http.StateNew && u.closed:
		end(c)
	case state == http.StateNew:
		p := u.add(c)
		if u.most > 0 && p.count > u.most-u.most/5 {
			u.cut(&p.idle)
		} else if u.most > 0 && len(u.all) > u.most {
			u.cut(&u.idle)
		}
	case at == nil: // it was closed a moment ago
	case state == http.StateActive:
		at.used = true
		u.busy(at)
	case state == http.StateIdle && at.idle == nil:
		u.rest(c, at)
	}
}

// add takes a new connection, which says nothing yet.
func (u *conns) add(c net.Conn) *connPeer {
	at := &conn{}
	if remote, ok := gate.Remote(c.RemoteAddr().String()); ok {
		at.peer = gate.Household(remote)
	}
	p := u.peers[at.peer]
	if p == nil {
		p = &connPeer{}
		u.peers[at.peer] = p
	}
	p.count++
	u.all[c] = at
	u.rest(c, at)
	return p
}

// rest notes that a connection says nothing, busy that it does.
func (u *conns) rest(c net.Conn, at *conn) {
	at.idle, at.own = u.idle.PushBack(c), u.peers[at.peer].idle.PushBack(c)
}

func (u *conns) busy(at *conn) {
	if at.idle != nil {
		u.idle.Remove(at.idle)
		u.peers[at.peer].idle.Remove(at.own)
		at.idle, at.own = nil, nil
	}
}

// cut closes the connection that has been idle the longest: the new one, when all
// others are busy.
func (u *conns) cut(idle *list.List) {
	oldest := idle.Front().Value.(net.Conn)
	u.drop(oldest)
	end(oldest)
}

func (u *conns) drop(c net.Conn) {
	at := u.all[c]
	if at == nil {
		return
	}
	u.busy(at)
	if p := u.peers[at.peer]; p.count > 1 {
		p.count--
	} else {
		delete(u.peers, at.peer)
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

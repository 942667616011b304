package daemon

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// closing is a connection that tells when it is closed.
type closing struct {
	net.Conn
	closed bool
	from   string
}

func (c *closing) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.from)
	if a == nil {
		return &net.UnixAddr{Net: "unix"}
	}
	return a
}

func (c *closing) Close() error { c.closed = true; return nil }

// For one connection too many the one that has been idle the longest goes, never a
// busy one; when all are busy the new one does.
func TestConnectionsAreBounded(t *testing.T) {
	u := &conns{most: 3}
	var all []*closing
	open := func() *closing {
		c := &closing{}
		all = append(all, c)
		u.track(c, http.StateNew)
		return c
	}
	a, b, c := open(), open(), open()
	u.track(a, http.StateActive)
	u.track(b, http.StateActive)
	u.track(b, http.StateIdle) // behind c, which has been silent for longer
	d := open()
	if !c.closed || a.closed || b.closed || d.closed {
		t.Fatalf("%v %v %v %v", a.closed, b.closed, c.closed, d.closed)
	}
	u.track(c, http.StateActive) // it came a moment too late
	u.track(c, http.StateClosed)
	u.track(d, http.StateActive)
	u.track(b, http.StateActive)
	if e := open(); !e.closed || a.closed || b.closed || d.closed {
		t.Error("a busy connection is closed for a new one")
	}
	u.track(d, http.StateClosed)
	if f := open(); f.closed {
		t.Error("a place that became free is not given")
	}
	if len(u.all) != 3 || u.idle.Len() != 1 {
		t.Errorf("%d connections, %d idle", len(u.all), u.idle.Len())
	}
	u.close()
	for i, c := range all {
		if want := c != a && c != b && c != d; c.closed != want {
			t.Errorf("connection %d: closed %v at a stop", i, c.closed)
		}
	}
	if late := open(); !late.closed {
		t.Error("a connection that comes during a stop stays open")
	}
}

// one gives a listener one connection, and no other.
type one struct {
	conn chan net.Conn
	done chan struct{}
}

func (o *one) Accept() (net.Conn, error) {
	select {
	case c := <-o.conn:
		return c, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}

func (o *one) Close() error   { close(o.done); return nil }
func (o *one) Addr() net.Addr { return &net.IPAddr{} }

// A connection that was opened in advance and says nothing does not hold up a stop:
// the server alone would wait for it as long as the door has patience.
func TestStopWithUnusedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{stopping: make(chan struct{})}
		srv := &http.Server{Handler: http.NotFoundHandler(), ConnState: d.conns.track}
		d.servers = []*http.Server{srv}
		l := &one{conn: make(chan net.Conn), done: make(chan struct{})}
		d.serving.Go(func() { _ = srv.Serve(l) }) // ends with ErrServerClosed
		ours, theirs := net.Pipe()
		defer ours.Close()
		l.conn <- theirs
		synctest.Wait()
		began := time.Now()
		d.closeDoor(context.Background())
		if took := time.Since(began); took > doorPatience/3 {
			t.Errorf("the door closes after %s", took)
		}
	})
}

// Who keeps all connections busy that may be shuts out itself: others have a fifth of
// them. An address of IPv6 is its network.
func TestConnectionsOfOnePeer(t *testing.T) {
	u := &conns{most: 10}
	open := func(from string) *closing {
		c := &closing{from: from}
		u.track(c, http.StateNew)
		return c
	}
	var mine []*closing
	for i := range 8 {
		c := open([]string{"[2001:db8::1]:1", "[2001:db8::2:2]:1"}[i%2])
		u.track(c, http.StateActive) // one byte does it
		mine = append(mine, c)
	}
	for range 100 {
		if c := open("[2001:db8::3]:1"); !c.closed {
			t.Fatal("one peer has more than four fifths of the connections")
		}
	}
	for _, from := range []string{"[2001:db8:0:1::1]:1", "192.0.2.1:1", ""} {
		c := open(from)
		if u.track(c, http.StateActive); c.closed {
			t.Errorf("%q is shut out", from)
		}
		u.track(c, http.StateClosed)
	}
	u.track(mine[0], http.StateIdle)
	u.track(mine[1], http.StateIdle)
	if c := open("[2001:db8::4]:1"); c.closed || !mine[0].closed || mine[1].closed {
		t.Errorf("of a peer's own the one goes that has been idle the longest: %v %v %v", c.closed, mine[0].closed, mine[1].closed)
	}
	for c := range u.all {
		u.track(c, http.StateClosed)
	}
	if len(u.all) != 0 || len(u.peers) != 0 || u.idle.Len() != 0 {
		t.Errorf("left: %d connections, %d peers, %d idle", len(u.all), len(u.peers), u.idle.Len())
	}
}

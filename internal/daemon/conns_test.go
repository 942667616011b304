package daemon

import (
	"net"
	"net/http"
	"testing"
)

// closing is a connection that tells when it is closed.
type closing struct {
	net.Conn
	closed bool
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

package apitest

import (
	"net"
	"net/http"
)

// pipes is a listener whose connections buffer nothing.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.done); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// OverPipes serves the handler on pipes, where what one side does not take the other
// cannot write, and opens one. closed: the handler let go of it.
func (w *World) OverPipes() (conn net.Conn, closed <-chan struct{}) {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	ended := make(chan struct{})
	srv := &http.Server{Handler: w.Handler, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(ended)
		}
	}}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p) }()
	w.T.Cleanup(func() { srv.Close(); <-served })
	ours, theirs := net.Pipe()
	w.T.Cleanup(func() { ours.Close() })
	p.conns <- theirs
	return ours, ended
}

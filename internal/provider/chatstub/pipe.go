package chatstub

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// Pipe serves a handler over net.Pipe: real HTTP without a socket, which also
// works inside a testing/synctest bubble. Every address leads to the handler.
type Pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	server *http.Server
	done   chan struct{}
	rt     *http.Transport
}

// NewPipe starts to serve. The caller closes it.
func NewPipe(h http.Handler) *Pipe {
	p := &Pipe{
		conns: make(chan net.Conn), closed: make(chan struct{}), done: make(chan struct{}),
		server: &http.Server{Handler: h},
	}
	p.rt = &http.Transport{DialContext: p.dial, DisableCompression: true}
	go func() {
		defer close(p.done)
		_ = p.server.Serve(p) // ends with ErrServerClosed
	}()
	return p
}

// Client gives a client that reaches the handler.
func (p *Pipe) Client() *http.Client { return &http.Client{Transport: p.rt} }

// Shutdown ends the server and all connections, and waits for its accept loop.
func (p *Pipe) Shutdown() {
	p.rt.CloseIdleConnections()
	_ = p.server.Close()
	<-p.done
}

func (p *Pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, errors.New("the pipe is closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (p *Pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipe) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "chatstub" }

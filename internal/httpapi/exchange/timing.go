package exchange

import (
	"io"
	"net/http"
	"time"
)

// What a peer may make the daemon wait for is bounded on both sides of a
// request: its body has a deadline from the first instant, also when nobody
// wants it (net/http reads what is left of it before it answers), and each
// piece of an answer must be taken in time.

const (
	// maxUnwanted bounds what is read of a body that nobody wants, in bytes.
	maxUnwanted = 256 << 10
	// Piece is what must be taken of an answer within the write timeout, in bytes.
	Piece = 32 << 10
	// stopPatience is what a body gets that has not come when the daemon stops.
	stopPatience = time.Second
)

// Timed serves one request under deadlines.
func (c *Config) Timed(next http.Handler, w http.ResponseWriter, r *http.Request) {
	c.Extend(w) // the one of the answer before may be over
	if r.Body == nil || r.Body == http.NoBody {
		// No read deadline: while the answer is made, net/http reads ahead to
		// see the peer go.
		next.ServeHTTP(w, r)
		return
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(c.UnreadTimeout)) // not supported: not a connection
	b := &body{ReadCloser: r.Body, expects: r.Header.Get("Expect") != ""}
	own := *r // net/http looks at the body of its own request
	own.Body = b
	next.ServeHTTP(w, &own)
	c.Discard(w, b) // answers that the mux gave
}

// body is a request's body on its way.
type body struct {
	io.ReadCloser
	expects bool // the peer sends nothing until it is read (RFC 9110, section 10.1.1)
	over    bool // it ended, or broke off
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.expects = false
	b.over = b.over || err != nil
	return n, err
}

// Discard reads what is left of a body that nobody wants, so that the
// connection can be used again; where that does not come in time, or is too
// much, the connection ends with the answer.
func (c *Config) Discard(w http.ResponseWriter, from io.ReadCloser) {
	b, ok := from.(*body)
	if !ok || b.over || b.expects {
		return
	}
	conn := http.NewResponseController(w)
	var err error
	c.hurried(conn, func() { _, err = io.CopyN(io.Discard, b, maxUnwanted) })
	b.over = true
	if err == io.EOF {
		_ = conn.SetReadDeadline(time.Time{}) // a stop may have set one; net/http reads ahead from here on
		return
	}
	w.Header().Set("Connection", "close")
	_ = conn.SetReadDeadline(time.Now())
}

// hurried runs read, which reads a body; once the daemon stops it has little
// time left.
func (c *Config) hurried(conn *http.ResponseController, read func()) {
	if c.Stopping == nil {
		read()
		return
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.Stopping:
			_ = conn.SetReadDeadline(time.Now().Add(stopPatience))
		case <-over:
		}
	}()
	read()
	close(over)
	<-done
}

// Extend renews the deadline of writes.
func (c *Config) Extend(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.WriteTimeout)) // not supported: not a connection
}

// Write writes a part of an answer, piece by piece: a reader that does not take
// a piece within the write timeout is let go.
func (x *Exchange) Write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), Piece)
		x.Extend(x.W)
		if _, err := x.W.Write(b[:n]); err != nil {
			return ErrGone
		}
		b = b[n:]
	}
	x.Extend(x.W) // what is buffered goes out after the handler
	return nil
}

// Stops says whether the daemon stops.
func (c *Config) Stops() bool {
	select {
	case <-c.Stopping:
		return true
	default:
		return false
	}
}

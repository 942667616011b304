package httpapi

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
	// writePiece is what must be taken within the write timeout, in bytes.
	writePiece = 32 << 10
	// stopPatience is what a body gets that has not come when the daemon stops.
	stopPatience = time.Second
)

// timed serves one request under deadlines.
func (s *server) timed(next http.Handler, w http.ResponseWriter, r *http.Request) {
	s.extend(w) // the one of the answer before may be over
	if r.Body == nil || r.Body == http.NoBody {
		// No read deadline: while the answer is made, net/http reads ahead to
		// see the peer go.
		next.ServeHTTP(w, r)
		return
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(s.cfg.UnreadTimeout)) // not supported: not a connection
	b := &body{ReadCloser: r.Body, expects: r.Header.Get("Expect") != ""}
	own := *r // net/http looks at the body of its own request
	own.Body = b
	next.ServeHTTP(w, &own)
	s.discard(w, b) // answers that the mux gave
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

// discard reads what is left of a body that nobody wants, so that the
// connection can be used again; where that does not come in time, or is too
// much, the connection ends with the answer.
func (s *server) discard(w http.ResponseWriter, from io.ReadCloser) {
	b, ok := from.(*body)
	if !ok || b.over || b.expects {
		return
	}
	conn := http.NewResponseController(w)
	var err error
	s.hurried(conn, func() { _, err = io.CopyN(io.Discard, b, maxUnwanted) })
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
func (s *server) hurried(conn *http.ResponseController, read func()) {
	if s.cfg.Stopping == nil {
		read()
		return
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.cfg.Stopping:
			_ = conn.SetReadDeadline(time.Now().Add(stopPatience))
		case <-over:
		}
	}()
	read()
	close(over)
	<-done
}

// extend renews the deadline of writes.
func (s *server) extend(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout)) // not supported: not a connection
}

// write writes a part of an answer, piece by piece: a reader that does not take
// a piece within the write timeout is let go.
func (c *call) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writePiece)
		c.extend(c.w)
		if _, err := c.w.Write(b[:n]); err != nil {
			return errReaderGone
		}
		b = b[n:]
	}
	c.extend(c.w) // what is buffered goes out after the handler
	return nil
}

// stopping says whether the daemon stops.
func (s *server) stopping() bool {
	select {
	case <-s.cfg.Stopping:
		return true
	default:
		return false
	}
}

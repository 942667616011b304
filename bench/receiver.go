package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// receiver is where the deliveries of all queues go; what becomes of them is up
// to who measures.
type receiver struct {
	url string
	now atomic.Pointer[http.Handler]

	srv     *http.Server
	serving sync.WaitGroup
}

func openReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String()}
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	r.serving.Go(func() { _ = r.srv.Serve(l) })
	return r, nil
}

func (r *receiver) close() {
	_ = r.srv.Close()
	r.serving.Wait()
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if _, err := io.Copy(io.Discard, q.Body); err != nil {
		return
	}
	(*r.now.Load()).ServeHTTP(w, q)
}

// intake takes deliveries and counts them.
type intake struct {
	from, until int64 // between which it measures
	came        atomic.Int64
	node        *node
	done        chan struct{}

	mu  sync.Mutex
	at  [2]mark
	err error
}

// mark is what there was when so many had come.
type mark struct {
	n    int
	when time.Time
	cpu  time.Duration
}

func newIntake(from, until int) *intake {
	return &intake{from: int64(from), until: int64(until), done: make(chan struct{})}
}

func (in *intake) begin(n *node) { in.node = n }

func (in *intake) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	switch n := in.came.Add(1); {
	case n == in.from:
		in.mark(0, n)
	case n == in.until:
		in.mark(1, n)
		close(in.done)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (in *intake) mark(i int, n int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	m := mark{n: int(n), when: time.Now(), cpu: cpuTime()}
	theirs, err := in.node.cpu()
	m.cpu += theirs
	in.at[i], in.err = m, errors.Join(in.err, err)
}

// swing takes deliveries and lets one target hang, window by window of what comes
// to the others.
type swing struct {
	path string // of the target
	from int    // deliveries before the first window
	size int    // deliveries of a window

	mu      sync.Mutex
	came    int // to the others
	windows []time.Duration
	began   time.Time
	held    chan struct{} // closed when the target answers again; nil: it does
	done    chan struct{} // closed behind the last window
	left    int           // windows
}

func newSwing(path string, from, size, windows int) *swing {
	return &swing{path: path, from: max(from, 1), size: size, left: windows, done: make(chan struct{})}
}

// hangs says whether the target does in window i: each pair has one of both, and
// the order changes.
func (s *swing) hangs(i int) bool { return i%4 == 1 || i%4 == 2 }

func (s *swing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == s.path {
		if held := s.now(); held != nil {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
	} else {
		s.count()
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *swing) now() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *swing) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came++
	if s.left == 0 || s.came < s.from || (s.came-s.from)%s.size != 0 {
		return
	}
	now := time.Now()
	if s.came > s.from {
		s.windows = append(s.windows, now.Sub(s.began))
		s.left--
	}
	s.began = now
	if s.held != nil {
		close(s.held)
		s.held = nil
	}
	switch {
	case s.left == 0:
		close(s.done)
	case s.hangs(len(s.windows)):
		s.held = make(chan struct{})
	}
}

package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// sky is the world of receivers: one server outside of the daemons, which
// writes down every request and fails in every way.
type sky struct {
	ways   map[string]*way // by path
	plain  *httptest.Server
	tls    *httptest.Server
	mute   net.Listener // takes connections and says nothing
	within net.Listener // an address that no delivery may reach
	inside string       // its URL
	closed string       // a URL where nobody listens
	over   chan struct{}
	verify *standardwebhooks.Webhook

	mu      sync.Mutex
	mended  map[string]bool // ways that take everything now, by path
	visits  []visit
	bodies  map[string][]byte // of a delivery, as it came first
	counts  map[string]int    // requests of a delivery
	at      map[string]int    // requests of a target
	effects map[string]int    // by path and run: what a receiver does that knows an id again
	known   map[string]bool   // ids whose message was taken
	faults  []string
	broken  int   // requests that did not come whole: their sender died
	parts   []int // visits before each part of the storm
}

// visit is one request as a receiver saw it.
type visit struct {
	path, id string
	at       time.Time
	answered time.Time // zero: its sender went before
	status   int       // 0: none that could be read
	takes    bool
	silent   bool
}

func newSky(t *testing.T) *sky {
	s := &sky{
		ways: map[string]*way{}, over: make(chan struct{}), mended: map[string]bool{}, bodies: map[string][]byte{}, counts: map[string]int{},
		at: map[string]int{}, effects: map[string]int{}, known: map[string]bool{},
	}
	var err error
	if s.verify, err = standardwebhooks.NewWebhook(crashSecret); err != nil {
		t.Fatal(err)
	}
	if len(stormWays())%stormStep == 0 {
		t.Fatalf("%d ways are not met in steps of %d", len(stormWays()), stormStep)
	}
	for _, w := range stormWays() {
		if s.ways[w.path()] != nil {
			t.Fatalf("two ways are %s", w.path())
		}
		s.ways[w.path()] = w
	}
	quiet := func(h http.HandlerFunc) *httptest.Server {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		return srv
	}
	s.plain, s.tls = quiet(s.serve), quiet(func(http.ResponseWriter, *http.Request) { s.fault("somebody trusted a certificate of nobody") })
	s.plain.Start()
	s.tls.StartTLS()
	listen := func(address string) net.Listener {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	s.mute = listen("127.0.0.1:0")
	s.closed = "http://127.0.0.1:1"
	var held sync.WaitGroup
	held.Go(func() { s.accept(s.mute, func(net.Conn) {}) })
	s.inside = "http://127.0.0.2:9"
	// Not every system has more than one loopback address; then there is nobody who
	// could be reached.
	if s.within, err = net.Listen("tcp", "127.0.0.2:0"); err == nil {
		s.inside = "http://" + s.within.Addr().String()
		held.Go(func() {
			s.accept(s.within, func(c net.Conn) {
				s.fault("C60: a delivery reached an address that is not allowed, from " + c.RemoteAddr().String())
			})
		})
	}
	t.Cleanup(func() {
		close(s.over)
		s.mute.Close()
		if s.within != nil {
			s.within.Close()
		}
		held.Wait()
		for _, srv := range []*httptest.Server{s.plain, s.tls} {
			srv.CloseClientConnections()
			srv.Close()
		}
	})
	return s
}

// accept holds every connection until the world ends.
func (s *sky) accept(l net.Listener, do func(net.Conn)) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conns = append(conns, c)
		do(c)
	}
}

// url is where a way is.
func (s *sky) url(w *way) string {
	base := s.plain.URL
	switch w.address {
	case "tls":
		base = s.tls.URL
	case "tls-plain":
		base = "https://" + s.plain.Listener.Addr().String()
	case "dns": // no server is asked for what can be no name
		base = "http://" + strings.Repeat("x", 64) + ".invalid"
	case "closed":
		base = s.closed
	case "mute":
		base = "http://" + s.mute.Addr().String()
	case "mute-tls":
		base = "https://" + s.mute.Addr().String()
	}
	return base + w.path()
}

// part begins a new part of the storm.
func (s *sky) part() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = append(s.parts, len(s.visits))
}

func (s *sky) fault(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) < 50 {
		s.faults = append(s.faults, text)
	}
}

// mend has every second way that fails take everything from now on.
func (s *sky) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, w := range stormWays() {
		if w.address == "" && !w.delivered {
			if n++; n%2 == 0 {
				s.mended[w.path()] = true
			}
		}
	}
}

// exchange is one request that is being answered.
type exchange struct {
	s  *sky
	rw http.ResponseWriter
	r  *http.Request
}

func (s *sky) serve(rw http.ResponseWriter, r *http.Request) {
	w := s.ways[r.URL.Path]
	if w == nil {
		s.fault("a request for " + r.URL.Path)
		http.NotFound(rw, r)
		return
	}
	at, id := time.Now(), r.Header.Get("Webhook-Id")
	s.mu.Lock()
	s.counts[id]++
	s.at[w.path()]++
	d := w.does(s.counts[id], s.at[w.path()])
	if s.mended[w.path()] {
		d = took
	}
	s.mu.Unlock()
	if !d.unread && !s.read(w, id, r) {
		return
	}
	x := &exchange{s: s, rw: rw, r: r}
	s.mu.Lock()
	n := len(s.visits)
	s.visits = append(s.visits, visit{path: w.path(), id: id, at: at, status: d.status, takes: d.takes, silent: d.silent})
	if d.takes {
		s.take(w, id)
	}
	s.mu.Unlock()
	if n%4 == 0 { // so that two at once would meet
		x.pause(5 * time.Millisecond)
	}
	if !d.silent {
		s.mu.Lock()
		s.visits[n].answered = time.Now()
		s.mu.Unlock()
	}
	switch {
	case d.does != nil:
		x.after(d)
		d.does(x)
	case d.silent:
		x.wait()
	default:
		x.after(d)
		rw.WriteHeader(d.status)
	}
}

// take is a receiver that knows an id again: the second message changes nothing.
// The lock is held.
func (s *sky) take(w *way, id string) {
	if s.known[id] {
		return
	}
	s.known[id] = true
	var m message
	_ = json.Unmarshal(s.bodies[id], &m) // it was read before
	s.effects[w.path()+" "+m.RunID]++
}

// read takes the body, which must be that of the first time, and signed over its
// raw bytes (I-26). False: it did not come whole.
func (s *sky) read(w *way, id string, r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.mu.Lock()
		s.broken++
		s.mu.Unlock()
		return false
	}
	if err := s.verify.Verify(body, r.Header); err != nil {
		s.fault(fmt.Sprintf("I-26: %s of delivery %s: %v", w.path(), id, err))
	}
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		s.fault(fmt.Sprintf("%s of delivery %s came as %s, %s", w.path(), id, r.Method, r.Header.Get("Content-Type")))
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil || m.DeliveryID != id {
		s.fault(fmt.Sprintf("I-26: %s of delivery %s has the body %.200s", w.path(), id, body))
	}
	s.mu.Lock()
	before, again := s.bodies[id]
	if !again {
		s.bodies[id] = body
	}
	s.mu.Unlock()
	if again && !bytes.Equal(before, body) {
		s.fault(fmt.Sprintf("I-26: delivery %s came as %.200s and as %.200s", id, before, body))
	}
	return true
}

// after asks to be left alone.
func (x *exchange) after(d deed) {
	if in, ok := strings.CutPrefix(d.after, "in "); ok {
		wait, _ := time.ParseDuration(in)
		x.rw.Header().Set("Retry-After", stormDate(wait))
	} else if d.after != "-" {
		x.rw.Header().Set("Retry-After", d.after)
	}
}

// wait is until the sender has gone.
func (x *exchange) wait() {
	select {
	case <-x.r.Context().Done():
	case <-x.s.over:
	}
}

func (x *exchange) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.s.over:
	}
}

func (x *exchange) hijack() net.Conn {
	c, _, err := http.NewResponseController(x.rw).Hijack()
	if err != nil {
		x.s.fault(err.Error())
		panic(http.ErrAbortHandler)
	}
	return c
}

// reset breaks the connection, so that the sender sees a reset.
func (x *exchange) reset() {
	c := x.hijack()
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// raw answers with these bytes, and hangs up.
func (x *exchange) raw(text string) {
	c := x.hijack()
	_, _ = io.WriteString(c, text)
	_ = c.Close()
}

// headers answers with a header of a megabyte.
func (x *exchange) headers() {
	c := x.hijack()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	for i := range 1000 {
		if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("y", 1000)); err != nil {
			break
		}
	}
	_ = c.Close()
}

// endless answers with a body that has no end.
func (x *exchange) endless(status int) {
	x.rw.WriteHeader(status)
	line := bytes.Repeat([]byte("on and on "), 1000)
	for {
		if _, err := x.rw.Write(line); err != nil {
			return
		}
	}
}

// drips answers at once and sends its body byte by byte.
func (x *exchange) drips() {
	x.rw.Header().Set("Content-Length", "100000")
	x.rw.WriteHeader(http.StatusOK)
	x.drip(func() error {
		_, err := x.rw.Write([]byte("."))
		return errors.Join(err, http.NewResponseController(x.rw).Flush())
	})
}

// dripsHeaders never comes to the end of its header.
func (x *exchange) dripsHeaders() {
	c := x.hijack()
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	n := 0
	x.drip(func() error {
		n++
		_, err := io.WriteString(c, "X-"+strconv.Itoa(n)+": .\r\n")
		return err
	})
}

func (x *exchange) drip(one func() error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for one() == nil {
		select {
		case <-tick.C:
		case <-x.s.over:
			return
		}
	}
}

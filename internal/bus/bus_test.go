package bus

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

const (
	session = "ses_1"
	stream  = event.Stream("session:ses_1")
	limit   = time.Minute // of what should take milliseconds
)

// serve starts a server on loopback.
func serve(t testing.TB, change ...func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true}
	for _, f := range change {
		f(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(limit) {
		t.Fatal("the server does not start")
	}
	return s
}

// node is a hub with its end of the bus.
type node struct {
	t    testing.TB
	hub  *live.Hub
	bus  *Bus
	url  atomic.Value
	logs *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func join(t testing.TB, name, url string, change ...func(*Config)) *node {
	t.Helper()
	n := &node{t: t, hub: &live.Hub{}, logs: &lockedBuffer{}}
	n.url.Store(url)
	cfg := Config{Node: name, Hub: n.hub, Logger: slog.New(slog.NewTextHandler(n.logs, nil)), URL: func() (string, error) {
		if u := n.url.Load().(string); u != "" {
			return u, nil
		}
		return "", errors.New("the environment variable BUS is not set")
	}}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if n.bus, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	n.bus.Start()
	t.Cleanup(n.bus.Close)
	return n
}

// until waits for something that comes by itself.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

func (n *node) connected() *node {
	n.t.Helper()
	until(n.t, "connected", n.bus.Connected)
	return n
}

// hear follows the session, and waits until the bus brings its deltas.
func (n *node) hear() *live.Subscription {
	n.t.Helper()
	s := n.hub.Subscribe(stream)
	n.subscribed()
	return s
}

// subscribed waits until the server knows that somebody hears the session here: who
// asks before that is told that nobody does, and lets go of what he has. The node says
// to all that it listens behind its subscription, on the same connection.
func (n *node) subscribed() {
	n.t.Helper()
	spy, err := nats.Connect(n.url.Load().(string))
	if err != nil {
		n.t.Fatal(err)
	}
	defer spy.Close()
	said, err := spy.SubscribeSync(allSubject)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := spy.Flush(); err != nil {
		n.t.Fatal(err)
	}
	n.bus.Listen(stream, true) // it says so again
	for {
		m, err := said.NextMsg(limit)
		if err != nil {
			n.t.Fatal("does not listen: ", err)
		}
		if told, err := decodeNotice(m.Data); err == nil && told.Node == n.bus.cfg.Node && slices.Contains(told.Want, session) {
			return
		}
	}
}

func subjectOfSession() string {
	subject, _ := subjectOf(stream)
	return subject
}

func delta(n int64) api.Delta {
	return api.Delta{Type: event.LiveTextDelta, RunID: "run_1", StepID: "step_1", Attempt: 1, Epoch: 1, After: 3, Number: n, Text: fmt.Sprint("word ", n)}
}

// publish does what the engine does.
func (n *node) publish(numbers ...int64) {
	for _, i := range numbers {
		if n.hub.Listening(stream) {
			n.hub.Publish(stream, delta(i))
		}
	}
}

// next waits for the next delta.
func next(t testing.TB, s *live.Subscription) *live.Delta {
	t.Helper()
	timeout := time.After(limit)
	for {
		if d := s.Delta(); d != nil {
			return d
		}
		select {
		case <-s.Bell:
		case <-timeout:
			t.Fatalf("no delta within %s", limit)
		}
	}
}

func span(from, to int64) (out []int64) {
	for ; from <= to; from++ {
		out = append(out, from)
	}
	return out
}

// I-17: what one node publishes is heard at another, in order and whole, and
// nobody hears his own twice.
func TestAcross(t *testing.T) {
	s := serve(t)
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	own, far := a.hear(), b.hear()
	defer own.Close()
	defer far.Close()
	const n = 200
	a.publish(1) // the rest when it is known that somebody listens
	until(t, "wanted", func() bool { return a.state() == wanted })
	a.publish(span(2, n)...)
	for _, sub := range []*live.Subscription{own, far} {
		for i := int64(1); i <= n; i++ {
			if d := next(t, sub); d.Delta != delta(i) {
				t.Fatalf("delta %d is %+v", i, d.Delta)
			}
		}
		if sub.Delta() != nil || sub.Lost() != live.None {
			t.Error("something more was heard, or lost")
		}
	}
	if st := a.bus.Stats(); st.Sent != n || st.Dropped != 0 || st.Received != 0 || st.Messages > n {
		t.Errorf("%+v", st)
	}
	if st := b.bus.Stats(); st.Received != n || st.Missed != 0 {
		t.Errorf("%+v", st)
	}
}

// Where nobody listens elsewhere no word leaves the node: only the question does,
// once; who comes later is heard at once; who leaves costs nothing any more.
func TestNobodyElsewhere(t *testing.T) {
	s := serve(t)
	spy, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer spy.Close()
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	own := a.hear()
	defer own.Close()
	a.publish(span(1, 10)...)
	until(t, "told that nobody is there", func() bool { return a.state() == unwanted })
	a.publish(span(11, 5000)...)
	// Besides the question it says that it is there, now and again, and that it listens.
	if st := a.bus.Stats(); st.Sent != 0 || st.Messages > 50 || st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
	for own.Delta() != nil {
	}
	if got := b.bus.Stats(); got.Subjects != 0 {
		t.Errorf("%+v", got)
	}
	far := b.hear()
	until(t, "wanted", func() bool { return a.state() == wanted })
	a.publish(5001)
	if d := next(t, far); d.Number != 5001 {
		t.Errorf("%+v", d.Delta)
	}
	far.Close()
	b.bus.mu.Lock()
	b.bus.ears[stream].left = time.Now().Add(-Grace) // as if it were over
	b.bus.mu.Unlock()
	until(t, "unsubscribed", func() bool { return b.bus.Stats().Subjects == 0 })
	number := int64(5001)
	until(t, "told that nobody is there any more", func() bool {
		a.bus.mu.Lock()
		a.bus.outlets[stream].asked = time.Now().Add(-askEvery)
		a.bus.mu.Unlock()
		number++
		a.publish(number)
		return a.state() == unwanted
	})
	a.publish(span(number+1, number+1000)...)
	if st := a.bus.Stats(); st.Sent > uint64(number-5000) { // those up to the last that was wanted may be on their way still
		t.Errorf("%+v", st)
	}
}

func (n *node) state() state {
	n.bus.mu.Lock()
	defer n.bus.mu.Unlock()
	if o := n.bus.outlets[stream]; o != nil {
		return o.state
	}
	return asking
}

// A listener that comes back within the grace is announced again, for the
// publisher may have asked meanwhile.
func TestGrace(t *testing.T) {
	s := serve(t)
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	a.publish(1)
	until(t, "told that nobody is there", func() bool { return a.state() == unwanted })
	was := b.hub.Subscribe(stream)
	until(t, "wanted", func() bool { return a.state() == wanted }) // all that it says of this has come
	was.Close()
	a.bus.mu.Lock()
	delete(a.bus.outlets, stream) // as if nothing had been published for long
	a.bus.mu.Unlock()
	spy, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer spy.Close()
	asked, err := spy.SubscribeSync(subjectOfSession())
	if err != nil {
		t.Fatal(err)
	}
	if err := spy.Flush(); err != nil {
		t.Fatal(err)
	}
	a.publish(2) // the subject has a subscriber that does not answer
	if _, err := asked.NextMsg(limit); err != nil {
		t.Fatal(err)
	}
	if err := spy.Publish(subjectOfSession(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	until(t, "past the question", func() bool { return b.bus.Stats().Missed == 1 })
	a.bus.mu.Lock()
	a.bus.outlets[stream].asked = time.Now().Add(-askWait)
	a.bus.mu.Unlock()
	a.publish(3)
	if a.state() != unwanted || a.bus.Stats().Sent != 0 {
		t.Errorf("%+v", a.bus.Stats())
	}
	far := b.hub.Subscribe(stream)
	defer far.Close()
	until(t, "wanted", func() bool { return a.state() == wanted })
	a.publish(4)
	if d := next(t, far); d.Number != 4 {
		t.Errorf("%+v", d.Delta)
	}
}

// The bus may be down at the start and later, as long as it likes: nothing
// waits for it, readers are told, and the URL is read again.
func TestDownAndUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := join(t, "a", "")
	own := a.hub.Subscribe(stream)
	defer own.Close()
	a.publish(1, 2)
	if next(t, own).Number != 1 || next(t, own).Number != 2 || a.bus.Connected() {
		t.Error("a bus that is down holds something up")
	}
	until(t, "a line in the log", func() bool { return strings.Contains(a.logs.String(), "BUS is not set") })
	a.url.Store("nats://someone:hunter2@" + l.Addr().String() + "%zz")
	s := serve(t)
	b := join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	shifts := a.hub.Shifts()
	a.url.Store(s.ClientURL())
	a.connected()
	until(t, "shift", func() bool { return a.hub.Shifts() > shifts })
	until(t, "told of what did not leave", func() bool { return far.Lost() == live.Bus })
	a.publish(3)
	if next(t, far).Number != 3 {
		t.Error("not heard after the connection")
	}
	s.Shutdown()
	s.WaitForShutdown()
	until(t, "down", func() bool { return !a.bus.Connected() && !b.bus.Connected() })
	until(t, "lost", func() bool { return far.Lost() == live.Bus })
	a.publish(4, 5)
	again := serve(t).ClientURL() // a port that was given back may be another's by now
	a.url.Store(again)
	b.url.Store(again)
	a.connected()
	b.connected()
	b.subscribed()
	a.publish(6)
	if d := next(t, far); d.Number != 6 {
		t.Errorf("%+v", d.Delta)
	}
	if strings.Contains(a.logs.String()+b.logs.String(), "hunter2") {
		t.Error("a secret is in the log")
	}
}

// A secret that was changed counts with the next connection; the old one is
// refused, and neither is in the log.
func TestCredentials(t *testing.T) {
	s := serve(t, func(o *server.Options) { o.Username, o.Password = "holdfast", "right" })
	at := strings.TrimPrefix(s.ClientURL(), "nats://")
	a := join(t, "a", "nats://holdfast:wrong@"+at)
	until(t, "refused", func() bool { return strings.Contains(a.logs.String(), "uthoriz") })
	a.url.Store("nats://holdfast:right@" + at)
	a.connected()
	if _, err := Probe(t.Context(), "nats://holdfast:wrong@"+at); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Error(err)
	}
	if name, err := Probe(t.Context(), "nats://holdfast:right@"+at); err != nil || name != at {
		t.Error(name, err)
	}
	for _, bad := range []string{"", "nats://", "http://h", "nats://a:hunter2@h%zz", "nats://h,ws://i"} {
		if _, err := Probe(t.Context(), bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if text := a.logs.String(); strings.Contains(text, "wrong") || strings.Contains(text, "right") {
		t.Errorf("a secret is in the log: %s", text)
	}
}

// A server that takes nothing holds up no publisher, and costs bounded memory;
// what did not leave is told of when it can be.
func TestStuckServer(t *testing.T) {
	s := serve(t)
	gate := &gate{open: make(chan struct{})}
	a := join(t, "a", s.ClientURL(), func(c *Config) { c.Dial = gate.dial }).connected()
	b := join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	a.publish(1)
	if next(t, far).Number != 1 {
		t.Fatal("not heard")
	}
	gate.shut()
	long := strings.Repeat("x", 1000)
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := int64(2); i < 20_000; i++ {
			d := delta(i)
			d.Text = long
			a.hub.Publish(stream, d)
		}
	}()
	select {
	case <-published:
	case <-time.After(limit):
		close(gate.open)
		t.Fatal("a publisher is held up")
	}
	a.bus.mu.Lock()
	queued := a.bus.queued
	a.bus.mu.Unlock()
	if queued > MaxQueue || a.bus.Stats().Dropped == 0 {
		t.Errorf("%d bytes wait, %+v", queued, a.bus.Stats())
	}
	close(gate.open)
	until(t, "told of the loss", func() bool { return far.Lost() != live.None })
}

// gate holds back what is written to a server.
type gate struct {
	closed atomic.Bool
	open   chan struct{}
}

func (g *gate) shut() { g.closed.Store(true) }

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &gated{c, g}, err
}

type gated struct {
	net.Conn
	g *gate
}

func (c *gated) Write(p []byte) (int, error) {
	if c.g.closed.Load() {
		<-c.g.open
	}
	return c.Conn.Write(p)
}

// What does not fit into a message is lost and told; what fits is packed.
func TestLargeDeltas(t *testing.T) {
	s := serve(t, func(o *server.Options) { o.MaxPayload = 32 << 10 })
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	sizes := []int{10, 20 << 10, 20 << 10, 40 << 10, 100}
	for i, size := range sizes {
		d := delta(int64(i + 1))
		d.Text = strings.Repeat("x", size)
		a.hub.Publish(stream, d)
	}
	for _, want := range []int64{1, 2, 3, 5} {
		if d := next(t, far); d.Number != want || len(d.Text) != sizes[want-1] {
			t.Fatalf("delta %d of %d bytes, want %d", d.Number, len(d.Text), want)
		}
	}
	until(t, "told of the one that is missing", func() bool { return far.Lost() == live.Bus })
}

// What comes over the bus is checked: nothing of it can pretend to be an event,
// reach another session, or be more than fits.
func TestHostileMessages(t *testing.T) {
	s := serve(t)
	b := join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	evil, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	good := `{"type":"text.delta","run_id":"run_1","step_id":"s","attempt":1,"part":0,"text":"ok","epoch":1,"number":1}`
	bad := []string{
		"x", "null", "[]", `{"deltas":{}}`, `{"deltas":[null]}`, `{"deltas":[{}]}`, `{"deltas":[` + good + `]`,
		strings.Replace(`{"deltas":[`+good+`]}`, "text.delta", `text.delta\nid: 7`, 1), strings.Replace(`{"deltas":[`+good+`]}`, "text.delta", "run.completed", 1),
		strings.Replace(`{"deltas":[`+good+`]}`, `"number":1`, `"number":0`, 1), strings.Replace(`{"deltas":[`+good+`]}`, `"epoch":1`, `"epoch":-1`, 1),
		`{"deltas":[` + strings.Replace(good, "ok", strings.Repeat("x", MaxMessage), 1) + `]}`,
	}
	for _, text := range bad {
		if err := evil.Publish(liveSubject+session, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range append(bad, `{"node":""}`, `{"node":"a b"}`, `{"node":"n","want":["*"]}`, `{"node":"n","want":["`+strings.Repeat(`x","`, maxIDs)+`x"]}`) {
		if err := evil.Publish(allSubject, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range []string{nodeSubject + "b.x y", nodeSubject + "b." + strings.Repeat("x", maxID+1), nodeSubject + "b.ses_unknown"} {
		_ = evil.Publish(subject, []byte("{}")) // a subject that NATS refuses is as good
	}
	if err := evil.Publish(liveSubject+session, []byte(`{"deltas":[`+good+`]}`)); err != nil {
		t.Fatal(err)
	}
	if d := next(t, far); d.Text != "ok" || far.Delta() != nil || far.Lost() != live.Bus {
		t.Errorf("%+v", d.Delta)
	}
	if missed := b.bus.Stats().Missed; missed < uint64(2*len(bad)-2) { // null is an empty message
		t.Errorf("%d messages were refused", missed)
	}
}

// A question is answered at the subject of a node and nowhere else: who can ask
// must not have this node speak where he cannot himself.
func TestAnswersGoToNodes(t *testing.T) {
	s := serve(t)
	b := join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	evil, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	heard := make(chan *nats.Msg, 1024)
	if _, err := evil.ChanSubscribe(">", heard); err != nil {
		t.Fatal(err)
	}
	good := nodeSubject + "a." + session
	for _, reply := range []string{
		"$JS.API.STREAM.DELETE.x", allSubject, liveSubject + session, nodeSubject + "a", nodeSubject + "a.ses_2", nodeSubject + "." + session, "x." + good, good + ".x", good,
	} {
		if err := evil.PublishRequest(liveSubject+session, reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	timeout := time.After(limit)
	for {
		select {
		case m := <-heard:
			if string(m.Data) != "{}" {
				continue // the questions themselves, and what nodes say of themselves
			}
			if m.Subject != good {
				t.Errorf("an answer at %s", m.Subject)
				continue
			}
			return // it was asked for last
		case <-timeout:
			t.Fatal("no answer")
		}
	}
}

// Streams whose ids cannot be part of a subject, and those of targets, stay at home.
func TestSubjects(t *testing.T) {
	for s, want := range map[event.Stream]bool{
		stream: true, "session:": false, "session:a.b": false, "session:*": false, "session:>": false, "session:a b": false, "target:tgt_1": false, "x": false,
		event.Stream("session:" + strings.Repeat("x", maxID)): true, event.Stream("session:" + strings.Repeat("x", maxID+1)): false,
	} {
		subject, ok := subjectOf(s)
		back, same := streamOf(subject, liveSubject)
		if ok != want || ok && (!same || back != s) {
			t.Errorf("%q: %q %v", s, subject, ok)
		}
	}
}

// A node that goes without a word may have had something to say; one that says
// good-bye has not.
func TestPeers(t *testing.T) {
	s := serve(t)
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	_ = a
	far := b.hear()
	defer far.Close()
	until(t, "known", func() bool { return b.bus.Stats().Peers == 1 })
	a.bus.Close()
	until(t, "gone", func() bool { return b.bus.Stats().Peers == 0 })
	if far.Lost() != live.None {
		t.Error("nothing was lost")
	}
	b.bus.mu.Lock()
	b.bus.peers["silent"] = time.Now().Add(-goneAfter)
	b.bus.mu.Unlock()
	until(t, "gone", func() bool { return far.Lost() == live.Bus })
}

// A delta leaves when it is there, and not when the bus looks around the next time.
func TestAtOnce(t *testing.T) {
	s := serve(t)
	a, b := join(t, "a", s.ClientURL()).connected(), join(t, "b", s.ClientURL()).connected()
	far := b.hear()
	defer far.Close()
	const n = 5 * int64(limit/sweep)
	began := time.Now()
	for i := int64(1); i <= n; i++ {
		a.publish(i)
		if d := next(t, far); d.Number != i {
			t.Fatalf("%+v", d.Delta)
		}
		if time.Since(began) > limit {
			t.Fatalf("%d deltas, one after the other, within %s", i, limit)
		}
	}
}

// A tls URL wants a certificate that is trusted, and then nothing goes in the clear.
func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil) // has a certificate for loopback
	defer web.Close()
	s := serve(t, func(o *server.Options) {
		o.TLS, o.TLSConfig = true, &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}
	})
	url := "tls://" + s.Addr().String()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	a := join(t, "a", url, func(c *Config) { c.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }).connected()
	b := join(t, "b", url)
	until(t, "refused", func() bool { return strings.Contains(b.logs.String(), "certificate") })
	if b.bus.Connected() || !a.bus.Connected() {
		t.Error("an unknown certificate is trusted")
	}
}

// I-11: what a former owner still sends is not heard once the new one speaks.
func TestFormerOwner(t *testing.T) {
	s := serve(t)
	old, owner, r := join(t, "old", s.ClientURL()).connected(), join(t, "new", s.ClientURL()).connected(), join(t, "r", s.ClientURL()).connected()
	far := r.hear()
	defer far.Close()
	say := func(n *node, epoch, number int64) {
		d := delta(number)
		d.Epoch = epoch
		n.hub.Publish(stream, d)
	}
	for _, step := range []struct {
		from          *node
		epoch, number int64
	}{{old, 1, 1}, {owner, 2, 1}} {
		say(step.from, step.epoch, step.number)
		if d := next(t, far); d.Epoch != step.epoch || d.Number != step.number {
			t.Fatalf("%+v", d.Delta)
		}
	}
	received := r.bus.Stats().Received
	say(old, 1, 2)
	until(t, "come", func() bool { return r.bus.Stats().Received > received })
	say(owner, 2, 2)
	if d := next(t, far); d.Epoch != 2 || d.Number != 2 {
		t.Errorf("a former owner is heard: %+v", d.Delta)
	}
}

// Whatever comes: what is taken can be shown, and nothing panics.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"deltas":[{"type":"text.delta","number":1}],"lost":true}`))
	f.Add([]byte(`{"node":"a","want":["ses_1"],"bye":true}`))
	f.Add([]byte(`{"deltas":[{"type":"text.delta\nid: 1","number":1}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if deltas, _, err := decode(body); err == nil {
			for _, d := range deltas {
				if strings.ContainsAny(d.Type, "\r\n") || d.Number < 1 || bytes.ContainsAny((&live.Delta{Delta: d}).Wire(), "\r\n") {
					t.Errorf("%+v", d)
				}
			}
		}
		if n, err := decodeNotice(body); err == nil {
			for _, id := range append(n.Want, n.Node) {
				if _, ok := streamOf(liveSubject+id, liveSubject); !ok {
					t.Errorf("id %q", id)
				}
			}
		}
	})
}

func BenchmarkPublish(b *testing.B) {
	s := serve(b)
	for _, heard := range []bool{false, true} {
		b.Run(fmt.Sprint("heard=", heard), func(b *testing.B) {
			x, y := join(b, "x", s.ClientURL()).connected(), join(b, "y", s.ClientURL()).connected()
			if heard {
				sub := y.hear()
				defer sub.Close()
			}
			x.publish(1)
			want := unwanted
			if heard {
				want = wanted
			}
			until(b, "settled", func() bool { return x.state() == want })
			b.ReportAllocs()
			n := int64(1)
			for b.Loop() {
				n++
				if x.hub.Listening(stream) {
					x.hub.Publish(stream, api.Delta{Type: event.LiveTextDelta, RunID: "run_1", StepID: "step_1", Attempt: 1, Epoch: 1, After: 3, Number: n, Text: "some words "})
				}
			}
		})
	}
}

// Package bus carries live deltas between nodes, over core NATS. It is an
// adapter of live.Far: a hub sends what is published at its node, and is given
// what the others publish. Nothing on it is truth: a message may be lost, and
// then the reader is told so; every durable event comes from the log.
//
// It is made to cost nothing where nobody listens. A node subscribes to the
// subject of a session while somebody hears it there, and some seconds longer.
// A node that has a delta asks at the session's subject whether anybody is
// there, with an empty message, before the first one leaves; the server itself
// answers when nobody is. Who comes later says so to all. So text leaves a node
// only when another one wants it.
//
// Nothing here holds up a publisher: what it hands over goes into a bounded
// queue, which one goroutine empties, all that waits for a session in one
// message. A connection that broke is made anew, with the URL read again.
package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/live"
)

// The bounds of a bus.
const (
	MaxMessage = 64 << 10 // bytes of a message; a delta that is larger is lost
	MaxQueue   = 4 << 20  // bytes that wait to be sent; past it deltas are lost
	MaxWaiting = 64       // deltas of a session that wait until it is known whether anybody listens
	MaxOutlets = 16 << 10 // sessions with deltas of late; those past it are not sent
	MaxUnread  = 1024     // messages that came and were not looked at
	maxPeers   = 1024     // nodes that are remembered
	maxLost    = 4096     // sessions that are remembered as lossy; past it all are
	maxIDs     = 256      // sessions that one message names
)

// The times of a bus.
const (
	Grace     = 5 * time.Second // a session is still subscribed to after its last listener
	askEvery  = 5 * time.Second // how often it is asked whether anybody listens still, or again
	askWait   = 500 * time.Millisecond
	idleAfter = time.Minute // an outlet is forgotten
	beatEvery = 4 * time.Second
	goneAfter = 3 * beatEvery // a node that is not heard of for so long is gone
	sweep     = time.Second
	patience  = 5 * time.Second // of connecting, and of a write
	firstWait = 100 * time.Millisecond
	lastWait  = 10 * time.Second
)

// Config says where the bus is. URL, Hub and Node are required.
type Config struct {
	// URL gives the address, or several separated by commas; it is asked before
	// each connection, so that a changed secret counts. It may hold a user and
	// password, or a token. Its scheme is nats, or tls for a server that must
	// speak TLS.
	URL func() (string, error)
	Hub *live.Hub
	// Node names this process among those on the bus: letters, digits, - and _.
	Node   string
	TLS    *tls.Config // default: the roots of the system
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	Logger *slog.Logger // default: none
}

// Stats are what a bus has done since it began.
type Stats struct {
	Connected bool
	Peers     int    // other nodes that were heard of lately
	Subjects  int    // sessions that are subscribed to
	Connects  uint64 // connections that were made
	Messages  uint64 // that were sent, with deltas or without
	Sent      uint64 // deltas
	Received  uint64 // deltas
	Dropped   uint64 // deltas that were wanted elsewhere and could not be sent
	Missed    uint64 // messages that came too fast, or could not be read
}

// Bus is one node's end of the bus. It is safe for concurrent use.
type Bus struct {
	cfg    Config
	cancel context.CancelFunc
	done   sync.WaitGroup
	wake   chan struct{} // there is something to send, or to subscribe to

	// Nothing that blocks is done under the lock, and the hub is not called.
	mu      sync.Mutex
	up      bool
	outlets map[event.Stream]*outlet
	ears    map[event.Stream]*ear
	changed map[event.Stream]bool // ears that came, left or have to be told of
	queue   []item
	queued  int // bytes of it
	lossy   map[event.Stream]bool
	allLost bool
	peers   map[string]time.Time // when they were heard of last

	connects, messages, sent, received, dropped, missed atomic.Uint64
}

// New makes a bus and connects it to its hub. See Start.
func New(cfg Config) (*Bus, error) {
	if cfg.URL == nil || cfg.Hub == nil || !wellFormed(cfg.Node) {
		return nil, errors.New("bus: URL, hub and node must be given")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bus{
		cfg: cfg, wake: make(chan struct{}, 1), outlets: map[event.Stream]*outlet{}, ears: map[event.Stream]*ear{},
		changed: map[event.Stream]bool{}, lossy: map[event.Stream]bool{}, peers: map[string]time.Time{},
	}
	cfg.Hub.Connect(b)
	return b, nil
}

// Start connects in the background, and goes on trying until Close.
func (b *Bus) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.done.Go(func() { b.run(ctx) })
}

// Close ends the connection and waits for what Start began.
func (b *Bus) Close() {
	if b.cancel != nil {
		b.cancel()
	}
	b.done.Wait()
}

// Connected says whether the bus can be used now.
func (b *Bus) Connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.up
}

// Stats gives the figures as they are now.
func (b *Bus) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{
		Connected: b.up, Peers: len(b.peers), Connects: b.connects.Load(), Messages: b.messages.Load(), Sent: b.sent.Load(),
		Received: b.received.Load(), Dropped: b.dropped.Load(), Missed: b.missed.Load(),
	}
	for _, e := range b.ears {
		if e.sub != nil {
			s.Subjects++
		}
	}
	return s
}

// run connects, and connects again.
func (b *Bus) run(ctx context.Context) {
	var told time.Time // of trouble
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, lastWait) {
		began := time.Now()
		l, err := b.connect(ctx)
		if err == nil {
			told = time.Time{}
			b.cfg.Logger.Info("bus connected", "server", l.conn.ConnectedAddr())
			err = b.serve(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastWait {
			wait = firstWait
		}
		if told.IsZero() || time.Since(told) >= time.Minute {
			told = time.Now()
			b.cfg.Logger.Warn("bus not available: live text of other nodes is not shown until it is", "err", err, "retry_in", wait)
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
	}
}

// link is one connection.
type link struct {
	conn   *nats.Conn
	in     chan *nats.Msg
	closed chan struct{}
}

func (b *Bus) connect(ctx context.Context) (*link, error) {
	text, err := b.cfg.URL()
	if err != nil {
		return nil, fmt.Errorf("read bus_url: %w", err)
	}
	l := &link{in: make(chan *nats.Msg, MaxUnread), closed: make(chan struct{})}
	opts := []nats.Option{
		nats.NoReconnect(), nats.NoEcho(), nats.Timeout(patience), nats.FlusherTimeout(patience), nats.PingInterval(patience), nats.MaxPingsOutstanding(2),
		nats.Name("holdfast " + b.cfg.Node), nats.ErrorHandler(b.trouble), nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }),
	}
	if l.conn, err = open(ctx, text, b.cfg.TLS, b.cfg.Dial, opts...); err != nil {
		return nil, err
	}
	b.connects.Add(1)
	return l, nil
}

// Probe says whether a server can be used, and which one it is. Neither the
// name nor the error holds a secret.
func Probe(ctx context.Context, address string) (server string, err error) {
	conn, err := open(ctx, address, nil, nil, nats.NoReconnect(), nats.Timeout(patience), nats.Name("holdfast doctor"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.ConnectedAddr(), conn.FlushWithContext(ctx)
}

// open connects. Errors of reading an address name no part of it.
func open(ctx context.Context, address string, secure *tls.Config, dial func(context.Context, string, string) (net.Conn, error), opts ...nats.Option) (*nats.Conn, error) {
	tlsToo := false
	for _, one := range strings.Split(address, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
			return nil, errors.New("bus_url is no URL such as nats://host:4222")
		}
		tlsToo = tlsToo || u.Scheme == "tls"
	}
	if tlsToo && secure != nil {
		opts = append(opts, nats.Secure(secure))
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	d := &dialer{ctx: ctx, dial: dial}
	defer d.release()
	return nats.Connect(address, append(opts, nats.IgnoreDiscoveredServers(), nats.SetCustomDialer(d))...)
}

// dialer dials, and gives up a connection that is not made when its context ends.
type dialer struct {
	ctx  context.Context
	dial func(context.Context, string, string) (net.Conn, error)
	let  []func() bool
}

func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	c, err := d.dial(ctx, network, addr)
	if err == nil {
		d.let = append(d.let, context.AfterFunc(d.ctx, func() { c.Close() }))
	}
	return c, err
}

// release leaves the connection that was made to itself.
func (d *dialer) release() {
	for _, stop := range d.let {
		stop()
	}
}

// trouble is told of what goes wrong on a connection. A subject whose messages
// came too fast has lost some.
func (b *Bus) trouble(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) && sub != nil {
		b.missed.Add(1)
		if s, ok := streamOf(sub.Subject, liveSubject); ok {
			b.cfg.Hub.Lost(s)
		}
		return
	}
	b.cfg.Logger.Warn("bus", "err", err)
}

// serve uses a connection until it ends.
func (b *Bus) serve(ctx context.Context, l *link) error {
	for _, subject := range []string{allSubject, nodeSubject + b.cfg.Node + ".*"} {
		if _, err := l.conn.ChanSubscribe(subject, l.in); err != nil {
			l.conn.Close()
			return err
		}
	}
	over := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case m := <-l.in:
				b.take(m)
			case <-over:
				return
			}
		}
	})
	b.begin()
	err := b.work(ctx, l)
	l.conn.Close()
	<-l.closed
	close(over)
	reading.Wait()
	b.end()
	return err
}

// begin says that the bus can be used.
func (b *Bus) begin() {
	b.mu.Lock()
	b.up = true
	for s, e := range b.ears {
		if !e.on {
			delete(b.ears, s)
			continue
		}
		b.changed[s] = true
	}
	b.mu.Unlock()
	b.rouse()
	b.cfg.Hub.Shift()
}

// end says that it cannot, and what that may have cost.
func (b *Bus) end() {
	b.mu.Lock()
	b.up = false
	for s, o := range b.outlets {
		if o.state != unwanted {
			b.lose(s, 0)
		}
	}
	for i := range b.queue {
		if d := b.queue[i].delta; d != nil {
			b.lose(b.queue[i].stream, 1)
		}
	}
	clear(b.outlets)
	clear(b.peers)
	clear(b.changed)
	for _, e := range b.ears {
		e.sub = nil
	}
	b.queue, b.queued = nil, 0
	b.mu.Unlock()
	b.cfg.Hub.Lost()
	b.cfg.Hub.Shift()
}

// lose remembers that deltas of a stream did not leave. Under the lock.
func (b *Bus) lose(s event.Stream, n uint64) {
	if _, ok := subjectOf(s); !ok {
		return
	}
	b.dropped.Add(n)
	if len(b.lossy) < maxLost {
		b.lossy[s] = true
	} else if !b.lossy[s] {
		b.allLost = true
	}
}

// rouse has the sender look what there is to do.
func (b *Bus) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

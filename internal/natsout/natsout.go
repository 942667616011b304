// Package natsout publishes one delivery under one subject of a NATS server, and
// tells what became of it.
//
// Delivered means, of a server with JetStream, that a stream has stored the message:
// the id of the delivery is its Nats-Msg-Id, by which the stream drops a repetition
// within its window. Of one without, it means that the server has read it; whether
// anybody listened nobody knows.
package natsout

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

const (
	dialTimeout = 5 * time.Second
	cutAfter    = 250 * time.Millisecond // after the end of an attempt's time: its connection is cut
)

// Server is a NATS server, or a cluster of them, as the configuration names it.
type Server struct {
	// URL gives the address; it is asked before each connection, so that a changed
	// secret counts. Its error holds no secret.
	URL       func() (string, error)
	JetStream bool
}

// Config says where to publish.
type Config struct {
	Servers map[string]Server
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error) // default: the network
	Logger  *slog.Logger
}

// Sender keeps a connection to each server that something was published to. It is
// safe for concurrent use; one message at a time goes to one server.
type Sender struct {
	config  Config
	servers map[string]*line
}

// line is the way to one server. turn holds a token while somebody uses it.
type line struct {
	Server
	turn chan struct{}
	conn *nats.Conn // nil, or maybe closed
	raw  net.Conn   // what conn speaks over
}

// New makes a Sender. Nothing is connected to yet.
func New(config Config) *Sender {
	s := &Sender{config: config, servers: map[string]*line{}}
	for name, server := range config.Servers {
		s.servers[name] = &line{Server: server, turn: make(chan struct{}, 1)}
	}
	return s
}

// Close ends the connections. Call it after the last Send has returned.
func (s *Sender) Close() {
	for _, l := range s.servers {
		l.drop()
	}
}

func (l *line) drop() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

// Message is one delivery: the same at every attempt.
type Message struct {
	ID      string
	Subject string
	Body    []byte
}

// Send makes one attempt and returns when ctx ends.
func (s *Sender) Send(ctx context.Context, server string, m Message) delivery.Result {
	l, ok := s.servers[server]
	if !ok {
		return delivery.Result{Code: "server_not_configured", Detail: "the configuration names no such NATS server any more"}
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return failed(ctx, ctx.Err())
	}
	if l.conn == nil || !l.conn.IsConnected() {
		l.drop()
		if result := s.connect(ctx, l); result.Code != "" {
			return result
		}
	}
	// A write to a server that reads nothing ends with no context: it would hold this
	// attempt, and conn itself, for a minute.
	over := make(chan struct{})
	cut := context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(cutAfter):
			l.raw.Close()
		}
	})
	defer func() {
		close(over)
		if !cut() { // it may be cut
			l.drop()
		}
	}()
	msg := &nats.Msg{Subject: m.Subject, Data: m.Body, Header: nats.Header{nats.MsgIdHdr: {m.ID}, "Content-Type": {"application/json"}}}
	var err error
	if l.JetStream {
		err = stored(ctx, l.conn, msg)
	} else if err = l.conn.PublishMsg(msg); err == nil {
		err = l.conn.FlushWithContext(ctx)
	}
	// A refusal of the subject comes beside: before the answer to the flush, or in
	// the place of an acknowledgement.
	if said := l.conn.LastError(); said != nil && !errors.Is(err, nats.ErrMaxPayload) {
		l.drop() // it would be seen again
		if errors.Is(said, nats.ErrPermissionViolation) {
			return delivery.Result{Code: "refused_subject", Permanent: true, Detail: "the NATS server does not allow the subject"}
		}
		if err == nil {
			err = said
		}
	}
	if err != nil {
		result := failed(ctx, err)
		if result.Code == "connection" {
			l.drop()
		}
		return result
	}
	return delivery.Result{Delivered: true}
}

// stored publishes and waits for the stream's word.
func stored(ctx context.Context, conn *nats.Conn, msg *nats.Msg) error {
	js, err := conn.JetStream()
	if err != nil {
		return err
	}
	_, err = js.PublishMsg(msg, nats.Context(ctx), nats.RetryAttempts(0))
	return err
}

func (s *Sender) connect(ctx context.Context, l *line) delivery.Result {
	url, err := l.URL()
	if err != nil {
		return delivery.Result{Code: "secret_unavailable", Detail: err.Error()}
	}
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	options := []nats.Option{nats.Name("holdfast"), nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.Timeout(dialTimeout), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
	d := &dialer{ctx: dctx, dial: s.config.Dial}
	if d.dial == nil {
		d.dial = (&net.Dialer{}).DialContext
	}
	l.conn, err = nats.Connect(url, append(options, nats.SetCustomDialer(d))...)
	if !d.keep() && err == nil { // ctx ended in this moment, and the connection with it
		l.conn.Close()
		err = dctx.Err()
	}
	if err != nil {
		l.conn = nil
		return failed(dctx, err)
	}
	l.raw = d.raw
	return delivery.Result{}
}

// dialer dials for one connection, which is cut when ctx ends before keep is called:
// what follows the dialing knows no context.
type dialer struct {
	ctx  context.Context
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	stop func() bool
	raw  net.Conn // the last one
}

func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	conn, err := d.dial(d.ctx, network, addr)
	if err == nil {
		d.keep() // of a server before this one
		d.raw, d.stop = conn, context.AfterFunc(d.ctx, func() { conn.Close() })
	}
	return conn, err
}

// keep lets the connection outlive ctx; false: it is cut already.
func (d *dialer) keep() bool { return d.stop == nil || d.stop() }

// failed judges an attempt by the types of its error.
func failed(ctx context.Context, err error) delivery.Result {
	var dns *net.DNSError
	var api *nats.APIError
	var timeout net.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return delivery.Result{Code: "interrupted", Detail: "the attempt was interrupted"}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return delivery.Result{Code: "timeout", Detail: "the NATS server did not answer in time"}
	case errors.Is(err, nats.ErrMaxPayload):
		return delivery.Result{Code: "payload_too_large", Permanent: true, Detail: "the NATS server takes no message of this size"}
	case errors.Is(err, nats.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return delivery.Result{Code: "server_no_stream", Detail: "no stream of the NATS server stores the subject"}
	case errors.As(err, &api):
		return delivery.Result{Code: "server_stream", Detail: "the stream did not take the message: " + api.Description}
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return delivery.Result{Code: "secret_refused", Detail: "the NATS server did not take the credentials"}
	case errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted):
		return delivery.Result{Code: "tls", Detail: "the NATS server and the URL do not agree about TLS"}
	case errors.As(err, &dns):
		return delivery.Result{Code: "dns", Detail: "the NATS server's name could not be resolved"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return delivery.Result{Code: "timeout", Detail: "the NATS server did not answer in time"}
	}
	return delivery.Result{Code: "connection", Detail: "the connection to the NATS server failed"}
}

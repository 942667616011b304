// Package mail hands one message to one SMTP server and tells what became of it.
// It decides nothing: when to try again is the delivery room's.
//
// It stands on net/smtp of the standard library: the message is made and stored
// before the first attempt, so that nothing is left for a library of mail to
// compose, and net/smtp lets no line end into an address.
package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/smtp"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

const (
	dialTimeout = 5 * time.Second
	quitTime    = time.Second
	// maxAnswers bounds what is read from a server in one attempt: a reply is a
	// few lines, a server that says more is cut off.
	maxAnswers = 256 << 10
	// maxExcerpt bounds what is kept of an answer.
	maxExcerpt = 64 << 10
)

// Ways of TLS.
const (
	STARTTLS = "starttls"
	Implicit = "implicit"
	None     = "none"
)

// Server is an SMTP server, as the configuration names it.
type Server struct {
	Address  string // host:port
	TLS      string // STARTTLS (also when empty), Implicit or None
	Username string // empty: no authentication
	Password func() (string, error)
}

// Config says how a Sender sends. The zero value is usable.
type Config struct {
	Dial  func(ctx context.Context, network, addr string) (net.Conn, error) // default: the network
	Roots *x509.CertPool                                                    // default: those of the system
}

// Sender sends messages, each over a connection of its own. It is safe for
// concurrent use.
type Sender struct{ config Config }

// New makes a Sender.
func New(config Config) *Sender {
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	return &Sender{config: config}
}

// Envelope is one message as it is sent: Message is whole and is not changed.
type Envelope struct {
	From    string
	To      []string
	Message []byte
}

// Send makes one attempt and returns promptly when ctx ends. The message is
// delivered when the server has taken it for every receiver. A receiver that the
// server does not take refuses it for all: nothing was sent then.
//
// What the server says to MAIL, RCPT and DATA is about the message: 5xx is the last
// word. What it says before that is about the server, and may be better later.
func (s *Sender) Send(ctx context.Context, server Server, e Envelope) delivery.Result {
	password := ""
	if server.Username != "" {
		var err error
		if password, err = server.Password(); err != nil {
			return delivery.Result{Code: "secret_unavailable", Detail: err.Error()}
		}
	}
	host, _, err := net.SplitHostPort(server.Address)
	if err != nil {
		return delivery.Result{Code: "invalid", Permanent: true, Detail: "the mail server has no usable address"}
	}
	raw, err := s.config.Dial(ctx, "tcp", server.Address)
	if err != nil {
		return failed(ctx, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })() // net/smtp knows no context
	if at, ok := ctx.Deadline(); ok {
		if err := raw.SetDeadline(at); err != nil {
			return failed(ctx, err)
		}
	}
	secure := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, RootCAs: s.config.Roots}
	var conn net.Conn = &bounded{Conn: raw, left: maxAnswers}
	if server.TLS == Implicit {
		conn = tls.Client(conn, secure)
	}
	result := s.say(ctx, conn, host, server, secure, password, e)
	// A server may say what it was said.
	result.Excerpt = secret.NewScrubber(password).Excerpt(result.Excerpt, maxExcerpt)
	return result
}

// say says a message over a connection.
func (s *Sender) say(ctx context.Context, conn net.Conn, host string, server Server, secure *tls.Config, password string, e Envelope) delivery.Result {
	c, result := s.greet(ctx, conn, host, server, secure, e.From, password)
	if result.Code != "" {
		return result
	}
	if err := c.Mail(e.From); err != nil {
		return refused(ctx, err)
	}
	for _, to := range e.To {
		if err := c.Rcpt(to); err != nil {
			return refused(ctx, err)
		}
	}
	w, err := c.Data()
	if err != nil {
		return refused(ctx, err)
	}
	if _, err = w.Write(e.Message); err != nil {
		return failed(ctx, err)
	}
	if err := w.Close(); err != nil {
		return refused(ctx, err)
	}
	// The message is taken, whatever comes of the farewell: it is not waited for long.
	if conn.SetDeadline(time.Now().Add(quitTime)) == nil {
		_ = c.Quit()
	}
	return delivery.Result{Delivered: true}
}

// greet brings the connection to where a message can be said.
func (s *Sender) greet(ctx context.Context, conn net.Conn, host string, server Server, secure *tls.Config, from, password string) (*smtp.Client, delivery.Result) {
	early := func(err error) (*smtp.Client, delivery.Result) {
		r := refused(ctx, err)
		if code, ok := strings.CutPrefix(r.Code, "refused_"); ok {
			r.Code, r.Permanent = "server_"+code, false
		}
		return nil, r
	}
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return early(err)
	}
	_, domain, _ := strings.Cut(from, "@")
	if err := c.Hello(domain); err != nil {
		return early(err)
	}
	if server.TLS == "" || server.TLS == STARTTLS {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return nil, delivery.Result{Code: "tls", Detail: "the mail server does not offer STARTTLS"}
		}
		if err := c.StartTLS(secure); err != nil {
			return early(err)
		}
	}
	if server.Username == "" {
		return c, delivery.Result{}
	}
	_, how := c.Extension("AUTH")
	auth := smtp.PlainAuth("", server.Username, password, host)
	if methods := strings.Fields(strings.ToUpper(how)); !contains(methods, "PLAIN") && contains(methods, "LOGIN") {
		auth = &login{server.Username, password}
	}
	if err := c.Auth(auth); err != nil {
		var said *textproto.Error
		if errors.As(err, &said) {
			return nil, delivery.Result{Code: "secret_refused", Detail: "the mail server did not take the credentials"}
		}
		return nil, failed(ctx, err)
	}
	return c, delivery.Result{}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// login is the LOGIN mechanism, which some servers have in the place of PLAIN. Like
// PLAIN it is spoken under TLS only.
type login struct{ username, password string }

func (l *login) Start(server *smtp.ServerInfo) (string, []byte, error) {
	if !server.TLS {
		return "", nil, errors.New("mail: no credentials without TLS")
	}
	return "LOGIN", nil, nil
}

// Next answers the two questions in their order, whatever their words are.
func (l *login) Next(_ []byte, more bool) ([]byte, error) {
	if !more {
		return nil, nil
	}
	answer := l.username
	if answer == "" {
		answer = l.password
	}
	l.username = ""
	return []byte(answer), nil
}

// refused judges what a server said, or that it said nothing.
func refused(ctx context.Context, err error) delivery.Result {
	var said *textproto.Error
	if !errors.As(err, &said) {
		return failed(ctx, err)
	}
	r := delivery.Result{
		Code: "server_smtp_" + strconv.Itoa(said.Code), Detail: "the mail server answered with " + strconv.Itoa(said.Code),
		Excerpt: []byte(said.Msg),
	}
	if said.Code >= 500 && said.Code < 600 {
		r.Code, r.Permanent = "refused_smtp_"+strconv.Itoa(said.Code), true
	}
	return r
}

// failed judges an attempt that was not answered by the types of its error.
func failed(ctx context.Context, err error) delivery.Result {
	var (
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		timeout net.Error
	)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return delivery.Result{Code: "timeout", Detail: "the mail server did not answer in time"}
	case errors.Is(ctx.Err(), context.Canceled):
		return delivery.Result{Code: "interrupted", Detail: "the attempt was interrupted"}
	case errors.As(err, &dns):
		return delivery.Result{Code: "dns", Detail: "the mail server's name could not be resolved"}
	case errors.As(err, &cert), errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &record), errors.As(err, &alert):
		return delivery.Result{Code: "tls", Detail: "no trusted TLS connection to the mail server"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return delivery.Result{Code: "timeout", Detail: "the mail server did not answer in time"}
	}
	return delivery.Result{Code: "connection", Detail: "the connection to the mail server failed"}
}

// bounded is a connection of which so much is read and no more: net/textproto
// reads lines of any length.
type bounded struct {
	net.Conn
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

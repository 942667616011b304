// Package webhook delivers one body to one receiver by HTTP, signed as
// Standard Webhooks 1.0.0 says, and tells what became of it. It decides
// nothing: when to try again, and when to give up, is the delivery room's.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/netguard"
)

const (
	// DefaultTimeout bounds one attempt, the answer's body included.
	DefaultTimeout = 15 * time.Second

	// DefaultMaxResponse bounds what is read of an answer's body.
	DefaultMaxResponse = 64 << 10
	// DefaultMaxExcerpt bounds what is kept of it.
	DefaultMaxExcerpt = 8 << 10

	drainTime = time.Second // how long the reading of a body may take
)

// Request is one attempt of a delivery. ID and Body are the same at every
// attempt and replay (I-26); Timestamp is the attempt's own.
type Request struct {
	URL       string
	Headers   map[string]string // the user's; see CheckHeaders
	Body      []byte            // JSON; not changed
	ID        string            // visible ASCII without a dot
	Keys      []Key             // each signs: the current one, and during a rotation the one before
	Timestamp time.Time
	Media     string            // of the body; empty: application/json
	Fixed     map[string]string // headers of the format, which win over the user's
	// Private lists what is secret besides URL, Headers and Secret, so that it
	// does not stand in an excerpt, though the receiver sends it back.
	Private []string
}

// Outcome is what became of an attempt: delivered (Failed is nil), or not.
type Outcome struct {
	Status int // HTTP status, 0 when none came
	Failed *Failure
}

// Delivered says whether the receiver took the body.
func (o Outcome) Delivered() bool { return o.Failed == nil }

// Codes of failures. A status outside of 2xx and 3xx is "http_" and the status.
const (
	CodeInvalid     = "invalid"      // the request itself cannot be sent, now or later
	CodeDialRefused = "dial_refused" // the guard does not allow the address; nothing was sent
	CodeDNS         = "dns"          // the name has no address
	CodeTLS         = "tls"          // no trusted connection
	CodeConnection  = "connection"   // not made, or broken before an answer
	CodeTimeout     = "timeout"      // no answer in time; the receiver may have the body
	CodeRedirect    = "redirect"     // a 3xx, which is never followed
	CodeInterrupted = "interrupted"  // the caller cancelled; the receiver may have the body
)

// Failure says why an attempt failed.
type Failure struct {
	Code string // stable, snake_case
	// RetryAfter is how long the receiver asked to wait, at most
	// MaxRetryAfter; 0 when it did not ask.
	RetryAfter time.Duration
	// Permanent says that the request cannot be sent at all, now or later. What
	// an answer means is not said here: see Outcome.Status.
	Permanent bool
	// Gone says that the receiver is gone for good (410).
	Gone bool
	// Excerpt is the beginning of the answer's body, valid UTF-8, bounded, with
	// what was sent of secrets taken out; empty when there was none.
	Excerpt []byte
	// Detail is a short fixed text, safe to show. It holds nothing of the
	// receiver's answer and neither address nor secret.
	Detail string
}

// Config says how a Sender sends. The zero value is usable.
type Config struct {
	Timeout time.Duration // of one attempt; 0: DefaultTimeout
	Version string        // of the daemon, for User-Agent; empty: dev
	// MaxRetryAfter is the longest wait that a receiver can ask for; 0: MaxRetryAfter.
	MaxRetryAfter time.Duration
	MaxResponse   int64 // bytes that are read of an answer's body; 0: DefaultMaxResponse
	MaxExcerpt    int   // bytes that are kept of it; 0: DefaultMaxExcerpt
}

// Sender sends attempts. It is safe for concurrent use.
type Sender struct {
	config    Config
	client    *http.Client
	userAgent string
}

// NewSender returns a Sender whose connections guard makes.
func NewSender(config Config, guard *netguard.Guard) *Sender {
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	if config.Version == "" {
		config.Version = "dev"
	}
	if config.MaxRetryAfter <= 0 {
		config.MaxRetryAfter = MaxRetryAfter
	}
	if config.MaxResponse <= 0 {
		config.MaxResponse = DefaultMaxResponse
	}
	if config.MaxExcerpt <= 0 {
		config.MaxExcerpt = DefaultMaxExcerpt
	}
	return &Sender{config: config, client: guard.Client(config.Timeout), userAgent: "holdfast/" + config.Version}
}

// Close ends idle connections. Call it after the last Send has returned.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Send makes one attempt and returns promptly when ctx ends. 2xx is delivered,
// whatever follows the header of the answer; a redirect is not followed.
func (s *Sender) Send(ctx context.Context, r Request) Outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, failure := s.prepare(ctx, r)
	if failure != nil {
		return Outcome{Failed: failure}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return Outcome{Failed: failed(ctx, err)}
	}
	f := answered(resp, s.config.MaxRetryAfter)
	// A receiver that drips must not hold this attempt. What is read past the
	// excerpt only frees the connection for the next.
	stop := time.AfterFunc(drainTime, cancel)
	body := io.LimitReader(resp.Body, s.config.MaxResponse)
	if f != nil {
		// Cut where a secret cannot be cut in two and so be missed.
		text, _ := io.ReadAll(io.LimitReader(body, int64(s.config.MaxExcerpt)+maxPrivate))
		f.Excerpt = private(&r, req).Excerpt(text, s.config.MaxExcerpt)
	}
	_, _ = io.Copy(io.Discard, body)
	stop.Stop()
	_ = resp.Body.Close()
	return Outcome{Status: resp.StatusCode, Failed: f}
}

// prepare makes the HTTP request. net/http may send it a second time only when
// nothing of it was written to a kept connection that had died: for more it
// would want an idempotency header, which deliveries do not have.
func (s *Sender) prepare(ctx context.Context, r Request) (*http.Request, *Failure) {
	invalid := func(detail string) (*http.Request, *Failure) {
		return nil, &Failure{Code: CodeInvalid, Permanent: true, Detail: detail}
	}
	u, err := netguard.CheckURL(r.URL)
	if err != nil {
		return invalid("the address of the target cannot be used")
	}
	if !validID(r.ID) {
		return invalid("the delivery has no usable id")
	}
	if len(r.Keys) == 0 {
		return invalid("the target has no signing secret")
	}
	if CheckHeaders(r.Headers) != nil {
		return invalid("the headers of the target cannot be used")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return invalid("the address of the target cannot be used")
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	for name, value := range r.Fixed {
		if !netguard.ValidHeaderName(name) || !netguard.ValidHeaderValue(value) {
			return invalid("the body has no form that this format can send")
		}
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", cmp.Or(r.Media, "application/json"))
	req.Header.Set("User-Agent", s.userAgent)
	req.Header.Set(HeaderID, r.ID)
	req.Header.Set(HeaderTimestamp, strconv.FormatInt(r.Timestamp.Unix(), 10))
	req.Header.Set(HeaderSignature, Signatures(r.Keys, r.ID, r.Timestamp, r.Body))
	return req, nil
}

// answered judges an answer by its status.
func answered(resp *http.Response, limit time.Duration) *Failure {
	status := resp.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	f := &Failure{
		Code:       "http_" + strconv.Itoa(status),
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now(), limit),
		Gone:       status == http.StatusGone,
		Detail:     fmt.Sprintf("the receiver answered with status %d", status),
	}
	if status >= 300 && status < 400 {
		f.Code = CodeRedirect
		f.Detail += "; redirects are not followed"
	}
	return f
}

// failed judges an attempt without an answer by the types of its error.
func failed(ctx context.Context, err error) *Failure {
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
	case errors.Is(ctx.Err(), context.Canceled):
		return &Failure{Code: CodeInterrupted, Detail: "the attempt was interrupted"}
	case errors.Is(err, netguard.ErrRefused):
		return &Failure{Code: CodeDialRefused,
			Detail: "the target's address is not public and not listed in targets.allow_private"}
	case errors.As(err, &dns):
		return &Failure{Code: CodeDNS, Detail: "the receiver's name could not be resolved"}
	case errors.As(err, &cert), errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &record), errors.As(err, &alert),
		errors.Is(err, http.ErrSchemeMismatch):
		return &Failure{Code: CodeTLS, Detail: "no trusted TLS connection to the receiver" + distrust(err)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &Failure{Code: CodeTimeout, Detail: "the receiver did not answer in time"}
	}
	return &Failure{Code: CodeConnection, Detail: "the connection to the receiver failed" + broken(err)}
}

// distrust says why there is no TLS connection that can be trusted, as far as the
// types of the error tell; never in the words of the other side.
func distrust(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		alert   tls.AlertError
	)
	switch {
	case errors.As(err, &unknown):
		return ": its certificate is of an authority that this system does not trust"
	case errors.As(err, &host):
		return ": its certificate is for other names"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return ": its certificate is not good at this time"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return ": what listens there speaks no TLS"
	case errors.As(err, &alert):
		return ": it refused the handshake"
	}
	return ""
}

// broken says how a connection failed, as far as the system tells.
func broken(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ": nobody listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return ": there is no way to its network"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ": it was closed before an answer; the receiver may have the body"
	}
	return ""
}

// Package wire is what all vendors' adapters share: the event stream decoder,
// one table from the errors of every vendor to the classes of llm, the reading
// of Retry-After, messages that are safe to show, and HTTP with time limits
// that see a stream stall.
//
// It knows HTTP and JSON error bodies, and no vendor's dialect.
package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/netguard"
)

// The defaults of Limits. A model on the user's own machine may read a long
// prompt for minutes before its first byte.
const (
	DefaultConnect   = 10 * time.Second
	DefaultFirstByte = 5 * time.Minute
	DefaultIdle      = 2 * time.Minute
)

// Limits are the time limits of one exchange; 0 means the default. There is
// none for the whole answer: that is the caller's context.
type Limits struct {
	FirstByte time.Duration // from the request to the head of the answer
	Idle      time.Duration // between two pieces of the body; comments count as life
}

// NewTransport makes the transport for vendors, whose connections guard makes.
// proxy says by which proxy a request goes; nil: by none, also where the
// environment names one, since the guard would see only that. Connections are
// kept, compression is not asked for since it holds streams back.
func NewTransport(guard *netguard.Guard, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            guard.DialContext,
		TLSHandshakeTimeout:    DefaultConnect,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 1 << 20,
	}
}

// public reaches public addresses only.
var public = sync.OnceValue(func() http.RoundTripper {
	guard, err := netguard.New(netguard.Config{DialTimeout: DefaultConnect})
	if err != nil {
		panic(err) // there is nothing in it that could be wrong
	}
	return NewTransport(guard, nil)
})

// Client sends requests under time limits. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	limits Limits
}

// NewClient takes the given client's transport; when it is nil, one that reaches
// public addresses only. Redirects are never followed and cookies never kept, whatever the given
// client would do: a request holds a credential and the user's text.
func NewClient(base *http.Client, limits Limits) *Client {
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if base != nil {
		c.Transport, c.Timeout = base.Transport, base.Timeout
	} else {
		c.Transport = public()
	}
	if limits.FirstByte <= 0 {
		limits.FirstByte = DefaultFirstByte
	}
	if limits.Idle <= 0 {
		limits.Idle = DefaultIdle
	}
	return &Client{http: c, limits: limits}
}

// CloseIdle ends connections that are kept for a next request.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Answer is the answer to one request. Its methods are for one goroutine.
type Answer struct {
	Status int
	Header http.Header

	body     io.ReadCloser
	ctx      context.Context // the caller's
	inner    context.Context // ends also when a limit has passed
	stop     context.CancelCauseFunc
	watchdog *time.Timer
	idle     time.Duration
	last     time.Time // set by EndWithin
	once     sync.Once
}

var errStalled = errors.New("time limit passed")

// Do sends one request, once. Its errors are *llm.Error of class transport, of
// class invalid request when the guard refuses the address, or
// of class aborted with ctx's error in the chain when ctx ended. The caller
// closes the answer.
func (c *Client) Do(ctx context.Context, req *http.Request) (*Answer, error) {
	inner, stop := context.WithCancelCause(ctx)
	watchdog := time.AfterFunc(c.limits.FirstByte, func() { stop(errStalled) })
	resp, err := c.http.Do(req.WithContext(inner))
	watchdog.Stop()
	if err != nil {
		cause := context.Cause(inner)
		stop(nil)
		if e := aborted(ctx); e != nil {
			return nil, e
		}
		if errors.Is(cause, errStalled) {
			return nil, llm.Errorf(llm.Transport, "the vendor gave no answer within %s", c.limits.FirstByte).Because(err)
		}
		if why := netguard.Refusal(err); why != "" { // a person must change something; the next attempt finds the same
			return nil, llm.Errorf(llm.InvalidRequest, "the vendor was not asked: %s", why).Because(err)
		}
		return nil, llm.Errorf(llm.Transport, "%s", reach(err)).Because(err)
	}
	netguard.Unswitched(resp)
	return &Answer{
		Status: resp.StatusCode, Header: resp.Header, body: resp.Body,
		ctx: ctx, inner: inner, stop: stop, watchdog: watchdog, idle: c.limits.Idle,
	}, nil
}

// Read reads from the body under the idle limit. The end is io.EOF; what broke
// before it is a *llm.Error: truncated when the body ended too soon, transport
// when the connection failed or stalled, aborted when the caller's context
// ended.
func (a *Answer) Read(p []byte) (int, error) {
	limit := a.idle
	if !a.last.IsZero() {
		limit = min(limit, max(time.Until(a.last), 0))
	}
	a.watchdog.Reset(limit)
	n, err := a.body.Read(p)
	a.watchdog.Stop()
	if err == nil || err == io.EOF {
		return n, err
	}
	if e := aborted(a.ctx); e != nil {
		return n, e
	}
	switch {
	case errors.Is(context.Cause(a.inner), errStalled):
		err = llm.Errorf(llm.Transport, "the vendor sent nothing for %s", limit).Because(err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = llm.Errorf(llm.Truncated, "the answer broke off").Because(err)
	default:
		err = llm.Errorf(llm.Transport, "the connection failed in the middle of the answer").Because(err)
	}
	return n, err
}

// EndWithin bounds all reads to come, also those of a body that only shows
// signs of life. Another call sets the bound anew.
func (a *Answer) EndWithin(d time.Duration) { a.last = time.Now().Add(d) }

// ReadAll reads the body to its end or to limit bytes, and says whether it was
// longer.
func (a *Answer) ReadAll(limit int) (body []byte, more bool, err error) {
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(a, int64(limit)+1))
	if n > int64(limit) {
		return buf.Bytes()[:limit], true, err
	}
	return buf.Bytes(), false, err
}

// Close ends the exchange. With drain it first waits a moment for the end of
// the body, so that the connection can serve the next request; it never waits
// longer than that on a vendor that holds the connection open.
func (a *Answer) Close(drain bool) {
	a.once.Do(func() {
		if drain && a.ctx.Err() == nil {
			a.watchdog.Reset(drainTime)
			_, _ = io.CopyN(io.Discard, a.body, 4<<10) // only the end matters
		}
		a.watchdog.Stop()
		a.stop(nil)
		_ = a.body.Close() // nothing more is wanted from it
	})
}

const drainTime = 50 * time.Millisecond

// aborted gives the error for a context of ours that has ended, or nil.
func aborted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
	}
	return nil
}

// reach says in fixed words why the vendor could not be reached. The error's
// own text stays private: it may hold the address with all its parts.
func reach(err error) string {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var plain tls.RecordHeaderError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return "the vendor's host name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the vendor refuses the connection: is the server running?"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid):
		return "the vendor's TLS certificate is not valid"
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the vendor's server speaks HTTP, not HTTPS: check base_url"
	case errors.As(err, &alert), errors.As(err, &plain):
		return "the TLS handshake with the vendor failed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no connection to the vendor within the time limit"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the vendor closed the connection without an answer"
	}
	return "the vendor cannot be reached"
}

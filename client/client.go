// Package client speaks to a Holdfast daemon over HTTP. It has one method for
// each operation, gives the types of package api, and needs nothing but the
// standard library.
//
//	c, err := client.New("http://127.0.0.1:7411", os.Getenv("HOLDFAST_TOKEN"))
//	run, _, err := c.Submit(ctx, "my-session", &api.SubmitRun{Content: api.Text("hello")})
//	run, err = c.Wait(ctx, run.ID)
//
// An answer of the daemon that is no success is a *Error; decide by its
// problem's code. A daemon that cannot be reached is ErrUnreachable.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// The bounds of what a daemon may answer, in bytes.
const (
	maxBody    = 64 << 20
	maxProblem = 1 << 20
)

// ErrUnreachable says that no answer came: the daemon is not there, or the
// connection broke. Whether a request took effect is not known then; a
// submission with an idempotency key may simply be repeated.
var ErrUnreachable = errors.New("the daemon cannot be reached")

// Error is an answer of the daemon that is no success.
type Error struct {
	Status  int // HTTP
	Problem api.Problem
}

// Error gives the problem's detail and code.
func (e *Error) Error() string {
	if e.Problem.Code == "" {
		return fmt.Sprintf("the server answered %d %s", e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("%s (%s)", e.Problem.Detail, e.Problem.Code)
}

// Code is the problem code in err's chain; empty when there is none.
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Problem.Code
	}
	return ""
}

// Client speaks to one daemon. It is safe for concurrent use.
type Client struct {
	base    string // without a slash at the end
	token   string
	user    string
	http    *http.Client
	backoff func(failures int) time.Duration
	retries int
	idle    time.Duration
}

// Option changes a client.
type Option func(*Client)

// WithHTTPClient sends through h, for a transport of one's own. It must have
// no timeout: streams and waits are long.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithUser names the user within whose sessions aliases are looked for, to
// whom lists are narrowed, and who owns what is created. A token that is bound
// to a user needs none.
func WithUser(user string) Option { return func(c *Client) { c.user = user } }

// WithRetry says how Wait and the streams come again after a broken
// connection: at most retries times in a row without progress, the first after
// backoff(1). The default is 30 times, from 100 ms to 5 s with jitter. Other reads
// come again three times at most where the connection broke or the daemon says
// that it stops or cannot reach its store; what changes something never does.
func WithRetry(retries int, backoff func(failures int) time.Duration) Option {
	return func(c *Client) { c.retries, c.backoff = retries, backoff }
}

// WithIdle sets how long a stream may be silent until its connection counts as
// broken; it must be longer than the daemon's heartbeat of 15 s. The default is 45 s.
func WithIdle(d time.Duration) Option { return func(c *Client) { c.idle = d } }

// New makes a client of the daemon at base: http://host:port, https://host:port
// or unix:/path/of/socket. A unix socket wants no token.
func New(base, token string, opts ...Option) (*Client, error) {
	c := &Client{token: token, backoff: backoff, retries: 30, idle: 45 * time.Second}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return nil, errors.New("client: unix: wants the path of a socket")
		}
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		base = "http://holdfast"
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("client: %.200q is not http://host:port, https://host:port or unix:/path", base)
	}
	c.base = strings.TrimRight(u.String(), "/")
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// backoff doubles from 100 ms to 5 s, less up to a half by chance, so that
// many clients do not come at once.
func backoff(failures int) time.Duration {
	d := min(100*time.Millisecond<<min(failures-1, 10), 5*time.Second)
	return d - rand.N(d/2)
}

// request is one call.
type request struct {
	method string
	path   []string // segments, as they are
	query  url.Values
	header http.Header
	body   any
	once   bool // whoever asks comes again by itself, or wants to know how it is now
	// anonymous: without the client's token.
	anonymous bool
}

// to names an operation.
func to(method string, path ...string) *request {
	return &request{method: method, path: path, query: url.Values{}, header: http.Header{}}
}

// with adds a parameter to the query, unless it is empty.
func (r *request) with(name, value string) *request {
	if value != "" {
		r.query.Set(name, value)
	}
	return r
}

// send does the request. The caller closes the body of the response, which is a success.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	var body io.Reader
	media := "application/json"
	if b, ok := r.body.(bytesBody); ok {
		body, media = b.from, b.media
	} else if r.body != nil {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r.body); err != nil {
			return nil, fmt.Errorf("client: encode request: %w", err)
		}
		body = &b
	}
	target := c.base
	for _, segment := range r.path {
		target += "/" + url.PathEscape(segment)
	}
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", media)
	}
	if c.token != "" && !r.anonymous {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, broken(ctx, err)
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, problemOf(res)
	}
	return res, nil
}

// broken names what ended a connection: the caller, or trouble.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

func problemOf(res *http.Response) error {
	e := &Error{Status: res.StatusCode}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if media == "application/problem+json" {
		b, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		if err != nil || json.Unmarshal(b, &e.Problem) != nil {
			e.Problem = api.Problem{} // what cannot be read says nothing
		}
	}
	return e
}

// do sends a request and reads its answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, r *request, out any) (status int, err error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := readAll(ctx, res.Body)
	if err != nil {
		return 0, err
	}
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return 0, fmt.Errorf("client: read answer of %s /%s: %w", r.method, strings.Join(r.path, "/"), err)
	}
	return res.StatusCode, nil
}

// readAll reads an answer within bounds.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err != nil {
		return nil, broken(ctx, err)
	}
	if len(b) > maxBody {
		return nil, fmt.Errorf("client: the answer holds more than %d bytes", maxBody)
	}
	return b, nil
}

// readAgain is how often a read comes again that met a daemon which stops or
// cannot reach its store, or whose connection broke.
const readAgain = 3

// call is do for an answer of type T. What only reads may come again: behind one
// address there may be another node.
func call[T any](ctx context.Context, c *Client, r *request) (*T, error) {
	for failures := 1; ; failures++ {
		out := new(T)
		_, err := c.do(ctx, r, out)
		if err == nil {
			return out, nil
		}
		if r.method != http.MethodGet || r.once || failures > readAgain || !passing(err) || refused(err) {
			return nil, err
		}
		if err := c.pause(ctx, failures, err); err != nil {
			return nil, err
		}
	}
}

// refused says whether no connection was made at all: nobody is there, which is
// told at once.
func refused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// passing says whether trouble may pass by itself.
func passing(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		switch e.Status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	return errors.Is(err, ErrUnreachable)
}

// pause waits before another try; it fails with err when there have been enough.
func (c *Client) pause(ctx context.Context, failures int, err error) error {
	if failures > c.retries {
		return err
	}
	t := time.NewTimer(c.backoff(failures))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

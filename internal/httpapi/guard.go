package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// door is what a request passes before it is routed. local: the unix socket,
// which no browser and no other host can reach.
func (s *server) door(mux *http.ServeMux, local bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchange.Strict(w.Header())
		c := s.call(w, r, local)
		if err := c.guard(); err != nil {
			if !local {
				err = c.stranger(err)
			}
			c.fail(err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

var (
	errProxy = problem.New(problem.Forbidden, "proxy_required", "this daemon is behind a proxy (behind_proxy) and takes requests from it alone; what asks here is none of proxies")
	errHost  = exchange.WithStatus(http.StatusMisdirectedRequest, problem.New(problem.Forbidden, "host_not_allowed",
		"the Host of the request is not a name of this daemon; a name by which it shall be asked is listed in public_names"))
	errQueryToken = problem.New(problem.Invalid, "token_in_query", "a token in a URL ends up in logs and histories: send it as Authorization: Bearer …, and make another one in place of this")
)

// guard holds the rules that come before routing: who asks, under which name, and
// for which page.
func (c *call) guard() error {
	if !c.local {
		if remote, ok := gate.Remote(c.R.RemoteAddr); ok && c.cfg.Proxies != nil && !c.cfg.Proxies.Is(remote) && !remote.IsLoopback() {
			return errProxy
		}
		if !c.cfg.Hosts.Allows(c.R.Host) {
			return errHost
		}
	}
	if err := c.sameOrigin(); err != nil {
		return problem.New(problem.Forbidden, "cross_origin", "requests from pages of another origin are not answered here").Because(err)
	}
	if q := c.R.URL.RawQuery; q != "" && namesToken(q) {
		return errQueryToken
	}
	return nil
}

// crossOrigin knows which changing requests a browser sends for a page of another origin.
var crossOrigin = http.NewCrossOriginProtection()

// sameOrigin refuses what a browser sends for a page of another origin. Unlike
// CrossOriginProtection, which is asked too, it looks at reads as well: a stream
// of events is a GET.
func (c *call) sameOrigin() error {
	if err := crossOrigin.Check(c.R); err != nil {
		return err
	}
	switch site := c.R.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return errors.New("Sec-Fetch-Site")
	}
	for _, origin := range c.R.Header["Origin"] {
		if !c.cfg.Hosts.Same(origin, c.R.Host) {
			return errors.New("Origin")
		}
	}
	return nil
}

// tokenParams are names under which tokens are put into queries.
var tokenParams = []string{"token", "access_token", "api_key", "apikey", "authorization", "bearer"}

func namesToken(query string) bool {
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		if slices.ContainsFunc(tokenParams, func(p string) bool { return strings.EqualFold(p, name) }) {
			return true
		}
	}
	return false
}

var errCrowded = problem.New(problem.Limited, "too_many_requests", "limits.requests requests are being answered; try again")

// begin takes a place among the requests that are answered at once. A stream or a
// wait gives it back, and counts among those.
func (c *call) begin() error {
	select {
	case c.requests <- struct{}{}:
		c.inside = true
		return nil
	default:
		return errCrowded
	}
}

func (c *call) leave() {
	if c.inside {
		c.inside = false
		<-c.requests
	}
}

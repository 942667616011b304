package door

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

var (
	errProxy = problem.New(problem.Forbidden, "proxy_required", "this daemon is behind a proxy (behind_proxy) and takes requests from it alone; what asks here is none of proxies")
	errHost  = exchange.WithStatus(http.StatusMisdirectedRequest, problem.New(problem.Forbidden, "host_not_allowed",
		"the Host of the request is not a name of this daemon; a name by which it shall be asked is listed in public_names"))
	errQueryToken = problem.New(problem.Invalid, "token_in_query", "a token in a URL ends up in logs and histories: send it as Authorization: Bearer …, and make another one in place of this")
)

// Guard holds the rules that come before routing: who asks, under which name, and
// for which page.
func (v *Visit) Guard() error {
	if !v.local {
		if remote, ok := gate.Remote(v.r.RemoteAddr); ok && v.door.cfg.Proxies != nil && !v.door.cfg.Proxies.Is(remote) && !remote.IsLoopback() {
			return errProxy
		}
		if !v.door.cfg.Hosts.Allows(v.r.Host) {
			return errHost
		}
	}
	if err := v.sameOrigin(); err != nil {
		return problem.New(problem.Forbidden, "cross_origin", "requests from pages of another origin are not answered here").Because(err)
	}
	if q := v.r.URL.RawQuery; q != "" && namesToken(q) {
		return errQueryToken
	}
	return nil
}

// crossOrigin knows which changing requests a browser sends for a page of another origin.
var crossOrigin = http.NewCrossOriginProtection()

// sameOrigin refuses what a browser sends for a page of another origin. Unlike
// CrossOriginProtection, which is asked too, it looks at reads as well: a stream
// of events is a GET.
func (v *Visit) sameOrigin() error {
	if err := crossOrigin.Check(v.r); err != nil {
		return err
	}
	switch site := v.r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return errors.New("Sec-Fetch-Site")
	}
	for _, origin := range v.r.Header["Origin"] {
		if !v.door.cfg.Hosts.Same(origin, v.r.Host) {
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

// Enter takes a place among the requests that are answered at once. A stream or a
// wait gives it back, and counts among those.
func (v *Visit) Enter() error {
	select {
	case v.door.requests <- struct{}{}:
		v.inside = true
		return nil
	default:
		return errCrowded
	}
}

// Leave gives the place back. It may be said again.
func (v *Visit) Leave() {
	if v.inside {
		v.inside = false
		<-v.door.requests
	}
}

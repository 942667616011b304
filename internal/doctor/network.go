package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/bus"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/listener"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// maxSocketPath is what every system takes as the path of a socket, in bytes.
const maxSocketPath = 103

// listener says whether the daemon can listen where it should.
func (p *patient) listener() {
	const check = "listener"
	path, unix := strings.CutPrefix(p.cfg.Listen, "unix:")
	if unix {
		path = p.cfg.Path(path)
		p.socket(check, path)
		return
	}
	reach := "this machine only"
	if host, _, err := net.SplitHostPort(p.cfg.Listen); err != nil || !loopback(host) {
		reach = "whoever can reach this machine"
	}
	if p.glance.Held {
		p.add(check, OK, "", "%s is for %s; every request wants a token", p.cfg.Listen, reach)
		return
	}
	l, err := net.Listen("tcp", p.cfg.Listen)
	if err != nil {
		do := "name another address in listen"
		if errors.Is(err, syscall.EADDRINUSE) {
			do = "end the process that listens there, or name another address in listen"
		}
		p.add(check, Fail, do, "%v", err)
		return
	}
	if err := l.Close(); err != nil {
		p.add(check, Warn, "", "%v", err)
		return
	}
	p.add(check, OK, "", "%s is free, and for %s; every request wants a token", p.cfg.Listen, reach)
}

// certificate says until when the listener's certificate is good.
func (p *patient) certificate() {
	const check = "certificate"
	t := p.cfg.TLS
	if t.Cert == "" {
		return
	}
	until, err := listener.Expires(p.cfg.Path(t.Cert), p.cfg.Path(t.Key))
	left := time.Until(until)
	switch {
	case err != nil:
		p.add(check, Fail, "put a certificate and its key where tls says", "%v", err)
	case left <= 0:
		p.add(check, Fail, "put a new one in its place; the daemon takes it without a new start", "it ended at %s", until.Format(time.RFC3339))
	case left < soonOver:
		p.add(check, Warn, "put a new one in its place; the daemon takes it without a new start", "it ends at %s", until.Format(time.RFC3339))
	default:
		p.add(check, OK, "", "good until %s", until.Format(time.RFC3339))
	}
}

// soonOver is when somebody should look after a certificate.
const soonOver = 14 * 24 * time.Hour

func (p *patient) socket(check, path string) {
	if len(path) > maxSocketPath {
		p.add(check, Fail, "name a shorter path in listen", "the path of the socket holds %d bytes, and systems take %d: %s", len(path), maxSocketPath, path)
		return
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			p.add(check, Fail, "take it away, or name another path in listen", "%s is there and is no socket", path)
			return
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			if !p.glance.Held {
				p.add(check, Fail, "end the process that listens there, or name another path in listen", "another process listens on unix:%s", path)
				return
			}
		}
		if p.private(check, path, "restart the daemon, which makes the socket with mode 0600: who opens it is an administrator") {
			return
		}
	} else if err := writable(filepath.Dir(path)); err != nil {
		p.add(check, Fail, "name a folder that the daemon's user may write", "no socket can be made there: %v", err)
		return
	}
	p.add(check, OK, "", "unix:%s is for the daemon's user only; it wants no token", path)
}

// bus says whether the bus between nodes can be used.
func (p *patient) bus(ctx context.Context) {
	if !p.cfg.BusURL.Set() {
		return
	}
	const check = "bus"
	address, err := p.cfg.Bus()
	if err != nil {
		p.add(check, Fail, "set what bus_url refers to; the daemon works without it, and shows no live text of other nodes", "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	server, err := bus.Probe(ctx, address)
	if err != nil {
		p.add(check, Fail, "see that bus_url is right, that the server runs and takes the credentials; the daemon works without it, and shows no live text of other nodes", "%v", err)
		return
	}
	for _, one := range strings.Split(address, ",") {
		if u, err := url.Parse(strings.TrimSpace(one)); err == nil && u.Scheme != "tls" && !loopback(u.Hostname()) {
			p.add(check, Warn, "use tls, or a network that nobody else is on", "live text of sessions goes to %s unencrypted", u.Host)
			return
		}
	}
	p.add(check, OK, "", "%s answers", server)
}

// vendor is how a provider is asked for its models.
type vendor struct {
	base string // where the configuration names none
	path string // of the list of models; empty: there is none. Its version may stand in the base already
	any  bool   // there, any version is one
	sign func(h http.Header, key string)
}

var versionForm = regexp.MustCompile(`^v[0-9]`)

func bearer(h http.Header, key string) { h.Set("Authorization", "Bearer "+key) }

// vendorOf knows the providers by name.
func vendorOf(provider string) (vendor, bool) {
	switch provider {
	case "openai_compatible":
		return vendor{path: "/models", sign: bearer}, true
	case "openai":
		return vendor{base: "https://api.openai.com/v1", path: "/models", sign: bearer}, true
	case "anthropic":
		return vendor{base: "https://api.anthropic.com", path: "/v1/models", sign: func(h http.Header, key string) {
			h.Set("X-Api-Key", key)
			h.Set("Anthropic-Version", "2023-06-01")
		}}, true
	case "gemini":
		return vendor{base: "https://generativelanguage.googleapis.com", path: "/v1beta/models", any: true,
			sign: func(h http.Header, key string) { h.Set("X-Goog-Api-Key", key) }}, true
	}
	return vendor{}, false
}

// routes asks each server once, all at the same time, and tells by name.
func (p *patient) routes(ctx context.Context) {
	names := slices.Sorted(maps.Keys(p.cfg.Routes))
	found := make([][]Finding, len(names))
	var all sync.WaitGroup
	places := make(chan struct{}, 8)
	for i, name := range names {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			own := &patient{Input: p.Input, cfg: p.cfg, client: p.client}
			own.route(ctx, name, p.cfg.Routes[name])
			found[i] = own.found
		})
	}
	all.Wait()
	for _, list := range found {
		p.found = append(p.found, list...)
	}
}

func (p *patient) route(ctx context.Context, name string, r config.Route) {
	check := "route " + name
	if r.Provider == "scripted" {
		p.add(check, OK, "", "scripted: it needs nobody")
		return
	}
	v, known := vendorOf(r.Provider)
	base := strings.TrimRight(r.BaseURL, "/")
	if base == "" {
		base = v.base
	}
	if base == "" {
		p.add(check, Warn, "try a run on it", "%s is not known here, so that it was not asked", r.Provider)
		return
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		p.add(check, Fail, "write base_url as http(s)://host[:port]/path", "base_url cannot be used")
		return
	}
	if u.Scheme == "http" && r.APIKey != nil && !loopback(u.Hostname()) {
		p.add(check, Warn, "use https, or a server on this machine", "the key goes to %s unencrypted", u.Host)
	}
	status, ok := p.ask(ctx, check, base, nil)
	if !ok {
		return
	}
	if !p.Online || !known || v.path == "" {
		p.add(check, OK, "", "%s answers (%d to a request without a key)", u.Host, status)
		return
	}
	p.models(ctx, check, u, base, v, r)
}

// models asks with the key, of the server that the configuration names and of no other.
func (p *patient) models(ctx context.Context, check string, u *url.URL, base string, v vendor, r config.Route) {
	path := v.path
	if version, rest, two := strings.Cut(path[1:], "/"); two {
		if in := base[strings.LastIndexByte(base, '/')+1:]; in == version || v.any && versionForm.MatchString(in) {
			path = "/" + rest
		}
	}
	key := ""
	if r.APIKey != nil {
		keys, err := p.cfg.UseFor(ctx, config.Reference{Key: check + " api_key", Ref: *r.APIKey}, secret.HostOf(u))
		if err == nil {
			key = keys[0]
		} else {
			p.add(check, Warn, "see the finding about secrets", "it was not asked with its key, which cannot be read")
			return
		}
	}
	status, ok := p.ask(ctx, check, base+path, func(h http.Header) {
		if key != "" {
			v.sign(h, key)
		}
	})
	if !ok {
		return
	}
	switch {
	case status >= 200 && status < 300:
		p.add(check, OK, "", "%s takes the key and lists its models", u.Host)
	case status == 401 || status == 403:
		p.add(check, Fail, "set another key where api_key refers to", "%s refuses the key (%d)", u.Host, status)
	case status >= 300 && status < 400:
		p.add(check, Fail, "write where it points to in base_url, if you trust it", "%s sends elsewhere (%d), where the key does not follow", u.Host, status)
	case status == 404 || status == 405:
		p.add(check, Warn, "see whether base_url ends where the vendor says; a server without a list of models is fine", "%s has no list of models there (%d)", u.Host, status)
	default:
		p.add(check, Warn, "try again later", "%s answers %d", u.Host, status)
	}
}

// ask makes one request and gives the status of the answer; not ok: there was
// none, and that is told. A Date that is far from our clock is told too.
func (p *patient) ask(ctx context.Context, check, target string, sign func(http.Header)) (status int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		p.add(check, Fail, "write base_url as http(s)://host[:port]/path", "base_url cannot be used")
		return 0, false
	}
	req.Header.Set("User-Agent", "holdfast-doctor")
	if sign != nil {
		sign(req.Header)
	}
	sent := time.Now()
	res, err := p.client.Do(ctx, req)
	if err != nil {
		text := "the server cannot be reached"
		var e *llm.Error
		if errors.As(err, &e) {
			text = e.Message
		}
		if ctx.Err() != nil {
			text = fmt.Sprintf("no answer within %s", p.Timeout)
		}
		p.add(check, Fail, "see that base_url is right, that the server runs, and that this machine may reach it", "%s: %s", req.URL.Host, text)
		return 0, false
	}
	defer res.Close(false)
	_, _ = io.CopyN(io.Discard, res, 64<<10) // whatever it says
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		if level, off := judgeSkew(date, sent, time.Now()); level != OK {
			p.add("clock", level, "set the clock, and keep it right (NTP): receivers refuse signatures that are five minutes old", "it is %s away from that of %s", off.Round(time.Second), req.URL.Host)
		}
	}
	return res.Status, true
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Package netguard is the one way out to addresses that users and
// configuration name: webhooks, declared HTTP tools, providers and the
// collector of telemetry dial through it.
//
// It connects to public addresses only, and to what the operator lists or names
// exactly. The
// check is made on the resolved address of the connection that is about to be
// made, never on a name and never ahead of time, so that neither a redirect,
// nor a changed DNS answer, nor an odd spelling of an address gets around it.
package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Defaults of Config.
const (
	DefaultDialTimeout    = 5 * time.Second
	DefaultTLSTimeout     = 5 * time.Second
	DefaultMaxHeaderBytes = 64 << 10
)

// ErrRefused is in the chain of every error of a connection that the guard did
// not allow. Nothing was sent then, not even a TCP SYN.
var ErrRefused = errors.New("address refused")

// RefusedError says that the guard did not allow an address, and which setting
// could. ErrRefused is in its chain.
type RefusedError struct {
	Setting string // such as targets.allow_private
	cause   error
}

// Error names the address: it is for the log.
func (e *RefusedError) Error() string { return ErrRefused.Error() + ": " + e.cause.Error() }

// Unwrap gives ErrRefused and the reason.
func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, e.cause} }

// Refusal says in words that are safe to show why an error of a connection was
// a refusal of the guard, and which setting could allow it; "" when it was none.
// It does not tell the address that a name has: a caller could map a network by it.
func Refusal(err error) string {
	var r *RefusedError
	switch {
	case !errors.Is(err, ErrRefused):
		return ""
	case errors.As(err, &r) && r.Setting != "":
		return "the address is not public, and " + r.Setting + " does not allow it"
	}
	return "the address is not public"
}

// azureWire is the host agent of Azure. The address is in public space, but
// answers inside a virtual machine only, with its credentials.
var azureWire = netip.MustParsePrefix("168.63.129.16/32")

// loopback is this machine.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// closed lists what must be named exactly: this machine, the places where
// clouds hand out credentials, and forms in which another address hides. A listed
// network that merely contains one of them does not open it; one that lies
// inside it does, since then the operator has named it.
var closed = append([]netip.Prefix{
	azureWire,
	netip.MustParsePrefix("169.254.0.0/16"),     // link local (RFC 3927), metadata of most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
	netip.MustParsePrefix("192.0.0.192/32"),     // metadata of Oracle Cloud
	netip.MustParsePrefix("fe80::/10"),          // link local (RFC 4291, section 2.5.6)
	netip.MustParsePrefix("fd00:ec2::/32"),      // metadata of AWS
	netip.MustParsePrefix("fd20:ce::/32"),       // metadata of Google Cloud
	netip.MustParsePrefix("fd00:42::42/128"),    // metadata of Scaleway
	netip.MustParsePrefix("0.0.0.0/8"),          // this host (RFC 1122, section 3.2.1.3)
	netip.MustParsePrefix("224.0.0.0/4"),        // multicast
	netip.MustParsePrefix("240.0.0.0/4"),        // reserved, and broadcast
	netip.MustParsePrefix("ff00::/8"),           // multicast
	netip.MustParsePrefix("::/96"),              // unspecified, and IPv4 in an old form (RFC 4291, section 2.5.5.1)
	netip.MustParsePrefix("::ffff:0:0:0/96"),    // IPv4 in a translated form (RFC 7915)
	netip.MustParsePrefix("64:ff9b::/96"),       // NAT64 (RFC 6052)
	netip.MustParsePrefix("64:ff9b:1::/48"),     // NAT64 (RFC 8215)
	netip.MustParsePrefix("2002::/16"),          // 6to4 (RFC 3056)
	netip.MustParsePrefix("2001::/32"),          // Teredo (RFC 4380)
}, loopback...)

// private are the networks of an organization. What the operator names by host
// and port may be there.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), // RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"), // RFC 6598
	netip.MustParsePrefix("fc00::/7"),      // RFC 4193
}

// Place is a host and port that the operator names in the configuration.
type Place struct {
	// HostPort is where it is, as url.URL.Host has it with a port.
	HostPort string
	// Allow lists networks that it may be in besides public and private ones:
	// those that must be named exactly.
	Allow []netip.Prefix
	// Setting opens more for this place.
	Setting string
}

// Config says what a Guard allows. The zero value allows public addresses only.
type Config struct {
	// AllowPrivate lists networks that may be reached besides public addresses
	// (targets.allow_private of the configuration).
	AllowPrivate []netip.Prefix
	// Setting is the name of that list in the configuration, for refusals.
	Setting string
	// Places are what the operator names exactly. Each may be at a public or a
	// private address; one that is an address itself, at that one, whatever it
	// is; one whose name is localhost, on this machine.
	Places []Place
	// DialTimeout bounds name resolution and connect of one connection;
	// 0: DefaultDialTimeout.
	DialTimeout time.Duration
	// TLSTimeout bounds a TLS handshake; 0: DefaultTLSTimeout.
	TLSTimeout time.Duration
	// MaxHeaderBytes bounds the header of a response; 0: DefaultMaxHeaderBytes.
	MaxHeaderBytes int64
	// Resolver looks names up; nil: the system's.
	Resolver *net.Resolver
	// Dial replaces the guard's own dialer, and with it the check of the
	// address: it is for tests whose network is a pipe, and never set in
	// production. Errors it returns pass unchanged.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Guard makes guarded connections. It is safe for concurrent use.
type Guard struct {
	config Config
	others *rule            // of every host that is no place
	places map[string]*rule // by host:port
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

// rule is what one host may be connected to at.
type rule struct {
	guardian *ssrf.Guardian
	named    []netip.Prefix // allowed prefixes that lie inside a closed one
	literal  netip.Addr     // the place itself
	allow    []netip.Prefix // as it was given
	setting  string
	dialer   *net.Dialer
}

// New checks config and returns its Guard. An unusable network or place is an error.
func New(config Config) (*Guard, error) {
	if config.DialTimeout <= 0 {
		config.DialTimeout = DefaultDialTimeout
	}
	if config.TLSTimeout <= 0 {
		config.TLSTimeout = DefaultTLSTimeout
	}
	if config.MaxHeaderBytes <= 0 {
		config.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
	g := &Guard{config: config, places: map[string]*rule{}}
	var err error
	if g.others, err = newRule(config, config.AllowPrivate, config.Setting); err != nil {
		return nil, err
	}
	for _, p := range config.Places {
		if err := g.addPlace(p); err != nil {
			return nil, err
		}
	}
	g.dial = config.Dial
	if g.dial == nil {
		g.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return g.rule(addr).dialer.DialContext(ctx, network, addr)
		}
	}
	return g, nil
}

func newRule(config Config, allow []netip.Prefix, setting string) (*rule, error) {
	r := &rule{setting: setting, allow: allow}
	var v4, v6 []netip.Prefix
	for _, p := range allow {
		p, err := normal(p)
		if err != nil {
			return nil, err
		}
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
		for _, c := range closed {
			if p.Bits() >= c.Bits() && c.Contains(p.Addr()) {
				r.named = append(r.named, p)
			}
		}
	}
	r.guardian = ssrf.New(
		ssrf.WithNetworks("tcp4", "tcp6"),
		ssrf.WithAnyPort(),
		ssrf.WithAllowedV4Prefixes(v4...),
		ssrf.WithAllowedV6Prefixes(v6...),
		ssrf.WithDeniedV4Prefixes(azureWire),
	)
	// Control sees the address of each socket before it connects.
	// ControlContext stays unset: it would take Control's place.
	r.dialer = &net.Dialer{Timeout: config.DialTimeout, Resolver: config.Resolver, Control: r.control}
	return r, nil
}

// addPlace lets a place be reached. Two of the same host and port open what either does.
func (g *Guard) addPlace(p Place) error {
	host, _, err := net.SplitHostPort(p.HostPort)
	if err != nil {
		return fmt.Errorf("netguard: a place is host:port: %w", err)
	}
	key := canonical(p.HostPort)
	allow := append(slices.Clone(private), p.Allow...)
	if name := strings.TrimSuffix(strings.ToLower(host), "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		allow = append(allow, loopback...)
	}
	if old := g.places[key]; old != nil {
		allow = append(allow, old.allow...)
	}
	r, err := newRule(g.config, allow, p.Setting)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		r.literal = addr.Unmap()
	}
	g.places[key] = r
	return nil
}

// canonical is a host:port as places are found by.
func canonical(hostport string) string {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return hostport
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(addr.Unmap().String(), port)
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(host), "."), port)
}

func (g *Guard) rule(hostport string) *rule {
	if r := g.places[canonical(hostport)]; r != nil {
		return r
	}
	return g.others
}

// normal brings a listed network into the form in which addresses are
// compared: masked, and IPv4 where it maps IPv4 (RFC 4291, section 2.5.5.2).
func normal(p netip.Prefix) (netip.Prefix, error) {
	if !p.IsValid() {
		return p, errors.New("netguard: an allowed network is not valid")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("netguard: allowed network %s mixes IPv4 and IPv6", p)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// control is the hook of the dialer, called with the resolved address of a
// socket that is not connected yet.
func (r *rule) control(network, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return &RefusedError{r.setting, errors.New("unreadable address")}
	}
	return r.check(ap.Addr())
}

func (r *rule) check(addr netip.Addr) error {
	if addr.Zone() != "" {
		return &RefusedError{r.setting, fmt.Errorf("%s has a zone", addr)}
	}
	addr = addr.Unmap()
	if r.literal.IsValid() && addr == r.literal {
		return nil
	}
	if err := r.guardian.SafeAddr(addr); err != nil {
		return &RefusedError{r.setting, err}
	}
	for _, c := range closed {
		if c.Contains(addr) && !contained(r.named, addr) {
			return &RefusedError{r.setting, fmt.Errorf("%s must be named by a network inside %s", addr, c)}
		}
	}
	return nil
}

func contained(list []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// CheckAddr says whether the guard would connect to addr as to no place that
// is named; the error has ErrRefused in its chain. It tells a user early that a
// literal address will be refused; the check that counts is made at each
// connection.
func (g *Guard) CheckAddr(addr netip.Addr) error { return g.others.check(addr) }

// DialContext makes one guarded connection. It is for transports that are not
// those of Client; such a one must have no proxy that the guard does not know.
func (g *Guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return g.dial(ctx, network, addr)
}

// Client returns a client that dials through the guard. It has connections of
// its own: keep it, and end it with CloseIdleConnections. timeout bounds a
// whole exchange, the reading of the body included; 0: no bound but the
// context's.
//
// It uses no proxy (a proxy would make the connection out of the guard's
// sight), keeps no cookies, follows no redirect (the 3xx is the response),
// unpacks no compressed body (a bound on the body is then a bound on memory),
// and speaks HTTP/1.1, one request at a time on a connection.
func (g *Guard) Client(timeout time.Duration) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{
		Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
		Transport: plain{&http.Transport{
			Proxy:                  nil,
			DialContext:            g.dial,
			Protocols:              protocols,
			TLSHandshakeTimeout:    g.config.TLSTimeout,
			MaxResponseHeaderBytes: g.config.MaxHeaderBytes,
			DisableCompression:     true,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    32, // as many as deliveries in flight: targets may share a host
			IdleConnTimeout:        60 * time.Second,
		}},
	}
}

// plain is a transport by which nothing but HTTP is spoken.
type plain struct{ *http.Transport }

func (t plain) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(r)
	if err == nil {
		Unswitched(resp)
	}
	return resp, err
}

// Unswitched ends the connection of an answer that goes over to another protocol,
// which nobody asks for here: its body is the bare connection, whose reading neither
// a context nor a timeout of the client ends. The answer stays, without a body.
func Unswitched(resp *http.Response) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		resp.Body = http.NoBody
	}
}

// Package netguard is the one way out to addresses that users and
// configuration name: webhooks and declared HTTP tools dial through it.
//
// It connects to public addresses only, and to what the operator lists. The
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

// azureWire is the host agent of Azure. The address is in public space, but
// answers inside a virtual machine only, with its credentials.
var azureWire = netip.MustParsePrefix("168.63.129.16/32")

// closed lists the places where clouds hand out credentials. A listed network
// that merely contains one of them does not open it; one that lies inside it
// does, since then the operator has named it.
var closed = []netip.Prefix{
	azureWire,
	netip.MustParsePrefix("169.254.0.0/16"),     // link local (RFC 3927), metadata of most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
	netip.MustParsePrefix("fe80::/10"),          // link local (RFC 4291, section 2.5.6)
	netip.MustParsePrefix("fd00:ec2::/32"),      // metadata of AWS
}

// Config says what a Guard allows. The zero value allows public addresses only.
type Config struct {
	// AllowPrivate lists networks that may be reached besides public addresses
	// (targets.allow_private of the configuration).
	AllowPrivate []netip.Prefix
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
	config   Config
	guardian *ssrf.Guardian
	named    []netip.Prefix // allowed prefixes that lie inside a closed one
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
}

// New checks config and returns its Guard. An unusable network in
// AllowPrivate is an error.
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
	g := &Guard{config: config}
	var v4, v6 []netip.Prefix
	for _, p := range config.AllowPrivate {
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
				g.named = append(g.named, p)
			}
		}
	}
	g.guardian = ssrf.New(
		ssrf.WithNetworks("tcp4", "tcp6"),
		ssrf.WithAnyPort(),
		ssrf.WithAllowedV4Prefixes(v4...),
		ssrf.WithAllowedV6Prefixes(v6...),
		ssrf.WithDeniedV4Prefixes(azureWire),
	)
	g.dial = config.Dial
	if g.dial == nil {
		// Control sees the address of each socket before it connects.
		// ControlContext stays unset: it would take Control's place.
		d := &net.Dialer{Timeout: config.DialTimeout, Resolver: config.Resolver, Control: g.control}
		g.dial = d.DialContext
	}
	return g, nil
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
func (g *Guard) control(network, address string, conn syscall.RawConn) error {
	if err := g.guardian.Safe(network, address, conn); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: unreadable address", ErrRefused)
	}
	return g.CheckAddr(ap.Addr())
}

// CheckAddr says whether the guard would connect to addr; the error has
// ErrRefused in its chain. It tells a user early that a literal address will
// be refused; the check that counts is made at each connection.
func (g *Guard) CheckAddr(addr netip.Addr) error {
	addr = addr.Unmap()
	if err := g.guardian.SafeAddr(addr); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	for _, c := range closed {
		if c.Contains(addr) && !g.isNamed(addr) {
			return fmt.Errorf("%w: %s must be named by a network inside %s", ErrRefused, addr, c)
		}
	}
	return nil
}

func (g *Guard) isNamed(addr netip.Addr) bool {
	for _, p := range g.named {
		if p.Contains(addr) {
			return true
		}
	}
	return false
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
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            g.dial,
			Protocols:              protocols,
			TLSHandshakeTimeout:    g.config.TLSTimeout,
			MaxResponseHeaderBytes: g.config.MaxHeaderBytes,
			DisableCompression:     true,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    32, // as many as deliveries in flight: targets may share a host
			IdleConnTimeout:        60 * time.Second,
		},
	}
}

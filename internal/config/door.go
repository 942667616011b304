package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/gate"
)

// TLS is about a listener that speaks TLS, of version 1.2 or later.
type TLS struct {
	// Cert is the file of the certificate with its chain (PEM). It and the key are read
	// again when they change.
	Cert string `yaml:"cert"`
	// Key is the file of the certificate's private key (PEM).
	Key string `yaml:"key"`
	// ACME gets a certificate from an authority instead, and renews it.
	ACME *ACME `yaml:"acme"`
}

// ACME is about a certificate of an authority that speaks ACME (RFC 8555). The
// authority asks for the names on port 443 (TLS-ALPN-01, RFC 8737), which must
// come to the listener.
type ACME struct {
	// Domains are the names of the certificate; they count as public_names too.
	Domains []string `yaml:"domains"`
	// Email is told to the authority.
	Email string `yaml:"email"`
	// AgreeTerms: the operator agrees to the authority's terms of service. Required.
	AgreeTerms bool `yaml:"agree_terms"`
	// Directory is the authority's URL. Default: Let's Encrypt.
	Directory string `yaml:"directory"`
	// Roots is a file with the roots (PEM) by which the directory itself is trusted.
	// Default: the system's.
	Roots string `yaml:"roots"`
}

// Tokens is about access tokens.
type Tokens struct {
	// Expiry is how long a token is good that is made without a word on it. Default: for ever.
	Expiry Duration `yaml:"expiry"`
	// MaxExpiry bounds how long a token may be good; also one without a word on it
	// ends then. Tokens of the start do not end. Default: no bound.
	MaxExpiry Duration `yaml:"max_expiry"`
}

// Set says whether the listener speaks TLS.
func (t *TLS) Set() bool { return t.Cert != "" || t.Key != "" || t.ACME != nil }

// ListenOn has the daemon listen somewhere else than the file says, by the same
// rules.
func (c *Config) ListenOn(listen string) *Error {
	was := c.Listen
	c.Listen = listen
	if err := c.checkDoor(); err != nil {
		c.Listen = was
		return err
	}
	return nil
}

// Unix gives the path of the socket that the daemon listens on, as the file has it.
func (c *Config) Unix() (path string, ok bool) { return strings.CutPrefix(c.Listen, "unix:") }

// checkDoor holds the rules of where the daemon listens: what others can reach
// speaks TLS, or is behind a proxy that does.
func (c *Config) checkDoor() *Error {
	if err := c.checkTLS(); err != nil {
		return err
	}
	if _, err := c.Proxied(); err != nil {
		return err
	}
	if _, err := c.Hosts(); err != nil {
		return err
	}
	for _, d := range []struct {
		key string
		v   Duration
	}{{"tokens.expiry", c.Tokens.Expiry}, {"tokens.max_expiry", c.Tokens.MaxExpiry}} {
		if d.v != 0 && d.v.Or(0) < time.Minute {
			return mistake(d.key, "must be 1m or more")
		}
	}
	if c.Tokens.MaxExpiry != 0 && c.Tokens.Expiry > c.Tokens.MaxExpiry {
		return mistake("tokens.expiry", "is longer than tokens.max_expiry")
	}
	if path, ok := c.Unix(); ok {
		switch {
		case path == "":
			return mistake("listen", "unix: wants a path")
		case c.TLS.Set():
			return mistake("tls", "a unix socket speaks no TLS; take tls out, or listen on an address")
		case c.BehindProxy:
			return mistake("behind_proxy", "who opens the unix socket needs no token, and a proxy that does would lend it to everybody; listen on 127.0.0.1 for the proxy")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return mistake("listen", "%q is neither host:port nor unix:PATH", c.Listen)
	}
	if port == "" || strings.Trim(port, "0123456789") != "" {
		return mistake("listen", "%q has no number for a port", c.Listen)
	}
	if loopback(host) {
		return nil
	}
	if !c.TLS.Set() && !c.BehindProxy {
		return mistake("listen", "%s is not a loopback address: name a certificate (tls), or the proxy before it that speaks TLS (behind_proxy and proxies); or listen on 127.0.0.1", orAll(host))
	}
	ip, err := netip.ParseAddr(host)
	if len(c.PublicNames) == 0 && c.TLS.ACME == nil && (err != nil || ip.IsUnspecified()) {
		return mistake("public_names", "with listen: %s it must be said by which names the daemon is asked; other requests are refused", c.Listen)
	}
	return nil
}

// loopback says whether only this machine can reach a host.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func orAll(host string) string {
	if host == "" {
		return "every address"
	}
	return host
}

func (c *Config) checkTLS() *Error {
	t := &c.TLS
	switch a := t.ACME; {
	case a == nil && (t.Cert == "") != (t.Key == ""):
		return mistake("tls", "wants both cert and key")
	case a == nil:
		return nil
	case t.Cert != "" || t.Key != "":
		return mistake("tls", "wants either cert and key, or acme")
	case len(a.Domains) == 0:
		return mistake("tls.acme.domains", "at least one name is needed")
	case !a.AgreeTerms:
		return mistake("tls.acme.agree_terms", "the authority gives certificates to those who agree to its terms; set it to true once you do")
	default:
		for i, d := range a.Domains {
			_, err := gate.NewHosts(d)
			if _, ip := netip.ParseAddr(d); err != nil || ip == nil {
				return mistake(fmt.Sprintf("tls.acme.domains[%d]", i), "%.100q is no name such as agents.example.com", d)
			}
		}
		if _, err := mail.ParseAddress(a.Email); a.Email != "" && err != nil {
			return mistake("tls.acme.email", "is no address")
		}
		if u, err := url.Parse(a.Directory); a.Directory != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil) {
			return mistake("tls.acme.directory", "want an https URL")
		}
	}
	return nil
}

// Hosts are the names under which the daemon may be asked besides those of loopback.
func (c *Config) Hosts() (gate.Hosts, *Error) {
	names := c.PublicNames
	for i, name := range names {
		if _, err := gate.NewHosts(name); err != nil {
			return gate.Hosts{}, mistake(fmt.Sprintf("public_names[%d]", i), "%v", err)
		}
	}
	if c.TLS.ACME != nil {
		names = append(names[:len(names):len(names)], c.TLS.ACME.Domains...)
	}
	// Its own address is no name that a page could have point here.
	if host, _, err := net.SplitHostPort(c.Listen); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() && ip.Zone() == "" {
			names = append(names[:len(names):len(names)], host)
		}
	}
	hosts, err := gate.NewHosts(names...)
	if err != nil {
		return gate.Hosts{}, mistake("public_names", "%v", err)
	}
	return hosts, nil
}

// Proxied gives the proxies that the daemon is behind; nil: there are none.
func (c *Config) Proxied() (*gate.Proxies, *Error) {
	if !c.BehindProxy {
		if len(c.Proxies) > 0 || c.ProxyHeader != "" {
			return nil, mistake("proxies", "only with behind_proxy: true does the daemon listen to proxies")
		}
		return nil, nil
	}
	if len(c.Proxies) == 0 {
		return nil, mistake("behind_proxy", "name the proxies in proxies: addresses or networks (CIDR) from which requests come; others are refused")
	}
	p := &gate.Proxies{Header: gate.ForwardedFor}
	switch strings.ToLower(c.ProxyHeader) {
	case "", "x-forwarded-for":
	case "forwarded":
		p.Header = gate.Forwarded
	default:
		return nil, mistake("proxy_header", "must be X-Forwarded-For or Forwarded")
	}
	for i, text := range c.Proxies {
		n, err := netip.ParsePrefix(text)
		if ip, aerr := netip.ParseAddr(text); aerr == nil {
			n, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil || n.Addr().Zone() != "" {
			return nil, mistake(fmt.Sprintf("proxies[%d]", i), "%.100q is no address or network such as 10.0.0.7 or 10.0.0.0/24", text)
		}
		if n.Bits() == 0 {
			return nil, mistake(fmt.Sprintf("proxies[%d]", i), "%s is everybody; name the proxies", text)
		}
		p.Nets = append(p.Nets, n.Masked())
	}
	return p, nil
}

// PublicURL is how others reach the daemon, where it can be told: by its first
// public name. Without TLS of its own there is none.
func (c *Config) PublicURL(port string) string {
	names := c.PublicNames
	if c.TLS.ACME != nil {
		names = append(c.TLS.ACME.Domains[:len(c.TLS.ACME.Domains):len(c.TLS.ACME.Domains)], names...)
	}
	if !c.TLS.Set() || len(names) == 0 {
		return ""
	}
	return "https://" + net.JoinHostPort(strings.TrimSuffix(names[0], "."), port)
}

// Digest is the SHA-256 of the file, for the record.
func (c *Config) Digest() string {
	sum := sha256.Sum256(c.text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

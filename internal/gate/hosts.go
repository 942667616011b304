// Package gate has the rules of who is let to the door: which names of the
// daemon a browser may use for it, who a peer behind a proxy is, how often one
// may come, what roles there are, and how those who were turned away are
// counted. It reads no clock and keeps a bounded table, whatever strangers send.
package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Hosts are the names under which the daemon may be asked. A page that had its
// own name point at this machine (DNS rebinding) asks under that name, so that
// what is not listed is refused whoever asks. The zero value has the names and
// addresses of loopback.
type Hosts struct{ names []string }

// maxHost bounds a host with its port: 255 bytes are the longest name of DNS.
const maxHost = 255 + len(":65535")

// NewHosts allows names, or addresses, besides those of loopback.
func NewHosts(names ...string) (Hosts, error) {
	var h Hosts
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil && ip.Zone() == "" && !ip.IsUnspecified() {
			h.names = append(h.names, ip.String())
			continue
		}
		bare, ok := bareHost(name)
		if !ok || withPort(name) {
			return Hosts{}, fmt.Errorf("%.100q is no name of a host such as agents.example.com, without scheme and port", name)
		}
		h.names = append(h.names, bare)
	}
	return h, nil
}

// Allows says whether the Host of a request names the daemon. The port does not
// count, nor do case and one dot at the end.
func (h Hosts) Allows(host string) bool {
	bare, ok := bareHost(host)
	if !ok {
		return false
	}
	if bare == "localhost" || slices.Contains(h.names, bare) {
		return true
	}
	ip, err := netip.ParseAddr(bare)
	return err == nil && ip.Unmap().IsLoopback()
}

// Same says whether the origin of a page, as a browser writes it (RFC 6454), is
// that of a request to host: the same name, and the same port, where an absent
// one is that of the scheme.
func (h Hosts) Same(origin, host string) bool {
	scheme, rest, ok := strings.Cut(origin, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return false
	}
	a, ok1 := bareHost(rest)
	b, ok2 := bareHost(host)
	if !ok1 || !ok2 || a != b {
		return false
	}
	standard := "80"
	if scheme == "https" {
		standard = "443"
	}
	port := func(s string) string {
		if !withPort(s) {
			return standard
		}
		return s[strings.LastIndexByte(s, ':')+1:]
	}
	return port(rest) == port(host)
}

// withPort says whether a host that bareHost takes has a port.
func withPort(s string) bool { return strings.LastIndexByte(s, ':') > strings.LastIndexByte(s, ']') }

// bareHost is a host in the form in which it is compared: without port, brackets
// and one dot at the end, in small letters. False: it is none (RFC 9110, section
// 7.2), or written in a way that nobody needs.
func bareHost(s string) (string, bool) {
	if s == "" || len(s) > maxHost {
		return "", false
	}
	if rest, ok := strings.CutPrefix(s, "["); ok {
		text, tail, ok := strings.Cut(rest, "]")
		ip, err := netip.ParseAddr(text)
		if !ok || err != nil || !ip.Is6() || ip.Zone() != "" || tail != "" && !isPort(tail) {
			return "", false
		}
		return ip.String(), true
	}
	if i := strings.IndexByte(s, ':'); i >= 0 {
		if !isPort(s[i:]) {
			return "", false
		}
		s = s[:i]
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if s == "" || s[0] == '.' || strings.Contains(s, "..") || strings.HasSuffix(s, ".") {
		return "", false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return "", false
		}
	}
	return s, true
}

// isPort says whether s is a colon and a port.
func isPort(s string) bool {
	if len(s) < 2 || len(s) > 6 || s[0] != ':' {
		return false
	}
	for _, c := range []byte(s[1:]) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

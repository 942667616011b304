package gate

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are those whose word is believed on whom they ask for. The zero value
// believes nobody.
type Proxies struct {
	// Nets are where they ask from.
	Nets []netip.Prefix
	// Header is where they say it: X-Forwarded-For, or Forwarded (RFC 7239). Only
	// one is read, since a proxy lets the other pass as a stranger wrote it.
	Header string
}

// The headers of proxies.
const (
	ForwardedFor = "X-Forwarded-For"
	Forwarded    = "Forwarded"
)

// Is says whether an address is that of a proxy.
func (p Proxies) Is(ip netip.Addr) bool {
	return slices.ContainsFunc(p.Nets, func(n netip.Prefix) bool { return n.Contains(ip) })
}

// maxHops bounds how many entries of a header are looked at.
const maxHops = 32

// Peer is who asks: the address of the connection, or, where that is a proxy,
// whom the proxy names. Each proxy adds at the end, so that it is read from
// there: the first address that is no proxy is the peer, and what stands before
// it may be anybody's invention. Where nothing readable stands the proxy is.
func (p Proxies) Peer(remote netip.Addr, h http.Header) netip.Addr {
	if !p.Is(remote) {
		return remote
	}
	peer, hops := remote, 0
	for _, line := range slices.Backward(h[p.Header]) {
		for line != "" {
			if hops++; hops > maxHops {
				return peer
			}
			entry := line
			if i := strings.LastIndexByte(line, ','); i >= 0 {
				line, entry = line[:i], line[i+1:]
			} else {
				line = ""
			}
			ip, ok := p.read(strings.TrimSpace(entry))
			if !ok {
				return peer
			}
			if peer = ip; !p.Is(ip) {
				return peer
			}
		}
	}
	return peer
}

// read gives the address of an entry.
func (p Proxies) read(entry string) (netip.Addr, bool) {
	if p.Header != Forwarded {
		return readAddr(entry)
	}
	for part := range strings.SplitSeq(entry, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if strings.EqualFold(name, "for") {
			if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
				value = value[1 : len(value)-1]
			}
			return readAddr(value)
		}
	}
	return netip.Addr{}, false
}

// readAddr reads 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:80.
func readAddr(s string) (netip.Addr, bool) {
	if len(s) > 64 {
		return netip.Addr{}, false
	}
	if at, err := netip.ParseAddrPort(s); err == nil {
		return plainAddr(at.Addr()), true
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	ip, err := netip.ParseAddr(s)
	return plainAddr(ip), err == nil
}

func plainAddr(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

// Remote is the address of a connection as net/http tells it. False: it has none,
// as a unix socket.
func Remote(addr string) (netip.Addr, bool) {
	at, err := netip.ParseAddrPort(addr)
	return plainAddr(at.Addr()), err == nil
}

// Household is what is counted as one peer: an address of IPv4, or the /64 of one
// of IPv6, of which a single host has as many as it likes.
func Household(ip netip.Addr) netip.Addr {
	if !ip.Is6() || ip.Is4In6() {
		return ip
	}
	net, err := ip.Prefix(64)
	if err != nil {
		return ip
	}
	return net.Addr()
}

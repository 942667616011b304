package secret

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

// MaxHosts bounds a list of hosts.
const MaxHosts = 32

// Hosts is a list of hosts that a secret may be sent to, in canonical form:
// lower case, sorted, without repetitions. An empty list means none.
type Hosts []string

// ParseHosts checks a list. An entry is a host (api.example.com, 10.0.0.7,
// [2001:db8::1]) of any port, a host with a port (api.example.com:8443), or
// *.example.com for the hosts below a name. The error is a *problem.Error of
// kind invalid, code invalid_hosts.
func ParseHosts(list []string) (Hosts, error) {
	if len(list) > MaxHosts {
		return nil, problem.New(problem.Invalid, "invalid_hosts", "hosts holds more than %d entries", MaxHosts)
	}
	out := Hosts{}
	for i, entry := range list {
		host, port, ok := split(entry)
		if star, below := strings.CutPrefix(host, "*."); below {
			// Below a name of one label stands half of the internet.
			ok = ok && validName(star) && strings.Contains(star, ".") && !isAddr(star)
		} else {
			ok = ok && (validName(host) || isAddr(host))
		}
		if !ok {
			return nil, problem.New(problem.Invalid, "invalid_hosts",
				"hosts[%d] is no host: want a name or address such as api.example.com, with a port or without, or *.example.com for the names below it", i)
		}
		out = append(out, join(host, port))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Allows says whether the list holds a host, given as host:port or host.
func (h Hosts) Allows(hostport string) bool {
	host, port, ok := split(hostport)
	if !ok {
		return false
	}
	for _, entry := range h {
		name, only, _ := split(entry)
		if only != "" && only != port {
			continue
		}
		if below, star := strings.CutPrefix(name, "*"); star && strings.HasSuffix(host, below) && len(host) > len(below) && !isAddr(host) || name == host {
			return true
		}
	}
	return false
}

// HostOf gives where a request to a URL goes, as host:port.
func HostOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	host, _, _ := split(net.JoinHostPort(u.Hostname(), port))
	return join(host, port)
}

// split takes host and port apart and brings the host into one form: lower
// case, without a dot at its end, an address as netip writes it.
func split(s string) (host, port string, ok bool) {
	host = s
	if a, err := netip.ParseAddr(s); err == nil { // an IPv6 address without brackets has no port
		return a.Unmap().String(), "", a.Zone() == ""
	}
	if h, p, err := net.SplitHostPort(s); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != p {
			return "", "", false
		}
		host, port = h, p
	} else if inner, bracket := strings.CutPrefix(s, "["); bracket {
		if host, bracket = strings.CutSuffix(inner, "]"); !bracket || !strings.Contains(host, ":") {
			return "", "", false
		}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String(), port, a.Zone() == ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host, port, host != ""
}

func join(host, port string) string {
	if port != "" {
		return net.JoinHostPort(host, port)
	}
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func isAddr(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// validName says whether s has the form of a host name (RFC 1123, section 2.1)
// that is not all digits and dots, which some resolvers read as an address.
func validName(s string) bool {
	if len(s) > 253 || strings.Trim(s, "0123456789.") == "" {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if c != '-' && c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
				return false
			}
		}
	}
	return true
}

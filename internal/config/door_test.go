package config

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestDoor(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		allowed     []string // hosts
		url         string   // with port 443
		peer        string   // of a request from 10.0.0.7 for 192.0.2.1
	}{
		{"loopback", "listen: 127.0.0.1:0", []string{"localhost", "127.0.0.1"}, "", "10.0.0.7"},
		{"loopback, IPv6", "listen: '[::1]:0'", []string{"[::1]:80"}, "", "10.0.0.7"},
		{"loopback with TLS", "listen: localhost:0\ntls: {cert: c, key: k}", []string{"localhost"}, "", "10.0.0.7"},
		{"an address with TLS", "listen: 10.0.0.5:443\ntls: {cert: c, key: k}", []string{"10.0.0.5:443"}, "", "10.0.0.7"},
		{"a public name", "listen: :443\ntls: {cert: c, key: k}\npublic_names: [A.test.]", []string{"a.test", "A.TEST:443"}, "https://A.test:443", "10.0.0.7"},
		{"ACME", "listen: 0.0.0.0:443\ntls: {acme: {domains: [b.test], agree_terms: true}}\npublic_names: [a.test]", []string{"b.test", "a.test"}, "https://b.test:443", "10.0.0.7"},
		{"a proxy", "listen: 10.0.0.5:7411\nbehind_proxy: true\nproxies: [10.0.0.7]\npublic_names: [a.test]", []string{"a.test"}, "", "192.0.2.1"},
		{"a proxy on this machine", "listen: 127.0.0.1:7411\nbehind_proxy: true\nproxies: [127.0.0.1, 10.0.0.0/29]\npublic_names: [a.test]", []string{"a.test"}, "", "192.0.2.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse([]byte(c.lines+"\nroutes: {main: {provider: scripted, script: s.yaml}}\n"), "holdfast.yaml", "/etc/hf")
			if err != nil {
				t.Fatal(err)
			}
			hosts, herr := cfg.Hosts()
			proxies, perr := cfg.Proxied()
			if herr != nil || perr != nil {
				t.Fatal(herr, perr)
			}
			for _, h := range c.allowed {
				if !hosts.Allows(h) {
					t.Errorf("%s is refused", h)
				}
			}
			for _, h := range []string{"evil.test", "0.0.0.0", "10.0.0.6", ""} {
				if hosts.Allows(h) {
					t.Errorf("%q is allowed", h)
				}
			}
			if got := cfg.PublicURL("443"); got != c.url {
				t.Errorf("URL %q", got)
			}
			peer := netip.MustParseAddr("10.0.0.7")
			if proxies != nil {
				peer = proxies.Peer(peer, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
			}
			if peer.String() != c.peer {
				t.Errorf("peer %s", peer)
			}
			// --listen is held to the same rules (C91).
			if c.url == "" && !cfg.TLS.Set() && !cfg.BehindProxy {
				was := cfg.Listen
				if err := cfg.ListenOn("0.0.0.0:7411"); err == nil || cfg.Listen != was {
					t.Errorf("it listens on %s: %v", cfg.Listen, err)
				}
			}
		})
	}
}

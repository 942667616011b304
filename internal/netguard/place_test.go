package netguard

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/netguard/dnsstub"
)

// What the operator names by host and port may be private, and on this machine
// where the name says so; link-local and metadata only as the address itself.
func TestPlaces(t *testing.T) {
	d := dnsstub.New(map[string][]string{
		"gateway.test": {"10.1.2.3"}, "home.test": {"127.0.0.1"}, "meta.test": {"169.254.169.254"}, "azure.test": {"168.63.129.16"}, "aws6.test": {"127.0.0.1"},
	})
	g := guard(t, Config{Resolver: d.Resolver(), Setting: "routes.*.allow_private", Places: []Place{
		{HostPort: "Gateway.test.:8080", Setting: "routes.a.allow_private"}, {HostPort: "home.test:80", Setting: "routes.b.allow_private"},
		{HostPort: "open.test:80", Allow: prefixes("127.0.0.0/8")}, {HostPort: "meta.test:80", Setting: "routes.c.allow_private"}, {HostPort: "azure.test:80"},
		{HostPort: "127.0.0.1:11434"}, {HostPort: "[::1]:11434"}, {HostPort: "localhost:8000"}, {HostPort: "169.254.169.254:80"},
		{HostPort: "twice.test:80"}, {HostPort: "twice.test:80", Allow: prefixes("127.0.0.1/32")}, {HostPort: "twice.test:80", Allow: prefixes("::1/128")},
	}})
	for _, test := range []struct {
		place, addr string
		ok          bool
		setting     string
	}{
		{"gateway.test:8080", "10.1.2.3", true, ""}, {"GATEWAY.test:8080", "93.184.216.34", true, ""}, {"gateway.test:8080", "100.64.0.1", true, ""}, {"gateway.test:8080", "fd12::1", true, ""},
		{"gateway.test:8080", "127.0.0.1", false, "routes.a.allow_private"}, {"gateway.test:8080", "::1", false, "routes.a.allow_private"},
		{"gateway.test:8081", "10.1.2.3", false, "routes.*.allow_private"}, // another port is another place
		{"gateway.test:8080", "169.254.169.254", false, "routes.a.allow_private"}, {"gateway.test:8080", "fd00:ec2::254", false, "routes.a.allow_private"},
		{"gateway.test:8080", "100.100.100.200", false, "routes.a.allow_private"}, {"gateway.test:8080", "168.63.129.16", false, "routes.a.allow_private"},
		{"gateway.test:8080", "0.0.0.0", false, "routes.a.allow_private"}, {"gateway.test:8080", "::", false, "routes.a.allow_private"},
		{"gateway.test:8080", "224.0.0.1", false, "routes.a.allow_private"}, {"gateway.test:8080", "::ffff:127.0.0.1", false, "routes.a.allow_private"},
		{"gateway.test:8080", "64:ff9b::a00:1", false, "routes.a.allow_private"}, {"gateway.test:8080", "2002:a00:1::", false, "routes.a.allow_private"},
		{"open.test:80", "127.0.0.1", true, ""}, {"twice.test:80", "127.0.0.1", true, ""}, {"twice.test:80", "::1", true, ""},
		{"127.0.0.1:11434", "127.0.0.1", true, ""}, {"127.0.0.1:11434", "127.0.0.2", false, ""}, {"[0:0::1]:11434", "::1", true, ""}, {"[::ffff:127.0.0.1]:11434", "127.0.0.1", true, ""},
		{"localhost:8000", "::1", true, ""}, {"localhost:8000", "127.0.0.1", true, ""}, {"localhost:8000", "169.254.169.254", false, ""},
		{"169.254.169.254:80", "169.254.169.254", true, ""}, {"169.254.169.254:80", "169.254.169.253", false, ""},
		{"api.test:443", "10.0.0.1", false, "routes.*.allow_private"}, {"api.test:443", "93.184.216.34", true, ""},
	} {
		err := g.rule(test.place).check(netip.MustParseAddr(test.addr))
		if (err == nil) != test.ok || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s at %s: %v", test.place, test.addr, err)
		}
		if why := Refusal(err); !test.ok && (why == "" || strings.Contains(why, test.addr) || !strings.Contains(why, test.setting)) {
			t.Errorf("%s at %s is told as %q", test.place, test.addr, why)
		}
	}
	c := client(t, g)
	for _, host := range []string{"home.test", "meta.test", "azure.test"} { // by the dialer, over a name that resolves
		if _, err := c.Get("http://" + host + "/"); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", host, err)
		}
	}
	if _, err := New(Config{Places: []Place{{HostPort: "no-port"}}}); err == nil {
		t.Error("a place without a port")
	}
	if Refusal(nil) != "" || Refusal(errors.New("x")) != "" || Refusal(ErrRefused) == "" {
		t.Error("Refusal tells of what is none")
	}
}

// C60: the answer of the name service changes under a place too.
func TestPlaceIsCheckedAtEachConnection(t *testing.T) {
	port, hits := receiver(t, func(http.ResponseWriter, *http.Request) {})
	d := dnsstub.New(map[string][]string{"vendor.test": {"127.0.0.1", "169.254.169.254"}})
	c := client(t, guard(t, Config{Resolver: d.Resolver(), Places: []Place{{HostPort: "vendor.test:" + port, Allow: prefixes("127.0.0.1/32")}}}))
	resp, err := c.Get("http://vendor.test:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	c.CloseIdleConnections()
	if _, err := c.Get("http://vendor.test:" + port + "/"); !errors.Is(err, ErrRefused) || hits.Load() != 1 {
		t.Errorf("%v after %d requests", err, hits.Load())
	}
}

// C60: a wide list opens neither this machine nor forms in which another address hides.
func TestWideListsStayClosed(t *testing.T) {
	g := guard(t, Config{AllowPrivate: prefixes("0.0.0.0/0", "::/0")})
	for addr, ok := range map[string]bool{
		"10.0.0.1": true, "fd12::1": true, "127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "255.255.255.255": false, "fe80::1": false,
		"64:ff9b::7f00:1": false, "2002:7f00:1::": false, "::7f00:1": false, "2001::1": false, "169.254.1.1": false, "192.0.0.192": false,
	} {
		if err := g.CheckAddr(netip.MustParseAddr(addr)); (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// FuzzPlace: a place is found however its host is spelled, and spellings of
// another host do not find it.
func FuzzPlace(f *testing.F) {
	f.Add("A.test.:80", "a.test:80")
	f.Fuzz(func(t *testing.T, a, b string) {
		g, err := New(Config{Places: []Place{{HostPort: a}}})
		if err != nil {
			return
		}
		if g.rule(a) == g.others {
			t.Errorf("%q does not find itself", a)
		}
		if g.rule(b) != g.others && !strings.EqualFold(strings.ReplaceAll(canonical(a), ".:", ":"), strings.ReplaceAll(canonical(b), ".:", ":")) {
			t.Errorf("%q finds %q", b, a)
		}
	})
}

package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/netguard/dnsstub"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func guard(t *testing.T, c Config) *Guard {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func client(t *testing.T, g *Guard) *http.Client {
	c := g.Client(5 * time.Second)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// receiver is a server on 127.0.0.1 that counts requests.
func receiver(t *testing.T, handler http.HandlerFunc) (port string, hits *atomic.Int64) {
	hits = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port(), hits
}

// C60: no spelling of a private address is dialled.
func TestPrivateAddressesAreRefused(t *testing.T) {
	port, hits := receiver(t, func(http.ResponseWriter, *http.Request) {})
	d := dnsstub.New(map[string][]string{"inside.test": {"127.0.0.1"}, "meta.test": {"169.254.169.254"}})
	c := client(t, guard(t, Config{Resolver: d.Resolver()}))
	for _, host := range []string{
		"127.0.0.1", "[::1]", "0.0.0.0", "[::]", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1",
		"169.254.169.254", "168.63.129.16", "[::ffff:10.0.0.1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[fe80::1%25lo]",
		"[fd00:ec2::254]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fc00::1]", "224.0.0.1", "255.255.255.255",
		"localhost", "inside.test", "meta.test",
	} {
		resp, err := c.Get("http://" + host + ":" + port + "/latest/")
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s: answered %s", host, resp.Status)
		} else if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", host, err)
		}
	}
	// These are names to Go, not addresses: they end in the resolver.
	for _, host := range []string{"2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost."} {
		resp, err := c.Get("http://" + host + ":" + port + "/")
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s: answered %s", host, resp.Status)
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("the receiver saw %d requests", n)
	}
}

// C60: a resolver may read such a name as an address; the socket's address decides.
func TestOddSpellingThatResolvesIsRefused(t *testing.T) {
	d := dnsstub.New(map[string][]string{"0x7f.1": {"127.0.0.1"}})
	c := client(t, guard(t, Config{Resolver: d.Resolver()}))
	if _, err := c.Get("http://0x7f.1./"); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want ErrRefused", err)
	}
}

// C60: the answer of the name service changes between two attempts.
func TestChangedNameIsCheckedAtEachConnection(t *testing.T) {
	port, hits := receiver(t, func(http.ResponseWriter, *http.Request) {})
	d := dnsstub.New(map[string][]string{"evil.test": {"127.0.0.1", "127.0.0.2"}})
	// The first address stands for a public one.
	c := client(t, guard(t, Config{AllowPrivate: prefixes("127.0.0.1/32"), Resolver: d.Resolver()}))
	resp, err := c.Get("http://evil.test:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	c.CloseIdleConnections()
	if _, err := c.Get("http://evil.test:" + port + "/"); !errors.Is(err, ErrRefused) {
		t.Errorf("second attempt: %v, want ErrRefused", err)
	}
	if n := hits.Load(); n != 1 {
		t.Errorf("the receiver saw %d requests, want 1", n)
	}
}

// C60: a redirect is the answer, not an instruction.
func TestRedirectIsNotFollowed(t *testing.T) {
	port, hits := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/", http.StatusFound)
	})
	c := client(t, guard(t, Config{AllowPrivate: prefixes("127.0.0.0/8")}))
	resp, err := c.Get("http://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 302 || hits.Load() != 1 {
		t.Errorf("status %d after %d requests", resp.StatusCode, hits.Load())
	}
}

// C60: the operator's list works, and is off by default.
func TestAllowList(t *testing.T) {
	for _, test := range []struct {
		allow string
		addr  string
		ok    bool
	}{
		{"127.0.0.0/8", "127.0.0.1", true},
		{"127.0.0.0/8", "::ffff:127.0.0.1", true},
		{"::ffff:127.0.0.0/104", "127.0.0.1", true},
		{"10.1.2.3/8", "10.200.0.1", true},
		{"10.0.0.0/8", "127.0.0.1", false},
		{"::1/128", "::1", true},
		{"fd00::/8", "fd12::1", true},
		{"fd00::/8", "fd00:ec2::254", false},
		{"fd00::/8", "fd20:ce::254", false},
		{"fd00::/8", "fd00:42::42", false},
		{"fd20:ce::254/128", "fd20:ce::254", true},
		{"::/0", "::ffff:0:169.254.169.254", false},
		{"::/0", "::ffff:0:127.0.0.1", false},
		{"0.0.0.0/0", "192.168.0.1", true},
		{"0.0.0.0/0", "169.254.169.254", false},
		{"0.0.0.0/0", "168.63.129.16", false},
		{"169.254.169.254/32", "169.254.169.254", true},
		{"169.254.0.0/16", "169.254.1.1", true},
		{"168.63.129.16/32", "168.63.129.16", true},
		{"10.0.0.0/8", "93.184.216.34", true},
		{"10.0.0.0/8", "2606:2800:220:1::1", true},
	} {
		err := guard(t, Config{AllowPrivate: prefixes(test.allow)}).CheckAddr(netip.MustParseAddr(test.addr))
		if (err == nil) != test.ok || (err != nil && !errors.Is(err, ErrRefused)) {
			t.Errorf("allow %s, %s: %v", test.allow, test.addr, err)
		}
	}
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:0:0/90")} {
		if _, err := New(Config{AllowPrivate: []netip.Prefix{bad}}); err == nil {
			t.Errorf("allowed network %s was accepted", bad)
		}
	}
}

// C60: a wide list does not open the places where clouds hand out credentials.
func TestMetadataStaysClosedAtTheDial(t *testing.T) {
	c := client(t, guard(t, Config{AllowPrivate: prefixes("0.0.0.0/0")}))
	for _, host := range []string{"169.254.169.254", "168.63.129.16", "[::ffff:169.254.169.254]"} {
		if _, err := c.Get("http://" + host + "/"); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", host, err)
		}
	}
}

// A proxy would make the connection where the guard cannot see it.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	port, hits := receiver(t, func(http.ResponseWriter, *http.Request) {})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:"+port)
	t.Setenv("http_proxy", "http://127.0.0.1:"+port)
	g := guard(t, Config{AllowPrivate: prefixes("127.0.0.1/32")})
	if _, err := client(t, g).Get("http://10.0.0.1/"); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want ErrRefused", err)
	}
	if p := g.Client(0).Transport.(plain).Proxy; p != nil || hits.Load() != 0 {
		t.Errorf("proxy set, %d requests", hits.Load())
	}
}

func TestHeaderOfResponseIsBounded(t *testing.T) {
	port, _ := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("a", 200<<10))
	})
	c := client(t, guard(t, Config{AllowPrivate: prefixes("127.0.0.1/32")}))
	if resp, err := c.Get("http://127.0.0.1:" + port + "/"); err == nil {
		resp.Body.Close()
		t.Error("a header of 200 KiB was read")
	}
}

// The injected dialer makes the client work in a bubble, with its clock.
func TestInjectedDialAndTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = io.Copy(io.Discard, theirs) // never answers; ends when our side closes
				theirs.Close()
			}()
			return ours, nil
		}
		g, err := New(Config{Dial: hangs})
		if err != nil {
			t.Fatal(err)
		}
		c := g.Client(7 * time.Second)
		defer c.CloseIdleConnections()
		start := time.Now()
		_, err = c.Get("http://any.test/")
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(start) != 7*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestCheckURL(t *testing.T) {
	for _, good := range []string{
		"http://example.com", "https://example.com:8443/a?b=c", "HTTPS://Example.com/", "http://[::1]:80/", "http://127.0.0.1:7411/hook",
	} {
		if _, err := CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "example.com", "/path", "//host/x", "ftp://h/", "file:///etc/passwd", "http:", "http://", "http:///x", "http://:80/", "http:opaque",
		"http://u@h/", "http://u:hunter2@h/", "http://h:0/", "http://h:65536/", "http://h:x/", "http://h/\x00", "http://h/\n", "http://a b/",
		"javascript:alert(1)", "http://h/" + strings.Repeat("a", MaxURL),
	} {
		_, err := CheckURL(bad)
		if !problem.Is(err, "invalid_url") {
			t.Errorf("%.60q: %v", bad, err)
		} else if strings.Contains(err.Error(), "hunter2") { // I-33
			t.Errorf("the error repeats the URL: %v", err)
		}
	}
}

func FuzzCheckURL(f *testing.F) {
	f.Add("http://a/")
	f.Add("https://[::ffff:10.0.0.1]:443/x?y#z")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := CheckURL(raw)
		if err != nil {
			return
		}
		if u.User != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
			t.Errorf("accepted %q as %v", raw, u)
		}
	})
}

package gate_test

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/gate"
)

func hosts(t testing.TB, names ...string) gate.Hosts {
	t.Helper()
	h, err := gate.NewHosts(names...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// C91: a name that is not listed is refused, however it is written.
// One peer has a quarter of the places, and nothing is left of those who are gone.
func TestPlaces(t *testing.T) {
	p := gate.NewPlaces(8)
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var leave []func()
	enter := func(peer netip.Addr, want bool) {
		t.Helper()
		ctx := t.Context()
		if !want {
			ctx = over
		}
		l, err := p.Enter(ctx, peer)
		if (err == nil) != want {
			t.Fatalf("%s: %v", peer, err)
		}
		if err == nil {
			leave = append(leave, l)
		}
	}
	enter(one, true)
	enter(one, true)
	enter(one, false)
	enter(two, true)
	enter(two, true)
	for i := range 4 {
		enter(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), true)
	}
	enter(netip.MustParseAddr("203.0.113.1"), false) // all are taken
	if p.Peers() != 6 {
		t.Errorf("%d peers", p.Peers())
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if l, err := p.Enter(t.Context(), one); err == nil {
			l()
		}
	}()
	for _, l := range leave {
		l()
	}
	<-waited
	if p.Peers() != 0 {
		t.Errorf("%d peers are left", p.Peers())
	}
	for i := range 8 {
		enter(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), true)
	}
}

func TestHosts(t *testing.T) {
	h := hosts(t, "Agents.Example.com.", "10.0.0.5", "2001:db8::5")
	for _, host := range []string{
		"localhost", "LOCALHOST:7411", "localhost.", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:7411", "[::ffff:127.0.0.1]:80",
		"agents.example.com", "AGENTS.example.COM:443", "agents.example.com.:443", "10.0.0.5:7411", "[2001:db8:0::5]:7411",
	} {
		if !h.Allows(host) {
			t.Errorf("%q is refused", host)
		}
	}
	for _, host := range []string{
		"", ".", ":80", "evil.test", "evil.test:7411", "localhost.evil.test", "evil-localhost", "localhost..", ".localhost", "0.0.0.0", "0.0.0.0:7411", "[::]", "[::]:7411",
		"127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "127.0.0.1.nip.io", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:123456", "127.0.0.1:80:80", "user@localhost",
		"localhost@evil.test", "localhost/evil", "localhost\x00", "localhost ", " localhost", "ｌocalhost", "[::1", "::1", "[::1%25lo]", "[127.0.0.1]", "[::1]x", "localhost,evil.test",
		"192.168.0.1", "169.254.169.254", "10.0.0.6", "x.agents.example.com", "http://localhost",
	} {
		if h.Allows(host) {
			t.Errorf("%q is allowed", host)
		}
	}
	for _, bad := range []string{"", "https://agents.example.com", "agents.example.com:443", "*.example.com", "a b"} {
		if _, err := gate.NewHosts(bad); err == nil {
			t.Errorf("%q is taken as a public name", bad)
		}
	}
}

func TestOrigins(t *testing.T) {
	h := hosts(t)
	for _, c := range []struct {
		origin, host string
		want         bool
	}{
		{"http://127.0.0.1:7411", "127.0.0.1:7411", true}, {"http://localhost", "localhost:80", true}, {"https://a.test", "a.test", true},
		{"https://A.test:443", "a.test", true}, {"http://[::1]:7411", "[::1]:7411", true},
		{"http://127.0.0.1:7412", "127.0.0.1:7411", false}, {"http://localhost:7411", "127.0.0.1:7411", false}, {"null", "127.0.0.1", false},
		{"", "127.0.0.1", false}, {"file://127.0.0.1", "127.0.0.1", false}, {"http://127.0.0.1/x", "127.0.0.1", false}, {"http://x@127.0.0.1", "127.0.0.1", false},
	} {
		if got := h.Same(c.origin, c.host); got != c.want {
			t.Errorf("origin %q at %q: %v", c.origin, c.host, got)
		}
	}
}

func proxies(header string) gate.Proxies {
	return gate.Proxies{Header: header, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}}
}

func TestPeers(t *testing.T) {
	for _, c := range []struct {
		name, header, remote string
		lines                []string
		want                 string
	}{
		{"no proxy is not believed", gate.ForwardedFor, "192.0.2.9", []string{"127.0.0.1"}, "192.0.2.9"},
		{"loopback is no proxy either", gate.ForwardedFor, "127.0.0.1", []string{"192.0.2.1"}, "127.0.0.1"},
		{"the last entry counts", gate.ForwardedFor, "10.0.0.1", []string{"1.1.1.1, 192.0.2.1"}, "192.0.2.1"},
		{"proxies are passed over", gate.ForwardedFor, "10.0.0.1", []string{"1.1.1.1, 192.0.2.1, 10.0.0.2", "10.0.0.3"}, "192.0.2.1"},
		{"only proxies", gate.ForwardedFor, "10.0.0.1", []string{"10.0.0.2"}, "10.0.0.2"},
		{"what cannot be read ends it", gate.ForwardedFor, "10.0.0.1", []string{"192.0.2.1, unknown"}, "10.0.0.1"},
		{"with a port", gate.ForwardedFor, "10.0.0.1", []string{"192.0.2.1:4000"}, "192.0.2.1"},
		{"mapped", gate.ForwardedFor, "10.0.0.1", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		{"nothing", gate.ForwardedFor, "10.0.0.1", nil, "10.0.0.1"},
		{"empty", gate.ForwardedFor, "10.0.0.1", []string{""}, "10.0.0.1"},
		{"the other header is not read", gate.Forwarded, "10.0.0.1", nil, "10.0.0.1"},
		{"RFC 7239", gate.Forwarded, "fd00::1", []string{`for=1.1.1.1, proto=https; For="[2001:db8::7]:443" ;by=10.0.0.1`}, "2001:db8::7"},
		{"RFC 7239, hidden", gate.Forwarded, "10.0.0.1", []string{`for=_hidden`}, "10.0.0.1"},
	} {
		h := http.Header{"X-Forwarded-For": {"8.8.8.8"}}
		h[c.header] = c.lines
		if got := proxies(c.header).Peer(netip.MustParseAddr(c.remote), h); got != netip.MustParseAddr(c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	long := make([]string, 1000)
	for i := range long {
		long[i] = "10.0.0.2"
	}
	if got := proxies(gate.ForwardedFor).Peer(netip.MustParseAddr("10.0.0.1"), http.Header{"X-Forwarded-For": append([]string{"192.0.2.1"}, long...)}); got.String() != "10.0.0.2" {
		t.Errorf("a header without an end: %s", got)
	}
	if a, b := gate.Household(netip.MustParseAddr("2001:db8::1")), gate.Household(netip.MustParseAddr("2001:db8::ffff:1")); a != b {
		t.Errorf("one host of IPv6 is %s and %s", a, b)
	}
	if ip, ok := gate.Remote("@"); ok {
		t.Errorf("a socket comes from %s", ip)
	}
}

// Within any span no more passes than the burst and what the rate earns, and who
// keeps to the rate is never refused.
func TestRates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count, burst := rapid.IntRange(1, 20).Draw(t, "count"), rapid.IntRange(1, 30).Draw(t, "burst")
		now := time.Unix(1, 0)
		r := gate.NewRates[string](time.Minute, count, burst, 8, now)
		every := time.Minute / time.Duration(count)
		passed := map[string][]time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, int(2*every)).Draw(t, "wait")))
			k := strconv.Itoa(rapid.IntRange(0, 20).Draw(t, "who"))
			over := r.Len() < 8 && r.Over(k, now) // a full table makes room when one is counted
			ok, wait := r.Take(k, now)
			if ok && over {
				t.Fatal("over, and passes")
			}
			if !ok {
				if wait <= 0 || wait > every {
					t.Fatalf("refused for %s", wait)
				}
				if r.Over(k, now.Add(wait)) {
					t.Fatal("still refused after the wait that was told")
				}
				continue
			}
			passed[k] = append(passed[k], now)
		}
		if r.Len() > 8 {
			t.Fatalf("the table holds %d", r.Len())
		}
		for k, at := range passed {
			for i := range at {
				for j := i; j < len(at); j++ {
					if most := burst + int(at[j].Sub(at[i])/every) + 1; j-i+1 > most {
						t.Fatalf("%s: %d within %s, at most %d", k, j-i+1, at[j].Sub(at[i]), most)
					}
				}
			}
		}
	})
}

// Who came while the table was full does not begin anew when there is a place in it.
func TestRatesAfterAFullTable(t *testing.T) {
	now := time.Unix(1, 0)
	r := gate.NewRates[string](time.Minute, 60, 3, 2, now)
	for _, k := range []string{"a", "a", "b", "b"} { // they have used what is theirs for a while
		r.Take(k, now)
	}
	passed := 0
	for ; passed < 10; passed++ {
		if ok, _ := r.Take("c", now); !ok {
			break
		}
	}
	now = now.Add(2 * time.Second) // a and b are forgotten
	for ; passed < 20; passed++ {
		if ok, _ := r.Take("c", now); !ok {
			break
		}
	}
	if passed > 3+2 {
		t.Errorf("%d passed within two seconds, at most 3 and one a second", passed)
	}
}

// One who keeps to the rate is never refused, while thousands of others come.
func TestRatesBounded(t *testing.T) {
	now := time.Unix(1, 0)
	r := gate.NewRates[int](time.Minute, 10, 10, 64, now)
	if ok, _ := r.Take(-1, now); !ok {
		t.Fatal("the first is refused")
	}
	refused := 0
	for i := range 10_000 {
		now = now.Add(time.Millisecond)
		if ok, _ := r.Take(i, now); !ok {
			refused++
		}
		if i%6000 == 5999 {
			if ok, _ := r.Take(-1, now); !ok {
				t.Fatal("a peer that keeps to its rate is refused")
			}
		}
	}
	if r.Len() > 64 || refused < 9000 {
		t.Errorf("%d are held, %d of 10000 refused", r.Len(), refused)
	}
	if ok, _ := r.Take(99_999, now.Add(2*time.Minute)); !ok {
		t.Error("the table does not recover")
	}
}

func TestRefusals(t *testing.T) {
	var r gate.Refusals
	now := time.Unix(100, 0)
	peer := netip.MustParseAddr("192.0.2.1")
	for i := range 5 {
		if first := r.Note(gate.Refusal{Peer: peer, Reason: "invalid_token", Path: "/" + strconv.Itoa(i)}, now.Add(time.Duration(i))); first != (i == 0) {
			t.Errorf("note %d: first %v", i, first)
		}
	}
	r.Note(gate.Refusal{Peer: peer, Reason: "host_not_allowed", Detail: "evil.test"}, now.Add(time.Second))
	list := r.Take()
	if len(list) != 2 || list[0].Count != 5 || list[0].Path != "/0" || !list[0].Since.Equal(now) || list[1].Detail != "evil.test" || len(r.Take()) != 0 {
		t.Errorf("%+v", list)
	}
	// However many come, the room is bounded and the count whole.
	var sum int64
	for i := range 5000 {
		var b [4]byte
		b[2], b[3] = byte(i>>8), byte(i)
		r.Note(gate.Refusal{Peer: netip.AddrFrom4(b), Reason: "invalid_token", Detail: "x"}, now)
	}
	list = r.Take()
	for _, c := range list {
		sum += c.Count
	}
	many := slices.ContainsFunc(list, func(c gate.Counted) bool { return !c.Peer.IsValid() && c.Detail == "" && c.Count > 4900 })
	if len(list) > 9 || sum != 5000 || !many {
		t.Errorf("%d entries hold %d", len(list), sum)
	}
}

// Whatever stands in a Host, it is allowed only if it reads as a listed name or a
// loopback address with nothing beside it.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"localhost:1", "[::1]:7411", "127.0.0.1", "a.test.", "evil.test", "[::ffff:7f00:1]", "xn--a", "a_b.test:0"} {
		f.Add(s)
	}
	h := hosts(f, "a.test")
	f.Fuzz(func(t *testing.T, s string) {
		if !h.Allows(s) {
			return
		}
		for _, c := range []byte(s) {
			if c <= ' ' || c >= 0x7f || c == '/' || c == '@' || c == '\\' || c == '#' || c == '?' {
				t.Errorf("%q is allowed", s)
			}
		}
	})
}

// Whatever a proxy's header holds, the peer is the proxy itself or an address
// that stands in the header; and nobody else's header is read.
func FuzzForwarded(f *testing.F) {
	f.Add("1.1.1.1, 192.0.2.1", `for="[2001:db8::1]:4711";proto=http, for=10.0.0.2`)
	f.Add(`,,;for=";"`, `for=`)
	f.Fuzz(func(t *testing.T, a, b string) {
		for header, line := range map[string]string{gate.ForwardedFor: a, gate.Forwarded: b} {
			p := proxies(header)
			h := http.Header{header: {line}}
			remote := netip.MustParseAddr("10.0.0.1")
			if got := p.Peer(remote, h); !got.IsValid() || got.Zone() != "" || got.Is4In6() {
				t.Errorf("%q: peer %s", line, got)
			}
			stranger := netip.MustParseAddr("192.0.2.200")
			if got := p.Peer(stranger, h); got != stranger {
				t.Errorf("%q: a stranger is %s", line, got)
			}
		}
	})
}

func FuzzOrigin(f *testing.F) {
	f.Add("http://127.0.0.1:7411", "127.0.0.1:7411")
	f.Add("null", "localhost")
	f.Fuzz(func(t *testing.T, origin, host string) {
		h := gate.Hosts{}
		if h.Same(origin, host) && !h.Same("http://"+host, host) && !h.Same("https://"+host, host) {
			t.Errorf("origin %q at %q", origin, host)
		}
	})
}

func BenchmarkRates(b *testing.B) {
	now := time.Now()
	r := gate.NewRates[string](time.Second, 1_000_000_000, 1_000_000_000, 4096, now)
	for b.Loop() {
		r.Take("tok_1", now)
	}
}

// Who looked at the clock and was then passed by another is not ahead of its time.
func TestRatesOfAnOldLook(t *testing.T) {
	now := time.Unix(1, 0)
	r := gate.NewRates[string](time.Second, 10, 2, 8, now)
	if ok, _ := r.Take("a", now.Add(time.Minute)); !ok {
		t.Fatal("the first was refused")
	}
	if ok, wait := r.Take("a", now); !ok {
		t.Errorf("one that looked at the clock a minute before waits for %v", wait)
	}
	if r.Over("b", now) {
		t.Error("another is over its allowance")
	}
	if ok, _ := r.Take("a", now); ok {
		t.Error("the burst of two has three")
	}
}

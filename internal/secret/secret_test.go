package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/problem"
	"pgregory.net/rapid"
)

// I-33: there is no way of printing that tells a Value.
func TestValueTellsNothing(t *testing.T) {
	const text = "hunter2-hunter2"
	v := New(text)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "p", &v, "in", struct{ V Value }{v})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v, "p", &v, "in", map[string]Value{"v": v})
	all := log.String() + fmt.Sprint(v, &v, []Value{v}, struct{ V Value }{v}) + fmt.Errorf("bad: %w", errors.New(v.String())).Error()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		all += fmt.Sprintf(verb, v) + fmt.Sprintf(verb, &v) + fmt.Sprintf(verb, map[string]any{"v": v})
	}
	for _, x := range []any{v, &v, map[string]Value{"k": v}, struct{ V any }{v}} {
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	for form, echo := range echoes(text) {
		if strings.Contains(all, echo) {
			t.Errorf("%s: %s", form, all)
		}
	}
	if v.Reveal() != text || v.IsZero() || !New("").IsZero() {
		t.Error("the value itself is lost")
	}
}

func TestHosts(t *testing.T) {
	for _, test := range []struct {
		entry string
		yes   []string
		no    []string
	}{
		{"API.Example.com.", []string{"api.example.com:443", "api.example.com:8443", "API.EXAMPLE.COM:443", "api.example.com.:443", "api.example.com"},
			[]string{"example.com:443", "xapi.example.com:443", "api.example.com.evil.test:443", "evil.test:443", "", ":443", "api.example.com:x"}},
		{"api.example.com:8443", []string{"api.example.com:8443"}, []string{"api.example.com:443", "api.example.com", "api.example.com:08443"}},
		{"*.example.com", []string{"a.example.com:443", "a.b.example.com:1"}, []string{"example.com:443", ".example.com:443", "aexample.com:443", "a.example.com.evil.test:443"}},
		{"*.example.com:8443", []string{"a.example.com:8443"}, []string{"a.example.com:443"}},
		{"10.0.0.7", []string{"10.0.0.7:80", "[::ffff:10.0.0.7]:80"}, []string{"10.0.0.70:80", "110.0.0.7:80", "0xa.0.0.7:80"}},
		{"[2001:db8::1]:443", []string{"[2001:db8:0::1]:443"}, []string{"[2001:db8::1]:80", "[2001:db8::11]:443"}},
		{"2001:db8::1", []string{"[2001:db8::1]:443", "2001:db8::1"}, []string{"[2001:db8::2]:443"}},
	} {
		h, err := ParseHosts([]string{test.entry})
		if err != nil {
			t.Errorf("%s: %v", test.entry, err)
		}
		for _, x := range test.yes {
			if !h.Allows(x) {
				t.Errorf("%s does not allow %q", test.entry, x)
			}
		}
		for _, x := range test.no {
			if h.Allows(x) {
				t.Errorf("%s allows %q", test.entry, x)
			}
		}
	}
	for _, bad := range []string{"", "*", "*.com", "*.10.0.0.1", "http://x.test", "x.test/", "x test", "x..test", "-x.test", "x.test:0", "x.test:99999", "x.test:", "2130706433", "[::1", "a@b.test", "fe80::1%lo", "ü.test", "*.*.x.test", "a,b"} {
		if _, err := ParseHosts([]string{bad}); !problem.Is(err, "invalid_hosts") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseHosts(make([]string, MaxHosts+1)); !problem.Is(err, "invalid_hosts") {
		t.Errorf("too many: %v", err)
	}
	if h, err := ParseHosts([]string{"b.test", "A.test", "b.test."}); err != nil || !slices.Equal(h, Hosts{"a.test", "b.test"}) || (Hosts{}).Allows("a.test:1") {
		t.Errorf("%v %v", h, err)
	}
}

func TestHostOf(t *testing.T) {
	for raw, want := range map[string]string{
		"https://API.test/x": "api.test:443", "http://api.test": "api.test:80", "http://api.test:8080/": "api.test:8080", "https://[2001:DB8::1]/": "[2001:db8::1]:443",
		"https://api.test./": "api.test:443", "http://[::ffff:10.0.0.1]/": "10.0.0.1:80",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := HostOf(u); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

// An entry's own form is canonical, and it allows itself.
func TestHostsAreStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entry := rapid.StringMatching(`(\*\.)?[a-zA-Z0-9-]{1,9}(\.[a-z0-9-]{1,9}){1,3}\.?(:[0-9]{1,5})?`).Draw(t, "entry")
		h, err := ParseHosts([]string{entry})
		if err != nil {
			return
		}
		again, err := ParseHosts(h)
		if err != nil || !slices.Equal(h, again) {
			t.Fatalf("%q gives %v, then %v, %v", entry, h, again, err)
		}
		if name := h[0]; !strings.HasPrefix(name, "*") && !h.Allows(name) {
			t.Fatalf("%q does not allow itself", name)
		}
	})
}

func FuzzHosts(f *testing.F) {
	f.Add("api.example.com:443", "api.example.com:443")
	f.Add("*.example.com", "[::ffff:10.0.0.1]:80")
	f.Fuzz(func(t *testing.T, entry, host string) {
		h, err := ParseHosts([]string{entry})
		if err != nil {
			return
		}
		if again, err := ParseHosts(h); err != nil || !slices.Equal(h, again) {
			t.Errorf("%q gives %v, then %v, %v", entry, h, again, err)
		}
		if h.Allows(host) && strings.HasPrefix(h[0], "*.") == false {
			u, err := url.Parse("http://" + host + "/")
			if err == nil && u.Host == host && !h.Allows(HostOf(u)) && u.Port() != "" {
				t.Errorf("%v allows %q, but not where a request to it goes, %q", h, host, HostOf(u))
			}
		}
	})
}

// I-33: texts of others are held against every secret that was used.
func TestKnown(t *testing.T) {
	var k Known
	if k.Scrub("hunter2-hunter2") != "hunter2-hunter2" || string(k.Excerpt([]byte("hunter2-hunter2"), 7)) != "hunter2" {
		t.Error("an empty one changes texts")
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 8 {
				v := fmt.Sprintf("secret-%d-%d-x", i, n)
				k.Add(v, "short")
				if got := k.Scrub("a " + v + " b"); got != "a [redacted] b" {
					t.Errorf("%q", got)
				}
			}
		})
	}
	wg.Wait()
	if got := string(k.Excerpt([]byte(`{"a":"secret-3-4\u002dx","b":"short"}`), 20)); got != `{"a":"[redacted]` {
		t.Error(got)
	}
	k.Keep("of the daemon itself")
	k.Add("used all the time")
	var many []string
	for n := range maxKnown {
		many = append(many, fmt.Sprintf("later-secret-%d", n))
	}
	for _, v := range many {
		k.Add("used all the time")
		k.Add(v)
		if got := k.Scrub("of the daemon itself, used all the time"); got != "[redacted], [redacted]" {
			t.Fatalf("I-33: forgotten while in use: %s", got)
		}
	}
	if n := len(k.now.Load().used); n > maxKnown+1 || strings.Contains(k.Scrub("later-secret-255"), "255") {
		t.Errorf("%d are known", n)
	}
	if got := k.Scrub("secret-0-0-x"); got != "secret-0-0-x" {
		t.Error("what was not used for long takes the place of others")
	}
	k.Add("postgres://database-user:pass-word-pass@db.test/database-name?sslmode=verify-full", "nats://token-of-the-bus@bus.test")
	if got := k.Scrub("database-user database-name verify-full pass-word-pass token-of-the-bus"); got != "database-user database-name verify-full [redacted] [redacted]" {
		t.Error(got)
	}
	k.Add("https://hooks.test/hooks%2Fof-ann%22s")
	if got := k.Scrub(`no: /hooks/of-ann"s/`); got != "no: /[redacted]/" {
		t.Error(got)
	}
	k.Add("https://hooks.test/services/T00/B00/tokentokentoken?key=queryquery")
	for _, part := range []string{"/services/T00/B00/tokentokentoken", "tokentokentoken", "queryquery"} {
		if got := k.Scrub("no: " + part); strings.Contains(got, part) {
			t.Errorf("%q", got)
		}
	}
}

package webhook

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// What a receiver answers to a failed attempt is kept as far as it tells anything,
// and nothing that was sent to it of secrets (I-33): receivers echo.
func TestExcerpt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := secretPrefix + base64.StdEncoding.EncodeToString(testSecret)
		for name, row := range map[string]struct {
			status string
			answer func(r *http.Request) string
			check  func(got string) bool
		}{
			"short":           {"400 Bad Request", func(*http.Request) string { return `{"error":"no such field"}` }, func(got string) bool { return got == `{"error":"no such field"}` }},
			"none":            {"500 No", func(*http.Request) string { return "" }, func(got string) bool { return got == "" }},
			"taken":           {"200 OK", func(*http.Request) string { return "thanks" }, func(got string) bool { return got == "" }},
			"not text":        {"500 No", func(*http.Request) string { return "a\xff\xfe\x00b" }, func(got string) bool { return got == "a\uFFFD\uFFFDb" }},
			"long":            {"500 No", func(*http.Request) string { return strings.Repeat("é", 100_000) }, func(got string) bool { return len(got) == DefaultMaxExcerpt }},
			"cut in a rune":   {"500 No", func(*http.Request) string { return "x" + strings.Repeat("é", 100_000) }, func(got string) bool { return len(got) == DefaultMaxExcerpt-1 }},
			"a redirect":      {"302 Found", func(*http.Request) string { return "gone to " + secret }, func(got string) bool { return got == "gone to [redacted]" }},
			"an echo":         {"422 No", func(r *http.Request) string { return fmt.Sprint(r.URL, r.Header) }, func(got string) bool { return strings.Contains(got, "Webhook-Id:[dlv_1]") }},
			"secret at a cut": {"500 No", func(*http.Request) string { return strings.Repeat("x", DefaultMaxExcerpt-10) + secret }, func(got string) bool { return strings.HasSuffix(got, "x[redacted]") }},
			"what is taken out makes room": {"500 No", func(*http.Request) string { return strings.Repeat(secret+" ", 2*DefaultMaxExcerpt/len(secret)) },
				func(got string) bool {
					return strings.HasSuffix(strings.TrimSpace(got), "[redacted]") && !strings.Contains(got, secret[:12])
				}},
			"the same in URL form": {"500 No", func(*http.Request) string {
				return "hunter22%20hunter22 aHVudGVyMjI= 68756e7465723232 " + "private-word"
			},
				func(got string) bool { return strings.Count(got, "[redacted]") >= 4 }},
		} {
			p := &pipes{serve: func(_ int, c net.Conn) {
				r, _ := one(t, c)
				if r == nil {
					return
				}
				text := row.answer(r)
				_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", row.status, len(text), text)
			}}
			r := request()
			r.Headers = map[string]string{"X-Tenant": "acme-tenant"}
			r.Private = []string{"private-word"}
			got := ""
			if o := sender(t, p).Send(t.Context(), r); o.Failed != nil {
				got = string(o.Failed.Excerpt)
			}
			if !row.check(got) || !utf8.ValidString(got) || len(got) > DefaultMaxExcerpt {
				t.Errorf("%s: %d bytes: %.200q", name, len(got), got)
			}
			for _, word := range []string{secret, secret[len(secretPrefix):], "hunter22", "acme-tenant", "private-word", "aHVudGVyMjI"} {
				if strings.Contains(got, word) {
					t.Errorf("%s: %q stands in %.300q", name, word, got)
				}
			}
		}
	})
}

// A receiver that drips the body of its failure, or never ends it, holds the
// attempt for a moment only, and what came of it is kept.
func TestExcerptOfADrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{serve: func(_ int, c net.Conn) {
			one(t, c)
			_, _ = io.WriteString(c, "HTTP/1.1 503 No\r\nContent-Length: 1000000\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				time.Sleep(300 * time.Millisecond)
			}
		}}
		began := time.Now()
		o := sender(t, p).Send(t.Context(), request())
		if o.Failed == nil || o.Failed.Code != "http_503" || string(o.Failed.Excerpt) != "xxxx" || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), o.Failed)
		}
	})
}

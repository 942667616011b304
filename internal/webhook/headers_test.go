package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

func TestCheckHeaders(t *testing.T) {
	many := map[string]string{}
	for i := range MaxHeaders {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	for _, good := range []map[string]string{
		nil, {}, many,
		{"X-Tenant": "a b\tc", "x-empty": "", "traceparent": "00-a-b-01"},
		{"X-Long": strings.Repeat("v", MaxHeaderValue)},
	} {
		if err := CheckHeaders(good); err != nil {
			t.Errorf("%.80v: %v", good, err)
		}
	}
	bad := []map[string]string{
		{"": "v"}, {"X A": "v"}, {"X:A": "v"}, {"X-Ä": "v"}, {"X\r\nY": "v"}, {strings.Repeat("x", MaxHeaderName+1): "v"},
		{"X-A": "v\r\nWebhook-Id: x"}, {"X-A": "v\x00"}, {"X-A": " v"}, {"X-A": "v\t"}, {"X-A": "ü"}, {"X-A": "\x7f"},
		{"X-A": strings.Repeat("v", MaxHeaderValue+1)}, {"X-A": "1", "x-a": "2"},
	}
	for _, name := range []string{
		"Host", "Connection", "Keep-Alive", "Transfer-Encoding", "TE", "Trailer", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "Expect",
		"Content-Length", "content-type", "Content-Encoding", "User-Agent", "AUTHORIZATION", "Cookie", "X-API-Key", "webhook-id", "Webhook-Signature",
		"webhook-anything", "Idempotency-Key", "X-Idempotency-Key",
	} {
		bad = append(bad, map[string]string{name: "hunter2"})
	}
	for _, headers := range bad {
		err := CheckHeaders(headers)
		if p := problem.Of(err); len(p.Issues) > 0 && !strings.Contains(p.Detail, p.Issues[0].Text) {
			t.Errorf("%.80v: %q does not say what is wrong", headers, p.Detail)
		}
		var p *problem.Error
		if !errors.As(err, &p) || p.Code != "invalid_headers" || len(p.Issues) == 0 {
			t.Errorf("%.80v: %v", headers, err)
		} else if strings.Contains(fmt.Sprint(p, p.Issues), "hunter2") { // I-33
			t.Errorf("%v: the error repeats the value", headers)
		}
	}
	many["X-One-More"] = "v"
	if CheckHeaders(many) == nil {
		t.Error("too many headers were accepted")
	}
	// Every fault is told, in an order that does not change.
	var p *problem.Error
	if errors.As(CheckHeaders(map[string]string{"host": "v", "Cookie": "v", "X-OK": "v"}), &p); len(p.Issues) != 2 || p.Issues[0].Path != `"Cookie"` {
		t.Errorf("issues: %v", p.Issues)
	}
}

// C42, from the machine-readable case.
func TestRetryAfterOfFieldCase(t *testing.T) {
	var c struct {
		Input struct {
			Now    time.Time
			Policy struct {
				Cap int `json:"retry_after_cap_s"`
			}
			Variants []struct {
				RetryAfter string `json:"retry_after"`
				Wait       any    `json:"wait_s"`
			}
		}
	}
	if err := json.Unmarshal(vectorFile(t, "field", "C42.json"), &c); err != nil {
		t.Fatal(err)
	}
	limit := time.Duration(c.Input.Policy.Cap) * time.Second
	for _, v := range c.Input.Variants {
		want := time.Duration(0) // any form of "backoff": the sender's own schedule
		if n, ok := v.Wait.(float64); ok {
			want = time.Duration(n) * time.Second
		} else if v.Wait == "cap" {
			want = limit
		}
		if got := retryAfter(v.RetryAfter, c.Input.Now, limit); got != want {
			t.Errorf("%q: %s, want %s", v.RetryAfter, got, want)
		}
	}
	if len(c.Input.Variants) < 9 {
		t.Errorf("%d variants", len(c.Input.Variants))
	}
}

// C42
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"0": 0, "00": 0, "3600": time.Hour, "3601": time.Hour, "007": 7 * time.Second,
		"99999999999999999999999999": time.Hour, "9223372036854775807": time.Hour,
		"+7": 0, "7s": 0, "1e3": 0, "NaN": 0, "-0": 0, "0x10": 0, "٧": 0,
		"Thursday, 15-Jan-26 12:00:30 GMT": 30 * time.Second, "Thu Jan 15 12:00:30 2026": 30 * time.Second,
		"Thu, 15 Jan 2026 12:00:00 GMT": 0, "Mon, 01 Jan 0001 00:00:00 GMT": 0, "Fri, 31 Dec 9999 23:59:59 GMT": time.Hour,
	} {
		if got := retryAfter(value, now, MaxRetryAfter); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	f.Add("7")
	f.Add("Thu, 15 Jan 2026 12:00:30 GMT")
	f.Fuzz(func(t *testing.T, value string) {
		if d := retryAfter(value, now, MaxRetryAfter); d < 0 || d > MaxRetryAfter {
			t.Errorf("%q: %s", value, d)
		}
	})
}

func FuzzCheckHeaders(f *testing.F) {
	f.Add("X-A", "v")
	f.Fuzz(func(t *testing.T, name, value string) {
		if CheckHeaders(map[string]string{name: value}) == nil && strings.ContainsAny(name+value, "\r\n\x00") {
			t.Errorf("accepted %q: %q", name, value)
		}
	})
}

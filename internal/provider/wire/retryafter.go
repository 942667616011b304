package wire

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter bounds what a vendor may ask us to wait.
const MaxRetryAfter = 15 * time.Minute

// RetryAfter reads how long the answer asks to wait, at most MaxRetryAfter:
// `retry-after-ms` (milliseconds) first, then Retry-After (RFC 9110, section
// 10.2.3: seconds or an HTTP date). A fraction of a second is accepted, since
// vendors send it. What is negative, past or unreadable is 0, which means that
// nothing was asked and the usual backoff holds.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if d := decimal(h.Get("Retry-After-Ms"), time.Millisecond); d > 0 {
		return d
	}
	text := strings.TrimSpace(h.Get("Retry-After"))
	if d := decimal(text, time.Second); d > 0 {
		return d
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return bound(at.Sub(now))
}

// decimal reads a plain non-negative decimal number of units.
func decimal(text string, unit time.Duration) time.Duration {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > 32 || strings.Trim(text, "0123456789.") != "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	if n >= float64(MaxRetryAfter/unit) {
		return MaxRetryAfter
	}
	return bound(time.Duration(n * float64(unit)))
}

func bound(d time.Duration) time.Duration { return max(0, min(d, MaxRetryAfter)) }

package webhook

import (
	"net/http"
	"strconv"
	"time"
)

// MaxRetryAfter is the longest wait that a receiver can ask for.
const MaxRetryAfter = time.Hour

// retryAfter reads a Retry-After header (RFC 9110, section 10.2.3): seconds or
// a date, at most limit. What is unreadable, negative, zero or past gives 0,
// which means that the receiver asked for nothing and the sender's own
// schedule holds: never an immediate repetition.
func retryAfter(value string, now time.Time, limit time.Duration) time.Duration {
	if value == "" {
		return 0
	}
	digits := true
	for i := range len(value) {
		digits = digits && '0' <= value[i] && value[i] <= '9'
	}
	if digits {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(limit/time.Second) {
			return limit // all digits: the error can only be an overflow
		}
		return time.Duration(seconds) * time.Second
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, min(limit, date.Sub(now)))
}

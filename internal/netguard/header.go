package netguard

import (
	"net/textproto"
	"strings"
)

// ValidHeaderName says whether s is a token (RFC 9110, section 5.6.2), as
// names of headers are.
func ValidHeaderName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// ValidHeaderValue says whether s is a field value (RFC 9110, section 5.5) of
// visible ASCII, with spaces and tabs inside only. It may be empty.
func ValidHeaderValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c > '~' {
			return false
		}
	}
	return textproto.TrimString(s) == s
}

// ConnectionHeader says whether a header belongs to the connection or the
// framing of a message (RFC 9110, sections 7.2, 7.6.1, 8.6 and 10.1.1), so
// that only the HTTP client may set it.
func ConnectionHeader(name string) bool {
	switch strings.ToLower(name) {
	case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "expect",
		"host", "content-length":
		return true
	}
	return false
}

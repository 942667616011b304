package netguard

import (
	"net/url"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

// MaxURL bounds the length of a URL, in bytes.
const MaxURL = 2048

// CheckURL parses an address that a user or the configuration gave: http or
// https, with a host, without user information (credentials are references,
// never part of an address), at most MaxURL bytes. The error is a
// *problem.Error of kind invalid, with code invalid_url; it does not repeat
// the address, which may hold a token.
//
// It does not say whether the host may be reached: only the connection shows.
func CheckURL(raw string) (*url.URL, error) {
	bad := func(text string) (*url.URL, error) {
		return nil, problem.New(problem.Invalid, "invalid_url", "the URL %s", text)
	}
	if len(raw) > MaxURL {
		return bad("is longer than " + strconv.Itoa(MaxURL) + " bytes")
	}
	u, err := url.Parse(raw)
	if err != nil {
		return bad("cannot be parsed")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return bad("must begin with http:// or https://")
	}
	if u.User != nil {
		return bad("must not hold a user name or password")
	}
	if u.Opaque != "" || u.Hostname() == "" {
		return bad("has no host")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return bad("has a port that is not between 1 and 65535")
		}
	}
	return u, nil
}

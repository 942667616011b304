package inbound

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Auth is how a sender proves who it is.
type Auth string

// The ways.
const (
	AuthBearer   Auth = "bearer"            // Authorization: Bearer and the secret
	AuthStandard Auth = "standard_webhooks" // the signature of Standard Webhooks 1.0.0
	AuthGitHub   Auth = "github"            // X-Hub-Signature-256
	AuthSlack    Auth = "slack"             // X-Slack-Signature, version v0
	AuthNone     Auth = "none"              // everybody may
)

// DefaultMaxAge is how far the timestamp of a signature may be from now.
const DefaultMaxAge = 5 * time.Minute

const (
	maxSecrets = 8
	maxHeader  = 4096 // bytes of a header that is checked
)

// Standard verifies the signature of Standard Webhooks for one secret.
type Standard func(headers http.Header, body []byte, secret string, now time.Time, tolerance time.Duration) error

// Refused says why a request is not believed. It is for the operator and the
// log: who sent the request is told nothing of it.
type Refused string

func (r Refused) Error() string { return string(r) }

// The reasons.
const (
	RefusedHeaders   Refused = "the headers that prove the sender are missing, given twice or malformed"
	RefusedTime      Refused = "the timestamp is too far from this machine's clock"
	RefusedSignature Refused = "the signature matches no secret of the connector"
	RefusedToken     Refused = "the token matches no secret of the connector"
)

// Sealed says whether the body must have come before the sender can be known.
func (a Auth) Sealed() bool { return a == AuthStandard || a == AuthGitHub || a == AuthSlack }

// Covers says whether what proves the sender covers a header too, so that nobody else
// can change it. GitHub's own id of a delivery counts as covered: GitHub offers no other.
func (c *Connector) Covers(header string) bool {
	switch c.Auth {
	case AuthStandard:
		return strings.EqualFold(header, "webhook-id")
	case AuthGitHub:
		return c.Kind == KindGitHub && strings.EqualFold(header, "X-GitHub-Delivery")
	}
	return false
}

// Verify says whether a request comes from who knows one of the secrets. It looks
// at the raw bytes of the body and parses nothing of them. Any one of several
// secrets suffices; an empty one never does. The error is a Refused.
func (a Auth) Verify(h http.Header, body []byte, secrets []string, now time.Time, maxAge time.Duration, standard Standard) error {
	switch a {
	case AuthNone:
		return nil
	case AuthBearer:
		return bearer(h, secrets)
	case AuthGitHub:
		given, ok := hexOf(h, "X-Hub-Signature-256", "sha256=")
		if !ok {
			return RefusedHeaders
		}
		return matches(given, secrets, body)
	case AuthSlack:
		given, ok := hexOf(h, "X-Slack-Signature", "v0=")
		stamp, found := single(h, "X-Slack-Request-Timestamp")
		if !ok || !found {
			return RefusedHeaders
		}
		if err := fresh(stamp, now, maxAge); err != nil {
			return err
		}
		return matches(given, secrets, []byte("v0:"+stamp+":"), body)
	case AuthStandard:
		if standard == nil {
			return RefusedSignature
		}
		return verifyStandard(h, body, secrets, now, maxAge, standard)
	}
	return RefusedHeaders
}

// Glance says what can be said of a sealed request before its body has come, so
// that noise need not be read. Nil is not yet a proof.
func (a Auth) Glance(h http.Header, now time.Time, maxAge time.Duration) error {
	stamp := ""
	var ok bool
	switch a {
	case AuthGitHub:
		if _, ok = hexOf(h, "X-Hub-Signature-256", "sha256="); !ok {
			return RefusedHeaders
		}
		return nil
	case AuthSlack:
		if _, ok = hexOf(h, "X-Slack-Signature", "v0="); !ok {
			return RefusedHeaders
		}
		stamp, ok = single(h, "X-Slack-Request-Timestamp")
	case AuthStandard:
		_, id := single(h, "webhook-id")
		_, signature := single(h, "webhook-signature")
		stamp, ok = single(h, "webhook-timestamp")
		ok = ok && id && signature
	default:
		return nil
	}
	if !ok {
		return RefusedHeaders
	}
	return fresh(stamp, now, maxAge)
}

func bearer(h http.Header, secrets []string) error {
	given, ok := single(h, "Authorization")
	scheme, token, cut := strings.Cut(given, " ")
	if !ok || !cut || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return RefusedHeaders
	}
	// Digests are compared, so that the length of a secret is not told either.
	have := sha256.Sum256([]byte(token))
	found := 0
	for _, s := range secrets {
		want := sha256.Sum256([]byte(s))
		if s != "" {
			found |= subtle.ConstantTimeCompare(have[:], want[:])
		}
	}
	if found != 1 {
		return RefusedToken
	}
	return nil
}

// verifyStandard asks for each secret, all of them, so that which one it was does
// not show in the time. The reason of the first is the one told.
func verifyStandard(h http.Header, body []byte, secrets []string, now time.Time, maxAge time.Duration, standard Standard) error {
	var first error = RefusedSignature
	found := false
	for i, s := range secrets {
		if s == "" {
			continue
		}
		err := standard(h, body, s, now, maxAge)
		if found = found || err == nil; i == 0 && err != nil {
			first = Refused(err.Error())
		}
	}
	if found {
		return nil
	}
	return first
}

// matches says whether the HMAC-SHA256 of the parts under a secret is the given one.
func matches(given []byte, secrets []string, parts ...[]byte) error {
	found := false
	for _, s := range secrets {
		if s == "" {
			continue
		}
		mac := hmac.New(sha256.New, []byte(s))
		for _, p := range parts {
			_, _ = mac.Write(p) // a hash never fails
		}
		found = hmac.Equal(mac.Sum(nil), given) || found
	}
	if !found {
		return RefusedSignature
	}
	return nil
}

// fresh holds a timestamp of Unix seconds, in the one form that was signed,
// against the clock, in both directions.
func fresh(stamp string, now time.Time, maxAge time.Duration) error {
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != stamp {
		return RefusedHeaders
	}
	if maxAge <= 0 {
		maxAge = DefaultMaxAge
	}
	// Compared as seconds: a hostile timestamp would overflow a Duration.
	slack := int64(maxAge / time.Second)
	if seconds < now.Unix()-slack || seconds > now.Unix()+slack {
		return RefusedTime
	}
	return nil
}

// hexOf reads a header that holds a prefix and 32 bytes as lower-case hexadecimal digits.
func hexOf(h http.Header, name, prefix string) ([]byte, bool) {
	text, ok := single(h, name)
	digits, cut := strings.CutPrefix(text, prefix)
	if !ok || !cut || len(digits) != 2*sha256.Size || strings.ToLower(digits) != digits {
		return nil, false
	}
	sum, err := hex.DecodeString(digits)
	return sum, err == nil
}

// single returns the one value of a header. Two values would let two readers
// each look at another one.
func single(h http.Header, name string) (string, bool) {
	values := h.Values(name)
	if len(values) != 1 || values[0] == "" || len(values[0]) > maxHeader {
		return "", false
	}
	return values[0], true
}

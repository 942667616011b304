package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Names of the headers of Standard Webhooks 1.0.0, section "Webhook Headers
// (sending metadata to consumers)".
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// DefaultTolerance is how far a receiver's clock may be from the timestamp.
const DefaultTolerance = 5 * time.Minute

const (
	secretPrefix = "whsec_"
	// Standard Webhooks 1.0.0, section "Signature scheme", asks for 24 to 64
	// bytes. Products in use have shorter ones, so 128 bits are taken.
	minSecret     = 16
	maxSecret     = 64
	newSecretSize = 32
	version       = "v1," // symmetric signatures
	maxID         = 256   // bytes of an id
	maxSignature  = 4096  // bytes of a signature header
)

// Errors of ParseSecret and Verify. Their texts hold nothing of what was checked.
var (
	ErrSecret    = errors.New("webhook: a signing secret is whsec_ followed by the base64 form of 16 to 64 bytes")
	ErrHeaders   = errors.New("webhook: missing or malformed signature headers")
	ErrTimestamp = errors.New("webhook: timestamp outside of the tolerance")
	ErrSignature = errors.New("webhook: no signature matches")
)

// ParseSecret decodes a signing secret: `whsec_` and padded standard base64 of
// 16 to 64 bytes. The error is ErrSecret.
func ParseSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok || len(encoded) > base64.StdEncoding.EncodedLen(maxSecret) || strings.ContainsAny(encoded, "\r\n") {
		return nil, ErrSecret
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(secret) < minSecret || len(secret) > maxSecret {
		return nil, ErrSecret
	}
	return secret, nil
}

// NewSecret makes a secret of 32 bytes from random, in the form that
// ParseSecret reads. The source must be a cryptographic one.
func NewSecret(random io.Reader) (string, error) {
	var secret [newSecretSize]byte
	if _, err := io.ReadFull(random, secret[:]); err != nil {
		return "", err
	}
	return secretPrefix + base64.StdEncoding.EncodeToString(secret[:]), nil
}

// Sign returns one symmetric entry of the signature header: `v1,` and the base64 form of
// HMAC-SHA256 over `id.timestamp.body`, the timestamp in Unix seconds.
func Sign(id string, timestamp time.Time, body, secret []byte) string {
	return version + mac(id, strconv.FormatInt(timestamp.Unix(), 10), body, secret)
}

func mac(id, timestamp string, body, secret []byte) string {
	h := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(h, id+"."+timestamp+".") // a hash never fails
	_, _ = h.Write(body)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// Verify is for receivers: it checks the headers of a delivery over the raw
// bytes of the body, as they came. Any one of several v1 signatures suffices
// (a sender that rotates its secret sends two); other versions are passed
// over. tolerance is how far now may be from the timestamp, in both
// directions; 0 or less: DefaultTolerance.
//
// The error is ErrHeaders, ErrTimestamp or ErrSignature. A good signature does
// not say that the delivery is new: whoever must act once keeps the webhook-id.
func Verify(headers http.Header, body, secret []byte, now time.Time, tolerance time.Duration) error {
	id, stamp, signatures, err := signedHeaders(headers, now, tolerance)
	if err != nil {
		return err
	}
	want := []byte(mac(id, stamp, body, secret))
	for entry := range strings.SplitSeq(signatures, " ") {
		if got, ok := strings.CutPrefix(entry, version); ok && hmac.Equal([]byte(got), want) {
			return nil
		}
	}
	return ErrSignature
}

// signedHeaders reads the three headers, each there once and in the form that
// was signed, with a timestamp within the tolerance.
func signedHeaders(headers http.Header, now time.Time, tolerance time.Duration) (id, stamp, signatures string, err error) {
	id, ok1 := single(headers, HeaderID, maxID)
	stamp, ok2 := single(headers, HeaderTimestamp, 20)
	signatures, ok3 := single(headers, HeaderSignature, maxSignature)
	if !ok1 || !ok2 || !ok3 || !validID(id) {
		return "", "", "", ErrHeaders
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != stamp {
		return "", "", "", ErrHeaders // only the form that was signed
	}
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	// Compared as seconds: a hostile timestamp would overflow a Duration.
	slack := int64(tolerance / time.Second)
	if seconds < now.Unix()-slack || seconds > now.Unix()+slack {
		return "", "", "", ErrTimestamp
	}
	return id, stamp, signatures, nil
}

// single returns the one value of a header. Two values of a signed header
// would let sender and receiver each look at another one.
func single(headers http.Header, name string, limit int) (string, bool) {
	values := headers.Values(name)
	if len(values) != 1 || values[0] == "" || len(values[0]) > limit {
		return "", false
	}
	return values[0], true
}

// validID says whether id can be signed without ambiguity: visible ASCII
// without the dot that separates the signed parts.
func validID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' || id[i] == '.' {
			return false
		}
	}
	return true
}

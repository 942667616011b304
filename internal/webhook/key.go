package webhook

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	privatePrefix     = "whsk_"
	publicPrefix      = "whpk_"
	asymmetricVersion = "v1a,"
)

// Errors of ParseKey and ParsePublicKey. Their texts hold nothing of what was read.
var (
	ErrKey       = errors.New("webhook: a signing key is whsk_ followed by the base64 form of an ed25519 key: 32 bytes of seed, or 64 bytes")
	ErrPublicKey = errors.New("webhook: a public key is whpk_ followed by the base64 form of 32 bytes")
)

// Key signs: with a shared secret (HMAC-SHA256, v1), or with a private key whose
// public half receivers have (ed25519, v1a).
type Key struct {
	secret  []byte
	private ed25519.PrivateKey
}

// HMACKey is the key of a secret of ParseSecret.
func HMACKey(secret []byte) Key { return Key{secret: secret} }

// Asymmetric says whether the key signs with ed25519.
func (k Key) Asymmetric() bool { return k.private != nil }

// ParseKey reads a key of either kind: whsec_… or whsk_…. The error is ErrSecret or ErrKey.
func ParseKey(text string) (Key, error) {
	encoded, ok := strings.CutPrefix(text, privatePrefix)
	if !ok {
		secret, err := ParseSecret(text)
		return Key{secret: secret}, err
	}
	raw, err := decode(encoded, ed25519.PrivateKeySize)
	if err != nil {
		return Key{}, ErrKey
	}
	switch len(raw) {
	case ed25519.SeedSize:
		return Key{private: ed25519.NewKeyFromSeed(raw)}, nil
	case ed25519.PrivateKeySize:
		// The second half must belong to the first: a signature made with another
		// public half gives the private one away.
		key := ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize])
		if key.Equal(ed25519.PrivateKey(raw)) {
			return Key{private: key}, nil
		}
	}
	return Key{}, ErrKey
}

// NewKey makes an ed25519 key from random and gives both halves as ParseKey and
// ParsePublicKey read them. The source must be a cryptographic one.
func NewKey(random io.Reader) (private, public string, err error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, seed); err != nil {
		return "", "", err
	}
	key := Key{private: ed25519.NewKeyFromSeed(seed)}
	return privatePrefix + base64.StdEncoding.EncodeToString(key.private), key.Public(), nil
}

// texts are the forms in which the key may be written down.
func (k Key) texts() []string {
	if k.private == nil {
		text := base64.StdEncoding.EncodeToString(k.secret)
		return []string{secretPrefix + text, text, string(k.secret)}
	}
	whole, seed := base64.StdEncoding.EncodeToString(k.private), base64.StdEncoding.EncodeToString(k.private.Seed())
	return []string{privatePrefix + whole, whole, privatePrefix + seed, seed, string(k.private), string(k.private.Seed())}
}

// Public is the public half of an ed25519 key, whpk_…; empty of a shared secret.
func (k Key) Public() string {
	if k.private == nil {
		return ""
	}
	return publicPrefix + base64.StdEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
}

// ParsePublicKey reads whpk_…. The error is ErrPublicKey.
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	encoded, ok := strings.CutPrefix(text, publicPrefix)
	raw, err := decode(encoded, ed25519.PublicKeySize)
	if !ok || err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, ErrPublicKey
	}
	return raw, nil
}

// decode reads padded standard base64 of at most limit bytes, in the one way to write it.
func decode(encoded string, limit int) ([]byte, error) {
	if len(encoded) > base64.StdEncoding.EncodedLen(limit) || strings.ContainsAny(encoded, "\r\n") {
		return nil, errors.New("not base64 of this size")
	}
	return base64.StdEncoding.Strict().DecodeString(encoded)
}

// Sign returns one entry of the signature header, over `id.timestamp.body`.
func (k Key) Sign(id string, timestamp time.Time, body []byte) string {
	if k.private == nil {
		return Sign(id, timestamp, body, k.secret)
	}
	signed := append([]byte(id+"."+strconv.FormatInt(timestamp.Unix(), 10)+"."), body...)
	return asymmetricVersion + base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, signed))
}

// Signatures is the whole header: an entry of each key, separated by spaces.
func Signatures(keys []Key, id string, timestamp time.Time, body []byte) string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.Sign(id, timestamp, body)
	}
	return strings.Join(out, " ")
}

// VerifyPublic is Verify for a receiver that has a public key: any one of several
// v1a signatures suffices, other versions are passed over.
func VerifyPublic(headers http.Header, body []byte, key ed25519.PublicKey, now time.Time, tolerance time.Duration) error {
	id, stamp, signatures, err := signedHeaders(headers, now, tolerance)
	if err != nil {
		return err
	}
	if len(key) != ed25519.PublicKeySize {
		return ErrPublicKey
	}
	signed := append([]byte(id+"."+stamp+"."), body...)
	for entry := range strings.SplitSeq(signatures, " ") {
		encoded, ok := strings.CutPrefix(entry, asymmetricVersion)
		if !ok {
			continue
		}
		if signature, err := decode(encoded, ed25519.SignatureSize); err == nil && ed25519.Verify(key, signed, signature) {
			return nil
		}
	}
	return ErrSignature
}

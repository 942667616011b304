// Package seal keeps secrets at rest: AES-256-GCM under subkeys of a master
// key. What is sealed is bound to its place (owner, name, version and hosts), so
// that a row that is moved to another place or given other hosts does not open.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	keySize = 32
	// KeyPrefix begins the text of a master key.
	KeyPrefix = "hfmk_"
	// formatV1 begins a sealed form: nonce and ciphertext follow.
	formatV1 = 1
	overhead = 1 + 12 + 16
	// MaxValue bounds what is sealed, in bytes.
	MaxValue = 64 << 10
)

// Errors of the package. Their texts hold nothing of a key or a value.
var (
	ErrKey     = errors.New("a master key is hfmk_ and the base64 form of 32 bytes, or that form alone")
	ErrUnknown = errors.New("it is sealed under a master key that is not known here")
	ErrOpen    = errors.New("it does not open: it was changed, moved from another place, or sealed under another key")
	ErrTooLong = errors.New("it is longer than 65536 bytes")
)

// Key is a master key. However it is printed it says its id only.
type Key struct {
	id  string
	raw [keySize]byte
}

// ID names the key; it tells nothing of it.
func (k *Key) ID() string { return k.id }

// Format says the id for every verb.
func (k *Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "master key "+k.id) }

// Text is the form that ParseKey reads: the key itself.
func (k *Key) Text() string { return KeyPrefix + base64.RawURLEncoding.EncodeToString(k.raw[:]) }

// NewKey draws a key from a cryptographic source.
func NewKey(random io.Reader) (*Key, error) {
	k := new(Key)
	if _, err := io.ReadFull(random, k.raw[:]); err != nil {
		return nil, fmt.Errorf("draw master key: %w", err)
	}
	return k, k.name()
}

// ParseKey reads the text of a key: hfmk_ and base64 of 32 bytes, or bare
// base64 as `openssl rand -base64 32` prints it. White space at the ends does
// not count. The error is ErrKey.
func ParseKey(text string) (*Key, error) {
	text = strings.TrimRight(strings.TrimPrefix(strings.TrimSpace(text), KeyPrefix), "=")
	if len(text) != base64.RawStdEncoding.EncodedLen(keySize) {
		return nil, ErrKey
	}
	text = strings.NewReplacer("+", "-", "/", "_").Replace(text)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != keySize {
		return nil, ErrKey
	}
	k := &Key{raw: [keySize]byte(raw)}
	return k, k.name()
}

func (k *Key) name() error {
	id, err := hkdf.Key(sha256.New, k.raw[:], nil, "holdfast master key id v1", 8)
	k.id = hex.EncodeToString(id)
	return err
}

// Ring is the master keys of a daemon: what is sealed anew is sealed under the
// first, what was sealed opens under any. It is safe for concurrent use.
type Ring struct{ keys []*Key }

// NewRing makes a ring of the current key and the former ones.
func NewRing(current *Key, former ...*Key) *Ring {
	return &Ring{keys: append([]*Key{current}, former...)}
}

// Current is the id of the key that new values are sealed under.
func (r *Ring) Current() string { return r.keys[0].id }

// Has says whether the ring has a key.
func (r *Ring) Has(id string) bool {
	return slices.ContainsFunc(r.keys, func(k *Key) bool { return k.id == id })
}

// Place is where a sealed value belongs.
type Place struct {
	Owner, Name string
	Version     int64
	Hosts       string
}

// bytes is the additional data of a place: each part with its length in front,
// so that no two places are the same bytes.
func (p Place) bytes(keyID string) []byte {
	var b []byte
	for _, s := range []string{"holdfast slot v1", keyID, p.Owner, p.Name, p.Hosts} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return binary.BigEndian.AppendUint64(b, uint64(p.Version))
}

// aead gives the cipher of an owner: the secrets of each have a subkey of their own.
func (k *Key) aead(owner string) (cipher.AEAD, error) {
	sub, err := hkdf.Key(sha256.New, k.raw[:], nil, "holdfast slots of v1\x00"+owner, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(sub)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal seals a value for its place under the current key. It takes its nonces
// from the system's source, not from a seeded one.
func (r *Ring) Seal(p Place, value string) (keyID string, sealed []byte, err error) {
	if len(value) > MaxValue {
		return "", nil, ErrTooLong
	}
	k := r.keys[0]
	a, err := k.aead(p.Owner)
	if err != nil {
		return "", nil, err
	}
	return k.id, a.Seal([]byte{formatV1}, nil, []byte(value), p.bytes(k.id)), nil
}

// Open opens what Seal sealed for the same place. The error is ErrUnknown or ErrOpen.
func (r *Ring) Open(p Place, keyID string, sealed []byte) (string, error) {
	i := slices.IndexFunc(r.keys, func(k *Key) bool { return k.id == keyID })
	if i < 0 {
		return "", ErrUnknown
	}
	if len(sealed) < overhead || len(sealed) > overhead+MaxValue || sealed[0] != formatV1 {
		return "", ErrOpen
	}
	a, err := r.keys[i].aead(p.Owner)
	if err != nil {
		return "", err
	}
	value, err := a.Open(nil, nil, sealed[1:], p.bytes(keyID))
	if err != nil {
		return "", ErrOpen
	}
	return string(value), nil
}

// Package tokens is how a caller proves who they are: the form of a token, of
// which only a digest is stored, the one place of a request where it may stand,
// and a cache, so that not every request reads the store. What a token may do is
// for others to say.
package tokens

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// MaxLength bounds a token that is presented, in bytes.
const MaxLength = 512

// The parts of a token that is made here: hf_<id>_<secret>, in hexadecimal.
const (
	tokenPrefix = "hf_"
	idBytes     = 8
	secretBytes = 32
)

// New draws a token: the text that is shown once, and the row that is
// stored, which holds only its SHA-256.
func New(random io.Reader, name, role, user string, now time.Time) (text string, row eventlog.TokenRow, err error) {
	var raw [idBytes + secretBytes]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return "", row, err
	}
	id := hex.EncodeToString(raw[:idBytes])
	text = tokenPrefix + id + "_" + hex.EncodeToString(raw[idBytes:])
	return text, eventlog.TokenRow{ID: "tok_" + id, Name: name, Role: role, UserID: user, Hash: Hash(text), CreatedAt: now}, nil
}

// Hash is the form in which a token is stored: hexadecimal SHA-256 of its
// text. A slow hash would guard nothing: the secret is 256 bits of chance.
func Hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Presented is a token as it was sent: its digest, and the id that stands in it.
type Presented struct {
	ID   string // tok_…; empty: a token of another form, as HOLDFAST_TOKEN may be
	Hash string
}

// Present gives the token that a text is.
func Present(text string) Presented {
	p := Presented{Hash: Hash(text)}
	rest, ours := strings.CutPrefix(text, tokenPrefix)
	if id, secret, ok := strings.Cut(rest, "_"); ours && ok && isHex(id, idBytes) && isHex(secret, secretBytes) {
		p.ID = "tok_" + id
	}
	return p
}

func isHex(s string, bytes int) bool {
	if len(s) != 2*bytes {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Bearer reads the one token of a request (RFC 6750, section 2.1: in the header,
// never in the query). none: there is no such header at all.
func Bearer(h http.Header) (text string, none, ok bool) {
	header := h["Authorization"]
	if len(header) == 0 {
		return "", true, false
	}
	scheme, text, found := strings.Cut(header[0], " ")
	text = strings.TrimSpace(text)
	if len(header) > 1 || !found || !strings.EqualFold(scheme, "Bearer") || text == "" || len(text) > MaxLength {
		return "", false, false
	}
	return text, false, true
}

// find looks a token up: by the id that stands in it, comparing the digest in
// constant time, else by its digest, about which the time that takes tells
// nothing. Of a token whose id is known and whose secret is wrong the row comes
// with the error, for the record.
func find(ctx context.Context, store eventlog.Tokens, p Presented) (eventlog.TokenRow, error) {
	if p.ID != "" {
		row, err := store.TokenByID(ctx, p.ID)
		switch {
		case err == nil && subtle.ConstantTimeCompare([]byte(row.Hash), []byte(p.Hash)) == 1:
			return row, nil
		case err == nil:
			return eventlog.TokenRow{ID: row.ID}, eventlog.ErrNotFound
		case !errors.Is(err, eventlog.ErrNotFound):
			return eventlog.TokenRow{}, err
		}
		// HOLDFAST_TOKEN may have been made by another daemon; it has an id of its own here.
	}
	return store.TokenByHash(ctx, p.Hash)
}

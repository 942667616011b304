package event

import (
	"crypto/sha256"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// InlineLimit is the size in bytes past which content stands in the blob
// store and the event holds a reference to it.
const InlineLimit = 16 << 10

// Content is a text in an event: in place, or past InlineLimit as a reference
// to a blob of the session.
type Content struct {
	// Bytes is the size of the whole text; set with Ref only.
	Bytes int `json:"bytes,omitzero"`
	// Ref is the digest of the blob that holds the text ("sha256:…").
	Ref string `json:"ref,omitzero"`
	// Replaced says that bytes which were not UTF-8 were replaced by U+FFFD.
	Replaced bool   `json:"replaced,omitzero"`
	Text     string `json:"text,omitzero"`
}

// TextContent makes content of any text; bytes that are not UTF-8 become U+FFFD, and that is marked.
func TextContent(s string) Content {
	clean, changed := canonjson.ReplaceInvalid(s)
	return Content{Text: clean, Replaced: changed}
}

// Empty says whether there is no text.
func (c Content) Empty() bool { return c.Text == "" && c.Ref == "" }

// Size is the size of the text in bytes.
func (c Content) Size() int {
	if c.Ref != "" {
		return c.Bytes
	}
	return len(c.Text)
}

// BlobKind says what a blob is for, and so who may read it.
type BlobKind string

// The kinds of blobs.
const (
	BlobContent  BlobKind = "content"  // text of events, readable with the session
	BlobSealed   BlobKind = "sealed"   // a provider's state: never exported
	BlobToolset  BlobKind = "toolset"  // the tool definitions that a run captured
	BlobDelivery BlobKind = "delivery" // the exact body of a delivery, its address, the beginning of an answer
	BlobContract BlobKind = "contract" // an input contract under which keys were fingerprinted
)

// Blob is content that stands outside the log, keyed by owner and digest. It
// commits with the append that first refers to it.
type Blob struct {
	Owner string // session id
	Ref   string // "sha256:…" of Bytes
	Kind  BlobKind
	Bytes []byte
}

// NewBlob makes a blob of bytes, which must not change afterwards.
func NewBlob(owner SessionID, kind BlobKind, data []byte) Blob {
	return Blob{Owner: string(owner), Ref: RefOf(data), Kind: kind, Bytes: data}
}

// RefOf is the reference under which bytes are stored.
func RefOf(data []byte) string { return Digest(sha256.Sum256(data)).String() }

// externalizer is data with content that may have to move to the blob store.
type externalizer interface {
	contents() []*Content
}

// Externalize moves what is larger than InlineLimit out of the drafts and
// returns the blobs that must ride with them. The drafts' data is changed in place.
func Externalize(owner SessionID, drafts []Event) []Blob {
	var blobs []Blob
	for i := range drafts {
		x, ok := drafts[i].Data.(externalizer)
		if !ok {
			continue
		}
		for _, c := range x.contents() {
			if c.Ref == "" && len(c.Text) > InlineLimit {
				b := NewBlob(owner, BlobContent, []byte(c.Text))
				c.Bytes, c.Ref, c.Text = len(c.Text), b.Ref, ""
				blobs = append(blobs, b)
			}
		}
	}
	return blobs
}

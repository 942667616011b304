package canonjson

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// Value is one JSON value in canonical form. A nil or empty Value is no value
// at all, which is not the JSON value null; where one must be written all the
// same, null is written.
//
// In a struct, tag an optional field `omitzero`: both encoding/json and
// go-json-experiment/json then leave out exactly the Value that is not there.
// (With `omitempty` the second would leave out "", {}, [] and null too.)
// encoding/json escapes `<`, `>` and `&` in what it marshals unless an Encoder
// is told SetEscapeHTML(false); go-json-experiment/json writes the bytes as
// they are.
type Value []byte

// Canonicalize parses text strictly and returns its canonical form. The error
// is a [*SyntaxError].
func Canonicalize(text []byte, lim Limits) (Value, error) {
	n, err := Parse(text, lim)
	if err != nil {
		return nil, err
	}
	v := Value(n.Append(make([]byte, 0, len(text))))
	// Numbers may grow (1e20 has 21 digits); what was accepted once must be
	// accepted again.
	if lim = lim.orDefault(); len(v) > lim.Bytes {
		return nil, tooLarge(lim)
	}
	return v, nil
}

// IsZero reports whether there is no value.
func (v Value) IsZero() bool { return len(v) == 0 }

// Equal reports whether both are the same value.
func (v Value) Equal(w Value) bool { return bytes.Equal(v, w) }

// String returns the canonical text.
func (v Value) String() string { return string(v) }

// Node parses the value. Its size is not limited: that was done where it came
// in. No value is an error.
func (v Value) Node() (Node, error) { return Parse(v, trusted()) }

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if len(v) == 0 {
		return []byte("null"), nil
	}
	return v, nil
}

// MarshalJSONTo implements json.MarshalerTo of go-json-experiment/json.
func (v Value) MarshalJSONTo(enc *jsontext.Encoder) error {
	if len(v) == 0 {
		return enc.WriteToken(jsontext.Null)
	}
	return enc.WriteValue(jsontext.Value(v))
}

// UnmarshalJSON implements json.Unmarshaler: it takes any strict JSON value
// and keeps its canonical form. How large and how deep it may be is for the
// reader of the surrounding document to bound; a text from outside that is to
// be held to [Limits] goes through [Canonicalize].
func (v *Value) UnmarshalJSON(text []byte) error {
	n, err := Parse(text, trusted())
	if err != nil {
		return err
	}
	*v = n.Append(make([]byte, 0, len(text)))
	return nil
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom of
// go-json-experiment/json, with the rules of [Value.UnmarshalJSON].
func (v *Value) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	text, err := dec.ReadValue()
	if err != nil {
		return err
	}
	return v.UnmarshalJSON(text)
}

var (
	_ interface {
		MarshalJSON() ([]byte, error)
		MarshalJSONTo(*jsontext.Encoder) error
	} = Value(nil)
	_ interface {
		UnmarshalJSON([]byte) error
		UnmarshalJSONFrom(*jsontext.Decoder) error
	} = (*Value)(nil)
)

// Package canonjson is where JSON enters the house: one strict parse at the
// edge, one canonical form ever after. The bytes it returns are the ones that
// go to the log, the fingerprint, the signature and the wire.
//
// Strict means: exactly one JSON value (RFC 8259) with nothing but JSON white
// space around it, in UTF-8 without a byte order mark, without lone
// surrogates, without repeated names, within [Limits], every number within the
// range of an IEEE 754 double (an integer may be of any size).
//
// Canonical means RFC 8785 with one rule of our own: a number written without
// fraction and exponent keeps every digit, where RFC 8785 would round it to a
// double. For values without integers beyond 2^53 both are the same.
package canonjson

import (
	"cmp"
	"math"
)

// Limits bounds what a parse accepts. A field that is zero or negative means
// its default.
type Limits struct {
	// Depth is the number of arrays and objects that may be nested.
	Depth int
	// Bytes is the length of the text, and of the canonical form made of it.
	Bytes int
	// Tokens counts names, scalar values and the ends and starts of arrays
	// and objects.
	Tokens int
}

// maxDepth is where the tokenizer itself stops.
const maxDepth = 10_000

// DefaultLimits returns the limits for what comes from outside: depth 64,
// 1 MiB, 100,000 tokens.
func DefaultLimits() Limits { return Limits{Depth: 64, Bytes: 1 << 20, Tokens: 100_000} }

// trusted is for bytes whose size somebody else has bounded: what is read back
// from the log must not be refused because a limit was lowered since.
func trusted() Limits { return Limits{Depth: maxDepth, Bytes: math.MaxInt32, Tokens: math.MaxInt32} }

func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	if l.Depth <= 0 {
		l.Depth = d.Depth
	}
	if l.Bytes <= 0 {
		l.Bytes = d.Bytes
	}
	if l.Tokens <= 0 {
		l.Tokens = d.Tokens
	}
	l.Depth = min(l.Depth, maxDepth)
	l.Bytes = min(l.Bytes, math.MaxInt32) // offsets are kept in 32 bits
	return l
}

// SyntaxError says why a text is not one strict JSON value. Its parts are
// bounded and safe to show: control characters are escaped, long names cut.
type SyntaxError struct {
	// Path is `$`, or for a repeated name the path of the repeated field.
	Path string
	// Offset is the byte of the text at or after which the fault lies.
	Offset int64
	Msg    string
}

// Error returns `<path>: <message>`.
func (e *SyntaxError) Error() string { return e.Path + ": " + e.Msg }

// CompareNames orders names by their UTF-16 code units (RFC 8785, section
// 3.2.3). Both must be valid UTF-8.
func CompareNames(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		// UTF-8 sorts like code points, and code points sort like UTF-16 save
		// that a surrogate pair (lead byte F0..F4) comes before U+E000..U+FFFF
		// (lead byte EE, EF).
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			return cmp.Compare(y, x)
		}
		return cmp.Compare(x, y)
	}
	return cmp.Compare(len(a), len(b))
}

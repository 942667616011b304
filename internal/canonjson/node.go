package canonjson

import (
	"slices"
	"strconv"
)

// Kind is the type of a JSON value.
type Kind uint8

// The six types of RFC 8259, section 3.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"null", "boolean", "number", "string", "array", "object"}

// String returns the name that JSON Schema gives the type.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Node is a parsed JSON value. It never changes and is safe for concurrent
// use; copies share what they hold. The zero Node is null.
type Node struct {
	kind  Kind
	truth bool
	off   int32  // of the value in its text, of its name when it has one
	name  string // of a member
	text  string // content of a string, canonical text of a number
	kids  []Node // elements in order, members sorted by name
}

// Kind returns the type of the value.
func (n Node) Kind() Kind { return n.kind }

// Bool returns the value of a boolean, and false for any other kind.
func (n Node) Bool() bool { return n.truth }

// Text returns the content of a string or the canonical text of a number, and
// "" for any other kind.
func (n Node) Text() string { return n.text }

// Name returns the name under which the value stands in its object, and ""
// when it stands in none.
func (n Node) Name() string { return n.name }

// Len returns the number of elements or members.
func (n Node) Len() int { return len(n.kids) }

// At returns element or member i. Members are in the order of [CompareNames].
func (n Node) At(i int) Node { return n.kids[i] }

// Index returns the position of the member with the given name.
func (n Node) Index(name string) (int, bool) {
	if n.kind != Object {
		return 0, false
	}
	return slices.BinarySearchFunc(n.kids, name, func(kid Node, name string) int {
		return CompareNames(kid.name, name)
	})
}

// Get returns the member with the given name.
func (n Node) Get(name string) (Node, bool) {
	i, ok := n.Index(name)
	if !ok {
		return Node{}, false
	}
	return n.kids[i], true
}

// With returns n with other children. They must be children of n, or made of
// one by With, in the order of n; n itself stays as it is. Node takes
// ownership of the slice.
func (n Node) With(children []Node) Node {
	n.kids = children
	return n
}

// Append appends the canonical form to dst.
func (n Node) Append(dst []byte) []byte {
	switch n.kind {
	case Bool:
		return strconv.AppendBool(dst, n.truth)
	case Number:
		return append(dst, n.text...)
	case String:
		return AppendString(dst, n.text)
	case Array:
		dst = append(dst, '[')
		for i := range n.kids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = n.kids[i].Append(dst)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i := range n.kids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendString(dst, n.kids[i].name)
			dst = append(dst, ':')
			dst = n.kids[i].Append(dst)
		}
		return append(dst, '}')
	default:
		return append(dst, "null"...)
	}
}

package inbound

import (
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// maxPointer bounds a pointer of the configuration, in bytes.
const maxPointer = 512

// Pointer is a JSON pointer (RFC 6901) into a body, compiled.
type Pointer []string

// ParsePointer compiles a pointer. The empty text is the whole value. The text
// of the error is for people.
func ParsePointer(text string) (Pointer, error) {
	switch {
	case text == "":
		return Pointer{}, nil
	case text[0] != '/':
		return nil, mistakef("a JSON pointer such as /issue/title begins with /")
	case len(text) > maxPointer:
		return nil, mistakef("a JSON pointer holds at most %d bytes", maxPointer)
	}
	steps := strings.Split(text[1:], "/")
	for i, s := range steps {
		for at := range len(s) {
			if s[at] == '~' && (at+1 == len(s) || s[at+1] != '0' && s[at+1] != '1') {
				return nil, mistakef("in a JSON pointer ~ is written ~0 and a / inside of a name ~1")
			}
		}
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
	}
	return steps, nil
}

// Find gives what the pointer names in a value; false when nothing is there.
func (p Pointer) Find(n canonjson.Node) (canonjson.Node, bool) {
	for _, step := range p {
		switch n.Kind() {
		case canonjson.Object:
			next, ok := n.Get(step)
			if !ok {
				return n, false
			}
			n = next
		case canonjson.Array:
			i, ok := index(step)
			if !ok || i >= n.Len() {
				return n, false
			}
			n = n.At(i)
		default:
			return n, false
		}
	}
	return n, true
}

// index reads an array index: digits without a leading zero.
func index(step string) (int, bool) {
	if step == "" || len(step) > 1 && step[0] == '0' || strings.Trim(step, "0123456789") != "" {
		return 0, false
	}
	i, err := strconv.Atoi(step)
	return i, err == nil
}

// Path is the pointer as messages show places, such as $.issue.title.
func (p Pointer) Path() string {
	path := "$"
	for _, step := range p {
		path = canonjson.MemberPath(path, step)
	}
	return path
}

// Package contract holds what a session may pin to its input and output: a
// recursive schema over JSON values. It reads a schema from a subset of JSON
// Schema and names everything it does not take, renders it back so that the
// model is shown what is checked, and checks a text against it up to the
// first mismatch.
//
// Objects are closed. An optional field that is null counts as absent and is
// dropped from the canonical value.
package contract

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Schema says which JSON values conform. It never changes and is safe for
// concurrent use. It comes from [ParseSchema]; there is no useful zero Schema.
type Schema struct {
	root     *node
	rendered string
}

type kind uint8

const (
	kindAny kind = iota
	kindString
	kindNumber
	kindBoolean
	kindObject
	kindArray
)

type node struct {
	kind   kind
	elem   *node   // of an array
	fields []field // of an object, in the order of canonjson.CompareNames
}

type field struct {
	name     string
	required bool
	schema   *node
}

func newSchema(root *node) *Schema {
	return &Schema{root: root, rendered: string(root.render(nil))}
}

// Render returns the schema as JSON Schema in canonical form: objects closed,
// with `properties` and `required` always there and `required` sorted, arrays
// always with `items`. Schemas that mean the same render the same, and what is
// rendered parses back to the same schema.
func (s *Schema) Render() canonjson.Value { return canonjson.Value(s.rendered) }

// Digest returns "sha256:" and the hexadecimal SHA-256 of the rendered form.
func (s *Schema) Digest() string {
	sum := sha256.Sum256([]byte(s.rendered))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// render writes the keywords in canonical order.
func (n *node) render(dst []byte) []byte {
	switch n.kind {
	case kindString:
		return append(dst, `{"type":"string"}`...)
	case kindNumber:
		return append(dst, `{"type":"number"}`...)
	case kindBoolean:
		return append(dst, `{"type":"boolean"}`...)
	case kindArray:
		dst = append(dst, `{"items":`...)
		dst = n.elem.render(dst)
		return append(dst, `,"type":"array"}`...)
	case kindObject:
		dst = append(dst, `{"additionalProperties":false,"properties":{`...)
		for i, f := range n.fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = canonjson.AppendString(dst, f.name)
			dst = append(dst, ':')
			dst = f.schema.render(dst)
		}
		dst = append(dst, `},"required":[`...)
		first := true
		for _, f := range n.fields {
			if !f.required {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = canonjson.AppendString(dst, f.name)
		}
		return append(dst, `],"type":"object"}`...)
	default:
		return append(dst, `{}`...)
	}
}

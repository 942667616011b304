// Package dialect puts JSON Schemas into the forms that vendors of models
// take. Each vendor knows another subset, and one word outside of it has the
// whole request refused.
//
// The output forms are for structured answers. They are exact: what the vendor
// would let the model say under them conforms to the schema, save that an
// optional member may be null (which counts as absent) and that bounds of
// texts and lists may be missing; where even that cannot be said the result is
// false, and the schema then stands in the prompt only. The tool forms are for
// the arguments of tools, whose schemas come from anywhere: what a vendor has
// no word for is left out, so that the form may take more than the schema.
// Whatever was sent, the local check judges by the schema itself.
//
// All of it is pure, and the same schema always gives the same bytes: the
// caches of prompts depend on it.
package dialect

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Bounds of what is converted. A larger schema has no output form, and its
// tool form is any object.
const (
	MaxBytes  = 64 << 10 // of a schema
	maxDepth  = 128      // of its JSON
	maxNodes  = 4000     // schemas in it with every reference written out
	maxLevels = 60       // of these, one in the other
	maxForm   = 256 << 10
)

// obj is a schema, or any other JSON object: values are nil, bool, string,
// json.Number, []any and obj.
type obj = map[string]any

// parse reads a schema that is an object within the bounds.
func parse(schema canonjson.Value) (obj, bool) {
	n, err := canonjson.Parse(schema, canonjson.Limits{Bytes: MaxBytes, Depth: maxDepth})
	if err != nil {
		return nil, false
	}
	root, ok := tree(n).(obj)
	return root, ok
}

func tree(n canonjson.Node) any {
	switch n.Kind() {
	case canonjson.Bool:
		return n.Bool()
	case canonjson.Number:
		return json.Number(n.Text())
	case canonjson.String:
		return n.Text()
	case canonjson.Array:
		out := make([]any, n.Len())
		for i := range out {
			out[i] = tree(n.At(i))
		}
		return out
	case canonjson.Object:
		out := make(obj, n.Len())
		for i := range n.Len() {
			out[n.At(i).Name()] = tree(n.At(i))
		}
		return out
	}
	return nil
}

// render writes the canonical form. It is false past the bound for a form.
func render(v any) (canonjson.Value, bool) {
	out := appendValue(nil, v)
	return out, len(out) <= maxForm
}

func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		if v {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case json.Number:
		return append(dst, v...)
	case string:
		return canonjson.AppendString(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, x := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, x)
		}
		return append(dst, ']')
	case obj:
		dst = append(dst, '{')
		for i, name := range names(v) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(canonjson.AppendString(dst, name), ':')
			dst = appendValue(dst, v[name])
		}
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

// names gives the names of an object in canonical order.
func names(o obj) []string { return slices.SortedFunc(maps.Keys(o), canonjson.CompareNames) }

func equal(a, b any) bool { return string(appendValue(nil, a)) == string(appendValue(nil, b)) }

// types gives the types that a schema names, or that its enum and const do;
// nil when it names none. Doubled and unknown names are left out.
func types(s obj) []string {
	var out []string
	add := func(t string) {
		if slices.Contains(knownTypes, t) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	switch t := s["type"].(type) {
	case string:
		add(t)
	case []any:
		for _, x := range t {
			if name, ok := x.(string); ok {
				add(name)
			}
		}
	}
	if out == nil {
		for _, v := range values(s) {
			add(typeOf(v))
		}
	}
	return out
}

var knownTypes = []string{"string", "number", "integer", "boolean", "array", "object", "null"}

// values gives the values that enum or const allow; nil when neither is there.
func values(s obj) []any {
	if v, ok := s["const"]; ok {
		return []any{v}
	}
	list, _ := s["enum"].([]any)
	return list
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// strs gives the texts of a list.
func strs(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, x := range list {
		if s, ok := x.(string); ok && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}

package config

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// shape holds a node of the file against the type it is read into, so that a
// mistake is told with its key and place and in words of the file. What it
// cannot judge, such as an alias, it leaves to the decoder. Its recursion is
// bounded by the nesting of the types.
func shape(n ast.Node, t reflect.Type, path string) *Error {
	switch n.(type) {
	case nil, *ast.NullNode, *ast.AliasNode, *ast.AnchorNode, *ast.TagNode, *ast.MergeKeyNode:
		return nil
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	wrong := func(want string) *Error { return mistakeAt(n, path, "want %s, got %s", want, nameOf(n)) }
	switch {
	case t == reflect.TypeFor[Duration]():
		return durationShape(n, path)
	case t == reflect.TypeFor[Address]():
		if _, text := n.(*ast.StringNode); text {
			return nil
		}
		if members(n) == nil {
			return mistakeAt(n, path, "want a URL, or a reference to one: {env: NAME} or {file: PATH}")
		}
		return structShape(n, reflect.TypeFor[Ref](), path)
	case t == reflect.TypeFor[Ref](), t == reflect.TypeFor[NamedSecret]():
		if members(n) == nil {
			return mistakeAt(n, path, "a secret is a reference and never a value: write {env: NAME} or {file: PATH}")
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		return structShape(n, t, path)
	case reflect.Map:
		if members(n) == nil {
			return wrong("a mapping of names")
		}
		for _, m := range members(n) {
			if err := shape(m.Value, t.Elem(), step(path, keyOf(m))); err != nil {
				return err
			}
		}
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return wrong("a list")
		}
		for i, v := range list.Values {
			if err := shape(v, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.String:
		if _, ok := n.(ast.ScalarNode); !ok {
			return wrong("a string")
		}
	case reflect.Int:
		i, ok := n.(*ast.IntegerNode)
		if !ok {
			return wrong("a whole number")
		}
		if u, ok := i.Value.(uint64); ok && u > math.MaxInt {
			return mistakeAt(n, path, "the number is too large")
		}
	case reflect.Float64:
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode: // check tells its bounds
		default:
			return wrong("a number")
		}
	case reflect.Bool:
		if _, ok := n.(*ast.BoolNode); !ok {
			return wrong("true or false")
		}
	}
	return nil
}

func structShape(n ast.Node, t reflect.Type, path string) *Error {
	list := members(n)
	if list == nil {
		want := "a mapping of keys"
		return mistakeAt(n, path, "want %s, got %s", want, nameOf(n))
	}
	for _, m := range list {
		if _, merge := m.Key.(*ast.MergeKeyNode); merge {
			continue
		}
		key := keyOf(m)
		field, ok := fieldOf(t, key)
		if why, late := later[key]; !ok && late {
			return mistakeAt(m.Key, step(path, key), "%s", why)
		}
		if !ok {
			return mistakeAt(m.Key, path, "unknown field %q", key)
		}
		if err := shape(m.Value, field.Type, step(path, key)); err != nil {
			return err
		}
	}
	return nil
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); key != "" && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// durationShape takes "1m30s", and 0.
func durationShape(n ast.Node, path string) *Error {
	switch v := n.(type) {
	case *ast.StringNode:
		if d, err := time.ParseDuration(v.Value); err != nil || d < 0 {
			return mistakeAt(n, path, "%.60q is no duration such as 30s or 5m", v.Value)
		}
		return nil
	case *ast.IntegerNode:
		if v.GetToken().Value == "0" {
			return nil
		}
		return mistakeAt(n, path, "a duration has a unit, such as 30s or 5m")
	}
	return mistakeAt(n, path, "want a duration such as 30s or 5m, got %s", nameOf(n))
}

// members gives the members of a mapping that is not nil even when empty; nil: n is none.
func members(n ast.Node) []*ast.MappingValueNode {
	switch v := n.(type) {
	case *ast.MappingNode:
		return append([]*ast.MappingValueNode{}, v.Values...)
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{v}
	}
	return nil
}

func keyOf(m *ast.MappingValueNode) string {
	if s, ok := m.Key.(*ast.StringNode); ok {
		return s.Value
	}
	if tok := m.Key.GetToken(); tok != nil {
		return tok.Value
	}
	return ""
}

func step(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nameOf names what a node is, for people.
func nameOf(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.IntegerNode:
		return "a whole number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	}
	return "something else"
}

// mistakeAt is a mistake at a node.
func mistakeAt(n ast.Node, path, format string, args ...any) *Error {
	e := &Error{Text: fmt.Sprintf(format, args...)}
	if path != "" {
		e.Text = path + ": " + e.Text
	}
	e.setPlace(n)
	return e
}

// setPlace takes the place where a node begins.
func (e *Error) setPlace(n ast.Node) {
	var tok *token.Token
	switch v := n.(type) {
	case *ast.MappingNode: // its own token is the colon, unless it has braces
		tok = v.GetToken()
		if !v.IsFlowStyle && len(v.Values) > 0 {
			tok = v.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		tok = v.Key.GetToken()
	default:
		tok = n.GetToken()
	}
	if tok != nil && tok.Position != nil {
		e.Line, e.Column = tok.Position.Line, tok.Position.Column
	}
}

// typeName names a Go type in words of the file.
func typeName(t reflect.Type) string {
	switch {
	case t == nil:
		return "something else"
	case t == reflect.TypeFor[Duration]():
		return "a duration such as 30s"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping"
	}
	return strings.ToLower(t.Kind().String())
}

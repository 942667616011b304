package contract

import (
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

const (
	// MaxSchemaBytes bounds a schema, as it is written and as it renders.
	MaxSchemaBytes = 16 << 10
	// MaxSchemaDepth bounds the arrays and objects of a schema that are
	// nested; no value nested deeper would be parsed.
	MaxSchemaDepth = 64
)

// Issue is one reason why a schema is no contract.
type Issue struct {
	// Path is where in the schema text, from `$`.
	Path string
	// Text is bounded and safe to show.
	Text string
}

// String returns `<path>: <text>`.
func (i Issue) String() string { return i.Path + ": " + i.Text }

// ParseSchema reads a schema from its JSON Schema form. The subset: `type`
// (string, number, integer, boolean, object, array; none at all means any
// value), `properties`, `required` and `additionalProperties: false` of an
// object, `items` of an array, and at the top `$schema`, `title` and
// `description`, which are dropped. `integer` is `number`.
//
// It returns either a schema or all the issues, inner ones before outer ones;
// no keyword is silently ignored.
func ParseSchema(jsonSchema []byte) (*Schema, []Issue) {
	if len(jsonSchema) > MaxSchemaBytes {
		return nil, tooLarge()
	}
	// A level of a schema is at most two of JSON: the schema, its properties.
	lim := canonjson.Limits{Depth: 2*MaxSchemaDepth + 4, Bytes: MaxSchemaBytes}
	n, err := canonjson.Parse(jsonSchema, lim)
	if err != nil {
		return nil, []Issue{syntaxIssue(err)}
	}
	var p schemaParser
	root := p.node(n, "$", 0)
	if len(p.issues) > 0 {
		return nil, p.issues
	}
	s := newSchema(root)
	if len(s.rendered) > MaxSchemaBytes {
		return nil, tooLarge()
	}
	return s, nil
}

func tooLarge() []Issue {
	return []Issue{{"$", fmt.Sprintf("schema is larger than %d bytes", MaxSchemaBytes)}}
}

func syntaxIssue(err error) Issue {
	var syntax *canonjson.SyntaxError
	if errors.As(err, &syntax) {
		return Issue{syntax.Path, syntax.Msg}
	}
	return Issue{"$", "not a single strict JSON value"}
}

type schemaParser struct{ issues []Issue }

func (p *schemaParser) issue(path, format string, args ...any) {
	p.issues = append(p.issues, Issue{path, fmt.Sprintf(format, args...)})
}

// keyword says on what a keyword may stand.
type keyword struct {
	kind kind // the one type it applies to; kindAny for every one
	top  bool // only at the top
}

var keywords = map[string]keyword{
	"type":                 {},
	"items":                {kind: kindArray},
	"properties":           {kind: kindObject},
	"required":             {kind: kindObject},
	"additionalProperties": {kind: kindObject},
	"$schema":              {top: true},
	"title":                {top: true},
	"description":          {top: true},
}

var types = map[string]kind{
	"string":  kindString,
	"number":  kindNumber,
	"integer": kindNumber,
	"boolean": kindBoolean,
	"object":  kindObject,
	"array":   kindArray,
}

// node parses one schema. The result means nothing once there are issues.
// depth counts the containers around it.
func (p *schemaParser) node(n canonjson.Node, path string, depth int) *node {
	out := &node{}
	if n.Kind() != canonjson.Object {
		p.issue(path, "schema node must be a JSON object")
		return out
	}
	name, typed := p.typeOf(n, path)
	out.kind = types[name]
	p.keywords(n, path, name, typed)
	if (out.kind == kindObject || out.kind == kindArray) && depth >= MaxSchemaDepth {
		p.issue(path, "schema is nested deeper than %d levels", MaxSchemaDepth)
		return out
	}
	switch out.kind {
	case kindObject:
		p.object(n, path, depth, out)
	case kindArray:
		out.elem = &node{}
		if items, ok := n.Get("items"); ok {
			out.elem = p.node(items, canonjson.MemberPath(path, "items"), depth+1)
		}
	}
	return out
}

// typeOf returns the type keyword, "" when it is missing or no good; typed
// tells these two apart.
func (p *schemaParser) typeOf(n canonjson.Node, path string) (name string, typed bool) {
	t, ok := n.Get("type")
	if !ok {
		return "", false
	}
	if t.Kind() != canonjson.String {
		p.issue(path, "`type` must be a single string")
		return "", true
	}
	if _, ok := types[t.Text()]; !ok {
		p.issue(path, "unsupported `type` value %s", canonjson.QuoteName(t.Text()))
		return "", true
	}
	return t.Text(), true
}

// keywords reports every keyword that has no place here.
func (p *schemaParser) keywords(n canonjson.Node, path, typeName string, typed bool) {
	untyped := false
	for i := range n.Len() {
		name := n.At(i).Name()
		k, ok := keywords[name]
		switch {
		case !ok || k.top && path != "$":
			p.issue(path, "unsupported JSON Schema keyword %s", canonjson.QuoteName(name))
		case k.kind == kindAny:
		case !typed:
			untyped = true
		case typeName != "" && types[typeName] != k.kind:
			p.issue(path, "keyword `%s` does not apply to type `%s`", name, typeName)
		}
	}
	if untyped {
		p.issue(path, "missing `type` next to properties/items")
	}
}

func (p *schemaParser) object(n canonjson.Node, path string, depth int, out *node) {
	declared := false
	properties, ok := n.Get("properties")
	switch {
	case !ok:
		declared = true
	case properties.Kind() != canonjson.Object:
		p.issue(path, "`properties` must be an object")
	default:
		declared = true
		inner := canonjson.MemberPath(path, "properties")
		out.fields = make([]field, properties.Len())
		for i := range out.fields {
			property := properties.At(i)
			out.fields[i] = field{
				name:   property.Name(),
				schema: p.node(property, canonjson.MemberPath(inner, property.Name()), depth+1),
			}
		}
	}
	additional, ok := n.Get("additionalProperties")
	if !ok || additional.Kind() != canonjson.Bool || additional.Bool() {
		p.issue(path, "objects must set additionalProperties: false")
	}
	if required, ok := n.Get("required"); ok {
		p.required(required, properties, path, out, declared)
	}
}

// required marks the fields. It is silent about undeclared names when the
// declarations themselves could not be read.
func (p *schemaParser) required(required, properties canonjson.Node, path string, out *node, declared bool) {
	bad := required.Kind() != canonjson.Array
	for i := 0; i < required.Len() && !bad; i++ {
		bad = required.At(i).Kind() != canonjson.String
	}
	if bad {
		p.issue(path, "`required` must be an array of strings")
		return
	}
	if !declared {
		return
	}
	for i := range required.Len() {
		name := required.At(i).Text()
		if at, ok := properties.Index(name); ok {
			out.fields[at].required = true
			continue
		}
		p.issue(path, "required field %s is not declared in properties", canonjson.QuoteName(name))
	}
}

package contract

import (
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// The stages of a check.
const (
	// StageParse is a text that is not one strict JSON value.
	StageParse = "parse"
	// StageSchema is a value that does not conform.
	StageSchema = "schema"
)

// Violation is the first mismatch between a text and a contract. Its parts are
// bounded and safe to show to a model, a caller and a log: they hold names and
// types, never a value.
type Violation struct {
	Stage string // StageParse or StageSchema
	// Path is where in the value, from `$`: a member is `.name` when it is
	// `[A-Za-z_][A-Za-z0-9_]*` and else `["…"]` in JSON form, an element `[i]`.
	Path string
	Text string
}

// Error returns `<path>: <text>`.
func (v *Violation) Error() string { return v.Path + ": " + v.Text }

// Check takes the one fence off the text, if there is one ([Extract]), parses
// it strictly within [canonjson.DefaultLimits], validates it, and returns the
// canonical form of the value. The error is a [*Violation].
func (s *Schema) Check(text string) (canonjson.Value, error) {
	text = Extract(text)
	n, err := canonjson.ParseString(text, canonjson.DefaultLimits())
	if err != nil {
		return nil, parseViolation(err)
	}
	n, err = s.Validate(n)
	if err != nil {
		return nil, err
	}
	v := canonjson.Value(n.Append(make([]byte, 0, len(text))))
	// Numbers may grow; what was accepted once must be accepted again.
	if limit := canonjson.DefaultLimits().Bytes; len(v) > limit {
		return nil, &Violation{StageParse, "$", fmt.Sprintf("canonical form is larger than %d bytes", limit)}
	}
	return v, nil
}

func parseViolation(err error) *Violation {
	var syntax *canonjson.SyntaxError
	if errors.As(err, &syntax) {
		return &Violation{StageParse, syntax.Path, syntax.Msg}
	}
	return &Violation{StageParse, "$", "not a single strict JSON value"}
}

// Validate checks a parsed value and returns it without the optional fields
// that are null. The first mismatch is a [*Violation]; in an object the order
// is: type, unknown fields, required fields (missing or invalid), optional
// fields, each sorted by UTF-16 code units.
func (s *Schema) Validate(value canonjson.Node) (canonjson.Node, error) {
	out, _, m := s.root.check(value)
	if m != nil {
		return canonjson.Node{}, &Violation{StageSchema, m.trail.String(), m.text}
	}
	return out, nil
}

// mismatch is a violation on its way out: each level adds its step.
type mismatch struct {
	text  string
	trail canonjson.Trail
}

// check returns the value as it is to be kept and whether that differs from
// the value given. The recursion is bounded by the schema.
func (n *node) check(v canonjson.Node) (out canonjson.Node, changed bool, m *mismatch) {
	if !n.kind.holds(v.Kind()) {
		return v, false, &mismatch{text: "expected " + n.kind.article() + ", got " + article(v.Kind())}
	}
	switch n.kind {
	case kindObject:
		return n.checkObject(v)
	case kindArray:
		return n.checkArray(v)
	default:
		return v, false, nil
	}
}

func (n *node) checkArray(v canonjson.Node) (canonjson.Node, bool, *mismatch) {
	if n.elem.kind == kindAny {
		return v, false, nil
	}
	var kept []canonjson.Node
	for i := range v.Len() {
		kid, changed, m := n.elem.check(v.At(i))
		if m != nil {
			m.trail.Element(i)
			return v, false, m
		}
		if changed && kept == nil {
			kept = children(v)
		}
		if changed {
			kept[i] = kid
		}
	}
	if kept == nil {
		return v, false, nil
	}
	return v.With(kept), true, nil
}

func (n *node) checkObject(v canonjson.Node) (canonjson.Node, bool, *mismatch) {
	at, m := n.match(v)
	if m != nil {
		return v, false, m
	}
	var replaced []canonjson.Node // by position in v, nil while nothing is
	dropped := false
	for _, required := range [2]bool{true, false} {
		for j := range n.fields {
			f := &n.fields[j]
			if f.required != required {
				continue
			}
			i := at[j]
			if i < 0 {
				if required {
					return v, false, atField("missing required field", f.name)
				}
				continue
			}
			if !required && v.At(i).Kind() == canonjson.Null {
				at[j], dropped = absent, true
				continue
			}
			kid, changed, m := f.schema.check(v.At(i))
			if m != nil {
				m.trail.Member(f.name)
				return v, false, m
			}
			if changed && replaced == nil {
				replaced = children(v)
			}
			if changed {
				replaced[i] = kid
			}
		}
	}
	if !dropped {
		if replaced == nil {
			return v, false, nil
		}
		return v.With(replaced), true, nil
	}
	kept := make([]canonjson.Node, 0, v.Len())
	for _, i := range at { // ascending: fields and members are sorted alike
		switch {
		case i < 0:
		case replaced != nil:
			kept = append(kept, replaced[i])
		default:
			kept = append(kept, v.At(i))
		}
	}
	return v.With(kept), true, nil
}

const absent = -1

// match returns for each field the position of its member in v, or absent; an
// unknown member is a mismatch. One pass will do: both lists are sorted alike.
func (n *node) match(v canonjson.Node) ([]int, *mismatch) {
	at := make([]int, len(n.fields))
	i := 0
	for j := range n.fields {
		at[j] = absent
		if i == v.Len() {
			continue
		}
		switch c := canonjson.CompareNames(v.At(i).Name(), n.fields[j].name); {
		case c < 0:
			return nil, unknown(v.At(i).Name())
		case c == 0:
			at[j] = i
			i++
		}
	}
	if i < v.Len() {
		return nil, unknown(v.At(i).Name())
	}
	return at, nil
}

func unknown(name string) *mismatch {
	return atField("unknown field "+canonjson.QuoteName(name), name)
}

func atField(text, name string) *mismatch {
	m := &mismatch{text: text}
	m.trail.Member(name)
	return m
}

func children(v canonjson.Node) []canonjson.Node {
	out := make([]canonjson.Node, v.Len())
	for i := range out {
		out[i] = v.At(i)
	}
	return out
}

func (k kind) holds(v canonjson.Kind) bool {
	switch k {
	case kindString:
		return v == canonjson.String
	case kindNumber:
		return v == canonjson.Number
	case kindBoolean:
		return v == canonjson.Bool
	case kindObject:
		return v == canonjson.Object
	case kindArray:
		return v == canonjson.Array
	default:
		return true
	}
}

func (k kind) article() string {
	switch k {
	case kindString:
		return article(canonjson.String)
	case kindNumber:
		return article(canonjson.Number)
	case kindBoolean:
		return article(canonjson.Bool)
	case kindObject:
		return article(canonjson.Object)
	case kindArray:
		return article(canonjson.Array)
	default:
		return "a value"
	}
}

func article(k canonjson.Kind) string {
	switch k {
	case canonjson.Null:
		return "null"
	case canonjson.Array, canonjson.Object:
		return "an " + k.String()
	default:
		return "a " + k.String()
	}
}

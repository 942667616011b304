package scripted

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// arguments gives a call's arguments as JSON text. A string is taken as it
// stands, so that a script can play a model that writes what is no JSON;
// anything else becomes canonical JSON. None is {}.
func (s *source) arguments(n ast.Node) (string, error) {
	switch v := n.(type) {
	case nil, *ast.NullNode:
		return "{}", nil
	case *ast.StringNode:
		return v.Value, nil
	case *ast.LiteralNode:
		return v.Value.Value, nil
	}
	text, err := s.json(nil, n)
	if err != nil {
		return "", err
	}
	value, err := canonjson.Canonicalize(text, canonjson.Limits{})
	if err != nil {
		return "", s.node(n, "arguments: %v", err)
	}
	return string(value), nil
}

// json appends a YAML value as JSON. Depth is bounded by source.tokens and by
// the columns of a file of bounded size.
func (s *source) json(dst []byte, n ast.Node) ([]byte, error) {
	switch v := n.(type) {
	case *ast.NullNode:
		return append(dst, "null"...), nil
	case *ast.BoolNode:
		return strconv.AppendBool(dst, v.Value), nil
	case *ast.IntegerNode:
		switch i := v.Value.(type) {
		case int64:
			return strconv.AppendInt(dst, i, 10), nil
		case uint64:
			return strconv.AppendUint(dst, i, 10), nil
		}
	case *ast.FloatNode:
		return strconv.AppendFloat(dst, v.Value, 'g', -1, 64), nil
	case *ast.StringNode:
		return canonjson.AppendString(dst, v.Value), nil
	case *ast.LiteralNode:
		return canonjson.AppendString(dst, v.Value.Value), nil
	case *ast.SequenceNode:
		dst = append(dst, '[')
		for i, e := range v.Values {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = s.json(dst, e); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case *ast.MappingValueNode:
		return s.object(dst, []*ast.MappingValueNode{v})
	case *ast.MappingNode:
		return s.object(dst, v.Values)
	}
	if n == nil || n.GetToken() == nil {
		return append(dst, "null"...), nil
	}
	return nil, s.node(n, "this value has no form in JSON")
}

func (s *source) object(dst []byte, members []*ast.MappingValueNode) ([]byte, error) {
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		name := m.Key.GetToken().Value
		dst = append(canonjson.AppendString(dst, name), ':')
		var err error
		if dst, err = s.json(dst, m.Value); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// The rules of the vendors, as their APIs enforce them, for the vendors'
// stand-ins in tests. They share nothing with the converters. An error names
// the place and the rule.

// CheckOpenAIStrict checks the schema of response_format json_schema with
// strict, or of a strict function.
func CheckOpenAIStrict(schema []byte) error {
	c := checker{}
	root, err := c.read(schema)
	if err != nil {
		return err
	}
	if kind(root) != "object" {
		return errors.New("$: schema must have type object at the top")
	}
	if _, ok := root.Get("anyOf"); ok {
		return errors.New("$: anyOf is not permitted at the top")
	}
	if err := c.openAIStrict(root, "$", 0); err != nil {
		return err
	}
	switch {
	case c.members > 5000:
		return errors.New("$: more than 5000 properties")
	case c.values > 1000:
		return errors.New("$: more than 1000 enum values")
	case c.chars > 120_000:
		return errors.New("$: names and values are longer than 120000 characters")
	}
	return nil
}

// CheckOpenAITool checks the parameters of a function that is not strict.
func CheckOpenAITool(schema []byte) error { return checkToolTop(schema, false) }

// CheckAnthropicTool checks the input_schema of a tool.
func CheckAnthropicTool(schema []byte) error { return checkToolTop(schema, true) }

// CheckAnthropicOutput checks the schema of output_format.
func CheckAnthropicOutput(schema []byte) error {
	c := checker{}
	root, err := c.read(schema)
	if err != nil {
		return err
	}
	if err := c.anthropicOutput(root, "$", 0); err != nil {
		return err
	}
	if c.optional > 24 || c.unions > 16 {
		return errors.New("$: schema is too complex: at most 24 optional parameters and 16 with union types")
	}
	return nil
}

// CheckGemini checks a Schema: the parameters of a function declaration, or a
// responseSchema.
func CheckGemini(schema []byte) error {
	c := checker{}
	root, err := c.read(schema)
	if err != nil {
		return err
	}
	if strings.ToUpper(kind(root)) == "OBJECT" {
		if p, ok := root.Get("properties"); !ok || p.Len() == 0 {
			return errors.New("$.properties: should be non-empty for OBJECT type")
		}
	}
	return c.gemini(root, "$", 0)
}

type checker struct{ members, values, chars, optional, unions int }

func (c *checker) read(schema []byte) (canonjson.Node, error) {
	n, err := canonjson.Parse(schema, canonjson.Limits{Depth: 200})
	if err != nil {
		return n, fmt.Errorf("the schema is no JSON: %w", err)
	}
	if n.Kind() != canonjson.Object {
		return n, errors.New("$: a schema must be an object")
	}
	return n, nil
}

// kind gives the single type a schema names, "" when it is none or several.
func kind(n canonjson.Node) string {
	t, _ := n.Get("type")
	return t.Text()
}

func unknownWord(n canonjson.Node, path string, known ...string) error {
	for i := range n.Len() {
		if name := n.At(i).Name(); !slices.Contains(known, name) {
			return fmt.Errorf("%s: %s is not permitted", path, canonjson.QuoteName(name))
		}
	}
	return nil
}

// below calls fn for each schema of an object or list of schemas.
func below(n canonjson.Node, path string, fn func(canonjson.Node, string) error) error {
	for i := range n.Len() {
		p := fmt.Sprintf("%s[%d]", path, i)
		if n.Kind() == canonjson.Object {
			p = canonjson.MemberPath(path, n.At(i).Name())
		}
		if n.At(i).Kind() != canonjson.Object {
			return fmt.Errorf("%s: a schema must be an object", p)
		}
		if err := fn(n.At(i), p); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) openAIStrict(n canonjson.Node, path string, depth int) error {
	if depth > 10 {
		return fmt.Errorf("%s: more than 10 levels of nesting", path)
	}
	err := unknownWord(n, path, "type", "description", "title", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
		"$ref", "$defs", "definitions", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "format", "pattern")
	if err != nil {
		return err
	}
	down := func(kid canonjson.Node, p string) error { return c.openAIStrict(kid, p, depth+1) }
	same := func(kid canonjson.Node, p string) error { return c.openAIStrict(kid, p, depth) }
	enum, listed := n.Get("enum")
	any, union := n.Get("anyOf")
	_, ref := n.Get("$ref")
	t, typed := n.Get("type")
	if !typed && !union && !ref && !listed {
		return fmt.Errorf("%s: schema must have a type key", path)
	}
	c.values += enum.Len()
	for i := range enum.Len() {
		c.chars += len(enum.At(i).Text())
	}
	is := func(name string) bool {
		if t.Text() == name {
			return true
		}
		for i := range t.Len() {
			if t.At(i).Text() == name {
				return true
			}
		}
		return false
	}
	if is("object") {
		if err := c.strictObject(n, path); err != nil {
			return err
		}
		props, _ := n.Get("properties")
		if err := below(props, path+".properties", down); err != nil {
			return err
		}
	}
	if is("array") {
		items, ok := n.Get("items")
		if !ok || items.Kind() != canonjson.Object {
			return fmt.Errorf("%s: array schema missing items", path)
		}
		if err := down(items, path+".items"); err != nil {
			return err
		}
	}
	return below(any, path+".anyOf", same)
}

func (c *checker) strictObject(n canonjson.Node, path string) error {
	more, ok := n.Get("additionalProperties")
	if !ok || more.Kind() != canonjson.Bool || more.Bool() {
		return fmt.Errorf("%s: additionalProperties is required to be supplied and to be false", path)
	}
	props, ok := n.Get("properties")
	if !ok {
		return fmt.Errorf("%s: object schema missing properties", path)
	}
	required, _ := n.Get("required")
	var have []string
	for i := range required.Len() {
		if _, ok := props.Get(required.At(i).Text()); !ok {
			return fmt.Errorf("%s: required names what is not in properties", path)
		}
		have = append(have, required.At(i).Text())
	}
	for i := range props.Len() {
		name := props.At(i).Name()
		c.members++
		c.chars += len(name)
		if !slices.Contains(have, name) {
			return fmt.Errorf("%s: required is required to be an array including every key in properties. Missing %s", path, canonjson.QuoteName(name))
		}
	}
	return nil
}

func checkToolTop(schema []byte, anthropic bool) error {
	c := checker{}
	root, err := c.read(schema)
	if err != nil {
		return err
	}
	if kind(root) != "object" {
		return errors.New("$: schema must be of type object")
	}
	for _, k := range []string{"oneOf", "anyOf", "allOf", "enum", "not", "$ref"} {
		if _, ok := root.Get(k); ok {
			return fmt.Errorf("$: %s is not supported at the top", k)
		}
	}
	props, ok := root.Get("properties")
	if !ok {
		return errors.New("$: object schema missing properties")
	}
	for i := range props.Len() {
		if name := props.At(i).Name(); anthropic && !keyOf(name) {
			return fmt.Errorf("$.properties: property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$', %s does not", canonjson.QuoteName(name))
		}
	}
	return c.tool(root, "$", anthropic)
}

func keyOf(name string) bool {
	ok := func(r rune) bool {
		return r == '_' || r == '.' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool { return !ok(r) })
}

// tool checks the words that are wrong in draft 2020-12.
func (c *checker) tool(n canonjson.Node, path string, anthropic bool) error {
	if kind(n) == "array" {
		if items, ok := n.Get("items"); !ok || items.Kind() != canonjson.Object {
			return fmt.Errorf("%s: array schema missing items", path)
		}
	}
	for i := range n.Len() {
		kid := n.At(i)
		p := canonjson.MemberPath(path, kid.Name())
		var err error
		switch kid.Name() {
		case "$schema":
			if anthropic && !strings.Contains(kid.Text(), "2020-12") {
				err = fmt.Errorf("%s: JSON schema is invalid. It must match JSON Schema draft 2020-12", p)
			}
		case "required":
			if kid.Kind() != canonjson.Array {
				err = fmt.Errorf("%s: is not of type array", p)
			}
		case "exclusiveMinimum", "exclusiveMaximum":
			if kid.Kind() != canonjson.Number {
				err = fmt.Errorf("%s: is not of type number", p)
			}
		case "items", "not":
			if kid.Kind() != canonjson.Object {
				err = fmt.Errorf("%s: is not of type object", p)
			} else {
				err = c.tool(kid, p, anthropic)
			}
		case "additionalProperties":
			if kid.Kind() == canonjson.Object {
				err = c.tool(kid, p, anthropic)
			}
		case "properties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "prefixItems":
			if kid.Len() == 0 && kid.Kind() == canonjson.Array {
				err = fmt.Errorf("%s: should be non-empty", p)
			} else {
				err = below(kid, p, func(kid canonjson.Node, p string) error { return c.tool(kid, p, anthropic) })
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) anthropicOutput(n canonjson.Node, path string, depth int) error {
	if depth > 64 {
		return fmt.Errorf("%s: recursive or too deep", path)
	}
	err := unknownWord(n, path, "type", "description", "title", "properties", "required", "additionalProperties", "items", "enum", "const",
		"anyOf", "allOf", "default", "format", "minItems", "pattern")
	if err != nil {
		return err
	}
	down := func(kid canonjson.Node, p string) error { return c.anthropicOutput(kid, p, depth+1) }
	union, _ := n.Get("anyOf")
	if t, ok := n.Get("type"); t.Len() > 1 || union.Len() > 1 {
		c.unions++
	} else if _, enum := n.Get("enum"); !ok && !enum && union.Len() == 0 {
		return fmt.Errorf("%s: schema must have a type", path)
	}
	if enum, ok := n.Get("enum"); ok {
		for i := range enum.Len() {
			if k := enum.At(i).Kind(); k == canonjson.Object || k == canonjson.Array {
				return fmt.Errorf("%s.enum: complex types are not supported", path)
			}
		}
	}
	if kind(n) == "object" {
		more, ok := n.Get("additionalProperties")
		if !ok || more.Kind() != canonjson.Bool || more.Bool() {
			return fmt.Errorf("%s: For 'object' type, 'additionalProperties' must be explicitly set to false", path)
		}
	}
	props, _ := n.Get("properties")
	required, _ := n.Get("required")
	c.optional += max(0, props.Len()-required.Len())
	if err := below(props, path+".properties", down); err != nil {
		return err
	}
	if items, ok := n.Get("items"); ok {
		if items.Kind() != canonjson.Object {
			return fmt.Errorf("%s.items: is not of type object", path)
		}
		if err := down(items, path+".items"); err != nil {
			return err
		}
	}
	return below(union, path+".anyOf", down)
}

func (c *checker) gemini(n canonjson.Node, path string, depth int) error {
	if depth > 32 {
		return fmt.Errorf("%s: the schema exceeds the maximum allowed nesting depth", path)
	}
	err := unknownWord(n, path, "type", "format", "title", "description", "nullable", "enum", "minItems", "maxItems", "properties", "required",
		"minProperties", "maxProperties", "minLength", "maxLength", "pattern", "anyOf", "propertyOrdering", "items", "minimum", "maximum")
	if err != nil {
		return err
	}
	down := func(kid canonjson.Node, p string) error { return c.gemini(kid, p, depth+1) }
	if union, ok := n.Get("anyOf"); ok {
		if n.Len() > 1 || union.Len() == 0 {
			return fmt.Errorf("%s: when using any_of, it must be the only field set", path)
		}
		return below(union, path+".anyOf", down)
	}
	t, _ := n.Get("type")
	name := strings.ToUpper(t.Text())
	format, _ := n.Get("format")
	formats := map[string][]string{"NUMBER": {"float", "double"}, "INTEGER": {"int32", "int64"}, "STRING": {"enum", "date-time"}}
	if format.Text() != "" && !slices.Contains(formats[name], format.Text()) {
		return fmt.Errorf("%s.format: %s is not supported for %s type", path, canonjson.QuoteName(format.Text()), name)
	}
	if err := geminiEnum(n, path, name); err != nil {
		return err
	}
	switch name {
	case "STRING", "NUMBER", "INTEGER", "BOOLEAN", "NULL":
	case "ARRAY":
		items, ok := n.Get("items")
		if !ok || items.Kind() != canonjson.Object {
			return fmt.Errorf("%s.items: missing field", path)
		}
		return down(items, path+".items")
	case "OBJECT":
		props, ok := n.Get("properties")
		if ok && props.Len() == 0 {
			return fmt.Errorf("%s.properties: should be non-empty for OBJECT type", path)
		}
		required, _ := n.Get("required")
		for i := range required.Len() {
			if _, ok := props.Get(required.At(i).Text()); !ok {
				return fmt.Errorf("%s.required[%d]: property is not defined", path, i)
			}
		}
		return below(props, path+".properties", down)
	default:
		return fmt.Errorf("%s.type: invalid value at 'type'", path)
	}
	return nil
}

func geminiEnum(n canonjson.Node, path, typ string) error {
	enum, ok := n.Get("enum")
	if !ok {
		return nil
	}
	if typ != "STRING" {
		return fmt.Errorf("%s.enum: only allowed for STRING type", path)
	}
	for i := range enum.Len() {
		if enum.At(i).Kind() != canonjson.String || enum.At(i).Text() == "" {
			return fmt.Errorf("%s.enum[%d]: cannot be empty, and must be a text", path, i)
		}
	}
	return nil
}

package dialect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/dialect"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

type form struct {
	name    string
	convert func(canonjson.Value) (canonjson.Value, bool)
	check   func([]byte) error
}

var (
	outputs = []form{
		{"OpenAIOutput", dialect.OpenAIOutput, dialect.CheckOpenAIStrict},
		{"AnthropicOutput", dialect.AnthropicOutput, dialect.CheckAnthropicOutput},
		{"GeminiOutput", dialect.GeminiOutput, dialect.CheckGemini},
	}
	tools = []form{
		{"OpenAITool", dialect.OpenAITool, dialect.CheckOpenAITool},
		{"AnthropicTool", dialect.AnthropicTool, dialect.CheckAnthropicTool},
		{"GeminiTool", dialect.GeminiTool, dialect.CheckGemini},
	}
)

const contractT = `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},
	"tags":{"type":"array","items":{"type":"string"}}},"required":["status","count"],"additionalProperties":false}`

const mcpTool = `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","additionalProperties":false,
	"properties":{"path":{"type":["string","null"],"default":null},"limit":{"type":"integer","default":10}},"required":["path"]}`

// C09: one schema, every dialect.
func TestFieldCase(t *testing.T) {
	s, issues := contract.ParseSchema([]byte(contractT))
	if issues != nil {
		t.Fatal(issues)
	}
	want := map[string]string{
		"OpenAIOutput": `{"additionalProperties":false,"properties":{"count":{"type":"number"},"status":{"type":"string"},` +
			`"tags":{"anyOf":[{"items":{"type":"string"},"type":"array"},{"type":"null"}]}},"required":["count","status","tags"],"type":"object"}`,
		"AnthropicOutput": string(s.Render()),
		"GeminiOutput": `{"properties":{"count":{"type":"NUMBER"},"status":{"type":"STRING"},` +
			`"tags":{"items":{"type":"STRING"},"nullable":true,"type":"ARRAY"}},"required":["count","status"],"type":"OBJECT"}`,
		"OpenAITool": `{"additionalProperties":false,"properties":{"limit":{"default":10,"type":"integer"},"path":{"default":null,"type":["string","null"]}},` +
			`"required":["path"],"type":"object"}`,
		"GeminiTool": `{"properties":{"limit":{"type":"INTEGER"},"path":{"nullable":true,"type":"STRING"}},"required":["path"],"type":"OBJECT"}`,
	}
	want["AnthropicTool"] = want["OpenAITool"]
	for i, f := range append(slices.Clone(outputs), tools...) {
		in := s.Render()
		if i >= len(outputs) {
			in = canon(t, mcpTool)
		}
		got, ok := f.convert(in)
		if !ok || string(got) != want[f.name] {
			t.Errorf("%s: %s %v", f.name, got, ok)
		}
		if err := f.check(got); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	// The local check stays the judge: a null optional is absent, another null is not.
	if v, err := s.Check(`{"status":"ok","count":3,"tags":null}`); err != nil || string(v) != `{"count":3,"status":"ok"}` {
		t.Error(v, err)
	}
	if _, err := s.Check(`{"status":null,"count":3}`); err == nil || err.Error() != "$.status: expected a string, got null" {
		t.Error(err)
	}
}

// What has no exact form has none at all.
func TestNoOutputForm(t *testing.T) {
	deep := strings.Repeat(`{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":`, 40) + `{"type":"string"}` + strings.Repeat("}}", 40)
	for name, schema := range map[string]string{
		"any":           `{}`,
		"no object":     `{"type":"string"}`,
		"a list":        `{"type":"array","items":{"type":"string"}}`,
		"open":          `{"type":"object","properties":{"a":{"type":"string"}}}`,
		"any inside":    object(`"a":{}`),
		"any in a list": object(`"a":{"type":"array","items":{}}`),
		"open inside":   object(`"a":{"type":"object"}`),
		"map":           object(`"a":{"type":"object","additionalProperties":{"type":"string"}}`),
		"recursive":     object(`"a":{"$ref":"#"}`),
		"not":           object(`"a":{"type":"string","not":{"const":"x"}}`),
		"too deep":      deep,
		"too large":     object(`"a":{"type":"string","description":"` + strings.Repeat("x", dialect.MaxBytes) + `"}`),
		"tuple":         object(`"a":{"type":"array","prefixItems":[{"type":"string"}]}`),
	} {
		for _, f := range outputs {
			if got, ok := f.convert(canon(t, schema)); ok {
				t.Errorf("%s of %s: %s", f.name, name, got)
			}
		}
	}
	var many strings.Builder
	for i := range 25 {
		fmt.Fprintf(&many, `"a%d":{"type":"string"},`, i)
	}
	optional := canon(t, object(strings.TrimSuffix(many.String(), ",")))
	if _, ok := dialect.AnthropicOutput(optional); ok {
		t.Error("25 optional members for Anthropic")
	}
	if _, ok := dialect.OpenAIOutput(optional); !ok {
		t.Error("25 optional members for OpenAI")
	}
}

func object(properties string) string {
	return `{"type":"object","additionalProperties":false,"properties":{` + properties + `}}`
}

// Schemas of tools as they come, and what a vendor gets.
func TestToolForms(t *testing.T) {
	for _, c := range []struct{ name, schema, openai, gemini string }{
		{"nothing", `{"type":"object"}`, `{"properties":{},"type":"object"}`, ``},
		{"no type", `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"a":{"type":"string"}},"type":"object"}`, `{"properties":{"a":{"type":"STRING"}},"type":"OBJECT"}`},
		{"not an object", `{"type":"string"}`, `{"properties":{},"type":"object"}`, ``},
		{"boolean schemas", `{"type":"object","properties":{"a":true,"b":false,"c":{"type":"boolean"}}}`, `{"properties":{"a":{},"c":{"type":"boolean"}},"type":"object"}`, "-"},
		{"a list without items", `{"type":"object","properties":{"a":{"type":"array"}}}`, `{"properties":{"a":{"items":{},"type":"array"}},"type":"object"}`, "-"},
		{"a const", `{"type":"object","properties":{"a":{"const":"x"}}}`, `{"properties":{"a":{"const":"x"}},"type":"object"}`, `{"properties":{"a":{"enum":["x"],"type":"STRING"}},"type":"OBJECT"}`},
		{"an enum of numbers", `{"type":"object","properties":{"a":{"type":"integer","enum":[1,2],"description":"How many."}}}`, "-",
			`{"properties":{"a":{"description":"How many. One of: 1,2.","type":"INTEGER"}},"type":"OBJECT"}`},
		{"an enum with null and empty", `{"type":"object","properties":{"a":{"enum":["x",null]},"b":{"enum":["","y"]}}}`, "-",
			`{"properties":{"a":{"enum":["x"],"nullable":true,"type":"STRING"},"b":{"description":"One of: \"\",\"y\".","type":"STRING"}},"type":"OBJECT"}`},
		{"two types", `{"type":"object","properties":{"a":{"type":["string","integer","null"],"description":"d"}}}`, "-",
			`{"properties":{"a":{"anyOf":[{"description":"d","nullable":true,"type":"STRING"},{"nullable":true,"type":"INTEGER"}]}},"type":"OBJECT"}`},
		{"alternatives at the top", `{"anyOf":[{"type":"object","properties":{"a":{"type":"string"},"k":{"const":"a"}},"required":["a","k"]},{"properties":{"b":{"type":"string"},"k":{"const":"b"}},"required":["b","k"]}]}`,
			`{"properties":{"a":{"type":"string"},"b":{"type":"string"},"k":{"anyOf":[{"const":"a"},{"const":"b"}]}},"required":["k"],"type":"object"}`,
			`{"properties":{"a":{"type":"STRING"},"b":{"type":"STRING"},"k":{"anyOf":[{"enum":["a"],"type":"STRING"},{"enum":["b"],"type":"STRING"}]}},"required":["k"],"type":"OBJECT"}`},
		{"all at the top", `{"type":"object","allOf":[{"properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":{"type":"number"}}}]}`,
			`{"properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["a"],"type":"object"}`, "-"},
		{"a reference", `{"type":"object","properties":{"a":{"$ref":"#/$defs/p","description":"d"}},"$defs":{"p":{"type":"string"}}}`,
			`{"$defs":{"p":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/p","description":"d"}},"type":"object"}`,
			`{"properties":{"a":{"description":"d","type":"STRING"}},"type":"OBJECT"}`},
		{"a reference at the top", `{"$ref":"#/$defs/p","$defs":{"p":{"type":"object","properties":{"a":{"type":"string"}}}}}`,
			`{"properties":{"a":{"type":"string"}},"type":"object"}`, "-"},
		{"a circle", `{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#"}}}}`,
			`{"properties":{"kids":{"items":{"$ref":"#"},"type":"array"}},"type":"object"}`,
			`{"properties":{"kids":{"items":{"properties":{"kids":{"items":{"type":"OBJECT"},"type":"ARRAY"}},"type":"OBJECT"},"type":"ARRAY"}},"type":"OBJECT"}`},
		{"older words", `{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"a":{"type":"number","minimum":0,"exclusiveMinimum":true},"b":{"type":"array","items":[{"type":"string"}],"additionalItems":false}},"required":[]}`,
			`{"properties":{"a":{"exclusiveMinimum":0,"type":"number"},"b":{"items":{},"prefixItems":[{"type":"string"}],"type":"array"}},"type":"object"}`, "-"},
	} {
		in := canon(t, c.schema)
		if got, ok := dialect.OpenAITool(in); !ok || c.openai != "-" && string(got) != c.openai {
			t.Errorf("%s for OpenAI: %s", c.name, got)
		}
		if got, ok := dialect.GeminiTool(in); ok != (c.gemini != "") || c.gemini != "-" && string(got) != c.gemini {
			t.Errorf("%s for Gemini: %s %v", c.name, got, ok)
		}
	}
	keys := canon(t, `{"type":"object","additionalProperties":false,"properties":{"a b":{"type":"string"},"c":{"type":"string"}},"required":["a b","c"]}`)
	if got, _ := dialect.AnthropicTool(keys); string(got) != `{"properties":{"c":{"type":"string"}},"required":["c"],"type":"object"}` {
		t.Errorf("%s", got)
	}
}

// C09: for any contract the vendors take the form, what conforms to one
// conforms to the other, and the bytes are the same each time.
func TestOutputsMeanTheContract(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := drawShape(t, 3)
		if shape.kind != "object" {
			shape = &node{kind: "object", names: []string{"value"}, need: []bool{rapid.Bool().Draw(t, "need")}, kids: []*node{shape}}
		}
		s, issues := contract.ParseSchema([]byte(shape.schema()))
		if issues != nil {
			t.Fatal(issues)
		}
		value := shape.value(t)
		checked, err := s.Check(value)
		if err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		for _, f := range outputs {
			got, ok := f.convert(s.Render())
			if f.name == "GeminiOutput" && len(shape.names) == 0 && !ok {
				continue
			}
			if ok == shape.hasAny() {
				t.Fatalf("%s of %s: %v", f.name, s.Render(), ok)
			}
			if !ok {
				continue
			}
			if again, _ := f.convert(s.Render()); !again.Equal(got) {
				t.Fatalf("%s and %s", got, again)
			}
			if err := f.check(got); err != nil {
				t.Fatalf("%s: %s: %v", f.name, got, err)
			}
			theirs := compile(t, got)
			said := []byte(checked)
			if f.name == "OpenAIOutput" {
				said = []byte(shape.withNulls(checked))
			}
			if err := validate(theirs, said); err != nil {
				t.Fatalf("%s: %s does not take %s: %v", f.name, got, said, err)
			}
			// What the vendor lets the model say conforms, nulls dropped.
			said = []byte(shape.other(t))
			if back, err := s.Check(string(said)); validate(theirs, said) == nil && err != nil && f.name != "GeminiOutput" {
				t.Fatalf("%s: %s takes %s: %v %s", f.name, got, said, err, back)
			}
		}
	})
}

// C09: the forms of tools pass the vendors' rules and take all that the schema takes.
func TestToolsOnlyLoosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schema := canon(t, drawToolSchema(t))
		ours := compile(t, schema)
		var values [][]byte
		for i := range 6 {
			values = append(values, []byte(rapid.SampledFrom(toolValues).Draw(t, fmt.Sprint("value", i))))
		}
		for _, f := range tools {
			got, ok := f.convert(schema)
			if !ok && f.name != "GeminiTool" {
				t.Fatal(f.name, "has no form")
			}
			if !ok {
				continue
			}
			if err := f.check(got); err != nil {
				t.Fatalf("%s of %s: %s: %v", f.name, schema, got, err)
			}
			if again, _ := f.convert(schema); !again.Equal(got) {
				t.Fatalf("%s and %s", got, again)
			}
			theirs := compile(t, got)
			for _, v := range values {
				if validate(ours, v) == nil && validate(theirs, v) != nil {
					t.Fatalf("%s of %s: %s does not take %s", f.name, schema, got, v)
				}
			}
		}
	})
}

func FuzzForms(f *testing.F) {
	f.Add([]byte(contractT))
	f.Add([]byte(mcpTool))
	f.Add([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"anyOf":[true,false,{"items":[{}]}]}]}}}`))
	f.Add([]byte(`{"type":["object","nonsense"],"properties":{"a":{"type":"null"},"b":{"oneOf":[]},"c":{"enum":[]}},"required":["z",1]}`))
	f.Fuzz(func(t *testing.T, schema []byte) {
		in, err := canonjson.Canonicalize(schema, canonjson.Limits{})
		if err != nil {
			return
		}
		for _, form := range append(slices.Clone(outputs), tools...) {
			got, ok := form.convert(in)
			if !ok {
				continue
			}
			if err := form.check(got); err != nil {
				t.Errorf("%s of %s: %s: %v", form.name, in, got, err)
			}
			if c, err := canonjson.Canonicalize(got, canonjson.Limits{Depth: 1000}); err != nil || !c.Equal(got) {
				t.Errorf("%s is not canonical: %s", form.name, got)
			}
		}
	})
}

// A schema that would grow without end when written out stays bounded.
func TestBounds(t *testing.T) {
	var fan strings.Builder
	fan.WriteString(`{"$ref":"#/$defs/a0","$defs":{`)
	for i := range 30 {
		fmt.Fprintf(&fan, `"a%d":{"type":"object","properties":{"l":{"$ref":"#/$defs/a%d"},"r":{"$ref":"#/$defs/a%d"}}},`, i, i+1, i+1)
	}
	fan.WriteString(`"a30":{"type":"string"}}}`)
	for _, f := range tools {
		got, ok := f.convert(canon(t, fan.String()))
		if !ok || len(got) > 256<<10 {
			t.Errorf("%s: %d bytes, %v", f.name, len(got), ok)
		}
		if err := f.check(got); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	var chain strings.Builder
	chain.WriteString(`{"$ref":"#/$defs/a0","$defs":{`)
	for i := range 900 {
		fmt.Fprintf(&chain, `"a%d":{"type":"object","properties":{"n":{"$ref":"#/$defs/a%d"}}},`, i, i+1)
	}
	chain.WriteString(`"a900":{"type":"string"}}}`)
	for _, f := range tools {
		if got, ok := f.convert(canon(t, chain.String())); !ok || f.check(got) != nil {
			t.Errorf("%s: %.300s", f.name, got)
		}
	}
	huge := canon(t, object(`"a":{"description":"`+strings.Repeat("x", dialect.MaxBytes)+`"}`))
	if got, ok := dialect.OpenAITool(huge); !ok || string(got) != `{"properties":{},"type":"object"}` {
		t.Errorf("%s", got)
	}
}

func canon(t interface{ Fatal(...any) }, text string) canonjson.Value {
	v, err := canonjson.Canonicalize([]byte(text), canonjson.Limits{Depth: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// compile reads a schema, also one in Gemini's words.
func compile(t interface{ Fatal(...any) }, schema []byte) *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:x", fromGemini(doc)); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mem:x")
	if err != nil {
		t.Fatal(string(schema), err)
	}
	return s
}

func fromGemini(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = fromGemini(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = fromGemini(v[k])
		}
		name, _ := v["type"].(string)
		if name == "" || name != strings.ToUpper(name) {
			return v
		}
		v["type"] = strings.ToLower(name)
		if v["nullable"] == true {
			v["type"] = []any{v["type"], "null"}
			if list, ok := v["enum"].([]any); ok {
				v["enum"] = append(list, nil)
			}
		}
		delete(v, "nullable")
	}
	return v
}

func validate(s *jsonschema.Schema, value []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// node is a random contract.
type node struct {
	kind  string // "" is any
	names []string
	need  []bool
	kids  []*node // of an object; of an array the one of its items
}

func drawShape(t *rapid.T, depth int) *node {
	kinds := []string{"string", "number", "boolean", "object", "array", "object"}
	if rapid.IntRange(0, 15).Draw(t, "any") == 0 {
		return &node{}
	}
	if depth == 0 {
		kinds = kinds[:3]
	}
	n := &node{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch n.kind {
	case "array":
		n.kids = []*node{drawShape(t, depth-1)}
	case "object":
		n.names = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c d", "é", "$ref", "properties", "type"}), 0, 4, rapid.ID).Draw(t, "names")
		for range n.names {
			n.need = append(n.need, rapid.Bool().Draw(t, "need"))
			n.kids = append(n.kids, drawShape(t, depth-1))
		}
	}
	return n
}

func (n *node) schema() string {
	switch n.kind {
	case "":
		return `{}`
	case "array":
		return `{"type":"array","items":` + n.kids[0].schema() + `}`
	case "object":
		props, required := []string{}, []string{}
		for i, name := range n.names {
			props = append(props, quote(name)+":"+n.kids[i].schema())
			if n.need[i] {
				required = append(required, quote(name))
			}
		}
		return `{"type":"object","additionalProperties":false,"properties":{` + strings.Join(props, ",") + `},"required":[` + strings.Join(required, ",") + `]}`
	}
	return `{"type":` + quote(n.kind) + `}`
}

func (n *node) hasAny() bool {
	return n.kind == "" || slices.ContainsFunc(n.kids, (*node).hasAny)
}

// value gives a value that conforms.
func (n *node) value(t *rapid.T) string {
	switch n.kind {
	case "string":
		return quote(rapid.SampledFrom([]string{"", "x", "<b>"}).Draw(t, "string"))
	case "number":
		return rapid.SampledFrom([]string{"0", "-1.5", "9007199254740993"}).Draw(t, "number")
	case "boolean":
		return fmt.Sprint(rapid.Bool().Draw(t, "bool"))
	case "array":
		var list []string
		for range rapid.IntRange(0, 2).Draw(t, "len") {
			list = append(list, n.kids[0].value(t))
		}
		return "[" + strings.Join(list, ",") + "]"
	case "object":
		var list []string
		for i, name := range n.names {
			if n.need[i] || rapid.Bool().Draw(t, "there") {
				list = append(list, quote(name)+":"+n.kids[i].value(t))
			}
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	return `"any"`
}

// other gives a value that may conform or not: sometimes null, sometimes of another kind.
func (n *node) other(t *rapid.T) string {
	switch rapid.IntRange(0, 7).Draw(t, "odd") {
	case 0:
		return "null"
	case 1:
		return `"odd"`
	}
	if n.kind != "object" {
		return n.value(t)
	}
	var list []string
	for i, name := range n.names {
		list = append(list, quote(name)+":"+n.kids[i].other(t))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// withNulls adds what strict mode wants named: null for each absent member.
func (n *node) withNulls(value []byte) string {
	switch n.kind {
	case "array":
		var list []json.RawMessage
		_ = json.Unmarshal(value, &list)
		out := []string{}
		for _, v := range list {
			out = append(out, n.kids[0].withNulls(v))
		}
		return "[" + strings.Join(out, ",") + "]"
	case "object":
		var m map[string]json.RawMessage
		_ = json.Unmarshal(value, &m)
		out := []string{}
		for i, name := range n.names {
			v := "null"
			if raw, ok := m[name]; ok {
				v = n.kids[i].withNulls(raw)
			}
			out = append(out, quote(name)+":"+v)
		}
		return "{" + strings.Join(out, ",") + "}"
	}
	return string(value)
}

func quote(s string) string { return string(canonjson.AppendString(nil, s)) }

var toolValues = []string{
	`{}`, `{"a":"x"}`, `{"a":1}`, `{"a":null}`, `{"a":{"a":"x"}}`, `{"a":["x"]}`, `{"a":"x","b":2}`, `{"a":[1]}`, `{"b c":"x"}`,
	`{"a":{"a":{"a":1}}}`, `{"b":true}`, `{"a":"y","b":"x"}`, `{"b":{"b c":1}}`, `{"a":1.5}`, `{"a":[]}`, `{"a":"","b":null}`,
}

// drawToolSchema gives a schema of the kinds that tools come with.
func drawToolSchema(t *rapid.T) string {
	var sub func(depth int) string
	list := func(n int, depth int) string {
		var out []string
		for range n {
			out = append(out, sub(depth))
		}
		return strings.Join(out, ",")
	}
	obj := func(depth int, closed ...bool) string {
		var props []string
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "b c"}), 0, 3, rapid.ID).Draw(t, "names") {
			props = append(props, quote(name)+":"+sub(depth-1))
		}
		s := `"type":"object","properties":{` + strings.Join(props, ",") + `}`
		s += rapid.SampledFrom([]string{"", `,"required":["a"]`, `,"required":["a","b"]`, `,"required":["zz"]`}).Draw(t, "required")
		if closed != nil {
			return s + `,"additionalProperties":false`
		}
		s += rapid.SampledFrom([]string{"", "", `,"additionalProperties":false`, `,"additionalProperties":{"type":"string"}`, `,"minProperties":1`}).Draw(t, "more")
		return s
	}
	sub = func(depth int) string {
		simple := []string{`{"type":"string"}`, `{"type":["string","null"]}`, `{"type":"number","minimum":1}`, `{"type":"integer","default":3}`, `{"enum":["x","y"]}`,
			`{"enum":[1,"x",null]}`, `{"const":1}`, `{"type":"string","pattern":"^x"}`, `{"type":["string","integer","array"],"items":{"type":"string"}}`,
			`{"type":"string","format":"uri"}`, `{"$ref":"#/$defs/d"}`, `{"$ref":"#/$defs/d","description":"d"}`, `{"type":"null"}`, `{"type":"array"}`, `{"enum":["","x"]}`}
		if depth <= 0 {
			return rapid.SampledFrom(simple).Draw(t, "simple")
		}
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0:
			return "{" + obj(depth) + "}"
		case 1:
			return `{"type":"array","items":` + sub(depth-1) + `}`
		case 2:
			return `{"` + rapid.SampledFrom([]string{"anyOf", "oneOf"}).Draw(t, "of") + `":[` + list(2, depth-1) + `],"description":"d"}`
		case 3:
			return `{"allOf":[` + list(2, depth-1) + `]}`
		case 4:
			return `{"type":"array","prefixItems":[` + list(1, depth-1) + `]}`
		}
		return rapid.SampledFrom(simple).Draw(t, "simple")
	}
	top := obj(2)
	switch rapid.IntRange(0, 4).Draw(t, "top") {
	case 0:
		top = fmt.Sprintf(`"%s":[{%s},{%s}]`, rapid.SampledFrom([]string{"anyOf", "oneOf", "allOf"}).Draw(t, "of"), obj(1, true), obj(1, true))
	case 1:
		top += `,"anyOf":[{"required":["a"]},{"required":["b"]}]`
	}
	defs := `{"d":` + rapid.SampledFrom([]string{`{"type":"string"}`, "{" + obj(1) + "}"}).Draw(t, "def") + `}`
	if strings.Contains(defs, `"$ref"`) {
		defs = `{"d":{"type":"object","properties":{"a":{"$ref":"#/$defs/d"}}}}`
	}
	return `{` + top + `,"$defs":` + defs + `}`
}

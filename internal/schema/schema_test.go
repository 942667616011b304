package schema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

func compile(t *testing.T, text string) (*Schema, error) {
	t.Helper()
	v, err := canonjson.Canonicalize([]byte(text), canonjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return Compile(v)
}

func TestCheck(t *testing.T) {
	s, err := compile(t, `{"type":"object","properties":{"cents":{"type":"number","minimum":1},"who":{"$ref":"#/$defs/p"}},
		"required":["cents"],"additionalProperties":false,"$defs":{"p":{"type":"string"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, want string }{
		{`{"cents":5,"who":"a"}`, ""},
		{`{"cents":"5"}`, "$.cents: expected number, got string"},
		{`{}`, "$: missing cents"},
		{`{"cents":5,"x":1}`, "$: unknown field x"},
		{`{"cents":5,"who":1}`, "$.who: expected string, got number"},
		{`[]`, "$: expected object, got array"},
		{`{"cents":0}`, "$.cents: must be at least 1"},
		{`{`, "$: not one JSON value"},
	} {
		err := s.Check([]byte(c.in))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.in, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.in, err, c.want)
		}
	}
}

// What was checked is not repeated: an error goes into events and to the model.
func TestNoValueIsRepeated(t *testing.T) { // I-33
	for _, c := range []struct{ schema, value, want string }{
		{`{"minimum":3.5}`, `-98765.25`, "$: must be at least 3.5"},
		{`{"maximum":3.5}`, `98765.25`, "$: must be at most 3.5"},
		{`{"exclusiveMinimum":0.1}`, `-98765`, "$: must be greater than 0.1"},
		{`{"exclusiveMaximum":1000000}`, `98765000`, "$: must be less than 1e+06"},
		{`{"multipleOf":7}`, `98765`, "$: must be a multiple of 7"},
		{`{"enum":["a",1]}`, `"98765"`, `$: must be one of ["a",1]`},
		{`{"const":{"a":1}}`, `"98765"`, `$: must be {"a":1}`},
		{`{"pattern":"^x$"}`, `"98765"`, "$: must match the pattern ^x$"},
		{`{"minLength":9}`, `"98765"`, "$: must have at least 9 characters"},
		{`{"maxLength":2}`, `"98765"`, "$: must have at most 2 characters"},
		{`{"minItems":2}`, `[98765]`, "$: must have at least 2 items"},
		{`{"maxItems":1}`, `[98765,1]`, "$: must have at most 1 items"},
		{`{"uniqueItems":true}`, `[98765,98765]`, "$: has items that are equal"},
		{`{"contains":{"type":"string"}}`, `[98765]`, "$"},
		{`{"contains":{"const":1},"minContains":2}`, `[98765,1]`, "$"},
		{`{"contains":{"const":1},"maxContains":1}`, `[98765,1,1]`, "$: must have at most 1 items that match contains"},
		{`{"minProperties":2}`, `{"a":98765}`, "$: must have at least 2 members"},
		{`{"maxProperties":0}`, `{"a":98765}`, "$: must have at most 0 members"},
		{`{"properties":{"a":false}}`, `{"a":98765}`, "$.a: nothing is allowed here"},
		{`{"not":{"type":"integer"}}`, `98765`, "$: must not match"},
		{`{"oneOf":[{"type":"integer"},{"minimum":1}]}`, `98765`, "$: must match exactly one schema of oneOf"},
		{`{"anyOf":[{"type":"string"},{"maximum":1}]}`, `98765`, "$: expected string, got number"},
		{`{"dependentRequired":{"a":["b"]}}`, `{"a":98765}`, "$: missing b, which go with a"},
		{`{"propertyNames":{"maxLength":2}}`, `{"abc":98765}`, "$"},
		{`{"prefixItems":[true],"items":false}`, `[1,98765]`, "$"},
		{`{"unevaluatedProperties":false}`, `{"a":98765}`, "$"},
	} {
		s, err := compile(t, c.schema)
		if err != nil {
			t.Fatal(c.schema, err)
		}
		err = s.Check([]byte(c.value))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(strings.ReplaceAll(err.Error(), ",", ""), "98765") {
			t.Errorf("%s of %s: %v, want %q", c.schema, c.value, err, c.want)
		}
	}
}

// A schema that could hang its validator is refused when it is compiled.
func TestCost(t *testing.T) {
	var fan strings.Builder
	fan.WriteString(`{"$ref":"#/$defs/a0","$defs":{`)
	for i := range 30 {
		fmt.Fprintf(&fan, `"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	fan.WriteString(`"a30":{"type":"string"}}}`)
	for name, c := range map[string]struct {
		schema string
		ok     bool
	}{
		"fan-out":       {fan.String(), false},
		"recursive":     {`{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#"}}}}`, true},
		"doubling":      {`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, false},
		"outside":       {`{"$ref":"file:///etc/passwd"}`, false},
		"dynamic":       {`{"$dynamicRef":"#a"}`, false},
		"not a schema":  {`{"type":"nonsense"}`, false},
		"large":         {`{"const":"` + strings.Repeat("x", MaxBytes) + `"}`, false},
		"enum is plain": {`{"enum":[{"$ref":"nothing"}]}`, true},
	} {
		if _, err := compile(t, c.schema); (err == nil) != c.ok {
			t.Errorf("%s: error %v, want ok %v", name, err, c.ok)
		}
	}
}

func FuzzCompileAndCheck(f *testing.F) {
	f.Add([]byte(`{"type":"object"}`), []byte(`{}`))
	f.Add([]byte(`{"properties":{"a":{"$ref":"#"}}}`), []byte(`{"a":{"a":1}}`))
	f.Fuzz(func(t *testing.T, schema, value []byte) {
		v, err := canonjson.Canonicalize(schema, canonjson.Limits{})
		if err != nil {
			return
		}
		s, err := Compile(v)
		if err != nil {
			return
		}
		if in, err := canonjson.Canonicalize(value, canonjson.Limits{}); err == nil {
			s.Check(in)
		}
	})
}

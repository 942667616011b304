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
		{`{"cents":0}`, "$.cents: "},
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

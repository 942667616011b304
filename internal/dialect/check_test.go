package dialect_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/dialect"
)

// Each vendor's rule is enforced, and names its place.
func TestChecks(t *testing.T) {
	for _, c := range []struct {
		check        func([]byte) error
		schema, want string
	}{
		{dialect.CheckOpenAIStrict, `{`, "no JSON"},
		{dialect.CheckOpenAIStrict, `[]`, "$: a schema must be an object"},
		{dialect.CheckOpenAIStrict, `{"type":"string"}`, "$: schema must have type object"},
		{dialect.CheckOpenAIStrict, contractT, "$: required is required to be an array including every key in properties. Missing `tags`"},
		{dialect.CheckOpenAIStrict, `{"type":"object","properties":{},"required":[]}`, "$: additionalProperties is required"},
		{dialect.CheckOpenAIStrict, `{"type":"object","additionalProperties":false}`, "$: object schema missing properties"},
		{dialect.CheckOpenAIStrict, `{"type":"object","additionalProperties":false,"properties":{},"required":["a"]}`, "$: required names"},
		{dialect.CheckOpenAIStrict, object(`"a":{}`)[:len(object(`"a":{}`))-1] + `,"required":["a"]}`, "$.properties.a: schema must have a type key"},
		{dialect.CheckOpenAIStrict, `{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"type":"array"}}}`, "$.properties.a: array schema missing items"},
		{dialect.CheckOpenAIStrict, `{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"type":"string","minLength":1}}}`, "$.properties.a: `minLength` is not permitted"},
		{dialect.CheckOpenAIStrict, strings.Repeat(`{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":`, 11) + `{"type":"string"}` + strings.Repeat("}}", 11), "more than 10 levels"},
		{dialect.CheckOpenAITool, `{"properties":{}}`, "$: schema must be of type object"},
		{dialect.CheckOpenAITool, `{"type":"object"}`, "$: object schema missing properties"},
		{dialect.CheckOpenAITool, `{"type":"object","properties":{},"anyOf":[{}]}`, "$: anyOf is not supported at the top"},
		{dialect.CheckOpenAITool, `{"type":"object","properties":{"a":{"type":"array"}}}`, "$.properties.a: array schema missing items"},
		{dialect.CheckOpenAITool, `{"type":"object","properties":{"a":true}}`, "$.properties.a: a schema must be an object"},
		{dialect.CheckOpenAITool, `{"type":"object","properties":{"a":{"exclusiveMinimum":true}}}`, "$.properties.a.exclusiveMinimum: is not of type number"},
		{dialect.CheckAnthropicTool, `{"type":"object","properties":{"a b":{}}}`, "$.properties: property keys should match"},
		{dialect.CheckAnthropicTool, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{}}`, "draft 2020-12"},
		{dialect.CheckOpenAITool, `{"type":"object","properties":{"a b":{}}}`, ""},
		{dialect.CheckAnthropicOutput, `{"type":"object","properties":{}}`, "'additionalProperties' must be explicitly set to false"},
		{dialect.CheckAnthropicOutput, `{"type":"integer","minimum":1}`, "$: `minimum` is not permitted"},
		{dialect.CheckAnthropicOutput, `{"type":"object","additionalProperties":false,"properties":{"a":{}}}`, "$.properties.a: schema must have a type"},
		{dialect.CheckAnthropicOutput, `{"enum":[{}]}`, "$.enum: complex types"},
		{dialect.CheckGemini, mcpTool, "$: `$schema` is not permitted"},
		{dialect.CheckGemini, `{"type":"OBJECT"}`, "$.properties: should be non-empty"},
		{dialect.CheckGemini, `{"type":"OBJECT","properties":{"a":{"type":["string","null"]}}}`, "$.properties.a.type: invalid value"},
		{dialect.CheckGemini, `{"type":"OBJECT","properties":{"a":{"type":"OBJECT","properties":{}}}}`, "$.properties.a.properties: should be non-empty"},
		{dialect.CheckGemini, `{"type":"OBJECT","properties":{"a":{"type":"ARRAY"}}}`, "$.properties.a.items: missing field"},
		{dialect.CheckGemini, `{"type":"OBJECT","properties":{"a":{"type":"INTEGER","enum":[1]}}}`, "$.properties.a.enum: only allowed for STRING"},
		{dialect.CheckGemini, `{"type":"STRING","enum":[""]}`, "$.enum[0]: cannot be empty"},
		{dialect.CheckGemini, `{"type":"STRING","format":"uri"}`, "$.format: `uri` is not supported"},
		{dialect.CheckGemini, `{"anyOf":[{"type":"STRING"}],"nullable":true}`, "$: when using any_of, it must be the only field set"},
		{dialect.CheckGemini, `{"type":"OBJECT","properties":{"a":{"type":"STRING"}},"required":["b"]}`, "$.required[0]: property is not defined"},
		{dialect.CheckGemini, `{"type":"string"}`, ""},
	} {
		err := c.check([]byte(c.schema))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.schema, err, c.want)
		}
	}
}

package dialect

import (
	"encoding/json"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// OpenAIOutput gives the schema of `json_schema` in strict mode: every object
// closed, every member required, those that were optional nullable.
func OpenAIOutput(schema canonjson.Value) (canonjson.Value, bool) {
	return outputForm(schema, &outputRules{
		nullOptional: true, depth: 10, members: 5000, values: 1000, chars: 120_000,
		keep: func(k string, v any) bool {
			switch k {
			case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems":
				return true
			case "format":
				return slices.Contains(openAIFormats, v)
			}
			return false
		},
	})
}

// AnthropicOutput gives the schema of `output_format`: every object closed, no
// bounds on numbers, texts and lists.
func AnthropicOutput(schema canonjson.Value) (canonjson.Value, bool) {
	return outputForm(schema, &outputRules{
		depth: 32, members: 5000, values: 1000, chars: 120_000, optional: 24, unions: 16,
		keep: func(k string, v any) bool { return k == "format" && slices.Contains(anthropicFormats, v) },
	})
}

var (
	openAIFormats    = []any{"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
	anthropicFormats = append([]any{"uri"}, openAIFormats...)
)

// outputRules is how one vendor takes the schema of an answer. The numbers
// bound the whole schema; 0 means that there is no such bound.
type outputRules struct {
	nullOptional bool // optional members are made nullable and required
	keep         func(keyword string, value any) bool

	depth, members, values, chars, optional, unions int
}

func outputForm(schema canonjson.Value, rules *outputRules) (canonjson.Value, bool) {
	root, ok := parse(schema)
	if !ok {
		return nil, false
	}
	root, ok = inline(root)
	if !ok {
		return nil, false
	}
	w := outputWriter{rules: rules}
	out, ok := w.schema(root, 0)
	if !ok || out["type"] != "object" || w.past() {
		return nil, false
	}
	return render(out)
}

type outputWriter struct {
	rules                                    *outputRules
	members, values, chars, optional, unions int
}

func (w *outputWriter) past() bool {
	over := func(n, limit int) bool { return limit > 0 && n > limit }
	r := w.rules
	return over(w.members, r.members) || over(w.values, r.values) || over(w.chars, r.chars) ||
		over(w.optional, r.optional) || over(w.unions, r.unions)
}

// schema gives the vendor's form, false when there is none.
func (w *outputWriter) schema(v any, depth int) (obj, bool) {
	s, ok := v.(obj)
	if !ok || depth > w.rules.depth {
		return nil, false
	}
	s = flat(s)
	for _, k := range []string{"not", "if", "dependentSchemas", "patternProperties", "prefixItems", "contains", "propertyNames", "$ref", "uniqueItems",
		"dependentRequired", "minProperties", "maxProperties", "minContains", "maxContains", "minLength", "maxLength", "pattern", "oneOf"} {
		if _, ok := s[k]; ok && !loosens[k] {
			return nil, false // there is no word for it, and leaving it out would promise what is not held
		}
	}
	out := obj{}
	if d, ok := s["description"].(string); ok && d != "" {
		out["description"] = d
	}
	if list, ok := s["anyOf"].([]any); ok {
		return w.union(out, s, list, depth)
	}
	list := types(s)
	switch {
	case len(list) == 0:
		return nil, false
	case len(list) == 1:
		return w.typed(out, s, list[0], depth)
	}
	branches := make([]any, len(list))
	for i, t := range list {
		branch := obj{}
		for k, v := range s {
			branch[k] = v
		}
		delete(branch, "description")
		if branch["type"] = t; values(s) != nil {
			branch["enum"] = slices.DeleteFunc(slices.Clone(values(s)), func(v any) bool { return !isOf(v, t) })
			delete(branch, "const")
		}
		branches[i] = branch
	}
	return w.union(out, obj{}, branches, depth)
}

// loosens are words of bounds: without them the vendor is asked for a little
// less than the schema wants.
var loosens = map[string]bool{
	"uniqueItems": true, "minLength": true, "maxLength": true, "pattern": true,
	"minProperties": true, "maxProperties": true, "dependentRequired": true,
}

func isOf(v any, typ string) bool {
	t := typeOf(v)
	if n, ok := v.(json.Number); ok && typ == "integer" {
		return !slices.ContainsFunc([]byte(n), func(c byte) bool { return c == '.' || c == 'e' })
	}
	return t == typ
}

func (w *outputWriter) union(out, s obj, list []any, depth int) (obj, bool) {
	for k := range s {
		if k != "anyOf" && !slices.Contains(notes, k) {
			return nil, false // both hold, which no vendor can say
		}
	}
	var branches []any
	for _, x := range list {
		branch, ok := w.schema(x, depth)
		if !ok {
			return nil, false
		}
		branches = append(branches, branch)
	}
	if len(branches) == 0 {
		return nil, false
	}
	w.unions++
	out["anyOf"] = branches
	return out, true
}

// typed writes a schema of one type.
func (w *outputWriter) typed(out, s obj, typ string, depth int) (obj, bool) {
	out["type"] = typ
	for k, v := range s {
		if w.rules.keep(k, v) {
			out[k] = v
		}
	}
	if list := values(s); list != nil {
		if typ == "object" || typ == "array" || len(list) == 0 {
			return nil, false
		}
		for _, v := range list {
			if !isOf(v, typ) {
				return nil, false
			}
			if text, ok := v.(string); ok {
				w.chars += len(text)
			}
		}
		w.values += len(list)
		out["enum"] = list
		return out, true
	}
	switch typ {
	case "array":
		items, ok := w.schema(s["items"], depth+1)
		if !ok {
			return nil, false
		}
		out["items"] = items
	case "object":
		return out, w.object(out, s, depth)
	}
	return out, true
}

func (w *outputWriter) object(out, s obj, depth int) bool {
	if s["additionalProperties"] != false {
		return false
	}
	props, _ := s["properties"].(obj)
	need := strs(s["required"])
	for _, name := range need {
		if _, ok := props[name]; !ok {
			return false
		}
	}
	kept, required := obj{}, []any{}
	for _, name := range names(props) {
		p, ok := w.schema(props[name], depth+1)
		if !ok {
			return false
		}
		w.members++
		w.chars += len(name)
		switch {
		case slices.Contains(need, name):
			required = append(required, name)
		case w.rules.nullOptional:
			p = nullable(p)
			required = append(required, name)
		default:
			w.optional++
		}
		kept[name] = p
	}
	out["properties"], out["required"], out["additionalProperties"] = kept, required, false
	return true
}

// nullable gives a schema that takes null too.
func nullable(s obj) obj {
	null := obj{"type": "null"}
	if list, ok := s["anyOf"].([]any); ok {
		if slices.ContainsFunc(list, func(x any) bool { return equal(x, null) }) {
			return s
		}
		s["anyOf"] = append(slices.Clone(list), null)
		return s
	}
	_, listed := s["enum"]
	switch t := s["type"].(string); {
	case t == "null":
		return s
	case t == "object" || t == "array" || listed:
		out := obj{"anyOf": []any{s, null}}
		if d, ok := s["description"]; ok {
			out["description"] = d
			delete(s, "description")
		}
		return out
	default:
		s["type"] = []any{t, "null"}
		return s
	}
}

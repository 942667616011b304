package dialect

import (
	"encoding/json"
	"regexp"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// OpenAITool gives the `parameters` of a function that is not strict: an object
// at the top without combinations, arrays with items, objects with properties,
// no boolean schemas. It always succeeds.
func OpenAITool(schema canonjson.Value) (canonjson.Value, bool) {
	return toolForm(schema, nil), true
}

// AnthropicTool gives the `input_schema` of a tool: an object at the top
// without combinations, in the words of draft 2020-12, with member names that
// the vendor takes at the top. It always succeeds.
func AnthropicTool(schema canonjson.Value) (canonjson.Value, bool) {
	return toolForm(schema, anthropicKey), true
}

var anthropicKey = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

const anyObject = `{"properties":{},"type":"object"}`

func toolForm(schema canonjson.Value, key *regexp.Regexp) canonjson.Value {
	root, ok := parse(schema)
	if !ok {
		return canonjson.Value(anyObject)
	}
	out := top(tidy(root).(obj), key)
	if needsInline(root) || dangling(out) {
		whole, _ := inline(root)
		out = top(tidy(whole).(obj), key)
	}
	if form, ok := render(out); ok {
		return form
	}
	return canonjson.Value(anyObject)
}

var combinations = []string{"allOf", "anyOf", "oneOf"}

// needsInline says that the top is made of other schemas.
func needsInline(root obj) bool {
	if _, ok := root["$ref"]; ok {
		return true
	}
	return slices.ContainsFunc(combinations, func(k string) bool { _, ok := root[k]; return ok })
}

// top makes the outermost schema the plain object that vendors demand.
func top(s obj, key *regexp.Regexp) obj {
	s = flat(s)
	for _, k := range []string{"anyOf", "oneOf"} {
		if list, ok := s[k].([]any); ok {
			s = oneOfThem(s, k, list)
		}
	}
	out := obj{}
	for k, v := range s {
		switch k {
		case "anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "dependentSchemas", "dependencies", "$ref":
		default:
			out[k] = v
		}
	}
	if t := types(out); t != nil && !slices.Contains(t, "object") {
		return obj{"type": "object", "properties": obj{}}
	}
	out["type"] = "object"
	props, ok := out["properties"].(obj)
	if !ok {
		props = obj{}
	}
	if key != nil {
		kept := obj{}
		for name, p := range props {
			if key.MatchString(name) {
				kept[name] = p
			}
		}
		if len(kept) < len(props) { // the others may still be given
			props = kept
			delete(out, "additionalProperties")
			delete(out, "unevaluatedProperties")
			out["required"] = anys(slices.DeleteFunc(strs(out["required"]), func(name string) bool { return !key.MatchString(name) }))
		}
	}
	out["properties"] = props
	if len(strs(out["required"])) == 0 {
		delete(out, "required")
	}
	return out
}

// oneOfThem folds alternatives into one object: their members together,
// required where all of them say so. An alternative that does not name a
// member of another is taken not to mean it.
func oneOfThem(s obj, keyword string, list []any) obj {
	props, required, first := obj{}, []string(nil), true
	for _, x := range list {
		branch, ok := x.(obj)
		if !ok {
			continue
		}
		branch = flat(branch)
		for _, k := range []string{"anyOf", "oneOf"} {
			if sub, ok := branch[k].([]any); ok {
				branch = oneOfThem(branch, k, sub)
			}
		}
		if t := types(branch); t != nil && !slices.Contains(t, "object") {
			continue // arguments are objects
		}
		members, _ := branch["properties"].(obj)
		for _, name := range names(members) {
			props[name] = either(props[name], members[name])
		}
		need := strs(branch["required"])
		if first {
			required, first = need, false
		} else {
			required = slices.DeleteFunc(required, func(name string) bool { return !slices.Contains(need, name) })
		}
	}
	out := make(obj, len(s))
	for k, v := range s {
		if k != keyword {
			out[k] = v
		}
	}
	open := s["additionalProperties"] != false
	own, _ := s["properties"].(obj)
	all := obj{}
	if open { // a member that the whole forbids is no alternative's
		for name, p := range props {
			all[name] = p
		}
	}
	for name, p := range own {
		all[name] = p
	}
	out["properties"] = all
	if need := addAll(strs(s["required"]), required); len(need) > 0 {
		out["required"] = anys(need)
	}
	// A schema for the other members was not meant for those of the alternatives.
	if open {
		delete(out, "additionalProperties")
	}
	delete(out, "unevaluatedProperties")
	return out
}

func either(a, b any) any {
	if a == nil || equal(a, b) {
		return b
	}
	if o, ok := a.(obj); ok && len(o) == 1 {
		if list, ok := o["anyOf"].([]any); ok {
			for _, x := range list {
				if equal(x, b) {
					return a
				}
			}
			return obj{"anyOf": append(slices.Clone(list), b)}
		}
	}
	return obj{"anyOf": []any{a, b}}
}

// tidy puts a schema into the common words of draft 2020-12: no marks of the
// document, no older forms, no boolean schemas save where they close an object.
func tidy(v any) any {
	s, ok := v.(obj)
	if !ok {
		if v == false {
			return false
		}
		return obj{}
	}
	s = modern(s)
	closed := map[string]any{}
	for _, k := range []string{"additionalProperties", "unevaluatedProperties"} {
		if b, ok := s[k].(bool); ok {
			closed[k] = b
		}
	}
	s = each(s, tidy)
	for k, v := range closed {
		s[k] = v
	}
	for _, k := range oneSchema {
		if s[k] == false && closed[k] != false {
			delete(s, k)
		}
	}
	for _, k := range manySchema {
		if list, ok := s[k].([]any); ok {
			if list = slices.DeleteFunc(list, func(x any) bool { return x == false }); len(list) == 0 || k == "prefixItems" && len(list) < len(s[k].([]any)) {
				delete(s, k)
			} else {
				s[k] = list
			}
		}
	}
	for _, k := range mapSchema {
		if m, ok := s[k].(obj); ok {
			for name, x := range m {
				if x == false {
					delete(m, name)
				}
			}
		}
	}
	t := types(s)
	if slices.Contains(t, "array") && s["items"] == nil && s["type"] != nil {
		s["items"] = obj{}
	}
	if _, ok := s["properties"].(obj); !ok && slices.Contains(t, "object") && s["type"] != nil {
		s["properties"] = obj{}
	}
	return s
}

// modern replaces the words of older drafts.
func modern(s obj) obj {
	out := make(obj, len(s))
	for k, v := range s {
		switch k {
		case "$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "nullable":
		default:
			out[k] = v
		}
	}
	if list, ok := out["items"].([]any); ok {
		delete(out, "items")
		if len(list) > 0 {
			out["prefixItems"] = list
		}
		if rest, ok := out["additionalItems"]; ok && rest != false {
			out["items"] = rest
		}
	}
	delete(out, "additionalItems")
	for exclusive, inclusive := range map[string]string{"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"} {
		if b, ok := out[exclusive].(bool); ok {
			delete(out, exclusive)
			if n, ok := out[inclusive].(json.Number); b && ok {
				out[exclusive] = n
				delete(out, inclusive)
			}
		}
	}
	if _, ok := out["required"].([]any); !ok || len(strs(out["required"])) == 0 {
		delete(out, "required")
	}
	if list, ok := out["enum"].([]any); ok && len(list) == 0 {
		delete(out, "enum")
	}
	if t := types(obj{"type": out["type"]}); len(t) == 0 {
		delete(out, "type")
	} else if _, isList := out["type"].([]any); isList {
		if out["type"] = anys(t); len(t) == 1 {
			out["type"] = t[0]
		}
	}
	return out
}

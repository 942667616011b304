package dialect

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// GeminiTool gives the `parameters` of a function declaration: the vendor's
// own Schema, without references, type lists, additionalProperties and
// constants; allowed values that are no texts are told in the description. It
// is false when there are no parameters to declare: the field is then left out.
func GeminiTool(schema canonjson.Value) (canonjson.Value, bool) {
	root, ok := parse(schema)
	if !ok {
		return nil, false
	}
	whole, _ := inline(root)
	g := gemini{}
	out := g.object(obj{}, top(tidy(whole).(obj), nil), 0)
	if out["properties"] == nil {
		return nil, false
	}
	form, ok := render(out)
	return form, ok
}

// GeminiOutput gives the `responseSchema` of an answer. Members that are not
// required may be null or absent. An object without members has no form.
func GeminiOutput(schema canonjson.Value) (canonjson.Value, bool) {
	root, ok := parse(schema)
	if !ok {
		return nil, false
	}
	if root, ok = inline(root); !ok || root["type"] != "object" {
		return nil, false
	}
	g := gemini{exact: true}
	out := g.schema(root, 0)
	if g.lost || out["properties"] == nil {
		return nil, false
	}
	return render(out)
}

const geminiDepth = 24

type gemini struct {
	exact bool // what cannot be said is lost, not loosened
	lost  bool
}

func (g *gemini) lose() { g.lost = true }

// schema gives the vendor's Schema.
func (g *gemini) schema(v any, depth int) obj {
	s, ok := v.(obj)
	if !ok || depth > geminiDepth {
		g.lose()
		return obj{"type": "STRING"}
	}
	s = flat(s)
	for _, k := range []string{"not", "if", "dependentSchemas", "patternProperties", "prefixItems", "contains", "propertyNames", "$ref"} {
		if _, ok := s[k]; ok {
			g.lose()
		}
	}
	out := obj{}
	for _, k := range []string{"title", "description"} {
		if text, ok := s[k].(string); ok && text != "" {
			out[k] = text
		}
	}
	for _, k := range []string{"anyOf", "oneOf"} {
		if list, ok := s[k].([]any); ok && len(list) > 0 {
			return g.union(out, s, k, list, depth)
		}
	}
	list := slices.Clone(types(s))
	if s["type"] == nil && list == nil {
		list = guessed(s)
	}
	null := slices.Contains(list, "null")
	list = slices.DeleteFunc(list, func(t string) bool { return t == "null" })
	if len(list) == 2 && slices.Contains(list, "integer") && slices.Contains(list, "number") {
		list = []string{"number"}
	}
	switch {
	case len(list) == 0 && null:
		out["type"] = "STRING" // of which only null is meant
		out["enum"] = []any{"null"}
	case len(list) == 0:
		g.lose()
		return g.anything(out)
	case len(list) == 1:
		out = g.typed(out, s, list[0], depth)
	default:
		branches := []any{}
		for _, t := range list {
			branches = append(branches, g.typed(obj{}, s, t, depth))
		}
		return g.alternatives(out, branches, null)
	}
	if null {
		out["nullable"] = true
	}
	return out
}

// guessed gives the type that the keywords of an untyped schema speak of.
func guessed(s obj) []string {
	for _, k := range []string{"properties", "required", "additionalProperties", "patternProperties"} {
		if _, ok := s[k]; ok {
			return []string{"object"}
		}
	}
	for _, k := range []string{"items", "prefixItems", "minItems", "maxItems"} {
		if _, ok := s[k]; ok {
			return []string{"array"}
		}
	}
	return nil
}

// union writes alternatives. What stands beside them is told to each.
func (g *gemini) union(out, s obj, keyword string, list []any, depth int) obj {
	beside := obj{}
	for k, v := range s {
		if k != keyword && !slices.Contains(notes, k) {
			beside[k] = v
		}
	}
	if keyword == "oneOf" || len(beside) > 0 {
		g.lose()
	}
	null, branches := false, []any{}
	for _, x := range list {
		branch, ok := x.(obj)
		if !ok {
			if x == true {
				g.lose()
			}
			continue
		}
		if t := types(branch); len(t) == 1 && t[0] == "null" {
			null = true
			continue
		}
		if len(branch) == 0 && len(beside) == 0 {
			g.lose()
			return g.anything(out)
		}
		branches = append(branches, g.schema(merge(branch, beside), depth+1))
	}
	if len(branches) == 0 {
		return g.schema(merge(beside, obj{"type": []any{"string", "null"}}), depth+1)
	}
	return g.alternatives(out, branches, null)
}

// alternatives joins written schemas. The vendor takes anyOf only alone, so
// that notes and nullable go into the branches.
func (g *gemini) alternatives(out obj, branches []any, null bool) obj {
	var list []any
	for _, x := range branches {
		if b := x.(obj); len(b) == 1 && b["anyOf"] != nil {
			list = append(list, b["anyOf"].([]any)...) // one level is enough
		} else {
			list = append(list, b)
		}
	}
	for i, x := range list {
		b := x.(obj)
		if null {
			b["nullable"] = true
		}
		if i == 0 {
			note(b, text(out["description"]))
		}
	}
	if len(list) == 1 {
		return list[0].(obj)
	}
	return obj{"anyOf": list}
}

// anything takes what a schema without words takes, as far as there are words.
func (g *gemini) anything(out obj) obj {
	list := []any{obj{"type": "STRING"}, obj{"type": "NUMBER"}, obj{"type": "BOOLEAN"}, obj{"type": "OBJECT"},
		obj{"type": "ARRAY", "items": obj{"anyOf": []any{obj{"type": "STRING"}, obj{"type": "NUMBER"}, obj{"type": "BOOLEAN"}, obj{"type": "OBJECT"}}}}}
	return g.alternatives(out, list, true)
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// note adds a sentence to a description.
func note(s obj, sentence string) {
	if sentence == "" {
		return
	}
	if old := text(s["description"]); old != "" {
		sentence = old + " " + sentence
	}
	s["description"] = sentence
}

// typed writes a schema of one type.
func (g *gemini) typed(out, s obj, typ string, depth int) obj {
	out["type"] = strings.ToUpper(typ)
	g.values(out, s, typ)
	var keep []string
	switch typ {
	case "string":
		keep = []string{"minLength", "maxLength"}
		if s["format"] == "date-time" && out["enum"] == nil {
			out["format"] = "date-time"
		}
	case "number", "integer":
		keep = []string{"minimum", "maximum"}
	case "array":
		keep = []string{"minItems", "maxItems"}
		out["items"] = g.items(s, depth)
	case "object":
		return g.object(out, s, depth)
	}
	for _, k := range keep {
		if n, ok := s[k].(json.Number); ok {
			out[k] = n
		}
	}
	return out
}

// values writes the allowed values of a type. The vendor has an enum of texts,
// none of them empty; other values are told in words.
func (g *gemini) values(out, s obj, typ string) {
	list := values(s)
	if list == nil {
		return
	}
	var mine []any
	for _, v := range list {
		switch {
		case v == nil && typ == "string":
			out["nullable"] = true
		case isOf(v, typ):
			mine = append(mine, v)
		}
	}
	if typ == "string" && len(mine) > 0 && !slices.Contains(mine, any("")) {
		out["enum"] = anys(strs(mine))
		return
	}
	g.lose()
	if told := string(appendValue(nil, mine)); len(mine) > 0 && len(told) < 2000 {
		note(out, "One of: "+told[1:len(told)-1]+".")
	}
}

func (g *gemini) items(s obj, depth int) obj {
	if list, ok := s["prefixItems"].([]any); ok && len(list) > 0 {
		g.lose()
		var branches []any
		for _, x := range list {
			if b := g.schema(x, depth+1); !slices.ContainsFunc(branches, func(y any) bool { return equal(y, b) }) {
				branches = append(branches, b)
			}
		}
		if rest, ok := s["items"].(obj); ok && (len(rest) > 0 || len(branches) == 0) {
			branches = append(branches, g.schema(rest, depth+1))
		}
		return g.alternatives(obj{}, branches, false)
	}
	if items, ok := s["items"].(obj); ok {
		return g.schema(items, depth+1)
	}
	g.lose()
	return g.anything(obj{})
}

func (g *gemini) object(out, s obj, depth int) obj {
	out["type"] = "OBJECT"
	if d := text(s["description"]); d != "" && out["description"] == nil {
		out["description"] = d
	}
	if s["additionalProperties"] != false {
		g.lose()
		if more, ok := s["additionalProperties"].(obj); ok && len(more) > 0 {
			if told := string(appendValue(nil, more)); len(told) < 1000 {
				note(out, "Further members of any name: "+told+".")
			}
		}
	}
	members, _ := s["properties"].(obj)
	props := obj{}
	for _, name := range names(members) {
		props[name] = g.schema(members[name], depth+1)
	}
	var required []string
	need := strs(s["required"])
	for _, name := range names(props) {
		if slices.Contains(need, name) {
			required = append(required, name)
		} else if p := props[name].(obj); g.exact && p["anyOf"] == nil {
			p["nullable"] = true
		}
	}
	if len(required) < len(need) {
		g.lose()
	}
	if len(props) == 0 {
		return out // the vendor refuses an empty list of members
	}
	out["properties"] = props
	if len(required) > 0 {
		out["required"] = anys(required)
	}
	return out
}

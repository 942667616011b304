package dialect

import (
	"slices"
	"strings"
)

// The keywords whose value is a schema, a list of them, or an object of them.
// Everything else in a schema is data.
var (
	oneSchema  = []string{"items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
	manySchema = []string{"anyOf", "oneOf", "allOf", "prefixItems", "items"}
	mapSchema  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
	notes      = []string{"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)

// each gives a copy of a schema with fn's result for every schema right below it.
func each(s obj, fn func(any) any) obj {
	out := make(obj, len(s))
	for k, v := range s {
		switch sub := v.(type) {
		case []any:
			if slices.Contains(manySchema, k) {
				list := make([]any, len(sub))
				for i, x := range sub {
					list[i] = fn(x)
				}
				v = list
			}
		case obj:
			switch {
			case slices.Contains(mapSchema, k):
				kids := make(obj, len(sub))
				for _, name := range names(sub) {
					kids[name] = fn(sub[name])
				}
				v = kids
			case slices.Contains(oneSchema, k):
				v = fn(sub)
			}
		case bool:
			if slices.Contains(oneSchema, k) {
				v = fn(sub)
			}
		}
		out[k] = v
	}
	return out
}

// inline writes every reference out. Where a schema refers to itself, or the
// whole grows past the bound, it is cut: the place takes any value of the
// target's type. The bool says that nothing was cut.
func inline(root obj) (obj, bool) {
	e := expander{root: root, open: map[string]bool{}}
	out, ok := e.schema(root).(obj)
	if !ok {
		return obj{}, false
	}
	delete(out, "$defs")
	delete(out, "definitions")
	return out, !e.cut
}

type expander struct {
	root  obj
	open  map[string]bool
	nodes int
	depth int
	cut   bool
}

func (e *expander) schema(v any) any {
	s, ok := v.(obj)
	if !ok {
		return v
	}
	e.nodes++
	e.depth++
	defer func() { e.depth-- }()
	if e.nodes > maxNodes || e.depth > maxLevels {
		e.cut = true
		return stump(s)
	}
	ref, isRef := s["$ref"].(string)
	rest := make(obj, len(s))
	for k, v := range s {
		if k != "$ref" && k != "$defs" && k != "definitions" {
			rest[k] = v
		}
	}
	out := eachSorted(rest, e.schema)
	if !isRef {
		return out
	}
	target, found := resolve(e.root, ref)
	if !found || e.open[ref] {
		e.cut = true
		t, _ := target.(obj)
		return merge(stump(t), out)
	}
	e.open[ref] = true
	defer delete(e.open, ref)
	full, ok := e.schema(target).(obj)
	if !ok {
		return target // true or false
	}
	return merge(full, out)
}

// eachSorted is each in an order that does not depend on the map: the bound
// must cut the same schema at the same place each time.
func eachSorted(s obj, fn func(any) any) obj {
	out := make(obj, len(s))
	for _, k := range names(s) {
		out[k] = each(obj{k: s[k]}, fn)[k]
	}
	return out
}

// stump is what stays of a schema that is cut.
func stump(s obj) obj {
	out := obj{}
	for _, k := range []string{"type", "description", "title"} {
		if v, ok := s[k]; ok {
			out[k] = v
		}
	}
	return out
}

// resolve follows a local JSON pointer through objects and lists (RFC 6901).
func resolve(root obj, ref string) (any, bool) {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	var at any = root
	if pointer == "" {
		return at, true
	}
	for _, tok := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		tok = strings.NewReplacer("~1", "/", "~0", "~").Replace(tok)
		o, ok := at.(obj)
		if !ok {
			return nil, false
		}
		if at, ok = o[tok]; !ok {
			return nil, false
		}
	}
	return at, true
}

// dangling says that some reference has no target.
func dangling(root obj) bool {
	found := false
	var walk func(any) any
	walk = func(v any) any {
		s, ok := v.(obj)
		if !ok {
			return v
		}
		if ref, ok := s["$ref"].(string); ok {
			if _, ok := resolve(root, ref); !ok {
				found = true
			}
		}
		return each(s, walk)
	}
	walk(root)
	return found
}

// merge gives a schema that takes at least what both take: where they speak of
// the same thing, a's word stays, but b's notes stand nearer to the place and win.
func merge(a, b obj) obj {
	out := make(obj, len(a)+len(b))
	for k, v := range a {
		out[k] = v
	}
	for _, k := range names(b) {
		v := b[k]
		old, both := out[k]
		switch {
		case !both || slices.Contains(notes, k):
			out[k] = v
		case k == "properties":
			out[k] = union(old, v)
		case k == "required":
			out[k] = anys(addAll(strs(old), strs(v)))
		}
	}
	return out
}

func union(a, b any) any {
	x, ok := a.(obj)
	y, ok2 := b.(obj)
	if !ok || !ok2 {
		return a
	}
	out := make(obj, len(x)+len(y))
	for k, v := range y {
		out[k] = v
	}
	for k, v := range x {
		out[k] = v
	}
	return out
}

func addAll(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// flat folds allOf into the schema itself.
func flat(s obj) obj {
	list, ok := s["allOf"].([]any)
	if !ok {
		return s
	}
	out := make(obj, len(s))
	for k, v := range s {
		if k != "allOf" {
			out[k] = v
		}
	}
	for _, x := range list {
		if part, ok := x.(obj); ok {
			part = flat(part)
			kept := out
			out = merge(out, part)
			for _, k := range notes { // the whole's notes, not a part's
				if v, ok := kept[k]; ok {
					out[k] = v
				}
			}
		}
	}
	return out
}

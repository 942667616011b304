package schema

import (
	"errors"
	"fmt"
	"strings"
)

// In-place applicators check the same value again; a reference through one of
// them multiplies the work.
var inPlace = map[string]bool{
	"allOf": true, "anyOf": true, "oneOf": true, "not": true, "if": true, "then": true, "else": true,
	"dependentSchemas": true, "dependencies": true,
}

var errTooCostly = fmt.Errorf("checking the schema could take too long: more than %d nodes with its references written out", MaxCost)

// boundCost walks the schema with every local reference written out, counting
// nodes. A recursive schema is fine while each value is checked once: together
// with in-place applicators its cost could grow with every level, so that is refused.
func boundCost(doc any) error {
	w := &walker{doc: doc, open: map[string]bool{}}
	if err := w.walk(doc); err != nil {
		return err
	}
	if w.recursive && w.applies {
		return errors.New("a recursive schema may not use allOf, anyOf, oneOf, not, if or dependentSchemas")
	}
	return nil
}

type walker struct {
	doc       any
	open      map[string]bool // references being written out
	cost      int
	depth     int
	recursive bool
	applies   bool
}

func (w *walker) walk(v any) error {
	if w.cost++; w.cost > MaxCost {
		return errTooCostly
	}
	if w.depth++; w.depth > 256 {
		return errTooCostly
	}
	defer func() { w.depth-- }()
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if err := w.walk(x); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, x := range v {
			switch {
			case k == "$dynamicRef", k == "$recursiveRef":
				return errors.New("the keyword " + k + " is not supported")
			case k == "$ref":
				if ref, ok := x.(string); ok {
					if err := w.ref(ref); err != nil {
						return err
					}
				}
				continue
			case k == "enum", k == "const", k == "default", k == "examples":
				continue
			case inPlace[k]:
				w.applies = true
			}
			if err := w.walk(x); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walker) ref(ref string) error {
	if w.open[ref] {
		w.recursive = true
		return nil
	}
	target, ok := resolve(w.doc, ref)
	if !ok { // an anchor, an array element, another document: not followed here, so not taken
		return fmt.Errorf("the reference %.100q is not supported: only #/… through objects", ref)
	}
	w.open[ref] = true
	defer delete(w.open, ref)
	return w.walk(target)
}

// resolve follows a local JSON pointer through objects (RFC 6901).
func resolve(doc any, ref string) (any, bool) {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	if pointer == "" {
		return doc, true
	}
	for _, tok := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		tok = strings.NewReplacer("~1", "/", "~0", "~").Replace(tok)
		m, ok := doc.(map[string]any)
		if !ok {
			return nil, false
		}
		if doc, ok = m[tok]; !ok {
			return nil, false
		}
	}
	return doc, true
}

package schema

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// describe gives the first leaf of the tree of causes: place and rule.
func describe(ve *jsonschema.ValidationError) string {
	for len(ve.Causes) > 0 {
		ve = ve.Causes[0]
	}
	path := "$"
	for _, p := range ve.InstanceLocation {
		path += "." + p
	}
	return canonjson.CutRunes(path, 200) + ": " + canonjson.CutRunes(rule(ve.ErrorKind), 300)
}

// rule says which rule was broken, from the schema alone: the validator's own
// texts repeat the value. A rule without a text of its own is named.
func rule(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "expected " + strings.Join(k.Want, " or ") + ", got " + k.Got
	case *kind.Required:
		return "missing " + strings.Join(k.Missing, ", ")
	case *kind.AdditionalProperties:
		return "unknown field " + strings.Join(k.Properties, ", ")
	case *kind.DependentRequired:
		return "missing " + strings.Join(k.Missing, ", ") + ", which go with " + k.Prop
	case *kind.Dependency:
		return "missing " + strings.Join(k.Missing, ", ") + ", which go with " + k.Prop
	case *kind.Enum:
		return "must be one of " + text(k.Want)
	case *kind.Const:
		return "must be " + text(k.Want)
	case *kind.Format:
		return "must have the format " + k.Want
	case *kind.Pattern:
		return "must match the pattern " + k.Want
	case *kind.FalseSchema:
		return "nothing is allowed here"
	case *kind.UniqueItems:
		return "has items that are equal"
	case *kind.Not:
		return "must not match the schema under not"
	case *kind.OneOf:
		return "must match exactly one schema of oneOf"
	}
	if text := bound(k); text != "" {
		return text
	}
	// Two kinds end in a name of the schema or of the value; the keyword is first.
	if path := k.KeywordPath(); len(path) > 0 {
		return "breaks the rule " + path[0]
	}
	return "does not match the schema"
}

// bound says which limit of a size or a number was passed; empty: k is no limit.
func bound(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d members", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d members", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.MinContains:
		return fmt.Sprintf("must have at least %d items that match contains", k.Want)
	case *kind.MaxContains:
		return fmt.Sprintf("must have at most %d items that match contains", k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *kind.Minimum:
		return "must be at least " + number(k.Want)
	case *kind.Maximum:
		return "must be at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be greater than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + number(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + number(k.Want)
	}
	return ""
}

func number(r *big.Rat) string { return new(big.Float).SetRat(r).Text('g', -1) }

// text is a value of the schema as JSON.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "what the schema says"
	}
	return string(b)
}

// Package schema checks the inputs and outputs of tools against their JSON
// Schemas (draft 2020-12 unless the schema says otherwise). Schemas are
// hostile input: nothing is loaded from outside, and a schema whose checking
// could take time out of proportion is refused.
package schema

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Bounds of a schema.
const (
	MaxBytes = 64 << 10
	MaxCost  = 10_000 // schema nodes with every reference written out
)

// Schema is a compiled JSON Schema, safe for concurrent use.
type Schema struct{ s *jsonschema.Schema }

// noLoader refuses every reference to the outside.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("references to other documents are not followed")
}

// Compile reads a schema.
func Compile(raw canonjson.Value) (*Schema, error) {
	if len(raw) > MaxBytes {
		return nil, fmt.Errorf("the schema holds more than %d bytes", MaxBytes)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("the schema is no JSON: %w", err)
	}
	if err := boundCost(doc); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const name = "mem:schema.json"
	if err := c.AddResource(name, doc); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	s, err := c.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	return &Schema{s}, nil
}

// Check validates a JSON text. Its error names the first place and rule, in
// text that a model may read; the checked values are not repeated in it.
func (s *Schema) Check(raw []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return errors.New("$: not one JSON value")
	}
	err = s.s.Validate(v)
	var ve *jsonschema.ValidationError
	if errors.As(err, &ve) {
		return errors.New(describe(ve))
	}
	return err
}

var printer = message.NewPrinter(language.English)

// describe gives the first leaf of the tree of causes: place and rule.
func describe(ve *jsonschema.ValidationError) string {
	for len(ve.Causes) > 0 {
		ve = ve.Causes[0]
	}
	path := "$"
	for _, p := range ve.InstanceLocation {
		path += "." + p
	}
	var text string
	switch k := ve.ErrorKind.(type) {
	case *kind.Type:
		text = "expected " + strings.Join(k.Want, " or ") + ", got " + k.Got
	case *kind.Required:
		text = "missing " + strings.Join(k.Missing, ", ")
	case *kind.AdditionalProperties:
		text = "unknown field " + strings.Join(k.Properties, ", ")
	default:
		text = k.LocalizedString(printer)
	}
	return canonjson.CutRunes(path, 200) + ": " + canonjson.CutRunes(text, 300)
}

// Package schema checks the inputs and outputs of tools against their JSON
// Schemas (draft 2020-12 unless the schema says otherwise). Schemas are
// hostile input: nothing is loaded from outside, and a schema whose checking
// could take time out of proportion is refused.
package schema

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"

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

// Check validates a JSON text. Its error names the first place and rule, with
// what the schema wants there, in text that a model may read. Of the checked
// JSON it holds names of members and types, never a value.
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

package openapi

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
)

// examplesFile holds requests and answers as the handlers took and gave them,
// by operation. Made by go test ./internal/httpapi/openapi -run Examples -rewrite.
//
//go:embed examples.json
var examplesFile []byte

// Example is one call of an operation.
type Example struct {
	Parameters map[string]string `json:"parameters,omitempty"` // of path, query and header
	Request    json.RawMessage   `json:"request,omitempty"`
	Status     int               `json:"status"`
	Media      string            `json:"media,omitempty"`
	Body       json.RawMessage   `json:"body,omitempty"` // of a text: a string
}

func examples() (map[string][]Example, error) {
	var all map[string][]Example
	if err := json.Unmarshal(examplesFile, &all); err != nil {
		return nil, fmt.Errorf("examples: %w", err)
	}
	return all, nil
}

// addExamples puts the examples of an operation into its object: parameters and
// body of its first call, and for each status the first answer.
func addExamples(op object, list []Example) {
	for i, e := range list {
		if i == 0 {
			params, _ := op["parameters"].([]any)
			for _, p := range params {
				p := p.(object)
				if v, ok := e.Parameters[p["name"].(string)]; ok {
					p["example"] = typed(p, v)
				}
			}
		}
		if body, ok := op["requestBody"].(object); ok && e.Request != nil {
			setExample(body["content"].(object), "application/json", e.Request)
		}
		answers := op["responses"].(object)
		answer, ok := answers[strconv.Itoa(e.Status)].(object)
		if !ok {
			answer = answers["default"].(object)
		}
		if content, ok := answer["content"].(object); ok && e.Body != nil {
			setExample(content, e.Media, e.Body)
		}
	}
}

// typed is the value of a parameter as its schema has it.
func typed(p object, v string) any {
	if p["schema"].(object)["type"] == "integer" {
		return json.Number(v)
	}
	return v
}

func setExample(content object, media string, body json.RawMessage) {
	m, ok := content[media].(object)
	if !ok || m["example"] != nil {
		return
	}
	m["example"] = body
}

package httpapi_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// Every schema of the document is a JSON Schema, every operation is in the mux,
// and every pattern of the mux is in the document, for both come from the table.
func TestDocument(t *testing.T) {
	w := apitest.New(t)
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			OperationID string         `json:"operationId"`
			Responses   map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	raw := w.Do("GET", "/openapi.json", "", nil).Want(200)
	raw.Into(&doc)
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi %s", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		for method, op := range item {
			if ids[op.OperationID] || op.OperationID == "" {
				t.Errorf("operationId %q is given twice", op.OperationID)
			}
			ids[op.OperationID] = true
			req, err := http.NewRequest(strings.ToUpper(method), strings.NewReplacer("{", "", "}", "").Replace(path), nil)
			if err != nil {
				t.Fatal(err)
			}
			if pattern := w.Handler.Pattern(req); pattern != strings.ToUpper(method)+" "+path {
				t.Errorf("%s %s is served by %q", method, path, pattern)
			}
		}
	}
	if len(ids) != len(httpapi.Operations()) {
		t.Errorf("%d operations of %d routes", len(ids), len(httpapi.Operations()))
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw.Body))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("d.json", v); err != nil {
		t.Fatal(err)
	}
	for name := range doc.Components.Schemas {
		if _, err := c.Compile("d.json#/components/schemas/" + name); err != nil {
			t.Error(err)
		}
	}
}

// What is not in the contents would stand before all else on the reference page, and
// what nobody answers for would not stand there at all.
func TestContents(t *testing.T) {
	var ids []string
	for _, op := range httpapi.Operations() {
		ids = append(ids, op.ID)
	}
	if !slices.Equal(ids, httpapi.Contents) {
		t.Errorf("the operations are\n%v, the contents\n%v", ids, httpapi.Contents)
	}
}

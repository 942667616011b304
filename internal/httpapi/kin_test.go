package httpapi

import (
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// The document is OpenAPI 3.1 in the eyes of another implementation too.
func TestDocumentIsOpenAPI(t *testing.T) {
	raw, err := document(table(), "test")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("version %s", doc.OpenAPI)
	}
	for _, rt := range table() {
		item := doc.Paths.Value(rt.path)
		if item == nil || item.GetOperation(rt.method) == nil || item.GetOperation(rt.method).OperationID != rt.id {
			t.Errorf("%s %s is not in the document", rt.method, rt.path)
		}
	}
}

package openapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// The document is OpenAPI 3.1 in the eyes of another implementation too.
func TestDocumentIsOpenAPI(t *testing.T) {
	raw, err := openapi.Document(httpapi.Operations(), "test")
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
	for _, rt := range httpapi.Operations() {
		item := doc.Paths.Value(rt.Path)
		if item == nil || item.GetOperation(rt.Method) == nil || item.GetOperation(rt.Method).OperationID != rt.ID {
			t.Errorf("%s %s is not in the document", rt.Method, rt.Path)
		}
	}
}

// What is described is there.
func TestDescriptionsAreOfMembers(t *testing.T) {
	raw, err := openapi.Document(httpapi.Operations(), "test")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for key := range openapi.Descriptions {
		name, member, ok := strings.Cut(key, ".")
		if s, there := doc.Components.Schemas[name]; ok && there {
			if _, there := s.Properties[member]; !there {
				t.Errorf("%s is described and not there", key)
			}
		}
	}
}

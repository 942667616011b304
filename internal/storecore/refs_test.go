package storecore

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// namedRefs are the members that refer to a blob by a string of their own. All
// others that do are of the type Content.
var namedRefs = map[string]event.BlobKind{
	"RunCreated.Toolset": event.BlobToolset, "IdempotencyKey.Contract": event.BlobContract,
	"TextEnded.State": event.BlobSealed, "ToolRequested.State": event.BlobSealed, "ToolCompleted.State": event.BlobSealed, "ToolFailed.State": event.BlobSealed,
	"ReasoningEnded.State": event.BlobSealed, "ToolCompleted.OutputPaths": event.BlobContent,
	"DeliveryEnqueued.Body": event.BlobDelivery, "DeliveryEnqueued.Address": event.BlobDelivery, "DeliveryAttemptFailed.Excerpt": event.BlobDelivery,
}

// filled gives every string of v a value of its own and notes those that are
// references. kind is that of v, if it is one.
func filled(v reflect.Value, path string, kind event.BlobKind, want map[string]event.BlobKind) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), path, kind, want)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[canonjson.Value]() {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			filled(v.Index(i), fmt.Sprint(path, "/", i), kind, want)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Name() + "." + v.Type().Field(i).Name
			kind := namedRefs[name]
			if name == "Content.Ref" {
				kind = event.BlobContent
			}
			filled(v.Field(i), path+"/"+name, kind, want)
		}
	case reflect.String:
		v.SetString(path)
		if kind != "" {
			want[path] = kind
		}
	}
}

// The table of references holds all members of the catalogue that refer to a blob.
func TestReferencesFitTheCatalogue(t *testing.T) {
	for _, typ := range event.Types() {
		data, _, _ := event.New(typ)
		want := make(map[string]event.BlobKind)
		filled(reflect.ValueOf(data).Elem(), string(typ), "", want)
		got := make(map[string]event.BlobKind)
		for _, r := range References(data) {
			got[r.Ref] = r.Kind
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\n got %v\nwant %v", typ, got, want)
		}
		empty, _, _ := event.New(typ)
		if list := References(empty); len(list) != 0 {
			t.Errorf("%s without content refers to %v", typ, list)
		}
	}
}

// A type of the catalogue whose comments speak of a blob has a member that
// refers to one.
func TestReferencesFitTheComments(t *testing.T) {
	paths, err := filepath.Glob("../event/data_*.go")
	if err != nil || len(paths) < 4 {
		t.Fatal("the catalogue was not found", err)
	}
	said := make(map[string]bool)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE && strings.Contains(comments(d), "blob") {
				said[d.Specs[0].(*ast.TypeSpec).Name.Name] = true
			}
		}
	}
	if len(said) == 0 {
		t.Fatal("no type speaks of a blob")
	}
	for name := range namedRefs {
		typ, _, _ := strings.Cut(name, ".")
		delete(said, typ)
	}
	if len(said) != 0 {
		t.Errorf("%v speak of blobs, and the table has none of their members", said)
	}
}

// comments gives what is said of a type and of its fields.
func comments(d *ast.GenDecl) string {
	text := d.Doc.Text()
	ast.Inspect(d, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok {
			text += f.Doc.Text() + f.Comment.Text()
		}
		return true
	})
	return text
}

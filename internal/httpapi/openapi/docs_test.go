package openapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

var rewrite = flag.Bool("rewrite", false, "write the files that are made from the table of routes and from package api")

// generated holds a file against what it is made of.
func generated(t *testing.T, path string, want []byte) {
	t.Helper()
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (%v): run make docs", path, err)
	}
}

// comments gives the comments of package api by type, and by type and member.
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../../api/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	line := func(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
	out := map[string]string{}
	var decls []ast.Decl
	for _, name := range files {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		decls = append(decls, file.Decls...)
	}
	for _, d := range decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != gotoken.TYPE {
			continue
		}
		for _, s := range gen.Specs {
			spec := s.(*ast.TypeSpec)
			st, ok := spec.Type.(*ast.StructType)
			if !ok || spec.TypeParams != nil {
				continue
			}
			out[spec.Name.Name] = line(gen.Doc)
			for _, f := range st.Fields.List {
				text := line(f.Doc)
				if text == "" {
					text = line(f.Comment)
				}
				if text == "" || f.Tag == nil {
					continue
				}
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				out[spec.Name.Name+"."+name] = text
			}
		}
	}
	return out
}

func TestDescriptions(t *testing.T) {
	texts := comments(t)
	var b bytes.Buffer
	b.WriteString("package openapi\n\n// descriptions are the comments of package api, by type and by member. Made by\n// go test ./internal/httpapi/openapi -rewrite.\nvar descriptions = map[string]string{\n")
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&b, "\t%q: %q,\n", key, texts[key])
	}
	b.WriteString("}\n")
	src, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	generated(t, "describe.go", src)
}

func TestReference(t *testing.T) { generated(t, "../../../docs/reference/api.md", reference(t)) }

// reference is the page of all operations, made from the document itself.
func reference(t *testing.T) []byte {
	t.Helper()
	raw, err := openapi.Document(httpapi.Operations(), "")
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
	var b bytes.Buffer
	b.WriteString(`# HTTP reference

Made from the table of routes; the same table makes the mux and ` + "`/openapi.json`" + ` (OpenAPI 3.1).

* Bodies are one strict JSON value: UTF-8, no repeated names, no members that are not listed here, at most 2 MiB. ` + "`Content-Type: application/json`" + ` is wanted. No body reads as ` + "`{}`" + ` where every member is optional.
* Errors are problem details (RFC 9457, ` + "`application/problem+json`" + `) with a stable ` + "`code`" + `; decide by it, never by a text.
* ` + "`Authorization: Bearer hf_…`" + `. Roles: reader < operator < admin. A token that is bound to a user sees that user only. A unix socket wants no token.
* Query parameters that an operation does not know are refused.
* Lists give ` + "`{items, next_cursor}`" + `; next_cursor is absent on the last page.
* Times are RFC 3339 in UTC. Ids have typed prefixes: ` + "`ses_ run_ evt_ call_ dlv_ tgt_ job_ ast_ tok_`" + `.

## Operations
`)
	for _, rt := range httpapi.Operations() {
		fmt.Fprintf(&b, "\n### %s `%s`\n\n%s. ", rt.Method, rt.Path, rt.Summary)
		if rt.Role == gate.Public {
			b.WriteString("No token wanted.\n")
		} else {
			fmt.Fprintf(&b, "Role: %s.\n", rt.Role)
		}
		if rt.Notes != "" {
			fmt.Fprintf(&b, "\n%s\n", rt.Notes)
		}
		b.WriteString("\n")
		for _, p := range rt.Params {
			fmt.Fprintf(&b, "* %s `%s`: %s\n", p.In, p.Name, p.Text)
		}
		if rt.Body != nil {
			fmt.Fprintf(&b, "* body: %s\n", link(openapi.SchemaName(rt.Body)))
		}
		for _, a := range rt.Answers {
			what := ""
			switch {
			case a.Media != "":
				what = " (" + a.Media + ")"
			case a.Body != nil && a.Body.Kind() == reflect.Struct:
				what = " " + link(openapi.SchemaName(a.Body))
			}
			fmt.Fprintf(&b, "* %d%s: %s\n", a.Status, what, a.Text)
		}
		var fails []string
		byStatus := rt.ProblemCodes()
		for _, status := range rt.Problems() {
			text := fmt.Sprint(status)
			if names := byStatus[status]; names != nil {
				text += " " + openapi.CodeList(names)
			}
			fails = append(fails, text)
		}
		fmt.Fprintf(&b, "* problems: %s\n", strings.Join(fails, "; "))
	}
	b.WriteString("\n## Problem codes\n\nEvery operation may answer with " + openapi.CodeList(openapi.EveryCodes) + " besides its own.\n\n| code | status | |\n| --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(openapi.Codes)) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, strings.Trim(fmt.Sprint(openapi.Codes[name].Statuses()), "[]"), openapi.Codes[name].Text())
	}
	b.WriteString("\n## Types\n")
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		s := doc.Components.Schemas[name]
		fmt.Fprintf(&b, "\n### %s\n\n", name)
		if s.Description != "" {
			fmt.Fprintf(&b, "%s\n\n", s.Description)
		}
		b.WriteString("| member | type | |\n| --- | --- | --- |\n")
		for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
			p := s.Properties[key]
			need := ""
			if slices.Contains(s.Required, key) {
				need = " **always**"
			}
			fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", key, need, p.kind(), strings.ReplaceAll(p.Description, "|", "\\|"))
		}
	}
	return b.Bytes()
}

func link(name string) string { return "[" + name + "](#" + strings.ToLower(name) + ")" }

// schema is what the page shows of a JSON Schema.
type schema struct {
	Type        any               `json:"type"`
	Format      string            `json:"format"`
	Ref         string            `json:"$ref"`
	Items       *schema           `json:"items"`
	Properties  map[string]schema `json:"properties"`
	Required    []string          `json:"required"`
	Description string            `json:"description"`
}

func (s schema) kind() string {
	switch {
	case s.Ref != "":
		return link(s.Ref[strings.LastIndex(s.Ref, "/")+1:])
	case s.Items != nil:
		return "array of " + s.Items.kind()
	case s.Format != "":
		return s.Format
	case s.Type == nil:
		return "any JSON"
	}
	if list, ok := s.Type.([]any); ok {
		return fmt.Sprint(list[0], " or null")
	}
	return fmt.Sprint(s.Type)
}

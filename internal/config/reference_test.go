package config

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/config.md anew")

// docs/reference/config.md is made of the comments of the structs.
func TestReference(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok {
				if st, ok := ts.Type.(*ast.StructType); ok {
					structs[ts.Name.Name] = st
				}
			}
			return true
		})
	}
	var b strings.Builder
	b.WriteString("# Configuration: holdfast.yaml\n\nMade of the comments in `internal/config`; `go test ./internal/config -run Reference -rewrite` writes this page.\n\n" +
		"Zero means the default. Durations are Go durations (`1m30s`). Unknown keys are errors with line and column. Relative paths\n" +
		"begin at the folder of the file. JSON is YAML.\n\n" +
		"A **reference** says where a secret stands and never holds it: `{env: NAME}`, an environment variable of the daemon;\n" +
		"`{file: PATH}`, a file that holds the secret and nothing else (white space at its ends does not count); or, outside of\n" +
		"`secrets`, `{secret: NAME}`, one of the `secrets` of this file or a slot that was set with `holdfast secrets set`. It is read each time the value is needed, so that a changed\n" +
		"secret counts without a restart. One that cannot be read is a warning of `holdfast config check` and at the start; what\n" +
		"needs it fails until it can be read.\n\n" +
		"    secrets:\n      hook: {file: ./hook.secret}\n    targets: {signing_secret: hook}\n    routes:\n" +
		"      main: {provider: openai_compatible, base_url: \"https://api.openai.com/v1\", model: gpt-5-mini, api_key: {env: OPENAI_API_KEY}}\n\n" +
		"`holdfast config check` also reads the scripts of `scripted` routes ([their form](script.md)), the URLs, schemas and headers\n" +
		"of HTTP tools, and looks at the roots of workspaces.\n\n| key | type | meaning |\n| --- | --- | --- |\n")
	rows(t, &b, structs, structs["Config"], "")
	path := filepath.Join("..", "..", "docs", "reference", "config.md")
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is stale: go test ./internal/config -run Reference -rewrite", path)
	}
}

func rows(t *testing.T, b *strings.Builder, structs map[string]*ast.StructType, st *ast.StructType, prefix string) {
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		key := prefix + reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml")
		if strings.HasSuffix(key, "-") {
			continue // no key of the file
		}
		if f.Doc == nil {
			t.Errorf("%s has no comment", key)
		}
		kind, inner, step := kindOf(f.Type)
		text := strings.ReplaceAll(strings.Join(strings.Fields(f.Doc.Text()), " "), "|", `\|`)
		b.WriteString("| `" + key + "` | " + kind + " | " + text + " |\n")
		if s := structs[inner]; s != nil && inner != "Ref" {
			rows(t, b, structs, s, key+step+".")
		}
	}
}

// kindOf names a type for people, the struct inside it, and how a key goes on into it.
func kindOf(e ast.Expr) (kind, inner, step string) {
	switch e := e.(type) {
	case *ast.Ident:
		switch e.Name {
		case "any":
			return "JSON Schema", "", ""
		case "Duration":
			return "duration", "", ""
		case "Ref":
			return "reference", "Ref", ""
		case "Address":
			return "string or reference", "Ref", ""
		case "string", "int", "bool":
			return e.Name, "", ""
		case "float64":
			return "number", "", ""
		}
		return "object", e.Name, ""
	case *ast.StarExpr:
		return kindOf(e.X)
	case *ast.ArrayType:
		kind, inner, _ := kindOf(e.Elt)
		if kind == "JSON Schema" {
			kind = "object"
		}
		return "list of " + kind, inner, "[]"
	case *ast.MapType:
		kind, inner, _ := kindOf(e.Value)
		return "map of " + kind, inner, ".<name>"
	}
	return "", "", ""
}

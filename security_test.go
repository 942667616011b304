package holdfast_test

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/security.md names is there, every known failure names
// one, and every fuzz target of the house stands in the table of parsers.
func TestSecurityNamesTests(t *testing.T) {
	have := map[string]bool{}
	for dir, files := range packages(t) {
		for _, f := range files {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasSuffix(f.name, "_test.go") {
					have[dir+"."+fn.Name.Name] = true
				}
			}
		}
	}
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`((?:internal/[a-z/]+|client|cmd/holdfast)\\.(?:Test|Fuzz)[A-Za-z0-9]+)`")
	named := map[string]bool{}
	section := ""
	for line := range strings.Lines(string(text)) {
		if head, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(head)
		}
		found := names.FindAllStringSubmatch(line, -1)
		for _, m := range found {
			named[m[1]] = true
			if !have[m[1]] {
				t.Errorf("docs/security.md names %s, which is not there", m[1])
			}
		}
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| ---") && !strings.HasSuffix(strings.TrimSpace(line), "test |") && !strings.HasSuffix(strings.TrimSpace(line), "target |")
		switch section {
		case "Known failures of similar daemons", "Every parser that faces outside", "What is protected, and how":
			if row && len(found) == 0 {
				t.Errorf("%s: a row names no test: %.80s", section, line)
			}
		}
	}
	for name := range have {
		if _, fn, _ := strings.Cut(name, "."); strings.HasPrefix(fn, "Fuzz") && !named[name] {
			t.Errorf("docs/security.md does not say what %s is for", name)
		}
	}
}

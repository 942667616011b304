package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/contract"
	"github.com/holdfast-dev/holdfast/internal/provider/scripted"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page on the command line has every code that is made here.
func TestLocalCodes(t *testing.T) {
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := regexp.MustCompile(`(?:console\.Exit\([^,]+, |refusal\(|\blocal\()"([a-z_]+)"`)
	reference, n := page(t, "cli.md"), 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			if n++; !strings.Contains(reference, "`"+m[1]+"`") {
				t.Errorf("%s: cli.md does not name the code %s", f, m[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("%d codes found: does the expression still fit the code?", n)
	}
}

// The examples of the page on scripts are scripts.
func TestScriptExamples(t *testing.T) {
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page(t, "script.md"), -1)
	if len(examples) < 5 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, m := range examples {
		if _, err := scripted.Parse("example", []byte(m[1])); err != nil {
			t.Errorf("%v in\n%s", err, m[1])
		}
	}
}

// The examples of the page on contracts are what it says, and so are its mismatches.
func TestContractExamples(t *testing.T) {
	text := page(t, "contracts.md")
	var good *contract.Schema
	for _, m := range regexp.MustCompile("(?s)<!-- ((?:no )?schema) -->\n```json\n(.*?)```").FindAllStringSubmatch(text, -1) {
		s, issues := contract.ParseSchema([]byte(m[2]))
		if (len(issues) == 0) != (m[1] == "schema") {
			t.Errorf("%s: %v\n%s", m[1], issues, m[2])
		}
		if s != nil {
			good = s
		}
	}
	if good == nil {
		t.Fatal("there is no schema")
	}
	rows := regexp.MustCompile("\\| `(\\{.*?)` \\| ``(.*?) ?`` \\|").FindAllStringSubmatch(text, -1)
	if len(rows) < 4 {
		t.Fatalf("only %d mismatches were found", len(rows))
	}
	for _, m := range rows {
		if _, err := good.Check(m[1]); err == nil || err.Error() != m[2] {
			t.Errorf("%s: %v, want %s", m[1], err, m[2])
		}
	}
	if v, err := good.Check(" {\"severity\": 3.0,\n\"category\": \"storage\"} "); err != nil || !strings.Contains(text, "becomes `"+string(v)+"`") {
		t.Errorf("%s, %v", v, err)
	}
}

// Package holdfast_test keeps the house rules of the whole module.
package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/holdfast-dev/holdfast/"

// floors is the floor plan: a package imports lower floors only, never a
// neighbour. A room that was cut into several has steps within its floor, which
// only the packages of its own folder climb: of a folder x, x/b at 7.2 may import
// x/a at 7.1, and nobody else's of floor 7.
var floors = map[string]float64{
	// 0 words
	"internal/problem": 0, "internal/canonjson": 0, "internal/version": 0,
	// 1 ports
	"internal/llm": 1, "internal/tool": 1, "internal/netguard": 1, "internal/secret": 1, "internal/seal": 1,
	"internal/gate": 1, "internal/glob": 1, "internal/textedit": 1, "internal/diskfs": 1, "internal/dirlock": 1, "internal/textdiff": 1,
	// 2 facts
	"internal/event": 2, "api": 2, "internal/models": 2,
	// 3 rules
	"internal/contract": 3, "internal/policy": 3, "internal/schema": 3, "internal/derived": 3,
	"internal/dialect": 3, "internal/inbound": 3, "internal/replyto": 3,
	// 4 core
	"internal/session": 4, "internal/outbox": 4, "internal/timeline": 4, "internal/span": 4, "internal/job": 4,
	// 5 views
	"internal/eventlog": 5, "internal/live": 5, "internal/workers": 5,
	// 6 rooms
	"internal/admission": 6, "internal/lane": 6, "internal/engine": 6, "internal/delivery": 6, "internal/snapshot": 6, "internal/tenure": 6,
	"internal/storecore": 6, "internal/headroom": 6, "internal/slots": 6, "internal/jobs": 6, "internal/ledger": 6, "internal/tokens": 6,
	// 7 adapters
	"internal/sqlite": 7, "internal/postgres": 7, "internal/storetest": 7, "internal/workspace": 7, "internal/httptool": 7, "internal/webhook": 7, "internal/filetree": 7,
	"internal/provider/wire": 7.1, "internal/provider/openaicompat": 7.2, "internal/provider/scripted": 7.2,
	"internal/provider/openai": 7.2, "internal/provider/responsesstub": 7.2,
	"internal/provider/chatstub": 7.2, "internal/config": 7, "internal/listener": 7, "internal/masterkey": 7,
	"internal/provider/gemini": 7.2, "internal/provider/geministub": 7.2,
	"internal/provider/anthropic": 7.2, "internal/provider/messagesstub": 7.2,
	"internal/mail": 7, "internal/natsout": 7, "internal/plugin": 7, "internal/fileout": 7,
	"internal/metrics": 7, "internal/otlp": 7, "internal/otlp/otlpstub": 7, "internal/netguard/dnsstub": 7, "internal/bus": 7,
	// 7, the HTTP door in steps: an exchange, who is let in and what is described, a call, who answers it, all of it
	"internal/httpapi/exchange": 7.1, "internal/httpapi/views": 7.1,
	"internal/httpapi/door": 7.2, "internal/httpapi/openapi": 7.2,
	"internal/httpapi/call": 7.3, "internal/httpapi/logs": 7.4,
	"internal/httpapi/sessions": 7.5, "internal/httpapi/runs": 7.5, "internal/httpapi/sse": 7.5, "internal/httpapi/deliveries": 7.5,
	"internal/httpapi/connectors": 7.5, "internal/httpapi/admin": 7.5, "internal/httpapi": 7.6,
	// 8 wiring
	"internal/daemon": 8, "internal/sim": 8, "internal/doctor": 8, "internal/backup": 8, "internal/httpapi/apitest": 8,
	// 9 doors
	"client": 9, "internal/demo": 9, "cmd/holdfast": 9, "bench": 9, "internal/provider/stubserver": 9, "internal/provider/pieces": 9,
	// 9, the command line in steps: words, what a command has in its hands, the commands, all of them
	"internal/cli/words": 9.1, "internal/cli/console": 9.2, "internal/cli/picture": 9.2,
	"internal/cli/operate": 9.3, "internal/cli/sessions": 9.3, "internal/cli/runs": 9.3, "internal/cli/deliveries": 9.3, "internal/cli/admin": 9.3,
	"internal/cli": 9.4,
}

// exceptions are imports of a neighbour by a package or by all of a folder, each
// with its reason.
var exceptions = map[string]string{
	"internal/cli → client":        "the command line speaks to a daemon through the client",
	"internal/cli → internal/demo": "the demo is a command",
	"internal/demo → client":       "the demo speaks to its daemon through the client",
	"cmd/holdfast → internal/cli":  "main only calls the command line",
	"bench → client":               "runs are measured through the client",
}

// ground: floor 0 imports the standard library and the strict JSON tokenizer.
var groundMay = []string{"github.com/go-json-experiment/json/jsontext"}

// mayTest are the packages of tests that other packages' tests stand on.
var mayTest = []string{"internal/storetest", "internal/httpapi/apitest"}

func TestFloorPlan(t *testing.T) {
	for dir, files := range packages(t) {
		floor, planned := floors[dir]
		if !planned {
			t.Errorf("%s is not on the floor plan", dir)
			continue
		}
		for _, f := range files {
			if strings.HasSuffix(f.name, "_test.go") {
				continue
			}
			for _, spec := range f.ast.Imports {
				path := strings.Trim(spec.Path.Value, `"`)
				if path == "testing" && !contains(mayTest, dir) {
					t.Errorf("%s: product code imports testing", f.name)
				}
				to, ours := strings.CutPrefix(path, module)
				if !ours {
					if floor == 0 && strings.Contains(strings.Split(path, "/")[0], ".") && !contains(groundMay, path) {
						t.Errorf("%s: the ground floor imports %s", f.name, path)
					}
					continue
				}
				if lower, ok := floors[to]; !ok || !below(dir, to) && exceptions[dir+" → "+to] == "" && exceptions[folder(dir)+" → "+to] == "" {
					t.Errorf("%s (floor %g) imports %s (floor %g)", f.name, floor, to, lower)
				}
			}
		}
	}
	for dir := range floors {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s is on the floor plan and not in the house", dir)
		}
	}
}

// below says whether a package stands on a lower floor, or within one folder on a
// lower step.
func below(dir, to string) bool {
	floor, lower := floors[dir], floors[to]
	return int(lower) < int(floor) || folder(dir) == folder(to) && lower < floor
}

// folder is the folder in which the parts of a room stand: internal/x.
func folder(dir string) string {
	parts := strings.SplitN(dir, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

// Every package says in one comment what it is for.
func TestPackageComments(t *testing.T) {
	for dir, files := range packages(t) {
		comments := 0
		for _, f := range files {
			if !strings.HasSuffix(f.name, "_test.go") && f.ast.Doc != nil {
				comments++
			}
		}
		if comments != 1 {
			t.Errorf("%s has %d package comments, want 1", dir, comments)
		}
	}
}

// Nothing sleeps, save a test in a bubble, where a sleep takes no time.
func TestNoSleep(t *testing.T) {
	for _, files := range packages(t) {
		for _, f := range files {
			if strings.HasSuffix(f.name, "_test.go") && imports(f, "testing/synctest") {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
						t.Errorf("%s sleeps", f.name)
					}
				}
				return true
			})
		}
	}
}

func imports(f source, path string) bool {
	for _, spec := range f.ast.Imports {
		if spec.Path.Value == `"`+path+`"` {
			return true
		}
	}
	return false
}

type source struct {
	name string
	ast  *ast.File
}

func packages(t *testing.T) map[string][]source {
	t.Helper()
	out := map[string][]source{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || filepath.Dir(path) == "." {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		out[dir] = append(out[dir], source{path, f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

package openapi_test

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// rooms are the packages whose problems reach a client.
var rooms = []string{"admission", "httpapi/admin", "httpapi/call", "httpapi/connectors", "httpapi/deliveries", "httpapi/door", "httpapi/exchange", "httpapi/logs", "httpapi/runs", "httpapi/sessions", "httpapi/sse", "netguard", "webhook", "sqlite", "daemon", "eventlog", "contract", "problem", "slots", "secret"}

// elsewhere are codes that those packages give to others than clients of HTTP.
var elsewhere = []string{"secret_not_for_host", "secret_unavailable"}

// The codes that the source gives are the codes that the reference has, each with
// the status of its kind, and each belongs to an operation. (Which operation may
// answer with which code is checked with every answer of every test; see conforms.)
func TestCodes(t *testing.T) {
	given := map[string]map[int]bool{}
	note := func(code string, status int) {
		if given[code] == nil {
			given[code] = map[int]bool{}
		}
		given[code][status] = true
	}
	for _, room := range rooms {
		files, err := filepath.Glob(filepath.Join("..", "..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", room, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			codesIn(t, file, src, note)
		}
	}
	// What is not a constant where it is made.
	note("input_contract_violated", 400)
	for _, setting := range []string{"input_contract", "output_contract", "route_policy"} {
		note(setting+"_not_set", 404)
	}
	for _, code := range []string{inbound.CodeMapping, inbound.CodeEventID, inbound.CodeTarget, inbound.CodeUnhandled} {
		note(code, 422)
	}
	note("internal", 500)
	used := map[string]bool{"method_not_allowed": true, "not_found": true} // no operation's: they come where there is none
	for _, name := range openapi.EveryCodes {
		used[name] = true
	}
	for _, rt := range httpapi.Operations() {
		for _, names := range rt.ProblemCodes() {
			for _, name := range names {
				used[name] = true
			}
		}
		for _, name := range openapi.CodesOf[rt.ID] {
			if _, ok := openapi.Codes[name]; !ok {
				t.Errorf("%s: the code %s is not in the list", rt.ID, name)
			}
			if !slices.ContainsFunc(openapi.Codes[name].Statuses(), func(status int) bool { return slices.Contains(rt.Problems(), status) }) {
				t.Errorf("%s: the table does not give it the status of the code %s", rt.ID, name)
			}
		}
	}
	for name, statuses := range given {
		c, ok := openapi.Codes[name]
		if !ok && !slices.Contains(elsewhere, name) {
			t.Errorf("the code %s is given and not documented", name)
		}
		for status := range statuses {
			if ok && !slices.Contains(c.Statuses(), status) {
				t.Errorf("the code %s is given with the status %d, and documented with %v", name, status, c.Statuses())
			}
		}
	}
	for name, c := range openapi.Codes {
		if given[name] == nil {
			t.Errorf("the code %s is documented, and nothing gives it", name)
		}
		if !used[name] {
			t.Errorf("the code %s is no operation's", name)
		}
		if !strings.HasSuffix(c.Text(), ".") {
			t.Errorf("the code %s wants a sentence", name)
		}
	}
	ids := map[string]bool{}
	for _, rt := range httpapi.Operations() {
		ids[rt.ID] = true
	}
	for id := range openapi.CodesOf {
		if !ids[id] {
			t.Errorf("codes of %s, which is no operation", id)
		}
	}
}

// codesIn finds the calls of problem.New with a constant code. A call within
// exchange.WithStatus(http.StatusX, …) has that status.
func codesIn(t *testing.T, file string, src []byte, note func(string, int)) {
	t.Helper()
	f, err := parser.ParseFile(gotoken.NewFileSet(), file, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	finer := map[ast.Node]int{}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch name := funName(call.Fun); {
		case name == "WithStatus" || name == "exchange.WithStatus":
			status := map[string]int{"StatusRequestTimeout": 408, "StatusUnsupportedMediaType": 415, "StatusMethodNotAllowed": 405, "StatusMisdirectedRequest": 421, "StatusUnprocessableEntity": 422}[call.Args[0].(*ast.SelectorExpr).Sel.Name]
			if status == 0 {
				t.Fatalf("%s: a status that this test does not know", file)
			}
			ast.Inspect(call.Args[1], func(n ast.Node) bool { finer[n] = status; return true })
		case name == "problem.New":
			lit, ok := call.Args[1].(*ast.BasicLit)
			if !ok {
				return true
			}
			code, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			status := problemKind(call.Args[0].(*ast.SelectorExpr).Sel.Name).Status()
			if s, ok := finer[call]; ok {
				status = s
			}
			note(code, status)
		}
		return true
	})
}

// funName is the name of a function that is called, with its package's.
func funName(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		if x, ok := fun.X.(*ast.Ident); ok {
			return x.Name + "." + fun.Sel.Name
		}
	}
	return ""
}

func problemKind(name string) problem.Kind {
	return map[string]problem.Kind{"Invalid": problem.Invalid, "Unauthenticated": problem.Unauthenticated, "Forbidden": problem.Forbidden, "NotFound": problem.NotFound,
		"Conflict": problem.Conflict, "Gone": problem.Gone, "TooLarge": problem.TooLarge, "Limited": problem.Limited, "Unavailable": problem.Unavailable, "Full": problem.Full, "Internal": problem.Internal}[name]
}

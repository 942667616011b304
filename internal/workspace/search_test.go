package workspace

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/schema"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

type found struct {
	Files   int
	Matches []struct {
		Path, Text    string
		Line          int
		Before, After []string
	}
	Notes     []string
	Skipped   int
	Truncated bool
}

// places lists the matches as path:line.
func (f found) places() string {
	var list []string
	for _, m := range f.Matches {
		list = append(list, fmt.Sprintf("%s:%d", m.Path, m.Line))
	}
	return strings.Join(list, " ")
}

// searched checks an answer against the tool's schema and reads it.
func searched(t *testing.T, out string, err error) found {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	v, err := canonjson.Canonicalize([]byte(out), canonjson.Limits{})
	if err != nil || string(v) != out {
		t.Errorf("not canonical: %v\n%s", err, out)
	}
	s, err := schema.Compile(searchDefinition().OutputSchema)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(v); err != nil {
		t.Errorf("not of the schema: %v\n%s", err, out)
	}
	var f found
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		t.Fatal(err)
	}
	if f.Truncated != (len(f.Notes) > 0) {
		t.Errorf("truncated %v, notes %q", f.Truncated, f.Notes)
	}
	return f
}

// bounded runs a search of a shared root under other bounds.
func bounded(t *testing.T, root string, change func(*bounds), args map[string]any) found {
	t.Helper()
	b := standardBounds
	change(&b)
	r, err := place{root: root, shared: true}.search(t.Context(), tool.Call{Input: input(t, args)}, b)
	return searched(t, r.Output, err)
}

func TestSearch(t *testing.T) {
	root := t.TempDir()
	put(t, "alpha\nBeta\r\ngamma alpha\n", root, "a.md")
	put(t, "alpha", root, "a", "b", "x.go")
	put(t, "func (a*b)\n\nalpha.beta\n", root, "a", "y.ts")
	put(t, "alpha\x00", root, "binary")
	put(t, "alpha", root, ours+"left")
	put(t, "", root, "empty")
	put(t, "über alpha \xff\n", root, "z")
	search := tools(t, Config{Root: root, Shared: true})[SearchFiles]
	for _, test := range []struct {
		args map[string]any
		want string
	}{
		{map[string]any{"query": "alpha"}, "a/b/x.go:1 a/y.ts:3 a.md:1 a.md:3 z:1"},
		{map[string]any{"query": "beta"}, "a/y.ts:3"},
		{map[string]any{"query": "BETA", "ignore_case": true}, "a/y.ts:3 a.md:2"},
		{map[string]any{"query": "(a*b)"}, "a/y.ts:1"},
		{map[string]any{"query": "a.b", "regex": true}, "a/y.ts:1 a/y.ts:3"},
		{map[string]any{"query": "^beta$", "regex": true, "ignore_case": true}, "a.md:2"},
		{map[string]any{"query": "^$", "regex": true}, "a/y.ts:2"},
		{map[string]any{"query": "über"}, "z:1"},
		{map[string]any{"query": "alpha", "glob": "*.{go,ts}"}, "a/b/x.go:1 a/y.ts:3"},
		{map[string]any{"query": "alpha", "glob": "a/*"}, "a/y.ts:3"},
		{map[string]any{"query": "alpha", "glob": "**/*.go"}, "a/b/x.go:1"},
		{map[string]any{"query": "alpha", "path": "a"}, "a/b/x.go:1 a/y.ts:3"},
		{map[string]any{"query": "alpha", "path": "./a//b", "glob": "a/**"}, "a/b/x.go:1"},
		{map[string]any{"query": "alpha", "path": "a.md"}, "a.md:1 a.md:3"},
		{map[string]any{"query": "alpha", "path": "binary"}, ""},
		{map[string]any{"query": "nowhere"}, ""},
	} {
		out, err := run(t, search, test.args)
		f := searched(t, out, err)
		if f.places() != test.want || f.Truncated {
			t.Errorf("%v: %s, %q", test.args, f.places(), f.Notes)
		}
	}
	out, err := run(t, search, map[string]any{"query": "alpha"})
	if f := searched(t, out, err); f.Files != 5 || f.Skipped != 1 || f.Matches[4].Text != "über alpha \uFFFD" {
		t.Errorf("%+v", f)
	}
}

func TestSearchContext(t *testing.T) {
	root := t.TempDir()
	put(t, "1\n2 x\n3\n4 x\n5 x\n6\r\n7\n8\n9 x", root, "f")
	f := bounded(t, root, func(*bounds) {}, map[string]any{"query": "x", "context": 2})
	var got [][]string
	for _, m := range f.Matches {
		got = append(got, m.Before, []string{m.Text}, m.After)
	}
	want := [][]string{{"1"}, {"2 x"}, {"3"}, nil, {"4 x"}, nil, nil, {"5 x"}, {"6", "7"}, {"8"}, {"9 x"}, nil}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestSearchRefusals(t *testing.T) {
	root := t.TempDir()
	put(t, "x", root, "work", "ann", "ses_1", "dir", "ok")
	own := filepath.Join(root, "work", "ann", "ses_1")
	put(t, "secret", root, "secret")
	link(t, "../../../secret", own, "out")
	link(t, "../../..", own, "outdir")
	link(t, "dir/ok", own, "inside")
	if err := syscall.Mkfifo(filepath.Join(own, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	search := tools(t, Config{Root: filepath.Join(root, "work")})[SearchFiles]
	for _, test := range []struct {
		args map[string]any
		want string
	}{
		{map[string]any{"query": ""}, "query is empty"},
		{map[string]any{"query": strings.Repeat("x", maxQuery+1)}, "513 bytes, at most 512"},
		{map[string]any{"query": "a\nb"}, "line by line"},
		{map[string]any{"query": "a(b", "regex": true}, "no RE2 expression: missing closing ): `a(b`; for literal text leave regex out"},
		{map[string]any{"query": "a(?=b)", "regex": true}, "no RE2 expression"},
		{map[string]any{"query": "(" + strings.Repeat("ab", 50) + "){900}", "regex": true}, "too large"},
		{map[string]any{"query": "(x{1000}){1000}", "regex": true}, "invalid repeat count"},
		{map[string]any{"query": "x", "glob": "[a"}, "glob: the pattern has a [ without"},
		{map[string]any{"query": "x", "path": "../x"}, "may not hold .."},
		{map[string]any{"query": "x", "path": "missing"}, "there is no `missing`"},
		{map[string]any{"query": "x", "path": "out"}, "leads out"},
		{map[string]any{"query": "x", "path": "outdir"}, "leads out"},
		{map[string]any{"query": "x", "path": "outdir/secret"}, "leads out"},
		{map[string]any{"query": "x", "path": "fifo"}, "`fifo` is not a regular file"},
	} {
		out, err := run(t, search, test.args)
		fails(t, root, out, err, test.want)
	}
	// Links are no files, wherever they lead, and nothing waits at a pipe.
	out, err := run(t, search, map[string]any{"query": ".", "regex": true})
	if f := searched(t, out, err); f.places() != "dir/ok:1" || f.Truncated {
		t.Errorf("%+v", f)
	}
	out, err = run(t, tools(t, Config{Root: t.TempDir()})[SearchFiles], map[string]any{"query": "x"})
	if f := searched(t, out, err); f.Files != 0 || f.Truncated {
		t.Errorf("no folder yet: %+v", f)
	}
}

// Past each bound the answer says that it was cut, and why.
func TestSearchBounds(t *testing.T) {
	root := t.TempDir()
	put(t, strings.Repeat("x\n", 50), root, "a", "many")
	put(t, strings.Repeat(".", 90)+"x", root, "b", "long")
	put(t, strings.Repeat(".\n", 60)+"x", root, "c", "large")
	for i := range 40 {
		put(t, "y", root, "d", fmt.Sprintf("%02d", i))
	}
	for name, test := range map[string]struct {
		change  func(*bounds)
		args    map[string]any
		matches int
		note    string
	}{
		"results":       {func(*bounds) {}, map[string]any{"query": "x", "max_results": 7}, 7, "more than 7 matches"},
		"results exact": {func(*bounds) {}, map[string]any{"query": "x", "max_results": 50, "path": "a"}, 50, ""},
		"line":          {func(b *bounds) { b.line = 80 }, map[string]any{"query": "x", "path": "b"}, 0, "1 lines of `b/long` were searched in their first 80 bytes only"},
		"file":          {func(b *bounds) { b.file = 100 }, map[string]any{"query": "x", "path": "c"}, 0, "`c/large` was searched in its first 100 bytes only"},
		"bytes":         {func(b *bounds) { b.bytes = 99 }, map[string]any{"query": "x"}, 50, "ended after 99 bytes, with `a/many`"},
		"names":         {func(b *bounds) { b.names = 20 }, map[string]any{"query": "x", "max_results": 100}, 52, "more than 20 files and folders; `d` and"},
		"answer":        {func(b *bounds) { b.answer = 400 }, map[string]any{"query": "x"}, 10, "answer is full"},
		"time":          {func(b *bounds) { b.time = -time.Second }, map[string]any{"query": "x"}, 0, "was cut after"},
	} {
		f := bounded(t, root, test.change, test.args)
		if len(f.Matches) != test.matches || (len(f.Notes) > 0) != (test.note != "") || test.note != "" && !strings.Contains(f.Notes[0], test.note) {
			t.Errorf("%s: %d matches, %q", name, len(f.Matches), f.Notes)
		}
	}
	deep := strings.Repeat("d/", maxDepth+2) + "f"
	put(t, "x", root, "deep", deep)
	if f := bounded(t, root, func(*bounds) {}, map[string]any{"query": "x", "path": "deep"}); len(f.Matches) != 0 || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "too deep") {
		t.Errorf("deep: %+v", f)
	}
	closed := filepath.Join(root, "a", "closed")
	put(t, "x", closed)
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(closed); err != nil { // not for root, who may read all
		if f := bounded(t, root, func(*bounds) {}, map[string]any{"query": "x", "path": "a"}); len(f.Matches) != 50 || len(f.Notes) != 1 || f.Notes[0] != "`a/closed` cannot be read" {
			t.Errorf("no permission: %+v", f)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, line := range []string{strings.Repeat("ü", 1000), strings.Repeat("a", 1000), strings.Repeat("a\xff", 500), strings.Repeat("\x80", 1000)} {
		for at := 0; at < len(line); at += 7 {
			s := shorten([]byte(line), at)
			if len(s) > maxShown+10 || s == line || !strings.Contains(s, "…") {
				t.Fatalf("%q at %d: %q", line[:4], at, s)
			}
		}
	}
	line := strings.Repeat(".", 1000) + "needle" + strings.Repeat(".", 1000)
	if s := shorten([]byte(line), 1000); !strings.Contains(s, "needle") || !strings.HasPrefix(s, "…") || !strings.HasSuffix(s, "…") {
		t.Errorf("%q", s)
	}
	if s := shorten([]byte("short"), 3); s != "short" {
		t.Errorf("%q", s)
	}
}

// Whatever the query and the file: an answer of the schema, or a failure for the model.
func FuzzSearch(f *testing.F) {
	f.Add("a.b", "x a.b\r\ny", true, true)
	f.Add("(", "\xff\x00", false, false)
	f.Add("^$", "\n\n", true, false)
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, query, content string, regex, ignore bool) {
		put(t, content, root, "f")
		b := append(canonjson.AppendString([]byte(`{"query":`), query), fmt.Sprintf(`,"context":2,"ignore_case":%v,"regex":%v}`, ignore, regex)...)
		r, err := place{root: root, shared: true}.search(t.Context(), tool.Call{Input: b}, standardBounds)
		if err != nil {
			fails(t, root, r.Output, err, "quer")
			return
		}
		answer := searched(t, r.Output, nil)
		if !regex && !ignore && !strings.Contains(content, "\x00") && !strings.Contains(query, "\uFFFD") && (len(answer.Matches) > 0) != strings.Contains(content, query) {
			t.Errorf("%q in %q: %+v", query, content, answer)
		}
	})
}

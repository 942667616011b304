package glob

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern string
		yes, no string // paths, separated by blanks
	}{
		{"*.go", "x.go a/b/x.go .go", "x.gox x.go/y"},
		{"x", "x a/x", "xy x/y"},
		{"a/*.go", "a/x.go", "x.go a/b/x.go b/a/x.go"},
		{"**/*.go", "x.go a/x.go a/b/x.go", "x.md a/go"},
		{"a/**", "a/b a/b/c", "a b/a/c"},
		{"a/**/b", "a/b a/x/b a/x/y/b", "a/xb ab b a/b/c"},
		{"**/a/**", "a/b x/a/b", "a x/a"},
		{"**", "a a/b", ""},
		{"**/**/x", "x a/x a/b/x", "a"},
		{"a**b/c", "ab/c axxb/c", "a/b/c"},
		{"?.md", "a.md ü.md", "ab.md .md"},
		{"*.{ts,tsx}", "a.ts a/b.tsx", "a.t a.tsxx"},
		{"{a,b}/x{,y}", "a/x b/xy", "c/x a/xyy"},
		{"[a-c]x", "ax cx", "dx /x"},
		{"[!a-c]x", "dx ]x", "ax"},
		{"a/b[!x]c", "a/bbc a/b.c", "a/b/c a/bxc"},
		{"[]]x[-a]", "]x- ]xa", "ax-"},
		{"[*]?[?]", "*a? *b?", "aa?"},
		{"a/[+-1]b", "a/.b a/0b", "a//b"},
		{"a.b+(c)$^|", "a.b+(c)$^|", "aXb+(c)$^|"},
		{"{[,],[}]}", ", }", "[ ]"},
	} {
		p, err := Compile(test.pattern)
		if err != nil {
			t.Errorf("%s: %v", test.pattern, err)
			continue
		}
		for _, path := range strings.Fields(test.yes) {
			if !p.Match(path) {
				t.Errorf("%s does not match %s", test.pattern, path)
			}
		}
		for _, path := range strings.Fields(test.no) {
			if p.Match(path) {
				t.Errorf("%s matches %s", test.pattern, path)
			}
		}
	}
}

func TestMistakes(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                       "empty",
		strings.Repeat("a", 257): "longer than 256 bytes",
		"\xff":                   "not UTF-8",
		`a\b`:                    "backslash",
		"/a":                     "relative",
		"a/":                     "add **",
		"a//b":                   "no path has",
		"../a":                   "no path has",
		"./a":                    "no path has",
		"{a":                     "without its }",
		"{a/b}":                  "without its }",
		"a}":                     "without its {",
		"{a,{b}}":                "within braces",
		"[a":                     "without its ]",
		"[a/b]":                  "without its ]",
		"[]":                     "without its ]",
		"[z-a]":                  "backwards",
		"[!]":                    "without its ]",
	} {
		if _, err := Compile(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", pattern, err, want)
		}
	}
	if _, err := Compile(strings.Repeat("a", 256)); err != nil {
		t.Errorf("at the bound: %v", err)
	}
}

// oracle matches by trying everything: the definition, without the speed.
// Patterns have no sets.
func oracle(pattern, path string) bool {
	if open := strings.IndexByte(pattern, '{'); open >= 0 {
		end := open + strings.IndexByte(pattern[open:], '}')
		for _, one := range strings.Split(pattern[open+1:end], ",") {
			if oracle(pattern[:open]+one+pattern[end+1:], path) {
				return true
			}
		}
		return false
	}
	return names(strings.Split(pattern, "/"), strings.Split(path, "/"))
}

func names(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "**" && len(pattern) == 1:
		return len(path) > 0
	case pattern[0] == "**":
		for i := range len(path) + 1 {
			if names(pattern[1:], path[i:]) {
				return true
			}
		}
		return false
	}
	return len(path) > 0 && within(pattern[0], path[0]) && names(pattern[1:], path[1:])
}

func within(pattern, name string) bool {
	switch {
	case pattern == "":
		return name == ""
	case pattern[0] == '*':
		return within(pattern[1:], name) || name != "" && within(pattern, name[1:])
	}
	return name != "" && (pattern[0] == '?' || pattern[0] == name[0]) && within(pattern[1:], name[1:])
}

// The compiled pattern says what the definition says.
func TestAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		atom := rapid.SampledFrom([]string{"a", "b", "*", "?", ".", "{a,b}", "{,a}", "{a*,?b}"})
		name := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(atom, 1, 4).Draw(t, "atoms"), "")
		}).Filter(func(s string) bool { // what `**` would become by expansion, and the names that no path has
			return s != "." && s != ".." && !strings.Contains(s, "**") && !strings.Contains(s, "*{") && !strings.Contains(s, "*}*")
		})
		part := rapid.OneOf(name, rapid.Just("**"))
		pattern := strings.Join(rapid.SliceOfN(part, 2, 4).Draw(t, "pattern"), "/")
		path := strings.Join(rapid.SliceOfN(rapid.StringMatching(`[ab.]{1,4}`), 1, 5).Draw(t, "path"), "/")
		p, err := Compile(pattern)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		if got, want := p.Match(path), oracle(pattern, path); got != want {
			t.Fatalf("%s on %s: %v, want %v", pattern, path, got, want)
		}
	})
}

// Whatever the pattern: an answer or a clear mistake, and `*`, `?` and sets
// never reach over a separator.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{"**/*.go", "{a,b}/[!c]", "[]-]", "a*?", "[--0]", "{,}"} {
		f.Add(seed, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		p, err := Compile(pattern)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "the pattern ") || strings.Contains(err.Error(), "cannot be used") {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		got := p.Match(path)
		if !got || strings.Contains(pattern, "**") || !strings.Contains(pattern, "/") {
			return
		}
		if strings.Count(pattern, "/") != strings.Count(path, "/") {
			t.Errorf("%q matches %q", pattern, path)
		}
	})
}

package canonjson_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

func escape(unit rune) string { return fmt.Sprintf(`\u%04x`, unit) }

func appendInt(i int64) []byte { return strconv.AppendInt(nil, i, 10) }

func TestAppendString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		got := string(canonjson.AppendString([]byte("x"), s))
		want, _ := jsontext.AppendQuote([]byte("x"), s)
		if got != string(want) {
			t.Fatalf("%s, want %s", got, want)
		}
		// The rule for free text is the same.
		clean, changed := canonjson.ReplaceInvalid(s)
		if string(canonjson.AppendString([]byte("x"), clean)) != got || changed == utf8.ValidString(s) {
			t.Fatalf("ReplaceInvalid(%q) = %q, %v", s, clean, changed)
		}
	})
}

func TestCompareNames(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("a\ud7ff\ue000\uffff\U00010000\U0010ffff"))))
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := canonjson.CompareNames(a, b); got != want {
			t.Fatalf("CompareNames(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

// C05: free text is cut at a rune border and what is no UTF-8 is replaced.
func TestFreeText(t *testing.T) {
	for _, c := range []struct {
		s    string
		max  int
		want string
	}{
		{"abc", 3, "abc"},
		{"abc", 2, "ab"},
		{"abc", 0, ""},
		{"abc", -1, ""},
		{strings.Repeat("x", 9) + "\U0001F3F7y", 10, strings.Repeat("x", 9)},
		{strings.Repeat("x", 9) + "\U0001F3F7y", 12, strings.Repeat("x", 9)},
		{strings.Repeat("x", 9) + "\U0001F3F7y", 13, strings.Repeat("x", 9) + "\U0001F3F7"},
		{"é", 1, ""},
	} {
		if got := canonjson.CutRunes(c.s, c.max); got != c.want {
			t.Errorf("CutRunes(%q, %d) = %q, want %q", c.s, c.max, got, c.want)
		}
	}
	for _, c := range []struct {
		s, want string
		changed bool
	}{
		{"a\x00é\U0001F3F7\ufffd", "a\x00é\U0001F3F7\ufffd", false},
		{"a\xff\xfeb", "a\ufffd\ufffdb", true},
		{"\xed\xa0\xbd", "\ufffd\ufffd\ufffd", true},
	} {
		if got, changed := canonjson.ReplaceInvalid(c.s); got != c.want || changed != c.changed {
			t.Errorf("ReplaceInvalid(%q) = %q, %v", c.s, got, changed)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, most := rapid.String().Draw(t, "s"), rapid.IntRange(0, 40).Draw(t, "max")
		got := canonjson.CutRunes(s, most)
		if !strings.HasPrefix(s, got) || len(got) > most || !utf8.ValidString(got) || len(got) < min(len(s), most-3) {
			t.Fatalf("CutRunes(%q, %d) = %q", s, most, got)
		}
		junk := strings.Repeat("\x80", len(s))
		if got := canonjson.CutRunes(junk, most); len(got) > most {
			t.Fatalf("CutRunes(%q, %d) = %q", junk, most, got)
		}
	})
}

func TestPaths(t *testing.T) {
	for name, want := range map[string]string{
		"a":       `$.a`,
		"_A9":     `$._A9`,
		"":        `$[""]`,
		"9x":      `$["9x"]`,
		"a.b":     `$["a.b"]`,
		"é":       `$["é"]`,
		"a\"b\n":  `$["a\"b\n"]`,
		"a\u2028": `$["a\u2028"]`,
		"a\u202e": `$["a\u202e"]`,
	} {
		if got := canonjson.MemberPath("$", name); got != want {
			t.Errorf("MemberPath(%q) = %s, want %s", name, got, want)
		}
	}
	path := "$"
	for range 10_000 {
		path = canonjson.MemberPath(path, strings.Repeat("é", 500))
	}
	if len(path) > 1100 || !utf8.ValidString(path) || !strings.HasSuffix(path, "…") {
		t.Errorf("%d bytes: …%q", len(path), path[len(path)-20:])
	}
}

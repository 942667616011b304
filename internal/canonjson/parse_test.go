package canonjson_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

func TestCanonicalForm(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"space", " \r\n\t{ \"b\" : 1 , \"a\" : [ ] }\n", `{"a":[],"b":1}`},
		{"integer beyond 2^53 (C03)", `9007199254740993`, `9007199254740993`},
		{"negative integer beyond 2^53", `-9007199254740993`, `-9007199254740993`},
		{"integer of thirty digits", `123456789012345678901234567890`, `123456789012345678901234567890`},
		{"integer beyond any double", "1" + strings.Repeat("0", 400), "1" + strings.Repeat("0", 400)},
		{"minus zero", `-0`, `0`},
		{"minus zero with fraction", `-0.0`, `0`},
		{"minus zero by underflow", `-1e-400`, `0`},
		{"fraction that is whole", `1.0`, `1`},
		{"exponent", `1e20`, `100000000000000000000`},
		{"exponent from 21 on", `1E21`, `1e+21`},
		{"small", `0.0000001`, `1e-7`},
		{"largest double", `1.7976931348623157e308`, `1.7976931348623157e+308`},
		{"smallest double", `5e-324`, `5e-324`},
		{"a number rounds like a double", `1.000000000000000005`, `1`},
		{"no HTML escaping (C03)", `"\u003cb>&\u2028"`, "\"<b>&\u2028\""},
		{"escapes", `"\u0008\t\n\f\r\u0000\u001F\u007f\"\\\/"`, "\"\\b\\t\\n\\f\\r\\u0000\\u001f\u007f\\\"\\\\/\""},
		{"surrogate pair", `"\ud83d\ude00"`, `"😀"`},
		{"names by UTF-16", `{"😀":1,"ﬁ":2,"z":3,"é":4,"":5}`, `{"":5,"z":3,"é":4,"😀":1,"ﬁ":2}`},
		{"names by content, not by spelling", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{"names that begin alike", `{"ab":1,"a":2,"abc":3}`, `{"a":2,"ab":1,"abc":3}`},
	} {
		got, err := canonjson.Canonicalize([]byte(c.text), canonjson.Limits{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		again(t, got)
	}
}

func TestRefused(t *testing.T) {
	const not = "$: not a single strict JSON value: "
	for _, c := range []struct{ name, text, want string }{
		{"nothing", ``, not + `there is no value at byte 0`},
		{"white space", "  ", not + `there is no value`},
		{"byte order mark", "\ufeff{}", not},
		{"white space that is not JSON's", "\u00a01", not},
		{"two values (C02)", `{"a":1} {"a":1}`, not},
		{"stray bracket (C02)", `{"a":1}]`, not},
		{"trailing word (C02)", `{"a":1} thanks`, not + "text after the value at byte 8"},
		{"cut short", `{"a":1`, not + `the text ends too early at byte 6`},
		{"wrong end", `[1}`, not},
		{"end of nothing", `]`, not},
		{"trailing comma", `[1,]`, not},
		{"name that is none", `{1:2}`, not + `a name must be a string`},
		{"name without value", `{"a"}`, not},
		{"NaN", `NaN`, not},
		{"plus", `+1`, not},
		{"leading zero", `01`, not},
		{"number out of range", `{"a":[0,{"b":1e400}]}`, not + `number out of range in $.a[1].b at byte 13`},
		{"negative number out of range", `-1.5e+9999`, not + `number out of range at byte 0`},
		{"control character in a string", "\"a\tb\"", not},
		{"lone surrogate (C05)", `"\ud83d"`, not},
		{"lone low surrogate (C05)", `"\ude00"`, not},
		{"lone surrogate in a name (C05)", `{"\ud83d":1}`, not},
		{"bytes that are not UTF-8 (C05)", "\"\xff\xfe\"", not},
		{"encoded surrogate", "\"\xed\xa0\xbd\"", not},
		{"repeated name (C04)", `{"status":"ok","count":1,"status":"failed"}`, "$.status: duplicate field `status`"},
		{"repeated name inside (C04)", `{"a":[{},{"b c":1,"b c":1}]}`, "$.a[1][\"b c\"]: duplicate field `b c`"},
		{"repeated by content (C04)", `{"a":1,"\u0061":1}`, "$.a: duplicate field `a`"},
		{"the first repetition", `{"b":1,"a":1,"b":2,"a":3}`, "$.b: duplicate field `b`"},
		{"after siblings with children", `[[1,[2]],[3,[x]]]`, not},
	} {
		_, err := canonjson.Parse([]byte(c.text), canonjson.Limits{})
		var syntax *canonjson.SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%s: error is %v", c.name, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %s, want %s", c.name, err, c.want)
		}
		if _, other := canonjson.ParseString(c.text, canonjson.Limits{}); other == nil || other.Error() != err.Error() {
			t.Errorf("%s: as a string: %v, want %v", c.name, other, err)
		}
	}
}

func TestFaultNamesItsElement(t *testing.T) {
	// The siblings before, and the children of the faulty one, do not count.
	_, err := canonjson.Parse([]byte(`[[1,2],[3,4,[5,6,1e999]]]`), canonjson.Limits{})
	if err == nil || !strings.Contains(err.Error(), "in $[1][2][2] ") {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	nest := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name string
		text string
		lim  canonjson.Limits
		ok   bool
	}{
		{"depth 64", nest(64), canonjson.Limits{}, true},
		{"depth 65", nest(65), canonjson.Limits{}, false},
		{"depth 65 by objects", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), canonjson.Limits{}, false},
		{"a hundred thousand brackets (C06)", nest(100_000), canonjson.Limits{}, false},
		{"the same, where depth is not limited (C06)", nest(100_000), canonjson.Limits{Depth: 1 << 30}, false},
		{"ten thousand levels", nest(10_000), canonjson.Limits{Depth: 1 << 30}, true},
		{"1 MiB", `"` + strings.Repeat("a", 1<<20-2) + `"`, canonjson.Limits{}, true},
		{"1 MiB and a byte", `"` + strings.Repeat("a", 1<<20-1) + `"`, canonjson.Limits{}, false},
		{"100,000 tokens", "[" + strings.Repeat("1,", 99_997) + "1]", canonjson.Limits{}, true},
		{"100,001 tokens", "[" + strings.Repeat("1,", 99_998) + "1]", canonjson.Limits{}, false},
		{"six tokens", `{"a":[1]}`, canonjson.Limits{Tokens: 6}, true},
		{"five tokens", `{"a":[1]}`, canonjson.Limits{Tokens: 5}, false},
		{"canonical form of 21 bytes", `1e20`, canonjson.Limits{Bytes: 21}, true},
		{"canonical form too large", `1e20`, canonjson.Limits{Bytes: 20}, false},
		{"size without a value", `1` + strings.Repeat(" ", 20), canonjson.Limits{Bytes: 20}, false},
	} {
		v, err := canonjson.Canonicalize([]byte(c.text), c.lim)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			again(t, v)
			if _, err := canonjson.Parse(v, c.lim); err != nil {
				t.Errorf("%s: canonical form: %v", c.name, err)
			}
		} else if len(err.Error()) > 2000 {
			t.Errorf("%s: error of %d bytes", c.name, len(err.Error()))
		}
	}
}

func TestErrorsAreBoundedAndSafe(t *testing.T) {
	long := strings.Repeat("é", 5000)
	hostile := "\\u0000\\n\\u202e\\u001b[31m"
	for _, text := range []string{
		`{"` + long + `":1,"` + long + `":2}`,
		`{"` + hostile + `":1,"` + hostile + `":2}`,
		strings.Repeat(`{"`+long+`":`, 60) + "x",
		strings.Repeat(`{"`+hostile+`":`, 60) + "1e999",
		"\x00\u202e",
		"[\"\\\u202e\"]",
	} {
		_, err := canonjson.Parse([]byte(text), canonjson.Limits{})
		if err == nil {
			t.Errorf("accepted: %.60q", text)
			continue
		}
		msg := err.Error()
		if len(msg) > 2000 || !utf8.ValidString(msg) || strings.ContainsAny(msg, "\x00\n\u202e\x1b") {
			t.Errorf("%d bytes: %.300q", len(msg), msg)
		}
	}
}

func TestNode(t *testing.T) {
	text := []byte(`{"b":[1,"x",true,null],"a":{"c":false}}`)
	n, err := canonjson.Parse(text, canonjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range text { // nothing of the text is kept
		text[i] = '#'
	}
	b, ok := n.Get("b")
	if !ok || b.Kind() != canonjson.Array || b.Len() != 4 || b.Name() != "b" {
		t.Fatalf("b = %v, %v", b, ok)
	}
	if b.At(0).Text() != "1" || b.At(1).Text() != "x" || !b.At(2).Bool() || b.At(3).Kind() != canonjson.Null {
		t.Errorf("b = %s", b.Append(nil))
	}
	if _, ok := n.Get("c"); ok {
		t.Error("c is not a member")
	}
	if _, ok := b.Get("c"); ok {
		t.Error("an array has no members")
	}
	if got := string(n.With([]canonjson.Node{b.With([]canonjson.Node{b.At(3)})}).Append(nil)); got != `{"b":[null]}` {
		t.Error(got)
	}
	if got := string(n.Append(nil)); got != `{"a":{"c":false},"b":[1,"x",true,null]}` {
		t.Error(got)
	}
}

// genValue draws a JSON text of any shape without integers beyond 2^53 and
// without repeated names.
func genValue(depth int) *rapid.Generator[string] {
	leaves := []*rapid.Generator[string]{
		rapid.SampledFrom([]string{"null", "true", "false", "-0", "1e21", "1E-7", "0.1e1", "[]", "{}"}),
		rapid.Map(rapid.Int64Range(-1<<53, 1<<53), func(i int64) string { return string(appendInt(i)) }),
		rapid.Custom(func(t *rapid.T) string {
			return rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})\.[0-9]{1,20}([eE][+-]?[0-9]{1,2})?`).Draw(t, "real")
		}),
		rapid.Map(rapid.String(), quote),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	inner := genValue(depth - 1)
	return rapid.OneOf(append(leaves,
		rapid.Map(rapid.SliceOfN(inner, 0, 5), func(vs []string) string { return "[" + strings.Join(vs, " ,") + "]" }),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 5), func(m map[string]string) string {
			var b strings.Builder
			b.WriteString("{ ")
			sep := ""
			for name, v := range m {
				b.WriteString(sep + quote(name) + ":" + v)
				sep = ","
			}
			return b.String() + "}"
		}),
	)...)
}

// quote writes every UTF-16 code unit as an escape.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r >= 0x10000 {
			r -= 0x10000
			b.WriteString(escape(0xd800+r>>10) + escape(0xdc00+r&0x3ff))
			continue
		}
		b.WriteString(escape(r))
	}
	b.WriteByte('"')
	return b.String()
}

func TestEqualToRFC8785(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := genValue(3).Draw(t, "text")
		got, err := canonjson.Canonicalize([]byte(text), canonjson.Limits{})
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		want, err := jcs.Transform([]byte(text))
		if err != nil {
			t.Skip("outside the oracle: ", err)
		}
		if string(got) != string(want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func FuzzCanonicalize(f *testing.F) {
	for _, s := range []string{
		`{"b":[1,2.50,-0,1e20],"a":"\u00e9\ud83d\ude00"}`, `{"a":1,"a":2}`, `[[[[`, `"\ud83d"`,
		`1e400`, `9007199254740993`, "\xff", ``, ` null `, `{"":{"":{}}}`, `[1 2]`, `{"a" 1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := canonjson.Canonicalize(text, canonjson.Limits{})
		if err != nil {
			if msg := err.Error(); !utf8.ValidString(msg) || len(msg) > 2000 {
				t.Errorf("%.300q", msg)
			}
			return
		}
		if !utf8.Valid(v) {
			t.Errorf("canonical form is not UTF-8: %q", v)
		}
		again(t, v)
	})
}

func BenchmarkParse(b *testing.B) {
	text := sample(16 << 10)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := canonjson.Parse(text, canonjson.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	text := sample(16 << 10)
	n, err := canonjson.Parse(text, canonjson.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		buf = n.Append(buf[:0])
	}
}

// sample returns a JSON text of about the given size with a bit of everything.
func sample(size int) []byte {
	const item = `{"id": 9007199254740993, "name": "Zoë \u0041 & co", "price": 12.50, "tags": ["a", "b c"], "ok": true, "note": null},`
	return []byte("[" + strings.Repeat(item, size/len(item)) + "0]")
}

package contract_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/contract"
)

// answer is a contract of the common kind: two required fields, one optional.
const answer = `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},
	"tags":{"type":"array","items":{"type":"string"}}},"required":["status","count"],"additionalProperties":false}`

// order nests objects in arrays in objects, with optional fields at each level.
const order = `{"type":"object","properties":{
	"items":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"},"price":{"type":"number"},
		"qty":{"type":"integer"}},"required":["sku","price"],"additionalProperties":false}},
	"meta":{"type":"object","properties":{"trace":{"type":"string"}},"additionalProperties":false},
	"paid":{"type":"boolean"},
	"extra":{}},"required":["items"],"additionalProperties":false}`

func mustParse(t testing.TB, schema string) *contract.Schema {
	t.Helper()
	s, issues := contract.ParseSchema([]byte(schema))
	if len(issues) > 0 {
		t.Fatalf("%s: %v", schema, issues)
	}
	return s
}

func TestCheck(t *testing.T) {
	const not = "$: not a single strict JSON value: "
	for _, c := range []struct{ name, schema, text, want, err string }{
		{"canonical", answer, ` {"status": "ok", "count": 3.0} `, `{"count":3,"status":"ok"}`, ""},
		{"missing", answer, `{"status":"ok"}`, "", "$.count: missing required field"},
		{"missing before the invalid that sorts later", answer, `{"status":1}`, "", "$.count: missing required field"},
		{"required before optional", answer, `{"tags":1,"status":"ok","count":"3"}`, "", "$.count: expected a number, got a string"},
		{"optional", answer, `{"tags":["a",7],"status":"ok","count":3}`, "", "$.tags[1]: expected a string, got a number"},
		{"unknown first, sorted", answer, `{"zeta":1,"alpha":2,"status":5}`, "", "$.alpha: unknown field `alpha`"},
		{"unknown after the last", answer, `{"status":"ok","count":1,"z":1}`, "", "$.z: unknown field `z`"},
		{"unknown by UTF-16", answer, `{"ﬁ":1,"😀":2}`, "", "$[\"😀\"]: unknown field `😀`"},
		{"null is not a string", answer, `{"status":null,"count":3}`, "", "$.status: expected a string, got null"},
		{"an optional null is absent (C09)", answer, `{"status":"ok","count":3,"tags":null}`, `{"count":3,"status":"ok"}`, ""},
		{"null among elements", answer, `{"status":"ok","count":3,"tags":[null]}`, "", "$.tags[0]: expected a string, got null"},
		{"nulls go at each level", order,
			`{"items":[{"sku":"a","price":1},{"sku":"b","price":2,"qty":null},{"sku":"c","price":3,"qty":4}],"meta":{"trace":null},"paid":null,"extra":null}`,
			`{"items":[{"price":1,"sku":"a"},{"price":2,"sku":"b"},{"price":3,"qty":4,"sku":"c"}],"meta":{}}`, ""},
		{"nulls stay in any", order, `{"items":[],"extra":{"a":null}}`, `{"extra":{"a":null},"items":[]}`, ""},
		{"nested path", order, `{"items":[{"sku":"a","price":1},{"sku":"b","price":"2"}]}`, "", "$.items[1].price: expected a number, got a string"},
		{"nested unknown", order, `{"items":[],"meta":{"debug":1}}`, "", "$.meta.debug: unknown field `debug`"},
		{"boolean", order, `{"items":[],"paid":1}`, "", "$.paid: expected a boolean, got a number"},
		{"integer is number", `{"type":"integer"}`, `3.5`, `3.5`, ""},
		{"any", `{}`, `null`, `null`, ""},
		{"required any takes null", `{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}`, `{"a":null}`, `{"a":null}`, ""},
		{"a string that holds JSON is a string", answer, `"{\"status\":\"ok\",\"count\":1}"`, "", "$: expected an object, got a string"},
		{"array of anything", `{"type":"array"}`, `[1,null]`, `[1,null]`, ""},
		{"an object is no array", `{"type":"array"}`, `{}`, "", "$: expected an array, got an object"},

		{"C01: backticks inside", answer, "```json\n{ \"status\": \"ok\", \"count\": 3, \"tags\": [\"wrap it in ```json fences```\"] }\n```",
			"{\"count\":3,\"status\":\"ok\",\"tags\":[\"wrap it in ```json fences```\"]}", ""},
		{"C02: two values", answer, `{"status":"ok","count":1} {"status":"ok","count":1}`, "", not},
		{"C02: stray bracket", answer, `{"status":"ok","count":1}]`, "", not},
		{"C02: word after", answer, `{"status":"ok","count":1} thanks`, "", not + "text after the value at byte 26"},
		{"C02: words before the fence", answer, "Here you go:\n```json\n{\"status\":\"ok\",\"count\":1}\n```", "", not},
		{"C02: two fences", answer, "```json\n{\"status\":\"ok\",\"count\":1}\n```\n```json\n{\"status\":\"ok\",\"count\":1}\n```", "", not},
		{"C03: digits and signs stay", answer, `{"status":"<b>ok</b> & done\u2028","count":9007199254740993}`,
			"{\"count\":9007199254740993,\"status\":\"<b>ok</b> & done\u2028\"}", ""},
		{"C04: repeated", answer, `{"status":"ok","count":1,"status":"failed"}`, "", "$.status: duplicate field `status`"},
		{"C04: repeated, optional", answer, `{"status":"ok","count":1,"tags":["a"],"tags":["b"]}`, "", "$.tags: duplicate field `tags`"},
		{"C06: a hundred thousand brackets", `{}`, strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), "",
			not + "nested deeper than 64 levels in $" + strings.Repeat("[0]", 64) + " at byte 64"},
		{"out of range", answer, `{"status":"ok","count":1e400}`, "", not + "number out of range in $.count at byte 23"},
		{"too large", `{}`, `"` + strings.Repeat("a", 1<<20) + `"`, "", not + "larger than 1048576 bytes"},
		{"too large when canonical", `{}`, "[" + strings.Repeat("1e20,", 60_000) + "1]", "", "$: canonical form is larger than 1048576 bytes"},
	} {
		got, err := mustParse(t, c.schema).Check(c.text)
		if c.err == "" {
			if err != nil || string(got) != c.want {
				t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
			}
			continue
		}
		var v *contract.Violation
		if !errors.As(err, &v) || got != nil {
			t.Errorf("%s: %s, %v", c.name, got, err)
			continue
		}
		if !strings.HasPrefix(v.Error(), c.err) || c.err != not && v.Error() != c.err {
			t.Errorf("%s: %v, want %s", c.name, v, c.err)
		}
	}
}

func TestValidateLeavesItsValueAlone(t *testing.T) {
	text := `{"items":[{"price":1,"qty":null,"sku":"a"}],"paid":null}`
	n, err := canonjson.ParseString(text, canonjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := mustParse(t, order).Validate(n)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out.Append(nil)); got != `{"items":[{"price":1,"sku":"a"}]}` {
		t.Error(got)
	}
	if got := string(n.Append(nil)); got != text {
		t.Errorf("the value given is now %s", got)
	}
}

func TestViolationIsBoundedAndSafe(t *testing.T) {
	long := strings.Repeat("é", 5000)
	for _, text := range []string{
		`{"` + long + `":1}`,
		`{"` + long + `":1,"` + long + `":1}`,
		`{"a\u001b[31m\n\u202eb":1}`,
		"{\"a\u2028`b\":1}",
		"\x1b[31m",
	} {
		_, err := mustParse(t, answer).Check(text)
		if err == nil {
			t.Errorf("accepted: %.60q", text)
			continue
		}
		if msg := err.Error(); len(msg) > 1000 || !utf8.ValidString(msg) || strings.ContainsAny(msg, "\n\x1b\u2028\u202e") {
			t.Errorf("%d bytes: %.300q", len(msg), msg)
		}
	}
	deep := strings.Repeat(`{"type":"array","items":`, 62) + answer + strings.Repeat("}", 62)
	_, err := mustParse(t, deep).Check(strings.Repeat("[", 62) + `{"` + long + `":1}` + strings.Repeat("]", 62))
	if err == nil || len(err.Error()) > 1500 {
		t.Errorf("%v", err)
	}
}

func TestParseSchemaIssues(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		want         []string
	}{
		// C10: every issue of every level in one reply.
		{"C10", `{"type":"object","properties":{"code":{"type":"string","pattern":"^A"},"level":{"enum":["a"]},
			"who":{"$ref":"#/$defs/P"},"nick":{"type":["string","null"]},
			"inner":{"type":"object","properties":{"x":{"type":"number","minimum":1}}}},
			"required":["code","ghost"],"additionalProperties":false}`, []string{
			"$.properties.code: unsupported JSON Schema keyword `pattern`",
			"$.properties.inner.properties.x: unsupported JSON Schema keyword `minimum`",
			"$.properties.inner: objects must set additionalProperties: false",
			"$.properties.level: unsupported JSON Schema keyword `enum`",
			"$.properties.nick: `type` must be a single string",
			"$.properties.who: unsupported JSON Schema keyword `$ref`",
			"$: required field `ghost` is not declared in properties",
		}},
		{"annotations inside", `{"type":"array","items":{"description":"d"}}`, []string{
			"$.items: unsupported JSON Schema keyword `description`",
		}},
		{"keywords of another type", `{"type":"object","items":{},"additionalProperties":false}`, []string{
			"$: keyword `items` does not apply to type `object`",
		}},
		{"keywords of a scalar", `{"type":"string","required":["a"],"additionalProperties":false}`, []string{
			"$: keyword `additionalProperties` does not apply to type `string`",
			"$: keyword `required` does not apply to type `string`",
		}},
		{"no type", `{"required":["a"]}`, []string{"$: missing `type` next to properties/items"}},
		{"a type that is none", `{"type":"null","items":{}}`, []string{"$: unsupported `type` value `null`"}},
		{"properties that are none", `{"type":"object","properties":1,"required":["a"],"additionalProperties":false}`, []string{
			"$: `properties` must be an object",
		}},
		{"additionalProperties as a schema", `{"type":"object","additionalProperties":{"type":"string"}}`, []string{
			"$: objects must set additionalProperties: false",
		}},
		{"required without properties", `{"type":"object","required":["a"],"additionalProperties":false}`, []string{
			"$: required field `a` is not declared in properties",
		}},
		{"repeated field", `{"type":"object","properties":{"a":{},"a":{"type":"string"}},"additionalProperties":false}`, []string{
			"$.properties.a: duplicate field `a`",
		}},
		{"no JSON", `{`, []string{"$: not a single strict JSON value: the text ends too early at byte 1"}},
		{"too large", `{"title":"` + strings.Repeat("a", contract.MaxSchemaBytes) + `"}`, []string{
			"$: schema is larger than 16384 bytes",
		}},
		{"too large when rendered", `{"type":"object","additionalProperties":false,"properties":{"a":{"type":"array"}` +
			manyArrays(600) + `}}`, []string{
			"$: schema is larger than 16384 bytes",
		}},
		{"too deep", strings.Repeat(`{"type":"array","items":`, 65) + "{}" + strings.Repeat("}", 65), []string{
			"$" + strings.Repeat(".items", 64) + ": schema is nested deeper than 64 levels",
		}},
	} {
		s, issues := contract.ParseSchema([]byte(c.schema))
		if got := sorted(issues); s != nil || !slices.Equal(got, slices.Sorted(slices.Values(c.want))) {
			t.Errorf("%s:\n%s, want\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// manyArrays returns properties that grow when rendered.
func manyArrays(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"` + string(rune('a'+i%26)) + string(rune('a'+i/26)) + `":{"type":"array"}`)
	}
	return b.String()
}

// The deepest schema takes the deepest value.
func TestDeepest(t *testing.T) {
	s := mustParse(t, strings.Repeat(`{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":`, 64)+"{}"+strings.Repeat("}}", 64))
	text := strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64)
	if v, err := s.Check(text); err != nil || string(v) != text {
		t.Error(v, err)
	}
	again := mustParse(t, s.Render().String())
	if !again.Render().Equal(s.Render()) {
		t.Error(again.Render())
	}
}

func TestRender(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"integer","title":"t","description":"d","$schema":"s"}`: `{"type":"number"}`,
		`{"type":"array"}`: `{"items":{},"type":"array"}`,
		`{"type":"object","additionalProperties":false}`: `{"additionalProperties":false,"properties":{},"required":[],"type":"object"}`,
		`{"type":"object","additionalProperties":false,"required":["ﬁ","😀","a","a"],"properties":{"a":{},"b":{},"ﬁ":{},"😀":{}}}`: `{"additionalProperties":false,"properties":{"a":{},"b":{},"😀":{},"ﬁ":{}},"required":["a","😀","ﬁ"],"type":"object"}`,
	} {
		s := mustParse(t, schema)
		if got := s.Render().String(); got != want {
			t.Errorf("%s renders %s, want %s", schema, got, want)
		}
	}
	// Schemas that mean the same have one digest, and it is not in the caller's hands.
	a, b := mustParse(t, `{"type":"array","items":{}}`), mustParse(t, ` {"type":"array"}`)
	before := a.Digest()
	clear(a.Render())
	if a.Digest() != before || a.Digest() != b.Digest() || !strings.HasPrefix(before, "sha256:") || len(before) != len("sha256:")+64 {
		t.Errorf("%s, %s, %s", before, a.Digest(), b.Digest())
	}
	if a.Digest() == mustParse(t, answer).Digest() {
		t.Error("two schemas, one digest")
	}
}

func TestExtract(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"```json\n{}\n```", "{}\n"},
		{"```\n{}\n```", "{}\n"},
		{" \n~~~~JSON c`d\r\n{}\r\n~~~~~ \r\n", "{}\r\n"},
		{"```\n```", ""},
		{"```\n\n```", "\n"},
		{"~~~\n```\n~~~", "```\n"},
		{"````\n```\n{}\n```\n````", "```\n{}\n```\n"},
		// Not one whole fence: as it is.
		{"{}", "{}"},
		{" {} ", " {} "},
		{"", ""},
		{"```", "```"},
		{"``\n{}\n``", "``\n{}\n``"},
		{"`{}`", "`{}`"},
		{"```{}```", "```{}```"},
		{"```json `x`\n{}\n```", "```json `x`\n{}\n```"},
		{"```json\n{}", "```json\n{}"},
		{"````\n{}\n```", "````\n{}\n```"},
		{"```\n{}\n~~~", "```\n{}\n~~~"},
		{"```\n{}\n```\nbye", "```\n{}\n```\nbye"},
		{"hi\n```\n{}\n```", "hi\n```\n{}\n```"},
		{"```\n{}\n```\n```\n{}\n```", "```\n{}\n```\n```\n{}\n```"},
	} {
		if got := contract.Extract(c.text); got != c.want {
			t.Errorf("Extract(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}

// I-09: default 3, ceiling 5, 0 is none.
func TestBudget(t *testing.T) {
	n := func(i int) *int { return &i }
	for _, c := range []struct {
		asked *int
		want  int
	}{{nil, 3}, {n(0), 0}, {n(2), 2}, {n(5), 5}, {n(50), 5}} {
		out, issues := contract.ParseOutput([]byte(answer), c.asked)
		if len(issues) > 0 || out.Budget() != c.want || out.Schema == nil {
			t.Errorf("%v: %d, want %d, %v", c.asked, out.Budget(), c.want, issues)
		}
		if c.asked != nil {
			*c.asked = 1 // the contract has its own copy
			if out.Budget() != c.want {
				t.Errorf("budget is now %d, want %d", out.Budget(), c.want)
			}
		}
	}
	if _, issues := contract.ParseOutput([]byte(`{"type":"x"}`), n(-1)); len(issues) != 2 {
		t.Error(issues)
	}
	if got := (contract.Output{MaxRepairAttempts: n(-1)}).Budget(); got != 0 {
		t.Error(got)
	}
}

func TestConcurrentUse(t *testing.T) {
	s := mustParse(t, answer)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if _, err := s.Check(`{"status":"ok","count":3,"tags":null}`); err != nil {
					t.Error(err)
				}
				s.Render()
				s.Digest()
			}
		})
	}
	wg.Wait()
}

func FuzzSchema(f *testing.F) {
	for _, s := range []string{answer, order, `{}`, `{"type":"array"}`, `{"type":"string","enum":[1]}`, `{"type":["a"]}`, `[]`, `{"type":"object","properties":{"":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, issues := contract.ParseSchema(text)
		if (s == nil) == (len(issues) == 0) {
			t.Fatalf("%v with issues %v", s, issues)
		}
		for _, i := range issues {
			if !utf8.ValidString(i.String()) || len(i.String()) > 2000 {
				t.Errorf("%.300q", i)
			}
		}
		if s == nil {
			return
		}
		r := s.Render()
		again, issues := contract.ParseSchema(r)
		if len(issues) > 0 || !again.Render().Equal(r) || again.Digest() != s.Digest() {
			t.Errorf("%s parses to %v, %v", r, again, issues)
		}
		if c, err := canonjson.Canonicalize(r, canonjson.Limits{Depth: 200}); err != nil || !c.Equal(r) {
			t.Errorf("not canonical: %s, %v", r, err)
		}
	})
}

func FuzzCheck(f *testing.F) {
	schemas := []*contract.Schema{mustParse(f, answer), mustParse(f, order), mustParse(f, `{}`)}
	for _, s := range []string{
		`{"status":"ok","count":3,"tags":null}`, "```json\n{\"items\":[{\"sku\":\"a\",\"price\":1,\"qty\":null}],\"extra\":[{}]}\n```",
		`{"a":1}`, `[`, `{"items":[{"sku":1}],"meta":{"trace":null}}`, "~~~\n1e20\n~~~",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range schemas {
			v, err := s.Check(text)
			if err != nil {
				if msg := err.Error(); !utf8.ValidString(msg) || len(msg) > 2000 {
					t.Errorf("%.300q", msg)
				}
				continue
			}
			w, err := s.Check(string(v))
			if err != nil || !w.Equal(v) {
				t.Errorf("%q is accepted as\n%s, and that as\n%s, %v", text, v, w, err)
			}
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	s := mustParse(b, `{"type":"object","properties":{"status":{"type":"string"},"count":{"type":"number"},"ok":{"type":"boolean"},
		"tags":{"type":"array","items":{"type":"string"}},"note":{"type":"string"}},"required":["status","count"],"additionalProperties":false}`)
	const text = `{ "status": "shipped", "count": 3, "ok": true, "tags": ["a", "b"], "note": "left at the door" }`
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Check(text); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzExtract feeds what a model answers: what is taken out of it stands in it, and
// taking out again changes nothing that is JSON.
func FuzzExtract(f *testing.F) {
	for _, s := range []string{"", "```", "```json\n{}\n```", "~~~~\n{}\n~~~\n~~~~", "``` `\n{}\n```", "```\n```\n", "x ```\n{}\n```", "\ufeff{}", "````\n```\n{}\n```\n````"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got := contract.Extract(text); !strings.Contains(text, got) {
			t.Fatalf("%q gives %q", text, got)
		}
	})
}

package inbound_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"pgregory.net/rapid"
)

func parse(t interface{ Fatal(...any) }, text string) canonjson.Node {
	n, err := canonjson.ParseString(text, canonjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const sample = `{"a":{"b":"text","n":12345678901234567890,"t":true,"z":null,"o":{"k":[1,"x"]},"":"empty","x/y":"slash","m~n":"tilde","{{a}}":"brace"},"l":["zero","one"],"evil":"{{/a/b}} {{event}} }}"}`

func TestTemplates(t *testing.T) {
	body := parse(t, sample)
	vars := map[string]string{"event": "issues.opened", "thread": ""}
	for _, c := range []struct{ text, want, path string }{
		{"plain", "plain", ""},
		{"", "", ""},
		{"{{/a/b}}", "text", ""},
		{"<{{ /a/b }}> {{/a/n}} {{/a/t}}", "<text> 12345678901234567890 true", ""},
		{"{{/l/0}}{{/l/1}}", "zeroone", ""},
		{"{{/a/}} {{/a/x~1y}} {{/a/m~0n}}", "empty slash tilde", ""},
		{"{{/a/o json}}", `{"k":[1,"x"]}`, ""},
		{"{{/a/b json}}", `"text"`, ""},
		{"{{event}}", "issues.opened", ""},
		{"{{\"{{\"}}", "{{", ""},
		{"a}}b", "a}}b", ""},
		{"{{/evil}}", "{{/a/b}} {{event}} }}", ""}, // what is filled in is never read again
		{"{{/a/b max=2}}", "te…", ""},
		{"{{/a/b max=4}}", "text", ""},
		{"[{{/none optional}}{{/a/z optional}}{{thread optional}}]", "[]", ""},
		{"{{/none}}", "", "$.none"},
		{"{{/a/z}}", "", "$.a.z"},
		{"{{/a/o}}", "", "$.a.o"},
		{"{{/a/o optional}}", "", "$.a.o"},
		{"{{/l/2}}", "", "$.l[\"2\"]"},
		{"{{/l/01}}", "", "$.l[\"01\"]"},
		{"{{/l/-}}", "", "$.l[\"-\"]"},
		{"{{/a/b/c}}", "", "$.a.b.c"},
		{"{{thread}}", "", "{{thread}}"},
	} {
		tmpl, err := inbound.ParseTemplate(c.text, "event", "thread")
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		got, err := tmpl.Render(body, vars, 1000)
		if got != c.want || (err != nil) != (c.path != "") {
			t.Errorf("%s gives %q %v, want %q", c.text, got, err, c.want)
		}
		if c.path == "" {
			continue
		}
		if e := problem.Of(err); e.Code != inbound.CodeMapping || len(e.Issues) != 1 || e.Issues[0].Path != c.path {
			t.Errorf("%s: %+v, want the path %s", c.text, e, c.path)
		}
	}
	for _, bad := range []string{
		"{{", "{{/a", "{{}}", "{{ }}", "{{a}}", "{{/a nonsense}}", "{{/a max=}}", "{{/a max=0}}", "{{/a max=-1}}", "{{/a max=1 max=2}}", "{{/a optional optional}}", "{{event json}}",
		"{{/a~}}", "{{/a~2}}", "{{/a~1~}}", "{{.}}", "{{range /a}}", "{{/" + strings.Repeat("x", 600) + "}}", strings.Repeat("{{/a}}", 65), strings.Repeat("x", 17<<10), "{{\"{{\"",
	} {
		if _, err := inbound.ParseTemplate(bad, "event"); err == nil {
			t.Errorf("%.60q is a template", bad)
		}
	}
	long, err := inbound.ParseTemplate("{{/a/b}}{{/a/b}}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := long.Render(body, nil, 7); !problem.Is(err, "input_too_large") {
		t.Errorf("past the limit: %v", err)
	}
	if text, err := long.Render(body, nil, 8); text != "texttext" || err != nil {
		t.Errorf("at the limit: %q %v", text, err)
	}
}

// Whatever a body holds, a template gives its literals with the body's text
// between them, once, and nothing of the text is a placeholder.
func TestTemplatesFillOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"{{/a}}", "{{", "}}", `{{"{{"}}`, "{{event}}"})).Draw(t, "value")
		clean, _ := canonjson.ReplaceInvalid(value)
		tmpl, err := inbound.ParseTemplate("<{{/a}}|{{/a optional}}>")
		if err != nil {
			t.Fatal(err)
		}
		body := parse(t, string(canonjson.AppendString([]byte(`{"a":`), value))+"}")
		got, err := tmpl.Render(body, map[string]string{"event": "e"}, 1<<20)
		if err != nil || got != "<"+clean+"|"+clean+">" {
			t.Fatalf("%q gives %q %v", value, got, err)
		}
	})
}

// Every pointer to a value finds it, and no other text finds anything else.
func TestPointersFind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-z~/0-9{} ."é-]{0,6}`), 1, 5).Draw(t, "names")
		body, text := []byte{}, ""
		for _, n := range names {
			body = append(canonjson.AppendString(append(body, '{'), n), ':')
			text += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(n)
		}
		body = append(body, "42"+strings.Repeat("}", len(names))...)
		p, err := inbound.ParsePointer(text)
		if err != nil {
			t.Fatal(err)
		}
		n, ok := p.Find(parse(t, string(body)))
		if !ok || n.Text() != "42" {
			t.Fatalf("%s finds nothing in %s", text, body)
		}
		if _, ok := append(p[:len(p):len(p)], "0").Find(parse(t, string(body))); ok {
			t.Fatal("something is below a number")
		}
	})
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"a{{/b}}c", "{{/a/b optional max=3 json}}", "{{event}}", `{{"{{"}}`, "{{", "{{/~01}}"} {
		f.Add(s, sample)
	}
	f.Fuzz(func(t *testing.T, text, body string) {
		tmpl, err := inbound.ParseTemplate(text, "event")
		if err != nil {
			return
		}
		n, err := canonjson.ParseString(body, canonjson.Limits{})
		if err != nil {
			return
		}
		const limit = 4096
		out, err := tmpl.Render(n, map[string]string{"event": "e"}, limit)
		var p *problem.Error
		if err != nil && !errors.As(err, &p) {
			t.Fatalf("an error of another kind: %v", err)
		}
		if len(out) > limit {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

package inbound

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Bounds of a template.
const (
	maxTemplate     = 16 << 10 // bytes of its text
	maxPlaceholders = 64
)

// CodeMapping is the code of a body that does not map: something that the
// configuration asks for is not in it, or not of its kind.
const CodeMapping = "mapping_failed"

// Template is a text with placeholders, compiled. There is no code in it, and
// nothing that a body holds is ever read as one: what is filled in is text.
//
//	{{/issue/title}}            a string, number or boolean of the body
//	{{/issue/body optional}}    empty where nothing, or null, is there
//	{{/issue/body max=4000}}    cut to so many bytes, with an ellipsis
//	{{/labels json}}            any value, as JSON
//	{{event}}                   a variable of the connector
//	{{"{{"}}                    two braces
type Template struct {
	parts []part
}

// part is a literal text or a placeholder.
type part struct {
	literal  string
	pointer  Pointer // nil: not of the body
	variable string
	optional bool
	asJSON   bool
	max      int
}

// ParseTemplate compiles a template whose variables are named. The text of the
// error is for people.
func ParseTemplate(text string, variables ...string) (*Template, error) {
	if len(text) > maxTemplate {
		return nil, mistakef("a template holds at most %d bytes", maxTemplate)
	}
	t := &Template{}
	for n := 0; ; n++ {
		before, rest, found := strings.Cut(text, "{{")
		if before != "" {
			t.parts = append(t.parts, part{literal: before})
		}
		if !found {
			return t, nil
		}
		if n == maxPlaceholders {
			return nil, mistakef("a template has at most %d placeholders", maxPlaceholders)
		}
		if after, ok := strings.CutPrefix(rest, `"{{"}}`); ok {
			t.parts = append(t.parts, part{literal: "{{"})
			text = after
			continue
		}
		inner, after, closed := strings.Cut(rest, "}}")
		if !closed {
			return nil, mistakef("the placeholder {{%.40s has no end: write }}", rest)
		}
		p, err := placeholder(inner, variables)
		if err != nil {
			return nil, err
		}
		t.parts = append(t.parts, p)
		text = after
	}
}

func placeholder(inner string, variables []string) (p part, err error) {
	words := strings.Fields(inner)
	if len(words) == 0 {
		return p, mistakef("an empty placeholder: write {{/a/json/pointer}}")
	}
	if strings.HasPrefix(words[0], "/") {
		if p.pointer, err = ParsePointer(words[0]); err != nil {
			return p, err
		}
	} else {
		for _, v := range variables {
			if v == words[0] {
				p.variable = v
			}
		}
		if p.variable == "" {
			return p, mistakef("{{%.40s}} is neither a JSON pointer, which begins with /, nor a variable that there is here (%s)", words[0], strings.Join(variables, ", "))
		}
	}
	for _, w := range words[1:] {
		digits, isMax := strings.CutPrefix(w, "max=")
		switch {
		case w == "optional" && !p.optional:
			p.optional = true
		case w == "json" && p.pointer != nil && !p.asJSON:
			p.asJSON = true
		case isMax && p.max == 0:
			if p.max, err = strconv.Atoi(digits); err != nil || p.max < 1 {
				return p, mistakef("max= wants a number of bytes, at least 1")
			}
		default:
			return p, mistakef("%.40q is no word of a placeholder; there are optional, json (of a pointer) and max=N, each once", w)
		}
	}
	return p, nil
}

// Fixed says whether the template has no placeholder.
func (t *Template) Fixed() bool {
	for i := range t.parts {
		if t.parts[i].literal == "" {
			return false
		}
	}
	return true
}

// Render fills the template from a body and variables. The result holds at most
// limit bytes. The error is a *problem.Error with the path.
func (t *Template) Render(body canonjson.Node, variables map[string]string, limit int) (string, error) {
	var b strings.Builder
	for i := range t.parts {
		text, err := t.parts[i].render(body, variables)
		if err != nil {
			return "", err
		}
		if b.Len()+len(text) > limit {
			return "", problem.New(problem.TooLarge, "input_too_large", "what the body is mapped to holds more than %d bytes", limit)
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func (p *part) render(body canonjson.Node, variables map[string]string) (string, error) {
	text, path := p.literal, ""
	switch {
	case p.literal != "":
		return text, nil
	case p.variable != "":
		text, path = variables[p.variable], "{{"+p.variable+"}}"
		if text == "" && !p.optional {
			return "", unmapped(path, "the event has none")
		}
	default:
		path = p.pointer.Path()
		n, ok := p.pointer.Find(body)
		if !ok || n.Kind() == canonjson.Null {
			if p.optional {
				return "", nil
			}
			return "", unmapped(path, "must be there")
		}
		switch {
		case p.asJSON:
			text = string(n.Append(nil))
		case n.Kind() == canonjson.String || n.Kind() == canonjson.Number:
			text = n.Text()
		case n.Kind() == canonjson.Bool:
			text = strconv.FormatBool(n.Bool())
		default:
			return "", unmapped(path, "must be a string, a number or a boolean")
		}
	}
	if p.max > 0 && len(text) > p.max {
		text = canonjson.CutRunes(text, p.max) + "…"
	}
	return text, nil
}

// unmapped is a body that lacks what its connector asks for.
func unmapped(path, text string) error {
	return problem.New(problem.Invalid, CodeMapping, "%s %s", path, text).With(problem.Issue{Path: path, Text: text})
}

// mistake is a mistake in the configuration.
type mistake string

func (m mistake) Error() string { return string(m) }

func mistakef(format string, args ...any) error { return mistake(fmt.Sprintf(format, args...)) }

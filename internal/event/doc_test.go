package event_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
)

const reference = "../../docs/reference/events.md"

// The reference of events is made of the catalogue and its comments, so that
// it cannot say anything else than the code.
func TestReference(t *testing.T) {
	if *rewrite {
		if err := os.MkdirAll("../../docs/reference", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, reference, newDoc(t).write())
}

// doc is what the package's source says of its types.
type doc struct {
	t       *testing.T
	types   map[string]string // comment of a type
	fields  map[string]string // comment of Type.Field
	choices map[string][]string
	order   []event.Type // as the source lists them
	live    []string
	later   []reflect.Type // shapes to tell behind the types
	told    map[reflect.Type]bool
	out     strings.Builder
}

func newDoc(t *testing.T) *doc {
	t.Helper()
	d := &doc{t: t, types: map[string]string{}, fields: map[string]string{}, choices: map[string][]string{}, told: map[reflect.Type]bool{}}
	files := token.NewFileSet()
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name.Name(), ".go") || strings.HasSuffix(name.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if g, ok := decl.(*ast.GenDecl); ok {
				d.declared(g)
			}
		}
	}
	return d
}

func (d *doc) declared(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			name := spec.Name.Name
			d.types[name] = sentence(spec.Doc, g.Doc)
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, id := range f.Names {
						d.fields[name+"."+id.Name] = sentence(f.Doc, f.Comment)
					}
				}
			}
		case *ast.ValueSpec:
			for i, id := range spec.Names {
				if i >= len(spec.Values) {
					continue
				}
				lit, ok := spec.Values[i].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(lit.Value)
				if err != nil {
					d.t.Fatal(err)
				}
				if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "Type" {
					d.order = append(d.order, event.Type(value))
				} else if ok {
					d.choices[of.Name] = append(d.choices[of.Name], choice(value, sentence(spec.Comment)))
				} else if strings.HasPrefix(id.Name, "Live") {
					d.live = append(d.live, value)
				}
			}
		}
	}
}

func choice(value, meaning string) string {
	if meaning == "" {
		return "`" + value + "`"
	}
	return "`" + value + "`: " + meaning
}

// sentence is the first comment that says something, on one line.
func sentence(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if g != nil {
			return strings.Join(strings.Fields(g.Text()), " ")
		}
	}
	return ""
}

func (d *doc) write() []byte {
	d.out.WriteString(`# Events

Written by a test from the catalogue in ` + "`internal/event`" + ` and its comments; change those, then run
` + "`go test ./internal/event -rewrite`" + `.

The set of types is closed. A type gains fields or a version, it never changes meaning. Every event stands in one
stream, has a gap-free sequence number there, and carries the hash of the one before it.

## Envelope

On the wire and in exports an event is one canonical JSON object (RFC 8785). Members that have nothing to say are absent.

| member | JSON | meaning |
| --- | --- | --- |
| ` + "`agent_id`" + ` | string | the agent it is about |
| ` + "`call_id`" + ` | string | the tool call it is about |
| ` + "`caused_by`" + ` | string | id of another event |
| ` + "`data`" + ` | object or null | content, by type; null when it was erased |
| ` + "`data_digest`" + ` | string | ` + "`sha256:`" + ` of a salt, the place in the append and the canonical data |
| ` + "`epoch`" + ` | integer | ownership in which it was appended; never decreases in a stream |
| ` + "`fsm_state`" + ` | string | place of the run on its process path |
| ` + "`hash`" + ` | string | ` + "`sha256:`" + ` of the hash before it and the canonical envelope without ` + "`data` and `hash`" + ` |
| ` + "`id`" + ` | string | ` + "`evt_…`" + `, derived from stream and sequence |
| ` + "`run_id`" + ` | string | the run it is about |
| ` + "`seq`" + ` | integer | from 1, gap-free in its stream |
| ` + "`session_id`" + ` | string | the session it is about |
| ` + "`step_id`" + ` | string | the step it is about |
| ` + "`stream`" + ` | string | ` + "`session:ses_…`, `target:tgt_…`, `job:job_…` or `audit:daemon`" + ` |
| ` + "`time`" + ` | string | UTC, microseconds, fixed width: ` + "`2006-01-02T15:04:05.000000Z`" + ` |
| ` + "`turn`" + ` | integer | the turn it is about, from 1 |
| ` + "`type`" + ` | string | one of the types below |
| ` + "`user_id`" + ` | string | whose session it is |
| ` + "`version`" + ` | integer | of the type |

## Types

All of these are durable.
`)
	for _, typ := range d.order {
		data, version, ok := event.New(typ)
		if !ok {
			d.t.Errorf("%s has a name and is not in the catalogue", typ)
			continue
		}
		t := reflect.TypeOf(data).Elem()
		fmt.Fprintf(&d.out, "\n### `%s`\n\nVersion %d. %s\n", typ, version, d.about(t))
		d.members(t)
	}
	d.out.WriteString("\n## Shapes\n\nObjects that stand in the data of several types.\n")
	for i := 0; i < len(d.later); i++ {
		fmt.Fprintf(&d.out, "\n### %s\n\n%s\n", d.later[i].Name(), d.about(d.later[i]))
		d.members(d.later[i])
	}
	d.out.WriteString("\n## Live only\n\nShown to subscribers, never stored, without a sequence number: a reader that resumes does not see them again.\n\n")
	for _, kind := range d.live {
		fmt.Fprintf(&d.out, "* `%s`\n", kind)
	}
	return []byte(d.out.String())
}

// about is the comment of a type without its Go name in front.
func (d *doc) about(t reflect.Type) string {
	text := d.types[t.Name()]
	if text == "" {
		d.t.Errorf("%s has no comment", t.Name())
	}
	rest, ok := strings.CutPrefix(text, t.Name()+" ")
	if !ok {
		d.t.Errorf("the comment of %s begins with another name: %s", t.Name(), text)
		return text
	}
	return strings.ToUpper(rest[:1]) + rest[1:]
}

func (d *doc) members(t reflect.Type) {
	if t.NumField() == 0 {
		d.out.WriteString("\nNo members.\n")
		return
	}
	d.out.WriteString("\n| member | JSON | meaning |\n| --- | --- | --- |\n")
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := d.kind(f.Type)
		if options == "omitzero" {
			kind += ", optional"
		}
		meaning := []string{d.fields[t.Name()+"."+f.Name]}
		if c := d.choices[f.Type.Name()]; c != nil {
			meaning = append(meaning, "One of "+strings.Join(c, "; "))
		}
		meaning = slices.DeleteFunc(meaning, func(s string) bool { return s == "" })
		if len(meaning) == 0 {
			word := glossary[t.Name()+"."+name]
			if word == "" {
				word = glossary[name]
			}
			if word == "" {
				d.t.Errorf("nothing says what %s.%s means", t.Name(), name)
			}
			meaning = append(meaning, word)
		}
		fmt.Fprintf(&d.out, "| `%s` | %s | %s |\n", name, kind, strings.ReplaceAll(strings.Join(meaning, ". "), "|", "\\|"))
	}
}

func (d *doc) kind(t reflect.Type) string {
	if t == valueType {
		return "any"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.kind(t.Elem())
	case reflect.Slice:
		return "array of " + d.kind(t.Elem())
	case reflect.Map:
		return "object of " + d.kind(t.Elem())
	case reflect.Struct:
		if !d.told[t] {
			d.told[t] = true
			d.later = append(d.later, t)
		}
		return fmt.Sprintf("[%s](#%s)", t.Name(), strings.ToLower(t.Name()))
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	}
	d.t.Errorf("no JSON name for %s", t)
	return t.String()
}

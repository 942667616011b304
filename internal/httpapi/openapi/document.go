package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
)

type object = map[string]any

// Document makes the OpenAPI 3.1 document of operations. Members of types come
// from their json tags, their descriptions from the comments of package api.
func Document(operations []Operation, version string) ([]byte, error) {
	s := &schemas{made: object{}}
	shown, err := examples()
	if err != nil {
		return nil, err
	}
	paths := object{}
	for i := range operations {
		op := &operations[i]
		item, _ := paths[op.Path].(object)
		if item == nil {
			item = object{}
			paths[op.Path] = item
		}
		made := s.operation(op)
		addExamples(made, shown[op.ID])
		item[strings.ToLower(op.Method)] = made
	}
	if s.err != nil {
		return nil, s.err
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{"title": "Holdfast", "version": cmp.Or(version, "dev"),
			"description": "Errors are problem details (RFC 9457); decide by `code`, never by a text. Times are RFC 3339 in UTC. Query parameters that an operation does not know are refused."},
		"paths": paths,
		"components": object{
			"schemas":         s.made,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
	})
}

func (s *schemas) operation(op *Operation) object {
	out := object{"operationId": op.ID, "summary": op.Summary, "tags": []string{op.group()}}
	notes := op.Notes
	if op.Role == gate.Public {
		out["security"] = []any{}
	} else {
		out["security"] = []any{object{"token": []any{}}}
		notes = strings.TrimSpace(notes + "\n\nRole: " + op.Role.String() + ".")
	}
	if notes != "" {
		out["description"] = notes
	}
	var params []any
	for _, name := range op.pathNames() {
		params = append(params, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}, "description": pathTexts[name]})
	}
	for _, p := range op.Params {
		params = append(params, object{"name": p.Name, "in": p.In, "schema": object{"type": p.Format}, "description": p.Text})
	}
	if params != nil {
		out["parameters"] = params
	}
	if t := op.Body; t != nil {
		out["requestBody"] = object{"required": !allOptional(t), "content": object{"application/json": object{"schema": s.of(t)}}}
	}
	if op.Raw {
		media := "application/octet-stream"
		if op.ID == "receiveEvent" {
			media = "application/json"
		}
		out["requestBody"] = object{"required": true, "content": object{media: object{"schema": object{}}}}
	}
	answers := object{}
	for _, a := range op.Answers {
		answer := object{"description": a.Text}
		if a.Body != nil {
			content := object{}
			for media := range strings.SplitSeq(cmp.Or(a.Media, "application/json"), ", ") {
				content[media] = object{"schema": s.of(a.Body)}
			}
			answer["content"] = content
			if op.ID == "getBlob" {
				content["application/json"] = object{"schema": object{}}
			}
		}
		answers[strconv.Itoa(a.Status)] = answer
	}
	byStatus := op.problemCodes()
	for _, status := range op.problems() {
		answers[strconv.Itoa(status)] = s.problem(http.StatusText(status), byStatus[status])
	}
	server := slices.Clone(everyCodes)
	for status, names := range byStatus {
		if status >= 500 {
			server = append(server, names...)
		}
	}
	answers["default"] = s.problem("Trouble on the daemon's side", server)
	out["responses"] = answers
	return out
}

// problem is an answer with problem details whose code is one of these.
func (s *schemas) problem(text string, names []string) object {
	schema := s.of(reflect.TypeFor[api.Problem]())
	if len(names) > 0 {
		text += ": " + codeList(names)
		schema = object{"allOf": []any{schema, object{"properties": object{"code": object{"enum": names}}}}}
	}
	return object{"description": text + ".", "content": object{"application/problem+json": object{"schema": schema}}}
}

var pathTexts = map[string]string{
	"s": "A session: its `ses_…` id, or the caller's own id for it.",
	"r": "A run: its `run_…` id.", "d": "A delivery: its `dlv_…` id.", "t": "A token: its `tok_…` id.",
	"a":      "An asset: its `ast_…` id.",
	"target": "A receiver: its `tgt_…` id.",
	"name":   "A connector: its name in the configuration.",
	"secret": "The name of a secret slot: [A-Za-z0-9_-]{1,64}.",
	"key":    "The name of a secret.",
	"j":      "A job: its `job_…` id.",
	"ref":    "A digest (`sha256:…`).",
}

// group is the part of the interface that an operation belongs to.
func (op *Operation) group() string {
	rest, ok := strings.CutPrefix(op.Path, "/v1/")
	if !ok {
		return "operations"
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func (op *Operation) pathNames() []string {
	var names []string
	for part := range strings.SplitSeq(op.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

// problems lists the statuses of the problems that the operation may answer with.
func (op *Operation) problems() []int {
	list := slices.Clone(op.Fails)
	list = append(list, 400, 403, 421, 429)
	if op.Role > gate.Public {
		list = append(list, 401)
	}
	if strings.Contains(op.Path, "{") {
		list = append(list, 404)
	}
	switch {
	case op.Body != nil:
		list = append(list, 408, 413, 415)
	case op.Raw:
		list = append(list, 408, 413)
	}
	if op.Method != "GET" {
		list = append(list, 403, 507)
	}
	if op.Method != "GET" && !op.Raw {
		list = append(list, 415)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func allOptional(t reflect.Type) bool {
	for i := range t.NumField() {
		if _, optional := exchange.Member(t.Field(i)); !optional {
			return false
		}
	}
	return true
}

// schemas makes JSON Schemas of Go types.
type schemas struct {
	made object
	err  error
}

var (
	typeRaw  = reflect.TypeFor[api.Raw]()
	typeTime = reflect.TypeFor[time.Time]()
)

// of gives the schema of a type; one with a name becomes a component.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t == typeRaw:
		return object{}
	case t == typeTime:
		return object{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{"type": "object"}
		}
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		name := schemaName(t)
		if _, ok := s.made[name]; !ok {
			s.made[name] = object{} // types may refer to themselves
			s.made[name] = s.structure(t, name)
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	if s.err == nil {
		s.err = fmt.Errorf("openapi: no schema for %s", t)
	}
	return object{}
}

func (s *schemas) structure(t reflect.Type, name string) object {
	props := object{}
	var required []string
	for i := range t.NumField() {
		f := t.Field(i)
		key, optional := exchange.Member(f)
		p := s.of(f.Type)
		if strings.HasPrefix(name, "Update") && f.Type.Kind() == reflect.Pointer {
			p["type"] = []any{p["type"], "null"} // null clears
		}
		if text := descriptions[name+"."+key]; text != "" {
			p["description"] = text
		}
		props[key] = p
		if !optional {
			required = append(required, key)
		}
	}
	out := object{"type": "object", "properties": props, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	if text := descriptions[name]; text != "" {
		out["description"] = text
	}
	return out
}

// schemaName is the name of a type; a page of T is TList.
func schemaName(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if !generic {
		return name
	}
	arg = strings.TrimSuffix(arg, "]")
	return arg[strings.LastIndex(arg, ".")+1:] + name
}

package exchange

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Read reads the body into a type of package api: strict JSON within bounds,
// no member that the type does not have. No body reads as {}.
func (x *Exchange) Read(to any) error {
	body, err := x.Receive(x.MaxBody)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return x.complete(to)
	}
	if !isJSON(x.R.Header.Get("Content-Type")) {
		return errNotJSON
	}
	x.body, err = canonjson.Parse(body, canonjson.Limits{Bytes: int(x.MaxBody)})
	if err != nil {
		var syntax *canonjson.SyntaxError
		if !errors.As(err, &syntax) {
			return err
		}
		return problem.New(problem.Invalid, "invalid_json", "%s", syntax.Error()).With(problem.Issue{Path: syntax.Path, Text: syntax.Msg})
	}
	err = json.Unmarshal(body, to, json.RejectUnknownMembers(true))
	if err != nil {
		return x.misfit(err)
	}
	return x.complete(to)
}

// Receive reads a body of up to limit bytes. What is wrong with it is a problem.
func (x *Exchange) Receive(limit int64) ([]byte, error) {
	body, err := x.readAll(limit)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && x.Stops():
		return nil, eventlog.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, WithStatus(http.StatusRequestTimeout, problem.New(problem.Invalid, "body_timeout", "the body did not come in time").Because(err))
	case errors.As(err, &tooLarge):
		return nil, problem.New(problem.TooLarge, "body_too_large", "the body holds more than %d bytes", tooLarge.Limit)
	case err != nil:
		return nil, problem.New(problem.Invalid, "invalid_body", "the body cannot be read").Because(err)
	}
	return body, nil
}

// readAll reads the body within its bounds of size and time.
func (x *Exchange) readAll(limit int64) ([]byte, error) {
	from, ok := x.R.Body.(*body)
	if !ok {
		from = &body{ReadCloser: x.R.Body} // there is none, or this is no connection
	}
	conn := http.NewResponseController(x.W)
	timed := conn.SetReadDeadline(time.Now().Add(x.BodyTimeout)) == nil
	var all []byte
	var err error
	x.hurried(conn, func() { all, err = io.ReadAll(http.MaxBytesReader(x.W, from, limit)) })
	if err == nil && timed {
		err = conn.SetReadDeadline(time.Time{}) // what follows may take long
	}
	if err != nil {
		from.over = true
		x.W.Header().Set("Connection", "close") // the rest is not waited for
		_ = conn.SetReadDeadline(time.Now())
	}
	return all, err
}

// complete checks that the members which to cannot do without are there.
func (x *Exchange) complete(to any) error {
	t := reflect.TypeOf(to).Elem()
	for i := range t.NumField() {
		name, optional := Member(t.Field(i))
		if optional {
			continue
		}
		if _, ok := x.body.Get(name); !ok {
			return problem.New(problem.Invalid, "invalid_body", "$.%s must be given", name).With(problem.Issue{Path: "$." + name, Text: "must be given"})
		}
	}
	return nil
}

// Member gives the JSON name of a field, and whether it may be left out.
func Member(f reflect.StructField) (name string, optional bool) {
	name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, strings.Contains(rest, "omit")
}

// misfit says where a body that is strict JSON does not fit its type.
func (x *Exchange) misfit(err error) error {
	var se *json.SemanticError
	if !errors.As(err, &se) {
		return problem.New(problem.Invalid, "invalid_body", "the body does not fit").Because(err)
	}
	path := pathOf(x.body, string(se.JSONPointer))
	text := "does not fit"
	if want := kindName(se.GoType); want != "" {
		text = "must be " + want
	}
	if errors.Is(err, json.ErrUnknownName) {
		text = "is not a member that is known here" + members(se.GoType)
	}
	return problem.New(problem.Invalid, "invalid_body", "%s %s", path, text).Because(err).With(problem.Issue{Path: path, Text: text})
}

// members names those that a struct has, for who named another.
func members(t reflect.Type) string {
	if t == nil || t.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for i := range t.NumField() {
		if name, _ := Member(t.Field(i)); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "; there are " + strings.Join(names, ", ")
}

// pathOf gives the path to what a JSON pointer (RFC 6901) points at in n.
func pathOf(n canonjson.Node, pointer string) string {
	if pointer == "" {
		return "$"
	}
	var steps []func(*canonjson.Trail)
	for _, token := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		if i, err := strconv.Atoi(token); err == nil && n.Kind() == canonjson.Array && i < n.Len() && i >= 0 {
			n = n.At(i)
			steps = append(steps, func(t *canonjson.Trail) { t.Element(i) })
			continue
		}
		n, _ = n.Get(token)
		steps = append(steps, func(t *canonjson.Trail) { t.Member(token) })
	}
	var trail canonjson.Trail
	for i := len(steps) - 1; i >= 0; i-- {
		steps[i](&trail)
	}
	return trail.String()
}

func kindName(t reflect.Type) string {
	if t == nil {
		return ""
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "an integer"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return ""
}

// IsNull says whether the body has a member with the value null.
func (x *Exchange) IsNull(name string) bool {
	n, ok := x.body.Get(name)
	return ok && n.Kind() == canonjson.Null
}

// Given says whether the body has a member.
func (x *Exchange) Given(name string) bool {
	_, ok := x.body.Get(name)
	return ok
}

// JSONOnly refuses a changing request whose body is said to be something else
// than JSON, also where there is none or nobody reads it: such requests a page
// may send without asking first.
func (x *Exchange) JSONOnly() error {
	if x.R.Method == http.MethodGet || x.R.Method == http.MethodHead {
		return nil
	}
	header := x.R.Header["Content-Type"]
	if len(header) == 0 || len(header) == 1 && isJSON(header[0]) {
		return nil
	}
	return errNotJSON
}

var errNotJSON = WithStatus(http.StatusUnsupportedMediaType, problem.New(problem.Invalid, "unsupported_media_type", "a body must be sent with Content-Type: application/json"))

func isJSON(header string) bool {
	if header == "application/json" {
		return true
	}
	media, params, err := mime.ParseMediaType(header)
	charset := params["charset"]
	return err == nil && media == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8"))
}

package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// route is one operation. The table of routes makes the mux, the OpenAPI
// document and the reference page.
type route struct {
	method, path string
	id           string // operationId
	summary      string
	notes        string // what a caller must know beyond the summary
	role         gate.Role
	params       []param // of query and header; those of the path follow from path
	action       action
	answers      []answer
	fails        []int // statuses of problems, beyond those that follow from the shape
	stream       bool  // it goes on: it counts among the streams, not the requests
}

// param is a parameter of the query or a header.
type param struct {
	name, in, format, text string
}

// answer is a success.
type answer struct {
	status int
	body   reflect.Type // nil: no content
	media  string       // default application/json; several are separated by ", "
	text   string
}

// gives is an answer with a body of type T.
func gives[T any](status int, text string) answer {
	return answer{status: status, body: reflect.TypeFor[T](), text: text}
}

// action does the work of a route. body is the type of its request body, nil when it has none.
type action struct {
	body reflect.Type
	raw  bool // the body is bytes of any kind
	run  func(*call) error
}

func plain(f func(*call) error) action { return action{run: f} }

// takes is an action with a strict JSON body of type T. An empty body reads as {}.
func takes[T any](f func(*call, *T) error) action {
	return action{body: reflect.TypeFor[T](), run: func(c *call) error {
		req := new(T)
		if err := c.Read(req); err != nil {
			return err
		}
		return f(c, req)
	}}
}

// call is one request on its way through a handler.
type call struct {
	*server
	exchange.Exchange
	query map[string]string // known parameters only, each at most once
	who   caller

	local  bool // it came by the unix socket
	inside bool // it has a place among the requests

	why string // the sender of an event is not believed, for the record
}

// caller is who asks, and what they may do.
type caller struct {
	admission.Caller
	role  gate.Role
	token tokens.Presented // zero: the local door
}

// call makes the call of a request.
func (s *server) call(w http.ResponseWriter, r *http.Request, local bool) *call {
	return &call{server: s, Exchange: exchange.Exchange{Config: &s.exchange, W: w, R: r}, local: local}
}

// fail answers with a problem.
func (c *call) fail(err error) { c.Fail(err, c.refused) }

// newMux makes the mux of the table. local says that no token is wanted.
func (s *server) newMux(routes []route, local bool) *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			c := s.call(w, r, local)
			if err := c.serve(&rt); err != nil {
				c.fail(err)
			}
		})
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	for path, list := range methods {
		if slices.Contains(list, "GET") {
			list = append(list, "HEAD")
		}
		slices.Sort(list)
		allow := strings.Join(list, ", ")
		for _, pattern := range restOf(path, list, methods) {
			mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Allow", allow)
				c := s.call(w, r, local)
				c.fail(c.stranger(exchange.WithStatus(http.StatusMethodNotAllowed, problem.New(problem.Invalid, "method_not_allowed",
					"this resource takes %s only", allow))))
			})
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c := s.call(w, r, local)
		c.fail(c.stranger(problem.New(problem.NotFound, "not_found", "there is nothing at this path")))
	})
	return mux
}

// restOf gives the patterns of a path's other methods: the path alone, unless a
// path with a name in it stands for it too (/v1/targets/{target} for
// /v1/targets/test). The mux takes no pattern then that says more of the path and
// less of the method, so that the methods are named.
func restOf(path string, list []string, all map[string][]string) []string {
	within := func(other string) bool {
		a, b := strings.Split(path, "/"), strings.Split(other, "/")
		if len(a) != len(b) || path == other {
			return false
		}
		for i := range a {
			if a[i] != b[i] && !strings.HasPrefix(b[i], "{") {
				return false
			}
		}
		return true
	}
	for other := range all {
		if !within(other) {
			continue
		}
		var out []string
		for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"} {
			if !slices.Contains(list, m) {
				out = append(out, m+" "+path)
			}
		}
		return out
	}
	return []string{path}
}

// serve does what comes before every handler, in this order: token, role, what
// the body is, a place, parameters. See guard for what comes before.
func (c *call) serve(rt *route) error {
	if rt.role == gate.Public {
		if err := c.stranger(nil); err != nil {
			return err
		}
	} else {
		who, err := c.authenticate(c.local)
		if err != nil {
			return err
		}
		if c.who = who; who.role < rt.role {
			return problem.New(problem.Forbidden, "role_required", "this wants a token with the role %s", rt.role)
		}
	}
	if !rt.action.raw {
		if err := c.JSONOnly(); err != nil {
			return err
		}
	}
	if !rt.stream && rt.role > gate.Public { // a probe is answered also in a crowd
		if err := c.begin(); err != nil {
			return err
		}
		defer c.leave()
	}
	if err := c.parameters(rt); err != nil {
		return err
	}
	if rt.action.body == nil && !rt.action.raw {
		c.Discard(c.W, c.R.Body)
	}
	return rt.action.run(c)
}

// parameters reads the query. A parameter that the route does not know, or one
// given twice, is refused: a filter with a slip in its name must not mean "everything".
func (c *call) parameters(rt *route) error {
	values, err := parseQuery(c.R.URL.RawQuery)
	if err != nil {
		return problem.New(problem.Invalid, "invalid_parameter", "the query cannot be read").Because(err)
	}
	c.query = make(map[string]string, len(values))
	for name, list := range values {
		known := slices.ContainsFunc(rt.params, func(p param) bool { return p.in == "query" && p.name == name })
		if !known {
			return problem.New(problem.Invalid, "unknown_parameter", "there is no query parameter %.64q here; %s", name, rt.knownParameters())
		}
		if len(list) > 1 {
			return badParameter(name, "is given more than once")
		}
		if len(list[0]) > maxParameter {
			return badParameter(name, "is too long")
		}
		c.query[name] = list[0]
	}
	return nil
}

// knownParameters says which query parameters the route takes.
func (rt *route) knownParameters() string {
	var names []string
	for _, p := range rt.params {
		if p.in == "query" {
			names = append(names, p.name)
		}
	}
	if names == nil {
		return "it takes none"
	}
	slices.Sort(names)
	return "it takes " + strings.Join(names, ", ")
}

// maxParameter bounds the value of one query parameter, in bytes.
const maxParameter = 2048

func badParameter(name, text string) error {
	return problem.New(problem.Invalid, "invalid_parameter", "%s %s", name, text).With(problem.Issue{Path: name, Text: text})
}

func parseQuery(raw string) (url.Values, error) {
	if len(raw) > 16<<10 {
		return nil, errors.New("the query is too long")
	}
	return url.ParseQuery(raw)
}

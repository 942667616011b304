package call

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/door"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// Route is one operation and what does its work. The table of routes makes the
// mux, the OpenAPI document and the reference page.
type Route struct {
	openapi.Operation
	run func(*Call) error
}

// Plain is a route whose request has no body.
func Plain(run func(*Call) error, op openapi.Operation) Route { return Route{op, run} }

// Takes is a route with a strict JSON body of type T. An empty body reads as {}.
func Takes[T any](run func(*Call, *T) error, op openapi.Operation) Route {
	op.Body = reflect.TypeFor[T]()
	return Route{op, func(c *Call) error {
		req := new(T)
		if err := c.Read(req); err != nil {
			return err
		}
		return run(c, req)
	}}
}

// Raw is a route whose body is bytes, which run reads.
func Raw(run func(*Call) error, op openapi.Operation) Route {
	op.Raw = true
	return Route{op, run}
}

// Call is one request on its way through a handler.
type Call struct {
	exchange.Exchange
	door.Visit
	Query map[string]string // known parameters only, each at most once

	server *Server
}

// call makes the call of a request.
func (s *Server) call(w http.ResponseWriter, r *http.Request, local bool) *Call {
	return &Call{server: s, Exchange: exchange.Exchange{Config: &s.cfg.Exchange, W: w, R: r}, Visit: s.cfg.Door.Visit(r, local)}
}

// fail answers with a problem.
func (c *Call) fail(err error) { c.Fail(err, c.Refused) }

// Mux makes the mux of a table of routes. local says that no token is wanted.
func (s *Server) Mux(routes []Route, local bool) *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range routes {
		mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) {
			c := s.call(w, r, local)
			if err := c.serve(&rt); err != nil {
				c.fail(err)
			}
		})
		methods[rt.Path] = append(methods[rt.Path], rt.Method)
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
				c.fail(c.Stranger(exchange.WithStatus(http.StatusMethodNotAllowed, problem.New(problem.Invalid, "method_not_allowed",
					"this resource takes %s only", allow))))
			})
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c := s.call(w, r, local)
		c.fail(c.Stranger(problem.New(problem.NotFound, "not_found", "there is nothing at this path")))
	})
	return mux
}

// Handler is what a request passes before it is routed: it has its deadlines, and
// the door looks at it. local: the unix socket, which no browser and no other host
// can reach.
func (s *Server) Handler(mux *http.ServeMux, local bool) http.Handler {
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchange.Strict(w.Header())
		v := s.cfg.Door.Visit(r, local)
		if err := v.Guard(); err != nil {
			if !local {
				err = v.Stranger(err)
			}
			s.call(w, r, local).fail(err)
			return
		}
		mux.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.cfg.Exchange.Timed(guarded, w, r) })
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
// the body is, a place, parameters. See Handler for what comes before.
func (c *Call) serve(rt *Route) error {
	if rt.Role == gate.Public {
		if err := c.Stranger(nil); err != nil {
			return err
		}
	} else {
		if err := c.Authenticate(); err != nil {
			return err
		}
		if c.Who.Role < rt.Role {
			return problem.New(problem.Forbidden, "role_required", "this wants a token with the role %s", rt.Role)
		}
	}
	if !rt.Raw {
		if err := c.JSONOnly(); err != nil {
			return err
		}
	}
	if !rt.Stream && rt.Role > gate.Public { // a probe is answered also in a crowd
		if err := c.Enter(); err != nil {
			return err
		}
		defer c.Leave()
	}
	if err := c.parameters(rt); err != nil {
		return err
	}
	if rt.Body == nil && !rt.Raw {
		c.Discard(c.W, c.R.Body)
	}
	return rt.run(c)
}

// parameters reads the query. A parameter that the route does not know, or one
// given twice, is refused: a filter with a slip in its name must not mean "everything".
func (c *Call) parameters(rt *Route) error {
	values, err := parseQuery(c.R.URL.RawQuery)
	if err != nil {
		return problem.New(problem.Invalid, "invalid_parameter", "the query cannot be read").Because(err)
	}
	c.Query = make(map[string]string, len(values))
	for name, list := range values {
		known := slices.ContainsFunc(rt.Params, func(p openapi.Param) bool { return p.In == "query" && p.Name == name })
		if !known {
			return problem.New(problem.Invalid, "unknown_parameter", "there is no query parameter %.64q here; %s", name, rt.knownParameters())
		}
		if len(list) > 1 {
			return BadParameter(name, "is given more than once")
		}
		if len(list[0]) > maxParameter {
			return BadParameter(name, "is too long")
		}
		c.Query[name] = list[0]
	}
	return nil
}

// knownParameters says which query parameters the route takes.
func (rt *Route) knownParameters() string {
	var names []string
	for _, p := range rt.Params {
		if p.In == "query" {
			names = append(names, p.Name)
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

// BadParameter refuses a value of a parameter.
func BadParameter(name, text string) error {
	return problem.New(problem.Invalid, "invalid_parameter", "%s %s", name, text).With(problem.Issue{Path: name, Text: text})
}

func parseQuery(raw string) (url.Values, error) {
	if len(raw) > 16<<10 {
		return nil, errors.New("the query is too long")
	}
	return url.ParseQuery(raw)
}

// Package admin answers for what operators look after: tokens, secret slots, the
// nodes, what is configured, and how the daemon does.
package admin

import (
	"context"
	"io"
	"reflect"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// Store is what is read of nodes, and the tokens, which are written too.
type Store interface {
	eventlog.Tokens
	ListNodes(ctx context.Context) ([]eventlog.NodeRow, error)
}

// Config says what there is to look after.
type Config struct {
	Store Store
	// Forget takes a token that was revoked out of what is known here, at once.
	Forget  func(id string)
	Secrets Secrets // nil: there are none
	Routes  []api.Route
	Tools   []api.Tool
	Version string
	// Ready says whether the daemon takes work; its error is logged, not shown. Nil: always.
	Ready func() error
	// Metrics gives what the daemon counts, in Prometheus' text format. Nil: nothing is counted.
	Metrics func() ([]byte, error)
	// OpenAPI gives the document of all operations.
	OpenAPI func() ([]byte, error)
	Random  io.Reader // tokens; safe for concurrent use
	// TokenExpiry is how long a token is good that is made without a word on it; 0:
	// for ever. MaxTokenExpiry bounds what may be asked for; 0: nothing does.
	TokenExpiry, MaxTokenExpiry time.Duration
}

// Handlers answer for them.
type Handlers struct{ cfg Config }

// New makes them.
func New(cfg Config) *Handlers { return &Handlers{cfg} }

// Routes are the operations that operators look after a daemon with.
func (h *Handlers) Routes() []call.Route { return append(h.adminRoutes(), h.secretRoutes()...) }

func (h *Handlers) adminRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.createToken, openapi.Operation{Method: "POST", Path: "/v1/tokens", ID: "createToken", Role: gate.Admin, Summary: "Create a token",
			Notes:   "The token is shown this once; only its SHA-256 is stored. An administrator who is bound to a user makes tokens of that user only. A token that has expired is refused with `token_expired`.",
			Answers: []openapi.Answer{openapi.Gives[api.Token](201, "The token.")}}),
		call.Plain(h.listTokens, openapi.Operation{Method: "GET", Path: "/v1/tokens", ID: "listTokens", Role: gate.Admin, Summary: "List tokens, oldest first",
			Params:  []openapi.Param{call.Limit, call.Cursor, openapi.Query("role", "string", "Only tokens of this role."), openapi.Query("user_id", "string", "Only tokens that are bound to this user.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Token]](200, "A page.")}}),
		call.Plain(h.deleteToken, openapi.Operation{Method: "DELETE", Path: "/v1/tokens/{t}", ID: "revokeToken", Role: gate.Admin, Summary: "Revoke a token",
			Notes:   "This node forgets it at once, another one within 2 seconds; an open stream ends at its next heartbeat.",
			Answers: []openapi.Answer{{Status: 204, Text: "Revoked."}}}),
		call.Plain(h.listRoutes, openapi.Operation{Method: "GET", Path: "/v1/routes", ID: "listRoutes", Role: gate.Reader, Summary: "List the configured routes to models",
			Params:  []openapi.Param{call.Limit, call.Cursor, openapi.Query("provider", "string", "Only routes to this provider.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Route]](200, "A page, by name.")}}),
		call.Plain(h.listTools, openapi.Operation{Method: "GET", Path: "/v1/tools", ID: "listTools", Role: gate.Reader, Summary: "List the configured tools",
			Params:  []openapi.Param{call.Limit, call.Cursor, openapi.Query("source", "string", "Only tools of this source."), openapi.Query("side_effect", "string", "Only tools of this side effect.")},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Tool]](200, "A page, by name.")}}),
		call.Plain(h.listNodes, openapi.Operation{Method: "GET", Path: "/v1/nodes", ID: "listNodes", Role: gate.Operator, Summary: "List the nodes that share the store, oldest first",
			Notes:   "Those that are alive, and those that ended a short while ago. A token that is bound to a user is refused (`unbound_token_required`).",
			Params:  []openapi.Param{call.Limit, call.Cursor},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Node]](200, "A page.")}}),
		call.Plain(h.healthz, openapi.Operation{Method: "GET", Path: "/healthz", ID: "healthz", Summary: "Is the process alive",
			Answers: []openapi.Answer{openapi.Gives[api.Health](200, "It is.")}}),
		call.Plain(h.readyz, openapi.Operation{Method: "GET", Path: "/readyz", ID: "readyz", Summary: "Does the daemon take work",
			Answers: []openapi.Answer{openapi.Gives[api.Health](200, "It does.")}, Fails: []int{503}}),
		call.Plain(h.metricsText, openapi.Operation{Method: "GET", Path: "/metrics", ID: "metrics", Role: gate.Reader, Summary: "What the daemon counts, for Prometheus",
			Notes:   "In Prometheus' text format, over all users: a token that is bound to a user is refused (`unbound_token_required`). The metrics reference names each metric.",
			Answers: []openapi.Answer{{Status: 200, Body: reflect.TypeFor[string](), Media: "text/plain", Text: "Every metric."}}, Fails: []int{404, 503}}),
		call.Plain(h.openAPI, openapi.Operation{Method: "GET", Path: "/openapi.json", ID: "openapi", Summary: "This interface as an OpenAPI 3.1 document",
			Answers: []openapi.Answer{openapi.Gives[map[string]any](200, "The document.")}}),
	}
}

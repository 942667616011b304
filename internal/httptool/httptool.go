// Package httptool makes a tool of an HTTP service that the configuration
// declares: the call's arguments are the request, the answer is the result.
//
// One call is one request. It is never repeated here, by the HTTP client
// neither, and an answer that was lost after the request may have gone out is
// told apart from a request that never left.
package httptool

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/schema"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Defaults and bounds.
const (
	DefaultTimeout     = 30 * time.Second
	DefaultMaxResponse = 1 << 20 // bytes

	maxHeaders     = 16
	maxHeaderValue = 8 << 10 // bytes of one header value
	maxQuery       = 8 << 10 // bytes of a query made of arguments
	maxExcerpt     = 2 << 10 // bytes of a refusal that the model sees
)

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Config declares a tool.
type Config struct {
	Name         string // ^[A-Za-z0-9_-]{1,64}$
	Method       string // GET, POST, PUT, PATCH or DELETE; empty: POST
	URL          string // see netguard.CheckURL
	Description  string
	InputSchema  canonjson.Value // JSON Schema, with "type":"object"; required. See schema.Compile
	OutputSchema canonjson.Value // of a JSON answer; may be empty
	SideEffect   tool.Level      // required: nobody can guess it
	Policy       tool.Policy
	// IdempotencyHeader is the name of the header in which the service takes an
	// idempotency key; empty: it takes none. The key is the call's id.
	IdempotencyHeader string
	// Headers are sent with every call. A value is asked for at each call, so
	// that a changed secret counts at once. Every value counts as a secret: it
	// and its words of 8 bytes or more never enter an error or a result. What a
	// service echoes is taken out as it is, with the escapes of JSON, with
	// percent-encoding (once, or within JSON), and in base64 that is not broken
	// into lines; of Basic credentials (RFC 7617) also the pair and the
	// password. An echo in any other form, such as a digest, hexadecimal or
	// parts, is not recognized.
	Headers     map[string]func() (string, error)
	Timeout     time.Duration // of one call, the answer's body included; 0: DefaultTimeout
	MaxResponse int64         // bytes of an answer that are kept; 0: DefaultMaxResponse
}

// Tool is a declared HTTP tool.
type Tool struct {
	config     Config
	definition tool.Definition
	url        *url.URL
	client     *http.Client
}

var _ tool.Tool = (*Tool)(nil)

// New checks config and returns its tool, whose connections guard makes. The
// error is a *problem.Error of kind invalid, code invalid_tool or invalid_url.
func New(config Config, guard *netguard.Guard) (*Tool, error) {
	if config.Method == "" {
		config.Method = http.MethodPost
	}
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	if config.MaxResponse <= 0 {
		config.MaxResponse = DefaultMaxResponse
	}
	if text := fault(config); text != "" {
		return nil, problem.New(problem.Invalid, "invalid_tool", "tool %.80q %s", config.Name, text)
	}
	u, err := netguard.CheckURL(config.URL)
	if err != nil {
		return nil, err
	}
	return &Tool{
		config: config,
		url:    u,
		client: guard.Client(0), // each call has a context with its timeout
		definition: tool.Definition{
			Name:         config.Name,
			Description:  config.Description,
			InputSchema:  config.InputSchema,
			OutputSchema: config.OutputSchema,
			Level:        config.SideEffect,
			Policy:       config.Policy,
			Source:       tool.HTTP,
			Idempotent:   config.IdempotencyHeader != "",
			TimeoutMS:    max(1, config.Timeout.Milliseconds()),
		},
	}, nil
}

// fault says what is wrong with a declaration, "" when nothing is.
func fault(c Config) string {
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	switch {
	case !validName.MatchString(c.Name):
		return "has a name that is not 1 to 64 letters, digits, _ or -"
	case !slices.Contains(methods, c.Method):
		return "has a method other than " + strings.Join(methods, ", ")
	case c.InputSchema.IsZero():
		return "has no input_schema"
	case !ofObject(c.InputSchema):
		return `has an input_schema without "type":"object"; arguments are an object`
	case !c.SideEffect.Valid():
		return "needs a side_effect: none, read, write, external_effect or irreversible"
	case !slices.Contains([]tool.Policy{"", tool.Allow, tool.Review, tool.Deny}, c.Policy):
		return "has a policy other than allow, review or deny"
	case len(c.Headers) > maxHeaders:
		return fmt.Sprintf("has more than %d headers", maxHeaders)
	case c.IdempotencyHeader != "" && !usableHeader(c.IdempotencyHeader):
		return "has an idempotency_header that is not a usable header name"
	}
	if _, err := schema.Compile(c.InputSchema); err != nil {
		return "has an input_schema that cannot be used: " + err.Error()
	}
	if !c.OutputSchema.IsZero() {
		if _, err := schema.Compile(c.OutputSchema); err != nil {
			return "has an output_schema that cannot be used: " + err.Error()
		}
	}
	seen := map[string]bool{}
	for name := range c.Headers {
		if !usableHeader(name) {
			return fmt.Sprintf("has a header %.80q that cannot be set", name)
		}
		if seen[strings.ToLower(name)] {
			return fmt.Sprintf("has the header %.80q twice", name)
		}
		seen[strings.ToLower(name)] = true
		if strings.EqualFold(name, c.IdempotencyHeader) {
			return "sets its idempotency_header among its headers too"
		}
	}
	return ""
}

// ofObject says whether a schema says of itself that it is one of an object.
func ofObject(s canonjson.Value) bool {
	n, err := s.Node()
	if err != nil {
		return false
	}
	kind, _ := n.Get("type")
	return kind.Kind() == canonjson.String && kind.Text() == "object"
}

func usableHeader(name string) bool {
	return netguard.ValidHeaderName(name) && !netguard.ConnectionHeader(name)
}

// Definition gives what the tool declares.
func (t *Tool) Definition() tool.Definition { return t.definition }

// Close ends idle connections. Call it after the last Run has returned.
func (t *Tool) Close() { t.client.CloseIdleConnections() }

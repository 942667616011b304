package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/models"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/provider/anthropic"
	"github.com/holdfast-dev/holdfast/internal/provider/gemini"
	"github.com/holdfast-dev/holdfast/internal/provider/openai"
	"github.com/holdfast-dev/holdfast/internal/provider/openaicompat"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// routes are the ways to models, and the adapters behind them. An adapter is
// of one model; those that callers name are made when they are first asked for.
type routes struct {
	cfg       *config.Config
	transport http.RoundTripper
	own       *http.Transport // nil when the transport is somebody else's

	mu       sync.Mutex
	adapters map[routed]llm.Model
}

type routed struct{ route, model string }

// maxAdapters bounds the adapters that are kept; they hold no connection themselves.
const maxAdapters = 512

// newRoutes makes the adapters of all routes.
func newRoutes(cfg *config.Config, opt *Options) (*routes, error) {
	m := &routes{cfg: cfg, transport: opt.ModelTransport, adapters: map[routed]llm.Model{}}
	if m.transport == nil {
		guard, err := providerGuard(cfg, opt)
		if err != nil {
			return nil, err
		}
		m.own = wire.NewTransport(guard, proxyOf(cfg))
		m.transport = m.own
	}
	for name, r := range cfg.Routes {
		model, err := makeModel(cfg, name, r.Model, m.transport)
		if err != nil {
			return nil, err
		}
		m.adapters[routed{name, modelOf(&r, "")}] = model
	}
	return m, nil
}

// closeIdle ends the connections to vendors that are kept for a next request.
func (m *routes) closeIdle() {
	if m.own != nil {
		m.own.CloseIdleConnections()
	}
}

// makeModel makes the adapter of a route's model. The error is a *config.Error
// with the key at fault.
func makeModel(cfg *config.Config, name, model string, transport http.RoundTripper) (llm.Model, error) {
	r, path := cfg.Routes[name], "routes."+name
	if r.Provider == "scripted" {
		return loadScript(cfg, path+".script", r.Script)
	}
	hosted, err := hostedTools(cfg, path, r.HostedTools)
	if err != nil {
		return nil, err
	}
	var client *http.Client
	if transport != nil {
		client = &http.Client{Transport: transport}
	}
	var key func() (string, error)
	if r.APIKey != nil {
		at := config.Reference{Key: path + ".api_key", Ref: *r.APIKey}
		host := hostOf(vendorBase(&r))
		key = func() (string, error) { return useFor(cfg, at, host) }
	}
	if !goodBase(r.BaseURL) {
		return nil, cfg.Mistake(path+".base_url", "want an absolute http or https URL without user, query and fragment")
	}
	caps, first, idle := capabilities(&r, model), r.FirstByte.Or(0), r.Idle.Or(0)
	effort, budget := r.Reasoning.Effort, r.Reasoning.Budget
	maker := r.Provider // as event.Route.Maker has it
	if server := serverOf(&r); server != "" {
		maker += "@" + server
	}
	var m llm.Model
	switch r.Provider {
	case "openai":
		m, err = openai.New(openai.Config{
			Name: maker, BaseURL: r.BaseURL, Model: model, APIKey: key, HTTP: client, FirstByte: first, Idle: idle, Caps: caps,
			MaxOutputTokens: r.MaxOutputTokens, Effort: effort, ReasoningBudget: budget, HostedTools: hosted,
		})
	case "anthropic":
		m, err = anthropic.New(anthropic.Config{
			Name: maker, BaseURL: r.BaseURL, Model: model, APIKey: key, HTTP: client, FirstByte: first, Idle: idle, Caps: caps,
			MaxOutputTokens: r.MaxOutputTokens, Effort: effort, ReasoningBudget: budget, HostedTools: hosted, Betas: r.Betas,
		})
	case "gemini":
		m, err = gemini.New(gemini.Config{
			Name: maker, BaseURL: r.BaseURL, Model: model, APIKey: key, HTTP: client, FirstByte: first, Idle: idle, Caps: caps,
			MaxOutputTokens: r.MaxOutputTokens, Effort: effort, ReasoningBudget: budget, HostedTools: hosted,
		})
	default:
		m, err = openaicompat.New(openaicompat.Config{
			Name: maker, BaseURL: r.BaseURL, Model: model, APIKey: key, HTTP: client, FirstByte: first, Idle: idle, Caps: caps,
			MaxOutputTokens: r.MaxOutputTokens, Effort: effort, ReasoningBudget: budget, HostedTools: hosted,
			Quirks: openaicompat.Quirks(r.Quirks),
		})
	}
	if err != nil {
		return nil, cfg.Mistake(path, "%v", err)
	}
	if r.SendSessionID != nil && !*r.SendSessionID {
		m = nameless{m}
	}
	return m, nil
}

// nameless is a model that is not told which session it works for: no adapter
// can send what it does not have.
type nameless struct{ llm.Model }

func (n nameless) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	r := *req
	r.SessionID, r.ParentSessionID = "", ""
	return n.Model.Stream(ctx, &r, yield)
}

// vendorBase is where the requests of a route go.
func vendorBase(r *config.Route) string {
	switch {
	case r.BaseURL != "":
		return r.BaseURL
	case r.Provider == "openai":
		return openai.DefaultBaseURL
	case r.Provider == "anthropic":
		return anthropic.DefaultBaseURL
	case r.Provider == "gemini":
		return gemini.DefaultBaseURL
	}
	return ""
}

// goodBase says whether an address may be the beginning of a vendor's. Empty: the vendor's own.
func goodBase(base string) bool {
	u, err := url.Parse(base)
	return base == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// serverOf is a digest of the server's address, empty for the vendor's own: what
// one server sealed is no other's to read.
func serverOf(r *config.Route) string {
	if r.BaseURL == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.TrimRight(r.BaseURL, "/")))
	return hex.EncodeToString(sum[:6])
}

// hostedTools gives the declared tools of a vendor as the JSON that it documents.
func hostedTools(cfg *config.Config, path string, list []any) ([]canonjson.Value, error) {
	var out []canonjson.Value
	for i, v := range list {
		raw, err := json.Marshal(v)
		if err == nil {
			var value canonjson.Value
			if value, err = canonjson.Canonicalize(raw, canonjson.Limits{}); err == nil {
				out = append(out, value)
				continue
			}
		}
		return nil, cfg.Mistake(fmt.Sprintf("%s.hosted_tools[%d]", path, i), "is no JSON object: %v", err)
	}
	return out, nil
}

// capabilities gives what a route's model can do: by the table of families,
// and by the configuration where that says otherwise.
func capabilities(r *config.Route, model string) llm.Capabilities {
	caps := models.Lookup(r.Provider, model)
	if r.Provider == "scripted" { // it reads nothing, and minds nothing
		caps = llm.Capabilities{Tools: true, Images: true, PDF: true}
	}
	if u, err := url.Parse(r.BaseURL); err == nil && strings.EqualFold(u.Hostname(), "api.openai.com") {
		caps.PromptCache = true // others may refuse a member that they do not know
	}
	o := &r.Capabilities
	if o.Context > 0 {
		caps.Context = int64(o.Context)
	}
	if o.Output > 0 {
		caps.Output = int64(o.Output)
	}
	for _, f := range []struct{ said, to *bool }{{o.Tools, &caps.Tools}, {o.Images, &caps.Images}, {o.PDF, &caps.PDF}, {o.Reasoning, &caps.Reasoning}, {o.PromptCache, &caps.PromptCache}} {
		if f.said != nil {
			*f.to = *f.said
		}
	}
	if o.Structured != "" {
		caps.Structured = llm.Structured(o.Structured)
	}
	return caps
}

// takes says whether the model of a captured route reads files of a media type.
func (m *routes) takes(r event.Route, mediaType string) bool {
	route, ok := m.cfg.Routes[r.Name]
	if r.Provider == "gemini" && mediaType == "image/gif" {
		return false // the one kind of picture that this vendor does not read
	}
	return ok && capabilities(&route, r.Model).Takes(mediaType)
}

// resolve pins a route by name, or the default, with its model or the caller's.
func (m *routes) resolve(name, model string) (event.Route, error) {
	if name == "" {
		name = m.cfg.DefaultRoute
	}
	r, ok := m.cfg.Routes[name]
	if !ok {
		return event.Route{}, problem.New(problem.Invalid, "unknown_route", "no route is named %.64q", name)
	}
	if len(model) > 256 {
		return event.Route{}, problem.New(problem.Invalid, "invalid_model", "model holds more than 256 bytes")
	}
	route := event.Route{Name: name, Provider: r.Provider, Model: modelOf(&r, model), Server: serverOf(&r)}
	caps := capabilities(&r, route.Model)
	route.Context, route.Output = caps.Context, caps.Output
	if n := int64(r.MaxOutputTokens); n > 0 {
		route.Output = n
	}
	again := m.cfg.ModelRetries.With(r.Retries)
	route.Retries = event.Retries{
		BackoffPercent: int(math.Round(again.BackoffFactor * 100)), InitialBackoffMS: again.InitialBackoff.Or(0).Milliseconds(),
		MaxAttempts: again.MaxAttempts, MaxBackoffMS: again.MaxBackoff.Or(0).Milliseconds(),
	}
	return route, nil
}

// compaction is how the runs of this configuration are kept within their windows.
func (m *routes) compaction() (*event.Compaction, error) {
	c := m.cfg.Compaction
	plan := &event.Compaction{Auto: c.Auto == nil || *c.Auto, Buffer: session.DefaultCompactionBuffer, Keep: session.DefaultCompactionKeep}
	if c.Buffer > 0 {
		plan.Buffer = int64(c.Buffer)
	}
	if c.Keep > 0 {
		plan.Keep = int64(c.Keep)
	}
	if c.Route != "" {
		route, err := m.resolve(c.Route, "")
		if err != nil {
			return nil, m.cfg.Mistake("compaction.route", "%s", problem.Of(err).Detail)
		}
		plan.Route = &route
	}
	return plan, nil
}

// modelOf is the caller's model, or the route's; a route without one is named by its provider.
func modelOf(r *config.Route, model string) string {
	switch {
	case model != "":
		return model
	case r.Model != "":
		return r.Model
	}
	return r.Provider
}

// get gives the adapter of a captured route. A route that was taken out of the
// configuration, or became another provider's, is no way to that model any more.
func (m *routes) get(r event.Route) (llm.Model, error) {
	if route, ok := m.cfg.Routes[r.Name]; !ok || route.Provider != r.Provider {
		return nil, llm.Errorf(llm.InvalidRequest, "the route %q is not configured any more", r.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := routed{r.Name, r.Model}
	if model, ok := m.adapters[key]; ok {
		return model, nil
	}
	model, err := makeModel(m.cfg, r.Name, r.Model, m.transport)
	if err != nil {
		return nil, llm.Errorf(llm.InvalidRequest, "the route %q cannot be used", r.Name).Because(err)
	}
	if len(m.adapters) >= maxAdapters {
		clear(m.adapters)
	}
	m.adapters[key] = model
	return model, nil
}

func (m *routes) list() []api.Route {
	out := []api.Route{}
	for name, r := range m.cfg.Routes {
		out = append(out, api.Route{Name: name, Provider: r.Provider, Model: modelOf(&r, ""), Default: name == m.cfg.DefaultRoute})
	}
	slices.SortFunc(out, func(a, b api.Route) int { return strings.Compare(a.Name, b.Name) })
	return out
}

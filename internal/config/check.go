package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/glob"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// Defaults that more than one place needs.
const (
	DefaultListen  = "127.0.0.1:7411"
	DefaultDataDir = "./holdfast-data"
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func mistake(path, format string, args ...any) *Error {
	return &Error{Text: path + ": " + fmt.Sprintf(format, args...)}
}

// check holds the rules of the file and fills defaults that other members
// follow from.
func (c *Config) check() *Error {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	if err := c.checkDoor(); err != nil {
		return err
	}
	if err := c.checkSecrets(); err != nil {
		return err
	}
	if err := c.checkRoutes(); err != nil {
		return err
	}
	if s := c.Targets.SigningSecret; s != "" {
		if !nameForm.MatchString(s) {
			return mistake("targets.signing_secret", "a secret's name is [A-Za-z0-9_-]{1,64}")
		}
	}
	if err := c.checkNetwork(); err != nil {
		return err
	}
	if err := c.checkTargets(); err != nil {
		return err
	}
	for _, name := range sorted(c.Tools) {
		if err := c.checkTool("tools."+name, name, c.Tools[name]); err != nil {
			return err
		}
	}
	if err := c.checkConnectors(); err != nil {
		return err
	}
	for i, p := range c.Files.Ignore {
		if _, err := glob.Compile(p); err != nil {
			return mistake(fmt.Sprintf("files.ignore[%d]", i), "%v", err)
		}
	}
	switch c.Store.Sync {
	case "", "full", "normal":
	default:
		return mistake("store.sync", "must be full or normal")
	}
	if c.Store.Reserve < 0 || c.Store.Reserve > maxReserve {
		return mistake("store.reserve", "must be bytes, from 1 to %d (1 TiB); 0 is the default", maxReserve)
	}
	if !slices.Contains([]string{"", "text", "json"}, c.Log.Format) {
		return mistake("log.format", "must be text or json")
	}
	if !slices.Contains([]string{"", "debug", "info", "warn", "error"}, c.Log.Level) {
		return mistake("log.level", "must be debug, info, warn or error")
	}
	if err := c.checkTelemetry(); err != nil {
		return err
	}
	if err := c.checkCluster(); err != nil {
		return err
	}
	if name := c.Compaction.Route; name != "" {
		if _, ok := c.Routes[name]; !ok {
			return mistake("compaction.route", "no route is named %q", name)
		}
	}
	if err := c.checkBusURL(); err != nil {
		return err
	}
	if err := c.checkDelivery(); err != nil {
		return err
	}
	return c.checkNumbers()
}

// checkBusURL holds the rules of the bus.
func (c *Config) checkBusURL() *Error {
	a := c.BusURL
	switch {
	case !a.Set():
		return nil
	case a.Text == "":
		return c.checkEarly("bus_url", a.Ref)
	}
	if why := checkBus(a.Text); why != "" {
		return mistake("bus_url", "%s", why)
	}
	if strings.Contains(a.Text, "@") {
		return mistake("bus_url", "a URL with a user, password or token is a secret: put it into a variable or a file, and write {env: NAME} or {file: PATH}")
	}
	return nil
}

// checkBus says what is wrong with the URL of a bus, without a word of it.
func checkBus(text string) string {
	servers := strings.Split(text, ",")
	if len(servers) > maxBusServers {
		return fmt.Sprintf("it names more than %d servers", maxBusServers)
	}
	for _, one := range servers {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return "want a URL such as nats://host:4222 or tls://host:4222, or several separated by commas"
		}
	}
	return ""
}

const maxBusServers = 16

// checkTelemetry holds the rules of the collector and of what is sent to it.
func (c *Config) checkTelemetry() *Error {
	t := c.Telemetry
	if t.OTLPEndpoint == "" {
		if len(t.Headers) > 0 || t.Sample != nil || t.Interval != 0 {
			return mistake("telemetry", "without otlp_endpoint nothing is sent; name the collector, or take the section out")
		}
		return nil
	}
	u, err := url.Parse(t.OTLPEndpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return mistake("telemetry.otlp_endpoint", "want an absolute http or https URL without user, query and fragment")
	}
	if t.Sample != nil && !(*t.Sample >= 0 && *t.Sample <= 1) {
		return mistake("telemetry.sample", "must be from 0 to 1")
	}
	if t.Interval != 0 && t.Interval.Or(0) < time.Second {
		return mistake("telemetry.interval", "must be 1s or more")
	}
	for _, name := range sorted(t.Headers) {
		if !headerForm.MatchString(name) {
			return mistake("telemetry.headers", "%.64q is no name of a header", name)
		}
		if slices.Contains(ownHeaders, strings.ToLower(name)) {
			return mistake("telemetry.headers."+name, "this header is set by the daemon")
		}
		if err := c.checkRef("telemetry.headers."+name, t.Headers[name], true); err != nil {
			return err
		}
	}
	return nil
}

var (
	headerForm = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,64}$`)
	ownHeaders = []string{"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding", "user-agent"}
)

// maxPrice bounds a price, in US dollars per million tokens: more is a slip.
const maxPrice = 1e6

func checkPrice(path string, p *Price) *Error {
	for _, m := range []struct {
		name string
		v    *float64
	}{{"input", &p.Input}, {"output", &p.Output}, {"cache_read", p.CacheRead}, {"cache_write", p.CacheWrite}} {
		if m.v != nil && !(*m.v >= 0 && *m.v <= maxPrice) { // not a number is neither
			return mistake(path+"."+m.name, "must be from 0 to %v US dollars per million tokens", int(maxPrice))
		}
	}
	return nil
}

func (c *Config) checkNumbers() *Error {
	for _, n := range []struct {
		path string
		v    int
	}{
		{"compaction.buffer", c.Compaction.Buffer}, {"compaction.keep", c.Compaction.Keep},
		{"files.file_bytes", c.Files.FileBytes}, {"files.tree_bytes", c.Files.TreeBytes}, {"files.tree_files", c.Files.TreeFiles},
		{"files.keep", c.Files.Keep}, {"files.workspace_bytes", c.Files.WorkspaceBytes}, {"files.timeout", int(c.Files.Timeout)},
		{"limits.asset_bytes", c.Limits.AssetBytes}, {"limits.user_asset_bytes", c.Limits.UserAssetBytes},
		{"targets.max_hops", c.Targets.MaxHops},
		{"limits.active_sessions", c.Limits.ActiveSessions}, {"limits.cached_sessions", c.Limits.CachedSessions}, {"limits.cached_bytes", c.Limits.CachedBytes},
		{"limits.queued_runs", c.Limits.QueuedRuns}, {"limits.parallel_tools", c.Limits.ParallelTools}, {"limits.request_bytes", c.Limits.RequestBytes},
		{"limits.input_bytes", c.Limits.InputBytes}, {"limits.answer_bytes", c.Limits.AnswerBytes},
		{"limits.tool_output_bytes", c.Limits.ToolOutputBytes}, {"limits.streams", c.Limits.Streams},
		{"limits.requests", c.Limits.Requests}, {"limits.events", c.Limits.Events}, {"limits.connections", c.Limits.Connections}, {"limits.header_bytes", c.Limits.HeaderBytes},
		{"limits.auth_failures", c.Limits.AuthFailures}, {"limits.peer_rate", c.Limits.PeerRate}, {"limits.token_rate", c.Limits.TokenRate},
	} {
		if n.v < 0 {
			return mistake(n.path, "must not be negative")
		}
	}
	for path, v := range map[string]int{"limits.auth_failures": c.Limits.AuthFailures, "limits.peer_rate": c.Limits.PeerRate, "limits.token_rate": c.Limits.TokenRate} {
		if v > maxRate {
			return mistake(path, "must be %d or less", maxRate)
		}
	}
	return nil
}

// maxRate bounds a rate: more is no bound.
const maxRate = 1_000_000

func (c *Config) checkRoutes() *Error {
	if len(c.Routes) == 0 {
		return mistake("routes", "at least one route to a model is needed")
	}
	if err := c.ModelRetries.check("model_retries"); err != nil {
		return err
	}
	for _, name := range sorted(c.Routes) {
		r, path := c.Routes[name], "routes."+name
		if !nameForm.MatchString(name) {
			return mistake(path, "a route's name is [A-Za-z0-9_-]{1,64}")
		}
		switch r.Provider {
		case "openai_compatible":
			if r.BaseURL == "" || r.Model == "" {
				return mistake(path, "openai_compatible wants base_url and model")
			}
		case "scripted":
			if r.Script == "" {
				return mistake(path, "scripted wants script")
			}
		case "openai", "anthropic", "gemini":
			if r.Model == "" {
				return mistake(path, "%s wants model", r.Provider)
			}
		case "":
			return mistake(path, "provider is missing: %s", providers)
		default:
			return mistake(path+".provider", "%q is no provider; there are %s", r.Provider, providers)
		}
		if err := checkModel(path, &r); err != nil {
			return err
		}
		if r.APIKey != nil {
			if err := c.checkRef(path+".api_key", *r.APIKey, true); err != nil {
				return err
			}
		}
		if err := r.Retries.check(path + ".retries"); err != nil {
			return err
		}
		if r.Price != nil {
			if err := checkPrice(path+".price", r.Price); err != nil {
				return err
			}
		}
	}
	if c.DefaultRoute == "" {
		if len(c.Routes) > 1 {
			return mistake("default_route", "with more than one route the default must be named")
		}
		c.DefaultRoute = sorted(c.Routes)[0]
	}
	if _, ok := c.Routes[c.DefaultRoute]; !ok {
		return mistake("default_route", "no route is named %q", c.DefaultRoute)
	}
	return nil
}

const providers = "openai, anthropic, gemini, openai_compatible and scripted"

// checkModel holds the rules of what is said of a route's model.
func checkModel(path string, r *Route) *Error {
	if r.Provider == "scripted" && len(r.HostedTools) > 0 {
		return mistake(path+".hosted_tools", "a scripted model runs no tools itself")
	}
	for i, t := range r.HostedTools {
		if _, ok := t.(map[string]any); !ok {
			return mistake(fmt.Sprintf("%s.hosted_tools[%d]", path, i), "want an object as the vendor documents it, such as {type: web_search}")
		}
	}
	if !slices.Contains([]string{"", "minimal", "low", "medium", "high"}, r.Reasoning.Effort) {
		return mistake(path+".reasoning.effort", "must be minimal, low, medium or high")
	}
	if !slices.Contains([]string{"", "none", "json_object", "json_schema"}, r.Capabilities.Structured) {
		return mistake(path+".capabilities.structured", "must be none, json_object or json_schema")
	}
	if r.Provider != "anthropic" && len(r.Betas) > 0 {
		return mistake(path+".betas", "betas are of anthropic routes only")
	}
	if r.Provider != "openai_compatible" && r.Quirks != (Quirks{}) {
		return mistake(path+".quirks", "quirks are of openai_compatible servers only")
	}
	if !slices.Contains([]string{"", "max_tokens", "max_completion_tokens"}, r.Quirks.MaxTokens) {
		return mistake(path+".quirks.max_tokens", "must be max_tokens or max_completion_tokens")
	}
	if !slices.Contains([]string{"", "effort", "object"}, r.Quirks.Reasoning) {
		return mistake(path+".quirks.reasoning", "must be effort or object")
	}
	for _, n := range []struct {
		key string
		v   int
	}{
		{"max_output_tokens", r.MaxOutputTokens}, {"reasoning.budget", r.Reasoning.Budget},
		{"capabilities.context", r.Capabilities.Context}, {"capabilities.output", r.Capabilities.Output},
	} {
		if n.v < 0 {
			return mistake(path+"."+n.key, "must not be negative")
		}
	}
	return nil
}

func (c *Config) checkRef(path string, r Ref, named bool) *Error {
	set := 0
	for _, v := range []string{r.Env, r.File, r.Secret} {
		if v != "" {
			set++
		}
	}
	switch {
	case set != 1:
		return mistake(path, "a secret is a reference: exactly one of env, file or secret")
	case r.Secret != "" && !named:
		return mistake(path, "a named secret refers to env or file")
	case r.Secret != "" && !nameForm.MatchString(r.Secret):
		return mistake(path, "a secret's name is [A-Za-z0-9_-]{1,64}")
	}
	return nil
}

// checkEarly is checkRef of what is read before there is a database, and so
// before there are slots.
func (c *Config) checkEarly(path string, r Ref) *Error {
	if err := c.checkRef(path, r, true); err != nil {
		return err
	}
	if c.Slotted(r) {
		return mistake(path, "no secret is named %q; a slot cannot stand here, since it is in the database", r.Secret)
	}
	return nil
}

func (c *Config) checkTool(path, name string, t Tool) *Error {
	if !nameForm.MatchString(name) {
		return mistake(path, "a tool's name is [A-Za-z0-9_-]{1,64}")
	}
	switch t.Policy {
	case "", "allow", "deny":
	case "review":
		return mistake(path+".policy", "review is not available yet; use allow or deny")
	default:
		return mistake(path+".policy", "must be allow or deny")
	}
	switch t.Type {
	case "workspace":
		if t.Root == "" {
			return mistake(path, "a workspace wants root")
		}
		if t.URL != "" || t.Method != "" || t.InputSchema != nil || t.SideEffect != "" || t.Policy != "" || t.AllowPrivate != nil {
			return mistake(path, "a workspace takes type, root, shared and allow only")
		}
		for _, a := range t.Allow {
			if !slices.Contains(workspaceTools, a) {
				return mistake(path+".allow", "%q is not a workspace tool of this version; there are %s", a, strings.Join(workspaceTools, ", "))
			}
		}
	case "http":
		if t.Root != "" || t.Allow != nil || t.Shared {
			return mistake(path, "root, shared and allow belong to workspaces")
		}
		if t.URL == "" || t.InputSchema == nil {
			return mistake(path, "an http tool wants url and input_schema")
		}
		if !tool.Level(t.SideEffect).Valid() {
			return mistake(path+".side_effect", "must be none, read, write, external_effect or irreversible")
		}
		for _, h := range sorted(t.Headers) {
			if err := c.checkRef(path+".headers."+h, t.Headers[h], true); err != nil {
				return err
			}
		}
	default:
		return mistake(path+".type", "must be workspace or http")
	}
	return nil
}

var workspaceTools = []string{"list_files", "read_file", "search_files", "write_file", "edit_file"}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Package config reads holdfast.yaml: one struct, where zero means the
// default, checked once. A mistake is an error with its line and column;
// unknown keys are mistakes. Secrets are references, never values.
package config

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/secret"
)

// Config is holdfast.yaml. JSON is YAML.
type Config struct {
	// Listen is where the daemon listens: host:port, where every request wants a
	// token, or unix:PATH for a socket of mode 0600 that wants none and answers to
	// its own user alone. An address that is not loopback wants tls, or behind_proxy.
	// Default 127.0.0.1:7411.
	Listen string `yaml:"listen"`
	// TLS is about a listener that speaks TLS.
	TLS TLS `yaml:"tls"`
	// PublicNames are the names, or addresses, by which the daemon is asked besides
	// those of loopback: a request under another Host is refused, so that no web page
	// can have a name of its own point here. Default: none; the address of listen and
	// the domains of tls.acme count too.
	PublicNames []string `yaml:"public_names"`
	// BehindProxy: another server speaks TLS and passes requests on. Those in proxies
	// are then the only ones, beside this machine itself, whose requests are taken.
	BehindProxy bool `yaml:"behind_proxy"`
	// Proxies are the addresses or networks (CIDR) of those servers, whose word is
	// believed on whom they ask for.
	Proxies []string `yaml:"proxies"`
	// ProxyHeader is the header in which they say it, which they must set or add to:
	// X-Forwarded-For or Forwarded. The other one is not read. Default X-Forwarded-For.
	ProxyHeader string `yaml:"proxy_header"`
	// Tokens is about access tokens.
	Tokens Tokens `yaml:"tokens"`
	// DataDir holds the database, the lock and made secrets. It must lie on a
	// local disk: network file systems are refused. Default ./holdfast-data.
	// With database_url it holds what is of this node alone: its first admin
	// token, its address.
	DataDir string `yaml:"data_dir"`
	// DatabaseURL is a PostgreSQL database, as postgres://user@host:port/name, that
	// holds everything instead of data_dir: several daemons with the same one are the nodes of a
	// cluster. A URL with a password is a reference. Default: SQLite in data_dir, one node.
	DatabaseURL Address `yaml:"database_url"`
	// Lease is about the nodes of a cluster.
	Lease Lease `yaml:"lease"`
	// BusURL is a NATS server over which several nodes on one database show each
	// other live text, such as nats://nats.internal:4222, or tls:// for one that
	// speaks TLS; several, separated by commas, are servers of one cluster. One
	// with a user, password or token is a reference. Absent: who is connected to
	// another node than the one that works sees every event, and no live text.
	BusURL Address `yaml:"bus_url"`
	// DefaultRoute names the route of runs that name none. With one route it is that one.
	DefaultRoute string `yaml:"default_route"`
	// Routes are named ways to a model.
	Routes map[string]Route `yaml:"routes"`
	// Secrets are named references; everything else speaks of the names. The
	// slots that are set with holdfast secrets set have the same name space; a
	// name that stands here is no slot's.
	Secrets map[string]NamedSecret `yaml:"secrets"`
	// MasterKey is what secret slots are sealed with.
	MasterKey MasterKey `yaml:"master_key"`
	// Slots is about secrets that are set over the API.
	Slots Slots `yaml:"slots"`
	// Targets is about where answers go.
	Targets Targets `yaml:"targets"`
	// Tools are the tools that sessions may use.
	Tools map[string]Tool `yaml:"tools"`
	// Connectors take events from outside and make runs of them (connectors.md).
	Connectors map[string]Connector `yaml:"connectors"`
	// SessionTemplates are how connectors make sessions.
	SessionTemplates map[string]SessionTemplate `yaml:"session_templates"`
	// Compaction keeps conversations within the windows of their models: a
	// summary takes the place of what is older. The log keeps everything.
	Compaction Compaction `yaml:"compaction"`
	// ModelRetries are those of routes that do not say otherwise.
	ModelRetries Retries `yaml:"model_retries"`
	// Files is about snapshots of workspaces, by which a step names the files
	// that it changed.
	Files Files `yaml:"files"`
	// Delivery bounds the attempts of a delivery.
	Delivery Delivery `yaml:"delivery"`
	// Store is about the database, the embedded one or that of database_url.
	Store Store `yaml:"store"`
	// Limits bound what is accepted, kept and done at once.
	Limits Limits `yaml:"limits"`
	// Shutdown is about a stop.
	Shutdown Shutdown `yaml:"shutdown"`
	// Log is about the daemon's own log lines.
	Log Log `yaml:"log"`
	// Telemetry sends traces and metrics to a collector. Off by default.
	Telemetry Telemetry `yaml:"telemetry"`

	// Unreadable is told when a reference could not be read where its value was
	// needed; the error never holds a value. Nil: nobody is told. It is called
	// from many goroutines.
	Unreadable func(at Reference, err error) `yaml:"-"`
	// Resolve gives the secrets that are named, those of slots too. Nil: those of
	// this file only. Known is told each value that is read. Both are the
	// daemon's to set, before anything is used.
	Resolve secret.Resolve `yaml:"-"`
	Known   *secret.Known  `yaml:"-"`

	dir  string // of the file: relative paths begin there
	name string // of the file, and its text: for the place of a mistake
	text []byte
}

// Route is a named way to a model: provider, model, settings, credential.
type Route struct {
	// Provider is openai, anthropic, gemini, openai_compatible or scripted.
	Provider string `yaml:"provider"`
	// Model is the vendor's name of the model. The scripted provider wants none.
	Model string `yaml:"model"`
	// BaseURL of the server: of openai_compatible up to and without
	// /chat/completions. Default: the vendor's own address.
	BaseURL string `yaml:"base_url"`
	// AllowPrivate lists networks (CIDR) that the server may be in besides public
	// ones. The host of base_url may be at a private address without it, and on
	// this machine where it is localhost or a loopback address. Default: none.
	AllowPrivate []string `yaml:"allow_private"`
	// Proxy is an HTTP proxy that the requests of this route go through, as
	// http://host:port. Those of the environment (HTTP_PROXY) are not used.
	// Default: none.
	Proxy string `yaml:"proxy"`
	// APIKey is a reference to the credential.
	APIKey *Ref `yaml:"api_key"`
	// Capabilities say what the model can do where that is not as in the table
	// of model families.
	Capabilities Capabilities `yaml:"capabilities"`
	// MaxOutputTokens of one answer. Default: the model's own limit.
	MaxOutputTokens int `yaml:"max_output_tokens"`
	// Reasoning is how much a model thinks, where it can be told.
	Reasoning Reasoning `yaml:"reasoning"`
	// HostedTools are tools that the vendor runs itself, each an object as the
	// vendor documents it. Default: none.
	HostedTools []any `yaml:"hosted_tools"`
	// Betas are values of the anthropic-beta header of an anthropic route.
	Betas []string `yaml:"betas"`
	// Quirks say where an openai_compatible server differs from what most do.
	Quirks Quirks `yaml:"quirks"`
	// Script is the file of a scripted model.
	Script string `yaml:"script"`
	// FirstByte bounds the wait for the first byte of an answer. Default 5m.
	FirstByte Duration `yaml:"first_byte"`
	// Idle bounds the wait between two pieces of an answer. Default 2m.
	Idle Duration `yaml:"idle"`
	// Retries are those of this route, member by member in the place of
	// model_retries.
	Retries Retries `yaml:"retries"`
	// SendSessionID tells the vendor which session a request is of, in headers
	// and as the key of its cache of prompts. With false nothing of the session
	// goes out, and such caches hit less often. Default true.
	SendSessionID *bool `yaml:"send_session_id"`
	// Price is what the route's model costs. Without it the cost of its calls is not known.
	Price *Price `yaml:"price"`
}

// Price is in US dollars per million tokens.
type Price struct {
	// Input is the price of input tokens.
	Input float64 `yaml:"input"`
	// Output is the price of output tokens, reasoning included.
	Output float64 `yaml:"output"`
	// CacheRead is the price of input read from the vendor's cache. Default: that of input.
	CacheRead *float64 `yaml:"cache_read"`
	// CacheWrite is the price of input written to the vendor's cache. Default: that of input.
	CacheWrite *float64 `yaml:"cache_write"`
}

// Capabilities override the table of model families, key by key.
type Capabilities struct {
	// Context is the most tokens of prompt and answer together.
	Context int `yaml:"context"`
	// Output is the most tokens of one answer.
	Output int `yaml:"output"`
	// Tools: the model can call tools.
	Tools *bool `yaml:"tools"`
	// Images: it reads pictures.
	Images *bool `yaml:"images"`
	// PDF: it reads PDF files.
	PDF *bool `yaml:"pdf"`
	// Reasoning: it can be told how much to think.
	Reasoning *bool `yaml:"reasoning"`
	// PromptCache: the server takes what the dialect says about its cache of
	// prompts: marks (anthropic) or a key (openai, openai_compatible). Default:
	// yes for openai, anthropic and OpenAI's own host.
	PromptCache *bool `yaml:"prompt_cache"`
	// Structured is none, json_object or json_schema: how the vendor holds the
	// model to a session's output schema. The answer is checked here in any case.
	Structured string `yaml:"structured"`
}

// Quirks say where an openai_compatible server differs from what most do.
type Quirks struct {
	// DeveloperRole sends the instructions under the role developer.
	DeveloperRole bool `yaml:"developer_role"`
	// NoStreamOptions leaves stream_options out, for old servers that refuse it.
	NoStreamOptions bool `yaml:"no_stream_options"`
	// NoParallelToolCalls never sends parallel_tool_calls.
	NoParallelToolCalls bool `yaml:"no_parallel_tool_calls"`
	// ToolChoiceNone lists the tools with the choice none where they are
	// withheld, for routers to vendors that demand the list.
	ToolChoiceNone bool `yaml:"tool_choice_none"`
	// ToolsWithSchema sends response_format beside tools.
	ToolsWithSchema bool `yaml:"tools_with_schema"`
	// ReasoningContent: the server demands reasoning_content with every message
	// that called tools.
	ReasoningContent bool `yaml:"reasoning_content"`
	// MaxTokens is the name of the limit of an answer: max_tokens or
	// max_completion_tokens. Default: by host and model.
	MaxTokens string `yaml:"max_tokens"`
	// Reasoning is how effort is said: effort (reasoning_effort) or object
	// (reasoning: {effort, max_tokens}). Default: by host.
	Reasoning string `yaml:"reasoning"`
}

// Reasoning is how much a model thinks.
type Reasoning struct {
	// Effort is minimal, low, medium or high. Default: the vendor's.
	Effort string `yaml:"effort"`
	// Budget of tokens for thinking, where the vendor takes one.
	Budget int `yaml:"budget"`
}

// Lease is about the nodes of a cluster.
type Lease struct {
	// TTL is how long a node counts as alive after it was heard of last, by the
	// database's clock: so long others wait before they go on with its sessions.
	// A node that cannot reach the database ends its work within it. From 1s to
	// 10m. Default 15s.
	TTL Duration `yaml:"ttl"`
}

// Ref is a reference to a secret: exactly one member is set.
type Ref struct {
	// Env names an environment variable.
	Env string `yaml:"env"`
	// File is the path of a file that holds the secret; white space at its ends does not count.
	File string `yaml:"file"`
	// Secret names one of the configured secrets, or a slot of the daemon.
	Secret string `yaml:"secret"`
}

// Address is a URL, or a reference to one that holds a secret.
type Address struct {
	Text string
	Ref  Ref
}

// Set says whether there is one.
func (a Address) Set() bool { return a != Address{} }

// UnmarshalYAML reads a string, or a reference.
func (a *Address) UnmarshalYAML(read func(any) error) error {
	var ref Ref
	if err := read(&ref); err == nil && ref != (Ref{}) {
		a.Ref = ref
		return nil
	}
	return read(&a.Text)
}

// Targets is about where answers go.
type Targets struct {
	// SigningSecret names the secret that webhooks are signed with by default,
	// one of secrets or a slot of the daemon.
	// When absent one is made at the first start, in the data directory.
	SigningSecret string `yaml:"signing_secret"`
	// AllowPrivate lists the networks (CIDR) that webhooks and HTTP tools may
	// reach besides public addresses. Default: none.
	AllowPrivate []string `yaml:"allow_private"`
	// Fallback is where answers go whose run and session name no targets, each
	// written as in the API, see targets.md. Default: nowhere.
	Fallback []ReplyTarget `yaml:"fallback"`
	// Folders are the folders into which targets of type file may write, by name.
	// Default: none.
	Folders map[string]string `yaml:"folders"`
	// Stdout lets targets of type stdout write to the daemon's standard output. Default false.
	Stdout bool `yaml:"stdout"`
	// Mail are the servers that targets of type mail send through, by name. Default: none.
	Mail map[string]MailServer `yaml:"mail"`
	// NATS are the servers that targets of type nats publish to, by name. Default: none.
	NATS map[string]NATSServer `yaml:"nats"`
	// Plugins are the executables that targets of type plugin run, by name. Default: none.
	Plugins map[string]Plugin `yaml:"plugins"`
	// MaxHops is how many runs may answer into a session one after the other, by
	// targets of type session, before the next answer is refused: the end of a
	// loop. At most 100. Default 8.
	MaxHops int `yaml:"max_hops"`
	// Overrides are rules of single targets; the first that fits holds. What one
	// does not say is as delivery says.
	Overrides []TargetOverride `yaml:"overrides"`
}

// Tool declares a tool, or a set of tools.
type Tool struct {
	// Type is workspace or http.
	Type string `yaml:"type"`

	// Root is the folder of a workspace; each session works in its own folder
	// below it.
	Root string `yaml:"root"`
	// Shared lets all sessions of a workspace work in root itself.
	Shared bool `yaml:"shared"`
	// Allow lists the workspace's tools: list_files, read_file, search_files,
	// write_file, edit_file. Default: the first three, which only read.
	Allow []string `yaml:"allow"`

	// Method of an HTTP tool. Default POST: the arguments are the JSON body.
	Method string `yaml:"method"`
	// URL of an HTTP tool.
	URL string `yaml:"url"`
	// SideEffect is the level of an HTTP tool: none, read, write,
	// external_effect or irreversible. Required.
	SideEffect string `yaml:"side_effect"`
	// Policy is allow or deny. A tool with effects outside the workspace and
	// without a policy is rejected at each call.
	Policy string `yaml:"policy"`
	// Description is what the model reads of the tool.
	Description string `yaml:"description"`
	// InputSchema is the JSON Schema of the arguments, an object. Required for HTTP tools.
	InputSchema any `yaml:"input_schema"`
	// OutputSchema is the JSON Schema of a JSON answer.
	OutputSchema any `yaml:"output_schema"`
	// IdempotencyHeader names the header in which the service takes an
	// idempotency key; then a call whose outcome is not known is repeated under it.
	IdempotencyHeader string `yaml:"idempotency_header"`
	// Headers of an HTTP tool, as references.
	Headers map[string]Ref `yaml:"headers"`
	// AllowPrivate lists networks (CIDR) that an HTTP tool may reach besides public
	// addresses and those of targets.allow_private. Default: none.
	AllowPrivate []string `yaml:"allow_private"`
	// Timeout of one call of an HTTP tool. Default 30s.
	Timeout Duration `yaml:"timeout"`
}

// Compaction keeps conversations within the windows of their models.
type Compaction struct {
	// Auto: it comes by itself, before a step that would not fit in the window
	// (where that is known, see routes.*.capabilities.context) and once when a
	// provider says that a request is too large. Default true. Without it such a
	// run fails, and only sessions compact does it.
	Auto *bool `yaml:"auto"`
	// Buffer is how many tokens of the window stay free, at least; a route's
	// output limit counts too, up to 32000. At most a quarter of the window.
	// Default 20000.
	Buffer int `yaml:"buffer"`
	// Keep is how many tokens of the newest conversation stay as they are. At
	// most a quarter of the window. Default 15000.
	Keep int `yaml:"keep"`
	// Route writes the summaries. Default: the run's own.
	Route string `yaml:"route"`
}

// Files is about snapshots of workspaces: before the first call of a step that
// may change files, and after the last.
type Files struct {
	// Off: no snapshots are made.
	Off bool `yaml:"off"`
	// Dir is the folder that holds them, private to this node, and no part of a
	// workspace. Default: files in data_dir.
	Dir string `yaml:"dir"`
	// Ignore lists what no snapshot holds, as globs of workspace tools (see
	// workspace.md). Default: node_modules, __pycache__, .venv. Never held are
	// .git and names that begin with .holdfast-.
	Ignore []string `yaml:"ignore"`
	// NoGitignore: the .gitignore files of a workspace say nothing. By default
	// what they name is left out, also when a tool wrote them.
	NoGitignore bool `yaml:"no_gitignore"`
	// FileBytes of a file whose content is held; of a larger one it is known only
	// that it changed. Default 2 MiB.
	FileBytes int `yaml:"file_bytes"`
	// TreeBytes of all held files of a snapshot; of a larger workspace there is
	// none. Default 256 MiB.
	TreeBytes int `yaml:"tree_bytes"`
	// TreeFiles is how many files and folders a snapshot holds; of a larger
	// workspace there is none. Default 50000.
	TreeFiles int `yaml:"tree_files"`
	// Keep is how many snapshots of a session are kept, the newest. Default 200.
	Keep int `yaml:"keep"`
	// WorkspaceBytes of all snapshots of a workspace; the oldest give way. Default 1 GiB.
	WorkspaceBytes int `yaml:"workspace_bytes"`
	// Timeout of one snapshot; a slower one is given up. Default 10s.
	Timeout Duration `yaml:"timeout"`
}

// Store is about the database, the embedded one or that of database_url.
type Store struct {
	// Sync is full (no acknowledged commit is lost at a power cut) or normal. Default full.
	Sync string `yaml:"sync"`
	// Wait is how long a start waits for a database_url that cannot be reached,
	// trying again; then it ends with exit code 3. At most 1h. Default 30s.
	Wait Duration `yaml:"wait"`
	// Reserve is how many bytes of the disk under data_dir are kept for the work
	// under way: with less free, submissions and other new work are refused (507
	// storage_full); below a quarter of it no model call, tool or delivery begins.
	// Not with database_url. At most 1 TiB; 1 keeps nothing. Default 64 MiB.
	Reserve int `yaml:"reserve"`
}

// Limits bound what is accepted, kept and done at once.
type Limits struct {
	// ActiveSessions is how many sessions are worked on at once. Default 256.
	ActiveSessions int `yaml:"active_sessions"`
	// CachedSessions is how many idle sessions are kept in memory. Default 1000.
	CachedSessions int `yaml:"cached_sessions"`
	// CachedBytes is what those may take, roughly. Default 32 MiB.
	CachedBytes int `yaml:"cached_bytes"`
	// QueuedRuns of one session that are not at their end. Default 1000.
	QueuedRuns int `yaml:"queued_runs"`
	// ParallelTools is how many calls of one turn run at once. Default 8.
	ParallelTools int `yaml:"parallel_tools"`
	// RequestBytes of one HTTP request body. Default 2 MiB.
	RequestBytes int `yaml:"request_bytes"`
	// InputBytes of a run's input. Default 1 MiB.
	InputBytes int `yaml:"input_bytes"`
	// AssetBytes of one file that is handed in. Default 20 MiB.
	AssetBytes int `yaml:"asset_bytes"`
	// UserAssetBytes of all files of one user. Default 10 GiB.
	UserAssetBytes int `yaml:"user_asset_bytes"`
	// UnusedAssets is how long a file that no run uses is kept; it is looked for
	// at the start and once an hour. Default 24h.
	UnusedAssets Duration `yaml:"unused_assets"`
	// AnswerBytes of one model answer, over its pauses. Default 16 MiB.
	AnswerBytes int `yaml:"answer_bytes"`
	// ToolOutputBytes of a tool result that the model is shown; the rest is
	// kept aside. Default 32 KiB.
	ToolOutputBytes int `yaml:"tool_output_bytes"`
	// ModelTimeout of one whole attempt. Default 10m.
	ModelTimeout Duration `yaml:"model_timeout"`
	// ToolTimeout of a call whose tool names none. Default 1m.
	ToolTimeout Duration `yaml:"tool_timeout"`
	// StreamWrite is how long a reader may take for each 32 KiB of a stream or an
	// answer. One that is slower is cut off, and told where to go on if it takes
	// what it was sent within half as long again. Default 10s.
	StreamWrite Duration `yaml:"stream_write"`
	// Streams is how many event streams and waits are open at once, each some
	// 40 KiB and one open file of the process. One token has four fifths of them at
	// most. Default 20000.
	Streams int `yaml:"streams"`
	// Requests is how many requests are answered at once, beside streams and waits;
	// others are told to come again (429). Default 1024.
	Requests int `yaml:"requests"`
	// Events is how many events from outside are read and taken by connectors at once,
	// a quarter of them of one peer; others wait a moment, and are told to come again
	// then (429). Default 64.
	Events int `yaml:"events"`
	// Connections is how many connections are open at once. For one more the one is
	// closed that has been idle the longest, or, when all are busy, itself. One peer has
	// four fifths of them at most. Default 25000.
	Connections int `yaml:"connections"`
	// HeaderBytes of a request's header. Default 64 KiB.
	HeaderBytes int `yaml:"header_bytes"`
	// HeaderTimeout is how long a request's header may take to come. Default 10s.
	HeaderTimeout Duration `yaml:"header_timeout"`
	// BodyTimeout is how long a request's body may take to come. Default 30s.
	BodyTimeout Duration `yaml:"body_timeout"`
	// AuthFailures is how many tokens that are not good may come from one address (of
	// IPv6: one /64) within a minute; further ones are told to come again (429). A
	// good token still works. Default 10.
	AuthFailures int `yaml:"auth_failures"`
	// PeerRate is how many requests without a good token one address (of IPv6: one
	// /64) may send within a second, twice as many at once. Default 100.
	PeerRate int `yaml:"peer_rate"`
	// TokenRate is how many requests may come with one token within a second, twice as
	// many at once. Default 10000.
	TokenRate int `yaml:"token_rate"`
}

// Shutdown is about a stop.
type Shutdown struct {
	// Drain is how long work in flight may go on after a stop was asked for. Default 20s.
	Drain Duration `yaml:"drain"`
}

// Log is about the daemon's own log lines. They hold ids and codes, never content.
type Log struct {
	// Format is text or json. Default: text on a terminal, else json.
	Format string `yaml:"format"`
	// Level is debug, info, warn or error. Default info.
	Level string `yaml:"level"`
}

// Telemetry sends traces and metrics to a collector. They hold ids, names and
// numbers, never content.
type Telemetry struct {
	// OTLPEndpoint is the base URL of an OTLP/HTTP collector, such as
	// http://127.0.0.1:4318; /v1/traces and /v1/metrics are added. Absent: nothing is sent.
	OTLPEndpoint string `yaml:"otlp_endpoint"`
	// AllowPrivate lists networks (CIDR) that the collector may be in, where its
	// name leads to this machine and is not localhost. Default: none.
	AllowPrivate []string `yaml:"allow_private"`
	// Headers of each request, as references.
	Headers map[string]Ref `yaml:"headers"`
	// Sample is the share of runs whose traces are sent, from 0 to 1. Default 1.
	Sample *float64 `yaml:"sample"`
	// Interval is the time between two sendings of metrics. Default 30s.
	Interval Duration `yaml:"interval"`
}

// Duration is a Go duration, as in 1m30s.
type Duration time.Duration

// UnmarshalYAML reads "1m30s".
func (d *Duration) UnmarshalYAML(b []byte) error {
	v, err := parseDuration(b)
	*d = Duration(v)
	return err
}

// Or gives the duration, or def when it is not set.
func (d Duration) Or(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

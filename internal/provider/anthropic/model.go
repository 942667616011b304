// Package anthropic speaks the Messages API of Anthropic. It lowers neutral
// requests to it, and turns what streams back into parts.
//
// What the vendor wants back with a conversation (signed thinking, blocks of
// its hosted tools, citations, the container of its code execution) is handed
// out as State and sent to its maker again, byte for byte and in its place. It
// asks for a stream always, and takes a plain JSON answer too.
package anthropic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

const (
	// DefaultBaseURL is the vendor's public address.
	DefaultBaseURL = "https://api.anthropic.com"
	// DefaultMaxOutputTokens is what an answer may hold where neither the
	// request, the configuration nor the model's capabilities say it: the vendor
	// demands a number.
	DefaultMaxOutputTokens = 8192
	// MaxAnswer is the most that one answer may hold, in bytes of text,
	// reasoning, arguments and hosted blocks, and the most of a plain JSON answer.
	MaxAnswer = 32 << 20
	// MaxRequest is the most that one request's body may hold, in bytes: the
	// vendor takes no more.
	MaxRequest = 32 << 20

	version   = "2023-06-01"
	maxCalls  = 256             // tool calls in one answer
	maxBlocks = 1024            // blocks in one answer
	tail      = 2 * time.Second // how long the end is waited for after the stop reason
	minBudget = 1024            // the least thinking budget that the vendor takes
)

// Config says where a model is and how it is asked. Zero values mean the
// defaults.
type Config struct {
	Name    string // the provider's name in Content.Maker; default "anthropic"
	BaseURL string // up to and without "/v1/messages"; default DefaultBaseURL
	Model   string // the vendor's model name, for requests that name none
	// APIKey gives the key, each time anew, so that a changed secret needs no
	// restart. Nil or an empty key: no x-api-key header.
	APIKey func() (string, error)
	// HTTP brings the transport; nil means wire.NewTransport.
	HTTP *http.Client
	// FirstByte and Idle bound the wait for the head of an answer and between
	// two pieces of it; see wire.Limits.
	FirstByte, Idle time.Duration
	// EventLimit bounds one event of the stream, in bytes; default
	// wire.DefaultEventLimit.
	EventLimit int
	// Caps is what the model can do. Files that it does not take are refused
	// before anything is sent; a schema is handed over where Structured says so.
	Caps llm.Capabilities
	// MaxOutputTokens bounds an answer where the request does not; 0 means
	// Caps.Output, or else DefaultMaxOutputTokens.
	MaxOutputTokens int
	// Effort is "" (the vendor's default), minimal, low, medium or high. All but
	// minimal also ask for adaptive thinking. For models that know it (4.6 and
	// later); older ones take a ReasoningBudget.
	Effort string
	// ReasoningBudget is the tokens of manual thinking, 0 for none. It is for
	// models before 4.7; later ones refuse it.
	ReasoningBudget int
	// HostedTools are tools that the vendor runs, as its API documents them. An
	// object of type "url" names an MCP server that the vendor calls, and goes
	// where the API wants those.
	HostedTools []canonjson.Value
	// Betas are the values of the anthropic-beta header.
	Betas []string
}

// Model is a model behind the Messages API. It is safe for concurrent use.
type Model struct {
	cfg     Config
	url     string
	client  *wire.Client
	hosted  [][]byte // the entries of HostedTools that stand in tools
	servers [][]byte // and those that stand in mcp_servers
	betas   string
}

var _ llm.Model = (*Model)(nil)

const (
	betaMCP     = "mcp-client-2025-11-20"
	betaBinding = "thinking-binding-controls-2026-08-01"
)

// New checks the configuration. It does not reach out to the server.
func New(cfg Config) (*Model, error) {
	if cfg.Name == "" {
		cfg.Name = "anthropic"
	}
	if cfg.BaseURL == "" {
		cfg.BaseURL = DefaultBaseURL
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("base_url: want an absolute http or https URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("base_url: want no user, query or fragment")
	}
	path := "v1/messages"
	if strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		path = "messages"
	}
	if !slices.Contains([]string{"", "minimal", "low", "medium", "high"}, cfg.Effort) {
		return nil, errors.New("reasoning.effort: want minimal, low, medium or high")
	}
	if cfg.ReasoningBudget < 0 || cfg.ReasoningBudget > 0 && cfg.ReasoningBudget < minBudget {
		return nil, fmt.Errorf("reasoning.budget: want 0, or at least %d tokens", minBudget)
	}
	if cfg.MaxOutputTokens < 0 {
		return nil, errors.New("max_output_tokens: want a positive number, or 0 for the default")
	}
	m := &Model{
		cfg:    cfg,
		url:    u.JoinPath(path).String(),
		client: wire.NewClient(cfg.HTTP, wire.Limits{FirstByte: cfg.FirstByte, Idle: cfg.Idle}),
	}
	betas := slices.Clone(cfg.Betas)
	for i, tool := range cfg.HostedTools {
		server, err := hostedKind(tool)
		if err != nil {
			return nil, fmt.Errorf("hosted_tools[%d]: %w", i, err)
		}
		if !server {
			m.hosted = append(m.hosted, tool)
			continue
		}
		m.servers = append(m.servers, tool)
		if !slices.Contains(betas, betaMCP) {
			betas = append(betas, betaMCP)
		}
	}
	for _, b := range betas {
		if b == "" || strings.Trim(b, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return nil, errors.New("betas: want names of lower-case letters, digits and dashes")
		}
	}
	m.betas = strings.Join(betas, ",")
	return m, nil
}

// hostedKind checks an entry of HostedTools and says whether it is an MCP server.
func hostedKind(tool canonjson.Value) (server bool, err error) {
	n, err := tool.Node()
	if err != nil || n.Kind() != canonjson.Object {
		return false, errors.New("want an object, as the vendor documents its tools")
	}
	kind, _ := n.Get("type")
	if kind.Kind() != canonjson.String || kind.Text() == "" || kind.Text() == "custom" {
		return false, errors.New("want the type of a tool that the vendor runs")
	}
	for _, client := range []string{"bash_", "text_editor_", "memory_", "computer_", "browser_"} {
		if strings.HasPrefix(kind.Text(), client) {
			return false, fmt.Errorf("a tool of type %s is run by the client, not by the vendor", canonjson.QuoteName(kind.Text()))
		}
	}
	if _, ok := n.Get("cache_control"); ok {
		return false, errors.New("want no cache_control: the places of the cache are chosen for each request")
	}
	return kind.Text() == "url", nil
}

// CloseIdle ends connections that are kept for a next request. Call it after
// the last Stream has returned.
func (m *Model) CloseIdle() { m.client.CloseIdle() }

// Stream implements llm.Model.
//
// A stop reason ends the answer, whether message_stop follows or not; the
// latter is waited for two seconds. message_stop without a reason ends it with
// reason unknown if all arguments of tool calls are whole JSON. Without either
// the error is of class truncated, whatever came; the code of an answer that
// held nothing at all is "empty_reply". Nothing is read after message_stop.
//
// Parts come in the order in which the vendor began their blocks, also when it
// sends several side by side. Tool calls come as whole calls at the end. An
// answer with calls has reason tool_calls whatever the vendor said, unless it
// was length, or the last call's arguments end before their JSON does: then it
// is length, and no call of it is fit to run. Empty arguments become {};
// arguments that are no object stay as they came. A refusal is an error of
// class content_filter.
//
// Blocks of hosted tools are hosted calls and results; a block of a kind that
// is not known, and the vendor's container, are parts of reasoning without
// text, since State is all there is to keep of them.
//
// When Stream fails, open parts are not ended: that they broke off is the
// caller's to record. Usage seen before is emitted in any case.
func (m *Model) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	if err := ctx.Err(); err != nil {
		return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
	}
	body, err := m.encode(req)
	if err != nil {
		return err
	}
	key, err := m.key()
	if err != nil {
		return err
	}
	hr, err := http.NewRequest(http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return llm.Errorf(llm.InvalidRequest, "the request cannot be made").Because(err)
	}
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("Accept", "text/event-stream, application/json;q=0.9")
	hr.Header.Set("Accept-Encoding", "identity") // compression would hold the stream back
	hr.Header.Set("User-Agent", "holdfast")
	wire.SetSession(hr.Header, req)
	hr.Header.Set("Anthropic-Version", version)
	if m.betas != "" {
		hr.Header.Set("Anthropic-Beta", m.betas)
	}
	if key != "" {
		hr.Header.Set("X-Api-Key", key)
	}
	answer, err := m.client.Do(ctx, hr)
	if err != nil {
		return err
	}
	r := &reading{answer: answer, secrets: m.secrets(key), out: newAssembler(yield), limit: m.cfg.EventLimit}
	err = r.run()
	answer.Close(err == nil)
	return wire.Redact(err, r.secrets...)
}

func (m *Model) key() (string, error) {
	if m.cfg.APIKey == nil {
		return "", nil
	}
	key, err := m.cfg.APIKey()
	if err != nil {
		return "", wire.NoKey(err)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", llm.Errorf(llm.Auth, "the API key holds characters that no key has")
	}
	return key, nil
}

// secrets are what no message may show: the key, and the tokens of MCP servers.
func (m *Model) secrets(key string) []string {
	out := []string{key}
	for _, s := range m.servers {
		if n, err := canonjson.Value(s).Node(); err == nil {
			if token, ok := n.Get("authorization_token"); ok && token.Kind() == canonjson.String {
				out = append(out, token.Text())
			}
		}
	}
	return out
}

// Package gemini speaks generateContent, Google's API for Gemini models. It
// lowers neutral requests to it, and reads what its servers, and gateways in
// front of them, answer.
//
// It asks for a stream always, and takes a plain JSON answer and a JSON list
// too. What it emits is documented at Model.Stream.
package gemini

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

const (
	// DefaultBaseURL is the vendor's public address.
	DefaultBaseURL = "https://generativelanguage.googleapis.com"
	// MaxAnswer is the most that one answer may hold, in bytes of text,
	// reasoning, arguments and states, and the most of a plain JSON answer.
	MaxAnswer = 32 << 20
	// MaxRequest is the most that one request's body may hold, in bytes.
	MaxRequest = 64 << 20
	// maxCalls is the most tool calls in one answer, and of hosted calls and
	// results together.
	maxCalls = 256
	// maxSigned is the most signed pieces of one text.
	maxSigned = 1024
	// tail is how long more is waited for after the finish reason.
	tail = 2 * time.Second
)

// Config says where a model is and how it is asked. Zero values mean the defaults.
type Config struct {
	Name    string // the provider's name in Content.Maker; default "gemini"
	BaseURL string // with or without the version ("/v1beta"); default DefaultBaseURL
	Model   string // the vendor's model name, for requests that name none
	// APIKey gives the key, each time anew, so that a changed secret needs no
	// restart. Nil or an empty key: no key is sent.
	APIKey func() (string, error)
	// HTTP brings the transport; nil means wire.NewTransport.
	HTTP *http.Client
	// FirstByte and Idle bound the wait for the head of an answer and between
	// two pieces of it; see wire.Limits.
	FirstByte, Idle time.Duration
	// EventLimit bounds one event of the stream, in bytes; default
	// wire.DefaultEventLimit.
	EventLimit int
	// Caps is what the model can do. With Caps.Reasoning its thoughts are asked
	// for; files that it does not take are refused before a request is sent.
	Caps llm.Capabilities
	// MaxOutputTokens holds for requests that say nothing; 0: the vendor's default.
	MaxOutputTokens int
	// Effort of reasoning: minimal, low, medium or high; "": the vendor's default.
	Effort string
	// ReasoningBudget is the tokens of reasoning; 0: the vendor's default. It
	// does not go with Effort.
	ReasoningBudget int
	// HostedTools are offered with every request that may call tools, each an
	// object of the vendor's list of tools: {"googleSearch":{}}.
	HostedTools []canonjson.Value
}

// Model is a model behind generateContent. It is safe for concurrent use.
type Model struct {
	cfg    Config
	base   *url.URL // with the version
	client *wire.Client
}

var _ llm.Model = (*Model)(nil)

var version = regexp.MustCompile(`^v[0-9]`)

// New checks the configuration. It does not reach out to the server.
func New(cfg Config) (*Model, error) {
	if cfg.Name == "" {
		cfg.Name = "gemini"
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
	if !version.MatchString(path.Base(u.Path)) {
		u = u.JoinPath("v1beta")
	}
	if cfg.Model != "" && !modelName.MatchString(cfg.Model) {
		return nil, errors.New(`model: want a name of the vendor's, like "gemini-flash-latest"`)
	}
	if _, known := budgets[cfg.Effort]; !known && cfg.Effort != "" {
		return nil, errors.New("reasoning.effort: want minimal, low, medium or high")
	}
	if cfg.ReasoningBudget < 0 || cfg.MaxOutputTokens < 0 {
		return nil, errors.New("reasoning.budget and max_output_tokens: want no negative number")
	}
	if cfg.ReasoningBudget > 0 && cfg.Effort != "" {
		return nil, errors.New("reasoning.budget and reasoning.effort: the vendor takes one of them, not both")
	}
	for i, raw := range cfg.HostedTools {
		if err := checkHosted(raw); err != nil {
			return nil, fmt.Errorf("hosted_tools[%d]: %w", i, err)
		}
	}
	return &Model{
		cfg: cfg, base: u,
		client: wire.NewClient(cfg.HTTP, wire.Limits{FirstByte: cfg.FirstByte, Idle: cfg.Idle}),
	}, nil
}

func checkHosted(raw canonjson.Value) error {
	n, err := raw.Node()
	if err != nil || n.Kind() != canonjson.Object || n.Len() != 1 {
		return errors.New(`want an object with one tool, like {"googleSearch":{}}`)
	}
	switch name := n.At(0).Name(); {
	case name == "functionDeclarations" || name == "function_declarations":
		return errors.New("functions come from the daemon's own tools")
	case n.At(0).Kind() != canonjson.Object:
		return fmt.Errorf("want an object as %s", canonjson.QuoteName(name))
	}
	return nil
}

// modelName is a name, or a name with the collection before it
// ("models/…", "tunedModels/…").
var modelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,4}$`)

// url gives the address of a model's stream.
func (m *Model) url(model string) (string, error) {
	if len(model) > 256 || !modelName.MatchString(model) {
		return "", llm.Errorf(llm.InvalidRequest, "the model's name is not one that the vendor can have")
	}
	if !strings.HasPrefix(model, "models/") && !strings.HasPrefix(model, "tunedModels/") {
		model = "models/" + model
	}
	u := m.base.JoinPath(model + ":streamGenerateContent")
	u.RawQuery = "alt=sse"
	return u.String(), nil
}

// CloseIdle ends connections that are kept for a next request. Call it after
// the last Stream has returned.
func (m *Model) CloseIdle() { m.client.CloseIdle() }

// Stream implements llm.Model.
//
// The stream has no end mark: a finish reason ends the answer, and what may
// come behind it is waited for two seconds. Without one the error is of class
// truncated, whatever came; the code of an answer that held nothing at all is
// "empty_reply". A blocked prompt, and a finish for reasons of safety or
// rights, are errors of class content_filter with the vendor's word as code.
//
// Tool calls come as whole calls at the end, in order of appearance. An answer
// with calls has reason tool_calls whatever the vendor said, unless it was
// length. Absent arguments become {}; others stay as they came.
//
// Thoughts are reasoning without a state. Signatures are the state of the part
// that they came with: of a text they hold where in it they stood; a signature
// that came with no content at all is a reasoning part of its own. Code that
// the vendor ran, and tools that it reports as parts, are hosted calls with
// state; searches and pages that it reports beside the answer are hosted calls
// without, at the end.
//
// When Stream fails, open parts are not ended: that they broke off is the
// caller's to record. Usage seen before is emitted in any case.
func (m *Model) Stream(ctx context.Context, req *llm.Request, yield func(llm.Part) error) error {
	if err := ctx.Err(); err != nil {
		return llm.Errorf(llm.Aborted, "the attempt was stopped").Because(err)
	}
	model := req.Model
	if model == "" {
		model = m.cfg.Model
	}
	to, err := m.url(model)
	if err != nil {
		return err
	}
	body, err := m.encode(req, model)
	if err != nil {
		return err
	}
	key, err := m.key()
	if err != nil {
		return err
	}
	hr, err := http.NewRequest(http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return llm.Errorf(llm.InvalidRequest, "the request cannot be made").Because(err)
	}
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("Accept", "text/event-stream, application/json;q=0.9")
	hr.Header.Set("Accept-Encoding", "identity") // compression would hold the stream back
	hr.Header.Set("User-Agent", "holdfast")
	wire.SetSession(hr.Header, req)
	if key != "" {
		hr.Header.Set("X-Goog-Api-Key", key)
	}
	answer, err := m.client.Do(ctx, hr)
	if err != nil {
		return err
	}
	r := &reading{answer: answer, secrets: []string{key}, out: newAssembler(yield, namesOf(req.Tools)), limit: m.cfg.EventLimit}
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

// Package openai speaks the Responses API of OpenAI, and of the servers that
// follow it. It lowers neutral requests to input items, and reads the stream
// of items that comes back, in which most things are told several times.
//
// Nothing is kept at the vendor (store is false): reasoning and the items of
// hosted tools go back whole with the next request. It asks for a stream
// always, and takes a plain JSON answer too.
package openai

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
	// DefaultBaseURL is where OpenAI is.
	DefaultBaseURL = "https://api.openai.com/v1"
	// MaxAnswer is the most that one answer may hold, in bytes of text,
	// reasoning, arguments and state, and the most of a plain JSON answer.
	MaxAnswer = 32 << 20
	// MaxRequest is the most that one request's body may hold, in bytes.
	MaxRequest = 64 << 20
	// maxCalls is the most tool calls in one answer, and the most hosted ones.
	maxCalls = 256
	// maxItems is the most items in one answer, and maxParts the most parts.
	maxItems, maxParts = 2048, 8192
	// minOutput is the least that the vendor takes as max_output_tokens.
	minOutput = 16
)

// Config says where a model is and what is asked of it. Zero values mean the
// defaults.
type Config struct {
	Name    string // the provider's name in Content.Maker; default "openai"
	BaseURL string // up to and without "/responses"; default DefaultBaseURL
	Model   string // the vendor's model name, for requests that name none
	// APIKey gives the key, each time anew, so that a changed secret needs no
	// restart. Nil or an empty key: no Authorization header.
	APIKey func() (string, error)
	// HTTP brings the transport; nil means wire.NewTransport.
	HTTP *http.Client
	// FirstByte and Idle bound the wait for the head of an answer and between
	// two pieces of it; see wire.Limits.
	FirstByte, Idle time.Duration
	// EventLimit bounds one event of the stream, in bytes; default
	// wire.DefaultEventLimit.
	EventLimit int

	Caps llm.Capabilities
	// MaxOutputTokens is asked for where a request asks for nothing; 0 means
	// the vendor's default. The vendor takes no less than 16.
	MaxOutputTokens int
	// Effort of reasoning: none, minimal, low, medium, high or xhigh; "" means
	// the vendor's default. Not every model takes every word.
	Effort string
	// Summary asks for summaries of the reasoning: auto, concise or detailed.
	// None are asked for by default: the vendor refuses the whole request of an
	// organization that it has not verified.
	Summary string
	// ReasoningBudget must be 0: this API knows efforts only.
	ReasoningBudget int
	// HostedTools are tools that the vendor runs, as its API documents them.
	HostedTools []canonjson.Value
}

// Model is a model behind the Responses API. It is safe for concurrent use.
type Model struct {
	cfg    Config
	url    string
	client *wire.Client
}

var _ llm.Model = (*Model)(nil)

// New checks the configuration. It does not reach out to the server.
func New(cfg Config) (*Model, error) {
	if cfg.Name == "" {
		cfg.Name = "openai"
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
	switch cfg.Effort {
	case "", "none", "minimal", "low", "medium", "high", "xhigh":
	default:
		return nil, fmt.Errorf("reasoning.effort: %q is none of none, minimal, low, medium, high, xhigh", cfg.Effort)
	}
	switch cfg.Summary {
	case "", "auto", "concise", "detailed":
	default:
		return nil, fmt.Errorf("summary: %q is none of auto, concise, detailed", cfg.Summary)
	}
	if cfg.ReasoningBudget != 0 {
		return nil, errors.New("reasoning.budget: the Responses API takes no budget of tokens: set reasoning.effort instead")
	}
	if cfg.MaxOutputTokens < 0 {
		return nil, errors.New("max_output_tokens: want no negative number")
	}
	if err := checkHosted(cfg.HostedTools); err != nil {
		return nil, err
	}
	cfg.HostedTools = slices.Clone(cfg.HostedTools)
	return &Model{
		cfg:    cfg,
		url:    u.JoinPath("responses").String(),
		client: wire.NewClient(cfg.HTTP, wire.Limits{FirstByte: cfg.FirstByte, Idle: cfg.Idle}),
	}, nil
}

// CloseIdle ends connections that are kept for a next request. Call it after
// the last Stream has returned.
func (m *Model) CloseIdle() { m.client.CloseIdle() }

// Stream implements llm.Model.
//
// Only the events response.completed and response.incomplete end an answer.
// Without one the error is of class truncated, whatever came; the code of an
// answer that held nothing at all is "empty_reply". Nothing is read after
// them. What the vendor repeats in its events of completion counts once: the
// deltas come first, and a longer text adds what they left out.
//
// Tool calls come as whole calls at the end, in order of appearance. An answer
// with calls has reason tool_calls, unless the output limit cut it, or the
// last call's arguments end before their JSON does: then it is length, and no
// call of it is fit to run. Empty arguments become {}; arguments that are no
// object stay as they came. A refusal, and an answer that the content filter
// stopped, are errors of class content_filter.
//
// A hosted call is given out as soon as its arguments are known, and ends with
// its item. One that is open when the answer ends has no result and is not
// sent back; nor is one that only the caller could answer.
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
	if key != "" {
		hr.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := m.client.Do(ctx, hr)
	if err != nil {
		return err
	}
	r := &reading{answer: answer, secrets: []string{key}, out: newAssembler(yield), limit: m.cfg.EventLimit}
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

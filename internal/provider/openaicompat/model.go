// Package openaicompat speaks Chat Completions, the dialect of OpenAI that
// most servers of models understand in part. It lowers neutral requests to
// it, and reads the many shapes in which servers answer.
//
// It asks for a stream always, and takes a plain JSON answer too. What it
// emits is documented at Model.Stream.
package openaicompat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

const (
	// MaxAnswer is the most that one answer may hold, in bytes of text,
	// reasoning and arguments, and the most of a plain JSON answer.
	MaxAnswer = 32 << 20
	// MaxRequest is the most that one request's body may hold, in bytes.
	MaxRequest = 64 << 20
	// maxCalls is the most tool calls in one answer.
	maxCalls = 256
	// tail is how long the usage or [DONE] is waited for after the finish reason.
	tail = 2 * time.Second
)

// Config says where a model is. Zero values mean the defaults.
type Config struct {
	Name    string // the provider's name in Content.Maker; default "openai_compatible"
	BaseURL string // up to and without "/chat/completions"
	Model   string // the vendor's model name, for requests that name none
	// APIKey gives the key, each time anew, so that a changed secret needs no
	// restart. Nil or an empty key: no Authorization header.
	APIKey func() (string, error)
	// HTTP brings the transport; nil means wire.NewTransport.
	HTTP *http.Client
	// FirstByte and Idle bound the wait for the head of an answer and between
	// two pieces of it; see wire.Limits.
	FirstByte, Idle time.Duration
	// Caps is what the model can do. Files that it does not take are refused
	// before a request is sent; Structured says whether and how the output
	// schema is handed over as response_format. The zero value: text only, the
	// schema stands in the prompt only.
	Caps llm.Capabilities
	// StructuredOutput is Caps.Structured json_schema, whatever that says.
	StructuredOutput bool
	// MaxOutputTokens bounds an answer when the request does not; 0: the
	// server's default.
	MaxOutputTokens int
	// Effort is how much the model is to think: "minimal", "low", "medium" or
	// "high"; empty: the server's default.
	Effort string
	// ReasoningBudget bounds the thoughts in tokens, where the server has a word
	// for it (see Quirks.Reasoning); 0: the server's default.
	ReasoningBudget int
	// HostedTools are offered beside the tools of a request, as they are: objects
	// in the server's own form. They are withheld with the others.
	HostedTools []canonjson.Value
	// Quirks say where the server differs.
	Quirks Quirks
	// EventLimit bounds one event of the stream, in bytes; default
	// wire.DefaultEventLimit.
	EventLimit int
}

// Model is a model behind a Chat Completions server. It is safe for
// concurrent use.
type Model struct {
	cfg    Config
	quirks Quirks
	url    string
	client *wire.Client
}

var _ llm.Model = (*Model)(nil)

// New checks the configuration. It does not reach out to the server.
func New(cfg Config) (*Model, error) {
	if cfg.Name == "" {
		cfg.Name = "openai_compatible"
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("base_url: want an absolute http or https URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("base_url: want no user, query or fragment")
	}
	quirks, err := cfg.Quirks.resolve(u, &cfg)
	if err != nil {
		return nil, err
	}
	for i, t := range cfg.HostedTools {
		n, err := t.Node()
		if err == nil && n.Kind() == canonjson.Object {
			if typ, _ := n.Get("type"); typ.Text() != "" {
				continue
			}
		}
		return nil, fmt.Errorf("hosted_tools[%d]: want an object with a type", i)
	}
	return &Model{
		cfg:    cfg,
		quirks: quirks,
		url:    u.JoinPath("chat/completions").String(),
		client: wire.NewClient(cfg.HTTP, wire.Limits{FirstByte: cfg.FirstByte, Idle: cfg.Idle}),
	}, nil
}

// CloseIdle ends connections that are kept for a next request. Call it after
// the last Stream has returned.
func (m *Model) CloseIdle() { m.client.CloseIdle() }

// Stream implements llm.Model.
//
// A finish reason ends the answer, whether [DONE] follows or not; the usage
// that may come behind it is waited for two seconds. [DONE] without a reason
// ends it with reason unknown if all arguments of tool calls are whole JSON.
// Without either the error is of class truncated, whatever came; the code of
// an answer that held nothing at all is "empty_reply". Nothing is read
// after [DONE].
//
// Tool calls come as whole calls at the end, in order of appearance. An answer
// with calls has reason tool_calls whatever the vendor said, unless it was
// length, or the last call's arguments end before their JSON does: then it
// is length, and no call of it is fit to run. Empty arguments become {};
// arguments that are no object stay as they came. A refusal and the reason
// content_filter are errors of class content_filter.
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

// reading is the reading of one answer.
type reading struct {
	answer  *wire.Answer
	secrets []string
	out     *assembler
	limit   int
}

func (r *reading) run() error {
	if r.answer.Status != http.StatusOK {
		return r.answer.Refused(r.secrets...)
	}
	first, err := wire.FirstByte(r.answer)
	if errors.Is(err, io.EOF) {
		return emptyReply("the vendor sent no data")
	}
	if err != nil {
		return err
	}
	// The first byte tells the two kinds of body apart better than the content
	// type: servers label streams and plain answers with each other's.
	body := io.MultiReader(bytes.NewReader([]byte{first}), r.answer)
	switch first {
	case '{', '[', '<':
		return r.plain(body)
	}
	if !strings.Contains(r.answer.Header.Get("Content-Type"), "event-stream") && !strings.ContainsRune("dei:r", rune(first)) {
		return r.plain(body)
	}
	return r.stream(body)
}

// plain reads an answer that is no stream.
func (r *reading) plain(src io.Reader) error {
	body, err := io.ReadAll(io.LimitReader(src, MaxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > MaxAnswer {
		return tooLarge()
	}
	c, ok := parseChunk(body)
	if !ok || c.Choices == nil {
		return wire.Classify(r.answer.Status, r.answer.Header, body, time.Now(), r.secrets...)
	}
	if _, err := r.take(c, body); err != nil {
		return err
	}
	return r.out.finish(true)
}

// stream reads an event stream to its end.
func (r *reading) stream(src io.Reader) error {
	dec := wire.NewDecoder(src, r.limit)
	for {
		ev, err := dec.Next()
		if err != nil {
			return r.ended(dec, err)
		}
		if done, err := r.event(ev); err != nil {
			return err
		} else if done {
			return r.out.finish(true)
		}
	}
}

// ended closes an answer whose stream ended before [DONE].
func (r *reading) ended(dec *wire.Decoder, cause error) error {
	if errors.Is(cause, wire.ErrEventTooLarge) {
		return llm.Errorf(llm.Server, "the vendor sent a %v", cause).Because(cause)
	}
	if e := llm.AsError(cause); e.Class == llm.Aborted {
		return cause
	}
	// An event whose last blank line is missing counts when its data are whole.
	if ev, ok := dec.Rest(); ok {
		data := bytes.TrimSpace(ev.Data)
		if _, whole := parseChunk(data); whole || string(data) == doneMark {
			if done, err := r.event(ev); err != nil {
				return err
			} else if done {
				return r.out.finish(true)
			}
		}
	}
	if r.out.reason != "" || r.out.refusal.Len() > 0 {
		return r.out.finish(false)
	}
	if !errors.Is(cause, io.EOF) {
		return cause // already an *llm.Error
	}
	if !r.out.any {
		return emptyReply("the vendor closed the stream without an answer")
	}
	return llm.Errorf(llm.Truncated, "the stream ended without a finish reason")
}

const doneMark = "[DONE]"

// event takes one event and says whether it was the last.
func (r *reading) event(ev wire.Event) (done bool, err error) {
	data := bytes.TrimSpace(ev.Data)
	if len(data) == 0 {
		return false, nil
	}
	if string(data) == doneMark {
		return true, nil
	}
	c, ok := parseChunk(data)
	if ev.Type == "error" || !ok {
		if v, found := wire.ParseVendorError(data); found {
			return false, wire.InStream(v, r.secrets...)
		}
		if ev.Type == "error" {
			return false, wire.InStream(wire.VendorError{Message: string(data)}, r.secrets...)
		}
		if ev.Type != "" && ev.Type != "message" {
			return false, nil // "ping" and the like
		}
		return false, llm.Errorf(llm.Server, "the vendor sent a stream event that is not a JSON object")
	}
	finished, err := r.take(c, data)
	if finished {
		r.answer.EndWithin(tail)
	}
	return false, err
}

// take hands what one chunk holds to the assembler.
func (r *reading) take(c chunk, data []byte) (finished bool, err error) {
	if c.failed() {
		if err := r.out.usage(c.usage()); err != nil {
			return false, err
		}
		if err := r.out.choice(c.first()); err != nil {
			return false, err
		}
		if v, found := wire.ParseVendorError(data); found {
			return false, wire.InStream(v, r.secrets...)
		}
	}
	if err := r.out.usage(c.usage()); err != nil {
		return false, err
	}
	ch := c.first()
	if ch == nil {
		return false, nil
	}
	if err := r.out.choice(ch); err != nil {
		return false, err
	}
	return r.out.reason != "", nil
}

func emptyReply(why string) error {
	return &llm.Error{Class: llm.Truncated, Code: "empty_reply", Message: "empty reply: " + why}
}

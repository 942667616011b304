package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

type says string

func (s says) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(s)))}, nil
}

// A server that repeats the key in its word on why it gave no answer does not
// get it into an error (I-33).
func TestNoVendorGetsTheKeyIntoAnError(t *testing.T) {
	const key = "plain.gateway.key.4711"
	t.Setenv("VENDOR_KEY", key)
	for provider, answer := range map[string]string{
		"openai_compatible": `{"choices":[{"index":0,"message":{"content":"","refusal":"no: KEY"},"finish_reason":"content_filter"}]}`,
		"openai":            `{"status":"incomplete","incomplete_details":{"reason":"KEY"},"output":[{"type":"message","content":[{"type":"refusal","refusal":"no: KEY"}]}]}`,
		"anthropic":         `{"type":"message","content":[],"stop_reason":"refusal","stop_details":{"explanation":"no: KEY"}}`,
		"gemini":            `{"candidates":[{"finishReason":"SAFETY","finishMessage":"no: KEY"}]}`,
	} {
		cfg := &config.Config{Routes: map[string]config.Route{"main": {Provider: provider, Model: "m", BaseURL: "http://127.0.0.1:1", APIKey: &config.Ref{Env: "VENDOR_KEY"}}}}
		model, err := makeModel(cfg, "main", "m", says(strings.ReplaceAll(answer, "KEY", key)))
		if err != nil {
			t.Fatalf("%s: %v", provider, err)
		}
		req := &llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Parts: []llm.Content{{Kind: llm.Text, Text: "hi"}}}}}
		e := llm.AsError(model.Stream(t.Context(), req, func(llm.Part) error { return nil }))
		if e.Class != llm.ContentFilter || !strings.HasPrefix(e.Message, "no: ") {
			t.Errorf("%s: %v", provider, e)
		}
		if strings.Contains(e.Message+e.Code, key) {
			t.Errorf("%s: the error holds the key: %q, code %q", provider, e.Message, e.Code)
		}
	}
}

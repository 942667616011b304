package daemon

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// sent notes that a request went out.
type sent struct{ count int }

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.count++
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, errors.New("nobody there")
}

// The files that a session may show go out with every vendor, a megabyte of
// text beside them: else no run of the session would ever be answered again.
func TestEveryVendorTakesTheFilesOfARequest(t *testing.T) {
	for _, provider := range []string{"openai_compatible", "openai", "anthropic", "gemini"} {
		to := &sent{}
		cfg := &config.Config{Routes: map[string]config.Route{"main": {Provider: provider, Model: "m", BaseURL: "http://127.0.0.1:1", Capabilities: all()}}}
		model, err := makeModel(cfg, "main", "m", to)
		if err != nil {
			t.Fatalf("%s: %v", provider, err)
		}
		half := make([]byte, session.MaxContextFiles/2)
		req := &llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Parts: []llm.Content{
			{Kind: llm.Text, Text: string(slices.Repeat([]byte("a"), 1<<20))},
			{Kind: llm.Image, MediaType: "image/png", Data: half}, {Kind: llm.Image, MediaType: "image/png", Data: half},
		}}}}
		if err := model.Stream(t.Context(), req, func(llm.Part) error { return nil }); to.count != 1 {
			t.Errorf("%s: nothing was sent: %v", provider, err)
		}
	}
}

func all() config.Capabilities {
	yes := true
	return config.Capabilities{Images: &yes, PDF: &yes}
}

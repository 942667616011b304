package main

import (
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/provider/responsesstub"
)

// responses plays what scripts/public-clients/responses.mjs asks for.
func responses() stub {
	return responsesstub.New(func(_ int, req responsesstub.Request) responsesstub.Reply {
		last := req.Input[len(req.Input)-1]
		r := responsesstub.Reply{Thoughts: []string{"Let me think."}, Input: 12, Output: 5, Reasoning: 2}
		switch {
		case strings.Contains(last.Text, "fail in the stream"):
			return responsesstub.Reply{Text: "Part", Error: &responsesstub.Failure{Code: "server_error", Message: "retry later"}}
		case strings.Contains(last.Text, "fail"):
			return responsesstub.Reply{Status: http.StatusTooManyRequests, ContentType: "application/json",
				Body: []byte(`{"error":{"message":"Rate limit reached","type":"requests","param":null,"code":"rate_limit_exceeded"}}`)}
		case strings.Contains(last.Text, "refuse"):
			r.Refusal = "I cannot help."
		case strings.Contains(last.Text, "long"):
			r.Text, r.Incomplete = "Once upon a", "max_output_tokens"
		case strings.Contains(string(req.Format), "json_schema"):
			r.Text = `{"status":"ok","count":3,"tags":null}`
		case len(req.Tools) > 0 && req.Tools[0].Type == "web_search" && last.Role == "user":
			r.Hosted = []string{`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"oslo","queries":["oslo"]}}`}
			r.Text = "Found it."
		case len(req.Tools) > 0 && req.Tools[0].Type == "function" && last.Type != "function_call_output":
			r.Calls = []responsesstub.Call{{ID: "call_a", Name: req.Tools[0].Name, Arguments: `{"city":"Oslo"}`}, {ID: "call_b", Name: req.Tools[0].Name, Arguments: `{"city":"Rome"}`}}
		case last.Type == "function_call_output":
			r.Text = "Oslo is cold, Rome is warm."
		default:
			r.Text = "Hello from the stub: h\u00e9llo \u4e16\u754c."
		}
		return r
	})
}

package main

import (
	"net/http"
	"strings"

	stubbed "github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
)

// messages plays what scripts/public-clients/anthropic.mjs asks for.
func messages() stub {
	return stubbed.New(func(_ int, req *stubbed.Request) stubbed.Reply {
		last := req.Messages[len(req.Messages)-1].Blocks
		r := stubbed.Reply{Input: 12, Output: 5, CacheRead: 3}
		block := last[len(last)-1]
		switch {
		case strings.Contains(block.Text, "fail"):
			return stubbed.Error(529, "overloaded_error", "Overloaded")
		case strings.Contains(block.Text, "break"):
			return stubbed.Reply{Status: http.StatusOK, ContentType: "text/event-stream", Body: []byte(
				"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")}
		case req.Format != nil:
			r.Blocks = []stubbed.Block{stubbed.Text(`{"status":"ok","count":3}`)}
		case strings.Contains(block.Text, "search"):
			r.Stop = "pause_turn"
			r.Blocks = []stubbed.Block{stubbed.Text("Let me search."), stubbed.Hosted("srvtoolu_1", "web_search", `{"query":"weather"}`)}
		case block.Type == "server_tool_use":
			r.Blocks = []stubbed.Block{stubbed.Found(block.ID, "https://example.com/"), stubbed.Cited("It is cold.", "https://example.com/")}
		case len(req.Tools) > 0 && block.Type != "tool_result":
			r.Blocks = []stubbed.Block{stubbed.Thinking("Two cities."), stubbed.Redacted("r"),
				stubbed.ToolUse("toolu_a", req.Tools[0], `{"city":"Oslo"}`), stubbed.ToolUse("toolu_b", req.Tools[0], `{"city":"Rome"}`)}
		case block.Type == "tool_result":
			r.Blocks = []stubbed.Block{stubbed.Text("Oslo is cold, Rome is warm.")}
		default:
			r.Blocks = []stubbed.Block{stubbed.Hidden("h"), stubbed.Text("Hello from the stub: h\u00e9llo \u4e16\u754c.")}
		}
		return r
	})
}

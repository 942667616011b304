package main

import (
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
)

// messages plays what scripts/public-clients/anthropic.mjs asks for.
func messages() stub {
	return messagesstub.New(func(_ int, req *messagesstub.Request) messagesstub.Reply {
		last := req.Messages[len(req.Messages)-1].Blocks
		r := messagesstub.Reply{Input: 12, Output: 5, CacheRead: 3}
		block := last[len(last)-1]
		switch {
		case strings.Contains(block.Text, "fail"):
			return messagesstub.Error(529, "overloaded_error", "Overloaded")
		case strings.Contains(block.Text, "break"):
			return messagesstub.Reply{Status: http.StatusOK, ContentType: "text/event-stream", Body: []byte(
				"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")}
		case req.Format != nil:
			r.Blocks = []messagesstub.Block{messagesstub.Text(`{"status":"ok","count":3}`)}
		case strings.Contains(block.Text, "search"):
			r.Stop = "pause_turn"
			r.Blocks = []messagesstub.Block{messagesstub.Text("Let me search."), messagesstub.Hosted("srvtoolu_1", "web_search", `{"query":"weather"}`)}
		case block.Type == "server_tool_use":
			r.Blocks = []messagesstub.Block{messagesstub.Found(block.ID, "https://example.com/"), messagesstub.Cited("It is cold.", "https://example.com/")}
		case len(req.Tools) > 0 && block.Type != "tool_result":
			r.Blocks = []messagesstub.Block{messagesstub.Thinking("Two cities."), messagesstub.Redacted("r"),
				messagesstub.ToolUse("toolu_a", req.Tools[0], `{"city":"Oslo"}`), messagesstub.ToolUse("toolu_b", req.Tools[0], `{"city":"Rome"}`)}
		case block.Type == "tool_result":
			r.Blocks = []messagesstub.Block{messagesstub.Text("Oslo is cold, Rome is warm.")}
		default:
			r.Blocks = []messagesstub.Block{messagesstub.Hidden("h"), messagesstub.Text("Hello from the stub: h\u00e9llo \u4e16\u754c.")}
		}
		return r
	})
}

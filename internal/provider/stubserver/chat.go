package main

import (
	"net/http"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

// chat plays what scripts/public-clients/chat.mjs asks for.
func chat() stub {
	return chatstub.New(func(_ int, req chatstub.Request) chatstub.Reply {
		last := req.Messages[len(req.Messages)-1]
		r := chatstub.Reply{Plain: !req.Stream, Input: 12, Output: 5}
		switch {
		case strings.Contains(last.Text(), "fail"):
			return chatstub.Reply{Status: http.StatusTooManyRequests, ContentType: "application/json",
				Body: []byte(`{"error":{"message":"Rate limit reached","type":"requests","param":null,"code":"rate_limit_exceeded"}}`)}
		case req.Format != nil:
			r.Text = `{"status":"ok","count":3,"tags":null}`
		case len(req.Tools) > 0 && last.Role != "tool":
			r.Calls = []chatstub.Call{{ID: "call_a", Name: req.Tools[0], Arguments: `{"city":"Oslo"}`}, {ID: "call_b", Name: req.Tools[0], Arguments: `{"city":"Rome"}`}}
		case last.Role == "tool":
			r.Text = "Oslo is cold, Rome is warm."
		default:
			r.Text = "Hello from the stub: h\u00e9llo \u4e16\u754c."
		}
		return r
	})
}

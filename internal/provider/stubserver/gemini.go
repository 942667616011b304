package main

import (
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
)

// gemini plays what scripts/public-clients/gemini.mjs asks for.
func gemini() stub {
	s := geministub.New(func(_ int, req geministub.Request) geministub.Reply {
		last := req.Contents[len(req.Contents)-1].Parts
		said, _ := last[len(last)-1].Get("text")
		_, answered := last[0].Get("functionResponse")
		config, _ := req.Root.Get("generationConfig")
		_, schema := config.Get("responseSchema")
		_, free := config.Get("responseJsonSchema")
		r := geministub.Reply{Input: 12, Output: 5, Thoughts: 3}
		add := func(p ...geministub.Part) { r.Parts = append(r.Parts, p...) }
		switch {
		case strings.Contains(said.Text(), "fail"):
			return geministub.Reply{Status: http.StatusTooManyRequests, Body: []byte(
				`{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}`)}
		case strings.Contains(said.Text(), "break off"):
			return geministub.Reply{Parts: []geministub.Part{geministub.Text("Part")}, Finish: "-", Pause: 50 * time.Millisecond,
				After: []byte(`{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`)}
		case strings.Contains(said.Text(), "forbidden"):
			return geministub.Reply{Block: "PROHIBITED_CONTENT", Input: 4}
		case schema || free:
			add(geministub.Text(`{"status":"ok","count":3}`))
		case len(req.Functions) > 0 && req.Mode != "NONE" && !answered:
			add(geministub.Thought("Two cities."),
				geministub.Calls("fc_1", req.Functions[0], `{"city":"Oslo"}`).Signed("c2lnbmF0dXJlMQ=="),
				geministub.Calls("fc_2", req.Functions[0], `{"city":"Rome"}`))
		case answered:
			add(geministub.Text("Oslo is cold, Rome is warm."), geministub.Text("").Signed("c2lnbmF0dXJlMg=="))
		case len(req.Hosted) > 0:
			add(geministub.Part{Raw: []byte(`{"executableCode":{"language":"PYTHON","code":"print(42)"}}`)},
				geministub.Part{Raw: []byte(`{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"42\n"}}`)}, geministub.Text("42."))
		default:
			add(geministub.Text("Hello from the stub: h\u00e9llo \u4e16\u754c."))
		}
		return r
	})
	s.Key = "test-key"
	return s
}

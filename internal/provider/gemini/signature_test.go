package gemini

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
)

// parts gives the parts of a content as they were sent.
func parts(r geministub.Request, content int) string {
	var out []string
	for _, p := range r.Contents[content].Parts {
		out = append(out, string(p.Append(nil)))
	}
	return strings.Join(out, " ")
}

// C38: three parallel calls over three chunks, signed on the first only, with
// ids and without; results that return out of order; a next step with a new
// signature; then the same history again after a restart.
func TestSignaturesOfParallelCalls(t *testing.T) {
	for _, id := range []string{"", "v"} {
		call := func(n int) geministub.Part {
			name := ""
			if id != "" {
				name = fmt.Sprint(id, n)
			}
			return geministub.Calls(name, "lookup", fmt.Sprintf(`{"q":"%d"}`, n))
		}
		stub := geministub.New(geministub.Replies(
			geministub.Reply{Parts: []geministub.Part{call(1).Signed(sig(1)), call(2), call(3)}},
			geministub.Reply{Parts: []geministub.Part{call(4).Signed(sig(2)), call(5)}},
			geministub.Reply{Parts: []geministub.Part{geministub.Text("All done."), geministub.Text("").Signed(sig(3))}},
			geministub.Reply{Parts: []geministub.Part{geministub.Text("Again.")}},
		))
		m := model(t, Config{HTTP: over(t, stub)})
		req := &llm.Request{Messages: []llm.Message{task("x")}, Tools: []llm.ToolDefinition{lookup}}
		for range 2 {
			got := ask(t, t.Context(), m, req)
			if got.Err != nil || got.Reason != llm.FinishTools {
				t.Fatal(got, stub.Violations())
			}
			results := llm.Message{Role: llm.Tool}
			for _, c := range slices.Backward(got.message) {
				results.Parts = append(results.Parts, result(c.CallID, "r"+c.Text))
			}
			// Call ids begin anew in each step of this test; the daemon's do not.
			req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: got.message}, results)
		}
		got := ask(t, t.Context(), m, req)
		if got.Err != nil || got.Text != "All done." {
			t.Fatal(got, stub.Violations())
		}
		r := stub.Requests()[2]
		if len(r.Contents) != 5 {
			t.Fatalf("%s", r.Body)
		}
		seen := []string{parts(r, 1), parts(r, 3)}
		for i, want := range []struct{ calls, sigs int }{{3, 1}, {2, 1}} {
			if strings.Count(seen[i], "functionCall") != want.calls || strings.Count(seen[i], "thoughtSignature") != want.sigs ||
				!strings.Contains(seen[i][:strings.Index(seen[i], " ")], sig(i+1)) {
				t.Errorf("%s", seen[i])
			}
		}
		order := parts(r, 2)
		if a, b, c := strings.Index(order, `\"1\"`), strings.Index(order, `\"2\"`), strings.Index(order, `\"3\"`); a < 0 || a > b || b > c {
			t.Errorf("results: %s", order)
		}
		// The last, empty part with its signature comes back behind the text.
		req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: got.message}, task("again"))
		again := model(t, Config{HTTP: over(t, stub)})
		if got := ask(t, t.Context(), again, req); got.Err != nil {
			t.Fatal(got, stub.Violations())
		}
		if got, want := parts(stub.Requests()[3], 5), `{"text":"All done."} {"text":"","thoughtSignature":"`+sig(3)+`"}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for i, content := range []int{1, 3} {
			if parts(stub.Requests()[3], content) != seen[i] {
				t.Error("the history changed")
			}
		}
	}
}

// C38: history from another vendor, and from another model of this one, has the
// documented stand-in on the first call of each step, and no signature else.
func TestForeignHistory(t *testing.T) {
	for _, maker := range []string{"openai/gpt-5", "gemini/gemini-3-pro", ""} {
		stub := geministub.New(geministub.Replies(geministub.Reply{Parts: []geministub.Part{geministub.Text("ok")}}))
		m := model(t, Config{HTTP: over(t, stub)})
		state := `{"id":"call_x","thoughtSignature":"` + sig(9) + `"}`
		req := &llm.Request{Messages: []llm.Message{
			task("x"),
			{Role: llm.Assistant, Parts: []llm.Content{
				by(maker, llm.Content{Kind: llm.Reasoning}, `{"text":"t","thought":true,"thoughtSignature":"`+sig(8)+`"}`),
				by(maker, text("I look."), `{"parts":[{"n":7,"thoughtSignature":"`+sig(7)+`"}]}`),
				by(maker, called("a", "lookup", `{}`), state), by(maker, called("b", "lookup", `{}`), ""),
			}},
			{Role: llm.Tool, Parts: []llm.Content{result("b", "2"), result("a", "1")}},
			{Role: llm.Assistant, Parts: []llm.Content{by(maker, called("c", "lookup", `{}`), state)}},
			{Role: llm.Tool, Parts: []llm.Content{result("c", "3")}},
		}, Tools: []llm.ToolDefinition{lookup}}
		if got := ask(t, t.Context(), m, req); got.Err != nil {
			t.Fatal(got, stub.Violations())
		}
		r := stub.Requests()[0]
		want := `{"text":"I look."} {"functionCall":{"args":{},"name":"lookup"},"thoughtSignature":"skip_thought_signature_validator"} {"functionCall":{"args":{},"name":"lookup"}}`
		if got := parts(r, 1); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if bytes.Count(r.Body, []byte(noSignature)) != 2 || bytes.Count(r.Body, []byte("thoughtSignature")) != 2 {
			t.Errorf("%s", r.Body)
		}
	}
}

// A signature goes back in the very part it came with, wherever that stood.
func TestSignaturesOfText(t *testing.T) {
	for name, tt := range map[string]struct{ parts, back string }{
		"on the last piece":  {`{"text":"ab"} {"text":"c\u00e9"} {"text":"d","thoughtSignature":"S1=="}`, `{"text":"abcé"} {"text":"d","thoughtSignature":"S1=="}`},
		"in the middle":      {`{"text":"ab"} {"text":"c","thoughtSignature":"S1=="} {"text":"d"}`, `{"text":"ab"} {"text":"c","thoughtSignature":"S1=="} {"text":"d"}`},
		"twice":              {`{"text":"a","thoughtSignature":"S1=="} {"text":"b","thoughtSignature":"S2=="}`, `{"text":"a","thoughtSignature":"S1=="} {"text":"b","thoughtSignature":"S2=="}`},
		"empty at the end":   {`{"text":"ab"} {"text":"","thoughtSignature":"S1=="}`, `{"text":"ab"} {"text":"","thoughtSignature":"S1=="}`},
		"empty at the front": {`{"text":"","thoughtSignature":"S1=="} {"text":"ab"}`, `{"text":"","thoughtSignature":"S1=="} {"text":"ab"}`},
		"behind thoughts":    {`{"text":"hm","thought":true} {"text":"","thoughtSignature":"S1=="} {"text":"ab"}`, `{"text":"","thoughtSignature":"S1=="} {"text":"ab"}`},
		"behind a call":      {`{"functionCall":{"args":{},"name":"f"},"thoughtSignature":"S1=="} {"text":"","thoughtSignature":"S2=="}`, `{"functionCall":{"args":{},"name":"f"},"thoughtSignature":"S1=="} {"text":"","thoughtSignature":"S2=="}`},
		"on a thought":       {`{"text":"hm","thought":true} {"text":"so","thought":true,"thoughtSignature":"S1=="} {"text":"ab"}`, `{"text":"so","thought":true,"thoughtSignature":"S1=="} {"text":"ab"}`},
		"on code": {`{"executableCode":{"code":"1","language":"PYTHON"},"thoughtSignature":"S1=="} {"codeExecutionResult":{"outcome":"OUTCOME_OK"}} {"text":"ab"}`,
			`{"executableCode":{"code":"1","language":"PYTHON"},"thoughtSignature":"S1=="} {"codeExecutionResult":{"outcome":"OUTCOME_OK"}} {"text":"ab"}`},
		"none": {`{"text":"a"} {"text":"b"}`, `{"text":"ab"}`},
	} {
		got := everyWay(t, chunks("STOP", strings.Split(tt.parts, " ")...))
		if got.Err != nil {
			t.Fatal(name, got)
		}
		req := &llm.Request{Messages: []llm.Message{task("x"), {Role: llm.Assistant, Parts: got.message}}}
		for _, c := range got.message {
			if c.Kind == llm.ToolCall {
				req.Messages = append(req.Messages, llm.Message{Role: llm.Tool, Parts: []llm.Content{result(c.CallID, "r")}})
			}
		}
		req.Messages = append(req.Messages, task("y"))
		raw, err := model(t, Config{}).encode(req, "gemini-3-flash")
		if err != nil {
			t.Fatal(err)
		}
		root, err := canonjson.Parse(raw, canonjson.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		list, _ := root.Get("contents")
		sent, _ := list.At(1).Get("parts")
		var back []string
		for i := range sent.Len() {
			back = append(back, string(sent.At(i).Append(nil)))
		}
		if strings.Join(back, " ") != tt.back {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(back, " "), tt.back)
		}
	}
}

// A state that does not fit its part is left out and alters nothing.
func TestBrokenStates(t *testing.T) {
	for _, state := range []string{`{}`, `x`, `{"parts":[{"n":1}]}`, `{"parts":[{"n":99,"thoughtSignature":"a"}]}`, `{"parts":[{"n":-1},{"n":3}]}`,
		`{"parts":[{"n":2,"thoughtSignature":"a"},{"n":1}]}`, `{"parts":[]}`, `[1]`} {
		req := &llm.Request{Messages: []llm.Message{task("x"), {Role: llm.Assistant, Parts: []llm.Content{
			by(own, text("a\u00e9"), state), by(own, llm.Content{Kind: llm.Reasoning}, state+"x"), by(own, called("c", "f", "{}"), state+"]"),
		}}, {Role: llm.Tool, Parts: []llm.Content{result("c", "")}}}}
		raw, err := model(t, Config{}).encode(req, "gemini-3-flash")
		want := `{"role":"model","parts":[{"text":"a` + "\u00e9" + `"},{"functionCall":{"name":"f","args":{}},"thoughtSignature":"skip_thought_signature_validator"}]}`
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %s %v", state, raw, err)
		}
	}
}

// conversation draws a history of random makers; those that say that they are
// this model have states of the stub's making.
func conversation(rt *rapid.T, stub *geministub.Stub, hand func(geministub.Reply) []llm.Content) *llm.Request {
	words := rapid.SampledFrom([]string{"", " ", "a", "h\u00e9llo \u4e16\u754c", "<b>&\u2028", `{"status":"ok"}`, "\xff\xfe", strings.Repeat("long ", 50)})
	makers := rapid.SampledFrom([]string{own, own, "gemini/gemini-3-pro", "anthropic/claude", "openai/gpt", ""})
	req := &llm.Request{
		System: words.Draw(rt, "system"), NoTools: rapid.Bool().Draw(rt, "no tools"), SerialTools: rapid.Bool().Draw(rt, "serial"),
		MaxOutputTokens: rapid.SampledFrom([]int{0, 100}).Draw(rt, "max"), Continues: true,
	}
	if rapid.Bool().Draw(rt, "tools") {
		req.Tools = []llm.ToolDefinition{lookup, {Name: "0-odd", InputSchema: canonjson.Value(`{"type":"object"}`)}}
	}
	if rapid.Bool().Draw(rt, "output") {
		req.Output = canonjson.Value(`{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}`)
	}
	n, id := 0, 0
	req.Messages = append(req.Messages, task("begin"))
	for range rapid.IntRange(0, 6).Draw(rt, "turns") {
		switch rapid.IntRange(0, 3).Draw(rt, "turn") {
		case 0:
			user := llm.Message{Role: llm.User}
			for range rapid.IntRange(0, 3).Draw(rt, "user parts") {
				user.Parts = append(user.Parts, rapid.SampledFrom([]llm.Content{
					text(words.Draw(rt, "said")), {Kind: llm.Image, MediaType: "image/webp", Data: []byte("x"), Name: "n\u202e.webp"}, {Kind: llm.File, MediaType: "application/pdf", Data: []byte{0}},
				}).Draw(rt, "user part"))
			}
			req.Messages = append(req.Messages, user)
			continue
		}
		maker := makers.Draw(rt, "maker")
		var reply geministub.Reply
		for range rapid.IntRange(0, 5).Draw(rt, "parts") {
			p := geministub.Text(words.Draw(rt, "text"))
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				p.Thought = true
			case 1, 2:
				id++
				vendor := ""
				if rapid.Bool().Draw(rt, "id") {
					vendor = fmt.Sprint("v", id, "-", n)
				}
				p = geministub.Calls(vendor, rapid.SampledFrom([]string{"lookup", "_0-odd", "gone"}).Draw(rt, "name"), rapid.SampledFrom([]string{"", "{}", `{"q":"<\u00e9>"}`}).Draw(rt, "args"))
			case 3:
				p = geministub.Part{Raw: []byte(`{"executableCode":{"language":"PYTHON","code":"1<2"}}`)}
				reply.Parts = append(reply.Parts, p)
				p = geministub.Part{Raw: []byte(`{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"x"}}`)}
			}
			if rapid.Bool().Draw(rt, "signed") && !p.Thought {
				n++
				p = p.Signed(sig(n))
			}
			reply.Parts = append(reply.Parts, p)
		}
		said := hand(reply)
		results := llm.Message{Role: llm.Tool}
		for i := range said {
			said[i].Maker = maker
			if said[i].Kind == llm.ToolCall {
				said[i].CallID = fmt.Sprint(said[i].CallID, "_", len(req.Messages))
				results.Parts = append(results.Parts, llm.Content{Kind: llm.ToolResult, CallID: said[i].CallID, Text: words.Draw(rt, "result"), IsError: rapid.Bool().Draw(rt, "failed")})
			}
		}
		if maker != own { // another vendor's states are anything
			for i := range said {
				said[i].State = []byte(rapid.SampledFrom([]string{"", "x", `{"thoughtSignature":"eHh4"}`, `{"parts":[{"n":1,"thoughtSignature":"eHh4"}]}`}).Draw(rt, "state"))
			}
		}
		req.Messages = append(req.Messages, llm.Message{Role: llm.Assistant, Parts: said})
		if len(results.Parts) > 0 {
			results.Parts = rapid.Permutation(results.Parts).Draw(rt, "order")
			req.Messages = append(req.Messages, results)
		}
	}
	return req
}

// Whatever the history, what is sent is what the vendor takes.
func TestRequestsAreTaken(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stub := geministub.New(geministub.Replies(geministub.Reply{}))
		hand := func(r geministub.Reply) []llm.Content {
			r.Finish = "MAX_TOKENS" // of an empty answer too
			stub.Hand("gemini-3-flash", r)
			got := readText(t, string(r.Stream()))
			if got.Err != nil {
				rt.Fatal(got)
			}
			return got.message
		}
		req := conversation(rt, stub, hand)
		hosted := rapid.SampledFrom([][]canonjson.Value{nil, {canonjson.Value(`{"codeExecution":{}}`), canonjson.Value(`{"urlContext":{}}`)}}).Draw(rt, "hosted")
		name := rapid.SampledFrom([]string{"gemini-3-flash", "gemini-2.5-flash"}).Draw(rt, "model")
		m := model(t, Config{Caps: files, Effort: rapid.SampledFrom([]string{"", "minimal", "high"}).Draw(rt, "effort"), HostedTools: hosted})
		raw, err := m.encode(req, name)
		if err != nil {
			rt.Fatal(err)
		}
		w := httptest.NewRecorder()
		stub.ServeHTTP(w, httptest.NewRequest("POST", "/v1beta/models/"+name+":streamGenerateContent?alt=sse", bytes.NewReader(raw)))
		if v := stub.Violations(); len(v) > 0 {
			rt.Fatalf("%v\n%s", v, raw)
		}
	})
}

package daemon_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/provider/geministub"
	"github.com/holdfast-dev/holdfast/internal/provider/messagesstub"
	"github.com/holdfast-dev/holdfast/internal/provider/responsesstub"
)

// said is what a model says, in no vendor's words.
type said struct {
	think   bool
	text    string
	calls   []chatstub.Call
	cut     bool // by the output limit
	refused bool
	stop    bool // calls come with the reason of a plain answer
}

func calls(ids ...string) said {
	var s said
	for _, id := range ids {
		s.calls = append(s.calls, chatstub.Call{ID: id, Name: "lookup", Arguments: "{}"})
	}
	return s
}

// vendor is a strict stand-in that plays what a model says in its own dialect.
type vendor struct {
	name  string // of the route too
	route string // of the configuration, with the address for %q
	make  func(play func(n int) said) (http.Handler, func() []string, func() [][]byte)
}

func vendors() []vendor {
	return []vendor{
		{"chat", `{provider: openai_compatible, base_url: %q, model: gpt-4o, capabilities: {images: true, pdf: true, structured: json_schema}}`, chatVendor},
		{"openai", `{provider: openai, base_url: %q, model: gpt-5-mini, api_key: {env: HF_DIALECT_KEY}}`, responsesVendor},
		{"anthropic", `{provider: anthropic, base_url: %q, model: claude-sonnet-4-5, api_key: {env: HF_DIALECT_KEY}, reasoning: {budget: 2000}}`, messagesVendor},
		{"gemini", `{provider: gemini, base_url: %q, model: gemini-3-pro, api_key: {env: HF_DIALECT_KEY}}`, geminiVendor},
	}
}

func chatVendor(play func(int) said) (http.Handler, func() []string, func() [][]byte) {
	s := chatstub.New(func(n int, _ chatstub.Request) chatstub.Reply {
		a := play(n)
		r := chatstub.Reply{Text: a.text, Calls: a.calls, Input: 10, Output: 5}
		if a.think {
			r.Reasoning = fmt.Sprint("thoughts ", n)
		}
		switch {
		case a.cut:
			r.Finish = "length"
		case a.refused:
			r.Finish = "content_filter"
		case a.stop:
			r.Finish = "stop"
		}
		return r
	})
	return s, s.Violations, bodies(s.Requests, func(r chatstub.Request) []byte { return r.Body })
}

func responsesVendor(play func(int) said) (http.Handler, func() []string, func() [][]byte) {
	s := responsesstub.New(func(n int, _ responsesstub.Request) responsesstub.Reply {
		a := play(n)
		r := responsesstub.Reply{Think: a.think, Text: a.text, Input: 10, Output: 5}
		for _, c := range a.calls {
			r.Calls = append(r.Calls, responsesstub.Call(c))
		}
		if a.cut {
			r.Incomplete = "max_output_tokens"
		}
		if a.refused {
			r.Refusal = "I will not."
		}
		return r
	})
	return s, s.Violations, bodies(s.Requests, func(r responsesstub.Request) []byte { return r.Body })
}

func messagesVendor(play func(int) said) (http.Handler, func() []string, func() [][]byte) {
	s := messagesstub.New(func(n int, _ *messagesstub.Request) messagesstub.Reply {
		a := play(n)
		r := messagesstub.Reply{Input: 10, Output: 5}
		if a.think {
			r.Blocks = append(r.Blocks, messagesstub.Thinking(fmt.Sprint("thoughts ", n)), messagesstub.Redacted(fmt.Sprint(n)), messagesstub.Hidden(fmt.Sprint(n)))
		}
		if a.text != "" {
			r.Blocks = append(r.Blocks, messagesstub.Text(a.text))
		}
		for _, c := range a.calls {
			r.Blocks = append(r.Blocks, messagesstub.ToolUse(c.ID, c.Name, c.Arguments))
		}
		switch {
		case a.cut:
			r.Stop = "max_tokens"
		case a.refused:
			r.Stop, r.Refusal = "refusal", "I will not."
		case a.stop:
			r.Stop = "end_turn"
		}
		return r
	})
	return s, s.Violations, bodies(s.Requests, func(r *messagesstub.Request) []byte { return r.Body })
}

func geminiVendor(play func(int) said) (http.Handler, func() []string, func() [][]byte) {
	s := geministub.New(func(n int, _ geministub.Request) geministub.Reply {
		a := play(n)
		r := geministub.Reply{Input: 10, Output: 5}
		if a.text != "" {
			r.Parts = append(r.Parts, geministub.Text(a.text))
		}
		for i, c := range a.calls {
			p := geministub.Calls("", c.Name, c.Arguments)
			if i == 0 { // C38: the first of several is signed, and it alone
				p = p.Signed(fmt.Sprintf("c2lnbmF0dXJl%04d", n))
			}
			r.Parts = append(r.Parts, p)
		}
		switch {
		case a.cut:
			r.Finish = "MAX_TOKENS"
		case a.refused:
			r.Block = "SAFETY"
		}
		return r
	})
	return s, s.Violations, bodies(s.Requests, func(r geministub.Request) []byte { return r.Body })
}

func bodies[T any](requests func() []T, body func(T) []byte) func() [][]byte {
	return func() [][]byte {
		var out [][]byte
		for _, r := range requests() {
			out = append(out, body(r))
		}
		return out
	}
}

// cast is a house before all vendors at once, each with a route of its name.
type cast struct {
	*house
	plays    map[string][]said // what each will say, in order; past the end the last again
	requests map[string]func() [][]byte
	names    []string

	mu      sync.Mutex
	headers map[string][]http.Header // of the requests
	// cut gives a word of an answer before which its connection breaks; "": none.
	cut func(route string, n int) string
}

// between stands between a vendor and the daemon: it keeps the headers, and
// breaks connections.
func (c *cast) between(route string, vendor http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		n := len(c.headers[route])
		c.headers[route] = append(c.headers[route], r.Header.Clone())
		c.mu.Unlock()
		word := ""
		if c.cut != nil {
			word = c.cut(route, n)
		}
		if word == "" {
			vendor.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		vendor.ServeHTTP(rec, r)
		head, _, found := bytes.Cut(rec.Body.Bytes(), []byte(word))
		if !found {
			c.t.Errorf("%s: no %q in %s", route, word, rec.Body)
		}
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		_, _ = w.Write(head)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
}

func newCast(t *testing.T, found string) *cast { return newCastLike(t, found, "", 0) }

// newCastOf is a cast whose routes say something more.
func newCastOf(t *testing.T, found, more string) *cast { return newCastLike(t, found, more, 0) }

// newCastWithin is a cast whose models have a window of so many tokens; 0: their own.
func newCastWithin(t *testing.T, found string, window int) *cast {
	return newCastLike(t, found, "", window)
}

func newCastLike(t *testing.T, found, more string, window int) *cast {
	t.Helper()
	t.Setenv("HF_DIALECT_KEY", "key-of-the-dialect-tests")
	c := &cast{house: &house{t: t}, plays: map[string][]said{}, requests: map[string]func() [][]byte{}, headers: map[string][]http.Header{}}
	routes := "default_route: chat\nroutes:\n"
	for _, v := range vendors() {
		handler, violations, requests := v.make(func(n int) said {
			list := c.plays[v.name]
			return list[min(n, len(list)-1)]
		})
		srv := httptest.NewServer(c.between(v.name, handler))
		t.Cleanup(srv.Close)
		t.Cleanup(func() {
			for _, bad := range violations() {
				t.Errorf("%s refuses: %s", v.name, bad)
			}
		})
		address := srv.URL
		if v.name == "chat" || v.name == "openai" {
			address += "/v1"
		}
		route := strings.TrimSuffix(fmt.Sprintf(v.route, address), "}") + more + "}"
		if caps := fmt.Sprintf("capabilities: {context: %d", window); strings.Contains(route, "capabilities: {") && window > 0 {
			route = strings.Replace(route, "capabilities: {", caps+", ", 1)
		} else if window > 0 {
			route = strings.TrimSuffix(route, "}") + ", " + caps + "}}"
		}
		routes += "  " + v.name + ": " + route + "\n"
		c.requests[v.name] = requests
		c.names = append(c.names, v.name)
	}
	c.begin(routes, found)
	return c
}

// each runs a test over all dialects, each with a cast of its own.
func each(t *testing.T, found string, test func(t *testing.T, c *cast, route string)) {
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) { test(t, newCast(t, found), v.name) })
	}
}

func (c *cast) typed(route string, plays ...said) *api.Run {
	c.t.Helper()
	c.plays[route] = plays
	return c.submit(c.session(&api.CreateSession{OutputContract: &api.OutputContract{Schema: api.Raw(contractT)}}),
		&api.SubmitRun{Content: api.Text("go"), Route: route})
}

const right = `{"status":"ok","count":1}`

// C13: the repair after a turn with tools is taken by every vendor, and no tool
// can be called on it. C09: the contract has an optional member, the tool a
// schema that no vendor takes as it is.
func TestDialectsRepair(t *testing.T) { // C09, C13, I-10
	each(t, "found", func(t *testing.T, c *cast, route string) {
		r := c.typed(route, calls("t1"), said{text: `{"status":null,"count":3}`}, said{text: `{"status":"ok","count":3,"tags":null}`})
		if r.Status != api.RunCompleted || r.Counters.Repairs != 1 || string(r.StructuredOutput) != `{"count":3,"status":"ok"}` || c.called.Load() != 1 {
			t.Fatalf("%s %+v %+v %s", r.Status, r.Error, r.Counters, r.StructuredOutput)
		}
		third := string(c.requests[route]()[2])
		if !strings.Contains(third, "$.status: expected a string, got null") {
			t.Errorf("the repair says another thing: %s", third)
		}
		able := strings.Contains(third, `"lookup"`) && strings.Contains(third, `"tools"`)
		none := strings.Contains(third, `"tool_choice":{"type":"none"}`) || strings.Contains(third, `"tool_choice":"none"`) || strings.Contains(third, `"mode":"NONE"`)
		if able && !none && route != "openai" && route != "chat" || strings.Contains(third, `"parallel_tool_calls":true`) {
			t.Errorf("the repair turn offers tools: %s", third)
		}
	})
}

// C36: nothing runs of a reply that the output limit cut, even where the
// arguments happen to be whole, and the history stays one that vendors take.
func TestDialectsCut(t *testing.T) { // C36
	each(t, "found", func(t *testing.T, c *cast, route string) {
		cut := calls("t1")
		cut.cut = true
		r := c.typed(route, cut, said{text: right})
		if r.Status != api.RunCompleted || c.called.Load() != 0 || len(c.requests[route]()) != 2 {
			t.Errorf("%s %+v: the tool ran %d times in %d requests", r.Status, r.Error, c.called.Load(), len(c.requests[route]()))
		}
		if second := string(c.requests[route]()[1]); !strings.Contains(second, "output limit cut this call") {
			t.Errorf("the model is not told: %s", second)
		}
		if r = c.submit(r.SessionID, &api.SubmitRun{Content: api.Text("and now"), Route: route}); r.Status != api.RunCompleted {
			t.Errorf("the next run: %s %+v", r.Status, r.Error)
		}
	})
}

// C15: a refusal is no wrong answer: no repair, no answer, and its class.
func TestDialectsRefusal(t *testing.T) { // C15
	each(t, "found", func(t *testing.T, c *cast, route string) {
		r := c.typed(route, said{refused: true})
		if r.Status != api.RunFailed || r.Error.Code != "model_content_filter" || len(c.requests[route]()) != 1 || len(r.Outputs) != 0 {
			t.Errorf("%s %+v after %d requests", r.Status, r.Error, len(c.requests[route]()))
		}
	})
}

// C22: calls run whatever the reason of the end says, and the words before them
// are not the answer.
func TestDialectsCallsWithStop(t *testing.T) { // C22
	each(t, "found", func(t *testing.T, c *cast, route string) {
		first := calls("t1", "t2")
		first.text, first.stop = "Let me see.", true
		r := c.typed(route, first, said{text: right})
		if r.Status != api.RunCompleted || c.called.Load() != 2 || string(r.StructuredOutput) != `{"count":1,"status":"ok"}` {
			t.Errorf("%s %+v: %d calls, %s", r.Status, r.Error, c.called.Load(), r.StructuredOutput)
		}
	})
}

// C21: a vendor's ids that come again, on one turn or on several, mix up nothing.
func TestDialectsCallIDs(t *testing.T) { // C21, I-13
	each(t, "found", func(t *testing.T, c *cast, route string) {
		r := c.typed(route, calls("x"), calls("x"), calls("y", "z"), calls("x"), said{text: right})
		if r.Status != api.RunCompleted || c.called.Load() != 5 {
			t.Errorf("%s %+v: %d calls", r.Status, r.Error, c.called.Load())
		}
		if last := c.requests[route]()[4]; bytes.Count(last, []byte("found")) != 5 {
			t.Errorf("results are lost: %s", last)
		}
	})
}

// C05, C90: bytes that are no UTF-8, NULs and half runes in a tool's result
// poison nothing: every later request is one that a strict vendor takes.
func TestDialectsStrangeBytes(t *testing.T) { // C05, C90
	for name, found := range map[string]string{
		"not UTF-8": "\xff\xfeW\x00s\x00l\x00", "half a rune at the bound": strings.Repeat("x", 32<<10-1) + "\U0001F3F7y", "escape": `six characters \u0000 and \ud83d`,
	} {
		t.Run(name, func(t *testing.T) {
			each(t, found, func(t *testing.T, c *cast, route string) {
				r := c.typed(route, calls("t1"), said{text: right})
				if r.Status != api.RunCompleted {
					t.Fatalf("%s %+v", r.Status, r.Error)
				}
				if r = c.submit(r.SessionID, &api.SubmitRun{Content: api.Text("again"), Route: route}); r.Status != api.RunCompleted {
					t.Fatalf("the next run: %s %+v", r.Status, r.Error)
				}
				for i, body := range c.requests[route]() {
					if !utf8.Valid(body) {
						t.Errorf("request %d is no UTF-8", i)
					}
				}
			})
		})
	}
}

const (
	picture  = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde\x00\x00\x00\x0cIDATx\x9cc\xf8\xcf\xc0\x00\x00\x03\x01\x01\x00\xc9\xfe\x92\xef\x00\x00\x00\x00IEND\xaeB`\x82"
	document = "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
)

// A session with a picture and a PDF, over a restart, on every dialect.
func TestDialectsFiles(t *testing.T) {
	each(t, "found", func(t *testing.T, c *cast, route string) {
		pic, err := c.c.CreateAsset(t.Context(), "pic.png", "", strings.NewReader(picture))
		if err != nil {
			t.Fatal(err)
		}
		pdf := base64.StdEncoding.EncodeToString([]byte(document))
		c.plays[route] = []said{calls("t1"), {text: "A picture and a page."}}
		s := c.session(&api.CreateSession{})
		items := []api.InputItem{{Type: "text", Text: "What is this?"}, {Type: "asset_reference", AssetID: pic.ID}, {Type: "inline_asset", Data: pdf, Name: "page.pdf"},
			{Type: "inline_asset", Data: base64.StdEncoding.EncodeToString([]byte("a,b\n1,2\n")), Name: "t.csv", MediaType: "text/csv"}}
		r := c.submit(s, &api.SubmitRun{InputItems: items, Route: route})
		if r.Status != api.RunCompleted || len(r.InputAttachments) != 3 || r.InputAttachments[1].MediaType != "application/pdf" {
			t.Fatalf("%s %+v %+v", r.Status, r.Error, r.InputAttachments)
		}
		c.restart()
		if r = c.submit(s, &api.SubmitRun{Content: api.Text("And again?"), Route: route}); r.Status != api.RunCompleted {
			t.Fatalf("the next run: %s %+v", r.Status, r.Error)
		}
		requests := c.requests[route]()
		for i, body := range requests {
			for what, part := range map[string]string{"picture": base64.StdEncoding.EncodeToString([]byte(picture)), "PDF": pdf, "table": `a,b\n1,2`} {
				if n := bytes.Count(body, []byte(part)); n != 1 {
					t.Errorf("request %d of %d shows the %s %d times", i, len(requests), what, n)
				}
			}
		}
	})
}

// A file that the chosen route cannot take is refused before there is a run.
func TestFilesThatNoModelTakes(t *testing.T) {
	c := newCast(t, "found")
	s := c.session(&api.CreateSession{})
	pic, err := c.c.CreateAsset(t.Context(), "", "", strings.NewReader("GIF89a;"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct{ route, model string }{{"gemini", ""}, {"openai", "o3-mini"}, {"chat", ""}} {
		_, _, err := c.c.Submit(t.Context(), s, &api.SubmitRun{Attachments: []string{pic.ID}, Route: v.route, Model: v.model})
		if v.route == "chat" { // its configuration says that it can
			if err != nil {
				t.Errorf("%s: %v", v.route, err)
			}
			continue
		}
		if client.Code(err) != "asset_not_supported" {
			t.Errorf("%s %s: %v", v.route, v.model, err)
		}
	}
	runs, err := c.c.Runs(t.Context(), client.RunsQuery{SessionID: s}, client.Page{})
	if err != nil || len(runs.Items) != 1 {
		t.Errorf("%d runs, %v", len(runs.Items), err)
	}
	c.plays["chat"] = []said{{text: "seen"}}
}

// C37, C38, C41: a session goes from vendor to vendor, with thoughts, signed
// calls and results of all of them behind it, over restarts. Every strict
// vendor takes every request: its own state comes back in place, that of others
// is left out.
func TestDialectsSwitch(t *testing.T) { // C37, C38, C41
	c := newCast(t, "found")
	for _, name := range c.names {
		think := calls("a", "b")
		think.think, think.text = true, "words of "+name
		other := calls("a")
		other.think = true
		// A run is two turns with tools and an answer.
		for range 8 {
			c.plays[name] = append(c.plays[name], think, other, said{think: true, text: "answer of " + name})
		}
	}
	random := rand.New(rand.NewPCG(37, 38))
	s := c.session(&api.CreateSession{})
	var order []string
	for range 4 {
		names := slices.Clone(c.names)
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		order = append(order, names...)
		order = append(order, names[len(names)-1]) // and once more the same
	}
	for i, name := range order {
		r := c.submit(s, &api.SubmitRun{Content: api.Text(fmt.Sprint("task ", i)), Route: name})
		if r.Status != api.RunCompleted || r.Outputs[0].Content != "answer of "+name {
			t.Fatalf("run %d after %v: %s %+v", i, order[:i+1], r.Status, r.Error)
		}
		if i%3 == 2 {
			c.restart()
		}
	}
	if n := int(c.called.Load()); n != 3*len(order) {
		t.Errorf("the tool ran %d times, want %d", n, 3*len(order))
	}
	for _, name := range c.names { // what others said is in every request, and no thought
		list := c.requests[name]()
		last := string(list[len(list)-1])
		for _, other := range c.names {
			if !strings.Contains(last, "answer of "+other) && other != order[len(order)-1] {
				t.Errorf("%s is not told what %s said", name, other)
			}
		}
		if name != "anthropic" && name != "chat" && strings.Contains(last, "thoughts") {
			t.Errorf("%s is told another model's thoughts", name)
		}
	}
}

// What a vendor wants back comes back to it in its place: on the next turn of
// the run, and on a later run after a restart.
func TestDialectsStateComesBack(t *testing.T) { // C37, C38, C41, I-17
	marks := map[string][]string{ // in this order
		"chat":      {`"content":"words"`, `"tool_calls":[`}, // its maker may want its thoughts back, see the adapter's own tests
		"openai":    {`"encrypted_content":"`, `words`, `"type":"function_call"`, `"type":"function_call_output"`},
		"anthropic": {`"sig.`, `"thinking":"thoughts 0"`, `"red.0.`, `"hidden.0.`, `words`, `"type":"tool_use"`, `"type":"tool_result"`},
		"gemini":    {`words`, `"functionCall"`, `"c2lnbmF0dXJl0000"`, `"functionCall"`, `"functionResponse"`},
	}
	each(t, "found", func(t *testing.T, c *cast, route string) {
		first := calls("a", "b")
		first.think, first.text = true, "words"
		c.plays[route] = []said{first, {text: "done"}, {text: "done"}}
		s := c.session(&api.CreateSession{})
		for i := range 2 {
			if r := c.submit(s, &api.SubmitRun{Content: api.Text("go"), Route: route}); r.Status != api.RunCompleted {
				t.Fatalf("run %d: %s %+v", i, r.Status, r.Error)
			}
			c.restart()
		}
		for i, body := range c.requests[route]()[1:] {
			rest := string(body)
			for _, m := range marks[route] {
				_, after, found := strings.Cut(rest, m)
				if !found {
					t.Errorf("request %d lacks %s in its place: %s", i+1, m, body)
					break
				}
				rest = after
			}
		}
	})
}

// What one server sealed is not sent to another one, also where provider and
// model are the same (I-33).
func TestStateStaysWithItsServer(t *testing.T) {
	t.Setenv("HF_DIALECT_KEY", "key-of-the-dialect-tests")
	first := calls("a")
	first.think = true
	var requests []func() [][]byte
	routes := "default_route: one\nroutes:\n"
	for _, name := range []string{"one", "two"} {
		handler, violations, seen := messagesVendor(func(n int) said {
			if n == 0 {
				return first
			}
			return said{text: "done"}
		})
		srv := httptest.NewServer(handler)
		t.Cleanup(srv.Close)
		t.Cleanup(func() {
			for _, bad := range violations() {
				t.Errorf("%s refuses: %s", name, bad)
			}
		})
		routes += fmt.Sprintf("  %s: "+vendors()[2].route+"\n", name, srv.URL)
		requests = append(requests, seen)
	}
	h := &house{t: t}
	h.begin(routes, "found")
	s := h.session(&api.CreateSession{})
	for _, route := range []string{"one", "two", "one"} {
		if r := h.submit(s, &api.SubmitRun{Content: api.Text("go"), Route: route}); r.Status != api.RunCompleted {
			t.Fatalf("%s: %s %+v", route, r.Status, r.Error)
		}
	}
	one, two := requests[0](), requests[1]()
	if own := one[len(one)-1]; bytes.Count(own, []byte(`"sig.`)) != 1 {
		t.Errorf("the first server does not get its own state back, or that of the other: %s", own)
	}
	for i, body := range two {
		if n := bytes.Count(body, []byte(`"sig.`)); n != min(i, 1) { // its own, from its second request on
			t.Errorf("request %d to the second server holds %d signatures: %s", i, n, body)
		}
	}
}

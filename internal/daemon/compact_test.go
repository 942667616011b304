package daemon_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

const summaryText = "## Goal\nGo on.\n\n## Done\nThe tool was asked."

// told gives the types of a session's events about compactions.
func (h *house) told(session string) string {
	h.t.Helper()
	var list []string
	page, err := h.c.SessionEvents(h.t.Context(), session, client.EventsQuery{}, 0, 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range page.Items {
		if word, ok := strings.CutPrefix(e.Type, "context.comp"); ok {
			list = append(list, strings.TrimPrefix(word, "action."))
		}
	}
	return strings.Join(list, " ")
}

// A window that fills is compacted in the middle of a run, with every vendor;
// each takes the summary request and what comes behind it.
func TestDialectsCompact(t *testing.T) { // C71
	test := func(t *testing.T, c *cast, route string) {
		think := calls("a", "b")
		think.think = true
		c.plays[route] = []said{think, think, {text: summaryText}, {text: "done"}, {text: "and more"}}
		r := c.submit(c.session(&api.CreateSession{}), &api.SubmitRun{Content: api.Text("the first task"), Route: route})
		if r.Status != api.RunCompleted || r.Outputs[0].Content != "done" || r.Counters.Turns != 3 || c.called.Load() != 4 {
			t.Fatalf("%s %+v %+v", r.Status, r.Error, r.Counters)
		}
		if told := c.told(r.SessionID); told != "started ended acted" {
			t.Errorf("the log tells: %s", told)
		}
		requests := c.requests[route]()
		if len(requests) != 4 {
			t.Fatalf("%d requests", len(requests))
		}
		if s := string(requests[2]); strings.Contains(s, `"lookup","description"`) || strings.Contains(s, `"functionDeclarations"`) || !strings.Contains(s, "Open points and next steps") {
			t.Errorf("the summary request: %.600s", s)
		}
		if s := string(requests[3]); !strings.Contains(s, "The tool was asked") || !strings.Contains(s, "the first task") || len(s) > len(requests[1]) {
			t.Errorf("the request behind it has %d bytes: %.600s", len(s), s)
		}
		c.restart()
		if r = c.submit(r.SessionID, &api.SubmitRun{Content: api.Text("go on"), Route: route}); r.Status != api.RunCompleted {
			t.Errorf("the next run: %s %+v", r.Status, r.Error)
		}
	}
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) { test(t, newCastWithin(t, strings.Repeat("found ", 5000), 12_000), v.name) })
	}
}

// A provider that says that a request is too large: the context is compacted,
// once, by the route that is configured for it.
func TestOverflowOfAProvider(t *testing.T) { // C43
	over := chatstub.Reply{Status: 400, ContentType: "application/json", Body: []byte(
		`{"error":{"message":"This model's maximum context length is 100 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}`)}
	for name, row := range map[string]struct {
		options string
		replies []chatstub.Reply
		status  string
		told    string
	}{
		"once":  {"", []chatstub.Reply{{Text: "one"}, over, {Text: "two"}}, api.RunCompleted, "started ended acted"},
		"twice": {"", []chatstub.Reply{{Text: "one"}, over, over, {Text: "never"}}, api.RunFailed, "started ended acted"},
		"off":   {"compaction: {auto: false}", []chatstub.Reply{{Text: "one"}, over, {Text: "never"}}, api.RunFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := &house{t: t}
			vendor, side := chatstub.New(chatstub.Replies(row.replies...)), chatstub.New(chatstub.Replies(chatstub.Reply{Text: summaryText}))
			urls := []any{}
			for _, s := range []http.Handler{vendor, side} {
				srv := httptest.NewServer(s)
				t.Cleanup(srv.Close)
				urls = append(urls, srv.URL+"/v1")
			}
			options := row.options
			if options == "" {
				options = "compaction: {route: side}"
			}
			h.begin(fmt.Sprintf("default_route: main\nroutes:\n  main: {provider: openai_compatible, base_url: %q, model: m}\n  side: {provider: openai_compatible, base_url: %q, model: s}\n", urls...)+options, "found")
			s := h.session(&api.CreateSession{})
			h.submit(s, &api.SubmitRun{Content: api.Text("first")})
			r := h.submit(s, &api.SubmitRun{Content: api.Text("second")})
			if r.Status != row.status || h.told(s) != row.told {
				t.Errorf("%s %+v; %s", r.Status, r.Error, h.told(s))
			}
			if name == "twice" && r.Error.Message != "Post-compaction provider attempt cannot recover another overflow" {
				t.Errorf("%+v", r.Error)
			}
			if n := len(side.Requests()); n != strings.Count(row.told, "started") || len(vendor.Requests()) != len(row.replies)-strings.Count(fmt.Sprint(row.replies[len(row.replies)-1].Text), "never") {
				t.Errorf("%d summaries, %d other requests", n, len(vendor.Requests()))
			}
			for _, v := range append(vendor.Violations(), side.Violations()...) {
				t.Error(v)
			}
		})
	}
}

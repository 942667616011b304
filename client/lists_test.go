package client_test

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

// recorder notes what a client asks for.
type recorder struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.seen = append(r.seen, req)
	r.mu.Unlock()
	return http.DefaultTransport.RoundTrip(req)
}

// covers compares what was asked for with the daemon's own document: every
// operation was called, and every parameter of it was sent.
func (r *recorder) covers(t *testing.T, document api.Raw) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string                      `json:"operationId"`
			Parameters  []struct{ Name, In string } `json:"parameters"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Paths) < 20 {
		t.Fatalf("the document has %d paths", len(doc.Paths))
	}
	for path, item := range doc.Paths {
		for method, op := range item {
			called, sent := false, map[string]bool{}
			for _, req := range r.seen {
				if req.Method != strings.ToUpper(method) || !matches(path, req.URL.EscapedPath()) {
					continue
				}
				called = true
				for name := range req.URL.Query() {
					sent["query "+name] = true
				}
				for name := range req.Header {
					sent["header "+name] = true
				}
			}
			if !called {
				t.Errorf("%s %s (%s): the client has no method for it, or no test calls it", method, path, op.OperationID)
				continue
			}
			for _, p := range op.Parameters {
				name := p.In + " " + p.Name
				if p.In == "header" {
					name = p.In + " " + http.CanonicalHeaderKey(p.Name)
				}
				if p.In != "path" && !sent[name] && !otherWay[op.OperationID+" "+p.Name] {
					t.Errorf("%s: the client never sends %s", op.OperationID, name)
				}
			}
		}
	}
}

// otherWay are parameters for which the client has another means.
var otherWay = map[string]bool{
	"submitRun wait":      true, // Wait, which comes again when the connection breaks
	"streamRun after":     true, // Last-Event-ID
	"streamSession after": true,
}

// matches says whether a path is one of a pattern such as /v1/runs/{r}.
func matches(pattern, path string) bool {
	a, b := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(a, b, func(x, y string) bool { return x == y || strings.HasPrefix(x, "{") && y != "" })
}

// all gathers what an iterator gives.
func all[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var out []T
	for item, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, item)
	}
	return out
}

// everyFilter asks with every parameter that lists have.
func everyFilter(t *testing.T, c *client.Client, s *api.Session, run *api.Run, dlv *api.Delivery) {
	t.Helper()
	ctx := t.Context()
	r := client.Range{Since: s.CreatedAt, Until: time.Now().Add(time.Hour), Asc: true}
	page := client.Page{Limit: 1}
	next := func(cursor string, err error) client.Page {
		t.Helper()
		if err != nil || cursor == "" {
			t.Fatal("no second page", err)
		}
		return client.Page{Limit: 1, Cursor: cursor}
	}
	// Narrowed by everything that it is, an item is found.
	if got := must(c.Sessions(ctx, client.SessionsQuery{Status: s.Status, ThreadID: s.ThreadID, Range: r}, page))(t); len(got.Items) != 1 || got.Items[0].ID != s.ID {
		t.Errorf("sessions %+v", got)
	}
	if got := must(c.Runs(ctx, client.RunsQuery{SessionID: s.ID, Status: run.Status, Range: r}, page))(t); len(got.Items) != 1 || got.Items[0].ID != run.ID {
		t.Errorf("runs %+v", got)
	}
	q := client.DeliveriesQuery{SessionID: s.ID, RunID: run.ID, TargetID: dlv.TargetID, Status: dlv.Status, Range: r}
	if got := must(c.Deliveries(ctx, q, page))(t); len(got.Items) != 1 || got.Items[0].ID != dlv.ID {
		t.Errorf("deliveries %+v", got)
	}
	e := client.EventsQuery{Types: []string{"run.created", "run.started"}, Since: r.Since, Until: r.Until}
	if got := all(t, c.AllSessionEvents(ctx, s.ID, e, 1)); len(got) != 3 || got[0].Type != "run.created" {
		t.Errorf("%d events of the session", len(got))
	}
	if got := all(t, c.AllRunEvents(ctx, run.ID, e, 0)); len(got) != 2 || got[1].Type != "run.started" {
		t.Errorf("%d events of the run", len(got))
	}
	must(c.SessionEvents(ctx, s.ID, e, 0, 5))(t)
	must(c.RunEvents(ctx, run.ID, e, 0, 5))(t)
	e.SessionID, e.RunID = s.ID, run.ID
	if got := all(t, c.AllEvents(ctx, e, "0")); len(got) != 2 {
		t.Errorf("feed: %+v", got)
	}
	must(c.Events(ctx, e, "0", 5))(t)
	if got := must(c.Targets(ctx, client.TargetsQuery{Type: dlv.Type, Status: "pending"}, page))(t); len(got.Items) != 1 || got.Items[0].ID != dlv.TargetID {
		t.Errorf("targets %+v", got)
	}
	must(c.Targets(ctx, client.TargetsQuery{}, client.Page{Cursor: "dGFyZ2V0cwp0Z3RfMA"}))(t) // behind tgt_0
	if got := must(c.Target(ctx, dlv.TargetID))(t); got.Pending != 1 || got.LastDeliveryID == "" {
		t.Errorf("target %+v", got)
	}
	if got := all(t, c.AllTargets(ctx, client.TargetsQuery{})); len(got) != 1 {
		t.Errorf("targets %+v", got)
	}
	connectors := must(c.Connectors(ctx, client.ConnectorsQuery{Type: "json"}, page))(t)
	must(c.Connectors(ctx, client.ConnectorsQuery{}, next(connectors.NextCursor, nil)))(t)
	must(c.Tokens(ctx, client.TokensQuery{Role: "reader", UserID: "nobody"}, page))(t)
	tokens := must(c.Tokens(ctx, client.TokensQuery{}, page))(t)
	must(c.Tokens(ctx, client.TokensQuery{}, next(tokens.NextCursor, nil)))(t)
	routes := must(c.Routes(ctx, client.RoutesQuery{Provider: "p"}, page))(t)
	must(c.Routes(ctx, client.RoutesQuery{}, next(routes.NextCursor, nil)))(t)
	nodes := must(c.Nodes(ctx, page))(t)
	must(c.Nodes(ctx, next(nodes.NextCursor, nil)))(t)
	tools := must(c.Tools(ctx, client.ToolsQuery{Source: "local", SideEffect: "read"}, page))(t)
	must(c.Tools(ctx, client.ToolsQuery{}, next(tools.NextCursor, nil)))(t)
	for name, n := range map[string]int{
		"sessions": len(all(t, c.AllSessions(ctx, client.SessionsQuery{}))), "runs": len(all(t, c.AllRuns(ctx, client.RunsQuery{}))),
		"deliveries": len(all(t, c.AllDeliveries(ctx, client.DeliveriesQuery{}))), "tokens": len(all(t, c.AllTokens(ctx, client.TokensQuery{}))),
		"routes": len(all(t, c.AllRoutes(ctx, client.RoutesQuery{}))), "tools": len(all(t, c.AllTools(ctx, client.ToolsQuery{}))),
		"nodes": len(all(t, c.AllNodes(ctx))), "connectors": len(all(t, c.AllConnectors(ctx, client.ConnectorsQuery{}))),
	} {
		if n == 0 {
			t.Errorf("no %s", name)
		}
	}
	for _, list := range []func(client.Page) (string, error){
		func(p client.Page) (string, error) {
			l, err := c.Sessions(ctx, client.SessionsQuery{}, p)
			return cursorOf(l), err
		},
		func(p client.Page) (string, error) {
			l, err := c.Runs(ctx, client.RunsQuery{}, p)
			return cursorOf(l), err
		},
		func(p client.Page) (string, error) {
			l, err := c.Deliveries(ctx, client.DeliveriesQuery{}, p)
			return cursorOf(l), err
		},
	} {
		if _, err := list(next(list(page))); err != nil {
			t.Error(err)
		}
	}
}

func cursorOf[T any](l *api.List[T]) string {
	if l == nil {
		return ""
	}
	return l.NextCursor
}

// An iterator goes over all pages, stops when its user does, and gives an error once, at the end.
func TestIterators(t *testing.T) {
	d := newDaemon(t)
	c := d.client()
	s := must(c.CreateSession(t.Context(), nil))(t)
	var want []string
	for range 70 { // more than a page
		run, _, err := c.Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("x")})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, run.ID)
	}
	var got []string
	for _, r := range all(t, c.AllRuns(t.Context(), client.RunsQuery{Range: client.Range{Asc: true}})) {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d runs, want %d", len(got), len(want))
	}
	if got := all(t, c.AllSessionEvents(t.Context(), s.ID, client.EventsQuery{}, 41)); len(got) != 100 || got[0].Seq != 42 || got[99].Seq != 141 {
		t.Errorf("%d events", len(got))
	}
	feed := all(t, c.AllEvents(t.Context(), client.EventsQuery{}, ""))
	if len(feed) != 141 {
		t.Errorf("%d events of the feed", len(feed))
	}
	n := 0
	for range c.AllRuns(t.Context(), client.RunsQuery{}) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d items after a break", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n, failures := 0, 0
	for _, err := range c.AllRuns(ctx, client.RunsQuery{}) {
		if n++; n == 50 { // the page is at its end
			cancel()
		}
		if err != nil {
			failures++
		}
	}
	if n != 51 || failures != 1 {
		t.Errorf("%d items, %d failures", n, failures)
	}
	for _, err := range c.AllRuns(t.Context(), client.RunsQuery{Status: "none"}) {
		if client.Code(err) != "invalid_parameter" {
			t.Errorf("%v", err)
		}
	}
}

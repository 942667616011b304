package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/slots"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tokens"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// daemon is the real door over a real store; the engine's part is played by the test.
type daemon struct {
	t       *testing.T
	store   *sqlite.Store
	hub     *live.Hub
	handler *httpapi.Handler
	url     string
	token   string
}

// hub makes a connector whose sessions are ann's.
func hub(t *testing.T, name string) connectors.Connector {
	t.Helper()
	rules, err := inbound.Compile(inbound.Spec{Name: name, Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	return connectors.Connector{Rules: rules, User: "ann", Session: &api.CreateSession{}, Secrets: func(context.Context) ([]string, error) { return []string{"of-the-hub"}, nil }}
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, hub: &live.Hub{}}
	var err error
	d.store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: sqlite.SyncNormal,
		OnCommit: func(stamps []eventlog.Stamp) {
			for _, s := range stamps {
				d.hub.Ring(s.Stream, s.Events)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, id := range []eventlog.NodeID{"gen_1", "gen_2"} {
		if _, err := d.store.Beat(t.Context(), eventlog.Node{ID: id, Name: "host/1"}, 0); err != nil {
			t.Fatal(err)
		}
	}
	tools, err := tool.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	d.handler, err = httpapi.New(httpapi.Config{
		Audit: eventlog.Audited{Log: d.store}, Store: d.store, Hub: d.hub, Version: "v", Logger: slog.New(slog.DiscardHandler),
		Admission: admission.New(admission.Config{Store: d.store, Tools: tools, Random: rand.Reader,
			Route: func(string, string) (event.Route, error) {
				return event.Route{Name: "main", Provider: "p", Model: "m"}, nil
			},
			CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) { return t, nil },
			TryTarget: func(context.Context, string, event.DeliveryID, event.ReplyTarget, []byte) admission.Tried {
				return admission.Tried{Delivered: true}
			}}),
		SigningKey: func(context.Context, string, string) ([]string, error) { return []string{"whpk_x"}, nil },
		Metrics:    func() ([]byte, error) { return []byte("holdfast_up 1\n"), nil },
		Files:      trees{}, Secrets: slots.New(slots.Config{Store: d.store, Ring: seal.NewRing(must(seal.NewKey(rand.Reader))(t))}),
		Routes:     []api.Route{{Name: "main", Provider: "p"}, {Name: "other", Provider: "p"}},
		Connectors: connectors.Set{List: []connectors.Connector{hub(t, "hub-1"), hub(t, "hub-2")}},
		Tools: []api.Tool{{Name: "look", Source: "local", SideEffect: "read", InputSchema: api.Raw("{}")},
			{Name: "see", Source: "local", SideEffect: "read", InputSchema: api.Raw("{}")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"ann", ""} {
		text, row, err := tokens.New(rand.Reader, "t", "admin", user, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.store.AddToken(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		d.token = text
	}
	srv := httptest.NewServer(d.handler)
	t.Cleanup(srv.Close)
	d.url = srv.URL
	return d
}

func (d *daemon) append(run *api.Run, data ...event.Data) {
	d.t.Helper()
	var drafts []event.Event
	for _, x := range data {
		drafts = append(drafts, event.Event{SessionID: event.SessionID(run.SessionID), UserID: run.UserID, RunID: event.RunID(run.ID), Data: x})
	}
	d.appendTo(event.SessionID(run.SessionID).Stream(), nil, drafts...)
}

func (d *daemon) appendTo(s event.Stream, blobs []event.Blob, drafts ...event.Event) {
	d.t.Helper()
	_, err := d.store.Append(d.t.Context(), eventlog.Append{Blobs: blobs, Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: drafts}}})
	if err != nil {
		d.t.Fatal(err)
	}
}

func atOnce(int) time.Duration { return 0 }

func (d *daemon) client(opts ...client.Option) *client.Client {
	d.t.Helper()
	c, err := client.New(d.url, d.token, append([]client.Option{client.WithRetry(100, atOnce)}, opts...)...)
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

// must is for answers that the test goes on with.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// trees tells what is compared as if it were a path.
type trees struct{}

func (trees) Diff(_ context.Context, _ event.SessionID, from, to event.FileSnapshot, stat bool) ([]api.FileDiff, int, error) {
	return []api.FileDiff{{Path: fmt.Sprint(from.Tree, to.Tree, stat)}}, 0, nil
}

func TestEveryOperation(t *testing.T) {
	d := newDaemon(t)
	calls := &recorder{}
	ctx, c := t.Context(), d.client(client.WithUser("ann"), client.WithHTTPClient(&http.Client{Transport: calls}))
	must(c.CreateSession(ctx, nil))(t)
	s := must(c.CreateSession(ctx, &api.CreateSession{ID: "a.b", ThreadID: "t"}))(t)
	if s.UserID != "ann" || must(c.Session(ctx, "a.b"))(t).ID != s.ID {
		t.Errorf("session %+v", s)
	}
	title, none := "T", ""
	if got := must(c.UpdateSession(ctx, "a.b", &api.UpdateSession{Title: &title}))(t); got.Title != "T" {
		t.Errorf("title %q", got.Title)
	}
	if got := must(c.UpdateSession(ctx, "a.b", &api.UpdateSession{Title: &none}))(t); got.Title != "" {
		t.Errorf("title %q", got.Title)
	}
	must(c.SetInputContract(ctx, "a.b", &api.InputContract{Schema: api.Raw(`{"type":"string"}`)}))(t)
	must(c.InputContract(ctx, "a.b"))(t)
	must(c.SetOutputContract(ctx, "a.b", &api.OutputContract{Schema: api.Raw(`{"type":"string"}`)}))(t)
	must(c.OutputContract(ctx, "a.b"))(t)
	must(c.SetRoutePolicy(ctx, "a.b", &api.RoutePolicy{Route: "main"}))(t)
	must(c.RoutePolicy(ctx, "a.b"))(t)
	must(c.SetReplyTargets(ctx, "a.b", &api.ReplyTargets{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "https://a.test"}}}))(t)
	if got := must(c.ReplyTargets(ctx, "a.b"))(t); len(got.ReplyTargets) != 1 {
		t.Errorf("targets %+v", got)
	}
	for _, err := range []error{c.DeleteInputContract(ctx, "a.b"), c.DeleteOutputContract(ctx, "a.b"), c.DeleteRoutePolicy(ctx, "a.b"), c.DeleteReplyTargets(ctx, "a.b")} {
		if err != nil {
			t.Error(err)
		}
	}
	if list := must(c.Sessions(ctx, client.SessionsQuery{Status: "open"}, client.Page{Limit: 1}))(t); len(list.Items) != 1 {
		t.Errorf("sessions %+v", list)
	}

	run, created, err := c.Submit(ctx, "a.b", &api.SubmitRun{Content: api.Text("<x> & y")}, client.IdempotencyKey("k"))
	if err != nil || !created || run.Request.TextPreview != "<x> & y" {
		t.Fatal(run, created, err)
	}
	again, created, err := c.Submit(ctx, "a.b", &api.SubmitRun{Content: api.Text("<x> & y")}, client.IdempotencyKey("k"))
	if err != nil || created || again.ID != run.ID {
		t.Fatal(again, created, err)
	}
	_, _, err = c.Submit(ctx, "a.b", &api.SubmitRun{Content: api.Text("z")}, client.IdempotencyKey("k"))
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 409 || client.Code(err) != "idempotency_conflict" || e.Problem.Detail == "" {
		t.Errorf("conflict: %v", err)
	}
	if _, err := c.Compact(ctx, "a.b"); client.Code(err) != "compaction_conflict" { // a run is queued
		t.Error(err)
	}
	if asked, err := c.Interrupt(ctx, "a.b", ""); asked || err != nil {
		t.Error(asked, err)
	}
	d.append(run, &event.RunStarted{}, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "call_1", Name: "charge", Reason: "the answer was lost"}}})
	if got := must(c.Wait(ctx, run.ID))(t); got.Status != api.RunNeedsAttention || got.Attention[0] != (api.Attention{CallID: "call_1", Tool: "charge", Reason: "the answer was lost"}) {
		t.Errorf("run %+v", got)
	}
	must(c.ResolveAttention(ctx, run.ID, &api.ResolveAttention{CallID: "call_1", Resolution: "failed"}))(t)
	must(c.Cancel(ctx, run.ID, "r"))(t)
	big := strings.Repeat("long", 5000)
	blob := event.NewBlob(event.SessionID(s.ID), event.BlobContent, []byte(big))
	d.appendTo(event.SessionID(s.ID).Stream(), []event.Blob{blob},
		event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID), Data: &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Ref: blob.Ref, Bytes: len(big)}}},
		event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID), Data: &event.RunCompleted{}})
	if got := must(c.Run(ctx, run.ID))(t); got.Outputs[0].Content != big {
		t.Error("the whole answer is not in the run")
	}
	list := must(c.Runs(ctx, client.RunsQuery{SessionID: s.ID, Status: "completed"}, client.Page{}))(t)
	if string(must(c.Blob(ctx, "a.b", list.Items[0].Outputs[0].ContentRef))(t)) != big {
		t.Error("the blob is another")
	}
	if got := must(c.SessionEvents(ctx, "a.b", client.EventsQuery{}, 1, 2))(t); len(got.Items) != 2 || got.Items[0].Seq != 2 || got.NextCursor != "3" {
		t.Errorf("events %+v", got)
	}
	if got := must(c.RunEvents(ctx, run.ID, client.EventsQuery{}, 0, 1))(t); len(got.Items) != 1 || got.Items[0].Type != "run.created" {
		t.Errorf("events %+v", got)
	}
	if got := must(c.Events(ctx, client.EventsQuery{Types: []string{"run.created"}}, "", 10))(t); len(got.Items) != 1 || got.NextCursor == "" {
		t.Errorf("feed %+v", got)
	}
	d.appendTo(event.SessionID(s.ID).Stream(), nil,
		event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID), StepID: "step_1", CallID: "call_f", Data: &event.ToolStarted{Snapshot: &event.FileSnapshot{Node: "n", Tree: "A"}}},
		event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID), StepID: "step_1", Data: &event.StepEnded{Snapshot: &event.FileSnapshot{Node: "n", Tree: "B"}}})
	for want, q := range map[string]client.DiffQuery{"ABfalse": {}, "ABtrue": {Stat: true}, "BAfalse": {From: "B", To: "A"}} {
		if got := must(c.Diff(ctx, "a.b", q))(t); got.Files[0].Path != want {
			t.Errorf("%+v", got)
		}
	}
	for _, q := range []client.DiffQuery{{Run: "run_none"}, {Step: "step_9"}} {
		if _, err := c.Diff(ctx, "a.b", q); err == nil {
			t.Errorf("%+v is taken", q)
		}
	}
	if got := must(c.TestTarget(ctx, &api.ReplyTarget{Type: "webhook", URL: "https://a.test"}))(t); !got.Delivered || got.TargetID != string(event.TargetIDFor("ann", "webhook", "https://a.test")) {
		t.Errorf("test %+v", got)
	}
	if got := must(c.SigningKey(ctx, "hook"))(t); got.Secret != "hook" || len(got.PublicKeys) != 1 {
		t.Errorf("key %+v", got)
	}
	target := event.TargetIDFor("ann", "webhook", "u")
	dlv := event.DeliveryIDFor(event.RunID(run.ID), target, 1)
	address := event.NewBlob(event.SessionID(s.ID), event.BlobDelivery, []byte(`{"type":"webhook","url":"https://u.test"}`))
	said := event.NewBlob(event.SessionID(s.ID), event.BlobDelivery, []byte("no"))
	for _, x := range []event.Data{&event.DeliveryEnqueued{Address: address.Ref, Body: blob.Ref, DeliveryID: dlv, Type: "webhook"},
		&event.DeliveryAttemptStarted{DeliveryID: dlv, Attempt: 1, Cycle: 1}, &event.DeliveryAttemptFailed{DeliveryID: dlv, Attempt: 1, Code: "http_400", Status: 400, Excerpt: said.Ref},
		&event.DeliveryDeadLettered{DeliveryID: dlv}} {
		d.appendTo(target.Stream(), []event.Blob{said, address}, event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(run.ID), Data: x})
	}
	if got := must(c.Deliveries(ctx, client.DeliveriesQuery{RunID: run.ID, Status: "dead_lettered"}, client.Page{}))(t); len(got.Items) != 1 {
		t.Errorf("deliveries %+v", got)
	}
	if got := must(c.Deliveries(ctx, client.DeliveriesQuery{Unresolved: true, ErrorClass: "network"}, client.Page{}))(t); len(got.Items) != 1 {
		t.Errorf("deliveries %+v", got)
	}
	everyJob(t, c, string(dlv))
	must(c.ReplayDelivery(ctx, string(dlv), &api.ReplayDelivery{}))(t)
	must(c.Delivery(ctx, string(dlv)))(t)
	must(c.Attempts(ctx, string(dlv), client.Page{Cursor: "YXR0ZW1wdHMKMQ"}))(t) // behind the first
	if got := must(c.Attempts(ctx, string(dlv), client.Page{Limit: 5}))(t); len(got.Items) != 1 || got.Items[0].Excerpt != "no" || got.Items[0].Outcome != api.AttemptFailed {
		t.Errorf("attempts %+v", got)
	}
	if got := must(c.PauseTarget(ctx, string(target), "it moves"))(t); got.Paused == nil || got.Paused.Reason != "it moves" {
		t.Errorf("paused %+v", got)
	}
	if got := must(c.ResumeTarget(ctx, string(target), ""))(t); got.Paused != nil {
		t.Errorf("resumed %+v", got)
	}
	if got := must(c.ResetTarget(ctx, string(target), ""))(t); got.Circuit != api.CircuitClosed {
		t.Errorf("reset %+v", got)
	}
	if got := must(c.ResolveDelivery(ctx, string(dlv), "they have it"))(t); got.Status != api.DeliveryResolved {
		t.Errorf("resolved %+v", got)
	}

	sender := http.Header{"authorization": {"Bearer of-the-hub"}}
	if got := must(c.Receive(ctx, "hub-1", sender, []byte(`{"id":1}`)))(t); got.Outcome != api.InboundAccepted || got.RunID == "" {
		t.Errorf("received %+v", got)
	}
	if _, err := c.Receive(ctx, "hub-1", nil, []byte(`{"id":2}`)); client.Code(err) != "sender_unknown" { // the client's token is for no connector
		t.Error(err)
	}
	if got := must(c.TestConnector(ctx, "hub-1", &api.TestConnector{Body: `{"id":3}`, Headers: map[string]string{"Authorization": "Bearer of-the-hub"}}))(t); got.Outcome != api.InboundAccepted || got.RunID != "" || got.Authentication != "ok" {
		t.Errorf("tested %+v", got)
	}

	other, _, err := c.Submit(ctx, "a.b", &api.SubmitRun{Content: api.Text("another")})
	if err != nil {
		t.Fatal(err)
	}
	waiting := event.DeliveryIDFor(event.RunID(other.ID), target, 1)
	d.appendTo(target.Stream(), nil, event.Event{SessionID: event.SessionID(s.ID), UserID: "ann", RunID: event.RunID(other.ID),
		Data: &event.DeliveryEnqueued{Address: blob.Ref, Body: blob.Ref, DeliveryID: waiting, Type: "webhook"}})
	everyFilter(t, c, must(c.Session(ctx, "a.b"))(t), must(c.Run(ctx, run.ID))(t), must(c.Delivery(ctx, string(dlv)))(t))
	if got := must(c.Timeline(ctx, run.ID))(t); got.RunID != run.ID || len(got.Entries) == 0 {
		t.Errorf("timeline %+v", got)
	}
	if err := c.StreamRun(ctx, run.ID, 0, func(client.Message) error { return nil }); err != nil {
		t.Error(err)
	}
	enough := errors.New("enough")
	if err := c.StreamSession(ctx, "a.b", 0, func(client.Message) error { return enough }); err != enough {
		t.Error(err)
	}
	must(c.Cancel(ctx, other.ID, ""))(t)
	d.append(other, &event.RunCancelled{})
	must(c.ResolveDelivery(ctx, string(waiting), "nobody takes it"))(t)

	ast := must(c.CreateAsset(ctx, "dir/a.txt", "", strings.NewReader("a file")))(t)
	if got := must(c.Asset(ctx, ast.ID))(t); got.Name != "a.txt" {
		t.Errorf("asset %+v", got)
	}
	must(c.CreateAsset(ctx, "", "", strings.NewReader("another file")))(t)
	first := must(c.Assets(ctx, client.Page{Limit: 1}))(t)
	if got := must(c.Assets(ctx, client.Page{Limit: 1, Cursor: first.NextCursor}))(t); len(got.Items) != 1 || got.Items[0].ID != ast.ID {
		t.Errorf("assets %+v", got)
	}
	seen := 0
	for a, err := range c.AllAssets(ctx) {
		if seen++; err != nil || a.ID == "" {
			t.Errorf("%+v %v", a, err)
		}
	}
	if seen != 2 {
		t.Errorf("%d assets", seen)
	}
	file := must(c.AssetBytes(ctx, ast.ID))(t)
	if data, err := io.ReadAll(file); err != nil || string(data) != "a file" || file.Close() != nil {
		t.Errorf("bytes %q %v", data, err)
	}
	if _, err := c.AssetBytes(ctx, "ast_0"); client.Code(err) != "asset_not_found" {
		t.Errorf("no asset: %v", err)
	}

	for _, name := range []string{"one", "two"} {
		if got := must(c.SetSecret(ctx, name, &api.PutSecret{Value: "some-secret-value"}))(t); got.UserID != "ann" || got.Value != "" {
			t.Errorf("secret %+v", got)
		}
	}
	if got := must(c.Secret(ctx, "one"))(t); got.Version != 1 {
		t.Errorf("secret %+v", got)
	}
	page := must(c.Secrets(ctx, client.Page{Limit: 1}))(t)
	if got := must(c.Secrets(ctx, client.Page{Limit: 1, Cursor: page.NextCursor}))(t); len(got.Items) != 1 || got.Items[0].Name != "two" {
		t.Errorf("secrets %+v", got)
	}
	n := 0
	for _, err := range c.AllSecrets(ctx) {
		if n++; err != nil {
			t.Error(err)
		}
	}
	if n != 2 {
		t.Errorf("%d secrets", n)
	}
	if got := must(c.RekeySecrets(ctx))(t); got.Left != 0 || got.KeyID == "" {
		t.Errorf("%+v", got)
	}
	if err := c.DeleteSecret(ctx, "two"); err != nil {
		t.Error(err)
	}
	tok := must(c.CreateToken(ctx, &api.CreateToken{Role: "reader"}))(t)
	if got := must(c.Tokens(ctx, client.TokensQuery{}, client.Page{}))(t); len(got.Items) != 3 {
		t.Errorf("tokens %+v", got)
	}
	if err := c.RevokeToken(ctx, tok.ID); err != nil {
		t.Error(err)
	}
	if got := must(c.Audit(ctx, client.EventsQuery{Types: []string{"audit.token.revoked"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, 0, 10))(t); len(got.Items) != 1 || got.Items[0].Stream != "audit:daemon" {
		t.Errorf("audit %+v", got)
	}
	if n := len(all(t, c.AllAudit(ctx, client.EventsQuery{Types: []string{"audit.token.created", "audit.token.revoked"}}, 1))); n != 2 { // the first is of a secret
		t.Errorf("%d records of tokens", n)
	}
	if nodes := must(c.Nodes(ctx, client.Page{}))(t); len(nodes.Items) != 2 || !nodes.Items[0].Alive || nodes.Items[0].ID != "gen_1" {
		t.Errorf("nodes %+v", nodes)
	}
	if len(must(c.Routes(ctx, client.RoutesQuery{}, client.Page{}))(t).Items) != 2 || len(must(c.Tools(ctx, client.ToolsQuery{}, client.Page{}))(t).Items) != 2 || must(c.Health(ctx))(t).Version != "v" || must(c.Ready(ctx))(t).Status != "ready" || len(must(c.OpenAPI(ctx))(t)) == 0 {
		t.Error("inventory")
	}
	if got := must(c.Metrics(ctx))(t); string(got) != "holdfast_up 1\n" {
		t.Errorf("metrics %q", got)
	}
	must(c.CloseSession(ctx, "a.b", "r"))(t)
	if err := c.EraseSession(ctx, "a.b"); err != nil {
		t.Error(err)
	}
	calls.covers(t, must(c.OpenAPI(ctx))(t))
}

// broken cuts every answer after some bytes.
type broken struct {
	mu   sync.Mutex
	rng  *mrand.Rand
	cuts int
}

func (b *broken) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cuts > 0 && b.rng.IntN(4) == 0 {
		b.cuts--
		return nil, io.ErrUnexpectedEOF
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && b.cuts > 0 {
		b.cuts--
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, int64(b.rng.IntN(20_000))), res.Body}
	}
	return res, err
}

// I-18: over connections that break anywhere each event is told once, in order.
func TestStreamResumes(t *testing.T) {
	d := newDaemon(t)
	s := must(d.client().CreateSession(t.Context(), nil))(t)
	run, _, err := d.client().Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 500 {
			d.append(run, &event.StateEntered{From: fmt.Sprint(i)})
			d.hub.Publish(event.SessionID(s.ID).Stream(), api.Delta{Type: event.LiveTextDelta, RunID: run.ID, Text: "l"})
		}
		d.append(run, &event.RunCompleted{})
	})
	for i := range 4 {
		wg.Go(func() {
			c := d.client(client.WithHTTPClient(&http.Client{Transport: &broken{rng: mrand.New(mrand.NewPCG(5, uint64(i))), cuts: 60}}))
			last, synced := int64(1), 0
			err := c.StreamRun(t.Context(), run.ID, 0, func(m client.Message) error {
				switch {
				case m.Event != nil:
					if m.Event.Seq != last+1 {
						return fmt.Errorf("seq %d after %d", m.Event.Seq, last)
					}
					last = m.Event.Seq
				case m.Synced != nil:
					synced++
				case m.Delta == nil || m.Delta.Text != "l":
					return fmt.Errorf("message %+v", m)
				}
				return nil
			})
			if err != nil || last != 504 || synced > 1 {
				t.Errorf("seed %d: %v after %d, synced %d times", i, err, last, synced)
			}
		})
	}
	wg.Wait()
	// A run that is over, from its end: nothing is told.
	if err := d.client().StreamRun(t.Context(), run.ID, 504, func(client.Message) error { return errors.New("told") }); err != nil {
		t.Error(err)
	}
	stop := errors.New("enough")
	err = d.client().StreamSession(t.Context(), s.ID, 100, func(m client.Message) error {
		if m.Event.Seq != 101 {
			t.Errorf("seq %d", m.Event.Seq)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want the caller's", err)
	}
}

func TestStreamEnds(t *testing.T) {
	d := newDaemon(t)
	c := d.client()
	s := must(c.CreateSession(t.Context(), nil))(t)
	tell := func(client.Message) error { return nil }
	if err := c.StreamSession(t.Context(), "none", 0, tell); client.Code(err) != "session_not_found" {
		t.Error(err)
	}
	err := c.StreamSession(t.Context(), s.ID, 0, func(m client.Message) error {
		if m.Synced == nil {
			return nil
		}
		return c.EraseSession(t.Context(), s.ID)
	})
	if client.Code(err) != "session_erased" {
		t.Error(err)
	}
	other := must(c.CreateSession(t.Context(), nil))(t)
	ctx, cancel := context.WithCancel(t.Context())
	err = c.StreamSession(ctx, other.ID, 0, func(m client.Message) error {
		if m.Synced != nil {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// C87: who was too slow goes on where the cut says, at once and without a pause;
// where live text comes from and what of it is missing is told, each change once.
func TestStreamIsCut(t *testing.T) {
	script := []string{
		"event: a\nid: 1\ndata: {\"seq\":1,\"type\":\"a\"}\n\nevent: synced\ndata: {\"seq\":1,\"live\":\"bus\"}\n\n" +
			"event: gap\ndata: {\"reason\":\"late\",\"missing\":2}\n\nevent: live\ndata: {\"live\":\"none\"}\n\nevent: cut\ndata: {\"resume_after\":5,\"reason\":\"slow_reader\"}\n\n" +
			"event: a\nid: 6\ndata: {\"seq\":6,\"type\":\"never\"}\n\n",
		"event: synced\ndata: {\"seq\":5,\"live\":\"none\"}\n\nevent: strange\ndata: {}\n\nevent: a\nid: 7\ndata: {\"seq\":7,\"type\":\"a\"}\n\nevent: cut\ndata: {\"resume_after\":3}\n\n",
		"event: synced\ndata: {\"seq\":7,\"live\":\"local\"}\n\nevent: a\nid: 8\ndata: {\"seq\":8,\"type\":\"run.completed\"}\n\n",
	}
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, script[len(asked)-1])
	}))
	defer srv.Close()
	c := must(client.New(srv.URL, "", client.WithRetry(0, atOnce)))(t) // a failure would be the end
	var told []string
	err := c.StreamRun(t.Context(), "r", 0, func(m client.Message) error {
		switch {
		case m.Event != nil:
			told = append(told, fmt.Sprint(m.Event.Seq))
		case m.Synced != nil:
			told = append(told, "synced "+m.Synced.Live)
		case m.Gap != nil:
			told = append(told, fmt.Sprint("gap ", m.Gap.Reason, m.Gap.Missing))
		default:
			told = append(told, "live "+m.Live)
		}
		return nil
	})
	want := "1, synced bus, gap late2, live none, 7, live local, 8"
	if got := strings.Join(told, ", "); err != nil || got != want {
		t.Errorf("%v; told %s, want %s", err, got, want)
	}
	if got := strings.Join(asked, " "); got != "0 5 7" {
		t.Errorf("went on after %s", got)
	}
}

// A connection that says nothing is given up, and no more often than is bounded.
func TestSilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		p := chatstub.NewPipe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tries++
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		defer p.Shutdown()
		const idle = 30 * time.Second
		c := must(client.New("http://daemon.test", "", client.WithHTTPClient(p.Client()), client.WithIdle(idle), client.WithRetry(2, atOnce)))(t)
		began := time.Now()
		err := c.StreamSession(t.Context(), "s", 0, func(client.Message) error { return nil })
		if took := time.Since(began); !errors.Is(err, client.ErrUnreachable) || tries != 3 || took != 3*idle {
			t.Errorf("%d tries in %s: %v", tries, took, err)
		}
	})
}

func TestWaitComesAgain(t *testing.T) {
	d := newDaemon(t)
	s := must(d.client().CreateSession(t.Context(), nil))(t)
	run, _, err := d.client().Submit(t.Context(), s.ID, &api.SubmitRun{Content: api.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	d.append(run, &event.RunStarted{}, &event.RunFailed{Code: "c", Message: "m"})
	c := d.client(client.WithHTTPClient(&http.Client{Transport: &broken{rng: mrand.New(mrand.NewPCG(1, 1)), cuts: 8}}))
	if got := must(c.Wait(t.Context(), run.ID))(t); got.Error.Code != "c" {
		t.Errorf("run %+v", got)
	}
	if _, err := c.Wait(t.Context(), "run_none"); client.Code(err) != "run_not_found" {
		t.Error(err)
	}
}

// A read comes again where a daemon stops, or cannot reach its store, or where the
// connection broke; nothing else does, and not for ever.
func TestReadsComeAgain(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	answers := map[string][]string{} // by path: what comes, the last one for ever
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		list := answers[r.URL.Path]
		what := list[min(asked[r.URL.Path], len(list)-1)]
		asked[r.URL.Path]++
		mu.Unlock()
		switch what {
		case "ok":
			io.WriteString(w, "{}")
		case "broken":
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(503)
			fmt.Fprintf(w, `{"status":503,"code":%q,"detail":"d"}`, what)
		}
	}))
	defer door.Close()
	c := must(client.New(door.URL, "t", client.WithRetry(30, atOnce)))(t)
	for path, x := range map[string]struct {
		answers []string
		ask     func(ctx context.Context) error
		want    int    // requests
		code    string // of the error; ok: none
	}{
		"/v1/runs/a":          {[]string{"stopping", "store_unavailable", "ok"}, func(ctx context.Context) error { _, err := c.Run(ctx, "a"); return err }, 3, "ok"},
		"/v1/runs/b":          {[]string{"broken", "ok"}, func(ctx context.Context) error { _, err := c.Run(ctx, "b"); return err }, 2, "ok"},
		"/v1/runs/c":          {[]string{"stopping"}, func(ctx context.Context) error { _, err := c.Run(ctx, "c"); return err }, 4, "stopping"},
		"/readyz":             {[]string{"not_ready"}, func(ctx context.Context) error { _, err := c.Ready(ctx); return err }, 1, "not_ready"},
		"/v1/sessions/s/runs": {[]string{"stopping"}, func(ctx context.Context) error { _, _, err := c.Submit(ctx, "s", &api.SubmitRun{}); return err }, 1, "stopping"},
		"/v1/runs/d/cancel":   {[]string{"stopping"}, func(ctx context.Context) error { _, err := c.Cancel(ctx, "d", ""); return err }, 1, "stopping"},
	} {
		mu.Lock()
		answers[path] = x.answers
		mu.Unlock()
		err := x.ask(t.Context())
		if code := client.Code(err); err == nil != (x.code == "ok") || err != nil && code != x.code || asked[path] != x.want {
			t.Errorf("%s: %d requests, %v", path, asked[path], err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	c := must(client.New("http://127.0.0.1:1", "hf_secret", client.WithRetry(2, atOnce)))(t)
	_, err := c.Wait(t.Context(), "r")
	if !errors.Is(err, client.ErrUnreachable) || strings.Contains(err.Error(), "hf_secret") {
		t.Error(err)
	}
	for _, bad := range []string{"", "127.0.0.1:80", "ftp://x", "unix:", "http://user:pass@x", "http://x?q"} {
		if _, err := client.New(bad, ""); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: d.handler.Local()}}
	srv.Start()
	defer srv.Close()
	c := must(client.New("unix:"+path, ""))(t)
	if got := must(c.Tokens(t.Context(), client.TokensQuery{}, client.Page{}))(t); len(got.Items) != 2 {
		t.Errorf("tokens %+v", got)
	}
	// A path of an API behind a proxy, and answers that are none of ours.
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/v1/runs/..%2Fx" || r.URL.EscapedPath() == "/base/v1/runs/..%2Fx" {
			http.Error(w, "<html>", http.StatusTeapot)
			return
		}
		http.Redirect(w, r, "http://elsewhere.test", http.StatusFound)
	}))
	defer odd.Close()
	c = must(client.New(odd.URL+"/base/", ""))(t)
	var e *client.Error
	if _, err := c.Run(t.Context(), "../x"); !errors.As(err, &e) || e.Status != http.StatusTeapot || client.Code(err) != "" {
		t.Error(err)
	}
	if _, err := c.Routes(t.Context(), client.RoutesQuery{}, client.Page{}); !errors.As(err, &e) || e.Status != http.StatusFound {
		t.Error("a redirect was followed", err)
	}
}

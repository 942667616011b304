// Package apitest is the HTTP door over a real store, on loopback, for the tests of
// its parts: what they do goes the way of every request, and each answer is held
// against the OpenAPI document.
package apitest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tokens"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// World is the door over a real store, on loopback.
type World struct {
	T       testing.TB
	Store   *sqlite.Store
	Hub     *live.Hub
	Config  httpapi.Config // of the handler
	Handler *httpapi.Handler
	Server  *httptest.Server // nil: it listens nowhere
	Stop    chan struct{}    // closed when the daemon stops
	Logs    *Buffer
	Admin   string // a token
	Dir     string // of the store
}

// Buffer keeps what is logged.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// New is a world that listens on loopback.
func New(t *testing.T, change ...func(*httpapi.Config)) *World {
	t.Helper()
	w := NewDoor(t, change...)
	w.Server = httptest.NewServer(w.Handler)
	t.Cleanup(w.Server.Close)
	w.Admin = w.Token("admin", "")
	return w
}

// NewDoor is a world that listens nowhere.
func NewDoor(t testing.TB, change ...func(*httpapi.Config)) *World {
	t.Helper()
	w := &World{T: t, Hub: &live.Hub{}, Stop: make(chan struct{}), Logs: &Buffer{}, Dir: t.TempDir()}
	var err error
	w.Store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: w.Dir, Rows: eventlog.Rows, Sync: sqlite.SyncNormal,
		OnCommit: func(stamps []eventlog.Stamp) {
			for _, s := range stamps {
				w.Hub.Ring(s.Stream, s.Events)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cfg := httpapi.Config{
		Audit: eventlog.Audited{Log: w.Store}, AuthFailures: 1_000_000, PeerRate: 1_000_000, // tests of these say otherwise
		Store: w.Store, Hub: w.Hub, Version: "test", Logger: slog.New(slog.NewTextHandler(w.Logs, nil)), Stopping: w.Stop,
		Admission: AdmissionOf(t, w.Store, admission.Limits{}), Secrets: SlotsOf(t, w.Store), SigningKey: SigningKey,
		Routes: []api.Route{{Name: "main", Provider: "scripted", Model: "m", Default: true}},
		Tools:  []api.Tool{{Name: "look", Source: "local", SideEffect: "read", InputSchema: api.Raw(`{"type":"object"}`)}},
	}
	for _, user := range []string{"ann", "bob"} {
		cfg.Connectors.List = append(cfg.Connectors.List, ConnectorOf(t, user, inbound.Spec{
			Name: "hub-of-" + user, Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true}))
	}
	for _, f := range change {
		f(&cfg)
	}
	w.Config = cfg
	if w.Handler, err = httpapi.New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// HubSecret is the secret of every connector here.
const HubSecret = "secret-of-the-hub"

// ConnectorOf makes a connector of a user, whose sessions have no settings.
func ConnectorOf(t testing.TB, user string, spec inbound.Spec) connectors.Connector {
	t.Helper()
	rules, err := inbound.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return connectors.Connector{Rules: rules, User: user, Template: "event", Session: &api.CreateSession{},
		Secrets: func(context.Context) ([]string, error) { return []string{"older", HubSecret}, nil }}
}

// AdmissionOf is the intake of a world: there is one route, main, and targets are
// webhooks.
func AdmissionOf(t testing.TB, store *sqlite.Store, limits admission.Limits) *admission.Admission {
	t.Helper()
	tools, err := tool.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	return admission.New(admission.Config{Store: store, Tools: tools, Random: rand.Reader, Limits: limits,
		Route: func(name, model string) (event.Route, error) {
			if name != "" && name != "main" {
				return event.Route{}, problem.New(problem.Invalid, "unknown_route", "there is no such route")
			}
			return event.Route{Name: "main", Provider: "scripted", Model: cmp.Or(model, "m")}, nil
		},
		CheckTarget: func(_ context.Context, _ string, t event.ReplyTarget) (event.ReplyTarget, error) {
			if t.Type != "webhook" {
				return t, problem.New(problem.Invalid, "invalid_reply_target", "type must be webhook")
			}
			if strings.Contains(t.URL, "blocked.test") {
				return t, problem.New(problem.Invalid, "target_not_allowed", "no public address")
			}
			return t, nil
		},
		TryTarget: func(_ context.Context, _ string, _ event.DeliveryID, t event.ReplyTarget, _ []byte) admission.Tried {
			if strings.Contains(t.URL, "down") {
				return admission.Tried{Code: "http_503", Status: 503, Detail: "the receiver answered with status 503", Excerpt: []byte("later")}
			}
			return admission.Tried{Delivered: true, Status: 204}
		}})
}

// SigningKey is one key, of the secret named hook.
func SigningKey(_ context.Context, _, secret string) ([]string, error) {
	if secret != "hook" {
		return nil, problem.New(problem.NotFound, "signing_key_not_found", "no secret of this name holds an ed25519 key")
	}
	return []string{"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}, nil
}

// Token stores a token and gives its text.
func (w *World) Token(role, user string) string {
	w.T.Helper()
	text, row, err := tokens.New(rand.Reader, role+"-"+user, role, user, time.Now())
	if err != nil {
		w.T.Fatal(err)
	}
	if err := w.Store.AddToken(w.T.Context(), row); err != nil {
		w.T.Fatal(err)
	}
	return text
}

// Reply is an answer, read whole.
type Reply struct {
	T      testing.TB
	Status int
	Header http.Header
	Body   []byte
}

// Request makes a request. header are names and values.
func (w *World) Request(method, path, token string, body any, header ...string) *http.Request {
	w.T.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := exchange.Encode(b)
		if err != nil {
			w.T.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(w.T.Context(), method, w.Server.URL+path, r)
	if err != nil {
		w.T.Fatal(err)
	}
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	return req
}

// Do sends a request, and holds its answer against the OpenAPI document.
func (w *World) Do(method, path, token string, body any, header ...string) *Reply {
	w.T.Helper()
	req := w.Request(method, path, token, body, header...)
	res, err := w.Server.Client().Do(req)
	if err != nil {
		w.T.Fatal(err)
	}
	defer res.Body.Close()
	out := &Reply{T: w.T, Status: res.StatusCode, Header: res.Header}
	if out.Body, err = io.ReadAll(res.Body); err != nil {
		w.T.Fatal(err)
	}
	if err := conforms(req, out); err != nil {
		w.T.Errorf("%s %s: answer %d is not as documented: %v\n%s", method, path, out.Status, err, out.Body)
	}
	return out
}

// Want checks the status, and of a problem the code.
func (r *Reply) Want(status int, code ...string) *Reply {
	r.T.Helper()
	if r.Status != status {
		r.T.Fatalf("status %d, want %d: %s", r.Status, status, r.Body)
	}
	if len(code) > 0 {
		var p api.Problem
		r.Into(&p)
		if p.Code != code[0] || p.Status != status || p.Type != "https://holdfast.dev/problems/"+code[0] || p.Title == "" || p.Detail == "" {
			r.T.Fatalf("problem %s, want code %s", r.Body, code[0])
		}
		if r.Header.Get("Content-Type") != "application/problem+json" {
			r.T.Fatalf("Content-Type %q", r.Header.Get("Content-Type"))
		}
	}
	return r
}

// Into reads the body.
func (r *Reply) Into(v any) {
	r.T.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		r.T.Fatalf("%v: %s", err, r.Body)
	}
}

// Into reads the body of a reply as a T.
func Into[T any](r *Reply) T {
	r.T.Helper()
	var v T
	r.Into(&v)
	return v
}

// Session makes a session of a user, who may be the default one.
func (w *World) Session(user string) api.Session {
	w.T.Helper()
	return Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, api.CreateSession{UserID: user}).Want(201))
}

// Submit makes a run.
func (w *World) Submit(session, text string) api.Run {
	w.T.Helper()
	return Into[api.Run](w.Do("POST", "/v1/sessions/"+session+"/runs", w.Admin, api.SubmitRun{Content: api.Text(text)}).Want(202))
}

// Append appends events of a run as the engine would.
func (w *World) Append(r *api.Run, data ...event.Data) {
	w.T.Helper()
	s := event.SessionID(r.SessionID)
	var drafts []event.Event
	for _, d := range data {
		drafts = append(drafts, event.Event{SessionID: s, UserID: r.UserID, RunID: event.RunID(r.ID), Data: d})
	}
	w.AppendTo(s.Stream(), event.Externalize(s, drafts), drafts...)
}

// AppendTo appends events to any stream.
func (w *World) AppendTo(s event.Stream, blobs []event.Blob, drafts ...event.Event) {
	w.T.Helper()
	_, err := w.Store.Append(w.T.Context(), eventlog.Append{Blobs: blobs,
		Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: drafts}}})
	if err != nil {
		w.T.Fatal(err)
	}
}

// Finish brings a queued run to its end with an answer, and a delivery of it that is dead.
func (w *World) Finish(r *api.Run, out *event.OutputEmitted) event.DeliveryID {
	w.T.Helper()
	w.Append(r, &event.RunStarted{})
	target := event.TargetIDFor(r.UserID, "webhook", "https://hook.test/"+r.ID)
	id := event.DeliveryIDFor(event.RunID(r.ID), target, 1)
	out.Targets = []event.TargetRef{{DeliveryID: id, TargetID: target}}
	w.Append(r, out, &event.RunCompleted{Totals: event.Totals{Turns: 1, Steps: 2, Usage: &event.TokenUsage{Input: 40, Output: 2}}})
	body := event.NewBlob(event.SessionID(r.SessionID), event.BlobDelivery, []byte("body of "+r.ID))
	of := func(d event.Data) event.Event {
		return event.Event{SessionID: event.SessionID(r.SessionID), UserID: r.UserID, RunID: event.RunID(r.ID), Data: d}
	}
	address := event.NewBlob(event.SessionID(r.SessionID), event.BlobDelivery, []byte(`{"type":"webhook","url":"https://hook.test/`+r.ID+`"}`))
	w.AppendTo(target.Stream(), []event.Blob{body, address},
		of(&event.DeliveryEnqueued{Address: address.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"}),
		of(&event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: id}),
		of(&event.DeliveryAttemptFailed{Attempt: 1, Code: "http_500", DeliveryID: id, Status: 500}),
		of(&event.DeliveryDeadLettered{Attempts: 1, Code: "http_500", DeliveryID: id}))
	return id
}

// Property is everything that one user has.
type Property struct {
	Session, Alias, Run, Delivery, Token, Ref, Asset, Target, Job, Connector string
}

// Property gives a user one of everything.
func (w *World) Property(user string) Property {
	w.T.Helper()
	s := Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, api.CreateSession{UserID: user, ID: "alias-of-" + user,
		InputContract: &api.InputContract{Schema: api.Raw(`{"type":"string"}`)}, OutputContract: &api.OutputContract{Schema: api.Raw(`{"type":"string"}`)},
		RoutePolicy: &api.RoutePolicy{Route: "main"}, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "https://" + user + ".test"}}}).Want(201))
	run := Into[api.Run](w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"content":"\"text of `+user+`\""}`).Want(202))
	big := strings.Repeat("long text of "+user, 2000)
	dlv := w.Finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: big}})
	tok := Into[api.Token](w.Do("POST", "/v1/tokens", w.Admin, `{"role":"reader","user_id":"`+user+`"}`).Want(201))
	w.Do("PUT", "/v1/secrets/slot-of-"+user+"?user_id="+user, w.Admin, `{"value":"value of `+user+`"}`).Want(201)
	asset := Into[api.Asset](w.Do("POST", "/v1/assets?name=of-"+user+".txt&user_id="+user, w.Admin, "file of "+user).Want(201))
	plan := Into[api.ReplayPlan](w.Do("POST", "/v1/deliveries/replay", w.Admin, `{"dry_run":true,"filter":{"user_id":"`+user+`"}}`).Want(200))
	return Property{s.ID, s.Alias, run.ID, string(dlv), tok.ID, event.RefOf([]byte(big)), asset.ID,
		string(event.TargetIDFor(user, "webhook", "https://hook.test/"+run.ID)), plan.JobID, "hub-of-" + user}
}

// In fills the path of a route.
func (p Property) In(path, session string) string {
	return strings.NewReplacer("{s}", session, "{r}", p.Run, "{d}", p.Delivery, "{t}", p.Token, "{ref}", p.Ref, "{a}", p.Asset, "{target}", p.Target, "{j}", p.Job, "{name}", p.Connector, "{secret}", strings.Replace(p.Alias, "alias", "slot", 1)).Replace(path)
}

// Everything is what the streams of a user hold.
func (w *World) Everything(user string) string {
	w.T.Helper()
	page := Into[api.List[api.Raw]](w.Do("GET", "/v1/events?limit=1000&user_id="+user, w.Admin, nil).Want(200))
	var b strings.Builder
	for _, e := range page.Items {
		b.Write(e)
	}
	return b.String()
}

// AuditTypes are the types of what the audit stream holds.
func (w *World) AuditTypes() (list []string) {
	w.T.Helper()
	for _, e := range Into[api.List[api.Event]](w.Do("GET", "/v1/audit", w.Admin, nil).Want(200)).Items {
		list = append(list, e.Type)
	}
	return list
}

// LastAudit is the last record of the audit stream.
func (w *World) LastAudit() string {
	w.T.Helper()
	events, err := w.Store.Read(w.T.Context(), event.AuditStream, 0, 1000)
	if err != nil || len(events) == 0 {
		w.T.Fatalf("%d records: %v", len(events), err)
	}
	return string(events[len(events)-1].Raw)
}

// Audited gives the data of what the audit stream holds.
func (w *World) Audited() string {
	w.T.Helper()
	events, err := w.Store.Read(w.T.Context(), event.AuditStream, 0, 1000)
	if err != nil {
		w.T.Fatal(err)
	}
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%s %s\n", e.Type, e.Raw)
	}
	return b.String()
}

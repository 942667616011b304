package httpapi

import (
	"bytes"
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

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/tokens"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// world is the door over a real store, on loopback.
type world struct {
	t       testing.TB
	store   *sqlite.Store
	hub     *live.Hub
	handler *Handler
	server  *httptest.Server
	stop    chan struct{}
	logs    *lockedBuffer
	admin   string // a token
	dir     string // of the store
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := newDoor(t, change...)
	w.server = httptest.NewServer(w.handler)
	t.Cleanup(w.server.Close)
	w.admin = w.token("admin", "")
	return w
}

// newDoor is a world that listens nowhere.
func newDoor(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, hub: &live.Hub{}, stop: make(chan struct{}), logs: &lockedBuffer{}, dir: t.TempDir()}
	var err error
	w.store, err = sqlite.Open(t.Context(), sqlite.Config{Dir: w.dir, Rows: eventlog.Rows, Sync: sqlite.SyncNormal,
		OnCommit: func(stamps []eventlog.Stamp) {
			for _, s := range stamps {
				w.hub.Ring(s.Stream, s.Events)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cfg := Config{
		Audit: eventlog.Audited{Log: w.store}, AuthFailures: 1_000_000, PeerRate: 1_000_000, // tests of these say otherwise
		Store: w.store, Hub: w.hub, Version: "test", Logger: slog.New(slog.NewTextHandler(w.logs, nil)), Stopping: w.stop,
		Admission: admissionOf(t, w.store, admission.Limits{}), Secrets: slotsOf(t, w.store), SigningKey: signingKey,
		Routes: []api.Route{{Name: "main", Provider: "scripted", Model: "m", Default: true}},
		Tools:  []api.Tool{{Name: "look", Source: "local", SideEffect: "read", InputSchema: api.Raw(`{"type":"object"}`)}},
	}
	for _, user := range []string{"ann", "bob"} {
		cfg.Connectors.List = append(cfg.Connectors.List, connectorOf(t, user, inbound.Spec{
			Name: "hub-of-" + user, Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true}))
	}
	for _, f := range change {
		f(&cfg)
	}
	if w.handler, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// hubSecret is the secret of every connector here.
const hubSecret = "secret-of-the-hub"

// connectorOf makes a connector of a user, whose sessions have no settings.
func connectorOf(t testing.TB, user string, spec inbound.Spec) Connector {
	t.Helper()
	rules, err := inbound.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return Connector{Rules: rules, User: user, Template: "event", Session: &api.CreateSession{},
		Secrets: func(context.Context) ([]string, error) { return []string{"older", hubSecret}, nil }}
}

func admissionOf(t testing.TB, store *sqlite.Store, limits admission.Limits) *admission.Admission {
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
			return event.Route{Name: "main", Provider: "scripted", Model: orDefault(model, "m")}, nil
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

// signingKey is one key, of the secret named hook.
func signingKey(_ context.Context, _, secret string) ([]string, error) {
	if secret != "hook" {
		return nil, problem.New(problem.NotFound, "signing_key_not_found", "no secret of this name holds an ed25519 key")
	}
	return []string{"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}, nil
}

// token stores a token and gives its text.
func (w *world) token(role, user string) string {
	w.t.Helper()
	text, row, err := tokens.New(rand.Reader, role+"-"+user, role, user, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.store.AddToken(w.t.Context(), row); err != nil {
		w.t.Fatal(err)
	}
	return text
}

// reply is an answer, read whole.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

func (w *world) request(method, path, token string, body any, header ...string) *http.Request {
	w.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := exchange.Encode(b)
		if err != nil {
			w.t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, r)
	if err != nil {
		w.t.Fatal(err)
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

// do sends a request, and holds its answer against the OpenAPI document.
func (w *world) do(method, path, token string, body any, header ...string) *reply {
	w.t.Helper()
	req := w.request(method, path, token, body, header...)
	res, err := w.server.Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	out := &reply{t: w.t, status: res.StatusCode, header: res.Header}
	if out.body, err = io.ReadAll(res.Body); err != nil {
		w.t.Fatal(err)
	}
	if err := conforms(w.handler, req, out); err != nil {
		w.t.Errorf("%s %s: answer %d is not as documented: %v\n%s", method, path, out.status, err, out.body)
	}
	return out
}

// want checks the status, and of a problem the code.
func (r *reply) want(status int, code ...string) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	if len(code) > 0 {
		var p api.Problem
		r.into(&p)
		if p.Code != code[0] || p.Status != status || p.Type != "https://holdfast.dev/problems/"+code[0] || p.Title == "" || p.Detail == "" {
			r.t.Fatalf("problem %s, want code %s", r.body, code[0])
		}
		if r.header.Get("Content-Type") != "application/problem+json" {
			r.t.Fatalf("Content-Type %q", r.header.Get("Content-Type"))
		}
	}
	return r
}

func (r *reply) into(v any) {
	r.t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		r.t.Fatalf("%v: %s", err, r.body)
	}
}

func into[T any](r *reply) T {
	r.t.Helper()
	var v T
	r.into(&v)
	return v
}

// session makes a session of a user, who may be the default one.
func (w *world) session(user string) api.Session {
	w.t.Helper()
	return into[api.Session](w.do("POST", "/v1/sessions", w.admin, api.CreateSession{UserID: user}).want(201))
}

// submit makes a run.
func (w *world) submit(session, text string) api.Run {
	w.t.Helper()
	return into[api.Run](w.do("POST", "/v1/sessions/"+session+"/runs", w.admin, api.SubmitRun{Content: api.Text(text)}).want(202))
}

// append appends events of a run as the engine would.
func (w *world) append(r *api.Run, data ...event.Data) {
	w.t.Helper()
	s := event.SessionID(r.SessionID)
	var drafts []event.Event
	for _, d := range data {
		drafts = append(drafts, event.Event{SessionID: s, UserID: r.UserID, RunID: event.RunID(r.ID), Data: d})
	}
	w.appendTo(s.Stream(), event.Externalize(s, drafts), drafts...)
}

func (w *world) appendTo(s event.Stream, blobs []event.Blob, drafts ...event.Event) {
	w.t.Helper()
	_, err := w.store.Append(w.t.Context(), eventlog.Append{Blobs: blobs,
		Entries: []eventlog.Entry{{Stream: s, Expect: eventlog.AnyHead, Events: drafts}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// finish brings a queued run to its end with an answer, and a delivery of it that is dead.
func (w *world) finish(r *api.Run, out *event.OutputEmitted) event.DeliveryID {
	w.t.Helper()
	w.append(r, &event.RunStarted{})
	target := event.TargetIDFor(r.UserID, "webhook", "https://hook.test/"+r.ID)
	id := event.DeliveryIDFor(event.RunID(r.ID), target, 1)
	out.Targets = []event.TargetRef{{DeliveryID: id, TargetID: target}}
	w.append(r, out, &event.RunCompleted{Totals: event.Totals{Turns: 1, Steps: 2, Usage: &event.TokenUsage{Input: 40, Output: 2}}})
	body := event.NewBlob(event.SessionID(r.SessionID), event.BlobDelivery, []byte("body of "+r.ID))
	of := func(d event.Data) event.Event {
		return event.Event{SessionID: event.SessionID(r.SessionID), UserID: r.UserID, RunID: event.RunID(r.ID), Data: d}
	}
	address := event.NewBlob(event.SessionID(r.SessionID), event.BlobDelivery, []byte(`{"type":"webhook","url":"https://hook.test/`+r.ID+`"}`))
	w.appendTo(target.Stream(), []event.Blob{body, address},
		of(&event.DeliveryEnqueued{Address: address.Ref, Body: body.Ref, DeliveryID: id, Type: "webhook"}),
		of(&event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: id}),
		of(&event.DeliveryAttemptFailed{Attempt: 1, Code: "http_500", DeliveryID: id, Status: 500}),
		of(&event.DeliveryDeadLettered{Attempts: 1, Code: "http_500", DeliveryID: id}))
	return id
}

// documented is the OpenAPI document with its schemas compiled as they are needed.
type documented struct {
	mu       sync.Mutex
	doc      map[string]any
	compiler *jsonschema.Compiler
}

var theDocument = sync.OnceValues(func() (*documented, error) {
	raw, err := document(table(), "test")
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return &documented{doc: doc.(map[string]any), compiler: c}, c.AddResource("openapi.json", doc)
})

// conforms says whether an answer is one that the document promises.
func conforms(h *Handler, req *http.Request, r *reply) error {
	_, pattern := h.mux.Handler(req)
	method, path, ok := strings.Cut(pattern, " ")
	if !ok || req.Method == "HEAD" {
		return nil // no operation, or no body
	}
	d, err := theDocument()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	operation, ok := d.doc["paths"].(map[string]any)[path].(map[string]any)[strings.ToLower(method)].(map[string]any)
	if !ok && r.status == http.StatusMethodNotAllowed {
		return nil
	}
	answers := operation["responses"].(map[string]any)
	status := fmt.Sprint(r.status)
	answer, ok := answers[status].(map[string]any)
	if !ok {
		if r.status < 500 {
			return fmt.Errorf("status %s is not documented", status)
		}
		status, answer = "default", answers["default"].(map[string]any)
	}
	content, ok := answer["content"].(map[string]any)
	if !ok {
		if len(r.body) > 0 {
			return fmt.Errorf("a body where none is documented")
		}
		return nil
	}
	media, _, _ := strings.Cut(r.header.Get("Content-Type"), ";")
	if content[media] == nil {
		return fmt.Errorf("media type %q is not documented", media)
	}
	if !strings.HasSuffix(media, "json") {
		return nil
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	at := strings.Join([]string{"openapi.json#/paths", escape.Replace(path), strings.ToLower(method), "responses", status, "content", escape.Replace(media), "schema"}, "/")
	schema, err := d.compiler.Compile(strings.NewReplacer("{", "%7B", "}", "%7D").Replace(at))
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

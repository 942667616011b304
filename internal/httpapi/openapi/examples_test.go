package openapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/httpapi/exchange"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/timeline"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// story tells what the interface does, call by call, in a bubble: the examples
// are what the handlers take and give there.
type story struct {
	t       *testing.T
	ctx     context.Context
	store   *sqlite.Store
	handler *httpapi.Handler
	token   string
	told    map[string][]openapi.Example
	names   map[string]string // made names of what is random
	blobs   []event.Blob      // that ride with every append
}

var storyBegins = time.Date(2027, 3, 1, 9, 0, 0, 0, time.UTC)

func newStory(t *testing.T, ctx context.Context) *story {
	t.Helper()
	time.Sleep(time.Until(storyBegins)) // a bubble begins in 2000
	s := &story{t: t, ctx: ctx, told: map[string][]openapi.Example{}, names: map[string]string{}}
	random := rand.NewChaCha8([32]byte{})
	hub := &live.Hub{}
	var err error
	s.store, err = sqlite.Open(ctx, sqlite.Config{Dir: t.TempDir(), Rows: eventlog.Rows, Sync: sqlite.SyncNormal, OnCommit: func(stamps []eventlog.Stamp) {
		for _, st := range stamps {
			hub.Ring(st.Stream, st.Events)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.handler, err = httpapi.New(httpapi.Config{
		Audit: eventlog.Audited{Log: s.store}, Store: s.store, Hub: hub, Version: "0.1.0", Logger: slog.New(slog.DiscardHandler), Admission: apitest.AdmissionOf(t, s.store, admission.Limits{}), Random: random,
		Routes: []api.Route{{Name: "main", Provider: "openai_compatible", Model: "m", Default: true}},
		Tools: []api.Tool{{Name: "charge", Description: "Charge a card", Source: "http", SideEffect: "external_effect", Policy: "allow",
			InputSchema: api.Raw(`{"additionalProperties":false,"properties":{"cents":{"type":"number"}},"required":["cents"],"type":"object"}`)}},
		Metrics: func() ([]byte, error) {
			return []byte("# HELP holdfast_active_sessions Sessions that are worked on now.\n# TYPE holdfast_active_sessions gauge\nholdfast_active_sessions 1\n"), nil
		},
		Price: func(string) (timeline.Price, bool) { return timeline.Price{Input: 0.25, Output: 2}, true },
		Files: oneFile{}, Secrets: apitest.SlotsOf(t, s.store), SigningKey: apitest.SigningKey,
		Connectors: connectors.Set{List: exampleConnectors(t)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Beat(ctx, eventlog.Node{ID: "gen_019a2b", Name: "db-7/4711", Version: "0.1.0", Active: 3, Most: 256, Roots: []string{"root_k3j9"}}, 15*time.Second); err != nil {
		t.Fatal(err)
	}
	text, row, err := tokens.New(random, "first", "admin", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.AddToken(ctx, row); err != nil {
		t.Fatal(err)
	}
	s.token = text
	return s
}

// oneFile tells of any two snapshots the same difference.
type oneFile struct{}

func (oneFile) Diff(_ context.Context, _ event.SessionID, _, _ event.FileSnapshot, stat bool) ([]api.FileDiff, int, error) {
	f := api.FileDiff{Path: "hosts.csv", Change: api.FileModified, Before: 21, Bytes: 20, Added: 1, Deleted: 1, Diff: "@@ -1,2 +1,2 @@\n host,state\n-db-7,full\n+db-7,free\n"}
	if stat {
		f.Diff = ""
	}
	return []api.FileDiff{f}, 0, nil
}

// told is what came of one call.
type told struct {
	t    *testing.T
	body []byte
}

func (a told) id() string {
	a.t.Helper()
	var v struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(a.body, &v); err != nil || v.ID == "" {
		a.t.Fatalf("no id in %s", a.body)
	}
	return v.ID
}

// call makes a call of an operation and keeps it as an example. Parameters are
// names and values; those of the path are found by their names.
func (s *story) call(id string, status int, body any, params ...string) told {
	s.t.Helper()
	i := slices.IndexFunc(httpapi.Operations(), func(rt openapi.Operation) bool { return rt.ID == id })
	if i < 0 {
		s.t.Fatalf("there is no operation %s", id)
	}
	rt := httpapi.Operations()[i]
	e := openapi.Example{Status: status}
	path, query, header := rt.Path, url.Values{}, http.Header{"Authorization": {"Bearer " + s.token}}
	for i := 0; i < len(params); i += 2 {
		name, value := params[i], params[i+1]
		if e.Parameters == nil {
			e.Parameters = map[string]string{}
		}
		e.Parameters[name] = s.tidy(value)
		p := slices.IndexFunc(rt.Params, func(p openapi.Param) bool { return p.Name == name })
		switch {
		case strings.Contains(path, "{"+name+"}"):
			path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
		case p >= 0 && rt.Params[p].In == "header":
			header.Set(name, value)
		default:
			query.Set(name, value)
		}
	}
	var r io.Reader
	if body != nil {
		raw, ok := body.(string)
		if !ok {
			b, err := exchange.Encode(body)
			if err != nil {
				s.t.Fatal(err)
			}
			raw = string(b)
		}
		r = strings.NewReader(raw)
		header.Set("Content-Type", "application/json")
		if json.Valid([]byte(raw)) {
			e.Request = json.RawMessage(s.tidy(raw))
		}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	req := httptest.NewRequestWithContext(ctx, rt.Method, "http://127.0.0.1"+path, r)
	req.Header = header
	w := httptest.NewRecorder()
	if id == "streamSession" { // it has no end of its own
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.handler.ServeHTTP(w, req)
		}()
		synctest.Wait()
		cancel()
		<-done
	} else {
		s.handler.ServeHTTP(w, req)
	}
	out := w.Body.Bytes()
	if w.Code != status {
		s.t.Fatalf("%s: %d, want %d: %s", id, w.Code, status, out)
	}
	if len(out) > 0 {
		e.Media, _, _ = strings.Cut(w.Header().Get("Content-Type"), ";")
		if id == "openapi" {
			out = []byte(`{"openapi":"3.1.0"}`) // the document holds the examples
		}
		text := s.tidy(string(out))
		if strings.HasSuffix(e.Media, "json") {
			e.Body = json.RawMessage(text)
		} else if b, err := exchange.Encode(text); err == nil {
			e.Body = b
		}
	}
	s.told[id] = append(s.told[id], e)
	return told{s.t, out}
}

// random are the parts of names that are drawn: suffixes of ids, digests, tokens.
var random = regexp.MustCompile(`hf_[A-Za-z0-9_-]{20,}|\b[0-9a-f]{64}\b|[0-9a-f]{32}|tok_[0-9a-f]{16}`)

// tidy gives each random name one that is the same in every telling.
func (s *story) tidy(text string) string {
	return random.ReplaceAllStringFunc(text, func(name string) string {
		made, ok := s.names[name]
		if !ok {
			n := len(s.names) + 1
			switch {
			case strings.HasPrefix(name, "hf_"):
				made = "hf_" + strings.Repeat("x", 43)
			case strings.HasPrefix(name, "tok_"):
				made = fmt.Sprintf("tok_%016x", n)
			case len(name) == 64:
				made = fmt.Sprintf("%064x", n)
			default:
				made = fmt.Sprintf("0195508d1c00700080%014x", n)
			}
			s.names[name] = made
		}
		return made
	})
}

// append appends events of a run, as the engine would.
func (s *story) append(session, run string, data ...event.Data) {
	s.t.Helper()
	s.appendTo(event.SessionID(session).Stream(), session, run, "", data...)
}

func (s *story) appendTo(stream event.Stream, session, run string, call event.CallID, data ...event.Data) {
	s.t.Helper()
	var drafts []event.Event
	for _, d := range data {
		drafts = append(drafts, event.Event{SessionID: event.SessionID(session), UserID: "default", RunID: event.RunID(run), CallID: call, Turn: 1, Data: d})
	}
	blobs := append(event.Externalize(event.SessionID(session), drafts), s.blobs...)
	if _, err := s.store.Append(s.ctx, eventlog.Append{Blobs: blobs, Entries: []eventlog.Entry{{Stream: stream, Expect: eventlog.AnyHead, Events: drafts}}}); err != nil {
		s.t.Fatal(err)
	}
}

const (
	alertSchema   = `{"type":"object","properties":{"host":{"type":"string"},"message":{"type":"string"}},"required":["host","message"],"additionalProperties":false}`
	verdictSchema = `{"type":"object","properties":{"severity":{"type":"number"}},"required":["severity"],"additionalProperties":false}`
)

// tell is the story. A new operation gets its line here.
func (s *story) tell() {
	for _, id := range []string{"healthz", "readyz", "metrics", "openapi", "listNodes", "listRoutes", "listTools"} {
		s.call(id, 200, nil)
	}
	tok := s.call("createToken", 201, api.CreateToken{Name: "dashboard", Role: "reader", ExpiresIn: "2160h"}).id()
	s.call("createToken", 400, `{"role":"owner"}`)
	s.call("putSecret", 201, api.PutSecret{Value: "an example of a secret", Hosts: []string{"api.example.com"}}, "secret", "billing")
	s.call("putSecret", 200, api.PutSecret{Value: "another example of one", Hosts: []string{"api.example.com"}}, "secret", "billing")
	s.call("putSecret", 400, api.PutSecret{Value: "short"}, "secret", "billing")
	s.call("listSecrets", 200, nil, "limit", "1")
	s.call("getSecret", 200, nil, "secret", "billing")
	s.call("rekeySecrets", 200, nil)
	s.call("deleteSecret", 204, nil, "secret", "billing")
	s.call("deleteSecret", 404, nil, "secret", "billing")
	s.call("listTokens", 200, nil, "role", "reader")
	s.call("revokeToken", 204, nil, "t", tok)
	s.call("revokeToken", 404, nil, "t", tok)
	s.call("listAudit", 200, nil)
	time.Sleep(time.Minute)

	file := "host,state\ndb-7,full\n"
	ast := s.call("createAsset", 201, file, "name", "hosts.csv").id()
	s.call("createAsset", 200, file)
	s.call("createAsset", 413, strings.Repeat("x", 21<<20))
	s.call("listAssets", 200, nil, "limit", "1")
	s.call("getAsset", 200, nil, "a", ast)
	s.call("getAsset", 404, nil, "a", "ast_0")
	s.call("getAssetBytes", 200, nil, "a", ast)
	time.Sleep(time.Minute)

	repairs := 2
	ses := s.call("createSession", 201, api.CreateSession{ID: "triage", Title: "Triage of alerts", InputContract: &api.InputContract{Schema: api.Raw(alertSchema)},
		OutputContract: &api.OutputContract{Schema: api.Raw(verdictSchema), MaxRepairAttempts: &repairs}, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "https://hooks.example/verdicts"}}}).id()
	s.call("createSession", 409, api.CreateSession{ID: "triage"})
	s.call("listSessions", 200, nil, "status", "open", "order", "asc")
	s.call("getSession", 200, nil, "s", "triage")
	s.call("getSession", 404, nil, "s", "none")
	s.call("updateSession", 200, `{"title":"Alerts","max_turns":10,"instructions":null}`, "s", "triage")
	s.call("updateSession", 400, `{}`, "s", "triage")
	for _, set := range []struct {
		id   string
		body any
	}{
		{"InputContract", api.InputContract{Schema: api.Raw(alertSchema)}}, {"OutputContract", api.OutputContract{Schema: api.Raw(verdictSchema), MaxRepairAttempts: &repairs}},
		{"RoutePolicy", api.RoutePolicy{Route: "main", Model: "m-large"}}, {"ReplyTargets", api.ReplyTargets{ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "https://hooks.example/verdicts"}}}},
	} {
		s.call("put"+set.id, 200, set.body, "s", "triage")
		s.call("get"+set.id, 200, nil, "s", "triage")
		if set.id == "InputContract" {
			continue // the work below wants it
		}
		s.call("delete"+set.id, 204, nil, "s", "triage")
		if set.id != "ReplyTargets" { // of which there may be none
			s.call("get"+set.id, 404, nil, "s", "triage")
		}
	}
	s.call("putOutputContract", 400, `{"schema":{"type":"object"}}`, "s", "triage")
	time.Sleep(time.Minute)
	s.runs(ses)
	s.connectors()
	s.call("deleteInputContract", 204, nil, "s", "triage")
	s.call("closeSession", 200, `{"reason":"the work is done"}`, "s", "triage")
	s.call("eraseSession", 204, nil, "s", "triage")
	s.call("getSession", 410, nil, "s", ses)
}

func exampleConnectors(t *testing.T) []connectors.Connector {
	alerts := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "alerts", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Key: "{{/host}}", Text: "{{/host}}: {{/message}}"})
	return []connectors.Connector{alerts, apitest.ConnectorOf(t, "default", inbound.Spec{Name: "code", Kind: inbound.KindGitHub, Auth: inbound.AuthGitHub, Key: "{{thread}}"})}
}

// connectors is the part about events from outside.
func (s *story) connectors() {
	token := s.token
	s.token = apitest.HubSecret
	const alert = `{"host":"db-7","id":"alert-4712","message":"disk full"}`
	s.call("receiveEvent", 202, alert, "name", "alerts")
	s.call("receiveEvent", 200, alert, "name", "alerts")
	s.call("receiveEvent", 409, `{"host":"db-7","id":"alert-4712","message":"disk empty"}`, "name", "alerts")
	s.call("receiveEvent", 422, `{"host":"db-7","id":"alert-4713"}`, "name", "alerts")
	s.token = "of-somebody-else"
	s.call("receiveEvent", 401, alert, "name", "alerts")
	s.token = token
	s.call("listConnectors", 200, nil)
	s.call("testConnector", 200, api.TestConnector{Headers: map[string]string{"Authorization": "Bearer wrong"}, Body: `{"host":"db-8","id":"alert-4714","message":"disk full"}`}, "name", "alerts")
	s.call("testConnector", 404, api.TestConnector{}, "name", "none")
}

// runs is the part about work.
func (s *story) runs(ses string) {
	input := api.SubmitRun{Content: api.Raw(`{"host":"db-7","message":"disk full"}`)}
	run := s.call("submitRun", 202, input, "s", "triage", "Idempotency-Key", "alert-4711").id()
	s.call("submitRun", 200, input, "s", "triage", "Idempotency-Key", "alert-4711")
	s.call("submitRun", 400, `{"content":{"host":"db-7"}}`, "s", "triage")
	s.call("submitRun", 409, `{"content":{"host":"db-8","message":"disk full"}}`, "s", "triage", "Idempotency-Key", "alert-4711")
	time.Sleep(20 * time.Millisecond)
	call := event.CallID("call_" + strings.TrimPrefix(run, "run_") + "_1_1_0")
	s.append(ses, run, &event.RunStarted{}, &event.StepStarted{Number: 1}, &event.ModelCallStarted{Attempt: 1, Model: "m", Provider: "openai_compatible", Route: "main"})
	time.Sleep(900 * time.Millisecond)
	s.append(ses, run, &event.ModelCallCompleted{Attempt: 1, DurationMS: 900, FirstOutputMS: 120, Usage: &event.TokenUsage{Input: 400, Output: 30}})
	s.appendTo(event.SessionID(ses).Stream(), ses, run, call, &event.ToolRequested{Name: "charge"}, &event.ToolStarted{Level: "external_effect", Name: "charge", Snapshot: &event.FileSnapshot{Node: "db-host-1f0c77a2", Tree: event.RefOf([]byte("before"))}})
	time.Sleep(50 * time.Millisecond)
	s.appendTo(event.SessionID(ses).Stream(), ses, run, call, &event.ToolInterrupted{Message: "Tool execution interrupted", Outcome: "unknown", Reason: "the answer was lost"})
	s.append(ses, run, &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: call, Name: "charge", Reason: "the answer was lost"}}})
	s.call("getRun", 200, nil, "r", run, "wait", "30s")
	s.call("getRun", 404, nil, "r", "run_none")
	time.Sleep(10 * time.Second)
	s.call("resolveAttention", 202, api.ResolveAttention{CallID: string(call), Resolution: "completed", Output: `{"charged":true}`, Reason: "seen in the ledger"}, "r", run)
	s.call("resolveAttention", 409, api.ResolveAttention{CallID: string(call), Resolution: "failed"}, "r", run)
	content := event.TextContent(strings.Repeat("a long answer ", 1500))
	s.append(ses, run, &event.RunResumed{}, &event.StepEnded{Finish: "stop", MessageID: "msg_1", Snapshot: &event.FileSnapshot{Node: "db-host-1f0c77a2", Tree: event.RefOf([]byte("after"))},
		Files: &event.FileChanges{List: []event.FileChange{{Path: "hosts.csv", Change: event.FileModified, Before: 21, Bytes: 20}}}})
	s.append(ses, run, &event.TextEnded{Content: content, MessageID: "msg_1", Part: 1})
	target := event.TargetIDFor("default", "webhook", "https://hooks.example/verdicts")
	dlv := event.DeliveryIDFor(event.RunID(run), target, 1)
	s.append(ses, run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.TextContent(`{"severity":3}`), Targets: []event.TargetRef{{DeliveryID: dlv, TargetID: target}}},
		&event.RunCompleted{Totals: event.Totals{Turns: 1, Steps: 1, Tools: 1, Usage: &event.TokenUsage{Input: 400, Output: 30}}})
	body := event.NewBlob(event.SessionID(ses), event.BlobDelivery, []byte("the body"))
	address := event.NewBlob(event.SessionID(ses), event.BlobDelivery, []byte(`{"type":"webhook","url":"https://hooks.example/verdicts"}`))
	s.blobs = append(s.blobs, body, address)
	lane := func(data ...event.Data) { s.appendTo(target.Stream(), ses, run, "", data...) }
	lane(&event.DeliveryEnqueued{Address: address.Ref, Body: body.Ref, DeliveryID: dlv, Type: "webhook"}, &event.DeliveryAttemptStarted{Attempt: 1, Cycle: 1, DeliveryID: dlv})
	time.Sleep(80 * time.Millisecond)
	said := event.NewBlob(event.SessionID(ses), event.BlobDelivery, []byte(`{"error":"no secret"}`))
	s.blobs = append(s.blobs, said)
	lane(&event.DeliveryAttemptFailed{Attempt: 1, Class: "refused", Code: "http_401", DeliveryID: dlv, DurationMS: 80, Excerpt: said.Ref, Status: 401},
		&event.DeliveryDeadLettered{Attempts: 1, Class: "refused", Code: "http_401", DeliveryID: dlv})
	s.call("listRuns", 200, nil, "status", "completed", "since", "2027-03-01T00:00:00Z")
	s.call("listRuns", 400, nil, "status", "done")
	s.call("getRunTimeline", 200, nil, "r", run)
	s.call("getSessionDiff", 200, nil, "s", "triage", "run", run)
	s.call("getSessionDiff", 409, nil, "s", "triage", "step", "step_none_1")
	s.call("getSessionDiff", 400, nil, "s", "triage", "run", run, "step", "step_none_1")
	s.call("listRunEvents", 200, nil, "r", run, "type", "run.created,run.completed")
	s.call("streamRun", 200, nil, "r", run, "after", "24")
	s.call("streamRun", 204, nil, "r", run, "after", "100")
	s.call("listSessionEvents", 200, nil, "s", "triage", "after", "1", "limit", "2")
	s.call("streamSession", 200, nil, "s", "triage", "Last-Event-ID", "24")
	s.call("listEvents", 200, nil, "type", "run.completed", "run_id", run)
	s.call("getBlob", 200, nil, "s", "triage", "ref", event.RefOf([]byte(content.Text)))
	s.call("getBlob", 404, nil, "s", "triage", "ref", "sha256:none")
	s.call("cancelRun", 409, nil, "r", run)

	s.call("listDeliveries", 200, nil, "status", "dead_lettered")
	s.call("getDelivery", 200, nil, "d", string(dlv))
	s.call("listTargets", 200, nil, "status", "dead_lettered")
	s.call("getTarget", 200, nil, "target", string(target))
	s.call("getTarget", 404, nil, "target", "tgt_none")
	s.call("testTarget", 200, `{"target":{"type":"webhook","url":"https://hook.example/answers"}}`)
	s.call("testTarget", 200, `{"target":{"type":"webhook","url":"https://down.example/answers","format":"cloudevents"}}`)
	s.call("testTarget", 400, `{"target":{"type":"webhook"}}`)
	s.call("getSigningKey", 200, nil, "key", "hook")
	s.call("getSigningKey", 404, nil, "key", "none")
	s.call("listAttempts", 200, nil, "d", string(dlv))
	s.call("pauseTarget", 200, `{"reason":"it is being moved"}`, "target", string(target))
	s.call("resumeTarget", 200, `{"reason":"it has moved"}`, "target", string(target))
	s.call("resetTarget", 200, `{"reason":"it has the secret now"}`, "target", string(target))
	var plan struct {
		JobID string `json:"job_id"`
		Token string `json:"plan_token"`
	}
	if err := json.Unmarshal(s.call("replayDeliveries", 200, `{"filter":{"unresolved":true,"error_class":"refused"},"dry_run":true}`).body, &plan); err != nil {
		s.t.Fatal(err)
	}
	s.call("replayDeliveries", 202, `{"plan_token":"`+plan.Token+`"}`)
	s.call("replayDeliveries", 400, `{"dry_run":true}`)
	s.call("listJobs", 200, nil, "status", "running")
	s.call("getJob", 200, nil, "j", plan.JobID)
	s.call("listJobDeliveries", 200, nil, "j", plan.JobID, "limit", "10")
	s.call("cancelJob", 202, `{"reason":"the receiver is down again"}`, "j", plan.JobID)
	s.call("replayDelivery", 202, `{"reason":"the receiver has the secret now"}`, "d", string(dlv))
	s.call("replayDelivery", 409, `{}`, "d", string(dlv))
	s.call("resolveDelivery", 200, `{"reason":"the receiver is gone"}`, "d", string(dlv))

	next := s.call("submitRun", 202, input, "s", "triage").id()
	s.append(ses, next, &event.RunStarted{})
	s.call("interruptSession", 202, `{"reason":"a wrong alert"}`, "s", "triage")
	s.append(ses, next, &event.RunInterrupted{Reason: "a wrong alert"})
	next = s.call("submitRun", 202, input, "s", "triage").id()
	s.call("cancelRun", 202, `{"reason":"a wrong alert"}`, "r", next)
	s.append(ses, next, &event.RunCancelled{Reason: "a wrong alert"})

	id := s.call("compactSession", 202, nil, "s", "triage").id()
	s.call("compactSession", 409, nil, "s", "triage")
	end := event.Event{SessionID: event.SessionID(ses), UserID: "default", StepID: event.StepID(id),
		Data: &event.CompactionFailed{Code: "nothing_to_compact", Reason: event.CompactManual}}
	if _, err := s.store.Append(s.ctx, eventlog.Append{Entries: []eventlog.Entry{{Stream: event.SessionID(ses).Stream(), Expect: eventlog.AnyHead, Events: []event.Event{end}}}}); err != nil {
		s.t.Fatal(err)
	}
}

// The examples of the document are what the handlers take and give now.
func TestExamples(t *testing.T) {
	var told []byte
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := newStory(t, ctx)
		s.tell()
		for id, list := range s.told { // one answer of a status is enough
			var kept []openapi.Example
			for _, e := range list {
				if !slices.ContainsFunc(kept, func(k openapi.Example) bool { return k.Status == e.Status }) {
					kept = append(kept, shortened(e))
				}
			}
			s.told[id] = kept
		}
		raw, err := exchange.Encode(s.told)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", " "); err != nil {
			t.Fatal(err)
		}
		told = b.Bytes()
	})
	generated(t, "examples.json", told)
}

// shortened keeps the example of a long text readable.
func shortened(e openapi.Example) openapi.Example {
	var text string
	if json.Unmarshal(e.Body, &text) == nil && len(text) > 2000 {
		e.Body, _ = exchange.Encode(text[:40])
	}
	return e
}

// Each operation has an example of its parameters, its body and each of its
// successes, and each example is what its schema says.
func TestExamplesAreValid(t *testing.T) {
	raw, err := openapi.Document(httpapi.Operations(), "test")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := openapi.Examples()
	if err != nil {
		t.Fatal(err)
	}
	statuses := map[int]bool{}
	for _, rt := range httpapi.Operations() {
		list := all[rt.ID]
		if len(list) == 0 {
			t.Errorf("%s has no example: give it a line in the story (examples_test.go), then -run TestExamples -rewrite", rt.ID)
			continue
		}
		op := doc.Paths.Value(rt.Path).GetOperation(rt.Method)
		for _, name := range rt.PathNames() {
			if p := op.Parameters.GetByInAndName("path", name); p == nil || p.Example == nil {
				t.Errorf("%s: the parameter %s has no example", rt.ID, name)
			}
		}
		for _, p := range op.Parameters {
			if p.Value.Example != nil {
				valid(t, rt.ID+" "+p.Value.Name, p.Value.Schema, p.Value.Example)
			}
		}
		if rt.Body != nil {
			m := op.RequestBody.Value.Content.Get("application/json")
			if m.Example == nil {
				t.Errorf("%s: the body has no example", rt.ID)
			}
			valid(t, rt.ID+" request", m.Schema, m.Example)
		}
		for _, a := range rt.Answers {
			if !slices.ContainsFunc(list, func(e openapi.Example) bool { return e.Status == a.Status }) {
				t.Errorf("%s: the answer %d has no example", rt.ID, a.Status)
			}
		}
		for _, e := range list {
			statuses[e.Status] = true
			answer := op.Responses.Status(e.Status)
			if answer == nil {
				t.Errorf("%s: an example with the status %d, which is not documented", rt.ID, e.Status)
				continue
			}
			if e.Body == nil {
				continue
			}
			m := answer.Value.Content[e.Media]
			if m == nil || m.Example == nil {
				t.Errorf("%s %d: the example is not in the document", rt.ID, e.Status)
				continue
			}
			valid(t, fmt.Sprint(rt.ID, " ", e.Status), m.Schema, m.Example)
		}
	}
	for id := range all {
		if !slices.ContainsFunc(httpapi.Operations(), func(rt openapi.Operation) bool { return rt.ID == id }) {
			t.Errorf("examples of %s, which is no operation", id)
		}
	}
	for _, status := range []int{200, 201, 202, 204, 400, 404, 409, 410} {
		if !statuses[status] {
			t.Errorf("no example has the status %d", status)
		}
	}
	if bytes.Contains(openapi.ExamplesFile, []byte(base64.StdEncoding.EncodeToString([]byte("runs\n")))) {
		t.Error("a cursor with a random id stands in the examples")
	}
}

func valid(t *testing.T, what string, schema *openapi3.SchemaRef, v any) {
	t.Helper()
	if schema == nil || schema.Value == nil {
		return // any JSON
	}
	if err := schema.Value.VisitJSON(v, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors(), openapi3.EnableFormatValidation()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

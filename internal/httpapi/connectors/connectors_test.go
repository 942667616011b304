package connectors_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/connectors"
	"github.com/holdfast-dev/holdfast/internal/inbound"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// counts keeps what connectors counted.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(connector, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[connector+" "+outcome]++
}

func (c *counts) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[name]
}

const standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// hubWorld is a door with a connector of each kind.
func hubWorld(t *testing.T, change ...func(*httpapi.Config)) (*apitest.World, *counts) {
	t.Helper()
	n := &counts{}
	return apitest.New(t, append([]func(*httpapi.Config){hub(t, n)}, change...)...), n
}

func hub(t *testing.T, n *counts) func(*httpapi.Config) {
	return func(c *httpapi.Config) {
		std := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "std", Kind: inbound.KindJSON, Auth: inbound.AuthStandard, Fresh: true})
		std.Secrets = func(context.Context) ([]string, error) { return []string{standardSecret}, nil }
		broken := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "broken", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true})
		broken.Secrets = func(context.Context) ([]string, error) { return nil, errors.New("the file /secret/path is gone") }
		slow := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "slow", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true})
		slow.Rate, slow.Burst = 0.001, 2
		strict := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "strict", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true})
		strict.Session = &api.CreateSession{InputContract: &api.InputContract{Schema: api.Raw(`{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"number"}},"required":["id","n"],"additionalProperties":false}`)}}
		targets := apitest.ConnectorOf(t, "default", inbound.Spec{Name: "targets", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Key: "{{/room}}", Pointer: "/room",
			Targets: "/to", Origins: []string{"https://hooks.example.com"}})
		targets.Remember = true
		c.Connectors = connectors.Set{Counted: n.add, Standard: func(h http.Header, body []byte, secret string, now time.Time, tolerance time.Duration) error {
			key, err := webhook.ParseSecret(secret)
			if err != nil {
				return err
			}
			return webhook.Verify(h, body, key, now, tolerance)
		}, List: []connectors.Connector{
			apitest.ConnectorOf(t, "default", inbound.Spec{Name: "plain", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true, BodyBytes: 1000}),
			apitest.ConnectorOf(t, "default", inbound.Spec{Name: "code", Kind: inbound.KindGitHub, Auth: inbound.AuthGitHub, Key: "{{thread}}"}),
			apitest.ConnectorOf(t, "default", inbound.Spec{Name: "chat", Kind: inbound.KindSlack, Auth: inbound.AuthSlack, Key: "{{thread}}"}),
			apitest.ConnectorOf(t, "default", inbound.Spec{Name: "open", Kind: inbound.KindJSON, Auth: inbound.AuthNone, Open: true, EventPointer: "/id", Fresh: true}),
			std, broken, slow, strict, targets,
		}}
	}
}

func macOf(secret string, parts ...string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		mac.Write([]byte(p))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

func post(w *apitest.World, connector, body string, header ...string) *apitest.Reply {
	w.T.Helper()
	return w.Do("POST", "/v1/connectors/"+connector, "", body, header...)
}

// Who does not prove who it is is told one thing, whatever is wrong, and nothing
// is read, made or changed.
func TestConnectorSenders(t *testing.T) {
	w, n := hubWorld(t)
	before := w.Everything("")
	const body = `{"id":"1","action":"opened"}`
	stale := fmt.Sprint(time.Now().Add(-6 * time.Minute).Unix())
	fresh := fmt.Sprint(time.Now().Unix())
	var first []byte
	tried := 0
	for connector, list := range map[string][][]string{
		"plain": {nil, {"Authorization", "Bearer " + w.Admin}, {"Authorization", "Basic " + apitest.HubSecret}, {"Authorization", "Bearer "}, {"X-Token", apitest.HubSecret}},
		"code":  {nil, {"X-Hub-Signature-256", "sha256=" + macOf("other", body)}, {"X-Hub-Signature-256", macOf(apitest.HubSecret, body)}, {"X-Hub-Signature", "sha1=" + macOf(apitest.HubSecret, body)}, {"Authorization", "Bearer " + apitest.HubSecret}},
		"chat": {nil, {"X-Slack-Signature", "v0=" + macOf(apitest.HubSecret, "v0:", stale, ":", body), "X-Slack-Request-Timestamp", stale},
			{"X-Slack-Signature", "v0=" + macOf(apitest.HubSecret, "v0:", stale, ":", body), "X-Slack-Request-Timestamp", fresh}},
		"std": {nil, {"webhook-id", "m", "webhook-timestamp", fresh, "webhook-signature", "v1,AAAA"}},
	} {
		for _, header := range list {
			r := post(w, connector, body, header...).Want(401, "sender_unknown")
			if first == nil {
				first = r.Body
			}
			if string(r.Body) != string(first) {
				t.Errorf("%s with %v is told %s", connector, header, r.Body)
			}
			tried++
		}
	}
	post(w, "none", body, "Authorization", "Bearer "+apitest.HubSecret).Want(404, "connector_not_found")
	w.Do("POST", "/v1/connectors/plain?token="+apitest.HubSecret, "", body).Want(400, "token_in_query")
	post(w, "broken", body, "Authorization", "Bearer "+apitest.HubSecret).Want(503, "connector_unavailable")
	if w.Everything("") != before {
		t.Error("a sender that was not believed has made something")
	}
	if got := n.get("plain unauthenticated") + n.get("code unauthenticated") + n.get("chat unauthenticated") + n.get("std unauthenticated"); got != tried || n.get("broken failed") != 1 {
		t.Errorf("%d of %d are counted: %v", got, tried, n.of)
	}
	if logs := w.Logs.String(); strings.Contains(logs, apitest.HubSecret) || !strings.Contains(logs, "/secret/path") { // I-33: the cause is for the log, secrets for nobody
		t.Errorf("log: %s", logs)
	}
}

// C91: connectors are no way around the browser's safety: what a page of another
// origin can send on its own fails, also where no secret is wanted.
func TestConnectorsAndBrowsers(t *testing.T) {
	w, _ := hubWorld(t)
	before := w.Everything("")
	for _, connector := range []string{"plain", "code", "chat", "std", "open"} {
		for _, header := range [][]string{
			{"Origin", "https://evil.test", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"},
			{"Origin", "null", "Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"},
			{"Origin", "https://evil.test", "Content-Type", "application/json"},
			{"Sec-Fetch-Site", "same-site", "Content-Type", "application/x-www-form-urlencoded"},
		} {
			post(w, connector, `{"id":"1"}`, header...).Want(403, "cross_origin")
		}
	}
	// A simple request of an old browser, that says nothing of its origin.
	for connector, status := range map[string]int{"plain": 401, "code": 401, "chat": 401, "std": 401, "open": 415} {
		post(w, connector, `{"id":"1"}`, "Content-Type", "text/plain").Want(status)
	}
	if w.Everything("") != before {
		t.Error("a page made a run")
	}
	post(w, "open", `{"id":"1"}`).Want(202)
}

func TestConnectorEvents(t *testing.T) {
	w, n := hubWorld(t)
	auth := []string{"Authorization", "Bearer " + apitest.HubSecret}
	made := apitest.Into[api.Received](post(w, "plain", `{"id":"e1","text":"hello"}`, auth...).Want(202))
	if made.Outcome != api.InboundAccepted || made.RunID == "" || !made.SessionCreated {
		t.Fatalf("%+v", made)
	}
	run := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+made.RunID, w.Admin, nil).Want(200))
	if run.SessionID != made.SessionID || run.Request.Source != "connector" || run.Request.Actor != "connector plain" || run.Request.TextPreview != `{"id":"e1","text":"hello"}` ||
		string(run.InputMetadata) != `{"connector":"plain","event_id":"e1"}` {
		t.Errorf("%+v", run)
	}
	if s := apitest.Into[api.Session](w.Do("GET", "/v1/sessions/"+made.SessionID, w.Admin, nil).Want(200)); string(s.Metadata) != `{"connector":"plain"}` {
		t.Errorf("%+v", s)
	}
	again := apitest.Into[api.Received](post(w, "plain", `{ "text":"hello", "id":"e1"}`, "Authorization", "Bearer older").Want(200)) // the secret before counts
	if again.Outcome != api.InboundRepeated || again.RunID != made.RunID {
		t.Errorf("%+v", again)
	}
	post(w, "plain", `{"id":"e1","text":"other"}`, auth...).Want(409, "event_conflict")
	post(w, "plain", `{"text":"x"}`, auth...).Want(422, "event_id_required")
	post(w, "plain", `{"id":"e2"`, auth...).Want(400, "invalid_json")
	post(w, "plain", `{"id":"`+strings.Repeat("x", 1000)+`"}`, auth...).Want(413, "body_too_large")
	post(w, "plain", `{"id":"e2"}`, append(auth, "Content-Type", "text/plain")...).Want(415, "unsupported_media_type")
	w.Do("GET", "/v1/connectors/plain", "", nil).Want(405)

	r := post(w, "strict", `{"id":"1","n":"one"}`, auth...).Want(422, "input_contract_violated")
	if p := apitest.Into[api.Problem](r); len(p.Issues) != 1 || p.Issues[0].Path != "$.n" {
		t.Errorf("%s", r.Body)
	}
	post(w, "strict", `{"id":"1","n":1}`, auth...).Want(202)

	post(w, "slow", `{"id":"1"}`, auth...).Want(202)
	post(w, "slow", `{"id":"1"}`, auth...).Want(200)
	if r := post(w, "slow", `{"id":"1"}`, auth...).Want(429, "connector_busy"); r.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	post(w, "slow", `{"id":"1"}`).Want(401) // noise does not spend the sender's share, nor is it told of it

	room := func(id, to string) api.Received {
		return apitest.Into[api.Received](post(w, "targets", `{"id":"`+id+`","room":"a","to":`+to+`}`, auth...).Want(202))
	}
	if got := room("1", `"https://hooks.example.com/a"`); got.TargetsRemembered == nil || !*got.TargetsRemembered {
		t.Errorf("%+v", got)
	}
	if got := room("2", `["https://hooks.example.com/b"]`); got.TargetsRemembered == nil || *got.TargetsRemembered || got.TargetsReason == "" || got.SessionCreated {
		t.Errorf("%+v", got)
	}
	if got := room("3", `null`); got.TargetsRemembered != nil {
		t.Errorf("%+v", got)
	}
	post(w, "targets", `{"id":"4","room":"a","to":"https://evil.test/"}`, auth...).Want(422, "reply_target_refused")
	post(w, "targets", `{"id":"5","to":null}`, auth...).Want(422, "mapping_failed")
	for name, want := range map[string]int{"plain accepted": 1, "plain repeated": 1, "plain conflict": 1, "plain refused": 4, "slow limited": 1, "strict refused": 1, "targets accepted": 3} {
		if got := n.get(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// The two vendors, as they send.
func TestConnectorVendors(t *testing.T) {
	w, n := hubWorld(t)
	hub := func(event, delivery, body string) *apitest.Reply {
		return post(w, "code", body, "X-GitHub-Event", event, "X-GitHub-Delivery", delivery, "X-Hub-Signature-256", "sha256="+macOf(apitest.HubSecret, body), "User-Agent", "GitHub-Hookshot/044aadd")
	}
	const repo = `"repository":{"full_name":"octo/rocket"},"sender":{"login":"mona","type":"User"}`
	if got := apitest.Into[api.Received](hub("ping", "d0", `{"zen":"Speak like a human.",`+repo+`}`).Want(200)); got.Outcome != api.InboundIgnored || got.RunID != "" || got.Reason == "" {
		t.Errorf("ping: %+v", got)
	}
	issue := `{"action":"opened","issue":{"number":7,"title":"Engine stalls","body":"often"},` + repo + `}`
	one := apitest.Into[api.Received](hub("issues", "d1", issue).Want(202))
	if again := apitest.Into[api.Received](hub("issues", "d1", issue).Want(200)); again.RunID != one.RunID || one.Event != "issues.opened" {
		t.Errorf("%+v %+v", one, again)
	}
	hub("issues", "d1", strings.Replace(issue, "often", "never", 1)).Want(409, "event_conflict")
	note := `{"action":"created","issue":{"number":7,"title":"Engine stalls"},"comment":{"body":"me too"},` + repo + `}`
	if two := apitest.Into[api.Received](hub("issue_comment", "d2", note).Want(202)); two.SessionID != one.SessionID || two.RunID == one.RunID || two.SessionCreated {
		t.Errorf("a comment is of another session than its issue: %+v %+v", one, two)
	}
	if other := apitest.Into[api.Received](hub("issues", "d3", strings.Replace(issue, `"number":7`, `"number":8`, 1)).Want(202)); other.SessionID == one.SessionID {
		t.Error("two issues have one session")
	}
	hub("star", "d4", `{"action":"created",`+repo+`}`).Want(200)
	hub("push", "d5", issue).Want(422, "mapping_failed")

	slack := func(body string, header ...string) *apitest.Reply {
		at := fmt.Sprint(time.Now().Unix())
		return post(w, "chat", body, append(header, "X-Slack-Request-Timestamp", at, "X-Slack-Signature", "v0="+macOf(apitest.HubSecret, "v0:", at, ":", body))...)
	}
	if got := apitest.Into[api.Received](slack(`{"token":"x","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}`).Want(200)); got.Challenge != "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P" {
		t.Errorf("%+v", got)
	}
	event := func(id, user, more string) string {
		return `{"token":"x","team_id":"T1","type":"event_callback","event_id":"` + id + `","event":{"type":"app_mention","user":"` + user + `","text":"<@U0> help","ts":"1.2","channel":"C1"` + more + `}}`
	}
	said := apitest.Into[api.Received](slack(event("Ev1", "U1", "")).Want(202))
	if again := apitest.Into[api.Received](slack(event("Ev1", "U1", ""), "X-Slack-Retry-Num", "1", "X-Slack-Retry-Reason", "http_timeout").Want(200)); again.RunID != said.RunID {
		t.Errorf("a retry made another run: %+v", again)
	}
	if got := apitest.Into[api.Received](slack(event("Ev2", "U1", `,"bot_id":"B1"`)).Want(200)); got.Outcome != api.InboundIgnored {
		t.Errorf("a bot: %+v", got)
	}
	if reply := apitest.Into[api.Received](slack(event("Ev3", "U1", `,"thread_ts":"1.2"`)).Want(202)); reply.SessionID != said.SessionID {
		t.Error("a reply is of another session than its thread")
	}
	if r := slack(`{"type":"event_callback"}`).Want(422); r.Header.Get("X-Slack-No-Retry") != "1" {
		t.Error("what will never fit is asked for again")
	}
	if n.get("chat challenge") != 1 || n.get("chat ignored") != 1 || n.get("chat repeated") != 1 {
		t.Errorf("%v", n.of)
	}
}

// C56, from the receiver's side: every attempt of one delivery has its id and its
// bytes under a new signature, and makes one run; so has a replay a day later.
func TestConnectorReceivesDeliveries(t *testing.T) { // C56, I-26
	w, _ := hubWorld(t)
	key, err := webhook.ParseSecret(standardSecret)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"count":3,"status":"ok"}`
	send := func(id, body string, at time.Time) *apitest.Reply {
		return post(w, "std", body, "webhook-id", id, "webhook-timestamp", fmt.Sprint(at.Unix()), "webhook-signature", webhook.Sign(id, at, []byte(body), key))
	}
	var run string
	for i := range 4 {
		r := send("dlv_0001", body, time.Now().Add(time.Duration(i-4)*time.Minute))
		got := apitest.Into[api.Received](r)
		if want := map[bool]int{true: 202, false: 200}[i == 0]; r.Status != want || got.RunID == "" || run != "" && got.RunID != run {
			t.Errorf("attempt %d: %d %s", i+1, r.Status, r.Body)
		}
		run = got.RunID
	}
	send("dlv_0001", `{"count":4,"status":"ok"}`, time.Now()).Want(409, "event_conflict")
	if r := apitest.Into[api.Run](w.Do("GET", "/v1/runs/"+run, w.Admin, nil).Want(200)); r.Request.TextPreview != body {
		t.Errorf("received %q", r.Request.TextPreview)
	}
	if list := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs", w.Admin, nil).Want(200)); len(list.Items) != 1 {
		t.Errorf("%d runs", len(list.Items))
	}
}

// A body that never ends, or never comes, holds no connector.
func TestConnectorBodiesEnd(t *testing.T) {
	w, _ := hubWorld(t, func(c *httpapi.Config) { c.BodyTimeout = 50 * time.Millisecond })
	read, write := io.Pipe()
	defer write.Close()
	req, err := http.NewRequestWithContext(t.Context(), "POST", w.Server.URL+"/v1/connectors/code", read)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Hub-Signature-256", "sha256="+macOf(apitest.HubSecret, "{}"))
	res, err := w.Server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", res.StatusCode)
	}
}

// An event that was taken stays taken when its mapping changes, also to one that it
// does not meet (I-07).
func TestConnectorMappingChanges(t *testing.T) {
	text := ""
	spec := func(c *httpapi.Config) {
		c.Connectors.List = []connectors.Connector{apitest.ConnectorOf(t, "default", inbound.Spec{Name: "plain", Kind: inbound.KindJSON, Auth: inbound.AuthBearer, EventPointer: "/id", Fresh: true, Text: text})}
	}
	w := apitest.New(t, spec)
	auth := []string{"Authorization", "Bearer " + apitest.HubSecret}
	made := apitest.Into[api.Received](post(w, "plain", `{"id":"1"}`, auth...).Want(202))
	text = "{{/host}}"
	cfg := w.Config
	spec(&cfg)
	handler, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Handler = handler
	w.Server.Config.Handler = handler
	if again := apitest.Into[api.Received](post(w, "plain", `{"id":"1"}`, auth...).Want(200)); again.RunID != made.RunID || again.Outcome != api.InboundRepeated {
		t.Errorf("%+v", again)
	}
	post(w, "plain", `{"id":"1","other":1}`, auth...).Want(409, "event_conflict")
	post(w, "plain", `{"id":"2"}`, auth...).Want(422, "mapping_failed")
}

func TestConnectorsAreShown(t *testing.T) {
	w, _ := hubWorld(t)
	list := apitest.Into[api.List[api.Connector]](w.Do("GET", "/v1/connectors?type=json", w.Token("reader", ""), nil).Want(200))
	if len(list.Items) != 7 || list.Items[0].Name != "broken" {
		t.Errorf("%+v", list.Items)
	}
	all := w.Do("GET", "/v1/connectors", w.Admin, nil).Want(200)
	for _, secret := range []string{apitest.HubSecret, standardSecret, "older"} { // I-33
		if strings.Contains(string(all.Body), secret) {
			t.Errorf("%s is shown", secret)
		}
	}
	if got := apitest.Into[api.List[api.Connector]](w.Do("GET", "/v1/connectors", w.Token("reader", "ann"), nil).Want(200)); len(got.Items) != 0 { // I-34
		t.Errorf("ann sees %+v", got.Items)
	}
	for i, k := range apitest.Into[api.List[api.Connector]](all).Items {
		if k.Name == "code" && (k.Session != "key" || k.SessionKey != "{{thread}}" || k.EventID != "header X-GitHub-Delivery" || len(k.Events) == 0 || k.Burst != inbound.DefaultBurst || k.Path != "/v1/connectors/code") {
			t.Errorf("%d: %+v", i, k)
		}
	}

	before := w.Everything("")
	body := `{"action":"opened","issue":{"number":7,"title":"T"},"repository":{"full_name":"o/r"}}`
	try := func(connector, body string, headers map[string]string) api.ConnectorTest {
		return apitest.Into[api.ConnectorTest](w.Do("POST", "/v1/connectors/"+connector+"/test", w.Admin, api.TestConnector{Headers: headers, Body: body}).Want(200))
	}
	got := try("code", body, map[string]string{"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d1", "X-Hub-Signature-256": "sha256=" + macOf(apitest.HubSecret, body)})
	if got.Authentication != "ok" || got.Outcome != api.InboundAccepted || !got.SessionCreated || got.SessionTitle != "code: o/r#7" || !strings.HasPrefix(got.SessionAlias, "code.") ||
		!strings.Contains(string(got.Input), "Issue: #7 T") || got.EventID != "d1" || got.RunID != "" {
		t.Errorf("%+v", got)
	}
	if got := try("code", body, map[string]string{"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d1", "X-Hub-Signature-256": "sha256=" + macOf("x", body)}); got.Authentication != string(inbound.RefusedSignature) {
		t.Errorf("%+v", got)
	}
	if got := try("code", body, map[string]string{"X-GitHub-Event": "push", "X-GitHub-Delivery": "d1"}); got.Outcome != api.InboundRefused || got.Problem == nil || got.Problem.Status != 422 || got.Authentication != string(inbound.RefusedHeaders) {
		t.Errorf("%+v", got)
	}
	if got := try("code", body, map[string]string{"X-GitHub-Event": "star"}); got.Outcome != api.InboundIgnored || got.Reason == "" {
		t.Errorf("%+v", got)
	}
	if got := try("chat", `{"type":"url_verification","challenge":"c"}`, nil); got.Outcome != api.InboundChallenge || got.Challenge != "c" {
		t.Errorf("%+v", got)
	}
	if got := try("strict", `{"id":"1"}`, nil); got.Outcome != api.InboundRefused || got.Problem.Code != "input_contract_violated" || got.Problem.Issues[0].Path != "$.n" {
		t.Errorf("%+v", got)
	}
	w.Do("POST", "/v1/connectors/broken/test", w.Admin, api.TestConnector{Body: "{}"}).Want(503, "connector_unavailable")
	if w.Everything("") != before {
		t.Error("a test made something")
	}
	made := apitest.Into[api.Received](post(w, "plain", `{"id":"e1"}`, "Authorization", "Bearer "+apitest.HubSecret).Want(202))
	if got := try("plain", `{"id":"e1"}`, nil); got.Outcome != api.InboundRepeated || got.RunID != made.RunID || got.SessionID != made.SessionID {
		t.Errorf("%+v", got)
	}
}

package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/gate"
)

// property is everything that one user has.
type property struct {
	session, alias, run, delivery, token, ref, asset, target, job, connector string
}

func (w *world) property(user string) property {
	w.t.Helper()
	s := into[api.Session](w.do("POST", "/v1/sessions", w.admin, api.CreateSession{UserID: user, ID: "alias-of-" + user,
		InputContract: &api.InputContract{Schema: api.Raw(`{"type":"string"}`)}, OutputContract: &api.OutputContract{Schema: api.Raw(`{"type":"string"}`)},
		RoutePolicy: &api.RoutePolicy{Route: "main"}, ReplyTargets: []api.ReplyTarget{{Type: "webhook", URL: "https://" + user + ".test"}}}).want(201))
	run := into[api.Run](w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, `{"content":"\"text of `+user+`\""}`).want(202))
	big := strings.Repeat("long text of "+user, 2000)
	dlv := w.finish(&run, &event.OutputEmitted{OutputKind: event.OutputText, Content: event.Content{Text: big}})
	tok := into[api.Token](w.do("POST", "/v1/tokens", w.admin, `{"role":"reader","user_id":"`+user+`"}`).want(201))
	w.do("PUT", "/v1/secrets/slot-of-"+user+"?user_id="+user, w.admin, `{"value":"value of `+user+`"}`).want(201)
	asset := into[api.Asset](w.do("POST", "/v1/assets?name=of-"+user+".txt&user_id="+user, w.admin, "file of "+user).want(201))
	plan := into[api.ReplayPlan](w.do("POST", "/v1/deliveries/replay", w.admin, `{"dry_run":true,"filter":{"user_id":"`+user+`"}}`).want(200))
	return property{s.ID, s.Alias, run.ID, string(dlv), tok.ID, event.RefOf([]byte(big)), asset.ID,
		string(event.TargetIDFor(user, "webhook", "https://hook.test/"+run.ID)), plan.JobID, "hub-of-" + user}
}

// in fills the path of a route.
func (p property) in(path, session string) string {
	return strings.NewReplacer("{s}", session, "{r}", p.run, "{d}", p.delivery, "{t}", p.token, "{ref}", p.ref, "{a}", p.asset, "{target}", p.target, "{j}", p.job, "{name}", p.connector, "{secret}", strings.Replace(p.alias, "alias", "slot", 1)).Replace(path)
}

// everything is what the streams of a user hold.
func (w *world) everything(user string) string {
	w.t.Helper()
	page := into[api.List[api.Raw]](w.do("GET", "/v1/events?limit=1000&user_id="+user, w.admin, nil).want(200))
	var b strings.Builder
	for _, e := range page.Items {
		b.Write(e)
	}
	return b.String()
}

// bodies are requests that would be good of the owner.
var bodies = map[string]string{
	"updateSession": `{"title":"mine now"}`, "submitRun": `{"content":"\"x\""}`, "putInputContract": `{"schema":{"type":"number"}}`,
	"putOutputContract": `{"schema":{"type":"number"}}`, "putRoutePolicy": `{"model":"z"}`, "putReplyTargets": `{"reply_targets":[]}`,
	"replayDeliveries": `{"filter":{"unresolved":true}}`, "resolveDelivery": `{"reason":"mine"}`,
	"resolveAttention": `{"call_id":"c","resolution":"retry"}`, "createToken": `{"role":"admin"}`, "putSecret": `{"value":"mine, not anybody's"}`,
	"testTarget":    `{"target":{"type":"webhook","url":"https://ann.test"}}`,
	"testConnector": `{"body":"{}"}`,
}

// send sends a route's request and reads what comes of the answer, which may
// be a stream: its first kilobytes.
func (w *world) send(rt *route, path, token string) (int, string) {
	w.t.Helper()
	var body any
	if rt.action.body != nil {
		body = bodies[rt.id]
	}
	res, err := w.server.Client().Do(w.request(rt.method, path, token, body))
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		return res.StatusCode, ""
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// How an operation keeps users apart. A new operation gets its word here.
const (
	byPath   = "its path names something of a user: 404 for others"
	filtered = "a list, or what is made: within the token's user"
	unbound  = "of all users: refused to a token that is bound to one"
	common   = "of nobody: the same for all"
)

var scopes = map[string]string{
	"createSession": filtered, "listSessions": filtered, "getSession": byPath, "updateSession": byPath, "eraseSession": byPath, "closeSession": byPath,
	"interruptSession": byPath, "compactSession": byPath, "getBlob": byPath, "getSessionDiff": byPath,
	"getInputContract": byPath, "putInputContract": byPath, "deleteInputContract": byPath,
	"getOutputContract": byPath, "putOutputContract": byPath, "deleteOutputContract": byPath,
	"getRoutePolicy": byPath, "putRoutePolicy": byPath, "deleteRoutePolicy": byPath,
	"getReplyTargets": byPath, "putReplyTargets": byPath, "deleteReplyTargets": byPath,
	"submitRun": byPath, "listRuns": filtered, "getRun": byPath, "listRunEvents": byPath, "streamRun": byPath, "getRunTimeline": byPath, "cancelRun": byPath, "resolveAttention": byPath,
	"createAsset": filtered, "listAssets": filtered, "getAsset": byPath, "getAssetBytes": byPath,
	"listSessionEvents": byPath, "streamSession": byPath, "listEvents": filtered,
	"listDeliveries": filtered, "getDelivery": byPath, "replayDelivery": byPath, "resolveDelivery": byPath, "listTargets": filtered, "getTarget": byPath,
	"listAttempts": byPath, "replayDeliveries": filtered, "listJobs": filtered, "getJob": byPath, "listJobDeliveries": byPath, "cancelJob": byPath, "pauseTarget": byPath, "resumeTarget": byPath, "resetTarget": byPath,
	"putSecret": byPath, "listSecrets": filtered, "getSecret": byPath, "deleteSecret": byPath, "rekeySecrets": unbound, "testTarget": filtered, "getSigningKey": byPath,
	"createToken": filtered, "listTokens": filtered, "revokeToken": byPath,
	"receiveEvent": byPath, "listConnectors": filtered, "testConnector": byPath, "listRoutes": common, "listTools": common, "healthz": common, "readyz": common, "openapi": common,
	"listNodes": unbound, "metrics": unbound, "listAudit": unbound,
}

// I-34: over every operation, what another user has is not there.
func TestUsersAreApart(t *testing.T) {
	for _, rt := range table() {
		switch scope := scopes[rt.id]; {
		case scope == "":
			t.Errorf("%s: nothing says how it keeps users apart", rt.id)
		case strings.Contains(rt.path, "{") != (scope == byPath):
			t.Errorf("%s %s: %s", rt.id, rt.path, scope)
		}
	}
	apart(t, "admin")
	apart(t, "operator")
}

// apart holds a token of ann with a role to it.
func apart(t *testing.T, strength string) {
	may, _ := gate.RoleOf(strength)
	w := newWorld(t)
	ann, bob := w.property("ann"), w.property("bob")
	mine := w.token(strength, "ann")
	before := w.everything("bob")
	secrets := []string{"of-bob.txt", "value of ", "file of bob", bob.session, bob.run, bob.delivery, bob.token, bob.target, bob.job, "text of bob", "bob.test", `"bob"`}
	for _, rt := range table() {
		if rt.role > may || rt.id == "receiveEvent" {
			continue // see TestRoles; and of whoever knows the connector's secret: see TestConnectorSenders
		}
		if scopes[rt.id] == unbound {
			if status, body := w.send(&rt, rt.path, mine); status != http.StatusForbidden || !strings.Contains(body, "unbound_token_required") {
				t.Errorf("%s: %d %s", rt.id, status, body)
			}
			if status, body := w.send(&rt, rt.path, w.admin); status == http.StatusForbidden {
				t.Errorf("%s is refused to an administrator of all users: %d %s", rt.id, status, body)
			}
			continue
		}
		named := strings.Contains(rt.path, "{")
		paths := []string{bob.in(rt.path, bob.session)}
		if strings.Contains(rt.path, "{s}") {
			paths = append(paths, bob.in(rt.path, bob.alias), bob.in(rt.path, bob.alias)+"?user_id=bob", bob.in(rt.path, bob.session)+"?user_id=bob")
		}
		for _, p := range rt.params {
			if p == pOwner {
				if status, _ := w.send(&rt, rt.path+"?user_id=bob", mine); status != http.StatusForbidden {
					t.Errorf("%s of another user: %d", rt.id, status)
				}
			}
			if p.name == "session_id" {
				paths = append(paths, rt.path+"?session_id="+bob.session)
			}
			if p.name == "run_id" {
				paths = append(paths, rt.path+"?run_id="+bob.run)
			}
			if p.name == "target_id" {
				paths = append(paths, rt.path+"?target_id="+bob.target)
			}
		}
		for _, path := range paths {
			status, body := w.send(&rt, path, mine)
			if rt.id == "putSecret" && status == http.StatusCreated { // names of slots are each user's own
				w.do("DELETE", path, mine, nil).want(204)
				continue
			}
			if named && status != http.StatusNotFound && !(status == http.StatusForbidden && strings.Contains(path, "user_id=bob")) {
				t.Errorf("%s %s: %d %s", rt.method, path, status, body)
			}
			for _, s := range secrets {
				if strings.Contains(body, s) {
					t.Errorf("%s %s shows %s: %s", rt.method, path, s, body)
				}
			}
		}
	}
	if w.everything("bob") != before {
		t.Error("another user's streams have grown")
	}
	if list := into[api.List[api.Token]](w.do("GET", "/v1/tokens", w.admin, nil)); !strings.Contains(string(w.do("GET", "/v1/tokens", w.admin, nil).body), bob.token) {
		t.Errorf("another user's token is gone: %d are left", len(list.Items))
	}
	// The same requests are good ones of the owner, so that the refusals mean something.
	for _, rt := range table() {
		if rt.id == "eraseSession" || rt.id == "revokeToken" || rt.id == "closeSession" || scopes[rt.id] == unbound || rt.id == "getSigningKey" || rt.id == "receiveEvent" || rt.role > may {
			continue // the first ones at the end
		}
		status, body := w.send(&rt, ann.in(rt.path, ann.session), mine)
		if status == 404 || status == 401 || status == 403 {
			t.Errorf("%s is refused to the owner: %d %s", rt.id, status, body)
		}
		if rt.id == "deleteInputContract" || rt.id == "deleteOutputContract" || rt.id == "deleteRoutePolicy" {
			put := route{method: "PUT", id: "put" + strings.TrimPrefix(rt.id, "delete"), action: action{body: typeRaw}}
			if status, body := w.send(&put, ann.in(rt.path, ann.session), mine); status != 200 {
				t.Errorf("put back: %d %s", status, body)
			}
		}
	}
	if may < gate.Admin {
		w.do("DELETE", "/v1/tokens/"+ann.token, mine, nil).want(403, "role_required")
		w.do("POST", "/v1/tokens", mine, `{"role":"reader"}`).want(403, "role_required")
		return
	}
	w.do("DELETE", "/v1/tokens/"+ann.token, mine, nil).want(204)
}

// Every operation wants its role, and no less.
func TestRoles(t *testing.T) {
	w := newWorld(t)
	own := w.property("ann")
	have := map[gate.Role]string{gate.Public: "", gate.Reader: w.token("reader", "ann"), gate.Operator: w.token("operator", "ann")}
	odd := w.token("janitor", "ann")
	before := w.everything("")
	for _, rt := range table() {
		path := own.in(rt.path, own.session)
		for role, token := range have {
			if role >= rt.role {
				continue
			}
			want := http.StatusForbidden
			if role == gate.Public {
				want = http.StatusUnauthorized
			}
			if status, body := w.send(&rt, path, token); status != want {
				t.Errorf("%s with %s: %d, want %d: %s", rt.id, role, status, want, body)
			}
		}
		if rt.role > gate.Public {
			if status, _ := w.send(&rt, path, odd); status != http.StatusForbidden {
				t.Errorf("%s with a role that nobody knows: %d", rt.id, status)
			}
		}
	}
	if w.everything("") != before {
		t.Error("a refused request changed something")
	}
	for _, rt := range table() {
		if rt.method != "GET" && rt.role < gate.Operator && rt.id != "receiveEvent" { // which has its own authentication
			t.Errorf("%s changes things and wants only %s", rt.id, rt.role)
		}
		open := rt.id == "healthz" || rt.id == "readyz" || rt.id == "openapi" || rt.id == "receiveEvent"
		if open != (rt.role == gate.Public) {
			t.Errorf("%s is %s", rt.id, rt.role)
		}
	}
}

// I-34: figures over all users are for who may see all users.
func TestMetrics(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Metrics = func() ([]byte, error) { return []byte("holdfast_x 1\n"), nil } })
	rt := route{method: "GET", path: "/metrics"}
	for token, want := range map[string]int{
		"": 401, "hf_nobody": 401, w.token("reader", "ann"): 403, w.token("admin", "ann"): 403, w.token("reader", ""): 200, w.admin: 200,
	} {
		status, body := w.send(&rt, "/metrics", token)
		if status != want || (status == 200) != (body == "holdfast_x 1\n") {
			t.Errorf("%d %s, want %d", status, body, want)
		}
	}
	local := httptest.NewServer(w.handler.Local())
	defer local.Close()
	res, err := local.Client().Get(local.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != metricsType {
		t.Errorf("on the socket: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	broken := newWorld(t, func(c *Config) { c.Metrics = func() ([]byte, error) { return nil, errors.New("secret") } })
	if status, body := broken.send(&rt, "/metrics", broken.admin); status != 503 || strings.Contains(body, "secret") {
		t.Errorf("%d %s", status, body)
	}
	none := newWorld(t)
	if status, _ := none.send(&rt, "/metrics", none.admin); status != 404 {
		t.Errorf("without a registry: %d", status)
	}
}

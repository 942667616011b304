package httpapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

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
func send(w *apitest.World, rt *openapi.Operation, path, token string) (int, string) {
	w.T.Helper()
	var body any
	if rt.Body != nil {
		body = bodies[rt.ID]
	}
	res, err := w.Server.Client().Do(w.Request(rt.Method, path, token, body))
	if err != nil {
		w.T.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		return res.StatusCode, ""
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.T.Fatal(err)
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
	for _, rt := range httpapi.Operations() {
		switch scope := scopes[rt.ID]; {
		case scope == "":
			t.Errorf("%s: nothing says how it keeps users apart", rt.ID)
		case strings.Contains(rt.Path, "{") != (scope == byPath):
			t.Errorf("%s %s: %s", rt.ID, rt.Path, scope)
		}
	}
	apart(t, "admin")
	apart(t, "operator")
}

// apart holds a token of ann with a role to it.
func apart(t *testing.T, strength string) {
	may, _ := gate.RoleOf(strength)
	w := apitest.New(t)
	ann, bob := w.Property("ann"), w.Property("bob")
	mine := w.Token(strength, "ann")
	before := w.Everything("bob")
	secrets := []string{"of-bob.txt", "value of ", "file of bob", bob.Session, bob.Run, bob.Delivery, bob.Token, bob.Target, bob.Job, "text of bob", "bob.test", `"bob"`}
	for _, rt := range httpapi.Operations() {
		if rt.Role > may || rt.ID == "receiveEvent" {
			continue // see TestRoles; and of whoever knows the connector's secret: see TestConnectorSenders
		}
		if scopes[rt.ID] == unbound {
			if status, body := send(w, &rt, rt.Path, mine); status != http.StatusForbidden || !strings.Contains(body, "unbound_token_required") {
				t.Errorf("%s: %d %s", rt.ID, status, body)
			}
			if status, body := send(w, &rt, rt.Path, w.Admin); status == http.StatusForbidden {
				t.Errorf("%s is refused to an administrator of all users: %d %s", rt.ID, status, body)
			}
			continue
		}
		named := strings.Contains(rt.Path, "{")
		paths := []string{bob.In(rt.Path, bob.Session)}
		if strings.Contains(rt.Path, "{s}") {
			paths = append(paths, bob.In(rt.Path, bob.Alias), bob.In(rt.Path, bob.Alias)+"?user_id=bob", bob.In(rt.Path, bob.Session)+"?user_id=bob")
		}
		for _, p := range rt.Params {
			if p == call.Owner {
				if status, _ := send(w, &rt, rt.Path+"?user_id=bob", mine); status != http.StatusForbidden {
					t.Errorf("%s of another user: %d", rt.ID, status)
				}
			}
			if p.Name == "session_id" {
				paths = append(paths, rt.Path+"?session_id="+bob.Session)
			}
			if p.Name == "run_id" {
				paths = append(paths, rt.Path+"?run_id="+bob.Run)
			}
			if p.Name == "target_id" {
				paths = append(paths, rt.Path+"?target_id="+bob.Target)
			}
		}
		for _, path := range paths {
			status, body := send(w, &rt, path, mine)
			if rt.ID == "putSecret" && status == http.StatusCreated { // names of slots are each user's own
				w.Do("DELETE", path, mine, nil).Want(204)
				continue
			}
			if named && status != http.StatusNotFound && !(status == http.StatusForbidden && strings.Contains(path, "user_id=bob")) {
				t.Errorf("%s %s: %d %s", rt.Method, path, status, body)
			}
			for _, s := range secrets {
				if strings.Contains(body, s) {
					t.Errorf("%s %s shows %s: %s", rt.Method, path, s, body)
				}
			}
		}
	}
	if w.Everything("bob") != before {
		t.Error("another user's streams have grown")
	}
	if list := apitest.Into[api.List[api.Token]](w.Do("GET", "/v1/tokens", w.Admin, nil)); !strings.Contains(string(w.Do("GET", "/v1/tokens", w.Admin, nil).Body), bob.Token) {
		t.Errorf("another user's token is gone: %d are left", len(list.Items))
	}
	// The same requests are good ones of the owner, so that the refusals mean something.
	for _, rt := range httpapi.Operations() {
		if rt.ID == "eraseSession" || rt.ID == "revokeToken" || rt.ID == "closeSession" || scopes[rt.ID] == unbound || rt.ID == "getSigningKey" || rt.ID == "receiveEvent" || rt.Role > may {
			continue // the first ones at the end
		}
		status, body := send(w, &rt, ann.In(rt.Path, ann.Session), mine)
		if status == 404 || status == 401 || status == 403 {
			t.Errorf("%s is refused to the owner: %d %s", rt.ID, status, body)
		}
		if rt.ID == "deleteInputContract" || rt.ID == "deleteOutputContract" || rt.ID == "deleteRoutePolicy" {
			put := openapi.Operation{Method: "PUT", ID: "put" + strings.TrimPrefix(rt.ID, "delete"), Body: reflect.TypeFor[api.Raw]()}
			if status, body := send(w, &put, ann.In(rt.Path, ann.Session), mine); status != 200 {
				t.Errorf("put back: %d %s", status, body)
			}
		}
	}
	if may < gate.Admin {
		w.Do("DELETE", "/v1/tokens/"+ann.Token, mine, nil).Want(403, "role_required")
		w.Do("POST", "/v1/tokens", mine, `{"role":"reader"}`).Want(403, "role_required")
		return
	}
	w.Do("DELETE", "/v1/tokens/"+ann.Token, mine, nil).Want(204)
}

// Every operation wants its role, and no less.
func TestRoles(t *testing.T) {
	w := apitest.New(t)
	own := w.Property("ann")
	have := map[gate.Role]string{gate.Public: "", gate.Reader: w.Token("reader", "ann"), gate.Operator: w.Token("operator", "ann")}
	odd := w.Token("janitor", "ann")
	before := w.Everything("")
	for _, rt := range httpapi.Operations() {
		path := own.In(rt.Path, own.Session)
		for role, token := range have {
			if role >= rt.Role {
				continue
			}
			want := http.StatusForbidden
			if role == gate.Public {
				want = http.StatusUnauthorized
			}
			if status, body := send(w, &rt, path, token); status != want {
				t.Errorf("%s with %s: %d, want %d: %s", rt.ID, role, status, want, body)
			}
		}
		if rt.Role > gate.Public {
			if status, _ := send(w, &rt, path, odd); status != http.StatusForbidden {
				t.Errorf("%s with a role that nobody knows: %d", rt.ID, status)
			}
		}
	}
	if w.Everything("") != before {
		t.Error("a refused request changed something")
	}
	for _, rt := range httpapi.Operations() {
		if rt.Method != "GET" && rt.Role < gate.Operator && rt.ID != "receiveEvent" { // which has its own authentication
			t.Errorf("%s changes things and wants only %s", rt.ID, rt.Role)
		}
		open := rt.ID == "healthz" || rt.ID == "readyz" || rt.ID == "openapi" || rt.ID == "receiveEvent"
		if open != (rt.Role == gate.Public) {
			t.Errorf("%s is %s", rt.ID, rt.Role)
		}
	}
}

// I-34: figures over all users are for who may see all users.
func TestMetrics(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.Metrics = func() ([]byte, error) { return []byte("holdfast_x 1\n"), nil } })
	rt := openapi.Operation{Method: "GET", Path: "/metrics"}
	for token, want := range map[string]int{
		"": 401, "hf_nobody": 401, w.Token("reader", "ann"): 403, w.Token("admin", "ann"): 403, w.Token("reader", ""): 200, w.Admin: 200,
	} {
		status, body := send(w, &rt, "/metrics", token)
		if status != want || (status == 200) != (body == "holdfast_x 1\n") {
			t.Errorf("%d %s, want %d", status, body, want)
		}
	}
	local := httptest.NewServer(w.Handler.Local())
	defer local.Close()
	res, err := local.Client().Get(local.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("on the socket: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	broken := apitest.New(t, func(c *httpapi.Config) { c.Metrics = func() ([]byte, error) { return nil, errors.New("secret") } })
	if status, body := send(broken, &rt, "/metrics", broken.Admin); status != 503 || strings.Contains(body, "secret") {
		t.Errorf("%d %s", status, body)
	}
	none := apitest.New(t)
	if status, _ := send(none, &rt, "/metrics", none.Admin); status != 404 {
		t.Errorf("without a registry: %d", status)
	}
}

package admin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

func TestInventoryAndOperations(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.Ready = func() error { return fmt.Errorf("secret cause") } })
	if r := apitest.Into[api.List[api.Route]](w.Do("GET", "/v1/routes", w.Admin, nil).Want(200)); len(r.Items) != 1 || !r.Items[0].Default {
		t.Errorf("routes %+v", r)
	}
	if r := apitest.Into[api.List[api.Tool]](w.Do("GET", "/v1/tools", w.Admin, nil).Want(200)); len(r.Items) != 1 {
		t.Errorf("tools %+v", r)
	}
	if h := apitest.Into[api.Health](w.Do("GET", "/healthz", "", nil).Want(200)); h != (api.Health{Status: "ok", Version: "test"}) {
		t.Errorf("health %+v", h)
	}
	r := w.Do("GET", "/readyz", "", nil).Want(503, "not_ready")
	if strings.Contains(string(r.Body), "secret cause") || r.Header.Get("Retry-After") == "" || !strings.Contains(w.Logs.String(), "secret cause") {
		t.Errorf("a cause belongs in the log, not in %s", r.Body)
	}
	if r := w.Do("HEAD", "/healthz", "", nil).Want(200); len(r.Body) != 0 {
		t.Error("HEAD with a body")
	}
	w.Do("GET", "/openapi.json", "", nil).Want(200)
}

func TestTokens(t *testing.T) {
	w := apitest.New(t)
	made := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", w.Admin, `{"name":"ci","role":"operator","user_id":"ann"}`).Want(201))
	if !strings.HasPrefix(made.Token, "hf_") || made.UserID != "ann" {
		t.Fatalf("token %+v", made)
	}
	w.Do("GET", "/v1/sessions", made.Token, nil).Want(200)
	list := w.Do("GET", "/v1/tokens", w.Admin, nil).Want(200)
	if strings.Contains(string(list.Body), made.Token) || strings.Contains(string(list.Body), tokens.Hash(made.Token)) {
		t.Error("the list shows what is secret")
	}
	w.Do("POST", "/v1/tokens", w.Admin, `{"role":"root"}`).Want(400, "invalid_role")
	w.Do("POST", "/v1/tokens", w.Admin, `{"role":"public"}`).Want(400, "invalid_role")
	w.Do("DELETE", "/v1/tokens/"+made.ID, w.Admin, nil).Want(204)
	w.Do("GET", "/v1/sessions", made.Token, nil).Want(401, "invalid_token") // at once
	w.Do("DELETE", "/v1/tokens/"+made.ID, w.Admin, nil).Want(404, "token_not_found")

	// An administrator of one user makes nobody stronger than they are.
	ann := w.Token("admin", "ann")
	w.Do("POST", "/v1/tokens", ann, `{"role":"admin","user_id":"bob"}`).Want(403, "wrong_user")
	if made := apitest.Into[api.Token](w.Do("POST", "/v1/tokens", ann, `{"role":"admin"}`).Want(201)); made.UserID != "ann" {
		t.Errorf("an unbound token of a bound one: %+v", made)
	}
	if list := apitest.Into[api.List[api.Token]](w.Do("GET", "/v1/tokens", ann, nil).Want(200)); len(list.Items) != 2 {
		t.Errorf("%d tokens are seen", len(list.Items))
	}
	all := apitest.Into[api.List[api.Token]](w.Do("GET", "/v1/tokens", w.Admin, nil).Want(200))
	w.Do("DELETE", "/v1/tokens/"+all.Items[0].ID, ann, nil).Want(404, "token_not_found")

	// I-33: the text of a token is nowhere: not in the store, not in the log lines.
	files, err := filepath.Glob(filepath.Join(w.Dir, "*.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), w.Admin[len(w.Admin)-64:]) {
			t.Errorf("%s holds a token", f)
		}
	}
	if strings.Contains(w.Logs.String(), "hf_") {
		t.Error("the log holds a token")
	}
}

package httpapi_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

func TestRefusals(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/", 404, "not_found"},
		{"GET", "/v1/nothing", 404, "not_found"},
		{"GET", "/v1/sessions/none", 404, "session_not_found"},
		{"GET", "/v1/sessions/none?user_id=x%00", 400, "invalid_user_id"},
		{"GET", "/v1/runs/run_none", 404, "run_not_found"},
		{"GET", "/v1/runs/run_none?wait=60s", 404, "run_not_found"},
		{"GET", "/v1/deliveries/dlv_none", 404, "delivery_not_found"},
		{"DELETE", "/v1/runs/x", 405, "method_not_allowed"},
		{"OPTIONS", "/v1/sessions", 405, "method_not_allowed"},
		{"GET", "/v1/runs?limit=0", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=201", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=+5", 400, "invalid_parameter"},
		{"GET", "/v1/runs?limit=5&limit=6", 400, "invalid_parameter"},
		{"GET", "/v1/runs?status=odd", 400, "invalid_parameter"},
		{"GET", "/v1/runs?stauts=failed", 400, "unknown_parameter"},
		{"GET", "/v1/runs?a=%zz", 400, "invalid_parameter"},
		{"GET", "/v1/runs?cursor=x", 400, "invalid_cursor"},
		{"GET", "/v1/runs/x?wait=61s", 400, "invalid_parameter"},
		{"GET", "/v1/runs/x?wait=-1s", 400, "invalid_parameter"},
		{"GET", "/v1/runs/x?wait=soon", 400, "invalid_parameter"},
		{"GET", "/v1/sessions/" + s.ID + "/events?after=-1", 400, "invalid_parameter"},
		{"GET", "/v1/events?after=x", 400, "invalid_parameter"},
	} {
		r := w.Do(c.method, c.path, w.Admin, nil)
		t.Run(c.method+c.path, func(t *testing.T) {
			r.T = t
			r.Want(c.status, c.code)
			if c.status == 405 && r.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	if allow := w.Do("PUT", "/v1/sessions/x", "", nil).Want(405).Header.Get("Allow"); allow != "DELETE, GET, HEAD, PATCH" {
		t.Errorf("Allow: %s", allow)
	}
	// Our own fault: logged, not shown.
	if err := w.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Do("GET", "/v1/runs/x", w.Admin, nil).Want(503, "stopping")
}

func TestLocalDoor(t *testing.T) {
	w := apitest.New(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(w.Handler.Local())
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	send := func(token string) int {
		req, err := http.NewRequest("GET", "http://holdfast/v1/tokens", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := send(""); got != 200 {
		t.Errorf("without a token: %d", got)
	}
	if got := send("hf_wrong"); got != 401 {
		t.Errorf("with a wrong token: %d", got)
	}
	if got := send(w.Token("reader", "")); got != 403 {
		t.Errorf("with a narrow token: %d", got)
	}
}

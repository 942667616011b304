package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// Every operation but the few public ones is refused without a token, whatever
// else is wrong with the request: nothing is parsed, checked or run for a stranger.
// CVE-2025-3248 CVE-2026-22812 CVE-2025-49596 CVE-2026-7482
func TestStrangersAreRefusedFirst(t *testing.T) {
	w := apitest.NewDoor(t)
	open := map[string]bool{"healthz": true, "readyz": true, "openapi": true, "receiveEvent": true} // the last has senders of its own: see TestConnectorSenders
	for _, rt := range httpapi.Operations() {
		r := httptest.NewRequest(rt.Method, regexp.MustCompile(`{[^}]+}`).ReplaceAllString(rt.Path, "x")+"?odd=1", strings.NewReader(`{"a":1,"a":`))
		r.Host, r.RemoteAddr = "127.0.0.1:7411", "127.0.0.1:5"
		r.Header.Set("Content-Type", "text/plain")
		rec := httptest.NewRecorder()
		w.Handler.ServeHTTP(rec, r)
		if public := rt.Role == gate.Public; public != open[rt.ID] || !public && (rec.Code != http.StatusUnauthorized || !strings.Contains(rec.Body.String(), "token_required")) {
			t.Errorf("%s from loopback without a token: %d (public: %v)", rt.ID, rec.Code, public)
		}
	}
}

// No request names the server of a model, a key, a tool's program or a file of the
// daemon: what is not configured cannot be asked for.
// CVE-2024-6587 CVE-2026-25593 CVE-2026-21858
func TestNoCallerNamesServersOrFiles(t *testing.T) {
	w := apitest.New(t)
	s := w.Session("")
	for _, member := range []string{"base_url", "api_base", "api_key", "provider", "command", "exec", "path", "file", "config", "scope", "role"} {
		for _, at := range []string{"/v1/sessions", "/v1/sessions/" + s.ID + "/runs"} {
			w.Do("POST", at, w.Admin, `{"content":"x","`+member+`":"https://evil.test/"}`).Want(400, "invalid_body")
		}
	}
	for _, rt := range httpapi.Operations() {
		if strings.Contains(rt.Path, "config") {
			t.Errorf("%s %s changes the configuration", rt.Method, rt.Path)
		}
	}
	// A file is what its bytes say, and its name is a label.
	r := w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, `{"files":[{"filepath":"/etc/hostname"}]}`, "Content-Type", "multipart/form-data")
	if r.Status != http.StatusUnsupportedMediaType {
		t.Errorf("JSON that poses as an upload: %d", r.Status)
	}
}

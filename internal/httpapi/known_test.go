package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

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

package httpapi_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// FuzzRequest sends requests with any method, path, query and headers through
// the whole door, with a token and without: nothing of it is our own fault, and no
// answer repeats the token.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET /v1/runs?status=failed&limit=5&since=2026-01-01T00:00:00Z", "GET /v1/runs?cursor=cnVucwpx", "GET /v1/events?after=9&type=run.created",
		"POST /v1/sessions {}\nIdempotency-Key: \"a\"", "GET /v1/sessions/a%2f..%00/events?after=-1", "DELETE /v1/tokens/x", "PATCH /v1/sessions/ses_x {\"title\":\"\xff\"}",
		"GET /v1/runs/x?wait=9223372036854775807h", "GET /v1/targets/tgt_'--", "GET /v1/sessions?order=asc&user_id=%27+OR+1%3D1", "OPTIONS *", "GET /metrics", "GET /v1/deliveries?target_id=" + strings.Repeat("a", 3000),
		"GET /healthz\nHost: evil.test\nOrigin: null\nSec-Fetch-Site: cross-site", "POST /v1/runs/r/cancel\nTransfer-Encoding: chunked", "GET /v1/sessions/s/stream\nLast-Event-ID: 99999999999999999999",
		"POST /v1/assets\nContent-Disposition: attachment; filename*=UTF-8''%2e%2e%2f\nContent-Type: image/png",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	w := apitest.NewDoor(f)
	token := w.Token("admin", "")
	local := w.Handler.Local()
	f.Fuzz(func(t *testing.T, text string, known bool) {
		head, headers, _ := strings.Cut(text, "\n")
		line, body, _ := strings.Cut(head, " {")
		method, target, _ := strings.Cut(line, " ")
		if body != "" {
			body = "{" + body
		}
		r, err := http.NewRequest(method, "http://holdfast.test", strings.NewReader(body))
		if err != nil {
			return
		}
		if r.URL, err = r.URL.Parse(target); err != nil || r.URL.Host != "holdfast.test" {
			return // the server of net/http refuses it
		}
		if strings.HasSuffix(r.URL.Path, "/stream") || r.URL.Query().Has("wait") && r.Method == "GET" {
			return // these wait; see FuzzLastEventID
		}
		r.RequestURI, r.RemoteAddr = target, "127.0.0.1:9"
		r.Header.Set("Content-Type", "application/json")
		for h := range strings.SplitSeq(headers, "\n") {
			name, value, _ := strings.Cut(h, ":")
			if name != "" && !strings.ContainsAny(name+value, "\r\x00") {
				r.Header.Set(name, strings.TrimSpace(value))
			}
		}
		rec := httptest.NewRecorder()
		if known {
			local.ServeHTTP(rec, r)
		} else {
			w.Handler.ServeHTTP(rec, r)
		}
		if rec.Code >= 500 {
			t.Fatalf("%q: %d %s\n%s", text, rec.Code, rec.Body, w.Logs.String())
		}
		if !known && rec.Code < 300 && r.URL.Path != "/healthz" && r.URL.Path != "/readyz" && r.URL.Path != "/openapi.json" {
			t.Fatalf("%q is answered %d without a token", text, rec.Code)
		}
		if bytes.Contains(rec.Body.Bytes(), []byte(token)) {
			t.Fatal("the answer holds a token")
		}
	})
}

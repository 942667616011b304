package runs_test

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/apitest"
)

// A file is handed in, found, given to a run, and read back as an attachment only.
func TestAssets(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.MaxAsset = 1 << 10 })
	html := "<html><script>alert(1)</script>"
	first := w.Do("POST", "/v1/assets?name=..%2Fevil%0d%0a.html", w.Admin, html)
	first.Want(201)
	a := apitest.Into[api.Asset](first)
	if a.MediaType != "text/plain" || a.Name != "evil.html" || a.Bytes != int64(len(html)) || a.UserID != "default" || first.Header.Get("Location") != "/v1/assets/"+a.ID {
		t.Errorf("%+v at %s", a, first.Header.Get("Location"))
	}
	if again := apitest.Into[api.Asset](w.Do("POST", "/v1/assets", w.Admin, html).Want(200)); again.ID != a.ID || again.Name != a.Name {
		t.Errorf("handed in again: %+v", again)
	}
	if got := apitest.Into[api.Asset](w.Do("GET", "/v1/assets/"+a.ID, w.Admin, nil).Want(200)); got.Digest != a.Digest {
		t.Errorf("%+v", got)
	}
	raw := w.Do("GET", "/v1/assets/"+a.ID+"/raw", w.Admin, nil).Want(200)
	if string(raw.Body) != html || raw.Header.Get("Content-Type") != "text/plain" || raw.Header.Get("Content-Disposition") != "attachment; filename=evil.html" ||
		raw.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(raw.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("raw: %v %s", raw.Header, raw.Body)
	}
	s := apitest.Into[api.Session](w.Do("POST", "/v1/sessions", w.Admin, `{}`).Want(201))
	// The route of this world takes text only.
	pic := apitest.Into[api.Asset](w.Do("POST", "/v1/assets", w.Admin, "\x89PNG\r\n\x1a\n").Want(201))
	w.Do("POST", "/v1/sessions/"+s.ID+"/runs", w.Admin, fmt.Sprintf(`{"content":"read","attachments":[%q]}`, pic.ID)).Want(400, "asset_not_supported")
	if runs := apitest.Into[api.List[api.Run]](w.Do("GET", "/v1/runs", w.Admin, nil).Want(200)); len(runs.Items) != 0 {
		t.Errorf("there is a run: %+v", runs.Items)
	}
	w.Do("POST", "/v1/assets", w.Admin, strings.Repeat("x", 1<<10)).Want(201)
	w.Do("POST", "/v1/assets", w.Admin, html).Want(200) // the newest again
	w.Do("POST", "/v1/assets", w.Admin, strings.Repeat("x", 1<<10+1)).Want(413, "asset_too_large")
	w.Do("POST", "/v1/assets", w.Admin, nil).Want(400)
	w.Do("POST", "/v1/assets?nane=x", w.Admin, "x").Want(400)
	w.Do("GET", "/v1/assets/ast_0/raw", w.Admin, nil).Want(404)
	page := apitest.Into[api.List[api.Asset]](w.Do("GET", "/v1/assets?limit=2", w.Admin, nil).Want(200))
	if len(page.Items) != 2 || page.NextCursor == "" || page.Items[1].ID != pic.ID {
		t.Fatalf("%+v", page)
	}
	page = apitest.Into[api.List[api.Asset]](w.Do("GET", "/v1/assets?limit=2&cursor="+page.NextCursor, w.Admin, nil).Want(200))
	if len(page.Items) != 1 || page.Items[0].ID != a.ID || page.NextCursor != "" {
		t.Errorf("%+v", page)
	}
}

// Files that come in are bounded together, since each stands in memory.
func TestUploadsAreBounded(t *testing.T) {
	w := apitest.New(t, func(c *httpapi.Config) { c.WriteTimeout, c.MaxUploads = 500*time.Millisecond, 2 })
	// Two files are on their way: of each a byte was read.
	var ends []*io.PipeWriter
	over := make(chan int, 2)
	for range 2 {
		read, write := io.Pipe()
		r := w.Request("POST", "/v1/assets", w.Admin, nil)
		r.Body, r.Host = read, "127.0.0.1"
		go func() {
			rec := httptest.NewRecorder()
			w.Handler.ServeHTTP(rec, r)
			over <- rec.Code
		}()
		if _, err := write.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, write)
	}
	if r := w.Do("POST", "/v1/assets", w.Admin, "one more").Want(429, "too_many_uploads"); r.Header.Get("Retry-After") == "" {
		t.Error("nothing is said of when to try again")
	}
	ends[0].Close()
	if status := <-over; status != 201 {
		t.Errorf("the first of them: %d", status)
	}
	w.Do("POST", "/v1/assets", w.Admin, "one more").Want(201)
	w.Do("POST", "/v1/assets", w.Admin, "and another").Want(201) // the place is free again
	ends[1].Close()
	if status := <-over; status != 200 { // the same file again
		t.Errorf("the second of them: %d", status)
	}
}

package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
)

// A file is handed in, found, given to a run, and read back as an attachment only.
func TestAssets(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxAsset = 1 << 10 })
	html := "<html><script>alert(1)</script>"
	first := w.do("POST", "/v1/assets?name=..%2Fevil%0d%0a.html", w.admin, html)
	first.want(201)
	a := into[api.Asset](first)
	if a.MediaType != "text/plain" || a.Name != "evil.html" || a.Bytes != int64(len(html)) || a.UserID != "default" || first.header.Get("Location") != "/v1/assets/"+a.ID {
		t.Errorf("%+v at %s", a, first.header.Get("Location"))
	}
	if again := into[api.Asset](w.do("POST", "/v1/assets", w.admin, html).want(200)); again.ID != a.ID || again.Name != a.Name {
		t.Errorf("handed in again: %+v", again)
	}
	if got := into[api.Asset](w.do("GET", "/v1/assets/"+a.ID, w.admin, nil).want(200)); got.Digest != a.Digest {
		t.Errorf("%+v", got)
	}
	raw := w.do("GET", "/v1/assets/"+a.ID+"/raw", w.admin, nil).want(200)
	if string(raw.body) != html || raw.header.Get("Content-Type") != "text/plain" || raw.header.Get("Content-Disposition") != "attachment; filename=evil.html" ||
		raw.header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(raw.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("raw: %v %s", raw.header, raw.body)
	}
	s := into[api.Session](w.do("POST", "/v1/sessions", w.admin, `{}`).want(201))
	// The route of this world takes text only.
	pic := into[api.Asset](w.do("POST", "/v1/assets", w.admin, "\x89PNG\r\n\x1a\n").want(201))
	w.do("POST", "/v1/sessions/"+s.ID+"/runs", w.admin, fmt.Sprintf(`{"content":"read","attachments":[%q]}`, pic.ID)).want(400, "asset_not_supported")
	if runs := into[api.List[api.Run]](w.do("GET", "/v1/runs", w.admin, nil).want(200)); len(runs.Items) != 0 {
		t.Errorf("there is a run: %+v", runs.Items)
	}
	w.do("POST", "/v1/assets", w.admin, strings.Repeat("x", 1<<10)).want(201)
	w.do("POST", "/v1/assets", w.admin, html).want(200) // the newest again
	w.do("POST", "/v1/assets", w.admin, strings.Repeat("x", 1<<10+1)).want(413, "asset_too_large")
	w.do("POST", "/v1/assets", w.admin, nil).want(400)
	w.do("POST", "/v1/assets?nane=x", w.admin, "x").want(400)
	w.do("GET", "/v1/assets/ast_0/raw", w.admin, nil).want(404)
	page := into[api.List[api.Asset]](w.do("GET", "/v1/assets?limit=2", w.admin, nil).want(200))
	if len(page.Items) != 2 || page.NextCursor == "" || page.Items[1].ID != pic.ID {
		t.Fatalf("%+v", page)
	}
	page = into[api.List[api.Asset]](w.do("GET", "/v1/assets?limit=2&cursor="+page.NextCursor, w.admin, nil).want(200))
	if len(page.Items) != 1 || page.Items[0].ID != a.ID || page.NextCursor != "" {
		t.Errorf("%+v", page)
	}
}

// Files that come in are bounded together, since each stands in memory.
func TestUploadsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WriteTimeout, c.MaxUploads = 500*time.Millisecond, 2 })
	for range 2 {
		w.handler.server.uploads <- struct{}{}
	}
	if r := w.do("POST", "/v1/assets", w.admin, "one more").want(429, "too_many_uploads"); r.header.Get("Retry-After") == "" {
		t.Error("nothing is said of when to try again")
	}
	<-w.handler.server.uploads
	w.do("POST", "/v1/assets", w.admin, "one more").want(201)
	w.do("POST", "/v1/assets", w.admin, "and another").want(201) // the place is free again
}

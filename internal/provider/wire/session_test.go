package wire_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

func TestCacheKey(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for id, want := range map[string]string{
		"":                            "",
		"ses_0190a1":                  "ses_0190a1",
		"ses_" + hex:                  hex,
		"ses_" + hex + "0":            "ses_" + hex[:60], // only where the whole id matches
		"xses_" + hex:                 "xses_" + hex[:59],
		"ses_" + strings.ToUpper(hex): "ses_" + strings.ToUpper(hex)[:60],
		"ses_\xff":                    "ses_\uFFFD",
	} {
		if got := wire.CacheKey(id); got != want || len(got) > 64 {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}

func TestSetSession(t *testing.T) {
	for name, row := range map[string]struct {
		req  llm.Request
		want http.Header
	}{
		"none":              {llm.Request{ParentSessionID: "ses_0"}, http.Header{}},
		"a session":         {llm.Request{SessionID: "ses_1"}, http.Header{"X-Session-Affinity": {"ses_1"}, "X-Session-Id": {"ses_1"}}},
		"one with a parent": {llm.Request{SessionID: "ses_1", ParentSessionID: "ses_0"}, http.Header{"X-Session-Affinity": {"ses_1"}, "X-Session-Id": {"ses_1"}, "X-Parent-Session-Id": {"ses_0"}}},
		"no header value":   {llm.Request{SessionID: "ses_1\r\nX: y"}, http.Header{}},
		"too long":          {llm.Request{SessionID: strings.Repeat("s", 257)}, http.Header{}},
	} {
		h := http.Header{}
		wire.SetSession(h, &row.req)
		if len(h) != len(row.want) {
			t.Errorf("%s: %v", name, h)
		}
		for k := range row.want {
			if h.Get(k) != row.want.Get(k) {
				t.Errorf("%s: %s is %q", name, k, h.Get(k))
			}
		}
	}
}

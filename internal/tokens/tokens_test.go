package tokens

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzBearer reads any Authorization: one token in its bounds, or none.
func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer x", "bearer hf_0011223344556677_" + strings.Repeat("a", 64), "Basic YTpi", "Bearer", "Bearer  ", "Bearer a b", "hf_x", "Bearer hf__", "Bearer ' OR 1=1 --", "Bearer \xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		h := http.Header{"Authorization": {value}}
		text, none, ok := Bearer(h)
		if none || ok && (text == "" || len(text) > MaxLength || strings.TrimSpace(text) != text) {
			t.Fatalf("%q: %q %v %v", value, text, none, ok)
		}
		p := Present(text)
		if len(p.Hash) != 64 || p.ID != "" && (len(p.ID) != len("tok_")+16 || !strings.HasPrefix(text, "hf_"+p.ID[4:]+"_")) {
			t.Fatalf("%q: %+v", value, p)
		}
		if _, _, ok := Bearer(http.Header{"Authorization": {value, value}}); ok {
			t.Fatal("two headers are one token")
		}
	})
}

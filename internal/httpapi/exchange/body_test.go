package exchange

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A store that cannot be reached is no fault of the caller, and not ours for ever.
func TestStoreAway(t *testing.T) {
	p := ProblemOf(fmt.Errorf("read token: %w: %w", eventlog.ErrAway, errors.New("dial 10.0.0.7")))
	if p.Status != 503 || p.Code != "store_unavailable" || strings.Contains(p.Detail, "10.0.0.7") {
		t.Errorf("%+v", p)
	}
}

// FuzzBody feeds the body of a submission with anything: what is taken is JSON, and
// what is not is the caller's mistake.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{"content":"a"}`, `{"input_items":[{"type":"text","text":"x"}]}`, `{"a":1,"a":2}`, "\xff", `{"metadata":{"x":[1,{}]}}`, `{"reply_targets":null}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		x := &Exchange{Config: &Config{MaxBody: 1 << 16}, R: r, W: httptest.NewRecorder()}
		var req api.SubmitRun
		err := x.Read(&req)
		if err == nil {
			if len(body) > 0 && !json.Valid([]byte(body)) {
				t.Fatalf("%q was taken", body)
			}
			return
		}
		p := ProblemOf(err)
		if p.Status < 400 || p.Status >= 500 {
			t.Fatalf("%q: status %d: %v", body, p.Status, err)
		}
		if text := fmt.Sprint(p); !utf8.ValidString(text) || len(text) > 3*maxDetail {
			t.Fatalf("%q: problem of %d bytes", body, len(text))
		}
	})
}

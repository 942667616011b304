package chatstub

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const okUser = `{"role":"user","content":"x"}`

func callMsg(id, args string) string {
	raw, _ := json.Marshal(args)
	return `{"role":"assistant","content":null,"tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"f","arguments":` + string(raw) + `}}]}`
}

func toolMsg(id string) string { return `{"role":"tool","tool_call_id":"` + id + `","content":"r"}` }

// Each rule of the vendors is enforced, and what keeps them is let through.
func TestRules(t *testing.T) {
	body := func(rest string, msgs ...string) string {
		return `{"model":"m","messages":[` + strings.Join(msgs, ",") + `]` + rest + `}`
	}
	tool := `{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`
	tests := []struct{ name, body, want string }{
		{"good", body("", `{"role":"system","content":"s"}`, okUser), ""},
		{"good with tools", body(`,"tools":[`+tool+`],"tool_choice":"auto","parallel_tool_calls":false,"stream":true,"stream_options":{"include_usage":true}`, okUser), ""},
		{"good history without tools", body("", okUser, callMsg("a", "{}"), toolMsg("a")), ""},
		{"no JSON", `{`, "strict JSON"},
		{"repeated name", `{"model":"m","model":"m","messages":[` + okUser + `]}`, "strict JSON"},
		{"not UTF-8", body("", `{"role":"user","content":"`+"\xff"+`"}`), "strict JSON"},
		{"lone surrogate", body("", `{"role":"user","content":"\ud83d"}`), "strict JSON"},
		{"wrong type", `{"model":1,"messages":[` + okUser + `]}`, "wrong type"},
		{"no model", `{"messages":[` + okUser + `]}`, "no model"},
		{"no messages", body(""), "no messages"},
		{"choice without tools", body(`,"tool_choice":"none"`, okUser), "tool_choice"},
		{"parallel without tools", body(`,"parallel_tool_calls":false`, okUser), "parallel_tool_calls"},
		{"usage without stream", body(`,"stream_options":{"include_usage":true}`, okUser), "stream_options"},
		{"tool twice", body(`,"tools":[`+tool+`,`+tool+`]`, okUser), "stands twice"},
		{"tool name", body(`,"tools":[`+strings.Replace(tool, `"f"`, `"a.b"`, 1)+`]`, okUser), "tool name"},
		{"empty user", body("", `{"role":"user","content":""}`), "empty user"},
		{"two users", body("", okUser, okUser), "two user messages"},
		{"late system", body("", okUser, `{"role":"system","content":"s"}`), "not the first"},
		{"unknown role", body("", `{"role":"narrator","content":"x"}`), "unknown role"},
		{"empty assistant", body("", okUser, `{"role":"assistant","content":null}`, okUser), "empty assistant"},
		{"no result", body("", okUser, callMsg("a", "{}")), "no results"},
		{"result too late", body("", okUser, callMsg("a", "{}"), okUser, toolMsg("a")), "followed by their results"},
		{"two results", body("", okUser, callMsg("a", "{}"), toolMsg("a"), toolMsg("a")), "without an open call"},
		{"foreign result", body("", okUser, toolMsg("a")), "without an open call"},
		{"one id twice", body("", okUser, callMsg("a", "{}"), toolMsg("a"), callMsg("a", "{}"), toolMsg("a")), "not unique"},
		{"long id", body("", okUser, callMsg(strings.Repeat("a", 41), "{}"), toolMsg(strings.Repeat("a", 41))), "too long"},
		{"arguments no object", body("", okUser, callMsg("a", "[]"), toolMsg("a")), "no JSON object"},
		{"arguments cut", body("", okUser, callMsg("a", `{"a`), toolMsg("a")), "no JSON object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Replies(Reply{Text: "ok"}))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(tt.body)))
			got := strings.Join(s.Violations(), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) || (w.Code == 200) != (tt.want == "") {
				t.Errorf("status %d, %q", w.Code, got)
			}
			if len(s.Requests()) != 1 {
				t.Error("not recorded")
			}
		})
	}
}

func TestReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Replies(
			Reply{Text: "one", Plain: true}, Reply{Body: []byte("raw"), Status: 503, ContentType: "text/plain"},
			Reply{Text: "three", CutAfter: 10}, Reply{Text: "four", Delay: time.Minute, Hold: true},
		))
		p := NewPipe(s)
		defer p.Shutdown()
		post := func() (*http.Response, string, error) {
			resp, err := p.Client().Post("http://any.test/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[`+okUser+`]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var b bytes.Buffer
			_, err = io.CopyN(&b, resp.Body, 300)
			return resp, b.String(), err
		}
		if _, body, _ := post(); !json.Valid([]byte(body)) || !strings.Contains(body, `"one"`) {
			t.Error(body)
		}
		if resp, body, _ := post(); resp.StatusCode != 503 || body != "raw" {
			t.Error(resp.StatusCode, body)
		}
		if _, body, err := post(); len(body) != 10 || err != io.ErrUnexpectedEOF {
			t.Error(body, err)
		}
		start := time.Now()
		if _, body, _ := post(); !strings.HasPrefix(body, "data: {") || time.Since(start) != time.Minute {
			t.Error(body, time.Since(start))
		}
	})
}

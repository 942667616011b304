package chatstub

import (
	"bytes"
	"encoding/base64"
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
	tool := `{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}`
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
	image := func(url string) string {
		return `{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"` + url + `"}}]}`
	}
	file := func(data string) string {
		return `{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"` + data + `"}}]}`
	}
	png := "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\nrest"))
	pdf := "data:application/pdf;base64," + base64.StdEncoding.EncodeToString([]byte("%PDF-1.7"))
	schema := func(s string) string {
		return `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":` + s + `}}`
	}
	thought := strings.Replace(callMsg("a", "{}"), `"content":null`, `"content":null,"reasoning_content":"r"`, 1)
	detail := strings.Replace(callMsg("a", "{}"), `"content":null`, `"content":null,"reasoning_details":[{"type":"reasoning.text","text":"t"}]`, 1)
	more := []struct {
		name, body, want string
		rules            Rules
	}{
		{"unknown field", body(`,"frobnicate":1`, okUser), "unrecognized request argument", Rules{}},
		{"unknown field of a message", body("", `{"role":"user","content":"x","parts":[]}`), "unrecognized request argument", Rules{}},
		{"image", body("", image(png)), "", Rules{}},
		{"image by address", body("", image("https://x.test/a.png")), "data URL", Rules{}},
		{"image of another type", body("", image(strings.Replace(png, "png", "bmp", 1))), "unsupported image", Rules{}},
		{"image that is none", body("", image("data:image/png;base64,AAAA")), "unsupported image", Rules{}},
		{"image with bad base64", body("", image("data:image/png;base64,A")), "data URL", Rules{}},
		{"image for a text model", body("", image(png)), "does not support image", Rules{TextOnly: true}},
		{"image of an assistant", body("", okUser, strings.Replace(image(png), "user", "assistant", 1), okUser), "only a user sends files", Rules{}},
		{"file", body("", file(pdf)), "", Rules{}},
		{"file that is no PDF", body("", file(strings.Replace(pdf, "JVBER", "AVBER", 1))), "no PDF", Rules{}},
		{"strict schema", body(schema(`{"type":"object","properties":{},"additionalProperties":false}`), okUser), "", Rules{}},
		{"loose schema", body(schema(`{"type":"object","properties":{"a":{"type":"string"}}}`), okUser), "invalid schema for response_format: $: additionalProperties", Rules{}},
		{"json without the word", body(`,"response_format":{"type":"json_object"}`, okUser), "must contain the word", Rules{}},
		{"json with the word", body(`,"response_format":{"type":"json_object"}`, `{"role":"user","content":"As JSON."}`), "", Rules{}},
		{"format beside tools", body(`,"response_format":{"type":"text"},"tools":[`+tool+`]`, okUser), "cannot be combined", Rules{NoToolsWithSchema: true}},
		{"bad tool schema", body(`,"tools":[`+strings.Replace(tool, `"properties":{}`, `"properties":{"a":{"type":"array"}}`, 1)+`]`, okUser), "array schema missing items", Rules{}},
		{"hosted tool", body(`,"tools":[{"type":"web_search"}]`, okUser), "is no function", Rules{}},
		{"hosted tool of the vendor", body(`,"tools":[{"type":"web_search"}]`, okUser), "", Rules{Hosted: []string{"web_search"}}},
		{"choice none", body(`,"tools":[`+tool+`],"tool_choice":"none"`, okUser), "", Rules{}},
		{"unknown choice", body(`,"tools":[`+tool+`],"tool_choice":"any"`, okUser), "tool_choice is not accepted", Rules{}},
		{"empty tools", body(`,"tools":[]`, okUser), "empty array", Rules{}},
		{"history without tools", body("", okUser, callMsg("a", "{}"), toolMsg("a")), "tools must be given", Rules{ToolsWithHistory: true}},
		{"both limits", body(`,"max_tokens":1,"max_completion_tokens":1`, okUser), "exclude each other", Rules{}},
		{"no limit", body(`,"max_tokens":0`, okUser), "must be positive", Rules{}},
		{"old limit", strings.Replace(body(`,"max_tokens":1`, okUser), `"m"`, `"gpt-5-mini"`, 1), "use max_completion_tokens", Rules{}},
		{"new limit on an old server", body(`,"max_completion_tokens":1`, okUser), "unrecognized", Rules{Old: true}},
		{"usage on an old server", body(`,"stream":true,"stream_options":{}`, okUser), "unrecognized", Rules{Old: true}},
		{"effort", body(`,"reasoning_effort":"low"`, okUser), "", Rules{}},
		{"unknown effort", body(`,"reasoning_effort":"much"`, okUser), "reasoning_effort", Rules{}},
		{"reasoning object", body(`,"reasoning":{"effort":"low"}`, okUser), "unrecognized", Rules{}},
		{"reasoning object of a router", body(`,"reasoning":{"effort":"low"}`, okUser), "", Rules{ReasoningObject: true}},
		{"reasoning twice", body(`,"reasoning":{"effort":"low","max_tokens":1}`, okUser), "exclude each other", Rules{ReasoningObject: true}},
		{"reasoning is demanded", body("", okUser, callMsg("a", "{}"), toolMsg("a")), "must be passed back", Rules{Reasoning: ReasoningDemanded}},
		{"reasoning is there", body("", okUser, thought, toolMsg("a")), "", Rules{Reasoning: ReasoningDemanded}},
		{"reasoning is refused", body("", okUser, thought, toolMsg("a")), "is unsupported", Rules{Reasoning: ReasoningRefused}},
		{"a made up detail", body("", okUser, detail, toolMsg("a")), "as it was handed out", Rules{}},
		{"short id", body("", okUser, callMsg("a", "{}"), toolMsg("a")), "length of 9", Rules{NineLetters: true}},
		{"late developer", body("", okUser, `{"role":"developer","content":"s"}`), "not the first", Rules{}},
	}
	for _, tt := range more {
		t.Run(tt.name, func(t *testing.T) {
			s := NewVendor(tt.rules, Replies(Reply{Text: "ok"}))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(tt.body)))
			got := strings.Join(s.Violations(), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) || (w.Code == 200) != (tt.want == "") {
				t.Errorf("status %d, %q", w.Code, got)
			}
		})
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

package geministub

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

	"github.com/holdfast-dev/holdfast/internal/provider/chatstub"
)

const (
	okUser   = `{"role":"user","parts":[{"text":"x"}]}`
	okTool   = `"tools":[{"functionDeclarations":[{"name":"f","description":"d","parameters":{"type":"OBJECT","properties":{"a":{"type":"STRING"}}}}]}]`
	skip     = `,"thoughtSignature":"skip_thought_signature_validator"`
	okCall   = `{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}` + skip + `}]}`
	okResult = `{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"r"}}}]}`
)

func body(rest string, contents ...string) string {
	if rest != "" {
		rest += ","
	}
	return `{` + rest + `"contents":[` + strings.Join(contents, ",") + `]}`
}

func model(parts string) string { return `{"role":"model","parts":[` + parts + `]}` }
func user(parts string) string  { return `{"role":"user","parts":[` + parts + `]}` }

// The order of contents, and the pairing of calls, results and signatures.
func TestContentRules(t *testing.T) {
	handed := `{"functionCall":{"id":"h1","name":"f","args":{"a":1}},"thoughtSignature":"QUJD"}`
	back := user(`{"functionResponse":{"id":"h1","name":"f","response":{}}}`)
	check(t, "gemini-3-flash", []rule{
		{"good", body(`"systemInstruction":{"parts":[{"text":"s"}]}`, okUser), ""},
		{"good call", body("", okUser, okCall, okResult), ""},
		{"good text behind results", body("", okUser, okCall, okResult, okUser), ""},
		{"handed out", body("", okUser, model(handed), back), ""},
		{"no JSON", `{`, "strict JSON"},
		{"no contents", body(""), "contents is not specified"},
		{"unknown field", body(`"model":"m"`, okUser), `Unknown name "model"`},
		{"unknown field of a part", body("", user(`{"text":"x","cache":1}`)), `Unknown name "cache" at 'contents[0].parts[0]'`},
		{"unknown role", body("", `{"role":"assistant","parts":[{"text":"x"}]}`), "valid role"},
		{"no parts", body("", user("")), "must not be empty"},
		{"empty text", body("", user(`{"text":""}`)), "text parameter"},
		{"empty part", body("", user(`{}`)), "oneof field 'data'"},
		{"two in one", body("", user(`{"text":"a","inlineData":{"mimeType":"image/png","data":"AAAA"}}`)), "oneof field 'data'"},
		{"model first", body("", model(`{"text":"x"}`), okUser), "begin with a user role"},
		{"model last", body("", okUser, model(`{"text":"x"}`)), "end with a user role"},
		{"empty system", body(`"systemInstruction":{"parts":[]}`, okUser), "system_instruction"},
		{"media", body("", user(`{"inlineData":{"mimeType":"image/gif","data":"AAAA"}}`)), "Unsupported MIME type: image/gif"},
		{"no base64", body("", user(`{"inlineData":{"mimeType":"image/png","data":"_"}}`)), "Base64 decoding failed"},
		{"media of the model", body("", okUser, model(`{"inlineData":{"mimeType":"image/png","data":"AAAA"}}`), okUser), "media of the model"},
		{"no result", body("", okUser, okCall, okUser), "equal to the number of function call parts"},
		{"no call", body("", okUser, okResult), "immediately after a function call turn"},
		{"call behind a model", body("", okUser, model(`{"text":"x"}`), okCall, okResult), "immediately after a user turn"},
		{"results in two contents", body("", okUser, model(`{"functionCall":{"name":"f","args":{}}`+skip+`},{"functionCall":{"name":"f","args":{}}}`), okResult, okResult), "equal to the number"},
		{"mixed results", body("", okUser, okCall, user(`{"functionResponse":{"name":"f","response":{}}},{"text":"x"}`)), "other parts among function responses"},
		{"name of a result", body("", okUser, okCall, strings.Replace(okResult, `"f"`, `"g"`, 1)), "another name"},
		{"id of a result", body("", okUser, model(handed), strings.Replace(back, "h1", "h2", 1)), "does not match"},
		{"lost id", body("", okUser, model(handed), okResult), "does not match"},
		{"result is text", body("", okUser, okCall, strings.Replace(okResult, `{"output":"r"}`, `"r"`, 1)), "want an object"},
		{"arguments are text", body("", okUser, strings.Replace(okCall, `"args":{}`, `"args":"{}"`, 1), okResult), "want an object"},
		{"call of the user", body("", user(`{"functionCall":{"name":"f","args":{}}}`), okResult), "function call of the user"},
		{"no signature", body("", okUser, strings.Replace(okCall, skip, "", 1), okResult), "missing a thought_signature"},
		{"no signature in a former turn", body("", okUser, strings.Replace(okCall, skip, "", 1), okResult, okUser), ""},
		{"signature on the second", body("", okUser, model(`{"functionCall":{"name":"f","args":{}}},{"functionCall":{"name":"f","args":{}}`+skip+`}`),
			user(`{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"f","response":{}}}`)), "missing a thought_signature"},
		{"foreign signature", body("", okUser, strings.Replace(okCall, "skip_thought_signature_validator", "WFla", 1), okResult), "not valid"},
		{"lost signature", body("", okUser, strings.Replace(model(handed), `,"thoughtSignature":"QUJD"`, skip, 1), back), "had another thought signature"},
		{"other part", body("", okUser, model(strings.Replace(handed, `"a":1`, `"a":2`, 1)), back), "came with another part"},
		{"signature on a text", body("", okUser, model(`{"text":"x","thoughtSignature":"QUJD"}`), okUser), "came with another part"},
		{"skip on a text", body("", okUser, model(`{"text":"x"`+skip+`}`), okUser), "not valid"},
		{"result of code alone", body("", okUser, model(`{"codeExecutionResult":{"outcome":"OUTCOME_OK"}}`), okUser), "without code before it"},
		{"response alone", body("", okUser, model(`{"toolResponse":{"id":"a"}}`), okUser), "without its tool call"},
		{"code of the user", body("", user(`{"executableCode":{"language":"PYTHON","code":"1"}}`)), "hosted tool of the user"},
	})
	check(t, "gemini-2.5-flash", []rule{
		{"no signature in the generation before", body("", okUser, strings.Replace(okCall, skip, "", 1), okResult), ""},
		{"signature of another model", body("", okUser, model(handed), back), "of another model"},
	})
}

// The tools and the configuration, which differ by generation.
func TestConfigRules(t *testing.T) {
	config := func(c string) string { return body(`"generationConfig":{`+c+`}`, okUser) }
	both := `"tools":[{"functionDeclarations":[{"name":"f"}]},{"googleSearch":{}}]`
	format := `"generationConfig":{"responseMimeType":"application/json"}`
	check(t, "gemini-3-flash", []rule{
		{"good tool", body(okTool+`,"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}`, okUser), ""},
		{"good hosted", body(`"tools":[{"googleSearch":{}},{"codeExecution":{}}]`, okUser), ""},
		{"both", body(both+`,"toolConfig":{"includeServerSideToolInvocations":true}`, okUser), ""},
		{"both unreported", body(both, okUser), "include_server_side_tool_invocations"},
		{"unknown tool", body(`"tools":[{"webSearch":{}}]`, okUser), `Unknown name "webSearch"`},
		{"tool name", body(strings.Replace(okTool, `"f"`, `"3f"`, 1), okUser), "Invalid function name"},
		{"tool twice", body(`"tools":[{"functionDeclarations":[{"name":"f"},{"name":"f"}]}]`, okUser), "Duplicate function declaration"},
		{"additionalProperties", body(strings.Replace(okTool, `"type":"OBJECT"`, `"type":"OBJECT","additionalProperties":false`, 1), okUser), "additionalProperties"},
		{"type list", body(strings.Replace(okTool, `"STRING"`, `["string","null"]`, 1), okUser), "type"},
		{"empty properties", body(strings.Replace(okTool, `{"a":{"type":"STRING"}}`, `{}`, 1), okUser), "non-empty"},
		{"mode without functions", body(`"toolConfig":{"functionCallingConfig":{"mode":"NONE"}}`, okUser), "without function_declarations"},
		{"unknown mode", body(okTool+`,"toolConfig":{"functionCallingConfig":{"mode":"OFF"}}`, okUser), "mode of function calling"},
		{"format and tools", body(okTool+`,`+format, okUser), ""},
		{"schema", config(`"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","properties":{"a":{"type":"STRING"}}}`), ""},
		{"schema without format", config(`"responseSchema":{"type":"STRING"}`), "only allowed when"},
		{"schema in other words", config(`"responseMimeType":"application/json","responseSchema":{"$schema":"x","type":"OBJECT"}`), "response_schema"},
		{"no tokens", config(`"maxOutputTokens":0`), "max_output_tokens"},
		{"level", config(`"thinkingConfig":{"thinkingLevel":"LOW","includeThoughts":true}`), ""},
		{"level and budget", config(`"thinkingConfig":{"thinkingLevel":"LOW","thinkingBudget":1}`), "only one of thinking budget"},
		{"budget", config(`"thinkingConfig":{"thinkingBudget":99999}`), "thinking budget is invalid"},
		{"unknown level", config(`"thinkingConfig":{"thinkingLevel":"MOST"}`), "thinking_level"},
	})
	check(t, "gemini-2.5-flash", []rule{
		{"both", body(both, okUser), "Tool use with function calling is unsupported"},
		{"format and tools", body(okTool+`,`+format, okUser), "'application/json' is unsupported"},
		{"level", config(`"thinkingConfig":{"thinkingLevel":"LOW"}`), "not supported for this model"},
	})
}

type rule struct{ name, body, want string }

func check(t *testing.T, model string, rules []rule) {
	t.Helper()
	for _, tt := range rules {
		t.Run(model+"/"+tt.name, func(t *testing.T) {
			s := New(Replies(Reply{Parts: []Part{Text("ok")}}))
			s.Hand("gemini-3-flash", Reply{Parts: []Part{Calls("h1", "f", `{"a":1}`).Signed("QUJD")}})
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest("POST", "/v1beta/models/"+model+":generateContent", strings.NewReader(tt.body)))
			got := strings.Join(s.Violations(), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) || (w.Code == 200) != (tt.want == "") {
				t.Errorf("status %d, %q", w.Code, got)
			}
			if len(s.Requests()) != 1 || !json.Valid(w.Body.Bytes()) || tt.want != "" && !strings.Contains(w.Body.String(), `"status":"INVALID_ARGUMENT"`) {
				t.Error("not recorded, or not in the vendor's shape:", w.Body)
			}
		})
	}
}

// The address, the key and the forms of an answer.
func TestEndpoint(t *testing.T) {
	s := New(Replies(Reply{Parts: []Part{Text("hello there")}, Input: 3, Output: 2}))
	s.Key = "right"
	ask := func(url, key string) *httptest.ResponseRecorder {
		hr := httptest.NewRequest("POST", url, strings.NewReader(body("", okUser)))
		hr.Header.Set("X-Goog-Api-Key", key)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, hr)
		return w
	}
	const at = "/v1beta/models/gemini-3-flash:"
	if w := ask(at+"streamGenerateContent?alt=sse", "right"); w.Code != 200 || !strings.HasPrefix(w.Body.String(), "data: {") || strings.Count(w.Body.String(), "data: ") != 2 {
		t.Error(w.Code, w.Body)
	}
	var list []any
	if w := ask(at+"streamGenerateContent", "right"); json.Unmarshal(w.Body.Bytes(), &list) != nil || len(list) != 2 {
		t.Error(w.Body)
	}
	if w := ask(at+"generateContent", "right"); !json.Valid(w.Body.Bytes()) || !strings.Contains(w.Body.String(), `"hello there"`) || !strings.Contains(w.Body.String(), `"finishReason":"STOP"`) {
		t.Error(w.Body)
	}
	if len(s.Violations()) > 0 {
		t.Error(s.Violations())
	}
	for url, want := range map[string]int{"/v1beta/models/x:countTokens": 404, "/v1beta/x": 404, at + "generateContent?key=right": 400} {
		if w := ask(url, "right"); w.Code != want {
			t.Errorf("%s: %d", url, w.Code)
		}
	}
	if w := ask(at+"generateContent", "wrong"); w.Code != 400 || !strings.Contains(w.Body.String(), "API key not valid") {
		t.Error(w.Body)
	}
	if len(s.Violations()) != 4 {
		t.Error(s.Violations())
	}
}

func TestReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Replies(
			Reply{Body: []byte("raw"), Status: 503, ContentType: "text/plain"},
			Reply{Parts: []Part{Text("two")}, CutAfter: 10}, Reply{Parts: []Part{Text("three")}, Delay: time.Minute, Hold: true},
		))
		p := chatstub.NewPipe(s)
		defer p.Shutdown()
		post := func() (*http.Response, string, error) {
			resp, err := p.Client().Post("http://any.test/v1beta/models/m:streamGenerateContent?alt=sse", "application/json", strings.NewReader(body("", okUser)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var b bytes.Buffer
			_, err = io.CopyN(&b, resp.Body, 100)
			return resp, b.String(), err
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

package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

// One row for each known shape of error.
func TestClassify(t *testing.T) {
	tests := []struct {
		name   string
		status int
		media  string
		body   string
		want   llm.Class
		code   string
		text   string // the whole message, when given
	}{
		{"auth by a name for anything", 401, "application/json", `{"error":{"message":"no","type":"server_error"}}`, llm.Auth, "server_error", "no"},
		{"billing by a name for anything", 402, "application/json", `{"error":{"message":"no","type":"api_error"}}`, llm.Billing, "api_error", "no"},
		{"openai auth", 401, "application/json", `{"error":{"message":"Incorrect API key provided: sk-te****st.","type":"invalid_request_error","code":"invalid_api_key"}}`, llm.Auth, "invalid_api_key", "Incorrect API key provided: [redacted]"},
		{"auth by words", 400, "application/json", `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}`, llm.Auth, "INVALID_ARGUMENT", ""},
		{"forbidden", 403, "application/json", `{"error":{"message":"no access"}}`, llm.Auth, "", "no access"},
		{"payment", 402, "application/json", `{"error":{"message":"Insufficient Balance","type":"unknown_error","code":"invalid_request_error"}}`, llm.Billing, "invalid_request_error", ""},
		{"quota is billing", 429, "application/json", `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, llm.Billing, "insufficient_quota", ""},
		{"resource exhausted is a rate", 429, "application/json", `[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}]`, llm.RateLimit, "RESOURCE_EXHAUSTED", ""},
		{"rate without body", 429, "", "", llm.RateLimit, "", "HTTP 429 Too Many Requests, and its body is empty"},
		{"rate of tokens", 429, "application/json", `{"error":{"message":"Request too large for model: tokens per minute (TPM): Limit 6000","type":"tokens","code":"rate_limit_exceeded"}}`, llm.RateLimit, "rate_limit_exceeded", ""},
		{"rate as 400", 400, "application/json", `{"message":"Too many tokens, please wait before trying again."}`, llm.RateLimit, "", ""},
		{"overflow by code", 400, "application/json", `{"error":{"message":"too long","code":"context_length_exceeded"}}`, llm.ContextOverflow, "context_length_exceeded", ""},
		{"overflow by type", 500, "application/json", `{"error":{"code":500,"message":"x","type":"exceed_context_size_error"}}`, llm.ContextOverflow, "exceed_context_size_error", ""},
		{"overflow of LM Studio", 400, "application/json", `{"error":"The number of tokens to keep from the initial prompt is greater than the context length."}`, llm.ContextOverflow, "", ""},
		{"overflow of Groq", 400, "application/json", `{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error"}}`, llm.ContextOverflow, "invalid_request_error", ""},
		{"overflow of xAI", 400, "application/json", `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}`, llm.ContextOverflow, "Client specified an invalid argument", ""},
		{"overflow of Kimi", 400, "application/json", `{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144","type":"invalid_request_error"}}`, llm.ContextOverflow, "invalid_request_error", ""},
		{"overflow behind a router", 400, "application/json", `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"prompt is too long: 1 tokens\"}}"}}}`, llm.ContextOverflow, "400", "Provider returned error"},
		{"a limit that is none of the context", 400, "application/json", `{"error":{"message":"max_tokens is too large: 300000. This model supports at most 128000 completion tokens.","code":"invalid_value"}}`, llm.InvalidRequest, "invalid_value", ""},
		{"a string too long is no overflow", 400, "application/json", `{"error":{"message":"Invalid 'messages[1].tool_calls[0].id': string too long","code":"string_above_max_length"}}`, llm.InvalidRequest, "string_above_max_length", ""},
		{"content filter", 400, "application/json", `{"error":{"message":"The response was filtered","code":"content_filter","status":400}}`, llm.ContentFilter, "content_filter", ""},
		{"content filter by words", 400, "application/json", `{"error":{"message":"triggering Azure OpenAI's content management policy"}}`, llm.ContentFilter, "", ""},
		{"FastAPI", 422, "application/json", `{"detail":[{"loc":["body"],"msg":"field required","type":"missing"}]}`, llm.InvalidRequest, "", "field required"},
		{"FastAPI text", 404, "application/json", `{"detail":"Not Found"}`, llm.InvalidRequest, "", "Not Found"},
		{"vLLM", 400, "application/json", `{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}`, llm.InvalidRequest, "BadRequestError", "bad"},
		{"a list of errors", 500, "application/json", `{"errors":[{"code":1031,"message":"Internal"}]}`, llm.Server, "1031", "Internal"},
		{"model not found", 404, "application/json", `{"error":{"message":"The model does not exist","code":"model_not_found"}}`, llm.InvalidRequest, "model_not_found", ""},
		{"too large", 413, "text/html", "<html><head><title>413 Request Entity Too Large</title></head></html>", llm.InvalidRequest, "", "HTTP 413 Request Entity Too Large with an HTML page"},
		{"gateway page", 502, "text/html", "<html><body>502 Bad Gateway<hr>nginx</body></html>", llm.Server, "", "HTTP 502 Bad Gateway with an HTML page"},
		{"page without a type", 504, "", "  <!DOCTYPE html><p>x", llm.Server, "", "HTTP 504 Gateway Timeout with an HTML page"},
		{"unavailable", 503, "text/plain", "loading model", llm.Overloaded, "", "HTTP 503 Service Unavailable: loading model"},
		{"overloaded", 529, "application/json", `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, llm.Overloaded, "overloaded_error", "Overloaded"},
		{"overloaded as 500", 500, "application/json", `{"error":{"message":"The server is currently overloaded"}}`, llm.Overloaded, "", ""},
		{"server", 500, "application/json", `{"error":{"message":"boom","type":"server_error"}}`, llm.Server, "server_error", "boom"},
		{"cloudflare", 524, "text/html", "<html>", llm.Server, "", ""},
		{"teapot", 418, "text/plain", "no coffee", llm.InvalidRequest, "", "HTTP 418 I'm a teapot: no coffee"},
		{"redirect", 302, "text/html", "<html>", llm.InvalidRequest, "", ""},
		{"redirect without page", 307, "", "", llm.InvalidRequest, "", "the vendor answered with a redirect, which is not followed: check base_url"},
		// C28
		{"error in a 200", 200, "application/json", `{"error":{"message":"limit reached","code":502}}`, llm.Server, "502", "limit reached"},
		{"sign-in page in a 200", 200, "text/html; charset=utf-8", "<!doctype html><title>Sign in</title>", llm.InvalidRequest, "", "the vendor answered with an HTML page (text/html), not with the API: check base_url"},
		{"another API in a 200", 200, "application/json", `{"hello":1}`, llm.Server, "", "the vendor's answer (application/json) is not of the API"},
		{"text in a 200", 200, "text/plain", "hello", llm.Server, "", "the vendor's answer (text/plain) is not of the API: hello"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{"Content-Type": {tt.media}}
			e := Classify(tt.status, h, []byte(tt.body), noon)
			if e.Class != tt.want || e.Code != tt.code || e.Status != tt.status {
				t.Errorf("%s, code %q, status %d, %q", e.Class, e.Code, e.Status, e.Message)
			}
			if tt.text != "" && e.Message != tt.text {
				t.Errorf("message %q", e.Message)
			}
			if e.Message == "" || len(e.Message) > MaxMessage || strings.ContainsAny(e.Message, "<>") {
				t.Errorf("message %q", e.Message)
			}
		})
	}
}

func TestInStream(t *testing.T) {
	tests := []struct {
		body string
		want llm.Class
	}{
		{`{"error":{"code":502,"message":"worker request limit reached"}}`, llm.Server},
		{`{"error":{"message":"quota exceeded"}}`, llm.UnknownClass},
		{`{"error":{"code":429,"message":"rate limited upstream"}}`, llm.RateLimit},
		{`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, llm.Overloaded},
		{`{"type":"error","error":{"type":"server_error","code":"server_error","message":"retry later"}}`, llm.Server},
		{`{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}`, llm.Overloaded},
		{`{"error":{"code":"context_length_exceeded","message":"x"}}`, llm.ContextOverflow},
		{`{"error":"Rate limit reached"}`, llm.RateLimit},
		{`{"error":true}`, llm.UnknownClass},
	}
	for _, tt := range tests {
		v, ok := ParseVendorError([]byte(tt.body))
		if !ok {
			t.Fatalf("%s: no error found", tt.body)
		}
		if e := InStream(v); e.Class != tt.want || e.Message == "" {
			t.Errorf("%s: %v", tt.body, e)
		}
	}
	for _, none := range []string{"", "null", "[]", "x", `{"error":null}`, `{"error":{}}`, `{"choices":[]}`, `"error"`, "[1]"} {
		if v, ok := ParseVendorError([]byte(none)); ok {
			t.Errorf("%s: found %+v", none, v)
		}
	}
}

// Every row of the table of real replies, whichever dialect it came from. C43
func TestClassifyFieldRows(t *testing.T) {
	var file struct {
		Input struct {
			Rows []struct {
				Dialect     string `json:"dialect"`
				Status      int    `json:"status"`
				Body        string `json:"body"`
				ContentType string `json:"content_type"`
				InStream    bool   `json:"in_stream"`
			} `json:"rows"`
		} `json:"input"`
		Expected struct {
			Rows []struct{ Class, Action string } `json:"rows"`
		} `json:"expected"`
	}
	readField(t, "C43.json", &file)
	classes := map[string]llm.Class{
		"context_overflow": llm.ContextOverflow, "rate_limited": llm.RateLimit, "rate_limited_or_quota": llm.RateLimit,
		"billing": llm.Billing, "overloaded": llm.Overloaded, "payload_too_large": llm.InvalidRequest,
		"invalid_request": llm.InvalidRequest, "server_transient": llm.Server, "auth": llm.Auth, "config": llm.InvalidRequest,
	}
	for i, row := range file.Input.Rows {
		want := file.Expected.Rows[i]
		var e *llm.Error
		if row.InStream {
			_, data, _ := strings.Cut(row.Body, "data: ")
			v, ok := ParseVendorError([]byte(strings.TrimSpace(data)))
			if !ok {
				t.Fatalf("row %d: no error found", i)
			}
			e = InStream(v)
		} else {
			e = Classify(row.Status, http.Header{"Content-Type": {row.ContentType}}, []byte(row.Body), noon)
		}
		if e.Class != classes[want.Class] {
			t.Errorf("row %d (%s): %s, want %s", i, row.Body, e.Class, want.Class)
		}
		if want.Action == "retry_after_17s" && e.RetryAfter != 17*time.Second {
			t.Errorf("row %d: retry after %s", i, e.RetryAfter)
		}
		if strings.Contains(e.Message, "<") {
			t.Errorf("row %d: %q", i, e.Message)
		}
	}
}

// C42
func TestRetryAfter(t *testing.T) {
	const limit = MaxRetryAfter
	tests := map[string]time.Duration{
		"7": 7 * time.Second, " 7 ": 7 * time.Second, "0": 0, "-5": 0, "+5": 0, "1.5": 1500 * time.Millisecond,
		"soon": 0, "": 0, "NaN": 0, "Inf": 0, "0x10": 0, "1e3": 0, "1.2.3": 0, ".": 0, "7s": 0,
		"31536000": limit, "99999999999999999999999999": limit, "99999999999999999999999999999999999999": 0,
		"Thu, 15 Jan 2026 12:00:30 GMT": 30 * time.Second, "Wed, 14 Jan 2026 12:00:00 GMT": 0,
		"Thu, 15 Jan 2026 12:00:00 GMT": 0, "Fri, 15 Jan 2027 12:00:00 GMT": limit,
		"Fri, 31 Dec 9999 23:59:59 GMT": limit, "Thursday, 15-Jan-26 12:00:30 GMT": 30 * time.Second,
	}
	for text, want := range tests {
		h := http.Header{"Retry-After": {text}}
		if got := RetryAfter(h, noon); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := RetryAfter(http.Header{"Retry-After-Ms": {"250"}, "Retry-After": {"7"}}, noon); got != 250*time.Millisecond {
		t.Error(got)
	}
	if got := RetryAfter(http.Header{"Retry-After-Ms": {"-1"}, "Retry-After": {"7"}}, noon); got != 7*time.Second {
		t.Error(got)
	}
	// What must not be tried again has no time to try again at.
	if e := Classify(401, http.Header{"Retry-After": {"7"}}, nil, noon); e.RetryAfter != 0 {
		t.Error(e.RetryAfter)
	}
	if e := Classify(429, http.Header{"Retry-After": {"7"}}, nil, noon); e.RetryAfter != 7*time.Second {
		t.Error(e.RetryAfter)
	}
}

// I-33
func TestSafe(t *testing.T) {
	tests := map[string]string{
		"plain": "plain", " a\n\tb\x00c ": "a b c", "<html>x</html>": "", "x </p> y": "",
		"key s3cr3t-value!": "key [redacted]", "got Bearer abc.def-ghi": "got [redacted]",
		"for sk-proj-abcdef123456 and AIzaSyAbcdefghijk": "for [redacted] and [redacted]",
		"jwt eyJhbGciOiJI.eyJzdWIi.sig":                  "jwt [redacted]", "bad \xff": "bad \uFFFD",
		"a < b":             "a < b",
		"right \u202e left": "right left",
	}
	for text, want := range tests {
		if got := Safe(text, "s3cr3t-value!", "x"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	long := Safe(strings.Repeat("\u4e16", 1000))
	if len(long) > MaxMessage || !strings.HasSuffix(long, "\u4e16…") {
		t.Errorf("%d bytes: %q", len(long), long)
	}
	body := `{"error":{"message":"bad key s3cr3t-value!","code":"s3cr3t-value!"}}`
	if e := Classify(401, nil, []byte(body), noon, "s3cr3t-value!"); strings.Contains(e.Error()+e.Code, "s3cr3t") {
		t.Errorf("%v %q", e, e.Code)
	}
}

// I-33: of a key that stands where a long message is cut nothing is left, though
// the spaces before it are.
func TestSafeAtTheCut(t *testing.T) {
	const key = "correct-horse-battery-staple"
	text := "denied" + strings.Repeat(" ", maxRaw-26) + key + strings.Repeat("x", maxRaw)
	if got := Safe(text, key); got != "denied [redacted]" {
		t.Errorf("%q", got)
	}
	if got := Classify(400, nil, []byte(text), time.Now(), key).Message; got != "HTTP 400 Bad Request: denied [redacted]" {
		t.Errorf("%q", got)
	}
}

func TestRedact(t *testing.T) {
	const key = "plain.gateway.key"
	for text, want := range map[string]string{
		"bad " + key + "!": "bad [redacted]!", "bad plain.gatew…": "bad [redacted]…", "bad plain.gateway.ke": "bad [redacted]", "plain": "plain", "": "",
	} {
		err := error(&llm.Error{Class: llm.ContentFilter, Message: text, Code: text, Status: 200})
		e := llm.AsError(Redact(err, key, ""))
		if e.Message != want || e.Code != want || e.Class != llm.ContentFilter || e.Status != 200 {
			t.Errorf("%q: %+v", text, e)
		}
		if text == want && Redact(err, key) != err {
			t.Errorf("%q: another error", text)
		}
	}
	if long := llm.AsError(Redact(&llm.Error{Message: strings.Repeat("abcd", 75)}, "abcd")); len(long.Message) > MaxMessage {
		t.Errorf("%d bytes", len(long.Message))
	}
	if err := Redact(context.Canceled, key); err != context.Canceled {
		t.Error(err)
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(400, "application/json", []byte(`{"error":{"message":"x","code":1,"details":[{"@type":"RetryInfo","retryDelay":"1s"}]}}`))
	f.Add(200, "text/html", []byte("<html>"))
	f.Add(467, "0", bytes.Repeat([]byte("0\xba0"), 200)) // as long as a message may be, with its prefix
	f.Fuzz(func(t *testing.T, status int, media string, body []byte) {
		e := Classify(status, http.Header{"Content-Type": {media}, "Retry-After": {media}}, body, noon)
		if e.Class == "" || e.Message == "" || len(e.Message) > MaxMessage || e.RetryAfter < 0 || e.RetryAfter > MaxRetryAfter {
			t.Fatalf("%+v", e)
		}
	})
}

// readField reads a field case, or skips the test when the folder is absent.
func readField(t *testing.T, name string, v any) {
	t.Helper()
	shared := os.Getenv("HOLDFAST_SHARED")
	for dir := "."; shared == "" && len(dir) < 40; dir = filepath.Join(dir, "..") {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			shared = filepath.Join(dir, "..", "shared")
		}
	}
	raw, err := os.ReadFile(filepath.Join(shared, "field", name))
	if err != nil {
		t.Skip("no field cases here: set HOLDFAST_SHARED")
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}

// FuzzRetryAfter feeds what a vendor says of when to come back: never negative,
// never past the bound.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "1", "-1", "1.5", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "99999999999999999999999999999999", "..", "0.0000000001"} {
		f.Add(s, s)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, ms, text string) {
		h := http.Header{"Retry-After-Ms": {ms}, "Retry-After": {text}}
		if d := RetryAfter(h, now); d < 0 || d > MaxRetryAfter {
			t.Fatalf("%q %q: %s", ms, text, d)
		}
	})
}

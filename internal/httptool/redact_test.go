package httptool

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

const echoSecret = `to/k+en "12\x=~%41`

// escapes writes every byte as JSON may.
func escapes(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\u%04X`, s[i])
	}
	return b.String()
}

func percents(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `%%%02x`, s[i])
	}
	return b.String()
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b[1 : len(b)-1])
}

// echoes are the forms in which a service may give a secret back, in plain text.
func echoes(s string) map[string]string {
	out := map[string]string{
		"as it is": s, "JSON": quoted(s), "JSON slash": strings.ReplaceAll(quoted(s), "/", `\/`), "JSON escapes": escapes(s),
		"query": url.QueryEscape(s), "path": url.PathEscape(s), "percent": percents(s), "upper percent": strings.ToUpper(percents(s)),
		"percent in JSON": escapes(url.QueryEscape(s)),
	}
	for name, e := range map[string]*base64.Encoding{"std": base64.StdEncoding, "raw std": base64.RawStdEncoding, "url": base64.URLEncoding, "raw url": base64.RawURLEncoding} {
		for _, around := range []string{"", "a", "ab", "abc"} {
			out[name+" "+around] = e.EncodeToString([]byte(around + s + around))
		}
		out[name+" in a query"] = url.QueryEscape(e.EncodeToString([]byte(s)))
		out[name+" in JSON"] = strings.ReplaceAll(e.EncodeToString([]byte(s)), "/", `\/`)
	}
	return out
}

// I-33: a credential that the service gives back in another form is in no result.
func TestEchoes(t *testing.T) {
	r := new(redactor)
	r.add("Bearer x-" + strings.ReplaceAll(echoSecret, " ", "") + " " + "second-word")
	r.secret(echoSecret)
	r.add(echoSecret)
	for name, echo := range echoes(echoSecret) {
		got := r.text("before " + echo + " after")
		// Of base64 a character at either end may be decided by what stands beside the secret.
		if !strings.Contains(got, redacted) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || len(got) > len("before [redacted] after")+16 {
			t.Errorf("%s: %q gives %q", name, echo, got)
		}
		body, err := json.Marshal(map[string]any{"echo": echo, "x " + echo: []any{1, "ü", echo}})
		if err != nil {
			t.Fatal(err)
		}
		clean, torn := r.json(string(body))
		var back map[string]any
		if err := json.Unmarshal([]byte(clean), &back); err != nil || torn || len(back) != 2 || strings.Count(clean, redacted) != 3 {
			t.Errorf("%s: %s gives %s, torn %v, %v", name, body, clean, torn, err)
		}
		// A string that is broken off has it no more either.
		if clean, _ := r.json(string(body[:len(body)-2])); strings.Count(clean, redacted) != 3 {
			t.Errorf("%s: broken off: %s", name, clean)
		}
	}
	for _, same := range []string{"", "Bearer of news", `{"a":[1,2.5e-3,"\u0041\/","to/k"],"b":null}`, "100% + 5%2", `\`, `\u12`, `\ud800\u0041`, "%", "[info] nothing"} {
		if got := r.text(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
		if got, torn := r.json(same); got != same || torn {
			t.Errorf("%q became %q", same, got)
		}
	}
}

func TestEchoesOfOddSecrets(t *testing.T) {
	r := new(redactor)
	r.add("1234567890")
	if got, torn := r.json(`{"n":1234567890,"f":-1.51234567890e3,"s":"1234567890","k":123}`); torn || got != `{"n":"[redacted]","f":"[redacted]","s":"[redacted]","k":123}` {
		t.Errorf("a number: %s", got)
	}
	r = new(redactor)
	r.add(`{"a":true}`) // JSON itself: an echo of it is no JSON any more
	if got, torn := r.json(`[{"a":true}]`); !torn || strings.Contains(got, "true") {
		t.Errorf("%s, torn %v", got, torn)
	}
	r = new(redactor)
	r.add("Basic " + base64.StdEncoding.EncodeToString([]byte("user:correct-horse")))
	if got := r.text("user:correct-horse, correct-horse, dXNlcjpjb3JyZWN0LWhvcnNl"); strings.Contains(got, "horse") || strings.Contains(got, "dXNl") {
		t.Errorf("Basic: %s", got)
	}
	if r.text("Basic user") != "Basic user" {
		t.Error("short words are no secrets")
	}
}

// The whole way: result, refusal, and the bound of an answer.
func TestEchoesOverTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = `tok/en-12345678`
		for _, test := range []struct{ kind, body, want string }{
			{"application/json", `{"ok":true,"echo":"tok\/en-12345678"}`, `{"ok":true,"echo":"[redacted]"}`},
			{"application/json", `{"echo":"\u0074ok\/en\u002d12345678"}`, `{"echo":"[redacted]"}`},
			{"application/json", `{"url":"https://x.test/?k=tok%2Fen-12345678&a=1"}`, `{"url":"https://x.test/?k=[redacted]&a=1"}`},
			{"application/json", `{"b":"` + base64.StdEncoding.EncodeToString([]byte(secret)) + `"}`, `{"b":"[redacted]"}`},
			{"text/html", `<a href="/x?k=tok%2fen-12345678">`, `<a href="/x?k=[redacted]">`},
			{"text/plain", `{"echo":"tok\/en-12345678"}`, `{"echo":"[redacted]"}`},
		} {
			for _, status := range []string{"200 OK", "400 No", "500 No"} {
				s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
					_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\nConnection: close\r\nContent-Type: "+test.kind+"\r\n\r\n"+test.body)
					return false
				}}
				c := config(tool.Write)
				c.Headers = map[string]func() (string, error){"X-Key": func() (string, error) { return secret, nil }}
				result, err := with(t, s, c).Run(t.Context(), call(`{}`))
				if status == "200 OK" {
					if err != nil || result.Output != test.want || result.JSON != (test.kind == "application/json") {
						t.Errorf("%s: %+v, %v", test.body, result, err)
					}
				} else if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s %s: %v", status, test.body, err)
				}
			}
		}
		// On the border, in the longest form.
		const limit = 100
		s := &service{answer: func(_ int, _ *http.Request, _ string, c net.Conn) bool {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"+
				`["`+strings.Repeat("x", limit-8)+escapes(percents(secret))+`","`+strings.Repeat("y", 1<<20)+`"]`)
			return false
		}}
		c := config(tool.Write)
		c.MaxResponse = limit
		c.Headers = map[string]func() (string, error){"X-Key": func() (string, error) { return secret, nil }}
		result, err := with(t, s, c).Run(t.Context(), call(`{}`))
		if err != nil || strings.Contains(result.Output, `\u`) || !strings.Contains(result.Output, "xx[redac") {
			t.Errorf("%q, %v", result.Output, err)
		}
	})
}

func TestSchemasAreCompiled(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no object":        func(c *Config) { c.InputSchema = []byte(`{"type":"string"}`) },
		"perhaps object":   func(c *Config) { c.InputSchema = []byte(`{"type":["object","null"]}`) },
		"untyped":          func(c *Config) { c.InputSchema = []byte(`{"properties":{}}`) },
		"no schema":        func(c *Config) { c.InputSchema = []byte(`true`) },
		"no JSON":          func(c *Config) { c.InputSchema = []byte(`{"type":"object"`) },
		"wrong input":      func(c *Config) { c.InputSchema = []byte(`{"properties":{"a":{"type":"nonsense"}},"type":"object"}`) },
		"outside":          func(c *Config) { c.InputSchema = []byte(`{"$ref":"https://x.test/s","type":"object"}`) },
		"wrong output":     func(c *Config) { c.OutputSchema = []byte(`{"minimum":"1"}`) },
		"output elsewhere": func(c *Config) { c.OutputSchema = []byte(`{"$ref":"file:///etc/passwd"}`) },
	} {
		c := config(tool.Write)
		change(&c)
		refused(t, name, c)
	}
}

func refused(t *testing.T, name string, c Config) {
	t.Helper()
	g, err := netguard.New(netguard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, g); !problem.Is(err, "invalid_tool") {
		t.Errorf("%s: %v", name, err)
	}
}

// FuzzRedact: no form of a secret survives, JSON stays JSON, and nothing panics.
func FuzzRedact(f *testing.F) {
	f.Add("hunter2-hunter2", `{"a":"x","b":[1]}`)
	f.Add(echoSecret, `\u0041%41+`)
	f.Fuzz(func(t *testing.T, secret, text string) {
		r := new(redactor)
		r.add(secret)
		r.text(text)
		clean, torn := r.json(text)
		if json.Valid([]byte(text)) && !torn && !json.Valid([]byte(clean)) {
			t.Errorf("%q became %q", text, clean)
		}
		if len(secret) < minSecret || strings.Trim(secret, " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" {
			return
		}
		for name, echo := range echoes(secret) {
			if got := r.text(echo); !strings.Contains(got, redacted) {
				t.Errorf("%s of %q: %q", name, secret, got)
			}
		}
	})
}

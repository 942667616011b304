package httptool

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// each writes every byte in a form.
func each(form, s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, form, s[i])
	}
	return b.String()
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
				`["`+strings.Repeat("x", limit-8)+each(`\u%04X`, each("%%%02x", secret))+`","`+strings.Repeat("y", 1<<20)+`"]`)
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

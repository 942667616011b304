package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
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
		"percent in JSON": escapes(url.QueryEscape(s)), "hex": hex.EncodeToString([]byte(s)), "upper hex": strings.ToUpper(hex.EncodeToString([]byte(s))),
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
	r := new(Scrubber)
	r.Add("Bearer x-" + strings.ReplaceAll(echoSecret, " ", "") + " " + "second-word")
	r.secret(echoSecret)
	r.Add(echoSecret)
	for name, echo := range echoes(echoSecret) {
		got := r.Text("before " + echo + " after")
		// Of base64 a character at either end may be decided by what stands beside the secret.
		if !strings.Contains(got, Redacted) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || len(got) > len("before [redacted] after")+16 {
			t.Errorf("%s: %q gives %q", name, echo, got)
		}
		body, err := json.Marshal(map[string]any{"echo": echo, "x " + echo: []any{1, "ü", echo}})
		if err != nil {
			t.Fatal(err)
		}
		clean, torn := r.JSON(string(body))
		var back map[string]any
		if err := json.Unmarshal([]byte(clean), &back); err != nil || torn || len(back) != 2 || strings.Count(clean, Redacted) != 3 {
			t.Errorf("%s: %s gives %s, torn %v, %v", name, body, clean, torn, err)
		}
		// A string that is broken off has it no more either.
		if clean, _ := r.JSON(string(body[:len(body)-2])); strings.Count(clean, Redacted) != 3 {
			t.Errorf("%s: broken off: %s", name, clean)
		}
	}
	for _, same := range []string{"", "Bearer of news", `{"a":[1,2.5e-3,"\u0041\/","to/k"],"b":null}`, "100% + 5%2", `\`, `\u12`, `\ud800\u0041`, "%", "[info] nothing"} {
		if got := r.Text(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
		if got, torn := r.JSON(same); got != same || torn {
			t.Errorf("%q became %q", same, got)
		}
	}
}

func TestEchoesOfOddSecrets(t *testing.T) {
	r := new(Scrubber)
	r.Add("1234567890")
	if got, torn := r.JSON(`{"n":1234567890,"f":-1.51234567890e3,"s":"1234567890","k":123}`); torn || got != `{"n":"[redacted]","f":"[redacted]","s":"[redacted]","k":123}` {
		t.Errorf("a number: %s", got)
	}
	r = new(Scrubber)
	r.Add(`{"a":true}`) // JSON itself: an echo of it is no JSON any more
	if got, torn := r.JSON(`[{"a":true}]`); !torn || strings.Contains(got, "true") {
		t.Errorf("%s, torn %v", got, torn)
	}
	r = new(Scrubber)
	r.Add("Basic " + base64.StdEncoding.EncodeToString([]byte("user:correct-horse")))
	if got := r.Text("user:correct-horse, correct-horse, dXNlcjpjb3JyZWN0LWhvcnNl"); strings.Contains(got, "horse") || strings.Contains(got, "dXNl") {
		t.Errorf("Basic: %s", got)
	}
	if r.Text("Basic user") != "Basic user" {
		t.Error("short words are no secrets")
	}
}

// FuzzScrub: no form of a secret survives, JSON stays JSON, and nothing panics.
func FuzzScrub(f *testing.F) {
	f.Add("hunter2-hunter2", `{"a":"x","b":[1]}`)
	f.Add(echoSecret, `\u0041%41+`)
	f.Fuzz(func(t *testing.T, secret, text string) {
		r := new(Scrubber)
		r.Add(secret)
		r.Text(text)
		clean, torn := r.JSON(text)
		if json.Valid([]byte(text)) && !torn && !json.Valid([]byte(clean)) {
			t.Errorf("%q became %q", text, clean)
		}
		if len(secret) < MinLength || strings.Trim(secret, " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" {
			return
		}
		for name, echo := range echoes(secret) {
			if got := r.Text(echo); !strings.Contains(got, Redacted) {
				t.Errorf("%s of %q: %q", name, secret, got)
			}
		}
	})
}

// I-33: a secret is found also where it is escaped twice, or in the manner of a
// page or a program.
func TestEchoesWithinEchoes(t *testing.T) {
	odd := `q"uo\te'<ü🔑>&/ %+x` // a quote, a backslash, an apostrophe, letters past ASCII
	r := NewScrubber(odd)
	r.secret(odd)
	log := func(s string) string { b := fmt.Sprintf("%+q", s); return b[1 : len(b)-1] }
	python := strings.NewReplacer(`\`, `\\`, `'`, `\'`, "ü", `\xc3\xbc`, "🔑", `\U0001f511`).Replace(odd)
	for name, echo := range map[string]string{
		"JSON": quoted(odd), "JSON in JSON": quoted(quoted(odd)), "a log line": log(odd), "a log line in JSON": quoted(log(odd)), "python": python,
		"HTML": html.EscapeString(odd), "HTML in JSON": quoted(html.EscapeString(odd)), "JSON in HTML": html.EscapeString(quoted(odd)), "decimal HTML": references(odd),
		"JSON in a query": url.QueryEscape(quoted(odd)), "a query twice": url.QueryEscape(url.QueryEscape(odd)), "a query in JSON in JSON": quoted(escapes(url.QueryEscape(odd))),
	} {
		if got := r.Text("before " + echo + " after"); got != "before [redacted] after" {
			t.Errorf("%s: %q gives %q", name, echo, got)
		}
		if n := len(echo); n > r.Reach() {
			t.Errorf("%s: %d bytes are out of reach", name, n)
		}
	}
}

func references(s string) string {
	var b strings.Builder
	for _, c := range s {
		fmt.Fprintf(&b, "&#%d;", c)
	}
	return b.String()
}

// I-33: where a text is cut, no part of a secret is left, though what was taken out
// before it made room.
func TestHead(t *testing.T) {
	const word = "a-secret-of-twenty-four"
	r := NewScrubber(word)
	const limit = 1000
	for shift := range len(word) {
		for _, around := range []string{"", `["`, `{"a":{"b":"`} {
			text := around + strings.Repeat("x", shift) + strings.Repeat(word+" ", limit)
			text = text[:limit+r.Reach()] // as it is read
			json, _ := r.HeadJSON(text, limit)
			for _, got := range []string{r.Head(text, limit), string(r.Excerpt([]byte(text), limit)), json} {
				if strings.Contains(got, word[:8]) || strings.Contains(got, word[len(word)-8:]) || len(got) > limit || !strings.HasSuffix(strings.TrimSpace(got), Redacted) {
					t.Fatalf("%d %s: …%q", shift, around, got[max(0, len(got)-60):])
				}
			}
		}
	}
	if got := string(r.Excerpt([]byte("é\xff\x00é"), 9)); got != "é\uFFFD\uFFFD" {
		t.Errorf("%q", got)
	}
	for _, text := range []string{`{"a":[1,-2.5e3,"x"],"b":"yü"}`, `["abc`} {
		for keep := range len(text) + 2 {
			if got, torn := r.HeadJSON(text, keep); torn || !strings.HasPrefix(text, got) || len(got) < min(keep, len(text))-1 {
				t.Errorf("%d: %q", keep, got)
			}
		}
	}
}

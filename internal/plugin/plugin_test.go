package plugin

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/delivery"
)

// The test binary is the plugin, when it is called as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "act" {
		act(os.Args[2], os.Args[3:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func act(what string, args []string) {
	in := bufio.NewReader(os.Stdin)
	switch what {
	case "echo": // gives what it got back, in the file that it is told
		line, _ := in.ReadString('\n')
		rest, _ := io.ReadAll(in)
		state, _ := json.Marshal(map[string]any{"line": line, "rest": len(rest), "env": os.Environ()})
		_ = os.WriteFile(args[0], state, 0o600)
		fmt.Println(`{"delivered":true}`)
	case "say":
		fmt.Print(args[0])
	case "deaf": // ends without having read
		fmt.Println(`{"delivered":true}`)
	case "hang":
		<-time.After(time.Hour)
	case "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 4096)); err != nil {
				return
			}
		}
	case "noise":
		line, _ := in.ReadString('\n')
		fmt.Fprint(os.Stderr, line, strings.Repeat("noise ", 1<<20))
		os.Exit(3)
	case "tell": // says its secret, at the place that it is told
		line, _ := in.ReadString('\n')
		var got question
		_ = json.Unmarshal([]byte(line), &got)
		fmt.Fprint(os.Stderr, strings.Repeat("x", maxErrors-20), got.Secrets["token"], strings.Repeat("y", maxErrors))
		fmt.Printf(`{"delivered":false,"detail":"%s was refused"}`, got.Secrets["token"])
	case "leak": // says what it was handed, and the secret over and over until its errors are cut
		line, _ := in.ReadString('\n')
		var q struct{ Secrets map[string]string }
		_ = json.Unmarshal([]byte(line), &q)
		forms := leaks(q.Secrets["token"])
		_, _ = io.WriteString(os.Stderr, strings.Join(forms, "\n")+"\n"+line+args[0]+strings.Repeat(q.Secrets["token"], 4096))
		out, _ := json.Marshal(map[string]any{"delivered": false, "code": q.Secrets["code"], "detail": "no: " + strings.Join(forms, " ")})
		fmt.Println(string(out))
	case "fork": // leaves a child behind that holds the output open
		child := exec.Command(os.Args[0], "act", "hang")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			os.Exit(4)
		}
		_ = os.WriteFile(args[0], []byte(strconv.Itoa(child.Process.Pid)), 0o600)
		if len(args) > 1 {
			<-time.After(time.Hour)
		}
		fmt.Println(`{"delivered":true}`)
	}
}

func self(args ...string) Plugin {
	return Plugin{Command: append([]string{os.Args[0], "act"}, args...), Timeout: 20 * time.Second,
		Secrets: func() (map[string]string, error) { return map[string]string{"token": "hunter2"}, nil }}
}

// leaks are forms in which a careless plugin tells a secret.
func leaks(s string) []string {
	in, _ := json.Marshal(s)
	twice, _ := json.Marshal(string(in))
	return []string{s, string(in), string(twice), fmt.Sprintf("%+q", s), html.EscapeString(s), url.QueryEscape(s), base64.StdEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s))}
}

// I-33: what a plugin was handed is in nothing that is kept of it, however it says it.
func TestPluginsThatTell(t *testing.T) {
	for _, token := range []string{`pass"word\with'quotes`, "schlüssel-🔑-<&>-long", "plain-token-0123456789", "back\\slash\tand\nline"} {
		for shift := range 3 {
			p := self("leak", strings.Repeat("x", shift*len(token)/3))
			p.Secrets = func() (map[string]string, error) {
				return map[string]string{"token": token, "code": "lower_secret_of_it", "pin": "9374"}, nil
			}
			r := Send(t.Context(), p, "dlv_1", body)
			if r.Code != "server_plugin" || !strings.Contains(r.Detail, "no: [redacted]") || len(r.Excerpt) == 0 || len(r.Excerpt) > maxErrors || !utf8.Valid(r.Excerpt) {
				t.Errorf("%+v", r)
			}
			all := r.Code + r.Detail + string(r.Excerpt)
			for _, form := range append(leaks(token), "lower_secret_of_it", "9374", token[:7], token[len(token)-7:]) {
				if form = strings.Trim(form, `"`); strings.Contains(all, form) {
					t.Errorf("%q stands in %q … %q", form, r.Detail, r.Excerpt[max(0, len(r.Excerpt)-200):])
				}
			}
		}
	}
}

var body = []byte(`{"content":"a\nb","delivery_id":"dlv_1"}`)

// A plugin is handed one line, the same each time, and a closed environment.
func TestHandedOver(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_SECRET", "hunter3")
	file := filepath.Join(t.TempDir(), "got")
	before := ""
	for range 2 {
		if r := Send(t.Context(), self("echo", file), "dlv_1", body); !r.Delivered {
			t.Fatalf("%+v", r)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Line string
			Rest int
			Env  []string
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if want := `{"protocol":"holdfast.plugin/1","delivery_id":"dlv_1","message":` + string(body) + `,"secrets":{"token":"hunter2"}}` + "\n"; got.Line != want || got.Rest != 0 {
			t.Errorf("got %q and %d bytes", got.Line, got.Rest)
		}
		slices.Sort(got.Env)
		if fmt.Sprint(got.Env) != "[LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin]" {
			t.Errorf("environment %q", got.Env)
		}
		if before != "" && before != got.Line { // I-26
			t.Errorf("another line: %q", got.Line)
		}
		before = got.Line
	}
}

func TestAnswers(t *testing.T) {
	for said, want := range map[string]delivery.Result{
		`{"delivered":true}`:       {Delivered: true},
		"{\"delivered\":true}\n\n": {Delivered: true},
		`{"delivered":false}`:      {Code: "server_plugin"},
		`{"delivered":false,"code":"busy","retry_after":7,"detail":"a\u0007b"}`: {Code: "server_plugin_busy", RetryAfter: 7 * time.Second, Detail: "a b"},
		`{"delivered":false,"permanent":true,"code":"gone"}`:                    {Code: "refused_plugin_gone", Permanent: true},
		`{"delivered":false,"retry_after":99999999}`:                            {Code: "server_plugin", RetryAfter: time.Hour},
	} {
		if r := Send(t.Context(), self("say", said), "dlv_1", body); fmt.Sprintf("%+v", r) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s: %+v, want %+v", said, r, want)
		}
	}
	for _, said := range []string{
		"", "\n", "ok", "{}", "[]", "null", `{"delivered":1}`, `{"delivered":true,"deliverd":true}`, `{"delivered":true}{"delivered":false}`,
		"{\"delivered\":true}\n{\"delivered\":false}\n", `{"delivered":true,"delivered":false}`, `{"delivered":false,"code":"Not A Word"}`,
		`{"delivered":false,"retry_after":-1}`, `{"delivered":false,"retry_after":1e400}`, "{\"delivered\":true,\"detail\":\"\xff\"}",
	} {
		if r := Send(t.Context(), self("say", said), "dlv_1", body); r.Delivered || r.Permanent || r.Code != "server_plugin_answer" {
			t.Errorf("%q: %+v", said, r)
		}
	}
	if r := Send(t.Context(), self("deaf"), "dlv_1", []byte(`"`+strings.Repeat("x", 1<<20)+`"`)); !r.Delivered {
		t.Errorf("one that does not read: %+v", r)
	}
}

func TestMisbehaviour(t *testing.T) {
	p := self("hang")
	p.Timeout = 100 * time.Millisecond
	if r := Send(t.Context(), p, "dlv_1", body); r.Code != "timeout" || r.Permanent {
		t.Errorf("hangs: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Send(ctx, self("hang"), "dlv_1", body); r.Delivered || r.Permanent {
		t.Errorf("cancelled: %+v", r)
	}
	if r := Send(t.Context(), self("flood"), "dlv_1", body); r.Code != "server_plugin_output" {
		t.Errorf("floods: %+v", r)
	}
	r := Send(t.Context(), self("noise"), "dlv_1", body)
	if r.Code != "server_plugin_failed" || len(r.Excerpt) > maxErrors || !strings.Contains(string(r.Excerpt), "noise noise") {
		t.Errorf("fails: %s %d bytes", r.Code, len(r.Excerpt))
	}
	if strings.Contains(fmt.Sprintf("%+v %s", r, r.Excerpt), "hunter2") { // I-33
		t.Errorf("the excerpt holds a secret: %.100s", r.Excerpt)
	}
	none := self()
	none.Command = []string{filepath.Join(t.TempDir(), "none")}
	if r := Send(t.Context(), none, "dlv_1", body); r.Code != "server_plugin_unavailable" || r.Permanent {
		t.Errorf("not there: %+v", r)
	}
	unread := self("deaf")
	unread.Secrets = func() (map[string]string, error) { return nil, errors.New("the environment variable X is not set") }
	if r := Send(t.Context(), unread, "dlv_1", body); r.Code != "secret_unavailable" {
		t.Errorf("no secret: %+v", r)
	}
}

// What a plugin says of a secret is not kept, nor the part that a cut would leave. // I-33
func TestSaysItsSecret(t *testing.T) {
	const token = "sk-live-0123456789abcdef0123456789abcdef"
	p := self("tell")
	p.Secrets = func() (map[string]string, error) { return map[string]string{"token": token}, nil }
	r := Send(t.Context(), p, "dlv_1", body)
	if r.Code != "server_plugin" || r.Detail != "[redacted] was refused" || len(r.Excerpt) > maxErrors {
		t.Errorf("%s %q, %d bytes", r.Code, r.Detail, len(r.Excerpt))
	}
	if strings.Contains(string(r.Excerpt), token[:8]) || !strings.HasSuffix(string(r.Excerpt), "x[redacted]") {
		t.Errorf("the excerpt ends %q", r.Excerpt[max(0, len(r.Excerpt)-60):])
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := Check(file("good", 0o755)); err != nil {
		t.Error(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "none"), file("text", 0o644), file("open", 0o757)} {
		if Check(path) == nil {
			t.Errorf("%s can be run", path)
		}
	}
}

// The example of the documentation is one that works.
func TestDocumentedExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/targets.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```sh\n(#!/bin/sh\n.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("the page has no example of a plugin")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "append.sh")
	if err := os.WriteFile(path, found[1], 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "answers.jsonl")
	p := Plugin{Command: []string{path, out}, Timeout: 20 * time.Second, Secrets: func() (map[string]string, error) { return nil, nil }}
	for range 2 {
		if r := Send(t.Context(), p, "dlv_1", body); !r.Delivered {
			t.Fatalf("%+v %s", r, r.Excerpt)
		}
	}
	got, err := os.ReadFile(out)
	if err != nil || strings.Count(string(got), `"message":`+string(body)) != 2 {
		t.Errorf("%q %v", got, err)
	}
	p.Command = []string{path, filepath.Join(dir, "none", "x")}
	if r := Send(t.Context(), p, "dlv_1", body); r.Code != "server_plugin_write_failed" || r.Permanent {
		t.Errorf("%+v %s", r, r.Excerpt)
	}
}

// Whatever a plugin says is an answer of the protocol or a failure that is tried again.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"delivered":false,"code":"busy","retry_after":7,"permanent":true,"detail":"x"}`))
	f.Add([]byte("{\"delivered\":true}\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		r, err := parse(said, new(private))
		if err != nil {
			return
		}
		if r.Delivered == (r.Code != "") || r.RetryAfter < 0 || r.RetryAfter > maxRetryAfter || len(r.Detail) > maxDetail || strings.ContainsAny(r.Code+r.Detail, "\r\n\x00\x1b") {
			t.Errorf("%q: %+v", said, r)
		}
	})
}

package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// tools makes the tools over a folder, by name.
func tools(t *testing.T, c Config) map[string]tool.Tool {
	t.Helper()
	list, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]tool.Tool{}
	for _, made := range list {
		byName[made.Definition().Name] = made
	}
	return byName
}

// input makes arguments.
func input(t *testing.T, args map[string]any) canonjson.Value {
	t.Helper()
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	v, err := canonjson.Canonicalize(text, canonjson.Limits{Bytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func run(t *testing.T, made tool.Tool, args map[string]any) (string, error) {
	t.Helper()
	r, err := made.Run(t.Context(), tool.Call{UserID: "ann", SessionID: "ses_1", CallID: "call_1", Input: input(t, args)})
	if err != nil && r != (tool.Result{}) {
		t.Errorf("result %+v beside error %v", r, err)
	}
	return r.Output, err
}

// fails wants a failure whose text the model may see, and that names no folder of the host.
func fails(t *testing.T, root string, out string, err error, want string) {
	t.Helper()
	var e *tool.Error
	if !errors.As(err, &e) {
		t.Errorf("want a failure with %q, got %q, %v", want, out, err)
		return
	}
	if !strings.Contains(e.Message, want) || strings.Contains(e.Message, root) {
		t.Errorf("message %q, want it to hold %q", e.Message, want)
	}
}

func put(t *testing.T, content string, parts ...string) {
	t.Helper()
	name := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWriteReadList(t *testing.T) {
	root := t.TempDir()
	ts := tools(t, Config{Root: filepath.Join(root, "new", "work")})
	if out, err := run(t, ts[ListFiles], nil); err != nil || out != `{"entries":[],"truncated":false}` {
		t.Errorf("list of nothing: %s, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(root, "new", "work", "ann")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a read made a folder: %v", err)
	}
	for _, step := range []struct{ path, content, want string }{
		{"notes/a.md", "one\n", "made notes/a.md, 4 bytes"},
		{"./notes//b.md", "two", "made notes/b.md, 3 bytes"},
		{"notes/a.md", "", "replaced notes/a.md, 0 bytes"},
		{"notes/a.md", "three ü 🏷\n", "replaced notes/a.md, 14 bytes"},
		{"z.txt", "z", "made z.txt, 1 bytes"},
	} {
		if out, err := run(t, ts[WriteFile], map[string]any{"path": step.path, "content": step.content}); err != nil || out != step.want {
			t.Errorf("write %s: %q, %v, want %q", step.path, out, err, step.want)
		}
	}
	if out, err := run(t, ts[ReadFile], map[string]any{"path": "notes/a.md"}); err != nil || out != "three ü 🏷\n" {
		t.Errorf("read: %q, %v", out, err)
	}
	want := `{"entries":[{"path":"notes","type":"folder"},{"path":"notes/a.md","size":14,"type":"file"},` +
		`{"path":"notes/b.md","size":3,"type":"file"},{"path":"z.txt","size":1,"type":"file"}],"truncated":false}`
	if out, err := run(t, ts[ListFiles], nil); err != nil || out != want {
		t.Errorf("list: %s, %v", out, err)
	}
	if out, err := run(t, ts[ListFiles], map[string]any{"depth": 1}); err != nil || strings.Contains(out, "a.md") {
		t.Errorf("list of one level: %s, %v", out, err)
	}
	if out, err := run(t, ts[ListFiles], map[string]any{"path": "notes"}); err != nil || !strings.HasPrefix(out, `{"entries":[{"path":"notes/a.md"`) {
		t.Errorf("list of a folder: %s, %v", out, err)
	}
	if data, err := os.ReadFile(filepath.Join(root, "new", "work", "ann", "ses_1", "z.txt")); err != nil || string(data) != "z" {
		t.Errorf("file on disk: %q, %v", data, err)
	}
}

// I-34: a session sees its own folder only.
func TestSessionsAreApart(t *testing.T) {
	root := t.TempDir()
	ts := tools(t, Config{Root: root})
	ids := []string{"ann", "Ann", "ann/ses_1", "..", ".", "", "a\x00b", "a%00b", "~ann", "~~", strings.Repeat("é", 64), strings.Repeat("x", 128)}
	for _, user := range ids {
		call := tool.Call{UserID: user, SessionID: "ses_1", Input: input(t, map[string]any{"path": "own", "content": user})}
		if _, err := ts[WriteFile].Run(t.Context(), call); err != nil {
			t.Fatalf("%q: %v", user, err)
		}
	}
	for _, user := range ids {
		call := tool.Call{UserID: user, SessionID: "ses_1", Input: input(t, map[string]any{"path": "own"})}
		if r, err := ts[ReadFile].Run(t.Context(), call); err != nil || r.Output != user {
			t.Errorf("%q reads %q, %v", user, r.Output, err)
		}
		call.SessionID = "ses_2"
		if r, err := ts[ReadFile].Run(t.Context(), call); err == nil {
			t.Errorf("%q reads %q in another session", user, r.Output)
		}
	}
	// A link in place of a user's folder leads nowhere, though it stays inside the root.
	if err := os.Symlink("ann", filepath.Join(root, "bob")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ReadFile, WriteFile, ListFiles} {
		call := tool.Call{UserID: "bob", SessionID: "ses_1", Input: input(t, map[string]any{"path": "own", "content": ""})}
		if r, err := ts[name].Run(t.Context(), call); err == nil {
			t.Errorf("%s through a linked folder: %q", name, r.Output)
		}
	}
	if r, err := ts[ListFiles].Run(t.Context(), tool.Call{UserID: "ann", Input: input(t, nil)}); err == nil {
		t.Errorf("a call without a session lists %q", r.Output)
	}
}

func TestShared(t *testing.T) {
	root := t.TempDir()
	put(t, "hello", root, "runbook.md")
	ts := tools(t, Config{Root: root, Shared: true})
	if out, err := run(t, ts[ReadFile], map[string]any{"path": "runbook.md"}); err != nil || out != "hello" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestFolderName(t *testing.T) {
	for id, want := range map[string]string{
		"default": "default", "ses_0198c2f0": "ses_0198c2f0", "ann@example.com": "ann@example.com", "a.b": "a.b",
		"Ann": "~%41nn", "": "~", ".": "~%2E", "..": "~%2E%2E", "a.": "~a%2E", "a/b": "~a%2Fb", "~a": "~%7Ea", "-a": "~-a", "a b": "~a%20b",
		strings.Repeat("a", 65): "~" + strings.Repeat("a", 65),
	} {
		if got := FolderName(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
	// The SHA-256 is that of 128 NUL bytes.
	if got := FolderName(strings.Repeat("\x00", 128)); got != "~~38723a2e5e8a17aa7950dc008209944e898f69a7bd10a23c839d341e935fd5ca" {
		t.Errorf("long id: %q", got)
	}
}

// Two ids never share a folder, and a folder name is always one safe name.
func FuzzFolderName(f *testing.F) {
	f.Add("ann", "Ann")
	f.Add("~a", "a")
	f.Add("..", "%2E%2E")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := FolderName(a), FolderName(b)
		if a != b && strings.EqualFold(x, y) {
			t.Errorf("%q and %q share %q", a, b, x)
		}
		if !filepath.IsLocal(x) || strings.ContainsAny(x, "/\\\x00:") || len(x) > 255 || x == "." || strings.HasSuffix(x, ".") {
			t.Errorf("%q: unsafe name %q", a, x)
		}
	})
}

func TestHostilePaths(t *testing.T) {
	root := t.TempDir()
	put(t, "secret", root, "secret")
	put(t, "x", root, "work", "ann", "ses_1", "ok")
	ts := tools(t, Config{Root: filepath.Join(root, "work")})
	for path, want := range map[string]string{
		"":                             "empty",
		"/etc/passwd":                  "not relative",
		"//etc/passwd":                 "not relative",
		"C:/x":                         "not relative",
		"..":                           "may not hold ..",
		"../../../secret":              "may not hold ..",
		"a/../../../../secret":         "may not hold ..",
		"a/..":                         "may not hold ..",
		`..\..\secret`:                 "backslash",
		`a\b`:                          "backslash",
		"a\x00b":                       "control",
		"a\nb":                         "control",
		strings.Repeat("a", 256):       "longer than 255",
		strings.Repeat("a/", 33):       "deeper than 32",
		strings.Repeat("a/", 600):      "longer than 1024",
		".holdfast-x":                  "reserved",
		"a/.HOLDFAST-x":                "reserved",
		"ok/below-a-file":              "",
		strings.Repeat("a/", 31) + "a": "",
	} {
		for _, name := range []string{ReadFile, WriteFile, ListFiles} {
			if want == "" && name == WriteFile {
				continue
			}
			args := map[string]any{"path": path}
			if name == WriteFile {
				args["content"] = "overwritten"
			}
			out, err := run(t, ts[name], args)
			fails(t, root, out, err, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "secret")); err != nil || string(data) != "secret" {
		t.Errorf("the secret is %q, %v", data, err)
	}
	out, err := run(t, ts[WriteFile], map[string]any{"path": ".", "content": ""})
	fails(t, root, out, err, "workspace itself")
	out, err = run(t, ts[WriteFile], map[string]any{"path": "a"})
	fails(t, root, out, err, "no content")
	out, err = run(t, ts[WriteFile], map[string]any{"path": "a", "content": strings.Repeat("x", maxWrite+1)})
	fails(t, root, out, err, "at most 1048576")
	if _, err := run(t, ts[WriteFile], map[string]any{"path": "full", "content": strings.Repeat("x", maxWrite)}); err != nil {
		t.Errorf("content at the bound: %v", err)
	}
}

// What is in the folder may be hostile too: links that lead out, pipes, devices.
func TestHostileFiles(t *testing.T) {
	root := t.TempDir()
	own := filepath.Join(root, "work", "ann", "ses_1")
	put(t, "secret", root, "secret")
	put(t, "x", own, "ok")
	put(t, "x", own, "dir", "ok")
	links := map[string]string{
		"out": filepath.Join(root, "secret"), "up": "../../../secret", "outdir": "../../..", "loop": "loop", "inside": "ok", "dev": "/dev/zero",
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(own, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("fifo", filepath.Join(own, "tofifo")); err != nil {
		t.Fatal(err)
	}
	ts := tools(t, Config{Root: filepath.Join(root, "work")})
	for path, want := range map[string]string{
		"out": "leads out", "up": "leads out", "outdir/secret": "leads out", "loop": "leads out", "dev": "leads out",
		"fifo": "not a regular file", "tofifo": "not a regular file", "dir": "is a folder", "missing": "there is no `missing`", "missing/x": "there is no",
	} {
		out, err := run(t, ts[ReadFile], map[string]any{"path": path})
		fails(t, root, out, err, want)
	}
	for path, want := range map[string]string{
		"out": "not a regular file", "up": "not a regular file", "outdir/new": "leads out", "outdir/sub/new": "leads out", "fifo": "not a regular file",
		"dir": "not a regular file", "loop": "not a regular file", "ok/new": "leads out", "inside": "not a regular file",
	} {
		out, err := run(t, ts[WriteFile], map[string]any{"path": path, "content": "overwritten"})
		fails(t, root, out, err, want)
	}
	for path, want := range map[string]string{"outdir": "leads out", "ok": "not a folder", "fifo": "not a folder", "missing": "there is no"} {
		out, err := run(t, ts[ListFiles], map[string]any{"path": path})
		fails(t, root, out, err, want)
	}
	if out, err := run(t, ts[ReadFile], map[string]any{"path": "inside"}); err != nil || out != "x" {
		t.Errorf("link inside: %q, %v", out, err)
	}
	out, err := run(t, ts[ListFiles], nil)
	if err != nil || !strings.Contains(out, `{"path":"outdir","type":"link"}`) || !strings.Contains(out, `{"path":"fifo","type":"other"}`) ||
		strings.Contains(out, "outdir/") || strings.Contains(out, "secret") {
		t.Errorf("list: %s, %v", out, err)
	}
	if data, err := os.ReadFile(filepath.Join(root, "secret")); err != nil || string(data) != "secret" {
		t.Errorf("the secret is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(root, "new")); err == nil {
		t.Error("a file was made outside")
	}
}

// C05: cut at rune borders, bytes that are not UTF-8 replaced, always marked.
func TestReadBounds(t *testing.T) {
	root := t.TempDir()
	const limit = 100
	ts := tools(t, Config{Root: root, Shared: true, MaxRead: limit})
	lines := "l1\nl2\nl3\nl4"
	for i, test := range []struct {
		content string
		args    map[string]any
		want    string
	}{
		{"", nil, ""},
		{lines, nil, lines},
		{lines, map[string]any{"offset": 2, "limit": 2}, "l2\nl3\n[there is more; go on with offset 4]"},
		{lines, map[string]any{"offset": 4}, "l4"},
		{lines, map[string]any{"offset": 4, "limit": 9}, "l4"},
		{lines + "\n", map[string]any{"offset": 4, "limit": 1}, "l4\n"},
		{lines, map[string]any{"limit": 1}, "l1\n[there is more; go on with offset 2]"},
		{strings.Repeat("x", limit), nil, strings.Repeat("x", limit)},
		{strings.Repeat("x", limit-1) + "🏷y", nil, strings.Repeat("x", limit-1) + "\n[line 1 is cut after 99 bytes; the next line has offset 2]"},
		{"ab\n" + strings.Repeat("x", limit), nil, "ab\n[cut after 3 bytes; go on with offset 2]"},
		{"a\xff\xfeb", nil, "a\ufffd\ufffdb\n[bytes that are not UTF-8 were replaced]"},
		{strings.Repeat("\xff", limit), nil, strings.Repeat("\ufffd", 33) + "\n[line 1 is cut after 99 bytes; the next line has offset 2; bytes that are not UTF-8 were replaced]"},
		{strings.Repeat("x", 1<<20) + "\nlast", map[string]any{"offset": 2}, "last"},
	} {
		put(t, test.content, root, "f")
		args := map[string]any{"path": "f"}
		for k, v := range test.args {
			args[k] = v
		}
		out, err := run(t, ts[ReadFile], args)
		if err != nil || out != test.want || !utf8.ValidString(out) {
			t.Errorf("%d: %q, %v, want %q", i, out, err, test.want)
		}
	}
	for _, offset := range []int64{3, 1 << 62} {
		put(t, "a\nb\n", root, "f")
		out, err := run(t, ts[ReadFile], map[string]any{"path": "f", "offset": offset})
		fails(t, root, out, err, "has no line")
	}
	big, err := os.Create(filepath.Join(root, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	if err := big.Truncate(1 << 40); err != nil { // sparse: takes no room
		t.Fatal(err)
	}
	out, err := run(t, ts[ReadFile], map[string]any{"path": "big", "offset": 2})
	fails(t, root, out, err, "lies beyond")
	if out, err := run(t, ts[ReadFile], map[string]any{"path": "big"}); err != nil || len(out) > 2*limit {
		t.Errorf("big: %d bytes, %v", len(out), err)
	}
}

func TestListBounds(t *testing.T) {
	root := t.TempDir()
	for i := range maxEntries + 5 {
		put(t, "", root, "d", fmt.Sprintf("%04d", i))
	}
	put(t, "", root, "d", ours+"left-over")
	put(t, "", root, "a/b/c/d/e/f/g/h/i/j")
	ts := tools(t, Config{Root: root, Shared: true})
	var answer struct {
		Entries []struct {
			Path string
		}
		Truncated bool
	}
	for _, test := range []struct {
		args      map[string]any
		n         int
		truncated bool
	}{
		{map[string]any{"path": "d"}, maxEntries, true},
		{nil, maxEntries, true},
		{map[string]any{"path": "a", "depth": 2}, 2, false},
		{map[string]any{"path": "a", "depth": 8}, 8, false},
		{map[string]any{"path": "a", "depth": 1 << 40}, 8, false},
	} {
		out, err := run(t, ts[ListFiles], test.args)
		if err != nil {
			t.Fatal(err)
		}
		v, err := canonjson.Canonicalize([]byte(out), canonjson.Limits{})
		if err != nil || string(v) != out {
			t.Errorf("not canonical: %v", err)
		}
		answer.Entries = nil
		if err := json.Unmarshal([]byte(out), &answer); err != nil {
			t.Fatal(err)
		}
		if len(answer.Entries) != test.n || answer.Truncated != test.truncated || strings.Contains(out, ours) {
			t.Errorf("%v: %d entries, truncated %v", test.args, len(answer.Entries), answer.Truncated)
		}
	}
}

// A reader sees the old file or the new one, and nothing is left over.
func TestWriteIsAtomic(t *testing.T) {
	root := t.TempDir()
	ts := tools(t, Config{Root: root, Shared: true, MaxRead: 1 << 20})
	versions := []string{strings.Repeat("a", 100_000), strings.Repeat("b", 50_000)}
	put(t, versions[0], root, "f")
	if err := os.Chmod(filepath.Join(root, "f"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, content := range versions {
		wg.Go(func() {
			for range 20 {
				if _, err := run(t, ts[WriteFile], map[string]any{"path": "f", "content": content}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				if out, err := run(t, ts[ReadFile], map[string]any{"path": "f"}); err != nil || (out != versions[0] && out != versions[1]) {
					t.Errorf("%d bytes, %v", len(out), err)
				}
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 2 { // the file, and the identity of the root
		t.Errorf("%v, %v", entries, err)
	}
	if info, err := os.Stat(filepath.Join(root, "f")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestDefinitions(t *testing.T) {
	ts := tools(t, Config{Root: t.TempDir()})
	levels := map[string]tool.Level{
		ListFiles: tool.Read, ReadFile: tool.Read, SearchFiles: tool.Read, WriteFile: tool.Write, EditFile: tool.Write,
	}
	if len(ts) != len(levels) {
		t.Errorf("%d tools", len(ts))
	}
	for name, level := range levels {
		d := ts[name].Definition()
		if d.Level != level || !d.Confined || d.Source != tool.Local || d.Idempotent {
			t.Errorf("%s: %+v", name, d)
		}
		for _, schema := range []canonjson.Value{d.InputSchema, d.OutputSchema} {
			if schema.IsZero() {
				continue
			}
			v, err := canonjson.Canonicalize(schema, canonjson.Limits{})
			if err != nil || !bytes.Equal(v, schema) {
				t.Errorf("%s: schema is not canonical: %v\n%s\n%s", name, err, schema, v)
			}
			if !bytes.Contains(schema, []byte(`{"additionalProperties":false,"properties"`)) {
				t.Errorf("%s: schema is open", name)
			}
		}
	}
	only := tools(t, Config{Root: t.TempDir(), Allow: []string{ReadFile}})
	if len(only) != 1 || only[ReadFile] == nil {
		t.Errorf("allowed: %v", only)
	}
	for _, bad := range []Config{{}, {Root: t.TempDir(), Allow: []string{"shell"}}} {
		if _, err := New(bad); !problem.Is(err, "invalid_tool") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ts[ListFiles].Run(ended, tool.Call{UserID: "u", SessionID: "s", Input: input(t, nil)}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// No path, whatever it is, reaches the file outside.
func FuzzPath(f *testing.F) {
	root := f.TempDir()
	for _, seed := range []string{"../secret", "a/../../secret", "/secret", "own", `..\secret`, "out"} {
		f.Add(seed)
	}
	work := filepath.Join(root, "work")
	list, err := New(Config{Root: work, Shared: true, Allow: []string{ReadFile}})
	if err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "secret"), []byte("secret"), 0o600); err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink("../secret", filepath.Join(work, "out")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		v := append(append([]byte(`{"path":`), canonjson.AppendString(nil, path)...), '}')
		r, err := list[0].Run(t.Context(), tool.Call{Input: v})
		if err == nil {
			t.Errorf("%q gave %q", path, r.Output)
		}
		var e *tool.Error
		if !errors.As(err, &e) || strings.Contains(e.Message, root) {
			t.Errorf("%q: %v", path, err)
		}
	})
}

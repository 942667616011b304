package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/tool"
)

func one(old, new string) []map[string]any {
	return []map[string]any{{"old_text": old, "new_text": new}}
}

func TestEdit(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "ann", "ses_1", "notes", "a.md")
	put(t, "one\r\ntwo\nthree\ntwo\n", file)
	if err := os.Chmod(file, 0o666); err != nil { // more than a umask leaves to new files
		t.Fatal(err)
	}
	edit := tools(t, Config{Root: root})[EditFile]
	args := map[string]any{"path": "notes/a.md", "edits": []map[string]any{
		{"old_text": "one\r\n", "new_text": "1\r\n"},
		{"old_text": "two", "new_text": "2", "all": true},
	}}
	want := "edited notes/a.md in 3 places, 13 bytes now\n@@ line 1 @@\n-one\r\n+1\r\n@@ line 2 @@\n-two\n+2\n@@ line 4 @@\n-two\n+2"
	if out, err := run(t, edit, args); err != nil || out != want {
		t.Errorf("%q, %v", out, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "1\r\n2\nthree\n2\n" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// All or none.
	args["edits"] = append(one("three", "3"), one("four", "4")...)
	out, err := run(t, edit, args)
	fails(t, root, out, err, "`notes/a.md`: edit 2 of 2: old_text is not there")
	if data, err := os.ReadFile(file); err != nil || string(data) != "1\r\n2\nthree\n2\n" {
		t.Errorf("%q, %v", data, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestEditRefusals(t *testing.T) {
	root := t.TempDir()
	own := filepath.Join(root, "work", "ann", "ses_1")
	put(t, "secret", root, "secret")
	put(t, "x", own, "ok")
	put(t, "x\xff", own, "latin1")
	put(t, "x"+strings.Repeat("y", maxWrite), own, "large")
	put(t, "x"+strings.Repeat("y", maxWrite-1), own, "full")
	link(t, "../../../secret", own, "out")
	link(t, "../../..", own, "outdir")
	link(t, "ok", own, "inside")
	edit := tools(t, Config{Root: filepath.Join(root, "work")})[EditFile]
	for _, test := range []struct {
		path  string
		edits []map[string]any
		want  string
	}{
		{"out", one("secret", "x"), "is a link; name the file itself"},
		{"inside", one("x", "y"), "is a link; name the file itself"},
		{"outdir/secret", one("secret", "x"), "leads out"},
		{"../../secret", one("secret", "x"), "may not hold .."},
		{".", one("x", "y"), "is a folder"},
		{"missing", one("x", "y"), "there is no `missing`"},
		{ours + "x", one("x", "y"), "reserved"},
		{"latin1", one("x", "y"), "`latin1` is not UTF-8"},
		{"large", one("x", "y"), "`large` has more than 1048576 bytes"},
		{"full", one("x", "yy"), "`full`: the text would have 1048577 bytes"},
		{"ok", []map[string]any{{"old_text": "x"}}, "edit 1 lacks old_text or new_text"},
		{"ok", nil, "`ok`: there are no edits"},
	} {
		out, err := run(t, edit, map[string]any{"path": test.path, "edits": test.edits})
		fails(t, root, out, err, test.want)
	}
	if _, err := run(t, edit, map[string]any{"path": "full", "edits": one("x", "y")}); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	for name, want := range map[string]string{filepath.Join(root, "secret"): "secret", filepath.Join(own, "ok"): "x"} {
		if data, err := os.ReadFile(name); err != nil || string(data) != want {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	out, err := run(t, tools(t, Config{Root: t.TempDir()})[EditFile], map[string]any{"path": "a", "edits": one("x", "y")})
	fails(t, root, out, err, "there is no `a`")
}

// What an editor outside wrote between the reading and the writing stays.
func TestEditSeesAnotherEditor(t *testing.T) {
	for name, change := range map[string]func(file string) error{
		"longer": func(file string) error { return os.WriteFile(file, []byte("theirs"), 0o644) },
		"same":   func(file string) error { return os.Chtimes(file, time.Time{}, time.Unix(1, 0)) },
		"another": func(file string) error {
			was, err := os.Stat(file)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(file+"2", []byte("x"), 0o644), os.Chtimes(file+"2", time.Time{}, was.ModTime()), os.Rename(file+"2", file))
		},
		"gone":   os.Remove,
		"a link": func(file string) error { return errors.Join(os.Remove(file), os.Symlink("elsewhere", file)) },
	} {
		folder := t.TempDir()
		put(t, "x", folder, "f")
		dir, err := os.OpenRoot(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, was, err := editable(dir, "f")
		if err != nil {
			t.Fatal(err)
		}
		if err := change(filepath.Join(folder, "f")); err != nil {
			t.Fatal(err)
		}
		if err := swap(dir, "f", "ours", was); err == nil {
			t.Errorf("%s: it was replaced", name)
		} else if name != "gone" {
			fails(t, folder, "", err, "`f` was changed by somebody else meanwhile")
		}
	}
}

// Edits of one turn run beside each other; none is lost, nor is a write.
func TestEditsBesideEachOther(t *testing.T) {
	root := t.TempDir()
	ts := tools(t, Config{Root: root, Shared: true})
	var text strings.Builder
	for i := range 20 {
		fmt.Fprintf(&text, "<%d>\n", i)
	}
	put(t, text.String(), root, "f")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := run(t, ts[EditFile], map[string]any{"path": "f", "edits": one(fmt.Sprintf("<%d>", i), "done")}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if data, err := os.ReadFile(filepath.Join(root, "f")); err != nil || string(data) != strings.Repeat("done\n", 20) {
		t.Errorf("%q, %v", data, err)
	}
}

// A call that waits for another one to be done goes when its time is over.
func TestWaitingEnds(t *testing.T) {
	p := place{root: t.TempDir(), shared: true, writing: make(chan struct{}, 1)}
	done, err := p.alone(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func(context.Context, tool.Call) (tool.Result, error){"edit": p.edit, "write": p.write} {
		args := map[string]any{"path": "f", "content": "x", "edits": one("x", "y")}
		if _, err := call(ended, tool.Call{Input: input(t, args)}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	done()
	if _, err := p.write(t.Context(), tool.Call{Input: input(t, map[string]any{"path": "f", "content": "x"})}); err != nil {
		t.Error(err)
	}
}

package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/problem"
)

func link(t *testing.T, target string, parts ...string) {
	t.Helper()
	if err := os.Symlink(target, filepath.Join(parts...)); err != nil {
		t.Fatal(err)
	}
}

// I-33: no root reaches what the daemon keeps to itself, by whatever name.
func TestForbidden(t *testing.T) {
	dir := t.TempDir()
	put(t, "key", dir, "data", "webhook.secret")
	put(t, "key", dir, "secrets", "api.key")
	put(t, "x", dir, "work", "notes.md")
	put(t, "x", dir, "links", "x")
	link(t, filepath.Join(dir, "data"), dir, "alias")
	link(t, dir, dir, "work", "up")
	link(t, filepath.Join(dir, "secrets", "api.key"), dir, "linked.key")
	link(t, filepath.Join(dir, "nowhere"), dir, "dangling")
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	link(t, filepath.Join(dir, "secrets", "api.key"), dir, "links", "api.key")
	forbidden := []string{at("links", "api.key"), at("data"), at("later", "data"), at("linked.key")}
	for _, root := range []string{
		dir, at("data"), at("data", "below"), at("alias"), at("alias", "below", "more"), at("work", "up", "data"),
		at("secrets"), at("secrets", "api.key"), at("links"), at("later"), at("later", "data", "x"), at("work", "..", "data"), "/", at("dangling"),
	} {
		tools, err := New(Config{Root: root, Shared: true, Forbidden: forbidden})
		if err == nil || tools != nil || !problem.Is(err, "invalid_tool") && root != at("dangling") {
			t.Errorf("%s: %v", root, err)
		}
	}
	for _, name := range []string{"below", "more"} { // a refusal makes nothing
		if _, err := os.Stat(at("data", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, root := range []string{at("work"), at("work", "new"), at("database"), at("data.d"), at("later2")} {
		if _, err := New(Config{Root: root, Shared: true, Forbidden: forbidden}); err != nil {
			t.Errorf("%s: %v", root, err)
		}
	}
	// A link inside a shared root that leads to them is none of its files.
	ts := tools(t, Config{Root: at("work"), Shared: true, Forbidden: forbidden})
	for _, path := range []string{"up/data/webhook.secret", "up/secrets/api.key"} {
		out, err := run(t, ts[ReadFile], map[string]any{"path": path})
		fails(t, dir, out, err, "cannot read")
		out, err = run(t, ts[WriteFile], map[string]any{"path": path, "content": "x"})
		fails(t, dir, out, err, "cannot write")
	}
}

func TestForget(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "work")
	put(t, "outside", dir, "outside", "kept")
	put(t, "own", root, "ann", "ses_1", "a", "b", "own")
	put(t, "ours", root, "ann", "ses_1", ours+"x")
	put(t, "other", root, "ann", "ses_2", "kept")
	put(t, "other", root, "bob", "ses_1", "kept")
	link(t, filepath.Join(dir, "outside"), root, "ann", "ses_1", "out")
	link(t, "../../bob/ses_1", root, "ann", "ses_1", "a", "in")
	link(t, filepath.Join(dir, "outside"), root, "ann", "ses_3")
	link(t, "bob", root, "eve")
	for range 2 { // again is no error
		if err := Forget(root, "ann", "ses_1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := Forget(root, "ann", "ses_3"); err != nil { // a link in its place goes, what it leads to stays
		t.Error(err)
	}
	if err := Forget(root, "eve", "ses_1"); err == nil || strings.Contains(err.Error(), "not found") {
		t.Errorf("a link in place of the user's folder: %v", err)
	}
	for _, id := range [][2]string{{"carl", "ses_1"}, {"..", "work"}, {"ann", ".."}, {"ann", "."}, {"ann", ""}} {
		if err := Forget(root, id[0], id[1]); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := Forget(filepath.Join(dir, "none"), "ann", "ses_1"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"work/ann/ses_2/kept", "work/bob/ses_1/kept", "outside/kept"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"work/ann/ses_1", "work/ann/ses_3"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there still: %v", name, err)
		}
	}
}

// Held names the sessions of all users, and nothing that is no session's folder.
func TestHeld(t *testing.T) {
	root := filepath.Join(t.TempDir(), "work")
	if ids, err := Held(root); err != nil || ids != nil {
		t.Errorf("no root: %q, %v", ids, err)
	}
	put(t, "x", root, "ann", "ses_1", "a", "b")
	put(t, "x", root, "ann", "file")
	put(t, "x", root, "bob", "ses_2", "c")
	put(t, "x", root, "bob", "~%41", "c")
	put(t, "x", root, "file")
	put(t, "x", filepath.Dir(root), "outside", "ses_3", "x")
	link(t, "../outside", root, "eve")
	link(t, "../../outside/ses_3", root, "bob", "ses_3")
	ids, err := Held(root)
	if err != nil || !slices.Equal(ids, []string{"ses_1", "ses_2"}) {
		t.Errorf("%q, %v", ids, err)
	}
}

package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// fileHouse is a house whose model writes what it is told: "write PATH TEXT".
func fileHouse(t *testing.T, settings string) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir()}
	var rules strings.Builder
	rules.WriteString("rules:\n")
	for _, word := range []string{"one", "two", "SECRET-A", "SECRET-B"} {
		fmt.Fprintf(&rules, "  - {when: {contains: %q, turn: 1}, reply: {tool_calls: [{name: write_file, arguments: {path: f.txt, content: %q}}]}}\n", "write "+word, word+"\n")
	}
	rules.WriteString("  - {when: {contains: look, turn: 1}, reply: {tool_calls: [{name: read_file, arguments: {path: f.txt}}]}}\n  - reply: {text: done}\n")
	if err := os.WriteFile(filepath.Join(h.dir, "script.yaml"), []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	h.configure(settings)
	t.Cleanup(h.stop)
	h.open()
	return h
}

func (h *house) configure(settings string) {
	h.t.Helper()
	cfg, err := config.Parse([]byte("listen: 127.0.0.1:0\nroutes: {main: {provider: scripted, script: script.yaml}}\n"+settings), filepath.Join(h.dir, "holdfast.yaml"), h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	h.cfg = cfg
}

const desk = "tools: {desk: {type: workspace, root: work, allow: [read_file, write_file]}}\n"

// say submits and wants an answer.
func (h *house) say(session, text string) *api.Run {
	h.t.Helper()
	r := h.submit(session, &api.SubmitRun{Content: api.Text(text)})
	if r.Status != api.RunCompleted {
		h.t.Fatalf("%s: %+v", r.Status, r.Error)
	}
	return r
}

// ends gives the ends of the steps of a session that tell of files.
func (h *house) ends(session string) (list []*event.StepEnded) {
	h.t.Helper()
	page, err := h.c.SessionEvents(h.t.Context(), session, client.EventsQuery{Types: []string{"step.ended"}}, 0, 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range page.Items {
		ev := event.Event{Type: event.Type(e.Type), Version: e.Version, Raw: []byte(e.Data)}
		if err := ev.Decode(); err != nil {
			h.t.Fatal(err)
		}
		if d := ev.Data.(*event.StepEnded); d.Snapshot != nil {
			list = append(list, d)
		}
	}
	return list
}

// holds says whether a file below a folder has a text.
func holds(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		found = found || bytes.Contains(data, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (h *house) store() string { return filepath.Join(h.dir, "holdfast-data", "files") }

// A step names what it changed, the difference can be read after a restart, and
// erasing leaves nothing of it.
func TestFilesThatARunChanged(t *testing.T) {
	h := fileHouse(t, desk)
	s, other := h.session(nil), h.session(nil)
	h.say(s, "look") // nothing is there yet, and nothing changes
	if ends := h.ends(s); len(ends) != 0 {
		t.Fatalf("a step that only reads has snapshots: %+v", ends)
	}
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{}); client.Code(err) != "no_snapshots" {
		t.Errorf("no snapshots: %v", err)
	}
	h.say(s, "write one")
	two := h.say(s, "write two")
	h.say(s, "write two")
	h.say(other, "write SECRET-A")
	ends := h.ends(s)
	if len(ends) != 3 || len(ends[0].Files.List) != 1 || ends[0].Files.List[0] != (event.FileChange{Path: "f.txt", Change: event.FileAdded, Bytes: 4}) ||
		ends[1].Files.List[0].Change != event.FileModified || len(ends[2].Files.List) != 0 || ends[1].Snapshot.Tree != ends[2].Snapshot.Tree {
		t.Errorf("%+v", ends)
	}
	h.restart()
	d, err := h.c.Diff(t.Context(), s, client.DiffQuery{Run: two.ID})
	if err != nil || len(d.Files) != 1 || d.Files[0].Diff != "@@ -1 +1 @@\n-one\n+two\n" {
		t.Errorf("%+v %v", d, err)
	}
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{From: ends[0].Snapshot.Tree, To: h.ends(other)[0].Snapshot.Tree}); client.Code(err) != "no_snapshots" {
		t.Errorf("a tree of another session: %v", err) // I-34
	}
	if err := h.c.EraseSession(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(h.dir, "work"), h.store()} {
		if holds(t, dir, "SECRET-A") {
			t.Errorf("%s holds what was erased", dir)
		}
	}
	if _, err := h.c.Diff(t.Context(), other, client.DiffQuery{}); client.Code(err) != "session_erased" {
		t.Errorf("of an erased session: %v", err)
	}
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{}); err != nil {
		t.Errorf("the other session's are gone too: %v", err)
	}
}

// Sessions that share a workspace share what is kept of it; erasing one takes
// what only it had, also when the process died in between.
func TestFilesOfASharedWorkspace(t *testing.T) {
	h := fileHouse(t, "tools: {desk: {type: workspace, root: work, shared: true, allow: [read_file, write_file]}}\n")
	a, b := h.session(nil), h.session(nil)
	h.say(a, "write SECRET-A")
	h.say(b, "write one")
	d, err := h.c.Diff(t.Context(), b, client.DiffQuery{})
	if err != nil || d.Files[0].Diff != "@@ -1 +1 @@\n-SECRET-A\n+one\n" {
		t.Errorf("%+v %v", d, err)
	}
	if err := h.c.EraseSession(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if !holds(t, h.store(), "SECRET-A") || holds(t, h.store(), "one\n") {
		t.Error("erasing took too much, or too little")
	}
	// What a process that died left of an erased session goes at the next start.
	left := filepath.Join(h.store(), b, "objects", "ab")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, strings.Repeat("0", 62)), []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.restart()
	for deadline := time.Now().Add(*patience); ; <-time.After(10 * time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(h.store(), b)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("what was left is there")
		}
	}
	if !holds(t, h.store(), "SECRET-A") {
		t.Error("what was not to go is gone")
	}
}

// A workspace past the bounds has no snapshots, and its runs go on.
func TestFilesPastTheBounds(t *testing.T) {
	h := fileHouse(t, desk+"files: {tree_bytes: 3}\n")
	s := h.session(nil)
	h.say(s, "write one")
	h.say(s, "write two")
	if ends := h.ends(s); len(ends) != 0 {
		t.Errorf("%+v", ends)
	}
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{}); client.Code(err) != "no_snapshots" {
		t.Errorf("%v", err)
	}
}

// Snapshots that went, and those of another node, are told apart.
func TestFilesThatAreNotHere(t *testing.T) {
	h := fileHouse(t, desk)
	s := h.session(nil)
	h.say(s, "write one")
	swap := func(settings string, between func()) {
		t.Helper()
		if err := h.d.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		h.configure(settings)
		between()
		h.open()
	}
	swap(desk+"files: {off: true}\n", func() {})
	h.say(s, "write two")
	if ends := h.ends(s); len(ends) != 1 {
		t.Errorf("snapshots are off, and there are %d", len(ends))
	}
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{}); err != nil {
		t.Errorf("what was made before cannot be read: %v", err)
	}
	node := h.ends(s)[0].Snapshot.Node
	swap(desk+"files: {dir: elsewhere}\n", func() {})
	_, err := h.c.Diff(t.Context(), s, client.DiffQuery{})
	if client.Code(err) != "snapshot_elsewhere" || !strings.Contains(err.Error(), node) {
		t.Errorf("of another node: %v", err)
	}
	swap(desk, func() {
		if err := os.RemoveAll(filepath.Join(h.store(), s)); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := h.c.Diff(t.Context(), s, client.DiffQuery{}); client.Code(err) != "snapshot_gone" {
		t.Errorf("of one that went: %v", err)
	}
}

package filetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// house is a store and a workspace.
type house struct {
	t     testing.TB
	store *Store
	dir   string // of the workspace
	at    Place
}

func newHouse(t testing.TB, change ...func(*Config)) *house {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "store"), Host: "a host"}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &house{t: t, store: s, dir: t.TempDir(), at: Place{"ses_1", "ses_1"}}
}

func (h *house) write(name, content string) {
	h.t.Helper()
	full := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) open() (*os.Root, error) { return os.OpenRoot(h.dir) }

func (h *house) try() (Tree, error) { return h.store.Capture(context.Background(), h.at, h.open) }

func (h *house) capture() Tree {
	h.t.Helper()
	t, err := h.try()
	h.must(err)
	return t
}

// changes gives "kind path old>new" of each change.
func (h *house) changes(from, to Tree) []string {
	h.t.Helper()
	list, more, err := h.store.Changes(context.Background(), h.at.Space, from, to, 1000)
	if err != nil || more != 0 {
		h.t.Fatal(err, more)
	}
	out := []string{}
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s %s %d>%d", c.Kind, c.Path, c.Old, c.New))
	}
	return out
}

func (h *house) same(got []string, want ...string) {
	h.t.Helper()
	if !slices.Equal(got, want) {
		h.t.Errorf("\ngot  %q\nwant %q", got, want)
	}
}

func TestChanges(t *testing.T) {
	h := newHouse(t)
	none, err := h.store.Capture(context.Background(), h.at, func() (*os.Root, error) { return nil, nil })
	h.must(err)
	if h.capture() != none || none != Empty {
		t.Error("a folder that holds nothing is another tree than none")
	}
	h.write("a.txt", "one\ntwo\n")
	h.write("sub/b.txt", "b")
	h.write("sub/deep/c.bin", "\x00c")
	h.write("x", "a file that becomes a folder")
	h.must(os.Symlink("a.txt", filepath.Join(h.dir, "link")))
	h.must(os.MkdirAll(filepath.Join(h.dir, "nothing/in/it"), 0o755))
	one := h.capture()
	if h.capture() != one {
		t.Error("the same files are another tree")
	}
	h.same(h.changes(none, one), "added a.txt 0>8", "added link 0>5", "added sub/b.txt 0>1", "added sub/deep/c.bin 0>2", "added x 0>28")
	h.same(h.changes(one, one))
	h.write("a.txt", "one\n2\n")
	h.must(os.RemoveAll(filepath.Join(h.dir, "sub/deep")))
	h.must(os.Chmod(filepath.Join(h.dir, "sub/b.txt"), 0o755))
	h.must(os.Remove(filepath.Join(h.dir, "link")))
	h.must(os.Symlink("elsewhere", filepath.Join(h.dir, "link")))
	h.must(os.Remove(filepath.Join(h.dir, "x")))
	h.write("x/y", "")
	two := h.capture()
	h.same(h.changes(one, two), "modified a.txt 8>6", "modified link 5>9", "mode sub/b.txt 1>1", "deleted sub/deep/c.bin 2>0", "deleted x 28>0", "added x/y 0>0")
	list, more, err := h.store.Changes(context.Background(), h.at.Space, one, two, 2)
	if err != nil || len(list) != 2 || more != 4 {
		t.Errorf("%d changes and %d more: %v", len(list), more, err)
	}
	files, _, err := h.store.Diff(context.Background(), h.at.Space, one, two, false)
	h.must(err)
	if files[0].Text != "@@ -1,2 +1,2 @@\n one\n-two\n+2\n" || files[0].Added != 1 || files[0].Deleted != 1 {
		t.Errorf("%+v", files[0])
	}
	if !files[3].Binary || files[3].Text != "" || files[2].Text != "" {
		t.Errorf("%+v", files)
	}
	info, err := os.Stat(h.store.Dir())
	h.must(err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the store is %v", info.Mode())
	}
	if _, err := New(h.store.cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("two have the same store: %v", err)
	}
	// Another process reads what this one wrote.
	h.store.Close()
	again, err := New(h.store.cfg)
	h.must(err)
	defer again.Close()
	if again.Node() != h.store.Node() || !strings.HasPrefix(again.Node(), "a-host-") {
		t.Errorf("the store is called %s, then %s", h.store.Node(), again.Node())
	}
	if got, _, err := again.Changes(context.Background(), h.at.Space, one, two, 10); err != nil || len(got) != 6 {
		t.Errorf("after a restart: %v %v", got, err)
	}
}

// Names are any bytes. As shown they are UTF-8 and bounded.
func TestHostileNames(t *testing.T) {
	h := newHouse(t)
	names := []string{"a\nb", "\xff\xfe", "\xff\xfd", `back\slash`, `"quoted"`, "tab\t", " ", "-rf", "...", "..x", "\x1b[31mred", "sha256:0", "ünï", strings.Repeat("n", 255)}
	for _, n := range names {
		h.write(n, n)
	}
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 9) + "end"
	h.must(os.MkdirAll(filepath.Join(h.dir, filepath.Dir(deep)), 0o755))
	h.write(deep, "deep")
	files, _, err := h.store.Diff(context.Background(), h.at.Space, Empty, h.capture(), false)
	h.must(err)
	if len(files) != len(names)+1 {
		t.Fatalf("%d files", len(files))
	}
	for _, f := range files {
		if len(f.Path) > maxShown || strings.ToValidUTF8(f.Path, "?") != f.Path {
			t.Errorf("shown as %q", f.Path)
		}
	}
	before := h.capture()
	h.write("\xff\xfe", "other")
	h.same(h.changes(before, h.capture()), "modified \ufffd\ufffd 2>5")
	h.must(os.Remove(filepath.Join(h.dir, "\xff\xfd")))
	if got := h.changes(before, h.capture()); len(got) != 2 {
		t.Errorf("names that look the same are apart: %q", got)
	}
}

// Links are recorded and never followed, pipes and sockets passed over.
func TestLinksAndSpecialFiles(t *testing.T) {
	h := newHouse(t)
	outside := t.TempDir()
	h.must(os.WriteFile(filepath.Join(outside, "secret"), []byte("TOPSECRET"), 0o600))
	h.must(os.Symlink(outside, filepath.Join(h.dir, "out")))
	h.must(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(h.dir, "file")))
	h.must(os.Symlink(".", filepath.Join(h.dir, "loop")))
	h.must(syscall.Mkfifo(filepath.Join(h.dir, "pipe"), 0o600))
	h.must(syscall.Mkfifo(filepath.Join(h.dir, ".gitignore"), 0o600))
	h.write("plain", "p")
	tree := h.capture()
	got := h.changes(Empty, tree)
	h.same(got, fmt.Sprintf("added file 0>%d", len(outside)+7), fmt.Sprintf("added loop 0>%d", 1), fmt.Sprintf("added out 0>%d", len(outside)), "added plain 0>1")
	h.noSecret("TOPSECRET")
}

// noSecret looks through the whole store.
func (h *house) noSecret(text string) {
	h.t.Helper()
	h.must(filepath.WalkDir(h.store.Dir(), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if strings.Contains(string(data), text) {
			h.t.Errorf("%s holds it", name)
		}
		return err
	}))
}

// A link that takes the place of a file or a folder while it is looked at does
// not lead out, nor to where else in the workspace it points.
func TestSymlinkRace(t *testing.T) {
	h := newHouse(t)
	outside := t.TempDir()
	h.must(os.WriteFile(filepath.Join(outside, "f"), []byte("TOPSECRET"), 0o600))
	h.write("a/f", "inside a")
	h.write("other/f", "of other")
	stop := make(chan struct{})
	done := make(chan struct{})
	name := filepath.Join(h.dir, "a")
	aside := filepath.Join(h.dir, ".holdfast-aside")
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			to := []string{outside, "other"}[i%2]
			if os.Rename(name, aside) != nil || os.Symlink(to, name) != nil || os.Remove(name) != nil || os.Rename(aside, name) != nil {
				return
			}
		}
	}()
	for range 300 {
		tree, err := h.try()
		if err != nil {
			continue // it may fail; what it must not do is follow
		}
		list, _, err := h.store.Diff(context.Background(), h.at.Space, Empty, tree, false)
		h.must(err)
		for _, f := range list {
			if f.Path == "a/f" && !f.Unheld && f.Text != "@@ -0,0 +1 @@\n+inside a\n\\ No newline at end of file\n" {
				t.Fatalf("a link was followed: %+v", f)
			}
		}
	}
	close(stop)
	<-done
	h.noSecret("TOPSECRET")
}

// The same at the worst moment: what was looked at is another thing when it is opened.
func TestSwappedWhileLookedAt(t *testing.T) {
	for name, row := range map[string]struct {
		swap func(h *house) // of a, which is looked at
		dir  bool
		want string
	}{
		"a folder by a link to another":     {func(h *house) { h.must(os.Symlink("other", filepath.Join(h.dir, "a"))) }, true, "added a"},
		"a folder by a link that leads out": {func(h *house) { h.must(os.Symlink("/", filepath.Join(h.dir, "a"))) }, true, "added a"},
		"a folder by another":               {func(h *house) { h.write("a/f", "swapped") }, true, "added a"},
		"a file by a link to another":       {func(h *house) { h.must(os.Symlink("other/f", filepath.Join(h.dir, "a"))) }, false, ""},
		"a file by a link that leads out":   {func(h *house) { h.must(os.Symlink("/etc/passwd", filepath.Join(h.dir, "a"))) }, false, "added a"},
		"a file by a pipe":                  {func(h *house) { h.must(syscall.Mkfifo(filepath.Join(h.dir, "a"), 0o600)) }, false, ""},
		"a file by a folder":                {func(h *house) { h.write("a/f", "swapped") }, false, ""},
		"a file by nothing":                 {func(*house) {}, false, ""},
		"a file by another":                 {func(h *house) { h.write("a", "swapped") }, false, "added a 0>7"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.write("other/f", "others") // as long and as old as what it is mistaken for
			at := "a"
			if row.dir {
				at = "a/f"
			}
			h.write(at, "inside")
			then := time.Now().Add(-time.Hour)
			h.must(os.Chtimes(filepath.Join(h.dir, "other/f"), then, then))
			h.must(os.Chtimes(filepath.Join(h.dir, at), then, then))
			h.store.looked = func(path string) {
				if path == "a" {
					h.store.looked = nil
					h.must(os.Rename(filepath.Join(h.dir, "a"), filepath.Join(h.dir, ".holdfast-gone")))
					row.swap(h)
				}
			}
			files, _, err := h.store.Diff(context.Background(), h.at.Space, Empty, h.capture(), false)
			h.must(err)
			got := ""
			for _, f := range files {
				if f.Path != "other/f" {
					got += fmt.Sprintf("%s %s 0>%d", f.Kind, f.Path, f.New)
					if strings.Contains(f.Text, "others") || strings.Contains(f.Text, "root:") {
						t.Errorf("a link was followed: %+v", f)
					}
				}
			}
			if !strings.HasPrefix(got, row.want) || row.want == "" && got != "" {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

// age makes what is remembered of files so old that it is believed.
func (h *house) age() {
	sp := h.store.spaces[h.at.Space]
	for name, st := range sp.index {
		st.read += int64(time.Hour)
		sp.index[name] = st
	}
}

// What is too large is named and not held; a change of it is seen.
func TestHugeFile(t *testing.T) {
	h := newHouse(t)
	h.write("big", "x")
	h.must(os.Truncate(filepath.Join(h.dir, "big"), 1<<40))
	one := h.capture()
	if reads := h.store.reads.Load(); reads != 0 {
		t.Errorf("it was read: %d", reads)
	}
	h.must(os.Truncate(filepath.Join(h.dir, "big"), 1<<41))
	two := h.capture()
	h.same(h.changes(one, two), fmt.Sprintf("modified big %d>%d", 1<<40, 1<<41))
	files, _, err := h.store.Diff(context.Background(), h.at.Space, one, two, false)
	if err != nil || !files[0].Unheld {
		t.Errorf("%+v %v", files, err)
	}
	h.write("big", "small again")
	h.same(h.changes(two, h.capture()), fmt.Sprintf("modified big %d>11", 1<<41))
}

// Past a bound there is no snapshot; then the workspace is left alone for a while.
func TestCaps(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		fill   func(*house)
	}{
		"files": {func(c *Config) { c.TreeFiles = 3 }, func(h *house) {
			for i := range 4 {
				h.write(fmt.Sprint(i), "x")
			}
		}},
		"ignored names": {func(c *Config) { c.TreeFiles = 3 }, func(h *house) {
			h.write(".gitignore", "*.tmp\n")
			for i := range 13 {
				h.write(fmt.Sprint(i, ".tmp"), "x")
			}
		}},
		"bytes": {func(c *Config) { c.TreeBytes = 10 }, func(h *house) { h.write("a", "123456"); h.write("b", "12345") }},
		"depth": {func(*Config) {}, func(h *house) { h.write(strings.Repeat("d/", maxDepth+1)+"f", "x") }},
		"path":  {func(*Config) {}, func(h *house) { h.longPath() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, c.change)
				c.fill(h)
				if _, err := h.try(); !errors.Is(err, ErrTooLarge) {
					t.Fatal(err)
				}
				if _, err := h.try(); !errors.Is(err, ErrPaused) {
					t.Fatal(err)
				}
				time.Sleep(pause + time.Second)
				if _, err := h.try(); !errors.Is(err, ErrTooLarge) {
					t.Fatal(err)
				}
				time.Sleep(maxPause)
				h.must(os.RemoveAll(h.dir))
				h.must(os.Mkdir(h.dir, 0o700))
				if h.capture() != Empty {
					t.Error("not empty")
				}
				h.store.Close()
			})
		})
	}
}

// What is too large is found out before it is written, and what was written of
// one that became too large does not stay.
func TestTooLargeLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, func(c *Config) { c.TreeBytes = 1000 })
		h.write("a", strings.Repeat("a", 600))
		h.write("b", strings.Repeat("b", 600))
		if _, err := h.try(); !errors.Is(err, ErrTooLarge) || h.store.reads.Load() != 0 || h.objects() != 0 {
			t.Errorf("%v after %d reads, %d objects", err, h.store.reads.Load(), h.objects())
		}
		h.must(os.Remove(filepath.Join(h.dir, "b")))
		time.Sleep(time.Hour)
		tree := h.capture()
		h.write("0", strings.Repeat("0", 600)) // read first
		if _, err := h.try(); !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		h.store.work.Wait()
		if h.objects() != 2 {
			t.Errorf("%d objects", h.objects())
		}
		h.same(h.changes(Empty, tree), "added a 0>600")
		h.store.Close()
	})
}

// longPath makes folders whose path is longer than the system takes at once.
func (h *house) longPath() {
	root, err := os.OpenRoot(h.dir)
	h.must(err)
	for range 25 {
		name := strings.Repeat("p", 200)
		h.must(root.Mkdir(name, 0o755))
		next, err := root.OpenRoot(name)
		h.must(err)
		root.Close()
		root = next
	}
	h.must(root.WriteFile("f", nil, 0o600))
	root.Close()
}

// A file that stands as it stood is not read again, unless it is so young that
// this proves nothing.
func TestUnchangedIsNotRead(t *testing.T) {
	h := newHouse(t)
	h.write("old", "o")
	h.write("young", "y")
	h.capture()
	old := time.Now().Add(-time.Hour)
	sp := h.store.spaces["ses_1"]
	for name, st := range sp.index { // as if it had been read long after it changed
		if name == "old" {
			st.read += int64(time.Hour)
			sp.index[name] = st
		}
	}
	reads := h.store.reads.Load()
	h.capture()
	if n := h.store.reads.Load() - reads; n != 1 {
		t.Errorf("%d files were read, want the young one only", n)
	}
	// Size and times that a program can set are not believed alone.
	before := h.capture()
	h.write("old", "0")
	h.must(os.Chtimes(filepath.Join(h.dir, "old"), old, old))
	h.same(h.changes(before, h.capture()), "modified old 1>1")
}

func TestRacyRule(t *testing.T) {
	now := int64(1e18)
	base := stat{size: 1, mode: 0o644, device: 1, inode: 2, modified: now, changed: now, read: now + slack + 1, kind: file}
	for name, c := range map[string]struct {
		change func(seen, now *stat)
		want   bool
	}{
		"as it stood":           {func(*stat, *stat) {}, true},
		"read in the same tick": {func(s, _ *stat) { s.read = now + slack }, false},
		"changed after reading": {func(s, _ *stat) { s.read = now - 1 }, false},
		"in the future":         {func(s, n *stat) { s.modified, n.modified = now*2, now*2 }, false},
		"other size":            {func(_, n *stat) { n.size = 2 }, false},
		"other time":            {func(_, n *stat) { n.modified-- }, false},
		"time set back":         {func(_, n *stat) { n.changed++ }, false},
		"another file":          {func(_, n *stat) { n.inode++ }, false},
		"other device":          {func(_, n *stat) { n.device++ }, false},
		"other mode":            {func(_, n *stat) { n.mode = 0o600 }, false},
	} {
		seen, at := base, base
		c.change(&seen, &at)
		if seen.unchanged(&at) != c.want {
			t.Errorf("%s: unchanged is %v", name, !c.want)
		}
	}
}

func TestIgnore(t *testing.T) {
	h := newHouse(t, func(c *Config) { c.Ignore = []string{"node_modules", "*.bak", "gen/**"} })
	h.write(".gitignore", strings.Join([]string{
		"# comment", "", "*.log", "!keep.log", "/top", "build/", "docs/*.html", "**/cache", "a/**/z", "[Tt]emp?", "sp ace  ", `es\*caped`, "{x}", "/lead*", ".gitignore",
	}, "\n")+"\n")
	h.write("sub/.gitignore", "local\n!extra.log\n/only\n")
	held := []string{
		".gitignore", "sub/.gitignore", "keep.log", "sub/top", "build", "sub/docs/a.html", "docs/deep/b.html", "es*caped", "x", "sub/leading", "local", "sub/extra.log", "sub/deep/only", "sub/deep/keep.log", "gen", "temp", "az",
	}
	out := []string{
		"a.log", "sub/b.log", "top/f", "sub/build/f", "docs/a.html", "deep/cache/f", "cache2/cache", "a/z", "a/b/c/z", "temp1", "Temp2", "sp ace", "{x}", "leading", "sub/local", "sub/deep/local", "sub/only",
		".git/config", "sub/.GIT/x", "node_modules/x", "sub/node_modules/y/z", "a.bak", ".holdfast-tmp", "sub/.Holdfast-x", "gen2/.holdfast-",
	}
	for _, n := range slices.Concat(held, out) {
		if n != ".gitignore" && n != "sub/.gitignore" {
			h.write(n, "x")
		}
	}
	var got []string
	list, _, err := h.store.Changes(context.Background(), h.at.Space, Empty, h.capture(), 1000)
	h.must(err)
	for _, c := range list {
		got = append(got, c.Path)
	}
	slices.Sort(held)
	slices.Sort(got)
	h.same(got, held...)
	// Turned off, the workspace has no say.
	off := newHouse(t, func(c *Config) { c.NoGitignore = true })
	off.write(".gitignore", "*")
	off.write("f", "x")
	off.same(off.changes(Empty, off.capture()), "added .gitignore 0>1", "added f 0>1")
}

// The rules of a workspace are bounded.
func TestManyRules(t *testing.T) {
	rules := parseRules(strings.Repeat("a*b*c\n", 10_000)+"!\n/\n"+strings.Repeat("x", 10_000)+"*[", 0)
	if len(rules) != maxRules {
		t.Errorf("%d rules", len(rules))
	}
	if got := parseRules("!\n/\n//\n***\n[\n"+strings.Repeat("x*", 300)+"\n", 0); len(got) > 2 {
		t.Errorf("%d rules of lines that are none", len(got))
	}
}

func (h *house) objects() (n int) {
	h.t.Helper()
	h.must(filepath.WalkDir(filepath.Join(h.store.Dir(), h.at.Space, "objects"), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	}))
	return n
}

func (h *house) sweep() {
	h.t.Helper()
	h.must(h.store.Sweep(context.Background(), h.at.Space))
}

// The newest trees are kept whole; what only older ones had goes.
func TestSweep(t *testing.T) {
	h := newHouse(t, func(c *Config) { c.Keep = 3 })
	h.write("same", "in all of them")
	var trees []Tree
	for i := range 6 {
		h.write("f", fmt.Sprint("version ", i))
		trees = append(trees, h.capture())
	}
	h.store.work.Wait()
	h.sweep()
	if n := h.objects(); n != 3+3+1 {
		t.Errorf("%d objects", n)
	}
	h.same(h.changes(trees[3], trees[5]), "modified f 9>9")
	if _, _, err := h.store.Changes(context.Background(), h.at.Space, trees[2], trees[5], 9); !errors.Is(err, ErrGone) {
		t.Errorf("of a tree that went: %v", err)
	}
	// What went is written again, though it is remembered as read.
	h.write("g", "of one tree only")
	with := h.capture()
	h.age()
	h.must(os.RemoveAll(h.store.path(h.at.Space, "refs", h.at.Session)))
	h.sweep()
	if h.objects() != 0 {
		t.Errorf("%d objects", h.objects())
	}
	if h.capture() != with {
		t.Error("another tree")
	}
	if files, _, err := h.store.Diff(context.Background(), h.at.Space, Empty, with, false); err != nil || len(files) != 3 {
		t.Errorf("%+v %v", files, err)
	}
}

// A space that is too large gives older trees up.
func TestSpaceBytes(t *testing.T) {
	h := newHouse(t, func(c *Config) { c.SpaceBytes = 40_000 })
	var trees []Tree
	for i := range 20 {
		h.write("f", strings.Repeat(fmt.Sprint(i%10), 5000)+fmt.Sprint(i))
		trees = append(trees, h.capture())
	}
	h.store.work.Wait()
	h.sweep()
	if n := h.objects(); n > 16 {
		t.Errorf("%d objects", n)
	}
	h.same(h.changes(trees[18], trees[19]), "modified f 5002>5002")
}

// Erasing takes a session's trees, and in a shared space what only it had.
func TestErase(t *testing.T) {
	h := newHouse(t)
	h.write("f", "PRIVATE")
	h.capture()
	h.must(h.store.Erase(context.Background(), "ses_1"))
	h.noSecret("PRIVATE")
	if _, err := os.Lstat(filepath.Join(h.store.Dir(), "ses_1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its space is there: %v", err)
	}
	h.capture() // and works again

	h.at = Place{"shared-1", "ses_a"}
	h.write("f", "of both")
	both := h.capture()
	h.write("f", "ONLY-A")
	h.capture()
	h.write("f", "of both")
	h.at.Session = "ses_b"
	h.capture()
	ids, err := h.store.Sessions()
	h.must(err)
	h.same(ids, "ses_1", "ses_a", "ses_b")
	h.must(h.store.Erase(context.Background(), "ses_a"))
	h.noSecret("ONLY-A")
	h.same(h.changes(Empty, both), "added f 0>7")
	ids, err = h.store.Sessions()
	h.must(err)
	h.same(ids, "ses_1", "ses_b")
	h.must(h.store.Erase(context.Background(), "ses_a"))
	for _, name := range []string{"../ses_b", "", ".", "a/b"} {
		h.must(h.store.Erase(context.Background(), name))
		if _, err := h.store.Capture(context.Background(), Place{"shared-1", name}, h.open); err == nil {
			t.Errorf("%q is taken for a session", name)
		}
		if _, err := h.store.Capture(context.Background(), Place{name, "ses_b"}, h.open); err == nil {
			t.Errorf("%q is taken for a space", name)
		}
	}
}

// What a process left that died while it made a snapshot, or erased, is swept.
func TestLeftovers(t *testing.T) {
	h := newHouse(t)
	h.at = Place{"shared-1", "ses_a"}
	h.write("f", "kept")
	tree := h.capture()
	n := h.objects()
	h.must(h.store.begin("shared-1"))
	_, _, err := h.store.put("shared-1", []byte("nobody refers to it"))
	h.must(err)
	h.must(os.WriteFile(h.store.path("shared-1", "objects", tempName+"x"), []byte("half"), 0o600))
	h.must(h.store.Tidy(context.Background(), 10))
	if h.objects() != n {
		t.Errorf("%d objects, want %d", h.objects(), n)
	}
	if _, err := os.Lstat(h.store.path("shared-1", busy)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still marked: %v", err)
	}
	h.same(h.changes(Empty, tree), "added f 0>4")
	// Killed after the trees of a session were let go, before the sweep.
	refs, err := h.store.refs(h.at)
	h.must(err)
	h.must(os.Remove(h.store.path("shared-1", "refs", "ses_a", refs[0].name)))
	ids, err := h.store.Sessions()
	h.must(err)
	if !slices.Contains(ids, "ses_a") {
		t.Fatal("it is not found again")
	}
	h.must(h.store.Erase(context.Background(), "ses_a"))
	if h.objects() != 0 {
		t.Errorf("%d objects are left", h.objects())
	}
}

// An object that is not what its name says is missed, never mistaken, and
// written anew.
func TestCorruptObject(t *testing.T) {
	h := newHouse(t)
	h.write("f", "content")
	tree := h.capture()
	d, _ := tree.parse()
	name := h.store.object(h.at.Space, d)
	data, err := os.ReadFile(name)
	h.must(err)
	data[len(data)-3] ^= 1
	h.must(os.WriteFile(name, data, 0o600))
	if _, _, err := h.store.Changes(context.Background(), h.at.Space, Empty, tree, 9); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
	if h.capture() != tree {
		t.Error("another tree")
	}
	h.same(h.changes(Empty, tree), "added f 0>7")
	for _, bad := range []Tree{"", "sha256:", "sha256:zz", Tree("md5:" + strings.Repeat("0", 64)), Tree(prefix + strings.Repeat("0", 64)), Tree(prefix + "../" + strings.Repeat("0", 61)), Tree(prefix + strings.Repeat("A", 64))} {
		if _, _, err := h.store.Changes(context.Background(), h.at.Space, bad, tree, 9); !errors.Is(err, ErrGone) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A snapshot that is cut leaves nothing that hurts.
func TestCut(t *testing.T) {
	h := newHouse(t)
	for i := range 50 {
		h.write(fmt.Sprint("d", i, "/f"), fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err := h.store.Capture(ctx, h.at, func() (*os.Root, error) { cancel(); return h.open() })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := h.changes(Empty, h.capture()); len(got) != 50 {
		t.Errorf("%d files", len(got))
	}
}

// Whatever two workspaces hold: the changes are what a comparison by hand finds,
// and the differences of texts make the new ones of the old.
func TestDiffMakesTarget(t *testing.T) {
	h := newHouse(t)
	rapid.Check(t, func(r *rapid.T) {
		draw := func(label string) map[string]string {
			return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b/c", "b/d", "b/e/f", "g", "b\n", "\xff"}),
				rapid.SampledFrom([]string{"", "x", "x\n", "x\ny\n", "x\ny\nz", "y\n", "z\nx\ny\n", "x\r\n"}), 0, 7).Draw(r, label)
		}
		hold := func(files map[string]string) Tree {
			h.must(os.RemoveAll(h.dir))
			h.must(os.Mkdir(h.dir, 0o700))
			for n, c := range files {
				h.write(n, c)
			}
			return h.capture()
		}
		a, b := draw("before"), draw("after")
		from, to := hold(a), hold(b)
		files, more, err := h.store.Diff(context.Background(), h.at.Space, from, to, false)
		if err != nil || more != 0 {
			r.Fatal(err, more)
		}
		got := maps.Clone(a)
		for _, f := range files {
			name := string(f.Path)
			if strings.Contains(name, "\ufffd") {
				name = "\xff"
			}
			old, was := a[name]
			text, err := apply(old, f.Text)
			if err != nil {
				r.Fatal(err)
			}
			switch f.Kind {
			case Added:
				if was {
					r.Fatalf("%q is not new", name)
				}
				got[name] = text
			case Deleted:
				if text != "" || !was {
					r.Fatalf("of %q is left %q", name, text)
				}
				delete(got, name)
			case Modified:
				if text == old {
					r.Fatalf("%q did not change", name)
				}
				got[name] = text
			}
		}
		if !maps.Equal(got, b) {
			r.Fatalf("%q → %q gives %q", a, b, got)
		}
	})
}

// apply applies the hunks of a difference.
func apply(old, diff string) (string, error) {
	lines := slices.Collect(strings.Lines(old))
	var out strings.Builder
	at := 0
	rest := slices.Collect(strings.Lines(diff))
	for i, l := range rest {
		text := l[1:]
		if i+1 < len(rest) && rest[i+1][0] == '\\' {
			text = strings.TrimSuffix(text, "\n")
		}
		switch l[0] {
		case '@':
			var from int
			if _, err := fmt.Sscanf(l, "@@ -%d", &from); err != nil {
				return "", err
			}
			for ; at < from-1; at++ {
				out.WriteString(lines[at])
			}
		case '-', ' ':
			if at >= len(lines) || lines[at] != text {
				return "", fmt.Errorf("line %d is not %q", at, text)
			}
			if l[0] == ' ' {
				out.WriteString(text)
			}
			at++
		case '+':
			out.WriteString(text)
		}
	}
	for ; at < len(lines); at++ {
		out.WriteString(lines[at])
	}
	return out.String(), nil
}

func FuzzListing(f *testing.F) {
	f.Add(encode([]entry{{kind: file, perm: 0o644, size: 3, name: "a\xff\n"}, {kind: folder, name: "b"}}))
	f.Add([]byte(heading + "f 644 1 00 \"a\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decode(data)
		if err == nil && string(encode(list)) != string(data) {
			t.Fatalf("%q has a second form", data)
		}
	})
}

func FuzzRules(f *testing.F) {
	f.Add("*.log\n!a/**/b\n/x/\n{a,b}[!c]", "a/b.log")
	f.Fuzz(func(t *testing.T, text, path string) {
		for _, r := range parseRules(text, 0) {
			r.fits(path, path[strings.LastIndexByte(path, '/')+1:], false)
		}
	})
}

// A snapshot of 20,000 files of which one changed since the last.
func BenchmarkUnchanged(b *testing.B) {
	h := newHouse(b)
	for i := range 20_000 {
		h.write(fmt.Sprintf("d%d/f%d.go", i/50, i), fmt.Sprintf("package d%d\n\n// F%d is a function.\nfunc F%d() {}\n", i/50, i, i))
	}
	began := time.Now()
	h.capture()
	first := time.Since(began)
	h.age()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		h.write("one", fmt.Sprint(n))
		h.capture()
	}
	b.ReportMetric(float64(first.Milliseconds()), "first-ms")
}

// What a step costs in a workspace of ten files: two snapshots and a comparison.
func BenchmarkStep(b *testing.B) {
	h := newHouse(b)
	for i := range 10 {
		h.write(fmt.Sprintf("d%d/f%d.go", i/5, i), "package d\n")
	}
	n := 0
	for b.Loop() {
		from := h.capture()
		n++
		h.write("one", fmt.Sprint(n))
		to := h.capture()
		if _, _, err := h.store.Changes(context.Background(), h.at.Space, from, to, 100); err != nil {
			b.Fatal(err)
		}
	}
}

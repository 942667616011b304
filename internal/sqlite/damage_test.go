package sqlite

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storetest"
)

// filled makes a data directory with a log in it, and closes it.
func filled(t *testing.T, mark string, appends int) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, Sync: SyncNormal})
	fill(t, s, mark, appends)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fill(t *testing.T, s *Store, mark string, appends int) {
	t.Helper()
	for i := range appends {
		mustAppend(t, s, said(event.SessionID(fmt.Sprint("ses_", mark, i%7)), strings.Repeat(mark, 700)))
	}
}

// left copies what a store that is open has on disk: a process that died there.
func left(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	for _, name := range []string{DatabaseFile, DatabaseFile + "-wal"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// contents are the files of a directory, save what every opening makes.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "-shm") || strings.HasSuffix(e.Name(), ".lock") || e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(data)
	}
	return out
}

// change rewrites a file of a directory.
func change(t *testing.T, dir, name string, f func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is no sound database is refused at the start with what is wrong, nothing
// of it is changed or deleted, and no empty one is made in its place. // C70 I-04
func TestDamageIsRefused(t *testing.T) {
	overwrite := func(at, n int, with byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], bytes.Repeat([]byte{with}, n)); return b }
	}
	inDB := func(f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) { change(t, dir, DatabaseFile, f) }
	}
	for name, v := range map[string]struct {
		do   func(t *testing.T, dir string)
		want string
	}{
		"head":           {inDB(overwrite(0, 16, 0)), "does not begin as an SQLite database"},
		"size of pages":  {inDB(overwrite(16, 2, 0x77)), "size of pages"},
		"list of tables": {inDB(overwrite(100, 2000, 0xff)), "cannot be read"},
		// Three quarters in, since the list of tables is before that.
		"a page":          {inDB(func(b []byte) []byte { return overwrite(len(b)*3/16384*4096, 4096, 0xa5)(b) }), "damaged"},
		"half a page":     {inDB(func(b []byte) []byte { return overwrite(len(b)*3/16384*4096, 600, 0)(b) }), "damaged"},
		"cut in half":     {inDB(func(b []byte) []byte { return b[:len(b)/8192*4096] }), "was cut"},
		"cut in a page":   {inDB(func(b []byte) []byte { return b[:len(b)-1000] }), "was cut"},
		"cut to nothing":  {inDB(func([]byte) []byte { return nil }), "it is empty"},
		"cut to its head": {inDB(func(b []byte) []byte { return b[:50] }), "does not begin"},
		"another file":    {inDB(func([]byte) []byte { return bytes.Repeat([]byte("hello\n"), 5000) }), "another file"},
		"text of the newest event": {inDB(func(b []byte) []byte {
			at := bytes.LastIndex(b, []byte("aaaaaaaa"))
			b[at] = 'b'
			return b
		}), "log is damaged"},
		"another program's": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, DatabaseFile)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('x')"); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}, "another program"},
		"a log without its database": {func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, DatabaseFile), filepath.Join(dir, DatabaseFile+"-wal")); err != nil {
				t.Fatal(err)
			}
		}, "is not there"},
		"a restore that was cut": {func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, UnfinishedPrefix+"1"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "restore was cut"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t, "a", 60)
			v.do(t, dir)
			refused(t, dir, v.want)
		})
	}
}

func refused(t *testing.T, dir, want string) {
	t.Helper()
	before := contents(t, dir)
	s, err := Open(t.Context(), Config{Dir: dir, Rows: storetest.Rows})
	if err == nil {
		s.Close(t.Context())
	}
	var damaged *DamagedError
	if !errors.As(err, &damaged) || !errors.Is(err, eventlog.ErrDamaged) || !strings.Contains(damaged.What, want) || !strings.Contains(err.Error(), "What to do: ") {
		t.Errorf("opened with %v, want %q", err, want)
	}
	after := contents(t, dir)
	for name, data := range before {
		if after[name] != data {
			t.Errorf("%s was changed", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("files were made: %d before, %d after", len(before), len(after))
	}
}

// A write-ahead log of another database, of another time of this one, and one
// with other pages are not folded in. // C70
func TestForeignLogIsRefused(t *testing.T) {
	other := open(t, Config{Dir: t.TempDir(), Sync: SyncNormal})
	fill(t, other, "b", 200)
	wal, err := os.ReadFile(filepath.Join(other.cfg.Dir, DatabaseFile+"-wal"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(dir string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, DatabaseFile+"-wal"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := filled(t, "a", 60)
	put(dir, wal)
	refused(t, dir, "log of another database")

	// The database is put back from a copy, and the log that was beside the newer one stays.
	live := filled(t, "c", 40)
	old, err := os.ReadFile(filepath.Join(live, DatabaseFile))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Dir: live, Sync: SyncNormal})
	fill(t, s, "c", 300)
	if err := s.byWriter(t.Context(), func(w *writer) error { return w.exec("PRAGMA main.wal_checkpoint(TRUNCATE)") }); err != nil {
		t.Fatal(err)
	}
	fill(t, s, "d", 50)
	mixed := left(t, live)
	change(t, mixed, DatabaseFile, func([]byte) []byte { return old })
	refused(t, mixed, "")

	dir = filled(t, "a", 10)
	small := bytes.Clone(wal)
	copy(small[8:], []byte{0, 0, 2, 0})
	put(dir, small)
	refused(t, dir, "log of another database")
}

// A log that a process left when it died is its own, and nothing of it is lost. // C70 I-01
func TestOwnLogIsFoldedIn(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	fill(t, s, "a", 100)
	dir := left(t, s.cfg.Dir)
	again := open(t, Config{Dir: dir})
	if report := mustVerify(t, again); report.Events != 100 {
		t.Errorf("%d events are there", report.Events)
	}
	// A log that was cut loses its end and nothing else.
	dir = left(t, s.cfg.Dir)
	change(t, dir, DatabaseFile+"-wal", func(b []byte) []byte { return b[:len(b)-1500] })
	mustVerify(t, open(t, Config{Dir: dir}))
}

// A start that was cut before its tables were there is simply started again.
func TestFirstStartThatWasCut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new", ".new-journal"} {
		if err := os.WriteFile(filepath.Join(dir, DatabaseFile+name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, Config{Dir: dir})
	fill(t, s, "a", 3)
	mustVerify(t, s)
	if _, err := os.Stat(filepath.Join(dir, DatabaseFile+".new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the cut start: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, DatabaseFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Where a database was and none is, none is begun in silence; what an operator put
// there before the first start is no sign of one. // C70 I-01
func TestDatabaseThatIsGone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"master.key", "admin.token", dirlock.File} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := Look(t.Context(), dir); err != nil || g.Exists {
		t.Errorf("before the first start: %+v, %v", g, err)
	}
	s := open(t, Config{Dir: dir})
	fill(t, s, "a", 3)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, DatabaseFile), filepath.Join(dir, "moved")); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, "the directory once held it")
		if _, err := Look(t.Context(), dir); !errors.Is(err, eventlog.ErrDamaged) {
			t.Errorf("a look finds %v", err)
		}
		if err := os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, DatabaseFile)); err != nil {
			t.Fatal(err)
		}
	}
	gone()
	// One that an older program made is marked by its next start.
	if err := os.Remove(filepath.Join(dir, MadeFile)); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: dir})
	mustVerify(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone()
}

// A page that is found to be damaged while the store works ends all writing, and
// no more reading than that of the page. // C70
func TestDamageAtRunTime(t *testing.T) {
	dir := filled(t, "a", 2000)
	s := open(t, Config{Dir: dir, ReadConns: 1})
	mustAppend(t, s, said("ses_new", "fine"))
	// The pages of the log in the middle of the file, behind the store's back.
	f, err := os.OpenFile(filepath.Join(dir, DatabaseFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := info.Size() / 3 / 4096 * 4096; at < info.Size()/3*2; at += 4096 {
		if _, err := f.WriteAt(bytes.Repeat([]byte{0x5a}, 4096), at); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close() // not before: that would let go of the store's locks
	var broken error
	for i := range 7 {
		if _, err := s.Read(t.Context(), event.SessionID(fmt.Sprint("ses_a", i)).Stream(), 0, 1000); err != nil {
			broken = err
		}
	}
	if !errors.Is(broken, eventlog.ErrDamaged) || s.Damaged() == nil {
		t.Fatalf("a damaged page is read as %v; damaged: %v", broken, s.Damaged())
	}
	if _, err := s.Append(t.Context(), said("ses_new", "no more")); !errors.Is(err, eventlog.ErrDamaged) || eventlog.Refusal(err) != "" {
		t.Errorf("a damaged store takes an append: %v", err)
	}
	if err := s.AddToken(t.Context(), eventlog.TokenRow{ID: "x", Hash: "y"}); !errors.Is(err, eventlog.ErrDamaged) {
		t.Errorf("a damaged store takes a token: %v", err)
	}
	if events, err := s.Read(t.Context(), "session:ses_new", 0, 10); err != nil || len(events) != 1 {
		t.Errorf("what can be read: %d, %v", len(events), err)
	}
	if why, err := Examine(t.Context(), dir); err != nil || len(why) == 0 {
		t.Errorf("the whole check finds %v, %v", why, err)
	}
}

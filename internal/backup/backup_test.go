package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/headroom"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

const (
	childMode = "HOLDFAST_TEST_BACKUP"
	childFrom = "HOLDFAST_TEST_BACKUP_FROM"
	childTo   = "HOLDFAST_TEST_BACKUP_TO"
)

// The test binary is also the process that is killed.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(childMode) {
	case "":
		os.Exit(m.Run())
	case "backup":
		_, err = Make(context.Background(), Options{DataDir: os.Getenv(childFrom), To: os.Getenv(childTo)})
	case "restore":
		_, err = Restore(context.Background(), RestoreOptions{From: os.Getenv(childFrom), DataDir: os.Getenv(childTo)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func open(t *testing.T, dir string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, Sync: sqlite.SyncNormal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func put(s *sqlite.Store, n int) error {
	id := event.SessionID(fmt.Sprint("ses_", n%5))
	d := event.Data(&event.TextEnded{Content: event.Content{Text: strings.Repeat(fmt.Sprint(n, " "), 200)}})
	if n < 5 {
		d = &event.SessionCreated{}
	}
	_, err := s.Append(context.Background(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: eventlog.AnyHead,
		Events: []event.Event{{SessionID: id, UserID: "ann", RunID: "run_1", Data: d}}}}})
	return err
}

func fill(t *testing.T, s *sqlite.Store, n int) {
	t.Helper()
	for i := range n {
		if err := put(s, i); err != nil {
			t.Fatal(err)
		}
	}
}

// source makes a closed data directory with secrets.
func source(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir)
	fill(t, s, n)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range SecretFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("canary-of-"+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+".key", []byte("canary-of-"+KeyName), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func whole(t *testing.T, dir string) *sqlite.Store {
	t.Helper()
	s := open(t, dir)
	if report, err := s.Verify(t.Context(), sqlite.VerifyOptions{}); err != nil || !report.OK() {
		t.Fatalf("verify: %v %+v", err, report.Findings)
	}
	return s
}

func feed(t *testing.T, s *sqlite.Store) (out []string) {
	t.Helper()
	for after := eventlog.Position(0); ; {
		page, next, err := s.Feed(t.Context(), after, 1000, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page {
			out = append(out, fmt.Sprint(p.Position, p.Event.Stream, p.Event.Seq, p.Event.Hash))
		}
		if next == after {
			return out
		}
		after = next
	}
}

// A backup of a log that is written to is one moment of it: restored, its events
// are the first of those that are there, in the same order and with the same
// hashes and positions. // I-01 I-03 I-04
func TestUnderLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir)
	fill(t, s, 300)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for n := 300; err == nil; n++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				err = put(s, n)
			}
		}
		stopped <- err
	}()
	to := filepath.Join(t.TempDir(), "b")
	m, err := Make(t.Context(), Options{DataDir: dir, To: to})
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	later, err := Make(t.Context(), Options{DataDir: dir, Stream: &stream, Temp: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	all := feed(t, s)
	if m.Events < 300 || later.Events <= m.Events || int64(len(all)) <= later.Events {
		t.Errorf("backups of %d and %d of %d events: nothing was written beside them", m.Events, later.Events, len(all))
	}
	for _, o := range []RestoreOptions{{From: to}, {Stream: &stream}} {
		o.DataDir = filepath.Join(t.TempDir(), "again")
		r, err := Restore(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		again := whole(t, o.DataDir)
		if got := feed(t, again); int64(len(got)) != r.Events || !slices.Equal(got, all[:len(got)]) {
			t.Errorf("%d events are restored, and are not the first ones of the log", len(got))
		}
		if err := put(again, 1_000_000); err != nil { // and it goes on
			t.Fatal(err)
		}
	}
}

// Secrets are left out, or carried encrypted, and then put back; no byte of one
// stands in a backup. // I-33
func TestSecrets(t *testing.T) {
	dir := source(t, 20)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	plain, carried := filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "b.tar")
	m, err := Make(t.Context(), Options{DataDir: dir, KeyFile: dir + ".key", To: plain})
	if err != nil || !slices.Equal(m.LeftOut, append(slices.Clone(SecretFiles), KeyName)) || m.Secrets != nil {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err = Make(t.Context(), Options{DataDir: dir, KeyFile: dir + ".key", To: carried, Tar: true, Recipients: []age.Recipient{key.Recipient()}}); err != nil || m.Secrets == nil || len(m.LeftOut) != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, root := range []string{plain, carried} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte("canary-of-")) {
				t.Errorf("%s holds a secret", path)
			}
			if info, _ := d.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "again")
	if _, err := Restore(t.Context(), RestoreOptions{From: carried, DataDir: to, Identities: []age.Identity{other}}); !isRefused(err, "cannot be decrypted") {
		t.Errorf("another identity: %v", err)
	}
	if _, err := Restore(t.Context(), RestoreOptions{From: carried, DataDir: to}); !isRefused(err, "--identity") {
		t.Errorf("without an identity: %v", err)
	}
	if err := os.WriteFile(to+".key", []byte("another key"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := RestoreOptions{From: carried, DataDir: to, KeyFile: to + ".key", Identities: []age.Identity{key}}
	if _, err := Restore(t.Context(), full); !isRefused(err, "another master key") {
		t.Errorf("over another master key: %v", err)
	}
	if data, err := os.ReadFile(to + ".key"); err != nil || string(data) != "another key" {
		t.Errorf("the other key is %q, %v", data, err)
	}
	if err := os.Remove(to + ".key"); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(t.Context(), full); err != nil || len(r.Missing) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if data, err := os.ReadFile(to + ".key"); err != nil || string(data) != "canary-of-"+KeyName {
		t.Errorf("the master key: %q, %v", data, err)
	}
	for _, name := range SecretFiles {
		if data, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(data) != "canary-of-"+name {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	to = filepath.Join(t.TempDir(), "again")
	if r, err := Restore(t.Context(), RestoreOptions{From: carried, DataDir: to, WithoutSecrets: true, Go: true}); err != nil || r.Held || !slices.Equal(r.Missing, []string{SecretsFile}) {
		t.Errorf("without them: %+v, %v", r, err)
	}
}

func isRefused(err error, text string) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(e.Text, text)
}

// A backup is written over nothing, and is restored over nothing; what was cut or
// changed is refused, and leaves nothing behind. // C70 I-04
func TestRefused(t *testing.T) {
	dir := source(t, 200)
	to := filepath.Join(t.TempDir(), "b")
	if _, err := Make(t.Context(), Options{DataDir: dir, To: to}); err != nil {
		t.Fatal(err)
	}
	if list, err := os.ReadDir(to); err != nil || len(list) != 2 {
		t.Errorf("a backup holds %v, %v", list, err)
	}
	if _, err := Make(t.Context(), Options{DataDir: dir, To: to}); !isRefused(err, "is there already") {
		t.Errorf("over another backup: %v", err)
	}
	if _, err := Make(t.Context(), Options{DataDir: t.TempDir(), To: to + "2"}); !isRefused(err, "no database") {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: dir}); !isRefused(err, "not empty") {
		t.Errorf("over a data directory: %v", err)
	}
	var b bytes.Buffer
	if _, err := Make(t.Context(), Options{DataDir: dir, Stream: &b}); err != nil {
		t.Fatal(err)
	}
	change := func(at int) []byte {
		c := bytes.Clone(b.Bytes())
		c[at] ^= 0x40
		return c
	}
	foreign := func(name string) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		w.WriteHeader(&tar.Header{Name: name, Size: 2, Mode: 0o600})
		w.Write([]byte("{}"))
		w.Close()
		return out.Bytes()
	}
	inManifest := func(from, with string) []byte {
		return bytes.Replace(b.Bytes(), []byte(from), []byte(with), 1)
	}
	for name, v := range map[string]struct {
		data []byte
		want string
	}{
		"nothing": {nil, "is no backup"}, "no tar": {bytes.Repeat([]byte("x"), 5000), "is no backup"},
		"cut":            {b.Bytes()[:b.Len()/2], "was cut"},
		"cut early":      {b.Bytes()[:700], "cut"},
		"a page changed": {change(b.Len() / 2), "cut or changed"},
		"a path":         {foreign("../../backup.json"), "is no backup"},
		"no manifest":    {foreign("backup.json"), "is not one"},
		"a newer form":   {inManifest(`"format": 1`, `"format": 7`), "form 7"},
		"another end":    {inManifest(`"ends": "`, `"ends":"0`), "does not end where"},
	} {
		again := filepath.Join(t.TempDir(), "again")
		if _, err := Restore(t.Context(), RestoreOptions{Stream: bytes.NewReader(v.data), DataDir: again}); !isRefused(err, v.want) {
			t.Errorf("%s: %v, want %q", name, err, v.want)
		}
		if left, err := os.ReadDir(again); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
	given := t.TempDir() // a directory that was there stays, empty
	if _, err := Restore(t.Context(), RestoreOptions{Stream: bytes.NewReader(b.Bytes()[:b.Len()/2]), DataDir: given}); !isRefused(err, "was cut") {
		t.Errorf("into an empty directory: %v", err)
	}
	if left, err := os.ReadDir(given); err != nil || len(left) != 0 {
		t.Errorf("of an empty directory %v is left, %v", left, err)
	}
	os.Remove(filepath.Join(to, ManifestFile))
	if _, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: filepath.Join(t.TempDir(), "x")}); !isRefused(err, "no backup, or one that was cut") {
		t.Errorf("a directory without its manifest: %v", err)
	}
}

// A file that came to the name of the backup while that was made stays as it is. // C70
func TestNameTakenMeanwhile(t *testing.T) {
	dir, folder := source(t, 20), t.TempDir()
	to := filepath.Join(folder, "b.tar")
	_, err := Make(t.Context(), Options{DataDir: dir, To: to, Tar: true, Progress: func(what string, _, _ int64) {
		if what == "writing" {
			if err := os.WriteFile(to, []byte("another's"), 0o600); err != nil {
				t.Error(err)
			}
		}
	}})
	if !isRefused(err, "came while the backup was made") {
		t.Errorf("over a file that came meanwhile: %v", err)
	}
	if data, err := os.ReadFile(to); err != nil || string(data) != "another's" {
		t.Errorf("the file is %.20q now, %v", data, err)
	}
	if _, err := Make(t.Context(), Options{DataDir: dir, To: to + "2", Tar: true}); err != nil {
		t.Error(err)
	}
	if err := giveName(filepath.Join(folder, "none"), to+"3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name for nothing: %v", err)
	}
	if list, err := os.ReadDir(folder); err != nil || len(list) != 2 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}

// A restored directory waits until it is released; dropped tokens are gone.
func TestReleaseAndTokens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, dir)
	fill(t, s, 10)
	if err := s.AddToken(t.Context(), eventlog.TokenRow{ID: "1", Name: "n", Role: "admin", Hash: "h", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "b")
	if _, err := Make(t.Context(), Options{DataDir: dir, To: to}); err != nil {
		t.Fatal(err)
	}
	for drop, tokens := range map[bool]int{false: 1, true: 0} {
		again := filepath.Join(t.TempDir(), "again")
		r, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: again, DropTokens: drop})
		if err != nil || !r.Held {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := os.Stat(filepath.Join(again, sqlite.MadeFile)); err != nil {
			t.Errorf("a restored directory does not say that it holds a database: %v", err)
		}
		if list, err := whole(t, again).ListTokens(t.Context()); err != nil || len(list) != tokens {
			t.Errorf("%d tokens, %v", len(list), err)
		}
		if _, err := os.Stat(filepath.Join(again, headroom.RestoredFile)); err != nil {
			t.Error(err)
		}
		for _, want := range []bool{true, false} {
			if was, err := Release(again); err != nil || was != want {
				t.Errorf("release: %v, %v", was, err)
			}
		}
	}
}

// A backup or a restore whose process is killed leaves what is whole, or what is
// refused; and the data directory that was read as it was. // C70 I-01 I-04
func TestKilled(t *testing.T) {
	dir := source(t, 3000)
	live := whole(t, dir)
	before := feed(t, live)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kill := func(mode, from, to string, after time.Duration) (ended bool) {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childMode+"="+mode, childFrom+"="+from, childTo+"="+to)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		if err != nil && said.Len() > 0 {
			t.Errorf("%s: %v: %s", mode, err, said.String())
		}
		return err == nil
	}
	root := t.TempDir()
	var good string
	ended, cut := 0, 0
	for i := 0; i < 12 || good == ""; i++ {
		if i > 200 {
			t.Fatal("no backup ended")
		}
		to := filepath.Join(root, fmt.Sprint("b", i))
		if done := kill("backup", dir, to, time.Duration(1+i*i)*4*time.Millisecond); done {
			good, ended = to, ended+1
		}
		switch _, err := Restore(t.Context(), RestoreOptions{From: to, DataDir: filepath.Join(root, fmt.Sprint("r", i))}); {
		case err == nil:
		case isRefused(err, "there is no backup"):
			cut++
		default:
			t.Errorf("a backup that was cut: %v", err)
		}
	}
	if got := feed(t, live); !slices.Equal(got, before) {
		t.Error("the data directory changed")
	}
	for i := range 12 {
		to := filepath.Join(root, fmt.Sprint("again", i))
		kill("restore", good, to, time.Duration(1+i*i)*4*time.Millisecond)
		left, _ := os.ReadDir(to)
		s, err := sqlite.Open(t.Context(), sqlite.Config{Dir: to, Rows: eventlog.Rows, Generation: eventlog.RowsVersion})
		var damaged *sqlite.DamagedError
		switch {
		case len(left) == 0 && err == nil: // killed before it made anything
			s.Close(t.Context())
		case err == nil:
			if got := feed(t, s); !slices.Equal(got, before) {
				t.Errorf("a restore that was cut gives %d events", len(got))
			}
			s.Close(t.Context())
		case !errors.As(err, &damaged) || !strings.Contains(err.Error(), "restore was cut"):
			t.Errorf("what a restore left: %v (%v)", err, left)
		default:
			cut++
		}
	}
	t.Logf("%d backups ended, %d processes were cut in the middle", ended, cut)
	if cut == 0 {
		t.Error("nothing was cut")
	}
}

// FuzzArchive feeds the reader of tars, and of what they hold, with anything: it refuses,
// and writes nothing outside its folder.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{ManifestFile, sqlite.DatabaseFile} {
		text := `{"format":1,"database":{"size":3,"sha256":"` + strings.Repeat("0", 64) + `"}}`
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}); err != nil {
			f.Fatal(err)
		}
		io.WriteString(w, text)
	}
	w.Close()
	f.Add(b.Bytes())
	f.Add([]byte{})
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseManifest(data)
		root := t.TempDir()
		to := filepath.Join(root, "data")
		_, err := Restore(context.Background(), RestoreOptions{Stream: bytes.NewReader(data), DataDir: to})
		if err == nil {
			t.Fatal("anything is a backup")
		}
		if left, _ := os.ReadDir(root); len(left) != 0 { // the data directory was made by the restore
			t.Fatalf("%v is left", left)
		}
	})
}

// Package backup makes copies of a data directory while its daemon works, and
// makes data directories of them again.
//
// A backup is one moment of the database, found whole by the full verification
// after it was copied. It is a directory, or a tar of the same files in this
// order, so that it can be written into a pipe and read from one:
//
//	backup.json   what it is: versions, counts, digests; see Manifest
//	holdfast.db   the database, a file of SQLite
//	secrets.age   the secrets of the data directory, encrypted; only when asked for
//
// A directory gets its name when it is whole, and what was cut is no backup.
package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
	"github.com/holdfast-dev/holdfast/internal/version"
)

// The names of the files of a backup.
const (
	ManifestFile = "backup.json"
	SecretsFile  = "secrets.age"
)

// Format is the version of the form. A reader refuses a greater one.
const Format = 1

// SecretFiles are the files of a data directory that are secrets, SecretTables
// the tables that the master key opens, which stands in a file beside the directory: KeyName is
// what it is called in a backup. All are carried together, encrypted, or left out.
var (
	SecretFiles  = []string{"admin.token", "webhook.secret"}
	SecretTables = []string{"secrets"}
)

// KeyName is the name of the master key among the secrets of a backup.
const KeyName = "master.key"

// bounds of what is read back.
const (
	maxManifest = 1 << 20
	maxSecrets  = 16 << 20
)

// Manifest says what a backup is.
type Manifest struct {
	Format   int       `json:"format"`
	MadeAt   time.Time `json:"made_at"`
	Version  string    `json:"version"`          // of the program that made it
	Tables   int       `json:"tables"`           // version of the tables
	Rows     int       `json:"rows"`             // version of the derived rows
	Streams  int       `json:"streams"`          //
	Events   int64     `json:"events"`           //
	Newest   string    `json:"newest,omitempty"` // time of the newest commit in it
	Ends     string    `json:"ends"`             // digest over the ends of all streams; see sqlite.Ends
	Database File      `json:"database"`
	Secrets  *File     `json:"secrets,omitempty"`
	LeftOut  []string  `json:"left_out"` // secrets that are in the data directory and not in the backup
}

// File is a file of a backup.
type File struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Options say what is backed up, and where to. One of Dir, File and Stream is set.
type Options struct {
	DataDir string
	KeyFile string    // of the master key; empty: it is in none
	To      string    // a directory that is not there yet, or a file that is not
	Tar     bool      // To is a file
	Stream  io.Writer // a tar goes there, in place of To
	Temp    string    // where the copy is made that cannot be made in place; default: the system's
	// Recipients get the secrets; without any they are left out.
	Recipients []age.Recipient
	// Progress is told what is being done, and how far it is.
	Progress func(what string, done, of int64)
}

// Error is a reason why no backup was made or restored that a person can mend.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Make makes a backup. When it fails nothing of it stays.
func Make(ctx context.Context, o Options) (m Manifest, err error) {
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	if o.Stream == nil {
		if _, err := os.Lstat(o.To); err == nil {
			return m, refuse("%s is there already; a backup is never written over something", o.To)
		}
	}
	source := filepath.Join(o.DataDir, sqlite.DatabaseFile)
	info, err := os.Stat(source)
	if err != nil {
		return m, refuse("there is no database at %s", source)
	}
	place, err := o.place()
	if err != nil {
		return m, err
	}
	defer func() {
		if e := os.RemoveAll(place); e != nil {
			err = errors.Join(err, e)
		}
	}()
	if free, ok := diskfs.Free(place); ok && free < uint64(info.Size()) {
		return m, refuse("the copy of the database wants up to %d MiB at %s, where %d MiB are free; make room, or name another place", info.Size()>>20, place, free>>20)
	}
	if m, err = o.fill(ctx, place); err != nil {
		return m, err
	}
	if err := ctx.Err(); err != nil {
		return m, err
	}
	switch {
	case o.Stream != nil:
		return m, writeTar(ctx, o.Stream, place, &m, o.Progress)
	case o.Tar:
		return m, o.writeFile(ctx, place, &m)
	}
	if filepath.Dir(place) == filepath.Dir(abs(o.To)) {
		return m, errors.Join(os.Rename(place, o.To), syncDir(filepath.Dir(abs(o.To))))
	}
	return m, o.carry(ctx, place, &m)
}

func abs(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

// place makes the folder in which the copy is made: beside the backup where that is
// on a local disk, since a database cannot be verified on another.
func (o *Options) place() (string, error) {
	if o.Stream == nil && o.Temp == "" {
		parent := filepath.Dir(abs(o.To))
		if _, network, err := diskfs.Check(parent); err == nil && !network {
			return os.MkdirTemp(parent, "."+filepath.Base(o.To)+".partial-*")
		}
	}
	return os.MkdirTemp(o.Temp, "holdfast-backup-*")
}

// fill makes the files of the backup in a folder.
func (o *Options) fill(ctx context.Context, place string) (m Manifest, err error) {
	began := time.Now().UTC()
	db := filepath.Join(place, sqlite.DatabaseFile)
	if _, err := sqlite.Copy(ctx, o.DataDir, db, func(done, about int64) { o.Progress("copying", min(done, about), about) }); err != nil {
		return m, err
	}
	secrets, names, err := o.secrets()
	if err != nil {
		return m, err
	}
	if len(o.Recipients) == 0 {
		if err := sqlite.Empty(ctx, db, SecretTables...); err != nil {
			return m, err
		}
	}
	keys, err := verify(ctx, place, o.Progress)
	if err != nil {
		return m, err
	}
	missing, err := o.opens(secrets[KeyName], keys)
	if err != nil {
		return m, err
	}
	c, err := sqlite.Describe(ctx, db)
	if err != nil {
		return m, err
	}
	m = Manifest{
		Format: Format, MadeAt: began, Version: version.Version, Tables: c.Schema, Rows: c.Rows, Streams: c.Streams, Events: c.Events,
		Newest: c.Newest, Ends: c.Digest, LeftOut: []string{},
	}
	if m.Database, err = digest(db); err != nil {
		return m, err
	}
	if len(o.Recipients) > 0 {
		m.LeftOut = append(m.LeftOut, missing...)
		path := filepath.Join(place, SecretsFile)
		if err := writeSecrets(path, secrets, o.Recipients); err != nil {
			return m, err
		}
		f, err := digest(path)
		if err != nil {
			return m, err
		}
		m.Secrets = &f
	} else {
		m.LeftOut = append(m.LeftOut, names...)
	}
	text, err := json.MarshalIndent(&m, "", "  ")
	if err != nil {
		return m, err
	}
	return m, errors.Join(writePrivate(filepath.Join(place, ManifestFile), append(text, '\n')), syncDir(place))
}

// opens sees that the master key that is carried opens the slots that are: a former
// one is not carried, and what it sealed would be lost with the daemon's machine. Where the
// key is in no file, or that holds one that something else unwraps, nothing can be
// said but that the key itself is not in the backup: missing names it then.
func (o *Options) opens(key []byte, sealed []eventlog.SecretKey) (missing []string, err error) {
	if len(o.Recipients) == 0 || len(sealed) == 0 {
		return nil, nil
	}
	if len(key) == 0 {
		return []string{KeyName}, nil
	}
	k, err := seal.ParseKey(string(key))
	if err != nil { // wrapped: what unwraps it is not ours to ask
		return nil, nil
	}
	for _, s := range sealed {
		if s.ID != k.ID() {
			return nil, refuse("%d versions of secret slots are sealed under the master key %s, and the backup carries %s alone, which does not open them: "+
				"say holdfast secrets rekey, and back up again; or leave the secrets out", s.Versions, s.ID, k.ID())
		}
	}
	return nil, nil
}

// verify holds a copy against all that a log promises, and leaves one file of it. It
// gives the master keys under which the slots in it are sealed.
func verify(ctx context.Context, dir string, progress func(string, int64, int64)) (keys []eventlog.SecretKey, err error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		return nil, err
	}
	report, err := s.Verify(ctx, sqlite.VerifyOptions{Progress: func(_ string, n int) { progress("verifying", int64(n), 0) }})
	if err == nil {
		keys, err = s.SecretKeys(ctx)
	}
	if err = errors.Join(err, s.Close(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	if !report.OK() {
		f := report.Findings[0]
		return nil, refuse("the database does not hold what it should, so that a backup of it is of no use (%d findings; the first: %s: %s): run holdfast verify", len(report.Findings)+report.More, f.Where, f.Text)
	}
	for _, name := range []string{dirlock.File, sqlite.MadeFile, sqlite.DatabaseFile + "-shm", sqlite.DatabaseFile + "-wal"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return keys, nil
}

// secrets reads the secret files that are there, and gives their names.
func (o *Options) secrets() (map[string][]byte, []string, error) {
	files := map[string][]byte{}
	names := []string{}
	for _, name := range append(slices.Clone(SecretFiles), KeyName) {
		path := filepath.Join(o.DataDir, name)
		if name == KeyName {
			if path = o.KeyFile; path == "" {
				continue
			}
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		files[name] = data
		names = append(names, name)
	}
	return files, names, nil
}

func writeSecrets(path string, files map[string][]byte, to []age.Recipient) error {
	text, err := json.Marshal(files)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to...)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return writePrivate(path, out.Bytes())
}

// readSecrets decrypts the secrets of a backup. Names that no data directory has are refused.
func readSecrets(data []byte, with []age.Identity) (map[string][]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(data), with...)
	if err != nil {
		return nil, refuse("the secrets of the backup cannot be decrypted with the identity that was given")
	}
	text, err := io.ReadAll(io.LimitReader(r, maxSecrets))
	if err != nil {
		return nil, refuse("the secrets of the backup are damaged")
	}
	var files map[string][]byte
	if err := json.Unmarshal(text, &files); err != nil {
		return nil, refuse("the secrets of the backup cannot be read")
	}
	for name := range files {
		if name != KeyName && !slices.Contains(SecretFiles, name) {
			return nil, refuse("the secrets of the backup hold a file %.40q that no data directory has", name)
		}
	}
	return files, nil
}

// names are the files of the backup, in their order.
func (m *Manifest) names() []string {
	list := []string{ManifestFile, sqlite.DatabaseFile}
	if m.Secrets != nil {
		list = append(list, SecretsFile)
	}
	return list
}

// writeFile writes the tar under another name first, which it gets in addition: a file
// that came there meanwhile is not written over.
func (o *Options) writeFile(ctx context.Context, place string, m *Manifest) (err error) {
	f, err := os.CreateTemp(filepath.Dir(abs(o.To)), "."+filepath.Base(o.To)+".partial-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = writeTar(ctx, f, place, m, o.Progress)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := giveName(f.Name(), o.To); err != nil {
		return err
	}
	return syncDir(filepath.Dir(abs(o.To)))
}

// giveName gives a file a name that nothing has.
func giveName(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return nil
	}
	if !errors.Is(err, os.ErrExist) { // a disk without links: the name is taken, and then the file put under it
		var taken *os.File
		if taken, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			if err = errors.Join(taken.Close(), os.Rename(from, to)); err != nil {
				os.Remove(to)
			}
			return err
		}
	}
	if errors.Is(err, os.ErrExist) {
		return refuse("%s came while the backup was made; a backup is never written over something", to)
	}
	return err
}

// carry copies a backup that was made elsewhere to its directory.
func (o *Options) carry(ctx context.Context, place string, m *Manifest) (err error) {
	partial, err := os.MkdirTemp(filepath.Dir(abs(o.To)), "."+filepath.Base(o.To)+".partial-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(partial)) }()
	for _, name := range m.names() {
		if err := copyFile(ctx, filepath.Join(place, name), filepath.Join(partial, name), o.Progress); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(partial), os.Rename(partial, o.To), syncDir(filepath.Dir(abs(o.To))))
}

func copyFile(ctx context.Context, from, to string, progress func(string, int64, int64)) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, &watched{ctx: ctx, r: in, of: info.Size(), progress: progress})
	return errors.Join(err, out.Sync(), out.Close())
}

func writeTar(ctx context.Context, w io.Writer, place string, m *Manifest, progress func(string, int64, int64)) error {
	tw := tar.NewWriter(w)
	for _, name := range m.names() {
		if err := addFile(ctx, tw, place, name, m.MadeAt, progress); err != nil {
			return err
		}
	}
	return tw.Close()
}

func addFile(ctx context.Context, tw *tar.Writer, place, name string, at time.Time, progress func(string, int64, int64)) error {
	f, err := os.Open(filepath.Join(place, name))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size(), ModTime: at.Truncate(time.Second), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(tw, &watched{ctx: ctx, r: f, of: info.Size(), progress: progress})
	return err
}

// watched is a reader that tells how far it is, and ends with a context.
type watched struct {
	ctx      context.Context
	r        io.Reader
	done, of int64
	progress func(string, int64, int64)
}

func (w *watched) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.r.Read(p)
	w.done += int64(n)
	w.progress("writing", w.done, w.of)
	return n, err
}

func digest(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	return File{Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

func writePrivate(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Time reads the time of the newest commit in a backup; zero: its log is empty.
func (m *Manifest) Time() time.Time {
	t, _ := event.ParseTime(m.Newest)
	return t
}

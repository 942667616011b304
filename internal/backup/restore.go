package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/headroom"
	"github.com/holdfast-dev/holdfast/internal/sqlite"
)

// RestoreOptions say what is restored, and where to.
type RestoreOptions struct {
	From       string    // a backup, as a directory or a file
	Stream     io.Reader // a tar, in place of From
	DataDir    string    // empty, or not there yet
	KeyFile    string    // where the master key goes, where the backup carries one; empty: nowhere
	Identities []age.Identity
	// WithoutSecrets leaves out the secrets that the backup carries, slots too.
	WithoutSecrets bool
	// Go: work begins with the first start. Else the directory waits to be released.
	Go bool
	// DropTokens leaves out all access tokens: the next start makes a new one.
	DropTokens bool
	Progress   func(what string, done, of int64)
}

// Restored says what was restored.
type Restored struct {
	Manifest
	Held       bool `json:"held"`
	Runs       int  `json:"unfinished_runs"`
	Deliveries int  `json:"pending_deliveries"`
	// Missing are the secrets that were not in the backup, or could not be
	// decrypted because no identity was given.
	Missing []string `json:"missing"`
}

// Restore makes a data directory of a backup: an empty one, or one that is not
// there yet. The database gets its name as the last thing, when it was found whole.
// When it fails, a directory that it made is gone again.
func Restore(ctx context.Context, o RestoreOptions) (r Restored, err error) {
	r.Missing = []string{}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	if err := diskfs.Refuse(o.DataDir); err != nil {
		return r, err
	}
	_, absent := os.Lstat(o.DataDir)
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return r, err
	}
	defer func() {
		if err != nil && errors.Is(absent, os.ErrNotExist) { // not while anything is in it
			os.Remove(o.DataDir)
		}
	}()
	entries, err := os.ReadDir(o.DataDir)
	if err != nil {
		return r, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), sqlite.UnfinishedPrefix) {
			return r, refuse("in %s a restore was cut before its end; remove what is in it, and restore again", o.DataDir)
		}
	}
	if len(entries) > 0 {
		return r, refuse("%s is not empty (%s); a backup is restored into an empty directory only, so that nothing is written over", o.DataDir, entries[0].Name())
	}
	place, err := os.MkdirTemp(o.DataDir, sqlite.UnfinishedPrefix+"*")
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil { // a directory that was cut is told by this folder, so that it goes last
			for _, name := range append(slices.Clone(SecretFiles), headroom.RestoredFile, sqlite.MadeFile) {
				os.Remove(filepath.Join(o.DataDir, name))
			}
		}
		if e := os.RemoveAll(place); err == nil {
			err = e
		}
	}()
	secrets, err := o.unpack(ctx, place, &r)
	if err != nil {
		return r, err
	}
	if err := o.check(ctx, place, &r); err != nil {
		return r, err
	}
	return r, o.settle(place, secrets, &r)
}

// unpack writes the database into a folder, and gives the secrets.
func (o *RestoreOptions) unpack(ctx context.Context, place string, r *Restored) (map[string][]byte, error) {
	in := o.Stream
	if in == nil {
		info, err := os.Stat(o.From)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil, refuse("there is no backup at %s", o.From)
		case err != nil:
			return nil, err
		case info.IsDir():
			return o.unpackDir(ctx, place, r)
		}
		f, err := os.Open(o.From)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return o.unpackTar(ctx, in, place, r)
}

func (o *RestoreOptions) unpackDir(ctx context.Context, place string, r *Restored) (map[string][]byte, error) {
	text, err := readFile(filepath.Join(o.From, ManifestFile), maxManifest)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse("%s holds no %s: it is no backup, or one that was cut", o.From, ManifestFile)
	}
	if err != nil {
		return nil, err
	}
	if r.Manifest, err = parseManifest(text); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(o.From, sqlite.DatabaseFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := o.database(ctx, f, place, r); err != nil {
		return nil, err
	}
	if r.Secrets == nil {
		return nil, nil
	}
	data, err := readFile(filepath.Join(o.From, SecretsFile), maxSecrets)
	if err != nil {
		return nil, err
	}
	return o.secrets(data, r)
}

// unpackTar reads a tar: its files, in their order, and nothing else.
func (o *RestoreOptions) unpackTar(ctx context.Context, in io.Reader, place string, r *Restored) (map[string][]byte, error) {
	tr := tar.NewReader(in)
	next := func(want string, most int64) ([]byte, error) {
		h, err := tr.Next()
		if err != nil || h.Typeflag != tar.TypeReg || h.Name != want {
			return nil, refuse("this is no backup, or one that was cut or changed: it has no %s where that should be", want)
		}
		if most == 0 {
			return nil, nil
		}
		data, err := io.ReadAll(io.LimitReader(tr, most+1))
		if err != nil || int64(len(data)) > most {
			return nil, refuse("%s of the backup is too large, or was cut", want)
		}
		return data, nil
	}
	text, err := next(ManifestFile, maxManifest)
	if err != nil {
		return nil, err
	}
	if r.Manifest, err = parseManifest(text); err != nil {
		return nil, err
	}
	if _, err := next(sqlite.DatabaseFile, 0); err != nil {
		return nil, err
	}
	if err := o.database(ctx, tr, place, r); err != nil {
		return nil, err
	}
	var secrets map[string][]byte
	if r.Secrets != nil {
		data, err := next(SecretsFile, maxSecrets)
		if err != nil {
			return nil, err
		}
		if secrets, err = o.secrets(data, r); err != nil {
			return nil, err
		}
	}
	if _, err := tr.Next(); err != io.EOF {
		return nil, refuse("the backup holds more than it says, or was cut")
	}
	return secrets, nil
}

// parseManifest reads what a backup says of itself.
func parseManifest(text []byte) (m Manifest, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&m); err != nil {
		return m, refuse("%s of the backup cannot be read", ManifestFile)
	}
	switch {
	case m.Format > Format:
		return m, refuse("the backup is of form %d, and this program knows forms up to %d: restore it with the program that made it (%.40s), or a newer one", m.Format, Format, m.Version)
	case m.Format < 1, m.Database.Size <= 0, len(m.Database.SHA256) != 64, m.Secrets != nil && len(m.Secrets.SHA256) != 64:
		return m, refuse("%s of the backup is not one", ManifestFile)
	}
	return m, nil
}

// database writes the database of a backup, and holds it against its digest.
func (o *RestoreOptions) database(ctx context.Context, in io.Reader, place string, r *Restored) error {
	f, err := os.OpenFile(filepath.Join(place, sqlite.DatabaseFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	limited := io.LimitReader(in, r.Database.Size+1)
	n, err := io.Copy(io.MultiWriter(f, sum), &watched{ctx: ctx, r: limited, of: r.Database.Size, progress: o.Progress})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return refuse("the backup was cut")
		}
		return err
	}
	if n != r.Database.Size || hex.EncodeToString(sum.Sum(nil)) != r.Database.SHA256 {
		return refuse("the database of the backup is not the one that was written: it was cut or changed")
	}
	return nil
}

// secrets gives the secrets of a backup, where there is an identity.
func (o *RestoreOptions) secrets(data []byte, r *Restored) (map[string][]byte, error) {
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != r.Manifest.Secrets.SHA256 {
		return nil, refuse("%s of the backup is not the one that was written: it was cut or changed", SecretsFile)
	}
	if o.WithoutSecrets {
		r.Missing = append(r.Missing, SecretsFile)
		return nil, nil
	}
	if len(o.Identities) == 0 {
		return nil, refuse("the backup holds secrets: give the age identity that opens them (--identity), or leave them out (--without-secrets)")
	}
	return readSecrets(data, o.Identities)
}

// check verifies the database, and looks what is unfinished in it.
func (o *RestoreOptions) check(ctx context.Context, place string, r *Restored) error {
	db := filepath.Join(place, sqlite.DatabaseFile)
	c, err := sqlite.Describe(ctx, db)
	if err != nil {
		return refuse("the database of the backup cannot be read: %v", err)
	}
	if c.Digest != r.Ends {
		return refuse("the log of the backup does not end where %s says", ManifestFile)
	}
	empty := []string{}
	if o.DropTokens {
		empty = append(empty, "tokens")
	}
	if o.WithoutSecrets { // no key comes with them: a daemon would not start over slots that it cannot open
		empty = append(empty, SecretTables...)
	}
	if err := sqlite.Empty(ctx, db, empty...); err != nil {
		return err
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: place, Rows: eventlog.Rows, Generation: eventlog.RowsVersion, CheckSnapshot: eventlog.CheckSnapshot})
	if err != nil {
		return err
	}
	report, err := s.Verify(ctx, sqlite.VerifyOptions{Progress: func(_ string, n int) { o.Progress("verifying", int64(n), r.Events) }})
	var b eventlog.Backlog
	if err == nil {
		b, err = s.Backlog(ctx)
	}
	if err = errors.Join(err, s.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if !report.OK() {
		f := report.Findings[0]
		return refuse("the backup does not hold what it should (%d findings; the first: %s: %s)", len(report.Findings)+report.More, f.Where, f.Text)
	}
	for _, n := range b.Runs {
		r.Runs += int(n)
	}
	r.Deliveries = int(b.PendingDeliveries)
	return nil
}

// settle puts everything in its place, the database last.
func (o *RestoreOptions) settle(place string, secrets map[string][]byte, r *Restored) error {
	r.Missing = append(r.Missing, r.LeftOut...)
	for name, data := range secrets {
		if o.DropTokens && name == "admin.token" {
			continue
		}
		if name == KeyName {
			if err := o.key(data, r); err != nil {
				return err
			}
			continue
		}
		if err := writePrivate(filepath.Join(o.DataDir, name), data); err != nil {
			return err
		}
	}
	if !o.Go {
		r.Held = true
		text, err := json.MarshalIndent(map[string]any{"restored_from": r.MadeAt, "newest_commit": r.Newest, "unfinished_runs": r.Runs, "pending_deliveries": r.Deliveries}, "", "  ")
		if err != nil {
			return err
		}
		if err := writePrivate(filepath.Join(o.DataDir, headroom.RestoredFile), append(text, '\n')); err != nil {
			return err
		}
	}
	if err := sqlite.Mark(o.DataDir); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(place, sqlite.DatabaseFile), filepath.Join(o.DataDir, sqlite.DatabaseFile)); err != nil {
		return err
	}
	return syncDir(o.DataDir)
}

// key puts the master key in its place, over no other one.
func (o *RestoreOptions) key(data []byte, r *Restored) error {
	if o.KeyFile == "" {
		r.Missing = append(r.Missing, KeyName)
		return nil
	}
	have, err := os.ReadFile(o.KeyFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return writePrivate(o.KeyFile, data)
	case err != nil:
		return err
	case !bytes.Equal(bytes.TrimSpace(have), bytes.TrimSpace(data)):
		return refuse("there is another master key in %s than the one of the backup; it is not written over: move it away, or leave the secrets out (--without-secrets)", o.KeyFile)
	}
	return nil
}

// Release lets the work of a restored data directory begin; a daemon that runs
// on it sees it within a second. false: it was not held.
func Release(dir string) (bool, error) {
	err := os.Remove(filepath.Join(dir, headroom.RestoredFile))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, errors.Join(err, syncDir(dir))
}

func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = refuse("%s is too large", path)
	}
	return data, err
}

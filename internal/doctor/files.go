package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
)

// secrets says whether every reference can be read, and whether only we can.
func (p *patient) secrets() {
	bad := false
	files := slices.Clone(p.Private)
	for _, at := range p.cfg.References() {
		ref := p.resolve(at.Ref)
		if ref.File != "" && !slices.Contains(files, p.cfg.Path(ref.File)) {
			files = append(files, p.cfg.Path(ref.File))
		}
		if p.cfg.Slotted(at.Ref) {
			continue // the daemon says at its start whether the slot is set
		}
		if _, err := p.cfg.Secret(at.Ref); err != nil {
			bad = true
			if _, named := p.cfg.Secrets[at.Ref.Secret]; named {
				continue // told with secrets.NAME, which is a reference itself
			}
			if ref.Env != "" {
				p.add("secrets", Warn, "set it for the daemon; if only this shell lacks it, nothing is wrong", "%s: %v", at.Key, err)
			} else {
				p.add("secrets", Fail, "write the file, readable by the daemon's user only", "%s: %v", at.Key, err)
			}
		}
	}
	for _, w := range p.Warnings {
		if ofSecrets(w) && !p.told(w) {
			bad = true
			p.add("secrets", Warn, "mend that; the daemon starts without, and what needs it fails", "%s", w)
		}
	}
	for _, f := range files {
		bad = p.private("secrets", f, "chmod 600 "+f) || bad
	}
	if !bad {
		p.add("secrets", OK, "", "every reference can be read, and every file only by its owner; references: %d", len(p.cfg.References()))
	}
}

// ofSecrets says whether a warning is about what signs, or about the targets that want it.
func ofSecrets(warning string) bool {
	return strings.HasPrefix(warning, "targets.") || strings.HasPrefix(warning, "session_templates.")
}

// told says whether a warning is about a reference, which is told already.
func (p *patient) told(warning string) bool {
	return slices.ContainsFunc(p.cfg.References(), func(at config.Reference) bool { return strings.HasPrefix(warning, at.Key+": ") })
}

// resolve follows a name to what it refers to.
func (p *patient) resolve(r config.Ref) config.Ref {
	if r.Secret != "" {
		return p.cfg.Secrets[r.Secret].Ref()
	}
	return r
}

// private complains of a file or folder that others may use; it says whether it did.
func (p *patient) private(check, path, do string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false // what is missing is told elsewhere
	}
	mode := info.Mode().Perm()
	switch {
	case mode&0o007 != 0:
		p.add(check, Fail, do, "everybody on this machine may use %s (mode %04o)", path, mode)
	case mode&0o070 != 0:
		p.add(check, Warn, do, "the group of %s may use it (mode %04o)", path, mode)
	default:
		return false
	}
	return true
}

// directory says whether the data directory is there, ours, and closed to others.
func (p *patient) directory() {
	const check = "data directory"
	info, err := os.Stat(p.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		at := p.existing()
		if err := writable(at); err != nil {
			p.add(check, Fail, "make it, mode 0700, for the daemon's user", "%s is not there and cannot be made: %v", p.dir, err)
			return
		}
		p.add(check, OK, "", "%s is not there yet; the first start makes it", p.dir)
		p.fileSystem(at)
		return
	case err != nil:
		p.add(check, Fail, "see that the daemon's user may enter the folders above it", "%v", err)
		return
	case !info.IsDir():
		p.add(check, Fail, "name another one in data_dir", "%s is no folder", p.dir)
		return
	}
	p.fileSystem(p.dir)
	bad := p.private(check, p.dir, "chmod 700 "+p.dir)
	if uid, ok := ownerOf(info); ok && uid != os.Geteuid() {
		bad = true
		p.add(check, Warn, "run this as the daemon's user, or give it the directory (chown)", "%s belongs to the user with id %d, and you are %d", p.dir, uid, os.Geteuid())
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.add(check, Fail, "run this as the daemon's user", "%v", err)
		return
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			path := filepath.Join(p.dir, e.Name())
			if !slices.Contains(p.Private, path) && strings.HasPrefix(e.Name(), "holdfast.db") {
				bad = p.private(check, path, "chmod 600 "+path) || bad
			}
		}
	}
	if err := writable(p.dir); err != nil {
		bad = true
		p.add(check, Fail, "give it to the daemon's user, and see that its disk is not mounted read-only", "it cannot be written: %v", err)
	}
	if !bad {
		p.add(check, OK, "", "%s is ours alone", p.dir)
	}
}

// fileSystem looks on what the directory lies.
func (p *patient) fileSystem(dir string) {
	const check = "file system"
	kind, network, err := diskfs.Check(dir)
	switch {
	case err != nil:
		p.add(check, Warn, "see that the directory is on a disk of this machine", "what %s lies on cannot be told: %v", dir, err)
	case network:
		p.add(check, Fail, "name a directory on a disk of this machine in data_dir", "%s is on a network file system (%s), on which a database does not stay whole", dir, kind)
	default:
		p.add(check, OK, "", "%s is on %s", dir, kind)
	}
}

// existing is the data directory, or the nearest folder above it that exists.
func (p *patient) existing() string {
	for dir := p.dir; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
	}
}

// writable says why no file can be made in a folder.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".holdfast-doctor-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

package filetree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stat is how a file stood when it was read, and what was read then.
type stat struct {
	size              int64
	mode              fs.FileMode
	device, inode     uint64
	modified, changed int64 // nanoseconds; changed is of the inode and cannot be set back

	read int64 // when reading began, by this machine's clock
	kind kind  // file or unheld
	sum  digest
}

// slack is by how much a file has to be older than its reading for it not to be
// read again: one that changes within a tick of the file system's clock, after
// it was read, has the times that it had. It is that of the coarsest clocks.
const slack = int64(2 * time.Second)

// unchanged says whether a file that stands as now need not be read again.
func (s *stat) unchanged(now *stat) bool {
	return s.size == now.size && s.mode == now.mode && s.device == now.device && s.inode == now.inode &&
		s.modified == now.modified && s.changed == now.changed && max(s.modified, s.changed)+slack < s.read
}

// Capture makes a snapshot of the folder that open gives, which it closes; of no
// folder (a nil root) it is the empty tree. The errors are those of this package,
// of open, of ctx, and of the file systems; nothing is left of such a snapshot
// but what a sweep takes.
func (s *Store) Capture(ctx context.Context, at Place, open func() (*os.Root, error)) (Tree, error) {
	if !plain(at.Session) {
		return "", fmt.Errorf("snapshots of files: %.80q is no name of a session", at.Session)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	sp, err := s.enter(ctx, at.Space)
	if err != nil {
		return "", err
	}
	before := len(sp.index)
	defer func() { s.leave(sp, before) }()
	if time.Now().Before(sp.again) {
		return "", ErrPaused
	}
	tree, err := s.capture(ctx, sp, at, open)
	s.sweepWhenDue(sp, errors.Is(err, ErrTooLarge)) // what such a one wrote nobody will ever refer to
	switch {
	case err == nil:
		sp.failed = 0
	case errors.Is(err, context.Canceled): // nobody waits for it any more: no failure
	default:
		sp.again = time.Now().Add(min(pause<<min(sp.failed, 8), maxPause))
		sp.failed++
	}
	return tree, err
}

// How long a space whose snapshot failed is left alone: doubling between these.
const (
	pause    = 5 * time.Second
	maxPause = time.Minute
)

func (s *Store) capture(ctx context.Context, sp *space, at Place, open func() (*os.Root, error)) (Tree, error) {
	if err := s.begin(sp.name); err != nil {
		return "", err
	}
	root, err := open()
	if err != nil {
		return "", err
	}
	w := walk{ctx: ctx, s: s, space: sp, index: make(map[string]stat, len(sp.index))}
	defer func() { sp.written += w.written }()
	var list []entry
	if root != nil {
		defer root.Close()
		if len(sp.index) == 0 || sp.failed > 0 { // else what is too large would be written each time before it is found out
			dry := walk{ctx: ctx, s: s, space: sp, dry: true}
			if _, err := dry.folder(root, "", 0, nil); err != nil {
				return "", err
			}
		}
		if list, err = w.folder(root, "", 0, nil); err != nil {
			w.keepIndex() // what was read need not be read again by the next one
			return "", err
		}
	}
	top, err := w.listing(list)
	if err != nil {
		return "", err
	}
	if sp.trees, err = s.refer(at, top.tree()); err != nil {
		return "", err
	}
	sp.index = w.index
	sp.made++
	return top.tree(), s.end(sp.name)
}

// walk is a snapshot in the making.
type walk struct {
	ctx     context.Context
	s       *Store
	space   *space
	index   map[string]stat // of this snapshot
	dry     bool            // only look whether it is within the bounds
	seen    int             // names, also those that are left out
	entries int
	bytes   int64 // of held files
	written int64 // to the store
}

// keepIndex takes what a snapshot that failed had read.
func (w *walk) keepIndex() {
	if w.space.index == nil {
		w.space.index = map[string]stat{}
	}
	for name, st := range w.index {
		w.space.index[name] = st
	}
	if len(w.space.index) > 2*w.s.cfg.TreeFiles {
		w.space.index = w.index
	}
}

// folder gives the entries of a folder. path is its own with a slash behind it,
// or empty.
func (w *walk) folder(dir *os.Root, path string, depth int, rules []rule) ([]entry, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: deeper than %d folders", ErrTooLarge, maxDepth)
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("%w: a path of more than %d bytes", ErrTooLarge, maxPath)
	}
	names, err := w.names(dir)
	if err != nil {
		return nil, err
	}
	if !w.s.cfg.NoGitignore && slices.Contains(names, rulesFile) {
		rules = w.rules(dir, path, rules)
	}
	var list []entry
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return nil, err
		}
		e, err := w.entry(dir, path, name, depth, rules)
		if err != nil {
			return nil, err
		}
		if e.kind == 0 {
			continue
		}
		if w.entries++; w.entries > w.s.cfg.TreeFiles {
			return nil, fmt.Errorf("%w: more than %d files", ErrTooLarge, w.s.cfg.TreeFiles)
		}
		list = append(list, e)
	}
	return list, nil
}

// names gives the names in a folder, in the order of their bytes.
func (w *walk) names(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for {
		more, err := f.Readdirnames(1024)
		names = append(names, more...)
		// Names that are left out cost too, though less.
		if w.seen += len(more); w.seen > 4*w.s.cfg.TreeFiles {
			return nil, fmt.Errorf("%w: more than %d names", ErrTooLarge, 4*w.s.cfg.TreeFiles)
		}
		if errors.Is(err, io.EOF) || err == nil && len(more) == 0 {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// rules adds those of a folder's .gitignore to those of the folders above.
func (w *walk) rules(dir *os.Root, path string, above []rule) []rule {
	info, err := dir.Lstat(rulesFile)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRulesBytes {
		return above
	}
	text, _, err := w.content(dir, rulesFile, info, maxRulesBytes)
	if err != nil {
		return above
	}
	own := parseRules(string(text), len(path))
	if len(above)+len(own) > maxAllRules {
		return above
	}
	return append(above[:len(above):len(above)], own...)
}

// entry tells one name of a folder; a kind of 0 means that it is left out.
func (w *walk) entry(dir *os.Root, path, name string, depth int, rules []rule) (entry, error) {
	if !goodName(name) {
		return entry{}, nil
	}
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // went away meanwhile
		return entry{}, nil
	case err != nil:
		return entry{}, err
	case w.s.ignored(rules, path+name, name, info.IsDir()):
		return entry{}, nil
	}
	if w.s.looked != nil && !w.dry {
		w.s.looked(path + name)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return w.subfolder(dir, path, name, info, depth, rules)
	case w.dry:
		return entry{kind: unheld}, w.count(info)
	case mode&fs.ModeSymlink != 0:
		to, err := dir.Readlink(name)
		if err != nil {
			return w.stamp(name, info), nil // it is none any more
		}
		sum, err := w.put([]byte(to))
		return entry{kind: link, size: int64(len(to)), sum: sum, name: name}, err
	case mode.IsRegular():
		return w.file(dir, path, name, info)
	}
	return entry{}, nil // a pipe, a socket, a device
}

func (w *walk) subfolder(dir *os.Root, path, name string, info fs.FileInfo, depth int, rules []rule) (entry, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return w.stamp(name, info), nil // may not be looked into, or is none any more
	}
	defer sub.Close()
	// A link that took its place meanwhile was followed: it is not what stands there.
	if now, err := sub.Stat("."); err != nil || !os.SameFile(now, info) {
		return w.stamp(name, info), nil
	}
	list, err := w.folder(sub, path+name+"/", depth+1, rules)
	if err != nil || len(list) == 0 { // a folder is there by what it holds
		return entry{}, err
	}
	if w.dry {
		return entry{kind: folder}, nil
	}
	sum, err := w.listing(list)
	return entry{kind: folder, sum: sum, name: name}, err
}

// file holds a file, by what is known of it where it stands as it stood.
func (w *walk) file(dir *os.Root, path, name string, info fs.FileInfo) (entry, error) {
	for range 3 {
		now, known := statOf(info)
		old, ok := w.space.index[path+name]
		if !known || !ok || !old.unchanged(&now) {
			now.read = time.Now().UnixNano()
			var same bool
			var err error
			if now.kind, now.sum, same, err = w.read(dir, name, info); err != nil {
				return entry{}, err
			}
			if !same { // it changed under the reading
				if info, err = dir.Lstat(name); err != nil || !info.Mode().IsRegular() {
					return entry{}, nil // as if looked at a moment later
				}
				continue
			}
			old = now
		}
		if old.kind == file {
			if err := w.count(info); err != nil {
				return entry{}, err
			}
		}
		if known {
			w.index[path+name] = old
		}
		return entry{kind: old.kind, perm: uint32(info.Mode().Perm()), size: info.Size(), sum: old.sum, name: name}, nil
	}
	return w.stamp(name, info), nil // it does not stand still
}

// count counts the bytes of a file that is held.
func (w *walk) count(info fs.FileInfo) error {
	if !info.Mode().IsRegular() || info.Size() > w.s.cfg.FileBytes {
		return nil
	}
	if w.bytes += info.Size(); w.bytes > w.s.cfg.TreeBytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, w.s.cfg.TreeBytes)
	}
	return nil
}

// read takes the content of a file. same: it is the one that info tells of, and
// stands as it stood.
func (w *walk) read(dir *os.Root, name string, info fs.FileInfo) (k kind, sum digest, same bool, err error) {
	if info.Size() > w.s.cfg.FileBytes {
		return unheld, stampOf(info), true, nil
	}
	data, same, err := w.content(dir, name, info, w.s.cfg.FileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, sum, false, nil
	case err != nil: // may not be read, or not now
		return unheld, stampOf(info), true, nil
	case !same:
		return 0, sum, false, nil
	}
	sum, err = w.put(data)
	return file, sum, true, err
}

// content reads a file of up to most bytes, at once. Whatever took its place
// meanwhile is not waited for.
func (w *walk) content(dir *os.Root, name string, info fs.FileInfo, most int64) (data []byte, same bool, err error) {
	w.s.reads.Add(1)
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil || !now.Mode().IsRegular() || !os.SameFile(now, info) {
		return nil, false, err
	}
	var buf bytes.Buffer
	buf.Grow(int(min(info.Size(), most)) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(f, most+1))
	if err != nil {
		return nil, false, err
	}
	now, err = f.Stat()
	same = err == nil && n == info.Size() && now.Size() == info.Size() && now.ModTime().Equal(info.ModTime())
	return buf.Bytes(), same, err
}

// stamp is the entry of what cannot be held.
func (w *walk) stamp(name string, info fs.FileInfo) entry {
	return entry{kind: unheld, perm: uint32(info.Mode().Perm()), size: info.Size(), sum: stampOf(info), name: name}
}

// stampOf changes when a file does, as far as can be told without reading it.
func stampOf(info fs.FileInfo) digest {
	text := info.Mode().String() + " " + strconv.FormatInt(info.Size(), 10) + " " + strconv.FormatInt(info.ModTime().UnixNano(), 10)
	if st, ok := statOf(info); ok {
		text += " " + strconv.FormatUint(st.inode, 10) + " " + strconv.FormatInt(st.changed, 10)
	}
	return sha256.Sum256([]byte(text))
}

func (w *walk) put(data []byte) (digest, error) {
	sum, written, err := w.s.put(w.space.name, data)
	if written {
		w.written += int64(len(data))
	}
	return sum, err
}

func (w *walk) listing(list []entry) (digest, error) { return w.put(encode(list)) }

// begin makes the folders of a space, and marks that a snapshot is being made.
func (s *Store) begin(space string) error {
	for _, dir := range []string{s.path(space), s.path(space, "objects"), s.path(space, "refs")} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return os.WriteFile(s.path(space, busy), nil, 0o600)
}

// end says that what the space holds is referred to.
func (s *Store) end(space string) error {
	if err := os.Remove(s.path(space, busy)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// busy is there while a snapshot is being made: a space that has it without
// that was left by a process that died.
const busy = "busy"

// refer makes a tree one of the session's, the newest, and says how many it has.
func (s *Store) refer(at Place, t Tree) (int, error) {
	dir := s.path(at.Space, "refs", at.Session)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, err
	}
	refs, err := s.refs(at)
	if err != nil {
		return 0, err
	}
	stamp := time.Now().UnixNano()
	if n := len(refs); n > 0 {
		if refs[n-1].tree == t {
			return n, nil
		}
		stamp = max(stamp, refs[n-1].at+1) // the order holds, whatever the clock does
	}
	name := fmt.Sprintf("%020d-%s", stamp, strings.TrimPrefix(string(t), prefix))
	return len(refs) + 1, os.WriteFile(s.path(at.Space, "refs", at.Session, name), nil, 0o600)
}

// ref is a tree of a session.
type ref struct {
	at   int64
	tree Tree
	name string // of its file
}

// refs lists the trees of a session, the oldest first; one may be there twice.
func (s *Store) refs(at Place) ([]ref, error) {
	files, err := os.ReadDir(s.path(at.Space, "refs", at.Session))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var refs []ref
	for _, f := range files { // sorted by name, which is by time
		stamp, sum, ok := strings.Cut(f.Name(), "-")
		n, err := strconv.ParseInt(stamp, 10, 64)
		if t := Tree(prefix + sum); ok && err == nil && t.Valid() {
			refs = append(refs, ref{n, t, f.Name()})
		}
	}
	return refs, nil
}

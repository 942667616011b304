package filetree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// sweepTime bounds one sweep. One that is cut has deleted only what nothing
// refers to.
const sweepTime = 2 * time.Minute

// fewTrees are not worth a sweep when a space is used for the first time in a process.
const fewTrees = 16

// sweepWhenDue sweeps a space, beside what goes on, when it has grown so far
// since the last time that it may be past its bounds; or now.
func (s *Store) sweepWhenDue(sp *space, now bool) {
	due := now && sp.written > 0 || sp.written > s.cfg.SpaceBytes/4 || sp.made > s.cfg.Keep/4+1 || !sp.swept && sp.trees > fewTrees
	if !due {
		return
	}
	sp.swept, sp.written, sp.made, sp.trees = true, 0, 0, 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.work.Go(func() {
		if err := s.Sweep(s.ctx, sp.name); err != nil && s.ctx.Err() == nil {
			s.cfg.Logger.Warn("sweep snapshots of files", "space", sp.name, "err", err)
		}
	})
}

// Sweep brings a space within its bounds: of each session the newest trees are
// kept, as many as the space has room for; then every object goes that no kept
// tree refers to. A crash in between leaves a space that is whole.
func (s *Store) Sweep(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	sp, err := s.enter(ctx, name)
	if err != nil {
		return err
	}
	before := len(sp.index)
	defer func() { s.leave(sp, before) }()
	if _, err := os.Lstat(s.path(name)); errors.Is(err, fs.ErrNotExist) {
		s.forget(sp)
		return nil
	}
	for keep := s.cfg.Keep; ; keep /= 2 {
		if err := s.prune(name, keep); err != nil {
			return err
		}
		marked, size, err := s.mark(ctx, name)
		if err != nil {
			return err
		}
		if size > s.cfg.SpaceBytes && keep > 2 {
			continue
		}
		if err := s.drop(ctx, sp, marked); err != nil {
			return err
		}
		return errors.Join(s.clear(name), s.end(name))
	}
}

// prune lets go of all but the newest trees of each session.
func (s *Store) prune(space string, keep int) error {
	sessions, err := os.ReadDir(s.path(space, "refs"))
	if err != nil {
		return err
	}
	for _, f := range sessions {
		refs, err := s.refs(Place{space, f.Name()})
		if err != nil {
			return err
		}
		for _, r := range refs[:max(0, len(refs)-keep)] {
			if err := os.Remove(s.path(space, "refs", f.Name(), r.name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear removes the folders of sessions without a tree. That is last of a sweep:
// by them a session is found whose erasing was cut.
func (s *Store) clear(space string) error {
	sessions, err := os.ReadDir(s.path(space, "refs"))
	for _, f := range sessions {
		_ = os.Remove(s.path(space, "refs", f.Name())) // of one that holds something it fails
	}
	return err
}

// mark gives what the trees of a space refer to, and its size. What is missing
// of a tree is passed over.
func (s *Store) mark(ctx context.Context, space string) (map[digest]bool, int64, error) {
	marked := map[digest]bool{}
	var size int64
	sessions, err := os.ReadDir(s.path(space, "refs"))
	if err != nil {
		return nil, 0, err
	}
	for _, f := range sessions {
		refs, err := s.refs(Place{space, f.Name()})
		if err != nil {
			return nil, 0, err
		}
		for _, r := range refs {
			d, err := r.tree.parse()
			if err != nil {
				continue
			}
			if err := s.markTree(ctx, space, d, marked, &size, 0); err != nil {
				return nil, 0, err
			}
		}
	}
	return marked, size, nil
}

func (s *Store) markTree(ctx context.Context, space string, d digest, marked map[digest]bool, size *int64, depth int) error {
	if marked[d] || depth > maxDepth+1 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	marked[d] = true
	list, err := s.list(space, d)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	*size += int64(len(list)) * 100 // about what a name takes
	for i := range list {
		switch e := &list[i]; {
		case e.kind == folder:
			if err := s.markTree(ctx, space, e.sum, marked, size, depth+1); err != nil {
				return err
			}
		case e.kind != unheld && !marked[e.sum]:
			marked[e.sum] = true
			*size += e.size
		}
	}
	return nil
}

// drop deletes the objects that are not marked.
func (s *Store) drop(ctx context.Context, sp *space, marked map[digest]bool) error {
	folders, err := os.ReadDir(s.path(sp.name, "objects"))
	if err != nil {
		return err
	}
	dropped := map[digest]bool{}
	for _, f := range folders {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(f.Name(), tempName) {
			_ = os.Remove(s.path(sp.name, "objects", f.Name()))
			continue
		}
		objects, err := os.ReadDir(s.path(sp.name, "objects", f.Name()))
		if err != nil {
			return err
		}
		for _, o := range objects {
			var d digest
			if n, err := hex.Decode(d[:], []byte(f.Name()+o.Name())); err != nil || n != len(d) || marked[d] {
				continue
			}
			if err := os.Remove(s.path(sp.name, "objects", f.Name(), o.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			dropped[d] = true
		}
	}
	for name, st := range sp.index { // what is gone has to be read again
		if dropped[st.sum] {
			delete(sp.index, name)
		}
	}
	return nil
}

// shared begins the names of spaces of workspaces that sessions share.
const shared = "shared-"

// SharedSpace names the space of a workspace that sessions share, by its root.
func SharedSpace(root string) string {
	sum := sha256.Sum256([]byte(root))
	return shared + hex.EncodeToString(sum[:8])
}

// Sessions lists the sessions of which there is something, each once, in order.
func (s *Store) Sessions() ([]string, error) {
	spaces, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, sp := range spaces {
		if !sp.IsDir() || !plain(sp.Name()) {
			continue
		}
		if !strings.HasPrefix(sp.Name(), shared) {
			ids = append(ids, sp.Name()) // also where its own space holds no tree
			continue
		}
		sessions, err := os.ReadDir(s.path(sp.Name(), "refs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, f := range sessions {
			ids = append(ids, f.Name())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Erase deletes what there is of a session: its own space, and in shared ones
// its trees and what only they referred to. It is done again by whoever finds
// something left after a crash; nothing to delete is no error.
func (s *Store) Erase(ctx context.Context, session string) error {
	if !plain(session) {
		return nil // nothing is ever kept of it
	}
	err := s.eraseSpace(ctx, session)
	spaces, rerr := os.ReadDir(s.cfg.Dir)
	err = errors.Join(err, rerr)
	for _, f := range spaces {
		space := f.Name()
		if !plain(space) || !strings.HasPrefix(space, shared) {
			continue
		}
		refs := s.path(space, "refs", session)
		if _, serr := os.Lstat(refs); serr != nil {
			continue
		}
		// Swept first and let go last: a crash in between leaves the folder of
		// refs, by which it is found again.
		err = errors.Join(err, s.eraseRefs(ctx, space, session))
	}
	return err
}

func (s *Store) eraseSpace(ctx context.Context, name string) error {
	sp, err := s.enter(ctx, name)
	if err != nil {
		return err
	}
	before := len(sp.index)
	defer func() { s.leave(sp, before) }()
	s.forget(sp)
	return os.RemoveAll(s.path(name))
}

func (s *Store) eraseRefs(ctx context.Context, space, session string) error {
	sp, err := s.enter(ctx, space)
	if err != nil {
		return err
	}
	refs, err := s.refs(Place{space, session})
	for _, r := range refs {
		err = errors.Join(err, os.Remove(s.path(space, "refs", session, r.name)))
	}
	s.leave(sp, len(sp.index))
	if err != nil {
		return err
	}
	return s.Sweep(ctx, space) // takes the empty folder of refs too
}

// Tidy sweeps up to most spaces that a process left in the middle of a snapshot.
func (s *Store) Tidy(ctx context.Context, most int) error {
	spaces, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, f := range spaces {
		if ctx.Err() != nil || most == 0 {
			return nil
		}
		if _, serr := os.Lstat(s.path(f.Name(), busy)); serr != nil || !plain(f.Name()) {
			continue
		}
		most--
		err = errors.Join(err, s.Sweep(ctx, f.Name()))
	}
	return err
}

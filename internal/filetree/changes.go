package filetree

import (
	"context"
	"crypto/sha256"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
)

// Kinds of changes.
const (
	Added    = "added"
	Modified = "modified"
	Deleted  = "deleted"
	Mode     = "mode" // the permissions alone
)

// Change is one file or link that differs between two snapshots.
type Change struct {
	Path     string // for people: UTF-8, cut past maxShown bytes
	Kind     string
	Old, New int64 // sizes in bytes; 0 where it is not there
	old, new *entry
}

// maxShown bounds a path as it is shown, in bytes.
const maxShown = 1024

// maxCounted bounds the changes that are counted.
const maxCounted = 1_000_000

// Changes tells what differs between two snapshots of a space, in the order of
// folders and names, up to most of it, and how many more there are. ErrGone: one
// of them is not kept here.
func (s *Store) Changes(ctx context.Context, space string, from, to Tree, most int) ([]Change, int, error) {
	c := changes{ctx: ctx, s: s, space: space, most: most}
	a, err := s.top(space, from)
	if err != nil {
		return nil, 0, err
	}
	b, err := s.top(space, to)
	if err != nil {
		return nil, 0, err
	}
	err = c.folders("", a, b, 0)
	return c.list, c.more, err
}

// top reads the root listing of a tree.
func (s *Store) top(space string, t Tree) ([]entry, error) {
	d, err := t.parse()
	if err != nil || !plain(space) {
		return nil, ErrGone
	}
	if t == Empty {
		return nil, nil
	}
	return s.list(space, d)
}

// Empty is the tree of a folder that holds nothing, or is not there.
var Empty = digest(sha256.Sum256(encode(nil))).tree()

type changes struct {
	ctx   context.Context
	s     *Store
	space string
	list  []Change
	most  int
	more  int
}

// folders compares two folders; path is theirs with a slash behind it, or empty.
func (c *changes) folders(path string, a, b []entry, depth int) error {
	if depth > maxDepth+1 || len(path) > 2*maxPath {
		return ErrGone // no snapshot holds that
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	for len(a) > 0 || len(b) > 0 {
		var err error
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].name < b[0].name:
			err = c.one(path, &a[0], nil, depth)
			a = a[1:]
		case len(a) == 0 || b[0].name < a[0].name:
			err = c.one(path, nil, &b[0], depth)
			b = b[1:]
		default:
			err = c.pair(path, &a[0], &b[0], depth)
			a, b = a[1:], b[1:]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pair compares what has the same name.
func (c *changes) pair(path string, a, b *entry, depth int) error {
	switch {
	case a.same(b):
		return nil
	case a.kind == folder && b.kind == folder:
		la, err := c.s.list(c.space, a.sum)
		if err != nil {
			return err
		}
		lb, err := c.s.list(c.space, b.sum)
		if err != nil {
			return err
		}
		return c.folders(path+a.name+"/", la, lb, depth+1)
	case a.kind == folder || b.kind == folder:
		if err := c.one(path, a, nil, depth); err != nil {
			return err
		}
		return c.one(path, nil, b, depth)
	}
	k := Modified
	if a.kind == b.kind && a.sum == b.sum && a.size == b.size {
		k = Mode
	}
	return c.add(Change{Kind: k, Old: a.size, New: b.size, old: a, new: b}, path+a.name)
}

// one tells what stands on one side only, with all that is below it.
func (c *changes) one(path string, a, b *entry, depth int) error {
	e, k := a, Deleted
	if e == nil {
		e, k = b, Added
	}
	if e.kind != folder {
		ch := Change{Kind: k, old: a, new: b}
		if a != nil {
			ch.Old = a.size
		} else {
			ch.New = b.size
		}
		return c.add(ch, path+e.name)
	}
	list, err := c.s.list(c.space, e.sum)
	if err != nil {
		return err
	}
	if a != nil {
		return c.folders(path+e.name+"/", list, nil, depth+1)
	}
	return c.folders(path+e.name+"/", nil, list, depth+1)
}

func (c *changes) add(ch Change, path string) error {
	if len(c.list) >= c.most {
		if c.more++; c.more > maxCounted {
			return ErrTooLarge
		}
		return nil
	}
	ch.Path = shown(path)
	c.list = append(c.list, ch)
	return nil
}

// shown makes a path of any bytes one for people.
func shown(path string) string {
	path, _ = canonjson.ReplaceInvalid(path)
	if len(path) > maxShown {
		path = canonjson.CutRunes(path, maxShown-len("…")) + "…"
	}
	return strings.Clone(path)
}

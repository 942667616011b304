package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/engine"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/filetree"
	"github.com/holdfast-dev/holdfast/internal/httpapi/sessions"
	"github.com/holdfast-dev/holdfast/internal/problem"
	"github.com/holdfast-dev/holdfast/internal/session"
	"github.com/holdfast-dev/holdfast/internal/workspace"
)

// files are the snapshots of workspaces that stand on this node.
type files struct {
	store  *filetree.Store
	makes  bool // snapshots are made; else what there is can be read and erased
	root   string
	shared bool
	tidied string        // the last session that was looked up; the chore's own
	diffs  chan struct{} // one element for each comparison that somebody waits for
}

var (
	_ engine.Files   = (*files)(nil)
	_ sessions.Files = (*files)(nil)
)

// Bounds of the comparisons that people ask for.
const (
	maxDiffsAtOnce = 2
	diffTime       = 10 * time.Second
)

// filesDir is the folder that holds snapshots of workspaces.
func filesDir(cfg *config.Config) string {
	if cfg.Files.Dir != "" {
		return cfg.Path(cfg.Files.Dir)
	}
	return filepath.Join(cfg.Path(cfg.DataDir), "files")
}

// newFiles opens the store of snapshots; nil where none are made and none were.
// Of several workspaces that have tools which write, the first by name counts.
func newFiles(cfg *config.Config, opt *Options) (*files, error) {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Tools)) {
		if t := cfg.Tools[name]; t.Type == "workspace" && writes(t) {
			found = append(found, name)
		}
	}
	makes := len(found) > 0 && !cfg.Files.Off
	if _, err := os.Lstat(filesDir(cfg)); !makes && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if makes && len(found) > 1 {
		opt.Logger.Warn("snapshots of files are made of one workspace only", "of", found[0], "not_of", found[1:])
	}
	host, _ := os.Hostname() // it is for people
	f := cfg.Files
	store, err := filetree.New(filetree.Config{
		Dir: filesDir(cfg), Host: host, Random: opt.Random, Ignore: f.Ignore, NoGitignore: f.NoGitignore,
		FileBytes: int64(f.FileBytes), TreeBytes: int64(f.TreeBytes), TreeFiles: f.TreeFiles, Keep: f.Keep, SpaceBytes: int64(f.WorkspaceBytes),
		Timeout: f.Timeout.Or(0), Logger: opt.Logger,
	})
	if err != nil {
		return nil, cfg.Mistake("files.dir", "%v", err)
	}
	out := &files{store: store, makes: makes, diffs: make(chan struct{}, maxDiffsAtOnce)}
	if len(found) > 0 {
		t := cfg.Tools[found[0]]
		out.root, out.shared = cfg.Path(t.Root), t.Shared
	}
	return out, nil
}

// writes says whether a workspace has a tool that changes files.
func writes(t config.Tool) bool {
	names := allowed(t)
	return slices.Contains(names, workspace.WriteFile) || slices.Contains(names, workspace.EditFile)
}

// place says where a session's snapshots stand.
func (f *files) place(id event.SessionID) filetree.Place {
	if f.shared {
		return filetree.Place{Space: filetree.SharedSpace(f.root), Session: string(id)}
	}
	return filetree.Place{Space: string(id), Session: string(id)}
}

// Capture implements engine.Files.
func (f *files) Capture(ctx context.Context, user string, id event.SessionID) (*event.FileSnapshot, error) {
	tree, err := f.store.Capture(ctx, f.place(id), func() (*os.Root, error) {
		return workspace.Open(f.root, f.shared, user, string(id))
	})
	if err != nil {
		return nil, err
	}
	return &event.FileSnapshot{Node: f.store.Node(), Tree: string(tree)}, nil
}

// Changes implements engine.Files.
func (f *files) Changes(ctx context.Context, id event.SessionID, from, to *event.FileSnapshot) (*event.FileChanges, error) {
	if from.Node != f.store.Node() || to.Node != f.store.Node() {
		return nil, errors.New("a snapshot of the step stands on another node")
	}
	ctx, cancel := context.WithTimeout(ctx, diffTime)
	defer cancel()
	list, more, err := f.store.Changes(ctx, f.place(id).Space, filetree.Tree(from.Tree), filetree.Tree(to.Tree), event.MaxFileChanges)
	if err != nil {
		return nil, err
	}
	out := &event.FileChanges{List: []event.FileChange{}, More: more}
	bytes := 0
	for i := range list {
		if bytes += len(list[i].Path); bytes > event.MaxFilePaths {
			out.More += len(list) - i
			break
		}
		out.List = append(out.List, event.FileChange{
			Path: list[i].Path, Change: event.FileAction(list[i].Kind), Before: list[i].Old, Bytes: list[i].New,
		})
	}
	return out, nil
}

// Diff implements sessions.Files.
func (f *files) Diff(ctx context.Context, id event.SessionID, from, to event.FileSnapshot, stat bool) ([]api.FileDiff, int, error) {
	for _, s := range []event.FileSnapshot{from, to} {
		if s.Node != f.store.Node() {
			return nil, 0, sessions.Elsewhere(s.Node)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, diffTime)
	defer cancel()
	select {
	case f.diffs <- struct{}{}:
		defer func() { <-f.diffs }()
	case <-ctx.Done():
		return nil, 0, problem.New(problem.Limited, "diff_busy", "too many comparisons of files at once; try again")
	}
	list, more, err := f.store.Diff(ctx, f.place(id).Space, filetree.Tree(from.Tree), filetree.Tree(to.Tree), stat)
	switch {
	case errors.Is(err, filetree.ErrGone):
		return nil, 0, problem.New(problem.Gone, "snapshot_gone", "a snapshot was made on this node and is not kept any more")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, 0, problem.New(problem.Limited, "diff_busy", "the comparison took longer than %s; try again, or name a step", diffTime)
	case err != nil:
		return nil, 0, fmt.Errorf("compare files: %w", err)
	}
	out := make([]api.FileDiff, len(list))
	for i := range list {
		d := &list[i]
		out[i] = api.FileDiff{
			Path: d.Path, Change: d.Kind, Before: d.Old, Bytes: d.New, Added: d.Added, Deleted: d.Deleted,
			Diff: d.Text, Cut: d.Cut, Binary: d.Binary, NotHeld: d.Unheld,
		}
	}
	return out, more, nil
}

// tidy sweeps what a process left in the middle of a snapshot, and erases what
// there is of sessions that were erased: elsewhere, or by a process that died.
// One call does so much; the next goes on behind it.
func (f *files) tidy(ctx context.Context, store Store, log *slog.Logger) {
	err := f.store.Tidy(ctx, maxTidied)
	ids, lerr := f.store.Sessions()
	err = errors.Join(err, lerr)
	from, known := slices.BinarySearch(ids, f.tidied)
	if known {
		from++
	}
	if ids = ids[from:min(from+maxLookedUp, len(ids))]; len(ids) == maxLookedUp {
		f.tidied = ids[maxLookedUp-1]
	} else {
		f.tidied = ""
	}
	for _, id := range ids {
		row, rerr := store.Session(ctx, event.SessionID(id))
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(rerr, eventlog.ErrNotFound): // a shared space, or of a database that is not this one
		case rerr != nil:
			err = errors.Join(err, rerr)
		case row.Status == session.Erased:
			err = errors.Join(err, f.store.Erase(ctx, id))
		}
	}
	if err != nil && ctx.Err() == nil {
		log.Error("tidy snapshots of files", "err", err)
	}
}

// Bounds of one tidying: spaces that are swept, sessions that are looked up.
const (
	maxTidied   = 100
	maxLookedUp = 20_000
)

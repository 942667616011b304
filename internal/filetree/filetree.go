// Package filetree keeps the content of folders as it was: a snapshot is a tree
// of listings and files in a private store, named by the SHA-256 of its root
// listing. Two snapshots can be told apart, and what changed between them shown.
//
// What it reads is hostile: names are any bytes, links are recorded and never
// followed, what is neither file, folder nor link is passed over, and everything
// is bounded. What it keeps is never needed: whoever asks for a snapshot goes on
// without one.
//
// A store is a folder of spaces. A space belongs to one workspace: to that of
// one session, or to one that sessions share. It holds
//
//	objects/ab/cdef…    a file's content, or a listing, under its SHA-256
//	refs/SESSION/TIME-… the trees of a session, the newest last
//	busy                there while a snapshot is being made
//
// and beside the spaces stand node, the name of the store, and lock.
//
// What no tree of a space refers to is swept. Nothing is synced: content is held
// against its name when it is read, so that what a power cut takes is missed and
// never mistaken.
package filetree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/glob"
)

// Config says where snapshots are kept and what they may hold. Zero fields take
// the defaults.
type Config struct {
	// Dir is the folder of the store, made with mode 0700. One process uses it at a time.
	Dir string
	// Host is part of the store's name, for people; what else is in it is drawn
	// from Random (default crypto/rand) when the store is made.
	Host   string
	Random io.Reader
	// Ignore are patterns of internal/glob: files and folders that no snapshot
	// holds, beside those that never count. Nil: DefaultIgnore.
	Ignore []string
	// NoGitignore: the .gitignore files of a workspace say nothing.
	NoGitignore bool
	FileBytes   int64         // of a file whose content is held; default 2 MiB
	TreeBytes   int64         // of all held files of a snapshot; default 256 MiB
	TreeFiles   int           // files, links and folders of a snapshot; default 50,000
	Keep        int           // snapshots of a session that are kept, the newest; default 200
	SpaceBytes  int64         // of a space; older snapshots give way; default 1 GiB
	Timeout     time.Duration // of one snapshot; default 10 s
	Logger      *slog.Logger  // default: nothing is logged
}

// DefaultIgnore is what snapshots leave out unless the configuration says otherwise.
var DefaultIgnore = []string{"node_modules", "__pycache__", ".venv"}

// Bounds that nobody sets.
const (
	maxDepth   = 64      // folders in folders
	maxIndexed = 150_000 // files of which it is remembered how they stood when they were read; some 200 bytes each
	maxPath    = 4096    // bytes
)

// The reasons why there is no snapshot, or no answer of one.
var (
	// ErrTooLarge: the folder is past a bound.
	ErrTooLarge = errors.New("the workspace is too large for a snapshot")
	// ErrGone: the tree is not in this store, or not whole.
	ErrGone = errors.New("the snapshot is not kept here")
	// ErrPaused: a snapshot of the space failed a short while ago.
	ErrPaused = errors.New("snapshots of this workspace are paused after a failure")
)

// Tree names a snapshot: "sha256:" and 64 hexadecimal digits.
type Tree string

// Place says whose snapshot it is.
type Place struct {
	Space   string // the session's id for a workspace of its own, else what SharedSpace gives
	Session string // a name of [a-z0-9_-]
}

// Store keeps snapshots. It is safe for concurrent use; Close ends it.
type Store struct {
	cfg    Config
	node   string
	lock   *os.File
	ignore []*glob.Pattern
	names  map[string]bool // those of them that are plain names

	mu      sync.Mutex
	spaces  map[string]*space
	indexed int // entries of all indexes
	closed  bool
	work    sync.WaitGroup    // sweeps
	reads   atomic.Int64      // files that were opened, for tests
	looked  func(path string) // set by tests: a name was looked at and is not opened yet
	ctx     context.Context
	cancel  context.CancelFunc
}

// space is what is known of a space in this process.
type space struct {
	name  string
	token chan struct{} // held by who makes a snapshot or sweeps
	used  int           // who holds it or waits, guarded by Store.mu
	last  time.Time

	// What follows belongs to the holder of the token.
	index   map[string]stat // by path
	written int64           // bytes since the last sweep
	made    int             // snapshots since the last sweep
	trees   int             // of the session that the last snapshot was of
	swept   bool            // in this process
	failed  int             // snapshots in a row that failed
	again   time.Time       // no snapshot is tried before
}

// New opens a store. An error is a pattern that cannot be used, or a folder
// that cannot be made.
func New(cfg Config) (*Store, error) {
	if cfg.Ignore == nil {
		cfg.Ignore = DefaultIgnore
	}
	def(&cfg.FileBytes, 2<<20)
	def(&cfg.TreeBytes, 256<<20)
	def(&cfg.TreeFiles, 50_000)
	def(&cfg.Keep, 200)
	cfg.Keep = max(cfg.Keep, 2) // a step has two
	def(&cfg.SpaceBytes, 1<<30)
	def(&cfg.Timeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, spaces: map[string]*space{}, names: map[string]bool{}}
	for _, p := range cfg.Ignore {
		g, err := glob.Compile(p)
		if err != nil {
			return nil, fmt.Errorf("ignore %.80q: %w", p, err)
		}
		if strings.ContainsAny(p, "*?[{/") {
			s.ignore = append(s.ignore, g)
		} else {
			s.names[p] = true
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("snapshots of files: %w", err)
	}
	var err error
	if s.lock, err = lock(cfg.Dir); err != nil {
		return nil, fmt.Errorf("snapshots of files: %w", err)
	}
	if cfg.Random == nil {
		cfg.Random = rand.Reader
	}
	if s.node, err = nameOf(s.path("node"), cfg.Host, cfg.Random); err != nil {
		return nil, errors.Join(fmt.Errorf("snapshots of files: %w", err), s.lock.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Dir is the folder of the store.
func (s *Store) Dir() string { return s.cfg.Dir }

// Node is the name of the store: no other has it.
func (s *Store) Node() string { return s.node }

// Close ends sweeps, waits for them and lets the folder go. Nothing may be
// asked of the store any more.
func (s *Store) Close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
	if !again {
		_ = s.lock.Close()
	}
}

func def[T int | int64 | time.Duration](p *T, v T) {
	if *p <= 0 {
		*p = v
	}
}

// enter takes the token of a space.
func (s *Store) enter(ctx context.Context, name string) (*space, error) {
	if !plain(name) {
		return nil, fmt.Errorf("snapshots of files: %.80q is no name of a space", name)
	}
	s.mu.Lock()
	sp := s.spaces[name]
	if sp == nil {
		sp = &space{name: name, token: make(chan struct{}, 1)}
		s.spaces[name] = sp
	}
	sp.used++
	s.mu.Unlock()
	select {
	case sp.token <- struct{}{}:
		return sp, nil
	case <-ctx.Done():
		s.mu.Lock()
		sp.used--
		s.mu.Unlock()
		return nil, ctx.Err()
	}
}

// leave gives the token back. What is remembered over all spaces is bounded:
// those that nobody used for longest are forgotten, and read anew next time.
func (s *Store) leave(sp *space, before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.last = time.Now()
	s.indexed += len(sp.index) - before
	sp.used--
	<-sp.token
	for s.indexed > max(maxIndexed, 2*s.cfg.TreeFiles) || len(s.spaces) > maxSpaces {
		var oldest *space
		for _, x := range s.spaces {
			if x.used == 0 && (oldest == nil || x.last.Before(oldest.last)) {
				oldest = x
			}
		}
		if oldest == nil {
			return
		}
		s.indexed -= len(oldest.index)
		delete(s.spaces, oldest.name)
	}
}

// maxSpaces bounds the spaces that something is remembered of.
const maxSpaces = 1000

// forget drops what is remembered of a space that is gone.
func (s *Store) forget(sp *space) {
	sp.index, sp.written, sp.made, sp.swept, sp.failed, sp.again = nil, 0, 0, false, 0, time.Time{}
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, parts...)...)
}

// plain says whether a name is one of the store's own folders: no name leads out.
func plain(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		if c := name[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// gone says whether an error means that something is not there.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrGone) }

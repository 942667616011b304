// Package sqlite keeps the log, its derived rows, blobs, snapshots and tokens in one
// SQLite database in a data directory that one process holds at a time.
//
// Everything is written by one goroutine over one connection. Whatever waits
// for it is one transaction (group commit): appends are checked one after the
// other, those that are refused drop out before they have written anything, and
// the rest shares one commit and one sync of the disk. Readers have
// connections of their own and, by the write-ahead log, never wait for the writer.
// The newest events of the streams written last are kept in memory: who is woken
// by a commit asks for those.
//
// The database stands on its defaults except where the figures or safety want
// otherwise: write-ahead log; synchronous FULL, so that what was acknowledged
// survives a loss of power; a checkpoint every 4,000 pages (16 MB), so that its
// syncs are rare beside those of the commits, and a log file cut back to 64 MB
// after a burst; a page cache of 16 MB for the writer and 2 MB for each reader. In
// memory that is twice as much: a page with its header is a little more than 4 KiB,
// and the allocator of the driver gives powers of two.
// Freed bytes are overwritten always, and not only while a session is erased: a
// page that an update or a rebuild of derived rows freed long before may hold
// content that an erasing no longer finds.
// Memory mapping stays off: a disk error would come as a signal and not as an error.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/dirlock"
	"github.com/holdfast-dev/holdfast/internal/diskfs"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
	_ "modernc.org/sqlite" // the driver
)

// DatabaseFile is the name of the database in the data directory.
const DatabaseFile = "holdfast.db"

// The choices of Config.Sync.
const (
	SyncFull   = "FULL"   // an append that returned survives a loss of power
	SyncNormal = "NORMAL" // it survives the death of the process; a loss of power may take the last ones
)

// Config says how to open a store. The zero value of every member but Dir and
// Rows means its default.
type Config struct {
	Dir  string // data directory; made with mode 0700 when it is not there
	Sync string // default SyncFull

	// Rows computes the changes to derived rows that follow from the events of
	// one append in one stream. It must be a pure function of its arguments.
	Rows func(event.Stream, []event.Event) []derived.Change
	// Generation is the version of Rows, from 1. Derived rows made by an older
	// one are rebuilt by Open; a database with newer ones is refused.
	Generation int

	// Disk refuses a data directory, or a database that is a link, on a file
	// system that is no place for one. Default diskfs.Refuse.
	Disk func(path string) error
	// CheckSnapshot compares a snapshot with its events; see
	// eventlog.CheckSnapshot. Nil: Verify only looks whether the log has the
	// event that the snapshot ends with.
	CheckSnapshot func(snap eventlog.Snapshot, read func(after int64) ([]event.Event, error)) error

	Random io.Reader // source of salts; default crypto/rand
	// OnCommit is told the stamps of each transaction, in the order of
	// commits, before their appends return. It runs on the writer: it must not
	// block and must not call the store.
	OnCommit func([]eventlog.Stamp)
	// OnBatch is told how each transaction went, after OnCommit and by the same rules.
	OnBatch func(Batch)

	MaxBatch      int // appends in one transaction; default 256
	MaxBatchBytes int // bytes of data in one transaction, save that of one append; default 4 MiB
	QueueSize     int // appends that may wait before callers do; default 1024
	ReadConns     int // connections of readers; default 4
	MaxReadBytes  int // bytes of data past which ReadBounded and Feed end early; default 1 MiB
	TailBytes     int // memory for the newest events, which are read most; default 4 MiB
}

func (c *Config) complete() error {
	if c.Dir == "" {
		return errors.New("no data directory given")
	}
	if c.Rows == nil {
		return errors.New("no function for derived rows given")
	}
	c.Sync = orDefault(c.Sync, SyncFull)
	if c.Sync != SyncFull && c.Sync != SyncNormal {
		return fmt.Errorf("sync is %q; it must be %s or %s", c.Sync, SyncFull, SyncNormal)
	}
	c.Generation = orDefault(c.Generation, 1)
	c.MaxBatch = orDefault(c.MaxBatch, 256)
	c.MaxBatchBytes = orDefault(c.MaxBatchBytes, 4<<20)
	c.QueueSize = orDefault(c.QueueSize, 1024)
	c.ReadConns = orDefault(c.ReadConns, 4)
	c.MaxReadBytes = orDefault(c.MaxReadBytes, 1<<20)
	c.TailBytes = orDefault(c.TailBytes, 4<<20)
	if min(c.Generation, c.MaxBatch, c.MaxBatchBytes, c.QueueSize, c.ReadConns, c.MaxReadBytes, c.TailBytes) < 0 {
		return errors.New("a bound is negative")
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Disk == nil {
		c.Disk = diskfs.Refuse
	}
	var err error
	c.Dir, err = filepath.Abs(c.Dir)
	return err
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	cfg     Config
	random  lockedReader
	lock    *os.File
	queue   *storecore.Queue[*request]
	readers *statements
	tails   *storecore.Tails
	damaged atomic.Pointer[error] // why nothing is written any more

	// reading counts the long reads that Close waits for.
	reading  sync.WaitGroup
	done     chan struct{} // closed when the writer has ended and all is closed
	closeErr error
}

var (
	_ eventlog.Log    = (*Store)(nil)
	_ eventlog.Views  = (*Store)(nil)
	_ eventlog.Tokens = (*Store)(nil)

	_ eventlog.Snapshots = (*Store)(nil)
)

// Open locks the data directory, brings the schema and the derived rows up to
// date and starts the writer. A directory that is in use gives a *dirlock.Error,
// a database of a newer version a *NewerError, one on a network file system a
// *diskfs.NetworkError, one that is damaged or another program's a *DamagedError;
// then nothing was made or changed.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	for _, path := range []string{cfg.Dir, filepath.Join(cfg.Dir, DatabaseFile)} {
		if err := cfg.Disk(path); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	lock, err := dirlock.Lock(cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, lock: lock, queue: storecore.NewQueue[*request](cfg.QueueSize), tails: storecore.NewTails(cfg.TailBytes), done: make(chan struct{})}
	s.random.r = cfg.Random
	w, err := s.start(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store in %s: %w", cfg.Dir, err), lock.Close())
	}
	go w.run()
	return s, nil
}

// start opens the database and makes it ready. On an error nothing stays open but the lock.
func (s *Store) start(ctx context.Context) (w *writer, err error) {
	path := filepath.Join(s.cfg.Dir, DatabaseFile)
	fresh, err := examine(ctx, s.cfg.Dir)
	if err == nil && fresh {
		err = createDatabase(ctx, path, s.cfg.Generation)
	}
	if err != nil {
		return nil, err
	}
	if err := Mark(s.cfg.Dir); err != nil { // behind the database: a first start that is cut before leaves none
		return nil, err
	}
	db, err := sql.Open("sqlite", source(path, "rw", "journal_mode(WAL)", "synchronous("+s.cfg.Sync+")",
		"wal_autocheckpoint(4000)", "journal_size_limit(67108864)", "cache_size(-16384)", "secure_delete(ON)"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			db.Close()
		}
	}()
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := migrate(ctx, conn, s.cfg.Generation); err != nil {
		return nil, err
	}
	if err := identify(ctx, conn); err != nil { // one of an older release has none
		return nil, err
	}
	w = newWriter(s, db, conn)
	if err := w.checkGeneration(ctx); err != nil {
		return nil, err
	}
	if err := w.recordEvents(ctx); err != nil {
		return nil, err
	}
	unswept, err := w.unswept(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.startForgetting(unswept); err != nil {
		return nil, err
	}
	readDB, err := sql.Open("sqlite", source(path, "ro", "cache_size(-2048)"))
	if err != nil {
		return nil, err
	}
	readDB.SetMaxOpenConns(s.cfg.ReadConns)
	readDB.SetMaxIdleConns(s.cfg.ReadConns)
	s.readers = newStatements(readDB)
	if err := w.seed(ctx); err != nil {
		return nil, errors.Join(err, readDB.Close())
	}
	return w, nil
}

// createFile makes the database file, so that it and the files beside it,
// which take its mode, are readable to nobody else, and its name survives a
// loss of power.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// source is the name of the database for the driver. Another process may hold
// its lock for a moment (a person with a shell): hence the timeout.
func source(path, mode string, pragmas ...string) string {
	q := url.Values{
		"mode": {mode}, "_txlock": {"immediate"}, "_dqs": {"0"},
		"_pragma": append([]string{"busy_timeout(5000)"}, pragmas...),
	}
	if mode == "ro" {
		q.Set("_txlock", "deferred")
		q.Set("_defensive", "1") // the writer sweeps pages, which this forbids
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode(), OmitHost: false}
	return u.String()
}

// Close ends intake, commits what waits, closes the database and lets go of
// the directory. When ctx ends first it returns its error and the rest goes
// on; Close may be called again to wait for it.
func (s *Store) Close(ctx context.Context) error {
	s.queue.Close()
	select {
	case <-s.done:
		return s.closeErr
	case <-ctx.Done():
		return fmt.Errorf("close store: %w", ctx.Err())
	}
}

// Append implements eventlog.Log. Encoding and digests are made here, on the
// caller's goroutine; the writer only gives the append its place.
func (s *Store) Append(ctx context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	r, err := s.prepare(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	if err := s.wait(ctx, r); err != nil {
		return nil, err // while nobody waits r is the writer's
	}
	return r.stamps, nil
}

// prepare makes what the writer needs of an append.
func (s *Store) prepare(ctx context.Context, a eventlog.Append) (*request, error) {
	if err := storecore.CheckAppend(a); err != nil {
		return nil, err
	}
	r := &request{ctx: ctx, append: a, done: make(chan struct{}), since: time.Now()}
	for i := range a.Entries {
		e := &a.Entries[i]
		// The events become the store's: a caller that gave up waiting may
		// use its drafts again.
		sealed, err := event.Seal(e.Stream, slices.Clone(e.Events), &s.random)
		if errors.Is(err, event.ErrEncode) {
			return nil, eventlog.Malformed(err, "an event cannot be written")
		}
		if err != nil {
			return nil, err
		}
		r.sealed = append(r.sealed, sealed)
		for j := range sealed.Events {
			r.size += len(sealed.Events[j].Raw) + 256 // and its envelope
		}
	}
	for _, b := range a.Blobs {
		r.size += len(b.Bytes)
	}
	return r, nil
}

// Waiting says how many appends wait for the writer now.
func (s *Store) Waiting() int { return s.queue.Waiting() }

// wait hands r to the writer and waits for its outcome.
func (s *Store) wait(ctx context.Context, r *request) error {
	if err := s.queue.Put(ctx, r); err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lockedReader makes a source of random bytes safe for concurrent use.
type lockedReader struct {
	mu sync.Mutex
	r  io.Reader
}

func (l *lockedReader) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Read(p)
}

// Package postgres keeps the log, its derived rows, blobs, snapshots, tokens and
// nodes in one schema of a PostgreSQL database, which several processes share.
//
// Of each process one goroutine writes. Whatever waits for it is one transaction
// (group commit) of two messages: the first locks the rows of the streams, and with
// them come their ends, the conditions and the time; the second has all rows, and ends
// with the lock of the feed, its row and the commit. So sequences have no gaps, since a
// stream's row is locked until the commit; and the order of the feed is the order of
// commits, since the feed is. A process that stops in the middle holds no lock
// that others need for other streams: the feed's goes with the commit, in one
// message, and the rows' end with the session's timeout. An append to a stream that
// another process has locked goes out of the way of all others.
//
// No transaction rests on what an earlier one saw: what another process wrote is
// seen. The newest events that this process wrote are kept in memory for its readers.
// Of those an answer may be shorter than it would be by what another process has
// written in the last moments, of which the news are on their way; that there is
// nothing more only the database says.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// What verification and the writer tell of, as on every store.
type (
	VerifyOptions = storecore.VerifyOptions
	Report        = storecore.Report
	Batch         = storecore.Batch
	News          = eventlog.News
)

// NewerError says that a newer version of the program has had the database.
type NewerError struct{ storecore.NewerError }

// The choices of Config.Sync.
const (
	SyncFull   = "FULL"   // an append that returned survives as the database promises for a commit
	SyncNormal = "NORMAL" // a crash of the database may take the last ones
)

// Config says how to open a store. The zero value of every member but URL and
// Rows means its default.
type Config struct {
	URL  string // of the database: postgres://…, or libpq's words; search_path in it names the schema
	Sync string // default SyncFull

	// Rows computes the changes to derived rows that follow from the events of
	// one append in one stream. It must be a pure function of its arguments.
	Rows func(event.Stream, []event.Event) []derived.Change
	// Generation is the version of Rows, from 1. Derived rows made by an older
	// one are rebuilt by Open; a database with newer ones is refused, and an
	// append after a newer program has come, too.
	Generation int
	// Program is the version of what owners write, from 1: a stream that a
	// newer program's node has owned is handed to no older one.
	Program int

	// CheckSnapshot compares a snapshot with its events; see
	// eventlog.CheckSnapshot. Nil: Verify only looks whether the log has the
	// event that the snapshot ends with.
	CheckSnapshot func(snap eventlog.Snapshot, read func(after int64) ([]event.Event, error)) error

	Random io.Reader    // source of salts; default crypto/rand
	Log    *slog.Logger // default: nothing is told
	// Node names this process in the feed, so that its own appends are no news
	// to it. Default: drawn.
	Node eventlog.NodeID
	// OnCommit is told the stamps of each transaction of this process, of one
	// stream in the order of commits, before their appends return. It must not
	// block and must not call the store.
	OnCommit func([]eventlog.Stamp)
	// OnBatch is told how each transaction went, after OnCommit and by the same rules.
	OnBatch func(Batch)
	// OnNews is told what other nodes wrote, in the order of the feed, from Open
	// on: at once where the database can tell of it, else within NewsEvery. Reads
	// show it from then on. It may block, and then hears the rest later; it must not
	// close the store.
	OnNews func([]News)
	// OnLag is told, after OnNews and by the same rules, how long before the look
	// that found them the oldest of these news was written, by the database's clock.
	OnLag func(time.Duration)

	MaxBatch      int           // appends in one transaction; default 256, at most 4096
	MaxBatchBytes int           // bytes of data in one transaction, save that of one append; default 4 MiB
	QueueSize     int           // appends that may wait before callers do; default 1024
	Conns         int           // connections, beside one that listens; default 16
	MaxReadBytes  int           // bytes of data past which ReadBounded and Feed end early; default 1 MiB
	TailBytes     int           // memory for the newest events, which are read most; default 4 MiB
	NewsEvery     time.Duration // between two looks at the feed that nothing asked for; default 1 s
	ConnectWithin time.Duration // for a connection to be made; default 10 s

	pooled bool // as if a pooler stood in between: for tests
}

func (c *Config) complete() error {
	if c.URL == "" {
		return errors.New("no database URL given")
	}
	if c.Rows == nil {
		return errors.New("no function for derived rows given")
	}
	c.Sync = orDefault(c.Sync, SyncFull)
	if c.Sync != SyncFull && c.Sync != SyncNormal {
		return fmt.Errorf("sync is %q; it must be %s or %s", c.Sync, SyncFull, SyncNormal)
	}
	c.Generation = orDefault(c.Generation, 1)
	c.Program = orDefault(c.Program, 1)
	c.MaxBatch = min(orDefault(c.MaxBatch, 256), 4096)
	c.MaxBatchBytes = orDefault(c.MaxBatchBytes, 4<<20)
	c.QueueSize = orDefault(c.QueueSize, 1024)
	c.Conns = orDefault(c.Conns, 16)
	c.MaxReadBytes = orDefault(c.MaxReadBytes, 1<<20)
	c.TailBytes = orDefault(c.TailBytes, 4<<20)
	c.NewsEvery = orDefault(c.NewsEvery, time.Second)
	c.ConnectWithin = orDefault(c.ConnectWithin, 10*time.Second)
	if min(c.Generation, c.Program, c.MaxBatch, c.MaxBatchBytes, c.QueueSize, c.Conns, c.MaxReadBytes, c.TailBytes, int(c.NewsEvery), int(c.ConnectWithin)) < 0 {
		return errors.New("a bound is negative")
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Node == "" {
		c.Node = eventlog.NodeID("node_" + rand.Text())
	}
	return nil
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
	cfg      Config
	random   lockedReader
	pool     *pgxpool.Pool // of readers
	prime    *pgxpool.Pool // of the writers and of nodes
	schema   string        // quoted
	feedLock int32         // first key of the feed's advisory lock: it is the table's own
	pooled   bool          // a pooler stands in between
	settings string        // statement that begins a transaction's settings, where connections have none

	texts     sync.Map // by text: see sql
	textCount atomic.Int64

	queue *storecore.Queue[*request]
	slow  chan *request // appends whose streams another process has locked
	known knownStreams
	tails *storecore.Tails
	// beaten are the nodes that beat through this store.
	beaten sync.Map
	// commits is held from the last message of a transaction until its commit
	// was told of, so that what was committed first is told of first.
	commits sync.Mutex
	between atomic.Bool // a transaction has sent its first message and waits for its turn with the last
	follow  *follower

	// working counts what Close waits for, beside the writers.
	working  sync.WaitGroup
	done     chan struct{} // closed when all is closed
	closeErr error
}

var (
	_ eventlog.Log       = (*Store)(nil)
	_ eventlog.Views     = (*Store)(nil)
	_ eventlog.Tokens    = (*Store)(nil)
	_ eventlog.Assets    = (*Store)(nil)
	_ eventlog.Snapshots = (*Store)(nil)
	_ eventlog.Nodes     = (*Store)(nil)
)

// Open connects, brings the schema and the derived rows up to date and starts
// the writer. A database of a newer version gives a *NewerError, one that does
// not do, or a URL that cannot be read, a *SetupError, and one that cannot be
// spoken to now an *UnreachableError; then nothing was made or changed. No error
// holds the password.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg: cfg, queue: storecore.NewQueue[*request](cfg.QueueSize), tails: storecore.NewTails(cfg.TailBytes), slow: make(chan *request, cfg.QueueSize+cfg.MaxBatch), done: make(chan struct{}),
	}
	s.random.r = cfg.Random
	if err := s.start(ctx); err != nil {
		for _, pool := range []*pgxpool.Pool{s.pool, s.prime} {
			if pool != nil {
				pool.Close()
			}
		}
		return nil, fmt.Errorf("open store: %w", err)
	}
	go s.run()
	return s, nil
}

func (s *Store) start(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.recordEvents(ctx); err != nil {
		return err
	}
	if err := s.checkGeneration(ctx); err != nil {
		return err
	}
	return s.startFollowing(ctx)
}

// Close ends intake, commits what waits and closes the connections. When ctx
// ends first it returns its error and the rest goes on; Close may be called
// again to wait for it.
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
// caller's goroutine; the writer only gives the append its place. An error that is
// none of eventlog's says that it was not stored, or, where it speaks of the commit,
// that this is not known; the store lives on.
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

// maxEntries bounds the streams of one append.
const maxEntries = 1024

// prepare makes what the writer needs of an append.
func (s *Store) prepare(ctx context.Context, a eventlog.Append) (*request, error) {
	if err := storecore.CheckAppend(a); err != nil {
		return nil, err
	}
	if len(a.Entries) > maxEntries {
		return nil, eventlog.Malformed(nil, "%d entries; at most %d are taken", len(a.Entries), maxEntries)
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
	return r, s.foresee(r)
}

// Waiting says how many appends wait for the writer now.
func (s *Store) Waiting() int { return s.queue.Waiting() + len(s.slow) }

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

// Now implements eventlog.Log: it is the database's clock (I-16).
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	now, err := one(ctx, s, "read clock", "SELECT clock_timestamp()", nil, func(t *time.Time) []any { return []any{t} })
	return now.UTC(), err
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

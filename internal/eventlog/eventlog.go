// Package eventlog is the port to the log: the one door through which
// everything durable enters, and the ways to read it back.
//
// A store implements Log and the views; rooms name the few methods they use.
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// AnyHead is the expectation of a command: the stream may stand anywhere.
const AnyHead int64 = -1

// MaxEvents bounds the events of one entry.
const MaxEvents = 4096

// Append is one transaction over one or several streams: events, derived rows,
// blobs and idempotency record commit together or not at all (I-02).
type Append struct {
	Entries []Entry
	// Require holds what must be true in the transaction.
	Require []Condition
	// Blobs ride with the append that first refers to them; one that exists is kept.
	Blobs []event.Blob
	// Uses names assets that must exist in the transaction, so that what an
	// event refers to is there. One that does not is an *AssetError.
	Uses []event.AssetID
	// Erase names a session whose earlier events lose their content and whose
	// blobs are deleted, in the same transaction, and so are the assets that no
	// other session uses.
	Erase event.SessionID
}

// Entry is what is appended to one stream. There are two kinds. The owner's
// carries Epoch and Expect. A command has Epoch 0 and AnyHead; it is stamped
// with the stream's current epoch.
type Entry struct {
	Stream event.Stream
	Expect int64 // head that the stream must have, or AnyHead
	Epoch  int64 // epoch that the stream must have; 0: not checked
	// Claim raises the stream's epoch by one before the events are stamped. It
	// wants Epoch, the epoch before, or 0 for whatever it was.
	Claim  bool
	Events []event.Event // drafts
	// Follows says that the events go behind those of the entry before, which is
	// of the same stream: they may be of another session. Nothing else is said of
	// such an entry but Expect, AnyHead.
	Follows bool
	// Node is the owner's node; a command has none. The stream must be held by
	// that node or by nobody; a Claim may also take it from a node whose lease has
	// ended, and is refused with a *HeldError while that lives. An append without a
	// Claim to a stream that another node holds is ErrFenced. Afterwards the node
	// holds the stream, or nobody does where Rest says that it wants nothing more.
	Node NodeID
	Rest bool
	// Roots, where there are some, are the workspace roots that the stream needs
	// from now on; see Nodes. A Claim by a node that has not the roots which the
	// stream needed before is ErrFenced.
	Roots []string
}

// Condition is a precondition on derived rows, checked in the transaction.
type Condition struct {
	Table derived.Table
	Where []derived.Col
	// Absent: no row may match Where. Else one must, with Column in In.
	Absent bool
	Column string
	In     []any
}

// Stamp says where an entry landed. Events carry their stamps.
type Stamp struct {
	Stream event.Stream
	Head   int64 // sequence of the last event
	Epoch  int64
	Events []event.Event
}

// The ways in which an append is refused. Nothing of it is stored then.
var (
	// ErrHeadMoved: the stream has events that the appender has not seen.
	ErrHeadMoved = errors.New("the stream has moved on")
	// ErrFenced: the epoch of the stream is another; the appender does not own it (I-11).
	ErrFenced = errors.New("not the owner")
	// ErrNotFound: no such stream, blob or row.
	ErrNotFound = errors.New("not found")
	// ErrErased: the blob's session was erased.
	ErrErased = errors.New("erased")
	// ErrAway: the store cannot be spoken to now; it may be back at any time.
	ErrAway = errors.New("the store cannot be reached")
	// ErrClosed: the log is shutting down.
	ErrClosed = errors.New("the log is closed")
)

// ConditionError says which precondition did not hold. Found is the value of
// the column, nil when no row matched.
type ConditionError struct {
	Index int // in Append.Require
	Found any
}

func (e *ConditionError) Error() string {
	return fmt.Sprintf("condition %d does not hold (found %v)", e.Index, e.Found)
}

// AssetError says that an asset is not there.
type AssetError struct{ ID event.AssetID }

func (e *AssetError) Error() string { return fmt.Sprintf("asset %s: not found", e.ID) }

// DuplicateError says that a guarded table has the key already.
type DuplicateError struct {
	Table derived.Table
	Key   []derived.Col
}

func (e *DuplicateError) Error() string { return fmt.Sprintf("%s has %v already", e.Table, e.Key) }

// Head is the end of a stream.
type Head struct {
	Seq   int64
	Epoch int64
	Hash  event.Digest
}

// Position is a place in the commit-ordered feed over all streams. It only
// grows, and a reader that has seen a position has seen all before it.
type Position int64

// FeedFilter narrows the feed.
type FeedFilter struct {
	UserID    string       // empty: of every user
	Types     []event.Type // empty: of every type
	SessionID event.SessionID
	RunID     event.RunID
	Since     time.Time // of events from then on; zero: all
	Until     time.Time // the feed ends before the first event of then or later; zero: it goes on
}

// Empty says whether everything passes.
func (f *FeedFilter) Empty() bool {
	return f.UserID == "" && len(f.Types) == 0 && f.SessionID == "" && f.RunID == "" && f.Since.IsZero() && f.Until.IsZero()
}

// Passes says whether an event that a store took from the log passes by type,
// run and time; a store narrows by user and session itself.
func (f *FeedFilter) Passes(e *event.Event) bool {
	return (len(f.Types) == 0 || slices.Contains(f.Types, e.Type)) && (f.RunID == "" || e.RunID == f.RunID) &&
		(f.Since.IsZero() || !e.Time.Before(f.Since))
}

// Positioned is an event of the feed; Position is its cursor.
type Positioned struct {
	Position Position
	Event    event.Event
}

// Place is where an event stands: its sequence in a stream.
type Place struct {
	Stream event.Stream
	Seq    int64
}

// MaxFacts bounds the places that are asked for at once.
const MaxFacts = 64

// Log is the whole port. It is safe for concurrent use.
type Log interface {
	// Append commits a, or refuses it with one of the errors above. It returns
	// after the commit is durable. When ctx ends first the outcome is not
	// known to the caller: the append may commit.
	Append(ctx context.Context, a Append) ([]Stamp, error)
	// Head gives the end of a stream; a stream without events has the zero Head.
	Head(ctx context.Context, s event.Stream) (Head, error)
	// Read gives up to limit events after a sequence, ascending, with Raw and
	// without Data. Fewer than limit: there were no more.
	Read(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	// ReadBounded is Read that ends early once the events' data exceed a bound
	// in bytes that the store sets. It gives at least one event as long as there
	// is one: only none at all says that there are no more.
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
	// Facts gives the event at each of some places, of which there may be MaxFacts, in
	// their order, with Raw and without Data. It ends early, as ReadBounded does, but not
	// before the first: the rest is for another call. A place without an event is ErrNotFound.
	Facts(ctx context.Context, places []Place) ([]event.Event, error)
	// Feed gives up to limit events after a position, in commit order, that
	// pass the filter, and the position to go on from, which moves past what
	// the filter held back. It ends early once the events' data exceed the bound
	// of ReadBounded, or when it has looked at as much of the log as the store
	// allows for one call: then there may be few events or none, and more behind
	// them. Only a position that did not move says that there are no more.
	Feed(ctx context.Context, after Position, limit int, f FeedFilter) ([]Positioned, Position, error)
	// Blob gives the bytes of a blob, ErrNotFound, or ErrErased.
	Blob(ctx context.Context, owner event.SessionID, ref string) ([]byte, event.BlobKind, error)
	// Now is the clock of leases and due times.
	Now(ctx context.Context) (time.Time, error)
}

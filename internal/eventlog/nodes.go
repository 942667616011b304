package eventlog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// NodeID names one process life of a node: a restart is another node.
type NodeID string

// Node is what a node says of itself with each beat.
type Node struct {
	ID      NodeID
	Name    string // for people: host and process id
	Version string // of the program
	// Roots are the workspace roots that it has, by their identities. A stream
	// that needs a root is handed only to a node that has it.
	Roots    []string
	Active   int  // sessions that it works on now
	Most     int  // sessions that it works on at once at most
	Draining bool // it takes nothing more
}

// Lease says how long a node counts as alive. Both times are the store's.
type Lease struct {
	Now   time.Time // when it was granted
	Until time.Time
}

// NodeRow is a node as the others see it.
type NodeRow struct {
	Node
	Since    time.Time // of its first beat
	Until    time.Time // end of its lease
	Released bool      // it ended in order
	Alive    bool      // by the store's clock: not released, and its lease has not ended
}

// Kind is a kind of stream that is worked on.
type Kind string

// The kinds of streams.
const (
	Sessions Kind = "session"
	Targets  Kind = "target"
	Jobs     Kind = "job"
)

// KindOf is the kind of a stream. What is nobody's work counts as a session's.
func KindOf(s event.Stream) Kind {
	if _, ok := s.Target(); ok {
		return Targets
	}
	if _, ok := s.Job(); ok {
		return Jobs
	}
	return Sessions
}

// Rested says that a stream wants nothing more, seen at a head.
type Rested struct {
	Stream event.Stream
	Head   int64
}

// Nodes is where the processes that share a store say that they live, and
// where streams that want work are handed out. It stands outside the log.
//
// Of a stream the store knows, beside its end: who holds it, since when it
// wants work, and which roots it needs. An owner's append makes its node the
// holder, or nobody where it says Rest; a command that Wakes makes the stream
// want work. A stream at rest belongs to nobody: any node may go on with it.
//
// Times are those of the store (I-16), and the holder of a stream is checked in
// the transaction of the append: a node whose stream was handed to another is
// refused there, whatever it believes (I-11).
type Nodes interface {
	// Beat makes a node known, or lets its lease run for ttl from now. One row
	// is written, however much the node holds.
	Beat(ctx context.Context, n Node, ttl time.Duration) (Lease, error)
	// Release ends a node in order: its lease is over, and what it holds is free
	// at once. A node that was never known is no error.
	Release(ctx context.Context, id NodeID) error
	// ListNodes gives the nodes that are alive, and those that ended a short
	// while ago; in the order of their first beats.
	ListNodes(ctx context.Context) ([]NodeRow, error)
	// Take hands a node up to limit streams of a kind that want work, that no
	// living node holds and whose roots it has, those that wait longest first.
	// From then on it holds them. With mine, what it holds already and wants
	// work is given too, first.
	Take(ctx context.Context, id NodeID, kind Kind, limit int, mine bool) ([]event.Stream, error)
	// Rest lets go of streams that want nothing more. A stream that has moved on
	// from the head given, or that another node holds, stays as it is.
	Rest(ctx context.Context, id NodeID, streams []Rested) error
	// Yield lets go of streams that still want work: others may take them at
	// once. What another node holds stays as it is.
	Yield(ctx context.Context, id NodeID, streams []event.Stream) error
}

// Term is the time for which a node holds what it holds: one lease, as long as
// its beats follow each other in time. Work that began under a term ends with it,
// also when the node has another by then: what it held may be somebody else's.
type Term interface {
	// Held says whether there is time enough left for one more act outside the
	// log (I-11).
	Held() bool
	// Await waits until there is, for a beat that is late. Its error says that the
	// term or ctx has ended.
	Await(ctx context.Context) error
	// Context ends with the term.
	Context() context.Context
}

// News says how far a stream has come by what another process appended.
type News struct {
	Stream event.Stream
	Head   int64
	Wakes  bool // see Wakes
}

// HeldError refuses a claim: another node, which is alive, holds the stream.
type HeldError struct {
	Stream event.Stream
	By     NodeID
	Until  time.Time // end of its lease as it stands, by the store's clock
}

func (e *HeldError) Error() string { return fmt.Sprintf("%s is held by %s", e.Stream, e.By) }

// Wakes says whether these events, of one append, make their stream want work that
// nobody is at: a pure function of their types. A run that begins in the append in which
// it is queued wakes nobody: who began it is at work.
func Wakes(events []event.Event) (wake bool) {
	for i := range events {
		t := events[i].Type
		if t == "" && events[i].Data != nil {
			t = events[i].Data.EventType()
		}
		switch {
		case t == event.TypeRunStarted:
			wake = false
		case wakes(t):
			wake = true
		}
	}
	return wake
}

// Begins says whether a run starts by these events, of one append.
func Begins(events []event.Event) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool { return e.Type == event.TypeRunStarted })
}

func wakes(t event.Type) bool {
	switch t {
	case event.TypeRunQueued, event.TypeCancelRequested, event.TypeInterruptRequested, event.TypeAttentionResolved,
		event.TypeCompactionRequested, event.TypeDeliveryEnqueued, event.TypeDeliveryReplayed, event.TypeDeliveryResolved,
		event.TypeJobStarted, event.TypeJobCancelRequested,
		event.TypeCircuitClosed, event.TypeTargetPaused, event.TypeTargetResumed:
		return true
	}
	return false
}

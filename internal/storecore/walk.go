package storecore

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// Walk is one pass of a verification over the log, in the order of each stream.
type Walk struct {
	Report
	rows    func(event.Stream, []event.Event) []derived.Change
	streams map[event.Stream]*walked
}

// walked is how far a stream was read.
type walked struct {
	head     eventlog.Head
	noData   int64 // last event without content
	erasedBy int64 // last session.erased
}

// NewWalk begins a pass; rows computes what follows from events.
func NewWalk(rows func(event.Stream, []event.Event) []derived.Change) *Walk {
	return &Walk{rows: rows, streams: make(map[event.Stream]*walked)}
}

// Follows is what follows from a row of the log.
type Follows struct {
	Where   string // the row
	Refs    []FoundRef
	Changes []derived.Change
}

// FoundRef is a reference to a blob, and the row of the log that has it.
type FoundRef struct {
	Owner string
	Reference
	By string
}

// Row checks one row of the log and computes what follows from it; nil where
// nothing does. unreadable is why a column of it cannot be read, if it cannot. After a
// finding it goes on as if the row were right, so that one change is one finding.
func (w *Walk) Row(r *event.Row, unreadable error) *Follows {
	at := w.streams[r.Stream]
	if at == nil {
		at = &walked{}
		w.streams[r.Stream] = at
		w.Streams++
	}
	where := fmt.Sprintf("%s#%d", r.Stream, r.First)
	found := len(w.Findings) + w.More
	if r.First != at.head.Seq+1 {
		w.Find(where, "follows event %d: events are missing or out of order", at.head.Seq)
	} else if err := r.Check(at.head.Hash); err != nil {
		w.Find(where, "%v", err)
	}
	if r.Epoch < at.head.Epoch {
		w.Find(where, "epoch fell from %d to %d", at.head.Epoch, r.Epoch)
	}
	if (r.Data == nil) != (r.Salt == nil) || (r.Data == nil) != (r.Digests != nil) {
		w.Find(where, "content is neither whole nor erased")
	}
	w.Events += r.Count
	if r.Data == nil {
		w.Erased += r.Count
		at.noData = r.Last()
	}
	at.head = eventlog.Head{Seq: r.Last(), Epoch: r.Epoch, Hash: r.Hash}
	if len(w.Findings)+w.More > found {
		return nil
	}
	if unreadable != nil {
		w.Find(where, "%v", unreadable)
		return nil
	}
	if r.Data == nil {
		return nil
	}
	return w.follows(r, at, where)
}

func (w *Walk) follows(r *event.Row, at *walked, where string) *Follows {
	events, err := r.Events()
	if err != nil {
		w.Find(where, "%v", err)
		return nil
	}
	f := &Follows{Where: where}
	for i := range events {
		if err := events[i].Decode(); err != nil {
			w.Find(where, "%v", err)
			return nil
		}
		if events[i].Type == event.TypeSessionErased {
			at.erasedBy = events[i].Seq
		}
		for _, ref := range References(events[i].Data) {
			f.Refs = append(f.Refs, FoundRef{string(events[i].SessionID), ref, where})
		}
	}
	changes, err := RowsOf(w.rows, r.Stream, events)
	if err != nil {
		w.Find(where, "%v", err)
		return f
	}
	f.Changes = derived.Merge(changes)
	return f
}

// Ends compares the end of a stream as it is stored with what was read.
func (w *Walk) Ends(stream event.Stream, h eventlog.Head) {
	at := w.streams[stream]
	if at == nil {
		w.Find(string(stream), "has no events, where %d should be", h.Seq)
		return
	}
	if at.head != h {
		w.Find(string(stream), "ends at %d (epoch %d), where %d (epoch %d) should be, or with another hash",
			at.head.Seq, at.head.Epoch, h.Seq, h.Epoch)
	}
	if at.noData > at.erasedBy {
		w.Find(string(stream), "content up to event %d is gone, and no session.erased after it says so", at.noData)
	}
}

// Listed is told how many streams are stored.
func (w *Walk) Listed(n int) {
	if n < len(w.streams) {
		w.Find("streams", "%d streams have events, %d are listed", len(w.streams), n)
	}
}

// WasErased says whether a session.erased of the session was read.
func (w *Walk) WasErased(id event.SessionID) bool {
	at := w.streams[id.Stream()]
	return at != nil && at.erasedBy > 0
}

// Snapshot finds out whether a snapshot is what the log gives. read gives events
// of its stream; check compares their fold, where there is such a thing. An error is
// one of reading.
func (w *Walk) Snapshot(snap eventlog.Snapshot, read func(after int64, limit int) ([]event.Event, error),
	check func(eventlog.Snapshot, func(after int64) ([]event.Event, error)) error) error {
	where := "snapshot of " + string(snap.SessionID)
	at := w.streams[snap.SessionID.Stream()]
	switch {
	case at == nil || at.head.Seq < snap.Head:
		w.Find(where, "its event %d is not in the log", snap.Head)
		return nil
	case at.erasedBy > 0:
		w.Find(where, "is there although the session was erased")
		return nil
	}
	events, err := read(snap.Head-1, 1)
	if err != nil {
		return err
	}
	if len(events) == 0 || events[0].Seq != snap.Head || events[0].Hash != snap.Hash {
		w.Find(where, "event %d of the log has another hash", snap.Head)
		return nil
	}
	if check == nil {
		return nil
	}
	var failed error // of reading, which is no finding
	err = check(snap, func(after int64) (events []event.Event, err error) {
		events, failed = read(after, snapshotChunk)
		return events, failed
	})
	if err != nil && failed == nil {
		w.Find(where, "%v", err)
	}
	return failed
}

// snapshotChunk bounds the events that are in memory while a snapshot is compared.
const snapshotChunk = 512

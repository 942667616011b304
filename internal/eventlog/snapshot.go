package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// MaxSnapshot bounds the state of a snapshot, in bytes: so much is written in
// one transaction with other people's appends.
const MaxSnapshot = 4 << 20

// Snapshot is a session as it is folded from its events up to Head: what saves
// a reader those. It follows from the log and is content of the session.
type Snapshot struct {
	SessionID event.SessionID
	Version   int   // of the form of State; see session.StateVersion
	Head      int64 // sequence of the last event folded
	Epoch     int64 // of that event
	Hash      event.Digest
	State     []byte // see session.State.Encode
}

// Snapshots stand outside the log; of a session there is one at most. A session
// that is erased has none, from the same transaction on.
type Snapshots interface {
	// SaveSnapshot stores a snapshot; the store itself stamps the Hash of the
	// event at Head, which must be the last of an append. The older of two
	// versions, and of one version the one with the lower head, gives way: a
	// snapshot that is not the newer one is not stored, and that is no error,
	// nor is one of a session that was erased meanwhile. ErrNotFound: no append
	// of the session ends at Head with that epoch. It waits for its turn among
	// the appends and shares a transaction with them.
	SaveSnapshot(ctx context.Context, s Snapshot) error
	// Snapshot gives the snapshot of a session, of whatever version, or
	// ErrNotFound. Whether the log still has its event is for the caller to see.
	Snapshot(ctx context.Context, id event.SessionID) (Snapshot, error)
}

// ErrDisagrees: the snapshot is not what its events give.
var ErrDisagrees = errors.New("the snapshot is not what the log gives")

// CheckSnapshot folds the events before a snapshot's head and compares. A
// snapshot of a version that is not this program's is not looked at. read gives
// events after a sequence, as Log.Read does; none means that there are no more.
func CheckSnapshot(snap Snapshot, read func(after int64) ([]event.Event, error)) error {
	if snap.Version != session.StateVersion {
		return nil
	}
	st := &session.State{ID: snap.SessionID}
	for st.Head < snap.Head {
		events, err := read(st.Head)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return fmt.Errorf("%w: it has no event %d", ErrDisagrees, snap.Head)
		}
		for i := 0; i < len(events) && st.Head < snap.Head; i++ {
			if err := events[i].Decode(); err != nil {
				return err
			}
			if err := st.Apply(&events[i]); err != nil {
				return err
			}
		}
	}
	want, err := st.Encode()
	if err != nil {
		return err
	}
	if st.Epoch != snap.Epoch || !bytes.Equal(want, snap.State) {
		return ErrDisagrees
	}
	return nil
}

package engine

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Files make snapshots of the workspaces of sessions. Nothing depends on one
// being there: an error means that there is none, and never fails a step.
type Files interface {
	// Capture makes a snapshot of a session's workspace as it is now.
	Capture(ctx context.Context, user string, id event.SessionID) (*event.FileSnapshot, error)
	// Changes tells what differs between two snapshots of a session, within the
	// bounds of the event.
	Changes(ctx context.Context, id event.SessionID, from, to *event.FileSnapshot) (*event.FileChanges, error)
}

// captureFiles makes the snapshot that a step asks for. What came of it is told
// to the state and recorded with the append that it leads to: no event of its own.
func (d *drive) captureFiles(ctx context.Context, key actKey, st *session.State) outcome {
	a := key.files
	c, err := d.snapshotOf(ctx, a, st)
	if err != nil {
		d.log.Debug("no snapshot of files", "step_id", a.Step, "after", a.After, "err", err)
	}
	dropped := ctx.Err() != nil // nobody wants it any more
	return outcome{key: key, events: func(s *session.State) ([]event.Event, []event.Blob) {
		if !dropped {
			s.FilesCaptured(a, c)
		}
		return nil, nil
	}}
}

func (d *drive) snapshotOf(ctx context.Context, a session.CaptureFiles, st *session.State) (c session.Captured, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if c.Snapshot, err = d.e.cfg.Files.Capture(ctx, st.UserID, d.id); err != nil {
		return session.Captured{}, err
	}
	if a.After {
		c.Changes, err = d.e.cfg.Files.Changes(ctx, d.id, st.Active.Step.FilesBefore, c.Snapshot)
	}
	return c, err
}

// dropFiles stops the snapshots that nobody asks for any more: their step has
// come to another end.
func (d *drive) dropFiles(actions []session.Action) {
	for key, cancel := range d.acts {
		wanted := key.files == session.CaptureFiles{}
		for _, a := range actions {
			wanted = wanted || a == session.Action(key.files)
		}
		if !wanted {
			cancel()
		}
	}
}

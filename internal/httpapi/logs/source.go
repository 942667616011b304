// Package logs answers for what is read of logs in pages: of a session, of a run, of
// everything that a caller may see in the order of commits, and of the audit stream.
// A Source is what such a reader, or one that follows, asked for.
package logs

import (
	"context"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// Reader is the log as pages and followers read it.
type Reader interface {
	ReadBounded(ctx context.Context, s event.Stream, after int64, limit int) ([]event.Event, error)
}

// ReadPage is how many events one read of the log takes, and with their size
// bounds what one reader holds in memory.
const ReadPage = 64

// Source is what a reader follows: a session's stream, or of it one run.
type Source struct {
	Stream event.Stream
	Run    event.RunID     // empty: everything
	Row    eventlog.RunRow // of the run
}

// Ends says whether e is the last event of the source.
func (s *Source) Ends(e *event.Event) bool {
	if s.Run == "" {
		return false
	}
	switch e.Type {
	case event.TypeRunCompleted, event.TypeRunFailed, event.TypeRunCancelled, event.TypeRunInterrupted:
		return e.RunID == s.Run
	}
	return false
}

// Passes says whether e is of the source.
func (s *Source) Passes(e *event.Event) bool { return s.Run == "" || e.RunID == s.Run }

// SessionSource is the log of the session that the path names.
func SessionSource(c *call.Call, a *admission.Admission) (Source, error) {
	row, err := c.Session(a)
	return Source{Stream: row.ID.Stream()}, err
}

// RunSource is what the log says of the run that the path names.
func RunSource(c *call.Call, a *admission.Admission) (Source, error) {
	row, err := c.Run(a)
	return Source{Stream: row.SessionID.Stream(), Run: row.ID, Row: row}, err
}

// Start moves a cursor to where the source can have events.
func (s *Source) Start(after int64) int64 {
	if s.Run != "" {
		return max(after, s.Row.CreatedSeq-1)
	}
	return after
}

// Past says whether a run that is at its end has no event after a sequence. A
// cursor may stand behind the run's last event, from where on the session's log
// need not be searched: unless an event of the run follows close by, its last
// one is looked for from its own first one, or from its output when it has one.
func (s *Source) Past(ctx context.Context, log Reader, after int64) (bool, error) {
	row := &s.Row
	from := max(row.CreatedSeq, row.OutputSeq)
	if s.Run == "" || !session.Terminal(row.Status) || after < from {
		return false, nil // the end is still to come
	}
	events, err := log.ReadBounded(ctx, s.Stream, after, ReadPage)
	if err != nil || len(events) == 0 || slices.ContainsFunc(events, func(e event.Event) bool { return s.Passes(&e) }) {
		return len(events) == 0, err
	}
	for at := from - 1; ; {
		events, err := log.ReadBounded(ctx, s.Stream, at, ReadPage)
		if err != nil || len(events) == 0 {
			return true, err
		}
		for i := range events {
			if at = events[i].Seq; s.Ends(&events[i]) {
				return at <= after, nil
			}
			if at > after {
				return false, nil // and the end is still to come
			}
		}
	}
}

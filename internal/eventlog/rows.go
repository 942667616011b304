package eventlog

import (
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// RowsVersion counts the versions of Rows: raise it with every change of the
// rows that follow, so that a store makes those it has anew.
const RowsVersion = 4

// Rows is the one pure function from the events of an append in a stream to
// the derived rows that follow. Events are decoded.
func Rows(s event.Stream, events []event.Event) []derived.Change {
	if _, ok := s.Target(); ok {
		return outbox.Rows(events)
	}
	if _, ok := s.Job(); ok {
		return job.Rows(events)
	}
	if s == event.AuditStream {
		return nil
	}
	return session.Rows(events)
}

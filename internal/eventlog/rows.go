package eventlog

import (
	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/outbox"
	"github.com/holdfast-dev/holdfast/internal/session"
)

// RowsVersion counts the versions of Rows: raise it with every change of the
// rows that follow, so that a store makes those it has anew.
const RowsVersion = 3

// Rows is the one pure function from the events of an append in a stream to
// the derived rows that follow. Events are decoded.
func Rows(s event.Stream, events []event.Event) []derived.Change {
	if _, ok := s.Target(); ok {
		return outbox.Rows(events)
	}
	return session.Rows(events)
}

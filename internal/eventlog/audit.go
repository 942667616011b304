package eventlog

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// AuditEntry is the entry of a record, or of some, which rides in the append with
// what it tells of where that is in the log: both commit or none. It is a command
// that any node may give, so that the stream has no owner.
func AuditEntry(records ...event.Audit) Entry {
	e := Entry{Stream: event.AuditStream, Expect: AnyHead}
	for _, d := range records {
		event.Clip(d)
		e.Events = append(e.Events, event.Event{Data: d})
	}
	return e
}

// Auditor takes records of what is not in the log.
type Auditor interface {
	// Audit appends records, at least one, and returns when they are durable. Of a change it is
	// called before the change is made, which is refused when this fails: a
	// record of what was then not done is better than a change without one.
	Audit(ctx context.Context, records ...event.Audit) error
}

// Audited is the Auditor of a log.
type Audited struct {
	Log interface {
		Append(ctx context.Context, a Append) ([]Stamp, error)
	}
}

var _ Auditor = Audited{}

// Audit implements Auditor.
func (a Audited) Audit(ctx context.Context, records ...event.Audit) error {
	if _, err := a.Log.Append(ctx, Append{Entries: []Entry{AuditEntry(records...)}}); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

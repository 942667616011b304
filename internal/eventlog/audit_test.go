package eventlog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

type appended struct {
	got []eventlog.Append
	err error
}

func (l *appended) Append(_ context.Context, a eventlog.Append) ([]eventlog.Stamp, error) {
	l.got = append(l.got, a)
	return nil, l.err
}

// What a stranger sends is bounded before it is stored, and cannot steer a terminal.
func TestAuditBounds(t *testing.T) {
	log := &appended{}
	d := &event.AuditRefused{Reason: "host_not_allowed", Count: 1, Since: "now", Detail: "evil\x1b[2J\xff" + strings.Repeat("ä", 500)}
	if err := (eventlog.Audited{Log: log}).Audit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	e := log.got[0].Entries[0]
	if e.Stream != event.AuditStream || e.Expect != eventlog.AnyHead || e.Epoch != 0 || e.Node != "" || len(e.Events) != 1 {
		t.Errorf("the entry is no command to the audit stream: %+v", e)
	}
	if got := e.Events[0].Data.(*event.AuditRefused).Detail; len(got) > event.MaxAuditText || !utf8.ValidString(got) || !strings.HasPrefix(got, "evil?[2J?ä") {
		t.Errorf("detail %q", got)
	}
	if rows := eventlog.Rows(e.Stream, e.Events); rows != nil || eventlog.Wakes(e.Events) {
		t.Errorf("rows follow from it: %v", rows)
	}
	log.err = errors.New("full")
	if err := (eventlog.Audited{Log: log}).Audit(t.Context(), d); !errors.Is(err, log.err) {
		t.Errorf("a record that is not stored: %v", err)
	}
}

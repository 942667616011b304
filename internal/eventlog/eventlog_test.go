package eventlog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// The rows of a stream follow by the rules of its kind, and by no other.
func TestRowsByKindOfStream(t *testing.T) {
	events := func(s event.Stream, d event.Data) []event.Event {
		return []event.Event{{Stream: s, Seq: 2, Epoch: 1, SessionID: "ses_1", RunID: "run_1", UserID: "ann", Data: d}}
	}
	for _, row := range []struct {
		stream event.Stream
		data   event.Data
		want   derived.Table
	}{
		{"session:ses_1", &event.RunStarted{}, derived.Runs},
		{"target:tgt_1", &event.DeliveryEnqueued{DeliveryID: "dlv_1"}, derived.Outbox},
		{"session:ses_1", &event.DeliveryEnqueued{DeliveryID: "dlv_1"}, ""},
		{"target:tgt_1", &event.RunStarted{}, ""},
		{"job:job_1", &event.JobStarted{}, derived.Jobs},
		{"target:tgt_1", &event.JobStarted{}, ""},
		{"session:ses_1", nil, ""},
	} {
		changes := eventlog.Rows(row.stream, events(row.stream, row.data))
		if (len(changes) == 0) != (row.want == "") || len(changes) > 0 && changes[0].Table != row.want {
			t.Errorf("%T in %s: %v", row.data, row.stream, changes)
		}
	}
}

func TestErrorsSayWhat(t *testing.T) {
	var condition *eventlog.ConditionError
	err := fmt.Errorf("submit: %w", &eventlog.ConditionError{Index: 1, Found: "closed"})
	if !errors.As(err, &condition) || condition.Found != "closed" || !strings.Contains(err.Error(), "closed") {
		t.Errorf("%v", err)
	}
	var duplicate *eventlog.DuplicateError
	err = fmt.Errorf("submit: %w", &eventlog.DuplicateError{Table: derived.Idempotency, Key: []derived.Col{{Name: "key_hash", Value: "h"}}})
	if !errors.As(err, &duplicate) || duplicate.Table != derived.Idempotency || !strings.Contains(err.Error(), "idempotency") {
		t.Errorf("%v", err)
	}
}

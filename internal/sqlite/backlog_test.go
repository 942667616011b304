package sqlite

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// A count of the backlog never looks at what is at its end: each query stays
// within an index that holds nothing else.
func TestBacklogStaysInItsIndices(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	for query, args := range map[string][]any{
		backlogRuns: {"queued", eventlog.MaxBacklog}, backlogRest: {eventlog.MaxBacklog},
	} {
		rows, err := s.readers.query(t.Context(), []byte("EXPLAIN QUERY PLAN "+query), args...)
		if err != nil {
			t.Fatal(err)
		}
		tables := 0
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(detail, " targets") && !strings.Contains(detail, "targets_circuit") && !strings.Contains(detail, "targets_paused") {
				t.Errorf("%s\nreads every target: %s", query, detail)
			}
			if !strings.Contains(detail, " runs") && !strings.Contains(detail, " outbox") {
				continue
			}
			tables++
			if !strings.Contains(detail, "runs_status") && !strings.Contains(detail, "outbox_status") &&
				!strings.Contains(detail, "outbox_pending") && !strings.Contains(detail, "outbox_dead") && !strings.Contains(detail, "outbox_retr") {
				t.Errorf("%s\nreads more than the backlog: %s", query, detail)
			}
		}
		if err := rows.Close(); err != nil || tables == 0 {
			t.Errorf("%s: %d tables (%v)", query, tables, err)
		}
	}
}

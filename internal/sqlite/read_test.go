package sqlite

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// An answer ends with the event whose data go past the bound, also within a row.
func TestMaxReadBytes(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), MaxReadBytes: 1000})
	id := newSession(t)
	a := said(id, strings.Repeat("x", 600))
	for range 9 {
		a.Entries[0].Events = append(a.Entries[0].Events, a.Entries[0].Events[0])
	}
	mustAppend(t, s, a)
	mustAppend(t, s, said(id, strings.Repeat("x", 5000)))
	mustAppend(t, s, said(id, "small"))
	var got []int
	for seen := int64(0); ; {
		events, err := s.ReadBounded(t.Context(), id.Stream(), seen, 100)
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, len(events)); len(events) == 0 {
			break
		}
		seen = events[len(events)-1].Seq
	}
	if want := "[2 2 2 2 2 1 1 0]"; fmt.Sprint(got) != want {
		t.Errorf("read by %v, want %v", got, want)
	}
	got = nil
	for at := eventlog.Position(0); ; {
		items, next, err := s.Feed(t.Context(), at, 100, eventlog.FeedFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, len(items)); next == at {
			break
		}
		at = next
	}
	if want := "[2 2 2 2 2 1 1 0]"; fmt.Sprint(got) != want {
		t.Errorf("fed by %v, want %v", got, want)
	}
	if events, err := s.Read(t.Context(), id.Stream(), 0, 100); err != nil || len(events) != 12 {
		t.Errorf("read without a bound: %d events, %v", len(events), err)
	}
}

// One call of a feed that lets nothing pass looks at so much of the log, and
// says where to go on.
func TestFeedLooksAtSoMuch(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Sync: SyncNormal})
	id := newSession(t)
	const rows = 2*storecore.FeedRows + 100
	for range rows - 1 {
		mustAppend(t, s, said(id, ""))
	}
	mustAppend(t, s, single(id, &event.SessionClosed{}))
	f := eventlog.FeedFilter{Types: []event.Type{event.TypeSessionClosed}}
	at := eventlog.Position(0)
	for call, want := range []struct {
		items int
		at    eventlog.Position
	}{{0, storecore.PositionOf(storecore.FeedRows, 0)}, {0, storecore.PositionOf(2*storecore.FeedRows, 0)}, {1, storecore.PositionOf(rows, 0)}, {0, storecore.PositionOf(rows, 0)}} {
		items, next, err := s.Feed(t.Context(), at, 10, f)
		if err != nil || len(items) != want.items || next != want.at {
			t.Errorf("call %d: %d items, to row %d, want %d to %d (%v)", call, len(items), next, want.items, want.at, err)
		}
		at = next
	}
	if items, next, err := s.Feed(t.Context(), 0, 2*storecore.FeedRows, eventlog.FeedFilter{}); err != nil || len(items) != storecore.FeedRows || next != storecore.PositionOf(storecore.FeedRows, 0) {
		t.Errorf("without a filter: %d items to row %d, %v", len(items), next, err)
	}
}

// No list that is narrowed reads what it does not show, and none is sorted: each
// form of each list goes by the index that is meant for it.
func TestListsUseAnIndex(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	var ranges []eventlog.Range
	for i := range 8 {
		var r eventlog.Range
		if i&1 != 0 {
			r.Since = at
		}
		if i&2 != 0 {
			r.Until = at.Add(time.Hour)
		}
		r.Asc = i&4 != 0
		ranges = append(ranges, r)
	}
	maybe := func(i, bit int) string {
		if i&bit != 0 {
			return "x"
		}
		return ""
	}
	for _, r := range ranges {
		bounded := !r.Since.IsZero() || !r.Until.IsZero()
		own := func(index string) string { // of the order alone, where nothing narrows
			if bounded {
				return "SEARCH " + index
			}
			return "SCAN " + index
		}
		for i := range 4 {
			for _, status := range []string{"", "open", "closed"} {
				f := eventlog.SessionFilter{UserID: maybe(i, 1), ThreadID: maybe(i, 2), Status: status, Range: r}
				want := own("sessions_made")
				switch {
				case f.ThreadID != "":
					want = "SEARCH sessions_thread"
				case status == "closed":
					want = "SEARCH sessions_status"
				case f.UserID != "":
					want = "SEARCH sessions_user"
				}
				s.explain(t, func() *storecore.List { return sessionList(f) }, want)
			}
			for _, status := range []string{"", "completed", "failed"} {
				f := eventlog.RunFilter{UserID: maybe(i, 1), SessionID: event.SessionID(maybe(i, 2)), Status: status, Range: r}
				want := own("runs_made")
				switch {
				case f.SessionID != "":
					want = "SEARCH runs_session"
				case status == "failed":
					want = "SEARCH runs_status"
				case f.UserID != "":
					want = "SEARCH runs_user"
				}
				s.explain(t, func() *storecore.List { return runList(f) }, want)
			}
		}
		for i := range 16 {
			for _, status := range []string{"", "delivered", "dead_lettered", "pending"} {
				f := eventlog.DeliveryFilter{UserID: maybe(i, 1), SessionID: event.SessionID(maybe(i, 2)), RunID: event.RunID(maybe(i, 4)),
					TargetID: event.TargetID(maybe(i, 8)), Status: status, Range: r, Tried: status == "pending"}
				want := own("outbox_created")
				switch {
				case f.RunID != "":
					want = "SEARCH outbox_run"
				case f.SessionID != "":
					want = "SEARCH outbox_session"
				case status == "pending":
					want = own("outbox_retried") // those that were tried
				case status == "dead_lettered":
					want = "SEARCH outbox_status"
				case f.TargetID != "":
					want = "SEARCH outbox_target"
				case f.UserID != "":
					want = "SEARCH outbox_user"
				}
				s.explain(t, func() *storecore.List { return deliveryList(f) }, want)
			}
		}
	}
	text, args := feedQuery(&eventlog.FeedFilter{UserID: "x", SessionID: "x", RunID: "x", Types: []event.Type{"a", "b"}, Since: at})
	if plan := s.planOf(t, text, append([]any{1, 1, 1}, args...)); !strings.HasPrefix(plan[0], "SEARCH log USING INTEGER PRIMARY KEY") {
		t.Errorf("feed: %q", plan)
	}
}

// Targets are walked by their ids, and nothing of them is counted by reading what was delivered.
func TestTargetsUseAnIndex(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	for status, index := range map[string]string{"": "outbox", "pending": "outbox_pending", "dead_lettered": "outbox_dead"} {
		text, args, _, err := targetList(eventlog.TargetFilter{UserID: "x", Status: status}, eventlog.Page{Cursor: storecore.EncodeCursor("targets", []string{"tgt_1"})})
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(s.planOf(t, text, args), "\n")
		if strings.Contains(plan, "SCAN outbox") || strings.Contains(plan, "SCAN targets") || status == "" && strings.Count(plan, "targets_paused (target_id>?)") != 2 || strings.Contains(plan, "TEMP B-TREE") || strings.Count(plan, "COVERING INDEX "+index) < 2 ||
			!strings.Contains(plan, "COVERING INDEX outbox_pending (target_id=?)") || !strings.Contains(plan, "COVERING INDEX outbox_dead (target_id=?)") ||
			!strings.Contains(plan, "COVERING INDEX outbox_target (target_id=?)") {
			t.Errorf("%q:\n%s", status, plan)
		}
	}
}

// explain holds the plan of a list, its first page and a further one, against
// the way and the index that are wanted.
func (s *Store) explain(t *testing.T, of func() *storecore.List, want string) {
	t.Helper()
	way, index, _ := strings.Cut(want, " ")
	for _, paged := range []bool{false, true} {
		l := of()
		var p eventlog.Page
		if paged {
			p.Cursor = storecore.EncodeCursor(l.CursorKind(), l.Order)
		}
		text, _, err := l.Query(p)
		if err != nil {
			t.Fatal(err)
		}
		if paged && way == "SCAN" {
			way = "SEARCH" // from the cursor on
		}
		plan := s.planOf(t, text, l.Args)
		if !strings.HasPrefix(plan[0], way) || !strings.Contains(plan[0], " "+index+" ") && !strings.HasSuffix(plan[0], " "+index) ||
			strings.Contains(strings.Join(plan, "\n"), "TEMP B-TREE") {
			t.Errorf("%s: %q, want %s", text[strings.LastIndex(text, "FROM"):], plan, want)
		}
	}
}

func (s *Store) planOf(t *testing.T, text string, args []any) []string {
	t.Helper()
	var plan []string
	rows, err := s.readers.query(t.Context(), []byte("EXPLAIN QUERY PLAN "+text), args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// The runs of a session that are not at their end are found without a look at
// those that are, of which there may be any number.
func TestUnfinishedRunsOfASession(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	for _, status := range []string{"queued", "running", "needs_attention"} {
		l := runList(eventlog.RunFilter{SessionID: "ses_1", Status: status, UserID: "ann"})
		text, _, err := l.Query(eventlog.Page{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		rows, err := s.readers.query(t.Context(), []byte("EXPLAIN QUERY PLAN "+text), l.Args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := collect(rows, func(rows *sql.Rows) (line string, err error) {
			var id, parent, unused int
			return line, rows.Scan(&id, &parent, &unused, &line)
		})
		if err != nil || !strings.Contains(strings.Join(plan, "; "), "runs USING INDEX runs_run (run_id=?") {
			t.Errorf("%s: %v %q", status, err, plan)
		}
	}
}

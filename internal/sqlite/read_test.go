package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
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
	const rows = 2*feedRows + 100
	for range rows - 1 {
		mustAppend(t, s, said(id, ""))
	}
	mustAppend(t, s, single(id, &event.SessionClosed{}))
	f := eventlog.FeedFilter{Type: event.TypeSessionClosed}
	at := eventlog.Position(0)
	for call, want := range []struct {
		items int
		at    eventlog.Position
	}{{0, positionOf(feedRows, 0)}, {0, positionOf(2*feedRows, 0)}, {1, positionOf(rows, 0)}, {0, positionOf(rows, 0)}} {
		items, next, err := s.Feed(t.Context(), at, 10, f)
		if err != nil || len(items) != want.items || next != want.at {
			t.Errorf("call %d: %d items, to row %d, want %d to %d (%v)", call, len(items), next>>indexBits, want.items, want.at>>indexBits, err)
		}
		at = next
	}
	if items, next, err := s.Feed(t.Context(), 0, 2*feedRows, eventlog.FeedFilter{}); err != nil || len(items) != feedRows || next != positionOf(feedRows, 0) {
		t.Errorf("without a filter: %d items to row %d, %v", len(items), next>>indexBits, err)
	}
}

// No list that is narrowed reads what it does not show.
func TestListsUseAnIndex(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	for _, c := range []struct {
		list  func() *list
		index string
	}{
		{func() *list { return sessionList(eventlog.SessionFilter{UserID: "x"}) }, "sessions_user"},
		{func() *list { return runList(eventlog.RunFilter{UserID: "x"}) }, "runs_user"},
		{func() *list { return runList(eventlog.RunFilter{SessionID: "x"}) }, "sqlite_autoindex_runs_1"},
		{func() *list { return runList(eventlog.RunFilter{UserID: "x", SessionID: "x"}) }, "sqlite_autoindex_runs_1"},
		{func() *list { return runList(eventlog.RunFilter{SessionID: "x", Status: "running"}) }, "(session_id=? AND run_id=?"},
		{func() *list { return runList(eventlog.RunFilter{Status: "needs_attention"}) }, "(run_id=?"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{UserID: "x"}) }, "outbox_user"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{RunID: "x"}) }, "outbox_run"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{SessionID: "x"}) }, "outbox_session"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{TargetID: "x"}) }, "sqlite_autoindex_outbox_1"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{UserID: "x", RunID: "x"}) }, "outbox_run"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{UserID: "x", SessionID: "x"}) }, "outbox_session"},
		{func() *list { return deliveryList(eventlog.DeliveryFilter{UserID: "x", TargetID: "x"}) }, "sqlite_autoindex_outbox_1"},
		{func() *list {
			return deliveryList(eventlog.DeliveryFilter{UserID: "x", Status: "x", SessionID: "x", RunID: "x"})
		}, "(run_id=?"},
	} {
		for _, paged := range []bool{false, true} {
			l := c.list()
			var p eventlog.Page
			if paged {
				p.Cursor = encodeCursor(l.kind, l.order)
			}
			text, _, err := l.query(p)
			if err != nil {
				t.Fatal(err)
			}
			var plan []string
			rows, err := s.readers.query(t.Context(), []byte("EXPLAIN QUERY PLAN "+text), l.args...)
			if err != nil {
				t.Fatal(err)
			}
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
			if !strings.HasPrefix(plan[0], "SEARCH") || !strings.Contains(plan[0], c.index) {
				t.Errorf("%s: %q, want by %s", text[strings.LastIndex(text, "WHERE"):], plan, c.index)
			}
		}
	}
}

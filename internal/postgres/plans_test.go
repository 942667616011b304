package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// planOf is the plan that is kept for a text, whatever its arguments.
func (s *Store) planOf(t *testing.T, text string, args []any) string {
	t.Helper()
	ctx := context.Background()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	list := make([]string, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case string:
			list[i] = "'" + v + "'"
		case time.Time:
			list[i] = "'" + v.Format(time.RFC3339) + "'"
		case []byte:
			list[i] = "'" + string(v) + "'"
		default:
			list[i] = fmt.Sprint(v)
		}
	}
	call := "EXPLAIN EXECUTE p"
	if len(list) > 0 {
		call += "(" + strings.Join(list, ", ") + ")"
	}
	var lines []string
	for _, text := range []string{"SET LOCAL plan_cache_mode = force_generic_plan", "PREPARE p AS " + s.sql(text), call, "DEALLOCATE p"} {
		results, err := tx.Conn().PgConn().Exec(ctx, text).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, r := range results {
			for _, row := range r.Rows {
				lines = append(lines, string(row[0]))
			}
		}
	}
	return strings.Join(lines, "\n")
}

// No list that is narrowed reads what it does not show, and none is sorted: each
// form of each list goes by an index that is meant for it.
func TestListsUseAnIndex(t *testing.T) {
	s := open(t, Config{})
	fill(t, s, 13*30_000)
	fillOutbox(t, s)
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	maybe := func(i, bit int) string {
		if i&bit != 0 {
			return "x"
		}
		return ""
	}
	explain := func(of func() *storecore.List, want string) {
		t.Helper()
		for _, cursor := range []bool{false, true} {
			l := of()
			var p eventlog.Page
			if cursor {
				p.Cursor = storecore.EncodeCursor(l.CursorKind(), l.Order)
			}
			text, _, err := l.Query(p)
			if err != nil {
				t.Fatal(err)
			}
			plan, _, _ := strings.Cut(s.planOf(t, text, l.Args), "SubPlan") // a few rows of the queue
			if !strings.Contains(plan, "using "+want+" on") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Bitmap") {
				t.Errorf("%s: want %s\n%s", text[strings.LastIndex(text, "WHERE"):], want, plan)
			}
		}
	}
	for _, r := range []eventlog.Range{{}, {Asc: true}, {Since: at, Until: at.Add(time.Hour)}, {Since: at, Asc: true}} {
		for i := range 4 {
			for _, status := range []string{"", "open", "closed"} {
				f := eventlog.SessionFilter{UserID: maybe(i, 1), ThreadID: maybe(i, 2), Status: status, Range: r}
				want := "sessions_made"
				switch {
				case f.ThreadID != "":
					want = "sessions_thread"
				case status == "closed":
					want = "sessions_status"
				case f.UserID != "":
					want = "sessions_user"
				}
				explain(func() *storecore.List { return sessionList(f) }, want)
			}
			for _, status := range []string{"", "completed", "failed"} {
				f := eventlog.RunFilter{UserID: maybe(i, 1), SessionID: event.SessionID(maybe(i, 2)), Status: status, Range: r}
				want := "runs_made"
				switch {
				case f.SessionID != "":
					want = "runs_session"
				case status == "failed":
					want = "runs_status"
				case f.UserID != "":
					want = "runs_user"
				}
				explain(func() *storecore.List { return runList(f) }, want)
			}
		}
		for i := range 16 {
			for _, status := range []string{"", "delivered", "dead_lettered", "pending"} {
				f := eventlog.DeliveryFilter{UserID: maybe(i, 1), SessionID: event.SessionID(maybe(i, 2)), RunID: event.RunID(maybe(i, 4)),
					TargetID: event.TargetID(maybe(i, 8)), Status: status, Range: r, Tried: status == "pending"}
				want := "outbox_created"
				switch {
				case f.Tried && f.RunID == "" && f.SessionID == "":
					want = "outbox_retried"
				case f.RunID != "":
					want = "outbox_run"
				case f.SessionID != "":
					want = "outbox_session"
				case status == "dead_lettered":
					want = "outbox_status"
				case f.TargetID != "":
					want = "outbox_target"
				case f.UserID != "":
					want = "outbox_user"
				}
				explain(func() *storecore.List { return deliveryList(f) }, want)
				if f.Class = "timeout"; f.RunID == "" && f.SessionID == "" { // what failed so, whatever else is said
					want = "outbox_class"
				}
				explain(func() *storecore.List { return deliveryList(f) }, want)
			}
		}
		for _, f := range []struct {
			eventlog.JobFilter
			want string
		}{{eventlog.JobFilter{}, "jobs_made"}, {eventlog.JobFilter{UserID: "x"}, "jobs_user"}, {eventlog.JobFilter{Status: "running"}, "jobs_status"},
			{eventlog.JobFilter{UserID: "x", Status: "running"}, "jobs_status"}} {
			f.Range = r
			explain(func() *storecore.List { return jobList(f.JobFilter) }, f.want)
		}
	}
	// What is past its retention is found without a look at what is not.
	text := strings.NewReplacer("status = ?", "status = $1", "updated_at < ?", "updated_at < $2", "LIMIT ?", "LIMIT $3").Replace(settledQuery)
	if plan := s.planOf(t, text, []any{"delivered", "2026-01-01T00:00:00.000000Z", 200}); !strings.Contains(plan, "using outbox_settled on") || strings.Contains(plan, "Sort") {
		t.Errorf("%s", plan)
	}
}

// What is kept for as long as a connection lives is planned when the tables are
// new, too, and the server knows nothing of them: it does not read a whole session
// for its last row.
func TestPlansOfNewTables(t *testing.T) {
	s := open(t, Config{})
	for _, x := range []struct {
		name, text string
		args       []any
	}{
		{"read", readQuery, []any{"s", 10, 20}},
		{"bounded read", boundedQuery, []any{"s", 10, 20, 1000}},
		{"snapshot", saveSnapshot, []any{"s", 1, 1, 1, "x", "s"}},
		{"end of an append", appendEnds, []any{"s", 10, 1}},
		{"facts", factsQuery, []any{"{s}", "{1}", 1000}},
	} {
		plan := s.planOf(t, x.text, x.args)
		if !strings.Contains(plan, "Limit") || !strings.Contains(plan, "Backward using log_stream") {
			t.Errorf("%s:\n%s", x.name, plan)
		}
	}
}

// A statement is planned once a connection: whether the server would rather plan it
// by its arguments each time hangs on figures that its vacuum collects, and costs more than the read.
func TestReadsArePlannedOnce(t *testing.T) {
	s := open(t, Config{})
	fill(t, s, 13*3_000)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for range 10 {
		if _, err := oneOf(t.Context(), s, conn, runQuery+" WHERE run_id = ?", []any{"run_1"}, runDest); err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			t.Fatal(err)
		}
	}
	var calls, custom int64
	err = conn.QueryRow(t.Context(), "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements WHERE statement LIKE '%.runs r WHERE run_id = %'").Scan(&calls, &custom)
	if err != nil || calls < 10 || custom != 0 {
		t.Errorf("%d times by the plan that was kept, %d times by one of its own; want 10 and none (%v)", calls, custom, err)
	}
}

// fillOutbox makes deliveries behind the store's back, nearly all delivered.
func fillOutbox(t *testing.T, s *Store) {
	t.Helper()
	for _, text := range []string{
		`INSERT INTO @.outbox (target_id, delivery_id, lane_seq, session_id, run_id, user_id, type, last_code, last_class, status, created_at, updated_at) SELECT 'tgt_' || n % 50, 'dlv_' || n, n,
			'ses_' || n / 10, 'run_' || n, 'user_' || n / 100, 'webhook', CASE WHEN n % 200 = 0 OR n % 400 = 1 THEN 'timeout' ELSE '' END, CASE WHEN n % 200 = 0 OR n % 400 = 1 THEN 'timeout' ELSE '' END, CASE n % 200 WHEN 0 THEN 'dead_lettered' WHEN 1 THEN 'pending' ELSE 'delivered' END,
			'2026-01-01T00:00:00.' || lpad(n::text, 6, '0') || 'Z', '2026-01-02T00:00:00.' || lpad(n::text, 6, '0') || 'Z' FROM generate_series(1, 10000) n`, "ANALYZE @.outbox",
		`INSERT INTO @.jobs (job_id, user_id, status, created_at) SELECT 'job_' || n, 'user_' || n % 50, CASE n % 100 WHEN 0 THEN 'running' ELSE 'completed' END,
			'2026-01-01T00:00:00.' || lpad(n::text, 6, '0') || 'Z' FROM generate_series(1, 10000) n`, "ANALYZE @.jobs",
	} {
		if _, err := s.pool.Exec(t.Context(), s.sql(text)); err != nil {
			t.Fatal(err)
		}
	}
}

// What the writer, readers and owners ask goes by indexes, and reads no more
// than it shows.
func TestPlans(t *testing.T) {
	s := open(t, Config{})
	fill(t, s, 13*30_000)
	fillOutbox(t, s)
	for _, x := range []struct {
		name, text string
		args       []any
		want       []string
	}{
		{"lock", lockAtOnce, []any{"{a,b}"}, []string{"using streams_pkey"}},
		{"log and heads", writeLog, []any{1, "2026-01-01", "[]", "", `[{"v0":"a"}]`}, []string{"using streams_pkey"}},
		{"read", readQuery, []any{"s", 10, 20}, []string{"using log_stream"}},
		{"bounded read", boundedQuery, []any{"s", 10, 20, 1000}, []string{"using log_stream"}},
		{"place in the feed", insertFeed, []any{1, 1, "n", "2026-01-01", "{s}", "{1}", "{t}"}, []string{"Backward using feed_pkey"}},
		{"news", newsQuery, []any{1, "n", 100}, []string{"using feed_pkey"}},
		{"older news", olderNews, []any{1}, []string{"using log_pkey"}},
		{"snapshot", saveSnapshot, []any{"s", 1, 1, 1, "x", "s"}, []string{"using log_stream"}},
		{"take", takeStreams, []any{"n", "f", 10, "{}", 1}, []string{"using streams_ready", "using nodes_pkey"}},
		{"idle assets", idleAssets, []any{"2026", 10}, []string{"using assets_touched", "using asset_uses_asset"}},
		{"next delivery", deliveryQuery + " WHERE target_id = $1 AND status = 'pending' ORDER BY lane_seq LIMIT 1", []any{"t"}, []string{"using outbox_pending"}},
		{"targets that are pending", "SELECT DISTINCT target_id FROM @.outbox WHERE status = 'pending' ORDER BY target_id", nil, []string{"using outbox_"}},
		{"backlog", backlogRest, []any{1000}, []string{"using runs_status", "using outbox_status", "using outbox_pending_again"}},
	} {
		plan := s.planOf(t, x.text, x.args)
		for _, want := range x.want {
			if !strings.Contains(plan, want) || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s: want %q\n%s", x.name, want, plan)
			}
		}
	}
	f := eventlog.FeedFilter{UserID: "x", SessionID: "x", RunID: "x", Types: []event.Type{"a", "b"}, Since: time.Now()}
	text, args := feedQuery(&f)
	plan := s.planOf(t, text, append([]any{1, 1, 100, 1000}, args...))
	if !strings.Contains(plan, "using feed_pkey") || !strings.Contains(plan, "using log_pkey") || strings.Contains(plan, "Seq Scan") {
		t.Errorf("feed:\n%s", plan)
	}
	for _, status := range []string{"", "pending", "dead_lettered"} {
		text, args, _, err := targetList(eventlog.TargetFilter{UserID: "x", Status: status}, eventlog.Page{})
		if err != nil {
			t.Fatal(err)
		}
		if plan := s.planOf(t, text, args); strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort") || strings.Count(plan, "using outbox_") < 5 {
			t.Errorf("targets %q:\n%s", status, plan)
		}
	}
}

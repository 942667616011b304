package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// letterRows are the suite's own rows of what people do with deliveries, and of jobs.
func letterRows(e *event.Event, now string) []derived.Change {
	target, _ := e.Stream.Target()
	key := func(id event.DeliveryID) []derived.Col {
		return []derived.Col{{Name: "target_id", Value: string(target)}, {Name: "delivery_id", Value: string(id)}}
	}
	id, _ := e.Stream.Job()
	job := []derived.Col{{Name: "job_id", Value: string(id)}}
	switch d := e.Data.(type) {
	case *event.DeliveryReplayed:
		return []derived.Change{
			change(derived.Outbox, derived.Set, key(d.DeliveryID), "status", "pending", "lane_seq", e.Seq, "cycle_at", now, "n_replays", d.Number, "resolved_at", "", "last_code", "", "last_class", "", "updated_at", now),
			change(derived.Replays, derived.Insert, append(key(d.DeliveryID), derived.Col{Name: "replay_seq", Value: e.Seq}), "at", now, "actor", d.Actor, "reason", d.Reason,
				"n_forced", map[bool]int{true: 1}[d.Forced], "job_id", string(d.JobID))}
	case *event.DeliveryExpired:
		var out []derived.Change
		for _, id := range d.Deliveries {
			out = append(out, change(derived.Outbox, derived.Delete, key(id)), change(derived.Replays, derived.Delete, key(id)))
		}
		return out
	case *event.JobPlanned:
		return []derived.Change{change(derived.Jobs, derived.Insert, job, "user_id", e.UserID, "kind", d.Kind, "status", "planned", "created_at", now, "updated_at", now,
			"n_total", d.Count, "n_force", map[bool]int{true: 1}[d.Force], "n_truncated", map[bool]int{true: 1}[d.Truncated], "digest", d.Digest, "token_hash", d.TokenHash)}
	case *event.JobStarted:
		return []derived.Change{change(derived.Jobs, derived.Set, job, "status", "running", "started_at", now)}
	case *event.JobAdvanced:
		return []derived.Change{change(derived.Jobs, derived.Add, job, "n_done", len(d.Done), "n_skipped", len(d.Skipped))}
	case *event.JobEnded:
		return []derived.Change{change(derived.Jobs, derived.Set, job, "status", d.Status, "finished_at", now, "updated_at", now)}
	case *event.JobExpired:
		return []derived.Change{change(derived.Jobs, derived.Delete, job)}
	}
	return nil
}

// A delivery is replayed and resolved, is found by its class, and leaves the
// ledger, with all that tells of it. // I-03
func testLetters(t *testing.T, s *suite) {
	id := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	var dlv []event.DeliveryID
	for range 3 {
		dlv = append(dlv, s.enqueue(id, s.run("ann", id), target))
	}
	fact := func(datas ...event.Data) {
		t.Helper()
		var events []event.Event
		for _, d := range datas {
			events = append(events, draft("ann", id, "run_1", d))
		}
		s.must(command(target.Stream(), events...))
	}
	row := func(i int) eventlog.DeliveryRow {
		t.Helper()
		r, err := s.Delivery(t.Context(), dlv[i])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	fact(&event.DeliveryDeadLettered{DeliveryID: dlv[0], Code: "timeout"}, &event.DeliveryDelivered{DeliveryID: dlv[1], Status: 200}, &event.DeliveryResolved{DeliveryID: dlv[2]})
	replay := func(r eventlog.DeliveryRow, d *event.DeliveryReplayed) error {
		e, require := r.Replay(d)
		_, err := s.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{e}, Require: require})
		return err
	}
	seen := row(0)
	if err := replay(seen, &event.DeliveryReplayed{Actor: "ann", Reason: "mended"}); err != nil {
		t.Fatal(err)
	}
	// Seen before that replay, it is not replayed again, forced or not.
	condition(t, replay(seen, &event.DeliveryReplayed{Forced: true}), 0)
	if err := replay(row(0), &event.DeliveryReplayed{Actor: "ben", Forced: true, JobID: "job_1"}); err != nil {
		t.Fatal(err)
	}
	if r := row(0); r.Replays != 2 || r.Status != "pending" || r.LaneSeq <= seen.LaneSeq {
		t.Errorf("%+v", r)
	}
	list, err := s.Replays(t.Context(), target, dlv[0], 10)
	if err != nil || len(list) != 2 || list[0].Actor != "ann" || list[0].Forced || list[0].Reason != "mended" || list[0].At == "" ||
		!list[1].Forced || list[1].JobID != "job_1" || list[1].Seq <= list[0].Seq {
		t.Errorf("%+v %v", list, err)
	}
	if list, err := s.Replays(t.Context(), target, dlv[0], 1); err != nil || len(list) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	// What is settled is found by when it was, and what has changed since is left alone.
	later := time.Now().Add(time.Hour)
	for status, want := range map[string]event.DeliveryID{"delivered": dlv[1], "resolved": dlv[2]} {
		rows, err := s.SettledDeliveries(t.Context(), status, later, 10)
		if err != nil || len(rows) != 1 || rows[0].ID != want {
			t.Fatalf("%s: %+v %v", status, rows, err)
		}
		if rows, err := s.SettledDeliveries(t.Context(), status, time.Now().Add(-time.Hour), 10); err != nil || len(rows) != 0 {
			t.Errorf("%s, an hour ago: %+v %v", status, rows, err)
		}
	}
	old := row(0)
	fact(&event.DeliveryDelivered{DeliveryID: dlv[0], Status: 200})
	expire := func(r eventlog.DeliveryRow) error {
		_, err := s.Append(t.Context(), eventlog.Append{
			Entries: []eventlog.Entry{{Stream: target.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{{UserID: "ann", Data: &event.DeliveryExpired{Deliveries: []event.DeliveryID{r.ID}}}}}},
			Require: []eventlog.Condition{r.Unchanged()}})
		return err
	}
	condition(t, expire(old), 0)
	if err := expire(row(0)); err != nil {
		t.Fatal(err)
	}
	_, err = s.Delivery(t.Context(), dlv[0])
	refused(t, err, eventlog.ErrNotFound)
	if list, err := s.Replays(t.Context(), target, dlv[0], 10); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	condition(t, expire(old), 0) // a second time
	s.sound()
}

// condition wants a refusal by a condition.
func condition(t *testing.T, err error, index int) {
	t.Helper()
	var ce *eventlog.ConditionError
	if !errors.As(err, &ce) || ce.Index != index {
		t.Errorf("%v, want condition %d", err, index)
	}
}

// Jobs are listed by user, status and time; one that is started wants work, is
// owned and fenced as sessions are, and wants it again after a new start. // I-11
func testJobs(t *testing.T, s *suite) {
	_, err := s.Job(t.Context(), "job_none")
	refused(t, err, eventlog.ErrNotFound)
	s.beat("a", long)
	s.beat("b", long)
	var made []event.JobID
	for i, user := range []string{"ann", "ben", ""} {
		id := newID(t, event.NewJobID)
		made = append(made, id)
		s.must(command(id.Stream(), event.Event{UserID: user, Data: &event.JobPlanned{Kind: "replay", Count: 2, Digest: fmt.Sprint("d", i), TokenHash: "h", Truncated: i == 0, Force: i == 1}},
			event.Event{UserID: user, Data: &event.JobItemsAdded{Items: []event.JobItem{{DeliveryID: "dlv_1"}, {DeliveryID: "dlv_2"}}}}))
	}
	if row, err := s.Job(t.Context(), made[1]); err != nil || row.UserID != "ben" || row.Status != "planned" || row.Total != 2 || !row.Force || row.Truncated || row.Digest != "d1" || row.TokenHash != "h" {
		t.Errorf("%+v %v", row, err)
	}
	take := func(node eventlog.NodeID, want ...event.Stream) {
		t.Helper()
		got, err := s.Take(t.Context(), node, eventlog.Jobs, 9, false)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s got %v, want %v: %v", node, got, want, err)
		}
	}
	take("a") // a plan wants nothing
	for i, user := range []string{"ann", "ben"} {
		s.must(command(made[i].Stream(), event.Event{UserID: user, Data: &event.JobStarted{}}))
	}
	if got := s.take("a", 9, false); len(got) != 0 {
		t.Errorf("sessions: %v", got)
	}
	if got, err := s.Take(t.Context(), "a", eventlog.Targets, 9, false); err != nil || len(got) != 0 {
		t.Errorf("targets: %v %v", got, err)
	}
	take("a", made[0].Stream(), made[1].Stream())
	take("b")
	own := func(node eventlog.NodeID, epoch, head int64, claim bool, d event.Data) error {
		_, err := s.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: made[0].Stream(), Node: node, Epoch: epoch, Expect: head, Claim: claim,
			Events: []event.Event{{UserID: "ann", Data: d}}}}})
		return err
	}
	if err := own("a", 0, 3, true, &event.JobAdvanced{Done: []event.DeliveryID{"dlv_1"}}); err != nil {
		t.Fatal(err)
	}
	refused(t, own("b", 1, 4, false, &event.JobAdvanced{}), eventlog.ErrFenced)
	refused(t, own("a", 1, 3, false, &event.JobAdvanced{}), eventlog.ErrHeadMoved)
	if row, err := s.Job(t.Context(), made[0]); err != nil || row.Done != 1 || row.Status != "running" || row.StartedAt == "" {
		t.Errorf("%+v %v", row, err)
	}
	list := func(f eventlog.JobFilter, want ...event.JobID) {
		t.Helper()
		for _, limit := range []int{1, 10} {
			got := ids(t, limit, func(p eventlog.Page) ([]string, string, error) {
				rows, next, err := s.Jobs(t.Context(), f, p)
				return collect(rows, func(r eventlog.JobRow) string { return string(r.ID) }), next, err
			}, func() {})
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%+v: %v, want %v", f, got, want)
			}
		}
	}
	asc := eventlog.Range{Asc: true}
	list(eventlog.JobFilter{Range: asc}, made...)
	list(eventlog.JobFilter{UserID: "ann"}, made[0])
	list(eventlog.JobFilter{Status: "running", Range: asc}, made[0], made[1])
	list(eventlog.JobFilter{Status: "running", UserID: "ben"}, made[1])
	list(eventlog.JobFilter{Range: eventlog.Range{Since: time.Now().Add(time.Hour)}})
	if _, _, err := s.Jobs(t.Context(), eventlog.JobFilter{}, eventlog.Page{Cursor: "x"}); !problem.Is(err, "invalid_cursor") {
		t.Error(err)
	}
	if got, err := s.UnfinishedJobs(t.Context()); err != nil || !slices.Equal(got, made[:2]) {
		t.Errorf("%v %v", got, err)
	}
	s.sound()
	if err := s.Release(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.start()
	s.beat("c", long)
	got, err := s.Take(t.Context(), "c", eventlog.Jobs, 9, false)
	if want := []event.Stream{made[0].Stream(), made[1].Stream()}; err != nil || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("c got %v, want %v: %v", got, want, err)
	}
	s.must(eventlog.Append{Entries: []eventlog.Entry{{Stream: made[0].Stream(), Node: "c", Expect: 4, Claim: true, Rest: true, Events: []event.Event{{UserID: "ann", Data: &event.JobEnded{Status: "completed"}}}}}})
	list(eventlog.JobFilter{Status: "completed"}, made[0])
	s.must(command(made[0].Stream(), event.Event{UserID: "ann", Data: &event.JobExpired{}}))
	list(eventlog.JobFilter{Range: asc}, made[1], made[2])
	s.sound()
}

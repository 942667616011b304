package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

func testSessions(t *testing.T, s *suite) {
	_, err := s.Session(t.Context(), "ses_none")
	refused(t, err, eventlog.ErrNotFound)
	id := newID(t, event.NewSessionID)
	s.must(command(id.Stream(), draft("ann", id, "", &event.SessionCreated{Alias: "home", Settings: event.Settings{Title: "A title"}})))
	row, err := s.Session(t.Context(), id)
	if err != nil || row.ID != id || row.UserID != "ann" || row.Alias != "home" || row.Status != "open" || row.Title != "A title" ||
		row.SettingsVersion != 1 || row.CreatedAt == "" || row.MaxTurns != 0 {
		t.Fatalf("%+v %v", row, err)
	}
	ben := s.session("ben")
	s.must(command(ben.Stream(), draft("ben", ben, "", &event.SessionClosed{})))
	for _, c := range []struct {
		f    eventlog.SessionFilter
		want []event.SessionID
	}{
		{eventlog.SessionFilter{}, []event.SessionID{ben, id}},
		{eventlog.SessionFilter{UserID: "ann"}, []event.SessionID{id}},
		{eventlog.SessionFilter{Status: "closed"}, []event.SessionID{ben}},
		{eventlog.SessionFilter{UserID: "ann", Status: "closed"}, nil},
	} {
		rows, next, err := s.Sessions(t.Context(), c.f, eventlog.Page{Limit: 10})
		var ids []event.SessionID
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		if err != nil || next != "" || !slices.Equal(ids, c.want) {
			t.Errorf("%+v: %v %q %v", c.f, ids, next, err)
		}
	}
}

func testRuns(t *testing.T, s *suite) {
	_, err := s.Run(t.Context(), "run_none")
	refused(t, err, eventlog.ErrNotFound)
	a, b := s.session("ann"), s.session("ben")
	runB := s.run("ben", b)
	runs := []event.RunID{s.run("ann", a), s.run("ann", a), s.run("ann", a)}
	positions := func(want ...int64) {
		t.Helper()
		for i, id := range runs {
			row, err := s.Run(t.Context(), id)
			if err != nil || row.Position != want[i] || row.SessionID != a || row.UserID != "ann" || row.CreatedSeq != int64(i+2) {
				t.Errorf("run %d: %+v %v, want position %d", i, row, err, want[i])
			}
		}
	}
	unfinished := func(want ...event.SessionID) {
		t.Helper()
		if got, err := s.Unfinished(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("unfinished %v %v, want %v", got, err, want)
		}
	}
	pending := func(most, want int) {
		t.Helper()
		if got, err := s.Pending(t.Context(), a, most); err != nil || got != want {
			t.Errorf("%d pending of at most %d (%v), want %d", got, most, err, want)
		}
	}
	positions(1, 2, 3)
	unfinished(b, a)
	pending(10, 3)
	pending(2, 2)
	s.must(command(a.Stream(), draft("ann", a, runs[0], &event.RunStarted{})))
	positions(0, 1, 2)
	s.must(command(a.Stream(), draft("ann", a, runs[0], &event.RunCompleted{})))
	s.must(command(b.Stream(), draft("ben", b, runB, &event.RunStarted{}), draft("ben", b, runB, &event.RunCompleted{})))
	positions(0, 1, 2)
	unfinished(a)
	for _, c := range []struct {
		f    eventlog.RunFilter
		want int
	}{
		{eventlog.RunFilter{}, 4}, {eventlog.RunFilter{UserID: "ann"}, 3}, {eventlog.RunFilter{Status: "completed"}, 2},
		{eventlog.RunFilter{SessionID: a, Status: "queued"}, 2}, {eventlog.RunFilter{UserID: "ben", SessionID: a}, 0},
	} {
		rows, _, err := s.Runs(t.Context(), c.f, eventlog.Page{Limit: 10})
		if err != nil || len(rows) != c.want {
			t.Errorf("%+v: %d rows, %v", c.f, len(rows), err)
		}
	}
}

// I-25
func testDeliveries(t *testing.T, s *suite) {
	_, err := s.Delivery(t.Context(), "dlv_none")
	refused(t, err, eventlog.ErrNotFound)
	id := s.session("ann")
	targets := []event.TargetID{event.TargetIDFor("ann", "webhook", "a"), event.TargetIDFor("ann", "webhook", "b")}
	_, err = s.NextDelivery(t.Context(), targets[0])
	refused(t, err, eventlog.ErrNotFound)
	runs := []event.RunID{s.run("ann", id), s.run("ann", id)}
	var first []event.DeliveryID
	for _, run := range runs {
		for _, target := range targets {
			first = append(first, s.enqueue(id, run, target))
		}
	}
	for i := range targets {
		next, err := s.NextDelivery(t.Context(), targets[i])
		if err != nil || next.ID != first[i] || next.LaneSeq != 1 || next.TargetID != targets[i] || next.RunID != runs[0] || next.SessionID != id {
			t.Fatalf("lane %d: %+v %v", i, next, err)
		}
	}
	attempt := func(data ...event.Data) {
		var events []event.Event
		for _, d := range data {
			events = append(events, draft("ann", id, runs[0], d))
		}
		s.must(command(targets[0].Stream(), events...))
	}
	attempt(&event.DeliveryAttemptStarted{DeliveryID: first[0], Attempt: 1})
	if row, err := s.Delivery(t.Context(), first[0]); err != nil || row.Attempts != 1 || row.Open != 1 || row.Status != "pending" {
		t.Fatalf("%+v %v", row, err)
	}
	attempt(&event.DeliveryAttemptStarted{DeliveryID: first[0], Attempt: 2}, &event.DeliveryDelivered{DeliveryID: first[0], Attempt: 2, Status: 204})
	if row, err := s.Delivery(t.Context(), first[0]); err != nil || row.Attempts != 2 || row.Open != 0 || row.Status != "delivered" || row.LastStatus != 204 {
		t.Fatalf("%+v %v", row, err)
	}
	if next, err := s.NextDelivery(t.Context(), targets[0]); err != nil || next.ID != first[2] {
		t.Fatalf("lane goes on with %+v %v", next, err)
	}
	attempt(&event.DeliveryDelivered{DeliveryID: first[2], Status: 200})
	if got, err := s.PendingTargets(t.Context()); err != nil || !slices.Equal(got, targets[1:]) {
		t.Fatalf("pending %v %v", got, err)
	}
	for _, c := range []struct {
		f    eventlog.DeliveryFilter
		want int
	}{
		{eventlog.DeliveryFilter{}, 4}, {eventlog.DeliveryFilter{Status: "pending"}, 2}, {eventlog.DeliveryFilter{TargetID: targets[0]}, 2},
		{eventlog.DeliveryFilter{RunID: runs[1], TargetID: targets[1]}, 1}, {eventlog.DeliveryFilter{UserID: "ben"}, 0},
		{eventlog.DeliveryFilter{SessionID: id, UserID: "ann"}, 4},
	} {
		rows, _, err := s.Deliveries(t.Context(), c.f, eventlog.Page{Limit: 10})
		if err != nil || len(rows) != c.want {
			t.Errorf("%+v: %d rows, %v", c.f, len(rows), err)
		}
	}
	s.sound()
}

func testTargets(t *testing.T, s *suite) {
	_, err := s.Target(t.Context(), "tgt_none")
	refused(t, err, eventlog.ErrNotFound)
	var targets []event.TargetID
	for i, user := range []string{"ann", "ben", "ann"} {
		id := s.session(user)
		target := event.TargetIDFor(user, "webhook", fmt.Sprint(i))
		targets = append(targets, target)
		enqueue := func() event.DeliveryID {
			d := event.DeliveryIDFor(s.run(user, id), target, 0)
			s.must(command(target.Stream(), draft(user, id, "run_1", &event.DeliveryEnqueued{DeliveryID: d, Type: "webhook"})))
			return d
		}
		d := enqueue()
		switch i {
		case 1: // another one waits behind it
			enqueue()
		case 2:
			s.must(command(target.Stream(), draft(user, id, "run_1", &event.DeliveryDelivered{DeliveryID: d, Status: 200})))
		}
	}
	row, err := s.Target(t.Context(), targets[1])
	if err != nil || row.ID != targets[1] || row.UserID != "ben" || row.Pending != 2 || row.DeadLettered != 0 || row.OldestPending == "" ||
		row.LastStatus != "pending" || row.LastMade < row.OldestPending || row.LastDelivery == "" {
		t.Errorf("%+v %v", row, err)
	}
	if row, err := s.Target(t.Context(), targets[2]); err != nil || row.Pending != 0 || row.OldestPending != "" || row.LastStatus != "delivered" {
		t.Errorf("%+v %v", row, err)
	}
	pick := func(list ...int) (ids []string) {
		for _, i := range list {
			ids = append(ids, string(targets[i]))
		}
		slices.Sort(ids)
		return ids
	}
	for _, c := range []struct {
		f    eventlog.TargetFilter
		want []string
	}{
		{eventlog.TargetFilter{}, pick(0, 1, 2)}, {eventlog.TargetFilter{UserID: "ann"}, pick(0, 2)}, {eventlog.TargetFilter{Status: "pending"}, pick(0, 1)},
		{eventlog.TargetFilter{Status: "dead_lettered"}, nil}, {eventlog.TargetFilter{UserID: "ann", Status: "pending"}, pick(0)},
		{eventlog.TargetFilter{Type: "webhook"}, pick(0, 1, 2)}, {eventlog.TargetFilter{Type: "other"}, nil},
	} {
		for _, limit := range []int{1, 10} {
			got := ids(t, limit, func(p eventlog.Page) ([]string, string, error) {
				rows, next, err := s.Targets(t.Context(), c.f, p)
				return collect(rows, func(r eventlog.TargetRow) string { return string(r.ID) }), next, err
			}, func() {})
			if !slices.Equal(got, c.want) {
				t.Errorf("%+v by %d: %v, want %v", c.f, limit, got, c.want)
			}
		}
	}
}

// A paused target of which the ledger has nothing any more is listed all the same,
// among the others; one that is not paused is not.
func testEmptyTargets(t *testing.T, s *suite) {
	id := s.session("ann")
	var targets []string
	for i := range 8 {
		target := event.TargetIDFor("ann", "webhook", fmt.Sprint(i))
		d := s.enqueue(id, s.run("ann", id), target)
		s.must(command(target.Stream(), draft("ann", id, "run_1", &event.DeliveryDelivered{DeliveryID: d})))
		if i%2 == 0 {
			s.must(command(target.Stream(), draft("ann", "", "", &event.TargetPaused{Actor: "ann", Code: event.PausedByRequest, Reason: "it moves"})))
		}
		if i >= 4 {
			s.must(command(target.Stream(), draft("ann", "", "", &event.DeliveryExpired{Deliveries: []event.DeliveryID{d}})))
		}
		if i < 4 || i%2 == 0 {
			targets = append(targets, string(target))
		}
	}
	slices.Sort(targets)
	for f, want := range map[eventlog.TargetFilter][]string{
		{}: targets, {UserID: "ann", Type: "webhook"}: targets, {UserID: "ben"}: nil, {Type: "file"}: nil, {Status: "pending"}: nil,
	} {
		for _, limit := range []int{1, 2, 100} {
			got := ids(t, limit, func(p eventlog.Page) ([]string, string, error) {
				rows, next, err := s.Targets(t.Context(), f, p)
				for i := range rows {
					if r := &rows[i]; r.UserID != "ann" || r.Type != "webhook" || r.State.ID != r.ID {
						t.Errorf("%+v", r)
					}
				}
				return collect(rows, func(r eventlog.TargetRow) string { return string(r.ID) }), next, err
			}, func() {})
			if !slices.Equal(got, want) {
				t.Errorf("%+v by %d: %v, want %v", f, limit, got, want)
			}
		}
	}
}

// ids pages through a list and gives the ids in its order.
func ids(t *testing.T, limit int, list func(eventlog.Page) ([]string, string, error), between func()) []string {
	t.Helper()
	var all []string
	p := eventlog.Page{Limit: limit}
	for range 1000 {
		items, next, err := list(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, items...)
		if next == "" {
			return all
		}
		if len(items) != limit {
			t.Fatalf("%d items on a page of %d", len(items), limit)
		}
		p.Cursor = next
		between()
	}
	t.Fatal("the list has no end")
	return nil
}

func testCursors(t *testing.T, s *suite) {
	id := s.session("ann")
	target := event.TargetIDFor("ann", "webhook", "a")
	var made []string // runs, newest first
	for range 11 {
		run := s.run("ann", id)
		s.enqueue(id, run, target)
		made = append(made, string(run))
	}
	slices.Reverse(made)
	runs := func(p eventlog.Page) ([]string, string, error) {
		rows, next, err := s.Runs(t.Context(), eventlog.RunFilter{SessionID: id}, p)
		return collect(rows, func(r eventlog.RunRow) string { return string(r.ID) }), next, err
	}
	deliveries := func(p eventlog.Page) ([]string, string, error) {
		rows, next, err := s.Deliveries(t.Context(), eventlog.DeliveryFilter{TargetID: target}, p)
		return collect(rows, func(r eventlog.DeliveryRow) string { return string(r.RunID) }), next, err
	}
	sessions := func(p eventlog.Page) ([]string, string, error) {
		rows, next, err := s.Sessions(t.Context(), eventlog.SessionFilter{UserID: "ann"}, p)
		return collect(rows, func(r eventlog.SessionRow) string { return string(r.ID) }), next, err
	}
	for _, limit := range []int{1, 3, 11, 12} {
		// What is made meanwhile is newer, so it does not show.
		if got := ids(t, limit, runs, func() { s.run("ann", id) }); limit < 11 && !slices.Equal(got[len(got)-11:], made) {
			t.Errorf("runs by %d: %v, want %v", limit, got, made)
		}
		if got := ids(t, limit, deliveries, func() {}); len(got) != 11 || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(made))) {
			t.Errorf("deliveries by %d: %v, want %v", limit, got, made)
		}
	}
	for range 4 {
		s.session("ann")
	}
	if got := ids(t, 2, sessions, func() { s.session("ann") }); len(got) != 5 || got[4] != string(id) {
		t.Errorf("sessions: %v", got)
	}
	_, cursor, err := runs(eventlog.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"x", "!!!", cursor[1:], fmt.Sprint(make([]byte, 4000))} {
		if _, _, err := runs(eventlog.Page{Cursor: bad}); !problem.Is(err, "invalid_cursor") || problem.Of(err).Kind != problem.Invalid {
			t.Errorf("cursor %.20q: %v", bad, err)
		}
	}
	if _, _, err := sessions(eventlog.Page{Cursor: cursor}); !problem.Is(err, "invalid_cursor") {
		t.Errorf("cursor of another list: %v", err)
	}
	for range 200 {
		s.run("ann", id)
	}
	for limit, want := range map[int]int{-5: 50, 0: 50, 7: 7, 100000: 200} {
		if rows, next, err := runs(eventlog.Page{Limit: limit}); err != nil || len(rows) != want || next == "" {
			t.Errorf("limit %d: %d rows, cursor %q, %v", limit, len(rows), next, err)
		}
	}
}

func collect[T any](rows []T, id func(T) string) []string {
	var list []string
	for _, r := range rows {
		list = append(list, id(r))
	}
	return list
}

func testTokens(t *testing.T, s *suite) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 123000, time.UTC)
	first := eventlog.TokenRow{ID: "tok_1", Name: "one", Role: "admin", UserID: "ann", Hash: "h1", CreatedAt: at}
	second := eventlog.TokenRow{ID: "tok_0", Name: "two", Role: "client", Hash: "h2", CreatedAt: at.Add(time.Second), ExpiresAt: at.Add(time.Minute)}
	for _, row := range []eventlog.TokenRow{second, first} {
		if err := s.AddToken(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddToken(t.Context(), eventlog.TokenRow{ID: "tok_2", Hash: "h1", CreatedAt: at}); err == nil {
		t.Error("one hash, two tokens")
	}
	s.stop()
	s.start()
	if got, err := s.TokenByHash(t.Context(), "h1"); err != nil || got != first {
		t.Errorf("%+v %v", got, err)
	}
	_, err := s.TokenByHash(t.Context(), "h3")
	refused(t, err, eventlog.ErrNotFound)
	if got, err := s.ListTokens(t.Context()); err != nil || !slices.Equal(got, []eventlog.TokenRow{first, second}) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := s.TokenByID(t.Context(), "tok_1"); err != nil || got != first {
		t.Errorf("%+v %v", got, err)
	}
	_, err = s.TokenByID(t.Context(), "tok_9")
	refused(t, err, eventlog.ErrNotFound)

	// A use moves forwards only, and passes over what is gone.
	used := at.Add(time.Hour)
	for _, u := range []map[string]time.Time{nil, {"tok_0": used, "tok_9": used}, {"tok_0": used.Add(-time.Minute)}} {
		if err := s.TouchTokens(t.Context(), u); err != nil {
			t.Error(err)
		}
	}
	second.LastUsed = used
	if got, err := s.TokenByHash(t.Context(), "h2"); err != nil || got != second {
		t.Errorf("%+v, want %+v: %v", got, second, err)
	}
	if got, err := s.TokenByID(t.Context(), "tok_1"); err != nil || got != first {
		t.Errorf("%+v %v", got, err)
	}
	if err := s.DeleteToken(t.Context(), "tok_1"); err != nil {
		t.Error(err)
	}
	refused(t, s.DeleteToken(t.Context(), "tok_1"), eventlog.ErrNotFound)
	_, err = s.TokenByHash(t.Context(), "h1")
	refused(t, err, eventlog.ErrNotFound)
}

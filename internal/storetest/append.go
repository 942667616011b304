package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

func testAppendRead(t *testing.T, s *suite) {
	id := s.session("ann")
	run := newID(t, event.NewRunID)
	text := draft("ann", id, run, textEnded("hello ‰ <b>"))
	text.Turn, text.StepID, text.FSMState, text.AgentID = 2, "step_1", "Reasoning", "main"
	text.CausedBy = event.IDOf(id.Stream(), 1)
	before := time.Now().Add(-time.Minute)
	stamps := s.must(command(id.Stream(), draft("ann", id, run, runCreated("hello")), text, draft("ann", id, run, &event.RunCompleted{})))
	if len(stamps) != 1 || stamps[0].Stream != id.Stream() || stamps[0].Head != 4 || len(stamps[0].Events) != 3 {
		t.Fatalf("stamps %+v", stamps)
	}
	all := s.readAll(id.Stream())
	if len(all) != 4 {
		t.Fatalf("%d events", len(all))
	}
	for i, stamped := range stamps[0].Events {
		read := all[i+1]
		if read.Data != nil {
			t.Error("a read event has Data")
		}
		// What the appender is told is what a reader sees, to the byte.
		if got, want := string(read.AppendWire(nil)), string(stamped.AppendWire(nil)); got != want {
			t.Errorf("read    %s\nstamped %s", got, want)
		}
		if err := read.Decode(); err != nil {
			t.Error(err)
		}
	}
	if at := all[1].Time; at.Before(before) || at.After(time.Now().Add(time.Minute)) || at.Location() != time.UTC {
		t.Errorf("time %v", at)
	}
	if h := s.head("session:none"); h != (eventlog.Head{}) {
		t.Errorf("head of nothing is %+v", h)
	}
	if events, err := s.Read(t.Context(), "session:none", 0, 10); err != nil || len(events) != 0 {
		t.Errorf("read of nothing: %v %v", events, err)
	}
	s.sound()
}

// I-01
func testConcurrent(t *testing.T, s *suite) {
	const appenders, each = 32, 12
	ids := []event.SessionID{s.session("ann"), s.session("ben"), s.session("ann")}
	users := []string{"ann", "ben", "ann"}
	ctx := within(t)
	var stop atomic.Bool
	reader := make(chan error, 1)
	go func() { reader <- s.watchFeed(ctx, &stop) }()
	err := inParallel(appenders, func(i int) error {
		for n := range each {
			k := (i + n) % len(ids)
			events := make([]event.Event, 1+n%3)
			for j := range events {
				events[j] = draft(users[k], ids[k], "", textEnded(fmt.Sprintf("%d %d %d", i, n, j)))
			}
			stamps, err := s.Append(ctx, command(ids[k].Stream(), events...))
			if err != nil {
				return err
			}
			if got := stamps[0].Events; got[len(got)-1].Seq != stamps[0].Head || got[0].Seq != stamps[0].Head-int64(len(got))+1 {
				return fmt.Errorf("stamp %+v", stamps[0])
			}
		}
		return nil
	})
	stop.Store(true)
	if err := errors.Join(err, <-reader); err != nil {
		t.Fatal(err)
	}
	total := 0
	seen := make(map[string]bool)
	for _, id := range ids {
		for _, e := range s.readAll(id.Stream()) {
			total++
			seen[string(e.Raw)] = true
		}
	}
	want := len(ids)
	for n := range each {
		want += appenders * (1 + n%3)
	}
	if total != want || len(seen) < want-len(ids)+1 {
		t.Fatalf("%d events, %d different; want %d", total, len(seen), want)
	}
	s.sound()
}

// watchFeed follows the feed while others append: whatever it sees must be
// gap-free in each stream.
func (s *suite) watchFeed(ctx context.Context, stop *atomic.Bool) error {
	heads := make(map[event.Stream]int64)
	var at eventlog.Position
	for {
		last := stop.Load()
		items, next, err := s.Feed(ctx, at, 50, eventlog.FeedFilter{})
		if err != nil {
			return err
		}
		for _, p := range items {
			if p.Event.Seq != heads[p.Event.Stream]+1 {
				return fmt.Errorf("feed: %s#%d after %d", p.Event.Stream, p.Event.Seq, heads[p.Event.Stream])
			}
			heads[p.Event.Stream]++
		}
		if last && next == at {
			return nil
		}
		at = next
	}
}

// Events of several sessions go behind each other into one stream by one append.
func testFollows(t *testing.T, s *suite) {
	a, b := s.session("ann"), s.session("ben")
	target := event.TargetIDFor("ann", "webhook", "a")
	x, y := s.enqueue(a, s.run("ann", a), target), s.enqueue(b, s.run("ben", b), target)
	one := event.Event{SessionID: a, UserID: "ann", RunID: "run_1", Data: &event.DeliveryDelivered{DeliveryID: x, Status: 200}}
	two := event.Event{SessionID: b, UserID: "ben", RunID: "run_2", Data: &event.DeliveryAttemptStarted{DeliveryID: y, Attempt: 1}}
	entries := []eventlog.Entry{
		{Stream: target.Stream(), Expect: eventlog.AnyHead, Claim: true, Events: []event.Event{one}}, {Stream: target.Stream(), Expect: eventlog.AnyHead, Follows: true, Events: []event.Event{two, two}},
	}
	stamps, err := s.Append(t.Context(), eventlog.Append{Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	if len(stamps) != 2 || stamps[0].Head != 3 || stamps[1].Head != 5 || stamps[0].Epoch != 1 || stamps[1].Epoch != 1 {
		t.Errorf("%+v", stamps)
	}
	events, err := s.Read(t.Context(), target.Stream(), 2, 10)
	if err != nil || len(events) != 3 || events[0].SessionID != a || events[1].SessionID != b || events[2].UserID != "ben" || events[2].Epoch != 1 {
		t.Errorf("%+v %v", events, err)
	}
	if row, err := s.Delivery(t.Context(), y); err != nil || row.Attempts != 2 {
		t.Errorf("%+v %v", row, err)
	}
	// One refused condition refuses all of it.
	bad := eventlog.Append{Entries: slices.Clone(entries), Require: []eventlog.Condition{{Table: derived.Outbox, Where: []derived.Col{{Name: "target_id", Value: string(target)}}, Absent: true}}}
	if _, err := s.Append(t.Context(), bad); err == nil || s.head(target.Stream()).Seq != 5 {
		t.Errorf("%v, head %d", err, s.head(target.Stream()).Seq)
	}
	first, owned, elsewhere := slices.Clone(entries)[1:], slices.Clone(entries), slices.Clone(entries)
	owned[1].Node = "n"
	elsewhere[0].Stream = a.Stream()
	for name, list := range map[string][]eventlog.Entry{"nothing before it": first, "says more": owned, "another stream before it": elsewhere} {
		var malformed *eventlog.MalformedError
		if _, err := s.Append(t.Context(), eventlog.Append{Entries: list}); !errors.As(err, &malformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.must(command(target.Stream(), one))
	s.sound()
}

// I-02
func testTwoStreams(t *testing.T, s *suite) {
	id := s.session("ann")
	run := s.run("ann", id)
	target := event.TargetIDFor("ann", "webhook", "https://example.com")
	both := func(expect int64) eventlog.Append {
		return eventlog.Append{
			Entries: []eventlog.Entry{
				{Stream: id.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{draft("ann", id, run, &event.OutputEmitted{OutputKind: event.OutputText})}},
				{Stream: target.Stream(), Expect: expect, Events: []event.Event{draft("ann", id, run,
					&event.DeliveryEnqueued{DeliveryID: event.DeliveryIDFor(run, target, 0), Type: "webhook", Body: event.RefOf([]byte("body"))})}},
			},
			Blobs: []event.Blob{event.NewBlob(id, event.BlobDelivery, []byte("body"))},
		}
	}
	_, err := s.Append(t.Context(), both(5))
	refused(t, err, eventlog.ErrHeadMoved)
	if s.head(id.Stream()).Seq != 2 || s.head(target.Stream()).Seq != 0 {
		t.Fatal("a refused append left events")
	}
	if _, _, err := s.Blob(t.Context(), id, event.RefOf([]byte("body"))); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatalf("a refused append left its blob: %v", err)
	}
	if r, err := s.Run(t.Context(), run); err != nil || r.OutputSeq != 0 {
		t.Fatalf("a refused append left its rows: %+v %v", r, err)
	}
	stamps := s.must(both(0))
	if len(stamps) != 2 || stamps[0].Head != 3 || stamps[1].Head != 1 {
		t.Fatalf("stamps %+v", stamps)
	}
	if r, err := s.Run(t.Context(), run); err != nil || r.OutputSeq != 3 {
		t.Fatalf("run %+v %v", r, err)
	}
	s.sound()
}

func testHeadMoved(t *testing.T, s *suite) {
	id := s.session("ann")
	e := draft("ann", id, "", textEnded("x"))
	for _, expect := range []int64{0, 2} {
		_, err := s.Append(t.Context(), owned(id.Stream(), expect, 0, e))
		refused(t, err, eventlog.ErrHeadMoved)
	}
	s.must(owned(id.Stream(), 1, 0, e))
	// Of many that expect the same head one gets it.
	var won atomic.Int32
	err := inParallel(16, func(int) error {
		_, err := s.Append(within(t), owned(id.Stream(), 2, 0, e))
		if err == nil {
			won.Add(1)
		} else if !errors.Is(err, eventlog.ErrHeadMoved) {
			return err
		}
		return nil
	})
	if err != nil || won.Load() != 1 {
		t.Fatalf("%d appends won, %v", won.Load(), err)
	}
	if n := len(s.readAll(id.Stream())); n != 3 {
		t.Fatalf("%d events", n)
	}
}

// I-11 I-15
func testFence(t *testing.T, s *suite) {
	id := s.session("ann")
	claim := func(expect, epoch int64) ([]eventlog.Stamp, error) {
		return s.Append(t.Context(), eventlog.Append{Entries: []eventlog.Entry{{Stream: id.Stream(), Expect: expect, Epoch: epoch, Claim: true,
			Events: []event.Event{draft("ann", id, "", &event.OwnerClaimed{Owner: "node"})}}}})
	}
	stamps, err := claim(eventlog.AnyHead, 0)
	if err != nil || stamps[0].Epoch != 1 || stamps[0].Events[0].Epoch != 1 {
		t.Fatalf("first claim: %+v %v", stamps, err)
	}
	text := draft("ann", id, "", textEnded("x"))
	s.must(owned(id.Stream(), 2, 1, text))
	_, err = claim(3, 7)
	refused(t, err, eventlog.ErrFenced)
	if stamps, err = claim(3, 1); err != nil || stamps[0].Epoch != 2 {
		t.Fatalf("second claim: %+v %v", stamps, err)
	}
	// The former owner, also when its head is right; and the fence is named
	// first when both are wrong.
	for _, expect := range []int64{4, 1} {
		_, err = s.Append(t.Context(), owned(id.Stream(), expect, 1, text))
		refused(t, err, eventlog.ErrFenced)
	}
	_, err = claim(4, 1)
	refused(t, err, eventlog.ErrFenced)
	if stamps := s.must(command(id.Stream(), text)); stamps[0].Epoch != 2 {
		t.Fatalf("a command was stamped with epoch %d", stamps[0].Epoch)
	}
	if h := s.head(id.Stream()); h.Epoch != 2 || h.Seq != 5 {
		t.Fatalf("head %+v", h)
	}
	last := int64(0)
	for _, e := range s.readAll(id.Stream()) {
		if e.Epoch < last {
			t.Fatalf("epoch fell to %d at %d", e.Epoch, e.Seq)
		}
		last = e.Epoch
	}
	s.sound()
}

func testConditions(t *testing.T, s *suite) {
	id := s.session("ann")
	run := s.run("ann", id)
	where := []derived.Col{{Name: "session_id", Value: string(id)}}
	queued := append(where[:1:1], derived.Col{Name: "status", Value: "queued"})
	none := []derived.Col{{Name: "session_id", Value: "ses_none"}}
	for _, c := range []struct {
		name  string
		cond  eventlog.Condition
		holds bool
		found any
	}{
		{"text", eventlog.Condition{Table: derived.Sessions, Where: where, Column: "status", In: []any{"closed", "open"}}, true, nil},
		{"other text", eventlog.Condition{Table: derived.Sessions, Where: where, Column: "status", In: []any{"closed"}}, false, "open"},
		{"number", eventlog.Condition{Table: derived.Sessions, Where: where, Column: "settings_version", In: []any{int64(1)}}, true, nil},
		{"other number", eventlog.Condition{Table: derived.Sessions, Where: where, Column: "settings_version", In: []any{int64(2)}}, false, int64(1)},
		{"no row", eventlog.Condition{Table: derived.Sessions, Where: none, Column: "status", In: []any{"open"}}, false, nil},
		{"absent", eventlog.Condition{Table: derived.Sessions, Where: none, Absent: true}, true, nil},
		{"not absent", eventlog.Condition{Table: derived.Queue, Where: queued, Absent: true, Column: "run_id"}, false, string(run)},
		{"part of a key and a column", eventlog.Condition{Table: derived.Queue, Where: queued, Column: "run_id", In: []any{string(run)}}, true, nil},
	} {
		before := s.head(id.Stream()).Seq
		a := command(id.Stream(), draft("ann", id, "", textEnded("x")))
		a.Require = []eventlog.Condition{{Table: derived.Runs, Where: where, Column: "status", In: []any{"queued"}}, c.cond}
		_, err := s.Append(t.Context(), a)
		var failed *eventlog.ConditionError
		switch {
		case c.holds && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !c.holds && !errors.As(err, &failed):
			t.Errorf("%s: got %v", c.name, err)
		case !c.holds && (failed.Index != 1 || failed.Found != c.found || s.head(id.Stream()).Seq != before):
			t.Errorf("%s: index %d, found %v", c.name, failed.Index, failed.Found)
		}
	}
	// Two that would both break a condition for the other: one wins.
	var won atomic.Int32
	err := inParallel(8, func(int) error {
		a := command(id.Stream(), draft("ann", id, "", &event.SessionClosed{}))
		a.Require = []eventlog.Condition{{Table: derived.Sessions, Where: where, Column: "status", In: []any{"open"}}}
		_, err := s.Append(within(t), a)
		if err == nil {
			won.Add(1)
		} else if failed := (*eventlog.ConditionError)(nil); !errors.As(err, &failed) || failed.Found != "closed" {
			return err
		}
		return nil
	})
	if err != nil || won.Load() != 1 {
		t.Fatalf("%d appends closed the session, %v", won.Load(), err)
	}
	s.sound()
}

// I-07
func testDuplicates(t *testing.T, s *suite) {
	id := s.session("ann")
	hash := sha256.Sum256([]byte("key"))
	key := hex.EncodeToString(hash[:])
	const n = 20
	runs := make([]event.RunID, n)
	for i := range runs {
		runs[i] = newID(t, event.NewRunID)
	}
	var won, winner atomic.Int32
	err := inParallel(n, func(i int) error {
		d := runCreated("hello")
		d.Idempotency = &event.IdempotencyKey{Fingerprint: "f", KeyHash: key, Operation: "submit"}
		_, err := s.Append(within(t), command(id.Stream(), draft("ann", id, runs[i], d)))
		if err == nil {
			won.Add(1)
			winner.Store(int32(i))
			return nil
		}
		if dup := (*eventlog.DuplicateError)(nil); !errors.As(err, &dup) || dup.Table != derived.Idempotency || len(dup.Key) != 3 {
			return fmt.Errorf("refused with %w", err)
		}
		// Who is refused finds the winner.
		if row, err := s.Idempotency(t.Context(), id, "submit", key); err != nil || row.RunID == "" || row.Fingerprint != "f" {
			return fmt.Errorf("after a refusal: %+v %w", row, err)
		}
		return nil
	})
	if err != nil || won.Load() != 1 {
		t.Fatalf("%d of %d equal keys committed, %v", won.Load(), n, err)
	}
	row, err := s.Idempotency(t.Context(), id, "submit", key)
	if err != nil || row.RunID != runs[winner.Load()] {
		t.Fatalf("key leads to %+v %v", row, err)
	}
	if all := s.readAll(id.Stream()); len(all) != 2 {
		t.Fatalf("%d events", len(all))
	}
	_, err = s.Idempotency(t.Context(), id, "submit", "other")
	refused(t, err, eventlog.ErrNotFound)
	s.sound()
}

// I-13
func testToolStarts(t *testing.T, s *suite) {
	id := s.session("ann")
	run := s.run("ann", id)
	start := func(call event.CallID) event.Event {
		e := draft("ann", id, run, &event.ToolStarted{Level: "write", Name: "pay"})
		e.CallID = call
		return e
	}
	s.must(command(id.Stream(), start("call_1")))
	dup := (*eventlog.DuplicateError)(nil)
	if _, err := s.Append(t.Context(), command(id.Stream(), start("call_1"))); !errors.As(err, &dup) || dup.Table != derived.ToolStarts {
		t.Fatalf("a call started twice: %v", err)
	}
	if _, err := s.Append(t.Context(), command(id.Stream(), start("call_2"), start("call_2"))); !errors.As(err, &dup) {
		t.Fatalf("a call started twice in one append: %v", err)
	}
	other := s.session("ann")
	e := start("call_1")
	e.SessionID = other
	s.must(command(other.Stream(), e))
	s.must(command(id.Stream(), start("call_2")))
	s.sound()
}

func testGuardedFreed(t *testing.T, s *suite) {
	id := newID(t, event.NewSessionID)
	s.must(command(id.Stream(), draft("ann", id, "", &event.SessionCreated{Alias: "home"})))
	second := newID(t, event.NewSessionID)
	_, err := s.Append(t.Context(), command(second.Stream(), draft("ann", second, "", &event.SessionCreated{Alias: "home"})))
	if dup := (*eventlog.DuplicateError)(nil); !errors.As(err, &dup) || dup.Table != derived.Aliases {
		t.Fatalf("an alias was taken twice: %v", err)
	}
	other := s.session("ann")
	s.must(command(other.Stream(), draft("ann", other, "", &event.SessionUpdated{Changed: []string{"home"}})))
	if got, err := s.SessionByAlias(t.Context(), "ann", "home"); err != nil || got != other {
		t.Fatalf("alias leads to %v %v", got, err)
	}
	_, err = s.SessionByAlias(t.Context(), "ben", "home")
	refused(t, err, eventlog.ErrNotFound)
	s.sound()
}

func testBadAlone(t *testing.T, s *suite) {
	id := s.session("ann")
	run := s.run("ann", id)
	const n = 48
	err := inParallel(n, func(i int) error {
		var a eventlog.Append
		switch i % 8 {
		case 3: // its rows exist, in a table that is not guarded
			a = command(id.Stream(), draft("ann", id, run, runCreated("again")))
			a.Blobs = []event.Blob{event.NewBlob(id, event.BlobContent, []byte("of a bad append"))}
		case 6: // its rows cannot be computed
			d := runCreated("x")
			d.Kind = kindPanic
			a = command(id.Stream(), draft("ann", id, run, d))
		default:
			a = command(id.Stream(), draft("ann", id, run, textEnded(fmt.Sprint(i))))
		}
		_, err := s.Append(within(t), a)
		if bad := i%8 == 3 || i%8 == 6; bad != (err != nil) || bad && eventlog.Refusal(err) == "" {
			return fmt.Errorf("append %d: %w", i, errors.Join(err, fmt.Errorf("bad: %v", bad)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if all := s.readAll(id.Stream()); len(all) != 2+n*6/8 {
		t.Fatalf("%d events", len(all))
	}
	if _, _, err := s.Blob(t.Context(), id, event.RefOf([]byte("of a bad append"))); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatalf("blob of a bad append: %v", err)
	}
	s.sound()
}

func testMalformed(t *testing.T, s *suite) {
	id := s.session("ann")
	e := draft("ann", id, "", textEnded("x"))
	twice := command(id.Stream(), e)
	twice.Entries = append(twice.Entries, twice.Entries[0])
	odd := command(id.Stream(), e)
	odd.Require = []eventlog.Condition{{Table: derived.Sessions, Where: []derived.Col{{Name: "1=1 --", Value: "x"}}, Absent: true}}
	unwritable := command(id.Stream(), draft("ann", id, "", &event.TextEnded{Content: event.Content{Text: "\xff"}}))
	for name, a := range map[string]eventlog.Append{
		"no UTF-8":           unwritable,
		"nothing":            {},
		"no events":          command(id.Stream()),
		"no stream":          command("", e),
		"too many events":    command(id.Stream(), slices.Repeat([]event.Event{e}, eventlog.MaxEvents+1)...),
		"one stream twice":   twice,
		"no column of ours":  odd,
		"condition on a row": {Entries: command(id.Stream(), e).Entries, Require: []eventlog.Condition{{Table: "log"}}},
	} {
		if _, err := s.Append(t.Context(), a); err == nil || eventlog.Refusal(err) == "" {
			t.Errorf("%s: %v is no refusal for good", name, err)
		}
	}
	if s.head(id.Stream()).Seq != 1 {
		t.Fatal("a refused append left events")
	}
	s.must(command(id.Stream(), slices.Repeat([]event.Event{e}, eventlog.MaxEvents)...))
	events, err := s.Read(t.Context(), id.Stream(), 0, 2*eventlog.MaxEvents)
	if err != nil || len(events) != eventlog.MaxEvents+1 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	feed, _, err := s.Feed(t.Context(), 0, 2*eventlog.MaxEvents, eventlog.FeedFilter{})
	if err != nil || len(feed) != eventlog.MaxEvents+1 {
		t.Fatalf("%d events in the feed, %v", len(feed), err)
	}
	if rest, _ := s.feedAll(feed[4000].Position, 50, eventlog.FeedFilter{}); len(rest) != len(feed)-4001 {
		t.Fatalf("%d events after the 4001st of the feed", len(rest))
	}
}

func testContext(t *testing.T, s *suite) {
	id := s.session("ann")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Append(ctx, command(id.Stream(), draft("ann", id, "", textEnded("x"))))
	refused(t, err, context.Canceled)
	if now, err := s.Now(t.Context()); err != nil || time.Since(now).Abs() > time.Minute {
		t.Fatalf("now: %v %v", now, err)
	}
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("y"))))
	s.sound()
}

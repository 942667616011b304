package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/derived"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// rowsOfMany appends rows of several sizes to a new session.
func (s *suite) rowsOfMany(user string, sizes ...int) event.SessionID {
	s.t.Helper()
	id := s.session(user)
	for _, n := range sizes {
		events := make([]event.Event, n)
		for i := range events {
			if i%2 == 0 {
				events[i] = draft(user, id, "", textEnded(fmt.Sprint(n, i)))
			} else {
				events[i] = draft(user, id, "", &event.StateEntered{From: "Idle"})
			}
		}
		s.must(command(id.Stream(), events...))
	}
	return id
}

// I-18
func testReadAnywhere(t *testing.T, s *suite) {
	id := s.rowsOfMany("ann", 1, 5, 2, 9, 1)
	s.rowsOfMany("ann", 3)
	all := s.readAll(id.Stream())
	for after := int64(-1); after <= int64(len(all))+2; after++ {
		for _, limit := range []int{0, 1, 2, 4, 100} {
			events, err := s.Read(t.Context(), id.Stream(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			from := min(max(int(after), 0), len(all))
			want := all[from:min(from+limit, len(all))]
			if len(events) != len(want) {
				t.Fatalf("read after %d, limit %d: %d events, want %d", after, limit, len(events), len(want))
			}
			for i := range events {
				if events[i].Seq != want[i].Seq || events[i].Hash != want[i].Hash || !bytes.Equal(events[i].Raw, want[i].Raw) {
					t.Fatalf("read after %d, limit %d: event %d differs", after, limit, i)
				}
			}
		}
	}
}

// facts asks until it has all.
func (s *suite) facts(places []eventlog.Place) (list []event.Event) {
	s.t.Helper()
	for len(list) < len(places) {
		some, err := s.Facts(s.t.Context(), places[len(list):])
		if err != nil || len(some) == 0 || len(list)+len(some) > len(places) {
			s.t.Fatalf("%d events of %d places, %v", len(some), len(places)-len(list), err)
		}
		list = append(list, some...)
	}
	return list
}

// What is asked for at once does not come at once where it is large.
func testLargeFacts(t *testing.T, s *suite) {
	id := s.session("ann")
	const n, size = 24, 400_000
	var places []eventlog.Place
	for i := range n {
		s.must(command(id.Stream(), draft("ann", id, "", textEnded("small")), draft("ann", id, "", textEnded(strings.Repeat(fmt.Sprint(i%10), size)))))
		places = append(places, eventlog.Place{Stream: id.Stream(), Seq: int64(2*i + 3)})
	}
	s.stop()
	s.start()
	first, err := s.Facts(t.Context(), places)
	if err != nil || len(first) == 0 || len(first) > 4 { // the bound is 1 MiB, and an event passes it
		t.Fatalf("%d events of %d bytes at once, %v", len(first), size, err)
	}
	for i, e := range s.facts(places) {
		if e.Seq != places[i].Seq || len(e.Raw) < size {
			t.Fatalf("event %d is %d, of %d bytes", places[i].Seq, e.Seq, len(e.Raw))
		}
	}
	// Where the answer ends early nothing is said yet of a place behind its end.
	events, err := s.Facts(t.Context(), append(slices.Clone(places), eventlog.Place{Stream: id.Stream(), Seq: 1 << 40}))
	if err != nil || len(events) > 4 {
		t.Fatalf("%d events at once, %v", len(events), err)
	}
	_, err = s.Facts(t.Context(), []eventlog.Place{places[0], {Stream: id.Stream(), Seq: 1 << 40}})
	refused(t, err, eventlog.ErrNotFound)
}

// Events are found by their places, in whatever order these are asked for, in
// memory and behind it, and erased ones without their content.
func testFacts(t *testing.T, s *suite) {
	ids := []event.SessionID{s.rowsOfMany("ann", 1, 5, 2, 9, 1), s.rowsOfMany("bob", 3, 300), s.session("eve")}
	at := map[eventlog.Place]event.Event{}
	look := func(when string) {
		t.Helper()
		var places []eventlog.Place
		for p := range at {
			places = append(places, p, p)
		}
		for some := range slices.Chunk(places, eventlog.MaxFacts) {
			events := s.facts(some)
			for i, p := range some {
				if want := at[p]; events[i].Stream != p.Stream || events[i].Seq != p.Seq || events[i].Hash != want.Hash || !bytes.Equal(events[i].Raw, want.Raw) {
					t.Fatalf("%s: event %d of %s differs", when, p.Seq, p.Stream)
				}
			}
		}
	}
	fill := func() {
		for _, id := range ids {
			for _, e := range s.readAll(id.Stream()) {
				at[eventlog.Place{Stream: e.Stream, Seq: e.Seq}] = e
			}
		}
	}
	fill()
	look("at once")
	s.stop()
	s.start()
	look("after a start")
	s.must(command(ids[0].Stream(), draft("ann", ids[0], "", textEnded("now in memory"))))
	fill()
	look("in part from memory")
	head := int64(len(s.readAll(ids[0].Stream())))
	for _, p := range []eventlog.Place{{Stream: ids[0].Stream(), Seq: head + 1}, {Stream: ids[0].Stream()}, {Stream: "session:none", Seq: 1}} {
		_, err := s.Facts(t.Context(), []eventlog.Place{{Stream: ids[1].Stream(), Seq: 1}, p})
		refused(t, err, eventlog.ErrNotFound)
	}
	if events, err := s.Facts(t.Context(), nil); err != nil || len(events) != 0 {
		t.Fatalf("no places: %v, %v", events, err)
	}
	if _, err := s.Facts(t.Context(), make([]eventlog.Place, eventlog.MaxFacts+1)); err == nil {
		t.Fatal("more places than the bound were taken")
	}
	s.must(erasing("eve", ids[2]))
	events, err := s.Facts(t.Context(), []eventlog.Place{{Stream: ids[2].Stream(), Seq: 1}})
	if err != nil || !events[0].Erased() || events[0].Hash != at[eventlog.Place{Stream: ids[2].Stream(), Seq: 1}].Hash {
		t.Fatalf("of an erased session: %+v, %v", events, err)
	}
	s.stop()
	_, err = s.Facts(t.Context(), []eventlog.Place{{Stream: ids[0].Stream(), Seq: 1}})
	refused(t, err, eventlog.ErrClosed)
	s.start()
}

// Large events come in several answers, and all of them; Read gives what it is
// asked for all the same.
func testBounded(t *testing.T, s *suite) {
	id := s.session("ann")
	const n, size = 24, 400_000
	for i := range n {
		s.must(command(id.Stream(), draft("ann", id, "", textEnded(strings.Repeat(fmt.Sprint(i%10), size))),
			draft("ann", id, "", textEnded("small"))))
	}
	if events, err := s.Read(t.Context(), id.Stream(), 0, 1000); err != nil || len(events) != 2*n+1 {
		t.Fatalf("read: %d events, %v", len(events), err)
	}
	seen, calls := int64(0), 0
	for ; ; calls++ {
		events, err := s.ReadBounded(t.Context(), id.Stream(), seen, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if seen++; e.Seq != seen {
				t.Fatalf("event %d after %d", e.Seq, seen-1)
			}
		}
	}
	if seen != 2*n+1 || calls < 2 {
		t.Errorf("%d events in %d bounded reads", seen, calls)
	}
	if events, err := s.ReadBounded(t.Context(), id.Stream(), 0, 2); err != nil || len(events) != 2 {
		t.Errorf("bounded by count: %d events, %v", len(events), err)
	}
	items, next, err := s.Feed(t.Context(), 0, 1000, eventlog.FeedFilter{})
	if err != nil || len(items) == 0 || len(items) == 2*n+1 || next != items[len(items)-1].Position {
		t.Errorf("feed: %d events in one call to %d, %v", len(items), next, err)
	}
	if all, _ := s.feedAll(0, 1000, eventlog.FeedFilter{}); len(all) != 2*n+1 {
		t.Errorf("feed: %d events", len(all))
	}
}

// feedAll reads the feed from a position in steps.
func (s *suite) feedAll(after eventlog.Position, step int, f eventlog.FeedFilter) ([]eventlog.Positioned, eventlog.Position) {
	s.t.Helper()
	var all []eventlog.Positioned
	for {
		items, next, err := s.Feed(s.t.Context(), after, step, f)
		if err != nil {
			s.t.Fatalf("feed: %v", err)
		}
		if next < after || len(items) > step || len(items) > 0 && items[len(items)-1].Position > next {
			s.t.Fatalf("feed after %d: %d items, then %d", after, len(items), next)
		}
		all = append(all, items...)
		if next == after {
			return all, after
		}
		after = next
	}
}

func testFeed(t *testing.T, s *suite) {
	if items, next, err := s.Feed(t.Context(), 0, 10, eventlog.FeedFilter{}); err != nil || len(items) != 0 || next != 0 {
		t.Fatalf("feed of an empty log: %v %d %v", items, next, err)
	}
	a := s.rowsOfMany("ann", 3, 1, 4)
	b := s.rowsOfMany("ben", 2)
	s.must(eventlog.Append{Entries: []eventlog.Entry{
		{Stream: b.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{draft("ben", b, "", textEnded("both"))}},
		{Stream: a.Stream(), Expect: eventlog.AnyHead, Events: []event.Event{draft("ann", a, "", textEnded("both"))}},
	}})
	all, end := s.feedAll(0, 1000, eventlog.FeedFilter{})
	if len(all) != 14 {
		t.Fatalf("%d events", len(all))
	}
	heads := make(map[event.Stream]int64)
	for i, p := range all {
		if i > 0 && p.Position <= all[i-1].Position {
			t.Fatalf("position %d after %d", p.Position, all[i-1].Position)
		}
		heads[p.Event.Stream]++
		if p.Event.Seq != heads[p.Event.Stream] {
			t.Fatalf("%s#%d out of order", p.Event.Stream, p.Event.Seq)
		}
	}
	for i, p := range all {
		for _, step := range []int{1, 3, 1000} {
			rest, last := s.feedAll(p.Position, step, eventlog.FeedFilter{})
			if len(rest) != len(all)-i-1 || last != end {
				t.Fatalf("after item %d by %d: %d items to %d, want %d to %d", i, step, len(rest), last, len(all)-i-1, end)
			}
			for j := range rest {
				if rest[j].Position != all[i+1+j].Position || rest[j].Event.Hash != all[i+1+j].Event.Hash {
					t.Fatalf("after item %d by %d: item %d differs", i, step, j)
				}
			}
		}
	}
}

func testFeedFilters(t *testing.T, s *suite) {
	for range 3 {
		s.rowsOfMany("ann", 5, 1)
		s.rowsOfMany("ben", 4)
	}
	all, end := s.feedAll(0, 1000, eventlog.FeedFilter{})
	some := all[len(all)/2].Event
	for _, f := range []eventlog.FeedFilter{
		{UserID: "ann"}, {UserID: "ben", Types: []event.Type{event.TypeTextEnded}}, {Types: []event.Type{event.TypeStateEntered}},
		{Types: []event.Type{event.TypeSessionCreated, event.TypeStateEntered}}, {UserID: "nobody"}, {Types: []event.Type{event.TypeRunFailed}},
		{Types: []event.Type{"text"}}, {SessionID: some.SessionID}, {SessionID: "ses_none"}, {RunID: some.RunID}, {RunID: "run_none"},
		{Since: some.Time}, {Since: all[len(all)-1].Event.Time.Add(time.Nanosecond)}, {UserID: "ann", SessionID: some.SessionID, Since: some.Time},
	} {
		want := slices.DeleteFunc(slices.Clone(all), func(p eventlog.Positioned) bool {
			e := p.Event
			return f.UserID != "" && e.UserID != f.UserID || len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) ||
				f.SessionID != "" && e.SessionID != f.SessionID || f.RunID != "" && e.RunID != f.RunID || e.Time.Before(f.Since)
		})
		for _, step := range []int{1, 2, 1000} {
			got, last := s.feedAll(0, step, f)
			if len(got) != len(want) {
				t.Fatalf("%+v by %d: %d items, want %d", f, step, len(got), len(want))
			}
			for i := range got {
				if got[i].Position != want[i].Position {
					t.Fatalf("%+v by %d: item %d at %d, want %d", f, step, i, got[i].Position, want[i].Position)
				}
			}
			if last != end {
				t.Fatalf("%+v by %d: ends at %d, the log at %d", f, step, last, end)
			}
		}
	}
	// A feed with an end stops before it, and stays there.
	for _, step := range []int{1, 1000} {
		got, last := s.feedAll(0, step, eventlog.FeedFilter{Until: some.Time})
		n := slices.IndexFunc(all, func(p eventlog.Positioned) bool { return !p.Event.Time.Before(some.Time) })
		if len(got) != n || n == 0 || last >= all[n].Position || last < all[n-1].Position {
			t.Fatalf("until %v by %d: %d items to %d, want %d", some.Time, step, len(got), last, n)
		}
	}
}

func testBlobs(t *testing.T, s *suite) {
	id, other := s.session("ann"), s.session("ann")
	long := strings.Repeat("long ", event.InlineLimit)
	for range 2 {
		drafts := []event.Event{draft("ann", id, "", textEnded(long)), draft("ann", id, "", textEnded(long))}
		a := command(id.Stream(), drafts...)
		a.Blobs = event.Externalize(id, drafts)
		s.must(a)
	}
	empty := command(id.Stream(), draft("ann", id, "", &event.ReasoningEnded{State: event.RefOf(nil)}))
	empty.Blobs = []event.Blob{event.NewBlob(id, event.BlobSealed, nil)}
	s.must(empty)
	if data, kind, err := s.Blob(t.Context(), id, event.RefOf(nil)); err != nil || len(data) != 0 || kind != event.BlobSealed {
		t.Fatalf("blob of no bytes: %d bytes, %s, %v", len(data), kind, err)
	}
	ref := event.RefOf([]byte(long))
	data, kind, err := s.Blob(t.Context(), id, ref)
	if err != nil || string(data) != long || kind != event.BlobContent {
		t.Fatalf("blob: %d bytes, %s, %v", len(data), kind, err)
	}
	_, _, err = s.Blob(t.Context(), other, ref)
	refused(t, err, eventlog.ErrNotFound)
	_, _, err = s.Blob(t.Context(), "ses_none", ref)
	refused(t, err, eventlog.ErrNotFound)
	if raw := s.readAll(id.Stream())[1].Raw; len(raw) > 1024 || !bytes.Contains(raw, []byte(ref)) {
		t.Fatalf("the event holds %d bytes", len(raw))
	}
	s.sound()
}

// erasing is the append that erases a session.
func erasing(user string, id event.SessionID) eventlog.Append {
	a := command(id.Stream(), draft(user, id, "", &event.SessionErased{Actor: "ann"}))
	a.Erase = id
	return a
}

// I-03 I-04
func testErase(t *testing.T, s *suite) {
	id, other := s.session("ann"), s.session("ann")
	for _, ses := range []event.SessionID{id, other} {
		b := event.NewBlob(ses, event.BlobContent, []byte("a secret"))
		a := command(ses.Stream(), draft("ann", ses, newID(t, event.NewRunID), runCreated("a secret")),
			draft("ann", ses, "", &event.TextEnded{Content: event.Content{Ref: b.Ref, Bytes: len(b.Bytes)}}))
		a.Blobs = []event.Blob{b}
		s.must(a)
		for i := range 200 {
			s.must(command(ses.Stream(), draft("ann", ses, "", textEnded(fmt.Sprint("secret ", i))), draft("ann", ses, "", textEnded("secret"))))
		}
	}
	before := s.readAll(id.Stream())
	s.must(erasing("ann", id))
	after := s.readAll(id.Stream())
	if len(after) != len(before)+1 {
		t.Fatalf("%d events, then %d", len(before), len(after))
	}
	for i := range before {
		e := after[i]
		if !e.Erased() || e.DataDigest != before[i].DataDigest || e.Hash != before[i].Hash || e.ID() != before[i].ID() {
			t.Fatalf("event %d: erased %v, or it changed", e.Seq, e.Erased())
		}
		if err := e.Decode(); err != nil || e.Data != nil {
			t.Fatalf("decode of an erased event: %v", err)
		}
	}
	if last := after[len(before)]; last.Erased() || last.Type != event.TypeSessionErased {
		t.Fatalf("last event %+v", last)
	}
	ref := event.RefOf([]byte("a secret"))
	_, _, err := s.Blob(t.Context(), id, ref)
	refused(t, err, eventlog.ErrErased)
	if _, _, err := s.Blob(t.Context(), other, ref); err != nil {
		t.Fatalf("blob of another session: %v", err)
	}
	if row, err := s.Session(t.Context(), id); err != nil || row.Status != "erased" || row.Title != "" {
		t.Fatalf("tombstone %+v %v", row, err)
	}
	if runs, _, err := s.Runs(t.Context(), eventlog.RunFilter{SessionID: id}, eventlog.Page{}); err != nil || len(runs) != 0 {
		t.Fatalf("runs %v %v", runs, err)
	}
	for _, e := range s.readAll(other.Stream()) {
		if e.Erased() {
			t.Fatalf("event %d of another session is erased", e.Seq)
		}
	}
	s.must(command(other.Stream(), draft("ann", other, "", textEnded("goes on"))))
	s.sound()
}

// An erasing append takes with it what shares its transaction and stands before it.
func testEraseConcurrent(t *testing.T, s *suite) {
	id := s.session("ann")
	err := inParallel(24, func(i int) error {
		a := command(id.Stream(), draft("ann", id, "", textEnded("secret")))
		a.Require = []eventlog.Condition{{Table: derived.Sessions, Where: []derived.Col{{Name: "session_id", Value: string(id)}}, Column: "status", In: []any{"open"}}}
		if i == 12 {
			a = erasing("ann", id)
		}
		_, err := s.Append(within(t), a)
		if failed := (*eventlog.ConditionError)(nil); errors.As(err, &failed) && failed.Found == "erased" {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := s.readAll(id.Stream())
	for i, e := range all {
		if e.Erased() == (i == len(all)-1) {
			t.Fatalf("event %d of %d: erased %v", e.Seq, len(all), e.Erased())
		}
	}
	s.sound()
}

func testClosed(t *testing.T, s *suite) {
	id := s.session("ann")
	// What was accepted before Close is committed by it; what comes after is refused.
	errs := make(chan error, 64)
	for range cap(errs) {
		go func() {
			_, err := s.Append(within(t), command(id.Stream(), draft("ann", id, "", textEnded("x"))))
			errs <- err
		}()
	}
	first := <-errs
	s.stop()
	committed := 1
	for range cap(errs) - 1 {
		if err := <-errs; err == nil {
			committed++
		} else {
			refused(t, err, eventlog.ErrClosed)
		}
	}
	_, err := s.Append(t.Context(), command(id.Stream(), draft("ann", id, "", textEnded("x"))))
	refused(t, errors.Join(first, err), eventlog.ErrClosed)
	if _, err := s.Read(t.Context(), id.Stream(), 0, 1); !errors.Is(err, eventlog.ErrClosed) {
		t.Fatalf("read of a closed store: %v", err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatalf("second close: %v", err)
	}
	s.start()
	if all := s.readAll(id.Stream()); len(all) != 1+committed {
		t.Fatalf("%d events, %d were acknowledged", len(all)-1, committed)
	}
}

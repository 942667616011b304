package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// long is a lease that does not end within a test; short ends soon.
const (
	long  = time.Hour
	short = 40 * time.Millisecond
)

// beat makes a node known.
func (s *suite) beat(id eventlog.NodeID, ttl time.Duration, roots ...string) eventlog.Lease {
	s.t.Helper()
	l, err := s.Beat(s.t.Context(), eventlog.Node{ID: id, Name: "of " + string(id), Roots: roots}, ttl)
	if err != nil {
		s.t.Fatalf("beat of %s: %v", id, err)
	}
	return l
}

// take takes work, or fails the test.
func (s *suite) take(id eventlog.NodeID, limit int, mine bool) []event.Stream {
	s.t.Helper()
	got, err := s.Take(s.t.Context(), id, eventlog.Sessions, limit, mine)
	if err != nil {
		s.t.Fatalf("take for %s: %v", id, err)
	}
	return got
}

func (s *suite) node(id eventlog.NodeID) eventlog.NodeRow {
	s.t.Helper()
	rows, err := s.ListNodes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(rows, func(r eventlog.NodeRow) bool { return r.ID == id })
	if i < 0 {
		s.t.Fatalf("%s is not listed", id)
	}
	return rows[i]
}

// untilDead waits until the store says that a node's lease has ended.
func (s *suite) untilDead(id eventlog.NodeID) {
	s.t.Helper()
	ctx := within(s.t)
	for s.node(id).Alive {
		select {
		case <-time.After(short / 10):
		case <-ctx.Done():
			s.t.Fatalf("the lease of %s does not end", id)
		}
	}
}

// queued makes a session with a run that waits, and gives its stream.
func (s *suite) queued() event.Stream {
	s.t.Helper()
	id := s.session("ann")
	run := newID(s.t, event.NewRunID)
	s.must(command(id.Stream(), draft("ann", id, run, runCreated("hello")), draft("ann", id, run, &event.RunQueued{})))
	return id.Stream()
}

// by is an owner's append of a node; epoch 0 claims.
func by(node eventlog.NodeID, stream event.Stream, head, epoch int64, events ...event.Event) eventlog.Append {
	a := owned(stream, head, epoch, events...)
	a.Entries[0].Node, a.Entries[0].Claim = node, epoch == 0
	return a
}

func atRest(a eventlog.Append) eventlog.Append {
	a.Entries[0].Rest = true
	return a
}

func fact(n int) event.Event {
	return draft("ann", "", "", &event.OwnerClaimed{Owner: fmt.Sprintf("fact %d", n)})
}

// A node lives by its lease, by the store's clock. // I-16
func testNodes(_ *testing.T, s *suite) {
	before, err := s.Now(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	l := s.beat("a", long, "r2", "r1")
	s.beat("b", short)
	after, err := s.Now(s.t.Context())
	if err != nil || l.Now.Before(before) || l.Now.After(after) || l.Until.Sub(l.Now) != long {
		s.t.Fatalf("lease %v to %v, asked for between %v and %v: %v", l.Now, l.Until, before, after, err)
	}
	a := s.node("a")
	if !a.Alive || a.Released || !slices.Equal(a.Roots, []string{"r1", "r2"}) || a.Name != "of a" || !a.Until.Equal(l.Until) {
		s.t.Errorf("a: %+v", a)
	}
	s.untilDead("b")
	if b := s.node("b"); b.Released {
		s.t.Errorf("b was not released: %+v", b)
	}
	s.beat("b", long) // a node that was cut off for a while
	if !s.node("b").Alive {
		s.t.Error("b has beaten and is not alive")
	}
	first := a.Since
	if err := s.Release(s.t.Context(), "a"); err != nil {
		s.t.Fatal(err)
	}
	if a := s.node("a"); a.Alive || !a.Released || !a.Since.Equal(first) {
		s.t.Errorf("a was released: %+v", a)
	}
	if err := s.Release(s.t.Context(), "nobody"); err != nil {
		s.t.Errorf("release of a node that is not known: %v", err)
	}
	if _, err := s.Take(s.t.Context(), "a", eventlog.Sessions, 1, false); !errors.Is(err, eventlog.ErrFenced) {
		s.t.Errorf("a node without a lease takes work: %v", err)
	}
}

// Of a stream that a living node holds nobody else is the owner; of one at rest
// anybody may be. // I-11 I-15
func testHolders(_ *testing.T, s *suite) {
	s.beat("a", long)
	s.beat("b", long)
	stream := s.queued()
	s.must(by("a", stream, 3, 0, fact(1)))
	_, err := s.Append(s.t.Context(), by("b", stream, 4, 0, fact(2)))
	var held *eventlog.HeldError
	if !errors.As(err, &held) || held.By != "a" || held.Stream != stream || !held.Until.Equal(s.node("a").Until) {
		s.t.Fatalf("b claims what a holds: %v", err)
	}
	_, err = s.Append(s.t.Context(), by("b", stream, 4, 1, fact(2)))
	refused(s.t, err, eventlog.ErrFenced)
	_, err = s.Append(s.t.Context(), by("a", stream, 4, 2, fact(2)))
	refused(s.t, err, eventlog.ErrFenced)
	s.must(command(stream, draft("ann", "", "", &event.SessionUpdated{}))) // anybody's
	s.must(atRest(by("a", stream, 5, 1, fact(3))))
	s.must(by("a", stream, 6, 1, fact(4))) // it goes on in its epoch while nobody else came
	s.must(atRest(by("a", stream, 7, 1, fact(5))))
	st := s.must(by("b", stream, 8, 0, fact(6)))
	if st[0].Epoch != 2 {
		s.t.Errorf("b claimed epoch %d", st[0].Epoch)
	}
	_, err = s.Append(s.t.Context(), by("a", stream, 9, 1, fact(7)))
	refused(s.t, err, eventlog.ErrFenced)
	_, err = s.Append(s.t.Context(), by("a", stream, 9, 2, fact(7))) // the right epoch is not enough
	refused(s.t, err, eventlog.ErrFenced)
	if h := s.head(stream); h.Seq != 9 || h.Epoch != 2 {
		s.t.Errorf("%+v", h)
	}
}

// A claim takes a stream from a node whose lease has ended or that was
// released, and from no other; a beat does not bring it back. // I-11 I-16
func testTakeover(_ *testing.T, s *suite) {
	s.beat("b", long)
	for _, end := range []func(eventlog.NodeID){
		s.untilDead,
		func(id eventlog.NodeID) {
			if err := s.Release(s.t.Context(), id); err != nil {
				s.t.Fatal(err)
			}
		},
	} {
		stream := s.queued()
		s.beat("a", long)
		s.must(by("a", stream, 3, 0, fact(1)))
		s.beat("a", short)
		end("a")
		s.must(by("b", stream, 4, 0, fact(2)))
		s.beat("a", long)
		_, err := s.Append(s.t.Context(), by("a", stream, 5, 1, fact(3)))
		refused(s.t, err, eventlog.ErrFenced)
		_, err = s.Append(s.t.Context(), by("a", stream, 5, 0, fact(3)))
		var held *eventlog.HeldError
		if !errors.As(err, &held) {
			s.t.Errorf("a claims back: %v", err)
		}
	}
}

// Work is handed out once, what waits longest first; what was handed out is
// fenced before its new holder has said a word. // I-11
func testTake(_ *testing.T, s *suite) {
	s.beat("a", long)
	var streams []event.Stream
	for range 7 {
		streams = append(streams, s.queued())
	}
	s.session("ann") // wants nothing
	if got := s.take("a", 2, false); !slices.Equal(got, streams[:2]) {
		s.t.Fatalf("a got %v", got)
	}
	if got := s.take("a", 2, true); !slices.Equal(got, streams[:2]) {
		s.t.Errorf("a has %v", got)
	}
	s.beat("b", long)
	if got := s.take("b", 2, false); !slices.Equal(got, streams[2:4]) {
		s.t.Errorf("b got %v", got)
	}
	s.must(by("a", streams[0], 3, 0, fact(1)))
	_, err := s.Append(s.t.Context(), by("b", streams[1], 3, 0, fact(1)))
	var held *eventlog.HeldError
	if !errors.As(err, &held) {
		s.t.Errorf("b claims what a was given: %v", err)
	}
	s.beat("a", short)
	s.untilDead("a")
	if got := s.take("b", 10, false); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(append(slices.Clone(streams[:2]), streams[4:]...)))) {
		s.t.Errorf("b got %v of %v", got, streams)
	}
	s.beat("a", long)
	_, err = s.Append(s.t.Context(), by("a", streams[0], 4, 1, fact(2)))
	refused(s.t, err, eventlog.ErrFenced) // in its own epoch still
	if s.head(streams[0]).Epoch != 1 {
		s.t.Error("to take is not to claim")
	}
	s.must(by("b", streams[0], 4, 0, fact(2)))
	if got := s.take("a", 10, true); len(got) != 0 {
		s.t.Errorf("a still has %v", got)
	}
}

// Nobody gets what another got, however many ask at once. // I-11
func testTakeAtOnce(_ *testing.T, s *suite) {
	var streams []event.Stream
	for range 60 {
		streams = append(streams, s.queued())
	}
	var mu sync.Mutex
	var got []event.Stream
	err := inParallel(6, func(i int) error {
		id := eventlog.NodeID(fmt.Sprintf("n%d", i))
		if _, err := s.Beat(s.t.Context(), eventlog.Node{ID: id}, long); err != nil {
			return err
		}
		for {
			some, err := s.Take(s.t.Context(), id, eventlog.Sessions, 3, false)
			if err != nil {
				return err
			}
			mu.Lock()
			got = append(got, some...)
			all := len(got)
			mu.Unlock()
			if len(some) == 0 || all >= len(streams) {
				return nil
			}
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for id := 0; len(got) < len(streams) && id < 6; id++ { // who locks a row hides it from others for a moment
		got = append(got, s.take(eventlog.NodeID(fmt.Sprintf("n%d", id)), 60, false)...)
	}
	slices.Sort(got)
	slices.Sort(streams)
	if !slices.Equal(got, streams) {
		s.t.Errorf("%d streams were handed out, %d of them once, %d wanted work", len(got), len(slices.Compact(slices.Clone(got))), len(streams))
	}
}

// What rests is looked at again only when something wakes it; who lets go of
// what has moved on meanwhile holds it still.
func testRest(_ *testing.T, s *suite) {
	s.beat("a", long)
	s.beat("b", long)
	rest := func(id eventlog.NodeID, list ...eventlog.Rested) {
		s.t.Helper()
		if err := s.Rest(s.t.Context(), id, list); err != nil {
			s.t.Fatal(err)
		}
	}
	yield := func(id eventlog.NodeID, list ...event.Stream) {
		s.t.Helper()
		if err := s.Yield(s.t.Context(), id, list); err != nil {
			s.t.Fatal(err)
		}
	}
	one, two := s.queued(), s.queued()
	s.take("a", 2, false)
	rest("b", eventlog.Rested{Stream: one, Head: 3}, eventlog.Rested{Stream: two, Head: 3}) // not its own
	rest("a", eventlog.Rested{Stream: one, Head: 3}, eventlog.Rested{Stream: two, Head: 2}) // two has moved on
	if got := s.take("a", 9, true); !slices.Equal(got, []event.Stream{two}) {
		s.t.Fatalf("a holds %v", got)
	}
	if got := s.take("b", 9, false); len(got) != 0 {
		s.t.Fatalf("b got %v", got)
	}
	session, _ := one.Session()
	s.must(command(one, draft("ann", session, "", &event.SessionUpdated{})))
	if got := s.take("b", 9, false); len(got) != 0 {
		s.t.Fatalf("a change of settings woke %v", got)
	}
	run := newID(s.t, event.NewRunID)
	s.must(command(one, draft("ann", session, run, &event.CancelRequested{})))
	if got := s.take("b", 9, false); !slices.Equal(got, []event.Stream{one}) {
		s.t.Fatalf("b got %v", got)
	}
	yield("b", two) // not its own
	yield("a", two)
	if got := s.take("b", 9, false); !slices.Equal(got, []event.Stream{two}) {
		s.t.Fatalf("b got %v after a let go", got)
	}
	s.must(atRest(by("b", two, 3, 0, fact(1))))
	if got := append(s.take("a", 9, true), s.take("b", 9, true)...); !slices.Equal(got, []event.Stream{one}) {
		s.t.Errorf("held are %v", got)
	}
	// A target wants work by its deliveries, and is none of the sessions.
	target := event.TargetIDFor("ann", "webhook", "https://example.com")
	s.enqueue(session, run, target)
	if got := s.take("a", 9, false); len(got) != 0 {
		s.t.Errorf("sessions: %v", got)
	}
	if got, err := s.Take(s.t.Context(), "a", eventlog.Targets, 9, false); err != nil || !slices.Equal(got, []event.Stream{target.Stream()}) {
		s.t.Errorf("targets: %v %v", got, err)
	}
}

// A stream goes to nodes only that have the roots it needs.
func testRoots(_ *testing.T, s *suite) {
	s.beat("a", long, "r1", "r2")
	s.beat("b", long, "r2")
	one, two := s.queued(), s.queued()
	for i, need := range [][]string{{"r1", "r2"}, {"r2"}} {
		stream := []event.Stream{one, two}[i]
		a := by("a", stream, 3, 0, fact(1))
		a.Entries[0].Roots = need
		s.must(a)
		if err := s.Yield(s.t.Context(), "a", []event.Stream{stream}); err != nil {
			s.t.Fatal(err)
		}
	}
	if got := s.take("b", 9, false); !slices.Equal(got, []event.Stream{two}) {
		s.t.Errorf("b got %v", got)
	}
	_, err := s.Append(s.t.Context(), by("b", one, 4, 0, fact(2)))
	refused(s.t, err, eventlog.ErrFenced)
	if got := s.take("a", 9, false); !slices.Equal(got, []event.Stream{one}) {
		s.t.Errorf("a got %v", got)
	}
}

// What is unfinished wants work again after a new start.
func testNodesReopen(_ *testing.T, s *suite) {
	s.beat("a", long)
	one, two := s.queued(), s.queued()
	s.must(by("a", one, 3, 0, fact(1)))
	if err := s.Release(s.t.Context(), "a"); err != nil {
		s.t.Fatal(err)
	}
	s.stop()
	s.start()
	s.beat("b", long)
	got := s.take("b", 9, false)
	if want := []event.Stream{one, two}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		s.t.Errorf("b got %v, want %v", got, want)
	}
	s.must(by("b", one, 4, 0, fact(2)))
}

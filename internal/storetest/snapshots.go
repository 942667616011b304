package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// snapshotVersion is the version of the snapshots that CheckSnapshot knows.
const snapshotVersion = 5

// stateOf is what the suite folds events to: their number and the last one's hash.
func stateOf(events []event.Event) []byte {
	return []byte(fmt.Sprintf("private: %d events, then %s", len(events), events[len(events)-1].Hash))
}

// CheckSnapshot compares a snapshot with its events, in small steps.
func CheckSnapshot(snap eventlog.Snapshot, read func(after int64) ([]event.Event, error)) error {
	if snap.Version != snapshotVersion {
		return nil
	}
	var all []event.Event
	for int64(len(all)) < snap.Head {
		events, err := read(int64(len(all)))
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return errors.New("events are missing")
		}
		all = append(all, events...)
	}
	if !bytes.Equal(stateOf(all[:snap.Head]), snap.State) {
		return errors.New("another state")
	}
	return nil
}

// snapshot makes a snapshot of a session as it is now.
func (s *suite) snapshot(id event.SessionID) eventlog.Snapshot {
	s.t.Helper()
	events := s.readAll(id.Stream())
	last := &events[len(events)-1]
	return eventlog.Snapshot{SessionID: id, Version: snapshotVersion, Head: last.Seq, Epoch: last.Epoch, Hash: last.Hash, State: stateOf(events)}
}

func (s *suite) save(snap eventlog.Snapshot) {
	s.t.Helper()
	snap.Hash = event.Digest{} // the store's to stamp
	if err := s.SaveSnapshot(s.t.Context(), snap); err != nil {
		s.t.Fatalf("save snapshot: %v", err)
	}
}

// has fails the test unless this is the snapshot of its session.
func (s *suite) has(want eventlog.Snapshot) {
	s.t.Helper()
	got, err := s.Snapshot(s.t.Context(), want.SessionID)
	if err != nil || got.Version != want.Version || got.Head != want.Head || got.Epoch != want.Epoch || got.Hash != want.Hash || !bytes.Equal(got.State, want.State) {
		s.t.Fatalf("snapshot of version %d at %d (epoch %d) %v %q, want %d at %d (epoch %d) %q",
			got.Version, got.Head, got.Epoch, err, got.State, want.Version, want.Head, want.Epoch, want.State)
	}
}

func testSnapshots(t *testing.T, s *suite) {
	id, other := s.session("ann"), s.session("ann")
	_, err := s.Snapshot(t.Context(), id)
	refused(t, err, eventlog.ErrNotFound)
	first := s.snapshot(id)
	s.save(first)
	s.has(first)
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("one")), draft("ann", id, "", textEnded("two"))))
	second := s.snapshot(id)
	s.save(second)
	s.save(first) // an older one comes late
	s.has(second)
	s.save(s.snapshot(other))
	s.has(second)

	for name, change := range map[string]func(*eventlog.Snapshot){
		"within an append": func(x *eventlog.Snapshot) { x.Head-- },
		"behind the end":   func(x *eventlog.Snapshot) { x.Head += 5 },
		"another epoch":    func(x *eventlog.Snapshot) { x.Epoch += 1 },
		"no session":       func(x *eventlog.Snapshot) { x.SessionID = "ses_nobody" },
	} {
		x := second
		x.Version++ // else it would give way as it is
		change(&x)
		if err := s.SaveSnapshot(t.Context(), x); !errors.Is(err, eventlog.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := second
	large.Version++
	large.State = make([]byte, eventlog.MaxSnapshot+1)
	if err := s.SaveSnapshot(t.Context(), large); err == nil || errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("a snapshot that is too large: %v", err)
	}
	s.has(second)
	s.sound()
	large.State = bytes.Repeat([]byte("x"), eventlog.MaxSnapshot)
	s.save(large)

	// Between appends of many, without an end of theirs.
	err = inParallel(8, func(i int) error {
		for range 20 {
			if i%2 == 0 {
				if _, err := s.Append(t.Context(), command(other.Stream(), draft("ann", other, "", textEnded("more")))); err != nil {
					return err
				}
				continue
			}
			h, err := s.Head(t.Context(), other.Stream())
			if err != nil {
				return err
			}
			snap := eventlog.Snapshot{SessionID: other, Version: 1, Head: h.Seq, Epoch: h.Epoch, State: []byte("state")}
			if err := s.SaveSnapshot(t.Context(), snap); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	s.stop()
	refused(t, s.SaveSnapshot(t.Context(), second), eventlog.ErrClosed)
	s.start()
	s.has(eventlog.Snapshot{SessionID: id, Version: large.Version, Head: large.Head, Epoch: large.Epoch, Hash: large.Hash, State: large.State})
}

// An older program does not touch what a newer one wrote; a newer one replaces
// what it cannot read.
func testSnapshotVersions(t *testing.T, s *suite) {
	id := s.session("ann")
	newer := s.snapshot(id)
	newer.Version++
	s.save(newer)
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("one"))))
	s.save(s.snapshot(id))
	s.has(newer)
	newest := s.snapshot(id)
	newest.Version += 2
	s.save(newest)
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("two"))))
	s.save(s.snapshot(id))
	s.has(newest)
	s.sound() // what it does not know it does not judge
}

func testSnapshotsErased(t *testing.T, s *suite) {
	id, other := s.session("ann"), s.session("ann")
	late := s.snapshot(id)
	s.save(late)
	s.save(s.snapshot(other))
	s.must(erasing("ann", id))
	_, err := s.Snapshot(t.Context(), id)
	refused(t, err, eventlog.ErrNotFound)
	late.Version++
	s.save(late) // it was on its way
	_, err = s.Snapshot(t.Context(), id)
	refused(t, err, eventlog.ErrNotFound)
	s.has(s.snapshot(other))
	s.sound()

	if found, err := s.Findings(t.Context(), true); err != nil || len(found) != 0 {
		t.Fatalf("rebuild: %q %v", found, err)
	}
	_, err = s.Snapshot(t.Context(), other)
	refused(t, err, eventlog.ErrNotFound)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.SaveSnapshot(gone, s.snapshot(other)); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
}

func testDamagedSnapshots(t *testing.T, s *suite) {
	id := s.session("ann")
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("one"))))
	good := s.snapshot(id)
	s.save(good)
	s.must(command(id.Stream(), draft("ann", id, "", textEnded("two"))))
	s.sound()
	for name, c := range map[string]struct {
		change func(*eventlog.Snapshot)
		want   string
	}{
		"state": {func(x *eventlog.Snapshot) { x.State = []byte("private: another") }, "another state"},
		"hash":  {func(x *eventlog.Snapshot) { x.Hash[3]++ }, "hash"},
		"head":  {func(x *eventlog.Snapshot) { x.Head-- }, "hash"},
		"end":   {func(x *eventlog.Snapshot) { x.Head += 9 }, "not in the log"},
	} {
		bad := good
		c.change(&bad)
		s.Damage(t, Damage{Kind: DamageSnapshot, Snapshot: bad})
		found, err := s.Findings(t.Context(), false)
		if err != nil || len(found) != 1 || !strings.Contains(found[0], c.want) || !strings.Contains(found[0], string(id)) || strings.Contains(found[0], "private") {
			t.Errorf("%s: found %q %v, want one with %q", name, found, err, c.want)
		}
		s.Damage(t, Damage{Kind: DamageSnapshot, Snapshot: good})
		s.sound()
	}
}

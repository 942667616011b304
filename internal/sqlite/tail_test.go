package sqlite

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/storecore"
)

// What is read from memory is what stands in the log, from wherever it is read;
// what memory does not hold any more is read from there.
func TestTailIsTheLog(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Sync: SyncNormal, MaxReadBytes: 1000})
	id := newSession(t)
	for i := range storecore.TailEvents {
		a := said(id, strings.Repeat("x", i*7))
		a.Entries[0].Events = append(a.Entries[0].Events, event.Event{SessionID: id, UserID: a.Entries[0].Events[0].UserID, Data: &event.TextEnded{}})
		mustAppend(t, s, a)
	}
	hits := 0
	for _, limit := range []int{1, 7, 1000} {
		for _, most := range []int{1000, 1 << 40} {
			for after := int64(0); after <= 2*storecore.TailEvents+1; after++ {
				want, err := readEvents(t.Context(), s.readers, id.Stream(), after, limit, most)
				if err != nil {
					t.Fatal(err)
				}
				got, ok := s.tails.Read(id.Stream(), after, limit, most)
				if !ok {
					continue
				}
				hits++
				if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
					t.Fatalf("%d after %d: memory has %d events, the log %d, or others", limit, after, len(got), len(want))
				}
			}
		}
	}
	if hits < 6*storecore.TailEvents/2 || hits > 6*(storecore.TailEvents+2) {
		t.Errorf("%d reads were answered from memory", hits)
	}
	if events, err := s.Read(t.Context(), id.Stream(), 0, 1000); err != nil || len(events) != 2*storecore.TailEvents {
		t.Errorf("%d events, %v", len(events), err)
	}
}

// The memory for the newest events is bounded, over all streams and in each.
func TestTailsAreBounded(t *testing.T) {
	const most = 3 * (1000 + storecore.EventCost)
	s := open(t, Config{Dir: t.TempDir(), Sync: SyncNormal, TailBytes: most})
	var ids []event.SessionID
	for range 5 {
		id := newSession(t)
		ids = append(ids, id)
		mustAppend(t, s, said(id, strings.Repeat("x", 900)))
		if _, bytes := s.tails.Kept(); bytes > most {
			t.Errorf("%d bytes are kept of %d", bytes, most)
		}
	}
	mustAppend(t, s, said(ids[0], strings.Repeat("x", 2*storecore.TailBytes))) // more than one may have
	var kept []bool
	for _, id := range ids {
		_, ok := s.tails.Read(id.Stream(), 0, 10, 1000)
		kept = append(kept, ok)
		if events, err := s.Read(t.Context(), id.Stream(), 0, 10); err != nil || len(events) == 0 {
			t.Errorf("%d events, %v", len(events), err)
		}
	}
	streams, _ := s.tails.Kept()
	if want := "[false false true true true]"; fmt.Sprint(kept) != want || streams != 3 {
		t.Errorf("kept are %v of %d, want %s", kept, streams, want)
	}
}

// While a stream is being committed to nothing is told of it from memory: who
// has read a row of that commit finds its events.
func TestTailDoesNotLagBehind(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	id := newSession(t)
	mustAppend(t, s, said(id, "before"))
	moved := map[event.Stream]eventlog.Head{id.Stream(): {}}
	s.tails.Move(maps.Keys(moved), false)
	if _, ok := s.tails.Read(id.Stream(), 0, 10, 1000); ok {
		t.Error("a stream in motion is answered for")
	}
	s.tails.Stay(maps.Keys(moved))
	if _, ok := s.tails.Read(id.Stream(), 0, 10, 1000); !ok {
		t.Error("a commit that failed is not forgotten")
	}
	mustAppend(t, s, said(id, "after"))
	if events, ok := s.tails.Read(id.Stream(), 1, 10, 1000); !ok || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), ok)
	}
}

// An erasing empties the memory of everything, and what was committed with it
// is not taken in: it may have been erased as well.
func TestTailForgetsWhatIsErased(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Rows: eventlog.Rows})
	id, other := newSession(t), newSession(t)
	mustAppend(t, s, said(other, "kept"))
	created := single(id, &event.SessionCreated{})
	var batch []*request
	for _, a := range []eventlog.Append{created, said(id, "secret"), erasing(id)} {
		r, err := s.prepare(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, r)
	}
	if err := s.byWriter(t.Context(), func(w *writer) error { w.commit(batch); return nil }); err != nil {
		t.Fatal(err)
	}
	if streams, bytes := s.tails.Kept(); streams != 0 || bytes != 0 {
		t.Errorf("%d streams are kept", streams)
	}
	events, err := s.Read(t.Context(), id.Stream(), 0, 10)
	if err != nil || len(events) != 3 || !events[0].Erased() || !events[1].Erased() || events[2].Erased() {
		t.Errorf("%d events, %v", len(events), err)
	}
	mustAppend(t, s, said(other, "after"))
	if events, ok := s.tails.Read(other.Stream(), 1, 10, 1000); !ok || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), ok)
	}
}

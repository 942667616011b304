package headroom

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

func command(d event.Data) *eventlog.Append {
	return &eventlog.Append{Entries: []eventlog.Entry{{Stream: "session:a", Expect: eventlog.AnyHead, Events: []event.Event{{Data: d}}}}}
}

// Below the reserve what would bring work is refused, and what belongs to work,
// ends it or makes room is not; below a quarter of it no act begins. Above it
// everything goes on by itself.
func TestTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free, known := uint64(100), true
		r := New(Config{Reserve: 100, Free: func() (uint64, bool) { return free, known }})
		owners := command(&event.RunStarted{})
		owners.Entries[0].Node = "gen_1"
		begins := command(&event.RunCreated{}) // a submission whose run begins with it
		begins.Entries[0].Node = "gen_1"
		begins.Entries[0].Events = append(begins.Entries[0].Events, event.Event{Data: &event.RunQueued{}}, event.Event{Data: &event.RunStarted{}})
		erase := command(&event.SessionErased{})
		erase.Erase = "ses_a"
		for _, v := range []struct {
			free        uint64
			known       bool
			refuse, act bool
		}{{100, true, false, true}, {99, true, true, true}, {25, true, true, true}, {24, true, true, false}, {0, true, true, false}, {0, false, false, true}, {1 << 40, true, false, true}} {
			free, known = v.free, v.known
			time.Sleep(time.Second)
			for _, a := range []*eventlog.Append{command(&event.RunCreated{}), command(&event.SessionCreated{}), command(&event.DeliveryReplayed{}), command(&event.AuditTokenCreated{}), command(&event.AuditRefused{}), command(nil), begins} {
				err := r.Take(a)
				var full *eventlog.FullError
				if errors.Is(err, eventlog.ErrFull) != v.refuse || v.refuse && (!errors.As(err, &full) || full.Free != v.free || full.Reserve != 100) {
					t.Errorf("%d free: %v", v.free, err)
				}
			}
			for _, a := range []*eventlog.Append{owners, erase, command(&event.CancelRequested{}), command(&event.AttentionResolved{}), command(&event.DeliveryResolved{}), command(&event.SessionClosed{}),
				command(&event.JobCancelRequested{}), command(&event.DeliveryExpired{}), command(&event.JobExpired{}), command(&event.TargetPaused{}),
				command(&event.AuditStarted{}), command(&event.AuditTokenRevoked{}), command(&event.AuditSecretChanged{})} {
				if err := r.Take(a); err != nil {
					t.Errorf("%d free: what ends work is refused: %v", v.free, err)
				}
			}
			if r.Held() == v.act {
				t.Errorf("%d free: held %v", v.free, r.Held())
			}
			if (r.Ready() != nil) != v.refuse {
				t.Errorf("%d free: ready %v", v.free, r.Ready())
			}
		}
		if got := r.State().Refused; got != 4*7 {
			t.Errorf("%d were counted as refused", got)
		}
	})
}

// The disk is asked now and then, however many ask the room.
func TestTheDiskIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := New(Config{Reserve: 1, Free: func() (uint64, bool) { asked++; return 5, true }})
		for range 1000 {
			r.Held()
			time.Sleep(time.Millisecond)
		}
		if asked != 2 {
			t.Errorf("it was asked %d times in a second", asked)
		}
	})
}

// An append that found no room speaks for the store until one finds some, or
// for a while.
func TestAFullStoreIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{})
		r.Note(eventlog.Full(errors.New("no"), true))
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("ready: %v", err)
		}
		r.Note(eventlog.ErrHeadMoved)
		if r.Ready() == nil {
			t.Error("another refusal made room")
		}
		r.Note(nil)
		if err := r.Ready(); err != nil {
			t.Errorf("after an append: %v", err)
		}
		r.Note(eventlog.Full(errors.New("no"), true))
		time.Sleep(fullFor)
		if err := r.Ready(); err != nil {
			t.Errorf("after a while: %v", err)
		}
	})
}

// A damaged store and a restored directory hold all acts back.
func TestWhatElseHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var damaged error
		restored := true
		r := New(Config{Damaged: func() error { return damaged }, Restored: func() bool { return restored }})
		if !r.Held() || r.Ready() == nil || r.Grow() != nil {
			t.Error("a restored directory begins work, or refuses what may wait")
		}
		restored = false
		time.Sleep(time.Second)
		if r.Held() || r.Ready() != nil {
			t.Error("a released directory is held")
		}
		damaged = eventlog.Damaged(errors.New("page 7"))
		if !r.Held() || r.Ready() == nil || strings.Contains(r.Ready().Error(), "page 7") {
			t.Errorf("a damaged store: held %v, ready %v", r.Held(), r.Ready())
		}
	})
}

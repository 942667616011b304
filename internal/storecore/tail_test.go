package storecore

import (
	"slices"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
)

// What somebody else writes behind a commit may be heard of before the commit
// is told of: then nothing of it is kept, for what came behind it may have erased
// it. The next commit is kept again. // I-01
func TestNewsOvertakeACommit(t *testing.T) {
	const a, b = event.Stream("session:ses_a"), event.Stream("session:ses_b")
	stamp := func(s event.Stream, seq int64) eventlog.Stamp {
		return eventlog.Stamp{Stream: s, Events: []event.Event{{Stream: s, Seq: seq}}}
	}
	streams := slices.Values([]event.Stream{a, b})
	kept := func(tails *Tails, s event.Stream, after int64) bool {
		list, ok := tails.Read(s, after, 10, 1000)
		return ok && len(list) > 0
	}
	for name, row := range map[string]struct {
		news func(*Tails)
		a, b bool
	}{
		"none":      {func(*Tails) {}, true, true},
		"of one":    {func(tails *Tails) { tails.Drop(a) }, false, true},
		"of a loss": {func(tails *Tails) { tails.Clear() }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			tails := NewTails(1 << 20)
			tails.Move(streams, false)
			row.news(tails)
			tails.Land(streams, []eventlog.Stamp{stamp(a, 1), stamp(b, 1)})
			if kept(tails, a, 0) != row.a || kept(tails, b, 0) != row.b {
				t.Errorf("kept %v and %v", kept(tails, a, 0), kept(tails, b, 0))
			}
			tails.Drop(b)
			tails.Move(streams, false)
			tails.Land(streams, []eventlog.Stamp{stamp(a, 2), stamp(b, 2)})
			if !kept(tails, a, 1) || !kept(tails, b, 1) {
				t.Error("the next commit is not kept")
			}
		})
	}
}

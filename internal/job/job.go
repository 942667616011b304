// Package job holds the rules of jobs, as pure functions: the state that is
// folded from the events of a job's stream, what it asks for next, and the rows
// that follow. A job is work over a set of deliveries that a person asked for: the
// set is fixed when the job is planned, and each delivery of it is done once.
package job

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
)

// Replay is the one kind of job.
const Replay = "replay"

// Job status.
const (
	Planned    = "planned"    // shown to who asked; nothing is done
	Running    = "running"    // started, and not at its end
	Cancelling = "cancelling" // a person asked for its end
	Completed  = "completed"  // every delivery of the set was come to
	Cancelled  = "cancelled"
)

// The words for why a delivery was skipped.
const (
	SkipGone     = "gone"             // the ledger has it no more
	SkipReplayed = "already_replayed" // since the set was chosen
	SkipResolved = "resolved"         // by a person, since the set was chosen
	SkipErased   = "erased"           // its content is gone with its session
	SkipRefused  = "target_refused"   // its address may not be used now
)

// The bounds of a job.
const (
	MaxItems    = 10_000 // deliveries of one job
	ItemsEvent  = 1_000  // of one event
	DefaultPace = 10     // replays to one target, each second
	MaxStep     = 64     // targets that one append serves
)

// State is a job as folded from its events. The zero State with ID is a job without events.
type State struct {
	ID     event.JobID
	UserID string
	Head   int64
	Epoch  int64
	Status string
	Plan   event.JobPlanned
	Items  []Item // in the order of the set

	Done, Skipped int

	at    map[event.DeliveryID]int // place in Items
	lanes []*lane                  // by target, in the order in which the set names them
	byID  map[event.TargetID]*lane
}

// Item is one delivery of the job and what came of it.
type Item struct {
	event.JobItem
	Outcome string // empty: not come to; Done, or why it was skipped
}

// Done is the outcome of a delivery that was replayed.
const Done = "replayed"

// lane is what is left to do for one target.
type lane struct {
	target event.TargetID
	left   []int     // places in Items
	last   time.Time // when one was replayed last
}

// Apply folds the next event. Events are decoded; an error is a programmer's
// mistake or a damaged log.
func (s *State) Apply(e *event.Event) error {
	if e.Seq != s.Head+1 {
		return fmt.Errorf("job %s: event %d after %d", s.ID, e.Seq, s.Head)
	}
	s.Head, s.Epoch = e.Seq, e.Epoch
	switch d := e.Data.(type) {
	case *event.JobPlanned:
		s.Plan, s.UserID, s.Status = *d, e.UserID, Planned
	case *event.JobItemsAdded:
		for _, it := range d.Items {
			s.add(it)
		}
	case *event.JobStarted:
		s.Status = Running
	case *event.JobAdvanced:
		for _, id := range d.Done {
			if l := s.settle(id, Done); l != nil {
				l.last = e.Time
				s.Done++
			}
		}
		for _, x := range d.Skipped {
			if s.settle(x.DeliveryID, x.Code) != nil {
				s.Skipped++
			}
		}
	case *event.JobCancelRequested:
		if !Ended(s.Status) {
			s.Status = Cancelling
		}
	case *event.JobEnded:
		s.Status = d.Status
	}
	return nil
}

// Ended says whether a status is an end.
func Ended(status string) bool { return status == Completed || status == Cancelled }

func (s *State) add(it event.JobItem) {
	if s.at == nil {
		s.at, s.byID = map[event.DeliveryID]int{}, map[event.TargetID]*lane{}
	}
	if _, known := s.at[it.DeliveryID]; known {
		return
	}
	l := s.byID[it.TargetID]
	if l == nil {
		l = &lane{target: it.TargetID}
		s.byID[it.TargetID] = l
		s.lanes = append(s.lanes, l)
	}
	s.at[it.DeliveryID] = len(s.Items)
	l.left = append(l.left, len(s.Items))
	s.Items = append(s.Items, Item{JobItem: it})
}

// settle notes the outcome of a delivery, once; nil: it is not of the job, or
// was settled before.
func (s *State) settle(id event.DeliveryID, outcome string) *lane {
	i, ok := s.at[id]
	if !ok || s.Items[i].Outcome != "" {
		return nil
	}
	s.Items[i].Outcome = outcome
	l := s.byID[s.Items[i].TargetID]
	l.left = slices.DeleteFunc(l.left, func(at int) bool { return at == i })
	return l
}

// Left is how many deliveries were not come to.
func (s *State) Left() int { return len(s.Items) - s.Done - s.Skipped }

// Action is what a job asks for next.
type Action struct {
	Items []event.JobItem // to be replayed now: one of a target at most
	End   string          // the status with which it ends; empty: it does not
	Wait  time.Time       // nothing before then; zero with the others empty: nothing at all
}

// Next says what the job asks for at a time. pace is how many deliveries of one
// target are replayed each second; it is kept over restarts and owners, because it
// is counted by the times of the events.
func (s *State) Next(now time.Time, pace int) Action {
	switch {
	case s.Status == Cancelling:
		return Action{End: Cancelled}
	case s.Status != Running:
		return Action{}
	case s.Left() == 0:
		return Action{End: Completed}
	}
	gap := time.Second / time.Duration(max(pace, 1))
	var due []*lane
	var soonest time.Time
	for _, l := range s.lanes {
		if len(l.left) == 0 {
			continue
		}
		switch at := l.last.Add(gap); {
		case !at.After(now):
			due = append(due, l)
		case soonest.IsZero() || at.Before(soonest):
			soonest = at
		}
	}
	if len(due) == 0 {
		return Action{Wait: soonest}
	}
	// Who waits longest comes first, so that many targets share what one append takes.
	slices.SortStableFunc(due, func(a, b *lane) int { return a.last.Compare(b.last) })
	var a Action
	for _, l := range due[:min(len(due), MaxStep)] {
		a.Items = append(a.Items, s.Items[l.left[0]].JobItem)
	}
	return a
}

// Advance gives the events that record a step, with the end when nothing is left.
func (s *State) Advance(done []event.DeliveryID, skipped []event.JobSkipped) []event.Data {
	events := []event.Data{&event.JobAdvanced{Done: done, Skipped: skipped}}
	if s.Left() == len(done)+len(skipped) && s.Status == Running {
		events = append(events, &event.JobEnded{Done: s.Done + len(done), Skipped: s.Skipped + len(skipped), Status: Completed})
	}
	return events
}

// End gives the event that ends the job as it stands.
func (s *State) End(status string) event.Data {
	return &event.JobEnded{Done: s.Done, Skipped: s.Skipped, Left: s.Left(), Status: status}
}

// Digest names a set: equal sets of deliveries in equal places, equal digests.
func Digest(items []event.JobItem) string {
	sorted := slices.SortedFunc(slices.Values(items), func(a, b event.JobItem) int { return cmp.Compare(a.DeliveryID, b.DeliveryID) })
	h := sha256.New()
	for _, it := range sorted {
		h.Write(strconv.AppendInt([]byte(it.DeliveryID+" "), it.LaneSeq, 10))
		h.Write([]byte{'\n'})
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Drift says how a set differs from another: what came, what went, and what was
// replayed in between and is there again.
type Drift struct {
	Added, Removed, Changed []event.DeliveryID
}

// Compare finds the drift from one set to another.
func Compare(was, is []event.JobItem) Drift {
	var d Drift
	before := make(map[event.DeliveryID]int64, len(was))
	for _, it := range was {
		before[it.DeliveryID] = it.LaneSeq
	}
	for _, it := range is {
		switch seq, known := before[it.DeliveryID]; {
		case !known:
			d.Added = append(d.Added, it.DeliveryID)
		case seq != it.LaneSeq:
			d.Changed = append(d.Changed, it.DeliveryID)
		}
		delete(before, it.DeliveryID)
	}
	for _, it := range was {
		if _, left := before[it.DeliveryID]; left {
			d.Removed = append(d.Removed, it.DeliveryID)
		}
	}
	return d
}

// None says whether the sets are the same.
func (d Drift) None() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

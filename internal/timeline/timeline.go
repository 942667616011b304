// Package timeline folds the events of one run into where its time and money
// went: stretches of time, and totals that add up. It is pure: the same events,
// prices and moment give the same timeline.
//
// Times are counted in whole milliseconds from the submission, by the times of
// the events. A clock that was set back makes a stretch empty, never negative.
package timeline

import (
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/llm"
)

// MaxEntries bounds the entries of a timeline; totals count what is past it too.
const MaxEntries = 2000

// Price is what the tokens of a route cost.
type Price = llm.Price

// Fold takes the events of one run. Make it with New.
type Fold struct {
	run   event.RunID
	price func(route string) (Price, bool)

	out     api.Timeline
	began   bool
	start   time.Time // of the submission
	now     int64     // the latest offset seen
	started bool
	over    bool

	entries []*api.TimelineEntry // those that are shown
	spans   []span
	open    map[string]*api.TimelineEntry // by what ends them
	planned map[string]int64              // the end of a retry wait as planned
	names   map[event.CallID]string
	step    *api.TimelineEntry
	compact *api.TimelineEntry // the compaction under way
	owner   string             // the last that claimed, once known
	ownedAt int64              // offset of the last owner's event
	waiting bool
	noOwner []span
}

// New begins the timeline of a run. price gives the price of a route by its
// name; nil: no price is known.
func New(run event.RunID, price func(route string) (Price, bool)) *Fold {
	if price == nil {
		price = func(string) (Price, bool) { return Price{}, false }
	}
	f := &Fold{run: run, price: price, open: map[string]*api.TimelineEntry{}, planned: map[string]int64{}, names: map[event.CallID]string{}}
	f.out.RunID, f.out.Status = string(run), api.RunQueued
	return f
}

// Wants says whether Add needs the data of the event: decode it then.
func (f *Fold) Wants(e *event.Event) bool {
	return e.RunID == f.run || e.Type == event.TypeOwnerClaimed
}

// Done says whether the run's last event was added.
func (f *Fold) Done() bool { return f.over }

// Add takes an event of the session's stream, in its order. Those of other runs
// may be left out. What comes before the run's creation or after its end
// changes nothing.
func (f *Fold) Add(e *event.Event) {
	if f.over {
		return
	}
	if d, ok := e.Data.(*event.RunCreated); ok && e.RunID == f.run && !f.began {
		f.began, f.start = true, e.Time
		f.out.SessionID, f.out.SubmittedAt = string(e.SessionID), e.Time
		f.begin("run", &api.TimelineEntry{Kind: api.EntryQueued, Seq: e.Seq, Route: d.Route.Name})
		return
	}
	if !f.began {
		return
	}
	f.now = max(f.now, f.offset(e.Time))
	switch d := e.Data.(type) {
	case *event.OwnerClaimed:
		f.claimed(e, d)
	default:
		if e.RunID == f.run {
			f.add(e)
		}
	}
	if !command(e.Type) {
		f.ownedAt = f.now
	}
}

// command says whether an event may come from anyone: it is no sign of an owner.
func command(t event.Type) bool {
	switch t {
	case event.TypeSessionCreated, event.TypeSessionUpdated, event.TypeSessionClosed, event.TypeSessionErased, event.TypeRunCreated,
		event.TypeRunQueued, event.TypeCancelRequested, event.TypeInterruptRequested, event.TypeAttentionResolved, event.TypeCompactionRequested:
		return true
	}
	return false
}

func (f *Fold) offset(t time.Time) int64 { return max(t.Sub(f.start).Milliseconds(), 0) }

// claimed takes the beginning of an epoch. Between the last word of the former
// owner and this one nobody is known to have worked on the run.
func (f *Fold) claimed(e *event.Event, d *event.OwnerClaimed) {
	same := f.owner != "" && f.owner == d.Owner
	f.owner = d.Owner
	if same || !f.started || f.waiting || f.now == f.ownedAt {
		return
	}
	gap := span{from: f.ownedAt, to: f.now}
	f.noOwner = append(f.noOwner, gap)
	f.show(&api.TimelineEntry{Kind: api.EntryNoOwner, StartMS: gap.from, EndMS: gap.to, Seq: e.Seq})
}

// show adds an entry, within the bound.
func (f *Fold) show(e *api.TimelineEntry) {
	if len(f.entries) >= MaxEntries {
		f.out.Omitted++
		return
	}
	f.entries = append(f.entries, e)
}

// begin opens an entry under the key by which it ends.
func (f *Fold) begin(key string, e *api.TimelineEntry) *api.TimelineEntry {
	f.end(key, "cut") // what was open there has lost its end
	e.StartMS = f.now
	f.open[key] = e
	f.show(e)
	return e
}

// end closes what is open under a key; nil: nothing is.
func (f *Fold) end(key, status string) *api.TimelineEntry {
	e := f.open[key]
	if e == nil {
		return nil
	}
	delete(f.open, key)
	e.Status, e.EndMS = status, f.reach(key, e, f.now)
	delete(f.planned, key)
	f.count(e)
	return e
}

// reach is where an entry ends that ends at this moment: a retry wait no later
// than planned, for what comes then is none.
func (f *Fold) reach(key string, e *api.TimelineEntry, now int64) int64 {
	if plan, ok := f.planned[key]; ok {
		now = min(now, max(plan, e.StartMS))
	}
	return max(now, e.StartMS)
}

func (f *Fold) count(e *api.TimelineEntry) {
	if c := causeOf(e.Kind); c != none && e.EndMS > e.StartMS {
		f.spans = append(f.spans, span{e.StartMS, e.EndMS, c})
	}
}

func usage(u *event.TokenUsage) *api.Usage {
	if u == nil {
		return nil
	}
	return &api.Usage{Input: u.Input, Output: u.Output, Reasoning: u.Reasoning, Cache: api.CacheUsage{Read: u.CacheRead, Write: u.CacheWrite}}
}

// spend counts what an attempt used.
func (f *Fold) spend(e *api.TimelineEntry, u *event.TokenUsage) {
	t := &f.out.Totals
	if u == nil {
		t.UsagePartial, t.CostPartial = true, true
		return
	}
	e.Usage = usage(u)
	t.Usage.Input += u.Input
	t.Usage.Output += u.Output
	t.Usage.Reasoning += u.Reasoning
	t.Usage.Cache.Read += u.CacheRead
	t.Usage.Cache.Write += u.CacheWrite
	p, ok := f.price(e.Route)
	if !ok {
		t.CostPartial = true
		return
	}
	cost := p.Cost((*llm.Usage)(u))
	e.Cost = &cost
	sum := cost
	if t.Cost != nil {
		sum += *t.Cost
	}
	t.Cost = &sum
}

// free says whether a failed attempt cost nothing for certain: it was refused.
func free(d *event.ModelCallFailed) bool { return !d.Output && d.Status >= 400 && d.Status < 500 }

// failedAs is how a failed attempt ended.
func failedAs(class string) string {
	if llm.Class(class) == llm.Abandoned {
		return "abandoned"
	}
	return "failed"
}

// Timeline gives what is known so far. now is the moment that an unfinished run
// has come to. It may be asked for again after further events.
func (f *Fold) Timeline(now time.Time) *api.Timeline {
	out := f.out
	end := f.now
	if f.began && !f.over {
		end = max(end, f.offset(now))
	}
	spans := slices.Clone(f.spans)
	shown := make(map[*api.TimelineEntry]int64, len(f.open)) // of open ones: their end
	for key, e := range f.open {
		to := f.reach(key, e, end)
		shown[e] = to
		if c := causeOf(e.Kind); c != none {
			spans = append(spans, span{e.StartMS, to, c})
		}
	}
	out.Entries = make([]api.TimelineEntry, 0, len(f.entries))
	for _, e := range f.entries {
		entry := *e
		if to, ok := shown[e]; ok {
			entry.EndMS, entry.Open = to, true
		}
		out.Entries = append(out.Entries, entry)
	}
	out.AsOf = f.start.Add(time.Duration(end) * time.Millisecond)
	if out.FinishedAt != nil {
		out.AsOf = *out.FinishedAt
	}
	t := &out.Totals
	if t.Cost != nil {
		c := *t.Cost
		t.Cost = &c
	}
	t.WallMS = end
	t.Split, t.NoOwnerMS = split(spans, f.noOwner, end)
	return &out
}

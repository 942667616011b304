package timeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/timeline"
)

var zero = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const run = event.RunID("run_1")

// history builds a run's events at millisecond offsets.
type history struct {
	seq    int64
	epoch  int64
	events []event.Event
}

func (h *history) at(ms int64, call event.CallID, data ...event.Data) {
	for _, d := range data {
		h.seq++
		e := event.Event{Type: d.EventType(), Seq: h.seq, RunID: run, SessionID: "ses_1", CallID: call, Epoch: h.epoch,
			Time: zero.Add(time.Duration(ms) * time.Millisecond), Data: d}
		if e.Type == event.TypeOwnerClaimed {
			h.epoch++
			e.RunID = ""
		}
		h.events = append(h.events, e)
	}
}

func (h *history) fold(price func(string) (timeline.Price, bool)) *timeline.Fold {
	f := timeline.New(run, price)
	for i := range h.events {
		f.Add(&h.events[i])
	}
	return f
}

func stored(ms int64) string { return event.FormatTime(zero.Add(time.Duration(ms) * time.Millisecond)) }

// tell writes a timeline as lines that a person can check.
func tell(t *api.Timeline) string {
	var b strings.Builder
	for _, e := range t.Entries {
		fmt.Fprintf(&b, "%s %d–%d", e.Kind, e.StartMS, e.EndMS)
		for _, s := range []string{e.Name, e.Status, e.Class} {
			if s != "" {
				b.WriteString(" " + s)
			}
		}
		if e.Open {
			b.WriteString(" …")
		}
		b.WriteString("\n")
	}
	s := t.Totals.Split
	fmt.Fprintf(&b, "wall %d = queued %d + model %d + tools %d + waiting %d + retry %d + overhead %d; no owner %d\n", t.Totals.WallMS,
		s.QueuedMS, s.ModelMS, s.ToolsMS, s.WaitingMS, s.RetryWaitMS, s.OverheadMS, t.Totals.NoOwnerMS)
	return b.String()
}

func check(t *testing.T, got *api.Timeline, want string) {
	t.Helper()
	if have := strings.TrimSpace(tell(got)); have != strings.TrimSpace(want) {
		t.Errorf("have\n%s\nwant\n%s", have, strings.TrimSpace(want))
	}
}

func call(attempt int) *event.ModelCallStarted {
	return &event.ModelCallStarted{Attempt: attempt, Model: "m", Provider: "p", Route: "main"}
}

// A run with everything: a failed attempt and its wait, parallel tools, a death
// of the daemon in a write, a person, a repair.
func story() *history {
	h := &history{}
	h.at(0, "", &event.RunCreated{Route: event.Route{Name: "main"}}, &event.RunQueued{})
	h.at(100, "", &event.OwnerClaimed{Owner: "a"}, &event.RunStarted{}, &event.StepStarted{Number: 1}, call(1))
	h.at(150, "", &event.ModelCallFailed{Attempt: 1, Class: "rate_limit", Status: 429}, &event.RetryScheduled{Attempt: 2, At: stored(1150), Class: "rate_limit"})
	h.at(1160, "", call(2))
	h.at(1500, "", &event.ModelCallCompleted{Attempt: 2, FirstOutputMS: 20, Usage: &event.TokenUsage{Input: 1000, Output: 100, CacheRead: 400}})
	h.at(1500, "c1", &event.ToolRequested{Name: "look"})
	h.at(1500, "c2", &event.ToolRequested{Name: "pay"})
	h.at(1500, "c3", &event.ToolRequested{Name: "nope"})
	h.at(1510, "c3", &event.ToolRejected{By: "policy"})
	h.at(1510, "c1", &event.ToolStarted{Name: "look"})
	h.at(1510, "c2", &event.ToolStarted{Name: "pay"})
	h.at(1600, "c1", &event.ToolCompleted{})
	h.at(9600, "", &event.OwnerClaimed{Owner: "b"})
	h.at(9600, "c2", &event.ToolInterrupted{Outcome: "unknown"})
	h.at(9600, "", &event.NeedsAttention{Calls: []event.DoubtCall{{CallID: "c2", Name: "pay"}}})
	h.at(19600, "c2", &event.AttentionResolved{Resolution: event.ResolveCompleted})
	h.at(19620, "", &event.OwnerClaimed{Owner: "c"}, &event.RunResumed{}, &event.StepEnded{}, &event.StepStarted{Number: 2}, call(1))
	h.at(19800, "", &event.ModelCallCompleted{Attempt: 1, Usage: &event.TokenUsage{Input: 10, Output: 1}}, &event.RepairRequested{Attempt: 1}, &event.StepEnded{})
	h.at(19800, "", &event.StepStarted{Number: 3, Repair: 1}, call(1))
	h.at(19900, "", &event.ModelCallCompleted{Attempt: 1, Usage: &event.TokenUsage{Input: 10, Output: 1}}, &event.StepEnded{}, &event.RunCompleted{})
	return h
}

func TestStory(t *testing.T) {
	price := func(route string) (timeline.Price, bool) {
		return timeline.Price{Input: 1, Output: 10, CacheRead: 0.5}, route == "main"
	}
	f := story().fold(price)
	out := f.Timeline(zero.Add(time.Hour)) // a run at its end does not grow
	check(t, out, `
queued 0–100 ok
step 100–19620 ok
attempt 100–150 m failed rate_limit
retry_wait 150–1150 ok rate_limit
attempt 1160–1500 m ok
tool 1510–1510 nope rejected policy
tool 1510–1600 look ok
tool 1510–9600 pay in_doubt
no_owner 1600–9600
waiting 9600–19620 pay ok
step 19620–19800 ok
attempt 19620–19800 m ok
step 19800–19900 ok
attempt 19800–19900 m ok
wall 19900 = queued 100 + model 670 + tools 90 + waiting 10020 + retry 1000 + overhead 8020; no owner 8000`)
	tot := out.Totals
	if tot.Steps != 3 || tot.Attempts != 4 || tot.ToolCalls != 3 || tot.Repairs != 1 || tot.UsagePartial || tot.CostPartial {
		t.Errorf("totals %+v", tot)
	}
	if tot.Usage.Input != 1020 || tot.Usage.Output != 102 || tot.Usage.Cache.Read != 400 {
		t.Errorf("usage %+v", tot.Usage)
	}
	if tot.Cost == nil || *tot.Cost < 0.00183999 || *tot.Cost > 0.00184001 { // (600+20)·1 + 102·10 + 400·0.5 for a million
		t.Errorf("cost %v", tot.Cost)
	}
	if out.Status != api.RunCompleted || out.FinishedAt == nil || !out.AsOf.Equal(*out.FinishedAt) || out.Entries[13].Repair != 1 {
		t.Errorf("%+v", out)
	}
}

// The time and the tokens of a summary are seen, and put down to the model; it
// is no step.
func TestCompaction(t *testing.T) {
	h := &history{}
	h.at(0, "", &event.RunCreated{Route: event.Route{Name: "main"}}, &event.RunQueued{})
	h.at(100, "", &event.OwnerClaimed{Owner: "a"}, &event.RunStarted{}, &event.StepStarted{Number: 1}, call(1))
	h.at(200, "", &event.ModelCallFailed{Attempt: 1, Class: "context_overflow", Status: 400}, &event.CompactionStarted{Reason: event.CompactOverflow}, call(1))
	h.at(300, "", &event.ModelCallFailed{Attempt: 1, Class: "server", Status: 400}, &event.RetryScheduled{Attempt: 2, At: stored(1300), Class: "server"})
	h.at(1300, "", call(2))
	h.at(1700, "", &event.ModelCallCompleted{Attempt: 2, Usage: &event.TokenUsage{Input: 500, Output: 50}}, &event.CompactionEnded{}, &event.ContextCompacted{}, call(2))
	h.at(1800, "", &event.ModelCallCompleted{Attempt: 2, Usage: &event.TokenUsage{Input: 10, Output: 1}}, &event.StepEnded{})
	h.at(1800, "", &event.CompactionStarted{Reason: event.CompactAuto}, call(1))
	h.at(1900, "", &event.ModelCallFailed{Attempt: 1, Class: "auth", Status: 401}, &event.CompactionFailed{Code: "model_auth"}, &event.RunCompleted{})
	out := h.fold(nil).Timeline(zero.Add(time.Hour))
	check(t, out, `
queued 0–100 ok
step 100–1800 ok
attempt 100–200 m failed context_overflow
compaction 200–1700 overflow ok
attempt 200–300 m failed server
retry_wait 300–1300 ok server
attempt 1300–1700 m ok
attempt 1700–1800 m ok
compaction 1800–1900 auto failed model_auth
attempt 1800–1900 m failed auth
wall 1900 = queued 100 + model 800 + tools 0 + waiting 0 + retry 1000 + overhead 0; no owner 0`)
	if tot := out.Totals; tot.Steps != 1 || tot.Attempts != 5 || tot.Usage.Input != 510 || out.Entries[4].Step != 0 || out.Entries[7].Step != 1 {
		t.Errorf("%+v", out)
	}
}

// While a run goes on its open entries reach to now, and a planned wait no further than planned.
func TestOpen(t *testing.T) {
	h := &history{}
	h.at(0, "", &event.RunCreated{}, &event.RunQueued{})
	f := h.fold(nil)
	check(t, f.Timeline(zero.Add(70*time.Millisecond)), "queued 0–70 …\nwall 70 = queued 70 + model 0 + tools 0 + waiting 0 + retry 0 + overhead 0; no owner 0")
	h.at(100, "", &event.RunStarted{}, &event.StepStarted{Number: 1}, call(1))
	f = h.fold(nil)
	check(t, f.Timeline(zero.Add(300*time.Millisecond)), `
queued 0–100 ok
step 100–300 …
attempt 100–300 m …
wall 300 = queued 100 + model 200 + tools 0 + waiting 0 + retry 0 + overhead 0; no owner 0`)
	h.at(310, "", &event.ModelCallFailed{Attempt: 1, Class: "server"}, &event.RetryScheduled{Attempt: 2, At: stored(400)})
	f = h.fold(nil)
	out := f.Timeline(zero.Add(350 * time.Millisecond))
	if e := out.Entries[3]; !e.Open || e.EndMS != 350 || !out.Totals.UsagePartial || !out.Totals.CostPartial {
		t.Errorf("%+v", out)
	}
	check(t, f.Timeline(zero.Add(time.Second)), `
queued 0–100 ok
step 100–1000 …
attempt 100–310 m failed server
retry_wait 310–400 …
wall 1000 = queued 100 + model 210 + tools 0 + waiting 0 + retry 90 + overhead 600; no owner 0`)
	if none := timeline.New(run, nil).Timeline(zero); none.Totals.WallMS != 0 || none.Entries == nil {
		t.Errorf("of nothing: %+v", none)
	}
}

// A planned start of a tool is a wait; a claim by the same life of a process is no gap.
func TestToolRetry(t *testing.T) {
	h := &history{}
	h.at(0, "", &event.RunCreated{}, &event.OwnerClaimed{Owner: "a"}, &event.RunStarted{}, &event.StepStarted{Number: 1})
	h.at(0, "c", &event.ToolRequested{Name: "pay"}, &event.ToolStarted{Name: "pay"})
	h.at(50, "c", &event.ToolRetrying{At: stored(1050), Attempt: 2})
	h.at(1050, "c", &event.ToolRetrying{Attempt: 2})
	h.at(1100, "", &event.OwnerClaimed{Owner: "a"})
	h.at(1200, "c", &event.ToolTimeout{})
	h.at(1200, "", &event.RunFailed{})
	check(t, h.fold(nil).Timeline(zero), `
queued 0–0 ok
step 0–1200 cut
tool 0–50 pay retrying
retry_wait 50–1050 pay ok
tool 1050–1200 pay timeout
wall 1200 = queued 0 + model 0 + tools 200 + waiting 0 + retry 1000 + overhead 0; no owner 0`)
}

func TestDeliveries(t *testing.T) {
	f := story().fold(nil)
	at := func(ms int64) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	ev := func(ms int64, d event.Data) event.Event { return event.Event{Seq: ms, Time: at(ms), Data: d} }
	out := f.Timeline(zero)
	before := out.Totals
	n := len(out.Entries)
	f.Deliver(out, &timeline.Delivery{ID: "dlv_1", Target: "tgt_1", Status: api.DeliveryDelivered, Created: at(19900), Updated: at(25100), Attempts: 2,
		Events: []event.Event{
			ev(19900, &event.DeliveryEnqueued{DeliveryID: "dlv_1"}), ev(20000, &event.DeliveryAttemptStarted{Attempt: 1, DeliveryID: "dlv_1"}),
			ev(20050, &event.DeliveryAttemptStarted{Attempt: 7, DeliveryID: "dlv_other"}),
			ev(20100, &event.DeliveryAttemptFailed{Attempt: 1, DeliveryID: "dlv_1", Code: "http_500", Status: 500}),
			ev(25000, &event.DeliveryAttemptStarted{Attempt: 2, DeliveryID: "dlv_1"}),
			ev(25100, &event.DeliveryDelivered{Attempt: 2, DeliveryID: "dlv_1", Status: 204}),
		}}, at(99999))
	f.Deliver(out, &timeline.Delivery{ID: "dlv_2", Status: api.DeliveryRetrying, Created: at(19900), Updated: at(20000), Attempts: 3, LastCode: "dns"}, at(30000))
	out.Entries = out.Entries[n:]
	check(t, out, `
delivery 19900–25100 delivered
delivery_attempt 20000–20100 failed http_500
delivery_attempt 25000–25100 ok
delivery 19900–30000 retrying dns …
wall 19900 = queued 100 + model 670 + tools 90 + waiting 10020 + retry 1000 + overhead 8020; no owner 8000`)
	// Of a clock that was set back nothing is negative.
	back := &api.Timeline{}
	f.Deliver(back, &timeline.Delivery{ID: "dlv_3", Status: api.DeliveryDelivered, Created: at(-5000), Updated: at(-9000),
		Events: []event.Event{ev(-100, &event.DeliveryAttemptStarted{Attempt: 1, DeliveryID: "dlv_3"})}}, at(-9999))
	for _, e := range back.Entries {
		if e.StartMS != 0 || e.EndMS != 0 || e.Open {
			t.Errorf("%+v", e)
		}
	}
	if out.Totals != before {
		t.Error("a delivery changed the totals of the run")
	}
}

func TestBound(t *testing.T) {
	h := &history{}
	h.at(0, "", &event.RunCreated{}, &event.RunStarted{}, &event.StepStarted{Number: 1})
	for i := range timeline.MaxEntries {
		h.at(int64(2*i), "", call(i+1))
		h.at(int64(2*i+1), "", &event.ModelCallFailed{Attempt: i + 1, Class: "abandoned"})
	}
	out := h.fold(nil).Timeline(zero)
	if len(out.Entries) != timeline.MaxEntries || out.Omitted != 2 || out.Totals.Attempts != timeline.MaxEntries || out.Totals.Split.ModelMS != timeline.MaxEntries {
		t.Errorf("%d entries, %d omitted, %+v", len(out.Entries), out.Omitted, out.Totals)
	}
}

// kinds are events as no rules would write them: what the fold promises holds for all.
func kinds(t *rapid.T) event.Data {
	n := rapid.IntRange(1, 3).Draw(t, "n")
	at := stored(rapid.Int64Range(0, 5000).Draw(t, "at"))
	return rapid.SampledFrom([]event.Data{
		&event.RunCreated{}, &event.RunQueued{}, &event.RunStarted{}, &event.OwnerClaimed{Owner: string(rune('a' + n))},
		&event.StepStarted{Number: n}, &event.StepEnded{}, &event.StepFailed{}, call(n),
		&event.ModelCallCompleted{Attempt: n, Usage: &event.TokenUsage{Input: 1, CacheRead: 5}}, &event.ModelCallFailed{Attempt: n}, &event.RetryScheduled{At: at},
		&event.RetryScheduled{At: "never"}, &event.ToolRequested{Name: "x"}, &event.ToolStarted{}, &event.ToolRetrying{At: at}, &event.ToolRetrying{},
		&event.ToolCompleted{}, &event.ToolFailed{}, &event.ToolTimeout{}, &event.ToolInterrupted{}, &event.ToolRejected{}, &event.NeedsAttention{}, &event.RunResumed{},
		&event.AttentionResolved{}, &event.CancelRequested{}, &event.RepairRequested{}, &event.ContractChecked{},
	}).Draw(t, "kind")
}

// Over any history of events: the split adds up to the wall time, nothing is
// negative, entries stand in order, a later look sees no less, and the split is
// what a count of every single millisecond gives.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{}
		h.at(0, "", &event.RunCreated{})
		ms := int64(0)
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			ms += rapid.Int64Range(-20, 100).Draw(t, "step") // clocks may be set back
			h.at(ms, event.CallID(rapid.SampledFrom([]string{"", "c1", "c2"}).Draw(t, "call")), kinds(t))
		}
		ended := rapid.Bool().Draw(t, "ended")
		if ended {
			h.at(ms, "", &event.RunCancelled{})
			h.at(ms+50, "", call(1)) // late: it changes nothing
		}
		f := h.fold(func(string) (timeline.Price, bool) { return timeline.Price{Input: 1}, true })
		now := rapid.Int64Range(-100, 4000).Draw(t, "now")
		first := f.Timeline(zero.Add(time.Duration(now) * time.Millisecond))
		later := f.Timeline(zero.Add(time.Duration(max(now, 0)+77) * time.Millisecond))
		for _, out := range []*api.Timeline{first, later} {
			sound(t, out)
		}
		if later.Totals.WallMS < first.Totals.WallMS || ended && tell(later) != tell(first) {
			t.Fatalf("first\n%slater\n%s", tell(first), tell(later))
		}
		if again := f.Timeline(zero.Add(time.Duration(now) * time.Millisecond)); tell(again) != tell(first) {
			t.Fatal("a look changed the timeline")
		}
	})
}

func sound(t *rapid.T, out *api.Timeline) {
	s, tot := out.Totals.Split, out.Totals
	sum := s.QueuedMS + s.ModelMS + s.ToolsMS + s.WaitingMS + s.RetryWaitMS + s.OverheadMS
	if sum != tot.WallMS || min(s.QueuedMS, s.ModelMS, s.ToolsMS, s.WaitingMS, s.RetryWaitMS, s.OverheadMS, tot.NoOwnerMS) < 0 || tot.NoOwnerMS > s.OverheadMS {
		t.Fatalf("sum %d:\n%s", sum, tell(out))
	}
	if tot.Cost != nil && *tot.Cost < 0 {
		t.Fatalf("cost %v", *tot.Cost)
	}
	last := int64(0)
	for _, e := range out.Entries {
		if e.StartMS < last || e.EndMS < e.StartMS || e.EndMS > tot.WallMS {
			t.Fatalf("entry %+v in\n%s", e, tell(out))
		}
		last = e.StartMS
	}
	if want := count(out); want != s {
		t.Fatalf("split %+v, counted %+v:\n%s", s, want, tell(out))
	}
}

// count is the split, millisecond by millisecond.
func count(out *api.Timeline) (s api.TimelineSplit) {
	for ms := range out.Totals.WallMS {
		is := map[string]bool{}
		for _, e := range out.Entries {
			if e.StartMS <= ms && ms < e.EndMS {
				is[e.Kind] = true
			}
		}
		switch {
		case is[api.EntryQueued]:
			s.QueuedMS++
		case is[api.EntryWaiting]:
			s.WaitingMS++
		case is[api.EntryTool] && !is[api.EntryNoOwner]:
			s.ToolsMS++
		case is[api.EntryAttempt] && !is[api.EntryNoOwner]:
			s.ModelMS++
		case is[api.EntryRetryWait]:
			s.RetryWaitMS++
		default:
			s.OverheadMS++
		}
	}
	return s
}

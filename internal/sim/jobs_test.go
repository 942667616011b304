package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/sim"
)

// A job's set is fixed before it starts, each delivery of it comes to one outcome,
// by the pace of its target, and the end says what came of all. // I-07
func TestJobStreams(t *testing.T) {
	items := []event.JobItem{{DeliveryID: "a", LaneSeq: 1, TargetID: "tgt_1"}, {DeliveryID: "b", LaneSeq: 2, TargetID: "tgt_1"}}
	plan, set := &event.JobPlanned{Count: 2, Digest: job.Digest(items)}, &event.JobItemsAdded{Items: items}
	begun := []event.Data{plan, set, &event.JobStarted{}}
	done := func(ids ...event.DeliveryID) event.Data { return &event.JobAdvanced{Done: ids} }
	ended := func(done, skipped, left int, status string) event.Data {
		return &event.JobEnded{Done: done, Skipped: skipped, Left: left, Status: status}
	}
	with := func(datas ...event.Data) []event.Data { return append(begun[:3:3], datas...) }
	for name, c := range map[string]struct {
		datas []event.Data
		want  string
	}{
		"whole":                 {with(done("a"), &event.JobAdvanced{Skipped: []event.JobSkipped{{Code: job.SkipErased, DeliveryID: "b"}}}, ended(1, 1, 0, job.Completed), &event.JobExpired{}), ""},
		"called off":            {with(done("a"), &event.JobCancelRequested{}, ended(1, 0, 1, job.Cancelled)), ""},
		"a plan is called off":  {[]event.Data{plan, set, &event.JobCancelRequested{}, ended(0, 0, 2, job.Cancelled)}, ""},
		"no plan":               {[]event.Data{set}, "begins with its plan"},
		"another set":           {[]event.Data{&event.JobPlanned{Count: 2, Digest: job.Digest(items[:1])}, set, &event.JobStarted{}}, "the one that was planned"},
		"a set that grows":      {with(set), "whole before it is worked on"},
		"named twice":           {[]event.Data{plan, set, set}, "each delivery once"},
		"started twice":         {with(&event.JobStarted{}), "started once"},
		"not started":           {[]event.Data{plan, set, done("a")}, "when it was started"},
		"done twice":            {with(done("a"), done("a")), "come to once"},
		"of another set":        {with(done("c")), "come to once"},
		"too fast":              {with(done("a", "b")), "keep their pace"},
		"about nothing":         {with(&event.JobAdvanced{}), "about something"},
		"skipped for no reason": {with(&event.JobAdvanced{Skipped: []event.JobSkipped{{Code: "tired", DeliveryID: "a"}}}), "known reasons"},
		"behind its end":        {with(&event.JobCancelRequested{}, done("a")), "until its end"},
		"completed too soon":    {with(done("a"), ended(1, 0, 1, job.Completed)), "came to each delivery"},
		"a wrong sum":           {with(done("a"), done("b"), ended(1, 0, 1, job.Completed)), "says what was done"},
		"ended unasked":         {with(ended(0, 0, 2, job.Cancelled)), "that was called off"},
		"ended twice":           {with(done("a"), done("b"), ended(2, 0, 0, job.Completed), ended(2, 0, 0, job.Completed)), "a job ends once"},
		"gone while at work":    {with(&event.JobExpired{}), "stays in the list"},
		"of another kind":       {with(&event.TargetResumed{}), "nothing else"},
	} {
		l, last := sim.New("job:job_1"), event.Digest{}
		for i, d := range c.datas {
			e := event.Event{Stream: "job:job_1", Seq: int64(i) + 1, Type: d.EventType(), Data: d, Time: time.Unix(int64(i), 0)}
			e.Hash = e.ChainHash(last)
			last = e.Hash
			l.Add(&e)
		}
		if got := strings.Join(l.Found(), "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What a job says that it replayed, and what was replayed in its name, are the same
// in each append; so are who starts one, and the audit stream.
func TestJobsAndTheirReplays(t *testing.T) {
	advanced := event.Event{Stream: "job:job_1", Data: &event.JobAdvanced{Done: []event.DeliveryID{"a"}}}
	replayed := func(id event.DeliveryID) event.Event {
		return event.Event{Stream: "target:tgt_1", Data: &event.DeliveryReplayed{DeliveryID: id, JobID: "job_1"}}
	}
	started := event.Event{Stream: "job:job_1", Data: &event.JobStarted{}}
	told := event.Event{Stream: event.AuditStream, Data: &event.AuditDeliveryReplayed{Job: "job_1"}}
	for name, c := range map[string]struct {
		events []event.Event
		ok     bool
	}{
		"both":                 {[]event.Event{advanced, replayed("a")}, true},
		"told and not done":    {[]event.Event{advanced}, false},
		"done and not told":    {[]event.Event{replayed("a")}, false},
		"another":              {[]event.Event{advanced, replayed("b")}, false},
		"twice":                {[]event.Event{advanced, replayed("a"), replayed("a")}, false},
		"started":              {[]event.Event{started, told}, true},
		"started and not told": {[]event.Event{started}, false},
	} {
		if found := sim.Jobs(c.events); (len(found) == 0) != c.ok {
			t.Errorf("%s: %v", name, found)
		}
	}
}

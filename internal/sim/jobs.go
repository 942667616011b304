package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/job"
)

// NewJob begins with the first event of a job.
func NewJob() *Log {
	return &Log{job: &jobChecker{outcome: map[event.DeliveryID]string{}, target: map[event.DeliveryID]event.TargetID{}, last: map[event.TargetID]time.Time{}}}
}

// jobChecker holds a job to its rules: its set is fixed before it is started, each
// delivery of it comes to one outcome, and it ends once, with what it came to.
type jobChecker struct {
	plan    *event.JobPlanned
	items   []event.JobItem
	outcome map[event.DeliveryID]string // of the set; empty: not come to
	target  map[event.DeliveryID]event.TargetID
	last    map[event.TargetID]time.Time // when one was replayed there last
	done    int
	skipped int
	started bool
	called  bool // off, by a person
	ended   bool
	expired bool
}

func (j *jobChecker) event(c *checker) {
	c.must((c.seq == 1) == (c.e.Type == event.TypeJobPlanned), "a job begins with its plan, and only so")
	c.must(!j.expired, "nothing follows what took a job out of the list")
	if j.plan == nil {
		j.plan = &event.JobPlanned{}
	}
	switch d := c.e.Data.(type) {
	case *event.JobPlanned:
		j.plan = d
	case *event.JobItemsAdded:
		c.must(!j.started && !j.called, "a set is whole before it is worked on")
		for _, it := range d.Items {
			_, twice := j.outcome[it.DeliveryID]
			c.must(!twice, "a set names each delivery once")
			j.outcome[it.DeliveryID], j.target[it.DeliveryID] = "", it.TargetID
			j.items = append(j.items, it)
		}
	case *event.JobStarted:
		c.must(!j.started && !j.called && !j.ended, "a job is started once")
		c.must(len(j.items) == j.plan.Count && job.Digest(j.items) == j.plan.Digest, "the set is the one that was planned")
		j.started = true
	case *event.JobAdvanced:
		j.advance(c, d)
	case *event.JobCancelRequested:
		c.must(!j.called && !j.ended, "a job is called off once, before its end")
		j.called = true
	case *event.JobEnded:
		left := len(j.items) - j.done - j.skipped
		c.must(!j.ended && (j.started || j.called), "a job ends once")
		c.must(d.Done == j.done && d.Skipped == j.skipped && d.Left == left, "a job's end says what was done")
		switch d.Status {
		case job.Completed:
			c.must(left == 0 && !j.called, "a job is completed when it came to each delivery of its set")
		default:
			c.must(d.Status == job.Cancelled && j.called, "a job that was called off is cancelled")
		}
		j.ended = true
	case *event.JobExpired:
		c.must(j.ended || !j.started, "what is under way stays in the list")
		j.expired = true
	default:
		c.must(false, "a job's stream holds what is about it and nothing else")
	}
}

// advance: each delivery of the set is come to once, by the pace for its target.
func (j *jobChecker) advance(c *checker, d *event.JobAdvanced) {
	c.must(j.started && !j.called && !j.ended, "a job goes on when it was started, until its end")
	c.must(len(d.Done)+len(d.Skipped) > 0, "a job's step is about something")
	for _, id := range d.Done {
		j.settle(c, id, job.Done)
		to := j.target[id]
		last, before := j.last[to]
		c.must(!before || c.e.Time.Sub(last) >= time.Second/job.DefaultPace, "replays to one target keep their pace")
		j.last[to] = c.e.Time
	}
	j.done += len(d.Done)
	for _, x := range d.Skipped {
		j.settle(c, x.DeliveryID, x.Code)
		switch x.Code {
		case job.SkipGone, job.SkipReplayed, job.SkipResolved, job.SkipErased, job.SkipRefused:
		default:
			c.must(false, "what is skipped is skipped for one of the known reasons")
		}
	}
	j.skipped += len(d.Skipped)
}

func (j *jobChecker) settle(c *checker, id event.DeliveryID, outcome string) {
	was, known := j.outcome[id]
	c.must(known && was == "", "I-07 each delivery of a job is come to once")
	j.outcome[id] = outcome
}

// Jobs holds the events of one append against each other: what a job says it
// replayed was replayed there and then, by it, once each, and nothing else was; and
// who starts a job stands in the audit stream.
func Jobs(events []event.Event) []string {
	type act struct {
		job event.JobID
		id  event.DeliveryID
	}
	var found []string
	done, told := map[act]int{}, map[act]int{}
	for i := range events {
		id, _ := events[i].Stream.Job()
		switch d := events[i].Data.(type) {
		case *event.JobAdvanced:
			for _, dlv := range d.Done {
				told[act{id, dlv}]++
			}
		case *event.DeliveryReplayed:
			if d.JobID != "" {
				done[act{d.JobID, d.DeliveryID}]++
			}
		case *event.JobStarted:
			done[act{job: id}]++
		case *event.AuditDeliveryReplayed:
			if d.Job != "" {
				told[act{job: event.JobID(d.Job)}]++
			}
		}
	}
	for a, n := range done {
		if n != 1 || told[a] != 1 {
			found = append(found, fmt.Sprintf("an append does %v %d times and tells of it %d times", a, n, told[a]))
		}
		delete(told, a)
	}
	for a := range told {
		found = append(found, fmt.Sprintf("an append tells of %v, which it does not do", a))
	}
	slices.Sort(found)
	return found
}

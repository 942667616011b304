package timeline

import (
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
)

// add takes an event of the run itself.
func (f *Fold) add(e *event.Event) {
	switch d := e.Data.(type) {
	case *event.RunStarted:
		f.end("run", "ok")
		f.started, f.out.Status = true, api.RunRunning
	case *event.NeedsAttention:
		f.waiting, f.out.Status = true, api.RunNeedsAttention
		entry := &api.TimelineEntry{Kind: api.EntryWaiting, Seq: e.Seq, Turn: e.Turn}
		if len(d.Calls) > 0 {
			entry.Name, entry.CallID = d.Calls[0].Name, string(d.Calls[0].CallID)
		}
		f.begin("waiting", entry)
	case *event.RunResumed:
		f.waiting, f.out.Status = false, api.RunRunning
		f.end("waiting", "ok")
	case *event.RunCompleted:
		f.finish(e, api.RunCompleted)
	case *event.RunFailed:
		f.finish(e, api.RunFailed)
	case *event.RunCancelled:
		f.finish(e, api.RunCancelled)
	case *event.RunInterrupted:
		f.finish(e, api.RunInterrupted)
	case *event.RepairRequested:
		f.out.Totals.Repairs++
	case *event.StepStarted:
		f.out.Totals.Steps++
		f.step = f.begin("step", &api.TimelineEntry{Kind: api.EntryStep, Seq: e.Seq, Step: d.Number, Turn: e.Turn, Repair: d.Repair})
	case *event.StepEnded:
		f.end("step", "ok")
	case *event.StepFailed:
		if s := f.end("step", "failed"); s != nil {
			s.Class = d.Class
		}
	case *event.CompactionStarted:
		f.compact = f.begin("compaction", &api.TimelineEntry{Kind: api.EntryCompaction, Seq: e.Seq, Turn: e.Turn, Name: string(d.Reason)})
	case *event.ContextCompacted:
		f.end("compaction", "ok")
		f.compact = nil
	case *event.CompactionFailed:
		if c := f.end("compaction", "failed"); c != nil {
			c.Class = d.Code
		}
		f.compact = nil
	case *event.ModelCallStarted, *event.ModelCallCompleted, *event.ModelCallFailed, *event.RetryScheduled:
		f.model(e)
	default:
		if e.CallID != "" {
			f.tool(e)
		}
	}
}

// place gives an entry the step that it stands in.
func (f *Fold) place(e *event.Event, entry *api.TimelineEntry) *api.TimelineEntry {
	entry.Seq, entry.Turn = e.Seq, e.Turn
	if f.step != nil && f.compact == nil { // what writes a summary is of no step
		entry.Step, entry.Repair = f.step.Step, f.step.Repair
	}
	return entry
}

func (f *Fold) model(e *event.Event) {
	switch d := e.Data.(type) {
	case *event.ModelCallStarted:
		f.end("model retry", "ok")
		f.out.Totals.Attempts++
		f.begin("model", f.place(e, &api.TimelineEntry{Kind: api.EntryAttempt, Attempt: d.Attempt, Name: d.Model, Route: d.Route}))
	case *event.ModelCallCompleted:
		if a := f.end("model", "ok"); a != nil {
			a.FirstOutputMS = d.FirstOutputMS
			f.spend(a, d.Usage)
		}
	case *event.ModelCallFailed:
		a := f.end("model", failedAs(d.Class))
		if a == nil {
			return
		}
		a.Class, a.HTTPStatus = d.Class, d.Status
		if !free(d) {
			f.spend(a, nil)
		}
	case *event.RetryScheduled:
		entry := f.place(e, &api.TimelineEntry{Kind: api.EntryRetryWait, Attempt: d.Attempt, Class: d.Class})
		f.plan("model retry", entry, d.At)
	}
}

// plan opens a retry wait that ends at a stored time.
func (f *Fold) plan(key string, entry *api.TimelineEntry, at string) {
	f.begin(key, entry)
	if t, err := event.ParseTime(at); err == nil {
		f.planned[key] = f.offset(t)
	}
}

func (f *Fold) tool(e *event.Event) {
	running, retry := "tool "+string(e.CallID), "retry "+string(e.CallID)
	entry := func(kind string) *api.TimelineEntry {
		return f.place(e, &api.TimelineEntry{Kind: kind, Name: f.names[e.CallID], CallID: string(e.CallID)})
	}
	switch d := e.Data.(type) {
	case *event.ToolRequested:
		f.names[e.CallID] = d.Name
		f.out.Totals.ToolCalls++
	case *event.ToolRejected:
		r := f.begin(running, entry(api.EntryTool))
		r.Class = d.By
		f.end(running, "rejected")
	case *event.ToolStarted:
		t := entry(api.EntryTool)
		t.Name, t.Attempt = d.Name, 1
		f.begin(running, t)
	case *event.ToolRetrying:
		f.end(retry, "ok")
		if d.At != "" {
			f.end(running, "retrying")
			r := entry(api.EntryRetryWait)
			r.Attempt = d.Attempt
			f.plan(retry, r, d.At)
			return
		}
		f.end(running, "abandoned")
		t := entry(api.EntryTool)
		t.Attempt = d.Attempt
		f.begin(running, t)
	case *event.ToolCompleted:
		f.end(running, "ok")
	case *event.ToolFailed:
		f.end(running, "failed")
	case *event.ToolTimeout:
		f.end(running, "timeout")
	case *event.ToolInterrupted:
		f.end(retry, "cut")
		status := "interrupted"
		if d.Outcome != "" {
			status = "in_doubt"
		}
		f.end(running, status)
	}
}

// finish ends the run, and cuts what is still open.
func (f *Fold) finish(e *event.Event, status string) {
	for key := range f.open {
		if key == "run" {
			f.end(key, status) // it never started
		} else {
			f.end(key, "cut")
		}
	}
	at := f.start.Add(time.Duration(f.now) * time.Millisecond)
	if e.Time.After(at) {
		at = e.Time
	}
	f.over, f.out.Status, f.out.FinishedAt = true, status, &at
	f.waiting = false
}

// Delivery is the row of a delivery, for what its stream no longer tells.
type Delivery struct {
	ID       event.DeliveryID
	Target   event.TargetID
	Status   string // as clients see it
	Created  time.Time
	Updated  time.Time
	Attempts int64
	LastCode string
	Events   []event.Event // of the target's stream about it, decoded; may be none
}

// deliveryDone says whether a delivery goes no further by itself.
func deliveryDone(status string) bool {
	switch status {
	case api.DeliveryDelivered, api.DeliveryDeadLettered, api.DeliveryResolved:
		return true
	}
	return false
}

// Deliver adds a delivery of the run's answer to a timeline. Deliveries go on
// after the run: they are no part of its wall time.
func (f *Fold) Deliver(out *api.Timeline, d *Delivery, now time.Time) {
	add := func(e api.TimelineEntry) {
		if len(out.Entries) >= MaxEntries {
			out.Omitted++
			return
		}
		out.Entries = append(out.Entries, e)
	}
	whole := api.TimelineEntry{
		Kind: api.EntryDelivery, Status: d.Status, StartMS: f.offset(d.Created), Attempt: int(d.Attempts), Class: d.LastCode,
		DeliveryID: string(d.ID), TargetID: string(d.Target), Open: !deliveryDone(d.Status),
	}
	whole.EndMS = f.offset(d.Updated)
	if whole.Open {
		whole.EndMS = f.offset(now)
	}
	whole.EndMS = max(whole.EndMS, whole.StartMS)
	at := whole.StartMS
	attempts := map[int]*api.TimelineEntry{}
	var order []*api.TimelineEntry
	for i := range d.Events {
		e := &d.Events[i]
		at = max(at, f.offset(e.Time))
		end := func(n int, status, code string, http int) {
			if a := attempts[n]; a != nil && a.Open {
				a.EndMS, a.Open, a.Status, a.Class, a.HTTPStatus = at, false, status, code, http
			}
		}
		switch x := e.Data.(type) {
		case *event.DeliveryEnqueued:
			if x.DeliveryID == d.ID {
				whole.Seq = e.Seq
			}
		case *event.DeliveryAttemptStarted:
			if x.DeliveryID == d.ID {
				a := &api.TimelineEntry{Kind: api.EntryDeliveryAttempt, StartMS: at, EndMS: whole.EndMS, Open: true, Seq: e.Seq, Attempt: x.Attempt,
					DeliveryID: string(d.ID), TargetID: string(d.Target)}
				attempts[x.Attempt] = a
				order = append(order, a)
			}
		case *event.DeliveryDelivered:
			if x.DeliveryID == d.ID {
				end(x.Attempt, "ok", "", x.Status)
			}
		case *event.DeliveryAttemptFailed:
			if x.DeliveryID == d.ID {
				end(x.Attempt, "failed", x.Code, x.Status)
			}
		}
	}
	add(whole)
	for _, a := range order {
		if a.Open && !whole.Open { // its end stands further on than what was read
			a.Open, a.Status = false, "cut"
		}
		a.EndMS = max(a.EndMS, a.StartMS)
		add(*a)
	}
}

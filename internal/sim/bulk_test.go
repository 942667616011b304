package sim_test

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/job"
)

// jobSeen is what was seen of a job.
type jobSeen struct {
	plan   *event.JobPlanned
	items  []event.JobItem
	asked  bool // for its work, or for its end
	ended  bool
	status api.Job // as a client was told last
}

// bulk is a plan as clients know it.
type bulk struct {
	id, token string
}

// job takes note of what is done to a job, and of what a job does to deliveries.
func (w *watch) job(st *stream, e *event.Event) {
	id, _ := st.id.Job()
	j := w.jobs[id]
	switch d := e.Data.(type) {
	case *event.JobPlanned:
		w.give("j", string(id))
		w.jobs[id] = &jobSeen{plan: d}
	case *event.JobItemsAdded:
		j.items = append(j.items, d.Items...)
	case *event.JobStarted, *event.JobCancelRequested:
		if !j.asked {
			w.working++
		}
		j.asked = true
	case *event.JobAdvanced:
		for _, x := range d.Skipped {
			w.skipped(id, j, x)
		}
	case *event.JobEnded:
		w.h.count("job " + d.Status)
		j.ended = true
		w.working--
	}
}

// item gives a delivery of a job's set, as it stood when that was chosen.
func (j *jobSeen) item(id event.DeliveryID) event.JobItem {
	i := slices.IndexFunc(j.items, func(it event.JobItem) bool { return it.DeliveryID == id })
	if i < 0 {
		return event.JobItem{}
	}
	return j.items[i]
}

// skipped holds the reason for which a job leaves a delivery out against how that
// stands: none of them passes again.
func (w *watch) skipped(id event.JobID, j *jobSeen, x event.JobSkipped) {
	w.h.count("skipped " + x.Code)
	l := w.lanes[x.DeliveryID]
	moved := l.place != j.item(x.DeliveryID).LaneSeq
	ok := true
	switch x.Code {
	case job.SkipReplayed:
		ok = moved
	case job.SkipResolved:
		ok = moved || l.ended == "resolved"
	case job.SkipErased:
		ok = w.streams[l.session.Stream()].erased
	case job.SkipRefused:
		ok = false // every address here may be used
	}
	if !ok {
		w.note("%s skips %s, as %s: it is %+v", id, x.DeliveryID, x.Code, *l)
	}
}

// replayed holds a replay by a job against the job: it is of its set, stands where
// it stood when it was shown, and is what the job is about.
func (w *watch) replayed(l *deliverySeen, d *event.DeliveryReplayed) {
	j := w.jobs[d.JobID]
	if j == nil || !j.asked {
		w.note("%s is replayed by %s, which does nothing", d.DeliveryID, d.JobID)
		return
	}
	if it := j.item(d.DeliveryID); it.LaneSeq != l.place || it.TargetID != l.target {
		w.note("%s replays %s, which stood at %d and stands at %d", d.JobID, d.DeliveryID, it.LaneSeq, l.place)
	}
	if l.ended != "dead-lettered" && (l.ended != "resolved" || !j.plan.Force) || d.Forced != (l.ended == "resolved") || d.Reason != j.plan.Reason {
		w.note("%s replays %s, which is %q: %+v", d.JobID, d.DeliveryID, l.ended, *d)
	}
}

// bulk is what a person does with dead letters in numbers: show a set, start what
// was shown, or something at once, look how it goes on, call it off.
func (c *client) bulk() {
	cs := c.h.clients
	cs.mu.Lock()
	plans, jobs := slices.Clone(cs.plans), slices.Clone(cs.jobs)
	cs.mu.Unlock()
	switch n := c.r.IntN(12); {
	case n < 3 && len(plans) > 0:
		c.start(plans[c.r.IntN(len(plans))])
	case n < 5 && len(jobs) > 0:
		c.progress(jobs[c.r.IntN(len(jobs))])
	case n == 5 && len(jobs) > 0:
		c.ask("POST", "/v1/jobs/"+jobs[c.r.IntN(len(jobs))]+"/cancel", "", api.CancelJob{Reason: "I looked"})
	case n < 8:
		c.replayAll(c.choice())
	default:
		if p := c.dryRun(c.choice()); p != nil && c.r.IntN(2) == 0 {
			c.start(p)
		}
	}
}

// choice is a set of dead letters.
func (c *client) choice() *api.ReplayDeliveries {
	req := &api.ReplayDeliveries{Filter: &api.DeliveryFilter{Unresolved: true}, Reason: "they are back"}
	switch c.r.IntN(8) {
	case 0:
		req.Filter = &api.DeliveryFilter{ErrorClass: []string{"gone", "refused", "server"}[c.r.IntN(3)]}
	case 1:
		if s := c.some(); s != nil {
			req.Filter = &api.DeliveryFilter{SessionID: s.id}
		}
	case 2:
		req.Filter, req.Force = &api.DeliveryFilter{Status: "resolved"}, true
	case 3:
		req.Limit = 1
	}
	return req
}

// dryRun makes a plan; nil: it was refused, or the answer did not come.
func (c *client) dryRun(req *api.ReplayDeliveries) *bulk {
	req.DryRun = true
	status, body := c.ask("POST", "/v1/deliveries/replay", "", req)
	if status != http.StatusOK {
		c.bulkRefused(status, body)
		return nil
	}
	w, cs := c.h.watch, c.h.clients
	var p api.ReplayPlan
	if err := json.Unmarshal(body, &p); err != nil {
		w.find("dry run: %v", err)
		return nil
	}
	w.mu.Lock()
	j := w.jobs[event.JobID(p.JobID)]
	var shown []string
	if j != nil {
		for _, it := range j.items[:min(len(j.items), 100)] {
			shown = append(shown, string(it.DeliveryID))
		}
	}
	if j == nil || int64(len(j.items)) != p.Count || !slices.Equal(shown, p.DeliveryIDs) {
		w.note("a dry run shows %d deliveries, %v; its plan %s has %v", p.Count, p.DeliveryIDs, p.JobID, shown)
	}
	w.mu.Unlock()
	c.h.count("dry run")
	plan := &bulk{p.JobID, p.PlanToken}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.plans = append(cs.plans, plan)
	return plan
}

// start replays what a dry run showed, whoever else does so too.
func (c *client) start(p *bulk) {
	if j := c.replayAll(&api.ReplayDeliveries{PlanToken: p.token}); j != nil && j.ID != p.id {
		c.h.watch.find("the plan %s became the job %s", p.id, j.ID)
	}
}

// replayAll starts a job; nil: it was refused, or the answer did not come.
func (c *client) replayAll(req *api.ReplayDeliveries) *api.Job {
	status, body := c.ask("POST", "/v1/deliveries/replay", "", req)
	if status != http.StatusAccepted {
		c.bulkRefused(status, body)
		return nil
	}
	var j api.Job
	if err := json.Unmarshal(body, &j); err != nil {
		c.h.watch.find("bulk replay: %v", err)
		return nil
	}
	cs := c.h.clients
	cs.mu.Lock()
	if !slices.Contains(cs.jobs, j.ID) {
		cs.jobs = append(cs.jobs, j.ID)
	}
	cs.mu.Unlock()
	return &j
}

func (c *client) bulkRefused(status int, body []byte) {
	if status >= 400 && status < 500 {
		c.h.count("refused " + codeOf(body))
	}
}

// progress reads how a job stands: it never goes back.
func (c *client) progress(id string) {
	w := c.h.watch
	w.mu.Lock()
	j := w.jobs[event.JobID(id)]
	before := j.status
	w.mu.Unlock()
	status, body := c.ask("GET", "/v1/jobs/"+id, "", nil)
	if status != http.StatusOK {
		return
	}
	var now api.Job
	if err := json.Unmarshal(body, &now); err != nil {
		w.find("job: %v", err)
		return
	}
	rank := []string{"", api.JobPlanned, api.JobRunning, api.JobCancelling, api.JobCancelled, api.JobCompleted}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Index(rank, now.Status) < slices.Index(rank, before.Status) || now.Done < before.Done || now.Skipped < before.Skipped || now.Done+now.Skipped > now.Total ||
		now.Total != int64(len(j.items)) || now.Status == api.JobCompleted && now.Done+now.Skipped != now.Total {
		w.note("the job %s goes from %+v to %+v", id, before, now)
	}
	c.h.count("progress seen")
	if now.UpdatedAt.After(j.status.UpdatedAt) {
		j.status = now
	}
}

package deliveries

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/gate"
	"github.com/holdfast-dev/holdfast/internal/httpapi/call"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/views"
	"github.com/holdfast-dev/holdfast/internal/job"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// letterRoutes are what people do with dead letters, one by one and in numbers.
func (h *Handlers) letterRoutes() []call.Route {
	return []call.Route{
		call.Takes(h.replayDeliveries, openapi.Operation{Method: "POST", Path: "/v1/deliveries/replay", ID: "replayDeliveries", Role: gate.Operator, Summary: "Send many dead letters again",
			Notes: "`filter` says which, and must have a member. With `dry_run` nothing is replayed: the answer has the exact set, and a `plan_token` with which the same caller " +
				"replays it within `delivery.plan_time` (15 minutes). When the set is not the same any more this is a conflict (`plan_drifted`), and `issues` say what came, went or changed. " +
				"The work is a job: it goes on over restarts, at `delivery.replay_rate` replays a second to one target (10), and can be cancelled. More than `limit` are cut off, and `truncated` says so. " +
				"A token is used once; used again it answers with the job that it started.",
			Answers: []openapi.Answer{openapi.Gives[api.Job](202, "The job; Location names it."), openapi.Gives[api.ReplayPlan](200, "Of a dry run: the set.")}, Fails: []int{409}}),
		call.Takes(h.replayDelivery, openapi.Operation{Method: "POST", Path: "/v1/deliveries/{d}/replay", ID: "replayDelivery", Role: gate.Operator, Summary: "Send a delivery again",
			Notes: "A dead letter joins the tail of its target's lane with the same id and the same bytes, and a new budget of attempts and time. " +
				"With `force`, which wants a reason, so does one that was replayed already (`already_replayed`), resolved (`delivery_resolved`) or delivered; it is audited. Nothing overrides erased content, an address that may not be used, or an attempt in flight.",
			Answers: []openapi.Answer{openapi.Gives[api.Delivery](202, "The delivery as it is now.")}, Fails: []int{409, 410}}),
		call.Takes(h.resolveDelivery, openapi.Operation{Method: "POST", Path: "/v1/deliveries/{d}/resolve", ID: "resolveDelivery", Role: gate.Operator, Summary: "Say that a delivery is done with",
			Notes: "A pending or dead-lettered one is `resolved` and not sent any more; the next one of its target's lane follows. While an attempt is in flight this is a conflict (`delivery_in_flight`). " +
				"Said again it changes nothing: the first reason stays.",
			Answers: []openapi.Answer{openapi.Gives[api.Delivery](200, "The delivery as it is now.")}, Fails: []int{409, 410}}),
		call.Plain(h.listJobs, openapi.Operation{Method: "GET", Path: "/v1/jobs", ID: "listJobs", Role: gate.Reader, Summary: "List jobs, newest first",
			Params:  []openapi.Param{call.Limit, call.Cursor, call.Owner, openapi.Query("status", "string", "`planned`, `running`, `cancelling`, `completed` or `cancelled`."), call.Since, call.Until, call.Order},
			Answers: []openapi.Answer{openapi.Gives[api.List[api.Job]](200, "A page.")}}),
		call.Plain(h.getJob, openapi.Operation{Method: "GET", Path: "/v1/jobs/{j}", ID: "getJob", Role: gate.Reader, Summary: "Read how a job stands",
			Answers: []openapi.Answer{openapi.Gives[api.Job](200, "The job as it is now.")}}),
		call.Plain(h.listJobDeliveries, openapi.Operation{Method: "GET", Path: "/v1/jobs/{j}/deliveries", ID: "listJobDeliveries", Role: gate.Reader, Summary: "List the deliveries of a job, and what came of each",
			Notes:  "In the order of the set: oldest first.",
			Params: []openapi.Param{call.Limit, call.Cursor}, Answers: []openapi.Answer{openapi.Gives[api.List[api.JobDelivery]](200, "A page.")}}),
		call.Takes(h.cancelJob, openapi.Operation{Method: "POST", Path: "/v1/jobs/{j}/cancel", ID: "cancelJob", Role: gate.Operator, Summary: "Cancel a job",
			Notes:   "The request is recorded; the job's end follows. What was replayed stays so. A job that is completed is a conflict.",
			Answers: []openapi.Answer{openapi.Gives[api.Job](202, "The job as it is now.")}, Fails: []int{409}}),
	}
}

// shownPlan bounds the ids that a dry run shows; the job lists all.
const shownPlan = 100

func (h *Handlers) replayDeliveries(c *call.Call, req *api.ReplayDeliveries) error {
	if c.Given("limit") && req.Limit == 0 {
		req.Limit = -1 // none is no limit: it is not left out, and must not stand for the most
	}
	if !req.DryRun {
		row, err := h.Admission.StartReplay(c.Ctx(), c.Who.Caller, req)
		if err != nil {
			return err
		}
		c.W.Header().Set("Location", "/v1/jobs/"+string(row.ID))
		return showJob(c, http.StatusAccepted, &row)
	}
	if req.PlanToken != "" {
		const text = "does not go with dry_run: a dry run makes a plan of its own"
		return problem.New(problem.Invalid, "invalid_body", "$.plan_token %s", text).With(problem.Issue{Path: "$.plan_token", Text: text})
	}
	p, err := h.Admission.PlanReplay(c.Ctx(), c.Who.Caller, req)
	if err != nil {
		return err
	}
	j, err := jobView(&p.Job)
	if err != nil {
		return err
	}
	out := api.ReplayPlan{
		JobID: j.ID, Filter: j.Filter, Count: j.Total, Truncated: j.Truncated, Limit: j.Limit, Force: j.Force, Digest: j.Digest, DeliveryIDs: []string{},
		PlanToken: p.Token,
	}
	if j.ExpiresAt != nil {
		out.ExpiresAt = *j.ExpiresAt
	}
	for _, it := range p.Items[:min(len(p.Items), shownPlan)] {
		out.DeliveryIDs = append(out.DeliveryIDs, string(it.DeliveryID))
	}
	return c.JSON(http.StatusOK, out)
}

func showJob(c *call.Call, status int, row *eventlog.JobRow) error {
	out, err := jobView(row)
	if err != nil {
		return err
	}
	return c.JSON(status, out)
}

// jobView shows a job. A plan whose time is over is expired.
func jobView(row *eventlog.JobRow) (api.Job, error) {
	var t views.Times
	out := api.Job{
		ID: string(row.ID), Kind: row.Kind, Status: row.Status, UserID: row.UserID, Actor: row.Actor, Reason: row.Reason, Force: row.Force, Limit: row.Limit,
		Total: row.Total, Done: row.Done, Skipped: row.Skipped, Truncated: row.Truncated, Digest: row.Digest,
		CreatedAt: t.At(row.CreatedAt), UpdatedAt: t.At(row.UpdatedAt), StartedAt: t.Maybe(row.StartedAt), FinishedAt: t.Maybe(row.FinishedAt),
	}
	if row.Status == job.Planned {
		if out.ExpiresAt = t.Maybe(row.ExpiresAt); out.ExpiresAt != nil && time.Now().After(*out.ExpiresAt) {
			out.Status = api.JobExpired
		}
	}
	var f event.JobFilter
	if err := json.Unmarshal([]byte(row.Filter), &f); err != nil {
		return out, fmt.Errorf("filter of %s: %w", row.ID, err)
	}
	out.Filter = api.DeliveryFilter{
		Status: f.Status, SessionID: string(f.SessionID), RunID: string(f.RunID), TargetID: string(f.TargetID), ErrorClass: f.ErrorClass, UserID: f.UserID,
		Since: t.Maybe(f.Since), Until: t.Maybe(f.Until),
	}
	return out, t.Err
}

func (h *Handlers) listJobs(c *call.Call) error {
	page, err := c.Page()
	if err != nil {
		return err
	}
	var f eventlog.JobFilter
	if f.UserID, err = c.Owner(); err != nil {
		return err
	}
	if f.Status, err = c.OneOf("status", api.JobPlanned, api.JobRunning, api.JobCancelling, api.JobCompleted, api.JobCancelled); err != nil {
		return err
	}
	if f.Range, err = c.Range(); err != nil {
		return err
	}
	rows, next, err := h.Store.Jobs(c.Ctx(), f, page)
	if err != nil {
		return err
	}
	out := api.List[api.Job]{Items: []api.Job{}, NextCursor: next}
	for i := range rows {
		item, err := jobView(&rows[i])
		if err != nil {
			return err
		}
		out.Items = append(out.Items, item)
	}
	return c.JSON(http.StatusOK, out)
}

// job finds the job that the path names.
func (h *Handlers) job(c *call.Call) (eventlog.JobRow, error) {
	return h.Admission.FindJob(c.Ctx(), c.Who.Caller, event.JobID(c.R.PathValue("j")))
}

func (h *Handlers) getJob(c *call.Call) error {
	row, err := h.job(c)
	if err != nil {
		return err
	}
	return showJob(c, http.StatusOK, &row)
}

func (h *Handlers) listJobDeliveries(c *call.Call) error {
	row, err := h.job(c)
	if err != nil {
		return err
	}
	st, err := h.Admission.FoldJob(c.Ctx(), string(row.ID))
	if err != nil {
		return err
	}
	type placed struct {
		at   int
		item api.JobDelivery
	}
	all := make([]placed, len(st.Items))
	for i, it := range st.Items {
		all[i] = placed{i, api.JobDelivery{DeliveryID: string(it.DeliveryID), TargetID: string(it.TargetID), Outcome: it.Outcome}}
	}
	list, err := call.Window(c, "job "+string(row.ID), all, func(p *placed) string { return fmt.Sprintf("%05d", p.at) })
	if err != nil {
		return err
	}
	out := api.List[api.JobDelivery]{Items: []api.JobDelivery{}, NextCursor: list.NextCursor}
	for i := range list.Items {
		out.Items = append(out.Items, list.Items[i].item)
	}
	return c.JSON(http.StatusOK, out)
}

func (h *Handlers) cancelJob(c *call.Call, req *api.CancelJob) error {
	row, err := h.job(c)
	if err != nil {
		return err
	}
	if err := h.Admission.CancelJob(c.Ctx(), c.Who.Caller, row, req.Reason); err != nil {
		return err
	}
	if row, err = h.job(c); err != nil {
		return err
	}
	return showJob(c, http.StatusAccepted, &row)
}

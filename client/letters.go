package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/holdfast-dev/holdfast/api"
)

// JobsQuery narrows a list of jobs; an empty member does not.
type JobsQuery struct {
	Status string
	Range
}

// PlanReplay is a dry run of a bulk replay: the set as it is now, and the token
// that replays exactly it. Nothing is replayed.
func (c *Client) PlanReplay(ctx context.Context, req *api.ReplayDeliveries) (*api.ReplayPlan, error) {
	return call[api.ReplayPlan](ctx, c, c.replay(*req, true))
}

// ReplayDeliveries replays the deliveries of a filter, or of a plan, as a job.
func (c *Client) ReplayDeliveries(ctx context.Context, req *api.ReplayDeliveries) (*api.Job, error) {
	return call[api.Job](ctx, c, c.replay(*req, false))
}

// replay is the request of a bulk replay, narrowed to the user of the client as
// every list is.
func (c *Client) replay(body api.ReplayDeliveries, dry bool) *request {
	body.DryRun = dry
	if f := body.Filter; f != nil && f.UserID == "" && *f != (api.DeliveryFilter{}) {
		mine := *f
		mine.UserID = c.user
		body.Filter = &mine
	}
	r := to(http.MethodPost, "v1", "deliveries", "replay")
	r.body = &body
	return r
}

// Jobs lists jobs, newest first unless the query says otherwise.
func (c *Client) Jobs(ctx context.Context, q JobsQuery, p Page) (*api.List[api.Job], error) {
	return call[api.List[api.Job]](ctx, c, to(http.MethodGet, "v1", "jobs").with("user_id", c.user).with("status", q.Status).within(q.Range).page(p))
}

// Job reads how a job stands.
func (c *Client) Job(ctx context.Context, job string) (*api.Job, error) {
	return call[api.Job](ctx, c, to(http.MethodGet, "v1", "jobs", job))
}

// JobDeliveries lists the deliveries of a job and what came of each.
func (c *Client) JobDeliveries(ctx context.Context, job string, p Page) (*api.List[api.JobDelivery], error) {
	return call[api.List[api.JobDelivery]](ctx, c, to(http.MethodGet, "v1", "jobs", job, "deliveries").page(p))
}

// CancelJob asks for the end of a job. What it did stays.
func (c *Client) CancelJob(ctx context.Context, job, reason string) (*api.Job, error) {
	r := to(http.MethodPost, "v1", "jobs", job, "cancel")
	r.body = api.CancelJob{Reason: reason}
	return call[api.Job](ctx, c, r)
}

// AllJobs is AllSessions of jobs.
func (c *Client) AllJobs(ctx context.Context, q JobsQuery) iter.Seq2[api.Job, error] {
	return every(func(cursor string) (*api.List[api.Job], error) { return c.Jobs(ctx, q, Page{Cursor: cursor}) })
}

// AllJobDeliveries is AllSessions of the deliveries of a job.
func (c *Client) AllJobDeliveries(ctx context.Context, job string) iter.Seq2[api.JobDelivery, error] {
	return every(func(cursor string) (*api.List[api.JobDelivery], error) {
		return c.JobDeliveries(ctx, job, Page{Cursor: cursor})
	})
}

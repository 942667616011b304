package client_test

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
)

// everyJob calls what there is of jobs. Nobody works on them here.
func everyJob(t *testing.T, c *client.Client, delivery string) {
	t.Helper()
	ctx := t.Context()
	plan := must(c.PlanReplay(ctx, &api.ReplayDeliveries{Filter: &api.DeliveryFilter{Unresolved: true}}))(t)
	if plan.Count != 1 || len(plan.DeliveryIDs) != 1 || plan.DeliveryIDs[0] != delivery {
		t.Errorf("plan %+v", plan)
	}
	j := must(c.ReplayDeliveries(ctx, &api.ReplayDeliveries{PlanToken: plan.PlanToken}))(t)
	if j.ID != plan.JobID || must(c.Job(ctx, j.ID))(t).Status != api.JobRunning {
		t.Errorf("job %+v", j)
	}
	if got := must(c.JobDeliveries(ctx, j.ID, client.Page{Limit: 1}))(t); len(got.Items) != 1 || got.Items[0].DeliveryID != delivery || got.Items[0].Outcome != "" {
		t.Errorf("deliveries %+v", got)
	}
	if got := all(t, c.AllJobDeliveries(ctx, j.ID)); len(got) != 1 {
		t.Errorf("deliveries %+v", got)
	}
	if got := must(c.CancelJob(ctx, j.ID, "enough"))(t); got.Status != api.JobCancelling {
		t.Errorf("job %+v", got)
	}
	if got := must(c.Jobs(ctx, client.JobsQuery{Status: "cancelling"}, client.Page{}))(t); len(got.Items) != 1 {
		t.Errorf("jobs %+v", got)
	}
	for _, asc := range []bool{false, true} {
		list := must(c.Jobs(ctx, client.JobsQuery{Range: client.Range{Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour), Asc: asc}}, client.Page{Limit: 1}))(t)
		if len(list.Items) != 1 || list.NextCursor != "" {
			t.Errorf("jobs %+v", list)
		}
	}
	if _, err := c.Jobs(ctx, client.JobsQuery{}, client.Page{Cursor: "x"}); client.Code(err) != "invalid_cursor" {
		t.Error(err)
	}
	if _, err := c.JobDeliveries(ctx, j.ID, client.Page{Cursor: "x"}); client.Code(err) != "invalid_cursor" {
		t.Error(err)
	}
	if got := all(t, c.AllJobs(ctx, client.JobsQuery{})); len(got) != 1 {
		t.Errorf("jobs %+v", got)
	}
}
